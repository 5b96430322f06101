"""Parsing: what is accepted, what is refused and how it says so."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cuvil.support.errors import ArgumentError, ArgumentTypeError, CuvilError
from cuvil.symbolic import Expr, Relation, dim_max, dim_min, parse_dim, parse_relations, symbol
from cuvil.symbolic.text import MAX_TEXT

S, B = symbol("S"), symbol("B")


def test_grammar() -> None:
    assert parse_dim(" 2 * S+1") is 2 * S + 1
    assert parse_dim("--S") is S
    assert parse_dim("-S//2") is (-S) // 2
    assert parse_dim("-(S//2)") is -(S // 2)
    assert parse_dim("S % B * 2") is (S % B) * 2
    assert parse_dim("S - B - 1") is S - B - 1
    assert parse_dim("-S**2") is -(S * S)
    assert parse_dim("min(S, 4, B)") is dim_min(S, 4, B)
    assert parse_dim("max(S)") is dim_max(S)
    assert parse_dim("ceildiv(S, 4)") is (S + 3) // 4
    assert parse_dim("7 // 2 ** 1") == 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected an integer, a name or \\(, the text ended at character 0"),
        ("S +", "the text ended at character 3"),
        ("S S", "expected an operator or the end, found 'S' at character 2"),
        ("(S", "expected \\), the text ended"),
        ("S)", "found '\\)' at character 1"),
        ("min S", "expected \\( after min"),
        ("ceildiv(S)", "ceildiv takes two operands, got 1"),
        ("S / 2", "expected integers, names"),
        ("S.size", "found '.'"),
        ("__import__('os')", "found"),
        ("S ** B", "expected an exponent"),
        ("S ** 65", "expected an exponent"),
        ("9" * 161, "at most 160 digits"),
        ("x" * 129, "at most 128 characters"),
        ("(" * 65 + "S" + ")" * 65, "more than 64 nested"),
        ("S" + "+" * (MAX_TEXT + 1), "characters; at most"),
        ("S == 2", "expected an operator or the end"),
        ("é", "expected integers, names"),
    ],
)
def test_bad_text(text: str, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        parse_dim(text)


def test_only_strings() -> None:
    with pytest.raises(ArgumentTypeError, match="from a string, got int"):
        parse_dim(3)  # type: ignore[arg-type]


@settings(max_examples=400, deadline=None, derandomize=True)
@given(st.text(alphabet="SBi01239+-*/%(), minax=<>!_.\n", max_size=40))
def test_any_text_parses_or_is_refused(text: str) -> None:
    try:
        dim = parse_dim(text)
    except CuvilError:
        return
    assert isinstance(dim, int | Expr)
    assert parse_dim(str(dim)) == dim


@pytest.mark.parametrize(
    "text",
    [
        "+".join(f"x{k}" for k in range(60_000)),
        "*".join(["(a+b+c+d)"] * 5000),
        "S" + "//B" * 20_000,
        "-" * 100_000 + "S",
    ],
)
def test_hostile_text_ends_soon(text: str) -> None:
    try:
        assert parse_dim(text) is S
    except CuvilError as error:
        assert len(str(error)) < 500


def test_relations() -> None:
    assert parse_relations("1 <= S <= 512") == (Relation("<=", 1, S), Relation("<=", S, 512))
    assert parse_relations("S % 16 == 0") == (Relation("==", S % 16, 0),)
    for relation in parse_relations("B < S != 3"):
        assert parse_relations(str(relation)) == (relation,)
    with pytest.raises(ArgumentError, match="a relation needs one of"):
        parse_relations("S + 1")
    with pytest.raises(ArgumentError, match="found '='"):
        parse_relations("S = 1")
    with pytest.raises(ArgumentError, match="a relation is one of"):
        Relation("=", S, 1)  # type: ignore[arg-type]
