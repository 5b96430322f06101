"""Groups ops into kernels: element-wise chains, reductions of one shape, and epilogues of contractions.

The pass walks the function once in order. Each op joins the group of one of its operands where that is legal,
merges the groups of several operands, or starts a new one. Movement ops join nothing: each group that reads through
them gets its own copy and turns it into index arithmetic. A group's legality is a matter of three facts: its loops
(``full`` shape and reduced axes), the axis of those loops that each dimension of a member stands for, and the
groups it depends on, kept as bit sets so that no merge makes a cycle.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice

from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Block, Operation, SSAValue

from cuvil.ir.control import CheckOp, ControlOp, YieldOp, blocks_of
from cuvil.ir.dialect import ConstantOp, FusionOp, TensorOp, aval_of
from cuvil.ops.record import IndexBody, IndexMap, Opaque, ReduceBody, ScalarBody, Shape
from cuvil.ops.reshaping import ALIASES
from cuvil.passes.lowering.region import INDIRECT
from cuvil.passes.lowering.views import strided_view
from cuvil.support.errors import PassError
from cuvil.symbolic import Scope

#: Largest group: bounds the size of one kernel's source and its register pressure.
MAX_OPS = 160
MAX_INPUTS = 40
#: Uses of a value among which a reduction looks for one to run beside: a bound, so that fan-out costs linear time.
_USES = 64

_VIEWS = frozenset({"transpose", "slice", "broadcast_to", "reshape", "flip", "window", "as_parts"})
#: Contractions whose results can go through an epilogue before they are stored.
ANCHORS = frozenset({"matmul", "conv", "conv_channels_last", "conv_winograd"})
#: Control flow runs in the host program: it reads and writes memory, and no kernel reaches into it.
_HOST = "host"
_WHOLE = frozenset({"library", "attention", _HOST})
#: Operands that may be strided views, by anchor; every other operand is contiguous.
_STRIDED = {"matmul": (0, 1), "conv": (), "attention": (0, 1, 2, 3)}

AxisMap = tuple[int | None, ...]


@dataclass
class Group:
    """A kernel in the making."""

    number: int
    kind: str
    full: Shape
    reduced: frozenset[int] | None = None
    ops: list[TensorOp] = field(default_factory=list[TensorOp])
    host: Operation | None = None  # the one op of the host program that this stands for
    axes: dict[SSAValue, AxisMap] = field(default_factory=dict[SSAValue, AxisMap])
    depends: int = 0
    merged_into: Group | None = None
    why: list[str] = field(default_factory=list[str])

    def __post_init__(self) -> None:
        self.bit = 1 << self.number

    @property
    def members(self) -> Sequence[Operation]:
        """The group's ops."""
        return self.ops if self.host is None else (self.host,)


