"""Replaces composite ops by their decompositions, so that fusion sees element-wise ops, reductions and movement."""

from __future__ import annotations

from collections.abc import Callable

from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation

from cuvil.ir.builder import IRBuilder
from cuvil.ir.dialect import TensorOp
from cuvil.ops.record import Decomposition, Opaque
from cuvil.support.errors import PassError

_DEPTH = 16  # composites of composites; deeper means a decomposition that contains itself


def decompose(func: FuncOp, keep: Callable[[TensorOp], bool] = lambda _: False) -> int:
    """Expand every op whose body is a :class:`Decomposition`; returns how many were expanded.

    ``keep(op)`` may hold an op whole; an opaque op for which it is False and that carries an alternative
    decomposition is expanded too.
    """
    block = func.body.block
    work: list[tuple[Operation, int]] = [(op, 0) for op in reversed(list(block.ops))]
    count = 0
    while work:
        op, depth = work.pop()
        if not isinstance(op, TensorOp):
            continue
        body = op.record.body
        expand = body.build if isinstance(body, Decomposition) else None
        if isinstance(body, Opaque) and body.decompose is not None:
            expand = body.decompose
        if expand is None or keep(op):
            continue
        if depth > _DEPTH:
            raise PassError(f"the decomposition of {op.name} does not end")
        builder = IRBuilder(block, before=op, location=op.location)
        made = expand(builder, *op.arguments, **op.params)
        results = made if isinstance(made, (tuple, list)) else (made,)
        for old, new in zip(op.results, results, strict=True):
            if new.name_hint is None:
                new.name_hint = old.name_hint
            old.replace_all_uses_with(new)
        op.detach()
        op.erase()
        count += 1
        work.extend((o, depth + 1) for o in reversed(builder.inserted))
    return count
