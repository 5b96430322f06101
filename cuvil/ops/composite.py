"""softmax, log_softmax and one_hot: named compositions that stay whole until a pass opens them."""

from __future__ import annotations

import numpy as np

from cuvil.dtypes import DType, float32, int64
from cuvil.ops import batching, tangents
from cuvil.ops.builder import Builder, V
from cuvil.ops.contraction import wide
from cuvil.ops.cost import per_operand, per_result
from cuvil.ops.drawing import ANY_DTYPES, FLOAT_DTYPES, draw_dtype, draw_shape
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
from cuvil.ops.requirements import Requirements, present
from cuvil.support.errors import DTypeError

Shapes = tuple[Shape | None, ...]

# ------------------------------------------------------------------------------------------------ softmax


def _softmax_shape(shapes: Shapes, params: Params) -> ShapeResult:
    x = present(shapes[0])
    need = Requirements("softmax")
    need.axis(params["axis"], len(x))
    return need.result(x)


def _shifted(F: Builder[V], x: V, axis: int) -> V:
    """``x - max(x)`` along an axis, so that no exponential of a finite value overflows."""
    return F.sub(x, F.op("supremum", x, axes=(axis,), keepdims=True))


def _softmax_body(F: Builder[V], x: V, *, axis: int) -> V:
    dt = F.dtype(x)
    powers = F.exp(_shifted(F, F.cast(x, compute_dtype(dt)), axis))
    return F.cast(F.div(powers, F.sum(powers, (axis,), keepdims=True)), dt)


def _log_softmax_body(F: Builder[V], x: V, *, axis: int) -> V:
    dt = F.dtype(x)
    shifted = _shifted(F, F.cast(x, compute_dtype(dt)), axis)
    return F.cast(F.sub(shifted, F.op("log", F.sum(F.exp(shifted), (axis,), keepdims=True))), dt)


def softmax_reference(x: Array, *, axis: int) -> Array:
    """Softmax along an axis; a row of -inf, or with NaN or +inf, is NaN."""
    if x.shape[axis] == 0:
        return x.copy()
    with np.errstate(invalid="ignore"):
        powers = np.exp(wide(x) - wide(x).max(axis, keepdims=True))
        return (powers / powers.sum(axis, keepdims=True)).astype(x.dtype)


def _log_softmax_reference(x: Array, *, axis: int) -> Array:
    if x.shape[axis] == 0:
        return x.copy()
    with np.errstate(invalid="ignore", divide="ignore"):
        shifted = wide(x) - wide(x).max(axis, keepdims=True)
        return (shifted - np.log(np.exp(shifted).sum(axis, keepdims=True))).astype(x.dtype)


def _softmax_sample(c: Chooser) -> Example:
    shape = draw_shape(c, 1, 4)
    operand = OperandSample(shape, draw_dtype(c, FLOAT_DTYPES), c.choice(("moderate", "any")))
    return Example((operand,), {"axis": c.integer(0, len(shape) - 1)})


_AXIS = Param("axis", "int", "axis along which the values compete")
SOFTMAX = register(
    OpRecord(
        name="softmax",
        doc="exp(x - max) / sum(exp(x - max)) along an axis; halves compute in float32.",
        category="composite",
        operands=("x",),
        params=(_AXIS,),
        shape_rule=_softmax_shape,
        dtype_rule=one_float,
        reference=softmax_reference,
        body=Decomposition(_softmax_body),
        sample=_softmax_sample,
        batch_rule=batching.along("softmax"),
        jvp=tangents.softmax,
        accumulate=compute_dtype,
        cost=per_operand(_softmax_shape, 5),
        tolerance=Tolerance(ulp=16, absolute=8),
        onnx=("Softmax",),
        torch=("aten._softmax", "aten.softmax"),
    )
)
LOG_SOFTMAX = register(
    OpRecord(
        name="log_softmax",
        doc="x - max - log(sum(exp(x - max))) along an axis; halves compute in float32.",
        category="composite",
        operands=("x",),
        params=(_AXIS,),
        shape_rule=_softmax_shape,
        dtype_rule=one_float,
        reference=_log_softmax_reference,
        body=Decomposition(_log_softmax_body),
        sample=_softmax_sample,
        batch_rule=batching.along("log_softmax"),
        jvp=tangents.log_softmax,
        accumulate=compute_dtype,
        cost=per_operand(_softmax_shape, 5),
        tolerance=Tolerance(ulp=16, absolute=64),
        onnx=("LogSoftmax",),
        torch=("aten._log_softmax", "aten.log_softmax"),
    )
)

# ------------------------------------------------------------------------------------------------ one_hot


def _one_hot_shape(shapes: Shapes, params: Params) -> ShapeResult:
    need = Requirements("one_hot")
    need.at_least(params["depth"], 0, "the depth is not negative")
    return need.result((*present(shapes[0]), params["depth"]))


def _one_hot_dtype(dtypes: tuple[DType | None, ...], params: Params) -> tuple[DType, ...]:
    indices = present(dtypes[0])
    if not indices.is_integer:
        raise DTypeError(f"one_hot: indices must be integers, got {indices}; cast them first")
    return (params["dtype"],)


def _one_hot_body(F: Builder[V], indices: V, *, depth: int, dtype: DType) -> V:
    shape = F.shape(indices)
    # uint64 past the int64 range becomes negative, which is no class either.
    column = F.cast(F.reshape(indices, (*shape, 1)), int64)
    classes = F.iota((*(1 for _ in shape), depth), len(shape))
    return F.cast(F.op("equal", column, classes), dtype)


def _one_hot_reference(indices: Array, *, depth: int, dtype: DType) -> Array:
    return (indices[..., None].astype(np.int64) == np.arange(depth)).astype(dtype.numpy)


def _one_hot_sample(c: Chooser) -> Example:
    depth = c.integer(0, 5)
    integers = [d for d in ANY_DTYPES if d.is_integer and d.is_signed]
    operand = OperandSample(draw_shape(c, 0, 3), draw_dtype(c, integers), "index", depth + 1)
    return Example((operand,), {"depth": depth, "dtype": draw_dtype(c)})


ONE_HOT = register(
    OpRecord(
        name="one_hot",
        doc="A new last axis with 1 at the index and 0 elsewhere; an index outside [0, depth) gives zeros.",
        category="composite",
        operands=("indices",),
        params=(
            Param("depth", "dim", "size of the new axis"),
            Param("dtype", "dtype", "dtype of the result", float32),
        ),
        shape_rule=_one_hot_shape,
        dtype_rule=_one_hot_dtype,
        reference=_one_hot_reference,
        body=Decomposition(_one_hot_body),
        sample=_one_hot_sample,
        batch_rule=batching.trailing("one_hot"),
        cost=per_result(_one_hot_shape, 1),
        onnx=("OneHot",),
        torch=("aten.one_hot",),
    )
)
