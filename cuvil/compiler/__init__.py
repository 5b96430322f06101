"""From a traced program to something callable: the one module that knows passes and backends together."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, TypeVar

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp

from cuvil.backends.base import Runnable
from cuvil.backends.c.backend import constants_path, runtime_path
from cuvil.backends.c.toolchain import compile_shared
from cuvil.backends.null.backend import NullProgram
from cuvil.backends.reference.backend import ReferenceProgram
from cuvil.compiler import stored as stored_programs
from cuvil.compiler.stored import Stored
from cuvil.frontend.program import TracedProgram
from cuvil.ir.attributes import ConstantArray
from cuvil.ir.dialect import ConstantOp
from cuvil.ir.kernel_program import KernelProgram
from cuvil.ir.text import format_module
from cuvil.ir.verifier import Stage, verify_stage
from cuvil.ops.record import Array
from cuvil.passes.engine import Rule
from cuvil.passes.lowering.program import lower_program
from cuvil.passes.pipeline import PassOptions, PassRecord, fuse_stage, optimise
from cuvil.runtime import dispatch
from cuvil.runtime.executable import Executable
from cuvil.runtime.library import ConstantLibrary, RuntimeLibrary
from cuvil.support import config
from cuvil.support.cache import DiskCache, shared_cache
from cuvil.support.errors import ArgumentError, BackendError, IRError, ToolchainError

log = logging.getLogger("cuvil.compiler")

BACKENDS = ("c", "reference", "null")
Numerics = Literal["standard", "relaxed"]
Precision = Literal["float32", "bf16"]


@dataclass(frozen=True)
class CompileOptions:
    """How a program is compiled. Hashable: part of every cache key.

    Attributes:
        backend: ``"c"``, ``"reference"`` or ``"null"``.
        numerics: ``"standard"`` changes only the order of float sums and contracts to FMA; ``"relaxed"`` also admits
            rules that reassociate, and Winograd's convolution (see docs/design/layout.md).
        precision: ``"float32"``, or ``"bf16"``: float32 matrix products and convolutions may round their operands to
            bfloat16 and add in float32, where the processor has a unit for that.
        optimise: run the algebraic passes (fusion always runs; it changes no value).
        validate: verify each stage against its spec, and run the program on the interpreter before and after every
            pass and name the pass that changed it.
        rules: the user's own rewrite rules, tried after the compiler's.
    """

    backend: str = "c"
    numerics: Numerics = "standard"
    precision: Precision = "float32"
    optimise: bool = True
    validate: bool = False
    rules: tuple[Rule, ...] = ()

    def __post_init__(self) -> None:
        if self.backend not in BACKENDS:
            raise ArgumentError(f"unknown backend {self.backend!r}; expected one of {', '.join(BACKENDS)}")
        if self.numerics not in ("standard", "relaxed"):
            raise ArgumentError(f"unknown numerics {self.numerics!r}; expected 'standard' or 'relaxed'")
        if self.precision not in ("float32", "bf16"):
            raise ArgumentError(f"unknown precision {self.precision!r}; expected 'float32' or 'bf16'")


@dataclass
class Compiled:
    """A compiled program with the text of each stage.

    ``stages`` maps ``tensor``, ``optimised``, ``fused``, ``kernel`` and ``source`` to text, made on demand. The
    function in ``program`` is empty unless its text was to be kept.
    """

    program: TracedProgram
    runnable: Runnable
    stages: dict[str, Callable[[], str]]
    records: list[PassRecord] = field(default_factory=list[PassRecord])
    from_cache: bool = False  # found compiled: no pass ran

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


T = TypeVar("T")

_PREPARED: dict[tuple[str, str | None, int], Future[Any]] = {}
_PREPARED_LOCK = threading.Lock()


def _prepare(name: str, choice: str | None, make: Callable[[], T]) -> Future[T]:
    """What ``make`` returns, once in a process, made by a thread of its own while the caller goes on."""
    with _PREPARED_LOCK:
        key = (name, choice, os.getpid())  # a forked child has not the thread that was to fulfil its parent's promise
        known = _PREPARED.get(key)
        if known is None or (known.done() and known.exception() is not None):  # what failed may have been mended
            pool = ThreadPoolExecutor(1, thread_name_prefix=f"cuvil-{name}")
            known = _PREPARED[key] = pool.submit(make)
            pool.shutdown(wait=False)
        return known


os.register_at_fork(after_in_child=lambda: globals().update(_PREPARED_LOCK=threading.Lock()))


def start_runtime() -> Future[RuntimeLibrary]:
    """The process's runtime library with its pool of ``CUVIL_NUM_THREADS`` threads, compiled where it never was."""
    return _prepare(
        "runtime", None, lambda: RuntimeLibrary(runtime_path(), config.num_threads(), config.hidden_cpu_features())
    )


def runtime_library() -> RuntimeLibrary:
    """What :func:`start_runtime` gives."""
    return start_runtime().result()


@lru_cache(maxsize=1)
def _tell_missing_bf16() -> None:
    log.warning(
        "precision='bf16' has no effect: this machine has no unit that multiplies bfloat16 (AMX-BF16 or AVX512-BF16),"
        " so contractions are computed in float32"
    )


@lru_cache(maxsize=1)
def constant_library() -> ConstantLibrary:
    """The process's library for hashes and copies of constants."""
    return ConstantLibrary(constants_path())


def start_dispatcher() -> Future[dispatch.DispatchModule | None]:
    """The dispatcher that ``CUVIL_DISPATCH`` asks for, None for ctypes; it is built while the caller goes on.

    Its result raises BackendError or ToolchainError where the native one is asked for and cannot be had.
    """
    choice = config.dispatch()
    return _prepare("dispatch", choice, lambda: _dispatcher(choice))


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


