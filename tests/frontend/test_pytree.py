"""Pytrees: flattening, rebuilding, paths, and structures as keys."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cuvil.frontend.pytree import flatten, leaf_paths, register_pytree_node, tree_map
from cuvil.support.errors import ArgumentError


class Pair(NamedTuple):
    left: Any
    right: Any


@dataclasses.dataclass(frozen=True)
class Layer:
    w: Any
    b: Any = None
    cached: Any = dataclasses.field(default=7, init=False)


TREES = st.recursive(
    st.integers() | st.none(),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(st.text(max_size=3) | st.integers(), inner, max_size=4),
        st.builds(Pair, inner, inner),
        st.builds(Layer, inner, inner),
    ),
    max_leaves=20,
)


@given(TREES)
def test_unflatten_is_the_inverse(tree: Any) -> None:
    leaves, structure = flatten(tree)
    assert structure.unflatten(leaves) == tree
    assert structure.leaves == len(leaves) == len(leaf_paths(structure))
    assert hash(flatten(tree)[1]) == hash(structure) and flatten(tree)[1] == structure
    assert flatten(structure.unflatten(range(len(leaves))))[0] == list(range(len(leaves)))


@given(TREES, TREES)
def test_equal_structures_have_equal_definitions(a: Any, b: Any) -> None:
    da, db = flatten(a)[1], flatten(b)[1]
    same = da.leaves == db.leaves and da.unflatten([0] * da.leaves) == db.unflatten([0] * da.leaves)
    if da == db:
        assert same


def test_leaves_go_from_left_to_right_in_insertion_order() -> None:
    tree = {"b": [1, (2, Pair(3, {"z": 4, "a": 5}))], "a": Layer(6, [7, None])}
    leaves, structure = flatten(tree)
    assert leaves == [1, 2, 3, 4, 5, 6, 7]
    assert leaf_paths(structure, "t") == [
        "t['b'][0]", "t['b'][1][0]", "t['b'][1][1].left", "t['b'][1][1].right['z']", "t['b'][1][1].right['a']",
        "t['a'].w", "t['a'].b[0]",
    ]  # fmt: skip
    assert str(structure).startswith("dict(['b']: list(")


def test_containers_keep_their_types() -> None:
    for tree in ([1], (1,), {"a": 1}, OrderedDict(a=1), Pair(1, 2), Layer(1, 2), None):
        leaves, structure = flatten(tree)
        assert type(structure.unflatten(leaves)) is type(tree)
    kinds = {flatten(t)[1] for t in ([1], (1,), {"a": 1}, {"b": 1}, OrderedDict(a=1), Layer(1), 1, None, [], ())}
    assert len(kinds) == 10


def test_wrong_numbers_of_leaves() -> None:
    structure = flatten([1, (2, 3)])[1]
    with pytest.raises(ArgumentError, match="too few leaves"):
        structure.unflatten([1, 2])
    with pytest.raises(ArgumentError, match="too many leaves for a pytree of 3"):
        structure.unflatten([1, 2, 3, 4])


def test_classes_can_register() -> None:
    class Box:
        def __init__(self, name: str, value: Any) -> None:
            self.name, self.value = name, value

    register_pytree_node(Box, lambda x: ((x.value,), x.name), lambda name, children: Box(name, *children))
    leaves, structure = flatten([Box("a", [1, 2])])
    assert leaves == [1, 2]
    (again,) = structure.unflatten([3, 4])
    assert (again.name, again.value) == ("a", [3, 4])
    assert flatten([Box("b", [1, 2])])[1] != structure


def test_map_over_trees_of_one_structure() -> None:
    assert tree_map(lambda a, b: a + b, {"x": [1, 2]}, {"x": [10, 20]}) == {"x": [11, 22]}
    with pytest.raises(ArgumentError, match="differ in structure"):
        tree_map(lambda a, b: a, {"x": 1}, {"y": 1})
