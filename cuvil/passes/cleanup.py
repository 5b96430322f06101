"""Dead code elimination and common subexpression elimination, block by block."""

from __future__ import annotations

from collections.abc import Hashable

from xdsl.dialects.func import FuncOp
from xdsl.ir import Block, Operation, SSAValue

from cuvil.ir.control import ControlOp, blocks_of, blocks_within, has_checks
from cuvil.ir.dialect import ConstantOp, FusionOp, TensorOp


def eliminate_dead_code(func: FuncOp) -> int:
    """Erase ops whose results nobody reads; returns how many."""
    erased = 0
    for block in blocks_within(func.body.block):  # looks into an op only after its own block was cleaned
        for op in reversed(list(block.ops)):
            if _removable(op) and not any(r.first_use for r in op.results):
                op.detach()
                op.erase()
                erased += 1
    return erased


def _removable(op: Operation) -> bool:
    return isinstance(op, (TensorOp, ConstantOp, FusionOp)) or (isinstance(op, ControlOp) and not has_checks(op))


def eliminate_common_subexpressions(func: FuncOp) -> int:
    """Let equal ops on equal operands of one block be computed once; returns how many went away."""
    return sum(_merge_equal(block) for block in blocks_of(func))


def _merge_equal(block: Block) -> int:
    seen: dict[Hashable, Operation] = {}
    replaced = 0
    for op in list(block.ops):
        key = _key(op)
        if key is None:
            continue
        first = seen.get(key)
        if first is None:
            seen[key] = op
            continue
        for old, new in zip(op.results, first.results, strict=True):
            old.replace_all_uses_with(new)
        op.detach()
        op.erase()
        replaced += 1
    return replaced


def _key(op: Operation) -> Hashable | None:
    if isinstance(op, ConstantOp):
        # Large arrays are compared by identity first; equal digests make equal keys.
        return ("constant", op.constant)
    if not isinstance(op, TensorOp):
        return None
    operands: tuple[SSAValue, ...] = tuple(op.operands)
    if "commutative" in op.record.traits and len(operands) == 2:
        operands = tuple(sorted(operands, key=id))
    return (op.name, operands, op.params_attr.key, op.present)
