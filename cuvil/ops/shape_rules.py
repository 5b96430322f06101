"""Shape rules that records share: broadcasting, reduced and replaced axes."""

from __future__ import annotations

from collections.abc import Sequence

from cuvil.ops.record import Params, Shape, ShapeResult
from cuvil.ops.requirements import Requirements, format_shape, present
from cuvil.support.errors import ArgumentError
from cuvil.symbolic import Dim

Shapes = tuple[Shape | None, ...]


def broadcast(need: Requirements, shapes: Sequence[Shape], what: str) -> Shape:
    """The shape that ``shapes`` broadcast to, as NumPy does; ``what`` names the demand in errors.

    A dim against 1 gives the dim; of several others a static one is the result, else the first, and all of them
    must be equal.

    Raises:
        ShapeError: static sizes differ and none of them is 1.

    >>> broadcast(Requirements("add"), [(3, 1), (4,)], "operands broadcast")
    (3, 4)
    """
    rank = max((len(s) for s in shapes), default=0)
    out: list[Dim] = []
    for axis in range(-rank, 0):
        dims = [s[axis] for s in shapes if len(s) >= -axis and s[axis] != 1]
        chosen: Dim = next((d for d in dims if isinstance(d, int)), dims[0] if dims else 1)
        seen: list[Dim] = [chosen]
        for d in dims:
            if d not in seen:
                need.equal(d, chosen, what)
                seen.append(d)
        out.append(chosen)
    return tuple(out)


def broadcast_shapes(op: str, shapes: Sequence[Shape]) -> ShapeResult:
    """The broadcast of an op's operands with its obligations.

    Raises:
        ShapeError: the operands do not broadcast together.

    >>> broadcast_shapes("add", [(2, 1, 4), (3, 1)]).shapes
    ((2, 3, 4),)
    """
    need = Requirements(op)
    what = f"operands of shapes {', '.join(format_shape(s) for s in shapes)} broadcast together"
    return need.result(broadcast(need, shapes, what))


def reduced_shape(need: Requirements, shape: Shape, axes: tuple[int, ...], keepdims: bool) -> Shape:
    """A shape without its reduced axes, or with 1 in their places.

    Raises:
        AxisError: an axis outside the rank or given twice.

    >>> reduced_shape(Requirements("sum"), (2, 3, 4), (1,), True)
    (2, 1, 4)
    """
    need.axes(axes, len(shape))
    if keepdims:
        return tuple(1 if a in axes else d for a, d in enumerate(shape))
    return tuple(d for a, d in enumerate(shape) if a not in axes)


def nonempty(need: Requirements, shape: Shape, axes: Sequence[int]) -> None:
    """Demand that there is something to reduce along ``axes``.

    Raises:
        ArgumentError: an axis has the static size 0.
    """
    for axis in axes:
        if shape[axis] == 0:
            raise ArgumentError(
                f"{need.op}: axis {axis} of {format_shape(shape)} is empty and {need.op} has no value over nothing; "
                "reduce an axis of size 1 or more"
            )
        need.at_least(shape[axis], 1, f"axis {axis} of {format_shape(shape)} has something to reduce")


def unchanged(shapes: Shapes, params: Params) -> ShapeResult:
    """The first operand's shape."""
    return ShapeResult((present(shapes[0]),))
