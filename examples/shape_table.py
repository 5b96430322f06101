"""Shape polymorphism: one compiled version of an attention block serves every batch size and length.

    python examples/shape_table.py

The block is compiled ahead of the first call, with the sizes as symbols: a batch ``B`` and a length ``S``. The table
shows the time of a call for each pair of sizes, and that no call compiled anything. A hint adds a variant for lengths
that are multiples of 16. The last column compares each result with NumPy's, computed from the same function.
"""

from __future__ import annotations

import sys
from time import perf_counter
from typing import Any

import numpy as np

import cuvil
import cuvil.numpy as cnp
from cuvil import nn

WIDTH, HEADS = 64, 4
BATCHES = (0, 1, 2, 7, 16)
LENGTHS = (0, 1, 5, 16, 77, 128)


def weights(seed: int = 0) -> dict[str, np.ndarray]:
    """Random parameters of one block."""
    rng = np.random.default_rng(seed)
    shapes = {"qkv": (WIDTH, 3 * WIDTH), "out": (WIDTH, WIDTH)}
    return {name: (rng.standard_normal(s) / np.sqrt(s[0])).astype(np.float32) for name, s in shapes.items()}


def block(x: Any, p: dict[str, np.ndarray]) -> Any:
    """Causal self-attention over (B, S, WIDTH) with a residual and the mean of each sequence."""
    b, s, _ = x.shape
    qkv = cnp.reshape(x @ p["qkv"], (b, s, 3, HEADS, WIDTH // HEADS))
    q, k, v = (cnp.transpose(qkv[:, :, i], (0, 2, 1, 3)) for i in range(3))
    mixed = nn.scaled_dot_product_attention(q, k, v, causal=True)
    mixed = cnp.reshape(cnp.transpose(mixed, (0, 2, 1, 3)), (b, s, WIDTH))
    return x + mixed @ p["out"]


def main() -> int:
    """Print the table; 1 where something was compiled again or a result differs."""
    p = weights()
    f = cuvil.compile(
        lambda x: block(x, p), [("x", "float32", ("B", "S", WIDTH))], constraints=["S <= 512"], hints=["S % 16 == 0"]
    )
    compiled = len(f.variants())
    rng = np.random.default_rng(1)
    worst = 0.0
    print("batch  length   ms a call   largest difference")
    for batch in BATCHES:
        for length in LENGTHS:
            x = rng.standard_normal((batch, length, WIDTH)).astype(np.float32)
            f(x)
            start = perf_counter()
            got = f(x)
            seconds = perf_counter() - start
            difference = float(np.max(np.abs(got - block(x, p)), initial=0.0))
            worst = max(worst, difference)
            print(f"{batch:5}  {length:6}  {1e3 * seconds:10.3f}   {difference:.1e}")
    again = len(f.variants()) - compiled
    print(f"{len(BATCHES) * len(LENGTHS)} pairs of sizes, {again} compiled again")
    print(f.explain())
    try:
        f(np.zeros((1, 513, WIDTH), np.float32))
    except cuvil.errors.ShapeError as error:
        print(f"a length that was ruled out: {error}")
    return int(again > 0 or worst > 1e-4)


if __name__ == "__main__":
    sys.exit(main())
