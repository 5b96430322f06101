"""The native runtime library through ctypes: thread pool, contexts and their error flag."""

from __future__ import annotations

import ctypes
import hashlib
import threading
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from cuvil.ir.binary import Site
from cuvil.ops.record import Array
from cuvil.support import config
from cuvil.support.errors import ArgumentError, BackendError, CheckFailed, IndexOutOfBoundsError

_EINDEX, _ENOMEM, _EPOWER, _ECHECK, EHOST = 1, 2, 4, 5, 6
_LOCATED = frozenset({_EINDEX, _EPOWER})
_DIGEST_BLOCK = 1024  # CV_DIGEST_BLOCK
_DIGEST_KEY = 1024 + 3 * 64  # CV_DIGEST_KEY
DIGEST_KEY_BYTES = _DIGEST_KEY + 64
_SMALL_BYTES = 8192  # hashed without cv_digest

#: The error that the last host call of a thread ended in, until it is raised.
_HOST_ERRORS = threading.local()


@cache
def load_library(path: Path) -> Any:
    """A shared library, loaded once per process.

    Raises:
        BackendError: the file cannot be loaded on this machine.
    """
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise BackendError(f"cannot load the compiled code {path}: {error}") from error


def raise_native_error(
    code: int, a: int, b: int, site: int = 0, *, messages: Sequence[str] = (), sites: Sequence[Site] = ()
) -> NoReturn:
    """Raise the error that a kernel recorded: its code and two details, see ``cv_fail``, and where it was.

    ``messages`` are those of the program's assertions, ``sites`` its calls that may fail; ``site`` numbers the last one
    that was begun, from 0.
    """
    op, where = "", ""
    if code in _LOCATED and 0 <= site < len(sites):
        op, where = f"{sites[site].op}: ", f" (at {sites[site].line})"
    if code == _ECHECK and 0 <= a < len(messages):
        raise CheckFailed(messages[a])
    if code == _EINDEX:
        raise IndexOutOfBoundsError(
            f"{op}index {a} is out of bounds for an axis of size {b}{where}; pass mode='clip', 'wrap' or 'fill' to"
            " accept it"
        )
    if code == EHOST:
        raise _HOST_ERRORS.__dict__.pop("error", None) or BackendError("a host call failed on another thread")
    if code == _ENOMEM:
        raise MemoryError(f"no memory for {a} bytes of scratch space")
    if code == _EPOWER:
        raise ArgumentError(
            f"{op}integers to negative integer powers are not allowed, got the exponent {a}{where}; convert the base or"
            " the exponent to a float dtype"
        )
    raise BackendError(f"a kernel reported error {code} ({a}, {b})")


def keep_host_error(error: BaseException) -> None:
    """Keep the error of a host call for :func:`raise_native_error`, which runs in the same thread."""
    _HOST_ERRORS.error = error


#: Bits of the CPU features that kernels are chosen by when they are loaded (see runtime.h).
CPU_FEATURES = {"avx512_vnni": 1 << 2, "avx512_bf16": 1 << 3, "amx_int8": 1 << 6, "amx_bf16": 1 << 7}
assert tuple(CPU_FEATURES) == config.CPU_FEATURES


class Context:
    """A runtime context: scratch memory and the error flag of one call at a time."""

    def __init__(self, runtime: RuntimeLibrary) -> None:
        self._library = runtime.library
        self._runtime = runtime
        address = runtime.library.cv_ctx_create(runtime.pool)
        if not address:
            raise MemoryError("no memory for a runtime context")
        self.pointer = ctypes.c_void_p(address)
        self._details = (ctypes.c_int64 * 3)()

    def raise_error(self, messages: Sequence[str] = (), sites: Sequence[Site] = ()) -> None:
        """Raise what the last calls recorded, and forget it."""
        code = self._library.cv_ctx_error(self.pointer, self._details)
        if code == 0:
            return
        self._library.cv_ctx_reset(self.pointer)
        raise_native_error(code, *map(int, self._details), messages=messages, sites=sites)

    def __del__(self) -> None:
        pointer, self.pointer = getattr(self, "pointer", None), None
        if pointer:
            self._library.cv_ctx_destroy(pointer)


