"""Brings a program's constants where its code reads them: packed for their kernels, or as they are."""

from __future__ import annotations

import ctypes
import mmap
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from cuvil.ir.attributes import ConstantArray, is_immutable
from cuvil.ir.binary import HostCall, NativeProgram
from cuvil.ops.record import Array
from cuvil.runtime.arena import ALIGNMENT
from cuvil.runtime.library import ConstantLibrary, RuntimeLibrary, load_library

_TRIMMED_BYTES = 1 << 20  # constants of this size leave free memory behind that is worth giving back


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
    """Pack and copy the constants, one after the other, into one piece of memory.

    A constant is copied unless nobody can write to it (a memory-mapped file, an array that was made read-only).
    Constants that can be computed again are forgotten once they are packed, so at most one is held twice. Packing runs
    on the pool where a kernel's pack function does; more threads around it only fight over the heap.

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
        kernels[packing.kernel].function(context.pointer, ctypes.c_void_p(base + at), pointers)
        context.raise_error()
        for c in packing.constants:
            if c not in program.plain_constants:
                release(program.constants[c])

    def release(constant: ConstantArray) -> None:
        if constant.origin is None:
            let_pages_go(constant.array)
        constant.forget()

    context = runtime.context()
    jobs: list[tuple[Callable[[int, int], None], int, int]] = []
    for n, k in enumerate(copied):
        plain[k] = base + int(offsets[n])
        jobs.append((copy, k, int(offsets[n])))
    packed = [base + int(o) for o in offsets[len(copied) : -1]]
    for n in range(len(program.packings)):
        jobs.append((pack, n, int(offsets[len(copied) + n])))
    for job, number, at in jobs:
        job(number, at)
    if sum(sizes) >= _TRIMMED_BYTES:
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
