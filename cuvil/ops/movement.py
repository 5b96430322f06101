"""Movement ops: results whose elements are elements of the operands, chosen by an index map."""

from __future__ import annotations

import numpy as np

from cuvil.dtypes import int64
from cuvil.ops import batching, transposes
from cuvil.ops.builder import Builder, V
from cuvil.ops.cost import per_result
from cuvil.ops.drawing import draw_axes, draw_broadcastable, draw_dtype, draw_permutation, draw_shape
from cuvil.ops.operand_dtypes import one_dtype, same_as_first
from cuvil.ops.record import (
    Array,
    Chooser,
    Condition,
    Decomposition,
    Example,
    IndexMap,
    OperandSample,
    OpRecord,
    Param,
    Params,
    Piece,
    Shape,
    ShapeResult,
)
from cuvil.ops.registry import register
from cuvil.ops.requirements import Requirements, format_shape, present
from cuvil.support.errors import ArgumentError, AxisError, ShapeError
from cuvil.symbolic import Dim

Shapes = tuple[Shape | None, ...]
Pieces = tuple[Piece, ...]

# ------------------------------------------------------------------------------------------- transpose


def _transpose_shape(shapes: Shapes, params: Params) -> ShapeResult:
    x = present(shapes[0])
    axes: tuple[int, ...] = params["axes"]
    if sorted(axes) != list(range(len(x))):
        raise AxisError(f"transpose: axes {axes} are no permutation of the {len(x)} axes of {format_shape(x)}")
    return ShapeResult((tuple(x[a] for a in axes),))


def _transpose_map(index: Shape, in_shapes: tuple[Shape, ...], out_shape: Shape, *, axes: tuple[int, ...]) -> Pieces:
    source: list[Dim] = [0] * len(axes)
    for i, a in zip(index, axes, strict=True):
        source[a] = i
    return (Piece(0, tuple(source)),)


def _transpose_reference(x: Array, *, axes: tuple[int, ...]) -> Array:
    return np.transpose(x, axes)


def _transpose_sample(c: Chooser) -> Example:
    shape = draw_shape(c, 0, 4)
    return Example((OperandSample(shape, draw_dtype(c)),), {"axes": draw_permutation(c, len(shape))})


TRANSPOSE = register(
    OpRecord(
        name="transpose",
        doc="Axes in another order: result axis i is operand axis axes[i].",
        category="movement",
        operands=("x",),
        params=(Param("axes", "ints", "a permutation of all axes"),),
        shape_rule=_transpose_shape,
        dtype_rule=same_as_first,
        reference=_transpose_reference,
        body=IndexMap(_transpose_map),
        sample=_transpose_sample,
        batch_rule=batching.transpose,
        jvp=transposes.jointly("transpose"),
        transpose=transposes.transpose,
        cost=per_result(_transpose_shape),
        onnx=("Transpose",),
        torch=("aten.permute", "aten.transpose", "aten.t"),
    )
)

# ---------------------------------------------------------------------------------------- broadcast_to


def _broadcast_shape(shapes: Shapes, params: Params) -> ShapeResult:
    x = present(shapes[0])
    shape: Shape = params["shape"]
    if len(shape) < len(x):
        raise ShapeError(f"broadcast_to: {format_shape(x)} has more axes than the target {format_shape(shape)}")
    need = Requirements("broadcast_to")
    for d, target in zip(x, shape[len(shape) - len(x) :], strict=True):
        if d != 1:
            need.equal(d, target, f"{format_shape(x)} broadcasts to {format_shape(shape)}")
    return need.result(shape)


def _broadcast_map(index: Shape, in_shapes: tuple[Shape, ...], out_shape: Shape, *, shape: Shape) -> Pieces:
    x = in_shapes[0]
    aligned = index[len(index) - len(x) :]
    return (Piece(0, tuple(0 if d == 1 else i for d, i in zip(x, aligned, strict=True))),)


def _broadcast_reference(x: Array, *, shape: tuple[int, ...]) -> Array:
    return np.broadcast_to(x, shape).copy()


def _broadcast_sample(c: Chooser) -> Example:
    shape = draw_shape(c, 0, 4)
    return Example((OperandSample(draw_broadcastable(c, shape), draw_dtype(c)),), {"shape": shape})