class RuntimeLibrary:
    """The loaded runtime and its thread pool."""

    def __init__(self, path: Path, workers: int, hidden_features: frozenset[str] = frozenset()) -> None:
        lib = load_library(path)
        lib.cv_pool_create.restype = ctypes.c_void_p
        lib.cv_ctx_create.restype = ctypes.c_void_p
        lib.cv_ctx_create.argtypes = [ctypes.c_void_p]
        lib.cv_ctx_error.restype = ctypes.c_int
        lib.cv_ctx_fail.restype = None
        lib.cv_ctx_fail.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
        lib.cv_cpu_features.restype = ctypes.c_uint64
        lib.cv_hide_features.argtypes = [ctypes.c_uint64]
        self._hidden = sum(CPU_FEATURES[name] for name in hidden_features)
        lib.cv_hide_features(self._hidden)
        self.library = lib
        self.workers = workers
        address = lib.cv_pool_create(ctypes.c_int(workers))
        if not address:
            raise MemoryError(f"cannot create a pool of {workers} threads")
        self.pool = ctypes.c_void_p(address)

    @property
    def multiplies_bf16(self) -> bool:
        """Whether there are kernels for bfloat16 that the processor can run."""
        wanted = CPU_FEATURES["amx_bf16"] | CPU_FEATURES["avx512_bf16"]
        return bool(self.cpu_features() & ~self._hidden & wanted)

    def context(self) -> Context:
        """A new context."""
        return Context(self)

    def fail(self, context: int, error: BaseException) -> None:
        """Record in a context that a host call failed; the first error of a native call wins."""
        keep_host_error(error)
        self.library.cv_ctx_fail(context, EHOST, 0, 0)

    def cpu_features(self) -> int:
        """Bit set of what this CPU has (see runtime.h)."""
        return int(self.library.cv_cpu_features())


class ConstantLibrary:
    """Hashes and copies of constants, see ``constants.c``."""

    def __init__(self, path: Path) -> None:
        self.library = load_library(path)

    def digest(self, array: Array, key: bytes) -> bytes:
        """32 bytes for dtype, layout and elements of an array, under a secret key of ``DIGEST_KEY_BYTES``.

        Different arrays have the same digest with a probability below 2^-96 for whoever does not know the key. A
        transposed array and its copy in C order may have different ones.
        """
        assert len(key) == DIGEST_KEY_BYTES
        turned = array.ndim > 1 and not array.flags.c_contiguous and array.flags.f_contiguous
        dense = array.T if turned else np.ascontiguousarray(array)
        head = f"{array.dtype.str}{array.dtype.name}{array.shape}{turned}".encode()
        result = hashlib.blake2b(head, digest_size=32, key=key[_DIGEST_KEY:])
        if dense.nbytes <= _SMALL_BYTES:
            result.update(dense.tobytes())
            return result.digest()
        sums = np.empty(-(-dense.nbytes // _DIGEST_BLOCK) * 4, np.uint64)
        self.library.cv_digest(
            ctypes.c_void_p(dense.ctypes.data), ctypes.c_int64(dense.nbytes), key, ctypes.c_void_p(sums.ctypes.data)
        )
        result.update(sums.data)
        return result.digest()

    def copy(self, to: Array, array: Array) -> None:
        """Copy the elements into a C-contiguous array of the same shape and dtype; transposed ones block by block."""
        if array.ndim == 2 and array.flags.f_contiguous and array.size and to.flags.c_contiguous:
            columns, rows = array.shape  # of array.T, which is in C order
            known = self.library.cv_transpose(
                ctypes.c_void_p(to.ctypes.data),
                ctypes.c_void_p(array.ctypes.data),
                ctypes.c_int64(rows),
                ctypes.c_int64(columns),
                ctypes.c_int(array.dtype.itemsize),
            )
            if known == 0:
                return
        np.copyto(to, array)
