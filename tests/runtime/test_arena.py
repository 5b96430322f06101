"""The arena: buffers alive at one time never overlap, whatever their number."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cuvil.runtime import arena
from cuvil.runtime.arena import ALIGNMENT, place_slots

SLOTS = st.lists(
    st.tuples(st.integers(0, 5000), st.integers(0, 30), st.integers(0, 12)).map(lambda s: (s[0], s[1], s[1] + s[2])),
    max_size=60,
)


def _check(slots: list[tuple[int, int, int]]) -> None:
    offsets, total = place_slots(slots)
    assert len(offsets) == len(slots)
    for k, (size, first, last) in enumerate(slots):
        assert offsets[k] % ALIGNMENT == 0 and offsets[k] >= 0 and offsets[k] + size <= total
        for j in range(k):
            s, f, e = slots[j]
            alive_together = not (last < f or e < first)
            if alive_together and size and s:
                assert offsets[k] + size <= offsets[j] or offsets[j] + s <= offsets[k]
    assert total <= sum((s + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT for s, _, _ in slots)


@given(SLOTS)
def test_no_two_live_buffers_overlap(slots: list[tuple[int, int, int]]) -> None:
    _check(slots)


@settings(max_examples=100)
@given(SLOTS)
def test_the_sweep_for_many_buffers_neither(slots: list[tuple[int, int, int]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arena, "_EXACT", -1)
        _check(slots)


def test_memory_is_used_again() -> None:
    chain = [(1000, k, k + 1) for k in range(50)]
    assert place_slots(chain)[1] == 2 * 1024
    many = [(1000, k, k + 1) for k in range(5000)]
    assert place_slots(many)[1] == 2 * 1024
    assert place_slots([]) == ([], 0)
    assert place_slots([(0, 0, 5), (64, 0, 5), (0, 2, 3)])[1] == 64
