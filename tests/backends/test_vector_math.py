"""vec.h and math.h: exact functions against NumPy, the others within their ulp bounds of mpmath."""

from __future__ import annotations

import ctypes
import itertools
import math
import mmap
import shutil
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from cuvil.dtypes import INTEGERS, DType, bool_, dtype, float16, float32, float64

from . import vector_math_accuracy as accuracy
from .vector_kernels import REGISTER_DTYPES, TARGETS, Array, build, c_type, casts, instructions

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="no C compiler")

FLOATS = (float32, float64)
INTS = [pytest.param(d, id=d.short) for d in INTEGERS]
REALS = [pytest.param(d, id=d.short) for d in FLOATS]
Function = Callable[..., Any]


@pytest.fixture(params=TARGETS)
def target(request: pytest.FixtureRequest) -> str:
    """Each -march whose code in the headers differs and that this machine runs."""
    return str(request.param)


def same(got: Array, expected: Array) -> None:
    """Equal bit for bit but for the payload of NaN."""
    assert got.dtype == expected.dtype
    equal = got == expected
    if got.dtype.kind == "f":
        equal = (equal & (np.signbit(got) == np.signbit(expected))) | (np.isnan(got) & np.isnan(expected))
    if not np.all(equal):
        at = int(np.argmin(equal))
        pytest.fail(f"element {at}: got {got[at]!r}, expected {expected[at]!r}; {np.sum(~equal)} differ")


def specials(d: DType) -> Array:
    """Values where a function is likely to go wrong."""
    if d is bool_:
        return np.array([False, True])
    if d.is_float:
        info = np.finfo(d.numpy)
        values = [0.0, -0.0, np.inf, -np.inf, np.nan, 1, -1, 0.5, -0.5, 1.5, 2.5, -2.5, 3, -3, 1e-3, 7.25, 100.7]
        values += [float(v) for v in (info.max, info.min, info.tiny, -info.tiny, info.smallest_subnormal)]
        values += [2.0**23 + 1, 2.0**22 + 0.5, 2.0**31, -(2.0**31), 2.0**32, 2.0**63, -(2.0**63), 2.0**64]
        values += [3e9, 255.7, -129]
        values += [2.0**52 + 1, 2.0**51 + 0.5, 0.49999997, 0.49999999999999994, 2.0**31 - 1, -(2.0**31) - 1]
        with np.errstate(over="ignore"):
            return np.array(values, np.float64).astype(d.numpy)
    info_int = np.iinfo(d.numpy)
    near = range(max(-3, info_int.min), 10)
    edge = [info_int.min, info_int.min + 1, info_int.max - 1, info_int.max, d.bits - 1, d.bits, d.bits + 1]
    return np.array([*near, *edge], d.numpy)


def every_pair(d: DType) -> tuple[Array, Array]:
    """The special values with each other."""
    a, b = np.meshgrid(specials(d), specials(d))
    return a.ravel(), b.ravel()


def random_values(d: DType, count: int, seed: int) -> Array:
    """Random bit patterns."""
    rng = np.random.default_rng(seed)
    if d is bool_:
        return rng.integers(0, 2, count).astype(bool)
    return rng.integers(0, 2**d.bits, count, dtype=np.uint64).astype(f"u{d.itemsize}").view(d.numpy)


def samples(d: DType) -> Array:
    """Special values, then random bit patterns, a length that leaves a tail."""
    return np.concatenate([specials(d), random_values(d, 1003, 1)])


def pairs(d: DType) -> tuple[Array, Array]:
    """Pairs of special values, then random ones."""
    a, b = every_pair(d)
    return np.concatenate([a, random_values(d, 1003, 2)]), np.concatenate([b, random_values(d, 1003, 3)])


def int_power(a: Array, b: Array) -> Array:
    modulus = 2 ** (8 * a.dtype.itemsize)
    values = [pow(int(x), int(y), modulus) if y >= 0 else 0 for x, y in zip(a, b, strict=True)]
    return np.array(values, np.uint64).astype(a.dtype)


