"""Rules on matmul and conv: scales and offsets into weights, merged projections, padding, transposes.

Folding a constant scale into constant weights rounds each product once more, and skips a rounding of the result. Both
are within the bound ``n * eps * sum(|x| * |w|)`` that any order of summing the dot product has, which is why these
rules are of the kind ``contracts`` and run by default. What they refuse: weights that would overflow or underflow, and
halves, whose rounding is far coarser than the float32 sum that it would enter.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from xdsl.ir import Operation, SSAValue

from cuvil.dtypes import float32, float64
from cuvil.ir.dialect import TensorOp, aval_of
from cuvil.ops.builder import Builder
from cuvil.ops.record import Array, Chooser, OperandSample, ParamValue
from cuvil.passes.engine import Case, Replacement, Rewriter, RuleSet, rule

_FULL = (float32, float64)
#: A weight above this size that others read too is not scaled: both copies would stay in memory.
_MAX_COPIED_BYTES = 1 << 20


def _random(c: Chooser, shape: tuple[int, ...], low: int = -8, high: int = 8) -> Array:
    count = int(np.prod(shape))
    return np.array([c.integer(low * 8, high * 8) / 8 or 0.5 for _ in range(count)]).reshape(shape)


def _is_full(value: SSAValue) -> bool:
    return aval_of(value).dtype in _FULL


def _along(a: Array, rank: int, axis: int, size: int) -> Array | None:
    """A constant as one element per index of ``axis`` of a value of some rank, None if it varies along another axis."""
    if a.ndim > rank:
        return None
    shape = (1,) * (rank - a.ndim) + a.shape
    if any(d != 1 for k, d in enumerate(shape) if k != axis) or shape[axis] not in (1, size):
        return None
    return np.broadcast_to(a.reshape(-1), (size,))


def _scaled(w: Array, factor: Array) -> Array | None:
    """``w * factor`` rounded once, None where an element overflows or loses bits to underflow."""
    with np.errstate(all="ignore"):
        # Factors in float64 (reciprocals) round the product once, as equal dtypes do by themselves.
        out = (w * factor).astype(w.dtype, copy=False)
    normal = np.isfinite(out) & ((np.abs(out) >= np.finfo(w.dtype).tiny) | (w == 0))
    return out if bool(np.all(normal)) and bool(np.all(np.isfinite(factor))) and bool(np.all(factor != 0)) else None


def _may_copy(value: SSAValue) -> bool:
    a = Rewriter.array(value)
    return a is not None and (value.has_one_use() or a.nbytes <= _MAX_COPIED_BYTES)


def _split(F: Rewriter, op: TensorOp, *names: str) -> tuple[TensorOp, Array, bool] | None:
    """An element-wise op as (named producer of one operand, elements of the constant other one, producer first)."""
    for k in (0, 1):
        inner, a = F.producer(op.operands[k], *names), F.array(op.operands[1 - k])
        if inner is not None and a is not None and F.single_use(op.operands[k]):
            return inner, a, k == 0
    return None


def _factor(op: TensorOp, a: Array, first: bool) -> Array | None:
    """What the producer is multiplied by: the constant, or its reciprocal in float64."""
    if op.record.name == "multiply":
        return a
    if not first:
        return None  # constant / result is no scale
    with np.errstate(all="ignore"):
        return 1.0 / a.astype(np.float64)


# ------------------------------------------------------------------------------------------- conv


@dataclass(frozen=True)
class _ConvCase:
    operands: tuple[OperandSample, ...]
    weight: Array
    bias: Array | None
    params: dict[str, ParamValue]

    def emit(self, F: Builder[SSAValue], x: SSAValue) -> SSAValue:
        bias = None if self.bias is None else F.constant(self.bias)
        return F.op("conv", x, F.constant(self.weight), bias, **self.params)


def _draw_conv(c: Chooser) -> _ConvCase:
    dt = c.choice(_FULL)
    spatial, groups = c.integer(1, 2), c.integer(1, 2)
    inputs, outputs = groups * c.integer(1, 2), groups * c.integer(1, 2)
    kernel = tuple(c.integer(1, 3) for _ in range(spatial))
    x = OperandSample((c.integer(0, 2), inputs, *(c.integer(3, 5) for _ in range(spatial))), dt, "moderate")
    weight = _random(c, (outputs, inputs // groups, *kernel)).astype(dt.numpy)
    bias = _random(c, (outputs,)).astype(dt.numpy) if c.boolean() else None
    params: dict[str, ParamValue] = {
        "strides": tuple(c.integer(1, 2) for _ in kernel),
        "padding": tuple((c.integer(0, 1), c.integer(0, 1)) for _ in kernel),
        "dilation": (1,) * spatial,
        "input_dilation": (1,) * spatial,
        "groups": groups,
    }
    return _ConvCase((x,), weight, bias, params)


def _channel_constant(c: Chooser, case: _ConvCase) -> Array:
    channels = case.weight.shape[0]
    shape = (channels, *(1 for _ in case.params["strides"])) if c.boolean() else ()
    return _random(c, shape).astype(case.weight.dtype)


def _conv_parts(F: Rewriter, conv: TensorOp) -> tuple[Array, Array | None] | None:
    """The constant weight and bias of a convolution, None where they are not constants."""
    arguments = (*conv.arguments, None)[:3]
    weight, bias = F.array(arguments[1]), F.array(arguments[2])
    if weight is None or (arguments[2] is not None and bias is None) or not _is_full(conv.results[0]):
        return None
    return (weight, bias) if arguments[1] is not None and _may_copy(arguments[1]) else None


def _scaled_conv(c: Chooser) -> Case:
    case = _draw_conv(c)
    name, factor = c.choice(("multiply", "divide")), _channel_constant(c, case)
    return Case(lambda F, x: F.op(name, case.emit(F, x), F.constant(factor)), case.operands)


@rule("multiply", "divide", name="scale-into-conv", kind="contracts", example=_scaled_conv, domain="floats")
def scale_into_conv(F: Rewriter, op: TensorOp) -> Replacement:
    "conv(x, w, b) * c -> conv(x, w * c, b * c) for constants w, b and c, c by output channel; conv / c too"
    found = _split(F, op, "conv")
    if found is None:
        return None
    conv, a, first = found
    parts, factor = _conv_parts(F, conv), _factor(op, a, first)
    if parts is None or factor is None:
        return None
    weight, bias = parts
    scale = _along(factor, aval_of(conv.results[0]).rank, 1, weight.shape[0])
    if scale is None:
        return None
    factors = scale.reshape(-1, *(1 for _ in weight.shape[1:]))
    new_weight = _scaled(weight, factors)
    new_bias = None if bias is None else _scaled(bias, scale)
    if new_weight is None or (bias is not None and new_bias is None):
        return None
    scaled = F.derived(new_weight, F.origin("multiply", conv.arguments[1], factors))
    return F.op("conv", conv.operands[0], scaled, None if new_bias is None else F.constant(new_bias), **conv.params)


def _offset_conv(c: Chooser) -> Case:
    case = _draw_conv(c)
    name, offset = c.choice(("add", "subtract")), _channel_constant(c, case)
    return Case(lambda F, x: F.op(name, case.emit(F, x), F.constant(offset)), case.operands)


@rule("add", "subtract", name="offset-into-conv", kind="reorders", example=_offset_conv, domain="floats")
def offset_into_conv(F: Rewriter, op: TensorOp) -> Replacement:
    "conv(x, w, b) + c -> conv(x, w, b + c) for constants b and c, c by output channel; conv - c too"
    found = _split(F, op, "conv")
    if found is None or (op.record.name == "subtract" and not found[2]):
        return None
    conv, a, _ = found
    arguments = (*conv.arguments, None)[:3]
    bias = F.array(arguments[2])
    channels = aval_of(conv.results[0]).shape[1]
    if (arguments[2] is not None and bias is None) or not isinstance(channels, int) or not _is_full(conv.results[0]):
        return None
    offset = _along(a, aval_of(conv.results[0]).rank, 1, channels)
    if offset is None:
        return None
    offset = -offset if op.record.name == "subtract" else offset
    total = offset if bias is None else bias + offset
    return F.op("conv", conv.operands[0], arguments[1], F.constant(total), **conv.params)


def _padded_conv(c: Chooser) -> Case:
    case = _draw_conv(c)
    pairs = ((0, 0), (0, 0), *((c.integer(0, 2), c.integer(0, 2)) for _ in case.params["strides"]))
    return Case(lambda F, x: case.emit(F, F.op("pad", x, pairs=pairs, mode="constant", value=0)), case.operands)


@rule("conv", name="pad-into-conv", kind="reorders", example=_padded_conv, domain="floats")
def pad_into_conv(F: Rewriter, op: TensorOp) -> Replacement:
    "conv(pad(x, p, 0), w) -> conv(x, w) with its own padding larger by p"
    pad = F.producer(op.operands[0], "pad")
    if pad is None or pad.params["mode"] != "constant" or pad.params["value"] != 0:
        return None
    pairs, params = pad.params["pairs"], op.params
    flat = [n for pair in pairs for n in pair]
    if not all(isinstance(n, int) and n >= 0 for n in flat) or any(flat[:4]):
        return None
    if any(d != 1 for d in params["input_dilation"]):
        return None
    padding = tuple((a + p, b + q) for (a, b), (p, q) in zip(params["padding"], pairs[2:], strict=True))
    return F.op("conv", pad.operands[0], *op.arguments[1:], **{**params, "padding": padding})


# ----------------------------------------------------------------------------------------- matmul


def _draw_matmul(c: Chooser) -> tuple[OperandSample, Array]:
    dt = c.choice(_FULL)
    k, n = c.integer(1, 6), c.integer(1, 5)
    x = OperandSample((*(c.integer(0, 3) for _ in range(c.integer(1, 2))), k), dt, "moderate")
    return x, _random(c, (k, n)).astype(dt.numpy)


def _column_constant(c: Chooser, weight: Array) -> Array:
    return _random(c, c.choice(((), (weight.shape[1],), (1, weight.shape[1])))).astype(weight.dtype)


def _scaled_matmul(c: Chooser) -> Case:
    x, weight = _draw_matmul(c)
    name, factor = c.choice(("multiply", "divide")), _column_constant(c, weight)
    bias = _column_constant(c, weight) if c.boolean() else None

    def build(F: Builder[SSAValue], v: SSAValue) -> SSAValue:
        y = F.matmul(v, F.constant(weight))
        y = y if bias is None else F.add(y, F.constant(bias))
        return F.op(name, y, F.constant(factor))

    return Case(build, (x,))


@rule("multiply", "divide", name="scale-into-matmul", kind="contracts", example=_scaled_matmul, domain="floats")
def scale_into_matmul(F: Rewriter, op: TensorOp) -> Replacement:
    "(x @ w + b) * c -> x @ (w * c) + b * c for constants w, b and c, c by column; without b and with / c too"
    found = _split(F, op, "matmul", "add")
    if found is None:
        return None
    inner, a, first = found
    bias: Array | None = None
    if inner.record.name == "add":
        below = _split(F, inner, "matmul")
        if below is None:
            return None
        inner, bias, _ = below
    weight, factor = F.array(inner.operands[1]), _factor(op, a, first)
    if weight is None or factor is None or weight.ndim != 2 or not _may_copy(inner.operands[1]):
        return None
    if not _is_full(inner.results[0]):
        return None
    rank = aval_of(inner.results[0]).rank
    scale = _along(factor, rank, rank - 1, weight.shape[1])
    if scale is None:
        return None
    new_weight = _scaled(weight, scale)
    if new_weight is None:
        return None
    scaled = F.derived(new_weight, F.origin("multiply", inner.operands[1], scale))
    if bias is None:
        return F.matmul(inner.operands[0], scaled)
    offset = _along(bias, rank, rank - 1, weight.shape[1])
    new_bias = None if offset is None else _scaled(offset, scale)
    if new_bias is None:
        return None
    return F.add(F.matmul(inner.operands[0], scaled), F.constant(new_bias))


def _swapped(rank: int) -> tuple[int, ...]:
    return (*range(rank - 2), rank - 1, rank - 2)


def _transposed_pair(c: Chooser) -> Case:
    m, k, n = c.integer(0, 4), c.integer(0, 4), c.integer(0, 4)
    batch = (c.integer(0, 3),) if c.boolean() else ()
    axes = _swapped(len(batch) + 2)
    return Case(
        lambda F, a, b: F.matmul(F.op("transpose", a, axes=axes), F.op("transpose", b, axes=axes)),
        (OperandSample((*batch, k, m), float32, "moderate"), OperandSample((*batch, n, k), float32, "moderate")),
    )


@rule("matmul", name="matmul-of-transposes", kind="reorders", example=_transposed_pair)
def matmul_of_transposes(F: Rewriter, op: TensorOp) -> Replacement:
    "transpose(a) @ transpose(b) -> transpose(b @ a), of the last two axes"
    a, b = (F.producer(o, "transpose") for o in op.operands)
    if a is None or b is None or a is b or not (F.single_use(op.operands[0]) and F.single_use(op.operands[1])):
        return None
    if any(t.params["axes"] != _swapped(len(t.params["axes"])) for t in (a, b)):
        return None
    product = F.matmul(b.operands[0], a.operands[0])
    return F.transpose(product, _swapped(aval_of(product).rank))


def _broadcast_weight(c: Chooser) -> Case:
    batch, k, n = c.integer(0, 3), c.integer(1, 4), c.integer(1, 4)
    return Case(
        lambda F, a, b: F.matmul(a, F.op("broadcast_to", b, shape=(batch, k, n))),
        (OperandSample((batch, 2, k), float32, "moderate"), OperandSample((k, n), float32, "moderate")),
    )


@rule("matmul", name="matmul-of-broadcast", kind="reorders", example=_broadcast_weight)
def matmul_of_broadcast(F: Rewriter, op: TensorOp) -> Replacement:
    "a @ broadcast_to(b) -> a @ b where a alone has the batch axes of the result"
    want = aval_of(op.results[0])
    for k in (0, 1):
        inner = F.producer(op.operands[k], "broadcast_to")
        if inner is None:
            continue
        source, other = aval_of(inner.operands[0]), aval_of(op.operands[1 - k])
        if source.rank < 2 or source.shape[-2:] != aval_of(op.operands[k]).shape[-2:]:
            continue
        if other.rank != want.rank or other.shape[:-2] != want.shape[:-2]:
            continue
        given = list(op.operands)
        given[k] = inner.operands[0]
        return F.matmul(*given)
    return None


# ------------------------------------------------------------------------- projections that share an input

#: Readers of a merged projection's parts that take strided views; an element-wise reader would rather be an epilogue.
_READS_VIEWS = frozenset({"reshape", "transpose", "slice", "matmul", "scaled_dot_product_attention"})
_MAX_SIBLINGS = 16


@dataclass(frozen=True)
class _Projection:
    """One ``x @ w`` or ``x @ w + b``: the matmul, the op with its final result, and the constants."""

    matmul: TensorOp
    last: TensorOp
    weight: Array
    bias: Array | None


def _projection(op: Operation) -> _Projection | None:
    if not isinstance(op, TensorOp) or op.record.name != "matmul":
        return None
    weight = Rewriter.array(op.operands[1])
    if weight is None or weight.ndim != 2 or weight.size == 0:
        return None
    last, bias = op, None
    user = op.results[0].get_user_of_unique_use()
    if isinstance(user, TensorOp) and user.record.name == "add":
        other = user.operands[1] if user.operands[0] is op.results[0] else user.operands[0]
        a = Rewriter.array(other)
        rank = aval_of(op.results[0]).rank
        along = None if a is None else _along(a, rank, rank - 1, weight.shape[1])
        if along is not None:
            last, bias = user, along
    readers = [use.operation for use in last.results[0].uses]
    if not readers or not all(isinstance(r, TensorOp) and r.record.name in _READS_VIEWS for r in readers):
        return None
    return _Projection(op, last, weight, bias)


def _shared_input(c: Chooser) -> Case:
    k = c.integer(1, 5)
    x = OperandSample((c.integer(0, 3), c.integer(1, 3), k), float32, "moderate")
    weights = [_random(c, (k, c.integer(1, 4))).astype(np.float32) for _ in range(c.integer(2, 4))]
    biases = [_random(c, (w.shape[1],)).astype(np.float32) if c.boolean() else None for w in weights]

    def build(F: Builder[SSAValue], v: SSAValue) -> list[SSAValue]:
        out: list[SSAValue] = []
        for w, b in zip(weights, biases, strict=True):
            y = F.matmul(v, F.constant(w))
            y = y if b is None else F.add(y, F.constant(b))
            out.append(F.op("transpose", y, axes=(1, 0, 2)))
        return out

    return Case(build, (x,))


@rule("matmul", name="merge-projections", kind="reorders", example=_shared_input, domain="floats")
def merge_projections(F: Rewriter, op: TensorOp) -> Replacement:
    "x @ w1 + b1, x @ w2 + b2, ... -> slices of x @ concat(w) + concat(b), for constant w and b (query, key, value)"
    mine = _projection(op)
    if mine is None:
        return None
    x = op.operands[0]
    found: list[_Projection] = []
    for n, use in enumerate(x.uses):
        if n >= 4 * _MAX_SIBLINGS or len(found) == _MAX_SIBLINGS:
            break
        other = _projection(use.operation) if use.index == 0 else None
        if other is not None and other.matmul.parent is op.parent:
            found.append(other)
    if len(found) < 2 or all(p.matmul is not op for p in found):
        return None
    found.reverse()  # uses are listed last first
    # The merged product stands where its input is made, so that it comes before each of its readers.
    owner = x.owner
    F.before = owner.next_op if isinstance(owner, Operation) else F.block.first_op
    weights = F.origin("concat", *(p.matmul.operands[1] for p in found), axis=1)
    merged = F.matmul(x, F.derived(np.concatenate([p.weight for p in found], axis=1), weights))
    biased = merged
    if any(p.bias is not None for p in found):
        dt = mine.weight.dtype
        # x + -0.0 is x for every x.
        parts = [np.full(p.weight.shape[1], -0.0, dt) if p.bias is None else p.bias for p in found]
        biased = F.add(merged, F.constant(np.concatenate(parts)))
    shape = aval_of(merged).shape
    start, own = 0, None
    for p in found:
        size = p.weight.shape[1]
        starts = (*(0 for _ in shape[:-1]), start)
        sizes, steps = (*shape[:-1], size), (1,) * len(shape)
        part = F.op("slice", biased, starts=starts, sizes=sizes, steps=steps)
        if p.last is op:
            own = part
        else:
            F.replace(p.last, [part])
        if p.matmul is op and p.last is not op:
            own = F.op("slice", merged, starts=starts, sizes=sizes, steps=steps)  # dead once the sum is replaced
        start += size
    return own


CONTRACTIONS = RuleSet(
    "contractions",
    "the number of contractions, then that of element-wise and movement ops around them",
    (
        scale_into_conv, offset_into_conv, pad_into_conv, scale_into_matmul, matmul_of_transposes, matmul_of_broadcast,
        merge_projections,
    ),
)  # fmt: skip

__all__ = ["CONTRACTIONS"]
