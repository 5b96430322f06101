"""Indexing: ``x[...]`` with NumPy's rules on static and symbolic axes, take, and ``at`` updates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import EllipsisType
from typing import Any

import numpy as np

from cuvil.dtypes import int64
from cuvil.frontend.dispatch import ArrayLike, apply, asoperand, dtype_of
from cuvil.frontend.namespace.arguments import AnyArray, as_scalar, cast, choice, one_axis, operand, shape_of
from cuvil.frontend.namespace.creation import iota
from cuvil.frontend.namespace.manipulation import broadcast_shapes, broadcast_to, ravel
from cuvil.frontend.namespace.slicing import Span, is_whole, reshaped, sliced, span_of
from cuvil.frontend.source import at_user_line
from cuvil.frontend.tracer import Tracer
from cuvil.ops.record import Shape
from cuvil.ops.requirements import format_shape
from cuvil.support.errors import ArgumentTypeError, IndexOutOfBoundsError, ShapeError, TracingError
from cuvil.symbolic import Dim, Expr, product

#: What happens to an index outside of its axis; NumPy's "raise" is another name of "error".
MODES = ("error", "raise", "clip", "wrap", "fill")


def _mode(mode: str) -> str:
    name = choice(mode, MODES, "mode")
    return "error" if name == "raise" else name


# ----------------------------------------------------------------------------------- the parts of an index


@dataclass(frozen=True)
class _Fancy:
    """An array of indices (of any rank, 0 for an integer) in an index expression."""

    indices: Any


@dataclass(frozen=True)
class _Whether:
    """A single bool: a new axis of size 1 or 0, which counts as an array of indices for where their axes go."""

    value: bool


@dataclass(frozen=True)
class _NewAxis:
    """A None in an index expression."""


@dataclass(frozen=True)
class _Gap:
    """An ellipsis that stands for no axis: it still keeps arrays on its two sides apart."""


_Part = int | Expr | slice | _NewAxis | _Whether | _Gap | _Fancy


def _fancy_parts(entry: Any, sizes: Sequence[Dim]) -> list[_Part]:
    """What an array in an index stands for: itself, or one array of positions per axis of a concrete mask."""
    array = entry if isinstance(entry, Tracer) else np.asarray(asoperand(entry))
    if isinstance(entry, (list, tuple)) and shape_of(array) == (0,):
        array = np.zeros((0,), np.int64)
    dt = dtype_of(array)
    if dt.is_integer:
        return [_Fancy(array)]
    if not dt.is_bool:
        raise ArgumentTypeError(
            f"arrays used as indices must be of integers or bool, got {dt.name}{at_user_line()}; convert them with"
            " astype('int64')"
        )
    if isinstance(array, Tracer):
        raise TracingError(
            f"a traced bool array ({array!r}) used as an index gives a result whose size depends on values"
            f"{at_user_line()}. Use cuvil.numpy.where(mask, x, other), multiply by the mask, or x.at[...] with where;"
            " a mask that is known before the call can be a NumPy array."
        )
    for n, d in zip(array.shape, sizes[: array.ndim], strict=False):
        if isinstance(d, int) and d != n:
            raise IndexOutOfBoundsError(
                f"a bool index of shape {format_shape(array.shape)} does not match the sizes"
                f" {format_shape(tuple(sizes[: array.ndim]))} that it selects from{at_user_line()}"
            )
    return [_Fancy(positions.astype(np.int64)) for positions in array.nonzero()]


def _axes_of(entry: Any) -> int:
    """How many axes an entry of an index consumes."""
    if entry is None or entry is Ellipsis or isinstance(entry, (bool, np.bool_)):
        return 0
    if isinstance(entry, (list, np.ndarray)):
        array = np.asarray(entry)
        if array.dtype == np.bool_:
            return array.ndim
    return 1


def _parts(index: Any, source: Shape) -> list[_Part]:
    """An index expression with one part for each axis of the operand, and for each new axis."""
    entries: list[Any] = list(index) if isinstance(index, tuple) else [index]
    used = sum(_axes_of(e) for e in entries)
    if used > len(source):
        raise IndexOutOfBoundsError(
            f"too many indices: {used} for an array of rank {len(source)}, shape {format_shape(source)}{at_user_line()}"
        )
    dots = [k for k, e in enumerate(entries) if e is Ellipsis]
    if len(dots) > 1:
        raise IndexOutOfBoundsError(f"an index can have one ellipsis ('...'), got {len(dots)}{at_user_line()}")
    whole: list[Any] = [slice(None)] * (len(source) - used)
    at = dots[0] if dots else len(entries)
    if whole or not dots:
        entries[at : at + 1] = whole
    parts: list[_Part] = []
    axis = 0
    for entry in entries:
        if entry is None or entry is Ellipsis:
            parts.append(_Gap() if entry is Ellipsis else _NewAxis())
            continue
        if isinstance(entry, (bool, np.bool_)) or (
            isinstance(entry, np.ndarray) and entry.dtype == bool and not entry.ndim
        ):
            parts.append(_Whether(bool(entry)))
            continue
        parts.extend(_entry_parts(entry, source[axis:]))
        axis += max(_axes_of(entry), 1)
    return parts


def _entry_parts(entry: Any, sizes: Sequence[Dim]) -> list[_Part]:
    if isinstance(entry, (slice, Expr)):
        return [entry]
    if isinstance(entry, (int, np.integer)):
        return [int(entry)]
    if isinstance(entry, (Tracer, np.ndarray, list)) or hasattr(entry, "__array__"):
        return _fancy_parts(entry, sizes)
    if isinstance(entry, (tuple, EllipsisType)) or entry is None:
        raise ArgumentTypeError(f"{type(entry).__name__} inside of an index is not supported{at_user_line()}")
    raise ArgumentTypeError(
        f"an index is made of integers, slices, None, ... and arrays of integers; got {type(entry).__name__}"
        f"{at_user_line()}"
    )


def _position(i: int | Expr, d: Dim, axis: int) -> Dim:
    """An integer index counted from the start.

    Raises:
        IndexOutOfBoundsError: outside an axis of static size.
    """
    if isinstance(i, Expr):
        return i
    if isinstance(d, int) and not -d <= i < d:
        raise IndexOutOfBoundsError(
            f"index {i} is out of bounds for axis {axis} of size {d}; expected {-d} <= index < {d}{at_user_line()}"
        )
    return d + i if i < 0 else i


def _check_concrete(indices: Any, d: Dim, axis: int) -> None:
    """Raise for a concrete index outside an axis of static size, at trace time instead of in the run."""
    if isinstance(indices, np.ndarray) and isinstance(d, int) and indices.size:
        bad = indices[(indices < -d) | (indices >= d)]
        if bad.size:
            _position(int(bad.flat[0]), d, axis)


# ------------------------------------------------------------------------------------------------- x[...]


def getitem(x: ArrayLike, index: Any, *, mode: str = "error", fill: Any = 0) -> AnyArray:
    """``x[index]`` as NumPy reads it: integers, slices, ``...``, None, arrays of integers and concrete masks.

    Symbolic axes give the right result for every size. ``mode`` says what an array's index outside its axis does:
    "error" raises, "clip" takes the nearest, "wrap" counts on from the other end, "fill" gives ``fill``.

    Raises:
        IndexOutOfBoundsError: an index outside its axis, too many indices.
        TracingError: a traced mask or a traced slice bound.

    >>> getitem([[1, 2, 3], [4, 5, 6]], (slice(None), -1)).tolist()
    [3, 6]
    """
    given = operand(x)
    source = shape_of(given)
    parts = _parts(index, source)
    spans: list[Span] = []
    shape: list[Dim] = []  # after the slices, with new axes, without the axes that integers take away
    arrays: list[tuple[int, Any]] = []  # the axis of ``shape`` that an array indexes, and the array
    places: list[
        tuple[int, int]
    ] = []  # of arrays, and of integers beside arrays: number of the part, axis of ``shape``
    axis = 0
    for k, part in enumerate(parts):
        if isinstance(part, _Gap):
            continue
        if isinstance(part, _NewAxis):
            shape.append(1)
            continue
        if isinstance(part, _Whether):
            places.append((k, len(shape)))
            arrays.append((len(shape), np.zeros(int(part.value), np.int64)))
            shape.append(1)
            continue
        d = source[axis]
        if isinstance(part, slice):
            spans.append(span_of(part, d))
            shape.append(spans[-1].size)
        elif isinstance(part, _Fancy):
            _check_concrete(part.indices, d, axis)
            spans.append(Span(0, d, 1))
            places.append((k, len(shape)))
            arrays.append((len(shape), part.indices))
            shape.append(d)
        else:
            spans.append(Span(_position(part, d, axis), 1, 1))
            # As in NumPy an integer beside arrays counts as one of them, for where their axes go.
            places.append((k, len(shape)))
        axis += 1
    moved = reshaped(sliced(given, spans), tuple(shape))
    if not arrays:
        return moved
    adjacent = places[-1][0] - places[0][0] == len(places) - 1
    return _gathered(moved, arrays, places[0][1] if adjacent else 0, _mode(mode), fill)


def _gathered(x: Any, arrays: Sequence[tuple[int, Any]], before: int, mode: str, fill: Any) -> AnyArray:
    """Arrays of indices for some axes; the axes of the arrays stand behind ``before`` of the others."""
    source = shape_of(x)
    axes = [a for a, _ in arrays]
    rest = len(source) - len(axes)
    if len(arrays) == 1:
        out, here = apply("take", x, arrays[0][1], axis=axes[0], mode=mode, fill=fill), axes[0]
    else:
        fronted = _permuted(x, (*axes, *(a for a in range(len(source)) if a not in axes)))
        out, here = apply("gather", fronted, *(cast(i, int64) for _, i in arrays), mode=mode, fill=fill), 0
    lead = len(shape_of(out)) - rest
    order = list(range(lead + rest))
    indexed = order[here : here + lead]
    del order[here : here + lead]
    order[before:before] = indexed
    return _permuted(out, tuple(order))


def _permuted(x: Any, order: tuple[int, ...]) -> AnyArray:
    return x if order == tuple(range(len(order))) else apply("transpose", x, axes=order)


def take(
    x: ArrayLike, indices: ArrayLike, /, axis: int | None = None, mode: str = "error", *, fill: Any = 0
) -> AnyArray:
    """Slices of ``x`` at indices along one axis, whose place the axes of the indices take.

    ``axis=None`` indexes the elements in row-major order. ``mode``: "error" (also "raise"), "clip", "wrap", "fill".

    Raises:
        IndexOutOfBoundsError: an index outside the axis under "error".

    >>> take([10, 20, 30], [2, -1]).tolist()
    [30, 30]
    """
    given, at = operand(x), _indices(indices)
    if axis is None:
        given, axis = ravel(given), 0
    a = one_axis(axis, len(shape_of(given)))
    name = _mode(mode)
    if name == "error":
        _check_concrete(at, shape_of(given)[a], a)
    return apply("take", given, at, axis=a, mode=name, fill=_fill(fill, given))


def _fill(value: Any, x: Any) -> bool | int | float:
    number = as_scalar(value, "fill")
    return number if dtype_of(x).is_float else int(number)


def _indices(x: ArrayLike) -> AnyArray:
    given = operand(x)
    if isinstance(x, (list, tuple)) and shape_of(given) == (0,):
        return np.zeros((0,), np.int64)
    if not dtype_of(given).is_integer:
        raise ArgumentTypeError(f"indices must be integers, got {dtype_of(given).name}{at_user_line()}")
    return given


def take_along_axis(
    x: ArrayLike, indices: ArrayLike, /, axis: int | None = -1, mode: str = "error", *, fill: Any = 0
) -> AnyArray:
    """Elements of ``x`` at their own indices along one axis, as argsort gives them; the other axes broadcast.

    Raises:
        IndexOutOfBoundsError: an index outside the axis under "error".

    >>> take_along_axis([[3, 1, 2]], [[1, 2, 0]]).tolist()
    [[1, 2, 3]]
    """
    given, at = operand(x), _indices(indices)
    if axis is None:
        given, axis = ravel(given), 0
    a = one_axis(axis, len(shape_of(given)))
    return apply("take_along_axis", given, at, axis=a, mode=_mode(mode), fill=_fill(fill, given))


# ------------------------------------------------------------------------------------------ at[...] updates


class UpdateAt:
    """``at(x)[index]``: the elements to change; call :meth:`set`, :meth:`add`, ... on it."""

    def __init__(self, x: Any, index: Any) -> None:
        self._x = x
        self._index = index

    def set(self, values: ArrayLike, *, mode: str = "error") -> AnyArray:
        """A copy of the array with these elements replaced (where an index repeats, the last one stays)."""
        return _updated(self._x, self._index, values, "set", mode)

    def add(self, values: ArrayLike, *, mode: str = "error") -> AnyArray:
        """A copy with values added; repeated indices add up."""
        return _updated(self._x, self._index, values, "add", mode)

    def multiply(self, values: ArrayLike, *, mode: str = "error") -> AnyArray:
        """A copy with elements multiplied by values, once for each time that an index stands."""
        return _updated(self._x, self._index, values, "mul", mode)

    def max(self, values: ArrayLike, *, mode: str = "error") -> AnyArray:
        """A copy with the larger of element and values."""
        return _updated(self._x, self._index, values, "max", mode)

    def min(self, values: ArrayLike, *, mode: str = "error") -> AnyArray:
        """A copy with the smaller of element and values."""
        return _updated(self._x, self._index, values, "min", mode)

    def get(self, *, mode: str = "error", fill_value: Any = 0) -> AnyArray:
        """The elements themselves, with a mode for indices outside."""
        return getitem(self._x, self._index, mode=mode, fill=fill_value)


class At:
    """What :func:`at` returns: index it."""

    def __init__(self, x: Any) -> None:
        self._x = x

    def __getitem__(self, index: Any) -> UpdateAt:
        return UpdateAt(self._x, index)


def at(x: ArrayLike) -> At:
    """``at(x)[index].set/add/multiply/max/min(values, mode="error")``: a copy of ``x`` with some elements changed.

    ``index`` is any index that ``x[index]`` takes; values broadcast to its shape and are cast to the dtype of ``x``.
    Under mode "fill" updates outside are dropped; "clip" and "wrap" bring indices inside.

    Raises:
        IndexOutOfBoundsError: an index outside its axis under "error".
        ShapeError: values that do not broadcast to the elements.

    >>> at([1, 2, 3])[0].set(9).tolist(), at([1, 2, 3])[[0, 0]].add(1).tolist()
    ([9, 2, 3], [3, 2, 3])
    """
    return At(operand(x))


def _updated(x: Any, index: Any, values: ArrayLike, op: str, mode: str) -> AnyArray:
    name = _mode(mode)
    source = shape_of(x)
    updates = cast(asoperand(values), dtype_of(x))
    mask = _traced_mask(index)
    if mask is not None:
        return _masked(x, mask, updates, op)
    direct = _direct(index, source)
    if direct is not None:
        axes, indices, rest = direct
        order = (*axes, *rest)
        for a, i in zip(axes, indices, strict=True):
            if name == "error":
                _check_concrete(i, source[a], a)
        fronted = _permuted(x, order)
        out = apply("scatter", fronted, updates, *(cast(i, int64) for i in indices), op=op, mode=name)
        back = tuple(order.index(a) for a in range(len(source)))
        return _permuted(out, back)
    # Any other index: where the elements stand in row-major order, found by indexing the positions themselves.
    # Under "fill" a position outside becomes one past the end, which the scatter drops.
    total = product(source)
    positions = getitem(reshaped(iota((total,), 0), source), index, mode="error" if name == "error" else name, fill=-1)
    if name == "fill":
        positions = _past_end(positions, total)
    target = shape_of(positions)
    flat = apply("scatter", ravel(x), broadcast_to(_fitting(updates, target), target), positions, op=op, mode=name)
    return reshaped(flat, source)


def _traced_mask(index: Any) -> Tracer | None:
    """The traced bool array that an index is, alone or before an ellipsis."""
    entries: tuple[Any, ...] = index if isinstance(index, tuple) else (index,)
    if len(entries) == 2 and entries[1] is Ellipsis:
        entries = entries[:1]
    (first,) = entries if len(entries) == 1 else (None,)
    return first if isinstance(first, Tracer) and dtype_of(first).is_bool else None


_UPDATES = {"add": "add", "mul": "multiply", "max": "maximum", "min": "minimum"}


def _masked(x: Any, mask: Tracer, updates: Any, op: str) -> AnyArray:
    """Elements changed where a mask holds: one value for all of them, since how many there are is not known."""
    source, selected, given = shape_of(x), shape_of(mask), shape_of(updates)
    rest = len(source) - len(selected)
    if rest < 0 or not selected:
        raise IndexOutOfBoundsError(
            f"a traced bool index of shape {format_shape(selected)} does not select from {format_shape(source)}"
            f"{at_user_line()}"
        )
    if len(given) > rest:
        raise TracingError(
            f"at[mask] with a traced mask takes one value for all elements that it selects, got values of shape"
            f" {format_shape(given)}{at_user_line()}: how many elements there are is only known when the compiled"
            " function runs. Use cuvil.numpy.where(mask, values, x) with a value for each place."
        )
    changed = updates if op == "set" else apply(_UPDATES[op], x, updates)
    return apply("where", reshaped(mask, (*selected, *(1,) * rest)), broadcast_to(changed, source), x)


def _past_end(positions: Any, total: Dim) -> AnyArray:
    from_condition = apply("less", positions, np.asarray(0))
    past = cast(asoperand(total), int64)
    return apply("where", from_condition, past, positions)


def _fitting(updates: Any, target: Shape) -> AnyArray:
    """Updates without the leading axes of size 1 that NumPy lets an assignment have in excess."""
    shape = shape_of(updates)
    extra = len(shape) - len(target)
    if extra > 0 and all(d == 1 for d in shape[:extra]):
        return reshaped(updates, shape[extra:])
    if extra > 0:
        raise ShapeError(
            f"values of shape {format_shape(shape)} do not fit the elements of shape {format_shape(target)}"
            f"{at_user_line()}"
        )
    return updates


def _direct(index: Any, source: Shape) -> tuple[tuple[int, ...], list[Any], tuple[int, ...]] | None:
    """Indexed axes, their indices and the whole axes behind, where the index is one scatter of whole slices.

    That is: integers and arrays for some axes, everything of the others, and the result's axes in the order
    (arrays, whole axes) that scatter has.
    """
    parts = _parts(index, source)
    axes: list[int] = []
    indices: list[Any] = []
    rest: list[int] = []
    for axis, part in enumerate(parts):
        if isinstance(part, (_NewAxis, _Whether, _Gap)):
            return None
        if isinstance(part, _Fancy):
            axes.append(axis)
            indices.append(part.indices)
        elif isinstance(part, int):
            _position(part, source[axis], axis)
            axes.append(axis)
            indices.append(np.asarray(part))
        elif isinstance(part, slice) and is_whole(span_of(part, source[axis]), source[axis]):
            rest.append(axis)
        else:
            return None
    if not axes:
        return None
    lead = len(broadcast_shapes(*(shape_of(i) for i in indices)))
    # Arrays that stand together behind whole axes leave their axes in the middle of the result, not in front.
    adjacent = axes[-1] - axes[0] == len(axes) - 1
    return None if lead and adjacent and rest and rest[0] < axes[0] else (tuple(axes), indices, tuple(rest))
