"""Replaces composite ops by their decompositions, so that fusion sees element-wise ops, reductions and movement."""

from __future__ import annotations

from collections.abc import Callable

from xdsl.dialects.func import FuncOp
from xdsl.ir import Block, Operation

from cuvil.dtypes import float32
from cuvil.ir.builder import IRBuilder
from cuvil.ir.control import blocks_of
from cuvil.ir.dialect import TensorOp, aval_of
from cuvil.ops.record import Decomposition, Opaque, Shape
from cuvil.support.errors import PassError

_DEPTH = 16  # composites of composites; deeper means a decomposition that contains itself


def widen_halves(func: FuncOp, kernels: frozenset[str]) -> int:
    """Compute opaque kernels that exist for float32 and float64 only in float32 where they are given halves."""
    return sum(_widen_halves(block, kernels) for block in blocks_of(func))


def _widen_halves(block: Block, kernels: frozenset[str]) -> int:
    count = 0
    for op in list(block.ops):
        if not isinstance(op, TensorOp) or not isinstance(op.record.body, Opaque):
            continue
        if op.record.body.kernel not in kernels or not any(aval_of(o).dtype.is_half for o in op.operands):
            continue
        builder = IRBuilder(block, before=op, location=op.location)
        operands = [a if a is None or not aval_of(a).dtype.is_half else builder.cast(a, float32) for a in op.arguments]
        results = builder.emit(op.record.name, operands, op.params)
        for old, new in zip(op.results, results, strict=True):
            old.replace_all_uses_with(builder.cast(new, aval_of(old).dtype))
        op.detach()
        op.erase()
        count += 1
    return count


def broadcast_updates(func: FuncOp) -> int:
    """Give every scatter updates of the full shape (or a single element), which is what kernels read."""
    return sum(_broadcast_updates(block) for block in blocks_of(func))


def _broadcast_updates(block: Block) -> int:
    count = 0
    for op in list(block.ops):
        if not isinstance(op, TensorOp) or op.record.name != "scatter":
            continue
        x, updates, *indices = op.operands
        shape: Shape = ()
        for i in indices:
            shape = broadcast_shapes(shape, aval_of(i).shape)
        want = (*shape, *aval_of(x).shape[len(indices) :])
        got = aval_of(updates).shape
        if got == want or all(n == 1 for n in got):
            continue
        builder = IRBuilder(block, before=op, location=op.location)
        op.operands[1] = builder.broadcast_to(updates, want)
        count += 1
    return count


def broadcast_shapes(a: Shape, b: Shape) -> Shape:
    """The broadcast shape of two shapes that are known to fit."""
    n = max(len(a), len(b))
    left, right = (1,) * (n - len(a)) + a, (1,) * (n - len(b)) + b
    return tuple(y if x == 1 else x for x, y in zip(left, right, strict=True))


def decompose(func: FuncOp, keep: Callable[[TensorOp], bool] = lambda _: False) -> int:
    """Expand every op whose body is a :class:`Decomposition`; returns how many were expanded.

    ``keep(op)`` may hold an op whole; an opaque op for which it is False and that carries an alternative
    decomposition is expanded too.
    """
    return sum(_decompose(block, keep) for block in blocks_of(func))


def _decompose(block: Block, keep: Callable[[TensorOp], bool]) -> int:
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
