"""OpenVINO on the CPU, in float32 and in bfloat16, tuned for latency."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import openvino

from bench.pytree import Tree
from bench.systems.base import Session
from bench.workloads import Workload


class OpenVinoSystem:
    """The exported file with float32 arithmetic."""

    precision = "f32"

    def version(self) -> str:
        return openvino.__version__

    def load(self, workload: Workload, parameters: Tree, inputs: Sequence[np.ndarray], folder: Path) -> Session:
        core = openvino.Core()
        compiled = core.compile_model(
            core.read_model(str(folder / "model.onnx")),
            "CPU",
            {
                "INFERENCE_PRECISION_HINT": self.precision,
                "PERFORMANCE_HINT": "LATENCY",
                "INFERENCE_NUM_THREADS": int(os.environ["OMP_NUM_THREADS"]),
            },
        )
        request = compiled.create_infer_request()
        feed = dict(enumerate(inputs))

        def run() -> list[np.ndarray]:
            request.infer(feed, share_inputs=True)
            return [request.get_output_tensor(k).data for k in range(len(compiled.outputs))]

        return Session(run=run, outputs=lambda out: [a.copy() for a in out], facts={})


class OpenVinoBfloat16System(OpenVinoSystem):
    """The exported file with bfloat16 where the plugin takes it."""

    precision = "bf16"
