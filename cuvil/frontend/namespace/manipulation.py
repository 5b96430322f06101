"""Manipulation of shapes: reshaping, joining, splitting, padding and reordering, with symbolic sizes throughout."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from cuvil.frontend.dispatch import ArrayLike, apply, dtype_of
from cuvil.frontend.namespace.arguments import (
    AnyArray,
    Axes,
    ShapeLike,
    as_int,
    as_scalar,
    as_shape,
    as_size,
    choice,
    dtype_or_none,
    one_axis,
    operand,
    shape_of,
    some_axes,
    together,
)
from cuvil.frontend.namespace.slicing import Span, reshaped, slice_axis, span_of
from cuvil.frontend.source import at_user_line
from cuvil.frontend.tracer import Tracer
from cuvil.ops.record import Shape
from cuvil.ops.requirements import Requirements, format_shape
from cuvil.ops.shape_rules import broadcast
from cuvil.support.errors import ArgumentError, ArgumentTypeError, CuvilError, ShapeError, TracingError
from cuvil.symbolic import Dim, dim_min, exact_div, floordiv, product


def shape(x: ArrayLike) -> Shape:
    """The shape of an array; sizes of traced arrays may be symbolic.

    >>> shape([[1, 2, 3]])
    (1, 3)
    """
    return shape_of(operand(x))


def ndim(x: ArrayLike) -> int:
    """The number of axes.

    >>> ndim([[1, 2, 3]])
    2
    """
    return len(shape(x))


def size(x: ArrayLike, axis: int | None = None) -> Dim:
    """The number of elements, or the size of one axis.

    >>> size([[1, 2, 3]]), size([[1, 2, 3]], 1)
    (3, 3)
    """
    given = shape(x)
    return product(given) if axis is None else given[one_axis(axis, len(given))]


def _inferred(source: Shape, target: Shape) -> Shape:
    """A shape with its one -1 replaced by the size that keeps the number of elements."""
    unknown = [a for a, d in enumerate(target) if isinstance(d, int) and d == -1]
    if any(isinstance(d, int) and d < -1 for d in target) or len(unknown) > 1:
        raise ShapeError(
            f"reshape: {format_shape(target)} must have sizes of 0 or more and at most one -1{at_user_line()}"
        )
    if not unknown:
        return target
    rest = product(d for a, d in enumerate(target) if a != unknown[0])
    total = product(source)
    quotient = exact_div(total, rest)
    if quotient is None:
        if isinstance(rest, int) and (rest == 0 or isinstance(total, int)):
            why = "the other sizes hold no element" if rest == 0 else f"{rest} does not divide {total}"
            raise ShapeError(
                f"reshape: -1 in {format_shape(target)} cannot stand for a size of {format_shape(source)}: {why}"
                f"{at_user_line()}"
            )
        quotient = floordiv(total, rest)  # the record demands that the product is right
    return tuple(quotient if a == unknown[0] else d for a, d in enumerate(target))


def reshape(x: ArrayLike, shape: ShapeLike, *, order: str = "C", copy: bool | None = None) -> AnyArray:
    """The same elements in row-major order under another shape; one size may be -1. Sizes may be symbolic.

    Raises:
        ShapeError: the shapes hold different numbers of elements.
        ArgumentError: an order other than "C".

    >>> reshape([1, 2, 3, 4], (2, -1)).tolist()
    [[1, 2], [3, 4]]
    """
    if order != "C":
        raise ArgumentError(
            f"reshape: order {order!r} is not supported{at_user_line()}; transpose first for column-major order"
        )
    given = operand(x)
    return apply("reshape", given, shape=_inferred(shape_of(given), as_shape(shape)))


def ravel(x: ArrayLike) -> AnyArray:
    """All elements in row-major order, as one axis.

    >>> ravel([[1, 2], [3, 4]]).tolist()
    [1, 2, 3, 4]
    """
    given = operand(x)
    return reshaped(given, (product(shape_of(given)),))


# --------------------------------------------------------------------------------------- order of the axes


def transpose(x: ArrayLike, axes: Sequence[int] | None = None) -> AnyArray:
    """Axes in another order, reversed by default.

    Raises:
        AxisError: ``axes`` is no permutation.

    >>> transpose([[1, 2], [3, 4]]).tolist()
    [[1, 3], [2, 4]]
    """
    given = operand(x)
    rank = len(shape_of(given))
    order = tuple(reversed(range(rank))) if axes is None else some_axes(axes, rank, "axes")
    return apply("transpose", given, axes=order)


permute_dims = transpose


def matrix_transpose(x: ArrayLike) -> AnyArray:
    """The last two axes exchanged.

    Raises:
        ShapeError: fewer than two axes.

    >>> matrix_transpose([[1, 2], [3, 4]]).tolist()
    [[1, 3], [2, 4]]
    """
    given = operand(x)
    if len(shape_of(given)) < 2:
        raise ShapeError(
            f"matrix_transpose takes an array of rank 2 or more, got {format_shape(shape_of(given))}{at_user_line()}"
        )
    return swapaxes(given, -1, -2)


def swapaxes(x: ArrayLike, axis1: int, axis2: int) -> AnyArray:
    """Two axes exchanged.

    Raises:
        AxisError: an axis outside the rank.

    >>> swapaxes([[1, 2, 3]], 0, 1).tolist()
    [[1], [2], [3]]
    """
    given = operand(x)
    rank = len(shape_of(given))
    a, b = one_axis(axis1, rank), one_axis(axis2, rank)
    order = list(range(rank))
    order[a], order[b] = b, a
    return apply("transpose", given, axes=tuple(order))


def moveaxis(x: ArrayLike, source: int | Sequence[int], destination: int | Sequence[int]) -> AnyArray:
    """Axes moved to other places; the rest keep their order.

    Raises:
        AxisError: an axis outside the rank or given twice.

    >>> moveaxis(__import__("numpy").zeros((2, 3, 4)), 0, -1).shape
    (3, 4, 2)
    """
    given = operand(x)
    rank = len(shape_of(given))
    left, right = some_axes(source, rank, "source"), some_axes(destination, rank, "destination")
    if len(left) != len(right):
        raise ArgumentError(f"moveaxis: {source} and {destination} name different numbers of axes{at_user_line()}")
    order = [a for a in range(rank) if a not in left]
    for place, axis in sorted(zip(right, left, strict=True)):
        order.insert(place, axis)
    return apply("transpose", given, axes=tuple(order))


def expand_dims(x: ArrayLike, axis: int | Sequence[int] = 0) -> AnyArray:
    """New axes of size 1, at these places of the result.

    Raises:
        AxisError: a place outside the result's rank or given twice.

    >>> expand_dims([1, 2], 1).tolist()
    [[1], [2]]
    """
    given = operand(x)
    source = shape_of(given)
    count = len(axis) if isinstance(axis, (tuple, list)) else 1
    places = some_axes(axis, len(source) + count)
    sizes = iter(source)
    return reshaped(given, tuple(1 if a in places else next(sizes) for a in range(len(source) + count)))


def squeeze(x: ArrayLike, axis: Axes = None) -> AnyArray:
    """Without axes of size 1: those named, or all whose size is the constant 1.

    Raises:
        ShapeError: a named axis of another size.

    >>> squeeze([[[1, 2]]]).tolist(), squeeze([[1, 2]], axis=0).tolist()
    ([1, 2], [1, 2])
    """
    given = operand(x)
    source = shape_of(given)
    if axis is None:
        dropped = tuple(a for a, d in enumerate(source) if d == 1)
    else:
        dropped = some_axes(axis, len(source))
        for a in dropped:
            if isinstance(source[a], int) and source[a] != 1:
                raise ShapeError(
                    f"squeeze: axis {a} of {format_shape(source)} has size {source[a]}, not 1{at_user_line()}"
                )
    return reshaped(given, tuple(d for a, d in enumerate(source) if a not in dropped))


# --------------------------------------------------------------------------------------------- broadcasting


def broadcast_to(x: ArrayLike, shape: ShapeLike) -> AnyArray:
    """Axes of size 1 and missing leading axes repeated until the shape is reached.

    Raises:
        ShapeError: the shape cannot be reached.

    >>> broadcast_to([1, 2], (2, 2)).tolist()
    [[1, 2], [1, 2]]
    """
    given = operand(x)
    target = as_shape(shape)
    if any(isinstance(d, int) and d < 0 for d in target):
        raise ShapeError(f"the shape {format_shape(target)} has a negative size{at_user_line()}; sizes are 0 or more")
    return given if shape_of(given) == target else apply("broadcast_to", given, shape=target)


def broadcast_shapes(*shapes: ShapeLike) -> Shape:
    """The shape that shapes broadcast to; sizes may be symbolic.

    Raises:
        ShapeError: they do not broadcast together.

    >>> broadcast_shapes((3, 1), (4,))
    (3, 4)
    """
    given = [as_shape(s) for s in shapes]
    try:
        return broadcast(Requirements("broadcast_shapes"), given, f"{', '.join(map(format_shape, given))} broadcast")
    except CuvilError as error:
        raise type(error)(f"{error}{at_user_line()}") from None


def broadcast_arrays(*arrays: ArrayLike) -> list[AnyArray]:
    """Arrays broadcast to one shape, each with its own dtype.

    >>> [a.tolist() for a in broadcast_arrays([1, 2], [[3]])]
    [[[1, 2]], [[3, 3]]]
    """
    given = [operand(x) for x in arrays]
    target = broadcast_shapes(*(shape_of(x) for x in given))
    return [broadcast_to(x, target) for x in given]


# ------------------------------------------------------------------------------------- joining and splitting


def _several(name: str, arrays: Any) -> list[Any]:
    if not isinstance(arrays, (tuple, list, Tracer, np.ndarray)):
        raise ArgumentTypeError(f"{name} takes a sequence of arrays, got {type(arrays).__name__}{at_user_line()}")
    given = list(arrays)
    if not given:
        raise ArgumentError(f"{name} needs at least one array{at_user_line()}")
    return given


def concat(arrays: Sequence[ArrayLike], /, axis: int | None = 0, *, dtype: Any = None) -> AnyArray:
    """Arrays one after the other along an axis, promoted to one dtype; ``axis=None`` flattens them first.

    Raises:
        ShapeError: other sizes differ.
        AxisError: an axis outside the rank.

    >>> concat([[1, 2], [3]]).tolist()
    [1, 2, 3]
    """
    given = together(*(operand(x) for x in _several("concat", arrays)), dt=dtype_or_none(dtype))
    if axis is None:
        given, axis = tuple(ravel(x) for x in given), 0
    return apply("concat", *given, axis=one_axis(axis, len(shape_of(given[0]))))


concatenate = concat


def stack(arrays: Sequence[ArrayLike], /, axis: int = 0, *, dtype: Any = None) -> AnyArray:
    """Arrays of one shape along a new axis, promoted to one dtype.

    Raises:
        ShapeError: the shapes differ.
        AxisError: an axis outside the result's rank.

    >>> stack([[1, 2], [3, 4]], axis=1).tolist()
    [[1, 3], [2, 4]]
    """
    given = together(*(operand(x) for x in _several("stack", arrays)), dt=dtype_or_none(dtype))
    return apply("stack", *given, axis=one_axis(axis, len(shape_of(given[0])) + 1))


def _at_least(x: Any, rank: int) -> AnyArray:
    source = shape_of(x)
    return reshaped(x, (1,) * (rank - len(source)) + source) if len(source) < rank else x


def atleast_1d(x: ArrayLike) -> AnyArray:
    """At least one axis, of size 1 where there is none.

    >>> atleast_1d(3).tolist()
    [3]
    """
    return _at_least(operand(x), 1)


def atleast_2d(x: ArrayLike) -> AnyArray:
    """At least two axes, with leading ones of size 1.

    >>> atleast_2d([3]).tolist()
    [[3]]
    """
    return _at_least(operand(x), 2)


def vstack(arrays: Sequence[ArrayLike], /) -> AnyArray:
    """Rows below each other: :func:`concat` along axis 0 of arrays with at least two axes.

    >>> vstack([[1, 2], [3, 4]]).tolist()
    [[1, 2], [3, 4]]
    """
    return concat([_at_least(operand(x), 2) for x in _several("vstack", arrays)], axis=0)


def hstack(arrays: Sequence[ArrayLike], /) -> AnyArray:
    """Side by side: :func:`concat` along axis 1, or axis 0 of arrays with one axis.

    >>> hstack([[1, 2], [3]]).tolist()
    [1, 2, 3]
    """
    given = [_at_least(operand(x), 1) for x in _several("hstack", arrays)]
    return concat(given, axis=0 if len(shape_of(given[0])) == 1 else 1)


def _split_at(x: Any, axis: int, bounds: Sequence[Dim]) -> list[AnyArray]:
    return [slice_axis(x, axis, Span(lo, hi - lo, 1)) for lo, hi in pairwise(bounds)]


def _between(x: Any, axis: int, indices: Sequence[Any]) -> list[AnyArray]:
    """The pieces between indices, which count and clamp as in a slice."""
    d = shape_of(x)[axis]
    bounds = zip([None, *indices], [*indices, None], strict=True)
    return [slice_axis(x, axis, span_of(slice(lo, hi), d)) for lo, hi in bounds]


def split(x: ArrayLike, indices_or_sections: Any, axis: int = 0) -> list[AnyArray]:
    """Equal sections along an axis, or the pieces between indices.

    Raises:
        ArgumentError: the size of the axis is no multiple of the number of sections.

    >>> [p.tolist() for p in split([1, 2, 3, 4], 2)], [p.tolist() for p in split([1, 2, 3], [1])]
    ([[1, 2], [3, 4]], [[1], [2, 3]])
    """
    given = operand(x)
    source = shape_of(given)
    a = one_axis(axis, len(source))
    if isinstance(indices_or_sections, (tuple, list, np.ndarray)):
        return _between(given, a, list(indices_or_sections))
    sections = as_int(indices_or_sections, "the number of sections")
    part = exact_div(source[a], sections) if sections > 0 else None
    if part is None:
        raise ArgumentError(
            f"split: axis {a} of size {source[a]} is not known to be a multiple of {sections} sections"
            f"{at_user_line()}; use array_split, or give the indices"
        )
    return _split_at(given, a, [part * i for i in range(sections + 1)])


def array_split(x: ArrayLike, indices_or_sections: Any, axis: int = 0) -> list[AnyArray]:
    """As :func:`split`; the first sections are one longer where the size is no multiple.

    >>> [p.tolist() for p in array_split([1, 2, 3], 2)]
    [[1, 2], [3]]
    """
    given = operand(x)
    source = shape_of(given)
    a = one_axis(axis, len(source))
    if isinstance(indices_or_sections, (tuple, list, np.ndarray)):
        return _between(given, a, list(indices_or_sections))
    sections = as_int(indices_or_sections, "the number of sections")
    if sections <= 0:
        raise ArgumentError(f"array_split: the number of sections must be above 0, got {sections}{at_user_line()}")
    # The section that begins at i * n / sections rounded up is one longer for the first n % sections.
    each, extra = source[a] // sections, source[a] % sections
    return _split_at(given, a, [each * i + dim_min(extra, i) for i in range(sections + 1)])


def unstack(x: ArrayLike, /, *, axis: int = 0) -> tuple[AnyArray, ...]:
    """The slices along an axis, without that axis.

    Raises:
        ArgumentError: the axis has a symbolic size.

    >>> [p.tolist() for p in unstack([[1, 2], [3, 4]])]
    [[1, 2], [3, 4]]
    """
    given = operand(x)
    source = shape_of(given)
    a = one_axis(axis, len(source))
    count = source[a]
    if not isinstance(count, int):
        raise ArgumentError(f"unstack: axis {a} has the symbolic size {count}{at_user_line()}; make that axis static")
    rest = (*source[:a], *source[a + 1 :])
    return tuple(reshaped(slice_axis(given, a, Span(i, 1, 1)), rest) for i in range(count))


# --------------------------------------------------------------------------- padding, reordering, repetition


def _pad_pairs(pad_width: Any, rank: int) -> tuple[tuple[Dim, Dim], ...]:
    """One (before, after) pair per axis from NumPy's forms: n, (n,), (before, after), ((before, after), ...)."""
    if isinstance(pad_width, np.ndarray):
        pad_width = pad_width.tolist()
    if not isinstance(pad_width, (tuple, list)):
        n = as_size(pad_width, "a padding")
        return ((n, n),) * rank
    rows: list[Any] = list(pad_width)
    if not any(isinstance(r, (tuple, list)) for r in rows):
        rows = [rows]
    pairs: list[tuple[Dim, Dim]] = []
    for row in rows:
        entries = list(row) if isinstance(row, (tuple, list)) else [row]
        if len(entries) == 1:
            entries *= 2
        if len(entries) != 2:
            raise ArgumentError(f"pad: expected (before, after) pairs, got {pad_width!r}{at_user_line()}")
        pairs.append((as_size(entries[0], "a padding"), as_size(entries[1], "a padding")))
    if len(pairs) == 1:
        pairs *= rank
    if len(pairs) != rank:
        raise ArgumentError(f"pad: {len(pairs)} pairs for an array of rank {rank}{at_user_line()}; give one per axis")
    return tuple(pairs)


