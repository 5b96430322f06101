"""Contractions of matrices and axes: matmul, tensordot and vecdot (einsum stands in its own module)."""

from __future__ import annotations

import numpy as np

from cuvil.dtypes import dtype
from cuvil.ops import batching, contraction_transposes, transposes
from cuvil.ops.builder import Builder, V
from cuvil.ops.cost import Cost, traffic
from cuvil.ops.drawing import NUMERIC_DTYPES, draw_broadcastable, draw_dtype, draw_permutation, draw_shape, draw_size
from cuvil.ops.operand_dtypes import compute_dtype, one_numeric
from cuvil.ops.record import (
    Array,
    Chooser,
    Decomposition,
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
from cuvil.ops.requirements import Requirements, format_shape, present
from cuvil.ops.shape_rules import broadcast
from cuvil.support.errors import ArgumentError, ShapeError
from cuvil.symbolic import product

Shapes = tuple[Shape | None, ...]

#: Samples draw from [-8, 8] and sum at most 7 * 7 products of up to 64, so an error of a few units in the last
#: place of the running sum is thousands of epsilons absolute.
CONTRACTION_TOLERANCE = Tolerance(ulp=16, absolute=4096)


def wide(x: Array) -> Array:
    """The array in the dtype that it is computed in: halves as float32."""
    return x.astype(compute_dtype(dtype(x.dtype)).numpy)


# ---------------------------------------------------------------------------------------------- matmul


def _matmul_shape(shapes: Shapes, params: Params) -> ShapeResult:
    a, b = present(shapes[0]), present(shapes[1])
    if len(a) < 2 or len(b) < 2:
        raise ShapeError(
            f"matmul: both operands need rank 2 or more, got {format_shape(a)} and {format_shape(b)}; "
            "reshape a vector to one row or one column"
        )
    need = Requirements("matmul")
    what = f"{format_shape(a)} times {format_shape(b)}"
    need.equal(a[-1], b[-2], f"columns of the first equal rows of the second in {what}")
    batch = broadcast(need, (a[:-2], b[:-2]), f"batch axes broadcast in {what}")
    return need.result((*batch, a[-2], b[-1]))


def _matmul_reference(a: Array, b: Array) -> Array:
    return np.matmul(wide(a), wide(b)).astype(a.dtype)


def _matmul_cost(shapes: Shapes, params: Params) -> Cost:
    (out,) = _matmul_shape(shapes, params).shapes
    return product(out) * present(shapes[0])[-1] * 2, traffic(*shapes, out)


def _matmul_sample(c: Chooser) -> Example:
    batch = draw_shape(c, 0, 2)
    m, k, n = draw_size(c), draw_size(c), draw_size(c)
    dt = draw_dtype(c, NUMERIC_DTYPES)
    a = OperandSample((*draw_broadcastable(c, batch), m, k), dt, "moderate")
    b = OperandSample((*draw_broadcastable(c, batch), k, n), dt, "moderate")
    return Example((a, b))


MATMUL = register(
    OpRecord(
        name="matmul",
        doc="Matrix products over the last two axes; leading axes broadcast. Integers wrap, halves sum in float32.",
        category="contraction",
        operands=("a", "b"),
        shape_rule=_matmul_shape,
        dtype_rule=one_numeric,
        reference=_matmul_reference,
        body=Opaque("matmul"),
        sample=_matmul_sample,
        batch_rule=batching.stacked("matmul"),
        jvp=transposes.each("matmul"),
        transpose=contraction_transposes.matmul,
        accumulate=compute_dtype,
        cost=_matmul_cost,
        tolerance=CONTRACTION_TOLERANCE,
        onnx=("MatMul", "Gemm"),
        torch=("aten.mm", "aten.bmm", "aten.matmul", "aten.addmm", "aten.linear"),
    )
)

# ------------------------------------------------------------------------------------------- tensordot


def _free_axes(rank: int, contracted: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(a for a in range(rank) if a not in contracted)


def _tensordot_shape(shapes: Shapes, params: Params) -> ShapeResult:
    a, b = present(shapes[0]), present(shapes[1])
    axes: tuple[tuple[int, ...], tuple[int, ...]] = params["axes"]
    axes_a, axes_b = axes
    if len(axes_a) != len(axes_b):
        raise ArgumentError(f"tensordot: expected as many axes of each operand, got {axes_a} and {axes_b}")
    need = Requirements("tensordot")
    need.axes(axes_a, len(a))
    need.axes(axes_b, len(b))
    for i, j in zip(axes_a, axes_b, strict=True):
        need.equal(a[i], b[j], f"axis {i} of {format_shape(a)} contracts with axis {j} of {format_shape(b)}")
    free_a = tuple(a[i] for i in _free_axes(len(a), axes_a))
    return need.result((*free_a, *(b[j] for j in _free_axes(len(b), axes_b))))


def _tensordot_body(F: Builder[V], a: V, b: V, *, axes: tuple[tuple[int, ...], tuple[int, ...]]) -> V:
    shape_a, shape_b = F.shape(a), F.shape(b)
    free_a, free_b = _free_axes(len(shape_a), axes[0]), _free_axes(len(shape_b), axes[1])
    m, n = product(shape_a[i] for i in free_a), product(shape_b[j] for j in free_b)
    k_a, k_b = product(shape_a[i] for i in axes[0]), product(shape_b[j] for j in axes[1])
    left = F.reshape(F.transpose(a, (*free_a, *axes[0])), (m, k_a))
    right = F.reshape(F.transpose(b, (*axes[1], *free_b)), (k_b, n))
    return F.reshape(F.matmul(left, right), (*(shape_a[i] for i in free_a), *(shape_b[j] for j in free_b)))


def _tensordot_reference(a: Array, b: Array, *, axes: tuple[tuple[int, ...], tuple[int, ...]]) -> Array:
    return np.asarray(np.tensordot(wide(a), wide(b), axes)).astype(a.dtype)


def _tensordot_cost(shapes: Shapes, params: Params) -> Cost:
    (out,) = _tensordot_shape(shapes, params).shapes
    axes: tuple[tuple[int, ...], tuple[int, ...]] = params["axes"]
    contracted = product(present(shapes[0])[i] for i in axes[0])
    return product(out) * contracted * 2, traffic(*shapes, out)


def _tensordot_sample(c: Chooser) -> Example:
    shared = draw_shape(c, 0, 2)
    order_a = draw_permutation(c, len(shared) + 1)
    order_b = draw_permutation(c, len(shared) + 1)
    shape_a = (*shared, draw_size(c))
    shape_b = (*shared, draw_size(c))
    dt = draw_dtype(c, NUMERIC_DTYPES)
    a = OperandSample(tuple(shape_a[i] for i in order_a), dt, "moderate")
    b = OperandSample(tuple(shape_b[i] for i in order_b), dt, "moderate")
    axes = tuple(tuple(order.index(i) for i in range(len(shared))) for order in (order_a, order_b))
    return Example((a, b), {"axes": axes})


TENSORDOT = register(
    OpRecord(
        name="tensordot",
        doc="Sum of products over pairs of axes; free axes of the first operand come before those of the second.",
        category="contraction",
        operands=("a", "b"),
        params=(Param("axes", "any", "(axes of a, axes of b), paired in order"),),
        shape_rule=_tensordot_shape,
        dtype_rule=one_numeric,
        reference=_tensordot_reference,
        body=Decomposition(_tensordot_body),
        sample=_tensordot_sample,
        accumulate=compute_dtype,
        cost=_tensordot_cost,
        tolerance=CONTRACTION_TOLERANCE,
        torch=("aten.tensordot",),
    )
)

# ---------------------------------------------------------------------------------------------- vecdot


def _vecdot_shape(shapes: Shapes, params: Params) -> ShapeResult:
    a, b = present(shapes[0]), present(shapes[1])
    axis: int = params["axis"]
    need = Requirements("vecdot")
    rank = max(len(a), len(b))
    need.axis(axis, rank)
    if rank - axis > min(len(a), len(b)):
        raise ShapeError(f"vecdot: {format_shape(a)} and {format_shape(b)} do not both have axis {axis - rank}")
    need.equal(a[axis - rank], b[axis - rank], f"{format_shape(a)} and {format_shape(b)} agree along the summed axis")
    out = broadcast(need, (a, b), f"{format_shape(a)} and {format_shape(b)} broadcast")
    return need.result((*out[:axis], *out[axis + 1 :]))


def _vecdot_body(F: Builder[V], a: V, b: V, *, axis: int) -> V:
    dt = F.dtype(a)
    compute = compute_dtype(dt)
    return F.cast(F.sum(F.mul(F.cast(a, compute), F.cast(b, compute)), (axis,)), dt)


def _vecdot_reference(a: Array, b: Array, *, axis: int) -> Array:
    return np.asarray((wide(a) * wide(b)).sum(axis)).astype(a.dtype)


def _vecdot_cost(shapes: Shapes, params: Params) -> Cost:
    (out,) = _vecdot_shape(shapes, params).shapes
    a = present(shapes[0])
    axis: int = params["axis"]
    rank = max(len(a), len(present(shapes[1])))
    return product(out) * a[axis - rank] * 2, traffic(*shapes, out)


def _vecdot_sample(c: Chooser) -> Example:
    shape = draw_shape(c, 1, 3)
    axis = c.integer(0, len(shape) - 1)
    dt = draw_dtype(c, NUMERIC_DTYPES)

    def operand() -> OperandSample:
        kept = tuple(d if a == axis or c.boolean() else 1 for a, d in enumerate(shape))
        return OperandSample(kept, dt, "moderate")

    return Example((operand(), operand()), {"axis": axis})


VECDOT = register(
    OpRecord(
        name="vecdot",
        doc="Sum of products along one axis of the broadcast operands.",
        category="contraction",
        operands=("a", "b"),
        params=(Param("axis", "int", "summed axis, counted in the broadcast shape"),),
        shape_rule=_vecdot_shape,
        dtype_rule=one_numeric,
        reference=_vecdot_reference,
        body=Decomposition(_vecdot_body),
        sample=_vecdot_sample,
        batch_rule=batching.vecdot,
        accumulate=compute_dtype,
        cost=_vecdot_cost,
        tolerance=CONTRACTION_TOLERANCE,
        torch=("aten.dot", "aten.linalg_vecdot"),
    )
)
