"""Arithmetic on Python numbers that are passed as arguments stays arithmetic on Python numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import cuvil

EXPRESSIONS: dict[str, Callable[[Any, Any], Any]] = {
    "x * (s + 1)": lambda x, s: x * (s + 1),
    "x * -s": lambda x, s: x * -s,
    "x * (s / 3)": lambda x, s: x * (s / 3),
    "x + (1 - s)": lambda x, s: x + (1 - s),
    "x * (s ** 2)": lambda x, s: x * (s**2),
    "x * (2 ** s)": lambda x, s: x * (2**s),
    "x * abs(-s)": lambda x, s: x * abs(-s),
    "(s // 2) + x": lambda x, s: (s // 2) + x,
    "x * (s % 2)": lambda x, s: x * (s % 2),
    "x * (s > 0.1)": lambda x, s: x * (s > 0.1),
}


@pytest.mark.parametrize("expression", EXPRESSIONS)
@pytest.mark.parametrize("dtype", ["int8", "float16", "float32", "float64"])
@pytest.mark.parametrize("scalar", [0.1, 3])
def test_dtype_and_value_are_those_of_numpy(expression: str, dtype: str, scalar: float) -> None:
    # float16 * -scalar was float32, and 0.1 + 0.1 for a float64 operand was rounded to float32 on the way
    fn = EXPRESSIONS[expression]
    x = np.array([1, 3, 7], dtype)
    want = fn(x, scalar)
    got = cuvil.jit(fn, backend="reference")(x, scalar)
    assert got.dtype == want.dtype
    np.testing.assert_allclose(got, want, rtol=4 * np.finfo(want.dtype).eps if want.dtype.kind == "f" else 0)


def test_comparisons_do_not_round_to_float32() -> None:
    assert cuvil.jit(lambda s: s > 16777216.0, backend="reference")(16777217.0)


def test_the_compiled_function_agrees() -> None:
    x = np.array([1.0, 3.0])
    got = cuvil.jit(lambda x, s: x * (s + s) - s / 3)(x, 0.1)
    np.testing.assert_allclose(got, x * (0.1 + 0.1) - 0.1 / 3, rtol=1e-15)


def test_a_returned_scalar_has_the_default_dtype() -> None:
    assert cuvil.jit(lambda s: s * s, backend="reference")(0.5).dtype == np.float32
    assert cuvil.jit(lambda s: s * s, backend="reference")(5).dtype == np.int64


@pytest.mark.parametrize("backend", ["reference", "c"])
def test_a_python_integer_must_fit_the_array_it_is_used_with(backend: str) -> None:
    f = cuvil.jit(lambda x, s: x * s, backend=backend)
    x = np.ones(3, np.int8)
    np.testing.assert_array_equal(f(x, 100), np.full(3, 100, np.int8))
    for wrong in (300, -129):
        with pytest.raises(TypeError, match="does not fit"):
            f(x, wrong)
    np.testing.assert_array_equal(f(x, -128), np.full(3, -128, np.int8))
    np.testing.assert_array_equal(f(x.astype(np.int64), 300), np.full(3, 300))
