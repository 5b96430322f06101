"""From a traced program to something callable: the one module that knows passes and backends together."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp

from cuvil.backends.base import Runnable
from cuvil.backends.c.backend import compile_kernels, runtime_path
from cuvil.backends.c.toolchain import compile_shared
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
from cuvil.runtime import dispatch
from cuvil.runtime.executable import Executable
from cuvil.runtime.library import RuntimeLibrary
from cuvil.support import config
from cuvil.support.errors import ArgumentError, BackendError, ToolchainError

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
        validate: verify each stage against its spec, and run the program on the interpreter before and after every
            pass and name the pass that changed it.
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

    @property
    def native(self) -> Executable | None:
        """The executable whose calls need no ctypes, or None where there is none."""
        return self.runnable if isinstance(self.runnable, Executable) and self.runnable.native is not None else None

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
    return RuntimeLibrary(runtime_path(), config.num_threads())


_DISPATCHERS: dict[tuple[str | None, int], Future[dispatch.DispatchModule | None]] = {}
_DISPATCHERS_LOCK = threading.Lock()


def start_dispatcher() -> Future[dispatch.DispatchModule | None]:
    """The dispatcher that ``CUVIL_DISPATCH`` asks for, None for ctypes; it is built while the caller goes on.

    Its result raises BackendError or ToolchainError where the native one is asked for and cannot be had.
    """
    choice = config.dispatch()
    with _DISPATCHERS_LOCK:
        key = (choice, os.getpid())  # a forked child has not the thread that was to fulfil its parent's promise
        known = _DISPATCHERS.get(key)
        if known is None or (known.done() and known.exception() is not None):  # what failed may have been mended
            pool = ThreadPoolExecutor(1, thread_name_prefix="cuvil-dispatch")
            _DISPATCHERS[key] = pool.submit(_dispatcher, choice)
            pool.shutdown(wait=False)
        return _DISPATCHERS[key]


def _dispatcher(choice: str | None) -> dispatch.DispatchModule | None:
    if choice == "ctypes":
        log.info("calls go through ctypes: CUVIL_DISPATCH says so")
        return None
    try:
        obstacle = dispatch.obstacle()
        if obstacle is not None:
            raise BackendError(f"the native dispatcher cannot be used: {obstacle}")
        path = compile_shared(
            {f"{dispatch.NAME}.c": dispatch.source()},
            name=dispatch.NAME,
            extra_flags=dispatch.compile_flags(),
            extension=True,
        )
        module = dispatch.load_dispatch(path)
    except (BackendError, ToolchainError) as error:
        if choice == "native":
            raise
        log.info("calls go through ctypes: %s", error)
        return None
    log.info("calls go through the native dispatcher %s", path)
    return module


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

    dispatcher = start_dispatcher() if options.backend == "c" else None
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
    executable = Executable(native, runtime_library(), None if dispatcher is None else dispatcher.result())
    return Compiled(program, executable, stages, records)
