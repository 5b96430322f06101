"""Python conditions on symbolic sizes are guards of the variant, not silent answers."""

from __future__ import annotations

from typing import Any

import numpy as np

import cuvil
import cuvil.numpy as cnp


def f32(*shape: int) -> Any:
    return np.arange(np.prod(shape, dtype=int), dtype=np.float32).reshape(shape)


def test_a_condition_on_a_size_holds_at_every_size() -> None:
    @cuvil.jit
    def f(x: Any) -> Any:
        if x.shape[0] == 1:
            return x * 100
        return x + 1

    for n in (4, 7, 1, 9, 0, 1):
        x = f32(n, 2)
        np.testing.assert_array_equal(f(x), x * 100 if n == 1 else x + 1)
    assert any("!= 1" in guard for v in f.variants() for guard in v.guards)


def test_a_condition_on_two_sizes_holds_where_they_meet() -> None:
    @cuvil.jit
    def f(x: Any, y: Any) -> Any:
        if x.shape[0] == y.shape[0]:
            return cnp.sum(x * y)
        return cnp.sum(x) + cnp.sum(y)

    for n, m in ((3, 5), (4, 7), (6, 6), (2, 9), (5, 5)):
        x, y = f32(n), f32(m)
        np.testing.assert_allclose(f(x, y), (x * y).sum() if n == m else x.sum() + y.sum())


def test_shapes_compare_as_tuples() -> None:
    @cuvil.jit
    def f(x: Any) -> Any:
        return x * 2 if x.shape == (1, 3) else x

    for n in (2, 5, 1, 6):
        x = f32(n, 3)
        np.testing.assert_array_equal(f(x), x * 2 if n == 1 else x)
