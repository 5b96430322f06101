"""Rules on transpose, reshape and broadcast_to, and on element-wise ops between them."""

from __future__ import annotations

from xdsl.ir import SSAValue

from cuvil.dtypes import float32
from cuvil.ir.dialect import TensorOp, aval_of
from cuvil.ops.drawing import draw_broadcastable, draw_dtype, draw_permutation, draw_shape
from cuvil.ops.record import Chooser, OperandSample, ScalarBody, Shape
from cuvil.passes.engine import Case, Replacement, Rewriter, RuleSet, rule

_UNARY = ("negative", "abs", "sqrt", "relu")
_BINARY = ("add", "multiply", "maximum")
#: Roots of the rules on element-wise ops of two operands.
_PAIRWISE = ("add", "subtract", "multiply", "divide", "minimum", "maximum", "pow", "equal", "less", "greater")


def _sample(c: Chooser, low: int = 0, high: int = 4) -> OperandSample:
    return OperandSample(draw_shape(c, low, high), draw_dtype(c))


def _is_elementwise(op: TensorOp) -> bool:
    return isinstance(op.record.body, ScalarBody)


# ------------------------------------------------------------------------------------- transpose


def _identity_transpose(c: Chooser) -> Case:
    x = _sample(c)
    return Case(lambda F, v: F.op("transpose", v, axes=tuple(range(len(x.shape)))), (x,))


@rule("transpose", name="transpose-identity", example=_identity_transpose)
def transpose_identity(F: Rewriter, op: TensorOp) -> Replacement:
    "transpose(x, (0, 1, ...)) -> x"
    axes = op.params["axes"]
    return op.operands[0] if axes == tuple(range(len(axes))) else None


def _transpose_pair(c: Chooser) -> Case:
    x = _sample(c)
    p, q = draw_permutation(c, len(x.shape)), draw_permutation(c, len(x.shape))
    return Case(lambda F, v: F.op("transpose", F.op("transpose", v, axes=p), axes=q), (x,))


@rule("transpose", name="transpose-of-transpose", example=_transpose_pair)
def transpose_of_transpose(F: Rewriter, op: TensorOp) -> Replacement:
    "transpose(transpose(x, p), q) -> transpose(x, p[q]), or x"
    inner = F.producer(op.operands[0], "transpose")
    if inner is None:
        return None
    first = inner.params["axes"]
    return F.transpose(inner.operands[0], tuple(first[a] for a in op.params["axes"]))


def _unit_transpose(c: Chooser) -> Case:
    x = OperandSample((1, c.integer(0, 4), 1, c.integer(0, 4)), draw_dtype(c))
    axes = c.choice(((1, 0, 2, 3), (0, 2, 1, 3), (1, 3, 0, 2), (2, 1, 0, 3)))
    return Case(lambda F, v: F.op("transpose", v, axes=axes), (x,))


@rule("transpose", name="transpose-unit-axes", example=_unit_transpose)
def transpose_unit_axes(F: Rewriter, op: TensorOp) -> Replacement:
    "transpose(x, p) that moves only axes of size 1 past others -> reshape(x)"
    shape = aval_of(op.operands[0]).shape
    axes = op.params["axes"]
    wide = [a for a in axes if shape[a] != 1]
    if wide != sorted(wide) or axes == tuple(range(len(axes))):
        return None
    return F.op("reshape", op.operands[0], shape=aval_of(op.results[0]).shape)


def _between_transposes(c: Chooser) -> Case:
    x = OperandSample(draw_shape(c, 2, 4), float32)
    rank = len(x.shape)
    p, q = draw_permutation(c, rank), draw_permutation(c, rank)
    name = c.choice(_UNARY)
    return Case(lambda F, v: F.op("transpose", F.op(name, F.op("transpose", v, axes=p)), axes=q), (x,))


@rule("transpose", name="transpose-through-unary", example=_between_transposes)
def transpose_through_unary(F: Rewriter, op: TensorOp) -> Replacement:
    "transpose(f(transpose(x, p)), q) -> f(transpose(x, p[q])) for an element-wise f of one operand"
    middle = F.producer(op.operands[0])
    if middle is None or not _is_elementwise(middle) or len(middle.operands) != 1 or not F.single_use(op.operands[0]):
        return None
    inner = F.producer(middle.operands[0], "transpose")
    if inner is None or not F.single_use(middle.operands[0]):
        return None
    first = inner.params["axes"]
    moved = F.transpose(inner.operands[0], tuple(first[a] for a in op.params["axes"]))
    return F.op(middle.record.name, moved, **middle.params)


