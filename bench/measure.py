"""Runs workloads: checks every system's outputs, then times all of them in interleaved rounds."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from bench.client import ROOT, Worker, WorkerError, worker_environment
from bench.pytree import load_tree, save_tree
from bench.statistics import error, spread
from bench.systems.registry import SYSTEMS
from bench.workloads import Workload

Status = Literal["measured", "absent", "failed", "wrong"]
Progress = Callable[[str], None]


@dataclass(frozen=True)
class Plan:
    """How long to measure.

    Attributes:
        rounds: how often each system gets its turn.
        slot: seconds of one turn, roughly.
        seed: of weights and inputs.
    """

    rounds: int = 9
    slot: float = 0.15
    seed: int = 0


@dataclass
class Measurement:
    """What one system did on one workload. ``rounds`` holds the median seconds of a call in each round."""

    system: str
    status: Status
    message: str = ""
    load_seconds: float | None = None
    error: float | None = None
    rounds: list[float] = field(default_factory=list[float])


@dataclass
class Outcome:
    """One workload: every system's measurement, its least work, and the machine's ceilings in each round."""

    workload: str
    measurements: dict[str, Measurement]
    reference: str
    flops: int | None = None
    traffic: int = 0
    ceilings: list[dict[str, float]] = field(default_factory=list[dict[str, float]])
    profile: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])

    def ceiling(self, what: str) -> float:
        """Median over the rounds of ``flops_per_second``, ``bytes_per_second`` or ``amx_flops_per_second``."""
        return spread([c[what] for c in self.ceilings]).median if self.ceilings else float("nan")

    def floors(self) -> list[float]:
        """The least seconds at each round's ceilings: of the multiply-adds or of the traffic, the longer one."""
        if self.flops is None:
            return []
        return [max(self.flops / c["flops_per_second"], self.traffic / c["bytes_per_second"]) for c in self.ceilings]


