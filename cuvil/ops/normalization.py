"""Normalisations: layer, RMS, group and batch norm, in float32 for halves with one rounding at the end."""

from __future__ import annotations

import numpy as np

from cuvil.ops import batching
from cuvil.ops.builder import Builder, V
from cuvil.ops.contraction import wide
from cuvil.ops.convolution import exact_quotient
from cuvil.ops.cost import per_operand
from cuvil.ops.drawing import FLOAT_DTYPES, draw_axes, draw_dtype, draw_shape
from cuvil.ops.operand_dtypes import compute_dtype, one_float
from cuvil.ops.record import (
    Array,
    Chooser,
    Decomposition,
    Example,
    OperandSample,
    OpRecord,
    Param,
    Params,
    Shape,
    ShapeResult,
    Tolerance,
)
from cuvil.ops.registry import register
from cuvil.ops.requirements import Requirements, format_shape, present
from cuvil.support.errors import ArgumentError, ShapeError
from cuvil.symbolic import Dim

Shapes = tuple[Shape | None, ...]
Ints = tuple[int, ...]

#: Division by a small deviation magnifies the error of the mean, hence the absolute part.
NORM_TOLERANCE = Tolerance(ulp=64, absolute=512)
_EPS = Param("eps", "float", "added to the variance", 1e-5)


def _along(F: Builder[V], parameter: V, rank: int, axes: Ints) -> V:
    """A parameter whose axes are ``axes`` of the operand, in float32 for halves, ready to broadcast."""
    dims = dict(zip(axes, F.shape(parameter), strict=True))
    wide_parameter = F.cast(parameter, compute_dtype(F.dtype(parameter)))
    return F.reshape(wide_parameter, tuple(dims.get(a, 1) for a in range(rank)))


def _scaled(F: Builder[V], x: V, weight: V | None, bias: V | None, axes: Ints) -> V:
    rank = len(F.shape(x))
    if weight is not None:
        x = F.mul(x, _along(F, weight, rank, axes))
    if bias is not None:
        x = F.add(x, _along(F, bias, rank, axes))
    return x


def _standardized(F: Builder[V], x: V, axes: Ints, eps: float) -> V:
    """``(x - mean) / sqrt(var + eps)`` with the variance of the population."""
    centred = F.sub(x, F.op("mean", x, axes=axes, keepdims=True))
    variance = F.op("mean", F.mul(centred, centred), axes=axes, keepdims=True)
    return F.mul(centred, F.op("rsqrt", F.add(variance, F.like(eps, x))))


def _reference_along(parameter: Array, rank: int, axes: Ints) -> Array:
    dims = dict(zip(axes, parameter.shape, strict=True))
    return wide(parameter).reshape([dims.get(a, 1) for a in range(rank)])


def _reference_scaled(x: Array, weight: Array | None, bias: Array | None, axes: Ints) -> Array:
    if weight is not None:
        x = x * _reference_along(weight, x.ndim, axes)
    return x if bias is None else x + _reference_along(bias, x.ndim, axes)


def _reference_standardized(x: Array, axes: Ints, eps: float) -> Array:
    # The mean of no element is NaN as in NumPy, without its warning.
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        count = np.prod([x.shape[a] for a in axes], dtype=x.dtype)
        centred = x - x.sum(axes, keepdims=True) / count
        variance = (centred * centred).sum(axes, keepdims=True) / count
        return centred / np.sqrt(variance + x.dtype.type(eps))


def _check_parameters(need: Requirements, x: Shape, axes: Ints, *parameters: Shape | None) -> Shape:
    """The result shape: that of ``x``, with the static size where a parameter knows it."""
    need.axes(axes, len(x))
    out = list(x)
    for parameter in parameters:
        if parameter is not None:
            need.rank(parameter, len(axes), "a weight or bias")
            for a, d in zip(axes, parameter, strict=True):
                need.equal(d, x[a], f"a weight or bias of {format_shape(parameter)} has the size of axis {a}")
                out[a] = d if isinstance(d, int) else out[a]
    return tuple(out)


