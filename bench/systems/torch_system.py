"""PyTorch, eager and through ``torch.compile``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bench.namespaces import torch_nn, torch_numpy
from bench.pytree import Tree, leaves, map_tree
from bench.systems.base import Session
from bench.workloads import Workload


class Module(torch.nn.Module):
    """A workload as a module whose parameters are the workload's."""

    def __init__(self, workload: Workload, parameters: Tree) -> None:
        super().__init__()
        self._forward = workload.forward

        def register(array: np.ndarray) -> torch.nn.Parameter:
            parameter = torch.nn.Parameter(torch.tensor(array), requires_grad=False)
            self.register_parameter(f"p{len(list(self.parameters()))}", parameter)
            return parameter

        self.tree = map_tree(register, parameters)

    def forward(self, *inputs: Any) -> Any:
        return self._forward(torch_numpy, torch_nn, self.tree, *inputs)


class TorchSystem:
    """Eager PyTorch in inference mode."""

    compiled = False

    def __init__(self) -> None:
        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
        torch.inference_mode().__enter__()  # for the whole life of the process

    def version(self) -> str:
        return torch.__version__

    def load(self, workload: Workload, parameters: Tree, inputs: Sequence[np.ndarray], folder: Path) -> Session:
        module: Any = Module(workload, parameters).eval()
        if self.compiled:
            module = torch.compile(module)
        given = [torch.tensor(a) for a in inputs]
        return Session(run=lambda: module(*given), outputs=lambda y: [a.numpy() for a in leaves(y)], facts={})

    def reference(self, workload: Workload, parameters: Tree, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The outputs in float64."""
        module = Module(workload, parameters).eval().double()
        given = [torch.tensor(a) for a in inputs]
        out = module(*(a.double() if a.is_floating_point() else a for a in given))
        return [a.numpy() for a in leaves(out)]


class TorchCompileSystem(TorchSystem):
    """``torch.compile`` with its default backend, inductor."""

    compiled = True
