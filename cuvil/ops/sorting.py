"""Sorting ops: sort, argsort, top_k and searchsorted, all stable and with NaN in a defined place."""

from __future__ import annotations

import numpy as np

from cuvil.dtypes import ALL, DType, dtype, int64
from cuvil.ops import batching, tangents
from cuvil.ops.arithmetic import widen
from cuvil.ops.cost import Cost, ShapeRule, elements, per_operand, traffic
from cuvil.ops.drawing import draw_shape
from cuvil.ops.dtype_rules import DTypes, accept, shared
from cuvil.ops.record import (
    Array,
    Chooser,
    Example,
    Opaque,
    OperandSample,
    OpRecord,
    Param,
    Params,
    ShapeResult,
)
from cuvil.ops.registry import register
from cuvil.ops.requirements import Requirements, present
from cuvil.ops.shape_rules import Shapes
from cuvil.support.errors import ArgumentError
from cuvil.symbolic import Dim

#: Comparisons per element of an array of a million: what a cost can say without a logarithm of dims.
_COMPARISONS = 20


def ascending_order(x: Array, axis: int) -> Array:
    """Positions that sort along an axis, stably; NaN is the largest value and -0 equals 0."""
    return np.asarray(np.argsort(widen(x), axis=axis, stable=True), np.int64)


def descending_order(x: Array, axis: int) -> Array:
    """Positions of the largest first, the lower position first among equals; NaN is the largest value."""
    backwards = ascending_order(np.flip(x, axis), axis)
    return np.flip(x.shape[axis] - 1 - backwards, axis)


def sort_order(x: Array, axis: int, descending: bool) -> Array:
    """Positions that sort along an axis, stably in both directions, with NaN last in both."""
    if not descending:
        return ascending_order(x, axis)
    if dtype(x.dtype).is_float:
        return ascending_order(-widen(x), axis)
    return descending_order(x, axis)


def _along(op: str) -> ShapeRule:
    def rule(shapes: Shapes, params: Params) -> ShapeResult:
        need = Requirements(op)
        x = present(shapes[0])
        need.axis(params["axis"], len(x))
        return need.result(x)

    return rule


def _sort_sample(c: Chooser) -> Example:
    shape = draw_shape(c, 1, 3)
    params = {"axis": c.integer(0, len(shape) - 1), "descending": c.boolean()}
    return Example((OperandSample(shape, c.choice(ALL), c.choice(("any", "moderate"))),), params)


AXIS = Param("axis", "int", "sorted axis")
DESCENDING = Param("descending", "bool", "largest first", False)


def _sort_dtype(dtypes: DTypes, params: Params) -> tuple[DType, ...]:
    return (accept("sort", dtypes[0], ALL),)


def _sort_reference(x: Array, *, axis: int, descending: bool) -> Array:
    return np.take_along_axis(x, sort_order(x, axis, descending), axis)


SORT = register(
    OpRecord(
        name="sort",
        doc="Elements in order along an axis, stably; NaN is last in both directions.",
        category="sorting",
        operands=("x",),
        params=(AXIS, DESCENDING),
        shape_rule=_along("sort"),
        dtype_rule=_sort_dtype,
        reference=_sort_reference,
        body=Opaque("sort"),
        sample=_sort_sample,
        batch_rule=batching.along("sort"),
        jvp=tangents.sort,
        cost=per_operand(_along("sort"), _COMPARISONS),
        torch=("aten.sort",),
    )
)


def _argsort_dtype(dtypes: DTypes, params: Params) -> tuple[DType, ...]:
    accept("argsort", dtypes[0], ALL)
    return (int64,)


def _argsort_reference(x: Array, *, axis: int, descending: bool) -> Array:
    return sort_order(x, axis, descending)


ARGSORT = register(
    OpRecord(
        name="argsort",
        doc="The positions, as int64, that sort along an axis, stably; those of NaN are last in both directions.",
        category="sorting",
        operands=("x",),
        params=(AXIS, DESCENDING),
        shape_rule=_along("argsort"),
        dtype_rule=_argsort_dtype,
        reference=_argsort_reference,
        body=Opaque("argsort"),
        sample=_sort_sample,
        batch_rule=batching.along("argsort"),
        cost=per_operand(_along("argsort"), _COMPARISONS),
        torch=("aten.argsort",),
    )
)

