"""Ops with regions and the host program's loops: what their verifiers refuse, and where errors are said."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import cuvil
import cuvil.numpy as cnp
from cuvil.ir.text import parse_module
from cuvil.ir.verifier import verify_stage
from cuvil.support.errors import IRError


def program(x: Any) -> Any:
    total, sums = cuvil.scan(lambda c, r: (c + r, cnp.sort(c)), cnp.zeros(4, dtype=cnp.float32), x)
    n = 0
    while cnp.max(total) > n:
        n += 2
        total = cnp.sort(total) / 2
    if total[0] > 0:
        total = cnp.sort(total)[::-1]
    assert n < 1000
    return total, sums, n


X = np.ones((3, 4), np.float32)
LOWERED = cuvil.jit(program).lower(X)


@pytest.mark.parametrize(
    ("stage", "before", "after", "words"),
    [
        ("tensor", r"trip = 3", "trip = 2", "a scanned operand has 2 slices"),
        ("tensor", r"scanned = 1", "scanned = 0", "the body has types"),
        ("tensor", r"carried = 1, scanned", "carried = 9, scanned", "carries 9"),
        ("tensor", r"reverse = false", "reverse = 3", "reverse"),
        ("tensor", r"carried = 2\} do", "carried = 1} do", "types"),
        ("tensor", r'\{message = "[^"]*"\}', "{message = 3}", "message"),
        ("kernel", r"trip = 3", "trip = M", "mentions M"),
        ("kernel", r"offset = 4\*_it0", "offset = 4*_it9", "mentions _it9"),
        ("kernel", r"\{number = 0\}", "{numbers = 0}", "number"),
        ("kernel", r'var = "_it0", ', "", "has no parameter 'var'"),
        ("kernel", r"kernel.put (%\w+) \{value = _it0\}", r"kernel.put \1 {value = Q}", "mentions Q"),
    ],
)  # fmt: skip
def test_what_is_refused(stage: Any, before: str, after: str, words: str) -> None:
    text = LOWERED.as_text(stage)
    if before.startswith("kernel.put") and not re.search(before, text):
        text = cuvil.jit(lambda x: cuvil.fori_loop(0, 3, lambda i, c: cnp.sort(c + i), x)).lower(X).as_text(stage)
    changed, count = re.subn(before, after, text, count=1)
    assert count == 1
    with pytest.raises(IRError, match=words):
        verify_stage(parse_module(changed), stage)


def test_regions_see_their_arguments_only() -> None:
    text = LOWERED.as_text("tensor")
    inner = re.search(r"cuvil.sort (%\w+) ", text[text.index("cuvil.loop") :])
    assert inner is not None
    changed = text.replace(f"cuvil.sort {inner[1]} ", "cuvil.sort %1 ", 1)
    assert changed != text
    with pytest.raises(IRError, match="not defined before this op"):
        verify_stage(parse_module(changed), "tensor")
