"""Rules on slice, concat, flip, pad, tile, repeat, roll, take and sort."""

from __future__ import annotations

import numpy as np
from xdsl.ir import SSAValue

from cuvil.dtypes import FLOATS, float32, int64
from cuvil.ir.attributes import param_key
from cuvil.ir.dialect import TensorOp, aval_of
from cuvil.ops.builder import Builder
from cuvil.ops.drawing import draw_axes, draw_dtype, draw_shape
from cuvil.ops.record import Array, Chooser, OperandSample, ParamValue, Shape
from cuvil.passes.engine import Case, Replacement, Rewriter, RuleSet, rule
from cuvil.symbolic import Dim, is_static


def _sample(c: Chooser, low: int = 0, high: int = 3, positive: bool = False) -> OperandSample:
    return OperandSample(draw_shape(c, low, high, positive), draw_dtype(c))


def _shape(value: SSAValue) -> Shape:
    return aval_of(value).shape


# ----------------------------------------------------------------------------------------- slice


def _draw_slice(c: Chooser, shape: tuple[int, ...], forward: bool = False) -> dict[str, tuple[int, ...]]:
    starts: list[int] = []
    sizes: list[int] = []
    steps: list[int] = []
    for d in shape:
        step = c.choice((1, 1, 2) if forward else (1, 1, 2, 3, -1, -2))
        if d == 0:
            start, most = (0, 0) if step > 0 else (-1, 0)
        else:
            start = c.integer(0, d - 1)
            most = (d - start + step - 1) // step if step > 0 else start // -step + 1
        starts.append(start)
        sizes.append(c.integer(min(1, most), most))
        steps.append(step)
    return {"starts": tuple(starts), "sizes": tuple(sizes), "steps": tuple(steps)}


def _whole_slice(c: Chooser) -> Case:
    x = _sample(c)
    rank = len(x.shape)
    return Case(lambda F, v: F.op("slice", v, starts=(0,) * rank, sizes=x.shape, steps=(1,) * rank), (x,))


@rule("slice", name="slice-identity", example=_whole_slice)
def slice_identity(F: Rewriter, op: TensorOp) -> Replacement:
    "slice(x) that takes all of x -> x"
    p = op.params
    whole = all(d == 0 for d in p["starts"]) and all(s == 1 for s in p["steps"])
    return op.operands[0] if whole and _shape(op.operands[0]) == _shape(op.results[0]) else None


def _slice_pair(c: Chooser) -> Case:
    x = _sample(c, 1)
    first = _draw_slice(c, x.shape)
    second = _draw_slice(c, first["sizes"])
    return Case(lambda F, v: F.op("slice", F.op("slice", v, **first), **second), (x,))


@rule("slice", name="slice-of-slice", example=_slice_pair)
def slice_of_slice(F: Rewriter, op: TensorOp) -> Replacement:
    "slice(slice(x)) -> slice(x)"
    inner = F.producer(op.operands[0], "slice")
    if inner is None:
        return None
    a, b = inner.params, op.params
    starts: list[Dim] = []
    steps: list[int] = []
    for s1, k1, s2, k2, n in zip(a["starts"], a["steps"], b["starts"], b["steps"], b["sizes"], strict=True):
        step = k1 * k2
        if n == 0:  # nothing is read; where it would start must only be in bounds
            starts.append(0)
            steps.append(1)
            continue
        if not is_static(n) and step < 0:
            return None
        starts.append(s1 + s2 * k1)
        steps.append(step)
    return F.op("slice", inner.operands[0], starts=tuple(starts), sizes=b["sizes"], steps=tuple(steps))


def _concat_operands(c: Chooser, shape: tuple[int, ...], axis: int, sizes: list[int]) -> tuple[OperandSample, ...]:
    dt = draw_dtype(c)
    return tuple(OperandSample((*shape[:axis], n, *shape[axis + 1 :]), dt) for n in sizes)