def _rest(shapes: Shapes, first: int, count: int) -> Shapes:
    """Optional operands, None where the caller gave fewer."""
    given = shapes[first:]
    return (*given, *((None,) * (count - len(given))))


# --------------------------------------------------------------------------------- layer_norm, rms_norm


def _layer_norm_shape(shapes: Shapes, params: Params) -> ShapeResult:
    x = present(shapes[0])
    need = Requirements("layer_norm")
    out = _check_parameters(need, x, params["axes"], *_rest(shapes, 1, 2))
    return need.result(out)


def _layer_norm_body(
    F: Builder[V], x: V, weight: V | None = None, bias: V | None = None, *, axes: Ints, eps: float
) -> V:
    dt = F.dtype(x)
    y = _standardized(F, F.cast(x, compute_dtype(dt)), axes, eps)
    return F.cast(_scaled(F, y, weight, bias, axes), dt)


def _layer_norm_reference(
    x: Array, weight: Array | None = None, bias: Array | None = None, *, axes: Ints, eps: float
) -> Array:
    y = _reference_standardized(wide(x), axes, eps)
    return _reference_scaled(y, weight, bias, axes).astype(x.dtype)


def _norm_operands(c: Chooser) -> tuple[OperandSample, OperandSample | None, OperandSample | None, Ints]:
    shape = draw_shape(c, 1, 4)
    axes = tuple(range(c.integer(0, len(shape) - 1), len(shape))) if c.boolean() else draw_axes(c, len(shape), 1)
    dt = draw_dtype(c, FLOAT_DTYPES)
    parameter = OperandSample(tuple(shape[a] for a in axes), dt, "moderate")
    weight, bias = parameter if c.boolean() else None, parameter if c.boolean() else None
    return OperandSample(shape, dt, "moderate"), weight, bias, axes


def _layer_norm_sample(c: Chooser) -> Example:
    x, weight, bias, axes = _norm_operands(c)
    return Example((x, weight, bias), {"axes": axes, "eps": c.choice((1e-5, 1e-3))})


LAYER_NORM = register(
    OpRecord(
        name="layer_norm",
        doc="(x - mean) / sqrt(variance + eps) over axes, times a weight, plus a bias, both shaped as those axes.",
        category="composite",
        operands=("x", "weight?", "bias?"),
        params=(Param("axes", "ints", "sorted axes to normalise over"), _EPS),
        shape_rule=_layer_norm_shape,
        dtype_rule=one_float,
        reference=_layer_norm_reference,
        body=Decomposition(_layer_norm_body),
        sample=_layer_norm_sample,
        batch_rule=batching.first_along("layer_norm", "axes", _layer_norm_body),
        accumulate=compute_dtype,
        cost=per_operand(_layer_norm_shape, 8),
        tolerance=NORM_TOLERANCE,
        onnx=("LayerNormalization",),
        torch=("aten.native_layer_norm", "aten.layer_norm"),
    )
)


def _rms_norm_shape(shapes: Shapes, params: Params) -> ShapeResult:
    x = present(shapes[0])
    need = Requirements("rms_norm")
    out = _check_parameters(need, x, params["axes"], *_rest(shapes, 1, 1))
    return need.result(out)


def _rms_norm_body(F: Builder[V], x: V, weight: V | None = None, *, axes: Ints, eps: float) -> V:
    dt = F.dtype(x)
    x = F.cast(x, compute_dtype(dt))
    mean = F.op("mean", F.mul(x, x), axes=axes, keepdims=True)
    y = F.mul(x, F.op("rsqrt", F.add(mean, F.like(eps, x))))
    return F.cast(_scaled(F, y, weight, None, axes), dt)


