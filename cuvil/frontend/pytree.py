"""Pytrees: nested containers of arrays, flattened to leaves and rebuilt."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from cuvil.frontend.source import at_user_line
from cuvil.support.errors import ArgumentError, ArgumentTypeError


@dataclass(frozen=True)
class NodeType:
    """How one container type flattens: ``flatten(x) -> (children, aux)``, ``unflatten(aux, children) -> x``.

    ``names(aux)`` are the path components of the children, for messages.
    """

    flatten: Callable[[Any], tuple[tuple[Any, ...], Hashable]]
    unflatten: Callable[[Any, Iterable[Any]], Any]
    names: Callable[[Any, int], list[str]]


@dataclass(frozen=True)
class TreeDef:
    """The structure of a pytree without its leaves; hashable, so it can key a cache."""

    kind: type | None  # None for a leaf
    aux: Hashable = None
    children: tuple[TreeDef, ...] = ()
    leaves: int = 1

    def unflatten(self, leaves: Iterable[Any]) -> Any:
        """The tree with these leaves.

        Raises:
            ArgumentError: too few or too many leaves.
        """
        it = iter(leaves)
        tree = _build(self, it)
        if next(it, _END) is not _END:
            raise ArgumentError(f"too many leaves for a pytree of {self.leaves}")
        return tree

    def __str__(self) -> str:
        return _describe(self)


_END = object()
LEAF = TreeDef(None)


def _build(t: TreeDef, it: Iterator[Any]) -> Any:
    if t.kind is None:
        value = next(it, _END)
        if value is _END:
            raise ArgumentError("too few leaves for this pytree")
        return value
    return _node_type(t.kind).unflatten((t.kind, t.aux), [_build(c, it) for c in t.children])


def _describe(t: TreeDef) -> str:
    if t.kind is None:
        return "*"
    names = _node_type(t.kind).names(t.aux, len(t.children))
    inner = ", ".join(f"{n}: {_describe(c)}" for n, c in zip(names, t.children, strict=True))
    return f"{t.kind.__name__}({inner})"


def _index_names(_: Any, n: int) -> list[str]:
    return [f"[{i}]" for i in range(n)]


def _flatten_dict(x: dict[Any, Any]) -> tuple[tuple[Any, ...], Hashable]:
    return tuple(x.values()), tuple(x.keys())


def _key_names(aux: Any, _: int) -> list[str]:
    return [f"[{k!r}]" for k in aux]


_SEQUENCE = NodeType(lambda x: (tuple(x), None), lambda a, c: a[0](c), _index_names)
_NAMEDTUPLE = NodeType(lambda x: (tuple(x), x._fields), lambda a, c: a[0](*c), lambda aux, _: [f".{f}" for f in aux])
_NONE = NodeType(lambda _: ((), None), lambda _a, _c: None, _index_names)
_DICT = NodeType(_flatten_dict, lambda a, c: a[0](zip(a[1], c, strict=True)), _key_names)


def _flatten_dataclass(x: Any) -> tuple[tuple[Any, ...], Hashable]:
    names = tuple(f.name for f in dataclasses.fields(x) if f.init)
    return tuple(getattr(x, n) for n in names), names


_DATACLASS = NodeType(
    _flatten_dataclass,
    lambda a, c: a[0](**dict(zip(a[1], c, strict=True))),
    lambda aux, _: [f".{f}" for f in aux],
)

_REGISTERED: dict[type, NodeType] = {
    tuple: _SEQUENCE,
    list: _SEQUENCE,
    dict: _DICT,
    OrderedDict: _DICT,
    type(None): _NONE,
}


def register_pytree_node(
    cls: type,
    flatten: Callable[[Any], tuple[tuple[Any, ...], Hashable]],
    unflatten: Callable[[Any, Iterable[Any]], Any],
) -> None:
    """Make a class a pytree container.

    ``flatten(x)`` gives (children, hashable aux); ``unflatten(aux, children)`` is its inverse.
    """
    _REGISTERED[cls] = NodeType(flatten, lambda a, c: unflatten(a[1], c), _index_names)


def _find(cls: type) -> NodeType | None:
    found = _REGISTERED.get(cls)
    if found is not None:
        return found
    if issubclass(cls, tuple) and hasattr(cls, "_fields"):
        return _NAMEDTUPLE
    if dataclasses.is_dataclass(cls):
        return _DATACLASS
    return None


def _node_type(cls: type) -> NodeType:
    found = _find(cls)
    if found is None:
        raise ArgumentTypeError(f"{cls.__name__} is not a pytree container")
    return found


def flatten(tree: Any) -> tuple[list[Any], TreeDef]:
    """Leaves from left to right, and the structure. Dict entries keep their insertion order.

    >>> leaves, tree = flatten({"w": 1, "layers": [2, (3, None)]})
    >>> leaves
    [1, 2, 3]
    >>> tree.unflatten([10, 20, 30])
    {'w': 10, 'layers': [20, (30, None)]}
    """
    leaves: list[Any] = []
    return leaves, _flatten_into(tree, leaves)


def _flatten_into(tree: Any, leaves: list[Any]) -> TreeDef:
    cls = type(tree)
    node = _find(cls)
    if node is None:
        leaves.append(tree)
        return LEAF
    children, aux = node.flatten(tree)
    start = len(leaves)
    defs = tuple(_flatten_into(c, leaves) for c in children)
    return TreeDef(cls, aux, defs, len(leaves) - start)


def leaf_paths(tree: TreeDef, root: str = "") -> list[str]:
    """A readable path per leaf: ``params['layers'][0].w``."""
    if tree.kind is None:
        return [root]
    out: list[str] = []
    for name, child in zip(_node_type(tree.kind).names(tree.aux, len(tree.children)), tree.children, strict=True):
        out.extend(leaf_paths(child, root + name))
    return out


def argument_paths(tree: TreeDef, parameters: Sequence[str]) -> list[str]:
    """A readable path per leaf of ``(args, kwargs)``, positional arguments by the names of the parameters.

    >>> argument_paths(flatten((({"w": 1.0}, 2.0), {"scale": 3.0}))[1], ["x"])
    ["x['w']", 'arg1', 'scale']
    """
    out: list[str] = []
    for path in leaf_paths(tree):
        # A path is [0][i]... for positional arguments and [1]['name']... for named ones.
        head, _, rest = path[1:].partition("]")
        if head == "0":
            number, _, tail = rest[1:].partition("]")
            k = int(number)
            out.append((parameters[k] if k < len(parameters) else f"arg{k}") + tail)
        else:
            name, _, tail = rest.removeprefix("['").partition("']")
            out.append(name + tail)
    return out


def leaves_up_to(tree: TreeDef, value: Any, root: str) -> list[Any]:
    """The parts of ``value`` that stand where ``tree`` has leaves; they may be anything, None too.

    Raises:
        ArgumentError: ``value`` has another structure above the leaves.

    >>> leaves_up_to(flatten({"x": 1, "y": 2})[1], {"x": None, "y": [1, 2]}, "v")
    [None, [1, 2]]
    """
    out: list[Any] = []
    _up_to(tree, value, root, out)
    return out


def _up_to(tree: TreeDef, value: Any, path: str, out: list[Any]) -> None:
    if tree.kind is None:
        out.append(value)
        return
    node = _find(type(value))
    children, aux = ((), None) if node is None else node.flatten(value)
    if type(value) is not tree.kind or aux != tree.aux or len(children) != len(tree.children):
        raise ArgumentError(f"{path} is {type(value).__name__}{at_user_line()} and does not have the structure {tree}")
    names = _node_type(tree.kind).names(tree.aux, len(children))
    for name, child, part in zip(names, tree.children, children, strict=True):
        _up_to(child, part, path + name, out)


def broadcast_prefix(prefix: Any, tree: TreeDef, root: str) -> list[Any]:
    """One value for each leaf of ``tree``, where ``prefix`` may say one for a whole subtree.

    None and whatever is no container stand for all leaves below them.

    Raises:
        ArgumentError: ``prefix`` is deeper than ``tree``, or has another structure.

    >>> broadcast_prefix((0, None), flatten(({"a": 1, "b": 2}, 3))[1], "in_axes")
    [0, 0, None]
    """
    out: list[Any] = []
    _prefix(prefix, tree, root, out)
    return out


def _prefix(prefix: Any, tree: TreeDef, path: str, out: list[Any]) -> None:
    node = _find(type(prefix))
    if node is None or prefix is None:
        out += [prefix] * tree.leaves
        return
    children, aux = node.flatten(prefix)
    # A list may stand for a tuple and the other way round; keys and fields must be the same.
    plain = {tuple, list}
    same = type(prefix) is tree.kind or {type(prefix), tree.kind} <= plain
    if not same or aux != tree.aux or len(children) != len(tree.children):
        raise ArgumentError(f"{path} is {prefix!r}{at_user_line()}, which is no prefix of the structure {tree}")
    for name, part, child in zip(node.names(aux, len(children)), children, tree.children, strict=True):
        _prefix(part, child, path + name, out)


def tree_map(fn: Callable[..., Any], tree: Any, *rest: Any) -> Any:
    """Apply ``fn`` leaf by leaf over trees of one structure.

    >>> tree_map(lambda a, b: a + b, {"x": 1}, {"x": 10})
    {'x': 11}

    Raises:
        ArgumentError: the trees differ in structure.
    """
    leaves, treedef = flatten(tree)
    columns = [leaves]
    for other in rest:
        more, other_def = flatten(other)
        if other_def != treedef:
            raise ArgumentError(f"pytrees differ in structure: {treedef} and {other_def}")
        columns.append(more)
    return treedef.unflatten(fn(*row) for row in zip(*columns, strict=True))
