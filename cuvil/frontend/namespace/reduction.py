"""Reductions and scans: axes as NumPy takes them, ``dtype`` cast to first, 64-bit integer sums."""

from __future__ import annotations

from typing import Any

from cuvil.dtypes import float64
from cuvil.frontend.dispatch import ArrayLike, apply, dtype_of
from cuvil.frontend.namespace.arguments import (
    AnyArray,
    Axes,
    DTypeLike,
    as_int,
    cast,
    dtype_or_none,
    one_axis,
    operand,
    shape_of,
    some_axes,
)
from cuvil.frontend.namespace.elementwise import astype, isclose, not_equal, subtract
from cuvil.frontend.namespace.manipulation import broadcast_to, concat
from cuvil.frontend.namespace.slicing import slice_axis, span_of
from cuvil.frontend.source import at_user_line
from cuvil.ops.record import ParamValue
from cuvil.support.errors import ArgumentError
from cuvil.symbolic import product


def _reduce(
    name: str, x: ArrayLike, axis: Axes, keepdims: bool, dtype: DTypeLike = None, **params: ParamValue
) -> AnyArray:
    given = cast(operand(x), dtype_or_none(dtype))
    axes = tuple(sorted(some_axes(axis, len(shape_of(given)))))
    result = apply(name, given, axes=axes, keepdims=bool(keepdims), **params)
    return result if dtype is None else astype(result, dtype)


def sum(x: ArrayLike, axis: Axes = None, dtype: DTypeLike = None, keepdims: bool = False) -> AnyArray:  # noqa: A001
    """The sum over axes (all by default). Integers and bool sum in 64 bits; halves accumulate in float32.

    ``dtype`` is what ``x`` is cast to first, and the dtype of the result.

    Raises:
        AxisError: an axis outside the rank or given twice.

    >>> sum([[1, 2], [3, 4]], axis=0).tolist(), sum([True, True]).tolist()
    ([4, 6], 2)
    """
    return _reduce("sum", x, axis, keepdims, dtype)


def prod(x: ArrayLike, axis: Axes = None, dtype: DTypeLike = None, keepdims: bool = False) -> AnyArray:
    """The product over axes (all by default), with the dtypes of :func:`sum`.

    Raises:
        AxisError: an axis outside the rank or given twice.

    >>> prod([[1, 2], [3, 4]], axis=1).tolist()
    [2, 12]
    """
    return _reduce("prod", x, axis, keepdims, dtype)


def max(x: ArrayLike, axis: Axes = None, keepdims: bool = False) -> AnyArray:  # noqa: A001
    """The largest element over axes (all by default); NaN where there is one.

    Raises:
        AxisError: an axis outside the rank or given twice.
        ArgumentError: nothing to reduce.

    >>> max([[1, 2], [3, 4]], axis=0).tolist()
    [3, 4]
    """
    return _reduce("max", x, axis, keepdims)


def min(x: ArrayLike, axis: Axes = None, keepdims: bool = False) -> AnyArray:  # noqa: A001
    """The smallest element over axes (all by default); NaN where there is one.

    Raises:
        AxisError: an axis outside the rank or given twice.
        ArgumentError: nothing to reduce.

    >>> min([[1, 2], [3, 4]], axis=1).tolist()
    [1, 3]
    """
    return _reduce("min", x, axis, keepdims)


amax, amin = max, min


def mean(x: ArrayLike, axis: Axes = None, dtype: DTypeLike = None, keepdims: bool = False) -> AnyArray:
    """The arithmetic mean over axes (all by default); integers give float64, halves accumulate in float32.

    Raises:
        AxisError: an axis outside the rank or given twice.

    >>> mean([[1.0, 2.0], [3.0, 4.0]], axis=0).tolist()
    [2.0, 3.0]
    """
    return _reduce("mean", x, axis, keepdims, dtype)


def _spread(
    name: str, x: ArrayLike, axis: Axes, dtype: DTypeLike, correction: float | None, ddof: float | None, keepdims: bool
) -> AnyArray:
    if correction is not None and ddof is not None:
        raise ArgumentError(f"{name}: correction and ddof are two names of one parameter; give one{at_user_line()}")
    value = ddof if ddof is not None else 0 if correction is None else correction
    return _reduce(name, x, axis, keepdims, dtype, correction=value)


