"""The compile cache on disk: what it holds, and how to make it smaller or empty.

Compiled programs and kernels are kept in ``CUVIL_CACHE_DIR`` (by default in the user's cache folder), at most
``CUVIL_CACHE_SIZE`` of them, the least recently used going first. A program is found again by its ops, shapes, options
and constants, by the version of cuvil and by the C compiler and the CPU; nothing that is found is used unless it is
whole. Several processes share a cache, and compile once.

>>> import cuvil
>>> cuvil.cache.stats().bytes >= 0
True
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal

from cuvil.support.cache import CacheEntry, CacheStats, shared_cache
from cuvil.support.config import parse_bytes
from cuvil.support.errors import ArgumentError

Kind = Literal["program", "kernel", "support"]

_KERNEL = re.compile(r"\w+_\d+-[0-9a-f]+")


@dataclass(frozen=True)
class Entry:
    """One entry of the cache.

    Attributes:
        key: its name on disk.
        kind: ``"program"`` (a whole compiled function), ``"kernel"`` or ``"support"`` (what all programs use).
        bytes: its size.
        used: when it was last used, with the local time zone.
        path: its folder.
    """

    key: str
    kind: Kind
    bytes: int
    used: datetime
    path: Path


def folder() -> Path:
    """Where the cache is."""
    return shared_cache().root


def stats() -> CacheStats:
    """Number and bytes of entries on disk, and what this process found, built and discarded."""
    return shared_cache().stats()


def entries() -> list[Entry]:
    """Everything in the cache, the most recently used first."""
    cache = shared_cache()
    out: list[Entry] = []
    for e in cache.entries():
        used = datetime.fromtimestamp(e.used, UTC).astimezone()
        out.append(Entry(e.key, _kind(e), e.bytes, used, cache.root / "entries" / e.key))
    return out


def prune(max_bytes: int | str | None = None, *, older_than: timedelta | None = None) -> int:
    """Remove the least recently used entries, and return how many were removed.

    Args:
        max_bytes: what the rest may take, in bytes or as text (``"200 MB"``, with powers of 1024); None is
            CUVIL_CACHE_SIZE. Entries used within the last minute stay, since a process may be about to load them.
        older_than: also remove what was not used for so long.

    Raises:
        ArgumentError: a negative size or age, or a text that is no size.
    """
    cache = shared_cache()
    limit = parse_bytes(max_bytes, "max_bytes") if isinstance(max_bytes, str) else max_bytes
    removed = 0
    if older_than is not None:
        if older_than < timedelta(0):
            raise ArgumentError(f"older_than is {older_than}; expected a time span of at least 0")
        oldest = time.time() - older_than.total_seconds()
        removed = cache.remove([e.key for e in cache.entries() if e.used < oldest])
    return removed + cache.prune(limit)


def clear() -> int:
    """Remove everything, and return how many entries there were. Programs that are loaded keep working."""
    return shared_cache().clear()


def _kind(entry: CacheEntry) -> Kind:
    if entry.key.startswith("program-"):
        return "program"
    return "kernel" if _KERNEL.fullmatch(entry.key) else "support"


__all__ = ["Entry", "clear", "entries", "folder", "prune", "stats"]
