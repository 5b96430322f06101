"""Reduction records: dtypes, accumulation, empty arrays, NaN, and their obligations."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cuvil.ops  # noqa: F401  # fills the registry
from cuvil.dtypes import ALL, FLOATS, DType, bool_, dtype, float16, float32, int8
from cuvil.ops.builder import NumpyBuilder
from cuvil.ops.record import Aval, Decomposition
from cuvil.ops.registry import get
from cuvil.support.errors import ArgumentError, AxisError, DTypeError
from cuvil.symbolic import symbol

INF, NAN = math.inf, math.nan
EMPTY_IS_AN_ERROR = ("max", "min", "logsumexp")


def ref(name: str, x: Any, **params: Any) -> Any:
    """The reference of a reduction, over all axes by default; a decomposition must agree with it."""
    record = get(name)
    if "axis" not in {p.name for p in record.params}:
        params.setdefault("axes", tuple(range(x.ndim)))
    filled = record.fill_params(params)
    want = record.reference(x, **filled)
    if isinstance(record.body, Decomposition):
        with np.errstate(all="ignore"):
            got = record.body.build(NumpyBuilder(), x, **filled)
        assert got.dtype == want.dtype
        np.testing.assert_allclose(got.astype(float), want.astype(float), rtol=1e-3)
    return want


@pytest.mark.parametrize("dt", ALL)
def test_result_dtypes_are_numpy_s(dt: DType) -> None:
    x = np.ones((2, 3), dt.numpy)
    for name, fn in (("sum", np.sum), ("prod", np.prod), ("max", np.max), ("any", np.any), ("all", np.all)):
        assert ref(name, x).dtype == fn(x).dtype, name
    for name, fn in (("cumulative_sum", np.cumsum), ("cumulative_prod", np.cumprod)):
        assert ref(name, x, axis=0).dtype == fn(x, axis=0).dtype, name
    assert ref("mean", x).dtype == np.mean(x).dtype
    assert ref("var", x).dtype == np.var(x).dtype
    assert ref("argmax", x, axis=0).dtype == np.int64
    assert ref("count_nonzero", x) == 6


def test_half_accumulates_in_float32() -> None:
    ones = np.ones(100_000, np.float16)
    assert ref("mean", ones) == 1
    assert ref("sum", np.ones(4096, np.float16)) == 4096
    assert ref("sum", np.ones(1000).astype(ml_dtypes.bfloat16)) == 1000
    assert ref("cumulative_sum", np.ones(4096, np.float16), axis=0)[-1] == 4096
    assert ref("var", np.tile(np.float16([0, 2]), 5000)) == 1
    assert ref("mean", np.full(4, 60000, np.float16)) == np.float16(60000)  # the sum would overflow float16


def test_integer_sums_widen_and_wrap() -> None:
    assert ref("sum", np.full(300, 127, np.int8)) == 300 * 127
    assert ref("sum", np.full(2, 255, np.uint8)).dtype == np.uint64
    assert ref("sum", np.full(2, 2**62, np.int64)) == -(2**63)
    assert ref("prod", np.array([True, True])).dtype == np.int64


@pytest.mark.parametrize("name", ["sum", "prod", "any", "all", "mean", "var", "std", "count_nonzero"])
def test_identity_over_nothing(name: str) -> None:
    x = np.zeros((2, 0), np.float32)
    want = {"sum": 0, "prod": 1, "any": False, "all": True, "count_nonzero": 0}.get(name, NAN)
    out = ref(name, x, axes=(1,))
    assert out.shape == (2,)
    np.testing.assert_array_equal(out, [want] * 2)
    assert ref(name, x, axes=(0,)).shape == (0,)


@pytest.mark.parametrize("name", EMPTY_IS_AN_ERROR)
def test_extremes_over_nothing(name: str) -> None:
    x = np.zeros((2, 0), np.float32)
    record = get(name)
    with pytest.raises(ArgumentError, match=name):
        record.reference(x, axes=(1,), keepdims=False)
    with pytest.raises(ValueError, match="axis 1"):
        record.infer([Aval((2, 0), float32)], {"axes": (1,), "keepdims": False})
    assert ref(name, x, axes=(0,)).shape == (0,)
    assert ref(name, x, axes=()).shape == (2, 0)
    n = symbol("n")
    (out,), obligations = record.infer([Aval((n, 3), float32)], {"axes": (0,), "keepdims": True})
    assert out.shape == (1, 3)
    assert [(o.relation, o.left, o.right) for o in obligations] == [(">=", n, 1)]
    assert record.infer([Aval((n + 1, 3), float32)], {"axes": (0,), "keepdims": True})[1] == ()


def test_arg_extremes() -> None:
    for fn, record in ((np.argmax, get("argmax")), (np.argmin, get("argmin"))):
        x = np.array([[1, 5, 5], [NAN, 2, NAN], [0, -0.0, 0]])
        np.testing.assert_array_equal(record.reference(x, axis=1, keepdims=False), fn(x, axis=1))
        half = x.astype(ml_dtypes.bfloat16)
        np.testing.assert_array_equal(record.reference(half, axis=1, keepdims=False), fn(x, axis=1))
        assert record.reference(x, axis=0, keepdims=True).shape == (1, 3)
        with pytest.raises(ArgumentError):
            record.reference(np.zeros((3, 0)), axis=1, keepdims=False)
        with pytest.raises(ArgumentError):
            record.infer([Aval((3, 0), float32)], {"axis": 1, "keepdims": False})
        assert record.reference(np.zeros((0, 3)), axis=1, keepdims=False).shape == (0,)


@pytest.mark.parametrize("dt", FLOATS)
def test_nan_propagates(dt: DType) -> None:
    x = np.array([[1, NAN, 3], [4, 5, INF]]).astype(dt.numpy)
    np.testing.assert_array_equal(ref("max", x, axes=(1,)).astype(float), [NAN, INF])
    np.testing.assert_array_equal(ref("min", x, axes=(1,)).astype(float), [NAN, 4])
    assert ref("any", np.array([NAN]).astype(dt.numpy))
    assert ref("count_nonzero", x) == 6


@pytest.mark.parametrize("dt", FLOATS)
def test_logsumexp_edges(dt: DType) -> None:
    def at(*values: float) -> float:
        return float(ref("logsumexp", np.array(values).astype(dt.numpy)))

    assert at(-INF, -INF) == -INF
    assert at(INF, 0) == INF
    assert math.isnan(at(INF, NAN))
    assert at(1000, 1000) == pytest.approx(1000 + math.log(2), rel=1e-2)
    assert at(-1000) == -1000


@given(
    st.lists(st.floats(-100, 100), min_size=2, max_size=30),
    st.sampled_from([0, 1]),
)
@settings(max_examples=40, deadline=None)
def test_moments_are_numpy_s(values: list[float], correction: int) -> None:
    x = np.array(values)
    np.testing.assert_allclose(ref("mean", x), np.mean(x), rtol=1e-13, atol=1e-13)
    np.testing.assert_allclose(ref("var", x, correction=correction), np.var(x, ddof=correction), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(ref("std", x, correction=correction), np.std(x, ddof=correction), rtol=1e-12, atol=1e-12)


def test_divisor_does_not_fall_below_zero() -> None:
    assert math.isnan(ref("var", np.array([3.0]), correction=1))
    assert ref("var", np.array([1.0, 2.0]), correction=5) == INF


def test_cumulative_initial() -> None:
    x = np.array([[1, 2, 3], [4, 5, 6]], np.int8)
    out = ref("cumulative_sum", x, axis=1, include_initial=True)
    assert out.tolist() == [[0, 1, 3, 6], [0, 4, 9, 15]]
    assert out.dtype == np.int64
    assert ref("cumulative_prod", x, axis=0, include_initial=True).tolist() == [[1, 1, 1], [1, 2, 3], [4, 10, 18]]
    n = symbol("n")
    ((out_aval,), _) = get("cumulative_sum").infer([Aval((n,), int8)], {"axis": 0, "include_initial": True})
    assert out_aval.shape == (n + 1,)


def test_no_axes_reduce_nothing() -> None:
    x = np.array([[True, False]])
    assert ref("sum", x, axes=()).tolist() == [[1, 0]]
    assert ref("max", x, axes=()).tolist() == [[True, False]]
    assert ref("mean", np.float32([1, 2]), axes=()).tolist() == [1, 2]


def test_rejections() -> None:
    x = Aval((2, 3), float32)
    with pytest.raises(AxisError, match="axis 2"):
        get("sum").infer([x], {"axes": (2,), "keepdims": False})
    with pytest.raises(AxisError, match="twice"):
        get("sum").infer([x], {"axes": (1, 1), "keepdims": False})
    with pytest.raises(DTypeError, match=r"logsumexp.*bool"):
        get("logsumexp").infer([Aval((2,), bool_)], {"axes": (0,), "keepdims": False})


def test_bool_extremes_pass_through_integers() -> None:
    """The max and min instructions take no bool, so the record accumulates in uint8."""
    record = get("max")
    assert record.accumulate(bool_).is_integer
    assert record.accumulate(float16) is float32
    assert dtype(ref("max", np.array([False, True])).dtype) is bool_