def pad(x: ArrayLike, pad_width: Any, mode: str = "constant", *, constant_values: Any = 0) -> AnyArray:
    """Elements added before and after each axis: a constant, the edge, the reflection or (``wrap``) the other end.

    ``pad_width`` is a number, a (before, after) pair for all axes, or one pair per axis.

    Raises:
        ArgumentError: another mode or form of ``pad_width``.

    >>> pad([1, 2], 1).tolist(), pad([1, 2], (0, 2), "edge").tolist()
    ([0, 1, 2, 0], [1, 2, 2, 2])
    """
    given = operand(x)
    pairs = _pad_pairs(pad_width, len(shape_of(given)))
    name = choice(mode, ("constant", "edge", "reflect", "wrap"), "pad: mode")
    if name == "reflect" and all(isinstance(d, int) for d in (*shape_of(given), *(n for p in pairs for n in p))):
        return _reflected(given, pairs)
    value = as_scalar(constant_values, "pad: constant_values")
    if not dtype_of(given).is_float:
        value = bool(value) if dtype_of(given).is_bool else int(value)
    return apply("pad", given, pairs=pairs, mode=name, value=value)


def _reflected(x: Any, pairs: tuple[tuple[Dim, Dim], ...]) -> AnyArray:
    """Reflection of static sizes, which goes back and forth where the padding is longer than the axis."""
    for axis, (before, after) in enumerate(pairs):
        n = shape_of(x)[axis]
        assert isinstance(n, int) and isinstance(before, int) and isinstance(after, int)
        if max(before, after) < n or (before == 0 and after == 0):
            here = tuple((before, after) if a == axis else (0, 0) for a in range(len(pairs)))
            x = apply("pad", x, pairs=here, mode="reflect", value=0)
            continue
        if n == 0:
            raise ArgumentError(f"pad: axis {axis} is empty and has nothing to reflect{at_user_line()}")
        period = max(2 * (n - 1), 1)
        at = (
            np.abs((np.arange(-before, n + after) + n - 1) % period - (n - 1))
            if n > 1
            else np.zeros(n + before + after)
        )
        x = apply("take", x, at.astype(np.int64), axis=axis, mode="clip")
    return x