BROADCAST_TO = register(
    OpRecord(
        name="broadcast_to",
        doc="Axes of size 1 and missing leading axes repeated until the shape is reached.",
        category="movement",
        operands=("x",),
        params=(Param("shape", "dims", "result shape"),),
        shape_rule=_broadcast_shape,
        dtype_rule=same_as_first,
        reference=_broadcast_reference,
        body=IndexMap(_broadcast_map),
        sample=_broadcast_sample,
        batch_rule=batching.broadcast_to,
        jvp=transposes.jointly("broadcast_to"),
        transpose=transposes.broadcast_to,
        cost=per_result(_broadcast_shape),
        onnx=("Expand",),
        torch=("aten.expand", "aten.broadcast_to"),
    )
)

# ----------------------------------------------------------------------------------------------- slice


def _slice_shape(shapes: Shapes, params: Params) -> ShapeResult:
    x = present(shapes[0])
    starts: Shape = params["starts"]
    sizes: Shape = params["sizes"]
    steps: tuple[int, ...] = params["steps"]
    if not len(x) == len(starts) == len(sizes) == len(steps):
        raise ArgumentError(
            f"slice: expected one start, size and step for each axis of {format_shape(x)}, "
            f"got {len(starts)} starts, {len(sizes)} sizes and {len(steps)} steps"
        )
    need = Requirements("slice")
    for axis, (d, start, size, step) in enumerate(zip(x, starts, sizes, steps, strict=True)):
        if step == 0:
            raise ArgumentError(f"slice: the step of axis {axis} is 0; expected a positive or negative step")
        what = f"the slice of axis {axis} stays inside its size {d}"
        need.at_least(size, 0, f"the size of the slice of axis {axis} is not negative")
        last = start + (size - 1) * step
        # An empty slice passes where a slice of one more element could: the bounds below allow start - step.
        if step > 0:
            need.at_least(start, 0, what)
            need.relation("<=", last + step, d + step - 1, what)
        else:
            need.relation("<=", start, d - 1, what)
            need.at_least(last, 0, what)
    return need.result(sizes)


def _slice_map(
    index: Shape, in_shapes: tuple[Shape, ...], out_shape: Shape, *, starts: Shape, sizes: Shape, steps: tuple[int, ...]
) -> Pieces:
    return (Piece(0, tuple(start + i * step for i, start, step in zip(index, starts, steps, strict=True))),)


def _slice_reference(x: Array, *, starts: tuple[int, ...], sizes: tuple[int, ...], steps: tuple[int, ...]) -> Array:
    picks = [start + step * np.arange(size) for start, size, step in zip(starts, sizes, steps, strict=True)]
    return x[np.ix_(*picks)] if picks else x.copy()


def _slice_sample(c: Chooser) -> Example:
    shape = draw_shape(c, 0, 3)
    starts: list[int] = []
    sizes: list[int] = []
    steps: list[int] = []
    for d in shape:
        step = c.choice((1, 1, 2, 3, -1, -2))
        if d == 0:
            start, most = (0, 0) if step > 0 else (-1, 0)
        else:
            start = c.integer(0, d - 1)
            most = (d - start + step - 1) // step if step > 0 else start // -step + 1
        starts.append(start)
        sizes.append(c.integer(0, most))
        steps.append(step)
    params = {"starts": tuple(starts), "sizes": tuple(sizes), "steps": tuple(steps)}
    return Example((OperandSample(shape, draw_dtype(c)),), params)


SLICE = register(
    OpRecord(
        name="slice",
        doc="A strided box: result index i is operand index start + i * step along each axis.",
        category="movement",
        operands=("x",),
        params=(
            Param("starts", "dims", "first index along each axis"),
            Param("sizes", "dims", "result shape"),
            Param("steps", "ints", "distance between neighbours along each axis, not 0"),
        ),
        shape_rule=_slice_shape,
        dtype_rule=same_as_first,
        reference=_slice_reference,
        body=IndexMap(_slice_map),
        sample=_slice_sample,
        batch_rule=batching.slice,
        jvp=transposes.jointly("slice"),
        transpose=transposes.slice,
        cost=per_result(_slice_shape),
        onnx=("Slice",),
        torch=("aten.slice", "aten.select", "aten.narrow"),
    )
)

# ---------------------------------------------------------------------------------------------- concat


def _concat_shape(shapes: Shapes, params: Params) -> ShapeResult:
    axis: int = params["axis"]
    first = present(shapes[0])
    need = Requirements("concat")
    need.axis(axis, len(first))
    total: Dim = first[axis]
    for shape in shapes[1:]:
        other = present(shape)
        need.rank(other, len(first), "each operand")
        for a, (d, e) in enumerate(zip(first, other, strict=True)):
            if a != axis:
                need.equal(d, e, f"{format_shape(first)} and {format_shape(other)} agree outside axis {axis}")
        total = total + other[axis]
    return need.result((*first[:axis], total, *first[axis + 1 :]))


