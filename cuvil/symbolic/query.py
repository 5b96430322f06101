"""What one asks of a dimension expression: value, substitution, linear form, exact quotient, visitor."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import prod
from typing import TypeGuard, TypeVar

from cuvil.support.errors import ShapeError
from cuvil.symbolic.expr import (
    Atom,
    Dim,
    Expr,
    FloorDiv,
    Min,
    Mod,
    Monomial,
    Symbol,
    as_dim,
    dim_sum,
    from_terms,
    monomial_of,
)
from cuvil.symbolic.structure import transform

T = TypeVar("T")


def is_static(dim: Dim) -> TypeGuard[int]:
    """Whether ``dim`` is a plain integer.

    >>> is_static(3)
    True
    """
    return not isinstance(dim, Expr)


def free_symbols(*dims: Dim) -> frozenset[str]:
    """The names of the symbols that ``dims`` mention.

    >>> from cuvil.symbolic import symbol
    >>> sorted(free_symbols(symbol("B") * symbol("S"), 3))
    ['B', 'S']
    """
    found: frozenset[str] = frozenset()
    for dim in dims:
        if isinstance(dim, Expr):
            found |= dim.symbols
    return found


def evaluate(dim: Dim, env: Mapping[str, int]) -> int:
    """The value of ``dim`` where ``env`` gives each symbol a non-negative integer.

    Raises ShapeError for a symbol without a value or with a negative one, and for a division by zero.

    >>> from cuvil.symbolic import symbol
    >>> evaluate((symbol("H") - 1) // 2 + 1, {"H": 5})
    3
    """
    if not isinstance(dim, Expr):
        return dim
    total = dim.const
    for monomial, coefficient in dim.terms:
        for atom, power in monomial.factors:
            value = _evaluate_atom(atom, env)
            coefficient *= value if power == 1 else value**power
        total += coefficient
    return total


def _evaluate_atom(atom: Atom, env: Mapping[str, int]) -> int:
    if isinstance(atom, Symbol):
        try:
            value = env[atom.name]
        except KeyError:
            known = ", ".join(sorted(env)) or "none"
            raise ShapeError(f"the dimension symbol {atom.name} has no value here; known symbols: {known}") from None
        if value < 0:
            raise ShapeError(f"the dimension symbol {atom.name} must be >= 0, got {value}")
        return value
    values = [evaluate(child, env) for child in atom.children]
    if isinstance(atom, FloorDiv | Mod):
        if values[1] == 0:
            where = ", ".join(f"{name}={env[name]}" for name in sorted(atom.symbols))
            raise ShapeError(f"the dimension {atom.text} divides by zero at {where}")
        return values[0] // values[1] if isinstance(atom, FloorDiv) else values[0] % values[1]
    return min(values) if isinstance(atom, Min) else max(values)


def substitute(dim: Dim, mapping: Mapping[str, Dim]) -> Dim:
    """``dim`` with each symbol that ``mapping`` names replaced, all at once.

    Raises ShapeError when that makes a divisor the integer 0.

    >>> from cuvil.symbolic import symbol
    >>> substitute(symbol("S") // 2, {"S": 2 * symbol("T") + 1})
    Expr('T')
    """
    if not isinstance(dim, Expr) or dim.symbols.isdisjoint(mapping):
        return dim

    def value(atom: Atom, children: Sequence[Dim]) -> Dim:
        if isinstance(atom, Symbol):
            replacement = mapping.get(atom.name)
            return atom.remake(()) if replacement is None else as_dim(replacement)
        return atom.remake(children)

    return transform(dim, value)


def linear_coefficient(dim: Dim, name: str) -> tuple[Dim, Dim] | None:
    """``(coefficient, rest)`` with ``dim == coefficient * name + rest`` and ``name`` in neither; else None.

    >>> from cuvil.symbolic import parse_dim
    >>> linear_coefficient(parse_dim("i*S + 2*i + j"), "i")
    (Expr('S + 2'), Expr('j'))
    >>> linear_coefficient(parse_dim("i//2"), "i") is None
    True
    """
    if not isinstance(dim, Expr) or name not in dim.symbols:
        return 0, dim
    for monomial, _ in dim.terms:
        for atom, _ in monomial.factors:
            if name in atom.symbols:
                return None if not isinstance(atom, Symbol) else linear_in_atom(dim, atom)
    raise AssertionError(f"{dim} lists the symbol {name} and has no atom with it")


def linear_in_atom(dim: Expr, atom: Atom) -> tuple[Dim, Dim] | None:
    """Like :func:`linear_coefficient` for any atom of the polynomial itself.

    For a symbol, None also when other atoms mention it; for an operation, only its power counts.
    """
    coefficients: list[tuple[Monomial, int]] = []
    constant = 0
    rest: list[tuple[Monomial, int]] = []
    for monomial, coefficient in dim.terms:
        found = 0
        for factor, power in monomial.factors:
            if factor is atom:
                found = power
            elif isinstance(atom, Symbol) and atom.name in factor.symbols:
                return None
        if not found:
            rest.append((monomial, coefficient))
        elif found > 1:
            return None
        else:
            left = monomial_of(factor for factor in monomial.factors if factor[0] is not atom)
            if left is None:
                constant = coefficient
            else:
                coefficients.append((left, coefficient))
    return from_terms(coefficients, constant), from_terms(rest, dim.const)


# -- polynomial division ------------------------------------------------------------------------------------

_Powers = tuple[int, ...]


def _degree_order(powers: _Powers) -> tuple[int, _Powers]:
    """Graded lexicographic order: a monomial order, so leading terms multiply."""
    return sum(powers), powers


def _exponents(dims: Iterable[Dim]) -> tuple[list[Atom], list[dict[_Powers, int]]]:
    """The dims as maps from exponent vectors over one shared list of atoms to coefficients."""
    dims = list(dims)
    found: dict[Atom, int] = {}
    for dim in dims:
        if isinstance(dim, Expr):
            for monomial, _ in dim.terms:
                for atom, _ in monomial.factors:
                    found.setdefault(atom, 0)
    order = sorted(found, key=lambda atom: atom.key)
    index = {atom: i for i, atom in enumerate(order)}
    zero: _Powers = (0,) * len(order)
    result: list[dict[_Powers, int]] = []
    for dim in dims:
        powers: dict[_Powers, int] = {}
        const = dim.const if isinstance(dim, Expr) else dim
        if isinstance(dim, Expr):
            for monomial, coefficient in dim.terms:
                vector: list[int] = list(zero)
                for atom, power in monomial.factors:
                    vector[index[atom]] = power
                powers[tuple(vector)] = coefficient
        if const:
            powers[zero] = const
        result.append(powers)
    return order, result


def _from_exponents(order: Sequence[Atom], powers: Mapping[_Powers, int]) -> Dim:
    terms: list[tuple[Monomial, int]] = []
    const: int = 0
    for vector, coefficient in powers.items():
        monomial = monomial_of(zip(order, vector, strict=True))
        if monomial is None:
            const = coefficient
        else:
            terms.append((monomial, coefficient))
    return from_terms(terms, const)


def divide_polynomials(a: Dim, b: Dim) -> tuple[Dim, Dim]:
    """``(quotient, rest)`` with ``a == quotient*b + rest`` and no term of ``rest`` a multiple of b's leading term.

    ``b`` is not the integer 0. Terms move to the quotient only with integer coefficients.
    """
    order, (left, right) = _exponents((a, b))
    lead = max(right, key=_degree_order)
    lead_coefficient = right[lead]
    quotient: dict[_Powers, int] = {}
    rest: dict[_Powers, int] = {}
    while left:
        top = max(left, key=_degree_order)
        coefficient = left[top]
        shift = tuple(x - y for x, y in zip(top, lead, strict=True))
        if coefficient % lead_coefficient or min(shift, default=0) < 0:
            rest[top] = left.pop(top)
            continue
        factor = coefficient // lead_coefficient
        quotient[shift] = factor
        for powers, other in right.items():
            at = tuple(x + y for x, y in zip(powers, shift, strict=True))
            value = left.get(at, 0) - factor * other
            if value:
                left[at] = value
            else:
                left.pop(at, None)
    return _from_exponents(order, quotient), _from_exponents(order, rest)


def exact_div(a: Dim, b: Dim) -> Dim | None:
    """``a / b`` when ``b`` divides ``a`` as a polynomial with integer coefficients, else None.

    ``a == exact_div(a, b) * b`` holds for every assignment, zero sizes included; where ``b`` is zero the
    quotient is one of many. None when ``b`` is the integer 0.

    >>> from cuvil.symbolic import parse_dim
    >>> exact_div(parse_dim("6*B*S + 3*S"), parse_dim("3*S")), exact_div(parse_dim("S"), 2)
    (Expr('2*B + 1'), None)
    """
    a, b = as_dim(a), as_dim(b)
    if isinstance(b, int):
        if b == 0 or (isinstance(a, int) and a % b):
            return None
        if isinstance(a, int):
            return a // b
        if a.const % b or any(coefficient % b for _, coefficient in a.terms):
            return None
        return from_terms([(monomial, coefficient // b) for monomial, coefficient in a.terms], a.const // b)
    if isinstance(a, int):
        return None if a else 0
    if a is b:
        return 1
    quotient, rest = divide_polynomials(a, b)
    return quotient if isinstance(rest, int) and rest == 0 else None


# -- visitor ------------------------------------------------------------------------------------------------


def fold(
    dim: Dim,
    *,
    const: Callable[[int], T],
    symbol: Callable[[str], T],
    add: Callable[[T, T], T],
    mul: Callable[[T, T], T],
    floordiv: Callable[[T, T], T],
    mod: Callable[[T, T], T],
    min: Callable[[T, T], T],
    max: Callable[[T, T], T],
    sub: Callable[[T, T], T] | None = None,
) -> T:
    """``dim`` through one function per operation, operands first; the way to print it in another language.

    Every function takes two operands; longer sums, products and extrema are folded from the left. With ``sub``,
    a term with a negative coefficient after the first is subtracted instead of added times -1.

    >>> from cuvil.symbolic import parse_dim
    >>> binary = lambda sign: lambda a, b: f"({a} {sign} {b})"
    >>> fold(parse_dim("(H + 1)//2 - 2*K"), const=str, symbol=str, add=binary("+"), sub=binary("-"),
    ...      mul=binary("*"), floordiv=binary("/"), mod=binary("%"), min="MIN({}, {})".format,
    ...      max="MAX({}, {})".format)
    '(((H + 1) / 2) - (2 * K))'
    """

    def visit(dim: Dim) -> T:
        if not isinstance(dim, Expr):
            return const(dim)
        result: T | None = None
        # Positive terms first, so that a sum begins without a negation where it can.
        for monomial, coefficient in sorted(dim.terms, key=lambda term: term[1] < 0):
            subtract = sub is not None and result is not None and coefficient < 0
            scale = -coefficient if subtract else coefficient
            value = None if scale == 1 else const(scale)
            for atom, power in monomial.factors:
                factor = visit_atom(atom)
                for _ in range(power):
                    value = factor if value is None else mul(value, factor)
            assert value is not None
            if result is None:
                result = value
            else:
                result = sub(result, value) if sub is not None and subtract else add(result, value)
        assert result is not None
        if dim.const:
            if sub is not None and dim.const < 0:
                return sub(result, const(-dim.const))
            return add(result, const(dim.const))
        return result

    def visit_atom(atom: Atom) -> T:
        if isinstance(atom, Symbol):
            return symbol(atom.name)
        first, *others = map(visit, atom.children)
        operation = (
            floordiv
            if isinstance(atom, FloorDiv)
            else mod
            if isinstance(atom, Mod)
            else min
            if isinstance(atom, Min)
            else max
        )
        for other in others:
            first = operation(first, other)
        return first

    return visit(dim)


def sizes(shape: Sequence[Dim], env: Mapping[str, int]) -> tuple[int, ...]:
    """:func:`evaluate` over a shape.

    >>> sizes((2, 3), {})
    (2, 3)
    """
    return tuple(evaluate(dim, env) for dim in shape)


def element_count(shape: Sequence[Dim], env: Mapping[str, int]) -> int:
    """The product of the sizes of ``shape`` under ``env``.

    >>> element_count((2, 3), {})
    6
    """
    return prod(sizes(shape, env))


def node_count(dim: Dim) -> int:
    """How large ``dim`` is: what simplification lowers."""
    return dim.size + sum(abs(c) != 1 for _, c in dim.terms) if isinstance(dim, Expr) else 0


def replace_terms(dim: Expr, replacements: Mapping[Monomial, Dim]) -> Dim:
    """``dim`` with whole monomials replaced; coefficients stay."""
    kept = [(monomial, coefficient) for monomial, coefficient in dim.terms if monomial not in replacements]
    parts = [coefficient * replacements[m] for m, coefficient in dim.terms if m in replacements]
    return dim_sum([from_terms(kept, dim.const), *parts])
