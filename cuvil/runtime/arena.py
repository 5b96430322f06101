"""Places temporaries in one arena so that those alive at the same time do not overlap."""

from __future__ import annotations

from collections.abc import Callable, Sequence

ALIGNMENT = 64
_EXACT = 400  # above this many buffers, the quadratic placement gives way to a sweep


def _aligned(n: int) -> int:
    return (n + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT


def place_slots(slots: Sequence[tuple[int, int, int]]) -> tuple[list[int], int]:
    """Offsets of (bytes, first, last) buffers, and the arena's size.

    Buffers alive at a common call never overlap. Each goes to the lowest offset that is free during its life, the
    largest first, or in another order where that takes less; for very many buffers a sweep in order of birth with a
    free list instead.

    >>> place_slots([(64, 0, 1), (64, 1, 2), (64, 2, 3)])
    ([0, 64, 0], 128)
    """
    if len(slots) > _EXACT:
        return _sweep(slots)
    bound = least_total(slots)
    best: tuple[list[int], int] | None = None
    for key in _ORDERS:
        found = _place(slots, sorted(range(len(slots)), key=lambda k: key(*slots[k])))
        if best is None or found[1] < best[1]:
            best = found
        if best[1] == bound:
            break
    assert best is not None
    return best


#: Orders of placement, by size, first and last; the second and third do better on some programs.
_ORDERS: tuple[Callable[[int, int, int], tuple[int, int]], ...] = (
    lambda size, first, last: (-size, first),
    lambda size, first, last: (-size * (last - first + 1), first),
    lambda size, first, last: (first - last, -size),
    lambda size, first, last: (first, -size),
)


def least_total(slots: Sequence[tuple[int, int, int]]) -> int:
    """The most bytes that are alive at one call: no arena is smaller.

    >>> least_total([(64, 0, 1), (64, 1, 2), (64, 2, 3)])
    128
    """
    changes: dict[int, int] = {}
    for size, first, last in slots:
        changes[first] = changes.get(first, 0) + _aligned(size)
        changes[last + 1] = changes.get(last + 1, 0) - _aligned(size)
    alive = most = 0
    for t in sorted(changes):
        alive += changes[t]
        most = max(most, alive)
    return most


def _place(slots: Sequence[tuple[int, int, int]], order: Sequence[int]) -> tuple[list[int], int]:
    """Each slot, in this order, at the lowest offset that is free during its life."""
    offsets = [0] * len(slots)
    placed: list[int] = []
    total = 0
    for k in order:
        size, first, last = _aligned(slots[k][0]), slots[k][1], slots[k][2]
        busy = sorted(
            (offsets[j], offsets[j] + _aligned(slots[j][0]))
            for j in placed
            if not (slots[j][2] < first or last < slots[j][1])
        )
        at = 0
        for low, high in busy:
            if at + size <= low:
                break
            at = max(at, high)
        offsets[k] = at
        placed.append(k)
        total = max(total, at + size)
    return offsets, total


def _sweep(slots: Sequence[tuple[int, int, int]]) -> tuple[list[int], int]:
    offsets = [0] * len(slots)
    free: list[tuple[int, int]] = []  # (offset, size), sorted, coalesced
    total = 0
    dying: dict[int, list[int]] = {}
    born = sorted(range(len(slots)), key=lambda k: (slots[k][1], -slots[k][0]))
    times = sorted({t for _, first, last in slots for t in (first, last + 1)})
    it = 0
    for t in times:
        for k in dying.pop(t, ()):
            _release(free, offsets[k], _aligned(slots[k][0]))
        while it < len(born) and slots[born[it]][1] == t:
            k = born[it]
            it += 1
            size = _aligned(slots[k][0])
            fits = [(s, o) for o, s in free if s >= size]
            if fits:
                s, o = min(fits)
                free.remove((o, s))
                if s > size:
                    free.append((o + size, s - size))
                    free.sort()
                offsets[k] = o
            else:
                if free and free[-1][0] + free[-1][1] == total:
                    offsets[k] = free.pop()[0]
                else:
                    offsets[k] = total
                total = offsets[k] + size
            dying.setdefault(slots[k][2] + 1, []).append(k)
    return offsets, total


def _release(free: list[tuple[int, int]], offset: int, size: int) -> None:
    if size == 0:
        return
    free.append((offset, size))
    free.sort()
    merged: list[tuple[int, int]] = []
    for o, s in free:
        if merged and merged[-1][0] + merged[-1][1] == o:
            merged[-1] = (merged[-1][0], merged[-1][1] + s)
        else:
            merged.append((o, s))
    free[:] = merged