def flip(x: ArrayLike, axis: Axes = None) -> AnyArray:
    """Elements in reverse order along axes (all by default).

    >>> flip([1, 2, 3]).tolist()
    [3, 2, 1]
    """
    given = operand(x)
    return apply("flip", given, axes=tuple(sorted(some_axes(axis, len(shape_of(given))))))


def roll(x: ArrayLike, shift: Any, axis: Axes = None) -> AnyArray:
    """Elements moved along axes; what leaves at one end enters at the other. ``axis=None`` rolls in row-major order.

    Raises:
        ArgumentError: different numbers of shifts and axes.

    >>> roll([1, 2, 3], 1).tolist()
    [3, 1, 2]
    """
    given = operand(x)
    source = shape_of(given)
    shifts = as_shape(shift)
    if axis is None:
        total: Dim = 0
        for s in shifts:
            total = total + s
        return reshaped(apply("roll", ravel(given), shifts=(total,), axes=(0,)), source)
    axes = tuple(one_axis(a, len(source)) for a in (axis if isinstance(axis, (tuple, list)) else (axis,)))
    if len(shifts) == 1:
        shifts *= len(axes)
    if len(axes) == 1:
        axes *= len(shifts)
    if len(shifts) != len(axes):
        raise ArgumentError(f"roll: {len(shifts)} shifts for {len(axes)} axes{at_user_line()}")
    moved: dict[int, Dim] = {}
    for a, s in zip(axes, shifts, strict=True):
        moved[a] = moved.get(a, 0) + s
    return apply("roll", given, shifts=tuple(moved.values()), axes=tuple(moved))