def var(
    x: ArrayLike, axis: Axes = None, dtype: DTypeLike = None, *, correction: float | None = None,
    ddof: float | None = None, keepdims: bool = False,
) -> AnyArray:  # fmt: skip
    """The variance over axes (all by default): squared deviations summed, over ``n - correction`` (also ``ddof``).

    Raises:
        AxisError: an axis outside the rank or given twice.
        ArgumentError: both ``correction`` and ``ddof``.

    >>> var([1.0, 3.0]).tolist(), var([1.0, 3.0], correction=1).tolist()
    (1.0, 2.0)
    """
    return _spread("var", x, axis, dtype, correction, ddof, keepdims)


def std(
    x: ArrayLike, axis: Axes = None, dtype: DTypeLike = None, *, correction: float | None = None,
    ddof: float | None = None, keepdims: bool = False,
) -> AnyArray:  # fmt: skip
    """The standard deviation over axes: the square root of :func:`var`.

    Raises:
        AxisError: an axis outside the rank or given twice.
        ArgumentError: both ``correction`` and ``ddof``.

    >>> std([1.0, 3.0]).tolist()
    1.0
    """
    return _spread("std", x, axis, dtype, correction, ddof, keepdims)


def any(x: ArrayLike, axis: Axes = None, keepdims: bool = False) -> AnyArray:  # noqa: A001
    """Whether an element over axes is true (not 0); false over nothing.

    >>> any([[0, 1], [0, 0]], axis=1).tolist()
    [True, False]
    """
    return _reduce("any", x, axis, keepdims)


def all(x: ArrayLike, axis: Axes = None, keepdims: bool = False) -> AnyArray:  # noqa: A001
    """Whether all elements over axes are true (not 0); true over nothing.

    >>> all([[1, 1], [0, 1]], axis=1).tolist()
    [True, False]
    """
    return _reduce("all", x, axis, keepdims)


def count_nonzero(x: ArrayLike, axis: Axes = None, keepdims: bool = False) -> AnyArray:
    """How many elements over axes are not 0, as int64.

    >>> count_nonzero([[0, 1], [2, 3]], axis=0).tolist()
    [1, 2]
    """
    return _reduce("count_nonzero", x, axis, keepdims)


def logsumexp(x: ArrayLike, axis: Axes = None, keepdims: bool = False) -> AnyArray:
    """``log(sum(exp(x)))`` over axes without overflow; integers compute in float64.

    >>> logsumexp([1000.0, 0.0]).tolist()
    1000.0
    """
    given = operand(x)
    dt = dtype_of(given)
    return _reduce("logsumexp", given if dt.is_float else cast(given, float64), axis, keepdims)


def _flat(x: Any) -> AnyArray:
    shape = shape_of(x)
    return x if len(shape) == 1 else apply("reshape", x, shape=(product(shape),))


def _arg(name: str, x: ArrayLike, axis: int | None, keepdims: bool) -> AnyArray:
    given = operand(x)
    rank = len(shape_of(given))
    if axis is not None:
        return apply(name, given, axis=one_axis(axis, rank), keepdims=bool(keepdims))
    result = apply(name, _flat(given), axis=0, keepdims=False)
    return apply("reshape", result, shape=(1,) * rank) if keepdims else result


def argmax(x: ArrayLike, axis: int | None = None, keepdims: bool = False) -> AnyArray:
    """The index (int64) of the first largest element, or of the first NaN; ``axis=None`` counts in row-major order.

    Raises:
        AxisError: an axis outside the rank.
        ArgumentError: nothing to search.

    >>> argmax([[1, 5], [7, 2]]).tolist(), argmax([[1, 5], [7, 2]], axis=0).tolist()
    (2, [1, 0])
    """
    return _arg("argmax", x, axis, keepdims)


def argmin(x: ArrayLike, axis: int | None = None, keepdims: bool = False) -> AnyArray:
    """The index (int64) of the first smallest element, or of the first NaN; as :func:`argmax`.

    >>> argmin([3, 1, 1]).tolist()
    1
    """
    return _arg("argmin", x, axis, keepdims)


