"""Scope: what is known about the symbols, and the questions that it answers about expressions."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from math import gcd

from cuvil.support.errors import ArgumentError, ShapeError, TracingError
from cuvil.symbolic.expr import Dim, Expr, as_dim, symbol
from cuvil.symbolic.facts import Facts, without_mod
from cuvil.symbolic.query import evaluate, free_symbols
from cuvil.symbolic.simplify import simplify
from cuvil.symbolic.text import Comparison, Relation, is_comparison, parse_relations

#: Answers that one scope remembers.
_MEMO = 4096


class Truth(enum.Enum):
    """The answer of a proof. It has no truth value of its own: compare with ``is Truth.YES``."""

    YES = "yes"  #: holds for every assignment that the scope admits
    NO = "no"  #: holds for none
    UNKNOWN = "unknown"  #: not decided, or both happen

    def __bool__(self) -> bool:
        raise TracingError(f"the answer {self} is one of three; compare it: `is Truth.YES`, `is not Truth.NO`")


_NEGATION = {Truth.YES: Truth.NO, Truth.NO: Truth.YES, Truth.UNKNOWN: Truth.UNKNOWN}


def is_true(sign: Comparison, left: int, right: int) -> bool:
    """Whether ``left sign right`` for integers.

    >>> is_true("<=", 1, 2)
    True
    """
    if sign == "==":
        return left == right
    if sign == "!=":
        return left != right
    if sign == "<":
        return left < right
    if sign == "<=":
        return left <= right
    return left > right if sign == ">" else left >= right


class Scope:
    """Relations between symbols, each of which is >= 0.

    Answers speak of the assignments that meet every relation. Where an expression has no value (a divisor is
    zero) nothing is said: bounds and proofs use ``//`` and ``%`` only when the divisor is proved positive. Two
    expressions with one normal form are equal whatever they divide by. A scope that no assignment meets answers
    as if it held no relation, except that ``prove`` answers only what is so for any sizes.

    >>> scope = Scope(["1 <= S <= 512", "S % 16 == 0"])
    >>> S = symbol("S")
    >>> scope.bounds(S // 4), scope.prove("==", S % 8, 0), scope.simplify((S // 16) * 16)
    ((4, 128), <Truth.YES: 'yes'>, Expr('S'))
    """

    def __init__(self, relations: Iterable[str | Relation] = ()) -> None:
        self._relations: list[Relation] = []
        self._facts: Facts | None = None
        self._proofs: dict[tuple[Comparison, Dim], Truth] = {}
        self._simple: dict[Expr, Dim] = {}
        for relation in relations:
            self.assume(relation)

    @property
    def relations(self) -> tuple[Relation, ...]:
        """What was assumed, oldest first, without repetitions."""
        return tuple(self._relations)

    @property
    def admits_nothing(self) -> bool:
        """Whether the relations are seen to contradict each other; False does not promise a solution."""
        return self._known().empty

    def __str__(self) -> str:
        return ", ".join(map(str, self._relations))

    def __repr__(self) -> str:
        return f"Scope([{', '.join(repr(str(relation)) for relation in self._relations)}])"

    def copy(self) -> Scope:
        """A scope with the same relations that can be extended on its own, as for the body of a loop."""
        other = Scope()
        other._relations = list(self._relations)
        other._facts = self._facts
        return other

    def assume(self, relation: str | Relation, left: Dim | None = None, right: Dim | None = None) -> None:
        """Add a relation: text (``"1 <= S <= 512"``, ``"S % 16 == 0"``, ``"H == 2*K"``), a Relation, or
        ``assume(sign, left, right)``.

        Raises ArgumentError for text that does not parse.
        """
        if left is not None and right is not None:
            added: tuple[Relation, ...] = (Relation(_comparison(relation), as_dim(left), as_dim(right)),)
        elif left is not None or right is not None:
            raise ArgumentError("assume takes one relation, or a sign and both sides")
        else:
            added = (relation,) if isinstance(relation, Relation) else parse_relations(relation)
        new = [relation for relation in added if relation not in self._relations]
        if new:
            self._relations.extend(new)
            self._facts = None
            self._proofs.clear()
            self._simple.clear()

    def bound(self, name: str, lo: Dim | None = None, hi: Dim | None = None) -> Expr:
        """Add ``lo <= name <= hi``, both inclusive, None for no bound; gives the symbol.

        Raises ArgumentError for a negative integer ``lo``: symbols are >= 0, so an index that may be negative is
        written as a symbol minus something.
        """
        this = symbol(name)
        if isinstance(lo, int) and lo < 0:
            raise ArgumentError(f"the symbol {name} is bounded from {lo}, but symbols are >= 0; use {name} - {-lo}")
        if lo is not None and lo != 0:
            self.assume("<=", lo, this)
        if hi is not None:
            self.assume("<=", this, hi)
        return this

    def loop(self, name: str, extent: Dim) -> Expr:
        """Add ``0 <= name < extent``, the range of a loop variable; gives the symbol.

        Inside the loop the extent is at least 1, and the scope knows it.
        """
        this = symbol(name)
        self.assume("<", this, extent)
        return this

    def bounds(self, dim: Dim) -> tuple[int | None, int | None]:
        """Inclusive integer bounds of ``dim``, None where none is known."""
        dim = as_dim(dim)
        facts = self._known()
        if facts.empty or isinstance(dim, int):
            return (dim, dim) if isinstance(dim, int) else (None, None)
        simple = self._simplified(dim)
        return facts.lower(simple), facts.upper(simple)

    def simplify(self, dim: Dim) -> Dim:
        """The simplest expression found that equals ``dim`` wherever the scope admits.

        >>> scope = Scope()
        >>> i, j, S = scope.loop("i", symbol("N")), scope.loop("j", symbol("S")), symbol("S")
        >>> scope.simplify((i * S + j) // S), scope.simplify((i * S + j) % S)
        (Expr('i'), Expr('j'))
        """
        dim = as_dim(dim)
        if isinstance(dim, int) or self._known().empty:
            return dim
        return self._known().restore(self._simplified(dim))

    def prove(self, sign: str, left: Dim, right: Dim) -> Truth:
        """Whether ``left sign right`` holds for all (YES) or none (NO) of the assignments that the scope admits.

        ``sign`` is one of ``== != < <= > >=``. Raises ArgumentError for another.

        >>> scope = Scope(["K1 >= K2 + 1"])
        >>> scope.prove(">", symbol("K1"), symbol("K2")), scope.prove("==", symbol("K1"), 1)
        (<Truth.YES: 'yes'>, <Truth.UNKNOWN: 'unknown'>)
        """
        comparison = _comparison(sign)
        difference = as_dim(left) - as_dim(right)
        if isinstance(difference, int):
            return Truth.YES if is_true(comparison, difference, 0) else Truth.NO
        if comparison == "!=":
            return _NEGATION[self._prove("==", difference)]
        # Integers: a < b is not (b <= a), and a > b is b < a.
        if comparison == "<":
            return _NEGATION[self._prove(">=", difference)]
        if comparison == ">":
            return _NEGATION[self._prove(">=", -difference)]
        return (
            self._prove("==", difference)
            if comparison == "=="
            else self._prove(">=", difference if comparison == ">=" else -difference)
        )

    def first_broken(self, env: Mapping[str, int]) -> Relation | None:
        """The first relation that does not hold for the sizes in ``env``, None when all do.

        Relations that mention a symbol without a value in ``env`` are about something else and are not looked at.
        One that divides by zero there does not hold.
        """
        for relation in self._relations:
            if free_symbols(relation.left, relation.right) <= env.keys():
                try:
                    holds = is_true(relation.sign, evaluate(relation.left, env), evaluate(relation.right, env))
                except ShapeError:
                    holds = False  # what has no value meets no relation
                if not holds:
                    return relation
        return None

    def check(self, env: Mapping[str, int]) -> None:
        """Raise ShapeError when ``first_broken`` finds a relation."""
        broken = self.first_broken(env)
        if broken is not None:
            names = sorted(free_symbols(broken.left, broken.right))
            raise ShapeError(
                f"expected sizes with {broken}, got {', '.join(f'{name} = {env[name]}' for name in names)}"
            )

    def _known(self) -> Facts:
        if self._facts is None:
            self._facts = Facts(self._relations)
        return self._facts

    def _simplified(self, dim: Expr) -> Dim:
        """``dim`` simplified, over the symbols that the facts kept."""
        found = self._simple.get(dim)
        if found is None:
            if len(self._simple) > _MEMO:
                self._simple.clear()
            found = self._simple[dim] = simplify(dim, self._known())
        return found

    def _prove(self, sign: Comparison, difference: Expr) -> Truth:
        """``difference == 0`` or ``difference >= 0``."""
        key: tuple[Comparison, Dim] = (sign, difference)
        found = self._proofs.get(key)
        if found is None:
            if len(self._proofs) > _MEMO:
                self._proofs.clear()
            found = self._proofs[key] = self._decide(sign, difference)
        return found

    def _decide(self, sign: Comparison, difference: Expr) -> Truth:
        facts = self._known()
        if facts.empty:
            return Truth.YES if sign == ">=" and difference.nonneg and difference.total else Truth.UNKNOWN
        forms: list[Dim] = [facts.forward(difference), self._simplified(difference)]
        forms.append(without_mod(forms[1], facts))
        for dim in dict.fromkeys(forms):
            if isinstance(dim, int):
                return Truth.YES if is_true(sign, dim, 0) else Truth.NO
            low = facts.lower(dim, 0 if sign == ">=" else 1)
            if sign == ">=":
                if low is not None and low >= 0:
                    return Truth.YES
                if facts.positive(-dim):
                    return Truth.NO
                continue
            if (low is not None and low >= 1) or facts.positive(-dim):
                return Truth.NO
            if low == 0 and facts.nonneg(-dim):
                return Truth.YES
            if dim.const % gcd(*(coefficient for _, coefficient in dim.terms)) and facts.defined(dim):
                return Truth.NO
            if any(dim in (other, -other) for other in facts.unequal):
                return Truth.NO
        return Truth.UNKNOWN


def _comparison(sign: object) -> Comparison:
    if not isinstance(sign, str) or not is_comparison(sign):
        raise ArgumentError(f"a relation is one of == != < <= > >=, got {sign!r}")
    return sign