def _two_transposes(c: Chooser) -> Case:
    shape = draw_shape(c, 2, 4)
    p = draw_permutation(c, len(shape))
    name = c.choice(_BINARY)
    return Case(
        lambda F, v, w: F.op(name, F.op("transpose", v, axes=p), F.op("transpose", w, axes=p)),
        (OperandSample(shape, float32), OperandSample(shape, float32)),
    )


@rule(*_PAIRWISE, name="binary-of-transposes", example=_two_transposes)
def binary_of_transposes(F: Rewriter, op: TensorOp) -> Replacement:
    "f(transpose(x, p), transpose(y, p)) -> transpose(f(x, y), p)"
    a, b = (F.producer(o, "transpose") for o in op.operands)
    if a is None or b is None or a is b or a.params["axes"] != b.params["axes"]:
        return None
    x, y = a.operands[0], b.operands[0]
    if aval_of(x).shape != aval_of(y).shape or not (F.single_use(op.operands[0]) and F.single_use(op.operands[1])):
        return None
    return F.op("transpose", F.op(op.record.name, x, y), axes=a.params["axes"])


# --------------------------------------------------------------------------------------- reshape


def _draw_reshape(c: Chooser, shape: tuple[int, ...]) -> tuple[int, ...]:
    flat = 1
    for d in shape:
        flat *= d
    options = [(flat,), (1, flat), (flat, 1), tuple(reversed(shape)), (*shape, 1)]
    return c.choice(options)


def _identity_reshape(c: Chooser) -> Case:
    x = _sample(c)
    return Case(lambda F, v: F.op("reshape", v, shape=x.shape), (x,))


@rule("reshape", name="reshape-identity", example=_identity_reshape)
def reshape_identity(F: Rewriter, op: TensorOp) -> Replacement:
    "reshape(x, shape of x) -> x"
    return op.operands[0] if aval_of(op.operands[0]).shape == aval_of(op.results[0]).shape else None


def _reshape_pair(c: Chooser) -> Case:
    x = _sample(c)
    first = _draw_reshape(c, x.shape)
    second = _draw_reshape(c, x.shape)
    return Case(lambda F, v: F.op("reshape", F.op("reshape", v, shape=first), shape=second), (x,))


@rule("reshape", name="reshape-of-reshape", example=_reshape_pair)
def reshape_of_reshape(F: Rewriter, op: TensorOp) -> Replacement:
    "reshape(reshape(x)) -> reshape(x), or x"
    inner = F.producer(op.operands[0], "reshape")
    return None if inner is None else F.reshape(inner.operands[0], aval_of(op.results[0]).shape)


def _between_reshapes(c: Chooser) -> Case:
    x = OperandSample(draw_shape(c, 1, 3), float32)
    first, second, name = _draw_reshape(c, x.shape), _draw_reshape(c, x.shape), c.choice(_UNARY)
    return Case(lambda F, v: F.op("reshape", F.op(name, F.op("reshape", v, shape=first)), shape=second), (x,))


@rule("reshape", name="reshape-through-unary", example=_between_reshapes)
def reshape_through_unary(F: Rewriter, op: TensorOp) -> Replacement:
    "reshape(f(reshape(x))) -> f(reshape(x)) for an element-wise f of one operand"
    middle = F.producer(op.operands[0])
    if middle is None or not _is_elementwise(middle) or len(middle.operands) != 1 or not F.single_use(op.operands[0]):
        return None
    inner = F.producer(middle.operands[0], "reshape")
    if inner is None or not F.single_use(middle.operands[0]):
        return None
    moved = F.reshape(inner.operands[0], aval_of(op.results[0]).shape)
    return F.op(middle.record.name, moved, **middle.params)


# ---------------------------------------------------------------------------------- broadcast_to


def _identity_broadcast(c: Chooser) -> Case:
    x = _sample(c)
    return Case(lambda F, v: F.op("broadcast_to", v, shape=x.shape), (x,))


@rule("broadcast_to", name="broadcast-identity", example=_identity_broadcast)
def broadcast_identity(F: Rewriter, op: TensorOp) -> Replacement:
    "broadcast_to(x, shape of x) -> x"
    return op.operands[0] if aval_of(op.operands[0]).shape == aval_of(op.results[0]).shape else None


