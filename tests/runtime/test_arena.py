"""The arena: buffers alive at one time never overlap, whatever their number."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cuvil.runtime import arena
from cuvil.runtime.arena import ALIGNMENT, least_total, place_slots

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


def test_the_arena_is_close_to_the_least_that_holds_what_is_alive() -> None:
    """Lifetimes as models have them: most values die at once, some are kept for a while."""
    rng = np.random.default_rng(0)
    ratios: list[float] = []
    for trial in range(200):
        n = int(rng.integers(3, 120))
        first = np.sort(rng.integers(0, n, n))
        last = first + np.minimum(rng.geometric(0.3, n), 30)
        sizes = rng.choice([64, 256, 4096, 100_000, 1 << 20], n) if trial % 2 else rng.integers(1, 1 << 20, n)
        slots = [(int(s), int(f), int(e)) for s, f, e in zip(sizes, first, last, strict=True)]
        alive = [sum(-(-s // 64) * 64 for s, f, e in slots if f <= t <= e) for t in {int(f) for f in first}]
        assert least_total(slots) == max(alive)
        ratios.append(place_slots(slots)[1] / max(alive))
    assert min(ratios) >= 1
    assert np.mean(ratios) < 1.02 and np.quantile(ratios, 0.95) < 1.1 and max(ratios) < 1.3