def _concat_map(index: Shape, in_shapes: tuple[Shape, ...], out_shape: Shape, *, axis: int) -> Pieces:
    pieces: list[Piece] = []
    start: Dim = 0
    for operand, shape in enumerate(in_shapes):
        end = start + shape[axis]
        source = (*index[:axis], index[axis] - start, *index[axis + 1 :])
        pieces.append(Piece(operand, source, (Condition(index[axis], start, end),)))
        start = end
    return tuple(pieces)


def _concat_reference(*xs: Array, axis: int) -> Array:
    return np.concatenate(xs, axis=axis)


def _concat_sample(c: Chooser) -> Example:
    shape = draw_shape(c, 1, 3)
    axis = c.integer(0, len(shape) - 1)
    dt = draw_dtype(c)
    sizes = [c.integer(0, 4) for _ in range(c.integer(1, 4))]
    operands = tuple(OperandSample((*shape[:axis], n, *shape[axis + 1 :]), dt) for n in sizes)
    return Example(operands, {"axis": axis})


CONCAT = register(
    OpRecord(
        name="concat",
        doc="Operands one after the other along an axis.",
        category="movement",
        operands=("*xs",),
        params=(Param("axis", "int", "axis along which operands follow each other", 0),),
        shape_rule=_concat_shape,
        dtype_rule=one_dtype,
        reference=_concat_reference,
        body=IndexMap(_concat_map),
        sample=_concat_sample,
        batch_rule=batching.joined("concat"),
        jvp=transposes.jointly("concat"),
        transpose=transposes.concat,
        cost=per_result(_concat_shape),
        onnx=("Concat",),
        torch=("aten.cat",),
    )
)

# ------------------------------------------------------------------------------------------- flip, roll


def _flip_shape(shapes: Shapes, params: Params) -> ShapeResult:
    x = present(shapes[0])
    need = Requirements("flip")
    need.axes(params["axes"], len(x))
    return need.result(x)


def _flip_map(index: Shape, in_shapes: tuple[Shape, ...], out_shape: Shape, *, axes: tuple[int, ...]) -> Pieces:
    source = tuple(d - 1 - i if a in axes else i for a, (i, d) in enumerate(zip(index, out_shape, strict=True)))
    return (Piece(0, source),)


def _flip_reference(x: Array, *, axes: tuple[int, ...]) -> Array:
    return np.array(np.flip(x, axes))


def _axes_sample(c: Chooser) -> Example:
    shape = draw_shape(c, 0, 4)
    return Example((OperandSample(shape, draw_dtype(c)),), {"axes": draw_axes(c, len(shape))})


FLIP = register(
    OpRecord(
        name="flip",
        doc="Elements in reverse order along axes.",
        category="movement",
        operands=("x",),
        params=(Param("axes", "ints", "axes to reverse"),),
        shape_rule=_flip_shape,
        dtype_rule=same_as_first,
        reference=_flip_reference,
        body=IndexMap(_flip_map),
        sample=_axes_sample,
        batch_rule=batching.over("flip"),
        jvp=transposes.jointly("flip"),
        transpose=transposes.flip,
        cost=per_result(_flip_shape),
        torch=("aten.flip",),
        traits=frozenset({"pure", "involution"}),
    )
)


def _roll_shape(shapes: Shapes, params: Params) -> ShapeResult:
    x = present(shapes[0])
    need = Requirements("roll")
    need.axes(params["axes"], len(x))
    if len(params["shifts"]) != len(params["axes"]):
        raise ArgumentError(f"roll: expected one shift per axis, got {params['shifts']} for axes {params['axes']}")
    return need.result(x)


def _roll_map(
    index: Shape, in_shapes: tuple[Shape, ...], out_shape: Shape, *, shifts: Shape, axes: tuple[int, ...]
) -> Pieces:
    source = list(index)
    for shift, a in zip(shifts, axes, strict=True):
        # A static empty axis has no element; its index must only not divide by zero.
        source[a] = 0 if out_shape[a] == 0 else (index[a] - shift) % out_shape[a]
    return (Piece(0, tuple(source)),)


def _roll_reference(x: Array, *, shifts: tuple[int, ...], axes: tuple[int, ...]) -> Array:
    return np.roll(x, shifts, axes) if axes else x.copy()


