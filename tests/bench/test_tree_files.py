"""Pytrees on disk."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from bench.pytree import leaves, load_tree, save_tree


def test_round_trip(tmp_path: Path) -> None:
    tree = {"a": [np.arange(3), {"b": np.ones((2, 2), np.float32)}], "c": np.array(5), "d": []}
    save_tree(tree, tmp_path)
    found = load_tree(tmp_path)
    assert found.keys() == tree.keys() and found["d"] == []
    for a, b in zip(leaves(tree), leaves(found), strict=True):
        assert a.dtype == b.dtype and np.array_equal(a, b)


def test_strided_arrays_keep_their_values(tmp_path: Path) -> None:
    array = np.arange(6).reshape(2, 3).T
    save_tree([array], tmp_path)
    assert np.array_equal(load_tree(tmp_path)[0], array)
