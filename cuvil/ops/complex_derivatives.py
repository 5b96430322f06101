"""Derivatives of ops on complex numbers and of Fourier transforms.

Complex numbers are pairs of real ones to differentiation: a cotangent ``c`` of ``x`` means that ``x`` contributes the
real part of ``c * x``. Under this pairing a product with a number is its own transpose, so that the rules of linear ops
hold as they are, and a function that is analytic has its usual derivative.
"""

from __future__ import annotations

from typing import Any

from cuvil.dtypes import complex_of
from cuvil.ops.builder import Builder
from cuvil.ops.differentiation import Tangent
from cuvil.ops.record import Aval
from cuvil.ops.transposes import Cotangents, Operands, Value, placed, unbroadcast, zeros
from cuvil.symbolic import Dim


def _zeros_like(F: Builder[Any], x: Value) -> Value:
    return zeros(F, F.aval(x))


def complex_(F: Builder[Any], c: Value, operands: Operands) -> Cotangents:
    re, im = operands
    return [
        unbroadcast(F, F.op("real", c), re.aval.shape) if isinstance(re, Tangent) else None,
        unbroadcast(F, F.op("negative", F.op("imag", c)), im.aval.shape) if isinstance(im, Tangent) else None,
    ]


def real(F: Builder[Any], c: Value, operands: Operands) -> Cotangents:
    return [F.op("complex", c, _zeros_like(F, c))]


def imag(F: Builder[Any], c: Value, operands: Operands) -> Cotangents:
    return [F.op("complex", _zeros_like(F, c), F.op("negative", c))]


def conj(F: Builder[Any], c: Value, operands: Operands) -> Cotangents:
    return [F.op("conj", c)]


# ------------------------------------------------------------------------------------- Fourier transforms


def fft(F: Builder[Any], c: Value, operands: Operands, *, n: Dim, axis: int, norm: str) -> Cotangents:
    return [_symmetric(F, "fft", c, operands, n, axis, norm)]


def ifft(F: Builder[Any], c: Value, operands: Operands, *, n: Dim, axis: int, norm: str) -> Cotangents:
    return [_symmetric(F, "ifft", c, operands, n, axis, norm)]


def _symmetric(F: Builder[Any], name: str, c: Value, operands: Operands, n: Dim, axis: int, norm: str) -> Value:
    """The matrix of the transform is symmetric; cutting and padding exchange their parts."""
    return placed(F, F.op(name, c, n=n, axis=axis, norm=norm), axis, 0, operands[0].aval.shape[axis])


def rfft(F: Builder[Any], c: Value, operands: Operands, *, n: Dim, axis: int, norm: str) -> Cotangents:
    # As of fft with the frequencies above n // 2 at 0; the signal is real.
    full = F.op("fft", c, n=n, axis=axis, norm=norm)
    return [F.op("real", placed(F, full, axis, 0, operands[0].aval.shape[axis]))]


_OPPOSITE = {"backward": "forward", "forward": "backward", "ortho": "ortho"}


def irfft(F: Builder[Any], c: Value, operands: Operands, *, n: Dim, axis: int, norm: str) -> Cotangents:
    back = F.op("conj", F.op("rfft", c, n=n, axis=axis, norm=_OPPOSITE[norm]))
    shape = F.shape(back)
    # A frequency stands for itself and its mirror image, but for 0 and the middle one, which are their own.
    k = F.iota(tuple(d if a == axis else 1 for a, d in enumerate(shape)), axis)
    alone = F.op("logical_or", F.op("equal", k, F.like(0, k)), F.op("equal", F.add(k, k), F.dim(n)))
    dt = complex_of(F.dtype(c))
    weights = F.where(alone, F.scalar(1, dt), F.scalar(2, dt))
    aval: Aval = operands[0].aval
    return [placed(F, F.mul(back, weights), axis, 0, aval.shape[axis])]