class Harness:
    """The workers of one run. Systems whose worker does not start are in ``absent`` with the reason."""

    def __init__(
        self, systems: Sequence[str], *, python: Path, peers_python: Path, threads: int, folder: Path,
        cold: bool = False,
    ) -> None:  # fmt: skip
        self.threads = threads
        self.folder = folder
        self.peers_python = peers_python
        self.workers: dict[str, Worker] = {}
        self.absent: dict[str, str] = {}
        self.versions: dict[str, str] = {}
        self._python = python
        folder.mkdir(parents=True, exist_ok=True)
        self._log = (folder / "workers.log").open("w")
        self._extra: dict[str, str] = {}
        if cold:
            cache = folder / "cold-cache"
            shutil.rmtree(cache, ignore_errors=True)
            self._extra = {"CUVIL_CACHE_DIR": str(cache), "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1"}
        self.ceiling = self._start("ceiling", python)
        for name in systems:
            self._open(name)

    def _start(self, name: str, python: Path) -> Worker:
        worker = Worker(name, python, self.threads, self._log, self._extra)
        try:
            self.versions[name] = worker.ask(do="hello")["version"]
        except WorkerError:
            worker.close()
            raise
        return worker

    def _open(self, name: str) -> None:
        """Start a system's worker, or note why there is none."""
        peer = SYSTEMS[name].peer
        python = self.peers_python if peer else self._python
        if peer and not python.exists():
            self.absent[name] = f"the peers' environment has no {python}"
            return
        try:
            self.workers[name] = self._start(name, python)
        except WorkerError as problem:
            self.absent[name] = str(problem)

    def close(self) -> None:
        """End all workers."""
        for worker in (self.ceiling, *self.workers.values()):
            worker.close()
        self._log.close()

    # ------------------------------------------------------------------------------------------- one workload
    def run(
        self, workload: Workload, plan: Plan, *, profile: bool = False, progress: Progress = lambda _: None
    ) -> Outcome:
        """Prepare, check and time one workload."""
        folder = self.folder / workload.name
        shutil.rmtree(folder, ignore_errors=True)
        try:
            return self._run(workload, plan, folder, profile, progress)
        finally:
            shutil.rmtree(folder, ignore_errors=True)  # weights are large

    def _run(self, workload: Workload, plan: Plan, folder: Path, profile: bool, progress: Progress) -> Outcome:
        progress("weights")
        rng = np.random.default_rng(plan.seed)
        parameters, inputs = workload.parameters(rng), workload.inputs(rng)
        save_tree(parameters, folder / "parameters")
        save_tree(inputs, folder / "inputs")
        progress("reference")
        source = "torch" if "torch" in self.workers else "cuvil"
        try:
            self.workers[source].ask(
                do="reference", workload=workload.name, folder=str(folder), outputs=str(folder / "reference")
            )
        except WorkerError as problem:
            if not self.workers[source].alive():
                self._open(source)
            message = f"no reference by {source}: {problem}"
            return Outcome(workload.name, {n: Measurement(n, "failed", message) for n in self.workers}, source)
        reference = load_tree(folder / "reference")
        measured: dict[str, Measurement] = {
            name: Measurement(name, "absent", message) for name, message in self.absent.items()
        }
        # Traffic is that of float32 outputs; the reference's are float64.
        traffic = workload.traffic(parameters, inputs, [a.astype(np.float32) for a in reference])
        outcome = Outcome(workload.name, measured, f"{source} in float64", traffic=traffic)
        del parameters
        exported = self._export(workload, folder, progress)
        for name in self.workers:
            progress(f"{name}: compile")
            measured[name] = self._load(name, workload, folder, reference, exported, outcome)
        self._time(outcome, plan, progress)
        ours = measured.get("cuvil")
        if profile and ours is not None and ours.status == "measured":
            progress("profile")
            outcome.profile = self.workers["cuvil"].ask(do="profile", iterations=11)["rows"]
        for worker in self.workers.values():
            if worker.alive():
                worker.ask(do="unload")
        return outcome

    def _export(self, workload: Workload, folder: Path, progress: Progress) -> str:
        """Export to ONNX where a system needs it; what went wrong, or nothing."""
        if not any(SYSTEMS[name].exported for name in self.workers):
            return ""
        progress("export to ONNX")
        done = subprocess.run(
            [str(self.peers_python), "-m", "bench.export", workload.name, str(folder)],
            cwd=ROOT,
            env=worker_environment(self.threads),
            stdout=self._log,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._log.write(done.stderr)
        if done.returncode == 0:
            return ""
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        return f"export to ONNX: {lines[-1] if lines else f'exit status {done.returncode}'}"

    def _load(
        self, name: str, workload: Workload, folder: Path, reference: list[np.ndarray], exported: str, outcome: Outcome
    ) -> Measurement:
        entry = SYSTEMS[name]
        if entry.exported and exported:
            return Measurement(name, "failed", exported)
        if not self.workers[name].alive():
            self._open(name)  # it crashed on the workload before
        try:
            answer = self.workers[name].ask(
                do="load", workload=workload.name, folder=str(folder), outputs=str(folder / name)
            )
        except WorkerError as problem:
            return Measurement(name, "failed", str(problem))
        outputs = load_tree(folder / name)
        shutil.rmtree(folder / name)
        if name == "cuvil":
            outcome.flops = answer["facts"]["flops"]
        worst = max((error(a, b) for a, b in zip(outputs, reference, strict=False)), default=0.0)
        if len(outputs) != len(reference):
            worst = float("inf")
        limit = workload.low_tolerance if entry.low_precision else workload.tolerance
        if not worst <= limit:
            message = f"error {worst:.2g} of the output's root mean square, allowed is {limit:g}"
            return Measurement(name, "wrong", message, answer["load_seconds"], worst)
        return Measurement(name, "measured", "", answer["load_seconds"], worst)

    def _time(self, outcome: Outcome, plan: Plan, progress: Progress) -> None:
        names = [n for n, m in outcome.measurements.items() if m.status == "measured"]
        counts: dict[str, int] = {}
        for name in list(names):
            seconds = self._turn(outcome.measurements[name], names, iterations=3, warm=2)
            counts[name] = min(max(round(plan.slot / min(seconds)), 2), 1000) if seconds else 0
        for number in range(plan.rounds):
            progress(f"round {number + 1} of {plan.rounds}")
            shift = number % max(1, len(names))
            for name in names[shift:] + names[:shift]:
                if name == "cuvil":
                    # Just before cuvil's turn: the machine's speed drifts, and the two are compared within the round.
                    ceiling = self.ceiling.ask(do="ceiling", bytes=outcome.traffic, seconds=plan.slot / 5)
                    outcome.ceilings.append(ceiling)
                n = counts[name]
                # The caches hold what the system before left there: a part of the turn brings ours back.
                seconds = self._turn(outcome.measurements[name], names, iterations=n, warm=1 + n // 8)
                if seconds:
                    outcome.measurements[name].rounds.append(spread(seconds).median)

    def _turn(self, m: Measurement, names: list[str], *, iterations: int, warm: int) -> list[float]:
        """Seconds of a system's calls; a system that fails leaves ``names`` and has no figure."""
        try:
            return self.workers[m.system].ask(do="time", iterations=iterations, warm=warm)["seconds"]
        except WorkerError as problem:
            names.remove(m.system)
            m.status, m.message, m.rounds = "failed", str(problem), []
            return []
