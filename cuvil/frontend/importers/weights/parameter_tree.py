"""Parameter pytrees by path: names to keys, leaves of nested containers, and trees built from either."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from cuvil import dtypes
from cuvil.frontend.importers.weights.array_views import Array
from cuvil.support.errors import WeightsError

Path = tuple[str, ...]
_SEPARATORS = re.compile(r"[./]")
_MAX_DEPTH = 100


@dataclass(frozen=True)
class Leaf:
    """What a parameter expects: its shape, and its dtype's name where it has one."""

    shape: tuple[int, ...]
    dtype: str | None


def path_of(name: str) -> Path:
    """The keys that a tensor's name spells.

    Raises:
        WeightsError: an empty key, or more keys than a tree may be deep.

    >>> path_of("layers/0.weight")
    ('layers', '0', 'weight')
    """
    path = tuple(_SEPARATORS.split(name))
    if "" in path or len(path) > _MAX_DEPTH:
        raise WeightsError(f"{name!r:.120} is no path of at most {_MAX_DEPTH} keys separated by dots or slashes")
    return path


def joined_path(path: Path) -> str:
    """A path as reports write it.

    >>> joined_path(("layers", "0", "weight"))
    'layers/0/weight'
    """
    return "/".join(path)


def nested(values: Mapping[Path, Array]) -> Any:
    """The tree that paths spell: dicts, and lists where the keys are exactly 0, 1, 2 and so on.

    Raises:
        WeightsError: a path that is both a value and the start of others.

    >>> nested({("a", "0"): np.float32(1), ("a", "1"): np.float32(2), ("b", "2"): np.float32(3)})
    {'a': [np.float32(1.0), np.float32(2.0)], 'b': {'2': np.float32(3.0)}}
    """
    root: dict[str, Any] = {}
    for path, value in values.items():
        node: Any = root
        for depth, key in enumerate(path[:-1]):
            node = cast("dict[str, Any]", node).setdefault(key, {})
            if not isinstance(node, dict):
                raise WeightsError(
                    f"{joined_path(path[: depth + 1])!r} is a tensor and also holds {joined_path(path)!r}"
                )
        if path[-1] in node:
            raise WeightsError(f"{joined_path(path)!r} is a tensor and also holds others")
        node[path[-1]] = value
    return _with_lists(root)


def _with_lists(node: Any) -> Any:
    # Depth is bounded by path_of.
    if not isinstance(node, dict):
        return node
    children = {key: _with_lists(child) for key, child in cast("dict[str, Any]", node).items()}
    if children and set(children) == {str(index) for index in range(len(children))}:
        return [children[str(index)] for index in range(len(children))]
    return children


def parameter_leaves(tree: object) -> dict[Path, Leaf]:
    """The leaves of a pytree by path, in its order.

    Raises:
        WeightsError: a leaf without a shape, keys that clash as text, or a tree nested too deeply.

    >>> parameter_leaves({"w": (2, 3), "b": [np.ones(2)]})
    {('w',): Leaf(shape=(2, 3), dtype=None), ('b', '0'): Leaf(shape=(2,), dtype='float64')}
    """
    leaves: dict[Path, Leaf] = {}
    for path, leaf in _walk(tree, ()):
        if path in leaves:
            raise WeightsError(f"two parameters are named {joined_path(path)!r}; rename a key")
        leaves[path] = leaf
    return leaves


def _walk(node: object, path: Path) -> Iterator[tuple[Path, Leaf]]:
    if len(path) > _MAX_DEPTH:
        raise WeightsError(f"the pytree is nested more than {_MAX_DEPTH} deep at {joined_path(path[:4])!r}")
    if node is None:
        return
    leaf = _leaf(node, path)
    if leaf is not None:
        yield path, leaf
        return
    for key, child in _children(node, path):
        yield from _walk(child, (*path, *path_of(key)))


def _leaf(node: object, path: Path) -> Leaf | None:
    if isinstance(node, tuple) and all(isinstance(size, int | np.integer) for size in cast("tuple[Any, ...]", node)):
        return Leaf(tuple(int(size) for size in cast("tuple[int, ...]", node)), None)
    shape = getattr(node, "shape", None)
    if shape is None:
        return None
    try:
        sizes = tuple(int(size) for size in shape)
    except (TypeError, ValueError) as error:
        raise WeightsError(f"{joined_path(path)!r} has shape {shape}; expected whole numbers") from error
    dtype = getattr(node, "dtype", None)
    if dtype is None:
        return Leaf(sizes, None)
    return Leaf(sizes, dtype.name if isinstance(dtype, dtypes.DType) else str(np.dtype(dtype)))


def _children(node: object, path: Path) -> list[tuple[str, object]]:
    if isinstance(node, Mapping):
        return [(str(key), child) for key, child in cast("Mapping[Any, object]", node).items()]
    if isinstance(node, tuple) and hasattr(node, "_fields"):
        return list(zip(cast("Any", node)._fields, cast("tuple[object, ...]", node), strict=True))
    if isinstance(node, list | tuple):
        return [(str(index), child) for index, child in enumerate(cast("list[object]", node))]
    raise WeightsError(
        f"{joined_path(path)!r} is a {type(node).__name__}; expected an array, a shape (a tuple of integers), a dict, "
        "a list or a tuple"
    )


def rebuilt(tree: object, values: Mapping[Path, Array | None], path: Path = ()) -> Any:
    """A copy of a pytree with its leaves replaced by the values at their paths.

    >>> rebuilt({"w": (2,), "n": None}, {("w",): np.ones(2)})
    {'w': array([1., 1.]), 'n': None}
    """
    if tree is None:
        return None
    if _leaf(tree, path) is not None:
        return values[path]
    children = [rebuilt(child, values, (*path, *path_of(key))) for key, child in _children(tree, path)]
    if isinstance(tree, Mapping):
        return dict(zip(cast("Mapping[Any, object]", tree), children, strict=True))
    if isinstance(tree, tuple):
        return cast("Any", type(tree))(*children) if hasattr(tree, "_fields") else tuple(children)
    return children
