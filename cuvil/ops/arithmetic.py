"""NumPy arithmetic exactly as the numerics contract says: conversion, halves, and functions that NumPy lacks."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from cuvil.dtypes import DType, bfloat16, dtype, float16, float32
from cuvil.ops.record import Array


def convert(x: Any, dt: DType) -> Array:
    """An array of another dtype.

    Floats truncate towards zero to integers; NaN and what lies outside the range give what the conversion
    instructions of x86 give, on every machine: the minimum of int32 or int64 (narrower integers wrap from int32).
    A half is rounded once from a float64, and reached through float32 from an integer.

    >>> from cuvil.dtypes import int32, uint8
    >>> convert(np.array([1.9, np.nan, -3e9]), int32).tolist()
    [1, -2147483648, -2147483648]
    >>> convert(np.array([-1.0, 300.0]), uint8).tolist()
    [255, 44]
    """
    a = np.asarray(x)
    source = dtype(a.dtype)
    if source is dt:
        return a
    with np.errstate(all="ignore"):
        if dt.is_bool:
            return np.asarray(a != 0)
        if source.is_complex and not dt.is_complex:  # the imaginary part is dropped, as NumPy does
            return convert(np.real(a), dt)
        if dt.is_complex:
            return widen(a).astype(dt.numpy)
        if source.is_float and dt.is_integer:
            return _truncate(a.astype(np.float64), dt)
        if dt.is_half:
            if source.is_float and source.bits == 64:
                return a.astype(np.float16) if dt is float16 else _to_odd(a).astype(bfloat16.numpy)
            return a.astype(np.float32).astype(dt.numpy)
        return a.astype(dt.numpy)


def _to_odd(a: Array) -> Array:
    """float64 to float32 rounded to odd, from where a second rounding to a half is as good as one."""
    f = np.atleast_1d(a.astype(np.float32))
    back = np.abs(f.astype(np.float64))
    exact = np.abs(np.atleast_1d(a))
    bits = f.view(np.int32)
    step = np.where(back < exact, 1, np.where(back > exact, -1, 0)).astype(np.int32)
    return (bits + np.where(bits & 1 == 0, step, 0).astype(np.int32)).view(np.float32).reshape(a.shape)


def _truncate(a: Array, dt: DType) -> Array:
    bits = 64 if dt.bits == 64 else 32
    if dt.kind == "uint" and dt.bits >= 32:
        half = 2.0 ** (bits - 1)
        big = a >= half  # the upper half of the range goes through the lower one
        low = _signed(np.where(big, a - half, a), bits).astype(dt.numpy)
        return np.where(big, low ^ dt.numpy.type(1 << (bits - 1)), low)
    return _signed(a, bits).astype(dt.numpy)


def _signed(a: Array, bits: int) -> Array:
    t = np.trunc(a)
    limit = 2.0 ** (bits - 1)
    inside = (t >= -limit) & (t < limit)
    return np.where(inside, t, -limit).astype(np.int64 if bits == 64 else np.int32)


def widen(x: Array) -> Array:
    """Halves as float32, everything else as it is."""
    a = np.asarray(x)
    return a.astype(np.float32) if dtype(a.dtype).is_half else a


def in_float32(fn: Callable[..., Any]) -> Callable[..., Array]:
    """A NumPy function that computes halves in float32 and rounds once, with warnings silenced.

    The result has the function's own dtype, or the operands' half where it is float32 because of one.
    """

    def run(*xs: Array, **params: Any) -> Array:
        half = next((d for d in (dtype(np.asarray(x).dtype) for x in xs) if d.is_half), None)
        with np.errstate(all="ignore"):
            out = np.asarray(fn(*(widen(x) for x in xs), **params))
        return convert(out, half) if half is not None and dtype(out.dtype) is float32 else out

    return run


def _by_element(fn: Callable[[float], float]) -> Callable[[Array], Array]:
    each = np.frompyfunc(fn, 1, 1)

    def run(x: Array) -> Array:
        a = np.asarray(x)
        with np.errstate(all="ignore"):
            return np.asarray(each(a.astype(np.float64)), dtype=np.float64).astype(a.dtype)

    return run


def _lgamma(v: float) -> float:
    try:
        return math.lgamma(v)
    except (ValueError, OverflowError):  # a pole, or beyond the largest float
        return math.inf


def _tgamma(v: float) -> float:
    if v == 0:
        return math.copysign(math.inf, v)
    try:
        return math.gamma(v)
    except ValueError:  # a negative integer or -inf
        return math.nan
    except OverflowError:
        return math.inf if v > 0 or math.floor(v) % 2 == 0 else -math.inf


#: Special functions, computed in float64 and rounded once.
erf = _by_element(math.erf)
erfc = _by_element(math.erfc)
lgamma = _by_element(_lgamma)
tgamma = _by_element(_tgamma)


def wrapping_power(x: Array, y: Array) -> Array:
    """Power; integers wrap, and a negative integer exponent gives 0.

    >>> wrapping_power(np.array([2, 3]), np.array([10, -1])).tolist()
    [1024, 0]
    """
    if np.asarray(y).dtype.kind != "i":
        return np.power(x, y)
    return np.where(y < 0, 0, np.power(x, np.maximum(y, 0))).astype(x.dtype)