class Fusion:
    """One run over one block: a function's, or a region's of its control flow."""

    def __init__(self, block: Block, scope: Scope) -> None:
        self.block = block
        self.scope = scope
        self.groups: list[Group] = []
        self.depended = 0  # bits of the groups that any group depends on
        self.of: dict[Operation, Group] = {}
        self.position: dict[Operation, int] = {}
        self._buffers: dict[SSAValue, SSAValue] = {}

    # -------------------------------------------------------------------------------------- grouping
    def run(self) -> None:
        """Rewrite the block into constants, reshapes (aliases), fusions and control flow."""
        block = self.block
        for k, op in enumerate(block.ops):
            self.position[op] = k
            if isinstance(op, TensorOp):
                self._place(op)
            elif isinstance(op, (ControlOp, CheckOp)):
                self._place_on_host(op)
        returned = block.last_op
        assert isinstance(returned, (ReturnOp, YieldOp))
        for k in range(len(returned.operands)):
            self._materialise(returned, k)
        self._rebuild(block, returned)

    def group_of(self, op: Operation) -> Group | None:
        """The group that an op is in now, merges followed."""
        g = self.of.get(op)
        while g is not None and g.merged_into is not None:
            g = g.merged_into
        return g

    def _place(self, op: TensorOp) -> None:
        body = op.record.body
        name = op.record.name
        if name == "transpose" and self._stores_transposed(op):
            return
        if _is_view(op) or isinstance(body, IndexBody) or (isinstance(body, Opaque) and body.kernel == "dim_value"):
            return  # copied into each reader
        if isinstance(body, ScalarBody):
            self._place_elementwise(op)
        elif isinstance(body, ReduceBody):
            self._place_reduction(op)
        elif isinstance(body, IndexMap) or (isinstance(body, Opaque) and body.kernel in INDIRECT):
            if isinstance(body, Opaque):
                self._ready_data(op)
            self._start(op, "loop", aval_of(op.results[0]).shape)
        elif isinstance(body, Opaque):
            kind = body.kernel if body.kernel in ANCHORS or body.kernel == "attention" else "library"
            strided = _STRIDED.get(kind, ())
            for k, o in enumerate(list(op.operands)):
                # The kernel reads a strided view in place; anything else is written to memory first.
                if k not in strided or not self._is_strided(o):
                    self._materialise(op, k)
            self._start(op, kind, aval_of(op.results[0]).shape)
        else:
            raise PassError(f"{op.name} must be decomposed before fusion")

    def _place_on_host(self, op: Operation) -> None:
        for k in range(len(op.operands)):
            self._materialise(op, k)
        g = Group(len(self.groups), _HOST, (), host=op)
        self.groups.append(g)
        self.of[op] = g
        self._depend(g, self._sources(op, g))

    def _stores_transposed(self, op: TensorOp) -> bool:
        """Whether a transpose went into the attention before it, which stores its result with any strides."""
        source = op.operands[0]
        g = self.group_of(source.owner) if isinstance(source.owner, Operation) else None
        if g is None or g.kind != "attention" or len(g.ops) != 1 or source.uses.get_length() != 1:
            return False
        self._add(g, op, ())
        return True

    def _start(self, op: TensorOp, kind: str, full: Shape, reduced: frozenset[int] | None = None) -> Group:
        g = Group(len(self.groups), kind, full, reduced)
        self.groups.append(g)
        self._add(g, op, tuple(range(len(full))) if reduced is None else ())
        return g

    def _add(self, g: Group, op: TensorOp, axes: AxisMap) -> None:
        g.ops.append(op)
        self.of[op] = g
        g.axes[op.results[0]] = axes
        self._depend(g, self._sources(op, g))

    def _sources(self, op: Operation, g: Group) -> int:
        """Groups that an op reads from, transitively."""
        bits = 0
        for o in op.operands:
            base = self.base(o)
            owner = self.group_of(base.owner) if isinstance(base.owner, Operation) else None
            if owner is not None and owner is not g:
                bits |= owner.bit | owner.depends
        return bits

    def _depend(self, g: Group, bits: int) -> None:
        self.depended |= bits
        if bits & ~g.depends:
            g.depends |= bits
            if self.depended & g.bit:  # else no group reads from g, directly or not
                for other in self.groups:
                    if other.depends & g.bit:
                        other.depends |= bits

    def base(self, value: SSAValue) -> SSAValue:
        """The value that a chain of movement copies starts from."""
        while True:
            owner = value.owner
            if not isinstance(owner, TensorOp) or owner in self.of or not _is_view(owner):
                return value
            value = owner.operands[0]

    # ------------------------------------------------------------------------------- element-wise ops
    def _place_elementwise(self, op: TensorOp) -> None:
        shape = aval_of(op.results[0]).shape
        target: Group | None = None
        for g in self._candidates(op):
            if target is None:
                if self._joinable(op, g, shape):
                    target = g
            elif g is not target and self._mergeable(target, g) and self._joinable(op, g, shape):
                self._merge(target, g)
        if target is None:
            self._start(op, "loop", shape)
            return
        axes = self._result_axes(target, shape)
        assert axes is not None
        target.why.append(op.record.name)
        self._add(target, op, axes)

    def _candidates(self, op: TensorOp) -> list[Group]:
        """Groups of the operands: contractions first, then reductions, then loops; the latest first."""
        found: dict[int, Group] = {}
        for o in op.operands:
            base = self._preserved(o)[0]
            if isinstance(base.owner, Operation) and (g := self.group_of(base.owner)) is not None:
                found[g.number] = g
        rank = {"loop": 2}
        return sorted(found.values(), key=lambda g: (rank.get(g.kind, 0) - (g.reduced is not None), -g.number))

    def _preserved(self, value: SSAValue) -> tuple[SSAValue, list[TensorOp]]:
        """Through movement that keeps each axis in place (broadcasts, unit axes added or dropped)."""
        chain: list[TensorOp] = []
        while True:
            owner = value.owner
            if not isinstance(owner, TensorOp) or owner in self.of or not _keeps_axes(owner):
                return value, chain
            chain.append(owner)
            value = owner.operands[0]

    def _joinable(self, op: TensorOp, g: Group, shape: Shape) -> bool:
        if g.kind in _WHOLE or len(g.ops) >= MAX_OPS or self._input_count(g) >= MAX_INPUTS:
            return False
        axes = self._result_axes(g, shape)
        if axes is None:
            return False
        for o in op.operands:
            base, chain = self._preserved(o)
            owner = self.group_of(base.owner) if isinstance(base.owner, Operation) else None
            if owner is g:
                mapped = self._map_through(g.axes.get(base, ()), chain, base)
                if base not in g.axes or mapped is None or not _aligned(mapped, axes):
                    return False
                continue
            source = self.base(o)
            owner = self.group_of(source.owner) if isinstance(source.owner, Operation) else None
            if owner is g:
                return False  # reads the group's own result through a movement
            if owner is not None and (owner.depends & g.bit):
                return False
        return True

    def _input_count(self, g: Group) -> int:
        return sum(1 for o in g.ops for v in o.operands if v not in g.axes)

    def _result_axes(self, g: Group, shape: Shape) -> AxisMap | None:
        if shape == g.full:
            return tuple(range(len(shape)))
        if g.reduced is None:
            return None
        kept = [k for k in range(len(g.full)) if k not in g.reduced]
        if len(shape) == len(g.full) and all(
            shape[k] == (1 if k in g.reduced else g.full[k]) for k in range(len(g.full))
        ):
            return tuple(None if k in g.reduced else k for k in range(len(g.full)))
        if shape == tuple(g.full[k] for k in kept):
            return tuple(kept)
        return None

    def _map_through(self, axes: AxisMap, chain: Sequence[TensorOp], base: SSAValue) -> AxisMap | None:
        """The axis map of a value behind axis-preserving movement of ``base``."""
        shape = aval_of(base).shape
        current = axes
        for op in reversed(chain):
            out = aval_of(op.results[0]).shape
            if op.record.name == "broadcast_to":
                # Dimensions that the broadcast adds or stretches do not read the value's own axes.
                pad = len(out) - len(shape)
                current = (None,) * pad + tuple(
                    None if n == 1 and o != 1 else a for a, n, o in zip(current, shape, out[pad:], strict=True)
                )
            else:
                kept = [a for a, n in zip(current, shape, strict=True) if n != 1]
                it = iter(kept)
                current = tuple(None if n == 1 else next(it) for n in out)
            shape = out
        return current

    # ------------------------------------------------------------------------------------- reductions
    def _place_reduction(self, op: TensorOp) -> None:
        operand = op.operands[0]
        full = aval_of(operand).shape
        reduced = frozenset(op.params["axes"])
        owner = self.group_of(operand.owner) if isinstance(operand.owner, Operation) else None
        fits = (
            owner is not None
            and owner.kind == "loop"
            and owner.full == full
            and owner.reduced in (None, reduced)
            and owner.axes.get(operand) == tuple(range(len(full)))
            and len(owner.ops) < MAX_OPS
        )
        if owner is None or not fits:
            owner = self._reduction_beside(operand, full, reduced)
        if owner is None:
            g = self._start(op, "loop", full, reduced)
        else:
            g = owner
            g.reduced = reduced
            self._add(g, op, ())
        axes = self._row_axes(g, op)
        g.axes[op.results[0]] = axes
        g.why.append(op.record.name)

    def _reduction_beside(self, operand: SSAValue, full: Shape, reduced: frozenset[int]) -> Group | None:
        """A group that already reduces the same value in the same way."""
        for use in islice(operand.uses, _USES):
            g = self.group_of(use.operation)
            if g is None or g.kind != "loop" or g.full != full or g.reduced != reduced or len(g.ops) >= MAX_OPS:
                continue
            base = self.base(operand)
            owner = self.group_of(base.owner) if isinstance(base.owner, Operation) else None
            if owner is None or (owner is not g and not owner.depends & g.bit):
                return g
        return None

    def _row_axes(self, g: Group, op: TensorOp) -> AxisMap:
        reduced = frozenset(op.params["axes"])
        if op.params["keepdims"]:
            return tuple(None if k in reduced else k for k in range(len(g.full)))
        return tuple(k for k in range(len(g.full)) if k not in reduced)

    # ---------------------------------------------------------------------------------------- merging
    def _mergeable(self, a: Group, b: Group) -> bool:
        if a.full != b.full or len(a.ops) + len(b.ops) > MAX_OPS:
            return False
        if a.depends & b.bit or b.depends & a.bit:
            return False
        if self._input_count(a) + self._input_count(b) > MAX_INPUTS:
            return False
        if a.kind != "loop" or b.kind != "loop":
            # Only plain element-wise work goes into an epilogue.
            other = b if a.kind != "loop" else a
            anchored = a if a.kind != "loop" else b
            return (
                anchored.kind in ANCHORS
                and other.kind == "loop"
                and other.reduced is None
                and all(isinstance(o.record.body, ScalarBody) for o in other.ops)
            )
        return a.reduced is None or b.reduced is None or a.reduced == b.reduced

    def _merge(self, a: Group, b: Group) -> None:
        """``b`` goes into ``a``."""
        if b.kind != "loop":
            a.kind = b.kind
        a.reduced = a.reduced if a.reduced is not None else b.reduced
        a.ops.extend(b.ops)
        a.axes.update(b.axes)
        a.why.extend(b.why)
        b.merged_into = a
        if self.depended & b.bit:
            self.depended |= a.bit
            for other in self.groups:
                if other.merged_into is None and other.depends & b.bit:
                    other.depends |= a.bit
        self._depend(a, b.depends)

    # ---------------------------------------------------------------------------------- memory needs
    def _ready_data(self, op: TensorOp) -> None:
        """Data read at data-dependent indices must be one strided piece of memory."""
        if not self._is_strided(op.operands[0]):
            self._materialise(op, 0)

    def _is_strided(self, value: SSAValue) -> bool:
        """Whether a value is a strided view of memory."""
        view = strided_view(value, self.scope, stop=self._in_memory)
        return view is not None and self._in_memory(view.base)

    def _in_memory(self, value: SSAValue) -> bool:
        """Whether a value is a buffer of its own or a reshape of one."""
        while isinstance(owner := value.owner, TensorOp) and owner not in self.of:
            if owner.record.name not in ALIASES:
                return False
            value = owner.operands[0]
        return True

    def _materialise(self, user: Operation, k: int) -> None:
        """Make sure that an operand is (an alias of) a buffer of its own."""
        user.operands[k] = self._buffered(user.operands[k])

    def _buffered(self, value: SSAValue) -> SSAValue:
        owner = value.owner
        if not isinstance(owner, TensorOp) or owner in self.of:
            return value
        if value in self._buffers:
            return self._buffers[value]
        # Movement that others read too is copied first: a group that has its own copy of it already, an epilogue for
        # one, must not come to depend on the kernel that writes the buffer.
        found = value
        if owner.record.name in ALIASES:
            source = self._buffered(owner.operands[0])
            if source is not owner.operands[0]:
                copy = self._copied(owner)
                copy.operands[0] = source
                found = copy.results[0]
        else:
            kept = owner if value.uses.get_length() <= 1 else self._copied(owner)
            self._start(kept, "loop", aval_of(value).shape)
            found = kept.results[0]
        self._buffers[value] = found
        return found

    def _copied(self, op: TensorOp) -> TensorOp:
        copy = op.clone()
        self.block.insert_op_after(copy, op)
        self.position[copy] = self.position[op]
        return copy

    # ------------------------------------------------------------------------------------- rebuilding
    def _rebuild(self, block: Block, returned: ReturnOp | YieldOp) -> None:
        alive = [g for g in self.groups if g.merged_into is None]
        for g in alive:
            g.ops.sort(key=lambda o: self.position[o])
        order = self._topological(alive)
        build = _Rebuild(self, block)
        for g in order:
            build.group(g)
        build.finish(returned)

    def _topological(self, groups: list[Group]) -> list[Group]:
        """Groups in dependency order, otherwise in program order (bit counts grow along dependencies)."""
        final: dict[int, Group] = {g.number: g for g in groups}
        needs: dict[int, set[int]] = {}
        readers: dict[int, list[int]] = {n: [] for n in final}
        for g in groups:
            sources: set[int] = set()
            for op in g.members:
                for o in op.operands:
                    base = self.base(o)
                    s = self.group_of(base.owner) if isinstance(base.owner, Operation) else None
                    if s is not None and s is not g:
                        sources.add(s.number)
            needs[g.number] = sources
            for s in sources:
                readers[s].append(g.number)
        first = {n: self.position[g.members[0]] for n, g in final.items()}
        ready = sorted((n for n in final if not needs[n]), key=lambda n: -first[n])
        out: list[Group] = []
        while ready:
            n = ready.pop()
            out.append(final[n])
            for r in readers[n]:
                needs[r].discard(n)
                if not needs[r]:
                    ready.append(r)
        if len(out) != len(groups):
            raise PassError("fusion made a cycle between kernels; this is a fault in cuvil")
        return out


