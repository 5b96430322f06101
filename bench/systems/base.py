"""What a system must do: load a workload once, then run it again and again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from bench.pytree import Tree
from bench.workloads import Workload


class AbsentError(Exception):
    """The system cannot run here, or not this workload; the message says why."""


@dataclass
class Session:
    """A loaded workload.

    ``run()`` calls the system in its own idiom, on inputs that it was given in its own kind of array, and returns when
    the results are there. ``outputs`` turns what it returned into NumPy arrays. ``facts`` goes into the report.
    """

    run: Callable[[], Any]
    outputs: Callable[[Any], list[np.ndarray]]
    facts: dict[str, Any]


class System(Protocol):
    """One system, made in its worker process."""

    def version(self) -> str: ...

    def load(self, workload: Workload, parameters: Tree, inputs: Sequence[np.ndarray], folder: Path) -> Session:
        """Compile the workload; ``folder`` is where ``bench.export`` leaves the ONNX file."""
        ...