def _broadcast_pair(c: Chooser) -> Case:
    last = draw_shape(c, 1, 4)
    middle = draw_broadcastable(c, last)
    x = OperandSample(draw_broadcastable(c, middle), draw_dtype(c))
    return Case(lambda F, v: F.op("broadcast_to", F.op("broadcast_to", v, shape=middle), shape=last), (x,))


@rule("broadcast_to", name="broadcast-of-broadcast", example=_broadcast_pair)
def broadcast_of_broadcast(F: Rewriter, op: TensorOp) -> Replacement:
    "broadcast_to(broadcast_to(x, s), t) -> broadcast_to(x, t)"
    inner = F.producer(op.operands[0], "broadcast_to")
    return None if inner is None else F.broadcast_to(inner.operands[0], aval_of(op.results[0]).shape)


def _broadcast_reshape(c: Chooser) -> Case:
    inner = draw_shape(c, 0, 3)
    outer = (*draw_shape(c, 0, 2), *inner)
    shape = (*(1 for _ in range(c.integer(1, 2))), *inner)
    x = OperandSample(inner, draw_dtype(c))
    out = outer if len(outer) >= len(shape) else (*(2 for _ in range(len(shape) - len(inner))), *inner)
    return Case(lambda F, v: F.op("broadcast_to", F.op("reshape", v, shape=shape), shape=out), (x,))


@rule("broadcast_to", name="broadcast-of-leading-units", example=_broadcast_reshape)
def broadcast_of_leading_units(F: Rewriter, op: TensorOp) -> Replacement:
    "broadcast_to(reshape(x, (1, ..., *shape of x)), t) -> broadcast_to(x, t)"
    inner = F.producer(op.operands[0], "reshape")
    if inner is None:
        return None
    have, made = aval_of(inner.operands[0]).shape, aval_of(inner.results[0]).shape
    lead = len(made) - len(have)
    if lead < 0 or made != (*(1 for _ in range(lead)), *have):
        return None
    return F.broadcast_to(inner.operands[0], aval_of(op.results[0]).shape)


def _broadcast_operand(c: Chooser) -> Case:
    shape = draw_shape(c, 1, 4)
    x = OperandSample(draw_broadcastable(c, shape), float32)
    name, swap = c.choice(_BINARY), c.boolean()

    def build(F: Rewriter, v: SSAValue, w: SSAValue) -> SSAValue:
        wide = F.op("broadcast_to", v, shape=shape)
        return F.op(name, w, wide) if swap else F.op(name, wide, w)

    return Case(build, (x, OperandSample(shape, float32)))


@rule(*_PAIRWISE, "where", name="elementwise-of-broadcast", example=_broadcast_operand)
def elementwise_of_broadcast(F: Rewriter, op: TensorOp) -> Replacement:
    "f(broadcast_to(x, s), y) -> f(x, y) where y alone has the result's shape"
    want = aval_of(op.results[0]).shape
    inners = [F.producer(o, "broadcast_to") for o in op.operands]
    if not any(inners):
        return None
    if not any(i is None and aval_of(o).shape == want for i, o in zip(inners, op.operands, strict=True)):
        return None
    given: list[SSAValue] = []
    for inner, o in zip(inners, op.operands, strict=True):
        given.append(inner.operands[0] if inner is not None and _aligns(aval_of(inner.operands[0]).shape, want) else o)
    if all(a is b for a, b in zip(given, op.operands, strict=True)):
        return None
    return F.op(op.record.name, *given, **op.params)


def _aligns(shape: Shape, want: Shape) -> bool:
    """Whether implicit broadcasting against ``want`` does what broadcast_to did."""
    return len(shape) <= len(want) and all(
        d in (1, w) for d, w in zip(shape, want[len(want) - len(shape) :], strict=True)
    )


LAYOUT = RuleSet(
    "layout",
    "the number of movement ops, a reshape weighing less than a transpose",
    (
        transpose_identity, transpose_of_transpose, transpose_unit_axes, transpose_through_unary, binary_of_transposes,
        reshape_identity, reshape_of_reshape, reshape_through_unary,
        broadcast_identity, broadcast_of_broadcast, broadcast_of_leading_units, elementwise_of_broadcast,
    ),
)  # fmt: skip

__all__ = ["LAYOUT"]