def _roll_sample(c: Chooser) -> Example:
    shape = draw_shape(c, 0, 3)
    axes = draw_axes(c, len(shape))
    params = {"axes": axes, "shifts": tuple(c.integer(-9, 9) for _ in axes)}
    return Example((OperandSample(shape, draw_dtype(c)),), params)


ROLL = register(
    OpRecord(
        name="roll",
        doc="Elements moved along axes; what leaves at one end enters at the other.",
        category="movement",
        operands=("x",),
        params=(
            Param("shifts", "dims", "places to move, per axis; negative towards index 0"),
            Param("axes", "ints", "distinct axes to roll"),
        ),
        shape_rule=_roll_shape,
        dtype_rule=same_as_first,
        reference=_roll_reference,
        body=IndexMap(_roll_map),
        sample=_roll_sample,
        batch_rule=batching.over("roll"),
        jvp=transposes.jointly("roll"),
        transpose=transposes.roll,
        cost=per_result(_roll_shape),
        torch=("aten.roll",),
    )
)

# ----------------------------------------------------------------------------------------- tile, repeat


def _tile_shape(shapes: Shapes, params: Params) -> ShapeResult:
    x = present(shapes[0])
    reps: Shape = params["reps"]
    if len(reps) != len(x):
        raise ArgumentError(f"tile: expected one repetition count per axis of {format_shape(x)}, got {reps}")
    need = Requirements("tile")
    for r in reps:
        need.at_least(r, 0, "repetition counts are not negative")
    return need.result(tuple(d * r for d, r in zip(x, reps, strict=True)))


def _tile_map(index: Shape, in_shapes: tuple[Shape, ...], out_shape: Shape, *, reps: Shape) -> Pieces:
    source: list[Dim] = []
    for i, d, r in zip(index, in_shapes[0], reps, strict=True):
        source.append(i if r == 1 else 0 if d == 0 or d == 1 else i % d)
    return (Piece(0, tuple(source)),)


def _tile_reference(x: Array, *, reps: tuple[int, ...]) -> Array:
    return np.tile(x, reps)


def _tile_sample(c: Chooser) -> Example:
    shape = draw_shape(c, 0, 3)
    return Example((OperandSample(shape, draw_dtype(c)),), {"reps": tuple(c.integer(0, 3) for _ in shape)})


TILE = register(
    OpRecord(
        name="tile",
        doc="The whole operand repeated along each axis.",
        category="movement",
        operands=("x",),
        params=(Param("reps", "dims", "repetitions along each axis"),),
        shape_rule=_tile_shape,
        dtype_rule=same_as_first,
        reference=_tile_reference,
        body=IndexMap(_tile_map),
        sample=_tile_sample,
        batch_rule=batching.tile,
        jvp=transposes.jointly("tile"),
        transpose=transposes.tile,
        cost=per_result(_tile_shape),
        onnx=("Tile",),
        torch=("aten.repeat", "aten.tile"),
    )
)


def _repeat_shape(shapes: Shapes, params: Params) -> ShapeResult:
    x = present(shapes[0])
    axis: int = params["axis"]
    need = Requirements("repeat")
    need.axis(axis, len(x))
    need.at_least(params["repeats"], 0, "the repetition count is not negative")
    return need.result((*x[:axis], x[axis] * params["repeats"], *x[axis + 1 :]))


def _repeat_map(index: Shape, in_shapes: tuple[Shape, ...], out_shape: Shape, *, repeats: Dim, axis: int) -> Pieces:
    at = 0 if repeats == 0 else index[axis] // repeats
    return (Piece(0, (*index[:axis], at, *index[axis + 1 :])),)


def _repeat_reference(x: Array, *, repeats: int, axis: int) -> Array:
    return np.repeat(x, repeats, axis)


def _repeat_sample(c: Chooser) -> Example:
    shape = draw_shape(c, 1, 3)
    params = {"repeats": c.integer(0, 3), "axis": c.integer(0, len(shape) - 1)}
    return Example((OperandSample(shape, draw_dtype(c)),), params)


REPEAT = register(
    OpRecord(
        name="repeat",
        doc="Each element repeated in place along an axis.",
        category="movement",
        operands=("x",),
        params=(Param("repeats", "dim", "repetitions of each element"), Param("axis", "int", "axis", 0)),
        shape_rule=_repeat_shape,
        dtype_rule=same_as_first,
        reference=_repeat_reference,
        body=IndexMap(_repeat_map),
        sample=_repeat_sample,
        batch_rule=batching.along("repeat"),
        jvp=transposes.jointly("repeat"),
        transpose=transposes.repeat,
        cost=per_result(_repeat_shape),
        torch=("aten.repeat_interleave",),
    )
)

