"""Discrete Fourier transforms, by NumPy's pocketfft: opaque ops that call back into NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from cuvil.dtypes import COMPLEX, DType, complex_of, dtype, float32, float64
from cuvil.ops import batching, complex_derivatives, transposes
from cuvil.ops.cost import Cost, traffic
from cuvil.ops.dtype_rules import DTypes, accept
from cuvil.ops.record import (
    Array,
    Chooser,
    Example,
    Opaque,
    OperandSample,
    OpRecord,
    Param,
    Params,
    Shape,
    ShapeResult,
    Tolerance,
)
from cuvil.ops.registry import register
from cuvil.ops.requirements import Requirements, present
from cuvil.ops.shape_rules import Shapes
from cuvil.symbolic import Dim, product

#: Names of NumPy's ways to scale: nothing forward, both by the root, everything forward.
NORMS = ("backward", "ortho", "forward")

_PARAMS = (
    Param("n", "dim", "size of the transformed axis in the signal: longer operands are cut, shorter ones padded"),
    Param("axis", "int", "transformed axis"),
    Param("norm", "str", "backward, ortho or forward", "backward"),
)


def _define(
    name: str, doc: str, accepted: tuple[DType, ...], result: Callable[[DType], DType], size: Callable[[Dim], Dim],
    transform: Callable[..., Any],
) -> None:  # fmt: skip
    def shape_rule(shapes: Shapes, params: Params) -> ShapeResult:
        x: Shape = present(shapes[0])
        need = Requirements(name)
        need.axis(params["axis"], len(x))
        need.at_least(params["n"], 1, "the transformed size is at least 1")
        return need.result((*x[: params["axis"]], size(params["n"]), *x[params["axis"] + 1 :]))

    def dtype_rule(dtypes: DTypes, params: Params) -> tuple[DType, ...]:
        return (result(accept(name, dtypes[0], accepted)),)

    def reference(x: Array, *, n: int, axis: int, norm: str) -> Array:
        out = np.asarray(transform(x, n=n, axis=axis, norm=norm))
        return out.astype(result(dtype(x.dtype)).numpy, copy=False)

    def cost(shapes: Shapes, params: Params) -> Cost:
        out = shape_rule(shapes, params).shapes
        return product(out[0]) * 5 * 10, traffic(*shapes, *out)

    def sample(c: Chooser) -> Example:
        shape = tuple(c.choice((1, 2, 3, 4)) for _ in range(c.integer(1, 3)))
        params = {"n": c.choice((1, 2, 3, 4, 5)), "axis": c.integer(0, len(shape) - 1), "norm": c.choice(NORMS)}
        return Example((OperandSample(shape, c.choice(accepted), "unit"),), params)

    register(
        OpRecord(
            name=name,
            doc=doc,
            category="fourier",
            operands=("x",),
            params=_PARAMS,
            shape_rule=shape_rule,
            dtype_rule=dtype_rule,
            reference=reference,
            body=Opaque("host"),
            sample=sample,
            cost=cost,
            tolerance=Tolerance(ulp=64, absolute=64),
            jvp=transposes.jointly(name),
            transpose=getattr(complex_derivatives, name),
            batch_rule=batching.along(name),
        )
    )


def _half(n: Dim) -> Dim:
    return n // 2 + 1


def _whole(n: Dim) -> Dim:
    return n


def _kept(dt: DType) -> DType:
    return dt


def _part(dt: DType) -> DType:
    return dt.part


_define("fft", "The discrete Fourier transform along an axis.", COMPLEX, _kept, _whole, np.fft.fft)
_define("ifft", "The inverse of fft.", COMPLEX, _kept, _whole, np.fft.ifft)
_define("rfft", "The transform of a real signal: frequencies 0 to n // 2.", (float32, float64), complex_of, _half,
        np.fft.rfft)  # fmt: skip
_define("irfft", "The inverse of rfft: a real signal of size n.", COMPLEX, _part, _whole, np.fft.irfft)
