"""Transposes of linear element-wise ops, movement and sums: cotangents of their operands from that of the result.

A rule is ``transpose(F, cotangent, operands, **params)``; where an operand is a :class:`Tangent` it returns that one's
cotangent, of its shape and dtype, else None.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from cuvil.dtypes import DType, float32, int64
from cuvil.ops.builder import Builder
from cuvil.ops.differentiation import Tangent, fitted
from cuvil.ops.record import Aval, ParamValue, Shape
from cuvil.symbolic import Dim, dim_max

Value = Any
Cotangents = Sequence[Value | None]
Operands = Sequence[Any]


def zeros(F: Builder[Any], aval: Aval) -> Value:
    """An array of zeros."""
    return F.broadcast_to(F.scalar(0, aval.dtype), aval.shape)


def unbroadcast(F: Builder[Any], c: Value, shape: Shape) -> Value:
    """A cotangent summed to the shape that was broadcast to it.

    An axis was broadcast where its size is the number 1; a symbol that happens to be 1 was not.
    """
    source = F.shape(c)
    extra = len(source) - len(shape)
    ones = tuple(extra + a for a, d in enumerate(shape) if d == 1 and source[extra + a] != 1)
    axes = (*range(extra), *ones)
    return fitted(F, F.sum(c, axes) if axes else c, shape)


def _for_tangents(operands: Operands, cotangent: Callable[[int, Aval], Value]) -> Cotangents:
    return [cotangent(k, o.aval) if isinstance(o, Tangent) else None for k, o in enumerate(operands)]


# -------------------------------------------------------------------------------------- element-wise


def add(F: Builder[Any], c: Value, operands: Operands) -> Cotangents:
    return _for_tangents(operands, lambda k, aval: unbroadcast(F, c, aval.shape))


def subtract(F: Builder[Any], c: Value, operands: Operands) -> Cotangents:
    def cotangent(k: int, aval: Aval) -> Value:
        summed = unbroadcast(F, c, aval.shape)
        return summed if k == 0 else F.op("negative", summed)

    return _for_tangents(operands, cotangent)


def multiply(F: Builder[Any], c: Value, operands: Operands) -> Cotangents:
    return _for_tangents(operands, lambda k, aval: unbroadcast(F, F.mul(c, operands[1 - k]), aval.shape))


def divide(F: Builder[Any], c: Value, operands: Operands) -> Cotangents:
    # A quotient is linear in its dividend alone.
    return [unbroadcast(F, F.div(c, operands[1]), operands[0].aval.shape), None]


def negative(F: Builder[Any], c: Value, operands: Operands) -> Cotangents:
    return [F.op("negative", c)]


def positive(F: Builder[Any], c: Value, operands: Operands) -> Cotangents:
    return [c]


def cast(F: Builder[Any], c: Value, operands: Operands, *, dtype: DType) -> Cotangents:
    return [F.cast(c, operands[0].aval.dtype)]


def where(F: Builder[Any], c: Value, operands: Operands) -> Cotangents:
    zero = F.like(0, c)

    def cotangent(k: int, aval: Aval) -> Value:
        chosen = F.where(operands[0], c, zero) if k == 1 else F.where(operands[0], zero, c)
        return unbroadcast(F, chosen, aval.shape)

    return _for_tangents(operands, cotangent)


# ------------------------------------------------------------------------------------------ movement


def transpose(F: Builder[Any], c: Value, operands: Operands, *, axes: tuple[int, ...]) -> Cotangents:
    return [F.transpose(c, inverse(axes))]


def inverse(permutation: Sequence[int]) -> tuple[int, ...]:
    """The permutation that takes axes back.

    >>> inverse((2, 0, 1))
    (1, 2, 0)
    """
    return tuple(permutation.index(a) for a in range(len(permutation)))


def reshape(F: Builder[Any], c: Value, operands: Operands, *, shape: Shape) -> Cotangents:
    return [F.reshape(c, operands[0].aval.shape)]


def broadcast_to(F: Builder[Any], c: Value, operands: Operands, *, shape: Shape) -> Cotangents:
    return [unbroadcast(F, c, operands[0].aval.shape)]


def slice(  # noqa: A001 - the op's name
    F: Builder[Any], c: Value, operands: Operands, *, starts: Shape, sizes: Shape, steps: tuple[int, ...]
) -> Cotangents:
    backwards = tuple(a for a, step in enumerate(steps) if step < 0)
    if backwards:
        c = F.op("flip", c, axes=backwards)
    for axis, (d, start, size, step) in enumerate(zip(operands[0].aval.shape, starts, sizes, steps, strict=True)):
        c = placed(F, spread(F, c, axis, abs(step)), axis, start if step > 0 else start + (size - 1) * step, d)
    return [c]


def spread(F: Builder[Any], x: Value, axis: int, step: int) -> Value:
    """Each element along an axis followed by ``step - 1`` zeros."""
    if step == 1:
        return x
    shape = F.shape(x)
    wide = F.reshape(x, (*shape[: axis + 1], 1, *shape[axis + 1 :]))
    padded = _padded(F, wide, axis + 1, 0, step - 1)
    return F.reshape(padded, (*shape[:axis], shape[axis] * step, *shape[axis + 1 :]))


def placed(F: Builder[Any], x: Value, axis: int, start: Dim, size: Dim) -> Value:
    """Elements from ``start`` on along an axis of ``size``, zeros around them; what is zero past the end is cut off."""
    after = dim_max(size - start - F.shape(x)[axis], 0)
    return cut(F, _padded(F, x, axis, start, after), axis, 0, size)


def _padded(F: Builder[Any], x: Value, axis: int, before: Dim, after: Dim) -> Value:
    if before == 0 and after == 0:
        return x
    pairs = tuple((before, after) if a == axis else (0, 0) for a in range(len(F.shape(x))))
    return F.op("pad", x, pairs=pairs, mode="constant", value=0)


def cut(F: Builder[Any], x: Value, axis: int, start: Dim, size: Dim) -> Value:
    """``size`` elements along an axis, everything along the others."""
    shape = F.shape(x)
    if start == 0 and size == shape[axis]:
        return x
    starts = tuple(start if a == axis else 0 for a in range(len(shape)))
    sizes = tuple(size if a == axis else d for a, d in enumerate(shape))
    return F.op("slice", x, starts=starts, sizes=sizes, steps=(1,) * len(shape))


def concat(F: Builder[Any], c: Value, operands: Operands, *, axis: int) -> Cotangents:
    out: list[Value | None] = []
    start: Dim = 0
    for o in operands:
        size = (o.aval.shape if isinstance(o, Tangent) else F.shape(o))[axis]
        out.append(cut(F, c, axis, start, size) if isinstance(o, Tangent) else None)
        start = start + size
    return out


def flip(F: Builder[Any], c: Value, operands: Operands, *, axes: tuple[int, ...]) -> Cotangents:
    return [F.op("flip", c, axes=axes)]


def roll(F: Builder[Any], c: Value, operands: Operands, *, shifts: Shape, axes: tuple[int, ...]) -> Cotangents:
    return [F.op("roll", c, shifts=tuple(-s for s in shifts), axes=axes)]


def tile(F: Builder[Any], c: Value, operands: Operands, *, reps: Shape) -> Cotangents:
    shape = operands[0].aval.shape
    split = tuple(d for pair in zip(reps, shape, strict=True) for d in pair)
    return [F.sum(F.reshape(c, split), range(0, len(split), 2))]


def repeat(F: Builder[Any], c: Value, operands: Operands, *, repeats: Dim, axis: int) -> Cotangents:
    shape = operands[0].aval.shape
    return [F.sum(F.reshape(c, (*shape[: axis + 1], repeats, *shape[axis + 1 :])), (axis + 1,))]


def pad(
    F: Builder[Any], c: Value, operands: Operands, *, pairs: tuple[tuple[Dim, Dim], ...], mode: str, value: Any
) -> Cotangents:
    shape = operands[0].aval.shape
    for axis, (d, (before, after)) in enumerate(zip(shape, pairs, strict=True)):
        if before == 0 and after == 0:
            continue
        if mode == "constant":
            c = cut(F, c, axis, before, d)
        else:
            c = gathered_back(F, c, axis, d, _padded_positions(F, d, before, after, mode))
    return [c]


def _padded_positions(F: Builder[Any], d: Dim, before: Dim, after: Dim, mode: str) -> Value:
    """From which element each one along a padded axis comes."""
    at = F.sub(F.iota((d + before + after,), 0), F.dim(before))
    last = F.dim(d - 1)
    if mode == "edge":
        return F.op("clip", at, F.scalar(0, int64), last)
    if mode == "wrap":
        return F.op("remainder", at, F.dim(d))
    return F.sub(last, F.op("abs", F.sub(last, F.op("abs", at))))


def gathered_back(F: Builder[Any], c: Value, axis: int, size: Dim, positions: Value, mode: str = "clip") -> Value:
    """The transpose of taking elements at positions along an axis: each cotangent is added where it came from.

    ``positions`` may have any rank: their axes stand in the place of ``axis``. Halves add up in float32.
    """
    rank = len(F.shape(positions))
    dt = F.dtype(c)
    order = (*range(axis, axis + rank), *(a for a in range(len(F.shape(c))) if not axis <= a < axis + rank))
    updates = F.transpose(accumulating(F, c), order)
    empty = zeros(F, Aval((size, *F.shape(updates)[rank:]), F.dtype(updates)))
    added = F.op("scatter", empty, updates, positions, op="add", mode=mode)
    back = (*range(1, axis + 1), 0, *range(axis + 1, len(F.shape(added))))
    return F.cast(F.transpose(added, back), dt)


def accumulating(F: Builder[Any], x: Value) -> Value:
    """A value in the dtype in which many of them are added up: float32 for halves."""
    from_half = F.dtype(x).is_half
    return F.cast(x, float32) if from_half else x


def window(
    F: Builder[Any],
    c: Value,
    operands: Operands,
    *,
    axes: tuple[int, ...],
    sizes: Shape,
    strides: tuple[int, ...],
    dilations: tuple[int, ...],
) -> Cotangents:
    aval = operands[0].aval
    rank, dt = len(aval.shape), F.dtype(c)
    c = accumulating(F, c)
    # Windows are separable: the taps of one axis at a time, the last axis of the cotangent first.
    for axis, k, stride, dilation in reversed(list(zip(axes, sizes, strides, dilations, strict=True))):
        tap_axis = len(F.shape(c)) - 1
        positions, size = F.shape(c)[axis], aval.shape[axis]
        if isinstance(k, int):
            c = _taps_added(F, c, axis, k, stride, dilation, size)
            continue
        at = F.add(
            F.mul(F.iota((positions, 1), 0), F.scalar(stride, int64)),
            F.mul(F.iota((1, k), 1), F.scalar(dilation, int64)),
        )
        order = (*range(axis + 1), tap_axis, *range(axis + 1, tap_axis))
        c = gathered_back(F, F.transpose(c, order), axis, size, at)
    assert len(F.shape(c)) == rank
    return [F.cast(c, dt)]


def _taps_added(F: Builder[Any], c: Value, axis: int, k: int, stride: int, dilation: int, size: Dim) -> Value:
    tap_axis = len(F.shape(c)) - 1
    total: Value | None = None
    for tap in range(k):
        one = cut(F, c, tap_axis, tap, 1)
        shape = F.shape(one)
        one = F.reshape(one, shape[:-1])
        one = placed(F, spread(F, one, axis, stride), axis, tap * dilation, size)
        total = one if total is None else F.add(total, one)
    return total


# ------------------------------------------------------------------------------------------------ sums


def sum(  # noqa: A001 - the op's name
    F: Builder[Any], c: Value, operands: Operands, *, axes: tuple[int, ...], keepdims: bool
) -> Cotangents:
    shape = operands[0].aval.shape
    kept = c if keepdims else F.reshape(c, tuple(1 if a in axes else d for a, d in enumerate(shape)))
    return [F.broadcast_to(kept, shape)]


def cumulative_sum(F: Builder[Any], c: Value, operands: Operands, *, axis: int, include_initial: bool) -> Cotangents:
    if include_initial:
        c = cut(F, c, axis, 1, operands[0].aval.shape[axis])
    backwards = F.op("flip", c, axes=(axis,))
    total = F.op("cumulative_sum", backwards, axis=axis, include_initial=False)
    return [F.op("flip", total, axes=(axis,))]


def jointly(name: str) -> Callable[..., Sequence[Value | None]]:
    """The ``jvp`` of an op that is linear in all its operands together: the op itself on their tangents."""

    def jvp(
        F: Builder[Any], operands: Sequence[Any], results: Sequence[Any], tangents: Sequence[Any], **params: ParamValue
    ) -> Sequence[Value | None]:
        given = [zeros(F, F.aval(o)) if t is None else t for o, t in zip(operands, tangents, strict=True)]
        return [F.op(name, *given, **params)]

    return jvp


def each(name: str, **changed: ParamValue) -> Callable[..., Sequence[Value | None]]:
    """The ``jvp`` of an op that is linear in each operand: with one tangent in its operand's place at a time."""

    def jvp(
        F: Builder[Any], operands: Sequence[Any], results: Sequence[Any], tangents: Sequence[Any], **params: ParamValue
    ) -> Sequence[Value | None]:
        total: Value | None = None
        for k, t in enumerate(tangents):
            if t is not None:
                part = F.op(name, *(t if j == k else o for j, o in enumerate(operands)), **{**params, **changed})
                total = part if total is None else F.add(total, part)
        return [total]

    return jvp
