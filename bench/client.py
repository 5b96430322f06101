"""Starts, stops, pauses and asks the worker processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from pathlib import Path
from typing import IO, Any

#: The longest that a command may take; compilations of large models by the slowest peer are well below.
ANSWER_SECONDS = 900.0
ROOT = Path(__file__).resolve().parent.parent


class WorkerError(Exception):
    """A worker answered with an error, ended or ran out of time."""


def worker_environment(threads: int, extra: dict[str, str] | None = None) -> dict[str, str]:
    """The environment in which every system sees the same number of threads."""
    count = str(threads)
    return {
        **os.environ,
        "OMP_NUM_THREADS": count,
        "MKL_NUM_THREADS": count,
        "OPENBLAS_NUM_THREADS": count,
        "CUVIL_NUM_THREADS": count,
        "JAX_PLATFORMS": "cpu",
        "TF_CPP_MIN_LOG_LEVEL": "2",
        **(extra or {}),
    }


class Worker:
    """A process that serves one system.

    It only runs while it is asked something: between commands it is stopped by SIGSTOP, so that threads of one
    library that spin on cannot disturb the next.
    """

    def __init__(
        self, name: str, python: Path, threads: int, log: IO[str], extra: dict[str, str] | None = None
    ) -> None:
        self.name = name
        self._process = subprocess.Popen(
            [str(python), "-m", "bench.worker", name],
            cwd=ROOT,
            env=worker_environment(threads, extra),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
        if hasattr(os, "sched_setaffinity"):
            # Libraries without a setting for it, such as XLA, take as many threads as they may use CPUs.
            cpus = sorted(os.sched_getaffinity(0))[:threads]
            os.sched_setaffinity(self._process.pid, cpus)

    def ask(self, **command: Any) -> dict[str, Any]:
        """Send a command and wait for its answer.

        Raises:
            WorkerError: the answer is an error, or the process has ended.
        """
        assert self._process.stdin is not None and self._process.stdout is not None
        self._signal(signal.SIGCONT)
        timer = threading.Timer(ANSWER_SECONDS, self._process.kill)
        timer.start()
        try:
            self._process.stdin.write(json.dumps(command) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        finally:
            timer.cancel()
        if not line:
            raise WorkerError(
                f"the process ended with status {self._process.wait()} (it is killed after {ANSWER_SECONDS:g} s)"
            )
        self._signal(signal.SIGSTOP)
        answer = json.loads(line)
        if "error" in answer:
            raise WorkerError(answer["error"])
        return answer

    def _signal(self, number: signal.Signals) -> None:
        if self._process.poll() is None:
            self._process.send_signal(number)

    @property
    def pid(self) -> int:
        """The process's number."""
        return self._process.pid

    def alive(self) -> bool:
        """Whether the process runs (or is paused)."""
        return self._process.poll() is None

    def close(self) -> None:
        """End the process."""
        self._signal(signal.SIGKILL)
        self._process.communicate()
