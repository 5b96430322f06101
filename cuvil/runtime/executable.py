"""Loads a compiled program and calls it: arrays in, arrays out, one native call."""

from __future__ import annotations

import ctypes
import math
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np

from cuvil.ir.binary import HostCall, NativeProgram, Slot, kernel_name
from cuvil.ops.record import Array
from cuvil.runtime.arena import ALIGNMENT, place_slots
from cuvil.runtime.constants import load_constants
from cuvil.runtime.dispatch import DispatchModule, DispatchProgram, NativePlan
from cuvil.runtime.host_calls import KERNEL, host_function
from cuvil.runtime.library import ConstantLibrary, Context, RuntimeLibrary, load_library, raise_native_error
from cuvil.symbolic import evaluate

_PLANS = 256  # shapes whose arena layout and output shapes are remembered
# To let go of the GIL and take it again costs about 0.1 µs alone, and a wait for the other thread's turn (5 ms where it
# computes) when there is one. Calls that touch less than this, and end in about a microsecond, keep it.
_QUICK_BYTES = 16 << 10
_BYTES_PER_CALL = 256  # what the call of a kernel costs, as bytes


class _Plan:
    """What one set of symbol values fixes: arena layout and output shapes."""

    __slots__ = ("native", "offsets", "outputs", "quick", "symbols", "total")

    def __init__(
        self, program: NativeProgram, slots: Sequence[Slot], env: Mapping[str, int], constant_bytes: int
    ) -> None:
        self.symbols = (ctypes.c_int64 * max(1, len(program.symbols)))(*(env[s] for s in program.symbols))
        self.offsets, self.total = place_slots([(evaluate(s.size, env), s.first, s.last) for s in slots])
        self.outputs = [tuple(evaluate(d, env) for d in a.shape) for a in program.outputs]
        touched = sum(
            math.prod(evaluate(d, env) for d in a.shape) * a.dtype.itemsize for a in (*program.inputs, *program.outputs)
        )
        touched += self.total + constant_bytes
        self.quick = not program.loops and touched + _BYTES_PER_CALL * len(program.calls) < _QUICK_BYTES
        self.native: NativePlan | None = None


