"""The examples in the harness's docstrings."""

from __future__ import annotations

import doctest
from types import ModuleType

import pytest

from bench import report, roofline, statistics


@pytest.mark.parametrize("module", [report, roofline, statistics], ids=lambda module: module.__name__)
def test_examples(module: ModuleType) -> None:
    failed, attempted = doctest.testmod(module, extraglobs={"np": __import__("numpy")})
    assert failed == 0 and attempted > 0
