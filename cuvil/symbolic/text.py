"""Dimension expressions and relations from text, without eval and with bounds on length and depth."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, TypeAlias, TypeGuard

from cuvil.support.errors import ArgumentError, ArgumentTypeError, ShapeError
from cuvil.symbolic.expr import (
    MAX_DEGREE,
    MAX_OPERANDS,
    Dim,
    ceildiv,
    dim_max,
    dim_min,
    dim_sum,
    floordiv,
    mod,
    product,
    symbol,
)

#: Characters of one expression.
MAX_TEXT = 1 << 19
#: Nested parentheses and calls.
MAX_PARENTHESES = 64
#: Digits of one integer.
MAX_DIGITS = 160

Comparison: TypeAlias = Literal["==", "!=", "<", "<=", ">", ">="]
_COMPARISONS = ("==", "!=", "<", "<=", ">", ">=")
_TOKEN = re.compile(r"\s*(?:([A-Za-z_][A-Za-z0-9_]*)|([0-9]+)|(//|\*\*|==|!=|<=|>=|[-+*%(),<>])|(\S))", re.ASCII)


def is_comparison(sign: str) -> TypeGuard[Comparison]:
    """Whether ``sign`` is one of ``== != < <= > >=``."""
    return sign in _COMPARISONS


@dataclass(frozen=True, slots=True)
class Relation:
    """``left sign right`` between two dims, ``sign`` one of ``== != < <= > >=``.

    >>> str(Relation(">=", symbol("S"), 1))
    'S >= 1'
    """

    sign: Comparison
    left: Dim
    right: Dim

    def __post_init__(self) -> None:
        if not is_comparison(self.sign):
            raise ArgumentError(f"a relation is one of {' '.join(_COMPARISONS)}, got {self.sign!r}")

    def __str__(self) -> str:
        return f"{self.left} {self.sign} {self.right}"


def parse_dim(text: str) -> Dim:
    """The dim that ``text`` writes: integers, names, ``+ - * // % **``, parentheses, ``min max ceildiv``.

    Raises ArgumentError that points at the offending place, ShapeError for a division by the integer 0 or an
    expression that is too large, and ArgumentTypeError for anything but a string.

    >>> parse_dim("max((H - 1)//2, 1)"), parse_dim("2 + 3")
    (Expr('max((H + 1)//2 - 1, 1)'), 5)
    """
    parser = _Parser(text)
    dim = parser.sum()
    parser.end()
    return dim


def parse_relations(text: str) -> tuple[Relation, ...]:
    """The relations that ``text`` chains.

    Raises like :func:`parse_dim`.

    >>> [str(relation) for relation in parse_relations("1 <= S <= 512")]
    ['1 <= S', 'S <= 512']
    """
    parser = _Parser(text)
    left = parser.sum()
    relations: list[Relation] = []
    while is_comparison(parser.token):
        sign = parser.token
        parser.advance()
        right = parser.sum()
        relations.append(Relation(sign, left, right))
        left = right
    parser.end()
    if not relations:
        parser.fail(f"a relation needs one of {' '.join(_COMPARISONS)}")
    return tuple(relations)


class _Parser:
    """Recursive descent; only parentheses and calls recurse, and they are counted."""

    def __init__(self, text: str) -> None:
        if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ArgumentTypeError(f"a dimension is parsed from a string, got {type(text).__name__}")
        if len(text) > MAX_TEXT:
            raise ArgumentError(f"a dimension text of {len(text)} characters; at most {MAX_TEXT} are supported")
        self.text = text
        self.position = 0  # where the token in hand starts
        self.next = 0
        self.token = ""  # empty at the end
        self.kind = 0  # the group of _TOKEN that matched: 1 name, 2 integer, 3 sign
        self.depth = 0
        self.advance()

    def fail(self, what: str) -> None:
        shown = self.text if len(self.text) <= 80 else f"...{self.text[max(0, self.position - 30) :][:60]}..."
        found = f"found {self.token!r}" if self.token else "the text ended"
        raise ArgumentError(f"cannot read the dimension {shown!r}: {what}, {found} at character {self.position}")

    def advance(self) -> None:
        match = _TOKEN.match(self.text, self.next)
        if match is None:
            self.position, self.token, self.kind = len(self.text), "", 0
            return
        self.kind = match.lastindex or 0
        self.position, self.next = match.span(self.kind)
        self.token = match.group(self.kind)
        if self.kind == 4:
            self.fail("expected integers, names, + - * // % **, parentheses, min, max or ceildiv")

    def end(self) -> None:
        if self.token:
            self.fail("expected an operator or the end")

    def sum(self) -> Dim:
        parts = [self.product()]
        while self.token in ("+", "-") and self.kind == 3:
            minus = self.token == "-"
            self.advance()
            part = self.product()
            parts.append(-part if minus else part)
        return parts[0] if len(parts) == 1 else dim_sum(parts)

    def product(self) -> Dim:
        value = self.signed()
        while self.token in ("*", "//", "%") and self.kind == 3:
            sign = self.token
            self.advance()
            other = self.signed()
            value = value * other if sign == "*" else floordiv(value, other) if sign == "//" else mod(value, other)
        return value

    def signed(self) -> Dim:
        minus = False
        while self.token in ("+", "-") and self.kind == 3:
            minus ^= self.token == "-"
            self.advance()
        value = self.power()
        return -value if minus else value

    def power(self) -> Dim:
        base = self.primary()
        if self.token != "**":
            return base
        self.advance()
        if self.kind != 2 or len(self.token) > 2 or int(self.token) > MAX_DEGREE:
            self.fail(f"expected an exponent of 0 to {MAX_DEGREE}")
        exponent = int(self.token)
        self.advance()
        return product([base] * exponent)

    def primary(self) -> Dim:
        token, kind = self.token, self.kind
        if kind == 2:
            if len(token) > MAX_DIGITS:
                self.fail(f"expected an integer of at most {MAX_DIGITS} digits")
            self.advance()
            return int(token)
        if kind == 1:
            if token in ("min", "max", "ceildiv"):
                return self.call(token)
            if len(token) > 128:
                self.fail("expected a name of at most 128 characters")
            self.advance()
            return symbol(token)
        if token != "(":
            self.fail("expected an integer, a name or (")
        self.open()
        value = self.sum()
        self.close()
        return value

    def call(self, name: str) -> Dim:
        self.advance()
        if self.token != "(":
            self.fail(f"expected ( after {name}")
        self.open()
        operands = [self.sum()]
        while self.token == ",":
            self.advance()
            operands.append(self.sum())
            if len(operands) > MAX_OPERANDS:
                raise ShapeError(f"{name} of more than {MAX_OPERANDS} dimensions")
        if name == "ceildiv" and len(operands) != 2:
            self.fail(f"ceildiv takes two operands, got {len(operands)}")
        self.close()
        if name == "ceildiv":
            return ceildiv(operands[0], operands[1])
        return dim_min(*operands) if name == "min" else dim_max(*operands)

    def open(self) -> None:
        self.depth += 1
        if self.depth > MAX_PARENTHESES:
            self.fail(f"more than {MAX_PARENTHESES} nested parentheses")
        self.advance()

    def close(self) -> None:
        if self.token != ")":
            self.fail("expected )")
        self.depth -= 1
        self.advance()