INT_BINARY: dict[str, Function] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "floordiv": np.floor_divide, "rem": np.remainder,
    "fmod": np.fmod, "pow": int_power, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and,
    "or": np.bitwise_or, "xor": np.bitwise_xor, "shl": np.left_shift, "shr": np.right_shift,
}  # fmt: skip
INT_UNARY: dict[str, Function] = {"neg": np.negative, "abs": np.absolute, "not": np.invert}
COMPARE: dict[str, Function] = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
}  # fmt: skip
FLOAT_BINARY: dict[str, Function] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "copysign": np.copysign,
    "nextafter": np.nextafter, "fmod": np.fmod, "rem": np.remainder, "floordiv": np.floor_divide,
}  # fmt: skip
FLOAT_UNARY: dict[str, Function] = {
    "neg": np.negative, "abs": np.absolute, "sqrt": np.sqrt,
    "ceil": np.ceil, "floor": np.floor, "trunc": np.trunc, "rint": np.rint,
}  # fmt: skip
PREDICATES: dict[str, Function] = {"isnan": np.isnan, "isinf": np.isinf, "signbit": np.signbit}


@pytest.mark.parametrize("d", INTS)
def test_integer_arithmetic(target: str, d: DType) -> None:
    k, (a, b) = instructions(target), pairs(d)
    with np.errstate(all="ignore"):
        for name, function in INT_BINARY.items():
            same(k(f"{name}_{d.short}", d.numpy, a, b), function(a, b))
        for name, function in INT_UNARY.items():
            same(k(f"{name}_{d.short}", d.numpy, a), function(a))


def test_division_by_zero_and_overflow_of_integers() -> None:
    k = instructions(TARGETS[0])
    a, b = np.array([5, -5, -(2**31), -(2**31)], np.int32), np.array([0, 0, -1, 0], np.int32)
    assert k("floordiv_i32", np.int32, a, b).tolist() == [0, 0, -(2**31), 0]
    assert k("rem_i32", np.int32, a, b).tolist() == [0, 0, 0, 0]
    assert k("fmod_i32", np.int32, a, b).tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize("d", REALS)
def test_exact_float_functions(target: str, d: DType) -> None:
    k, (a, b) = instructions(target), pairs(d)
    with np.errstate(all="ignore"):
        for name, function in FLOAT_BINARY.items():
            same(k(f"{name}_{d.short}", d.numpy, a, b), function(a, b))
        for name, function in FLOAT_UNARY.items():
            same(k(f"{name}_{d.short}", d.numpy, a), function(a))
        for name, function in PREDICATES.items():
            same(k(f"{name}_{d.short}", np.bool_, a), function(a))
        for name, function in {"min": np.minimum, "max": np.maximum}.items():
            # Which zero wins between 0.0 and -0.0 is free: adding 0.0 makes both 0.0.
            same(k(f"{name}_{d.short}", d.numpy, a, b) + d.numpy.type(0), function(a, b) + d.numpy.type(0))


@pytest.mark.parametrize("d", [pytest.param(d, id=d.short) for d in REGISTER_DTYPES])
def test_comparisons_and_select(target: str, d: DType) -> None:
    a, b = pairs(d)
    for name, function in COMPARE.items():
        same(instructions(target)(f"{name}_{d.short}", np.bool_, a, b), function(a, b))
    c = random_values(bool_, a.size, 4)
    same(casts(target)(f"select_{d.short}", d.numpy, c, a, b), np.where(c, a, b))


def test_logic_of_bools(target: str) -> None:
    k, (a, b) = instructions(target), pairs(bool_)
    for name in ("and", "or", "xor"):
        same(k(f"{name}_bool", np.bool_, a, b), INT_BINARY[name](a, b))
    same(k("not_bool", np.bool_, a), ~a)


@settings(max_examples=40, deadline=None, derandomize=True, database=None)
@given(data=st.data())
@pytest.mark.parametrize("d", [pytest.param(d, id=d.short) for d in (*INTEGERS, float32, float64)])
def test_division_of_generated_values(d: DType, data: st.DataObject) -> None:
    arrays = hnp.arrays(d.numpy, data.draw(st.integers(1, 40)))
    a = data.draw(arrays)
    b = data.draw(hnp.arrays(d.numpy, a.shape))
    k = instructions(TARGETS[0])
    with np.errstate(all="ignore"):
        for name, function in {"floordiv": np.floor_divide, "rem": np.remainder, "fmod": np.fmod}.items():
            same(k(f"{name}_{d.short}", d.numpy, a, b), function(a, b))


