"""Dimension expressions: interned integer polynomials over non-negative symbols, held in normal form.

A :class:`Expr` is ``sum(coefficient * monomial) + constant``, a :class:`Monomial` a product of powers of
atoms, an :class:`Atom` a symbol or a ``//``, ``%``, ``min`` or ``max`` of expressions. What is constant is a
plain ``int``, so ``Dim = int | Expr`` and a static dimension costs nothing.

What the normal form may do:

- It never changes a value where the expression has one. ``//`` and ``%`` are Python's (floor).
- Division by a nonzero integer folds as far as it goes: ``(2*S)//2`` is ``S``, ``(S - 1)//2`` is
  ``(S + 1)//2 - 1`` and ``(S//2)//3`` is ``S//6``.
- Division by anything symbolic stays (``S//S`` is not 1 and ``S % S`` is not 0: a size may be zero). A
  :class:`~cuvil.symbolic.Scope` that knows the divisor to be positive simplifies it.
- Same normal form, same object: ``==`` is identity. Different objects may still be equal as functions; that is
  a question for ``Scope.prove``.
"""

from __future__ import annotations

import operator
import re
import threading
from collections.abc import Callable, Hashable, Iterable, Sequence
from contextvars import ContextVar
from functools import lru_cache
from math import gcd
from typing import Any, NoReturn, TypeAlias, TypeVar, cast, final
from weakref import WeakValueDictionary

from cuvil.support.errors import ArgumentError, ArgumentTypeError, ShapeError, TracingError

#: Nested ``//``, ``%``, ``min`` and ``max`` in one expression. Chains of strided layers merge, so real models
#: stay below ten; the limit keeps every recursion over an expression far from Python's own.
MAX_DEPTH = 32
#: Nodes in one expression, counted as a tree (what its text prints).
MAX_SIZE = 2048
#: Total degree of one monomial.
MAX_DEGREE = 64
#: Operands of one ``min`` or ``max``: pruning compares them pairwise.
MAX_OPERANDS = 64
#: Bits of one coefficient. Sizes fit 63; costs (flops) are products of sizes.
MAX_BITS = 512
#: Recently computed sums and products that are remembered (these caches keep expressions alive).
_CACHE = 1 << 13

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}\Z")
_RESERVED = frozenset({"min", "max", "ceildiv"})
_NO_SYMBOLS: frozenset[str] = frozenset()

T = TypeVar("T")

_lock = threading.Lock()
_atoms: WeakValueDictionary[Hashable, Atom] = WeakValueDictionary()
_monomials: WeakValueDictionary[tuple[tuple[Atom, int], ...], Monomial] = WeakValueDictionary()
_exprs: WeakValueDictionary[tuple[int, tuple[tuple[Monomial, int], ...]], Expr] = WeakValueDictionary()


class Atom:
    """What a monomial multiplies: a symbol, or an operation that polynomials don't have.

    Atoms are interned, compare by identity and are made by :func:`symbol`, :func:`floordiv`, :func:`mod`,
    :func:`dim_min` and :func:`dim_max`, never directly.
    """

    __slots__ = ("__weakref__", "children", "depth", "key", "nonneg", "size", "symbols", "text", "total")

    children: tuple[Dim, ...]  #: the operands, none for a symbol
    text: str
    key: tuple[int, str]  #: sorts symbols before operations, then by text
    depth: int
    size: int
    symbols: frozenset[str]
    nonneg: bool  #: evidently >= 0 wherever it has a value
    total: bool  #: has a value for every assignment: nothing symbolic divides

    def remake(self, children: Sequence[Dim]) -> Dim:
        """The same operation over other operands, in normal form."""
        raise NotImplementedError

    def describe(self, children: tuple[Dim, ...], text: str, nonneg: bool, total: bool, rank: int) -> None:
        """Fill in the fields of a new atom; only the interning functions call this.

        Raises ShapeError when it would nest too deep.
        """
        self.children = children
        self.text = text
        self.key = (rank, text)
        exprs = [child for child in children if isinstance(child, Expr)]
        self.depth = 1 + max((child.depth for child in exprs), default=0)
        self.size = 1 + sum(child.size for child in exprs)
        self.symbols = _NO_SYMBOLS.union(*(child.symbols for child in exprs))
        self.nonneg = nonneg
        self.total = total and all(child.total for child in exprs)
        if self.depth > MAX_DEPTH:
            raise ShapeError(
                f"a dimension expression nests //, %, min and max more than {MAX_DEPTH} deep; "
                "name an inner part as a symbol of its own"
            )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.text!r})"

    def __copy__(self) -> Atom:
        return self

    def __deepcopy__(self, memo: object) -> Atom:
        return self