def _slice_of_concat_case(c: Chooser) -> Case:
    shape = draw_shape(c, 1, 3, positive=True)
    axis = c.integer(0, len(shape) - 1)
    sizes = [c.integer(1, 4) for _ in range(c.integer(2, 3))]
    pick = c.integer(0, len(sizes) - 1)
    inner = _draw_slice(c, (*shape[:axis], sizes[pick], *shape[axis + 1 :]), forward=True)
    offset = sum(sizes[:pick])
    starts = tuple(s + offset if a == axis else s for a, s in enumerate(inner["starts"]))
    params = {**inner, "starts": starts}
    return Case(
        lambda F, *vs: F.op("slice", F.op("concat", *vs, axis=axis), **params), _concat_operands(c, shape, axis, sizes)
    )


@rule("slice", name="slice-of-concat", example=_slice_of_concat_case)
def slice_of_concat(F: Rewriter, op: TensorOp) -> Replacement:
    "slice(concat(..., x, ...)) that reads x only -> slice(x)"
    inner = F.producer(op.operands[0], "concat")
    if inner is None:
        return None
    axis: int = inner.params["axis"]
    p = op.params
    start, size, step = p["starts"][axis], p["sizes"][axis], p["steps"][axis]
    if size == 0 or step < 0:
        return None
    last = start + (size - 1) * step
    offset: Dim = 0
    for piece in inner.operands:
        extent = _shape(piece)[axis]
        if F.proves(">=", start, offset) and F.proves("<=", last, offset + extent - 1):
            starts = tuple(s - offset if a == axis else s for a, s in enumerate(p["starts"]))
            return F.op("slice", piece, starts=starts, sizes=p["sizes"], steps=p["steps"])
        offset = offset + extent
    return None


# ---------------------------------------------------------------------------------------- concat


def _concat_one_case(c: Chooser) -> Case:
    x = _sample(c, 1)
    axis = c.integer(0, len(x.shape) - 1)
    return Case(lambda F, v: F.op("concat", v, axis=axis), (x,))


@rule("concat", name="concat-of-one", example=_concat_one_case)
def concat_of_one(F: Rewriter, op: TensorOp) -> Replacement:
    "concat(x) -> x"
    return op.operands[0] if len(op.operands) == 1 else None


def _empty_piece_case(c: Chooser) -> Case:
    shape = draw_shape(c, 1, 3)
    axis = c.integer(0, len(shape) - 1)
    sizes = [c.integer(0, 3), 0, c.integer(1, 3)]
    return Case(lambda F, *vs: F.op("concat", *vs, axis=axis), _concat_operands(c, shape, axis, sizes))


@rule("concat", name="concat-without-empty", example=_empty_piece_case)
def concat_without_empty(F: Rewriter, op: TensorOp) -> Replacement:
    "concat(x, empty, y) -> concat(x, y)"
    axis: int = op.params["axis"]
    kept = [v for v in op.operands if _shape(v)[axis] != 0]
    if len(kept) == len(op.operands) or not kept:
        return None
    made = F.op("concat", *kept, axis=axis)
    return made if aval_of(made) == aval_of(op.results[0]) else None


def _nested_concat_case(c: Chooser) -> Case:
    shape = draw_shape(c, 1, 3)
    axis = c.integer(0, len(shape) - 1)
    samples = _concat_operands(c, shape, axis, [c.integer(0, 3) for _ in range(3)])
    return Case(lambda F, a, b, d: F.op("concat", F.op("concat", a, b, axis=axis), d, axis=axis), samples)


@rule("concat", name="concat-of-concat", example=_nested_concat_case)
def concat_of_concat(F: Rewriter, op: TensorOp) -> Replacement:
    "concat(concat(x, y), z) -> concat(x, y, z) along one axis"
    axis: int = op.params["axis"]
    pieces: list[SSAValue] = []
    for v in op.operands:
        inner = F.producer(v, "concat")
        # Another reader would keep the inner one, and its elements would be written twice.
        flatten = inner is not None and inner.params["axis"] == axis and F.single_use(v)
        pieces.extend(inner.operands if inner is not None and flatten else (v,))
    if len(pieces) == len(op.operands):
        return None
    made = F.op("concat", *pieces, axis=axis)
    return made if aval_of(made) == aval_of(op.results[0]) else None