# ------------------------------------------------------------------------------- compositions: tril, stack


def _unchanged_matrix(shapes: Shapes, params: Params) -> ShapeResult:
    x = present(shapes[0])
    if len(x) < 2:
        raise ShapeError(f"tril and triu take an operand of rank 2 or more, got shape {format_shape(x)}")
    return ShapeResult((x,))


def _below_diagonal(F: Builder[V], x: V, k: int) -> V:
    rows, cols = F.shape(x)[-2:]
    row, col = F.iota((rows, 1), 0), F.iota((1, cols), 1)
    return F.op("less_equal", F.sub(col, row), F.scalar(k, int64))


def _tril_body(F: Builder[V], x: V, *, k: int) -> V:
    return F.where(_below_diagonal(F, x, k), x, F.like(0, x))


def _triu_body(F: Builder[V], x: V, *, k: int) -> V:
    return F.where(_below_diagonal(F, x, k - 1), F.like(0, x), x)


def _tril_reference(x: Array, *, k: int) -> Array:
    return np.tril(x, k)


def _triu_reference(x: Array, *, k: int) -> Array:
    return np.triu(x, k)


def _triangle_sample(c: Chooser) -> Example:
    return Example((OperandSample(draw_shape(c, 2, 4), draw_dtype(c)),), {"k": c.integer(-4, 4)})


_K = Param("k", "int", "diagonal: 0 is the main one, positive above it", 0)
TRIL = register(
    OpRecord(
        name="tril",
        doc="The lower triangle of the last two axes, with zeros above diagonal k.",
        category="movement",
        operands=("x",),
        params=(_K,),
        shape_rule=_unchanged_matrix,
        dtype_rule=same_as_first,
        reference=_tril_reference,
        body=Decomposition(_tril_body),
        sample=_triangle_sample,
        batch_rule=batching.trailing("tril"),
        cost=per_result(_unchanged_matrix),
        traits=frozenset({"pure", "idempotent"}),
        onnx=("Trilu",),
        torch=("aten.tril",),
    )
)
TRIU = register(
    OpRecord(
        name="triu",
        doc="The upper triangle of the last two axes, with zeros below diagonal k.",
        category="movement",
        operands=("x",),
        params=(_K,),
        shape_rule=_unchanged_matrix,
        dtype_rule=same_as_first,
        reference=_triu_reference,
        body=Decomposition(_triu_body),
        sample=_triangle_sample,
        batch_rule=batching.trailing("triu"),
        cost=per_result(_unchanged_matrix),
        traits=frozenset({"pure", "idempotent"}),
        onnx=("Trilu",),
        torch=("aten.triu",),
    )
)


def _stack_shape(shapes: Shapes, params: Params) -> ShapeResult:
    axis: int = params["axis"]
    first = present(shapes[0])
    need = Requirements("stack")
    need.axis(axis, len(first) + 1)
    for shape in shapes[1:]:
        other = present(shape)
        need.rank(other, len(first), "each operand")
        for d, e in zip(first, other, strict=True):
            need.equal(d, e, f"{format_shape(first)} and {format_shape(other)} are the same shape")
    return need.result((*first[:axis], len(shapes), *first[axis:]))


def _stack_body(F: Builder[V], *xs: V, axis: int) -> V:
    def unit(x: V) -> V:
        shape = F.shape(x)
        return F.reshape(x, (*shape[:axis], 1, *shape[axis:]))

    return F.op("concat", *(unit(x) for x in xs), axis=axis)


def _stack_reference(*xs: Array, axis: int) -> Array:
    return np.stack(xs, axis=axis)


def _stack_sample(c: Chooser) -> Example:
    shape = draw_shape(c, 0, 3)
    operand = OperandSample(shape, draw_dtype(c))
    return Example((operand,) * c.integer(1, 3), {"axis": c.integer(0, len(shape))})


STACK = register(
    OpRecord(
        name="stack",
        doc="Operands of one shape along a new axis.",
        category="movement",
        operands=("*xs",),
        params=(Param("axis", "int", "where the new axis stands in the result", 0),),
        shape_rule=_stack_shape,
        dtype_rule=one_dtype,
        reference=_stack_reference,
        body=Decomposition(_stack_body),
        sample=_stack_sample,
        batch_rule=batching.joined("stack"),
        cost=per_result(_stack_shape),
        torch=("aten.stack",),
    )
)
