"""The systems by name: the module and class of each, its environment, and what it needs beside itself."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class SystemEntry:
    """One system.

    Attributes:
        module: where its class is.
        symbol: the class.
        distribution: the package that must be installed.
        peer: runs in the peers' environment.
        exported: needs the ONNX file.
        low_precision: computes in bfloat16, so that its error is judged by the wider tolerance and its time is not
            compared with float32.
    """

    module: str
    symbol: str
    distribution: str
    peer: bool = True
    exported: bool = False
    low_precision: bool = False


SYSTEMS: dict[str, SystemEntry] = {
    "cuvil": SystemEntry("bench.systems.cuvil_system", "CuvilSystem", "cuvil", peer=False),
    "cuvil-relaxed": SystemEntry("bench.systems.cuvil_system", "CuvilRelaxedSystem", "cuvil", peer=False),
    "cuvil-bf16": SystemEntry(
        "bench.systems.cuvil_system", "CuvilBfloat16System", "cuvil", peer=False, low_precision=True
    ),
    "torch": SystemEntry("bench.systems.torch_system", "TorchSystem", "torch"),
    "inductor": SystemEntry("bench.systems.torch_system", "TorchCompileSystem", "torch"),
    "onnxruntime": SystemEntry("bench.systems.onnxruntime_system", "OnnxRuntimeSystem", "onnxruntime", exported=True),
    "openvino": SystemEntry("bench.systems.openvino_system", "OpenVinoSystem", "openvino", exported=True),
    "openvino-bf16": SystemEntry(
        "bench.systems.openvino_system", "OpenVinoBfloat16System", "openvino", exported=True, low_precision=True
    ),
    "jax": SystemEntry("bench.systems.jax_system", "JaxSystem", "jax"),
}

#: What is compared with cuvil: peers by default, other ways of compiling with it on demand.
COMPARED = tuple(name for name in SYSTEMS if name != "cuvil")
PEERS = tuple(name for name, entry in SYSTEMS.items() if entry.peer)
