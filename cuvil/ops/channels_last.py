"""Convolution with channels last: what the layout pass makes of convolutions (see docs/design/layout.md)."""

from __future__ import annotations

from typing import Any

import numpy as np

from cuvil.dtypes import float32
from cuvil.ops.builder import Builder, V
from cuvil.ops.contraction import CONTRACTION_TOLERANCE
from cuvil.ops.convolution import CONV_PARAMS, Shapes, conv_cost, conv_reference, conv_sample, conv_shape
from cuvil.ops.cost import Cost, traffic
from cuvil.ops.operand_dtypes import compute_dtype, one_float, one_numeric
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
from cuvil.ops.requirements import present
from cuvil.support.errors import ArgumentError, ShapeError
from cuvil.symbolic import ceildiv, product


def channels_first(shape: Shape) -> Shape:
    """[N, spatial..., C] as [N, C, spatial...].

    >>> channels_first((1, 224, 224, 3))
    (1, 3, 224, 224)
    """
    return (*shape[:1], *shape[-1:], *shape[1:-1])


def channels_last(shape: Shape) -> Shape:
    """[N, C, spatial...] as [N, spatial..., C].

    >>> channels_last((1, 3, 224, 224))
    (1, 224, 224, 3)
    """
    return (*shape[:1], *shape[2:], *shape[1:2])


def _first(shapes: Shapes) -> Shapes:
    return (channels_first(present(shapes[0])), *shapes[1:])


def _shape(shapes: Shapes, params: Params) -> ShapeResult:
    found = conv_shape(_first(shapes), params, "conv_channels_last")
    return ShapeResult(tuple(channels_last(s) for s in found.shapes), found.obligations)


def _reference(x: Array, w: Array, bias: Array | None = None, **params: Any) -> Array:
    out = conv_reference(np.moveaxis(x, -1, 1), w, bias, **params)
    return np.ascontiguousarray(np.moveaxis(out, 1, -1))


def _as_conv(F: Builder[V], x: V, w: V, bias: V | None = None, **params: Any) -> V:
    spatial = range(1, len(F.shape(x)) - 1)
    out = F.op("conv", F.transpose(x, (0, len(spatial) + 1, *spatial)), w, bias, **params)
    return F.transpose(out, (0, *(a + 1 for a in spatial), 1))


def _cost(shapes: Shapes, params: Params) -> Cost:
    return conv_cost(_first(shapes), params)


def _sample(c: Chooser) -> Example:
    example = conv_sample(c)
    x, *others = example.operands
    assert x is not None
    n, channels, *spatial = x.shape
    return Example((OperandSample((n, *spatial, channels), x.dtype, x.domain), *others), example.params)


CONV_CHANNELS_LAST = register(
    OpRecord(
        name="conv_channels_last",
        doc="conv of x [N, spatial..., C] with w [O, C / groups, kernel...], plus a bias [O], to [N, spatial..., O].",
        category="contraction",
        operands=("x", "w", "bias?"),
        params=CONV_PARAMS,
        shape_rule=_shape,
        dtype_rule=one_numeric,
        reference=_reference,
        body=Opaque("conv_channels_last", _as_conv),
        sample=_sample,
        accumulate=compute_dtype,
        cost=_cost,
        tolerance=CONTRACTION_TOLERANCE,
    )
)

# ------------------------------------------------------------------------------------------- Winograd's form

#: Outputs along each axis of a tile, and the largest factor by which the transforms of two axes raise a rounding error
#: (see docs/design/layout.md).
WINOGRAD_TILES = {2: 16.0, 4: 861.0}


def as_conv_params(padding: Any) -> dict[str, Any]:
    """The parameters of conv that a Winograd convolution with this padding has.

    >>> as_conv_params(((1, 1), (1, 1)))["strides"]
    (1, 1)
    """
    return {"strides": (1, 1), "padding": padding, "dilation": (1, 1), "input_dilation": (1, 1), "groups": 1}


def _winograd_shape(shapes: Shapes, params: Params) -> ShapeResult:
    if params["tile"] not in WINOGRAD_TILES:
        raise ArgumentError(f"conv_winograd: expected a tile of 2 or 4, got {params['tile']}")
    x, w = present(shapes[0]), present(shapes[1])
    if len(x) != 4 or tuple(w[2:]) != (3, 3):
        raise ShapeError(f"conv_winograd: expected x [N, H, W, C] and w [O, C, 3, 3], got {x} and {w}")
    return _shape(shapes, as_conv_params(params["padding"]))


def _winograd_reference(x: Array, w: Array, bias: Array | None = None, *, padding: Any, tile: int) -> Array:
    return _reference(x, w, bias, **as_conv_params(padding))


def _winograd_as_conv(F: Builder[V], x: V, w: V, bias: V | None = None, *, padding: Any, tile: int) -> V:
    return _as_conv(F, x, w, bias, **as_conv_params(padding))


def _winograd_cost(shapes: Shapes, params: Params) -> Cost:
    (out,) = _winograd_shape(shapes, params).shapes
    tile: int = params["tile"]
    tiles = out[0] * ceildiv(out[1], tile) * ceildiv(out[2], tile)
    return tiles * (tile + 2) ** 2 * product(present(shapes[1])[:2]) * 2, traffic(*shapes, out)


def _winograd_sample(c: Chooser) -> Example:
    channels, outs = c.integer(1, 5), c.integer(1, 5)
    x = OperandSample((c.integer(0, 2), c.integer(3, 9), c.integer(3, 9), channels), float32, "moderate")
    w = OperandSample((outs, channels, 3, 3), float32, "moderate")
    bias = OperandSample((outs,), float32, "moderate") if c.boolean() else None
    padding = tuple((c.integer(0, 2), c.integer(0, 2)) for _ in range(2))
    return Example((x, w, bias), {"padding": padding, "tile": c.choice((2, 4))})


CONV_WINOGRAD = register(
    OpRecord(
        name="conv_winograd",
        doc="conv_channels_last of 3 x 3 kernels with stride 1, with fewer products and larger rounding errors.",
        category="contraction",
        operands=("x", "w", "bias?"),
        params=(
            Param("padding", "pairs", "zeros (before, after) each spatial axis"),
            Param("tile", "int", "outputs along each axis that are computed together: 2 or 4", 4),
        ),
        shape_rule=_winograd_shape,
        dtype_rule=one_float,
        reference=_winograd_reference,
        body=Opaque("conv_winograd", _winograd_as_conv),
        sample=_winograd_sample,
        accumulate=compute_dtype,
        cost=_winograd_cost,
        tolerance=Tolerance(ulp=16, absolute=1 << 18),
    )
)
