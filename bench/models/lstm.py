"""A stack of LSTM layers that advances by one step."""

from __future__ import annotations

from typing import Any

import numpy as onp

from bench.models.layers import Tree, normal


def parameters(rng: onp.random.Generator, *, layers: int, width: int) -> Tree:
    """Four arrays a layer, in the order of torch.nn.LSTM's parameters."""
    scale = width**-0.5
    shapes = ((4 * width, width), (4 * width, width), (4 * width,), (4 * width,))
    return [normal(rng, *shape, scale=scale) for _ in range(layers) for shape in shapes]


def inputs(rng: onp.random.Generator, *, layers: int, width: int) -> list[onp.ndarray]:
    return [normal(rng, 1, 1, width), normal(rng, layers, 1, width, scale=0.3), normal(rng, layers, 1, width)]


def forward(np: Any, nn: Any, p: Tree, x: Any, h: Any, c: Any) -> Any:
    """One step: x [1, 1, D], states [layers, 1, D] -> y, h, c."""
    y, (h, c) = nn.lstm(x, (h, c), p, num_layers=len(p) // 4)
    return y, h, c
