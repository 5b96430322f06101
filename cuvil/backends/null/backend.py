"""The null backend: everything compiles and nothing runs; results are zeros of the right shapes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from cuvil.backends.base import Capabilities
from cuvil.dtypes import EVERY
from cuvil.ops.record import Array, Aval
from cuvil.symbolic import evaluate

CAPABILITIES = Capabilities("null", frozenset(EVERY))


class NullProgram:
    """A program that was compiled but does not compute: for measuring compile time and dispatch."""

    def __init__(self, outputs: Sequence[Aval]) -> None:
        self.outputs = tuple(outputs)

    def run(self, inputs: Sequence[Array], env: Mapping[str, int]) -> list[Array]:
        """Zeros of the program's output shapes."""
        del inputs
        return [np.zeros(tuple(evaluate(d, env) for d in a.shape), a.dtype.numpy) for a in self.outputs]
