"""cuvil, with parameters as constants and static shapes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

import cuvil
import cuvil.numpy
from bench.cost import contraction_flops, profile_rows
from bench.pytree import Tree, leaves, map_tree
from bench.systems.base import Session
from bench.workloads import Workload
from cuvil import nn
from cuvil.jit import Jitted


class CuvilSystem:
    """``cuvil.jit`` in float32."""

    options: ClassVar[Mapping[str, Any]] = {}

    def version(self) -> str:
        return cuvil.__version__

    def load(self, workload: Workload, parameters: Tree, inputs: Sequence[np.ndarray], folder: Path) -> Session:
        def function(*arrays: Any) -> Any:
            return workload.forward(cuvil.numpy, nn, parameters, *arrays)

        jitted: Jitted = cuvil.jit(function, shapes="static", **self.options)
        given = list(inputs)
        return CuvilSession(
            run=lambda: jitted(*given),
            outputs=leaves,
            facts={"flops": contraction_flops(function, given)},
            jitted=jitted,
            inputs=given,
        )

    def reference(self, workload: Workload, parameters: Tree, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The outputs in float64, by the ops' NumPy definitions."""
        tree = map_tree(_double, parameters)
        return leaves(workload.forward(cuvil.numpy, nn, tree, *map(_double, inputs)))


class CuvilRelaxedSystem(CuvilSystem):
    """The same with ``numerics="relaxed"``, which admits Winograd's convolution."""

    options: ClassVar[Mapping[str, Any]] = {"numerics": "relaxed"}


class CuvilBfloat16System(CuvilSystem):
    """The same with products in bfloat16."""

    options: ClassVar[Mapping[str, Any]] = {"precision": "bf16"}


def _double(array: Any) -> Any:
    return array.astype(np.float64) if np.issubdtype(array.dtype, np.floating) else array


class CuvilSession(Session):
    """A session that can also time its kernels."""

    def __init__(self, *, jitted: Jitted, inputs: list[np.ndarray], **fields: Any) -> None:
        super().__init__(**fields)
        self.jitted = jitted
        self.inputs = inputs

    def profile(self, iterations: int) -> list[dict[str, Any]]:
        """One row a kernel call: its name, seconds (median), flops and bytes."""
        (variant,) = self.jitted.variants()
        env = variant.match([a.shape for a in self.inputs]) or {}
        compiled = self.jitted.lower(*self.inputs).compiled  # keeps the fused function, of which the costs are read
        return profile_rows(compiled, self.inputs, env, iterations)
