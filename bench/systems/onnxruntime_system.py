"""ONNX Runtime on the CPU, all optimisations on."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnxruntime

from bench.pytree import Tree
from bench.systems.base import Session
from bench.workloads import Workload


class OnnxRuntimeSystem:
    """An inference session over the exported file."""

    def version(self) -> str:
        return onnxruntime.__version__

    def load(self, workload: Workload, parameters: Tree, inputs: Sequence[np.ndarray], folder: Path) -> Session:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = int(os.environ["OMP_NUM_THREADS"])
        options.inter_op_num_threads = 1
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
        session = onnxruntime.InferenceSession(str(folder / "model.onnx"), options, providers=["CPUExecutionProvider"])
        names = [i.name for i in session.get_inputs()]
        feed = dict(zip(names, inputs, strict=True))
        return Session(run=lambda: session.run(None, feed), outputs=list, facts={})
