"""The extension ``linalg`` of the array API: factorisations, solvers, norms and products of matrices."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from cuvil.dtypes import DType, float64
from cuvil.frontend.dispatch import ArrayLike, apply, dtype_of
from cuvil.frontend.namespace.arguments import (
    AnyArray,
    Axes,
    DTypeLike,
    as_int,
    cast,
    choice,
    one_axis,
    operand,
    shape_of,
    some_axes,
    together,
)
from cuvil.frontend.namespace.creation import arange, eye
from cuvil.frontend.namespace.elementwise import (
    abs,  # noqa: A004
    astype,
    conj,
    divide,
    greater,
    multiply,
    not_equal,
    pow,  # noqa: A004
    sqrt,
    square,
    subtract,
    where,
)
from cuvil.frontend.namespace.indexing import getitem
from cuvil.frontend.namespace.linalg import matmul, outer, tensordot, vecdot
from cuvil.frontend.namespace.manipulation import (
    broadcast_arrays,
    broadcast_to,
    expand_dims,
    matrix_transpose,
    moveaxis,
    squeeze,
)
from cuvil.frontend.namespace.reduction import (
    count_nonzero,
    max,  # noqa: A004
    min,  # noqa: A004
    sum,  # noqa: A004
)
from cuvil.frontend.namespace.slicing import reshaped
from cuvil.frontend.source import at_user_line
from cuvil.ops.requirements import format_shape
from cuvil.support.errors import ArgumentError, ShapeError
from cuvil.symbolic import Dim, dim_max, dim_min, product


class EighResult(NamedTuple):
    """Eigenvalues in ascending order, and eigenvectors as columns."""

    eigenvalues: AnyArray
    eigenvectors: AnyArray


class QRResult(NamedTuple):
    """Orthonormal columns and an upper triangle."""

    Q: AnyArray
    R: AnyArray


class SlogdetResult(NamedTuple):
    """The sign of a determinant and the logarithm of its magnitude."""

    sign: AnyArray
    logabsdet: AnyArray


class SVDResult(NamedTuple):
    """Left singular vectors, singular values and right singular vectors (conjugate transposed)."""

    U: AnyArray
    S: AnyArray
    Vh: AnyArray


def _analysed(*arrays: ArrayLike) -> tuple[Any, ...]:
    """Operands promoted together, integers to float64: LAPACK has no other numbers."""
    given = together(*(operand(x) for x in arrays))
    dt: DType = dtype_of(given[0])
    return given if dt.is_float or dt.is_complex else tuple(cast(x, float64) for x in given)


def _matrix(name: str, x: Any) -> Any:
    if len(shape_of(x)) < 2:
        raise ShapeError(f"{name} takes matrices in the last two axes, got shape {format_shape(shape_of(x))}"
                         f"{at_user_line()}")  # fmt: skip
    return x


def cholesky(x: ArrayLike, /, *, upper: bool = False) -> AnyArray:
    """The lower triangle L with ``L @ L^H == x`` of a positive definite matrix, or the upper one.

    Raises:
        numpy.linalg.LinAlgError: the matrix is not positive definite.

    >>> cholesky([[4.0, 0.0], [0.0, 9.0]]).tolist()
    [[2.0, 0.0], [0.0, 3.0]]
    """
    return apply("cholesky", *_analysed(x), upper=bool(upper))


def det(x: ArrayLike, /) -> AnyArray:
    """The determinant of a square matrix.

    >>> float(det([[2.0, 0.0], [0.0, 3.0]]))
    6.0
    """
    return apply("det", *_analysed(x))


def slogdet(x: ArrayLike, /) -> SlogdetResult:
    """The sign of the determinant and the logarithm of its magnitude.

    >>> float(slogdet([[1.0, 0.0], [0.0, 1.0]]).logabsdet)
    0.0
    """
    return SlogdetResult(*apply("slogdet", *_analysed(x)))


def inv(x: ArrayLike, /) -> AnyArray:
    """The inverse of a square matrix.

    Raises:
        numpy.linalg.LinAlgError: the matrix is singular.

    >>> inv([[2.0, 0.0], [0.0, 4.0]]).tolist()
    [[0.5, 0.0], [0.0, 0.25]]
    """
    return apply("inv", *_analysed(x))


def solve(x1: ArrayLike, x2: ArrayLike, /) -> AnyArray:
    """``x`` with ``x1 @ x == x2``; a vector ``x2`` is one column.

    Raises:
        numpy.linalg.LinAlgError: the matrix is singular.

    >>> solve([[2.0, 0.0], [0.0, 4.0]], [2.0, 4.0]).tolist()
    [1.0, 1.0]
    """
    a, b = _analysed(x1, x2)
    if len(shape_of(b)) == 1:
        return squeeze(apply("solve", _matrix("solve", a), expand_dims(b, -1)), -1)
    return apply("solve", a, b)


def qr(x: ArrayLike, /, mode: str = "reduced") -> QRResult:
    """Orthonormal columns times an upper triangle; "complete" has square columns.

    >>> qr([[1.0, 0.0], [0.0, 1.0]]).R.shape
    (2, 2)
    """
    return QRResult(*apply("qr", *_analysed(x), mode=choice(mode, ("reduced", "complete"), "qr: mode")))


def svd(x: ArrayLike, /, full_matrices: bool = True) -> SVDResult:
    """The singular value decomposition ``U @ diag(S) @ Vh``, S in descending order.

    >>> svd([[3.0, 0.0], [0.0, 4.0]]).S.tolist()
    [4.0, 3.0]
    """
    return SVDResult(*apply("svd", *_analysed(x), full_matrices=bool(full_matrices)))


def svdvals(x: ArrayLike, /) -> AnyArray:
    """Singular values in descending order.

    >>> svdvals([[3.0, 0.0], [0.0, 4.0]]).tolist()
    [4.0, 3.0]
    """
    return apply("svdvals", *_analysed(x))


def eigh(x: ArrayLike, /) -> EighResult:
    """Eigenvalues in ascending order and eigenvectors of a symmetric or Hermitian matrix (its lower triangle is read).

    >>> eigh([[2.0, 0.0], [0.0, 1.0]]).eigenvalues.tolist()
    [1.0, 2.0]
    """
    return EighResult(*apply("eigh", *_analysed(x)))


def eigvalsh(x: ArrayLike, /) -> AnyArray:
    """The eigenvalues of :func:`eigh`.

    >>> eigvalsh([[2.0, 0.0], [0.0, 1.0]]).tolist()
    [1.0, 2.0]
    """
    return apply("eigvalsh", *_analysed(x))


def _tolerance(rtol: Any, x: Any, values: Any) -> AnyArray:
    """What singular values must exceed: ``rtol`` of the largest, or rounding errors of a matrix of this shape."""
    shape = shape_of(x)
    relative: Any = rtol
    if relative is None:
        eps = float(np.finfo(dtype_of(values).numpy).eps)
        size = cast(operand(dim_max(shape[-2], shape[-1])), dtype_of(values))
        relative = multiply(size, eps)
    elif not isinstance(relative, (int, float)):
        relative = expand_dims(operand(relative), -1)
    return multiply(max(values, axis=-1, keepdims=True), relative)


def matrix_rank(x: ArrayLike, /, *, rtol: Any = None) -> AnyArray:
    """How many singular values exceed ``rtol`` of the largest, as int64.

    >>> int(matrix_rank([[1.0, 0.0], [0.0, 0.0]]))
    1
    """
    (given,) = _analysed(x)
    values = svdvals(_matrix("matrix_rank", given))
    if any(isinstance(d, int) and d == 0 for d in shape_of(values)[-1:]):
        return count_nonzero(values, axis=-1)
    return count_nonzero(greater(values, _tolerance(rtol, given, values)), axis=-1)


def pinv(x: ArrayLike, /, *, rtol: Any = None) -> AnyArray:
    """The Moore-Penrose inverse; singular values up to ``rtol`` of the largest count as 0.

    >>> pinv([[2.0, 0.0], [0.0, 0.0]]).tolist()
    [[0.5, 0.0], [0.0, 0.0]]
    """
    (given,) = _analysed(x)
    u, s, vh = svd(_matrix("pinv", given), full_matrices=False)
    if any(isinstance(d, int) and d == 0 for d in shape_of(s)[-1:]):
        return broadcast_to(np.zeros((), dtype_of(given).numpy), shape_of(matrix_transpose(given)))
    kept = greater(s, _tolerance(rtol, given, s))
    inverse = where(kept, divide(1.0, where(kept, s, 1.0)), 0.0)
    scaled = multiply(expand_dims(inverse, -1), conj(matrix_transpose(u)))
    return matmul(conj(matrix_transpose(vh)), scaled)


def matrix_power(x: ArrayLike, n: int, /) -> AnyArray:
    """The ``n``-th power of a square matrix; a negative one is that of the inverse.

    >>> matrix_power([[1, 1], [0, 1]], 3).tolist()
    [[1, 3], [0, 1]]
    """
    given = _matrix("matrix_power", operand(x))
    shape = shape_of(given)
    power = as_int(n, "n")
    if power == 0:
        return broadcast_to(eye(shape[-1], dtype=dtype_of(given)), shape)
    base = inv(given) if power < 0 else given
    out: Any = None
    k = power if power > 0 else -power
    while k:
        if k & 1:
            out = base if out is None else matmul(out, base)
        k >>= 1
        if k:
            base = matmul(base, base)
    return out


def matrix_norm(x: ArrayLike, /, *, keepdims: bool = False, ord: Any = "fro") -> AnyArray:
    """A norm of matrices: "fro", "nuc", or of order 1, -1, 2, -2, inf, -inf.

    Raises:
        ArgumentError: another order.

    >>> matrix_norm([[3.0, 0.0], [0.0, 4.0]]).tolist()
    5.0
    """
    given = _matrix("matrix_norm", _analysed(x)[0])
    size = abs(given)
    if ord == "fro" or ord is None:
        out = sqrt(sum(square(size), axis=(-2, -1), keepdims=True))
    elif ord in ("nuc", 2, -2):
        values = svdvals(given)
        total = sum(values, axis=-1) if ord == "nuc" else (max if ord == 2 else min)(values, axis=-1)
        out = expand_dims(expand_dims(total, -1), -1)
    elif ord in (1, -1, math.inf, -math.inf):
        over, rest = (-2, -1) if ord in (1, -1) else (-1, -2)
        out = (max if ord > 0 else min)(sum(size, axis=over, keepdims=True), axis=rest, keepdims=True)
    else:
        raise ArgumentError(
            f"matrix_norm: no norm of order {ord!r}; expected 'fro', 'nuc', 1, -1, 2, -2, inf or -inf{at_user_line()}"
        )
    return out if keepdims else squeeze(out, (-2, -1))


def vector_norm(x: ArrayLike, /, *, axis: Axes = None, keepdims: bool = False, ord: Any = 2) -> AnyArray:
    """A norm of vectors along axes (all by default), of any order: 2, inf, -inf, 0 (not 0 counts 1), or a number.

    >>> vector_norm([3.0, 4.0]).tolist()
    5.0
    """
    (given,) = _analysed(x)
    size = abs(given)
    axes = some_axes(axis, len(shape_of(given)))
    if ord == math.inf:
        return max(size, axis=axes, keepdims=keepdims)
    if ord == -math.inf:
        return min(size, axis=axes, keepdims=keepdims)
    if ord == 0:
        return sum(astype(not_equal(size, 0), dtype_of(size)), axis=axes, keepdims=keepdims)
    if ord == 1:
        return sum(size, axis=axes, keepdims=keepdims)
    if ord == 2:
        return sqrt(sum(square(size), axis=axes, keepdims=keepdims))
    return pow(sum(pow(size, float(ord)), axis=axes, keepdims=keepdims), 1.0 / float(ord))


def norm(x: ArrayLike, /, ord: Any = None, axis: Any = None, keepdims: bool = False) -> AnyArray:
    """NumPy's norm: of all elements by default, of vectors along one axis, of matrices along two.

    Without an axis an array of rank 2 with an order is a matrix.

    Raises:
        ArgumentError: another order, or an order for an array of rank above 2 without an axis.

    >>> norm([3.0, 4.0]).tolist(), norm([[3.0, 0.0], [0.0, 4.0]], ord=2).tolist()
    (5.0, 4.0)
    """
    given = operand(x)
    rank = len(shape_of(given))
    if axis is None and ord is None:
        out = vector_norm(given)
        return reshaped(out, (1,) * rank) if keepdims else out
    if axis is None and rank > 2:
        raise ArgumentError(f"norm: order {ord!r} of an array of rank {rank} needs an axis or two{at_user_line()}")
    axes = some_axes(axis, rank)
    if len(axes) == 1:
        return vector_norm(given, axis=axes[0], keepdims=keepdims, ord=2 if ord is None else ord)
    if len(axes) != 2:
        raise ArgumentError(f"norm: {len(axes)} axes{at_user_line()}; expected one for vectors or two for matrices")
    out = matrix_norm(moveaxis(given, axes, (-2, -1)), ord="fro" if ord is None else ord)
    return reshaped(out, tuple(1 if a in axes else d for a, d in enumerate(shape_of(given)))) if keepdims else out


def diagonal(x: ArrayLike, /, *, offset: int = 0) -> AnyArray:
    """The elements of diagonal ``offset`` of the last two axes.

    >>> diagonal([[1, 2], [3, 4]]).tolist()
    [1, 4]
    """
    given = _matrix("diagonal", operand(x))
    *batch, rows, columns = shape_of(given)
    k = as_int(offset, "offset")
    first, second = (0, k) if k >= 0 else (-k, 0)
    count = dim_max(dim_min(rows - first, columns - second), 0)
    if isinstance(count, int) and count == 0:
        return broadcast_to(np.zeros((), dtype_of(given).numpy), (*batch, 0))
    # One step along the flattened matrix is a row and a column.
    flat = reshaped(given, (*batch, product((rows, columns))))
    start = first * columns + second
    return getitem(flat, (..., _steps(start, count, columns + 1)))


def _steps(start: Dim, count: Dim, step: Dim) -> AnyArray:
    index = arange(count)
    return index * step + start


def trace(x: ArrayLike, /, *, offset: int = 0, dtype: DTypeLike = None) -> AnyArray:
    """The sum of a diagonal, with the dtypes of :func:`sum`.

    >>> trace([[1, 2], [3, 4]]).tolist()
    5
    """
    return sum(diagonal(x, offset=offset), axis=-1, dtype=dtype)


def cross(x1: ArrayLike, x2: ArrayLike, /, *, axis: int = -1) -> AnyArray:
    """The product of vectors of three elements that is orthogonal to both.

    Raises:
        ShapeError: the axis has another size than 3.

    >>> cross([1, 0, 0], [0, 1, 0]).tolist()
    [0, 0, 1]
    """
    left, right = together(operand(x1), operand(x2))
    for given in (left, right):
        size = shape_of(given)[one_axis(axis, len(shape_of(given)))]
        if size != 3:
            raise ShapeError(f"cross takes vectors of 3 elements, got {size} along axis {axis}{at_user_line()}")
    left, right = broadcast_arrays(left, right)
    a = [getitem(moveaxis(left, axis, -1), (..., k)) for k in range(3)]
    b = [getitem(moveaxis(right, axis, -1), (..., k)) for k in range(3)]
    parts = [
        expand_dims(subtract(multiply(a[(k + 1) % 3], b[(k + 2) % 3]), multiply(a[(k + 2) % 3], b[(k + 1) % 3])), -1)
        for k in range(3)
    ]
    return moveaxis(apply("concat", *parts, axis=len(shape_of(parts[0])) - 1), -1, axis)


__all__ = [
    "cholesky", "cross", "det", "diagonal", "eigh", "eigvalsh", "inv", "matmul", "matrix_norm", "matrix_power",
    "matrix_rank", "matrix_transpose", "norm", "outer", "pinv", "qr", "slogdet", "solve", "svd", "svdvals", "tensordot",
    "trace", "vecdot", "vector_norm",
]  # fmt: skip
