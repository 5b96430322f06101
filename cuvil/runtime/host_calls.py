"""Entries of the kernel table that run an op's NumPy reference: what has no compiled kernel, such as LAPACK."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from cuvil.ir.binary import HostCall
from cuvil.ops.builder import concrete
from cuvil.ops.record import Array
from cuvil.ops.registry import get
from cuvil.runtime.library import RuntimeLibrary
from cuvil.support.errors import BackendError
from cuvil.symbolic import evaluate

#: (context, buffers, dims). ctypes takes the GIL around the call, whether or not the caller holds it.
KERNEL = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)


def host_function(call: HostCall, runtime: RuntimeLibrary) -> Any:
    """A C function with a kernel's signature that runs a host call; the caller keeps it alive.

    It must be called outside of parallel loops, as all kernels are. Errors of the op are kept and raised when the
    native call is over; results are unspecified then.
    """
    record = get(call.op)
    params = record.fill_params(dict(zip(call.names, call.values, strict=True)))
    reference, several = record.reference, len(call.results) > 1
    table_type = ctypes.c_void_p * len(call.arguments)
    # Without symbols everything is known before the first call.
    fixed = None if call.dims else (_layouts(call, {}), {k: concrete(v, {}) for k, v in params.items()})

    def run(context: int, buffers: int, dims: int | None) -> None:
        try:
            if fixed is None:
                sizes = (ctypes.c_int64 * len(call.dims)).from_address(dims or 0)
                env = dict(zip(call.dims, map(int, sizes), strict=True))
                layouts, given = _layouts(call, env), {k: concrete(v, env) for k, v in params.items()}
            else:
                layouts, given = fixed
            table = table_type.from_address(buffers)
            operands = [layouts[k].array(table[k]) for k in call.operands]
            for operand in operands:
                operand.flags.writeable = False
            out = reference(*operands, **given)
            for number, value in zip(call.results, out if several else (out,), strict=True):
                if number is not None:
                    target, made = layouts[number].array(table[number]), np.asarray(value)
                    if target.shape != made.shape or target.dtype != made.dtype:
                        raise BackendError(
                            f"{call.op} gave {made.dtype}{list(made.shape)} in a host call; its rules say"
                            f" {target.dtype}{list(target.shape)}"
                        )
                    target[...] = made
        except BaseException as error:  # noqa: BLE001 - C code is above, and nothing may pass through it
            runtime.fail(context, error)

    return KERNEL(run)


@dataclass(frozen=True, slots=True)
class _Layout:
    """What lies at an address: shape, dtype and the ctypes type of as many bytes."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    memory: Any

    def array(self, address: int | None) -> Array:
        """The array at an address; one without elements has none."""
        if self.memory is None:
            return np.empty(self.shape, self.dtype)
        return np.ndarray(self.shape, self.dtype, self.memory.from_address(address))


def _layouts(call: HostCall, env: Mapping[str, int]) -> list[_Layout]:
    out: list[_Layout] = []
    for aval in call.arguments:
        shape = tuple(evaluate(d, env) for d in aval.shape)
        size = math.prod(shape) * aval.dtype.itemsize
        out.append(_Layout(shape, aval.dtype.numpy, ctypes.c_char * size if size else None))
    return out
