"""Lowers a fused function to the kernel stage: kernels, and the host program that allocates and calls."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Block, Operation, SSAValue

import cuvil.passes.lowering.channels_last  # pyright: ignore[reportUnusedImport]
import cuvil.passes.lowering.library  # noqa: F401 - registers lowerers  # pyright: ignore[reportUnusedImport]
from cuvil.dtypes import bool_, uint8
from cuvil.ir.attributes import ConstantArray
from cuvil.ir.binary import Site
from cuvil.ir.control import CheckOp, ControlOp, LoopOp, SwitchOp, WhileOp, blocks_of, yielded
from cuvil.ir.dialect import ConstantOp, FusionOp, TensorOp, aval_of
from cuvil.ir.interpreter import location_text
from cuvil.ir.kernel import (
    AllocOp,
    BufferType,
    CallOp,
    ConstBufferOp,
    CopyOp,
    HostCheckOp,
    HostSwitchOp,
    HostWhileOp,
    KernelFunc,
    PackOp,
    ProgramOp,
    PutOp,
    RepeatOp,
    ViewOp,
    buffer_aval,
)
from cuvil.ir.kernel_program import KernelProgram
from cuvil.ops.record import Aval
from cuvil.ops.reshaping import ALIASES
from cuvil.passes.lowering.loops import LoopLowering
from cuvil.passes.lowering.permute import lower_permutation
from cuvil.passes.lowering.region import INDIRECT
from cuvil.passes.lowering.templates import lower_template
from cuvil.passes.memory import in_place_pairs, plan_memory, updates_in_place
from cuvil.support.errors import PassError
from cuvil.support.naming import identifier
from cuvil.symbolic import Scope, free_symbols, product, symbol

#: Ops that may fail at run time: an index out of bounds, an integer to a negative power.
_FALLIBLE = INDIRECT | {"scatter", "pow"}


class _ProgramLowering:
    def __init__(self, func: FuncOp, scope: Scope, *, bf16: bool) -> None:
        self.scope = scope
        self.bf16 = bf16
        self.block = func.body.block
        inputs = [aval_of(a) for a in self.block.args]
        outputs = [aval_of(v) for v in yielded(self.block)]
        symbols: set[str] = set()
        for block in blocks_of(func):
            for value in (*block.args, *(r for op in block.ops for r in op.results)):
                symbols |= free_symbols(*aval_of(value).shape)
        for op in self.block.walk():
            if isinstance(op, (TensorOp, ControlOp)):
                for p in op.params.values():
                    symbols |= _symbols(p)
        self.host = ProgramOp.build(inputs, outputs, tuple(sorted(symbols)))
        self.args = self.host.body.args
        self.out = self.host.body  # the block that is being filled
        self.buffers: dict[SSAValue, SSAValue] = dict(zip(self.block.args, self.args, strict=False))
        self.constants: list[ConstantArray] = []
        self.messages: list[str] = []
        self.sites: list[Site] = []
        self._constant_index: dict[ConstantArray, SSAValue] = {}
        self.kernels: list[KernelFunc] = []
        self._by_text: dict[str, str] = {}
        self._names: dict[str, int] = {}
        self._constant_values: set[SSAValue] = set()
        self._target: dict[SSAValue, SSAValue] = {}
        self._pairs: dict[str, set[tuple[int, int]]] = {}
        self._loops = 0

    def run(self) -> KernelProgram:
        self._block(self.block, list(self.args)[len(self.block.args) :], self.host.body)
        module = ModuleOp([*self.kernels, self.host])
        memory = plan_memory(self.host, {k.params["name"]: k for k in self.kernels})
        return KernelProgram(module, self.constants, memory, tuple(self.messages), tuple(self.sites))

    def _block(self, block: Block, targets: Sequence[SSAValue], out: Block) -> None:
        """Lower a block into one of the host program, so that what it yields is in the targets at its end."""
        around, self.out = self.out, out
        given = list(zip(yielded(block), targets, strict=True))
        bases = [self._assign(value, target) for value, target in given]
        for op in block.ops:
            if isinstance(op, ConstantOp):
                self._constant(op)
            elif isinstance(op, FusionOp):
                self._fusion(op)
            elif isinstance(op, TensorOp) and op.record.name in ALIASES:
                self._alias(op)
            elif isinstance(op, SwitchOp):
                self._switch(op)
            elif isinstance(op, (WhileOp, LoopOp)):
                self._loop(op)
            elif isinstance(op, CheckOp):
                self._add(op, HostCheckOp.build(self.buffers[op.operands[0]], len(self.messages)))
                self.messages.append(op.message)
            elif op is not block.last_op:
                raise PassError(f"{op.name} cannot stand outside of a kernel")
        for (value, target), base in zip(given, bases, strict=True):
            if base is None or self.buffers[base] is not self._target[base]:
                out.add_op(CopyOp.build(self.buffers[value], target))
        self.out = around

    def _assign(self, value: SSAValue, target: SSAValue) -> SSAValue | None:
        """Let what computes a value write into the target: the result that it writes, None where it must not."""
        base = value
        while isinstance(base.owner, TensorOp):
            base = base.owner.operands[0]
        if not isinstance(base.owner, (FusionOp, ControlOp)) or base in self._target:
            return None
        if buffer_aval(target) != aval_of(base):
            view = ViewOp.build(target, aval_of(base))
            self.out.add_op(view)
            target = view.results[0]
        self._target[base] = target
        return base

    def _add(self, source: Operation, op: Operation) -> None:
        op.location = source.location
        self.out.add_op(op)

    def _alloc(self, aval: Aval) -> SSAValue:
        op = AllocOp.build(aval)
        self.out.add_op(op)
        return op.results[0]

    # -------------------------------------------------------------------------------------- control flow
    def _enter(self, arg: SSAValue, operand: SSAValue) -> None:
        """An invariant of a region is the buffer that it is outside."""
        self.buffers[arg] = self.buffers[operand]
        if operand in self._constant_values:
            self._constant_values.add(arg)

    def _switch(self, op: SwitchOp) -> None:
        targets = [self._target.get(r) or self._alloc(aval_of(r)) for r in op.results]
        bodies: list[Block] = []
        for body in op.bodies:
            for arg, operand in zip(body.args, op.invariants, strict=True):
                self._enter(arg, operand)
            bodies.append(Block())
            self._block(body, targets, bodies[-1])
        self._add(op, HostSwitchOp.build(self.buffers[op.operands[0]], bodies))
        self.buffers.update(zip(op.results, targets, strict=True))

    def _loop(self, op: WhileOp | LoopOp) -> None:
        n = op.carried
        types = [BufferType(aval_of(r)) for r in op.results[:n]]
        for block in op.bodies:
            for arg, operand in zip(list(block.args)[op.invariant_arg :], op.invariants, strict=True):
                self._enter(arg, operand)
        source = op.bodies[-1]
        body = Block(arg_types=[t for t in types for _ in range(2)])
        currents, nexts = list(body.args)[::2], list(body.args)[1::2]
        test = Block(arg_types=types)
        condition: SSAValue | None = None
        variable = f"_it{self._loops}"
        self._loops += 1
        if isinstance(op, WhileOp):
            self.buffers.update(zip(op.bodies[0].args, test.args, strict=False))
            self.buffers.update(zip(source.args, currents, strict=False))
            condition = self._alloc(Aval((), bool_))
            self._block(op.bodies[0], [condition], test)
            self._block(source, nexts, body)
        else:
            self._counted(op, source, body, currents, nexts, variable)
        carried: list[SSAValue] = []
        for k in range(n):
            init = self.buffers[op.operands[k]]
            target = self._target.get(op.results[k])
            aval = aval_of(op.results[k])
            if updates_in_place(body, currents[k], nexts[k], self._pairs):
                place = target or self._alloc(aval)
                self.out.add_op(CopyOp.build(init, place))
                carried += [place, place, place]
            else:
                carried += [init, self._alloc(aval), self._alloc(aval)]
        if condition is not None:
            made: RepeatOp | HostWhileOp = HostWhileOp.build(condition, carried, test, body)
        else:
            assert isinstance(op, LoopOp)
            made = RepeatOp.build(carried, body, var=variable, trip=op.trip, reverse=op.reverse)
        self._add(op, made)
        for k in range(n):
            in_place = carried[3 * k] is carried[3 * k + 1]
            self.buffers[op.results[k]] = carried[3 * k] if in_place else made.results[k]

    def _counted(
        self,
        op: LoopOp,
        source: Block,
        body: Block,
        currents: Sequence[SSAValue],
        nexts: Sequence[SSAValue],
        variable: str,
    ) -> None:
        n, around, at = op.carried, self.out, symbol(variable)
        stacked = [self._target.get(r) or self._alloc(aval_of(r)) for r in op.results[n:]]
        self.buffers.update(zip(op.results[n:], stacked, strict=True))
        self.out = body
        index = source.args[0]
        if index.first_use is not None:
            self.buffers[index] = self._alloc(aval_of(index))
            body.add_op(PutOp.build(self.buffers[index], at))
        self.buffers.update(zip(list(source.args)[1 : 1 + n], currents, strict=True))
        slices = list(source.args)[1 + n : op.invariant_arg]
        for arg, whole in zip(slices, list(op.operands)[n : n + op.scanned], strict=True):
            self.buffers[arg] = self._part(self.buffers[whole], aval_of(arg), variable)
        elements = [aval_of(v) for v in yielded(source)[n:]]
        places = [self._part(whole, a, variable) for whole, a in zip(stacked, elements, strict=True)]
        self.out = around
        self._block(source, [*nexts, *places], body)

    def _part(self, whole: SSAValue, aval: Aval, variable: str) -> SSAValue:
        """Element ``variable`` of a buffer along its leading axis."""
        view = ViewOp.build(whole, aval, symbol(variable) * product(aval.shape))
        self.out.add_op(view)
        return view.results[0]

    # -------------------------------------------------------------------------------------- host values
    def _constant(self, op: ConstantOp) -> None:
        found = self._constant_index.get(op.constant)
        if found is None:
            ref = ConstBufferOp.build(len(self.constants), aval_of(op.results[0]))
            self.constants.append(op.constant)
            self.host.body.add_op(ref)
            found = self._constant_index[op.constant] = ref.results[0]
        self.buffers[op.results[0]] = found
        self._constant_values.add(op.results[0])

    def _alias(self, op: TensorOp) -> None:
        view = ViewOp.build(self.buffers[op.operands[0]], aval_of(op.results[0]))
        # Where the source is a constant, kernels inside of a loop may pack it before the loop.
        (self.host.body if op.operands[0] in self._constant_values else self.out).add_op(view)
        self.buffers[op.results[0]] = view.results[0]
        if op.operands[0] in self._constant_values:
            self._constant_values.add(op.results[0])

    def _fusion(self, op: FusionOp) -> None:
        if op.kind == "loop":
            kernel, packed = lower_permutation(op, self.scope) or LoopLowering(op, self.scope).lower("kernel"), ()
        else:
            constant = tuple(o in self._constant_values for o in op.operands)
            kernel, packed = lower_template(op, self.scope, constant, bf16=self.bf16)
        name = self._share(kernel, op.params["label"])
        operands: list[SSAValue] = [self.buffers[o] for o in op.operands]
        if packed:
            pack = PackOp.build([operands[k] for k in packed], name)
            self.host.body.add_op(pack)
            for k in packed:
                operands[k] = pack.results[0]
        for r in op.results:
            target = self._target.get(r) or self._alloc(aval_of(r))
            self.buffers[r] = target
            operands.append(target)
        if "workspace" in kernel.params:
            operands.append(self._alloc(Aval((kernel.params["workspace"],), uint8)))
        dims = [symbol(d) for d in kernel.params["dims"]]
        self._add(op, CallOp.build(name, operands, dims, self._site(op)))

    def _site(self, fusion: FusionOp) -> int | None:
        """The number of a kernel that may fail for the values it meets: by the first op in it that may."""
        for op in fusion.body.ops:
            if isinstance(op, TensorOp) and op.record.name in _FALLIBLE:
                self.sites.append(Site(op.record.name, location_text(op)))
                return len(self.sites) - 1
        return None

    def _share(self, kernel: KernelFunc, label: str) -> str:
        """Name a kernel, or find the kernel of the same text."""
        text = str(kernel)
        known = self._by_text.get(text)
        if known is not None:
            return known
        base = identifier(label)[:48]
        count = self._names.get(base, 0)
        self._names[base] = count + 1
        name = f"{base}_{count}"
        kernel.set_params(**{**kernel.params, "name": name})
        self._by_text[text] = name
        self.kernels.append(kernel)
        self._pairs[name] = in_place_pairs(kernel)
        return name


def _symbols(value: object) -> frozenset[str]:
    if isinstance(value, tuple):
        out: frozenset[str] = frozenset()
        for v in value:  # pyright: ignore[reportUnknownVariableType]
            out |= _symbols(v)  # pyright: ignore[reportUnknownArgumentType]
        return out
    return free_symbols(value) if hasattr(value, "symbols") else frozenset()  # type: ignore[arg-type]


def lower_program(func: FuncOp, scope: Scope, *, bf16: bool = False) -> KernelProgram:
    """The kernel stage of a fused function; with ``bf16``, contractions of float32 may multiply in bfloat16."""
    return _ProgramLowering(func, scope, bf16=bf16).run()


__all__ = ["KernelProgram", "lower_program"]
