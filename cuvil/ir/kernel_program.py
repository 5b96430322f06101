"""A program at the kernel stage: kernels, host program, constants and memory layout."""

from __future__ import annotations

from dataclasses import dataclass, field

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import SSAValue

from cuvil.ir.attributes import ConstantArray
from cuvil.ir.binary import Site, Slot
from cuvil.ir.kernel import KernelFunc, ProgramOp


@dataclass(frozen=True)
class MemoryLayout:
    """Slots of the arena, and the slot of each temporary of the host program."""

    slots: tuple[Slot, ...]
    slot_of: dict[SSAValue, int]


@dataclass
class KernelProgram:
    """A program at the kernel stage: its module (kernels, then the host program), constants and memory."""

    module: ModuleOp
    constants: list[ConstantArray] = field(default_factory=list[ConstantArray])
    memory: MemoryLayout = field(default_factory=lambda: MemoryLayout((), {}))
    #: What each assertion says, by number.
    messages: tuple[str, ...] = ()
    sites: tuple[Site, ...] = ()

    @property
    def kernels(self) -> list[KernelFunc]:
        return [op for op in self.module.body.block.ops if isinstance(op, KernelFunc)]

    @property
    def host(self) -> ProgramOp:
        last = self.module.body.block.last_op
        assert isinstance(last, ProgramOp)
        return last
