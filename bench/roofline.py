"""Measures the machine's ceilings with small C loops: float32 multiply-adds, AMX bfloat16, reads."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np

from cuvil.backends.c.toolchain import compile_shared

_SMALLEST = 1 << 18
#: Above every last-level cache's share that two cores see; larger buffers read no slower.
_LARGEST = 1 << 28


class Roofline:
    """The compiled loops.

    >>> rates = Roofline(threads=1).measure(1 << 20, 0.001)
    >>> rates["flops_per_second"] > 0 and rates["bytes_per_second"] > 0
    True
    """

    def __init__(self, threads: int) -> None:
        source = Path(__file__).with_suffix(".c").read_text()
        library = ctypes.CDLL(str(compile_shared({"roofline.c": source}, name="roofline", libraries=("-lpthread",))))
        self.threads = threads
        self._fma, self._read, self._amx = library.bench_fma, library.bench_read, library.bench_amx
        for function in (self._fma, self._read, self._amx):
            function.restype = ctypes.c_double
        self._memory: Any = np.empty(0, np.uint8)

    def measure(self, size: int, seconds: float) -> dict[str, float]:
        """Rates of all threads together; reads go over a buffer of ``size`` bytes, so that a workload that lives in a
        cache is held against that cache."""
        size = min(max(size, _SMALLEST), _LARGEST) // 512 * 512
        if self._memory.nbytes != size + 64:
            self._memory = np.zeros(size + 64, np.uint8)
            self._memory[::512] = 1  # pages of their own, not the shared page of zeros
        address = self._memory.ctypes.data + (-self._memory.ctypes.data % 64)
        span = ctypes.c_double(seconds)
        return {
            "flops_per_second": self._fma(self.threads, span),
            "bytes_per_second": self._read(self.threads, span, ctypes.c_void_p(address), ctypes.c_int64(size)),
            "amx_flops_per_second": self._amx(self.threads, span),
        }
