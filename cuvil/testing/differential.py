"""Runs programs on a compiled backend and on the reference, in several configurations, and says where they disagree."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from cuvil.frontend.program import TracedProgram
from cuvil.ir.interpreter import run_function
from cuvil.ops.record import Array
from cuvil.passes.pipeline import PassOptions, optimise
from cuvil.support.cache import DiskCache
from cuvil.support.errors import CuvilError, ShapeError, ToolchainError
from cuvil.symbolic import sizes as sizes_of
from cuvil.testing.batch import Lowered, compile_batch, lower
from cuvil.testing.bounds import Bounded
from cuvil.testing.compare import checked_share, first_disagreement, run_function_bounded
from cuvil.testing.programs import Program

_MAX_ELEMENTS = 50_000  # of a value, at the further sizes that a symbolic program runs at

Run = Callable[[Sequence[Array], Mapping[str, int]], Sequence[Array]]
#: Compiles lowered programs, all at once.
Compile = Callable[[Sequence[Lowered]], Sequence[Any]]


@dataclass(frozen=True)
class Configuration:
    """How a program is traced and compiled."""

    symbolic: bool
    optimise: bool

    def __str__(self) -> str:
        return f"{'symbolic' if self.symbolic else 'static'} shapes, passes {'on' if self.optimise else 'off'}"


CONFIGURATIONS = tuple(Configuration(s, o) for s in (False, True) for o in (True, False))


@dataclass(frozen=True)
class Failure:
    """One disagreement: the configuration, what happened, and at which sizes."""

    kind: str  # "value", "error", "passes", "crash", "draw"
    configuration: Configuration
    message: str
    sizes: Mapping[str, int] = field(default_factory=dict[str, int])

    def __str__(self) -> str:
        at = f" at {', '.join(f'{n} = {s}' for n, s in self.sizes.items())}" if self.sizes else ""
        return f"{self.configuration}{at}: {self.message}"


@dataclass
class Case:
    """Inputs of one size with what the reference says."""

    sizes: dict[str, int]
    inputs: list[Array]
    want: list[Bounded]


@dataclass
class Prepared:
    """A program lowered in its configurations, with the cases that each must get right."""

    program: Program
    lowered: list[tuple[Configuration, Lowered, list[Case]]] = field(
        default_factory=list[tuple[Configuration, Lowered, list[Case]]]
    )
    failures: list[Failure] = field(default_factory=list[Failure])
    checked: int = 0
    elements: int = 0


def prepare(
    program: Program,
    further_sizes: Sequence[Mapping[str, int]] = (),
    configurations: Sequence[Configuration] = CONFIGURATIONS,
) -> Prepared:
    """Trace, run on the reference, and lower. Faults up to here are among the failures."""
    out = Prepared(program)
    cases: dict[bool, list[Case]] = {}
    for c in configurations:
        if c.symbolic and not program.symbols():
            continue
        try:
            traced = program.trace(symbolic=c.symbolic)
            if c.symbolic not in cases:
                sizes = [program.sizes, *(further_sizes if c.symbolic else ())]
                cases[c.symbolic] = found = [k for s in sizes if (k := _case(program, traced, s, c.symbolic))]
                for case in found:
                    checked, elements = checked_share(case.want)
                    out.checked, out.elements = out.checked + checked, out.elements + elements
            options = PassOptions(optimise=c.optimise)
            optimise(traced.func, traced.scope, options)
            for case in cases[c.symbolic]:
                wrong = _wrong_after_passes(traced, case)
                if wrong is not None:
                    out.failures.append(Failure("passes", c, f"after the tensor-stage passes {wrong}", case.sizes))
                    break
            out.lowered.append((c, lower(traced, options), cases[c.symbolic]))
        except Exception as error:  # noqa: BLE001 - whatever it is, it is a failure of this program
            out.failures.append(Failure("error", c, _described(error), program.sizes))
    return out


def _wrong_after_passes(traced: TracedProgram, case: Case) -> str | None:
    with np.errstate(all="ignore"):
        got = run_function(traced.func, case.inputs, case.sizes)
    return first_disagreement(got, case.want)


def _described(error: BaseException) -> str:
    where = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} (in {where.name} of {where.filename.rpartition('/')[2]}:{where.lineno})"


def _case(program: Program, traced: TracedProgram, sizes: Mapping[str, int], symbolic: bool) -> Case | None:
    """A case, or None where a guard or the reference rejects these sizes (never those of the program itself)."""
    env = dict(sizes)
    own = env == dict(program.sizes)
    if symbolic and not own:
        if traced.scope.first_broken(env) is not None:
            return None
        try:
            block = traced.func.body.block
            values = [*block.args, *(r for op in block.ops for r in op.results)]
            shapes = [sizes_of(v.type.data.shape, env) for v in values]  # type: ignore[attr-defined]
            if any(min(s, default=0) < 0 or prod(s) > _MAX_ELEMENTS for s in shapes):
                return None
        except ShapeError:
            return None
    inputs = program.draw(env)
    used = env if symbolic else {}
    try:
        with np.errstate(all="ignore"):
            want = run_function_bounded(traced.func, inputs, used)
    except CuvilError:
        if own:
            raise
        return None
    return Case(used, inputs, want)


def check_prepared(prepared: Sequence[Prepared], compile_all: Compile) -> None:
    """Compile all lowered programs and run their cases; adds to each one's failures."""
    flat = [(p, *entry) for p in prepared for entry in p.lowered]
    if not flat:
        return
    try:
        loaded = list(compile_all([lowered for _, _, lowered, _ in flat]))
    except ToolchainError as error:
        if len(flat) == 1:
            flat[0][0].failures.append(Failure("error", flat[0][1], _described(error)))
            return
        # Some text does not compile: find out whose.
        for p, c, lowered, cases in flat:
            single = Prepared(p.program, [(c, lowered, cases)])
            check_prepared([single], compile_all)
            p.failures += single.failures
        return
    for (p, c, _, cases), executable in zip(flat, loaded, strict=True):
        for case in cases:
            try:
                wrong = first_disagreement(executable.run(case.inputs, case.sizes), case.want)
                kind = "value"
            except Exception as error:  # noqa: BLE001 - as above
                wrong, kind = _described(error), "error"
            if wrong is not None:
                p.failures.append(Failure(kind, c, wrong, case.sizes))
                break


def c_compiler(cache: DiskCache | None = None, extra_flags: Sequence[str] = ()) -> Compile:
    """Compiles for the C backend, a batch to a library."""
    return lambda programs: compile_batch(programs, cache=cache, extra_flags=extra_flags)


def check_programs(
    programs: Sequence[Program],
    further_sizes: Sequence[Mapping[str, int]] = (),
    configurations: Sequence[Configuration] = CONFIGURATIONS,
    compile_all: Compile | None = None,
) -> list[Prepared]:
    """Check programs on the C backend against the reference in every configuration.

    ``further_sizes`` are tried on the symbolic variants; sizes that break a guard are passed over.
    """
    prepared = [prepare(p, [_limited(p, s) for s in further_sizes], configurations) for p in programs]
    check_prepared(prepared, compile_all or c_compiler())
    return prepared


def _limited(program: Program, sizes: Mapping[str, int]) -> dict[str, int]:
    return {n: sizes[n] for n in program.sizes}
