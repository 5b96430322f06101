"""The measure that every rewrite rule lowers: a weight for each op, by what it costs to run."""

from __future__ import annotations

from xdsl.dialects.func import FuncOp

from cuvil.ir.dialect import TensorOp

#: In tenths of an addition per element, roughly; only the order matters to rules.
_WEIGHTS: dict[str, int] = {
    "negative": 6, "positive": 6, "abs": 6, "cast": 8, "square": 9, "logical_not": 7, "bitwise_invert": 7,
    "bitwise_and": 9, "bitwise_or": 9, "bitwise_xor": 9, "bitwise_left_shift": 9, "bitwise_right_shift": 9,
    "divide": 14, "reciprocal": 12, "sqrt": 14, "rsqrt": 15, "clip": 12, "pow": 40, "floor_divide": 20,
    "remainder": 20, "fmod": 20, "isnan": 9,
    "exp": 30, "exp2": 30, "log": 30, "log2": 30, "tanh": 40, "sigmoid": 40, "erf": 40, "silu": 40, "gelu": 50,
    "reshape": 2, "broadcast_to": 1, "slice": 4, "flip": 4, "transpose": 5,
}  # fmt: skip
_CATEGORIES = {
    "elementwise": 10, "creation": 3, "reduction": 20, "contraction": 200, "movement": 6, "indexing": 12,
    "composite": 100, "sorting": 60, "control": 100,
}  # fmt: skip


def weight(op: TensorOp) -> int:
    """The weight of one op; a variadic one weighs more with each operand."""
    name = op.record.name
    return _WEIGHTS.get(name, _CATEGORIES[op.record.category]) + (2 * len(op.operands) if op.record.variadic else 0)


def total_weight(func: FuncOp) -> int:
    """The weight of all ops of a function; constants weigh nothing."""
    return sum(weight(op) for op in func.body.block.ops if isinstance(op, TensorOp))
