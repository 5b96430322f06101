"""From a traced program to something callable: the one module that knows passes and backends together."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp

from cuvil.backends.base import Runnable
from cuvil.backends.c.backend import compile_kernels, runtime_path
from cuvil.backends.null.backend import NullProgram
from cuvil.backends.reference.backend import ReferenceProgram
from cuvil.frontend.program import TracedProgram
from cuvil.ir.kernel_program import KernelProgram
from cuvil.ir.text import format_module
from cuvil.ir.verifier import Stage, verify_stage
from cuvil.ops.record import Array
from cuvil.passes.engine import Rule
from cuvil.passes.lowering.program import lower_program
from cuvil.passes.pipeline import PassOptions, PassRecord, fuse_stage, optimise
from cuvil.runtime.executable import Executable
from cuvil.runtime.library import RuntimeLibrary
from cuvil.support.config import num_threads
from cuvil.support.errors import ArgumentError

log = logging.getLogger("cuvil.compiler")

BACKENDS = ("c", "reference", "null")
Numerics = Literal["standard", "relaxed"]


@dataclass(frozen=True)
class CompileOptions:
    """How a program is compiled. Hashable: part of every cache key.

    Attributes:
        backend: ``"c"``, ``"reference"`` or ``"null"``.
        numerics: ``"standard"`` changes only the order of float sums and contracts to FMA; ``"relaxed"`` also admits
            rules that reassociate.
        precision: ``"float32"``; lower precisions for contractions are chosen here.
        optimise: run the algebraic passes (fusion always runs; it changes no value).
        validate: run the program on the interpreter before and after every pass and name the pass that changed it.
        rules: the user's own rewrite rules, tried after the compiler's.
    """

    backend: str = "c"
    numerics: Numerics = "standard"
    precision: str = "float32"
    optimise: bool = True
    validate: bool = False
    rules: tuple[Rule, ...] = ()

    def __post_init__(self) -> None:
        if self.backend not in BACKENDS:
            raise ArgumentError(f"unknown backend {self.backend!r}; expected one of {', '.join(BACKENDS)}")
        if self.numerics not in ("standard", "relaxed"):
            raise ArgumentError(f"unknown numerics {self.numerics!r}; expected 'standard' or 'relaxed'")
        if self.precision != "float32":
            raise ArgumentError(f"unknown precision {self.precision!r}; expected 'float32'")


@dataclass
class Compiled:
    """A compiled program with the text of each stage.

    ``stages`` maps ``tensor``, ``optimised``, ``fused``, ``kernel`` and ``source`` to text, made on demand.
    """

    program: TracedProgram
    runnable: Runnable
    stages: dict[str, Callable[[], str]]
    records: list[PassRecord] = field(default_factory=list[PassRecord])

    def run(self, inputs: Sequence[Array], env: Mapping[str, int]) -> list[Array]:
        """Call the program on concrete arrays."""
        return self.runnable.run(inputs, env)

    def as_text(self, stage: str) -> str:
        """One stage as text.

        Raises:
            ArgumentError: no such stage.
        """
        if stage not in self.stages:
            raise ArgumentError(f"no stage is named {stage!r}; expected one of {', '.join(self.stages)}")
        return self.stages[stage]()


@lru_cache(maxsize=1)
def runtime_library() -> RuntimeLibrary:
    """The process's runtime library with its pool of ``CUVIL_NUM_THREADS`` threads."""
    return RuntimeLibrary(runtime_path(), num_threads())


def _constant_text(text: str) -> Callable[[], str]:
    return lambda: text


def compile_program(program: TracedProgram, options: CompileOptions, *, keep_text: bool = False) -> Compiled:
    """Optimise, lower and compile a traced program.

    ``keep_text`` keeps the text of the stages that later passes rewrite in place.
    """
    stages: dict[str, Callable[[], str]] = {}
    func: FuncOp = program.func
    keep = keep_text

    def verify(stage: Stage, module: ModuleOp = program.module) -> None:
        if options.validate:
            verify_stage(module, stage)

    verify("tensor")
    if keep:
        stages["tensor"] = _constant_text(format_module(program.module))
    if options.backend == "reference" and not options.optimise:
        return Compiled(program, ReferenceProgram(func), stages)
    passes = PassOptions(
        numerics=options.numerics, optimise=options.optimise, validate=options.validate, rules=options.rules
    )
    records = optimise(func, program.scope, passes)
    if keep:
        stages["optimised"] = _constant_text(format_module(program.module))
    verify("optimised")
    if options.backend == "reference":
        return Compiled(program, ReferenceProgram(func), stages, records)
    records += fuse_stage(func, program.scope, passes)
    if keep:
        stages["fused"] = _constant_text(format_module(program.module))
    verify("fused")
    lowered: KernelProgram = lower_program(func, program.scope)
    verify("kernel", lowered.module)
    stages["kernel"] = lambda: format_module(lowered.module)
    if options.backend == "null":
        return Compiled(program, NullProgram(program.outputs), stages, records)
    native = compile_kernels(lowered, program.name)
    stages["source"] = lambda: "\n".join(f"/* ---- {name} ---- */\n{text}" for name, text in native.sources.items())
    return Compiled(program, Executable(native, runtime_library()), stages, records)