def tile(x: ArrayLike, reps: ShapeLike, /) -> AnyArray:
    """The whole array repeated along each axis.

    >>> tile([1, 2], 2).tolist(), tile([1, 2], (2, 1)).tolist()
    ([1, 2, 1, 2], [[1, 2], [1, 2]])
    """
    given = operand(x)
    counts = as_shape(reps)
    given = _at_least(given, len(counts))
    rank = len(shape_of(given))
    return apply("tile", given, reps=(1,) * (rank - len(counts)) + counts)


def repeat(x: ArrayLike, repeats: Any, /, axis: int | None = None) -> AnyArray:
    """Each element repeated in place along an axis; ``axis=None`` flattens first.

    ``repeats`` is one count, or a concrete array with a count per element of the axis.

    Raises:
        TracingError: traced counts: the size of the result would not be known.

    >>> repeat([1, 2], 2).tolist(), repeat([1, 2], [0, 3]).tolist()
    ([1, 1, 2, 2], [2, 2, 2])
    """
    given = operand(x)
    if axis is None:
        given, axis = ravel(given), 0
    a = one_axis(axis, len(shape_of(given)))
    if isinstance(repeats, Tracer):
        raise TracingError(
            f"repeat: the counts are the traced array {repeats!r}, so the size of the result depends on values"
            f"{at_user_line()}. Pass them as a static argument (static_argnames=...), or as a NumPy array that the"
            " function captures."
        )
    if isinstance(repeats, (tuple, list, np.ndarray)) and np.ndim(repeats) == 1:
        counts = np.asarray(repeats)
        length = shape_of(given)[a]
        if len(counts) == 1:
            return apply("repeat", given, repeats=as_size(counts[0]), axis=a)
        if length != len(counts):
            raise ShapeError(f"repeat: {len(counts)} counts for axis {a} of size {length}{at_user_line()}")
        return apply("take", given, np.repeat(np.arange(len(counts)), counts), axis=a, mode="clip")
    return apply("repeat", given, repeats=as_size(repeats, "repeats"), axis=a)


def tril(x: ArrayLike, /, k: int = 0) -> AnyArray:
    """The lower triangle of the last two axes, with zeros above diagonal ``k``.

    Raises:
        ShapeError: fewer than two axes.

    >>> tril([[1, 2], [3, 4]]).tolist()
    [[1, 0], [3, 4]]
    """
    return apply("tril", operand(x), k=as_int(k, "k"))


def triu(x: ArrayLike, /, k: int = 0) -> AnyArray:
    """The upper triangle of the last two axes, with zeros below diagonal ``k``.

    Raises:
        ShapeError: fewer than two axes.

    >>> triu([[1, 2], [3, 4]]).tolist()
    [[1, 2], [0, 4]]
    """
    return apply("triu", operand(x), k=as_int(k, "k"))
