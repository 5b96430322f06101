"""Indexing records: the four modes, negative and foreign indices, repeated writes, and their rules."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cuvil.ops  # noqa: F401  # fills the registry
from cuvil.dtypes import bool_, float32, float64, int32, int64
from cuvil.ops.indexing import MODES, SCATTER_OPS
from cuvil.ops.record import Aval
from cuvil.ops.registry import get
from cuvil.support.errors import ArgumentError, DTypeError, IndexOutOfBoundsError, ShapeError
from cuvil.symbolic import symbol


def ref(name: str, *xs: Any, **params: Any) -> Any:
    record = get(name)
    return record.reference(*xs, **record.fill_params(params))


def position(i: int, size: int, mode: str) -> int | None:
    """What the contract says of one index; None where it is filled."""
    if mode == "clip":
        return min(max(i, 0), size - 1)
    if mode == "wrap":
        return i % size
    if -size <= i < size:
        return i % size
    assert mode == "fill"
    return None


@given(st.lists(st.integers(-20, 20), max_size=8), st.sampled_from(("clip", "wrap", "fill")), st.integers(1, 6))
@settings(max_examples=80, deadline=None)
def test_modes_of_every_read(indices: list[int], mode: str, size: int) -> None:
    x = np.arange(10, 10 + size, dtype=np.float32)
    i = np.array(indices, np.int64)
    where = [position(v, size, mode) for v in indices]
    want = [-1 if p is None else x[p] for p in where]
    for name in ("take", "take_along_axis", "gather"):
        axis = {} if name == "gather" else {"axis": 0}
        np.testing.assert_array_equal(ref(name, x, i, mode=mode, fill=-1, **axis), np.array(want, np.float32))


@given(
    st.lists(st.tuples(st.integers(-9, 9), st.integers(-5, 5)), max_size=8),
    st.sampled_from(("clip", "wrap", "fill")),
    st.sampled_from(SCATTER_OPS),
)
@settings(max_examples=80, deadline=None)
def test_scatter_in_order(writes: list[tuple[int, int]], mode: str, op: str) -> None:
    x = np.arange(1, 5, dtype=np.int32)
    want = x.copy()
    combine = {"set": lambda a, b: b, "add": int.__add__, "mul": int.__mul__, "min": min, "max": max}[op]
    for i, v in writes:
        p = position(i, 4, mode)
        if p is not None:
            want[p] = combine(int(want[p]), v)
    indices = np.array([i for i, _ in writes], np.int64)
    updates = np.array([v for _, v in writes], np.int32)
    got = ref("scatter", x, updates, indices, op=op, mode=mode)
    np.testing.assert_array_equal(got, want)
    assert x.tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize("name", ["take", "take_along_axis", "gather"])
@pytest.mark.parametrize("index", [3, -4])
def test_out_of_bounds_names_what_is_wrong(name: str, index: int) -> None:
    params: dict[str, Any] = {} if name == "gather" else {"axis": 0}
    with pytest.raises(IndexOutOfBoundsError, match=rf"index {index} .* axis 0 of size 3"):
        ref(name, np.zeros(3), np.array([0, index]), **params)
    assert ref(name, np.arange(3.0), np.array([-1, -3]), **params).tolist() == [2, 0]


def test_scatter_out_of_bounds() -> None:
    with pytest.raises(IndexOutOfBoundsError, match="axis 1 of size 2"):
        ref("scatter", np.zeros((3, 2)), np.ones(1), np.array([0]), np.array([2]))
    out = ref("scatter", np.zeros(3), np.ones(2), np.array([7, 1]), mode="fill")
    assert out.tolist() == [0, 1, 0]


@pytest.mark.parametrize("mode", MODES)
def test_empty_axis(mode: str) -> None:
    x = np.zeros((0, 2), np.float32)
    none = np.zeros((0,), np.int64)
    assert ref("take", x, none, axis=0, mode=mode).shape == (0, 2)
    assert ref("gather", x, none, mode=mode).shape == (0, 2)
    if mode == "fill":
        assert ref("take", x, np.array([0]), axis=0, mode=mode, fill=3).tolist() == [[3, 3]]
        assert ref("gather", x, np.array([0]), mode=mode, fill=3).tolist() == [[3, 3]]
    else:
        with pytest.raises(IndexOutOfBoundsError):
            ref("take", x, np.array([0]), axis=0, mode=mode)


def test_take_places_the_axes_of_the_indices() -> None:
    x = np.arange(24).reshape(2, 3, 4)
    i = np.array([[0, 2], [1, -1]])
    np.testing.assert_array_equal(ref("take", x, i, axis=1), np.take(x, i, axis=1))
    np.testing.assert_array_equal(ref("take", x, np.array(1), axis=2), x[:, :, 1])
    assert ref("take", x, np.array([2**63], np.uint64), axis=0, mode="clip").tolist() == x[1:].tolist()


def test_take_along_axis_broadcasts() -> None:
    x = np.arange(12).reshape(3, 4)
    i = np.array([[0, 3]])
    np.testing.assert_array_equal(ref("take_along_axis", x, i, axis=1), x[:, [0, 3]])
    order = np.argsort(-x, axis=0)
    np.testing.assert_array_equal(ref("take_along_axis", x, order, axis=0), x[::-1])


def test_gather_broadcasts_indices() -> None:
    x = np.arange(24).reshape(2, 3, 4)
    rows, cols = np.array([[0], [1]]), np.array([0, 2])
    np.testing.assert_array_equal(ref("gather", x, rows, cols), x[rows, cols])
    filled = ref("gather", x, rows, np.array([0, 5]), mode="fill", fill=-7)
    np.testing.assert_array_equal(filled[:, 0], x[:, 0])
    assert (filled[:, 1] == -7).all()


def test_scatter_broadcasts_updates() -> None:
    x = np.zeros((3, 4), np.float32)
    out = ref("scatter", x, np.float32(2.0).reshape(()), np.array([0, 2]), op="add")
    np.testing.assert_array_equal(out, [[2] * 4, [0] * 4, [2] * 4])
    out = ref("scatter", x, np.arange(4, dtype=np.float32), np.array([1, 1]), op="add")
    np.testing.assert_array_equal(out[1], [0, 2, 4, 6])


def test_scatter_on_bool_and_halves() -> None:
    x = np.array([True, False])
    both = np.array([0, 1])
    assert ref("scatter", x, np.array([False, True]), both, op="add").tolist() == [True, True]
    assert ref("scatter", x, np.array([False, True]), both, op="mul").tolist() == [False, False]
    big = np.array([256.0]).astype(ml_dtypes.bfloat16)
    steps = np.full(4, 0.75).astype(ml_dtypes.bfloat16)
    # 256.75 rounds to 256 after each update: the sum of the updates never arrives.
    assert ref("scatter", big, steps, np.zeros(4, np.int64), op="add").astype(float).tolist() == [256]
    nan = ref("scatter", np.array([1.0]), np.array([np.nan]), np.array([0]), op="max")
    assert np.isnan(nan).all()


def test_symbolic_rules() -> None:
    n, t = symbol("n"), symbol("t")
    x, i = Aval((n, 8), float32), Aval((2, t), int64)
    take = get("take")
    (out,), obligations = take.infer([x, i], take.fill_params({"axis": 0}))
    assert out.shape == (2, t, 8)
    assert obligations == ()
    scatter = get("scatter")
    (out,), obligations = scatter.infer([x, Aval((t, 8), float32), Aval((n,), int64)], scatter.fill_params({}))
    assert out.shape == (n, 8)
    assert [(o.left, o.right) for o in obligations] == [(t, n)]


def test_rejections() -> None:
    x, i = Aval((3, 2), float32), Aval((4,), int64)
    take, gather, scatter = get("take"), get("gather"), get("scatter")
    with pytest.raises(DTypeError, match=r"take.*float32"):
        take.infer([x, Aval((4,), float32)], take.fill_params({}))
    with pytest.raises(DTypeError, match=r"take.*bool"):
        take.infer([x, Aval((4,), bool_)], take.fill_params({}))
    with pytest.raises(ArgumentError, match="drop"):
        take.infer([x, i], take.fill_params({"mode": "drop"}))
    with pytest.raises(ShapeError, match="3 index arrays"):
        gather.infer([x, i, i, i], gather.fill_params({}))
    with pytest.raises(ArgumentError, match="no indices"):
        gather.shape_rule((x.shape,), gather.fill_params({}))
    with pytest.raises(DTypeError, match="do not mix"):
        gather.infer([x, i, Aval((4,), int32)], gather.fill_params({}))
    with pytest.raises(DTypeError, match="do not mix"):
        scatter.infer([x, Aval((4, 2), float64), i], scatter.fill_params({}))
    with pytest.raises(ShapeError, match="updates"):
        scatter.infer([x, Aval((5, 2), float32), i], scatter.fill_params({}))
    with pytest.raises(ArgumentError, match="sub"):
        scatter.infer([x, Aval((4, 2), float32), i], scatter.fill_params({"op": "sub"}))
    along = get("take_along_axis")
    with pytest.raises(ShapeError):
        along.infer([x, i], along.fill_params({"axis": 0}))
