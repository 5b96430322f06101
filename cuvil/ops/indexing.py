"""Indexing ops: reads and writes at positions that arrays of indices name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from cuvil.dtypes import ALL, INTEGERS, DType, dtype, int32, int64
from cuvil.ops import batching
from cuvil.ops import indexing_derivatives as derivatives
from cuvil.ops.arithmetic import convert
from cuvil.ops.cost import Cost, CostRule, ShapeRule, elements, traffic
from cuvil.ops.drawing import draw_broadcastable, draw_shape
from cuvil.ops.dtype_rules import DTypes, accept, shared
from cuvil.ops.record import (
    Array,
    Chooser,
    Domain,
    Example,
    Opaque,
    OperandSample,
    OpRecord,
    Param,
    Params,
    Shape,
    ShapeResult,
)
from cuvil.ops.registry import register
from cuvil.ops.requirements import Requirements, format_shape, present
from cuvil.ops.shape_rules import Shapes, broadcast
from cuvil.support.errors import ArgumentError, IndexOutOfBoundsError, ShapeError

#: Negative indices count from the end under "error" and "fill"; under "clip" they are 0.
MODES = ("error", "clip", "wrap", "fill")
#: What scatter does with an update: replace, or combine with what is there.
SCATTER_OPS = ("set", "add", "mul", "min", "max")

MODE = Param("mode", "str", "what an index outside its axis does: error, clip, wrap or fill", "error")
FILL = Param("fill", "scalar", 'element for an index outside under mode "fill"', 0)


def check_mode(op: str, params: Params) -> None:
    """Demand a known mode.

    Raises:
        ArgumentError: it is none of :data:`MODES`.
    """
    if params["mode"] not in MODES:
        raise ArgumentError(f"{op}: mode is {params['mode']!r}; expected one of {', '.join(MODES)}")


def resolve(op: str, indices: Array, axis: int, size: int, mode: str) -> tuple[Array, Array]:
    """Positions in ``[0, size)`` as int64, and whether each index was inside or brought inside by the mode.

    Raises:
        IndexOutOfBoundsError: an index is outside under "error", or there is nothing to clip or wrap to.

    >>> resolve("take", np.array([-1, 5]), 0, 3, "wrap")[0].tolist()
    [2, 2]
    """
    raw = np.asarray(indices)
    if raw.dtype == np.uint64:
        raw = np.minimum(raw, np.uint64(2**63 - 1))
    i = raw.astype(np.int64)
    if mode in ("clip", "wrap"):
        if size == 0 and i.size:
            raise IndexOutOfBoundsError(
                f"{op}: index {i.flat[0]} has nothing to {mode} to: axis {axis} has size 0; "
                'use mode="fill" where an axis may be empty'
            )
        if size == 0:
            return i, np.ones(i.shape, np.bool_)
        return (np.clip(i, 0, size - 1) if mode == "clip" else i % size), np.ones(i.shape, np.bool_)
    position = np.where((i < 0) & (i >= -size), i + size, i)
    inside = (position >= 0) & (position < size)
    if mode == "error" and not inside.all():
        first = i[~inside].flat[0]
        raise IndexOutOfBoundsError(
            f"{op}: index {first} is out of bounds for axis {axis} of size {size}; expected {-size} <= index < {size}, "
            'or mode="clip", "wrap" or "fill"'
        )
    return np.where(inside, position, 0), np.asarray(inside)


def _filled(shape: tuple[int, ...], fill: Any, like: Array) -> Array:
    return np.full(shape, convert(np.asarray(fill), dtype(like.dtype)), like.dtype)


def _read_cost(rule: ShapeRule) -> CostRule:
    """Each result element is read once and written once; the indices are read."""

    def cost(shapes: Shapes, params: Params) -> Cost:
        results = rule(shapes, params).shapes
        return 0, traffic(*results) * 2 + traffic(*shapes[1:]) * 2

    return cost


def _index_operand(c: Chooser, shape: tuple[int, ...], size: int, mode: str, dt: DType) -> OperandSample:
    """Indices of an axis, some outside where the mode allows that."""
    domain: Domain = "index"
    return OperandSample(shape, dt, domain, size if mode == "error" or size == 0 else 2 * size + 1)


def _usable_mode(c: Chooser, sizes: Sequence[int]) -> str:
    return "fill" if 0 in sizes else c.choice(MODES)


# ------------------------------------------------------------------------------------------------- take


def _take_shape(shapes: Shapes, params: Params) -> ShapeResult:
    x, indices = present(shapes[0]), present(shapes[1])
    axis: int = params["axis"]
    need = Requirements("take")
    need.axis(axis, len(x))
    check_mode("take", params)
    return need.result((*x[:axis], *indices, *x[axis + 1 :]))


def _read_dtype(op: str) -> Callable[[DTypes, Params], tuple[DType, ...]]:
    def rule(dtypes: DTypes, params: Params) -> tuple[DType, ...]:
        shared(op, dtypes[1:], INTEGERS)
        return (accept(op, dtypes[0], ALL),)

    return rule


def _take_reference(x: Array, indices: Array, *, axis: int, mode: str, fill: Any) -> Array:
    position, inside = resolve("take", indices, axis, x.shape[axis], mode)
    if x.shape[axis] == 0:
        return _filled((*x.shape[:axis], *position.shape, *x.shape[axis + 1 :]), fill, x)
    out = np.array(np.take(x, position, axis=axis))
    if not inside.all():
        spread = inside.reshape(inside.shape + (1,) * (x.ndim - axis - 1))
        out = np.where(spread, out, _filled((), fill, x))
    return out


def _take_sample(c: Chooser) -> Example:
    shape = draw_shape(c, 1, 3)
    axis = c.integer(0, len(shape) - 1)
    mode = _usable_mode(c, (shape[axis],))
    indices = _index_operand(c, draw_shape(c, 0, 2), shape[axis], mode, c.choice((int64, int32)))
    params = {"axis": axis, "mode": mode, "fill": c.choice((0, 1, 7))}
    return Example((OperandSample(shape, c.choice(ALL)), indices), params)


TAKE = register(
    OpRecord(
        name="take",
        doc="Slices of x at indices along one axis; the axes of the indices take that axis's place.",
        category="indexing",
        operands=("x", "indices"),
        params=(Param("axis", "int", "indexed axis", 0), MODE, FILL),
        shape_rule=_take_shape,
        dtype_rule=_read_dtype("take"),
        reference=_take_reference,
        body=Opaque("take"),
        sample=_take_sample,
        batch_rule=batching.take,
        jvp=derivatives.read_jvp("take"),
        transpose=derivatives.take,
        cost=_read_cost(_take_shape),
        onnx=("Gather",),
        torch=("aten.index_select", "aten.embedding", "aten.take"),
    )
)

# -------------------------------------------------------------------------------------- take_along_axis


def _along_shape(shapes: Shapes, params: Params) -> ShapeResult:
    x, indices = present(shapes[0]), present(shapes[1])
    axis: int = params["axis"]
    need = Requirements("take_along_axis")
    need.axis(axis, len(x))
    check_mode("take_along_axis", params)
    need.rank(indices, len(x), f"the indices into {format_shape(x)}")
    what = f"{format_shape(x)} and indices of {format_shape(indices)} broadcast outside axis {axis}"
    others = broadcast(need, [(*x[:axis], 1, *x[axis + 1 :]), (*indices[:axis], 1, *indices[axis + 1 :])], what)
    return need.result((*others[:axis], indices[axis], *others[axis + 1 :]))


def _along_reference(x: Array, indices: Array, *, axis: int, mode: str, fill: Any) -> Array:
    size = x.shape[axis]
    position, inside = resolve("take_along_axis", indices, axis, size, mode)
    single = (*x.shape[:axis], 1, *x.shape[axis + 1 :])
    others = np.broadcast_shapes(single, (*indices.shape[:axis], 1, *indices.shape[axis + 1 :]))
    out_shape = (*others[:axis], indices.shape[axis], *others[axis + 1 :])
    if size == 0:
        return _filled(out_shape, fill, x)
    source = np.broadcast_to(x, (*others[:axis], size, *others[axis + 1 :]))
    out = np.take_along_axis(source, np.broadcast_to(position, out_shape), axis)
    return np.asarray(np.where(np.broadcast_to(inside, out_shape), out, _filled((), fill, x)))


def _along_sample(c: Chooser) -> Example:
    shape = draw_shape(c, 1, 3)
    axis = c.integer(0, len(shape) - 1)
    mode = _usable_mode(c, (shape[axis],))
    index_shape = tuple(c.integer(0, 4) if a == axis else 1 if c.boolean() else d for a, d in enumerate(shape))
    indices = _index_operand(c, index_shape, shape[axis], mode, c.choice((int64, int32)))
    params = {"axis": axis, "mode": mode, "fill": c.choice((0, 1, 7))}
    return Example((OperandSample(shape, c.choice(ALL)), indices), params)


TAKE_ALONG_AXIS = register(
    OpRecord(
        name="take_along_axis",
        doc="Elements of x at their own indices along one axis; the other axes broadcast.",
        category="indexing",
        operands=("x", "indices"),
        params=(Param("axis", "int", "indexed axis"), MODE, FILL),
        shape_rule=_along_shape,
        dtype_rule=_read_dtype("take_along_axis"),
        reference=_along_reference,
        body=Opaque("take_along_axis"),
        sample=_along_sample,
        batch_rule=batching.take_along_axis,
        jvp=derivatives.read_jvp("take_along_axis"),
        transpose=derivatives.take_along_axis,
        cost=_read_cost(_along_shape),
        onnx=("GatherElements",),
        torch=("aten.gather",),
    )
)

# ----------------------------------------------------------------------------------------------- gather


def _index_shape(need: Requirements, x: Shape, indices: Shapes) -> Shape:
    """The broadcast of index arrays for the leading axes of ``x``."""
    arrays = [present(s) for s in indices]
    if not arrays:
        raise ArgumentError(f"{need.op}: there are no indices; expected one array for each indexed axis")
    if len(arrays) > len(x):
        raise ShapeError(f"{need.op}: {len(arrays)} index arrays do not fit the {len(x)} axes of {format_shape(x)}")
    listed = ", ".join(format_shape(s) for s in arrays)
    return broadcast(need, arrays, f"indices of {listed} broadcast together")


def _gather_shape(shapes: Shapes, params: Params) -> ShapeResult:
    need = Requirements("gather")
    check_mode("gather", params)
    x = present(shapes[0])
    lead = _index_shape(need, x, shapes[1:])
    return need.result((*lead, *x[len(shapes) - 1 :]))


def _resolve_all(op: str, x: Array, indices: Sequence[Array], mode: str) -> tuple[tuple[Array, ...], Array]:
    """Broadcast positions for the leading axes, and where all of them are inside."""
    found = [resolve(op, i, axis, x.shape[axis], mode) for axis, i in enumerate(indices)]
    inside = np.ones(np.broadcast_shapes(*(np.asarray(i).shape for i in indices)), np.bool_)
    for _, each in found:
        inside = inside & each
    return tuple(np.broadcast_to(position, inside.shape) for position, _ in found), np.asarray(inside)


def _gather_reference(x: Array, *indices: Array, mode: str, fill: Any) -> Array:
    position, inside = _resolve_all("gather", x, indices, mode)
    k = len(indices)
    if 0 in x.shape[:k]:
        return _filled((*inside.shape, *x.shape[k:]), fill, x)
    out = np.array(x[position])
    if not inside.all():
        out = np.where(inside.reshape(inside.shape + (1,) * (x.ndim - k)), out, _filled((), fill, x))
    return out


def _gather_sample(c: Chooser) -> Example:
    shape = draw_shape(c, 1, 3)
    k = c.integer(1, len(shape))
    mode = _usable_mode(c, shape[:k])
    lead = draw_shape(c, 0, 2)
    dt = c.choice((int64, int32))
    indices = [_index_operand(c, draw_broadcastable(c, lead), shape[a], mode, dt) for a in range(k)]
    params = {"mode": mode, "fill": c.choice((0, 1, 7))}
    return Example((OperandSample(shape, c.choice(ALL)), *indices), params)


GATHER = register(
    OpRecord(
        name="gather",
        doc="x[i0, i1, ...]: slices at tuples of indices into the leading axes, whose arrays broadcast together.",
        category="indexing",
        operands=("x", "*indices"),
        params=(MODE, FILL),
        shape_rule=_gather_shape,
        dtype_rule=_read_dtype("gather"),
        reference=_gather_reference,
        body=Opaque("gather"),
        sample=_gather_sample,
        batch_rule=batching.gather,
        jvp=derivatives.read_jvp("gather"),
        transpose=derivatives.gather,
        cost=_read_cost(_gather_shape),
        onnx=("GatherND",),
        torch=("aten.index",),
    )
)

# ---------------------------------------------------------------------------------------------- scatter


def _scatter_shape(shapes: Shapes, params: Params) -> ShapeResult:
    need = Requirements("scatter")
    check_mode("scatter", params)
    if params["op"] not in SCATTER_OPS:
        raise ArgumentError(f"scatter: op is {params['op']!r}; expected one of {', '.join(SCATTER_OPS)}")
    x, updates = present(shapes[0]), present(shapes[1])
    lead = _index_shape(need, x, shapes[2:])
    target = (*lead, *x[len(shapes) - 2 :])
    what = f"updates of {format_shape(updates)} broadcast to {format_shape(target)}"
    if len(updates) > len(target):
        raise ShapeError(f"scatter: {what}: they have more axes")
    for d, t in zip(updates, target[len(target) - len(updates) :], strict=True):
        if d != 1:
            need.equal(d, t, what)
    return need.result(x)


def _scatter_dtype(dtypes: DTypes, params: Params) -> tuple[DType, ...]:
    shared("scatter", dtypes[2:], INTEGERS)
    return (shared("scatter", dtypes[:2], ALL),)


_COMBINE: dict[str, tuple[np.ufunc, np.ufunc]] = {  # for numbers, for bool
    "add": (np.add, np.logical_or),
    "mul": (np.multiply, np.logical_and),
    "min": (np.minimum, np.logical_and),
    "max": (np.maximum, np.logical_or),
}


def _scatter_reference(x: Array, updates: Array, *indices: Array, op: str, mode: str) -> Array:
    position, inside = _resolve_all("scatter", x, indices, mode)
    rest = x.shape[len(indices) :]
    values = np.broadcast_to(updates, (*inside.shape, *rest))[inside]
    where = tuple(p[inside] for p in position)
    out = np.array(x, order="C")
    if 0 in values.shape:
        return out
    if op == "set":
        out[where] = values  # repeated positions: the last one stays
        return out
    ufunc = _COMBINE[op][dtype(x.dtype).is_bool]
    with np.errstate(all="ignore"):
        ufunc.at(out, where, values)  # in order, rounding after each update
    return out


def _scatter_sample(c: Chooser) -> Example:
    shape = draw_shape(c, 1, 3)
    k = c.integer(1, len(shape))
    mode = _usable_mode(c, shape[:k])
    lead = draw_shape(c, 0, 2)
    dt, index_dtype = c.choice(ALL), c.choice((int64, int32))
    arrays = [draw_broadcastable(c, lead) for _ in range(k)]
    indices = [_index_operand(c, s, shape[a], mode, index_dtype) for a, s in enumerate(arrays)]
    target = (*np.broadcast_shapes(*arrays), *shape[k:])
    updates = OperandSample(draw_broadcastable(c, target), dt)
    return Example((OperandSample(shape, dt), updates, *indices), {"op": c.choice(SCATTER_OPS), "mode": mode})


def _scatter_cost(shapes: Shapes, params: Params) -> Cost:
    return elements(shapes[1]), traffic(shapes[0]) * 2 + traffic(shapes[1]) * 3 + traffic(*shapes[2:]) * 2


SCATTER = register(
    OpRecord(
        name="scatter",
        doc="x with updates put or combined in at tuples of indices into the leading axes, in order of the indices; "
        'an index outside is dropped under mode "fill". On bool, add and max are or, mul and min are and.',
        category="indexing",
        operands=("x", "updates", "*indices"),
        params=(Param("op", "str", "set, add, mul, min or max", "set"), MODE),
        shape_rule=_scatter_shape,
        dtype_rule=_scatter_dtype,
        reference=_scatter_reference,
        body=Opaque("scatter"),
        sample=_scatter_sample,
        batch_rule=batching.scatter,
        jvp=derivatives.scatter_jvp,
        transpose=derivatives.scatter,
        cost=_scatter_cost,
        onnx=("ScatterND",),
        torch=("aten.index_put",),
    )
)
