"""MiniLM in PyTorch: the peer that the example is compared with, and the maker of its stored reference vectors.

Run ``python -m tests.models.minilm_torch`` to write ``minilm_reference.npz`` anew.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

from cuvil import weights

REFERENCE = Path(__file__).with_name("minilm_reference.npz")


def batches() -> list[tuple[Any, Any]]:
    """Token ids and masks of several batch sizes and lengths, some rows padded."""
    rng = np.random.default_rng(7)
    out: list[tuple[Any, Any]] = []
    for batch, length in ((1, 1), (1, 16), (3, 17), (2, 128)):
        ids = rng.integers(0, 30522, (batch, length))
        mask = np.ones((batch, length), np.int64)
        for row in range(1, batch):
            mask[row, max(1, length - 5 * row) :] = 0
        out.append((ids, mask))
    return out


def embed(folder: Path, ids: Any, mask: Any) -> Any:
    """Embeddings [B, 384] by PyTorch, from the checkpoint's own names."""
    import torch

    f = torch.nn.functional
    table = {k: torch.from_numpy(np.array(v)) for k, v in weights.load(folder / "model.safetensors").items()}
    table = {k.removeprefix("bert."): v for k, v in table.items()}

    def dense(x: Any, name: str) -> Any:
        return f.linear(x, table[name + ".weight"], table[name + ".bias"])

    def norm(x: Any, name: str) -> Any:
        return f.layer_norm(x, (384,), table[name + ".weight"], table[name + ".bias"], 1e-12)

    with torch.no_grad():
        ids, mask = torch.from_numpy(ids), torch.from_numpy(mask)
        b, s = ids.shape
        x = table["embeddings.word_embeddings.weight"][ids] + table["embeddings.token_type_embeddings.weight"][0]
        x = norm(x + table["embeddings.position_embeddings.weight"][:s], "embeddings.LayerNorm")
        attend = (mask != 0)[:, None, None, :]
        for i in range(6):
            p = f"encoder.layer.{i}."
            q, k, v = (
                dense(x, p + "attention.self." + n).view(b, s, 12, 32).transpose(1, 2)
                for n in ("query", "key", "value")
            )
            a = f.scaled_dot_product_attention(q, k, v, attend).transpose(1, 2).reshape(b, s, 384)
            x = norm(dense(a, p + "attention.output.dense") + x, p + "attention.output.LayerNorm")
            h = f.gelu(dense(x, p + "intermediate.dense"))
            x = norm(dense(h, p + "output.dense") + x, p + "output.LayerNorm")
        weight = mask[..., None].float()
        mean = (x * weight).sum(1) / weight.sum(1).clamp(min=1e-9)
        return f.normalize(mean, dim=1).numpy()


def main() -> None:
    sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
    from minilm import model_folder

    vectors = {f"batch_{k}": embed(model_folder(), ids, mask) for k, (ids, mask) in enumerate(batches())}
    np.savez_compressed(REFERENCE, **vectors)


if __name__ == "__main__":
    main()
