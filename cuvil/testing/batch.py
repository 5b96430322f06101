"""Compiles many traced programs for the C backend as one translation unit: starting gcc costs more than a kernel."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from cuvil.backends.c.backend import emit_sources, include_dir, native_program
from cuvil.backends.c.toolchain import compile_many
from cuvil.compiler import runtime_library
from cuvil.frontend.program import TracedProgram
from cuvil.ir.binary import HostCall
from cuvil.ir.kernel_program import KernelProgram
from cuvil.passes.lowering.program import lower_program
from cuvil.passes.pipeline import PassOptions, fuse_stage
from cuvil.runtime.executable import Executable
from cuvil.support.cache import DiskCache

_HELPER = re.compile(r"^static inline \w+ (\w+)\(", re.MULTILINE)


@dataclass(frozen=True)
class Lowered:
    """A program at the kernel stage with the C text of its parts."""

    program: KernelProgram
    sources: dict[str, str]


def lower(program: TracedProgram, options: PassOptions) -> Lowered:
    """Fuse, lower and emit a program whose tensor-stage passes have run; it is changed in place.

    Raises:
        CuvilError: what fusion, lowering or the emitter raise.
    """
    fuse_stage(program.func, program.scope, options)
    lowered = lower_program(program.func, program.scope)
    return Lowered(lowered, emit_sources(lowered))


def compile_batch(
    programs: Sequence[Lowered], *, extra_flags: Sequence[str] = (), cache: DiskCache | None = None
) -> list[Executable]:
    """Compile programs into one shared library and load each.

    Names get a number, so that programs share the library; equal texts are compiled once.

    Raises:
        ToolchainError: the compiler failed on the text of some program.
    """
    numbers: dict[tuple[str, str], int] = {}
    parts: list[str] = []
    for p in programs:
        for name, text in p.sources.items():
            if (name, text) not in numbers:
                number = numbers[name, text] = len(numbers)
                parts.append(_renamed(name, text, number))
    (library,) = compile_many(
        [("batch", "\n".join(parts))], include_dirs=[include_dir()], extra_flags=extra_flags, cache=cache
    )
    return [_load(p, numbers, library) for p in programs]


def _load(lowered: Lowered, numbers: dict[tuple[str, str], int], library: Path) -> Executable:
    native = native_program(lowered.program, lowered.sources, library)

    def symbol_of(name: str) -> str:
        return f"p{numbers[name, lowered.sources[name]]}_{name}"

    return Executable(
        replace(
            native,
            kernels=tuple(k if isinstance(k, HostCall) else (library, symbol_of(k[1])) for k in native.kernels),
            entry=symbol_of("main").replace("_main", "_cuvil_main"),
        ),
        runtime_library(),
    )


def _renamed(name: str, text: str, number: int) -> str:
    """A part's text with its own names numbered: all that start with the kernel's name, or the host's helpers."""
    own = ["cuvil_main", *_HELPER.findall(text)] if name == "main" else [name]
    pattern = re.compile(rf"\b(?=(?:{'|'.join(map(re.escape, own))}))")
    return pattern.sub(f"p{number}_", text)
