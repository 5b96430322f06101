"""Writes pytrees of arrays to folders, where every system's process reads them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

Tree = Any


def map_tree(function: Callable[[Any], Any], tree: Tree) -> Tree:
    """The tree with every leaf replaced; dicts, lists and tuples are its nodes."""
    if isinstance(tree, dict):
        return {key: map_tree(function, value) for key, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        return [map_tree(function, value) for value in tree]
    return function(tree)


def leaves(tree: Tree) -> list[Any]:
    """The leaves in order."""
    found: list[Any] = []
    map_tree(found.append, tree)
    return found


def save_tree(tree: Tree, folder: Path) -> None:
    """Write the leaves as .npy files and the structure beside them."""
    folder.mkdir(parents=True, exist_ok=True)
    names: list[str] = []

    def write(leaf: Any) -> str:
        names.append(f"{len(names):05d}.npy")
        np.save(folder / names[-1], np.asarray(leaf, order="C"), allow_pickle=False)
        return names[-1]

    structure = map_tree(write, tree)
    (folder / "tree.json").write_text(json.dumps(structure))


def load_tree(folder: Path) -> Tree:
    """What :func:`save_tree` wrote, with lists for tuples."""
    structure = json.loads((folder / "tree.json").read_text())
    return map_tree(lambda name: np.load(folder / name, allow_pickle=False), structure)
