"""Exports a workload to ONNX through torch: ``python -m bench.export WORKLOAD FOLDER``."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import torch

from bench.pytree import load_tree
from bench.systems.torch_system import Module
from bench.workloads import WORKLOADS


def export(name: str, folder: Path) -> None:
    """Write ``model.onnx`` into the workload's folder."""
    module = Module(WORKLOADS[name], load_tree(folder / "parameters")).eval()
    inputs = tuple(torch.tensor(a) for a in load_tree(folder / "inputs"))
    target = folder / "model.onnx"
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(module, inputs, str(target), dynamo=True, optimize=True, verbose=False)


if __name__ == "__main__":
    export(sys.argv[1], Path(sys.argv[2]))
