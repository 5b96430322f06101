"""Simplification under facts: what normal form may not do because it has to know sizes and ranges.

The measure that it lowers is ``node_count``; a rewrite that would raise it is not taken. Values stay the same
for every assignment that the facts admit, and a division by zero stays one: a divisor is cancelled only where it
is proved positive.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd

from cuvil.support.errors import ShapeError
from cuvil.symbolic.expr import (
    Atom,
    Dim,
    Expr,
    FloorDiv,
    Max,
    Min,
    Mod,
    Monomial,
    Symbol,
    atom_dim,
    dim_max,
    dim_min,
    dim_sum,
    extremum_of,
    floordiv,
    from_terms,
    mod,
    monomial_dim,
    monomial_of,
    prune,
)
from cuvil.symbolic.facts import Facts
from cuvil.symbolic.query import divide_polynomials, exact_div, node_count
from cuvil.symbolic.structure import iter_terms, transform

#: Passes over one expression; each lowers the measure or is the last.
_PASSES = 8


def simplify(dim: Dim, facts: Facts) -> Dim:
    """The simplest equal of ``dim`` that the rules reach, over the symbols that ``facts`` kept (forwarded)."""
    dim = facts.forward(dim)
    if facts.empty:
        return dim
    for _ in range(_PASSES):
        try:
            new = _join_divisions(transform(dim, lambda atom, children: _atom(atom, children, facts)), facts)
        except ShapeError:
            # A rewrite outgrew the limits of an expression, or met a division by zero that is in the input.
            return dim
        if new == dim or node_count(new) > node_count(dim):
            return dim
        dim = new
    return dim


def _atom(atom: Atom, children: list[Dim], facts: Facts) -> Dim:
    known = facts.atom_values.get(atom)
    if known is not None and facts.defined(atom_dim(atom)):
        return known
    if isinstance(atom, Symbol):
        low, high = facts.atom_interval(atom)
        return low if low is not None and low == high else atom_dim(atom)
    if isinstance(atom, FloorDiv | Mod):
        plain = atom.remake(children)
        divided = divide(children[0], children[1], facts)[isinstance(atom, Mod)]
        return divided if node_count(divided) <= node_count(plain) else plain
    assert isinstance(atom, Min | Max)
    kind = type(atom)
    # Through the constructor first: it flattens and drops what is evident.
    made = dim_min(*children) if kind is Min else dim_max(*children)
    flat = made.terms[0][0].factors[0][0] if isinstance(made, Expr) and len(made.terms) == 1 else None
    if not isinstance(flat, kind) or made != atom_dim(flat):
        return made
    return extremum_of(kind, prune(flat.children, kind, lambda dim: facts.nonneg(dim) and facts.defined(dim)))


def divide(n: Dim, d: Dim, facts: Facts) -> tuple[Dim, Dim]:
    """``(n // d, n % d)``, simplified."""
    if isinstance(n, int) and isinstance(d, int):
        return floordiv(n, d), mod(n, d)
    if not facts.positive(d):
        return floordiv(n, d), mod(n, d)
    for part in _parts(n, d):
        # n = part*high + low with part dividing d. When 0 <= low < part:
        # n//d = high//(d/part) and n%d = part*(high % (d/part)) + low.
        high, low = _split(n, part)
        shift = _quotient(low, part, facts)
        inner = exact_div(d, part)
        if shift is not None and inner is not None and facts.positive(part):
            quotient, rest = divide(high + shift, inner, facts) if inner != 1 else (high + shift, 0)
            return quotient, part * rest + (low - shift * part)
    if isinstance(d, Expr):
        high, low = _split(n, d)
        if high != 0:
            return high + floordiv(low, d), mod(low, d)
    return floordiv(n, d), mod(n, d)


def _quotient(low: Dim, part: Dim, facts: Facts) -> int | None:
    """The integer that ``low // part`` is proved to be, None when it is not proved."""
    if isinstance(part, int):
        # Any quotient: both ends of the range fall in the same one.
        least = facts.lower(low)
        if least is None:
            return None
        shift = least // part
        most = facts.upper(low, shift * part + part - 1)
        return shift if most is not None and most // part == shift else None
    if facts.nonneg(low):
        return 0 if facts.nonneg(part - 1 - low) else None
    return -1 if facts.nonneg(-1 - low) and facts.nonneg(low + part) else None


def _parts(n: Dim, d: Dim) -> Iterator[Dim]:
    """Divisors of ``d`` that may split ``n``: d itself, and what d shares with each term of n."""
    yield d
    if isinstance(d, int):
        seen = {1, abs(d)}
        for monomial, coefficient in iter_terms(n):
            common = gcd(coefficient, d)
            if monomial is not None and common not in seen:
                seen.add(common)
                yield common
    elif len(d.terms) == 1 and not d.const:
        monomial, scale = d.terms[0]
        tried: set[Dim] = {1, d}
        for other, coefficient in iter_terms(n):
            for shared in (_shared(monomial, other), None):
                base: Dim = 1 if shared is None else monomial_dim(shared)
                for part in (gcd(coefficient, scale) * base, base):
                    if part not in tried:
                        tried.add(part)
                        yield part


def _shared(a: Monomial, b: Monomial | None) -> Monomial | None:
    if b is None:
        return None
    powers = dict(b.factors)
    return monomial_of((atom, min(power, powers.get(atom, 0))) for atom, power in a.factors)


def _split(n: Dim, part: Dim) -> tuple[Dim, Dim]:
    """``(high, low)`` with n == part*high + low, high made of the terms that ``part`` divides."""
    if isinstance(part, Expr):
        return divide_polynomials(n, part)
    if isinstance(n, int):
        return divmod(n, part)
    high = [(monomial, coefficient // part) for monomial, coefficient in n.terms if coefficient % part == 0]
    low = [(monomial, coefficient) for monomial, coefficient in n.terms if coefficient % part]
    # A constant with a remainder stays whole with the rest, so that i - 1 keeps its range.
    outside, inside = divmod(n.const, part)
    return from_terms(high, outside), from_terms(low, inside)


def _join_divisions(dim: Dim, facts: Facts) -> Dim:
    """``(x//d)*d + x % d`` is ``x``: write a mod by its definition where that makes the whole smaller."""
    smaller: Dim | None = dim
    while smaller is not None:
        dim = smaller
        smaller = next(_with_mod_expanded(dim, facts), None)
    return dim


def _with_mod_expanded(dim: Dim, facts: Facts) -> Iterator[Dim]:
    """What expanding one mod of the polynomial gives, where that is smaller."""
    if not isinstance(dim, Expr):
        return
    for monomial, coefficient in dim.terms:
        for atom, power in monomial.factors:
            if not isinstance(atom, Mod) or power != 1 or not facts.positive(atom.denominator):
                continue
            others = monomial_of(factor for factor in monomial.factors if factor[0] is not atom)
            scale: Dim = coefficient if others is None else coefficient * monomial_dim(others)
            n, d = atom.numerator, atom.denominator
            expanded = scale * (n - d * divide(n, d, facts)[0])
            candidate = dim_sum([dim - coefficient * monomial_dim(monomial), expanded])
            if node_count(candidate) < node_count(dim):
                yield candidate