def expected_cast(a: Array, to: DType) -> Array:
    """NumPy's conversion on x86, written out so that it holds on every machine."""
    if a.dtype.kind != "f" or to.is_float or to.is_bool:
        return a.astype(to.numpy)
    if to.bits < 32:
        return expected_cast(a, dtype("int32")).astype(to.numpy)
    bits, values = to.bits, []
    for x in a.tolist():
        shift = 2.0 ** (bits - 1) if not to.is_signed and x >= 2.0 ** (bits - 1) else 0.0
        y = x - shift
        inside = -(2.0 ** (bits - 1)) - (1 if bits == 32 else 0) < y < 2.0 ** (bits - 1) or y == -(2.0 ** (bits - 1))
        values.append(((int(y) if inside else -(2 ** (bits - 1))) + int(shift)) % 2**bits)
    return np.array(values, np.uint64).astype(f"u{to.itemsize}").view(to.numpy)


@pytest.mark.parametrize("source", [pytest.param(d, id=d.short) for d in REGISTER_DTYPES])
def test_casts(target: str, source: DType) -> None:
    a = samples(source)
    for to in REGISTER_DTYPES:
        with np.errstate(all="ignore"):
            same(casts(target)(f"cast_{source.short}_{to.short}", to.numpy, a), expected_cast(a, to))


def halves(name: str) -> Array:
    """All 65536 values of a half type."""
    return np.arange(2**16, dtype=np.uint16).view(np.float16 if name == "f16" else ml_dtypes.bfloat16)


@pytest.mark.parametrize("name", ["f16", "bf16"])
def test_every_half_loads_and_stores(target: str, name: str) -> None:
    every = halves(name)
    wide = casts(target)(f"widen_{name}", np.float32, every.view(np.uint16))
    with np.errstate(invalid="ignore"):
        same(wide, every.astype(np.float32))
    back = casts(target)(f"narrow_{name}", np.uint16, wide).view(every.dtype)
    nan = np.isnan(wide)
    assert np.array_equal(back.view(np.uint16)[~nan], every.view(np.uint16)[~nan])
    assert np.all(np.isnan(back.astype(np.float32)[nan]))


@pytest.mark.parametrize("name", ["f16", "bf16"])
def test_rounding_to_halves(target: str, name: str) -> None:
    every = halves(name).astype(np.float32)
    finite = np.unique(every[np.isfinite(every)]).astype(np.float64)
    ties = (finite[1:] + finite[:-1]) / 2
    near = np.concatenate([ties, np.nextafter(ties, np.inf), np.nextafter(ties, -np.inf)])
    half_type = halves(name).dtype
    x = np.concatenate([samples(float32), ties.astype(np.float32), np.float32([65519, 65520, 65504, 3.39e38, 2e-8])])
    with np.errstate(all="ignore"):
        same(casts(target)(f"round_{name}", np.float32, x), x.astype(half_type).astype(np.float32))
    # From float64 in one rounding: a tie that float32 can't tell from its neighbours goes the right way.
    got = casts(target)(f"cast_f64_{name}", np.uint16, near).view(half_type).astype(np.float64)
    low, high = finite[:-1], finite[1:]
    even = np.where(is_even(low.astype(half_type)), low, high)
    expected = np.copysign(np.concatenate([even, high, low]), near)
    same(got, expected)


def is_even(values: Array) -> Array:
    """Whether the last bit of each half is clear."""
    return (values.view(np.uint16) & 1) == 0


def test_float64_to_float16_as_numpy(target: str) -> None:
    x = np.concatenate([samples(float64), np.float64([2.0**-25, 2.0**-25 + 2.0**-60, -(2.0**-26), 65520 - 1e-9])])
    with np.errstate(all="ignore"):
        x = np.concatenate([x, samples(float16).astype(np.float64) * (1 + 2.0**-40)])
        same(casts(target)("cast_f64_f16", np.uint16, x).view(np.float16), x.astype(np.float16))


