"""Recognise handwritten digits with a small MLP: weights trained beforehand in NumPy, ported and compiled.

    python examples/mlp_digits.py            # classify scikit-learn's digits with the stored weights
    python examples/mlp_digits.py --train    # train them anew (plain NumPy, a few seconds)

Needs ``pip install scikit-learn`` for the images.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

import cuvil
from cuvil import nn, weights

WEIGHTS = Path(__file__).with_name("mlp_digits.safetensors")

#: The checkpoint has PyTorch's names and [out, in] layout, as ``torch.nn.Sequential`` would save it.
RULES = [
    weights.rename(r"0\.(weight|bias)", r"hidden/\1"),
    weights.rename(r"2\.(weight|bias)", r"out/\1"),
    weights.transpose(r"(hidden|out)/weight"),
]


@cuvil.jit
def classify(images: Any, p: Any) -> Any:
    """Class probabilities [N, 10] of images [N, 64] with values in [0, 1]."""
    h = nn.relu(images @ p["hidden"]["weight"] + p["hidden"]["bias"])
    return nn.softmax(h @ p["out"]["weight"] + p["out"]["bias"], axis=-1)


def load_digits() -> tuple[Any, Any]:
    """1,797 images [N, 64] float32 in [0, 1] and their labels [N]."""
    from sklearn.datasets import load_digits as fetch

    data = fetch()
    return (data.data / 16).astype(np.float32), data.target.astype(np.int64)


def train(x: Any, y: Any, hidden: int = 32, epochs: int = 60) -> dict[str, Any]:
    """Weights in PyTorch's layout, by mini-batch gradient descent with momentum on the cross-entropy."""
    rng = np.random.default_rng(0)
    w1 = rng.normal(0, 0.2, (64, hidden)).astype(np.float32)
    w2 = rng.normal(0, 0.2, (hidden, 10)).astype(np.float32)
    parameters = [w1, np.zeros(hidden, np.float32), w2, np.zeros(10, np.float32)]
    velocity = [np.zeros_like(p) for p in parameters]
    for _ in range(epochs):
        order = rng.permutation(len(x))
        for start in range(0, len(x), 32):
            rows = order[start : start + 32]
            w1, b1, w2, b2 = parameters
            h = np.maximum(x[rows] @ w1 + b1, 0)
            z = h @ w2 + b2
            e = np.exp(z - z.max(1, keepdims=True))
            dz = e / e.sum(1, keepdims=True)
            dz[np.arange(len(rows)), y[rows]] -= 1
            dz /= len(rows)
            dh = (dz @ w2.T) * (h > 0)
            for k, g in enumerate((x[rows].T @ dh, dh.sum(0), h.T @ dz, dz.sum(0))):
                velocity[k] = 0.9 * velocity[k] - 0.1 * g
                parameters[k] = parameters[k] + velocity[k]
    w1, b1, w2, b2 = parameters
    return {"0.weight": w1.T.copy(), "0.bias": b1, "2.weight": w2.T.copy(), "2.bias": b2}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", action="store_true", help="train and store the weights anew")
    args = parser.parse_args(argv)
    try:
        x, y = load_digits()
    except ImportError:
        print("this example reads its images from scikit-learn: pip install scikit-learn", file=sys.stderr)
        return 1
    held_out = np.arange(len(x)) % 5 == 0
    if args.train:
        weights.save(WEIGHTS, train(x[~held_out], y[~held_out]))
    parameters, report = weights.port(weights.load(WEIGHTS), RULES)
    report.raise_if_incomplete()
    images, labels = x[held_out], y[held_out]
    classify(images[:1], parameters)
    start = perf_counter()
    predicted = classify(images, parameters).argmax(axis=1)
    seconds = perf_counter() - start
    right = int((predicted == labels).sum())
    print(f"{right} of {len(labels)} held-out digits are right ({right / len(labels):.1%}), in {seconds * 1e3:.2f} ms")
    print(classify.explain())
    return 0


if __name__ == "__main__":
    sys.exit(main())
