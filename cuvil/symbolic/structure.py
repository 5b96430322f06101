"""Walking expressions and rebuilding them with other atoms, without recursion."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from cuvil.symbolic.expr import Atom, Dim, Expr, Monomial, dim_sum, from_terms, product, single_atom


def top_atoms(dim: Dim) -> list[Atom]:
    """The distinct atoms of the polynomial itself, in display order, not those inside them."""
    if isinstance(dim, int):
        return []
    return list(dict.fromkeys(atom for monomial, _ in dim.terms for atom, _ in monomial.factors))


def atoms(dim: Dim) -> list[Atom]:
    """Every distinct atom in ``dim``, operands before the atoms that contain them.

    >>> from cuvil.symbolic import symbol
    >>> [atom.text for atom in atoms((symbol("H") + symbol("K")) // 2 + symbol("B"))]
    ['B', 'H', 'K', '(H + K)//2']
    """
    done: dict[Atom, None] = {}
    stack: list[tuple[Atom, bool]] = [(atom, False) for atom in reversed(top_atoms(dim))]
    while stack:
        atom, expanded = stack.pop()
        if atom in done:
            continue
        if expanded:
            done[atom] = None
            continue
        stack.append((atom, True))
        for child in reversed(atom.children):
            stack.extend((inner, False) for inner in reversed(top_atoms(child)))
    return list(done)


def rebuild(dim: Dim, value_of: Callable[[Atom], Dim]) -> Dim:
    """``dim`` with each atom of its polynomial replaced by ``value_of(atom)``."""
    if isinstance(dim, int):
        return dim
    kept: list[tuple[Monomial, int]] = []
    parts: list[Dim] = []
    for monomial, coefficient in dim.terms:
        values = [(atom, value_of(atom), power) for atom, power in monomial.factors]
        if all(single_atom(value) is atom for atom, value, _ in values):
            kept.append((monomial, coefficient))
        else:
            parts.append(coefficient * product(value for _, value, power in values for _ in range(power)))
    if not parts:
        return dim
    return dim_sum([from_terms(kept, dim.const), *parts])


def transform(dim: Dim, value_of: Callable[[Atom, list[Dim]], Dim]) -> Dim:
    """``dim`` rebuilt from the leaves up: ``value_of(atom, rebuilt operands)`` gives each atom's new value.

    No recursion: operands are done before the atoms that contain them.
    """
    values: dict[Atom, Dim] = {}
    for atom in atoms(dim):
        values[atom] = value_of(atom, [rebuild(child, values.__getitem__) for child in atom.children])
    return rebuild(dim, values.__getitem__)


def substitute_atoms(dim: Dim, mapping: Mapping[Atom, Dim]) -> Dim:
    """``dim`` with whole atoms replaced wherever they stand."""
    return transform(dim, lambda atom, children: mapping[atom] if atom in mapping else atom.remake(children))


def iter_terms(dim: Dim) -> Iterator[tuple[Monomial | None, int]]:
    """``(monomial, coefficient)`` of each term; the constant comes last, with None, when it is not zero."""
    if isinstance(dim, Expr):
        yield from dim.terms
        dim = dim.const
    if dim:
        yield None, dim
