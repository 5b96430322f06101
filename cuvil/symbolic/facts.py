"""What a set of relations implies: substitutions, interval bounds, and a bounded search for lower bounds.

:class:`Facts` turns relations into three things:

- *substitutions*: an equation with a symbol alone (``H == 2*K``) or a divisibility (``S % 16 == 0``, which makes
  ``S = 16*S'`` with a fresh ``S'``) replaces the symbol everywhere; normal form does the rest;
- *inequalities*, each an expression known to be >= 0;
- *intervals* of each symbol, propagated through the inequalities.

The search for a lower bound of ``e`` removes one atom at a time: when ``a`` has a non-negative coefficient in
``e`` and in a known ``f >= 0``, then ``e >= e - k*f`` for the ``k`` that cancels ``a`` (Farkas' lemma, with
coefficients that may be expressions of known sign). ``min`` and ``max`` split into cases. Depth and steps are
bounded; running out answers "don't know".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import gcd
from typing import TypeAlias

from cuvil.support.errors import ShapeError
from cuvil.symbolic.expr import (
    Atom,
    Dim,
    Expr,
    FloorDiv,
    Max,
    Min,
    Mod,
    Symbol,
    atom_dim,
    from_terms,
    internal_symbol,
    plain_symbol,
    single_atom,
)
from cuvil.symbolic.query import exact_div, linear_in_atom, substitute
from cuvil.symbolic.structure import iter_terms, rebuild, substitute_atoms, top_atoms, transform
from cuvil.symbolic.text import Relation

Interval: TypeAlias = tuple[int | None, int | None]

_NONNEG: Interval = (0, None)
_ANY: Interval = (None, None)
#: Atoms removed one after the other; an index over a rank-5 tensor needs one for each axis and its size.
_SEARCH_DEPTH = 8
#: Expressions looked at in one search, some tens of microseconds each.
_SEARCH_STEPS = 96
#: Rounds of interval propagation; a chain of relations longer than this loses precision, not soundness.
_ROUNDS = 6
#: Answers remembered by one set of facts.
_MEMO = 4096


class Facts:
    """The consequences of some relations; immutable once made. Expressions given to it are ``forward``-ed."""

    def __init__(self, relations: Iterable[Relation]) -> None:
        self.empty = False  #: no assignment meets the relations, so nothing is worth answering
        self.substitutions: dict[str, Dim] = {}
        #: (fresh symbol, the symbol it stands for, modulus, residue), oldest first
        self.residues: list[tuple[str, str, int, int]] = []
        self.atom_values: dict[Atom, int] = {}
        self.inequalities: list[Expr] = []
        self.unequal: list[Expr] = []
        self.intervals: dict[str, Interval] = {}
        self._atom_intervals: dict[Atom, Interval] = {}
        self._bounds: dict[tuple[Expr, int | None], int | None] = {}
        self._about: dict[Atom, list[tuple[Expr, Dim]]] = {}
        relations = list(relations)
        for relation in relations:
            if relation.sign == "==":
                self._equate(self.forward(relation.left - relation.right), plain_symbol(relation.left))
        for relation in relations:
            difference = self.forward(relation.right - relation.left)
            if relation.sign == "!=":
                self._distinguish(difference)
            elif relation.sign != "==":
                if relation.sign in (">", ">="):
                    difference = -difference
                self._require(difference - 1 if relation.sign in ("<", ">") else difference)
        if not self.empty:
            self._propagate()
        if self._sharpen_unequal():
            self._propagate()
        if not self.empty:
            self._index()
        self._atom_intervals.clear()

    # -- relations to facts ---------------------------------------------------------------------------------

    def forward(self, dim: Dim) -> Dim:
        """``dim`` with the symbols that the relations determine replaced.

        As it is when that divides by zero or outgrows the limits of an expression: still equal, known less well.
        """
        return _substituted(dim, self.substitutions) if self.substitutions else dim

    def _equate(self, difference: Dim, wanted: str | None) -> None:
        """``difference == 0``; prefers to replace the symbol ``wanted``."""
        if not isinstance(difference, Expr):
            self.empty |= difference != 0
            return
        if self._residue(difference):
            return
        candidates = [atom for atom in reversed(top_atoms(difference)) if isinstance(atom, Symbol)]
        candidates.sort(key=lambda atom: atom.name != wanted)
        for atom in candidates:
            linear = linear_in_atom(difference, atom)
            if linear is not None and linear[0] in (1, -1):
                value = -linear[1] if linear[0] == 1 else linear[1]
                self._replace(atom.name, value)
                self._require(value)
                return
        for atom in top_atoms(difference):
            linear = linear_in_atom(difference, atom)
            if not isinstance(atom, Symbol) and linear is not None and linear[0] in (1, -1):
                if isinstance(linear[1], int):
                    self.atom_values[atom] = -linear[1] if linear[0] == 1 else linear[1]
                break
        self._require(difference)
        self._require(-difference)

    def _residue(self, difference: Expr) -> bool:
        """Whether the equation was ``k*((c*s + b) % d) == r`` for a symbol s, and is now a substitution."""
        if len(difference.terms) != 1:
            return False
        monomial, scale = difference.terms[0]
        atom, power = monomial.factors[0]
        if power != 1 or len(monomial.factors) != 1 or not isinstance(atom, Mod):
            return False
        numerator, modulus = atom.numerator, atom.denominator
        if difference.const % scale or not isinstance(modulus, int) or not isinstance(numerator, Expr):
            return False
        residue = -difference.const // scale
        if not 0 <= residue < modulus:
            self.empty = True
            return True
        name = plain_symbol(numerator - numerator.const) if len(numerator.terms) == 1 else None
        factor = 1
        if name is None and len(numerator.terms) == 1:
            inner, factor = numerator.terms[0]
            head, inner_power = inner.factors[0]
            if inner.degree == 1 and inner_power == 1 and isinstance(head, Symbol):
                name = head.name
        if name is None or gcd(factor, modulus) != 1:
            return False
        residue = (residue - numerator.const) * pow(factor, -1, modulus) % modulus
        fresh = f"{name}'{modulus}"  # no user symbol has an apostrophe
        self.residues.append((fresh, name, modulus, residue))
        self._replace(name, modulus * internal_symbol(fresh) + residue)
        return True

    def _replace(self, name: str, value: Dim) -> None:
        one: dict[str, Dim] = {name: value}
        self.substitutions = {key: _substituted(old, one) for key, old in self.substitutions.items()}
        self.substitutions[name] = value
        older, self.inequalities = self.inequalities, []
        for inequality in older:
            self._require(_substituted(inequality, one))
        values, self.atom_values = self.atom_values, {}
        for atom, old in values.items():
            renewed = single_atom(_substituted(atom_dim(atom), one))
            if renewed is not None:
                self.atom_values[renewed] = old  # an integer

    def _require(self, dim: Dim) -> None:
        """``dim >= 0``."""
        if not isinstance(dim, Expr):
            self.empty |= dim < 0
        elif not dim.nonneg:
            common = gcd(*(coefficient for _, coefficient in dim.terms))
            tight = from_terms([(m, c // common) for m, c in dim.terms], dim.const // common)
            if isinstance(tight, Expr) and tight not in self.inequalities:
                self.inequalities.append(tight)

    def _distinguish(self, difference: Dim) -> None:
        if isinstance(difference, Expr):
            self.unequal.append(difference)
        else:
            self.empty |= difference == 0

    def _sharpen_unequal(self) -> bool:
        """Turn ``e != 0`` with e >= 0 known into ``e >= 1``; whether any was."""
        changed = False
        for difference in self.unequal:
            for signed in (difference, -difference):
                if self.interval(signed)[0] == 0:
                    self._require(signed - 1)
                    changed = True
        return changed

    def _propagate(self) -> None:
        for _ in range(_ROUNDS):
            changed = False
            for inequality in self.inequalities:
                for atom in top_atoms(inequality):
                    if isinstance(atom, Symbol):
                        changed |= self._tighten(inequality, atom)
            if not changed or self.empty:
                break

    def _tighten(self, inequality: Expr, atom: Symbol) -> bool:
        linear = linear_in_atom(inequality, atom)
        if linear is None or not isinstance(linear[0], int):
            return False
        coefficient: int = linear[0]
        most = self.interval(linear[1])[1]
        if most is None:
            return False
        low, high = self.intervals.get(atom.name, _NONNEG)
        if coefficient > 0:  # coefficient*s >= -rest >= -most
            bound = -(most // coefficient)
            if low is None or bound > low:
                low = bound
        else:
            bound = most // -coefficient
            if high is None or bound < high:
                high = bound
        if (low, high) == self.intervals.get(atom.name, _NONNEG):
            return False
        self.intervals[atom.name] = (low, high)
        self._atom_intervals.clear()
        if high is not None and (low or 0) > high:
            self.empty = True
        return True

    def _index(self) -> None:
        for inequality in self.inequalities:
            for atom in top_atoms(inequality):
                linear = linear_in_atom(inequality, atom)
                if linear is not None:
                    self._about.setdefault(atom, []).append((inequality, linear[0]))

    # -- intervals ------------------------------------------------------------------------------------------

    def interval(self, dim: Dim) -> Interval:
        """Integer bounds of a forwarded ``dim`` from the bounds of its atoms; None is unbounded."""
        if not isinstance(dim, Expr):
            return dim, dim
        low: int | None = dim.const
        high: int | None = dim.const
        for monomial, coefficient in dim.terms:
            term: Interval = (coefficient, coefficient)
            for atom, power in monomial.factors:
                term = _interval_product(term, _interval_power(self.atom_interval(atom), power))
            low = None if low is None or term[0] is None else low + term[0]
            high = None if high is None or term[1] is None else high + term[1]
        return low, high

    def atom_interval(self, atom: Atom) -> Interval:
        """Integer bounds of an atom; none for a division whose divisor is not known to be positive."""
        if isinstance(atom, Symbol):
            return self.intervals.get(atom.name, _NONNEG)
        found = self._atom_intervals.get(atom)
        if found is None:
            if len(self._atom_intervals) > _MEMO:
                self._atom_intervals.clear()
            found = self._atom_intervals[atom] = self._operation_interval(atom)
        return found

    def _operation_interval(self, atom: Atom) -> Interval:
        bounds = [self.interval(child) for child in atom.children]
        lows = [low for low, _ in bounds]
        highs = [high for _, high in bounds]
        if isinstance(atom, Min):
            known = [high for high in highs if high is not None]
            return (None if None in lows else min(low for low in lows if low is not None)), min(known, default=None)
        if isinstance(atom, Max):
            known = [low for low in lows if low is not None]
            return max(known, default=None), (None if None in highs else max(h for h in highs if h is not None))
        (low, high), (least, most) = bounds
        if least is None or least < 1:
            return _ANY
        if isinstance(atom, Mod):
            if low is not None and low >= 0 and high is not None:
                return (low if high < least else 0), (high if most is None else min(high, most - 1))
            return 0, (None if most is None else most - 1)
        # Toward zero with a larger divisor: the extremes are at the ends, an endless divisor gives 0 or -1.
        if low is not None:
            low = low // least if low < 0 else (0 if most is None else low // most)
        if high is not None:
            high = high // least if high >= 0 else (-1 if most is None else high // most)
        return low, high

    # -- search ---------------------------------------------------------------------------------------------

    def lower(self, dim: Dim, want: int | None = None) -> int | None:
        """A lower bound of a forwarded ``dim``; the search stops at one of ``want`` or more."""
        if not isinstance(dim, Expr):
            return dim
        key = (dim, want)
        if key not in self._bounds:
            if len(self._bounds) > _MEMO:
                self._bounds.clear()
            try:
                self._bounds[key] = self._search(dim, want, _SEARCH_DEPTH, {}, [_SEARCH_STEPS])
            except ShapeError:
                # A combination outgrew the limits of an expression, or a case of min or max is a division by
                # zero: the search has no answer, the interval stands.
                self._bounds[key] = self.interval(dim)[0]
        return self._bounds[key]

    def upper(self, dim: Dim, want: int | None = None) -> int | None:
        """An upper bound of a forwarded ``dim``; the search stops at one of ``want`` or less."""
        low = self.lower(-dim, None if want is None else -want)
        return None if low is None else -low

    def nonneg(self, dim: Dim) -> bool:
        """Whether ``dim >= 0`` is proved."""
        low = self.lower(dim, 0)
        return low is not None and low >= 0

    def positive(self, dim: Dim) -> bool:
        """Whether ``dim >= 1`` is proved."""
        low = self.lower(dim, 1)
        return low is not None and low >= 1

    def defined(self, dim: Dim) -> bool:
        """Whether every divisor in ``dim`` is proved positive."""
        if not isinstance(dim, Expr) or dim.total:
            return True
        pending, seen = top_atoms(dim), set[Atom]()
        while pending:
            atom = pending.pop()
            if atom in seen:
                continue
            seen.add(atom)
            if isinstance(atom, FloorDiv | Mod) and not self.positive(atom.denominator):
                return False
            for child in atom.children:
                pending.extend(top_atoms(child))
        return True

    def _search(self, dim: Dim, want: int | None, depth: int, seen: dict[Dim, int], steps: list[int]) -> int | None:
        best = self.interval(dim)[0]
        if not isinstance(dim, Expr) or depth == 0 or steps[0] <= 0 or seen.get(dim, 0) >= depth:
            return best
        if best is not None and want is not None and best >= want:
            return best
        seen[dim] = depth
        steps[0] -= 1
        for scale, reduced in self._reductions(dim):
            found = self._search(reduced, None if want is None else want * scale, depth - 1, seen, steps)
            if found is not None:
                bound = -(-found // scale)  # scale*dim >= found
                best = bound if best is None else max(best, bound)
                if want is not None and best >= want:
                    return best
        for atom in top_atoms(dim):
            if isinstance(atom, Min | Max):
                # The atom equals one of its operands, so the worst of the cases holds.
                worst: int | None = None
                for index, child in enumerate(atom.children):
                    case = substitute_atoms(dim, {atom: child})
                    found = self._search(case, want, depth - 1, seen, steps)
                    if found is None:
                        break
                    worst = found if index == 0 or worst is None else min(worst, found)
                else:
                    if worst is not None and (best is None or worst > best):
                        best = worst
        return best

    def _reductions(self, dim: Expr) -> Iterator[tuple[int, Dim]]:
        """``(s, e)`` with ``s*dim >= e``, s >= 1, where e lacks one atom of ``dim``."""
        for atom in reversed(top_atoms(dim)):
            linear = linear_in_atom(dim, atom)
            if linear is None:
                continue
            coefficient = linear[0]
            sign = self._sign(coefficient)
            if sign == 0:
                continue
            for fact, known in self._facts_about(atom, isinstance(coefficient, int)):
                if self._sign(known) != sign:
                    continue
                if isinstance(known, int):
                    common = gcd(known, *(c for _, c in iter_terms(coefficient)))
                    quotient = exact_div(coefficient * sign, common)
                    if quotient is not None:
                        yield abs(known) // common, (abs(known) // common) * dim - quotient * fact
                else:
                    quotient = exact_div(coefficient, known)
                    if quotient is not None and self._sign(quotient) >= 0:
                        yield 1, dim - quotient * fact

    def _sign(self, dim: Dim) -> int:
        """1 for >= 0, -1 for <= 0, 0 for unknown, by intervals."""
        low, high = self.interval(dim)
        return 1 if low is not None and low >= 0 else -1 if high is not None and high <= 0 else 0

    def _facts_about(self, atom: Atom, constant: bool) -> Iterator[tuple[Expr, Dim]]:
        """``(f, c)`` with f >= 0 and c the coefficient of ``atom`` in f."""
        yield from self._about.get(atom, ())
        this = atom_dim(atom)
        if not constant:  # a constant coefficient has met these bounds in the interval already
            low, high = self.atom_interval(atom)
            for fact, sign in ((None if low is None else this - low, 1), (None if high is None else high - this, -1)):
                if isinstance(fact, Expr):
                    yield fact, sign
        facts: list[tuple[Dim, Dim]] = []
        if isinstance(atom, Min):
            facts = [(child - this, -1) for child in atom.children]
        elif isinstance(atom, Max):
            facts = [(this - child, 1) for child in atom.children]
        elif isinstance(atom, FloorDiv | Mod) and (self.interval(atom.denominator)[0] or 0) >= 1:
            n, d = atom.numerator, atom.denominator
            if isinstance(atom, FloorDiv):
                facts = [(n - d * this, -d), (d * this + d - 1 - n, d)]
            else:
                facts = [(d - 1 - this, -1)]
                if self._sign(n) > 0:
                    facts.append((n - this, -1))
        for fact, known in facts:
            if isinstance(fact, Expr):
                yield fact, known

    # -- back to the user's symbols -------------------------------------------------------------------------

    def restore(self, dim: Dim) -> Dim:
        """``dim`` without the fresh symbols: ``16*S'`` is S again, and ``S'`` alone is ``S//16``."""
        for fresh, name, modulus, residue in reversed(self.residues):
            if isinstance(dim, Expr) and fresh in dim.symbols:
                dim = self._restore_one(dim, fresh, internal_symbol(name), modulus, residue)
        return dim

    def _restore_one(self, dim: Dim, fresh: str, original: Expr, modulus: int, residue: int) -> Dim:
        def level(dim: Dim) -> Dim:
            """The polynomial itself; its atoms are done."""
            if not isinstance(dim, Expr) or fresh not in dim.symbols:
                return dim
            total: Dim = dim.const
            for monomial, coefficient in dim.terms:
                factor: Dim = 1
                for atom, power in monomial.factors:
                    if not isinstance(atom, Symbol) or atom.name != fresh:
                        factor = factor * atom_dim(atom) ** power
                        continue
                    for _ in range(power):
                        # g*s' = S//(m/g) - r//(m/g) where g divides m
                        common = gcd(coefficient, modulus)
                        step = modulus // common
                        part = original - residue if step == 1 else original // step - residue // step
                        coefficient //= common
                        factor = factor * part
                total = total + coefficient * factor
            return total

        # The polynomial below each atom first, then the outermost one.
        return level(
            transform(
                dim,
                lambda atom, children: (
                    atom_dim(atom) if isinstance(atom, Symbol) else atom.remake([level(child) for child in children])
                ),
            )
        )


