"""The process of one system: reads commands as JSON lines, loads workloads and times them."""

from __future__ import annotations

import ctypes
import gc
import importlib
import importlib.metadata
import json
import os
import signal
import sys
import traceback
from pathlib import Path
from time import perf_counter
from typing import IO, Any

import numpy as np

from bench.pytree import load_tree, save_tree
from bench.systems.base import Session, System
from bench.systems.registry import SYSTEMS
from bench.workloads import WORKLOADS

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


class Server:
    """Holds the system and the workload that is loaded."""

    def __init__(self, name: str) -> None:
        entry = SYSTEMS[name]
        if entry.distribution != "cuvil":
            importlib.metadata.version(entry.distribution)  # PackageNotFoundError names what is missing
        self.system: System = getattr(importlib.import_module(entry.module), entry.symbol)()
        self.session: Session | None = None

    def handle(self, command: dict[str, Any]) -> dict[str, Any]:
        """Answer one command."""
        return getattr(self, "do_" + command.pop("do"))(**command)

    def do_hello(self) -> dict[str, Any]:
        return {"version": self.system.version()}

    def do_load(self, workload: str, folder: str, outputs: str) -> dict[str, Any]:
        """Compile, call once, and write what came out into the folder ``outputs``."""
        self.do_unload()
        where = Path(folder)
        parameters, inputs = load_tree(where / "parameters"), load_tree(where / "inputs")
        start = perf_counter()
        session = self.system.load(WORKLOADS[workload], parameters, inputs, where)
        result = session.run()
        seconds = perf_counter() - start
        save_tree(session.outputs(result), Path(outputs))
        self.session = session
        return {"load_seconds": seconds, "facts": session.facts}

    def do_reference(self, workload: str, folder: str, outputs: str) -> dict[str, Any]:
        where = Path(folder)
        tree, inputs = load_tree(where / "parameters"), load_tree(where / "inputs")
        save_tree(self.system.reference(WORKLOADS[workload], tree, inputs), Path(outputs))  # type: ignore[attr-defined]
        return {}

    def do_time(self, iterations: int, warm: int) -> dict[str, Any]:
        """Seconds of each of ``iterations`` calls, after ``warm`` calls that are not counted."""
        assert self.session is not None
        run = self.session.run
        for _ in range(warm):
            run()
        seconds: list[float] = []
        gc.disable()
        for _ in range(iterations):
            start = perf_counter()
            run()
            seconds.append(perf_counter() - start)
        gc.enable()
        return {"seconds": seconds}

    def do_profile(self, iterations: int) -> dict[str, Any]:
        assert self.session is not None
        return {"rows": self.session.profile(iterations)}  # type: ignore[attr-defined]

    def do_unload(self) -> dict[str, Any]:
        self.session = None
        gc.collect()
        return {}


class CeilingServer:
    """Measures what the machine gives at most; a process of its own, paused and resumed like a system."""

    def __init__(self) -> None:
        from bench.roofline import Roofline

        self.roofline = Roofline(int(os.environ["OMP_NUM_THREADS"]))

    def handle(self, command: dict[str, Any]) -> dict[str, Any]:
        """Answer one command."""
        assert command["do"] in ("hello", "ceiling")
        if command["do"] == "hello":
            return {"version": ""}
        return self.roofline.measure(command["bytes"], command["seconds"])


def _jsonable(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{type(value).__name__} is not JSON")


def serve(name: str, commands: IO[str], answers: IO[str]) -> None:
    """Answer every line of ``commands`` with a line; an error is an answer as well."""
    server: Server | CeilingServer | None = None
    for line in commands:
        try:
            if server is None:
                server = CeilingServer() if name == "ceiling" else Server(name)
            answer = server.handle(json.loads(line))
        except Exception as error:  # noqa: BLE001
            # Whatever a system raises is its result, which the harness reports.
            traceback.print_exc()
            text = " ".join(str(error).split())[:500]
            answer = {"error": f"{type(error).__name__}: {text}" if text else type(error).__name__}
        answers.write(json.dumps(answer, default=_jsonable) + "\n")
        answers.flush()


def _end_with_parent() -> None:
    """Let Linux kill this process when the harness ends, however it ends: a stopped process does not see that its
    standard input was closed."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def main() -> None:
    _end_with_parent()
    # Libraries print to standard output as they like: answers get a descriptor of their own.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    serve(sys.argv[1], sys.stdin, answers)


if __name__ == "__main__":
    main()
