"""Apply each function of vec.h and math.h to arrays, through C loops generated from the instruction list."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cuvil.dtypes import ALL, DType
from cuvil.ops.scalar import INSTRUCTIONS, Instruction

from .c_library import compile_c, machine

Array = NDArray[np.generic]

#: Dtypes that live in registers; the halves are float32 there.
REGISTER_DTYPES = tuple(d for d in ALL if not d.is_half)


def _targets() -> tuple[str, ...]:
    """Targets whose code in the headers differs: the machine's own, AVX2 with FMA, SSE4.2 without FMA."""
    if machine() != "x86_64":
        return ("native",)
    cpuinfo = Path("/proc/cpuinfo")
    features = cpuinfo.read_text().split() if cpuinfo.exists() else []
    return ("native", "x86-64-v3", "x86-64-v2") if {"avx2", "fma", "f16c"} <= set(features) else ("native",)


TARGETS = _targets()

_C_TYPES = {
    "f32": "float", "f64": "double", "bool": "uint8_t", "f16": "uint16_t", "bf16": "uint16_t",
    **{f"{sign}{bits}": f"{'u' * (sign == 'u')}int{bits}_t" for sign in "iu" for bits in (8, 16, 32, 64)},
}  # fmt: skip

_LOOP = """
void {symbol}({parameters}, int64_t n) {{
    int64_t i = 0;
    for (; i + CV_LANES <= n; i += CV_LANES) cv_store_{result}(out + i, {full});
    if (i < n) cv_store_part_{result}(out + i, {part}, n - i);
}}
"""


def c_type(short: str) -> str:
    """The C element type in memory of a dtype's short name."""
    return _C_TYPES[short]


def loop(symbol: str, function: str, operands: tuple[str, ...], result: str) -> str:
    """A C function `symbol` that applies `function` to arrays: full vectors, then one partial one."""
    names = [f"x{i}" for i in range(len(operands))]
    parameters = [f"const {c_type(d)} *{n}" for n, d in zip(names, operands, strict=True)] + [f"{c_type(result)} *out"]
    full = [f"cv_load_{d}({n} + i)" for n, d in zip(names, operands, strict=True)]
    part = [f"cv_load_part_{d}({n} + i, n - i)" for n, d in zip(names, operands, strict=True)]
    return _LOOP.format(
        symbol=symbol,
        parameters=", ".join(parameters),
        result=result,
        full=f"{function}({', '.join(full)})",
        part=f"{function}({', '.join(part)})",
    )


def _instruction_loop(instruction: Instruction, d: DType) -> str:
    name = f"{instruction.name}_{d.short}"
    result = "bool" if instruction.result == "bool" else d.short
    return loop(f"k_{name}", f"cv_{name}", (d.short,) * instruction.arity, result)


def instruction_source() -> str:
    """One loop for every (instruction, register dtype) of the scalar instruction set."""
    loops = [_instruction_loop(i, d) for i in INSTRUCTIONS.values() for d in i.dtypes if not d.is_half]
    return '#include "cuvil/math.h"\n' + "".join(loops)


def cast_source() -> str:
    """One loop for every pair of register dtypes, for select and for the conversions of the halves."""
    shorts = [d.short for d in REGISTER_DTYPES]
    loops = [loop(f"k_cast_{a}_{b}", f"cv_cast_{a}_{b}", (a,), b) for a in shorts for b in shorts]
    loops += [loop(f"k_select_{a}", f"cv_select_{a}", ("bool", a, a), a) for a in shorts]
    loops += [loop(f"k_round_{h}", f"cv_round_{h}", ("f32",), "f32") for h in ("f16", "bf16")]
    loops += [loop(f"k_cast_f64_{h}", f"cv_cast_f64_{h}r", ("f64",), h) for h in ("f16", "bf16")]
    loops += [loop(f"k_widen_{h}", "", (h,), "f32") + loop(f"k_narrow_{h}", "", ("f32",), h) for h in ("f16", "bf16")]
    return '#include "cuvil/vec.h"\n' + "".join(loops)


@dataclass(frozen=True)
class Kernels:
    """The loops of one C text, compiled for one target."""

    library: ctypes.CDLL

    def __call__(self, name: str, result: np.dtype[np.generic] | type, *operands: Array) -> Array:
        """Run the loop `k_<name>` over equally long arrays."""
        contiguous = [np.ascontiguousarray(x) for x in operands]
        out = np.empty(contiguous[0].shape, result)
        pointers = [ctypes.c_void_p(x.ctypes.data) for x in (*contiguous, out)]
        getattr(self.library, f"k_{name}")(*pointers, ctypes.c_int64(out.size))
        return out


def build(source: str, target: str) -> Kernels:
    """Compile C text for `target`, a value of gcc's -march."""
    return Kernels(compile_c(source, f"-march={target}", "-Wno-psabi"))


@cache
def instructions(target: str) -> Kernels:
    """Every instruction's loop, for `target`."""
    return build(instruction_source(), target)


@cache
def casts(target: str) -> Kernels:
    """Every cast's loop, for `target`."""
    return build(cast_source(), target)
