"""A digest of the package's own source: what was compiled by other source is not used."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path

from cuvil.support.cache import content_key

_SUFFIXES = (".py", ".c", ".h")


@lru_cache(maxsize=1)
def source_digest() -> str:
    """Digest of every source file below the package, by relative path and content (about 3 ms, once per process)."""
    root = str(Path(__file__).parents[1])
    parts: list[str | bytes] = []
    for folder, folders, files in os.walk(root):
        folders.sort()
        for name in sorted(files):
            if name.endswith(_SUFFIXES):
                path = os.path.join(folder, name)
                with open(path, "rb") as file:
                    parts += [path.removeprefix(root), file.read()]
    return content_key(*parts)
