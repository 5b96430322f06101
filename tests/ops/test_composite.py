"""softmax, norms, one_hot and interpolate: decompositions against references, against PyTorch and by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import cuvil.ops  # noqa: F401
from cuvil.dtypes import float16, float32, int32, int64
from cuvil.ops.record import Aval
from cuvil.ops.registry import get
from cuvil.support.errors import ArgumentError, AxisError, DTypeError, ShapeError
from cuvil.symbolic import symbol

from .record_checks import check_sample, draw_example

B, C, S = (symbol(x) for x in "BCS")
NORMS = ("layer_norm", "rms_norm", "group_norm", "batch_norm")


@pytest.mark.parametrize("name", ["softmax", "log_softmax", "one_hot", *NORMS, "interpolate"])
@pytest.mark.parametrize("seed", range(40))
def test_body_gives_the_reference(name: str, seed: int) -> None:
    check_sample(name, seed)


# ------------------------------------------------------------------------------------------- by hand


def test_softmax_by_hand() -> None:
    x = np.array([[0, np.log(3)], [1000, 1000], [-np.inf, 0], [-np.inf, -np.inf], [np.inf, 0]], np.float32)
    want = [[0.25, 0.75], [0.5, 0.5], [0, 1], [np.nan, np.nan], [np.nan, np.nan]]
    np.testing.assert_allclose(get("softmax").reference(x, axis=1), want, rtol=1e-6)
    with np.errstate(divide="ignore"):
        np.testing.assert_allclose(get("log_softmax").reference(x, axis=1), np.log(want), rtol=1e-5)


def test_softmax_of_nothing_is_nothing() -> None:
    assert get("softmax").reference(np.zeros((2, 0), np.float32), axis=1).shape == (2, 0)


def test_half_softmax_sums_in_float32() -> None:
    got = get("softmax").reference(np.zeros(100_000, np.float16), axis=0)
    assert got.dtype == np.float16 and got[0] == np.float16(1e-5)


def test_norms_by_hand() -> None:
    x = np.array([[1.0, 3.0]], np.float32)
    two = np.array([2.0, 2.0], np.float32)
    np.testing.assert_allclose(get("layer_norm").reference(x, two, two, axes=(1,), eps=0.0), [[0, 4]])
    np.testing.assert_allclose(get("rms_norm").reference(x, None, axes=(1,), eps=0.0), x / np.sqrt(5), rtol=1e-6)
    np.testing.assert_allclose(get("group_norm").reference(x, None, None, groups=1, eps=0.0), [[-1, 1]])
    got = get("batch_norm").reference(x, two, two * 2, two, None, axis=1, eps=0.0)
    np.testing.assert_allclose(got, [[-1, 1]])


def test_half_norms_do_not_overflow() -> None:
    x = np.array([[300.0, -300.0]], np.float16)  # 300 * 300 is past the largest float16
    np.testing.assert_allclose(get("layer_norm").reference(x, None, None, axes=(1,), eps=0.0), [[1, -1]])
    np.testing.assert_allclose(get("rms_norm").reference(x, None, axes=(1,), eps=0.0), [[1, -1]])


def test_one_hot_by_hand() -> None:
    got = get("one_hot").reference(np.array([2, 0, -1, 3]), depth=3, dtype=int32)
    np.testing.assert_array_equal(got, [[0, 0, 1], [1, 0, 0], [0, 0, 0], [0, 0, 0]])
    assert got.dtype == np.int32


def test_interpolate_by_hand() -> None:
    x = np.array([[[0.0, 10.0]]], np.float32)
    reference = get("interpolate").reference
    linear = {"sizes": (4,), "mode": "linear"}
    np.testing.assert_allclose(reference(x, **linear, align_corners=False), [[[0, 2.5, 7.5, 10]]])
    np.testing.assert_allclose(reference(x, **linear, align_corners=True), [[[0, 10 / 3, 20 / 3, 10]]], rtol=1e-6)
    x = np.arange(5)[None, None]
    nearest = {"sizes": (3,), "align_corners": False}
    np.testing.assert_array_equal(reference(x, **nearest, mode="nearest"), [[[0, 1, 3]]])
    np.testing.assert_array_equal(reference(x, **nearest, mode="nearest_exact"), [[[0, 2, 4]]])


def test_interpolate_keeps_infinities_local() -> None:
    x = np.array([[[np.inf, 0, 1, 2]]], np.float32)
    got = get("interpolate").reference(x, sizes=(8,), mode="linear", align_corners=False)
    np.testing.assert_array_equal(np.isfinite(got[0, 0]), [False] * 3 + [True] * 5)


# ------------------------------------------------------------------------------------------- PyTorch


def _float32_example(name: str, seed: int) -> tuple[dict[str, Any], list[Any]]:
    example, arrays = draw_example(get(name), seed)
    return get(name).fill_params(example.params), [None if a is None else a.astype(np.float32) for a in arrays]


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
@pytest.mark.parametrize("seed", range(15))
def test_softmax_is_pytorchs(name: str, seed: int) -> None:
    torch = pytest.importorskip("torch")
    params, (x,) = _float32_example(name, seed)
    want = getattr(torch.nn.functional, name)(torch.tensor(x), params["axis"]).numpy()
    np.testing.assert_allclose(get(name).reference(x, **params), want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize("seed", range(20))
def test_norms_are_pytorchs(name: str, seed: int) -> None:
    torch = pytest.importorskip("torch")
    functional = torch.nn.functional
    params, arrays = _float32_example(name, seed)
    x, *rest = arrays
    tensor = [None if a is None else torch.tensor(a) for a in arrays]
    if name in ("layer_norm", "rms_norm"):
        axes = params["axes"]
        if axes != tuple(range(x.ndim - len(axes), x.ndim)):
            pytest.skip("PyTorch normalises trailing axes only")
        want = getattr(functional, name)(tensor[0], [x.shape[a] for a in axes], *tensor[1:], eps=params["eps"])
    elif name == "group_norm":
        if x.shape[0] == 0 or x[0].size <= params["groups"]:
            pytest.skip("PyTorch refuses one value per group")
        want = functional.group_norm(tensor[0], params["groups"], *tensor[1:], eps=params["eps"])
    else:
        if x.ndim < 2 or x.size == 0:
            pytest.skip("PyTorch wants a batch")
        moved = torch.movedim(tensor[0], params["axis"], 1)
        want = torch.movedim(functional.batch_norm(moved, *tensor[1:], eps=params["eps"]), 1, params["axis"])
    np.testing.assert_allclose(get(name).reference(x, *rest, **params), want.numpy(), rtol=1e-3, atol=1e-3)


PYTORCH_MODES = {
    ("nearest", 3): "nearest", ("nearest", 4): "nearest", ("nearest_exact", 3): "nearest-exact",
    ("nearest_exact", 4): "nearest-exact", ("linear", 3): "linear", ("linear", 4): "bilinear", ("cubic", 4): "bicubic",
}  # fmt: skip


@pytest.mark.parametrize("mode", ["nearest", "nearest_exact", "linear", "cubic"])
@pytest.mark.parametrize("shape", [(1, 2, 5), (2, 1, 4, 7), (1, 1, 1, 3)])
@pytest.mark.parametrize("factor", [0.4, 1.0, 1.7, 3.0])
@pytest.mark.parametrize("align_corners", [False, True])
def test_interpolate_is_pytorchs(mode: str, shape: tuple[int, ...], factor: float, align_corners: bool) -> None:
    torch = pytest.importorskip("torch")
    theirs = PYTORCH_MODES.get((mode, len(shape)))
    if theirs is None or (align_corners and theirs.startswith("nearest")):
        pytest.skip("no such mode in PyTorch")
    x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    sizes = tuple(max(1, int(d * factor)) for d in shape[2:])
    corners = {} if theirs.startswith("nearest") else {"align_corners": align_corners}
    want = torch.nn.functional.interpolate(torch.tensor(x), sizes, mode=theirs, **corners).numpy()
    got = get("interpolate").reference(x, sizes=sizes, mode=mode, align_corners=align_corners)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


# -------------------------------------------------------------------------------------------- rules


def test_symbolic_shapes() -> None:
    result = get("layer_norm").shape_rule(((B, S, 8), (8,), None), {"axes": (2,), "eps": 1e-5})
    assert (result.shapes, result.obligations) == (((B, S, 8),), ())
    result = get("interpolate").shape_rule(
        ((B, 3, S + 1, 8),), {"sizes": (2 * S + 2, 16), "mode": "linear", "align_corners": False}
    )
    assert (result.shapes, result.obligations) == (((B, 3, 2 * S + 2, 16),), ())
    result = get("batch_norm").shape_rule(((B, C, S), (C,), (C,), (8,), None), {"axis": 1, "eps": 1e-5})
    assert [(o.left, o.right) for o in result.obligations] == [(8, C)]
    result = get("one_hot").shape_rule(((B, S),), {"depth": C})
    assert result.shapes == ((B, S, C),)


@pytest.mark.parametrize(
    ("name", "operands", "params", "error"),
    [
        ("softmax", [Aval((2,), float32)], {"axis": 1}, AxisError),
        ("softmax", [Aval((2,), int64)], {"axis": 0}, DTypeError),
        ("layer_norm", [Aval((2, 3), float32), Aval((2,), float32), None], {"axes": (1,)}, ShapeError),
        ("layer_norm", [Aval((2, 3), float32), Aval((3,), float16), None], {"axes": (1,)}, DTypeError),
        ("group_norm", [Aval((2, 3), float32), None, None], {"groups": 2}, ShapeError),
        ("group_norm", [Aval((2, 3), float32), None, None], {"groups": 0}, ArgumentError),
        ("one_hot", [Aval((2,), float32)], {"depth": 3}, DTypeError),
        ("one_hot", [Aval((2,), int64)], {"depth": -1}, ShapeError),
        ("interpolate", [Aval((1, 1, 4), float32)], {"sizes": (8,), "mode": "area"}, ArgumentError),
        ("interpolate", [Aval((1, 1, 4), float32)], {"sizes": (8, 8), "mode": "linear"}, ShapeError),
        ("interpolate", [Aval((1, 1, 0), float32)], {"sizes": (8,), "mode": "linear"}, ShapeError),
        ("interpolate", [Aval((1, 1, 4), int64)], {"sizes": (8,), "mode": "linear"}, DTypeError),
        (
            "interpolate",
            [Aval((1, 1, 4), float32)],
            {"sizes": (8,), "mode": "nearest", "align_corners": True},
            ArgumentError,
        ),
    ],
)
def test_refused(name: str, operands: list, params: dict, error: type[Exception]) -> None:
    record = get(name)
    with pytest.raises(error):
        record.infer(operands, record.fill_params(params))
