"""Sorting and searching; NaN is the largest value and equal elements keep their order."""

from __future__ import annotations

from typing import Any

from cuvil.frontend.dispatch import ArrayLike, apply
from cuvil.frontend.namespace.arguments import AnyArray, as_size, choice, one_axis, operand, shape_of, together
from cuvil.frontend.namespace.indexing import take
from cuvil.frontend.namespace.manipulation import ravel


def _ordered(name: str, x: ArrayLike, axis: int | None, descending: bool) -> AnyArray:
    given = operand(x)
    if axis is None:
        given, axis = ravel(given), 0
    return apply(name, given, axis=one_axis(axis, len(shape_of(given))), descending=bool(descending))


def sort(x: ArrayLike, /, axis: int | None = -1, *, descending: bool = False, stable: bool = True) -> AnyArray:
    """Elements in order along an axis (``None``: flattened); always stable, NaN at the end of an ascending order.

    Raises:
        AxisError: an axis outside the rank.

    >>> sort([3, 1, 2]).tolist(), sort([3, 1, 2], descending=True).tolist()
    ([1, 2, 3], [3, 2, 1])
    """
    return _ordered("sort", x, axis, descending)


def argsort(x: ArrayLike, /, axis: int | None = -1, *, descending: bool = False, stable: bool = True) -> AnyArray:
    """The indices (int64) that :func:`sort` an array along an axis.

    >>> argsort([3, 1, 2]).tolist()
    [1, 2, 0]
    """
    return _ordered("argsort", x, axis, descending)


def top_k(x: ArrayLike, k: Any, /, *, axis: int = -1, largest: bool = True) -> tuple[AnyArray, AnyArray]:
    """The ``k`` largest (or smallest) elements along an axis in order, and their indices (int64).

    Raises:
        AxisError: an axis outside the rank.
        ShapeError: ``k`` above the size of the axis.

    >>> values, indices = top_k([3, 1, 2], 2)
    >>> values.tolist(), indices.tolist()
    ([3, 2], [0, 2])
    """
    given = operand(x)
    axis = one_axis(axis, len(shape_of(given)))
    values, indices = apply("top_k", given, k=as_size(k, "k"), axis=axis, largest=bool(largest))
    return values, indices


def searchsorted(x1: ArrayLike, x2: ArrayLike, /, *, side: str = "left", sorter: ArrayLike | None = None) -> AnyArray:
    """Where each value of ``x2`` would go into the sorted vector ``x1``, as int64: before or after equal elements.

    ``sorter`` holds the indices that sort ``x1`` where it is not sorted itself.

    Raises:
        ArgumentError: a side other than "left" and "right".
        ShapeError: ``x1`` is no vector.

    >>> searchsorted([1, 3, 5], [3, 4]).tolist(), searchsorted([1, 3, 5], 3, side="right").tolist()
    ([1, 2], 2)
    """
    ordered, values = together(operand(x1), operand(x2))
    if sorter is not None:
        ordered = take(ordered, sorter)
    right = choice(side, ("left", "right"), "searchsorted: side") == "right"
    return apply("searchsorted", ordered, values, right=right)
