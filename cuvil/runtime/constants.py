"""Brings a program's constants where its code reads them: packed for their kernels, or as they are."""

from __future__ import annotations

import ctypes
import mmap
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from cuvil.ir.attributes import ConstantArray, is_immutable
from cuvil.ir.binary import HostCall, NativeProgram
from cuvil.ops.record import Array
from cuvil.runtime.arena import ALIGNMENT
from cuvil.runtime.library import ConstantLibrary, Context, RuntimeLibrary, load_library

_ALONE_BYTES = 1 << 20  # constants below this together are loaded by the calling thread


@dataclass
class LoadedConstants:
    """Addresses for the tables that a program's entry takes, 0 for a constant that only packings hold.

    ``memory`` keeps what the addresses point to; ``bytes`` are those that a call may read.
    """

    plain: list[int]
    packed: list[int]
    memory: list[Array]
    bytes: int


class _Packer:
    """The pack function of one kernel."""

    def __init__(self, program: NativeProgram, kernel: int) -> None:
        entry = program.kernels[kernel]
        assert not isinstance(entry, HostCall)  # it packs nothing
        path, name = entry
        library = load_library(path)
        size_of = getattr(library, f"{name}_packed_bytes")
        size_of.restype = ctypes.c_int64
        self.bytes = int(size_of())
        self.function = getattr(library, f"{name}_pack")


def load_constants(
    program: NativeProgram, runtime: RuntimeLibrary, tools: ConstantLibrary | None = None
) -> LoadedConstants:
    """Pack and copy the constants, in parallel, into one piece of memory.

    A constant is copied unless nobody can write to it (a memory-mapped file, an array that was made read-only).
    Constants that can be computed again are forgotten once they are packed, so at most one for each thread is held
    twice.

    ``tools`` copies transposed arrays faster than NumPy.

    Raises:
        MemoryError: no memory for the constants.
    """
    copy_to = np.copyto if tools is None else tools.copy
    kernels = {p.kernel: _Packer(program, p.kernel) for p in program.packings}
    plain: list[int] = [0] * len(program.constants)
    memory: list[Array] = []
    copied: list[int] = []
    read = 0
    for k in sorted(program.plain_constants):
        constant = program.constants[k]
        read += constant.aval.dtype.itemsize * _elements(constant)
        if constant.origin is None and _usable(constant.array):
            memory.append(constant.array)
            plain[k] = constant.array.ctypes.data
        else:
            copied.append(k)
    sizes = [_elements(program.constants[k]) * program.constants[k].aval.dtype.itemsize for k in copied]
    sizes += [kernels[p.kernel].bytes for p in program.packings]
    offsets = np.cumsum([0, *((n + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT for n in sizes)])
    slab = np.empty(int(offsets[-1]) + ALIGNMENT, np.uint8)
    slab = slab[-slab.ctypes.data % ALIGNMENT :]
    memory.append(slab)
    base = slab.ctypes.data

    def copy(k: int, at: int) -> None:
        constant = program.constants[k]
        dt = constant.aval.dtype.numpy
        room = slab[at : at + _elements(constant) * dt.itemsize].view(dt).reshape(constant.array.shape)
        copy_to(room, constant.array)
        release(constant)

    def pack(number: int, at: int) -> None:
        packing = program.packings[number]
        sources = [_dense(program.constants[c], copy_to) for c in packing.constants]
        pointers = (ctypes.c_void_p * len(sources))(*(a.ctypes.data for a in sources))
        context = _context(contexts, runtime)
        kernels[packing.kernel].function(context.pointer, ctypes.c_void_p(base + at), pointers)
        context.raise_error()
        for c in packing.constants:
            if c not in program.plain_constants:
                release(program.constants[c])

    def release(constant: ConstantArray) -> None:
        if constant.origin is None:
            let_pages_go(constant.array)
        constant.forget()

    contexts = threading.local()
    jobs: list[tuple[Callable[[int, int], None], int, int, int]] = []
    for n, k in enumerate(copied):
        plain[k] = base + int(offsets[n])
        jobs.append((copy, k, int(offsets[n]), sizes[n]))
    packed = [base + int(o) for o in offsets[len(copied) : -1]]
    for n in range(len(program.packings)):
        jobs.append((pack, n, int(offsets[len(copied) + n]), sizes[len(copied) + n]))
    _run_all(jobs, runtime.workers)
    if sum(sizes) >= _ALONE_BYTES:
        trim_heap()
    read += sum(sizes[len(copied) :])
    return LoadedConstants(plain, packed, memory, read)


def let_pages_go(array: Array) -> None:
    """Take the pages of an array that lies in a read-only file mapping out of this process's resident memory.

    They stay in the page cache, and come back when they are read again.
    """
    holder: Any = array
    while isinstance(holder, np.ndarray):
        holder = cast(Any, holder.base)
    mapping = holder.obj if isinstance(holder, memoryview) else holder
    if not isinstance(mapping, mmap.mmap) or not is_immutable(array) or not hasattr(mapping, "madvise"):
        return
    low, high = np.lib.array_utils.byte_bounds(array)
    start = np.frombuffer(mapping, np.uint8, 1).ctypes.data
    # Whole pages only: the ends may belong to other arrays, and page by page is how the kernel counts.
    first = -(-(low - start) // mmap.PAGESIZE) * mmap.PAGESIZE
    last = (high - start) // mmap.PAGESIZE * mmap.PAGESIZE
    if 0 <= first < last:
        mapping.madvise(mmap.MADV_DONTNEED, first, last - first)


def trim_heap() -> None:
    """Give back what the C library keeps of freed memory; after the work of compiling and loading, that is much."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform.startswith("linux") else None
    if trim is not None:
        trim(ctypes.c_size_t(0))


def _run_all(jobs: Sequence[tuple[Callable[[int, int], None], int, int, int]], workers: int) -> None:
    if workers == 1 or len(jobs) < 2 or sum(size for *_, size in jobs) < _ALONE_BYTES:
        for job, number, at, _ in jobs:
            job(number, at)
        return
    ordered = sorted(jobs, key=lambda job: -job[3])  # the largest first, so that the threads end together
    with ThreadPoolExecutor(min(workers, len(jobs)), thread_name_prefix="cuvil-load") as pool:
        for future in [pool.submit(job, number, at) for job, number, at, _ in ordered]:
            future.result()


def _context(contexts: Any, runtime: RuntimeLibrary) -> Context:
    found: Context | None = getattr(contexts, "context", None)
    if found is None:
        found = contexts.context = runtime.context()
    return found


def _elements(constant: ConstantArray) -> int:
    count = 1
    for d in constant.aval.shape:
        assert isinstance(d, int)
        count *= d
    return count


def _usable(array: Array) -> bool:
    return bool(array.flags.c_contiguous and array.flags.aligned) and is_immutable(array)


def _dense(constant: ConstantArray, copy_to: Callable[[Array, Array], None]) -> Array:
    array = constant.array
    if array.flags.c_contiguous and array.flags.aligned:
        return array
    dense = np.empty(array.shape, array.dtype)
    copy_to(dense, array)
    return dense
