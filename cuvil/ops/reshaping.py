"""reshape: its shape rule, and its index map by groups of axes whose sizes multiply to the same number."""

from __future__ import annotations

from dataclasses import dataclass

from cuvil.ops import batching, transposes
from cuvil.ops.cost import per_result
from cuvil.ops.drawing import draw_dtype, draw_shape
from cuvil.ops.operand_dtypes import same_as_first
from cuvil.ops.record import (
    Array,
    Chooser,
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
from cuvil.symbolic import Dim, product


@dataclass(frozen=True)
class AxisGroup:
    """Neighbouring input axes and neighbouring output axes that hold the same elements."""

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


def axis_groups(source: Shape, target: Shape) -> tuple[AxisGroup, ...]:
    """The finest grouping in which both sides of each group have structurally equal sizes.

    What is left without a provable split forms the last group; its sizes are equal because the whole is.

    >>> [(g.inputs, g.outputs) for g in axis_groups((2, 6, 5), (12, 5))]
    [((0, 1), (0,)), ((2,), (1,))]
    """
    groups: list[AxisGroup] = []
    i = j = 0
    while i < len(source) or j < len(target):
        n, m = _smallest_group(source[i:], target[j:])
        groups.append(AxisGroup(tuple(range(i, i + n)), tuple(range(j, j + m))))
        i, j = i + n, j + m
    return tuple(groups)


def _smallest_group(source: Shape, target: Shape) -> tuple[int, int]:
    sizes = [(n, m) for n in range(len(source) + 1) for m in range(len(target) + 1) if n + m > 0]
    for n, m in sorted(sizes, key=sum):
        if product(source[:n]) == product(target[:m]):
            return n, m
    return len(source), len(target)


def flat_index(index: Shape, sizes: Shape) -> Dim:
    """Row-major position of an index."""
    flat: Dim = 0
    for i, d in zip(index, sizes, strict=True):
        flat = flat * d + i
    return flat


def unflatten(flat: Dim, sizes: Shape) -> Shape:
    """Index of a row-major position; the first axis needs no remainder as positions are in range."""
    index: list[Dim] = []
    for axis in range(len(sizes)):
        inner = product(sizes[axis + 1 :])
        # A zero inner size means that there is no element to place.
        at = flat if inner == 1 else 0 if inner == 0 else flat // inner
        if axis > 0:
            at = 0 if sizes[axis] == 0 else at % sizes[axis]
        index.append(at)
    return tuple(index)


def reshape_index(index: Shape, source: Shape, target: Shape) -> Shape:
    """The input index of an output index under reshape.

    >>> reshape_index((1, 2), (2, 3), (2, 3))
    (1, 2)
    """
    out: list[Dim] = [0] * len(source)
    for group in axis_groups(source, target):
        sizes = tuple(source[a] for a in group.inputs)
        # An axis of size 1 has index 0; without it the rest of the group may map one to one.
        wide = [a for a in group.inputs if source[a] != 1]
        if len(wide) == 1:
            flat = flat_index(tuple(index[a] for a in group.outputs), tuple(target[a] for a in group.outputs))
            out[wide[0]] = flat
        elif wide:
            flat = flat_index(tuple(index[a] for a in group.outputs), tuple(target[a] for a in group.outputs))
            for a, at in zip(group.inputs, unflatten(flat, sizes), strict=True):
                out[a] = at
    return tuple(out)


def _shape_rule(shapes: tuple[Shape | None, ...], params: Params) -> ShapeResult:
    x = present(shapes[0])
    shape: Shape = params["shape"]
    need = Requirements("reshape")
    need.equal(product(x), product(shape), f"{format_shape(x)} and {format_shape(shape)} hold as many elements")
    return need.result(shape)


def _reference(x: Array, *, shape: tuple[int, ...]) -> Array:
    return x.reshape(shape)


def _build(index: Shape, in_shapes: tuple[Shape, ...], out_shape: Shape, *, shape: Shape) -> tuple[Piece, ...]:
    return (Piece(0, reshape_index(index, in_shapes[0], out_shape)),)


def _sample(c: Chooser) -> Example:
    shape = draw_shape(c, 0, 4)
    merged = list(shape)
    if len(merged) > 1 and c.boolean():
        at = c.integer(0, len(merged) - 2)
        merged[at : at + 2] = [merged[at] * merged[at + 1]]
    source, target = (tuple(merged), shape) if c.boolean() else (shape, tuple(merged))
    if c.boolean():
        target = tuple(sorted(target))
    if c.boolean():
        at = c.integer(0, len(target))
        target = (*target[:at], 1, *target[at:])
    return Example((OperandSample(source, draw_dtype(c)),), {"shape": target})


#: Ops whose result is the memory of their operand under another type.
ALIASES = frozenset({"reshape", "as_parts"})

RESHAPE = register(
    OpRecord(
        name="reshape",
        doc="The same elements in row-major order under another shape.",
        category="movement",
        operands=("x",),
        params=(Param("shape", "dims", "result shape, with no -1"),),
        shape_rule=_shape_rule,
        dtype_rule=same_as_first,
        reference=_reference,
        body=IndexMap(_build),
        sample=_sample,
        batch_rule=batching.reshape,
        jvp=transposes.jointly("reshape"),
        transpose=transposes.reshape,
        cost=per_result(_shape_rule),
        onnx=("Reshape", "Flatten", "Squeeze", "Unsqueeze"),
        torch=("aten.reshape", "aten.view", "aten._unsafe_view", "aten.flatten", "aten.squeeze", "aten.unsqueeze"),
    )
)
