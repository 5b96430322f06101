"""Fit five small networks at once to two spirals: gradients by ``grad``, all networks and all points by ``vmap``.

    python examples/fit_ensemble.py            # 400 steps of Adam, compiled as one function
    python examples/fit_ensemble.py --steps 50

The networks start from different weights. Where they disagree the ensemble is unsure, and the points with the largest
gradients of their own are those that it still has to learn.
"""

from __future__ import annotations

import argparse
import sys
from time import perf_counter
from typing import Any

import numpy as np

import cuvil
import cuvil.numpy as cnp
from cuvil import nn

NETWORKS, HIDDEN, RATE = 5, 32, 0.02


def spirals(points: int, seed: int) -> tuple[Any, Any]:
    """Points [N, 2] float32 of two arms that wind around each other, and the arm [N] int64 of each."""
    rng = np.random.default_rng(seed)
    arm = np.arange(points) % 2
    turn = np.sqrt(rng.uniform(0, 1, points)) * 3 * np.pi
    angle = turn + arm * np.pi
    place = np.stack([np.cos(angle), np.sin(angle)], axis=1) * turn[:, None] / 10
    return (place + rng.normal(0, 0.03, place.shape)).astype(np.float32), arm


def start(seed: int) -> dict[str, Any]:
    """Weights of one network."""
    rng = np.random.default_rng(seed)
    sizes = {"w1": (2, HIDDEN), "w2": (HIDDEN, HIDDEN), "w3": (HIDDEN, 2)}
    p = {k: rng.normal(0, np.sqrt(2 / s[0]), s).astype(np.float32) for k, s in sizes.items()}
    return {**p, **{"b" + k[1]: np.zeros(s[1], np.float32) for k, s in sizes.items()}}


def logits(p: Any, x: Any) -> Any:
    """Scores [2] of one point x [2]."""
    h = nn.silu(x @ p["w1"] + p["b1"])
    h = nn.silu(h @ p["w2"] + p["b2"])
    return h @ p["w3"] + p["b3"]


def loss_of_one(p: Any, x: Any, y: Any) -> Any:
    """The cross-entropy of one point; everything below is made of this function."""
    return -nn.log_softmax(logits(p, x))[y]


def loss(p: Any, x: Any, y: Any) -> Any:
    """The mean over points x [N, 2] with labels y [N]."""
    return cnp.mean(cuvil.vmap(loss_of_one, in_axes=(None, 0, 0))(p, x, y))


def adam(p: Any, state: Any, x: Any, y: Any, step: Any) -> tuple[Any, Any, Any]:
    """One step of Adam (Kingma and Ba, 2015) for one network: new weights, new moments, the loss before it."""
    value, g = cuvil.value_and_grad(loss)(p, x, y)
    mean = {k: 0.9 * state["mean"][k] + 0.1 * g[k] for k in p}
    square = {k: 0.99 * state["square"][k] + 0.01 * g[k] ** 2 for k in p}
    scale = RATE * cnp.sqrt(1 - 0.99**step) / (1 - 0.9**step)
    return (
        {k: p[k] - scale * mean[k] / (cnp.sqrt(square[k]) + 1e-8) for k in p},
        {"mean": mean, "square": square},
        value,
    )


#: All networks take a step at once: their weights have a leading axis, the points are shared.
step_of_all = cuvil.jit(cuvil.vmap(adam, in_axes=(0, 0, None, None, None)))


@cuvil.jit
def predict(p: Any, x: Any) -> Any:
    """Probabilities [networks, N, 2]."""
    each_point = cuvil.vmap(logits, in_axes=(None, 0))
    return nn.softmax(cuvil.vmap(each_point, in_axes=(0, None))(p, x), axis=-1)


@cuvil.jit
def influence(p: Any, x: Any, y: Any) -> Any:
    """The norm [N] of each point's own gradient, for one network."""
    g = cuvil.vmap(cuvil.grad(loss_of_one), in_axes=(None, 0, 0))(p, x, y)
    return cnp.sqrt(sum(cnp.sum(v**2, axis=tuple(range(1, v.ndim))) for v in g.values()))


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=400, help="steps of Adam")
    args = parser.parse_args(argv)
    x, y = spirals(400, seed=0)
    networks = [start(seed) for seed in range(NETWORKS)]
    p = {k: np.stack([n[k] for n in networks]) for k in networks[0]}
    state = {name: {k: np.zeros_like(v) for k, v in p.items()} for name in ("mean", "square")}
    p, state, losses = step_of_all(p, state, x, y, np.float32(1))
    begun = perf_counter()
    for step in range(2, args.steps + 1):
        p, state, losses = step_of_all(p, state, x, y, np.float32(step))
        if step % 100 == 0:
            print(f"step {step}: losses {np.array2string(losses, precision=4)}")
    seconds = perf_counter() - begun
    print(f"{args.steps - 1} steps of {NETWORKS} networks in {seconds:.2f} s")
    held_out, labels = spirals(1000, seed=1)
    chances = predict(p, held_out)
    right = (chances.mean(0).argmax(-1) == labels).mean()
    print(f"{right:.1%} of {len(labels)} held-out points are right")
    print(f"the networks' chances differ by {chances[:, :, 1].std(0).mean():.3f} on average")
    one = {k: v[0] for k, v in p.items()}
    hardest = np.argsort(influence(one, x, y))[-3:]
    print("hardest points of the first network:", ", ".join("({:.2f}, {:.2f})".format(*x[k]) for k in hardest))
    return 0


if __name__ == "__main__":
    sys.exit(main())
