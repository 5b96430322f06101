"""`import cuvil` is quick and loads no optional package."""

from __future__ import annotations

import json
import subprocess
import sys

# Processor time, not wall time: what else runs on the machine then matters little.
_PROBE = """
import json, sys, time
start = time.process_time()
import {module}
seconds = time.process_time() - start
print(json.dumps([seconds, sorted({{name.partition(".")[0] for name in sys.modules}})]))
"""
_BUDGET_SECONDS = 0.3
# On a machine where NumPy alone takes long, everything does. Here it takes 0.05 to 0.08 s.
_BUDGET_IN_NUMPY_IMPORTS = 5.0
_ROUNDS = 5
_OPTIONAL = {
    "torch",
    "onnx",
    "onnxruntime",
    "cupy",
    "tokenizers",
    "safetensors",
    "scipy",
    "hypothesis",
    "pytest",
    "jax",
}


def _import(module: str) -> tuple[float, set[str]]:
    command = [sys.executable, "-c", _PROBE.format(module=module)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    seconds, modules = json.loads(done.stdout)
    return seconds, set(modules)


def test_import_is_quick() -> None:
    _import("cuvil")  # writes the bytecode files
    rounds = [(_import("numpy")[0], _import("cuvil")[0]) for _ in range(_ROUNDS)]
    numpy_seconds, cuvil_seconds = (min(column) for column in zip(*rounds, strict=True))
    budget = max(_BUDGET_SECONDS, _BUDGET_IN_NUMPY_IMPORTS * numpy_seconds)
    assert cuvil_seconds < budget, f"import cuvil takes {cuvil_seconds:.3f} s, import numpy {numpy_seconds:.3f} s"


def test_no_optional_package_is_loaded() -> None:
    _, modules = _import("cuvil")
    assert "cuvil" in modules
    assert modules & _OPTIONAL == set()
