"""The examples in the docstrings of cuvil.symbolic run and print what they say."""

from __future__ import annotations

import doctest
from importlib import import_module

import pytest


@pytest.mark.parametrize("name", ["expr", "query", "scope", "solve", "structure", "text"])
def test_examples(name: str) -> None:
    result = doctest.testmod(import_module(f"cuvil.symbolic.{name}"))
    assert result.failed == 0
    assert result.attempted > 0
