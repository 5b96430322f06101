"""Random dimension expressions with an independent plain-Python meaning, for the symbolic tests."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import Any

from hypothesis import strategies as st

from cuvil.support.errors import ShapeError
from cuvil.symbolic import Dim, Relation, Scope, ceildiv, dim_max, dim_min, evaluate, floordiv, mod, symbol

NAMES = ("A", "B", "i")

#: ("const", n), ("symbol", name) or (operation, left, right)
Tree = tuple[Any, ...]

BINARY = ("+", "-", "*", "//", "%", "min", "max", "ceildiv")


def leaves(low: int = -6, high: int = 9) -> st.SearchStrategy[Tree]:
    return st.one_of(
        st.tuples(st.just("symbol"), st.sampled_from(NAMES)), st.tuples(st.just("const"), st.integers(low, high))
    )


def trees(max_leaves: int = 8) -> st.SearchStrategy[Tree]:
    return st.recursive(leaves(), lambda inner: st.tuples(st.sampled_from(BINARY), inner, inner), max_leaves=max_leaves)


def meaning(tree: Tree, env: Mapping[str, int]) -> int:
    """The value in plain Python; ZeroDivisionError where it has none."""
    if tree[0] == "const":
        return tree[1]
    if tree[0] == "symbol":
        return env[tree[1]]
    a, b = meaning(tree[1], env), meaning(tree[2], env)
    return {
        "+": lambda: a + b,
        "-": lambda: a - b,
        "*": lambda: a * b,
        "//": lambda: a // b,
        "%": lambda: a % b,
        "min": lambda: min(a, b),
        "max": lambda: max(a, b),
        "ceildiv": lambda: -(-a // b),
    }[tree[0]]()


def build(tree: Tree) -> Dim:
    """The dim; ShapeError where a divisor is the integer zero."""
    if tree[0] == "const":
        return tree[1]
    if tree[0] == "symbol":
        return symbol(tree[1])
    a, b = build(tree[1]), build(tree[2])
    if tree[0] in ("+", "-", "*"):
        return a + b if tree[0] == "+" else a - b if tree[0] == "-" else a * b
    return {"//": floordiv, "%": mod, "min": dim_min, "max": dim_max, "ceildiv": ceildiv}[tree[0]](a, b)


def built(tree: Tree) -> Dim | None:
    """The dim, None where a divisor is the integer zero."""
    try:
        return build(tree)
    except ShapeError:
        return None


dims = trees().map(built).filter(lambda dim: dim is not None)

envs = st.fixed_dictionaries({name: st.one_of(st.sampled_from((0, 1, 2)), st.integers(0, 40)) for name in NAMES})

signs = st.sampled_from(("==", "!=", "<", "<=", ">", ">="))

_texts = st.sampled_from(
    (
        "A >= 1",
        "1 <= A <= 6",
        "A % 2 == 0",
        "A % 4 == 3",
        "A % 3 == 1",
        "(2*A + 1) % 3 == 0",
        "B == 2*A",
        "A == B + 1",
        "A + B == 4",
        "i < A",
        "i < B",
        "i <= A - B",
        "B >= A",
        "2*i <= A",
        "3*i + 2 >= B",
        "A == (B + 1)//2",
        "i < ceildiv(A, 2)",
        "i < min(A, B)",
        "B != 0",
        "A != B",
        "(A + B) % 2 == 0",
        "A*B <= 9",
        "i == A % 3",
        "2*A == 3*B",
    )
)
_random_relations = st.builds(
    lambda sign, left, right: Relation(sign, left, right),
    signs,
    trees(3).map(built).filter(lambda dim: dim is not None),
    trees(3).map(built).filter(lambda dim: dim is not None),
)

scopes = st.lists(st.one_of(_texts, _random_relations), max_size=3).map(Scope)


def value(dim: Dim, env: Mapping[str, int]) -> int | None:
    """The value, None where a divisor is zero."""
    try:
        return evaluate(dim, env)
    except ShapeError:
        return None


def admitted(scope: Scope, limit: int = 6) -> list[dict[str, int]]:
    """Every assignment of sizes below ``limit`` + 1 that meets the scope, zero and one among them."""
    every = (dict(zip(NAMES, values, strict=True)) for values in product(range(limit + 1), repeat=len(NAMES)))
    return [env for env in every if scope.first_broken(env) is None]
