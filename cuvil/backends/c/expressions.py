"""Prints dtypes, literals and dimension expressions as C."""

from __future__ import annotations

import math
import re

from cuvil.dtypes import DType
from cuvil.symbolic import Dim, Scope, Truth, fold, is_static

#: Element type in memory, by dtype short name.
MEMORY = {
    "f32": "float", "f64": "double", "f16": "uint16_t", "bf16": "uint16_t", "bool": "uint8_t",
    "i8": "int8_t", "i16": "int16_t", "i32": "int32_t", "i64": "int64_t",
    "c64": "cv_c64", "c128": "cv_c128",
    "u8": "uint8_t", "u16": "uint16_t", "u32": "uint32_t", "u64": "uint64_t",
}  # fmt: skip


#: One capital, then small letters and digits: B, S, Batch. Macros of C headers are all capitals but for complex.h's I.
_PLAIN_NAME = re.compile(r"(?!I$)[A-Z][a-z0-9]*")


def register_suffix(dt: DType) -> str:
    """Suffix of a dtype's register functions: halves live in float32 registers."""
    return "f32" if dt.is_half else dt.short


def vector_type(dt: DType) -> str:
    """C type of a register of CV_LANES elements."""
    return "cv_v" + register_suffix(dt)


def literal(value: bool | int | float, dt: DType) -> str:
    """A C literal of a register's element type."""
    if dt.is_bool:
        return "1" if value else "0"
    if dt.is_integer:
        v = int(value)
        if dt.bits == 64:
            return "INT64_MIN" if v == -(2**63) else f"UINT64_C({v})" if dt.kind == "uint" else f"INT64_C({v})"
        return f"(-{2**31 - 1} - 1)" if v == -(2**31) else f"{v}u" if dt.kind == "uint" else str(v)
    v = float(value)
    suffix = "" if dt.bits == 64 else "f"
    if math.isnan(v):
        return f'__builtin_nan{suffix}("")'
    if math.isinf(v):
        return f"{'-' if v < 0 else ''}__builtin_inf{suffix}()"
    text = repr(v)
    short = text if float(text) == v and len(text) < 12 and ("." in text or "e" in text) else v.hex()
    return short + suffix


def c_name(symbol: str) -> str:
    """The C identifier of a dimension symbol or loop variable.

    Variables that lowering made (``_i0``, ``_m``) lose their underscore. Symbols of the program keep their name where
    it can be neither a keyword nor one of the names that emitted code uses; others are marked.

    >>> c_name("_i0"), c_name("B"), c_name("n"), c_name("int")
    ('i0', 'B', 'dim_n', 'dim_int')
    """
    if symbol.startswith("_"):
        return symbol[1:]
    return symbol if _PLAIN_NAME.fullmatch(symbol) else f"dim_{symbol}"


def dim(expr: Dim, names: dict[str, str] | None = None) -> str:
    """An index expression in C; ``names`` renames symbols. Outer parentheses only where needed."""
    if is_static(expr):
        return str(expr) if -(2**31) < expr < 2**31 else f"INT64_C({expr})"
    table = names or {}
    text = fold(
        expr,
        const=lambda c: str(c) if -(2**31) < c < 2**31 else f"INT64_C({c})",
        symbol=lambda n: table.get(n) or c_name(n),
        add=lambda a, b: f"({a} + {b})",
        sub=lambda a, b: f"({a} - {b})",
        mul=lambda a, b: f"{a}*{b}",
        floordiv=lambda a, b: f"cv_fdiv({_strip(a)}, {_strip(b)})",
        mod=lambda a, b: f"cv_fmodi({_strip(a)}, {_strip(b)})",
        min=lambda a, b: f"cv_imin({_strip(a)}, {_strip(b)})",
        max=lambda a, b: f"cv_imax({_strip(a)}, {_strip(b)})",
    )
    return _strip(text)


def _strip(text: str) -> str:
    if not (text.startswith("(") and text.endswith(")")):
        return text
    depth = 0
    for i, c in enumerate(text):
        depth += (c == "(") - (c == ")")
        if depth == 0 and i < len(text) - 1:
            return text
    return _strip(text[1:-1])


def is_nonnegative(expr: Dim, scope: Scope) -> bool:
    """Whether an expression is provably >= 0."""
    return scope.prove(">=", expr, 0) is Truth.YES
