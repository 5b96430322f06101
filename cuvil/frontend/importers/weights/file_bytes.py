"""The bytes of a weights file, memory-mapped read-only or read into memory."""

from __future__ import annotations

import mmap as memory_map
import os
import stat
from pathlib import Path

import numpy as np

from cuvil.support.errors import WeightsError


def file_bytes(path: Path, *, mmap: bool) -> memoryview:
    """All bytes of a regular file.

    Mapped bytes are read-only and keep the mapping alive; read bytes are writable and owned.

    Raises:
        WeightsError: the path is not a readable, regular, non-empty file.
    """
    try:
        # A FIFO would block in open(), so what the path names is looked at first.
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode):
            raise WeightsError(f"{path} is not a regular file; give a weights file, an index or their folder")
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size == 0:
                raise WeightsError(f"{path} is empty; expected a weights file")
            if mmap:
                return memoryview(memory_map.mmap(file.fileno(), size, access=memory_map.ACCESS_READ))
            content = np.empty(size, np.uint8).data
            if file.readinto(content) != size:
                raise WeightsError(f"{path} became shorter than {size} bytes while it was read; load it again")
            return content
    except OSError as error:
        raise WeightsError(f"cannot read {path}: {error.strerror or error}") from error
