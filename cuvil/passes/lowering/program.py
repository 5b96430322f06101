"""Lowers a fused function to the kernel stage: kernels, and the host program that allocates and calls."""

from __future__ import annotations

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import SSAValue

import cuvil.passes.lowering.library  # noqa: F401 - registers lowerers  # pyright: ignore[reportUnusedImport]
from cuvil.dtypes import uint8
from cuvil.ir.attributes import ConstantArray
from cuvil.ir.dialect import ConstantOp, FusionOp, TensorOp, aval_of
from cuvil.ir.kernel import (
    AllocOp,
    CallOp,
    ConstBufferOp,
    CopyOp,
    KernelFunc,
    PackOp,
    ProgramOp,
    ViewOp,
    buffer_aval,
)
from cuvil.ir.kernel_program import KernelProgram
from cuvil.ops.record import Aval
from cuvil.passes.lowering.loops import LoopLowering
from cuvil.passes.lowering.templates import lower_template
from cuvil.passes.memory import plan_memory
from cuvil.support.errors import PassError
from cuvil.support.naming import identifier
from cuvil.symbolic import Scope, free_symbols, symbol


class _ProgramLowering:
    def __init__(self, func: FuncOp, scope: Scope) -> None:
        self.scope = scope
        self.block = func.body.block
        returned = self.block.last_op
        assert isinstance(returned, ReturnOp)
        self.returned = tuple(returned.operands)
        inputs = [aval_of(a) for a in self.block.args]
        outputs = [aval_of(v) for v in self.returned]
        symbols: set[str] = set()
        for value in (*self.block.args, *(r for op in self.block.ops for r in op.results)):
            symbols |= free_symbols(*aval_of(value).shape)
        for op in self.block.walk():
            if isinstance(op, TensorOp):
                for p in op.params.values():
                    symbols |= _symbols(p)
        self.host = ProgramOp.build(inputs, outputs, tuple(sorted(symbols)))
        self.args = self.host.body.args
        self.buffers: dict[SSAValue, SSAValue] = dict(zip(self.block.args, self.args, strict=False))
        self.constants: list[ConstantArray] = []
        self._constant_index: dict[ConstantArray, SSAValue] = {}
        self.kernels: list[KernelFunc] = []
        self._by_text: dict[str, str] = {}
        self._names: dict[str, int] = {}
        self._constant_values: set[SSAValue] = set()

    def run(self) -> KernelProgram:
        self._assign_outputs()
        for op in self.block.ops:
            if isinstance(op, ConstantOp):
                self._constant(op)
            elif isinstance(op, FusionOp):
                self._fusion(op)
            elif isinstance(op, TensorOp) and op.record.name == "reshape":
                self._alias(op)
            elif not isinstance(op, ReturnOp):
                raise PassError(f"{op.name} cannot stand outside of a kernel")
        self._copy_outputs()
        module = ModuleOp([*self.kernels, self.host])
        memory = plan_memory(self.host, {k.params["name"]: k for k in self.kernels})
        return KernelProgram(module, self.constants, memory)

    # ---------------------------------------------------------------------------------------- outputs
    def _assign_outputs(self) -> None:
        """Let kernels write results straight into the output buffers, each buffer being taken once."""
        n = len(self.block.args)
        self._target: dict[SSAValue, SSAValue] = {}
        self._direct: set[int] = set()
        for k, value in enumerate(self.returned):
            base = value
            while isinstance(base.owner, TensorOp):
                base = base.owner.operands[0]
            if isinstance(base.owner, FusionOp) and base not in self._target:
                buffer = self.args[n + k]
                if buffer_aval(buffer) != aval_of(base):
                    view = ViewOp.build(buffer, aval_of(base))
                    self.host.body.add_op(view)
                    buffer = view.results[0]
                self._target[base] = buffer
                self._direct.add(k)

    def _copy_outputs(self) -> None:
        n = len(self.block.args)
        for k, value in enumerate(self.returned):
            if k not in self._direct:
                self.host.body.add_op(CopyOp.build(self.buffers[value], self.args[n + k]))

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
        self.host.body.add_op(view)
        self.buffers[op.results[0]] = view.results[0]
        if op.operands[0] in self._constant_values:
            self._constant_values.add(op.results[0])

    def _fusion(self, op: FusionOp) -> None:
        if op.kind == "loop":
            kernel, packed = LoopLowering(op, self.scope).lower("kernel"), ()
        else:
            constant = tuple(o in self._constant_values for o in op.operands)
            kernel, packed = lower_template(op, self.scope, constant)
        name = self._share(kernel, op.params["label"])
        operands: list[SSAValue] = [self.buffers[o] for o in op.operands]
        if packed:
            pack = PackOp.build([operands[k] for k in packed], name)
            self.host.body.add_op(pack)
            for k in packed:
                operands[k] = pack.results[0]
        for r in op.results:
            target = self._target.get(r)
            if target is None:
                alloc = AllocOp.build(aval_of(r))
                self.host.body.add_op(alloc)
                target = alloc.results[0]
            self.buffers[r] = target
            operands.append(target)
        if "workspace" in kernel.params:
            room = AllocOp.build(Aval((kernel.params["workspace"],), uint8))
            self.host.body.add_op(room)
            operands.append(room.results[0])
        dims = [symbol(d) for d in kernel.params["dims"]]
        call = CallOp.build(name, operands, dims)
        call.location = op.location
        self.host.body.add_op(call)

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
        return name


def _symbols(value: object) -> frozenset[str]:
    if isinstance(value, tuple):
        out: frozenset[str] = frozenset()
        for v in value:  # pyright: ignore[reportUnknownVariableType]
            out |= _symbols(v)  # pyright: ignore[reportUnknownArgumentType]
        return out
    return free_symbols(value) if hasattr(value, "symbols") else frozenset()  # type: ignore[arg-type]


def lower_program(func: FuncOp, scope: Scope) -> KernelProgram:
    """The kernel stage of a fused function."""
    return _ProgramLowering(func, scope).run()


__all__ = ["KernelProgram", "lower_program"]
