"""The C backend: kernels and the host program as C text, compiled and cached by content."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from importlib.resources import files
from pathlib import Path

from xdsl.ir import SSAValue

import cuvil.backends.c.library_emitter  # noqa: F401 - registers emitters  # pyright: ignore[reportUnusedImport]
from cuvil.backends.base import Capabilities
from cuvil.backends.c.host_emitter import emit_host
from cuvil.backends.c.loop_emitter import emit_loop_kernel
from cuvil.backends.c.template_emitter import emit_template_kernel
from cuvil.backends.c.toolchain import compile_many, compile_shared
from cuvil.dtypes import EVERY
from cuvil.ir.binary import HostCall, NativeProgram, Packing
from cuvil.ir.kernel import (
    HOST_LOOPS,
    CallOp,
    ConstBufferOp,
    KernelFunc,
    PackOp,
    ProgramOp,
    TemplateOp,
    ViewOp,
    buffer_aval,
)
from cuvil.ir.kernel_program import KernelProgram

CAPABILITIES = Capabilities("c", frozenset(EVERY), lanes=16, features=frozenset({"fma", "threads"}))

_PRELUDE = """\
#include "cuvil/vec.h"
#include "cuvil/math.h"
#include "cuvil/kernel.h"
"""


def include_dir() -> Path:
    """Folder of the human-written headers."""
    return Path(str(files("cuvil.backends.c") / "include"))


def emit_kernel(func: KernelFunc) -> str:
    """The C text of one kernel."""
    template = any(isinstance(op, TemplateOp) for op in func.body.ops)
    return _PRELUDE + "\n" + (emit_template_kernel(func) if template else emit_loop_kernel(func))


def emit_sources(program: KernelProgram) -> dict[str, str]:
    """The C text of each kernel by its name, and of the host program as ``main``."""
    index = _kernel_numbers(program)
    numbers = _packings(program.host, index)[1]
    sources = {"main": emit_host(program.host, index, program.memory.slot_of, numbers)}
    for k in program.kernels:
        if host_template(k) is None:
            sources[k.params["name"]] = emit_kernel(k)
    return sources


def host_template(kernel: KernelFunc) -> TemplateOp | None:
    """The template of a kernel that is a call back into Python, or None."""
    first = kernel.body.first_op
    return first if isinstance(first, TemplateOp) and first.params["kind"] == "host" else None


def _entry(kernel: KernelFunc, library: Path) -> tuple[Path, str] | HostCall:
    """The entry of the kernel table."""
    name: str = kernel.params["name"]
    template = host_template(kernel)
    if template is None:
        return library, name
    p = template.params
    arguments = tuple(buffer_aval(a) for a in kernel.body.args)
    return HostCall(
        name, p["op"], p["names"], p["values"], p["operands"], p["results"], arguments, tuple(kernel.params["dims"])
    )


def native_program(program: KernelProgram, sources: dict[str, str], library: Path) -> NativeProgram:
    """What the runtime loads, once every text of ``sources`` is in the shared library."""
    host = program.host
    packings, _, plain = _packings(host, _kernel_numbers(program))
    inputs = host.params["inputs"]
    args = [buffer_aval(a) for a in host.body.args]
    return NativeProgram(
        library=library,
        kernels=tuple(_entry(k, library) for k in program.kernels),
        inputs=tuple(args[:inputs]),
        outputs=tuple(args[inputs:]),
        symbols=host.params["symbols"],
        constants=program.constants,
        packings=packings,
        slots=program.memory.slots,
        calls=tuple(op.params["kernel"] for op in host.body.walk() if isinstance(op, CallOp)),
        sources=sources,
        plain_constants=plain,
        loops=any(isinstance(op, HOST_LOOPS) for op in host.body.walk()),
        messages=program.messages,
        sites=program.sites,
    )


def _kernel_numbers(program: KernelProgram) -> dict[str, int]:
    return {k.params["name"]: i for i, k in enumerate(program.kernels)}


def compile_objects(sources: Mapping[str, str]) -> list[Path]:
    """Compile each text to an object file, in parallel, through the disk cache.

    Raises:
        ToolchainError: no C compiler, or it failed.
    """
    return compile_many(list(sources.items()), include_dirs=[include_dir()], objects=True)


def _packings(
    host: ProgramOp, index: dict[str, int]
) -> tuple[tuple[Packing, ...], dict[tuple[tuple[int, ...], int], int], frozenset[int]]:
    constant_of: dict[SSAValue, int] = {}
    numbers: dict[tuple[tuple[int, ...], int], int] = {}
    plain: set[int] = set()
    for op in host.body.walk():
        if isinstance(op, ConstBufferOp):
            constant_of[op.results[0]] = op.params["index"]
        elif isinstance(op, ViewOp) and op.operands[0] in constant_of:
            constant_of[op.results[0]] = constant_of[op.operands[0]]
        elif isinstance(op, PackOp):
            packed = tuple(constant_of[o] for o in op.operands)
            numbers.setdefault((packed, index[op.params["kernel"]]), len(numbers))
        else:
            plain |= {constant_of[o] for o in op.operands if o in constant_of}
    return tuple(Packing(c, k) for c, k in numbers), numbers, frozenset(plain)


@lru_cache(maxsize=1)
def runtime_path() -> Path:
    """The compiled runtime library, built once per machine."""
    source = (include_dir() / "runtime.c").read_text()
    (path,) = compile_many([("runtime", source)], include_dirs=[include_dir()], libraries=("-lpthread",))
    return path


@lru_cache(maxsize=1)
def constants_path() -> Path:
    """The compiled library of ``constants.c``, built once per machine."""
    return compile_shared({"constants.c": (include_dir() / "constants.c").read_text()}, name="constants")


__all__ = [
    "CAPABILITIES",
    "compile_objects",
    "constants_path",
    "emit_kernel",
    "emit_sources",
    "include_dir",
    "native_program",
    "runtime_path",
]
