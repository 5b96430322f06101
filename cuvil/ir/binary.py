"""What a backend hands to the runtime: compiled kernels, the host program's tables and the arena's lifetimes."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from cuvil.ir.attributes import ConstantArray
from cuvil.ops.record import Aval, ParamValue
from cuvil.symbolic import Dim


@dataclass(frozen=True)
class Slot:
    """A temporary buffer: its size in bytes and the first and last call that touch it."""

    size: Dim
    first: int
    last: int


@dataclass(frozen=True)
class Site:
    """A call that may fail for the values it meets: the op's name and the user's line."""

    op: str
    line: str


@dataclass(frozen=True)
class Packing:
    """Constants that a kernel wants in its own layout, as one piece of memory."""

    constants: tuple[int, ...]
    kernel: int


@dataclass(frozen=True)
class HostCall:
    """An entry of the kernel table that calls an op's NumPy reference instead of compiled code.

    ``name`` is the kernel's own; ``names`` and ``values`` are the op's parameters; ``operands`` and ``results`` number
    the kernel's arguments, whose types are ``arguments`` (a result that nobody reads has no number); ``dims`` name the
    kernel's dimensions.
    """

    name: str
    op: str
    names: tuple[str, ...]
    values: tuple[ParamValue, ...]
    operands: tuple[int, ...]
    results: tuple[int | None, ...]
    arguments: tuple[Aval, ...]
    dims: tuple[str, ...]


def kernel_name(kernel: tuple[Path, str] | HostCall) -> str:
    """The name of an entry of the kernel table."""
    return kernel.name if isinstance(kernel, HostCall) else kernel[1]


@dataclass
class NativeProgram:
    """A compiled program.

    ``library`` holds the function ``entry``; ``kernels`` are (library, symbol), or host calls, in the order of the
    kernel table.
    """

    library: Path
    kernels: tuple[tuple[Path, str] | HostCall, ...]
    inputs: tuple[Aval, ...]
    outputs: tuple[Aval, ...]
    symbols: tuple[str, ...]
    constants: list[ConstantArray]
    packings: tuple[Packing, ...]
    slots: tuple[Slot, ...]
    calls: tuple[str, ...] = ()
    sources: dict[str, str] = field(default_factory=dict[str, str])
    #: Constants that some kernel reads unpacked.
    plain_constants: frozenset[int] = frozenset()
    entry: str = "cuvil_main"
    #: Whether the host program has loops: how long a call takes does not follow from its kernels.
    loops: bool = False
    #: What each assertion says, by number.
    messages: tuple[str, ...] = ()
    #: Calls that may fail, by number.
    sites: tuple[Site, ...] = ()
