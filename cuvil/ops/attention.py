"""scaled_dot_product_attention with grouped heads, masks and causality, as PyTorch aligns them."""

from __future__ import annotations

import math

import numpy as np

from cuvil.dtypes import DType, bool_
from cuvil.ops import batching
from cuvil.ops.builder import Builder, V
from cuvil.ops.composite import softmax_reference
from cuvil.ops.contraction import wide
from cuvil.ops.cost import Cost, traffic
from cuvil.ops.drawing import FLOAT_DTYPES, draw_broadcastable, draw_dtype
from cuvil.ops.operand_dtypes import compute_dtype, one_float
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
from cuvil.ops.requirements import Requirements, format_shape, present
from cuvil.support.errors import DTypeError, ShapeError
from cuvil.symbolic import Dim, exact_div, product

Shapes = tuple[Shape | None, ...]


def head_groups(query_heads: Dim, key_heads: Dim) -> Dim:
    """How many query heads share one key head.

    Raises:
        ShapeError: the quotient is not evidently whole.

    >>> head_groups(8, 2)
    4
    """
    quotient = 1 if query_heads == key_heads else exact_div(query_heads, key_heads) if key_heads != 0 else None
    if quotient is None:
        raise ShapeError(
            f"scaled_dot_product_attention: {query_heads} query heads are not evidently a multiple of "
            f"{key_heads} key heads; make both static"
        )
    return quotient


def _shape_rule(shapes: Shapes, params: Params) -> ShapeResult:
    q, k, v = (present(s) for s in shapes[:3])
    mask = shapes[3] if len(shapes) > 3 else None
    need = Requirements("scaled_dot_product_attention")
    for name, shape in (("q", q), ("k", k), ("v", v)):
        need.rank(shape, 4, f"{name} [B, H, S, D]")
    batch, heads, queries, depth = q
    _, key_heads, keys, _ = k
    need.equal(k[0], batch, "q and k have one batch size")
    need.equal(v[0], batch, "q and v have one batch size")
    need.equal(v[1], key_heads, "k and v have as many heads")
    need.equal(k[3], depth, "q and k have one depth")
    need.equal(v[2], keys, "k and v are as long")
    head_groups(heads, key_heads)
    if mask is not None:
        full = (batch, heads, queries, keys)
        if len(mask) > 4:
            raise ShapeError(f"{need.op}: the mask {format_shape(mask)} must broadcast to {format_shape(full)}")
        for d, e in zip(mask, full[4 - len(mask) :], strict=True):
            if d != 1:
                need.equal(d, e, f"the mask {format_shape(mask)} broadcasts to {format_shape(full)}")
    return need.result((batch, heads, queries, v[3]))


def _dtype_rule(dtypes: tuple[DType | None, ...], params: Params) -> tuple[DType, ...]:
    result = one_float(dtypes[:3], params)
    mask = dtypes[3] if len(dtypes) > 3 else None
    if mask is not None and not mask.is_bool and mask is not result[0]:
        raise DTypeError(f"the mask must be bool or {result[0]} as the query is, got {mask}; cast it first")
    return result


def _decompose(F: Builder[V], q: V, k: V, v: V, mask: V | None = None, *, causal: bool, scale: float | None) -> V:
    dt = F.dtype(q)
    compute = compute_dtype(dt)
    batch, heads, queries, depth = F.shape(q)
    _, key_heads, keys, _ = F.shape(k)
    width = F.shape(v)[3]
    groups = head_groups(heads, key_heads)
    factor = F.op("rsqrt", F.dim(depth, compute)) if scale is None else F.scalar(scale, compute)
    # Query heads that share a key head become a further axis, along which keys and values broadcast.
    q = F.reshape(F.mul(F.cast(q, compute), factor), (batch, key_heads, groups, queries, depth))
    k = F.reshape(F.transpose(F.cast(k, compute), (0, 1, 3, 2)), (batch, key_heads, 1, depth, keys))
    v = F.reshape(F.cast(v, compute), (batch, key_heads, 1, keys, width))
    scores = F.matmul(q, k)
    excluded = F.scalar(-math.inf, compute)
    if mask is not None:
        mask = _grouped_mask(F, mask, key_heads, groups)
        if F.dtype(mask).is_bool:
            scores = F.where(mask, scores, excluded)
        else:
            scores = F.add(scores, F.cast(mask, compute))
    if causal:
        row, column = F.iota((queries, 1), 0), F.iota((1, keys), 1)
        scores = F.where(F.op("less_equal", column, row), scores, excluded)
    weights = F.op("softmax", scores, axis=4)
    return F.cast(F.reshape(F.matmul(weights, v), (batch, heads, queries, width)), dt)


