"""Functions that NumPy has beside the array API, composed of those of the namespace."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from cuvil.dtypes import float64
from cuvil.frontend.dispatch import ArrayLike, apply, asoperand, dtype_of, result_dtype
from cuvil.frontend.namespace.arguments import (
    AnyArray,
    Axes,
    DTypeLike,
    as_dtype,
    as_int,
    as_size,
    cast,
    float_dtype,
    one_axis,
    operand,
    shape_of,
    some_axes,
    together,
)
from cuvil.frontend.namespace.creation import iota
from cuvil.frontend.namespace.elementwise import (
    add,
    astype,
    divide,
    equal,
    floor_divide,
    greater_equal,
    isinf,
    isnan,
    less,
    logical_and,
    logical_not,
    maximum,
    minimum,
    multiply,
    pow,  # noqa: A004
    remainder,
    signbit,
    sin,
    subtract,
    where,
)
from cuvil.frontend.namespace.indexing import getitem
from cuvil.frontend.namespace.linear_algebra import diagonal as _last_diagonal
from cuvil.frontend.namespace.manipulation import (
    atleast_2d,
    broadcast_to,
    concat,
    expand_dims,
    flip,
    moveaxis,
    ravel,
    swapaxes,
)
from cuvil.frontend.namespace.reduction import all as all_of
from cuvil.frontend.namespace.reduction import any as any_of
from cuvil.frontend.namespace.reduction import max as max_of
from cuvil.frontend.namespace.reduction import mean
from cuvil.frontend.namespace.reduction import min as min_of
from cuvil.frontend.namespace.reduction import sum as sum_of
from cuvil.frontend.namespace.slicing import reshaped, slice_axis, span_of
from cuvil.frontend.namespace.sorting import sort
from cuvil.frontend.source import at_user_line
from cuvil.support.errors import ArgumentError, ShapeError
from cuvil.symbolic import product

# --------------------------------------------------------------------------------------------- element-wise


def degrees(x: ArrayLike, /) -> AnyArray:
    """Radians as degrees.

    >>> degrees([0.0]).tolist()
    [0.0]
    """
    return multiply(cast(asoperand(x), float_dtype(asoperand(x))), 180.0 / math.pi)


def radians(x: ArrayLike, /) -> AnyArray:
    """Degrees as radians.

    >>> radians([0.0]).tolist()
    [0.0]
    """
    return multiply(cast(asoperand(x), float_dtype(asoperand(x))), math.pi / 180.0)


rad2deg, deg2rad = degrees, radians


def divmod(x1: ArrayLike, x2: ArrayLike, /) -> tuple[AnyArray, AnyArray]:  # noqa: A001 - NumPy's name
    """The floor of the quotient and what it leaves.

    >>> [v.tolist() for v in divmod([7, -7], 3)]
    [[2, -3], [1, 2]]
    """
    return floor_divide(x1, x2), remainder(x1, x2)


def _ignoring_nan(choose: Any) -> Any:
    def function(x1: ArrayLike, x2: ArrayLike, /) -> AnyArray:
        left, right = together(operand(x1), operand(x2))
        if not dtype_of(left).is_float:
            return choose(left, right)
        return where(isnan(left), right, where(isnan(right), left, choose(left, right)))

    return function


fmax = _ignoring_nan(maximum)
fmax.__doc__ = """The larger of two; a NaN gives way to a number.

>>> fmax([1.0, float("nan")], [2.0, 3.0]).tolist()
[2.0, 3.0]
"""
fmin = _ignoring_nan(minimum)
fmin.__doc__ = """The smaller of two; a NaN gives way to a number.

