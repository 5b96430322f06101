"""A multi-layer perceptron with ReLUs."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as onp

from bench.models.layers import Tree, linear, linear_parameters


def parameters(rng: onp.random.Generator, widths: Sequence[int]) -> Tree:
    return [linear_parameters(rng, a, b) for a, b in pairwise(widths)]


def forward(np: Any, nn: Any, p: Tree, x: Any) -> Any:
    """[B, widths[0]] -> [B, widths[-1]]."""
    *hidden, last = p
    for layer in hidden:
        x = nn.relu(linear(nn, x, layer))
    return linear(nn, x, last)