def _scan(name: str, x: ArrayLike, axis: int | None, dtype: DTypeLike, include_initial: bool) -> AnyArray:
    given = cast(operand(x), dtype_or_none(dtype))
    rank = len(shape_of(given))
    if axis is None:
        given, axis, rank = _flat(given), 0, 1
    result = apply(name, given, axis=one_axis(axis, rank), include_initial=bool(include_initial))
    return result if dtype is None else astype(result, dtype)


def cumulative_sum(
    x: ArrayLike, axis: int | None = None, dtype: DTypeLike = None, include_initial: bool = False
) -> AnyArray:
    """Running sums along an axis, with the dtypes of :func:`sum`; ``include_initial`` starts with a 0.

    ``axis=None`` runs over the elements in row-major order.

    >>> cumulative_sum([1, 2, 3]).tolist(), cumulative_sum([1, 2], include_initial=True).tolist()
    ([1, 3, 6], [0, 1, 3])
    """
    return _scan("cumulative_sum", x, axis, dtype, include_initial)


def cumulative_prod(
    x: ArrayLike, axis: int | None = None, dtype: DTypeLike = None, include_initial: bool = False
) -> AnyArray:
    """Running products along an axis, with the dtypes of :func:`sum`; ``include_initial`` starts with a 1.

    >>> cumulative_prod([1, 2, 3]).tolist()
    [1, 2, 6]
    """
    return _scan("cumulative_prod", x, axis, dtype, include_initial)


def cumsum(x: ArrayLike, axis: int | None = None, dtype: DTypeLike = None) -> AnyArray:
    """:func:`cumulative_sum` under NumPy's name.

    >>> cumsum([1, 2, 3]).tolist()
    [1, 3, 6]
    """
    return cumulative_sum(x, axis, dtype)


def cumprod(x: ArrayLike, axis: int | None = None, dtype: DTypeLike = None) -> AnyArray:
    """:func:`cumulative_prod` under NumPy's name.

    >>> cumprod([1, 2, 3]).tolist()
    [1, 2, 6]
    """
    return cumulative_prod(x, axis, dtype)


def allclose(a: ArrayLike, b: ArrayLike, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> AnyArray:
    """Whether all elements are close, as :func:`isclose` says.

    >>> bool(allclose([1.0, 2.0], [1.0, 2.0]))
    True
    """
    return all(isclose(a, b, rtol, atol, equal_nan))


def diff(
    x: ArrayLike, /, n: int = 1, axis: int = -1, prepend: ArrayLike | None = None, append: ArrayLike | None = None
) -> AnyArray:
    """The differences of neighbours along an axis, taken ``n`` times; of bool, whether they differ.

    ``prepend`` and ``append`` are put before and behind the axis first (scalars broadcast).

    Raises:
        ArgumentError: a negative ``n``, or an array of rank 0.

    >>> diff([1, 4, 9]).tolist(), diff([1, 4, 9], n=2).tolist()
    ([3, 5], [2])
    """
    given = operand(x)
    times, rank = as_int(n, "n"), len(shape_of(given))
    if times < 0 or rank == 0:
        raise ArgumentError(f"diff takes an array of rank 1 or more and n >= 0, got rank {rank}, n={n}{at_user_line()}")
    a = one_axis(axis, rank)
    if times == 0:
        return given
    around = [None if v is None else operand(v) for v in (prepend, append)]
    for k, v in enumerate(around):
        if v is not None and not shape_of(v):
            around[k] = broadcast_to(v, tuple(1 if i == a else d for i, d in enumerate(shape_of(given))))
    before, behind = around
    pieces = [p for p in (before, given, behind) if p is not None]
    if len(pieces) > 1:
        given = concat(pieces, axis=a)
    for _ in range(times):
        d = shape_of(given)[a]
        later = slice_axis(given, a, span_of(slice(1, None), d))
        earlier = slice_axis(given, a, span_of(slice(None, -1), d))
        given = not_equal(later, earlier) if dtype_of(given).is_bool else subtract(later, earlier)
    return given