class _Rebuild:
    """Builds the fused block from groups in order."""

    def __init__(self, fusion: Fusion, block: Block) -> None:
        self.fusion = fusion
        self.old = block
        self.new: list[Operation] = []
        self.values: dict[SSAValue, SSAValue] = {a: a for a in block.args}
        self.members: dict[SSAValue, Group] = {}

    def top(self, value: SSAValue) -> SSAValue:
        """The fused-stage value that holds an old value in memory."""
        chain: list[Operation] = []
        while value not in self.values:
            owner = value.owner
            assert isinstance(owner, Operation)
            chain.append(owner)
            if isinstance(owner, ConstantOp):
                break
            if not isinstance(owner, TensorOp) or owner.record.name not in ALIASES:
                raise PassError(f"{owner.name} was expected in memory; this is a fault in cuvil")
            value = owner.operands[0]
        for owner in reversed(chain):
            mapping = {o: self.values[o] for o in owner.operands}
            copy = owner.clone(value_mapper=mapping)
            self.new.append(copy)
            self.values[owner.results[0]] = copy.results[0]
            value = owner.results[0]
        return self.values[chain[0].results[0] if chain else value]

    def group(self, g: Group) -> None:
        """Append the fusion of one group."""
        if g.host is not None:
            self._on_host(g.host)
            return
        inside: set[SSAValue] = {r for op in g.ops for r in op.results}
        body = Block()
        mapper: dict[SSAValue, SSAValue] = {}
        inputs: dict[SSAValue, SSAValue] = {}
        # Data that is read at computed indices must be in memory, be it a single element.
        indexed = {self.fusion.base(op.operands[0]) for op in g.ops if _reads_indirectly(op)}

        def enter(value: SSAValue) -> SSAValue:
            """The region's value for an operand: member, copied movement or generator, or an input."""
            pending: list[Operation] = []
            current = value
            while current not in mapper:
                owner = current.owner
                if (
                    isinstance(owner, ConstantOp)
                    and owner.value.size == 1
                    and g.kind == "loop"
                    and current not in indexed
                ):
                    pending.append(owner)
                    break
                if isinstance(owner, TensorOp) and owner not in self.fusion.of and not self._in_memory(current, inside):
                    pending.append(owner)
                    if not owner.operands:
                        break
                    current = owner.operands[0]
                    continue
                top = self.top(current)
                arg = inputs.get(top)
                if arg is None:
                    arg = body.insert_arg(top.type, len(body.args))
                    arg.name_hint = top.name_hint
                    inputs[top] = arg
                mapper[current] = arg
            for owner in reversed(pending):
                copy = owner.clone(value_mapper={o: mapper[o] for o in owner.operands})
                body.add_op(copy)
                mapper[owner.results[0]] = copy.results[0]
            return mapper[value]

        for op in g.ops:
            operands = {o: enter(o) for o in op.operands}
            copy = op.clone(value_mapper=operands)
            body.add_op(copy)
            for a, b in zip(op.results, copy.results, strict=True):
                mapper[a] = b
        outputs = [r for op in g.ops for r in op.results if self._leaves(r, g)]
        if not outputs:
            return
        body.add_op(YieldOp.create(operands=[mapper[r] for r in outputs]))
        label = _label(g)
        fused = FusionOp.build(list(inputs), body, kind=g.kind, label=label, reason=_reason(g))
        fused.location = g.ops[-1].location
        self.new.append(fused)
        for old, new in zip(outputs, fused.results, strict=True):
            self.values[old] = new

    def _on_host(self, op: Operation) -> None:
        """Append an op of the host program as it is, on values in memory."""
        operands = [self.top(o) for o in op.operands]
        regions = [op.detach_region(r) for r in list(op.regions)]
        new = type(op).create(
            operands=operands,
            result_types=[r.type for r in op.results],
            properties=dict(op.properties),
            regions=regions,
        )
        new.location = op.location
        self.new.append(new)
        for old, made in zip(op.results, new.results, strict=True):
            made.name_hint = old.name_hint
            self.values[old] = made

    def _in_memory(self, value: SSAValue, inside: set[SSAValue]) -> bool:
        """Whether a value is a reshape of memory: an alias, better than index arithmetic."""
        while True:
            if value in inside:
                return False
            owner = value.owner
            if isinstance(owner, (Block, ConstantOp)):
                return True
            if value in self.values:
                return True
            if not isinstance(owner, TensorOp) or owner.record.name not in ALIASES or owner in self.fusion.of:
                return isinstance(owner, TensorOp) and owner in self.fusion.of
            value = owner.operands[0]

    def _leaves(self, value: SSAValue, g: Group) -> bool:
        """Whether a value is read outside of its group (directly or through movement)."""
        stack = [value]
        while stack:
            v = stack.pop()
            for use in v.uses:
                user = use.operation
                if isinstance(user, (ReturnOp, YieldOp)):
                    return True
                owner = self.fusion.group_of(user)
                if owner is None:
                    stack.extend(user.results)
                elif owner is not g:
                    return True
        return False

    def finish(self, returned: ReturnOp | YieldOp) -> None:
        """Replace the old block's ops with the fused ones."""
        results = [self.top(v) for v in returned.operands]
        for op in reversed(list(self.old.ops)):
            op.detach()
            op.drop_all_references()
        for op in self.new:
            self.old.add_op(op)
        self.old.add_op(ReturnOp(*results) if isinstance(returned, ReturnOp) else YieldOp.create(operands=results))


