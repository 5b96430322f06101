"""One decoding step of a Llama-style model with a cache of keys and values."""

from __future__ import annotations

from typing import Any

import numpy as onp

from bench.models.layers import Tree, linear, linear_parameters, normal

EPSILON = 1e-5


def parameters(
    rng: onp.random.Generator, *, layers: int, width: int, heads: int, key_heads: int, hidden: int, vocabulary: int
) -> Tree:
    keys = width // heads * key_heads

    def scale() -> onp.ndarray:
        return 1 + normal(rng, width, scale=0.1)

    return {
        "embedding": normal(rng, vocabulary, width, scale=0.05),
        "rates": (10000.0 ** (-onp.arange(0, 1, 2 * heads / width))).astype(onp.float32),
        "layers": [
            {
                "attention_norm": scale(),
                "query": linear_parameters(rng, width, width, bias=False),
                "key": linear_parameters(rng, width, keys, bias=False),
                "value": linear_parameters(rng, width, keys, bias=False),
                "out": linear_parameters(rng, width, width, bias=False),
                "norm": scale(),
                "gate": linear_parameters(rng, width, hidden, bias=False),
                "up": linear_parameters(rng, width, hidden, bias=False),
                "down": linear_parameters(rng, hidden, width, bias=False),
            }
            for _ in range(layers)
        ],
        "norm": scale(),
    }


def inputs(
    rng: onp.random.Generator, *, layers: int, width: int, heads: int, key_heads: int, vocabulary: int, past: int
) -> list[onp.ndarray]:
    """Token [1, 1], its position [1], and the cached keys and values [layers, 1, key heads, past, D]."""
    cache = (layers, 1, key_heads, past, width // heads)
    return [rng.integers(0, vocabulary, (1, 1)), onp.array([past]), normal(rng, *cache), normal(rng, *cache)]


def forward(
    np: Any, nn: Any, p: Tree, token: Any, position: Any, keys: Any, values: Any, heads: int, key_heads: int
) -> Any:
    """Logits [1, vocabulary], and the keys and values [layers, 1, key heads, 1, D] to append to the cache."""
    angles = np.astype(position, np.float32)[:, None] * p["rates"]
    angles = np.concat([angles, angles], axis=-1)
    cos, sin = np.cos(angles), np.sin(angles)

    def rotate(y: Any) -> Any:
        half = y.shape[-1] // 2
        return y * cos + np.concat([-y[..., half:], y[..., :half]], axis=-1) * sin

    x = nn.embedding(token, p["embedding"])
    batch, length, width = x.shape

    def split(y: Any, count: int) -> Any:
        return np.transpose(np.reshape(y, (batch, length, count, width // heads)), (0, 2, 1, 3))

    new_keys, new_values = [], []
    for k, layer in enumerate(p["layers"]):
        y = nn.rms_norm(x, layer["attention_norm"], eps=EPSILON)
        q = rotate(split(linear(nn, y, layer["query"]), heads))
        new_keys.append(rotate(split(linear(nn, y, layer["key"]), key_heads)))
        new_values.append(split(linear(nn, y, layer["value"]), key_heads))
        every_key = np.concat([keys[k], new_keys[-1]], axis=2)
        every_value = np.concat([values[k], new_values[-1]], axis=2)
        out = nn.scaled_dot_product_attention(q, every_key, every_value)
        x = x + linear(nn, np.reshape(np.transpose(out, (0, 2, 1, 3)), (batch, length, width)), layer["out"])
        y = nn.rms_norm(x, layer["norm"], eps=EPSILON)
        x = x + linear(nn, nn.silu(linear(nn, y, layer["gate"])) * linear(nn, y, layer["up"]), layer["down"])
    logits = nn.linear(nn.rms_norm(x, p["norm"], eps=EPSILON)[:, -1], p["embedding"])
    return logits, np.stack(new_keys), np.stack(new_values)
