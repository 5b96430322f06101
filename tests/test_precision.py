"""``precision="bf16"``: what is rounded, what is not, and what a machine without a unit for it says."""

from __future__ import annotations

import os
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cuvil
from cuvil import nn
from cuvil.compiler import runtime_library
from cuvil.support.errors import ArgumentError

SCRIPT = """
import numpy as np, cuvil, sys
rng = np.random.default_rng(1)
w = rng.standard_normal((70, 90)).astype(np.float32)
product = cuvil.jit(lambda x: x @ w, precision="bf16")
np.save(sys.argv[1], product(rng.standard_normal((33, 70)).astype(np.float32)))
"""


def rounded(array: np.ndarray) -> np.ndarray:
    return array.astype(ml_dtypes.bfloat16).astype(np.float64)


@settings(max_examples=20, deadline=None)
@given(
    m=st.integers(0, 40), k=st.integers(0, 80), n=st.integers(0, 70), constant=st.booleans(), seed=st.integers(0, 99)
)
def test_products_round_their_operands(m: int, k: int, n: int, constant: bool, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x, w = rng.standard_normal((m, k)).astype(np.float32), rng.standard_normal((k, n)).astype(np.float32)
    bf16 = runtime_library().multiplies_bf16
    if constant:
        got = cuvil.jit(lambda x: x @ w + 1, precision="bf16")(x)
    else:
        got = cuvil.jit(lambda x, w: x @ w + 1, precision="bf16")(x, w)
    a, b = (rounded(x), rounded(w)) if bf16 else (x.astype(np.float64), w.astype(np.float64))
    bound = (k + 3) * np.finfo(np.float32).eps * (np.abs(a) @ np.abs(b) + 1)
    assert (np.abs(got - (a @ b + 1)) <= bound).all()


@pytest.mark.parametrize("hidden", ["", "amx_bf16", "amx_bf16,avx512_bf16"])
def test_units_can_be_hidden(hidden: str, tmp_path: object) -> None:
    """A process without the units says so once and computes in float32."""
    path = f"{tmp_path}/out.npy"
    environment = {**os.environ, "CUVIL_HIDE_CPU_FEATURES": hidden}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, path], env=environment, capture_output=True, text=True, check=True
    )
    rng = np.random.default_rng(1)
    w, x = rng.standard_normal((70, 90)).astype(np.float32), rng.standard_normal((33, 70)).astype(np.float32)
    told = done.stderr.count("has no effect")
    a, b = (x.astype(np.float64), w.astype(np.float64)) if told else (rounded(x), rounded(w))
    assert np.abs(np.load(path) - a @ b).max() < 1e-4
    assert told == (1 if hidden.count(",") or not runtime_library().multiplies_bf16 else told)


def test_convolutions_round_their_operands() -> None:
    rng = np.random.default_rng(2)
    x, w = (
        rng.standard_normal((2, 20, 9, 11)).astype(np.float32),
        rng.standard_normal((40, 20, 3, 3)).astype(np.float32),
    )
    got = cuvil.jit(lambda x: nn.conv2d(x, w, padding=1), precision="bf16")(x)
    if runtime_library().multiplies_bf16:
        x, w = rounded(x).astype(np.float32), rounded(w).astype(np.float32)
    want = cuvil.jit(lambda x: nn.conv2d(x, w, padding=1), backend="reference")(x)
    assert np.abs(got - want).max() < 1e-3


def test_an_unknown_precision_is_refused() -> None:
    with pytest.raises(ArgumentError, match="'float32' or 'bf16'"):
        cuvil.jit(lambda x: x, precision="fp8")  # type: ignore[arg-type]


@pytest.mark.parametrize("dt", [ml_dtypes.bfloat16, np.float32])
def test_subnormals_count_unless_the_user_gives_leave(dt: type) -> None:
    """Infinity times a subnormal is infinity; the narrow units make NaN of it."""
    x = np.zeros((3, 40), dt)
    x[0, 0], x[1, 1], x[1, 0] = np.inf, 2.0**-130, 1.0
    w = np.zeros((40, 33), dt)
    w[0], w[1] = 2.0**-130, 2.0**100
    got = cuvil.jit(lambda x, w: x @ w)(x, w).astype(np.float64)
    assert (got[0] == np.inf).all()
    np.testing.assert_array_equal(got[1], np.full(33, 2.0**-130 + 2.0**-30, dt).astype(np.float64))
