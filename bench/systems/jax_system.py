"""jax.jit on the CPU; parameters are arguments, as is usual there."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bench.namespaces import jax_nn
from bench.pytree import Tree, leaves, map_tree
from bench.systems.base import Session
from bench.workloads import Workload


class JaxSystem:
    """XLA's CPU backend; its pool has as many threads as the process may use CPUs."""

    def version(self) -> str:
        return jax.__version__

    def load(self, workload: Workload, parameters: Tree, inputs: Sequence[np.ndarray], folder: Path) -> Session:
        def function(tree: Tree, *arrays: Any) -> Any:
            return workload.forward(jnp, jax_nn, tree, *arrays)

        compiled = jax.jit(function)
        tree = map_tree(jnp.asarray, parameters)
        given = [jnp.asarray(a) for a in inputs]
        return Session(
            run=lambda: jax.block_until_ready(compiled(tree, *given)),
            outputs=lambda out: [np.asarray(a) for a in leaves(out)],
            facts={},
        )