class _Workspace:
    """A runtime context and an arena, used by one call at a time."""

    def __init__(self, runtime: RuntimeLibrary) -> None:
        self.context: Context = runtime.context()
        self.arena: Array = np.empty(0, np.uint8)
        self.base = 0

    def reserve(self, size: int) -> int:
        """Address of at least ``size`` aligned bytes."""
        if self.arena.nbytes < size + ALIGNMENT or self.base == 0:
            self.arena = np.empty(size + ALIGNMENT, np.uint8)
            address = self.arena.ctypes.data
            self.base = (address + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT
        return self.base


def _behaved(array: Array) -> Array:
    """The array itself, or a copy, so that its elements lie one after the other at aligned addresses."""
    flags = array.flags
    return array if flags.c_contiguous and flags.aligned else np.array(array, order="C", copy=True)


def _address(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


class Executable:
    """A compiled program, ready to call from any thread."""

    def __init__(
        self,
        program: NativeProgram,
        runtime: RuntimeLibrary,
        dispatch: DispatchModule | None = None,
        tools: ConstantLibrary | None = None,
    ) -> None:
        """Load the program; its calls go through ``dispatch``, or through ctypes where that is None.

        ``tools`` makes loading constants faster.
        """
        self.program = replace(program, constants=[])  # loaded below; nothing here keeps them a second time
        self._runtime = runtime
        self._main = getattr(load_library(program.library), program.entry)
        self._main.restype = ctypes.c_int32
        self._host_calls: list[Any] = []  # alive as long as the table
        addresses: list[int] = []
        for kernel in program.kernels:
            if isinstance(kernel, HostCall):
                function = host_function(kernel, runtime)
                self._host_calls.append(function)
            else:
                path, name = kernel
                function = getattr(load_library(path), name)
            addresses.append(_address(function))
        self._kernels = (ctypes.c_void_p * max(1, len(addresses)))(*addresses)
        loaded = load_constants(program, runtime, tools)
        self._memory = loaded.memory
        self._constant_bytes = loaded.bytes
        self._konst = (ctypes.c_void_p * max(1, len(loaded.plain)))(*loaded.plain)
        self._packed = (ctypes.c_void_p * max(1, len(loaded.packed)))(*loaded.packed)
        self._plans: OrderedDict[tuple[int, ...], _Plan] = OrderedDict()
        self._spare: list[_Workspace] = []
        self._lock = threading.Lock()
        self._dtypes = [a.dtype.numpy for a in program.inputs]
        self.dispatch = dispatch
        self.native = None if dispatch is None else self._native_program(dispatch)

    def _native_program(self, dispatch: DispatchModule) -> DispatchProgram:
        library = self._runtime.library
        names = ("cv_ctx_create", "cv_ctx_destroy", "cv_ctx_error", "cv_ctx_reset")
        return dispatch.Program(
            _address(self._main),
            ctypes.addressof(self._kernels),
            ctypes.addressof(self._konst),
            ctypes.addressof(self._packed),
            (self._runtime.pool.value, *(_address(getattr(library, n)) for n in names)),
            (len(self.program.inputs), len(self.program.slots), len(self.program.symbols)),
            tuple((a.dtype.numpy, len(a.shape)) for a in self.program.outputs),
            partial(raise_native_error, messages=self.program.messages, sites=self.program.sites),
            (self._runtime, self._kernels, self._host_calls, self._konst, self._packed, self._memory),
        )

    def plan(self, env: Mapping[str, int]) -> _Plan:
        """The arena layout and output shapes for symbol values, remembered."""
        key = tuple(env[s] for s in self.program.symbols)
        found = self._plans.get(key)
        if found is None:
            found = _Plan(self.program, self.program.slots, env, self._constant_bytes)
            if self.native is not None:
                extents = [n for shape in found.outputs for n in shape]
                found.native = self.native.plan(key, found.offsets, found.total, extents, not found.quick)
            with self._lock:
                self._plans[key] = found
                if len(self._plans) > _PLANS:
                    self._plans.popitem(last=False)
        return found

    def arena_bytes(self, env: Mapping[str, int]) -> int:
        """Size of the arena for symbol values."""
        return self.plan(env).total

    def run(self, inputs: Sequence[Array], env: Mapping[str, int]) -> list[Array]:
        """Call the program.

        Inputs have the program's dtypes and the shapes that ``env`` gives; they need not be contiguous.

        Raises:
            IndexOutOfBoundsError: an index array pointed outside of its axis.
            MemoryError: no memory for a temporary.
        """
        if self.native is not None:
            return self.native.run(inputs, self.native_plan(env))
        return self._call(inputs, env, self._kernels)

    def native_plan(self, env: Mapping[str, int]) -> NativePlan:
        """The plan for ``native``, which must not be None."""
        plan = self.plan(env).native
        assert plan is not None
        return plan

    def time_calls(self, inputs: Sequence[Array], env: Mapping[str, int]) -> list[tuple[str, float]]:
        """Call the program and return the name and seconds of each kernel call, in order.

        The host program runs on a table of kernels that go through Python, so an ordinary call pays nothing for this;
        each figure holds about a microsecond of it. Raises what :meth:`run` raises.
        """
        events: list[tuple[str, float]] = []

        def timed(address: int, name: str) -> Any:
            kernel = KERNEL(address)

            def call(ctx: int | None, buffers: int | None, dims: int | None) -> None:
                start = perf_counter()
                kernel(ctx, buffers, dims)
                events.append((name, perf_counter() - start))

            return KERNEL(call)

        names = [kernel_name(k) for k in self.program.kernels]
        hooks = [timed(address, name) for address, name in zip(self._kernels, names, strict=False)]
        table = (ctypes.c_void_p * max(1, len(hooks)))(*(ctypes.cast(h, ctypes.c_void_p).value for h in hooks))
        self._call(inputs, env, table)
        return events

    def _call(self, inputs: Sequence[Array], env: Mapping[str, int], kernels: Any) -> list[Array]:
        plan = self.plan(env)
        arrays = [_behaved(a) for a in inputs]
        outputs = [np.empty(s, a.dtype.numpy) for s, a in zip(plan.outputs, self.program.outputs, strict=True)]
        try:
            workspace = self._spare.pop()
        except IndexError:
            workspace = _Workspace(self._runtime)
        try:
            base = workspace.reserve(plan.total)
            slots = (ctypes.c_void_p * max(1, len(plan.offsets)))(*(base + o for o in plan.offsets))
            ins = (ctypes.c_void_p * max(1, len(arrays)))(*(a.ctypes.data for a in arrays))
            outs = (ctypes.c_void_p * max(1, len(outputs)))(*(a.ctypes.data for a in outputs))
            self._main(workspace.context.pointer, kernels, ins, outs, self._konst, self._packed, slots, plan.symbols)
            workspace.context.raise_error(self.program.messages, self.program.sites)
        finally:
            self._spare.append(workspace)
        return outputs
