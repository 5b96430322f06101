"""Products of matrices and tensors, with NumPy's handling of vectors and dtypes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cuvil.dtypes import int64
from cuvil.frontend.dispatch import ArrayLike, apply, result_dtype
from cuvil.frontend.namespace.arguments import AnyArray, as_int, cast, one_axis, operand, shape_of, some_axes
from cuvil.frontend.namespace.elementwise import multiply, not_equal
from cuvil.frontend.namespace.manipulation import ravel
from cuvil.frontend.namespace.slicing import reshaped
from cuvil.frontend.source import at_user_line
from cuvil.ops.requirements import format_shape
from cuvil.support.errors import ArgumentError, ShapeError


def _numbers(*arrays: ArrayLike) -> tuple[list[Any], bool]:
    """Operands in one dtype that multiplies and adds; bool counts in int64, and the caller asks whether it is 0."""
    given = [operand(x) for x in arrays]
    dt = result_dtype(*given)
    target = int64 if dt.is_bool else dt
    return [cast(x, target) for x in given], dt.is_bool


def _truth(x: Any, logical: bool) -> AnyArray:
    return not_equal(x, 0) if logical else x


def matmul(x1: ArrayLike, x2: ArrayLike, /) -> AnyArray:
    """The matrix product [..., M, K] x [..., K, N] -> [..., M, N]; leading axes broadcast.

    A vector is a row on the left and a column on the right, and its axis is not in the result. Operands are promoted
    as NumPy does; halves accumulate in float32.

    Raises:
        ShapeError: rank 0, inner sizes that differ, leading axes that do not broadcast.

    >>> matmul([[1, 2], [3, 4]], [1, 1]).tolist()
    [3, 7]
    """
    (a, b), logical = _numbers(x1, x2)
    left, right = shape_of(a), shape_of(b)
    if not left or not right:
        raise ShapeError(
            f"matmul takes arrays of rank 1 or more, got {format_shape(left)} and {format_shape(right)}"
            f"{at_user_line()}; use multiply for scalars"
        )
    if len(left) == 1:
        a = reshaped(a, (1, *left))
    if len(right) == 1:
        b = reshaped(b, (*right, 1))
    out = apply("matmul", a, b)
    batch = shape_of(out)[:-2]
    rows = shape_of(out)[-2:-1] if len(left) > 1 else ()
    columns = shape_of(out)[-1:] if len(right) > 1 else ()
    return _truth(reshaped(out, (*batch, *rows, *columns)), logical)


def dot(a: ArrayLike, b: ArrayLike, /) -> AnyArray:
    """NumPy's dot: a product for scalars, :func:`matmul` up to rank 2, else over the last axis of ``a`` and the
    last but one of ``b``.

    Raises:
        ShapeError: the summed sizes differ.

    >>> dot([1, 2], [3, 4]).tolist()
    11
    """
    left, right = operand(a), operand(b)
    ranks = len(shape_of(left)), len(shape_of(right))
    if 0 in ranks:
        return multiply(left, right)
    if ranks[0] <= 2 and ranks[1] <= 2:
        return matmul(left, right)
    return tensordot(left, right, axes=((-1,), (-1 if ranks[1] == 1 else -2,)))


def vecdot(x1: ArrayLike, x2: ArrayLike, /, *, axis: int = -1) -> AnyArray:
    """The sum of products along one axis, counted from the end; the other axes broadcast.

    Raises:
        ShapeError: the summed sizes differ, or the others do not broadcast.

    >>> vecdot([[1, 2], [3, 4]], [1, 1]).tolist()
    [3, 7]
    """
    (a, b), logical = _numbers(x1, x2)
    rank = max(len(shape_of(a)), len(shape_of(b)))
    return _truth(apply("vecdot", a, b, axis=one_axis(axis, rank)), logical)


def tensordot(x1: ArrayLike, x2: ArrayLike, /, *, axes: int | Sequence[Any] = 2) -> AnyArray:
    """The sum of products over pairs of axes: the last ``n`` of x1 with the first ``n`` of x2, or two lists of axes.

    Raises:
        ArgumentError: lists of different lengths.
        ShapeError: the sizes of a pair differ.

    >>> tensordot([[1, 2], [3, 4]], [[1, 0], [0, 1]], axes=2).tolist()
    5
    """
    (a, b), logical = _numbers(x1, x2)
    ranks = len(shape_of(a)), len(shape_of(b))
    if isinstance(axes, Sequence):
        left, right = some_axes(_listed(axes[0]), ranks[0], "axes"), some_axes(_listed(axes[1]), ranks[1], "axes")
    else:
        n = as_int(axes, "axes")
        if not 0 <= n <= min(ranks):
            raise ArgumentError(f"tensordot: axes={n} for arrays of ranks {ranks[0]} and {ranks[1]}{at_user_line()}")
        left, right = tuple(range(ranks[0] - n, ranks[0])), tuple(range(n))
    if len(left) != len(right):
        raise ArgumentError(f"tensordot: axes {left} and {right} do not pair up{at_user_line()}")
    return _truth(apply("tensordot", a, b, axes=(left, right)), logical)


def _listed(axes: Any) -> tuple[Any, ...]:
    return tuple(axes) if isinstance(axes, (tuple, list)) else (axes,)


def einsum(equation: str, *operands: ArrayLike) -> AnyArray:
    """Einstein's summation: letters name the operands' axes; those that the result lacks are summed over.

    Operands are promoted to one dtype. The interleaved form with lists of axes is not supported.

    Raises:
        ArgumentError: a malformed equation.
        ShapeError: the axes of a letter have different sizes.

    >>> einsum("ij,j->i", [[1, 2], [3, 4]], [1, 1]).tolist()
    [3, 7]
    """
    if not isinstance(equation, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ArgumentError(
            f"einsum takes an equation such as 'ij,jk->ik' first, got {type(equation).__name__}{at_user_line()}"
        )
    given, logical = _numbers(*operands)
    return _truth(apply("einsum", *given, equation=equation), logical)


def outer(a: ArrayLike, b: ArrayLike, /) -> AnyArray:
    """All products of an element of ``a`` with one of ``b``, both flattened: [M, N].

    >>> outer([1, 2], [3, 4]).tolist()
    [[3, 4], [6, 8]]
    """
    left, right = ravel(a), ravel(b)
    return multiply(reshaped(left, (*shape_of(left), 1)), right)


def inner(a: ArrayLike, b: ArrayLike, /) -> AnyArray:
    """The sum of products over the last axes of both.

    Raises:
        ShapeError: the last axes differ in size.

    >>> inner([1, 2], [3, 4]).tolist()
    11
    """
    left, right = operand(a), operand(b)
    if not shape_of(left) or not shape_of(right):
        return multiply(left, right)
    return tensordot(left, right, axes=((-1,), (-1,)))
