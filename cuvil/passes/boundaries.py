"""Says why kernels are apart: for each value that one writes and another reads, the first fact that parts them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from xdsl.dialects.func import FuncOp
from xdsl.ir import SSAValue

from cuvil.ir.dialect import FusionOp, TensorOp, YieldOp, aval_of
from cuvil.ops.record import Aval, ReduceBody, ScalarBody
from cuvil.passes.fusion import ANCHORS, MAX_INPUTS, MAX_OPS
from cuvil.passes.lowering.region import is_movement


@dataclass(frozen=True)
class Boundary:
    """A value in memory between two kernels, which are numbered as they run."""

    producer: int
    consumer: int
    value: Aval
    reason: str


def kernels_of(func: FuncOp) -> list[FusionOp]:
    """The kernels of a fused function, those of branches and loops where these stand."""
    return [op for op in func.body.block.walk() if isinstance(op, FusionOp)]


def boundaries(func: FuncOp) -> list[Boundary]:
    """The values between the kernels of a fused function, in the order in which they are read.

    Kernels are numbered as :func:`kernels_of` lists them. What goes into or out of a branch or a loop is in memory.
    """
    kernels = kernels_of(func)
    number = {k: i for i, k in enumerate(kernels)}
    reads = {k: {source: None for o in k.operands if (source := _writer(o)) is not None} for k in kernels}
    out: list[Boundary] = []
    for k in kernels:
        for position, operand in enumerate(k.operands):
            source = _writer(operand)
            if source is not None:
                reason = _reason(source, k, position, reads)
                out.append(Boundary(number[source], number[k], aval_of(operand), reason))
    return out


def _writer(value: SSAValue) -> FusionOp | None:
    """The kernel that writes a value's memory, seen through reshapes."""
    owner = value.owner
    while isinstance(owner, TensorOp) and owner.operands:
        owner = owner.operands[0].owner
    return owner if isinstance(owner, FusionOp) else None


def _ops(kernel: FusionOp) -> list[TensorOp]:
    return [op for op in kernel.body.ops if isinstance(op, TensorOp)]


def _reduced(kernel: FusionOp) -> tuple[int, ...] | None:
    for op in _ops(kernel):
        if isinstance(op.record.body, ReduceBody):
            return tuple(op.params["axes"])
    return None


def _loops(kernel: FusionOp) -> tuple[str, tuple[object, ...]]:
    """The shape that a loop kernel runs over: that of its first reduction's operand, or of its largest result."""
    for op in _ops(kernel):
        if isinstance(op.record.body, ReduceBody):
            shape = aval_of(op.operands[0]).shape
            return "x".join(map(str, shape)) or "one element", shape
    last = kernel.body.last_op
    assert isinstance(last, YieldOp)
    shape = aval_of(last.operands[0]).shape
    return "x".join(map(str, shape)) or "one element", shape


def _movement_between(kernel: FusionOp, position: int) -> list[str]:
    """Names of the movement ops through which a kernel reads an operand."""
    names: dict[str, None] = {}
    stack: list[SSAValue] = [kernel.body.args[position]]
    while stack:
        value = stack.pop()
        for use in value.uses:
            op = use.operation
            if isinstance(op, TensorOp) and is_movement(op.record) and op.record.name != "broadcast_to":
                names[op.record.name] = None
                stack.extend(op.results)
    return list(names)


def _reason(producer: FusionOp, consumer: FusionOp, position: int, reads: dict[FusionOp, dict[FusionOp, None]]) -> str:
    if consumer.kind != "loop":
        if producer.kind != "loop":
            return f"{consumer.kind} and {producer.kind} are kernels of their own"
        return f"{consumer.kind} reads its operands from memory; only what follows it joins it"
    if producer.kind != "loop" and producer.kind not in ANCHORS:
        return f"{producer.kind} is a kernel of its own: nothing joins it"
    moved = _movement_between(consumer, position)
    if moved:
        return f"it is read through {', '.join(moved)}: elements of other places than the one being written"
    if any(not isinstance(op.record.body, ScalarBody) and not is_movement(op.record) for op in _ops(consumer)) and (
        producer.kind in ANCHORS
    ):
        what = "a reduction" if _reduced(consumer) is not None else "an op that reads at computed places"
        return f"{producer.kind} takes element-wise ops only, and what reads it has {what}"
    (_, made), (reader, read) = _loops(producer), _loops(consumer)
    first, second = _reduced(producer), _reduced(consumer)
    if first is not None and second is not None and first != second:
        return f"one reduces over axes {list(first)}, the other over axes {list(second)}"
    if made != read:
        return f"their loops differ: {_loops(producer)[0]} and {reader}"
    if _between(producer, consumer, reads):
        return "a kernel between them reads the one and is read by the other"
    if len(_ops(producer)) + len(_ops(consumer)) > MAX_OPS:
        return f"together they have more than {MAX_OPS} ops"
    if len(producer.operands) + len(consumer.operands) > MAX_INPUTS:
        return f"together they read more than {MAX_INPUTS} arrays"
    if producer.kind in ANCHORS:
        return f"the result of {producer.kind} is read in another shape than it is written in"
    return "the value is complete only when the loop before has ended"


def _between(producer: FusionOp, consumer: FusionOp, reads: dict[FusionOp, dict[FusionOp, None]]) -> bool:
    """Whether a way from one kernel to the other leads through a third."""
    seen: set[FusionOp] = set()
    stack = [k for k in reads[consumer] if k is not producer]
    while stack:
        k = stack.pop()
        if k in seen:
            continue
        seen.add(k)
        if producer in reads[k]:
            return True
        stack.extend(reads[k])
    return False


def members(kernel: FusionOp) -> Iterator[TensorOp]:
    """The ops that a kernel computes, without movement that it reads through."""
    return (op for op in _ops(kernel) if not is_movement(op.record))


__all__ = ["Boundary", "boundaries", "kernels_of", "members"]
