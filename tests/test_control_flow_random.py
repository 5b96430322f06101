"""Random nests of loops and branches over arrays, native against the reference: memory, swaps, updates in place.

Elements are small whole numbers, so that results are equal bit for bit in every dtype.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import cuvil
import cuvil.numpy as cnp
from cuvil.testing.arrays import RandomChooser

SIZE = 4
DEPTH = 3
WEIGHTS = {d: (np.arange(SIZE * SIZE).reshape(SIZE, SIZE) * 7 % 5 - 2).astype(d) for d in ("float32", "int64")}


def small(x: Any) -> Any:
    return cnp.fmod(x, 17)


class Draw:
    """Draws a program once, as a tree of choices; running it in Python or under a trace makes the same ones."""

    def __init__(self, c: Any) -> None:
        self.c = c

    def block(self, depth: int, loops: int) -> list[Any]:
        return [self.step(depth, loops) for _ in range(self.c.integer(1, 3))]

    def step(self, depth: int, loops: int) -> Any:
        kinds = ["elementwise", "flip", "sort", "sum", "matmul", "swap", "set", "scan_sum", "other"]
        if depth:
            kinds += ["if", "if", "fori", "fori", "scan", "while", "switch"]
        kind = self.c.choice(kinds)
        i, j, k = (self.c.integer(0, 2) for _ in range(3))
        inner = [self.block(depth - 1, loops + 1) for _ in range(2)] if kinds.index(kind) > 8 else []
        return kind, i, j, k, self.c.integer(1, 4), inner


def run(steps: Sequence[Any], state: Sequence[Any], w: Any) -> tuple[Any, ...]:
    """The three arrays after some steps."""
    s = list(state)
    for kind, i, j, k, n, inner in steps:
        if kind == "elementwise":
            s[i] = small(s[j] * 2 + s[k] - n)
        elif kind == "flip":
            s[i] = s[j][::-1] + n
        elif kind == "sort":
            s[i] = cnp.sort(s[j])
        elif kind == "sum":
            s[i] = small(s[j] + cnp.sum(s[k]))
        elif kind == "matmul":
            s[i] = small((w if n == 1 else WEIGHTS[np.dtype(w.dtype).name]) @ s[j])
        elif kind == "swap":
            s[i], s[j] = s[j], s[i]
        elif kind == "set":
            s[i] = put(s[i], n - 1, s[j][k])
        elif kind == "scan_sum":
            s[i] = small(cnp.cumulative_sum(s[j]))
        elif kind == "other":
            s[i] = small(cnp.where(s[j] > s[k], s[j], s[k] - 1))
        elif kind == "if":
            s = list(
                cuvil.cond(
                    s[i][0] > s[j][1], lambda s=s, b=inner: run(b[0], s, w), lambda s=s, b=inner: run(b[1], s, w)
                )
            )
        elif kind == "switch":
            branches = [lambda s=s, b=b: run(b, s, w) for b in (*inner, [])]
            s = list(cuvil.switch(s[i][0].astype("int64"), branches))
        elif kind == "fori":
            s = list(cuvil.fori_loop(0, n, lambda m, c, b=inner: run(b[0], (c[0] + m, *c[1:]), w), tuple(s)))
        elif kind == "while":
            s = list(
                cuvil.while_loop(
                    lambda c, n=n: c[1] < n, lambda c, b=inner: (run(b[0], c[0], w), c[1] + 1), (tuple(s), 0)
                )[0]
            )
        elif kind == "scan":
            xs = cnp.stack(s[:2])
            carry, ys = cuvil.scan(
                lambda c, x, b=inner: (run(b[0], (c[0], small(c[1] + x), c[2]), w), c[0]), tuple(s), xs, reverse=n > 2
            )
            s = [*carry[:2], small(carry[2] + ys[0] - ys[1])]
    return tuple(s)


def put(x: Any, index: int, value: Any) -> Any:
    if isinstance(x, np.ndarray):
        x = x.copy()
        x[index] = value
        return x
    return x.at[index].set(value)


def check(c: Any) -> None:
    steps = Draw(c).block(DEPTH, 0)
    dt = c.choice(("float32", "int64"))

    def fn(a: Any, b: Any, d: Any, w: Any) -> Any:
        return run(steps, (a, b, d), w)

    arrays = [(np.arange(SIZE) * m % 7 - 3).astype(dt) for m in (1, 3, 5)] + [WEIGHTS[dt].T.copy()]
    want = cuvil.jit(fn, backend="reference", optimise=False)(*arrays)
    for options in ({"backend": "reference"}, {"backend": "c"}):
        got = cuvil.jit(fn, **options)(*arrays)
        for g, r in zip(got, want, strict=True):
            assert g.dtype == r.dtype
            np.testing.assert_array_equal(g, r, err_msg=f"{options}: {steps}")


@pytest.mark.parametrize("seed", range(5))
def test_random_nests(seed: int) -> None:
    check(RandomChooser(random.Random(seed).randrange(1 << 30)))
