"""Checks random programs on the C backend against the reference: ``python -m cuvil.testing.fuzz --programs 20000``.

Programs come from seeds and are compiled in batches, one library each, by child processes: a program that crashes or
hangs ends its child only, and is then found by running the batch's programs one by one. A failing program is made
smaller and written to a folder as Python that runs on its own. The summary goes to standard output as JSON.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np

from cuvil.support import config
from cuvil.support.cache import DiskCache
from cuvil.support.errors import ArgumentError
from cuvil.testing.arrays import RandomChooser
from cuvil.testing.differential import CONFIGURATIONS, Configuration, Failure, c_compiler, check_programs
from cuvil.testing.generate import SIZES, draw_program
from cuvil.testing.programs import Program
from cuvil.testing.shrink import shrunk

_DESCRIPTION = "Check random programs on the C backend against the reference; the summary is JSON."
_BATCH = 25
_BATCH_SECONDS = 900.0
_SINGLE_SECONDS = 120.0
_SHRINK_SECONDS = 300.0
_FURTHER = 3  # further sizes that each batch's symbolic programs run at


@dataclass
class Found:
    """A program that failed."""

    seed: int
    failure: Failure
    file: str = ""


@dataclass
class Totals:
    """What a run has done."""

    programs: int = 0
    ops: int = 0
    symbolic: int = 0
    checked: int = 0
    elements: int = 0
    found: list[Found] = field(default_factory=list[Found])


def fuzz_program(seed: int, steps: int = 8) -> Program:
    """The program of a seed."""
    return draw_program(RandomChooser(seed), steps)


def further_sizes(seed: int, count: int = _FURTHER) -> list[dict[str, int]]:
    """Sizes for the symbols B, S and N, from a seed; the first are all 1, the second hold a 0."""
    rng = np.random.default_rng(seed)
    drawn = [{n: int(rng.choice(SIZES)) for n in ("B", "S", "N")} for _ in range(count)]
    return [dict.fromkeys(("B", "S", "N"), 1), {**drawn[0], str(rng.choice(["B", "S", "N"])): 0}, *drawn[1:]]


# ------------------------------------------------------------------------------------------------ children


def _child(target: Callable[[Connection], None], connection: Connection, folder: str, limit: float) -> None:
    signal.alarm(int(limit))  # ends the process, native code included
    os.environ["CUVIL_CACHE_DIR"] = os.environ.get("CUVIL_CACHE_DIR") or folder
    target(connection)
    connection.close()


@dataclass
class _Running:
    process: BaseProcess
    connection: Connection
    seeds: tuple[int, ...]


class _Children:
    """Starts child processes by fork: they inherit the loaded package and what they are to do."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        # The parent has no threads and has loaded no native code when it forks.
        self._context = multiprocessing.get_context("fork")

    def start(self, target: Callable[[Connection], None], seeds: Sequence[int], limit: float) -> _Running:
        ours, theirs = self._context.Pipe(duplex=False)
        process = self._context.Process(target=_child, args=(target, theirs, str(self._folder), limit))
        process.start()
        theirs.close()
        return _Running(process, ours, tuple(seeds))

    def call(self, target: Callable[[Connection], None], limit: float) -> Any:
        """What a child sends, or a sentence about how it ended."""
        return self.finish(self.start(target, (), limit))

    @staticmethod
    def finish(running: _Running) -> Any:
        """What a child sent, or a sentence about how it ended."""
        try:
            out = running.connection.recv()
        except EOFError:
            out = None
        running.process.join()
        running.connection.close()
        if out is not None:
            return out
        code = running.process.exitcode or 0
        if code == -signal.SIGALRM:
            return "it did not end in time"
        return f"the process ended by {signal.Signals(-code).name}" if code < 0 else f"the process exited with {code}"


