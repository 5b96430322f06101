"""Identifiers: legal in C, unique, and equal for equal inputs."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cuvil.support.naming import Names, identifier


@given(st.text(max_size=80))
def test_every_text_gives_a_legal_identifier(text: str) -> None:
    name = identifier(text)
    assert re.fullmatch(r"[A-Za-z][0-9A-Za-z_]*", name)
    assert len(name) <= 50


@pytest.mark.parametrize("word", ["int", "for", "register", "template", "nullptr", "I", "asm", "restrict"])
def test_reserved_words_are_avoided(word: str) -> None:
    assert identifier(word) == word + "_"


@given(st.lists(st.sampled_from(["x", "x_1", "x.1", "int", "", "y" * 60, "é", "x_1_1"]), max_size=12))
def test_fresh_names_differ_and_repeat(hints: list[str]) -> None:
    first, second = Names(["x"]), Names(["x"])
    given_out = [first.fresh(hint) for hint in hints]
    assert len({"x", *given_out}) == len(given_out) + 1
    assert given_out == [second.fresh(hint) for hint in hints]
    assert all(name in first for name in given_out)
