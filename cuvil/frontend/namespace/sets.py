"""Functions whose results have sizes that depend on values: they run at once, outside of ``jit``."""

from __future__ import annotations

from typing import Any, NamedTuple, NoReturn

import numpy as np

from cuvil.dtypes import dtype
from cuvil.frontend.dispatch import ArrayLike
from cuvil.frontend.namespace.arguments import AnyArray, operand
from cuvil.frontend.source import at_user_line
from cuvil.frontend.tracer import Tracer
from cuvil.support.errors import TracingError


class UniqueAll(NamedTuple):
    """Distinct values with where and how often they stand."""

    values: AnyArray
    indices: AnyArray
    inverse_indices: AnyArray
    counts: AnyArray


class UniqueCounts(NamedTuple):
    """Distinct values and how often each stands."""

    values: AnyArray
    counts: AnyArray


class UniqueInverse(NamedTuple):
    """Distinct values and which of them each element is."""

    values: AnyArray
    inverse_indices: AnyArray


def _refuse(name: str, instead: str) -> NoReturn:
    raise TracingError(
        f"{name} of a traced array has a result whose size depends on values, which are only known when the compiled"
        f" function runs{at_user_line()}. {instead} Or call {name} outside of the traced function and pass its result."
    )


def _concrete(name: str, x: ArrayLike, instead: str) -> Any:
    given = operand(x)
    if isinstance(given, Tracer):
        _refuse(name, instead)
    return given


_SORT = "Sort the array instead (cuvil.numpy.sort) and compare neighbours: the result then has the size of the operand."
_MASK = "Keep the mask and use cuvil.numpy.where(mask, x, other), or cuvil.numpy.count_nonzero for how many there are."


def nonzero(x: ArrayLike, /) -> tuple[AnyArray, ...]:
    """The indices (int64) of elements that are not 0, one array for each axis. Not under ``jit``.

    Raises:
        TracingError: a traced array.

    >>> [i.tolist() for i in nonzero([[0, 5], [7, 0]])]
    [[0, 1], [1, 0]]
    """
    given = _concrete("nonzero", x, _MASK)
    if given.ndim == 0:
        raise TypeError(f"nonzero takes arrays of rank 1 or more{at_user_line()}; use atleast_1d for a scalar")
    return tuple(i.astype(np.int64, copy=False) for i in np.nonzero(given))


def argwhere(x: ArrayLike, /) -> AnyArray:
    """The indices of elements that are not 0, one row for each. Not under ``jit``.

    >>> argwhere([0, 5, 7]).tolist()
    [[1], [2]]
    """
    return np.argwhere(_concrete("argwhere", x, _MASK)).astype(np.int64, copy=False)


def flatnonzero(x: ArrayLike, /) -> AnyArray:
    """The row-major positions of elements that are not 0. Not under ``jit``.

    >>> flatnonzero([[0, 5], [7, 0]]).tolist()
    [1, 2]
    """
    return nonzero(_concrete("flatnonzero", x, _MASK).reshape(-1))[0]


def _distinct(name: str, x: ArrayLike) -> tuple[Any, Any, Any, Any]:
    given = _concrete(name, x, _SORT)
    if dtype(given.dtype).is_half and given.dtype != np.float16:
        values, *rest = _distinct(name, given.astype(np.float32))
        return (values.astype(given.dtype), *rest)
    # NaNs differ from each other, as the standard demands.
    values, first, inverse, counts = np.unique(
        given, return_index=True, return_inverse=True, return_counts=True, equal_nan=False
    )
    as_int = (first.astype(np.int64), inverse.reshape(given.shape).astype(np.int64), counts.astype(np.int64))
    return (values, *as_int)


def unique_all(x: ArrayLike, /) -> UniqueAll:
    """Distinct values in order, first index, inverse and count of each; NaNs are distinct. Not under ``jit``.

    Raises:
        TracingError: a traced array.

    >>> unique_all([3, 1, 3]).counts.tolist()
    [1, 2]
    """
    return UniqueAll(*_distinct("unique_all", x))


def unique_counts(x: ArrayLike, /) -> UniqueCounts:
    """Distinct values in order and the count of each. Not under ``jit``.

    >>> unique_counts([3, 1, 3]).values.tolist()
    [1, 3]
    """
    values, _, _, counts = _distinct("unique_counts", x)
    return UniqueCounts(values, counts)


def unique_inverse(x: ArrayLike, /) -> UniqueInverse:
    """Distinct values in order and, for each element, which of them it is. Not under ``jit``.

    >>> unique_inverse([3, 1, 3]).inverse_indices.tolist()
    [1, 0, 1]
    """
    values, _, inverse, _ = _distinct("unique_inverse", x)
    return UniqueInverse(values, inverse)


def unique_values(x: ArrayLike, /) -> AnyArray:
    """Distinct values in order. Not under ``jit``.

    >>> unique_values([3, 1, 3]).tolist()
    [1, 3]
    """
    return _distinct("unique_values", x)[0]


def unique(ar: ArrayLike, return_index: bool = False, return_inverse: bool = False, return_counts: bool = False) -> Any:
    """NumPy's unique over all elements, NaNs being distinct. Not under ``jit``.

    >>> unique([3, 1, 3], return_counts=True)[1].tolist()
    [1, 2]
    """
    values, *rest = _distinct("unique", ar)
    chosen = [r for r, wanted in zip(rest, (return_index, return_inverse, return_counts), strict=True) if wanted]
    return (values, *chosen) if chosen else values