def _adjacent_case(c: Chooser) -> Case:
    x = OperandSample((c.integer(2, 6), *draw_shape(c, 0, 2)), draw_dtype(c))
    cut, end = c.integer(1, x.shape[0] - 1), x.shape[0]
    rest = x.shape[1:]

    def build(F: Builder[SSAValue], v: SSAValue) -> SSAValue:
        zeros, ones = (0,) * len(rest), (1,) * len(x.shape)
        low = F.op("slice", v, starts=(0, *zeros), sizes=(cut, *rest), steps=ones)
        high = F.op("slice", v, starts=(cut, *zeros), sizes=(end - cut, *rest), steps=ones)
        return F.op("concat", low, high, axis=0)

    return Case(build, (x,))


@rule("concat", name="concat-of-adjacent-slices", example=_adjacent_case)
def concat_of_adjacent_slices(F: Rewriter, op: TensorOp) -> Replacement:
    "concat(x[a:b], x[b:c], ...) -> x[a:c]"
    axis: int = op.params["axis"]
    source: SSAValue | None = None
    first: dict[str, ParamValue] = {}
    end: Dim = 0
    for k, v in enumerate(op.operands):
        inner = F.producer(v, "slice")
        if inner is None:
            return None
        p = inner.params
        if p["steps"][axis] != 1:
            return None
        if k == 0:
            source, first = inner.operands[0], p
        elif inner.operands[0] is not source or p["starts"][axis] != end or _apart(p, axis) != _apart(first, axis):
            return None
        end = p["starts"][axis] + p["sizes"][axis]
    if source is None or len(op.operands) < 2:
        return None
    return F.op("slice", source, starts=first["starts"], sizes=_shape(op.results[0]), steps=first["steps"])


def _apart(params: dict[str, ParamValue], axis: int) -> list[tuple[Dim, Dim, int]]:
    """Starts, sizes and steps of a slice outside one axis."""
    rows = zip(params["starts"], params["sizes"], params["steps"], strict=True)
    return [r for a, r in enumerate(rows) if a != axis]


# ------------------------------------------------------------------------- flip, roll, pad, tile, repeat


def _flip_pair(c: Chooser) -> Case:
    x = _sample(c)
    a, b = draw_axes(c, len(x.shape)), draw_axes(c, len(x.shape))
    return Case(lambda F, v: F.op("flip", F.op("flip", v, axes=a), axes=b), (x,))


@rule("flip", name="flip-of-flip", example=_flip_pair)
def flip_of_flip(F: Rewriter, op: TensorOp) -> Replacement:
    "flip(flip(x, a), b) -> flip(x, axes in one of a and b), or x"
    inner = F.producer(op.operands[0], "flip")
    if inner is None:
        return None
    axes = tuple(sorted(set(inner.params["axes"]) ^ set(op.params["axes"])))
    return F.op("flip", inner.operands[0], axes=axes) if axes else inner.operands[0]


def _unit_flip(c: Chooser) -> Case:
    x = OperandSample((1, *draw_shape(c, 0, 2), 1), draw_dtype(c))
    axes = c.choice(((0,), (), (0, len(x.shape) - 1)))
    return Case(lambda F, v: F.op("flip", v, axes=axes), (x,))


@rule("flip", name="flip-of-units", example=_unit_flip)
def flip_of_units(F: Rewriter, op: TensorOp) -> Replacement:
    "flip(x) of axes of size 1 -> x"
    shape = _shape(op.operands[0])
    return op.operands[0] if all(shape[a] == 1 for a in op.params["axes"]) else None


def _roll_nothing(c: Chooser) -> Case:
    x = _sample(c)
    axes = draw_axes(c, len(x.shape))
    shifts = tuple(0 if c.boolean() else x.shape[a] * c.integer(-1, 2) for a in axes)
    return Case(lambda F, v: F.op("roll", v, shifts=shifts, axes=axes), (x,))


