"""The reference backend: interprets tensor-stage IR with the records' NumPy functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from xdsl.dialects.func import FuncOp

from cuvil.backends.base import Capabilities
from cuvil.dtypes import EVERY
from cuvil.ir.interpreter import run_function
from cuvil.ops.record import Array

CAPABILITIES = Capabilities("reference", frozenset(EVERY))


class ReferenceProgram:
    """A program that the interpreter runs."""

    def __init__(self, func: FuncOp) -> None:
        self.func = func

    def run(self, inputs: Sequence[Array], env: Mapping[str, int]) -> list[Array]:
        """Run on concrete arrays; results never alias inputs."""
        given = {id(a) for a in inputs}
        out: list[Array] = []
        for value in run_function(self.func, inputs, env):
            array = np.asarray(value)
            alias = id(array) in given or array.base is not None or not array.flags.writeable
            out.append(array.copy() if alias else array)
            given.add(id(out[-1]))
        return out