# ------------------------------------------------------------------------------------------------ top_k


def _top_k_shape(shapes: Shapes, params: Params) -> ShapeResult:
    need = Requirements("top_k")
    x = present(shapes[0])
    axis: int = params["axis"]
    k: Dim = params["k"]
    need.axis(axis, len(x))
    need.at_least(k, 0, "k is not negative")
    need.relation("<=", k, x[axis], f"k is at most the size of axis {axis}")
    out = (*x[:axis], k, *x[axis + 1 :])
    return need.result(out, out)


def _top_k_dtype(dtypes: DTypes, params: Params) -> tuple[DType, ...]:
    return (accept("top_k", dtypes[0], ALL), int64)


def _top_k_reference(x: Array, *, k: int, axis: int, largest: bool) -> tuple[Array, Array]:
    if not 0 <= k <= x.shape[axis]:
        raise ArgumentError(f"top_k: k is {k}; expected 0 <= k <= {x.shape[axis]}, the size of axis {axis}")
    order = descending_order(x, axis) if largest else ascending_order(x, axis)
    first = np.take(order, np.arange(k), axis=axis)
    return np.take_along_axis(x, first, axis), first


def _top_k_sample(c: Chooser) -> Example:
    shape = draw_shape(c, 1, 3)
    axis = c.integer(0, len(shape) - 1)
    params = {"k": c.integer(0, shape[axis]), "axis": axis, "largest": c.boolean()}
    return Example((OperandSample(shape, c.choice(ALL), c.choice(("any", "moderate"))),), params)


TOP_K = register(
    OpRecord(
        name="top_k",
        doc="The k largest or smallest elements along an axis in order, and their positions; the lower position "
        "comes first among equals, and NaN is the largest value.",
        category="sorting",
        operands=("x",),
        params=(
            Param("k", "dim", "number of elements"),
            AXIS,
            Param("largest", "bool", "the largest ones, largest first", True),
        ),
        results=("values", "indices"),
        shape_rule=_top_k_shape,
        dtype_rule=_top_k_dtype,
        reference=_top_k_reference,
        body=Opaque("top_k"),
        sample=_top_k_sample,
        batch_rule=batching.along("top_k"),
        jvp=tangents.top_k,
        cost=per_operand(_top_k_shape, _COMPARISONS),
        onnx=("TopK",),
        torch=("aten.topk",),
    )
)

# ----------------------------------------------------------------------------------------- searchsorted


def _searchsorted_shape(shapes: Shapes, params: Params) -> ShapeResult:
    need = Requirements("searchsorted")
    need.rank(present(shapes[0]), 1, "the sorted array")
    return need.result(present(shapes[1]))


def _searchsorted_dtype(dtypes: DTypes, params: Params) -> tuple[DType, ...]:
    shared("searchsorted", dtypes, ALL)
    return (int64,)


def _searchsorted_reference(ordered: Array, values: Array, *, right: bool) -> Array:
    found = np.searchsorted(widen(ordered), widen(values), side="right" if right else "left")
    return np.asarray(found, np.int64)


def _searchsorted_sample(c: Chooser) -> Example:
    # An unsorted array has no defined answer, and a sample says nothing of order: one element at most is sorted.
    dt = c.choice(ALL)
    operands = (OperandSample((c.integer(0, 1),), dt), OperandSample(draw_shape(c, 0, 3), dt))
    return Example(operands, {"right": c.boolean()})


def _searchsorted_cost(shapes: Shapes, params: Params) -> Cost:
    return elements(shapes[1]) * _COMPARISONS, traffic(shapes[1]) * 3


SEARCHSORTED = register(
    OpRecord(
        name="searchsorted",
        doc="Where each value would go into a sorted array, as int64: before equal elements, or after them if right. "
        "NaN is the largest value.",
        category="sorting",
        operands=("sorted", "values"),
        params=(Param("right", "bool", "after equal elements instead of before", False),),
        shape_rule=_searchsorted_shape,
        dtype_rule=_searchsorted_dtype,
        reference=_searchsorted_reference,
        body=Opaque("searchsorted"),
        sample=_searchsorted_sample,
        batch_rule=batching.searchsorted,
        cost=_searchsorted_cost,
        torch=("aten.searchsorted", "aten.bucketize"),
    )
)