@rule("roll", name="roll-by-nothing", example=_roll_nothing)
def roll_by_nothing(F: Rewriter, op: TensorOp) -> Replacement:
    "roll(x) by 0 or by the size of the axis -> x"
    shape = _shape(op.operands[0])
    for shift, a in zip(op.params["shifts"], op.params["axes"], strict=True):
        size = shape[a]
        if shift not in (0, size) and not (is_static(shift) and is_static(size) and size and shift % size == 0):
            return None
    return op.operands[0]


def _roll_pair(c: Chooser) -> Case:
    x = _sample(c, 1)
    axes = draw_axes(c, len(x.shape))
    a, b = (tuple(c.integer(-5, 5) for _ in axes) for _ in range(2))
    return Case(lambda F, v: F.op("roll", F.op("roll", v, shifts=a, axes=axes), shifts=b, axes=axes), (x,))


@rule("roll", name="roll-of-roll", example=_roll_pair)
def roll_of_roll(F: Rewriter, op: TensorOp) -> Replacement:
    "roll(roll(x, a), b) -> roll(x, a + b) along the same axes"
    inner = F.producer(op.operands[0], "roll")
    if inner is None or inner.params["axes"] != op.params["axes"]:
        return None
    shifts = tuple(a + b for a, b in zip(inner.params["shifts"], op.params["shifts"], strict=True))
    return F.op("roll", inner.operands[0], shifts=shifts, axes=op.params["axes"])


def _pad_nothing(c: Chooser) -> Case:
    x = _sample(c)
    return Case(lambda F, v: F.op("pad", v, pairs=((0, 0),) * len(x.shape), mode="constant", value=0), (x,))


@rule("pad", name="pad-by-nothing", example=_pad_nothing)
def pad_by_nothing(F: Rewriter, op: TensorOp) -> Replacement:
    "pad(x) by 0 on every side -> x"
    return op.operands[0] if all(n == 0 for pair in op.params["pairs"] for n in pair) else None


def _pad_pair(c: Chooser) -> Case:
    x = _sample(c)
    a, b = (tuple((c.integer(0, 2), c.integer(0, 2)) for _ in x.shape) for _ in range(2))
    value = c.choice((0, 1))
    return Case(
        lambda F, v: F.op(
            "pad", F.op("pad", v, pairs=a, mode="constant", value=value), pairs=b, mode="constant", value=value
        ),
        (x,),
    )


def _grows(pairs: tuple[tuple[Dim, Dim], ...]) -> bool:
    return all(is_static(n) and n >= 0 for pair in pairs for n in pair)


@rule("pad", name="pad-of-pad", example=_pad_pair)
def pad_of_pad(F: Rewriter, op: TensorOp) -> Replacement:
    "pad(pad(x, a, value), b, value) -> pad(x, a + b, value)"
    inner = F.producer(op.operands[0], "pad")
    if inner is None:
        return None
    a, b = inner.params, op.params
    if a["mode"] != "constant" or b["mode"] != "constant" or param_key(a["value"]) != param_key(b["value"]):
        return None
    if not (_grows(a["pairs"]) and _grows(b["pairs"])):
        return None
    pairs = tuple((p0 + q0, p1 + q1) for (p0, p1), (q0, q1) in zip(a["pairs"], b["pairs"], strict=True))
    return F.op("pad", inner.operands[0], pairs=pairs, mode="constant", value=b["value"])


def _tile_once(c: Chooser) -> Case:
    x = _sample(c)
    return Case(lambda F, v: F.op("tile", v, reps=(1,) * len(x.shape)), (x,))


@rule("tile", name="tile-once", example=_tile_once)
def tile_once(F: Rewriter, op: TensorOp) -> Replacement:
    "tile(x, (1, 1, ...)) -> x"
    return op.operands[0] if all(r == 1 for r in op.params["reps"]) else None


def _tile_units(c: Chooser) -> Case:
    shape = tuple(c.choice((1, 3)) for _ in range(c.integer(0, 3)))
    reps = tuple(c.integer(0, 3) if d == 1 else 1 for d in shape)
    return Case(lambda F, v: F.op("tile", v, reps=reps), (OperandSample(shape, draw_dtype(c)),))


