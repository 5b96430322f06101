"""Convolution with channels last: what the layout pass makes of convolutions (see docs/design/layout.md)."""

from __future__ import annotations

from typing import Any

import numpy as np

from cuvil.ops.builder import Builder, V
from cuvil.ops.contraction import CONTRACTION_TOLERANCE
from cuvil.ops.convolution import CONV_PARAMS, Shapes, conv_cost, conv_reference, conv_sample, conv_shape
from cuvil.ops.cost import Cost
from cuvil.ops.operand_dtypes import compute_dtype, one_numeric
from cuvil.ops.record import Array, Chooser, Example, Opaque, OperandSample, OpRecord, Params, Shape, ShapeResult
from cuvil.ops.registry import register
from cuvil.ops.requirements import present


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
