"""Lifetimes of the host program's temporaries, and which outputs may take over an input's memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from xdsl.ir import Block, Operation, SSAValue

from cuvil.ir.binary import Slot
from cuvil.ir.kernel import (
    HOST_LOOPS,
    AllocOp,
    CallOp,
    ConstBufferOp,
    CopyOp,
    HostSwitchOp,
    HostWhileOp,
    KernelFunc,
    LoadOp,
    PackOp,
    ProgramOp,
    PutOp,
    RepeatOp,
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
    pairs: set[tuple[int, int]] = set()
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
            if p["kind"] == "scatter":  # copies what it updates unless it is given one memory for both
                source, *others = p["operands"]
                if source not in others:
                    pairs |= {(source, j) for j in kernel.params.get("outputs", ())}
    for i, a in enumerate(args):
        if a not in loads or a in blocked or a in stores:
            continue
        for j, b in enumerate(args):
            same = buffer_aval(a) == buffer_aval(b) and loads[a] == stores.get(b) and len(loads[a]) == 1
            if same and b not in loads:
                pairs.add((i, j))
    return pairs


class _Lifetimes:
    """One walk over the host program: which memory each buffer may be, and when it is touched.

    What a loop touches and did not make itself lives for all of the loop; what it makes lives within one iteration.
    """

    def __init__(self) -> None:
        self.roots: dict[SSAValue, tuple[SSAValue, ...]] = {}
        self.first: dict[SSAValue, int] = {}
        self.last: dict[SSAValue, int] = {}
        self.allocs: list[SSAValue] = []
        self.calls: dict[int, CallOp] = {}
        self._time = 0
        self._depth: dict[SSAValue, int] = {}
        self._touched: list[set[SSAValue]] = []  # by the loops around, outer ones first

    def walk(self, block: Block) -> None:
        """Look at a block's ops in order."""
        for op in block.ops:
            if isinstance(op, AllocOp):
                buffer = op.results[0]
                self.roots[buffer] = (buffer,)
                self._depth[buffer] = len(self._touched)
                self.allocs.append(buffer)
            elif isinstance(op, ViewOp):
                self.roots[op.results[0]] = self.roots.get(op.operands[0], ())
            elif isinstance(op, HOST_LOOPS):
                self._loop(op)
            elif not isinstance(op, (ConstBufferOp, PackOp)):
                if isinstance(op, CallOp):
                    self.calls[self._time] = op
                self._touch(op.operands)
                if isinstance(op, HostSwitchOp):
                    for region in op.regions:
                        self.walk(region.block)

    def _touch(self, values: Iterable[SSAValue]) -> None:
        for value in values:
            for root in self.roots.get(value, ()):
                self.first.setdefault(root, self._time)
                self.last[root] = self._time
                for touched in self._touched[self._depth[root] :]:
                    touched.add(root)
        self._time += 1

    def _loop(self, op: RepeatOp | HostWhileOp) -> None:
        begin = self._time
        self._touch(op.operands)
        self._touched.append(set())
        for region in op.regions:
            self.walk(region.block)
        touched = self._touched.pop()
        self._touch(op.operands)
        for root in touched:
            self.first[root] = min(self.first[root], begin)
            self.last[root] = self._time - 1
        for result, buffers in zip(op.results, op.carried, strict=True):
            self.roots[result] = tuple(dict.fromkeys(r for b in buffers for r in self.roots.get(b, ())))


def plan_memory(host: ProgramOp, kernels: dict[str, KernelFunc]) -> MemoryLayout:
    """Lifetimes of the temporaries; an output takes over an input that dies with the call where that is safe."""
    found = _Lifetimes()
    found.walk(host.body)
    first, last = found.first, found.last
    pairs = {name: in_place_pairs(k) for name, k in kernels.items()}
    took: dict[SSAValue, SSAValue] = {}

    def settled(v: SSAValue) -> SSAValue:
        while v in took:
            v = took[v]
        return v

    taken: set[SSAValue] = set()
    for t, call in found.calls.items():
        operands = [found.roots.get(o, ()) for o in call.operands]
        for i, j in sorted(pairs[call.params["kernel"]]):
            if len(operands[i]) != 1 or len(operands[j]) != 1:
                continue
            ra, rb = operands[i][0], operands[j][0]
            aliases = sum(1 for roots in operands if any(settled(r) is settled(ra) for r in roots))
            if last[ra] == t and first[rb] == t and rb not in took and ra not in taken and aliases == 1:
                took[rb] = settled(ra)
                taken.add(ra)
    spans: dict[SSAValue, list[int]] = {}
    for v in found.allocs:
        if v not in first:
            continue
        owner = settled(v)
        span = spans.setdefault(owner, [first[v], last[v]])
        span[0], span[1] = min(span[0], first[v]), max(span[1], last[v])
    order = {v: k for k, v in enumerate(spans)}
    slots = tuple(
        Slot(product(buffer_aval(v).shape) * buffer_aval(v).dtype.itemsize, a, b) for v, (a, b) in spans.items()
    )
    return MemoryLayout(slots, {v: order[settled(v)] for v in found.allocs if settled(v) in order})


# ------------------------------------------------------------------------------------ carried values in place


def updates_in_place(
    body: Block, current: SSAValue, following: SSAValue, pairs: Mapping[str, set[tuple[int, int]]]
) -> bool:
    """Whether a loop's body may write a carried value's next state over the current one.

    That is so where the op that writes it first reads the current state only where it writes, and nothing reads the
    current state after it. ``pairs`` are the kernels' :func:`in_place_pairs`.
    """
    return _may_overwrite(body, {current}, {following}, pairs)


def _may_overwrite(
    block: Block, current: set[SSAValue], following: set[SSAValue], pairs: Mapping[str, set[tuple[int, int]]]
) -> bool:
    old, new = set(current), set(following)
    written = False
    for op in block.ops:
        if isinstance(op, ViewOp):
            for names in (old, new):
                if op.operands[0] in names:
                    names.add(op.results[0])
            continue
        touches_new = _touches(op, new)
        if written:
            if _touches(op, old):
                return False
        elif touches_new:
            written = True
            if isinstance(op, CallOp):
                reads = [i for i, o in enumerate(op.operands) if o in old]
                writes = [j for j, o in enumerate(op.operands) if o in new]
                if len(writes) != 1 or len(reads) > 1:
                    return False
                if reads and (reads[0], writes[0]) not in pairs[op.params["kernel"]]:
                    return False
            elif isinstance(op, HostSwitchOp):
                if not all(_may_overwrite(r.block, old, new, pairs) for r in op.regions):
                    return False
            elif not isinstance(op, (CopyOp, PutOp)):
                return False
        if isinstance(op, HOST_LOOPS):
            for result, buffers in zip(op.results, op.carried, strict=True):
                for names in (old, new):
                    if any(b in names for b in buffers):
                        names.add(result)
    return written


def _touches(op: Operation, names: set[SSAValue]) -> bool:
    return any(o in names for inner in op.walk() for o in inner.operands)