@rule("tile", name="tile-of-units", example=_tile_units)
def tile_of_units(F: Rewriter, op: TensorOp) -> Replacement:
    "tile(x) of axes of size 1 -> broadcast_to(x)"
    shape = _shape(op.operands[0])
    if any(r != 1 and d != 1 for d, r in zip(shape, op.params["reps"], strict=True)):
        return None
    return F.broadcast_to(op.operands[0], _shape(op.results[0]))


def _repeat_once(c: Chooser) -> Case:
    x = _sample(c, 1)
    axis = c.integer(0, len(x.shape) - 1)
    return Case(lambda F, v: F.op("repeat", v, repeats=1, axis=axis), (x,))


@rule("repeat", name="repeat-once", example=_repeat_once)
def repeat_once(F: Rewriter, op: TensorOp) -> Replacement:
    "repeat(x, 1) -> x"
    return op.operands[0] if op.params["repeats"] == 1 else None


# ------------------------------------------------------------------------------------ take, sort


def _take_range(c: Chooser) -> Case:
    x = OperandSample((c.integer(1, 6), *draw_shape(c, 0, 2)), draw_dtype(c))
    start = c.integer(0, x.shape[0] - 1)
    step = c.choice((1, 1, 2, -1))
    most = (x.shape[0] - start + step - 1) // step if step > 0 else start + 1
    picks = np.array([start + step * k for k in range(c.integer(1, most))], np.int64)
    return Case(lambda F, v: F.op("take", v, F.constant(picks), axis=0, mode="error"), (x,))


@rule("take", name="take-of-range", example=_take_range)
def take_of_range(F: Rewriter, op: TensorOp) -> Replacement:
    "take(x, constant indices in even steps, in range) -> slice(x)"
    indices = F.array(op.operands[1])
    axis: int = op.params["axis"]
    x = op.operands[0]
    shape = _shape(x)
    if indices is None or indices.ndim != 1 or indices.size == 0 or not is_static(shape[axis]):
        return None
    progression = _progression(indices)
    if progression is None or not 0 <= int(indices.min()) <= int(indices.max()) < shape[axis]:
        return None
    start, step = progression
    return F.op(
        "slice", x,
        starts=tuple(start if a == axis else 0 for a in range(len(shape))),
        sizes=_shape(op.results[0]),
        steps=tuple(step if a == axis else 1 for a in range(len(shape))),
    )  # fmt: skip


def _progression(indices: Array) -> tuple[int, int] | None:
    """Start and step of an arithmetic progression with a step other than 0."""
    if indices.size == 1:
        return int(indices[0]), 1
    step = int(indices[1]) - int(indices[0])
    expected = int(indices[0]) + step * np.arange(indices.size)
    return (int(indices[0]), step) if step and np.array_equal(indices, expected) else None


def _sort_twice(c: Chooser) -> Case:
    x = OperandSample(draw_shape(c, 1, 3), c.choice((float32, int64, *FLOATS)))
    axis, descending = c.integer(0, len(x.shape) - 1), c.boolean()
    params = {"axis": axis, "descending": descending}
    return Case(lambda F, v: F.op("sort", F.op("sort", v, **params), **params), (x,))


@rule("sort", name="sort-of-sorted", example=_sort_twice)
def sort_of_sorted(F: Rewriter, op: TensorOp) -> Replacement:
    "sort(sort(x)) -> sort(x) along one axis in one direction"
    inner = F.producer(op.operands[0], "sort")
    return op.operands[0] if inner is not None and inner.params == op.params else None


MOVEMENT = RuleSet(
    "movement",
    "the number of movement ops and of their operands, a slice weighing less than the others",
    (
        slice_identity, slice_of_slice, slice_of_concat,
        concat_of_one, concat_without_empty, concat_of_concat, concat_of_adjacent_slices,
        flip_of_flip, flip_of_units, roll_by_nothing, roll_of_roll, pad_by_nothing, pad_of_pad,
        tile_once, tile_of_units, repeat_once, take_of_range, sort_of_sorted,
    ),
)  # fmt: skip

__all__ = ["MOVEMENT"]