def _substituted(dim: Dim, mapping: dict[str, Dim]) -> Dim:
    try:
        return substitute(dim, mapping)
    except ShapeError:
        return dim


def _interval_product(a: Interval, b: Interval) -> Interval:
    if a[0] == a[1] == 0 or b[0] == b[1] == 0:
        return 0, 0
    lows: list[int | None] = []
    highs: list[int | None] = []
    for x, x_end in ((a[0], -1), (a[1], 1)):
        for y, y_end in ((b[0], -1), (b[1], 1)):
            if x is not None and y is not None:
                lows.append(x * y)
                highs.append(x * y)
            elif x == 0 or y == 0:
                lows.append(0)
                highs.append(0)
            else:
                sign = (x_end if x is None else (1 if x > 0 else -1)) * (y_end if y is None else (1 if y > 0 else -1))
                (highs if sign > 0 else lows).append(None)
    low = None if None in lows else min(value for value in lows if value is not None)
    high = None if None in highs else max(value for value in highs if value is not None)
    return low, high


def _interval_power(a: Interval, power: int) -> Interval:
    if power == 1:
        return a
    low, high = a
    if low is not None and low >= 0:
        return low**power, None if high is None else high**power
    result = a
    for _ in range(power - 1):
        result = _interval_product(result, a)
    # An even power is never negative, which the product of two independent factors does not see.
    return (max(0, result[0] or 0), result[1]) if power % 2 == 0 else result


def without_mod(dim: Dim, facts: Facts) -> Dim:
    """``dim`` with ``x % d`` of its polynomial written as ``x - d*(x//d)`` where d is known to be positive."""

    def value(atom: Atom) -> Dim:
        if isinstance(atom, Mod) and facts.positive(atom.denominator):
            return atom.numerator - atom.denominator * (atom.numerator // atom.denominator)
        return atom_dim(atom)

    return rebuild(dim, value)