def _rms_norm_reference(x: Array, weight: Array | None = None, *, axes: Ints, eps: float) -> Array:
    y = wide(x)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        count = np.prod([y.shape[a] for a in axes], dtype=y.dtype)
        y = y / np.sqrt((y * y).sum(axes, keepdims=True) / count + y.dtype.type(eps))
    return _reference_scaled(y, weight, None, axes).astype(x.dtype)


def _rms_norm_sample(c: Chooser) -> Example:
    x, weight, _, axes = _norm_operands(c)
    return Example((x, weight), {"axes": axes, "eps": c.choice((1e-6, 1e-5))})


RMS_NORM = register(
    OpRecord(
        name="rms_norm",
        doc="x / sqrt(mean(x * x) + eps) over axes, times a weight shaped as those axes.",
        category="composite",
        operands=("x", "weight?"),
        params=(Param("axes", "ints", "sorted axes to normalise over"), Param("eps", "float", _EPS.doc, 1e-6)),
        shape_rule=_rms_norm_shape,
        dtype_rule=one_float,
        reference=_rms_norm_reference,
        body=Decomposition(_rms_norm_body),
        sample=_rms_norm_sample,
        batch_rule=batching.first_along("rms_norm", "axes", _rms_norm_body),
        accumulate=compute_dtype,
        cost=per_operand(_rms_norm_shape, 5),
        tolerance=NORM_TOLERANCE,
        onnx=("RMSNormalization", "SimplifiedLayerNormalization"),
        torch=("aten.rms_norm",),
    )
)

# ------------------------------------------------------------------------------------------ group_norm


def _group_norm_shape(shapes: Shapes, params: Params) -> ShapeResult:
    x = present(shapes[0])
    groups: int = params["groups"]
    if len(x) < 2:
        raise ShapeError(f"group_norm: expected x [N, C, ...], got shape {format_shape(x)}")
    if groups < 1:
        raise ArgumentError(f"group_norm: groups must be at least 1, got {groups}")
    need = Requirements("group_norm")
    need.equal(x[1] % groups, 0, f"the {x[1]} channels fall into {groups} groups")
    out = _check_parameters(need, x, (1,), *_rest(shapes, 1, 2))
    return need.result(out)


def _group_norm_body(
    F: Builder[V], x: V, weight: V | None = None, bias: V | None = None, *, groups: int, eps: float
) -> V:
    dt, shape = F.dtype(x), F.shape(x)
    per_group: Dim = exact_quotient(shape[1], groups, "group_norm")
    grouped = F.reshape(F.cast(x, compute_dtype(dt)), (shape[0], groups, per_group, *shape[2:]))
    y = _standardized(F, grouped, tuple(range(2, len(shape) + 1)), eps)
    return F.cast(_scaled(F, F.reshape(y, shape), weight, bias, (1,)), dt)