class Fuzzer:
    """Runs seeds in batches over child processes and writes down what fails."""

    def __init__(
        self, folder: Path, *, jobs: int = 2, steps: int = 8, shrink: bool = True, extra_flags: Sequence[str] = ()
    ) -> None:
        self.folder = folder
        self.jobs = jobs
        self.steps = steps
        self.shrink = shrink
        self.extra_flags = tuple(extra_flags)
        self.totals = Totals()
        self._scratch = Path(tempfile.mkdtemp(prefix="cuvil-fuzz-"))
        self._children = _Children(self._scratch / "runtime")

    def run(self, seeds: Sequence[int], progress: Callable[[Totals], None] = lambda _: None) -> Totals:
        """Check the programs of seeds."""
        batches = [tuple(seeds[k : k + _BATCH]) for k in range(0, len(seeds), _BATCH)]
        running: list[_Running] = []
        try:
            while batches or running:
                while batches and len(running) < self.jobs:
                    running.append(self._start(batches.pop(0)))
                ready = wait([r.connection for r in running])
                for r in [r for r in running if r.connection in ready]:
                    running.remove(r)
                    self._finish(r)
                    progress(self.totals)
        finally:
            for r in running:
                r.process.kill()
                r.process.join()
            shutil.rmtree(self._scratch, ignore_errors=True)
        return self.totals

    def _start(self, seeds: tuple[int, ...]) -> _Running:
        limit = _BATCH_SECONDS if len(seeds) > 1 else _SINGLE_SECONDS
        return self._children.start(lambda connection: self._batch(seeds, connection), seeds, limit)

    def _batch(self, seeds: tuple[int, ...], connection: Connection) -> None:
        """In a child: check the programs of some seeds."""
        scratch = Path(tempfile.mkdtemp(dir=self._scratch))
        try:
            programs = [fuzz_program(s, self.steps) for s in seeds]
            results = check_programs(
                programs,
                further_sizes(seeds[0]),
                compile_all=c_compiler(DiskCache(scratch), self.extra_flags),
            )
            counts = (
                sum(len(p.steps) for p in programs),
                sum(bool(p.symbols()) for p in programs),
                sum(r.checked for r in results),
                sum(r.elements for r in results),
            )
            connection.send((counts, [(s, r.failures[0]) for s, r in zip(seeds, results, strict=True) if r.failures]))
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    def _finish(self, running: _Running) -> None:
        out = self._children.finish(running)
        if isinstance(out, str):
            if len(running.seeds) == 1:
                self.totals.programs += 1
                self._report(running.seeds[0], Failure("crash", CONFIGURATIONS[0], out))
                return
            for seed in running.seeds:
                self._finish(self._start((seed,)))
            return
        (ops, symbolic, checked, elements), failures = out
        t = self.totals
        t.programs += len(running.seeds)
        t.ops, t.symbolic = t.ops + ops, t.symbolic + symbolic
        t.checked, t.elements = t.checked + checked, t.elements + elements
        for seed, failure in failures:
            self._report(seed, failure)

    # --------------------------------------------------------------------------------------- failures
    def _report(self, seed: int, failure: Failure) -> None:
        try:
            program = fuzz_program(seed, self.steps)
        except Exception as error:  # noqa: BLE001 - the generator's own fault, and no program to write down
            self.totals.found.append(Found(seed, replace(failure, kind="draw", message=f"not drawn: {error!r}")))
            return
        configurations = CONFIGURATIONS if failure.kind == "crash" else (failure.configuration,)
        if failure.sizes:
            # What is written down runs at one set of sizes: those that fail.
            program = replace(program, sizes=dict(failure.sizes))
        if self.shrink:
            deadline = time.monotonic() + _SHRINK_SECONDS
            program = shrunk(
                program, lambda p: time.monotonic() < deadline and self._problem(p, configurations) is not None
            )
            failure = self._problem(program, configurations) or failure
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"program_{seed}.py"
        path.write_text(program.source(f"Seed {seed}. {failure}".replace('"""', "'''").replace("\\", "\\\\")))
        self.totals.found.append(Found(seed, failure, str(path)))

    def _problem(self, program: Program, configurations: Sequence[Configuration]) -> Failure | None:
        """In a child of its own, since it may crash."""

        def check(connection: Connection) -> None:
            scratch = Path(tempfile.mkdtemp(dir=self._scratch))
            (result,) = check_programs([program], (), configurations, c_compiler(DiskCache(scratch), self.extra_flags))
            connection.send(result.failures[:1])

        out = self._children.call(check, _SINGLE_SECONDS)
        if isinstance(out, str):
            return Failure("crash", configurations[0], out)
        return out[0] if out else None


# ---------------------------------------------------------------------------------------------- command line


def summary(totals: Totals, seconds: float) -> dict[str, Any]:
    """A run as JSON values."""
    return {
        "programs": totals.programs,
        "failures": len(totals.found),
        "ops_per_program": round(totals.ops / max(1, totals.programs), 2),
        "symbolic_share": round(totals.symbolic / max(1, totals.programs), 3),
        "elements": totals.elements,
        "compared_share": round(totals.checked / max(1, totals.elements), 4),
        "seconds": round(seconds, 1),
        "programs_per_minute": round(60 * totals.programs / max(seconds, 1e-9), 1),
        "found": [
            {"seed": f.seed, "kind": f.failure.kind, "what": str(f.failure), "file": f.file} for f in totals.found
        ],
    }


def _bar(totals: Totals, count: int, started: float) -> None:
    width = 30
    full = width * totals.programs // max(1, count)
    rate = 60 * totals.programs / max(time.monotonic() - started, 1e-9)
    sys.stderr.write(
        f"\r[{'#' * full}{'.' * (width - full)}] {totals.programs}/{count}, "
        f"{len(totals.found)} failures, {rate:.0f}/min "
    )
    sys.stderr.flush()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; 1 when some program failed."""
    parser = argparse.ArgumentParser(prog="python -m cuvil.testing.fuzz", description=_DESCRIPTION)
    parser.add_argument("--programs", type=int, default=1000, help="how many programs (default 1000)")
    parser.add_argument("--seed", type=int, default=0, help="the first program's seed; the others follow it")
    parser.add_argument("--jobs", type=int, default=config.available_cpus(), help="processes")
    parser.add_argument("--steps", type=int, default=8, help="ops in a program, about")
    parser.add_argument("--folder", type=Path, default=Path("build/fuzz"), help="where failing programs are written")
    parser.add_argument("--no-shrink", action="store_true", help="write failing programs as they were drawn")
    given = parser.parse_args(arguments)
    if given.programs < 1 or given.jobs < 1 or given.steps < 1:
        raise ArgumentError("--programs, --jobs and --steps take whole numbers from 1")
    os.environ.setdefault("CUVIL_NUM_THREADS", "2")  # two, so that work is split; more would only contend
    terminal = sys.stderr.isatty()
    started = time.monotonic()
    fuzzer = Fuzzer(given.folder, jobs=given.jobs, steps=given.steps, shrink=not given.no_shrink)
    totals = fuzzer.run(
        range(given.seed, given.seed + given.programs),
        (lambda t: _bar(t, given.programs, started)) if terminal else (lambda _: None),
    )
    if terminal:
        sys.stderr.write("\n")
    sys.stdout.write(json.dumps(summary(totals, time.monotonic() - started), indent=2) + "\n")
    return 1 if totals.found else 0


if __name__ == "__main__":
    sys.exit(main())
