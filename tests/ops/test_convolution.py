"""Convolution and pooling: against PyTorch, by hand, on symbolic shapes, and refused operands."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import cuvil.ops  # noqa: F401
from cuvil.dtypes import float32
from cuvil.ops.record import Aval
from cuvil.ops.registry import get
from cuvil.support.errors import ArgumentError, ShapeError
from cuvil.symbolic import evaluate, symbol

from .record_checks import check_sample, draw_example

N, H, W = (symbol(x) for x in "NHW")


@pytest.mark.parametrize("name", ["conv", "conv_channels_last", "conv_transpose", "max_pool", "avg_pool"])
@pytest.mark.parametrize("seed", range(40))
def test_body_gives_the_reference(name: str, seed: int) -> None:
    check_sample(name, seed)


def _float32_example(name: str, seed: int) -> tuple[dict[str, Any], list[Any]]:
    example, arrays = draw_example(get(name), seed)
    as_float = [None if a is None else np.nan_to_num(a.astype(np.float32)).clip(-9, 9) for a in arrays]
    return get(name).fill_params(example.params), as_float


def _even(pairs: Any) -> list[int]:
    return [before for before, _ in pairs]


@pytest.mark.parametrize("seed", range(40))
def test_conv_is_pytorchs(seed: int) -> None:
    torch = pytest.importorskip("torch")
    params, (x, w, bias) = _float32_example("conv", seed)
    params["padding"] = tuple((b, b) for b, _ in params["padding"])
    params["input_dilation"] = (1,) * (x.ndim - 2)
    convolve = {3: torch.nn.functional.conv1d, 4: torch.nn.functional.conv2d}[x.ndim]
    want = convolve(
        torch.tensor(x), torch.tensor(w), None if bias is None else torch.tensor(bias),
        params["strides"], tuple(_even(params["padding"])), params["dilation"], params["groups"],
    )  # fmt: skip
    np.testing.assert_allclose(get("conv").reference(x, w, bias, **params), want.numpy(), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("seed", range(40))
def test_conv_transpose_is_pytorchs(seed: int) -> None:
    torch = pytest.importorskip("torch")
    params, (x, w, bias) = _float32_example("conv_transpose", seed)
    params["padding"] = tuple((min(b, a), min(b, a)) for b, a in params["padding"])
    want_size = get("conv_transpose").shape_rule((x.shape, w.shape, None), params).shapes[0]
    if 0 in want_size:
        pytest.skip("PyTorch refuses an empty result")
    convolve = {3: torch.nn.functional.conv_transpose1d, 4: torch.nn.functional.conv_transpose2d}[x.ndim]
    want = convolve(
        torch.tensor(x), torch.tensor(w), None if bias is None else torch.tensor(bias), params["strides"],
        tuple(_even(params["padding"])), params["output_padding"], params["groups"], params["dilation"],
    )  # fmt: skip
    got = get("conv_transpose").reference(x, w, bias, **params)
    np.testing.assert_allclose(got, want.numpy(), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("seed", range(40))
def test_pools_are_pytorchs(seed: int) -> None:
    torch = pytest.importorskip("torch")
    params, (x,) = _float32_example("avg_pool", seed)
    x = np.concatenate([x, x + 1], 1) if x.shape[1] else np.ones((*x.shape[:1], 1, *x.shape[2:]), np.float32)
    params["padding"] = tuple((min(p), min(p)) for p in params["padding"])
    pads = _even(params["padding"])
    maximum = {3: torch.nn.functional.max_pool1d, 4: torch.nn.functional.max_pool2d}[x.ndim]
    common = {key: value for key, value in params.items() if key != "count_include_pad"}
    if x.shape[0] == 0:
        pytest.skip("PyTorch refuses some empty batches")
    want = maximum(
        torch.tensor(x), params["sizes"], params["strides"], pads, params["dilation"], params["ceil_mode"]
    )  # fmt: skip
    np.testing.assert_array_equal(get("max_pool").reference(x, **common), want.numpy())
    average = {3: torch.nn.functional.avg_pool1d, 4: torch.nn.functional.avg_pool2d}[x.ndim]
    params["dilation"] = (1,) * len(pads)
    want = average(
        torch.tensor(x), params["sizes"], params["strides"], pads, params["ceil_mode"], params["count_include_pad"]
    )  # fmt: skip
    np.testing.assert_allclose(get("avg_pool").reference(x, **params), want.numpy(), rtol=1e-5, atol=1e-5)


def _conv(**params: Any) -> dict[str, Any]:
    plain = {"strides": (1,), "padding": ((0, 0),), "dilation": (1,), "input_dilation": (1,), "groups": 1}
    return {**plain, **params}


def test_hand_computed_conv() -> None:
    x = np.array([[[1.0, 2, 3, 4]]], np.float32)
    w = np.array([[[1.0, 0, -1]]], np.float32)
    reference = get("conv").reference
    np.testing.assert_array_equal(reference(x, w, **_conv()), [[[-2, -2]]])
    np.testing.assert_array_equal(reference(x, w, **_conv(padding=((1, 0),), strides=(2,))), [[[-2, -2]]])
    np.testing.assert_array_equal(
        reference(x, w, np.array([10.0], np.float32), **_conv(input_dilation=(2,))), [[[9, 10, 9, 10, 9]]]
    )


def test_hand_computed_conv_transpose() -> None:
    x, w = np.array([[[1, 2]]]), np.array([[[1, 10, 100]]])
    params = {"strides": (2,), "padding": ((0, 0),), "output_padding": (0,), "dilation": (1,), "groups": 1}
    np.testing.assert_array_equal(get("conv_transpose").reference(x, w, **params), [[[1, 10, 102, 20, 200]]])


def test_conv_integers_wrap() -> None:
    x, w = np.full((1, 4, 1), 100, np.int8), np.full((1, 4, 1), 100, np.int8)
    assert get("conv").reference(x, w, **_conv())[0, 0, 0] == np.int64(40000).astype(np.int8)


def test_hand_computed_pools() -> None:
    x = np.array([[[1.0, 5, 2, 4, 3]]], np.float32)
    params = {"sizes": (2,), "strides": (2,), "padding": ((0, 0),), "dilation": (1,), "ceil_mode": True}
    np.testing.assert_array_equal(get("max_pool").reference(x, **params), [[[5, 4, 3]]])
    params = {**params, "padding": ((1, 1),), "ceil_mode": False}
    average = get("avg_pool").reference
    np.testing.assert_array_equal(average(x, **params, count_include_pad=True), [[[0.5, 3.5, 3.5]]])
    np.testing.assert_array_equal(average(x, **params, count_include_pad=False), [[[1, 3.5, 3.5]]])


def test_max_pool_propagates_nan() -> None:
    x = np.array([[[1, np.nan, 2, 3]]], np.float32)
    params = {"sizes": (2,), "strides": (2,), "padding": ((0, 0),), "dilation": (1,), "ceil_mode": False}
    np.testing.assert_array_equal(get("max_pool").reference(x, **params), [[[np.nan, 3]]])


@pytest.mark.parametrize("height", range(3, 12))
@pytest.mark.parametrize("ceil_mode", [False, True])
def test_symbolic_pool_shapes(height: int, ceil_mode: bool) -> None:
    params = {
        "sizes": (3, 2), "strides": (2, 3), "padding": ((1, 1), (0, 0)), "dilation": (1, 1), "ceil_mode": ceil_mode,
    }  # fmt: skip
    rule = get("max_pool").shape_rule
    symbolic, static = rule(((N, 4, H, W),), params).shapes[0], rule(((2, 4, height, 7),), params).shapes[0]
    assert tuple(evaluate(d, {"N": 2, "H": height, "W": 7}) for d in symbolic) == static


def test_symbolic_conv_shapes() -> None:
    rule = get("conv").shape_rule
    params = _conv(strides=(2, 1), padding=((1, 1), (0, 0)), dilation=(1, 1), input_dilation=(1, 1))
    result = rule(((N, 3, H, W), (8, 3, 3, 1), (8,)), params)
    assert result.shapes == ((N, 8, (H - 1) // 2 + 1, W),)
    assert result.obligations == ()


@pytest.mark.parametrize(
    ("name", "shapes", "params", "error"),
    [
        ("conv", [(1, 3, 8), (4, 2, 3)], _conv(), ShapeError),
        ("conv", [(1, 4, 8), (3, 2, 3)], _conv(groups=2), ShapeError),
        ("conv", [(1, 2, 8), (4, 2, 3), (3,)], _conv(), ShapeError),
        ("conv", [(1, 2, 2), (4, 2, 5)], _conv(), ShapeError),
        ("conv", [(1, 2), (4, 2)], _conv(), ShapeError),
        ("conv", [(1, 2, 8), (4, 2, 3)], _conv(strides=(1, 1)), ArgumentError),
        ("conv", [(1, 2, 8), (4, 2, 3)], _conv(strides=(0,)), ArgumentError),
        ("conv", [(1, 2, 8), (4, 2, 3)], _conv(groups=0), ArgumentError),
        (
            "max_pool",
            [(1, 2, 8)],
            {"sizes": (2,), "strides": (1,), "padding": ((2, 0),), "dilation": (1,)},
            ArgumentError,
        ),
        (
            "conv_transpose",
            [(1, 2, 8), (2, 2, 3)],
            {"strides": (2,), "padding": ((0, 0),), "output_padding": (2,), "dilation": (1,), "groups": 1},
            ArgumentError,
        ),
    ],
)
def test_refused(name: str, shapes: list, params: dict, error: type[Exception]) -> None:
    record = get(name)
    operands: list[Aval | None] = [Aval(s, float32) for s in shapes]
    operands += [None] * (len(record.operands) - len(operands))
    with pytest.raises(error):
        record.infer(operands, record.fill_params(params))
