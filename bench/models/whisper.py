"""Whisper's audio encoder (Radford et al., 2022)."""

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

EPSILON = 1e-5


def sinusoids(length: int, width: int) -> onp.ndarray:
    """Whisper's fixed position embeddings."""
    rates = onp.exp(-onp.log(10000) / (width // 2 - 1) * onp.arange(width // 2))
    angles = onp.arange(length)[:, None] * rates
    return onp.concatenate([onp.sin(angles), onp.cos(angles)], axis=1).astype(onp.float32)


def parameters(rng: onp.random.Generator, *, layers: int, width: int, mels: int = 80, frames: int = 3000) -> Tree:
    def block() -> Tree:
        attention = attention_parameters(rng, width)
        del attention["key"]["bias"]  # Whisper's keys have none
        return {
            **attention,
            "attention_norm": norm_parameters(rng, width),
            "up": linear_parameters(rng, width, 4 * width),
            "down": linear_parameters(rng, 4 * width, width),
            "norm": norm_parameters(rng, width),
        }

    return {
        "conv1": {
            "weight": normal(rng, width, mels, 3, scale=(3 * mels) ** -0.5),
            "bias": normal(rng, width, scale=0.02),
        },
        "conv2": {
            "weight": normal(rng, width, width, 3, scale=(3 * width) ** -0.5),
            "bias": normal(rng, width, scale=0.02),
        },
        "position": sinusoids(frames // 2, width),
        "layers": [block() for _ in range(layers)],
        "norm": norm_parameters(rng, width),
    }


def forward(np: Any, nn: Any, p: Tree, mel: Any, heads: int) -> Any:
    """[B, mels, T] -> [B, T / 2, D]."""
    x = nn.gelu(nn.conv1d(mel, p["conv1"]["weight"], p["conv1"]["bias"], padding=1))
    x = nn.gelu(nn.conv1d(x, p["conv2"]["weight"], p["conv2"]["bias"], stride=2, padding=1))
    x = np.transpose(x, (0, 2, 1)) + p["position"]
    for layer in p["layers"]:
        x = x + self_attention(np, nn, layer_norm(nn, x, layer["attention_norm"], EPSILON), layer, heads)
        y = nn.gelu(linear(nn, layer_norm(nn, x, layer["norm"], EPSILON), layer["up"]))
        x = x + linear(nn, y, layer["down"])
    return layer_norm(nn, x, p["norm"], EPSILON)