@final
class Symbol(Atom):
    """A named, non-negative integer."""

    __slots__ = ("name",)
    name: str

    def remake(self, children: Sequence[Dim]) -> Dim:
        return _from_atom(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return _symbol_atom, (self.name,)


class _Division(Atom):
    __slots__ = ()

    @property
    def numerator(self) -> Dim:
        """What is divided."""
        return self.children[0]

    @property
    def denominator(self) -> Dim:
        """What divides: an integer above 1, or an expression."""
        return self.children[1]


@final
class FloorDiv(_Division):
    """``numerator // denominator``."""

    __slots__ = ()

    def remake(self, children: Sequence[Dim]) -> Dim:
        return floordiv(children[0], children[1])

    def __reduce__(self) -> tuple[Any, ...]:
        return _division_atom, (FloorDiv, *self.children)


@final
class Mod(_Division):
    """``numerator % denominator``."""

    __slots__ = ()

    def remake(self, children: Sequence[Dim]) -> Dim:
        return mod(children[0], children[1])

    def __reduce__(self) -> tuple[Any, ...]:
        return _division_atom, (Mod, *self.children)


@final
class Min(Atom):
    """The least of two or more operands."""

    __slots__ = ()

    def remake(self, children: Sequence[Dim]) -> Dim:
        return dim_min(*children)

    def __reduce__(self) -> tuple[Any, ...]:
        return _extremum_atom, (Min, self.children)


@final
class Max(Atom):
    """The greatest of two or more operands."""

    __slots__ = ()

    def remake(self, children: Sequence[Dim]) -> Dim:
        return dim_max(*children)

    def __reduce__(self) -> tuple[Any, ...]:
        return _extremum_atom, (Max, self.children)


@final
class Monomial:
    """A product of powers of atoms, ``factors = ((atom, power), ...)`` sorted by atom; interned."""

    __slots__ = ("__weakref__", "degree", "factors", "key")

    factors: tuple[tuple[Atom, int], ...]
    degree: int
    key: tuple[int, tuple[tuple[int, str, int], ...]]  #: higher degree first, then by name

    def __repr__(self) -> str:
        return f"Monomial({_factor_text(self, 1)!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _monomial, (self.factors,)

    def __copy__(self) -> Monomial:
        return self

    def __deepcopy__(self, memo: object) -> Monomial:
        return self


#: Called where ``==`` compares an expression with a dim of another form, and answers for it. A trace sets it, so that a
#: Python condition on sizes (``if x.shape[0] == 1``) becomes a guard instead of a silent False.
comparison_hook: ContextVar[Callable[[Dim, Dim], bool] | None] = ContextVar("cuvil_comparison_hook", default=None)


@final
class Expr:
    """An integer expression over symbols that is not constant; immutable and interned.

    ``+ - * // %`` and ``**`` by a small integer give a ``Dim``; ``==`` and ``hash`` are those of the object,
    which is unique for its normal form. ``<`` and its kin, ``bool()`` and ``/`` raise an error that says what to
    use.

    >>> from cuvil.symbolic import symbol
    >>> S = symbol("S")
    >>> S + 1 + S == 2 * S + 1, S - S, (4 * S + 2) // 2
    (True, 0, Expr('2*S + 1'))
    """

    __slots__ = ("__weakref__", "cached_text", "const", "depth", "nonneg", "size", "symbols", "terms", "total")

    #: NumPy's scalars leave the operation to this class instead of making an object array.
    __array_ufunc__ = None

    terms: tuple[tuple[Monomial, int], ...]  #: (monomial, nonzero coefficient), in display order
    const: int
    symbols: frozenset[str]
    depth: int
    size: int
    nonneg: bool  #: evidently >= 0 wherever it has a value
    total: bool  #: has a value for every assignment
    cached_text: str | None  #: filled by ``str``

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        # Interned: equal forms are one object. A trace in progress also answers for forms that differ.
        if self is other:
            return True
        if type(other) is not Expr and type(other) is not int:
            return NotImplemented
        decide = comparison_hook.get()
        return False if decide is None else decide(self, other)

    def __add__(self, other: object) -> Dim:
        if type(other) is not Expr and type(other) is not int:
            converted = _operand(other)
            if converted is None:
                return NotImplemented
            other = converted
        return _add(self, other)

    __radd__ = __add__

    def __sub__(self, other: object) -> Dim:
        if type(other) is not Expr and type(other) is not int:
            converted = _operand(other)
            if converted is None:
                return NotImplemented
            other = converted
        return _subtract(self, other)

    def __rsub__(self, other: object) -> Dim:
        converted = _operand(other)
        if converted is None:
            return NotImplemented
        return _add(_multiply_int(self, -1), converted)

    def __mul__(self, other: object) -> Dim:
        if type(other) is not Expr and type(other) is not int:
            converted = _operand(other)
            if converted is None:
                return NotImplemented
            other = converted
        if type(other) is int:
            return _multiply_int(self, other) if other else 0
        return _multiply(self, cast(Expr, other))

    __rmul__ = __mul__

    def __neg__(self) -> Expr:
        return _multiply_int(self, -1)

    def __pos__(self) -> Expr:
        return self

    def __pow__(self, exponent: object) -> Dim:
        power = _operand(exponent)
        if not isinstance(power, int):
            return NotImplemented
        if not 0 <= power <= MAX_DEGREE:
            raise ShapeError(f"a dimension takes an exponent of 0 to {MAX_DEGREE}, got {power}")
        return product([self] * power)

    def __floordiv__(self, other: object) -> Dim:
        converted = _operand(other)
        return NotImplemented if converted is None else floordiv(self, converted)

    def __rfloordiv__(self, other: object) -> Dim:
        converted = _operand(other)
        return NotImplemented if converted is None else floordiv(converted, self)

    def __mod__(self, other: object) -> Dim:
        converted = _operand(other)
        return NotImplemented if converted is None else mod(self, converted)

    def __rmod__(self, other: object) -> Dim:
        converted = _operand(other)
        return NotImplemented if converted is None else mod(converted, self)

    def __divmod__(self, other: object) -> tuple[Dim, Dim]:
        converted = _operand(other)
        return NotImplemented if converted is None else (floordiv(self, converted), mod(self, converted))

    def __rdivmod__(self, other: object) -> tuple[Dim, Dim]:
        converted = _operand(other)
        return NotImplemented if converted is None else (floordiv(converted, self), mod(converted, self))

    def __truediv__(self, other: object) -> NoReturn:
        raise ArgumentTypeError(
            f"a symbolic dimension has no true division: {self} / {other}; use // (floor), ceildiv(a, b), or "
            "exact_div(a, b) when b must divide a"
        )

    def __rtruediv__(self, other: object) -> NoReturn:
        raise ArgumentTypeError(
            f"a symbolic dimension has no true division: {other} / {self}; use // (floor), ceildiv(a, b), or "
            "exact_div(a, b) when b must divide a"
        )

    def _no_order(self, sign: str, other: object) -> NoReturn:
        raise TracingError(
            f"{self} {sign} {other} has no answer before the sizes are known. Make that axis static to decide by its "
            "size in Python, or choose by element with cuvil.numpy.where; the compiler's own code asks "
            f"scope.prove({sign!r}, a, b) or uses dim_min / dim_max"
        )

    def __lt__(self, other: object) -> NoReturn:
        self._no_order("<", other)

    def __le__(self, other: object) -> NoReturn:
        self._no_order("<=", other)

    def __gt__(self, other: object) -> NoReturn:
        self._no_order(">", other)

    def __ge__(self, other: object) -> NoReturn:
        self._no_order(">=", other)

    def __bool__(self) -> NoReturn:
        raise TracingError(
            f"the symbolic dimension {self} has no truth value: it may be zero or not; ask "
            "scope.prove('!=', dim, 0), or compare with ==, which is structural"
        )

    def __index__(self) -> NoReturn:
        raise TracingError(
            f"the size {self} is a symbol here and has no number yet. To slice a NumPy array by it, make it part of "
            f"the trace: cuvil.numpy.asarray(x)[:{self}]; to calculate with it, use cuvil.numpy (cuvil.numpy.sqrt("
            f"{self})) instead of math or float(); to loop over it, make that axis static"
        )

    def __str__(self) -> str:
        text = self.cached_text
        if text is None:
            text = self.cached_text = _sum_text(self)
        return text

    def __repr__(self) -> str:
        return f"Expr({str(self)!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _from_pairs, (self.terms, self.const)

    def __copy__(self) -> Expr:
        return self

    def __deepcopy__(self, memo: object) -> Expr:
        return self


#: A dimension: a static size, or an expression over symbols.
Dim: TypeAlias = int | Expr


# -- text ---------------------------------------------------------------------------------------------------


def _factor_text(monomial: Monomial, coefficient: int) -> str:
    """``coefficient*monomial`` for a positive coefficient."""
    factors = monomial.factors
    if coefficient == 1 and len(factors) == 1 and factors[0][1] == 1:
        return factors[0][0].text
    parts = [] if coefficient == 1 else [str(coefficient)]
    for atom, power in factors:
        text = f"({atom.text})" if isinstance(atom, _Division) else atom.text
        parts.append(text if power == 1 else f"{text}**{power}")
    return "*".join(parts)


def _sum_text(expr: Expr) -> str:
    positive = [(_factor_text(m, c), True) for m, c in expr.terms if c > 0]
    negative = [(_factor_text(m, -c), False) for m, c in expr.terms if c < 0]
    constant = [(str(abs(expr.const)), expr.const > 0)] if expr.const else []
    parts = positive + negative + constant if positive or expr.const <= 0 else constant + negative
    first, sign = parts[0]
    monomial, coefficient = next((term for term in expr.terms if term[1] < 0), expr.terms[0])
    if not sign and coefficient == -1 and monomial.degree == 1 and isinstance(monomial.factors[0][0], _Division):
        first = f"({first})"  # unary minus binds tighter than // and %: -(S//2) is not -S//2
    return ("" if sign else "-") + first + "".join(f" {'+' if plus else '-'} {text}" for text, plus in parts[1:])


def _operand_text(dim: Dim) -> str:
    """A dim as an operand of ``//`` or ``%``: bare when it is one name or one non-negative integer."""
    if isinstance(dim, int):
        return str(dim) if dim >= 0 else f"({dim})"
    text = str(dim)
    return text if plain_symbol(dim) is not None else f"({text})"


# -- interning ----------------------------------------------------------------------------------------------


def _operand(value: object) -> Dim | None:
    """``value`` as a Dim, or None when it is neither an expression nor an integer."""
    if isinstance(value, Expr) or type(value) is int:
        return value
    try:
        return int(operator.index(cast(Any, value)))
    except TypeError:
        return None


def as_dim(value: object) -> Dim:
    """``value`` as a Dim: an expression as it is, any integer type (NumPy's too) as ``int``.

    Raises ArgumentTypeError for anything else.

    >>> as_dim(3)
    3
    """
    dim = _operand(value)
    if dim is None:
        raise ArgumentTypeError(
            f"a dimension is an integer or a symbolic expression, got {value!r} of type {type(value).__name__}"
        )
    return dim


def _symbol_atom(name: str) -> Symbol:
    found = _atoms.get(name)
    if found is None:
        with _lock:
            found = _atoms.get(name)
            if found is None:
                found = Symbol()
                found.name = name
                found.describe((), name, nonneg=True, total=True, rank=0)
                found.symbols = frozenset((name,))
                _atoms[name] = found
    return cast(Symbol, found)


def _division_atom(kind: type[FloorDiv] | type[Mod], numerator: Dim, denominator: Dim) -> Atom:
    key = (kind, numerator, denominator)
    found = _atoms.get(key)
    if found is None:
        sign = "//" if kind is FloorDiv else "%"
        text = f"{_operand_text(numerator)}{'//' if kind is FloorDiv else ' % '}{_operand_text(denominator)}"
        above = denominator > 0 if isinstance(denominator, int) else denominator.nonneg
        nonneg = above and (sign == "%" or (numerator >= 0 if isinstance(numerator, int) else numerator.nonneg))
        with _lock:
            found = _atoms.get(key)
            if found is None:
                found = kind()
                found.describe(
                    (numerator, denominator), text, nonneg, isinstance(denominator, int), 1 if sign == "//" else 2
                )
                _atoms[key] = found
    return found


def _extremum_atom(kind: type[Min] | type[Max], operands: tuple[Dim, ...]) -> Atom:
    key = (kind, operands)
    found = _atoms.get(key)
    if found is None:
        name = "min" if kind is Min else "max"
        signs = [dim >= 0 if isinstance(dim, int) else dim.nonneg for dim in operands]
        with _lock:
            found = _atoms.get(key)
            if found is None:
                found = kind()
                text = f"{name}({', '.join(map(str, operands))})"
                found.describe(operands, text, all(signs) if kind is Min else any(signs), True, 3)
                _atoms[key] = found
    return found


def _monomial(factors: tuple[tuple[Atom, int], ...]) -> Monomial:
    found = _monomials.get(factors)
    if found is None:
        degree = sum(power for _, power in factors)
        if degree > MAX_DEGREE:
            raise ShapeError(f"a dimension expression of degree {degree}; the highest supported is {MAX_DEGREE}")
        with _lock:
            found = _monomials.get(factors)
            if found is None:
                found = Monomial()
                found.factors = factors
                found.degree = degree
                found.key = (-degree, tuple((*atom.key, -power) for atom, power in factors))
                _monomials[factors] = found
    return found


def _term_key(term: tuple[Monomial, int]) -> tuple[int, tuple[tuple[int, str, int], ...]]:
    return term[0].key


def _from_pairs(terms: Iterable[tuple[Monomial, int]], const: int) -> Dim:
    """The interned sum of distinct monomials; the only place that makes an Expr."""
    items = [term for term in terms if term[1]]
    if not items:
        return const
    if len(items) > 1:
        items.sort(key=_term_key)
    key = (const, tuple(items))
    found = _exprs.get(key)
    return _new_expr(key) if found is None else found


def _new_expr(key: tuple[int, tuple[tuple[Monomial, int], ...]]) -> Expr:
    const, terms = key
    size, depth, nonneg, total = 1, 0, const >= 0, True
    symbols: set[str] = set()
    bits = const.bit_length()
    for monomial, coefficient in terms:
        size += 1
        bits = max(bits, coefficient.bit_length())
        nonneg = nonneg and coefficient > 0
        for atom, _ in monomial.factors:
            size += atom.size
            depth = max(depth, atom.depth)
            nonneg = nonneg and atom.nonneg
            total = total and atom.total
            symbols |= atom.symbols
    if size > MAX_SIZE:
        raise ShapeError(
            f"a dimension expression grew to {size} nodes, more than the {MAX_SIZE} supported; "
            "name an inner part as a symbol of its own"
        )
    if bits > MAX_BITS:
        raise ShapeError(f"a dimension expression has a coefficient of {bits} bits, more than {MAX_BITS}")
    with _lock:
        found = _exprs.get(key)
        if found is None:
            found = Expr()
            found.const, found.terms = key
            found.size, found.depth, found.nonneg, found.total = size, depth, nonneg, total
            found.symbols = frozenset(symbols)
            found.cached_text = None
            _exprs[key] = found
    return found


def _from_atom(atom: Atom) -> Expr:
    return cast(Expr, _from_pairs(((_monomial(((atom, 1),)), 1),), 0))


# -- sums and products --------------------------------------------------------------------------------------


@lru_cache(maxsize=_CACHE)
def _add(a: Expr, b: Dim) -> Dim:
    if isinstance(b, int):
        return _from_pairs(a.terms, a.const + b) if b else a
    terms = dict(a.terms)
    for monomial, coefficient in b.terms:
        terms[monomial] = terms.get(monomial, 0) + coefficient
    return _from_pairs(terms.items(), a.const + b.const)


@lru_cache(maxsize=_CACHE)
def _subtract(a: Expr, b: Dim) -> Dim:
    if isinstance(b, int):
        return _from_pairs(a.terms, a.const - b) if b else a
    if a is b:
        return 0
    terms = dict(a.terms)
    for monomial, coefficient in b.terms:
        terms[monomial] = terms.get(monomial, 0) - coefficient
    return _from_pairs(terms.items(), a.const - b.const)


@lru_cache(maxsize=_CACHE)
def _multiply_int(a: Expr, b: int) -> Expr:
    """``a * b`` for a nonzero ``b``."""
    return a if b == 1 else cast(Expr, _from_pairs([(m, c * b) for m, c in a.terms], a.const * b))


@lru_cache(maxsize=_CACHE)
def _multiply_monomials(a: Monomial, b: Monomial) -> Monomial:
    powers = dict(a.factors)
    for atom, power in b.factors:
        powers[atom] = powers.get(atom, 0) + power
    return _monomial(tuple(sorted(powers.items(), key=_factor_key)))


def _factor_key(factor: tuple[Atom, int]) -> tuple[int, str]:
    return factor[0].key


@lru_cache(maxsize=_CACHE)
def _multiply(a: Expr, b: Expr) -> Dim:
    if len(a.terms) * len(b.terms) > MAX_SIZE:
        raise ShapeError(
            f"a product of dimension expressions with {len(a.terms)} and {len(b.terms)} terms; at most {MAX_SIZE} "
            "products of terms are supported; name an inner part as a symbol of its own"
        )
    terms: dict[Monomial, int] = {}
    if b.const:
        for monomial, coefficient in a.terms:
            terms[monomial] = coefficient * b.const
    if a.const:
        for monomial, coefficient in b.terms:
            terms[monomial] = terms.get(monomial, 0) + coefficient * a.const
    for left, left_coefficient in a.terms:
        for right, right_coefficient in b.terms:
            monomial = _multiply_monomials(left, right)
            terms[monomial] = terms.get(monomial, 0) + left_coefficient * right_coefficient
    return _from_pairs(terms.items(), a.const * b.const)


def symbol(name: str) -> Expr:
    """The non-negative symbol called ``name``.

    Raises ArgumentError for a name that is not an ASCII identifier of at most 128 characters, or that the text
    form reserves (``min``, ``max``, ``ceildiv``).

    >>> symbol("batch") * 2
    Expr('2*batch')
    """
    if not isinstance(name, str) or _NAME.match(name) is None or name in _RESERVED:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ArgumentError(
            f"a dimension symbol is named by an identifier of ASCII letters, digits and _ (at most 128, not "
            f"{', '.join(sorted(_RESERVED))}), got {name!r}"
        )
    return _from_atom(_symbol_atom(name))


def dim_sum(dims: Iterable[Dim]) -> Dim:
    """The sum of ``dims``, 0 for none, in one pass over their terms.

    >>> dim_sum([symbol("S"), 2, symbol("S")])
    Expr('2*S + 2')
    """
    terms: dict[Monomial, int] = {}
    const = 0
    for dim in dims:
        if isinstance(dim, Expr):
            const += dim.const
            for monomial, coefficient in dim.terms:
                terms[monomial] = terms.get(monomial, 0) + coefficient
        else:
            const += cast(int, as_dim(dim))
    return _from_pairs(terms.items(), const)


def product(dims: Iterable[Dim]) -> Dim:
    """The product of ``dims``, 1 for none: the element count of a shape.

    >>> product([symbol("B"), 3, symbol("S")])
    Expr('3*B*S')
    """
    result: Dim = 1
    for dim in dims:
        result = result * as_dim(dim)
    return result


# -- division -----------------------------------------------------------------------------------------------


def floordiv(a: Dim, b: Dim) -> Dim:
    """``a // b``, rounded down.

    Raises ShapeError when ``b`` is the integer 0. A symbolic ``b`` that turns out zero raises in ``evaluate``.

    >>> floordiv(2 * symbol("S") + 5, 2), floordiv(symbol("S"), symbol("S"))
    (Expr('S + 2'), Expr('S//S'))
    """
    a, b = as_dim(a), as_dim(b)
    if isinstance(b, int):
        if b == 0:
            raise ShapeError(f"the dimension {a} is divided by zero: {_operand_text(a)}//0")
        return a // b if isinstance(a, int) else _floordiv_int(a, b)
    return _floordiv_expr(a, b)


def mod(a: Dim, b: Dim) -> Dim:
    """``a % b``, with the sign of ``b``.

    Raises ShapeError when ``b`` is the integer 0. A symbolic ``b`` that turns out zero raises in ``evaluate``.

    >>> mod(5 * symbol("S") + 9, 4)
    Expr('(S + 1) % 4')
    """
    a, b = as_dim(a), as_dim(b)
    if isinstance(b, int):
        if b == 0:
            raise ShapeError(f"the dimension {a} is divided by zero: {_operand_text(a)} % 0")
        return a % b if isinstance(a, int) else _mod_int(a, b)
    return _mod_expr(a, b)


def ceildiv(a: Dim, b: Dim) -> Dim:
    """``a / b`` rounded up.

    Raises ShapeError when ``b`` is the integer 0.

    >>> ceildiv(symbol("S"), 16), ceildiv(7, 2)
    (Expr('(S + 15)//16'), 4)
    """
    a, b = as_dim(a), as_dim(b)
    above = b > 0 if isinstance(b, int) else b.nonneg
    # With a positive divisor (zero has no value either way) both are equal; the first merges with other forms.
    return floordiv(a + b - 1, b) if above else -floordiv(-a, b)


@lru_cache(maxsize=_CACHE)
def _floordiv_int(a: Expr, d: int) -> Dim:
    if d < 0:
        return _floordiv_int(-a, -d)
    if d == 1:
        return a
    whole: list[tuple[Monomial, int]] = []
    rest: list[tuple[Monomial, int]] = []
    for monomial, coefficient in a.terms:
        # Truncate, so that both parts keep the sign of the coefficient and interval bounds stay tight.
        quotient = coefficient // d if coefficient >= 0 else -(-coefficient // d)
        whole.append((monomial, quotient))
        if coefficient != quotient * d:
            rest.append((monomial, coefficient - quotient * d))
    outside, inside = divmod(a.const, d)
    outer = _from_pairs(whole, outside)
    if not rest:
        return outer
    common = gcd(d, *(coefficient for _, coefficient in rest))
    # floor((g*t + c) / (g*d)) = floor((t + floor(c/g)) / d)
    rest = [(monomial, coefficient // common) for monomial, coefficient in rest]
    return outer + _floordiv_atom(cast(Expr, _from_pairs(rest, inside // common)), d // common)


def _floordiv_atom(numerator: Dim, denominator: Dim) -> Dim:
    """A reduced ``numerator // denominator``, denominator >= 1 wherever defined; merges a floor of a floor."""
    if isinstance(numerator, Expr) and len(numerator.terms) == 1:
        monomial, coefficient = numerator.terms[0]
        inner, power = monomial.factors[0]
        if coefficient == 1 and power == 1 and len(monomial.factors) == 1 and isinstance(inner, FloorDiv):
            # floor((floor(x/a) + c) / b) = floor((x + c*a) / (a*b)) for b > 0
            return floordiv(inner.numerator + numerator.const * inner.denominator, inner.denominator * denominator)
    return _from_atom(_division_atom(FloorDiv, numerator, denominator))


@lru_cache(maxsize=_CACHE)
def _mod_int(a: Expr, d: int) -> Dim:
    if d < 0:
        return -_mod_int(-a, -d)
    if d == 1:
        return 0
    if any(_removable_mod(monomial, coefficient, d) for monomial, coefficient in a.terms):
        # c*(x % e) = c*x modulo d when d divides c*e
        parts: list[Dim] = [a.const]
        for monomial, coefficient in a.terms:
            inner = _removable_mod(monomial, coefficient, d)
            parts.append(_from_pairs([(monomial, coefficient)], 0) if inner is None else coefficient * inner.numerator)
        return mod(dim_sum(parts), d)
    rest: list[tuple[Monomial, int]] = []
    for monomial, coefficient in a.terms:
        left = coefficient % d if coefficient >= 0 else -(-coefficient % d)
        if left:
            rest.append((monomial, -left if 2 * left == -d else left))
    inside = a.const % d
    if not rest:
        return inside
    common = gcd(d, *(coefficient for _, coefficient in rest))
    if common > 1:
        # (g*t + s) mod (g*d) = g*(t mod d) + s for 0 <= s < g
        high, low = divmod(inside, common)
        rest = [(monomial, coefficient // common) for monomial, coefficient in rest]
        return common * _mod_int(cast(Expr, _from_pairs(rest, high)), d // common) + low
    return _from_atom(_division_atom(Mod, _from_pairs(rest, inside), d))


def _removable_mod(monomial: Monomial, coefficient: int, d: int) -> Mod | None:
    if monomial.degree == 1:
        atom = monomial.factors[0][0]
        if isinstance(atom, Mod) and isinstance(atom.denominator, int) and coefficient * atom.denominator % d == 0:
            return atom
    return None


def _common_content(a: Dim, b: Expr) -> int:
    """The integer that divides both operands of ``//`` or ``%`` and may be taken out of them."""
    common = gcd(b.const, *(coefficient for _, coefficient in b.terms))
    if isinstance(a, int):
        return common if b.nonneg else gcd(common, a)
    terms = gcd(common, *(coefficient for _, coefficient in a.terms))
    # With a positive divisor the constant may leave a remainder; otherwise it has to be divisible too.
    return terms if b.nonneg else gcd(terms, a.const)


def _divide_content(a: Dim, common: int) -> Dim:
    """Terms divided exactly, the constant rounded down."""
    if isinstance(a, int):
        return a // common
    return _from_pairs([(monomial, coefficient // common) for monomial, coefficient in a.terms], a.const // common)


@lru_cache(maxsize=_CACHE)
def _floordiv_expr(a: Dim, b: Expr) -> Dim:
    if (-b).nonneg:
        return _floordiv_expr(-a, -b)
    common = _common_content(a, b)
    if common > 1:
        a, b = _divide_content(a, common), cast(Expr, _divide_content(b, common))
    return _floordiv_atom(a, b) if b.nonneg else _from_atom(_division_atom(FloorDiv, a, b))


@lru_cache(maxsize=_CACHE)
def _mod_expr(a: Dim, b: Expr) -> Dim:
    if (-b).nonneg:
        return -_mod_expr(-a, -b)
    common = _common_content(a, b)
    if common > 1:
        low = a.const % common if isinstance(a, Expr) else a % common
        return common * _mod_expr(_divide_content(a, common), cast(Expr, _divide_content(b, common))) + low
    return _from_atom(_division_atom(Mod, a, b))


# -- min and max --------------------------------------------------------------------------------------------


def dim_min(*dims: Dim) -> Dim:
    """The least of one or more dims.

    >>> dim_min(symbol("S"), 512, symbol("S") + 1)
    Expr('min(S, 512)')
    """
    return _extremum(Min, dims)


def dim_max(*dims: Dim) -> Dim:
    """The greatest of one or more dims.

    >>> dim_max(symbol("N"), 1), dim_max(symbol("N"), 0)
    (Expr('max(N, 1)'), Expr('N'))
    """
    return _extremum(Max, dims)


def _extremum(kind: type[Min] | type[Max], dims: Sequence[Dim]) -> Dim:
    name = "min" if kind is Min else "max"
    if not dims:
        raise ArgumentError(f"dim_{name} needs at least one dimension, got none")
    flat: dict[Dim, None] = {}
    for dim in map(as_dim, dims):
        atom = single_atom(dim)
        flat.update(dict.fromkeys(atom.children if isinstance(atom, kind) else (dim,)))
    if len(flat) > MAX_OPERANDS:
        raise ShapeError(f"{name} of {len(flat)} dimensions; at most {MAX_OPERANDS} are supported")
    return extremum_of(kind, prune(flat, kind, _evidently_nonneg))


def extremum_of(kind: type[Min] | type[Max], dims: Sequence[Dim]) -> Dim:
    """The min or max of operands that were pruned already."""
    if len(dims) == 1:
        return dims[0]
    return _from_atom(_extremum_atom(kind, tuple(sorted(dims, key=_operand_key))))


def prune(dims: Iterable[Dim], kind: type[Min] | type[Max], nonneg: Callable[[Dim], bool]) -> list[Dim]:
    """``dims`` without those that ``nonneg`` shows another operand to make redundant."""
    kept: list[Dim] = []
    for dim in dims:
        # A new operand that an older one covers is dropped; so are the older ones that it covers.
        if any(nonneg(dim - other if kind is Min else other - dim) for other in kept):
            continue
        kept = [other for other in kept if not nonneg(other - dim if kind is Min else dim - other)]
        kept.append(dim)
    return kept


def _evidently_nonneg(difference: Dim) -> bool:
    return difference >= 0 if isinstance(difference, int) else difference.nonneg and difference.total


def _operand_key(dim: Dim) -> tuple[bool, str]:
    return isinstance(dim, int), str(dim)


# -- structure ----------------------------------------------------------------------------------------------


def single_atom(dim: Dim) -> Atom | None:
    """The atom that ``dim`` consists of, None when it is anything else."""
    if isinstance(dim, Expr) and len(dim.terms) == 1 and not dim.const:
        monomial, coefficient = dim.terms[0]
        if coefficient == 1 and monomial.degree == 1:
            return monomial.factors[0][0]
    return None


def plain_symbol(dim: Dim) -> str | None:
    """The name when ``dim`` is one symbol and nothing else.

    >>> plain_symbol(symbol("S")), plain_symbol(symbol("S") + 1)
    ('S', None)
    """
    atom = single_atom(dim)
    return atom.name if isinstance(atom, Symbol) else None


def atom_dim(atom: Atom) -> Expr:
    """The expression that is ``atom`` alone."""
    return _from_atom(atom)


def from_terms(terms: Iterable[tuple[Monomial, int]], const: int = 0) -> Dim:
    """The sum of ``coefficient * monomial`` over distinct monomials, plus ``const``."""
    return _from_pairs(terms, const)


def monomial_dim(monomial: Monomial) -> Expr:
    """The expression that is ``monomial`` alone."""
    return cast(Expr, _from_pairs(((monomial, 1),), 0))


def monomial_of(factors: Iterable[tuple[Atom, int]]) -> Monomial | None:
    """The product of powers of distinct atoms, None for the empty product."""
    ordered = tuple(sorted((factor for factor in factors if factor[1]), key=_factor_key))
    return _monomial(ordered) if ordered else None


def internal_symbol(name: str) -> Expr:
    """A symbol outside the names that users can write; a scope makes these and never lets them out."""
    return _from_atom(_symbol_atom(name))