def _grouped_mask(F: Builder[V], mask: V, key_heads: Dim, groups: Dim) -> V:
    shape = F.shape(mask)
    batch, heads, queries, keys = (1,) * (4 - len(shape)) + shape
    split = (1, 1) if heads == 1 else (key_heads, groups)
    return F.reshape(mask, (batch, *split, queries, keys))


def _reference(q: Array, k: Array, v: Array, mask: Array | None = None, *, causal: bool, scale: float | None) -> Array:
    dt = q.dtype
    q, k, v = wide(q), wide(k), wide(v)
    groups = 1 if q.shape[1] == k.shape[1] else q.shape[1] // k.shape[1]
    k, v = np.repeat(k, groups, 1), np.repeat(v, groups, 1)
    with np.errstate(divide="ignore"):
        factor = 1 / np.sqrt(q.dtype.type(q.shape[3])) if scale is None else q.dtype.type(scale)
    scores = (q * factor) @ k.swapaxes(2, 3)
    if mask is not None:
        scores = np.where(mask, scores, -np.inf) if mask.dtype == np.bool_ else scores + wide(mask)
    if causal:
        scores = np.where(np.tri(*scores.shape[2:], dtype=bool), scores, -np.inf)
    return (softmax_reference(scores.astype(q.dtype), axis=3) @ v).astype(dt)


def _cost(shapes: Shapes, params: Params) -> Cost:
    q, v = present(shapes[0]), present(shapes[2])
    (out,) = _shape_rule(shapes, params).shapes
    scores = product(q[:3]) * v[2]
    return scores * (q[3] + v[3]) * 2 + scores * 5, traffic(*shapes, out)


def _sample(c: Chooser) -> Example:
    batch, key_heads, groups = c.integer(0, 2), c.integer(1, 2), c.integer(1, 3)
    queries, keys = c.integer(0, 5), c.integer(0, 5)
    depth, width = c.integer(1, 5), c.integer(0, 4)
    dt = draw_dtype(c, FLOAT_DTYPES)
    q = OperandSample((batch, key_heads * groups, queries, depth), dt, "moderate")
    k = OperandSample((batch, key_heads, keys, depth), dt, "moderate")
    v = OperandSample((batch, key_heads, keys, width), dt, "moderate")
    mask = None
    if c.boolean():
        full = (batch, key_heads * groups, queries, keys)
        mask = OperandSample(draw_broadcastable(c, full), dt if c.boolean() else bool_, "moderate")
    return Example((q, k, v, mask), {"causal": c.boolean(), "scale": c.choice((None, 0.25))})


SCALED_DOT_PRODUCT_ATTENTION = register(
    OpRecord(
        name="scaled_dot_product_attention",
        doc="softmax(q kT * scale + mask) v per head. A bool mask says where to attend, a float mask is added; "
        "causal lets query i see keys 0..i; a query that sees nothing gives NaN.",
        category="composite",
        operands=("q", "k", "v", "mask?"),
        params=(
            Param("causal", "bool", "whether query i sees keys 0..i only", False),
            Param("scale", "float", "factor of the scores; None means 1 / sqrt(depth)"),
        ),
        shape_rule=_shape_rule,
        dtype_rule=_dtype_rule,
        reference=_reference,
        body=Opaque("attention", decompose=_decompose),
        sample=_sample,
        batch_rule=batching.attention,
        accumulate=compute_dtype,
        cost=_cost,
        # Scores of a few hundred carry an error that the exponential turns into a relative one.
        tolerance=Tolerance(ulp=2048, absolute=4096),
        onnx=("Attention", "MultiHeadAttention"),
        torch=("aten.scaled_dot_product_attention",),
    )
)
