"""Sorting records: stability, directions, NaN, signed zeros, and their rules."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cuvil.ops  # noqa: F401  # fills the registry
from cuvil.dtypes import ALL, DType, bfloat16, float32, float64, int64
from cuvil.ops.record import Aval
from cuvil.ops.registry import get
from cuvil.support.errors import ArgumentError, AxisError, DTypeError, ShapeError
from cuvil.symbolic import symbol

NAN = math.nan
FLOATS = st.lists(st.one_of(st.floats(width=16), st.sampled_from([NAN, 0.0, -0.0, 1.0])), max_size=12)


def ref(name: str, *xs: Any, **params: Any) -> Any:
    record = get(name)
    return record.reference(*xs, **record.fill_params(params))


def order(values: list[float], descending: bool, nan_largest: bool = False) -> list[int]:
    """Stable positions by Python's sort: NaN last, or counted as the largest value."""

    def key(i: int) -> tuple[int, float]:
        v = values[i]
        if math.isnan(v):
            return (-1 if nan_largest and descending else 1, 0)
        return (0, -v if descending else v)

    return sorted(range(len(values)), key=key)


@given(FLOATS, st.booleans(), st.sampled_from([np.float16, np.float32, np.float64, ml_dtypes.bfloat16]))
@settings(max_examples=80, deadline=None)
def test_sort_and_argsort(values: list[float], descending: bool, kind: Any) -> None:
    x = np.array(values).astype(kind)
    want = order([float(v) for v in x], descending)
    got = ref("argsort", x, axis=0, descending=descending)
    assert got.dtype == np.int64
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(ref("sort", x, axis=0, descending=descending).astype(float), x[want].astype(float))


@given(FLOATS, st.booleans(), st.integers(0, 12))
@settings(max_examples=60, deadline=None)
def test_top_k(values: list[float], largest: bool, k: int) -> None:
    x = np.array(values, np.float32)
    k = min(k, len(values))
    want = order(values, largest, nan_largest=True)[:k]
    top, indices = ref("top_k", x, k=k, axis=0, largest=largest)
    np.testing.assert_array_equal(indices, want)
    np.testing.assert_array_equal(top, x[want])


@given(FLOATS, FLOATS, st.booleans())
@settings(max_examples=60, deadline=None)
def test_searchsorted(values: list[float], probes: list[float], right: bool) -> None:
    x = np.sort(np.array(values, np.float16))
    v = np.array(probes, np.float16)
    got = ref("searchsorted", x, v, right=right)
    assert got.dtype == np.int64
    np.testing.assert_array_equal(got, np.searchsorted(x, v, side="right" if right else "left"))
    for kind in (np.float32, np.float64):
        np.testing.assert_array_equal(ref("searchsorted", x.astype(kind), v.astype(kind), right=right), got)


@pytest.mark.parametrize("dt", ALL)
def test_extreme_values_of_every_dtype(dt: DType) -> None:
    if dt.is_bool:
        x = np.array([True, False, True])
    elif dt.is_float:
        x = np.array([3, -math.inf, math.inf, -1, 3]).astype(dt.numpy)
    else:
        info = np.iinfo(dt.numpy)
        x = np.array([3, info.min, info.max, 0, 3], dt.numpy)
    up = ref("argsort", x, axis=0)
    down = ref("argsort", x, axis=0, descending=True)
    assert up.tolist() == order([float(v) for v in x], False)
    assert down.tolist() == order([float(v) for v in x], True)
    assert ref("sort", x, axis=0).dtype == dt.numpy


def test_axes_and_empty_arrays() -> None:
    x = np.array([[3, 1, 2], [1, 3, 2]])
    np.testing.assert_array_equal(ref("sort", x, axis=1, descending=True), [[3, 2, 1], [3, 2, 1]])
    np.testing.assert_array_equal(ref("sort", x, axis=0), [[1, 1, 2], [3, 3, 2]])
    values, indices = ref("top_k", x, k=1, axis=0)
    assert (values.tolist(), indices.tolist()) == ([[3, 3, 2]], [[0, 1, 0]])
    assert ref("sort", np.zeros((2, 0)), axis=1).shape == (2, 0)
    assert ref("top_k", np.zeros((0, 3)), k=2, axis=1)[1].shape == (0, 2)


def test_rules() -> None:
    n = symbol("n")
    top_k = get("top_k")
    params = top_k.fill_params({"k": 5, "axis": 1})
    (values, indices), obligations = top_k.infer([Aval((2, n), bfloat16)], params)
    assert values == Aval((2, 5), bfloat16)
    assert indices == Aval((2, 5), int64)
    assert [(o.relation, o.left, o.right) for o in obligations] == [("<=", 5, n)]
    with pytest.raises(ShapeError, match="k is at most"):
        top_k.infer([Aval((2, 4), float32)], params)
    with pytest.raises(ArgumentError, match="k is 5"):
        ref("top_k", np.zeros((2, 4)), k=5, axis=1)
    with pytest.raises(AxisError):
        get("sort").infer([Aval((2,), float32)], {"axis": 1, "descending": False})
    with pytest.raises(ShapeError, match="rank 1"):
        get("searchsorted").infer([Aval((2, 2), float32), Aval((2,), float32)], {"right": False})
    with pytest.raises(DTypeError, match="do not mix"):
        get("searchsorted").infer([Aval((2,), float32), Aval((2,), float64)], {"right": False})
