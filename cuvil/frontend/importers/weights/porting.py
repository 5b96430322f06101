"""Porting: rules applied to a checkpoint, and its tensors set into a parameter pytree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np

from cuvil.frontend.importers.weights.array_views import Array
from cuvil.frontend.importers.weights.parameter_tree import (
    Leaf,
    joined_path,
    nested,
    parameter_leaves,
    path_of,
    rebuilt,
)
from cuvil.frontend.importers.weights.report import Misshaped, Mistyped, Report, nearest_names
from cuvil.frontend.importers.weights.rules import Rule
from cuvil.support.errors import WeightsError


def port(tensors: Mapping[str, object], rules: Sequence[Rule] = (), like: object | None = None) -> tuple[Any, Report]:
    """Apply rules to the tensors of a checkpoint and set them into a parameter pytree.

    In the names that the rules leave, ``.`` and ``/`` both separate the keys of nested containers.

    Args:
        tensors: arrays by name, as :func:`cuvil.weights.load` gives them.
        rules: steps that run in order; see :mod:`cuvil.weights`.
        like: the pytree to fill: nested dicts, lists and tuples whose leaves have a ``.shape`` (and perhaps a
            ``.dtype``) or are a shape, a tuple of integers; None has no tensor. Left out, the names alone make the
            tree: dicts, and lists where the keys of a dict are 0, 1, 2 and so on.

    Returns:
        The pytree, with None where a tensor is missing or mis-shaped, and the report. Nothing is converted: a tensor of
        another dtype than its leaf is taken as it is and reported.

    Raises:
        WeightsError: a rule that does not fit a tensor, two tensors of one name, a name that is both a tensor and
            a container, or a leaf of ``like`` without a shape.

    >>> from cuvil.weights import rename, transpose
    >>> tensors = {"layer.0.weight": np.ones((2, 3)), "layer.0.bias": np.ones(2)}
    >>> rules = [rename(r"layer\\.(\\d+)\\.(.*)", r"layers/\\1/\\2"), transpose(r".*/weight")]
    >>> params, report = port(tensors, rules, like={"layers": [{"weight": (3, 2), "bias": (2,)}]})
    >>> params["layers"][0]["weight"].shape, report.complete
    ((3, 2), True)
    >>> _, report = port(tensors, like={"layers": [{"weight": (3, 2), "bias": (2,)}]})
    >>> print(report)
    0 parameters loaded
    missing (2):
      layers/0/weight (nearest: layer/0/weight, layer/0/bias)
      layers/0/bias (nearest: layer/0/bias, layer/0/weight)
    unexpected (2):
      layer/0/weight (nearest: layers/0/weight, layers/0/bias)
      layer/0/bias (nearest: layers/0/bias, layers/0/weight)
    """
    arrays: dict[str, Array] = {name: np.asarray(tensor) for name, tensor in tensors.items()}
    unused: list[str] = []
    for rule in rules:
        arrays, changed = rule.apply(arrays)
        if not changed:
            unused.append(str(rule))
    by_path: dict[tuple[str, ...], Array] = {}
    for name, array in arrays.items():
        path = path_of(name)
        if path in by_path:
            raise WeightsError(f"two tensors are named {joined_path(path)!r} once dots and slashes are one")
        by_path[path] = array
    if like is None:
        return nested(by_path), Report(len(by_path), unused_rules=tuple(unused))
    return _filled(by_path, like, tuple(unused))


def _filled(by_path: dict[tuple[str, ...], Array], like: object, unused: tuple[str, ...]) -> tuple[Any, Report]:
    leaves = parameter_leaves(like)
    missing: list[str] = []
    misshaped: list[Misshaped] = []
    mistyped: list[Mistyped] = []
    values: dict[tuple[str, ...], Array | None] = {}
    for path, leaf in leaves.items():
        name = joined_path(path)
        array = by_path.get(path)
        values[path] = None
        if array is None:
            missing.append(name)
        elif array.shape != leaf.shape:
            misshaped.append(Misshaped(name, cast("tuple[int, ...]", array.shape), leaf.shape))
        else:
            values[path] = array
            mistyped += _mistyped(name, array, leaf)
    unexpected = [joined_path(path) for path in by_path if path not in leaves]
    report = Report(
        loaded=sum(value is not None for value in values.values()),
        missing=tuple(missing),
        unexpected=tuple(unexpected),
        misshaped=tuple(misshaped),
        mistyped=tuple(mistyped),
        unused_rules=unused,
        nearest=nearest_names(missing, unexpected),
    )
    return rebuilt(like, values), report


def _mistyped(name: str, array: Array, leaf: Leaf) -> list[Mistyped]:
    if leaf.dtype is None or str(array.dtype) == leaf.dtype:
        return []
    return [Mistyped(name, str(array.dtype), leaf.dtype)]
