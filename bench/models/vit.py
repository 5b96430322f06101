"""The vision transformer of Dosovitskiy et al. (2021), as torchvision has it."""

from __future__ import annotations

from typing import Any

import numpy as onp

from bench.models.layers import (
    Tree,
    attention_parameters,
    layer_norm,
    linear,
    linear_parameters,
    norm_parameters,
    normal,
    self_attention,
)

EPSILON = 1e-6


def parameters(
    rng: onp.random.Generator, *, layers: int, width: int, hidden: int, patch: int, size: int, classes: int
) -> Tree:
    tokens = (size // patch) ** 2 + 1
    return {
        "patches": {
            "weight": normal(rng, width, 3, patch, patch, scale=(3 * patch * patch) ** -0.5),
            "bias": normal(rng, width, scale=0.02),
        },
        "class_token": normal(rng, 1, 1, width, scale=0.02),
        "position": normal(rng, 1, tokens, width, scale=0.02),
        "layers": [
            {
                **attention_parameters(rng, width),
                "attention_norm": norm_parameters(rng, width),
                "up": linear_parameters(rng, width, hidden),
                "down": linear_parameters(rng, hidden, width),
                "norm": norm_parameters(rng, width),
            }
            for _ in range(layers)
        ],
        "norm": norm_parameters(rng, width),
        "head": linear_parameters(rng, width, classes),
    }


def forward(np: Any, nn: Any, p: Tree, image: Any, heads: int) -> Any:
    """[B, 3, H, W] -> [B, classes]."""
    weight = p["patches"]["weight"]
    x = nn.conv2d(image, weight, p["patches"]["bias"], stride=weight.shape[2])
    batch, width = x.shape[0], x.shape[1]
    x = np.transpose(np.reshape(x, (batch, width, x.shape[2] * x.shape[3])), (0, 2, 1))
    x = np.concat([np.broadcast_to(p["class_token"], (batch, 1, width)), x], axis=1) + p["position"]
    for layer in p["layers"]:
        x = x + self_attention(np, nn, layer_norm(nn, x, layer["attention_norm"], EPSILON), layer, heads)
        y = nn.gelu(linear(nn, layer_norm(nn, x, layer["norm"], EPSILON), layer["up"]))
        x = x + linear(nn, y, layer["down"])
    return linear(nn, layer_norm(nn, x, p["norm"], EPSILON)[:, 0], p["head"])
