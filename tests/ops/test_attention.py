"""scaled_dot_product_attention: its decomposition, PyTorch's values, masks by hand, and refused operands."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import cuvil.ops  # noqa: F401
from cuvil.dtypes import bool_, float16, float32, int64
from cuvil.ops.record import Aval
from cuvil.ops.registry import get
from cuvil.support.errors import DTypeError, ShapeError
from cuvil.symbolic import symbol

from .record_checks import check_sample, draw_example

B, S, T = (symbol(x) for x in "BST")
NAME = "scaled_dot_product_attention"


def attention(*operands: Any, causal: bool = False, scale: float | None = None) -> Any:
    return get(NAME).reference(*operands, causal=causal, scale=scale)


@pytest.mark.parametrize("seed", range(80))
def test_decomposition_gives_the_reference(seed: int) -> None:
    check_sample(NAME, seed)


@pytest.mark.parametrize("seed", range(40))
def test_is_pytorchs(seed: int) -> None:
    torch = pytest.importorskip("torch")
    example, arrays = draw_example(get(NAME), seed)
    q, k, v = (a.astype(np.float32) for a in arrays[:3])
    if 0 in (*q.shape, *k.shape, *v.shape):
        pytest.skip("PyTorch's kernels differ on empty operands")
    mask = None if arrays[3] is None else np.atleast_2d(arrays[3])
    causal = example.params["causal"] and mask is None  # PyTorch refuses both
    theirs = None if mask is None else torch.tensor(mask if mask.dtype == bool else mask.astype(np.float32))
    groups = q.shape[1] // k.shape[1]
    want = torch.nn.functional.scaled_dot_product_attention(
        torch.tensor(q), torch.tensor(np.repeat(k, groups, 1)), torch.tensor(np.repeat(v, groups, 1)),
        theirs, is_causal=causal, scale=example.params["scale"],
    ).numpy()  # fmt: skip
    ours = mask if mask is None or mask.dtype == bool else mask.astype(np.float32)
    got = attention(q, k, v, ours, causal=causal, scale=example.params["scale"])
    seen = np.ones(got.shape, bool)
    if mask is not None and mask.dtype == bool:
        # Fully masked rows are NaN here; PyTorch's CPU kernels give NaN or 0 by version.
        rows = np.broadcast_to(mask, (*q.shape[:3], k.shape[2])).any(3, keepdims=True)
        seen = np.broadcast_to(rows, got.shape)
        assert np.isnan(got[~seen]).all()
    np.testing.assert_allclose(got[seen], want[seen], rtol=1e-4, atol=1e-4)


def test_grouped_heads_share_keys() -> None:
    rng = np.random.default_rng(0)
    q, k, v = (rng.normal(size=(1, heads, 3, 4)).astype(np.float32) for heads in (6, 2, 2))
    got = attention(q, k, v)
    for head in range(6):
        own = slice(head // 3, head // 3 + 1)
        np.testing.assert_allclose(got[:, head : head + 1], attention(q[:, head : head + 1], k[:, own], v[:, own]))


def test_causal_is_aligned_to_the_first_key() -> None:
    q, k = np.zeros((1, 1, 2, 1), np.float32), np.zeros((1, 1, 4, 1), np.float32)
    v = np.array([1, 3, 5, 7], np.float32).reshape(1, 1, 4, 1)
    np.testing.assert_array_equal(attention(q, k, v, causal=True).ravel(), [1, 2])


def test_masks_by_hand() -> None:
    q, k = np.zeros((1, 1, 2, 1), np.float32), np.zeros((1, 1, 2, 1), np.float32)
    v = np.array([1, 3], np.float32).reshape(1, 1, 2, 1)
    np.testing.assert_array_equal(attention(q, k, v, np.array([[True, False], [True, True]])).ravel(), [1, 2])
    np.testing.assert_array_equal(attention(q, k, v, np.array([[False, False], [False, True]])).ravel(), [np.nan, 3])
    added = np.array([np.log(3), 0], np.float32)
    np.testing.assert_allclose(attention(q, k, v, added).ravel(), [1.5, 1.5], rtol=1e-6)


def test_default_scale() -> None:
    q = np.full((1, 1, 1, 4), 2.0, np.float32)
    k = np.stack([np.zeros(4), np.ones(4)]).astype(np.float32)[None, None]
    v = np.array([0, 1], np.float32).reshape(1, 1, 2, 1)
    np.testing.assert_allclose(attention(q, k, v).ravel(), [1 / (1 + np.exp(-4))], rtol=1e-6)


def test_halves_compute_in_float32() -> None:
    q = np.full((1, 1, 1, 64), 40, np.float16)  # the scores, 102,400, are past the largest float16
    v = np.ones((1, 1, 2, 1), np.float16)
    got = attention(q, np.repeat(q, 2, 2), v, scale=1.0)
    assert got.dtype == np.float16 and got.ravel() == [1]


def test_symbolic_shapes() -> None:
    result = get(NAME).shape_rule(((B, 8, S, 64), (B, 2, T, 64), (B, 2, T, 32), (S, T)), {})
    assert (result.shapes, result.obligations) == (((B, 8, S, 32),), ())
    result = get(NAME).shape_rule(((B, 8, S, 64), (B, 8, T, 64), (B, 8, T, 64), (B, 1, 1, S)), {})
    assert [(o.left, o.right) for o in result.obligations] == [(S, T)]


@pytest.mark.parametrize(
    ("operands", "error"),
    [
        ([Aval((1, 3, 2, 4), float32), Aval((1, 2, 2, 4), float32), Aval((1, 2, 2, 4), float32)], ShapeError),
        ([Aval((1, 2, 2, 4), float32), Aval((1, 2, 2, 5), float32), Aval((1, 2, 2, 4), float32)], ShapeError),
        ([Aval((2, 2, 4), float32)] * 3, ShapeError),
        ([Aval((1, 2, 2, 4), float32)] * 3 + [Aval((3, 2), bool_)], ShapeError),
        ([Aval((1, 2, 2, 4), float32)] * 3 + [Aval((2, 2), int64)], DTypeError),
        ([Aval((1, 2, 2, 4), float32)] * 2 + [Aval((1, 2, 2, 4), float16)], DTypeError),
    ],
)
def test_refused(operands: list, error: type[Exception]) -> None:
    with pytest.raises(error):
        get(NAME).infer([*operands, None][:4], get(NAME).fill_params({}))
