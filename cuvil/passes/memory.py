"""Lifetimes of the host program's temporaries, and which outputs may take over an input's memory."""

from __future__ import annotations

from xdsl.ir import SSAValue

from cuvil.ir.binary import Slot
from cuvil.ir.kernel import (
    AllocOp,
    CallOp,
    CopyOp,
    KernelFunc,
    LoadOp,
    ProgramOp,
    StoreOp,
    TemplateOp,
    ViewOp,
    buffer_aval,
)
from cuvil.ir.kernel_program import MemoryLayout
from cuvil.symbolic import product


def in_place_pairs(kernel: KernelFunc) -> set[tuple[int, int]]:
    """(input, output) argument numbers where each element of the input is read only where the output is written.

    The loads of one row come before its stores in every kernel that lowering makes, so equal offsets suffice.
    """
    args = list(kernel.body.args)
    loads: dict[SSAValue, set[object]] = {}
    stores: dict[SSAValue, set[object]] = {}
    blocked: set[SSAValue] = set()
    for op in kernel.body.walk():
        if isinstance(op, LoadOp):
            loads.setdefault(op.operands[0], set()).add(op.params["index"])
        elif isinstance(op, StoreOp):
            stores.setdefault(op.operands[0], set()).add(op.params["index"])
        elif isinstance(op, TemplateOp):
            p = op.params
            blocked |= {args[p[k]] for k in ("a", "b", "x", "w") if k in p}
            if not op.regions:
                blocked |= set(args)
    pairs: set[tuple[int, int]] = set()
    for i, a in enumerate(args):
        if a not in loads or a in blocked or a in stores:
            continue
        for j, b in enumerate(args):
            same = buffer_aval(a) == buffer_aval(b) and loads[a] == stores.get(b) and len(loads[a]) == 1
            if same and b not in loads:
                pairs.add((i, j))
    return pairs


def plan_memory(host: ProgramOp, kernels: dict[str, KernelFunc]) -> MemoryLayout:
    """Lifetimes of the temporaries; an output takes over an input that dies with the call where that is safe."""
    root: dict[SSAValue, SSAValue] = {}
    first: dict[SSAValue, int] = {}
    last: dict[SSAValue, int] = {}
    allocs: list[SSAValue] = []
    calls: list[CallOp | CopyOp] = []
    for op in host.body.ops:
        if isinstance(op, AllocOp):
            root[op.results[0]] = op.results[0]
            allocs.append(op.results[0])
        elif isinstance(op, ViewOp):
            if op.operands[0] in root:
                root[op.results[0]] = root[op.operands[0]]
        elif isinstance(op, (CallOp, CopyOp)):
            t = len(calls)
            calls.append(op)
            for o in op.operands:
                if o in root:
                    first.setdefault(root[o], t)
                    last[root[o]] = t
    pairs = {name: in_place_pairs(k) for name, k in kernels.items()}
    took: dict[SSAValue, SSAValue] = {}

    def settled(v: SSAValue) -> SSAValue:
        while v in took:
            v = took[v]
        return v

    taken: set[SSAValue] = set()
    for t, call in enumerate(calls):
        if not isinstance(call, CallOp):
            continue
        operands = list(call.operands)
        for i, j in sorted(pairs[call.params["kernel"]]):
            a, b = operands[i], operands[j]
            if a not in root or b not in root:
                continue
            ra, rb = root[a], root[b]
            aliases = sum(1 for o in operands if o in root and settled(root[o]) is settled(ra))
            if last[ra] == t and first[rb] == t and rb not in took and ra not in taken and aliases == 1:
                took[rb] = settled(ra)
                taken.add(ra)
    spans: dict[SSAValue, list[int]] = {}
    for v in allocs:
        if v not in first:
            continue
        owner = settled(v)
        span = spans.setdefault(owner, [first[v], last[v]])
        span[0], span[1] = min(span[0], first[v]), max(span[1], last[v])
    order = {v: k for k, v in enumerate(spans)}
    slots = tuple(
        Slot(product(buffer_aval(v).shape) * buffer_aval(v).dtype.itemsize, a, b) for v, (a, b) in spans.items()
    )
    slot_of: dict[SSAValue, int] = {}
    for v, r in root.items():
        if settled(r) in order:
            slot_of[v] = order[settled(r)]
    return MemoryLayout(slots, slot_of)
