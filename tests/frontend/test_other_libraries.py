"""Code of other libraries that is written over the array API or NumPy's protocols, on traced arrays."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import cuvil
import cuvil.numpy as cnp
from cuvil.symbolic import symbol
from tests.frontend.tracing import assert_same, run_traced

X = np.random.default_rng(0).standard_normal((2, 6, 4)).astype(np.float32)


def test_einops() -> None:
    einops = pytest.importorskip("einops")
    calls = {
        "rearrange": lambda x: einops.rearrange(x, "a (b c) d -> (a d) b c", c=3),
        "new axis": lambda x: einops.rearrange(x, "a b d -> a 1 d b"),
        "reduce": lambda x: einops.reduce(x, "a (b c) d -> b d", "mean", c=2),
        "max": lambda x: einops.reduce(x, "a b d -> a 1 d", "max"),
        "repeat": lambda x: einops.repeat(x, "a b d -> a (b r) d", r=2),
        "einsum": lambda x: einops.einsum(x, x, "a b d, a c d -> a b c"),
        "list": lambda x: einops.rearrange([x, x], "n a b d -> a n b d"),
        "pack": lambda x: einops.pack([x, x], "a * d")[0],
        "parse": lambda x: x * einops.parse_shape(x, "a b _")["b"],
    }
    for name, fn in calls.items():
        assert_same(run_traced(fn, X), fn(X), rtol=1e-5, atol=1e-6)
        if name != "list":
            assert_same(run_traced(fn, X, shapes=[(symbol("B"), 6, 4)]), fn(X), rtol=1e-5, atol=1e-6)


def test_array_api_compat() -> None:
    compat = pytest.importorskip("array_api_compat")

    def softmax(x: Any) -> Any:
        xp = compat.array_namespace(x)
        e = xp.exp(x - xp.max(x, axis=-1, keepdims=True))
        return compat.to_device(e / xp.sum(e, axis=-1, keepdims=True), compat.device(x)) * compat.size(x)

    seen: list[Any] = []
    run_traced(lambda x: seen.append(compat.array_namespace(x)) or x, X)
    assert seen == [cnp]
    assert_same(run_traced(softmax, X), softmax(X), rtol=1e-6)


_SCIPY = """
import numpy as np, scipy.special, scipy.stats, scipy.integrate, scipy.fft, cuvil
x = np.random.default_rng(0).standard_normal((3, 5)).astype(np.float32)
for fn in (
    lambda x: scipy.special.softmax(x, axis=1),
    lambda x: scipy.stats.gmean(x * x + 1, axis=1),
    lambda x: scipy.integrate.trapezoid(x, axis=1),
    lambda x: np.abs(scipy.fft.fft(x)),
):
    np.testing.assert_allclose(cuvil.jit(fn, backend="reference")(x), fn(x), rtol=1e-5)
"""


def test_functions_of_scipy() -> None:
    """In a process of its own: SciPy decides at import whether it takes other arrays than NumPy's."""
    pytest.importorskip("scipy", minversion="1.15")
    done = subprocess.run(
        [sys.executable, "-c", _SCIPY], env={**os.environ, "SCIPY_ARRAY_API": "1"}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_there_is_one_device() -> None:
    assert_same(run_traced(lambda x: x.to_device(x.device), X), X)
    with pytest.raises(cuvil.errors.TracingError, match="no device 'gpu'"):
        run_traced(lambda x: x.to_device("gpu"), X)
