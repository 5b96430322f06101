"""Draws the shapes and dtypes of sample operands, zero-size and size-1 axes among them."""

from __future__ import annotations

from collections.abc import Sequence

from cuvil.dtypes import DType, bfloat16, bool_, float16, float32, float64, int8, int32, int64, uint8
from cuvil.ops.record import Chooser

#: Dtypes that samples draw from: one of each kind and width class.
ANY_DTYPES = (float32, float32, float64, float16, bfloat16, int64, int32, int8, uint8, bool_)
NUMERIC_DTYPES = (float32, float32, float64, float16, bfloat16, int64, int32, uint8)
FLOAT_DTYPES = (float32, float32, float64, float16, bfloat16)

_SIZES = (0, 1, 1, 2, 3, 4, 5, 7)
_POSITIVE = (1, 1, 2, 3, 4, 5, 7)


def draw_size(c: Chooser, positive: bool = False) -> int:
    """One axis size."""
    return c.choice(_POSITIVE if positive else _SIZES)


def draw_shape(c: Chooser, low: int, high: int, positive: bool = False) -> tuple[int, ...]:
    """A shape of a rank between ``low`` and ``high``."""
    return tuple(draw_size(c, positive) for _ in range(c.integer(low, high)))


def draw_dtype(c: Chooser, options: Sequence[DType] = ANY_DTYPES) -> DType:
    """One dtype."""
    return c.choice(options)


def draw_axes(c: Chooser, rank: int, least: int = 0) -> tuple[int, ...]:
    """Some distinct axes, sorted, at least ``least`` of them."""
    axes = [a for a in range(rank) if c.boolean()]
    for a in range(rank):
        if len(axes) >= least:
            break
        if a not in axes:
            axes.append(a)
    return tuple(sorted(axes))


def draw_permutation(c: Chooser, rank: int) -> tuple[int, ...]:
    """A permutation of the axes."""
    left = list(range(rank))
    return tuple(left.pop(c.integer(0, len(left) - 1)) for _ in range(rank))


def draw_broadcastable(c: Chooser, shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape that broadcasts to ``shape``: some axes 1, some leading axes gone."""
    start = c.integer(0, len(shape))
    return tuple(1 if c.boolean() else d for d in shape[start:])