def compile_program(program: TracedProgram, options: CompileOptions, *, keep_text: bool = False) -> Compiled:
    """Optimise, lower and compile a traced program, or find it compiled in the disk cache.

    ``keep_text`` keeps the text of the stages that later passes rewrite in place, and the rewritten function.
    """
    if options.backend == "c":
        return _compile_native(program, options, keep_text)
    texts: dict[str, Callable[[], str]] = {}
    if options.backend == "reference":
        _verify(options, program.module, "tensor")
        _keep(texts, "tensor", program.module, keep_text)
        records: list[PassRecord] = []
        if options.optimise:
            records = optimise(program.func, program.scope, _pass_options(options))
            _keep(texts, "optimised", program.module, keep_text)
            _verify(options, program.module, "optimised")
        for constant in _constants(program.func):
            constant.own()
        return Compiled(program, ReferenceProgram(program.func), texts, records)
    lowered, records = _lower(program, options, texts if keep_text else None)
    texts["kernel"] = lambda: format_module(lowered.module)
    return Compiled(program, NullProgram(program.outputs), texts, records)


def fuse_program(program: TracedProgram, options: CompileOptions) -> list[PassRecord]:
    """Run the passes up to the fused stage, in place: what diagnostics look at."""
    records = optimise(program.func, program.scope, _pass_options(options))
    return records + fuse_stage(program.func, program.scope, _pass_options(options))


def _compile_native(program: TracedProgram, options: CompileOptions, keep_text: bool) -> Compiled:
    runtime, dispatcher, cache = start_runtime(), start_dispatcher(), shared_cache()
    tools = constant_library()
    if options.precision == "bf16" and not runtime.result().multiplies_bf16:
        _tell_missing_bf16()
    stored = None
    if options.rules or options.validate:
        what = "rules of the user" if options.rules else "validation of the passes"
        log.info("%s is compiled without the compile cache: %s", program.name, what)
    else:
        settings = f"{options.numerics} {options.precision} {options.optimise}"
        stored = stored_programs.find(program, settings, cache, tools)
    texts: dict[str, Callable[[], str]] = {}
    made: list[tuple[KernelProgram, list[PassRecord]]] = []

    def lowered() -> tuple[KernelProgram, list[PassRecord]]:
        if not made:
            made.append(_lower(program, options, texts if keep_text else None))
        return made[0]

    if keep_text:
        lowered()
    if stored is None:
        kernels, records = lowered()
        with TemporaryDirectory(prefix="cuvil-") as folder:
            native = stored_programs.link(Path(folder), kernels)
            executable = Executable(native, runtime.result(), dispatcher.result(), tools)
        texts["kernel"] = partial(format_module, kernels.module)
        texts["source"] = partial(stored_programs.source_text, native.sources)
    else:
        loaded = _load(stored, cache, lowered)
        for constant in stored.captured:
            constant.forget()
        executable = Executable(loaded.program, runtime.result(), dispatcher.result(), tools)
        records = loaded.records
        texts |= loaded.texts
    if not keep_text:
        # What the executable needs, it has; the traced function would keep its constants in memory a second time.
        program = replace(program, module=ModuleOp([]), func=FuncOp("main", ([], [])))
    return Compiled(program, executable, texts, records, from_cache=not made)


def _load(
    stored: Stored, cache: DiskCache, lowered: Callable[[], tuple[KernelProgram, list[PassRecord]]]
) -> stored_programs.Loaded:
    """The program of an entry of the cache, which is made where there is none or it cannot be read."""

    def build(folder: Path) -> None:
        kernels, records = lowered()
        stored_programs.write_entry(folder, kernels, stored, records)

    try:
        return stored_programs.read_entry(cache.put(stored.key, build), stored)
    except IRError as error:
        cache.discard(stored.key, str(error))
    return stored_programs.read_entry(cache.put(stored.key, build), stored)


def _lower(
    program: TracedProgram, options: CompileOptions, texts: dict[str, Callable[[], str]] | None
) -> tuple[KernelProgram, list[PassRecord]]:
    """Run every pass, in place; ``texts`` gets the text of each stage."""
    keep, kept = texts is not None, {} if texts is None else texts
    _verify(options, program.module, "tensor")
    _keep(kept, "tensor", program.module, keep)
    records = optimise(program.func, program.scope, _pass_options(options))
    _keep(kept, "optimised", program.module, keep)
    _verify(options, program.module, "optimised")
    records += fuse_stage(program.func, program.scope, _pass_options(options))
    _keep(kept, "fused", program.module, keep)
    _verify(options, program.module, "fused")
    lowered = lower_program(program.func, program.scope, bf16=options.precision == "bf16")
    _verify(options, lowered.module, "kernel")
    for constant in lowered.constants:
        constant.forget()
    return lowered, records


def _pass_options(options: CompileOptions) -> PassOptions:
    return PassOptions(
        numerics=options.numerics, optimise=options.optimise, validate=options.validate, rules=options.rules
    )


def _verify(options: CompileOptions, module: ModuleOp, stage: Stage) -> None:
    if options.validate:
        verify_stage(module, stage)


def _keep(texts: dict[str, Callable[[], str]], stage: str, module: ModuleOp, keep: bool) -> None:
    if keep:
        text = format_module(module)
        texts[stage] = lambda: text


def _constants(func: FuncOp) -> list[ConstantArray]:
    return [op.constant for op in func.walk() if isinstance(op, ConstantOp)]