def _group_norm_reference(
    x: Array, weight: Array | None = None, bias: Array | None = None, *, groups: int, eps: float
) -> Array:
    grouped = wide(x).reshape(x.shape[0], groups, x.shape[1] // groups, *x.shape[2:])
    y = _reference_standardized(grouped, tuple(range(2, grouped.ndim)), eps).reshape(x.shape)
    return _reference_scaled(y, weight, bias, (1,)).astype(x.dtype)


def _group_norm_sample(c: Chooser) -> Example:
    groups = c.integer(1, 3)
    channels = groups * c.integer(1, 3)
    dt = draw_dtype(c, FLOAT_DTYPES)
    x = OperandSample((c.integer(0, 2), channels, *draw_shape(c, 0, 2, positive=True)), dt, "moderate")
    parameter = OperandSample((channels,), dt, "moderate")
    weight, bias = parameter if c.boolean() else None, parameter if c.boolean() else None
    return Example((x, weight, bias), {"groups": groups, "eps": 1e-3})


GROUP_NORM = register(
    OpRecord(
        name="group_norm",
        doc="x [N, C, ...] standardised per sample and group of channels, times a weight [C], plus a bias [C].",
        category="composite",
        operands=("x", "weight?", "bias?"),
        params=(Param("groups", "int", "groups of channels"), _EPS),
        shape_rule=_group_norm_shape,
        dtype_rule=one_float,
        reference=_group_norm_reference,
        body=Decomposition(_group_norm_body),
        sample=_group_norm_sample,
        batch_rule=batching.folded("group_norm", _group_norm_body),
        accumulate=compute_dtype,
        cost=per_operand(_group_norm_shape, 8),
        tolerance=NORM_TOLERANCE,
        onnx=("GroupNormalization", "InstanceNormalization"),
        torch=("aten.native_group_norm", "aten.group_norm", "aten.instance_norm"),
    )
)

# ------------------------------------------------------------------------------------------ batch_norm


def _batch_norm_shape(shapes: Shapes, params: Params) -> ShapeResult:
    x = present(shapes[0])
    need = Requirements("batch_norm")
    mean, variance = present(shapes[1]), present(shapes[2])
    out = _check_parameters(need, x, (params["axis"],), mean, variance, *_rest(shapes, 3, 2))
    return need.result(out)


def _batch_norm_body(
    F: Builder[V],
    x: V,
    mean: V,
    var: V,
    weight: V | None = None,
    bias: V | None = None,
    *,
    axis: int,
    eps: float,
) -> V:
    # The channel-sized part stays apart, so that constants fold to one multiply and add per element.
    dt, rank = F.dtype(x), len(F.shape(x))
    compute = compute_dtype(dt)
    scale = F.op("rsqrt", F.add(F.cast(var, compute), F.scalar(eps, compute)))
    if weight is not None:
        scale = F.mul(scale, F.cast(weight, compute))
    centred = F.sub(F.cast(x, compute), _along(F, mean, rank, (axis,)))
    y = F.mul(centred, _along(F, scale, rank, (axis,)))
    return F.cast(_scaled(F, y, None, bias, (axis,)), dt)


def _batch_norm_reference(
    x: Array,
    mean: Array,
    var: Array,
    weight: Array | None = None,
    bias: Array | None = None,
    *,
    axis: int,
    eps: float,
) -> Array:
    y = wide(x) - _reference_along(mean, x.ndim, (axis,))
    y = y / np.sqrt(_reference_along(var, x.ndim, (axis,)) + y.dtype.type(eps))
    return _reference_scaled(y, weight, bias, (axis,)).astype(x.dtype)


def _batch_norm_sample(c: Chooser) -> Example:
    shape = draw_shape(c, 1, 4)
    axis = c.integer(0, len(shape) - 1)
    dt = draw_dtype(c, FLOAT_DTYPES)
    parameter = OperandSample((shape[axis],), dt, "moderate")
    variance = OperandSample((shape[axis],), dt, "positive")
    weight, bias = parameter if c.boolean() else None, parameter if c.boolean() else None
    operands = (OperandSample(shape, dt, "moderate"), parameter, variance, weight, bias)
    return Example(operands, {"axis": axis, "eps": 1e-5})


BATCH_NORM = register(
    OpRecord(
        name="batch_norm",
        doc="(x - mean) / sqrt(var + eps) * weight + bias with given statistics per channel, as at inference.",
        category="composite",
        operands=("x", "mean", "var", "weight?", "bias?"),
        params=(Param("axis", "int", "the channel axis", 1), _EPS),
        shape_rule=_batch_norm_shape,
        dtype_rule=one_float,
        reference=_batch_norm_reference,
        body=Decomposition(_batch_norm_body),
        sample=_batch_norm_sample,
        batch_rule=batching.first_along("batch_norm", "axis", _batch_norm_body),
        accumulate=compute_dtype,
        cost=per_operand(_batch_norm_shape, 2),
        tolerance=NORM_TOLERANCE,
        onnx=("BatchNormalization",),
        torch=("aten._native_batch_norm_legit_no_training", "aten.batch_norm"),
    )
)
