"""Entries of the kernel table that run an op's NumPy reference: what has no compiled kernel, such as LAPACK."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from cuvil.ir.binary import HostCall
from cuvil.ops.builder import concrete
from cuvil.ops.record import Array, Aval
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

    def run(context: int, buffers: int, dims: int | None) -> None:
        try:
            env: dict[str, int] = {}
            if call.dims:
                sizes = (ctypes.c_int64 * len(call.dims)).from_address(dims or 0)
                env = dict(zip(call.dims, map(int, sizes), strict=True))
            table = (ctypes.c_void_p * len(call.arguments)).from_address(buffers)

            def array(number: int) -> Array:
                return _array(table[number] or 0, call.arguments[number], env)

            operands = [array(k) for k in call.operands]
            for operand in operands:
                operand.flags.writeable = False
            out = record.reference(*operands, **{k: concrete(v, env) for k, v in params.items()})
            for number, value in zip(call.results, out if len(call.results) > 1 else (out,), strict=True):
                if number is not None:
                    target, made = array(number), np.asarray(value)
                    if target.shape != made.shape or target.dtype != made.dtype:
                        raise BackendError(
                            f"{call.op} gave {made.dtype}{list(made.shape)} in a host call; its rules say"
                            f" {target.dtype}{list(target.shape)}"
                        )
                    np.copyto(target, made)
        except BaseException as error:  # noqa: BLE001 - C code is above, and nothing may pass through it
            runtime.fail(context, error)

    return KERNEL(run)


def _array(address: int, aval: Aval, env: Mapping[str, int]) -> Array:
    """The array that lies at an address."""
    shape = tuple(evaluate(d, env) for d in aval.shape)
    count = math.prod(shape)
    if count == 0:
        return np.empty(shape, aval.dtype.numpy)
    memory: Any = (ctypes.c_char * (count * aval.dtype.itemsize)).from_address(address)
    return np.frombuffer(memory, aval.dtype.numpy).reshape(shape)