def _is_view(op: TensorOp) -> bool:
    """Whether an op only says where elements are: each reader has its own copy. So does the padding of a pooling, which
    costs a few guarded reads at the border and saves a trip to memory."""
    name = op.record.name
    if name != "pad":
        return name in _VIEWS
    user = op.results[0].get_user_of_unique_use()
    return isinstance(user, TensorOp) and user.record.name == "window" and op.params["mode"] == "constant"


def _reads_indirectly(op: TensorOp) -> bool:
    body = op.record.body
    return isinstance(body, Opaque) and body.kernel in INDIRECT


def _keeps_axes(op: TensorOp) -> bool:
    name = op.record.name
    if name == "broadcast_to":
        return True
    if name != "reshape":
        return False
    source, target = aval_of(op.operands[0]).shape, aval_of(op.results[0]).shape
    return [d for d in source if d != 1] == [d for d in target if d != 1]


def _aligned(operand: AxisMap, result: AxisMap) -> bool:
    """Whether an operand's dimensions, aligned at the end as in broadcasting, read the axes of the result's."""
    if len(operand) > len(result):
        return False
    return all(a is None or a == r for a, r in zip(operand, result[len(result) - len(operand) :], strict=True))


def _label(g: Group) -> str:
    names = list(dict.fromkeys(op.record.name for op in g.ops))
    if len(names) > 5:
        names = [*names[:3], *names[-2:]]
    return "_".join(names)


def _reason(g: Group) -> str:
    loops = "x".join(map(str, g.full)) or "scalar"
    if g.kind == "loop":
        what = f"reductions over axes {sorted(g.reduced)} of" if g.reduced is not None else "element-wise over"
        return f"{len(g.ops)} ops, {what} {loops}"
    extra = f", {len(g.ops) - 1} ops in its epilogue" if len(g.ops) > 1 else ""
    return f"{g.kind} of {loops}{extra}"


def fuse(func: FuncOp, scope: Scope) -> None:
    """Group a function's ops into kernels, in place, block by block."""
    for block in reversed(blocks_of(func)):
        Fusion(block, scope).run()


__all__ = ["ANCHORS", "Fusion", "fuse", "strided_view"]