# ---------------------------------------------------------------- transcendental functions


@pytest.mark.parametrize("name", accuracy.UNARY)
def test_float32_error_over_the_whole_range(target: str, name: str) -> None:
    x = np.concatenate([specials(float32), accuracy.points_f32(65521)]).astype(np.float32)
    error, at = accuracy.worst_f32(name, target, x)
    assert error <= accuracy.BOUND_F32[name], at


@pytest.mark.parametrize("name", accuracy.BINARY)
def test_float32_error_of_pairs(target: str, name: str) -> None:
    a, b = accuracy.pairs_f32(name, 40_000)
    error, at = accuracy.worst_f32(name, target, a, b)
    assert error <= accuracy.BOUND_F32[name], at


@pytest.mark.parametrize("name", accuracy.UNARY)
def test_float32_error_against_mpmath(name: str) -> None:
    low, high = accuracy.DOMAIN.get(name, (-np.inf, np.inf))
    x = np.concatenate([accuracy.points_f32(2**32 // 199 | 1), np.float32([2**27, 1e30, 3e38, 710, 1e-40, 0.7, 2.5])])
    x = x[np.isfinite(x) & (x > low) & (x < high)]
    if name in ("lgamma", "tgamma"):
        x = x[(x > 0) | (x != np.trunc(x))]
    got = instructions(TARGETS[0])(f"{name}_f32", np.float32, x)
    for value, point in zip(got, x, strict=True):
        exact = accuracy.MPMATH[name](accuracy.mpmath.mpf(float(point)))
        error = accuracy.error_f32(np.array([value]), np.array([float(exact)]))[0]
        assert error <= accuracy.BOUND_F32[name], point


@pytest.mark.parametrize("name", accuracy.UNARY)
def test_float64_error_against_mpmath(name: str) -> None:
    vectorised = name in ("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tanh")
    for target in (TARGETS[0], TARGETS[-1]) if vectorised else TARGETS[:1]:
        error, at = accuracy.worst_f64(name, target, accuracy.points_f64(name, 400))
        assert error <= accuracy.BOUND_F64[name], at


@pytest.mark.parametrize("name", accuracy.BINARY)
def test_float64_error_of_pairs(name: str) -> None:
    error, at = accuracy.worst_f64(name, TARGETS[0], *accuracy.pairs_f64(name, 400))
    assert error <= accuracy.BOUND_F64[name], at


@pytest.mark.parametrize("d", REALS)
def test_special_values_of_one_argument(target: str, d: DType) -> None:
    inf, nan, pi = np.inf, np.nan, np.pi
    table: dict[str, list[tuple[float, float]]] = {
        "exp": [(-inf, 0), (inf, inf), (0, 1), (-0.0, 1), (1e5, inf), (-1e5, 0)],
        "exp2": [(-inf, 0), (inf, inf), (3, 8), (-0.0, 1), (-2000, 0), (2000, inf), (-1, 0.5)],
        "expm1": [(-inf, -1), (inf, inf), (0, 0), (-0.0, -0.0), (-1e5, -1)],
        "log": [(0, -inf), (-0.0, -inf), (inf, inf), (1, 0), (-1, nan), (-inf, nan)],
        "log2": [(0, -inf), (-0.0, -inf), (inf, inf), (1, 0), (8, 3), (-1, nan)],
        "log10": [(0, -inf), (-0.0, -inf), (inf, inf), (1, 0), (-1, nan)],
        "log1p": [(0, 0), (-0.0, -0.0), (-1, -inf), (inf, inf), (-2, nan), (-inf, nan)],
        "sin": [(0, 0), (-0.0, -0.0), (inf, nan), (-inf, nan)],
        "cos": [(0, 1), (-0.0, 1), (inf, nan), (-inf, nan)],
        "tan": [(0, 0), (-0.0, -0.0), (inf, nan), (-inf, nan)],
        "asin": [(0, 0), (-0.0, -0.0), (1, pi / 2), (-1, -pi / 2), (1.5, nan), (inf, nan)],
        "acos": [(1, 0), (-1, pi), (0, pi / 2), (-1.5, nan), (-inf, nan)],
        "atan": [(0, 0), (-0.0, -0.0), (inf, pi / 2), (-inf, -pi / 2)],
        "sinh": [(0, 0), (-0.0, -0.0), (inf, inf), (-inf, -inf), (1e5, inf), (-1e5, -inf)],
        "cosh": [(0, 1), (inf, inf), (-inf, inf), (-1e5, inf)],
        "tanh": [(0, 0), (-0.0, -0.0), (inf, 1), (-inf, -1), (100, 1)],
        "asinh": [(0, 0), (-0.0, -0.0), (inf, inf), (-inf, -inf)],
        "acosh": [(1, 0), (inf, inf), (0.5, nan), (-inf, nan)],
        "atanh": [(0, 0), (-0.0, -0.0), (1, inf), (-1, -inf), (2, nan), (-inf, nan)],
        "erf": [(0, 0), (-0.0, -0.0), (inf, 1), (-inf, -1), (30, 1)],
        "erfc": [(0, 1), (inf, 0), (-inf, 2), (30, 0), (-30, 2)],
        "lgamma": [(1, 0), (2, 0), (0, inf), (-0.0, inf), (-3, inf), (inf, inf), (-inf, inf)],
        "tgamma": [(0, inf), (-0.0, -inf), (-3, nan), (inf, inf), (-inf, nan), (5, 24), (200, inf)],
    }
    assert set(table) == set(accuracy.UNARY) - {"sqrt"}
    for name, rows in table.items():
        x = np.array([*(r[0] for r in rows), nan], d.numpy)
        expected = np.array([*(r[1] for r in rows), nan], d.numpy)
        same(instructions(target)(f"{name}_{d.short}", d.numpy, x), expected)


@pytest.mark.parametrize("d", REALS)
def test_odd_functions_keep_subnormals(target: str, d: DType) -> None:
    tiny = np.array([1, -1, 3, 5, -7], d.numpy) * np.finfo(d.numpy).smallest_subnormal
    for name in ("expm1", "log1p", "sin", "tan", "asin", "atan", "sinh", "tanh", "asinh", "atanh"):
        same(instructions(target)(f"{name}_{d.short}", d.numpy, tiny), tiny)


@pytest.mark.parametrize("d", REALS)
def test_special_values_of_pow(target: str, d: DType) -> None:
    values = [0.0, -0.0, np.inf, -np.inf, np.nan, 1, -1, 2, -2, 0.5, -0.5, 3, -3, 2.0**24, 2.0**24 + 2, 2.0**53, 1e30]
    a, b = (np.array(v, d.numpy) for v in zip(*itertools.product(values, values), strict=True))
    with np.errstate(all="ignore"):
        got, expected = instructions(target)(f"pow_{d.short}", d.numpy, a, b), np.power(a, b)
    # Finite results other than 0 and 1 are the accuracy tests' matter.
    exact = ~np.isfinite(expected) | (expected == 0) | (np.abs(expected) == 1)
    assert np.sum(exact) > 150
    same(got[exact], expected[exact])


@pytest.mark.parametrize("d", REALS)
def test_special_values_of_atan2_and_hypot(target: str, d: DType) -> None:
    values = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0]
    a, b = (np.array(v) for v in zip(*itertools.product(values, values), strict=True))
    for name, function in {"atan2": math.atan2, "hypot": math.hypot}.items():
        expected = np.array([function(y, x) for y, x in zip(a, b, strict=True)], d.numpy)
        got = instructions(target)(f"{name}_{d.short}", d.numpy, a.astype(d.numpy), b.astype(d.numpy))
        same(got, expected)


# ---------------------------------------------------------------- memory and horizontal reductions

_MEMORY_DTYPES = (*(d.short for d in REGISTER_DTYPES), "f16", "bf16")
_REDUCED = [d for d in REGISTER_DTYPES if d is not bool_]


def _memory_source() -> str:
    lines = ['#include "cuvil/vec.h"', "int64_t lanes(void) { return CV_LANES; }"]
    for d in _MEMORY_DTYPES:
        t = c_type(d)
        lines += [
            f"void part_{d}(const {t} *p, {t} *q, int64_t n) {{",
            f"    cv_store_part_{d}(q, cv_load_part_{d}(p, n), n);",
            "}",
            f"void zeros_{d}(const {t} *p, {t} *q, int64_t n) {{ cv_store_{d}(q, cv_load_part_{d}(p, n)); }}",
            f"void strided_{d}(const {t} *p, int64_t s, {t} *q, int64_t r, int64_t n) {{",
            f"    cv_store_strided_{d}(q, r, cv_load_strided_{d}(p, s, n), n);",
            "}",
            f"void gather_{d}(const {t} *p, const int64_t *off, {t} *q, int64_t n) {{",
            f"    cv_store_{d}(q, cv_gather_{d}(p, off, n));",
            "}",
        ]
    for x in _REDUCED:
        d, t = x.short, c_type(x.short)
        for r in ("hsum", "hprod", "hmin", "hmax"):
            lines.append(f"void {r}_{d}(const {t} *p, {t} *q) {{ *q = cv_{r}_{d}(cv_load_{d}(p)); }}")
        lines.append(f"void lane_{d}(const {t} *p, {t} *q, int l) {{ *q = cv_lane_{d}(cv_load_{d}(p), l); }}")
        lines.append(f"void splat_{d}({t} *q, const {t} *x) {{ cv_store_{d}(q, cv_splat_{d}(*x)); }}")
    lines += [
        "int hor(const uint8_t *p) { return cv_hor(cv_load_bool(p)); }",
        "int hand(const uint8_t *p) { return cv_hand(cv_load_bool(p)); }",
        "void tail(uint8_t *q, int64_t n) { cv_store_bool(q, cv_tail_mask(n)); }",
        "void iota(int64_t *q, int64_t start) { cv_store_i64(q, cv_iota_i64(start)); }",
    ]
    return "\n".join(lines) + "\n"


def memory_library(target: str) -> ctypes.CDLL:
    """The memory and reduction functions, one C function each."""
    return build(_memory_source(), target).library


def address(a: Array, element: int = 0) -> ctypes.c_void_p:
    """Where an element of an array lies."""
    return ctypes.c_void_p(a.ctypes.data + element * a.itemsize)


def memory_type(short: str) -> np.dtype[Any]:
    """The NumPy dtype of a dtype's memory."""
    return np.dtype(np.uint16) if short in ("f16", "bf16") else dtype(short).numpy


def raw_values(short: str, count: int) -> Array:
    """Small positive values, which every dtype's load and store keep."""
    if short in ("f16", "bf16"):
        return (np.arange(count) % 100 + 1).astype(np.float16 if short == "f16" else ml_dtypes.bfloat16).view(np.uint16)
    return ((np.arange(count) * 7) % 100 + 1).astype(memory_type(short))


@pytest.mark.parametrize("short", _MEMORY_DTYPES)
def test_partial_access_touches_the_first_lanes_only(target: str, short: str) -> None:
    library = memory_library(target)
    lanes = library.lanes()
    values = raw_values(short, lanes)
    for n in range(lanes + 1):
        out = np.zeros(lanes + 2, values.dtype)
        getattr(library, f"part_{short}")(address(values), address(out, 1), ctypes.c_int64(n))
        assert np.array_equal(out[1 : 1 + n], values[:n])
        assert not out[0] and not out[1 + n :].any()
        whole = raw_values(short, lanes)
        getattr(library, f"zeros_{short}")(address(values), address(whole), ctypes.c_int64(n))
        assert np.array_equal(whole[:n], values[:n])
        assert not whole[n:].any()


@pytest.mark.parametrize("short", _MEMORY_DTYPES)
def test_partial_access_at_the_end_of_a_page(target: str, short: str) -> None:
    """The page behind the array can't be touched: reading or writing it would end the process."""
    library, page = memory_library(target), mmap.PAGESIZE
    region = mmap.mmap(-1, 2 * page)
    base = ctypes.addressof(ctypes.c_char.from_buffer(region))
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mprotect(ctypes.c_void_p(base + page), ctypes.c_size_t(page), 0) == 0
    size = memory_type(short).itemsize
    for n in range(library.lanes() + 1):
        end = ctypes.c_void_p(base + page - n * size)
        getattr(library, f"part_{short}")(end, end, ctypes.c_int64(n))
        assert region[page - 1] == 0
    assert libc.mprotect(ctypes.c_void_p(base + page), ctypes.c_size_t(page), 3) == 0


@pytest.mark.parametrize("short", _MEMORY_DTYPES)
def test_strided_access_and_gather(target: str, short: str) -> None:
    library = memory_library(target)
    lanes = library.lanes()
    values = raw_values(short, 8 * lanes)
    for n, stride, out_stride in itertools.product((0, 1, lanes - 1, lanes), (1, 3, -2, 0), (1, 2)):
        start = 4 * lanes
        out = np.zeros(2 * lanes, values.dtype)
        getattr(library, f"strided_{short}")(
            address(values, start), ctypes.c_int64(stride), address(out), ctypes.c_int64(out_stride), ctypes.c_int64(n)
        )
        expected = np.zeros_like(out)
        expected[: n * out_stride : out_stride] = values[start + stride * np.arange(n)]
        assert np.array_equal(out, expected)
    off = np.random.default_rng(0).integers(0, 8 * lanes, lanes)
    for n in (0, 1, lanes):
        out = np.zeros(lanes, values.dtype)
        getattr(library, f"gather_{short}")(address(values), address(off), address(out), ctypes.c_int64(n))
        assert np.array_equal(out, np.where(np.arange(lanes) < n, values[off], np.zeros_like(out)))


def tree(values: list[Any], combine: Function) -> Any:
    """Lane l with lane l + half, until one is left."""
    while len(values) > 1:
        half = len(values) // 2
        values = [combine(values[i], values[i + half]) for i in range(half)]
    return values[0]


@pytest.mark.parametrize("d", [pytest.param(d, id=d.short) for d in _REDUCED])
def test_horizontal_reductions(target: str, d: DType) -> None:
    library = memory_library(target)
    lanes = library.lanes()
    rng = np.random.default_rng(5)
    combine: dict[str, Function] = {"hsum": np.add, "hprod": np.multiply, "hmin": np.minimum, "hmax": np.maximum}
    for _ in range(20):
        a = random_values(d, lanes, int(rng.integers(2**31)))
        if d.is_float:
            a = rng.normal(size=lanes).astype(d.numpy)
        for name, function in combine.items():
            out = np.zeros(1, d.numpy)
            getattr(library, f"{name}_{d.short}")(address(a), address(out))
            with np.errstate(all="ignore"):
                assert out[0] == tree(list(a), function)
    for lane in range(lanes):
        out = np.zeros(1, d.numpy)
        getattr(library, f"lane_{d.short}")(address(a), address(out), lane)
        assert out[0] == a[lane]
        if d.is_float:
            with_nan = a.copy()
            with_nan[lane] = np.nan
            for name in ("hmin", "hmax"):
                getattr(library, f"{name}_{d.short}")(address(with_nan), address(out))
                assert np.isnan(out[0])


@pytest.mark.parametrize("d", [pytest.param(d, id=d.short) for d in _REDUCED])
def test_splat_keeps_the_value(target: str, d: DType) -> None:
    library = memory_library(target)
    for x in specials(d):
        out = np.zeros(library.lanes(), d.numpy)
        getattr(library, f"splat_{d.short}")(address(out), address(np.array([x], d.numpy)))
        same(out, np.full(out.shape, x, d.numpy))


def test_masks_iota_and_logical_reductions(target: str) -> None:
    library = memory_library(target)
    lanes = library.lanes()
    for n in range(lanes + 1):
        mask = np.zeros(lanes, np.bool_)
        library.tail(address(mask), ctypes.c_int64(n))
        assert np.array_equal(mask, np.arange(lanes) < n)
        assert library.hor(address(mask)) == (n > 0)
        assert library.hand(address(mask)) == (n == lanes)
        one = np.arange(lanes) == n
        assert library.hor(address(one)) == (n < lanes)
    out = np.zeros(lanes, np.int64)
    library.iota(address(out), ctypes.c_int64(2**40))
    assert np.array_equal(out, 2**40 + np.arange(lanes))
