"""Recurrent layers with constant weights (packed once) and with weights as arguments (packed at each call)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import cuvil
from cuvil.testing import apply


def draw(rng: np.random.Generator, *shape: int) -> Any:
    return (rng.standard_normal(shape) * 0.2).astype(np.float32)


@pytest.mark.parametrize("cell", ["lstm", "gru"])
@pytest.mark.parametrize("biases", ["both", "none", "one for both", "input", "hidden"])
@pytest.mark.parametrize("hidden", [1, 16, 37])
def test_weights_are_packed_right(cell: str, biases: str, hidden: int) -> None:
    rng = np.random.default_rng(hidden)
    gates = 4 if cell == "lstm" else 3
    w_ih, w_hh = draw(rng, gates * hidden, 5), draw(rng, gates * hidden, hidden)
    first, second = draw(rng, gates * hidden), draw(rng, gates * hidden)
    b_ih, b_hh = {
        "both": (first, second),
        "none": (None, None),
        "one for both": (first, first),
        "input": (first, None),
        "hidden": (None, second),
    }[biases]
    state = [draw(rng, 3, hidden) for _ in range(2 if cell == "lstm" else 1)]
    x = draw(rng, 4, 3, 5)

    def constant(x: Any, state: Any) -> Any:
        return apply(cell, x, *state, w_ih, w_hh, b_ih, b_hh, reverse=False)

    def given(x: Any, state: Any, weights: Any) -> Any:
        return apply(cell, x, *state, *weights, reverse=False)

    want = cuvil.jit(constant, backend="reference")(x, state)
    for got in (cuvil.jit(constant)(x, state), cuvil.jit(given)(x, state, [w_ih, w_hh, b_ih, b_hh])):
        for a, b in zip(got, want, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