>>> fmin([1.0, float("nan")], [2.0, 3.0]).tolist()
[1.0, 3.0]
"""


def heaviside(x1: ArrayLike, x2: ArrayLike, /) -> AnyArray:
    """0 below 0, ``x2`` at 0, 1 above; NaN for NaN.

    >>> heaviside([-1.0, 0.0, 2.0], 0.5).tolist()
    [0.0, 0.5, 1.0]
    """
    left, right = asoperand(x1), asoperand(x2)
    dt = float_dtype(left, right)
    x, at_zero = cast(left, dt), cast(right, dt)
    step = where(less(x, 0.0), 0.0, where(equal(x, 0.0), at_zero, 1.0))
    return where(isnan(x), x, cast(step, dt))


def sinc(x: ArrayLike, /) -> AnyArray:
    """``sin(pi * x) / (pi * x)``, 1 at 0.

    >>> sinc([0.0]).tolist()
    [1.0]
    """
    given = asoperand(x)
    scaled = multiply(cast(given, float_dtype(given)), math.pi)
    zero = equal(scaled, 0.0)
    safe = where(zero, 1.0, scaled)
    return where(zero, 1.0, divide(sin(safe), safe))


def float_power(x1: ArrayLike, x2: ArrayLike, /) -> AnyArray:
    """A power in float64 at least (complex128 of complex numbers).

    >>> float_power([2, 3], -1).dtype.name
    'float64'
    """
    left, right = operand(x1), operand(x2)
    dt = result_dtype(left, right, np.zeros((), np.float64))
    return pow(cast(left, dt), cast(right, dt))


def nan_to_num(
    x: ArrayLike, copy: bool = True, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None
) -> AnyArray:
    """NaN as 0 (or ``nan``), infinities as the largest numbers of the dtype (or ``posinf``, ``neginf``).

    >>> nan_to_num([float("nan"), 1.0]).tolist()
    [0.0, 1.0]
    """
    given = operand(x)
    dt = dtype_of(given)
    if not dt.is_float:
        return given
    info = np.finfo(np.float32) if dt.name == "bfloat16" else np.finfo(dt.numpy)
    high = float(info.max) if posinf is None else posinf
    low = float(info.min) if neginf is None else neginf
    out = where(isnan(given), nan, given)
    return where(isinf(given), where(signbit(given), low, high), out)


def isposinf(x: ArrayLike, /) -> AnyArray:
    """Whether x is infinity.

    >>> isposinf([1.0, float("inf")]).tolist()
    [False, True]
    """
    given = operand(x)
    return logical_and(isinf(given), greater_equal(given, 0))


def isneginf(x: ArrayLike, /) -> AnyArray:
    """Whether x is minus infinity.

    >>> isneginf([1.0, -float("inf")]).tolist()
    [False, True]
    """
    given = operand(x)
    return logical_and(isinf(given), less(given, 0))


def select(conditions: Sequence[ArrayLike], choices: Sequence[ArrayLike], default: ArrayLike = 0) -> AnyArray:
    """The choice of the first condition that holds, else the default.

    Raises:
        ArgumentError: as many conditions as choices are needed, one at least.

    >>> select([[True, False], [True, True]], [[1, 2], [3, 4]]).tolist()
    [1, 4]
    """
    if len(conditions) != len(choices) or not conditions:
        raise ArgumentError(
            f"select: {len(conditions)} conditions for {len(choices)} choices{at_user_line()}; expected as many, one at"
            " least"
        )
    out = default
    for condition, choice in zip(reversed(conditions), reversed(choices), strict=True):
        out = where(condition, choice, out)
    return out


# ------------------------------------------------------------------------------------------------ reductions


def ptp(x: ArrayLike, axis: Axes = None, keepdims: bool = False) -> AnyArray:
    """The largest less the smallest element over axes.

    >>> ptp([3, 1, 7]).tolist()
    6
    """
    given = operand(x)
    return subtract(max_of(given, axis, keepdims), min_of(given, axis, keepdims))


def average(x: ArrayLike, axis: Axes = None, weights: ArrayLike | None = None, keepdims: bool = False) -> AnyArray:
    """The mean over axes, or the mean by weights of the same shape (or, along one axis, of its size).

    Raises:
        ShapeError: weights of another shape.

    >>> average([1.0, 3.0], weights=[3.0, 1.0]).tolist()
    1.5
    """
    given = operand(x)
    if weights is None:
        return mean(given, axis, keepdims=keepdims)
    by = operand(weights)
    if shape_of(by) != shape_of(given):
        if len(shape_of(by)) != 1 or not isinstance(axis, int):
            raise ShapeError(f"average: weights of rank {len(shape_of(by))} need one axis{at_user_line()}")
        a = one_axis(axis, len(shape_of(given)))
        by = reshaped(by, tuple(d if k == a else 1 for k, d in enumerate(shape_of(given))))
        by = broadcast_to(by, shape_of(given))
    given, by = together(given, by)
    if not (dtype_of(given).is_float or dtype_of(given).is_complex):
        given, by = cast(given, float64), cast(by, float64)
    return divide(sum_of(multiply(given, by), axis, keepdims=keepdims), sum_of(by, axis, keepdims=keepdims))


def median(x: ArrayLike, axis: int | None = None, keepdims: bool = False) -> AnyArray:
    """The middle element in order, the mean of the two middle ones of an even number; NaN where there is one.

    >>> median([5.0, 1.0, 2.0]).tolist(), median([1, 2, 3, 4]).tolist()
    (2.0, 2.5)
    """
    given = operand(x)
    rank = len(shape_of(given))
    if axis is None:
        out = median(ravel(given), 0)
        return reshaped(out, (1,) * rank) if keepdims else out
    a = one_axis(axis, rank)
    dt = dtype_of(given)
    size = shape_of(given)[a]
    ordered = sort(given, axis=a)
    pair = [slice_axis(ordered, a, span_of(slice(k, k + 1), size)) for k in ((size - 1) // 2, size // 2)]
    middle = mean(concat(pair, axis=a), a, keepdims=keepdims)
    return where(any_of(isnan(given), a, keepdims), math.nan, middle) if dt.is_float else middle


def _without_nan(x: ArrayLike) -> tuple[Any, Any, bool]:
    """An array, where it is NaN, and whether it can be."""
    given = operand(x)
    return given, isnan(given), dtype_of(given).is_float


def nansum(x: ArrayLike, axis: Axes = None, dtype: DTypeLike = None, keepdims: bool = False) -> AnyArray:
    """The sum over axes, NaN counting as 0.

    >>> nansum([1.0, float("nan")]).tolist()
    1.0
    """
    given, missing, floats = _without_nan(x)
    return sum_of(where(missing, 0.0, given) if floats else given, axis, dtype, keepdims)


def nanmean(x: ArrayLike, axis: Axes = None, dtype: DTypeLike = None, keepdims: bool = False) -> AnyArray:
    """The mean over axes of what is not NaN; NaN where nothing is.

    >>> nanmean([1.0, 3.0, float("nan")]).tolist()
    2.0
    """
    given, missing, floats = _without_nan(x)
    if not floats:
        return mean(given, axis, dtype, keepdims)
    total = sum_of(where(missing, 0.0, given), axis, dtype, keepdims)
    return divide(total, cast(sum_of(logical_not(missing), axis, keepdims=keepdims), dtype_of(total)))


def _nan_extreme(choose: Any, least: float, x: ArrayLike, axis: Axes, keepdims: bool) -> AnyArray:
    given, missing, floats = _without_nan(x)
    if not floats:
        return choose(given, axis, keepdims)
    out = choose(where(missing, least, given), axis, keepdims)
    return where(all_of(missing, axis, keepdims), math.nan, out)


def nanmax(x: ArrayLike, axis: Axes = None, keepdims: bool = False) -> AnyArray:
    """The largest element over axes of what is not NaN; NaN where nothing is.

    >>> nanmax([1.0, float("nan")]).tolist()
    1.0
    """
    return _nan_extreme(max_of, -math.inf, x, axis, keepdims)


def nanmin(x: ArrayLike, axis: Axes = None, keepdims: bool = False) -> AnyArray:
    """The smallest element over axes of what is not NaN; NaN where nothing is.

    >>> nanmin([1.0, float("nan")]).tolist()
    1.0
    """
    return _nan_extreme(min_of, math.inf, x, axis, keepdims)


def trapezoid(y: ArrayLike, x: ArrayLike | None = None, dx: float = 1.0, axis: int = -1) -> AnyArray:
    """The integral by the trapezoidal rule, over points ``x`` or at distances ``dx``.

    >>> trapezoid([1.0, 2.0, 3.0]).tolist()
    4.0
    """
    given = operand(y)
    a = one_axis(axis, len(shape_of(given)))
    size = shape_of(given)[a]
    pair = add(
        slice_axis(given, a, span_of(slice(1, None), size)), slice_axis(given, a, span_of(slice(None, -1), size))
    )
    if x is None:
        return multiply(sum_of(divide(pair, 2.0), a), dx)
    points = operand(x)
    if len(shape_of(points)) == 1:
        points = reshaped(points, tuple(d if k == a else 1 for k, d in enumerate(shape_of(given))))
    last = one_axis(a - len(shape_of(given)), len(shape_of(points)))
    width = subtract(
        slice_axis(points, last, span_of(slice(1, None), size)),
        slice_axis(points, last, span_of(slice(None, -1), size)),
    )
    return sum_of(divide(multiply(width, pair), 2.0), a)


# -------------------------------------------------------------------------------------- arrangement of elements


def diagonal(x: ArrayLike, offset: int = 0, axis1: int = 0, axis2: int = 1) -> AnyArray:
    """The diagonal of two axes, as the last axis; :func:`cuvil.numpy.linalg.diagonal` takes the last two.

    >>> diagonal([[1, 2], [3, 4]], offset=1).tolist()
    [2]
    """
    given = operand(x)
    first, second = some_axes((axis1, axis2), len(shape_of(given)), "axis1, axis2")
    return _last_diagonal(moveaxis(given, (first, second), (-2, -1)), offset=offset)


def trace(x: ArrayLike, offset: int = 0, axis1: int = 0, axis2: int = 1, dtype: DTypeLike = None) -> AnyArray:
    """The sum of the diagonal of two axes.

    >>> trace([[1, 2], [3, 4]]).tolist()
    5
    """
    return sum_of(diagonal(x, offset, axis1, axis2), axis=-1, dtype=dtype)


def diag(x: ArrayLike, k: int = 0) -> AnyArray:
    """A vector as diagonal ``k`` of a matrix of zeros, or that diagonal of a matrix.

    Raises:
        ShapeError: another rank.

    >>> diag([1, 2]).tolist(), diag([[1, 2], [3, 4]]).tolist()
    ([[1, 0], [0, 2]], [1, 4])
    """
    given = operand(x)
    shape, offset = shape_of(given), as_int(k, "k")
    if len(shape) == 2:
        return diagonal(given, offset)
    if len(shape) != 1:
        raise ShapeError(f"diag takes a vector or a matrix, got rank {len(shape)}{at_user_line()}")
    before, above = (0, offset) if offset >= 0 else (-offset, 0)
    n = shape[0]
    rows, columns = iota((n, 1), 0), iota((1, n), 1)
    square = where(equal(rows, columns), expand_dims(given, 0), cast(0, dtype_of(given)))
    return apply("pad", square, pairs=((before, above), (above, before)), mode="constant", value=0)


def tri(n: Any, m: Any = None, k: int = 0, dtype: DTypeLike = None) -> AnyArray:
    """Ones at and below diagonal ``k`` of a matrix, zeros above; float32 by default.

    >>> tri(2).tolist()
    [[1.0, 0.0], [1.0, 1.0]]
    """
    rows = as_size(n)
    columns = rows if m is None else as_size(m)
    below = greater_equal(add(iota((rows, 1), 0), as_int(k, "k")), iota((1, columns), 1))
    return astype(below, as_dtype(dtype or "float32"))


def fliplr(x: ArrayLike, /) -> AnyArray:
    """The second axis in reverse order.

    >>> fliplr([[1, 2]]).tolist()
    [[2, 1]]
    """
    return flip(x, axis=1)


def flipud(x: ArrayLike, /) -> AnyArray:
    """The first axis in reverse order.

    >>> flipud([1, 2]).tolist()
    [2, 1]
    """
    return flip(x, axis=0)


def rot90(x: ArrayLike, k: int = 1, axes: Sequence[int] = (0, 1)) -> AnyArray:
    """Rotated by ``k`` quarters in the plane of two axes, from the first towards the second.

    >>> rot90([[1, 2], [3, 4]]).tolist()
    [[2, 4], [1, 3]]
    """
    given = operand(x)
    first, second = some_axes(tuple(axes), len(shape_of(given)), "axes")
    turns = as_int(k, "k") % 4
    if turns == 2:
        return flip(given, axis=(first, second))
    if turns == 1:
        return swapaxes(flip(given, axis=second), first, second)
    return flip(swapaxes(given, first, second), axis=second) if turns == 3 else given


def column_stack(arrays: Sequence[ArrayLike], /) -> AnyArray:
    """Vectors as columns beside each other, matrices as they are.

    >>> column_stack([[1, 2], [3, 4]]).tolist()
    [[1, 3], [2, 4]]
    """
    given = [operand(x) for x in arrays]
    return concat([expand_dims(ravel(x), 1) if len(shape_of(x)) < 2 else x for x in given], axis=1)


def dstack(arrays: Sequence[ArrayLike], /) -> AnyArray:
    """Arrays joined along the third axis; matrices and vectors are given one.

    >>> dstack([[1, 2], [3, 4]]).tolist()
    [[[1, 3], [2, 4]]]
    """
    given = [atleast_2d(x) for x in arrays]
    return concat([expand_dims(x, 2) if len(shape_of(x)) == 2 else x for x in given], axis=2)


def kron(a: ArrayLike, b: ArrayLike, /) -> AnyArray:
    """The Kronecker product: blocks of ``b`` times each element of ``a``.

    >>> kron([1, 10], [1, 2]).tolist()
    [1, 2, 10, 20]
    """
    left, right = operand(a), operand(b)
    rank = max(len(shape_of(left)), len(shape_of(right)))
    wide = [reshaped(x, (1,) * (rank - len(shape_of(x))) + shape_of(x)) for x in (left, right)]
    outer_shape = [d for n in shape_of(wide[0]) for d in (n, 1)]
    inner_shape = [d for n in shape_of(wide[1]) for d in (1, n)]
    out = multiply(reshaped(wide[0], tuple(outer_shape)), reshaped(wide[1], tuple(inner_shape)))
    pairs = zip(shape_of(wide[0]), shape_of(wide[1]), strict=True)
    return reshaped(out, tuple(product(p) for p in pairs))


def ediff1d(x: ArrayLike, /) -> AnyArray:
    """The differences of neighbours of the flattened array.

    >>> ediff1d([[1, 4], [9, 16]]).tolist()
    [3, 5, 7]
    """
    flat = ravel(x)
    return subtract(getitem(flat, slice(1, None)), getitem(flat, slice(None, -1)))
