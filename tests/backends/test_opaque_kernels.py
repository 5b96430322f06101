"""The opaque kernels of the C backend (attention, rnn, sort, scan, scatter) against NumPy, through ctypes."""

from __future__ import annotations

import ctypes
import itertools
import math
import shutil
import subprocess
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cuvil import dtypes

INCLUDE = Path(dtypes.__file__).parent / "backends" / "c" / "include"
FLAGS = [
    "-O2", "-std=gnu11", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-fwrapv", "-fno-strict-aliasing",
    "-ffp-contract=fast", "-fPIC", "-shared", "-Wall", "-Wextra", "-Werror",
]  # fmt: skip

NUMPY = {
    "bool": np.dtype(np.bool_), "i8": np.dtype(np.int8), "i16": np.dtype(np.int16), "i32": np.dtype(np.int32),
    "i64": np.dtype(np.int64), "u8": np.dtype(np.uint8), "u16": np.dtype(np.uint16), "u32": np.dtype(np.uint32),
    "u64": np.dtype(np.uint64), "f16": np.dtype(np.float16), "bf16": np.dtype(ml_dtypes.bfloat16),
    "f32": np.dtype(np.float32), "f64": np.dtype(np.float64),
}  # fmt: skip
FLOATS = ("f16", "bf16", "f32", "f64")
EPS = {"f16": 2.0**-10, "bf16": 2.0**-7, "f32": 2.0**-23, "f64": 2.0**-52}
INDEX_DTYPE = {"i32": 4, "i64": 5, "u8": 6}  # CV_ELEM_ID_*
ERROR, CLIP, WRAP, FILL = range(4)
SCAN_CASES = [
    ("add", "f32", "f32", "f32"), ("mul", "f32", "f32", "f32"), ("max", "f32", "f32", "f32"),
    ("min", "f64", "f64", "f64"), ("add", "f64", "f64", "f64"), ("add", "f16", "f32", "f16"),
    ("add", "bf16", "f32", "bf16"), ("add", "i32", "i64", "i64"), ("add", "u8", "u64", "u64"),
    ("add", "bool", "i64", "i64"), ("mul", "i64", "i64", "i64"), ("max", "i8", "i8", "i8"),
    ("min", "u16", "u16", "u16"), ("max", "f16", "f32", "f16"),
]  # fmt: skip
SCATTER_CASES = [
    *itertools.product(("set", "add"), NUMPY),
    *itertools.product(("mul", "max", "min"), ("bool", "i8", "u16", "i64", "f16", "bf16", "f32", "f64")),
]
ATTENTION_CASES = [
    *itertools.product(("f32", "f64"), ("none", "bool", "f32")), ("f16", "none"), ("f16", "half"), ("bf16", "none"),
    ("bf16", "bool"),
]  # fmt: skip
MASKS = {"none": None, "bool": "bool", "f32": "f32", "half": "f16"}


def sort_source() -> str:
    return "".join(
        f"""
#define CV_SORT_NAME sort_{dt}
#define CV_SORT_DT {dt}
#include "cuvil/sort.h"
void k_sort_{dt}(cv_ctx *c, const void *x, void *y, int64_t o, int64_t n, int64_t i, int64_t d) {{
  sort_{dt}_sort(c, x, y, o, n, i, d);
}}
void k_argsort_{dt}(cv_ctx *c, const void *x, int64_t *y, int64_t o, int64_t n, int64_t i, int64_t d) {{
  sort_{dt}_argsort(c, x, y, o, n, i, d);
}}
void k_top_k_{dt}(cv_ctx *c, const void *x, void *v, int64_t *y, int64_t o, int64_t n, int64_t i, int64_t k,
                  int64_t l) {{
  sort_{dt}_top_k(c, x, v, y, o, n, i, k, l);
}}
void k_search_{dt}(cv_ctx *c, const void *x, const void *v, int64_t *y, int64_t rows, int64_t n, int64_t m,
                   int64_t r) {{
  sort_{dt}_searchsorted(c, x, v, y, rows, n, m, r);
}}
"""
        for dt in NUMPY
    )


def scan_source() -> str:
    return "".join(
        f"""
#define CV_SCAN_NAME scan_{op}_{a}_{c}
#define CV_SCAN_OP {op}
#define CV_SCAN_IN {a}
#define CV_SCAN_ACC {b}
#define CV_SCAN_OUT {c}
#include "cuvil/scan.h"
void k_scan_{op}_{a}_{c}(cv_ctx *ctx, const void *x, void *y, int64_t o, int64_t n, int64_t i, int64_t initial,
                            int64_t rev) {{
  scan_{op}_{a}_{c}(ctx, x, y, o, n, i, initial, rev);
}}
"""
        for op, a, b, c in SCAN_CASES
    )


def argreduce_source() -> str:
    return "".join(
        f"""
#define CV_ARGREDUCE_NAME arg{op}_{dt}
#define CV_ARGREDUCE_DT {dt}
#define CV_ARGREDUCE_OP {op}
#include "cuvil/argreduce.h"
void k_arg{op}_{dt}(cv_ctx *c, const void *x, int64_t *y, int64_t o, int64_t n, int64_t i) {{
  arg{op}_{dt}(c, x, y, o, n, i);
}}
"""
        for op, dt in itertools.product(("max", "min"), NUMPY)
    )


def scatter_source() -> str:
    head = """
#include "cuvil/scatter.h"
#include "cuvil/kernel.h"
void k_take(cv_ctx *c, const void *x, void *out, int64_t outer, const cv_index_tuple *t, int64_t inner, int64_t item,
            int64_t mode, const void *fill) {
  cv_take(c, x, out, outer, t, inner, item, mode, fill);
}
void k_take_along(cv_ctx *c, const void *x, const void *index, void *out, int64_t outer, int64_t n, int64_t m,
                  int64_t inner, int64_t dtype, int64_t item, int64_t mode, const void *fill) {
  cv_take_along_axis(c, x, index, out, outer, n, m, inner, dtype, item, mode, fill);
}
"""
    return head + "".join(
        f"""
#define CV_SCATTER_NAME scatter_{op}_{dt}
#define CV_SCATTER_DT {dt}
#define CV_SCATTER_OP {op}
#include "cuvil/scatter.h"
void k_scatter_{op}_{dt}(cv_ctx *c, const void *x, const void *u, void *out, int64_t outer, const cv_index_tuple *t,
                         int64_t inner, const int64_t *stride, int64_t mode) {{
  scatter_{op}_{dt}(c, x, u, out, outer, t, inner, stride, mode);
}}
"""
        for op, dt in SCATTER_CASES
    )


def attention_source() -> str:
    parts: list[str] = []
    for dt, label in ATTENTION_CASES:
        mask = MASKS[label]
        name = f"attention_{dt}_{label}"
        parts.append(
            f"#define CV_ATTENTION_NAME {name}\n#define CV_ATTENTION_DT {dt}\n"
            + (f"#define CV_ATTENTION_MASK {mask}\n" if mask else "")
            + f'#include "cuvil/attention.h"\nvoid k_{name}(cv_ctx *c, const cv_attention *a) {{ {name}(c, a); }}\n'
        )
    return "".join(parts)


def rnn_source() -> str:
    return "".join(
        f"""
#define CV_RNN_NAME {cell}_{dt}
#define CV_RNN_CELL {cell}
#define CV_RNN_DT {dt}
#include "cuvil/rnn.h"
int64_t k_{cell}_{dt}_elements(int64_t i, int64_t h) {{ return {cell}_{dt}_packed_elements(i, h); }}
void k_{cell}_{dt}_pack(const void *a, const void *b, const void *c, const void *d, int64_t i, int64_t h, void *p) {{
  {cell}_{dt}_pack(a, b, c, d, i, h, p);
}}
void k_{cell}_{dt}(cv_ctx *c, const cv_rnn *a) {{ {cell}_{dt}(c, a); }}
"""
        for cell, dt in itertools.product(("lstm", "gru"), ("f32", "f64"))
    )


def permute_source() -> str:
    return """
#include "cuvil/permute.h"
void k_permute(cv_ctx *c, const void *x, void *y, int64_t item, int64_t rank, const int64_t *size,
               const int64_t *stride, int64_t axis) {
  cv_permute(c, x, y, (int)item, (int)rank, size, stride, (int)axis);
}
"""


SOURCES = {
    "sort": sort_source, "scan": scan_source, "argreduce": argreduce_source, "scatter": scatter_source,
    "attention": attention_source, "rnn": rnn_source, "permute": permute_source,
}  # fmt: skip


class Kernels:
    """Compiled kernels and a context of two workers to run them with."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.loaded: dict[str, ctypes.CDLL] = {}
        self.runtime = self.compile("runtime", (INCLUDE / "runtime.c").read_text(), "-pthread")
        for name in ("cv_pool_create", "cv_ctx_create"):
            getattr(self.runtime, name).restype = ctypes.c_void_p
        self.contexts = {workers: self.context(workers) for workers in (1, 2, 3)}
        self.ctx = self.contexts[2]

    def context(self, workers: int) -> ctypes.c_void_p:
        pool = ctypes.c_void_p(self.runtime.cv_pool_create(workers))
        return ctypes.c_void_p(self.runtime.cv_ctx_create(pool))

    def compile(self, name: str, text: str, *flags: str) -> ctypes.CDLL:
        source = self.folder / f"{name}.c"
        source.write_text(text)
        target = source.with_suffix(".so")
        compiler = shutil.which("gcc") or shutil.which("cc") or "cc"
        done = subprocess.run(
            [compiler, *FLAGS, *flags, f"-I{INCLUDE}", str(source), "-o", str(target)],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return ctypes.CDLL(str(target))

    def library(self, name: str) -> ctypes.CDLL:
        if name not in self.loaded:
            self.loaded[name] = self.compile(name, SOURCES[name]())
        return self.loaded[name]

    def __call__(self, library: str, name: str, *arguments: Any) -> tuple[int, int, int]:
        """Run one kernel; the context's error code and its two details."""
        converted = [self.convert(a) for a in arguments]
        getattr(self.library(library), name)(self.ctx, *converted)
        details = (ctypes.c_int64 * 2)()
        code = self.runtime.cv_ctx_error(self.ctx, details)
        self.runtime.cv_ctx_reset(self.ctx)
        return code, details[0], details[1]

    def convert(self, value: Any) -> Any:
        if isinstance(value, np.ndarray):
            return ctypes.c_void_p(value.ctypes.data)
        if isinstance(value, int):
            return ctypes.c_int64(value)  # what every integer parameter of the wrappers is
        return value


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Kernels:
    return Kernels(tmp_path_factory.mktemp("kernels"))


def values(rng: np.random.Generator, dt: str, shape: tuple[int, ...], special: bool = False) -> np.ndarray:
    """Small values with many repeats, so that ties happen; with NaN, infinities and both zeros if special."""
    dtype = NUMPY[dt]
    if dt == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    if dt not in FLOATS:
        info = np.iinfo(dtype)
        small = rng.integers(max(info.min, -5), 6, shape).astype(dtype)
        extreme = rng.choice(np.array([info.min, info.max], dtype), shape)
        return np.where(rng.random(shape) < 0.1, extreme, small) if special else small
    x = (rng.integers(-8, 9, shape) / 4).astype(np.float64)
    if special:
        x = np.where(rng.random(shape) < 0.3, rng.choice([np.nan, np.inf, -np.inf, 0.0, -0.0], shape), x)
    return x.astype(dtype)


def same(a: np.ndarray, b: np.ndarray) -> None:
    """Equal values, NaN equal to NaN."""
    wide = np.float64 if a.dtype in [NUMPY[d] for d in FLOATS] else a.dtype
    np.testing.assert_array_equal(a.astype(wide), b.astype(wide))


# ---------------------------------------------------------------- sort


def order(row: np.ndarray, descending: bool, nan_first: bool) -> list[int]:
    """The stable order of a row by Python's own sort."""
    numbers = [float(v) if row.dtype.kind not in "iub" else int(v) for v in row]

    def key(i: int) -> tuple[int, float]:
        v = numbers[i]
        if math.isnan(v):
            return (0 if nan_first else 2, 0)
        return (1, -v if descending else v)

    return sorted(range(len(numbers)), key=key)


def reference_order(x: np.ndarray, descending: bool, nan_first: bool = False) -> np.ndarray:
    out = np.empty(x.shape, np.int64)
    for o, i in itertools.product(range(x.shape[0]), range(x.shape[2])):
        out[o, :, i] = order(x[o, :, i], descending, nan_first)
    return out


@pytest.mark.parametrize("dt", NUMPY)
@pytest.mark.parametrize("shape", [(2, 37, 3), (1, 700, 1), (3, 1, 2), (2, 0, 3)])
def test_sort_and_argsort(kernels: Kernels, dt: str, shape: tuple[int, int, int]) -> None:
    x = values(np.random.default_rng(len(dt)), dt, shape, special=True)
    for descending in (0, 1):
        want = reference_order(x, bool(descending))
        got, sorted_values = np.full(shape, -1, np.int64), np.zeros_like(x)
        assert kernels("sort", f"k_argsort_{dt}", x, got, *shape, descending)[0] == 0
        assert kernels("sort", f"k_sort_{dt}", x, sorted_values, *shape, descending)[0] == 0
        np.testing.assert_array_equal(got, want)
        same(sorted_values, np.take_along_axis(x, want, 1))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.lists(st.floats(width=32), max_size=300), st.booleans())
def test_argsort_any_float(kernels: Kernels, numbers: list[float], descending: bool) -> None:
    for dt in ("f32", "f64"):
        x = np.array(numbers, NUMPY[dt]).reshape(1, -1, 1)
        got = np.empty(x.shape, np.int64)
        kernels("sort", f"k_argsort_{dt}", x, got, *x.shape, int(descending))
        np.testing.assert_array_equal(got, reference_order(x, descending))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=600), st.booleans())
def test_argsort_any_integer(kernels: Kernels, numbers: list[int], descending: bool) -> None:
    x = np.array(numbers, np.int64).reshape(1, -1, 1)
    got = np.empty(x.shape, np.int64)
    kernels("sort", "k_argsort_i64", x, got, *x.shape, int(descending))
    np.testing.assert_array_equal(got, reference_order(x, descending))


@pytest.mark.parametrize("dt", NUMPY)
@pytest.mark.parametrize(
    "shape, k", [((2, 40, 3), 5), ((1, 3000, 1), 7), ((1, 3000, 2), 400), ((2, 9, 2), 9), ((2, 9, 1), 0)]
)
def test_top_k(kernels: Kernels, dt: str, shape: tuple[int, int, int], k: int) -> None:
    x = values(np.random.default_rng(k), dt, shape, special=True)
    for largest in (0, 1):
        want = reference_order(x, bool(largest), nan_first=bool(largest))[:, :k]
        picked, at = np.zeros((shape[0], k, shape[2]), x.dtype), np.full((shape[0], k, shape[2]), -1, np.int64)
        assert kernels("sort", f"k_top_k_{dt}", x, picked, at, *shape, k, largest)[0] == 0
        np.testing.assert_array_equal(at, want)
        same(picked, np.take_along_axis(x, want, 1))


def test_top_k_of_ascending_values(kernels: Kernels) -> None:
    """Every element beats the bar: the buffer refills all the time."""
    x = np.arange(20000, dtype=np.float32).reshape(1, -1, 1)
    picked, at = np.zeros((1, 3, 1), np.float32), np.zeros((1, 3, 1), np.int64)
    kernels("sort", "k_top_k_f32", x, picked, at, 1, 20000, 1, 3, 1)
    assert at.ravel().tolist() == [19999, 19998, 19997]


def test_top_k_refuses_more_than_there_is(kernels: Kernels) -> None:
    x, out = np.zeros(3, np.float32), np.zeros(4, np.float32)
    assert kernels("sort", "k_top_k_f32", x, out, np.zeros(4, np.int64), 1, 3, 1, 4, 1) == (3, 4, 3)


@pytest.mark.parametrize("dt", NUMPY)
@pytest.mark.parametrize("n, m", [(50, 33), (0, 5), (1, 3), (7, 0)])
def test_searchsorted(kernels: Kernels, dt: str, n: int, m: int) -> None:
    rng = np.random.default_rng(3)
    wide = np.float32 if dt in ("f16", "bf16") else NUMPY[dt]  # ml_dtypes does not sort NaN last
    x = np.sort(values(rng, dt, (2, n), special=True).astype(wide), axis=1).astype(NUMPY[dt])
    needles = values(rng, dt, (2, m), special=True)
    for right in (0, 1):
        got = np.full((2, m), -1, np.int64)
        kernels("sort", f"k_search_{dt}", x, needles, got, 2, n, m, right)
        side = "right" if right else "left"
        for row in range(2):
            want = np.searchsorted(x[row].astype(wide), needles[row].astype(wide), side)
            np.testing.assert_array_equal(got[row], want)


# ---------------------------------------------------------------- scan


def reference_scan(op: str, x: np.ndarray, acc: np.dtype[Any], initial: bool, reverse: bool) -> np.ndarray:
    ufunc = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}[op]
    work = np.float64 if acc.kind == "f" else acc
    x = x.astype(np.float64).astype(work) if x.dtype == NUMPY["bf16"] else x.astype(work)
    x = np.flip(x, 1) if reverse else x
    out = ufunc.accumulate(x, axis=1) if x.shape[1] else x
    if initial:
        low, high = (-np.inf, np.inf) if acc.kind == "f" else (np.iinfo(acc).min, np.iinfo(acc).max)
        first = {"add": 0, "mul": 1, "max": low, "min": high}[op]
        out = np.concatenate([np.full_like(x, first, shape=(x.shape[0], 1, x.shape[2])), out], 1)
    return np.flip(out, 1) if reverse else out


@pytest.mark.parametrize("op, a, b, c", SCAN_CASES)
@pytest.mark.parametrize("shape", [(3, 19, 1), (2, 11, 37), (1, 5, 16), (2, 1, 3), (2, 0, 3)])
def test_scan(kernels: Kernels, op: str, a: str, b: str, c: str, shape: tuple[int, int, int]) -> None:
    rng = np.random.default_rng(7)
    x = values(rng, a, shape, special=op in ("max", "min"))
    for initial, reverse in itertools.product((0, 1), (0, 1)):
        got = np.zeros((shape[0], shape[1] + initial, shape[2]), NUMPY[c])
        assert kernels("scan", f"k_scan_{op}_{a}_{c}", x, got, *shape, initial, reverse)[0] == 0
        with np.errstate(all="ignore"):
            want = reference_scan(op, x, NUMPY[b], bool(initial), bool(reverse))
        if c in FLOATS and op in ("add", "mul"):
            np.testing.assert_allclose(got.astype(np.float64), want, rtol=2 * EPS[c] * (shape[1] + 1), atol=0)
        else:
            same(got, want.astype(NUMPY[c]))


def test_scan_of_halves_accumulates_in_single(kernels: Kernels) -> None:
    x, y = np.ones((1, 5000, 1), np.float16), np.zeros((1, 5000, 1), np.float16)
    kernels("scan", "k_scan_add_f16_f16", x, y, 1, 5000, 1, 0, 0)
    assert y[0, -1, 0] == 5000  # 2048 if the sum itself were held in half precision


# ---------------------------------------------------------------- argreduce


def first_extreme(row: np.ndarray, op: str) -> int:
    x = row.astype(np.float32) if row.dtype == NUMPY["bf16"] else row
    return int(x.argmax() if op == "max" else x.argmin())


@pytest.mark.parametrize("dt", NUMPY)
@pytest.mark.parametrize("op", ["max", "min"])
@pytest.mark.parametrize("shape", [(3, 1, 1), (4, 50, 1), (2, 301, 1), (2, 9, 3), (2, 30, 41), (1, 8, 16), (0, 3, 2)])
@pytest.mark.parametrize("special", [False, True])
def test_argreduce(kernels: Kernels, dt: str, op: str, shape: tuple[int, int, int], special: bool) -> None:
    x = values(np.random.default_rng(shape[1]), dt, shape, special)
    got = np.full((shape[0], shape[2]), -1, np.int64)
    assert kernels("argreduce", f"k_arg{op}_{dt}", x, got, *shape)[0] == 0
    for o, i in itertools.product(range(shape[0]), range(shape[2])):
        assert got[o, i] == first_extreme(x[o, :, i], op)


@settings(max_examples=80, deadline=None, derandomize=True)
@given(st.lists(st.floats(width=32), min_size=1, max_size=200))
def test_argreduce_any_float(kernels: Kernels, numbers: list[float]) -> None:
    x = np.array(numbers, np.float32)
    for op in ("max", "min"):
        got = np.full(1, -1, np.int64)
        kernels("argreduce", f"k_arg{op}_f32", x, got, 1, len(x), 1)
        assert got[0] == first_extreme(x, op)


def test_argreduce_of_nothing_fails(kernels: Kernels) -> None:
    out = np.zeros(3, np.int64)
    assert kernels("argreduce", "k_argmax_f32", np.zeros(0, np.float32), out, 3, 0, 1)[0] == 3
    assert kernels("argreduce", "k_argmax_f32", np.zeros(0, np.float32), out, 0, 0, 1)[0] == 0


# ---------------------------------------------------------------- take and scatter


class IndexTuple(ctypes.Structure):
    """cv_index_tuple, keeping its arrays alive."""

    _fields_ = [
        ("axes", ctypes.c_int), ("rank", ctypes.c_int), ("dtype", ctypes.c_int), ("size", ctypes.c_void_p),
        ("shape", ctypes.c_void_p), ("index", ctypes.c_void_p), ("stride", ctypes.c_void_p),
    ]  # fmt: skip

    @staticmethod
    def of(sizes: tuple[int, ...], arrays: list[np.ndarray]) -> IndexTuple:
        shape = np.broadcast_shapes(*(a.shape for a in arrays))
        views = [np.broadcast_to(a, shape) for a in arrays]
        kept = [
            np.array(sizes, np.int64),
            np.array(shape, np.int64),
            np.array([v.ctypes.data for v in views], np.uint64),
            np.array([[s // v.itemsize for s in v.strides] for v in views], np.int64),
        ]
        short = next(s for s, d in NUMPY.items() if d == arrays[0].dtype)
        self = IndexTuple(len(sizes), len(shape), INDEX_DTYPE[short], *(k.ctypes.data for k in kept))
        self.kept = (kept, views)
        return self


def resolve(i: int, size: int, mode: int) -> int | None:
    if mode == CLIP:
        return min(max(i, 0), size - 1)
    if mode == WRAP:
        return i % size
    at = i + size if i < 0 else i
    return at if 0 <= at < size else None


@pytest.mark.parametrize("mode", [ERROR, CLIP, WRAP, FILL])
@pytest.mark.parametrize("inner", [1, 3, 40])
@pytest.mark.parametrize("index_dtype", ["i32", "i64"])
def test_take(kernels: Kernels, mode: int, inner: int, index_dtype: str) -> None:
    rng = np.random.default_rng(inner)
    x = rng.standard_normal((2, 5, 4, inner)).astype(np.float32)
    reach = 0 if mode == ERROR else 7
    i = rng.integers(-5 - reach, 5 + reach, (6, 1)).astype(NUMPY[index_dtype])
    j = rng.integers(-4 - reach, 4 + reach, (1, 70)).astype(NUMPY[index_dtype])
    out, fill = np.full((2, 6, 70, inner), 99, np.float32), np.array([-1.5], np.float32)
    assert (
        kernels("scatter", "k_take", x, out, 2, ctypes.byref(IndexTuple.of((5, 4), [i, j])), inner, 4, mode, fill)[0]
        == 0
    )
    for a, b in itertools.product(range(6), range(70)):
        p, q = resolve(int(i[a, 0]), 5, mode), resolve(int(j[0, b]), 4, mode)
        want = x[:, p, q] if p is not None and q is not None else np.full((2, inner), -1.5)
        np.testing.assert_array_equal(out[:, a, b], want)


@pytest.mark.parametrize("mode", [ERROR, CLIP, WRAP, FILL])
def test_take_along_axis(kernels: Kernels, mode: int) -> None:
    rng = np.random.default_rng(1)
    x = rng.integers(0, 100, (2, 6, 5)).astype(np.int16)
    reach = 0 if mode == ERROR else 9
    index = rng.integers(-6 - reach, 6 + reach, (2, 8, 5))
    out, fill = np.zeros((2, 8, 5), np.int16), np.array([-7], np.int16)
    kernels("scatter", "k_take_along", x, index, out, 2, 6, 8, 5, INDEX_DTYPE["i64"], 2, mode, fill)
    for o, r, c in itertools.product(range(2), range(8), range(5)):
        p = resolve(int(index[o, r, c]), 6, mode)
        assert out[o, r, c] == (x[o, p, c] if p is not None else -7)


@pytest.mark.parametrize("bad, where", [(4, 3), (-5, 0), (2**62, 5)])
def test_index_out_of_bounds_is_reported_and_writes_nothing(kernels: Kernels, bad: int, where: int) -> None:
    index = np.array([0, 1, 2, 3, 0, 1])
    index[where] = bad
    x, out = np.arange(8, dtype=np.float32).reshape(4, 2), np.full((4, 2), 5, np.float32)
    tuple_ = IndexTuple.of((4,), [index])
    u = np.ones((6, 2), np.float32)
    got = kernels("scatter", "k_scatter_add_f32", x, u, out, 1, ctypes.byref(tuple_), 2, np.array([12, 2, 1]), ERROR)
    assert got == (1, bad, 4)
    assert (out == 5).all()
    assert (
        kernels("scatter", "k_take", x, np.zeros((6, 2), np.float32), 1, ctypes.byref(tuple_), 2, 4, ERROR, None) == got
    )
    wide = np.tile(index.reshape(1, 6, 1), (1, 1, 2))
    along = np.zeros((1, 6, 2), np.float32)
    assert kernels("scatter", "k_take_along", x, wide, along, 1, 4, 6, 2, INDEX_DTYPE["i64"], 4, ERROR, None) == got


def test_the_first_bad_index_is_reported(kernels: Kernels) -> None:
    index = np.zeros(50000, np.int64)
    index[[20, 49990]] = [77, 88]
    x, out = np.zeros(4, np.float32), np.zeros(50000, np.float32)
    tuple_ = IndexTuple.of((4,), [index])
    for _ in range(5):
        assert kernels("scatter", "k_take", x, out, 1, ctypes.byref(tuple_), 1, 4, ERROR, None) == (1, 77, 4)


def test_indexing_an_empty_axis(kernels: Kernels) -> None:
    x, out, fill = np.zeros((0, 3), np.float32), np.zeros((2, 3), np.float32), np.array([4], np.float32)
    tuple_ = ctypes.byref(keep := IndexTuple.of((0,), [np.array([0, -1])]))
    for mode in (ERROR, CLIP, WRAP):
        assert kernels("scatter", "k_take", x, out, 1, tuple_, 3, 4, mode, fill)[0] == 1
    assert kernels("scatter", "k_take", x, out, 1, tuple_, 3, 4, FILL, fill)[0] == 0
    assert (out == 4).all() and keep.axes == 1


def apply(op: str, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    if op == "set":
        return b
    if a.dtype == bool:
        return a | b if op in ("add", "max") else a & b
    half = a.dtype in (NUMPY["f16"], NUMPY["bf16"])
    x, y = (a.astype(np.float32), b.astype(np.float32)) if half else (a, b)
    ufunc = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}[op]
    with np.errstate(all="ignore"):
        return ufunc(x, y).astype(a.dtype)


@pytest.mark.parametrize("op, dt", SCATTER_CASES)
@pytest.mark.parametrize("inner, step", [(1, 1), (5, 1), (43, 1), (20, 0)])
def test_scatter(kernels: Kernels, op: str, dt: str, inner: int, step: int) -> None:
    rng = np.random.default_rng(inner + len(op))
    x = values(rng, dt, (2, 4, 3, inner), special=True)
    u = values(rng, dt, (2, 30, inner if step else 1), special=True)
    mode = FILL if inner == 5 else ERROR
    reach = 3 if mode == FILL else 0
    i, j = rng.integers(-4 - reach, 4 + reach, 30), rng.integers(-3, 3, 30)
    want = x.copy()
    for t in range(30):
        p, q = resolve(int(i[t]), 4, mode), resolve(int(j[t]), 3, mode)
        if p is not None and q is not None:
            for o in range(2):
                want[o, p, q] = apply(op, want[o, p, q], np.broadcast_to(u[o, t], (inner,)))
    tuple_ = IndexTuple.of((4, 3), [i, j])
    strides = np.array([30 * u.shape[2], u.shape[2], step])
    out = np.zeros_like(x)
    assert kernels("scatter", f"k_scatter_{op}_{dt}", x, u, out, 2, ctypes.byref(tuple_), inner, strides, mode)[0] == 0
    same(out, want)
    assert kernels("scatter", f"k_scatter_{op}_{dt}", x, u, x, 2, ctypes.byref(tuple_), inner, strides, mode)[0] == 0
    same(x, want)


def test_scatter_in_parallel_keeps_the_order(kernels: Kernels) -> None:
    rng = np.random.default_rng(0)
    index = rng.integers(0, 70000, 200000)
    u = rng.standard_normal(200000).astype(np.float32)
    x, out = np.zeros(70000, np.float32), np.zeros(70000, np.float32)
    tuple_ = IndexTuple.of((70000,), [index])
    strides = np.array([0, 1, 1])
    kernels("scatter", "k_scatter_set_f32", x, u, out, 1, ctypes.byref(tuple_), 1, strides, ERROR)
    want = np.zeros_like(x)
    want[index] = u
    np.testing.assert_array_equal(out, want)
    kernels("scatter", "k_scatter_add_f32", x, u, out, 1, ctypes.byref(tuple_), 1, strides, ERROR)
    want = np.zeros_like(x)
    np.add.at(want, index, u)
    np.testing.assert_array_equal(out, want)


# ---------------------------------------------------------------- permute


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_permute(kernels: Kernels, data: st.DataObject) -> None:
    """Every order of axes that does not keep the contiguous one last, bit for bit, from reversed and cut sources."""
    rank = data.draw(st.integers(2, 4))
    shape = tuple(data.draw(st.sampled_from([0, 1, 2, 5, 16, 31, 33, 70])) for _ in range(rank))
    order = data.draw(st.permutations(range(rank)).filter(lambda o: o[-1] != rank - 1))
    item = data.draw(st.sampled_from([1, 2, 4, 8]))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    room = rng.integers(0, 255, (*(n + 3 for n in shape), item), np.uint8).view(f"u{item}")[..., 0]
    view = room[tuple(slice(1, n + 1) for n in shape)]
    if data.draw(st.booleans()):
        view = view[::-1]
    want = view.transpose(order)
    got = np.zeros(want.shape, want.dtype)
    size = np.array(want.shape, np.int64)
    stride = np.array([s // item for s in want.strides], np.int64)
    assert kernels("permute", "k_permute", view, got, item, rank, size, stride, order.index(rank - 1))[0] == 0
    np.testing.assert_array_equal(got, want)


# ---------------------------------------------------------------- attention


class Attention(ctypes.Structure):
    _fields_ = [
        *((n, ctypes.c_void_p) for n in ("q", "k", "v", "mask", "out")),
        *((n, ctypes.c_int64) for n in ("batch", "heads", "kv_heads", "queries", "keys", "depth", "value_depth")),
        *((n, ctypes.c_int64 * 4) for n in ("q_stride", "k_stride", "v_stride", "mask_stride", "out_stride")),
        ("scale", ctypes.c_double), ("causal", ctypes.c_int),
    ]  # fmt: skip


def strides(a: np.ndarray) -> Any:
    return (ctypes.c_int64 * 4)(*(s // a.itemsize for s in a.strides))


def run_attention(
    kernels: Kernels, dt: str, q: np.ndarray, k: np.ndarray, v: np.ndarray, out: np.ndarray,
    mask: np.ndarray | None, causal: bool, scale: float,
) -> None:  # fmt: skip
    b, h, s, d = q.shape
    label = "none"
    if mask is not None:
        label = {np.dtype(bool): "bool", np.dtype(np.float32): "f32", np.dtype(np.float16): "half"}[mask.dtype]
        mask = np.broadcast_to(mask, (b, h, s, k.shape[2]))
    arguments = Attention(
        q.ctypes.data, k.ctypes.data, v.ctypes.data, None if mask is None else mask.ctypes.data, out.ctypes.data,
        b, h, k.shape[1], s, k.shape[2], d, v.shape[3], strides(q), strides(k), strides(v),
        (ctypes.c_int64 * 4)() if mask is None else strides(mask), strides(out), scale, int(causal),
    )  # fmt: skip
    assert kernels("attention", f"k_attention_{dt}_{label}", ctypes.byref(arguments))[0] == 0


def reference_attention(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, mask: np.ndarray | None, causal: bool, scale: float
) -> np.ndarray:
    q, k, v = (a.astype(np.float64) for a in (q, k, v))
    group = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, group, 1), np.repeat(v, group, 1)
    with np.errstate(all="ignore"):
        scores = np.einsum("bhid,bhjd->bhij", q, k) * scale
        if mask is not None:
            scores = np.where(mask, scores, -np.inf) if mask.dtype == bool else scores + mask
        if causal:
            i, j = np.ogrid[: scores.shape[2], : scores.shape[3]]
            scores = np.where(j <= i, scores, -np.inf)
        if scores.shape[3] == 0:
            return np.zeros((*scores.shape[:3], v.shape[3]))
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        return np.einsum("bhij,bhjd->bhid", weights / weights.sum(-1, keepdims=True), v)


def close(dt: str, got: np.ndarray, want: np.ndarray) -> None:
    """Scores and values up to about 5 make errors of some 32 units of the compute type's last place; halves add one
    rounding of the result."""
    absolute = 32 * EPS["f64" if dt == "f64" else "f32"]
    np.testing.assert_allclose(got.astype(np.float64), want, rtol=EPS[dt], atol=absolute)


ATTENTION_SHAPES = [  # batch, heads, kv_heads, queries, keys, depth, value_depth
    (2, 4, 2, 70, 90, 24, 40), (1, 2, 2, 17, 64, 16, 16), (1, 3, 1, 1, 300, 32, 32), (2, 8, 2, 1, 129, 7, 5),
    (1, 2, 2, 5, 1, 1, 1), (1, 1, 1, 3, 0, 4, 4), (1, 2, 1, 2, 65, 64, 96), (1, 1, 1, 200, 200, 8, 80),
    (0, 2, 2, 4, 4, 8, 8), (1, 2, 2, 0, 4, 8, 8), (1, 1, 1, 9, 9, 0, 3), (1, 2, 1, 1, 1100, 48, 80),
    (1, 2, 2, 4, 513, 16, 128), (1, 1, 1, 600, 600, 80, 20), (3, 20, 20, 3, 530, 32, 33), (1, 2, 1, 16, 300, 65, 64),
]  # fmt: skip


@pytest.mark.parametrize(("dt", "mask_kind"), [*ATTENTION_CASES, ("f32", "row"), ("bf16", "row")])
@pytest.mark.parametrize("shape", ATTENTION_SHAPES)
@pytest.mark.parametrize("causal", [False, True])
def test_attention(kernels: Kernels, dt: str, shape: tuple[int, ...], causal: bool, mask_kind: str) -> None:
    b, h, kv, s, n, d, dv = shape
    rng = np.random.default_rng(s + n)
    q, k, v = (rng.standard_normal(sh).astype(NUMPY[dt]) for sh in ((b, h, s, d), (b, kv, n, d), (b, kv, n, dv)))
    mask: np.ndarray | None = None
    if mask_kind == "bool":
        mask = rng.random((b, 1, s, n)) < 0.7
        mask[..., :1] = True
    elif mask_kind == "row":
        mask = rng.random((b, 1, 1, n)) < 0.5
        mask[..., :1] = True
    elif mask_kind != "none":
        mask = rng.standard_normal((1, h, s, n)).astype(np.float32 if mask_kind == "f32" else np.float16)
    out = np.full((b, h, s, dv), 9, NUMPY[dt])
    run_attention(kernels, dt, q, k, v, out, mask, causal, d**-0.5 if d else 1.0)
    want = reference_attention(q, k, v, mask, causal, d**-0.5 if d else 1.0)
    close(dt, out, want)


@pytest.mark.parametrize("dt", ["f32", "f16", "f64"])
@pytest.mark.parametrize("queries", [1, 33])
def test_attention_takes_any_strides(kernels: Kernels, dt: str, queries: int) -> None:
    """Heads inside the feature axis, a reversed axis, a stride along depth, and an output of the same kind."""
    rng = np.random.default_rng(5)
    q = rng.standard_normal((2, queries, 3, 16)).astype(NUMPY[dt]).transpose(0, 2, 1, 3)
    k = rng.standard_normal((2, 3, 16, 50)).astype(NUMPY[dt]).transpose(0, 1, 3, 2)
    v = rng.standard_normal((2, 50, 3, 32)).astype(NUMPY[dt])[:, ::-1].transpose(0, 2, 1, 3)[..., ::2]
    out = np.zeros((2, queries, 3, 16), NUMPY[dt]).transpose(0, 2, 1, 3)
    run_attention(kernels, dt, q, k, v, out, None, False, 0.25)
    close(dt, out, reference_attention(q, k, v, None, False, 0.25))


@pytest.mark.parametrize("queries", [2, 40])
def test_attention_special_values(kernels: Kernels, queries: int) -> None:
    rng = np.random.default_rng(2)
    shape = (1, 1, queries, 16)
    q = rng.standard_normal(shape).astype(np.float32)
    k, v = (rng.standard_normal((1, 1, 600, 16)).astype(np.float32) for _ in range(2))
    mask = np.ones((1, 1, queries, 600), bool)
    mask[0, 0, 1] = False  # a row without keys
    out = np.zeros(shape, np.float32)
    run_attention(kernels, "f32", q, k, v, out, mask, False, 1.0)
    assert np.isnan(out[0, 0, 1]).all() and np.isfinite(out[0, 0, 0]).all()

    # The first 599 keys masked away: the running maximum is -inf over whole blocks.
    mask = np.zeros((1, 1, queries, 600), bool)
    mask[..., 599] = True
    run_attention(kernels, "f32", q, k, v, out, mask, False, 1.0)
    np.testing.assert_allclose(out, np.broadcast_to(v[:, :, 599:], shape), rtol=1e-6)

    # Huge finite scores and values stay finite.
    run_attention(kernels, "f32", q, k, np.full_like(v, 3e38), out, None, False, 1e4)
    np.testing.assert_allclose(out, 3e38, rtol=1e-5)

    # A NaN key makes every row that scores it NaN, unless a bool or causal mask hides it.
    bad = k.copy()
    bad[0, 0, 590] = np.nan
    run_attention(kernels, "f32", q, bad, v, out, None, False, 1.0)
    assert np.isnan(out).all()
    run_attention(kernels, "f32", q, bad, v, out, None, True, 1.0)
    assert np.isfinite(out).all()

    # An infinite value shows in all rows, as 0 * inf or w * inf, where it is masked too.
    bad = v.copy()
    bad[0, 0, 595, 3] = np.inf
    run_attention(kernels, "f32", q, k, bad, out, None, True, 1.0)
    assert np.isnan(out[..., 3]).all() and np.isfinite(out[..., :3]).all()


@pytest.mark.parametrize("queries", [2, 700])
def test_attention_bits_do_not_depend_on_workers(
    kernels: Kernels, monkeypatch: pytest.MonkeyPatch, queries: int
) -> None:
    rng = np.random.default_rng(9)
    q, k, v = (rng.standard_normal((1, 3, n, 32)).astype(np.float32) for n in (queries, 700, 700))
    results: list[np.ndarray] = []
    for workers in (1, 2, 3):
        monkeypatch.setattr(kernels, "ctx", kernels.contexts[workers])
        out = np.zeros_like(q)
        run_attention(kernels, "f32", q, k, v, out, None, queries > 2, 0.2)
        results.append(out)
    np.testing.assert_array_equal(results[0], results[1])
    np.testing.assert_array_equal(results[0], results[2])


# ---------------------------------------------------------------- rnn


class Rnn(ctypes.Structure):
    _fields_ = [
        *((n, ctypes.c_void_p) for n in ("x", "h0", "c0", "packed", "y", "h", "c")),
        *((n, ctypes.c_int64) for n in ("steps", "batch", "input", "hidden")),
        ("x_stride", ctypes.c_int64 * 2), ("y_stride", ctypes.c_int64 * 2), ("reverse", ctypes.c_int),
    ]  # fmt: skip


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def reference_rnn(
    cell: str, x: np.ndarray, h: np.ndarray, c: np.ndarray, w: list[np.ndarray], reverse: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    x, h, c = (a.astype(np.float64) for a in (x, h, c))
    w_ih, w_hh, b_ih, b_hh = (a.astype(np.float64) for a in w)
    y = np.zeros((x.shape[0], *h.shape))
    for t in reversed(range(len(x))) if reverse else range(len(x)):
        gx, gh = x[t] @ w_ih.T + b_ih, h @ w_hh.T + b_hh
        if cell == "lstm":
            i, f, g, o = np.split(gx + gh, 4, 1)
            c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
            h = sigmoid(o) * np.tanh(c)
        else:
            (rx, zx, nx), (rh, zh, nh) = np.split(gx, 3, 1), np.split(gh, 3, 1)
            n = np.tanh(nx + sigmoid(rx + rh) * nh)
            z = sigmoid(zx + zh)
            h = (1 - z) * n + z * h
        y[t] = h
    return y, h, c


def pack_rnn(kernels: Kernels, cell: str, dt: str, w: list[np.ndarray], inputs: int, hidden: int) -> np.ndarray:
    """The packed weights, 64-byte aligned; w has the biases or not."""
    library = kernels.library("rnn")
    elements_of = getattr(library, f"k_{cell}_{dt}_elements")
    elements_of.restype = ctypes.c_int64
    count = elements_of(ctypes.c_int64(inputs), ctypes.c_int64(hidden))
    room = np.full(count + 64, np.nan, NUMPY[dt])
    packed = room[(-room.ctypes.data % 64) // room.itemsize :][:count]
    pointers = [ctypes.c_void_p(a.ctypes.data) for a in w] + [None] * (4 - len(w))
    getattr(library, f"k_{cell}_{dt}_pack")(
        *pointers, ctypes.c_int64(inputs), ctypes.c_int64(hidden), ctypes.c_void_p(packed.ctypes.data)
    )
    return packed


RNN_SHAPES = [  # steps, batch, input, hidden
    (5, 1, 3, 4), (7, 6, 20, 33), (3, 9, 16, 16), (4, 2, 1, 70), (0, 2, 3, 4), (3, 0, 3, 4), (2, 5, 0, 3),
    (3, 1, 40, 200), (90, 40, 8, 100), (2, 20, 8, 500), (1, 1, 300, 500), (1, 20, 8, 500), (1, 3, 70, 40),
    (9, 5, 300, 20),
]  # fmt: skip


@pytest.mark.parametrize("cell", ["lstm", "gru"])
@pytest.mark.parametrize("dt", ["f32", "f64"])
@pytest.mark.parametrize("shape", RNN_SHAPES)
@pytest.mark.parametrize("variant", ["plain", "reverse", "batch first", "bare"])
def test_rnn(
    kernels: Kernels, monkeypatch: pytest.MonkeyPatch, cell: str, dt: str, shape: tuple[int, ...], variant: str
) -> None:
    steps, batch, inputs, hidden = shape
    rng = np.random.default_rng(steps * 7 + hidden)
    gates = 4 if cell == "lstm" else 3

    def draw(*size: int) -> np.ndarray:
        return rng.uniform(-1, 1, size).astype(NUMPY[dt])

    bound = NUMPY[dt].type(2 / np.sqrt(hidden))
    w = [
        draw(gates * hidden, inputs) * bound,
        draw(gates * hidden, hidden) * bound,
        draw(gates * hidden),
        draw(gates * hidden),
    ]
    h0, c0 = draw(batch, hidden), draw(batch, hidden)
    if variant == "bare":  # no biases, no initial state
        w[2:], h0, c0 = [np.zeros_like(a) for a in w[2:]], np.zeros_like(h0), np.zeros_like(c0)
    bare = variant == "bare"
    if variant == "batch first":
        x = draw(batch, steps, inputs).transpose(1, 0, 2)
        y = np.zeros((batch, steps, hidden), NUMPY[dt]).transpose(1, 0, 2)
    else:
        x, y = draw(steps, batch, inputs), np.zeros((steps, batch, hidden), NUMPY[dt])
    h, c = np.zeros_like(h0), np.zeros_like(c0)
    packed = pack_rnn(kernels, cell, dt, w[:2] if bare else w, inputs, hidden)
    arguments = Rnn(
        x.ctypes.data, None if bare else h0.ctypes.data, None if bare or cell == "gru" else c0.ctypes.data,
        packed.ctypes.data, y.ctypes.data, h.ctypes.data, c.ctypes.data if cell == "lstm" else None,
        steps, batch, inputs, hidden, (ctypes.c_int64 * 2)(*(s // x.itemsize for s in x.strides[:2])),
        (ctypes.c_int64 * 2)(*(s // y.itemsize for s in y.strides[:2])), int(variant == "reverse"),
    )  # fmt: skip
    assert kernels("rnn", f"k_{cell}_{dt}", ctypes.byref(arguments))[0] == 0
    want_y, want_h, want_c = reference_rnn(cell, x, h0, c0, w, variant == "reverse")
    tolerance = 40 * EPS[dt]
    np.testing.assert_allclose(y, want_y, rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(h, want_h, rtol=tolerance, atol=tolerance)
    if cell == "lstm":
        np.testing.assert_allclose(c, want_c, rtol=tolerance, atol=tolerance)
    with_two_workers = y.copy()
    for workers in (1, 3):
        monkeypatch.setattr(kernels, "ctx", kernels.contexts[workers])
        y[...] = 0
        kernels("rnn", f"k_{cell}_{dt}", ctypes.byref(arguments))
        np.testing.assert_array_equal(y, with_two_workers)


def test_rnn_saturates(kernels: Kernels) -> None:
    """Gates far outside the range of exp give 0, 1 and -1, never NaN."""
    w = [np.full((4, 1), 1e6, np.float32), np.zeros((4, 1), np.float32)]
    packed = pack_rnn(kernels, "lstm", "f32", w, 1, 1)
    x, y = np.array([1, -1], np.float32), np.zeros(2, np.float32)
    one = (ctypes.c_int64 * 2)(1, 1)
    arguments = Rnn(x.ctypes.data, None, None, packed.ctypes.data, y.ctypes.data, None, None, 2, 1, 1, 1, one, one, 0)
    kernels("rnn", "k_lstm_f32", ctypes.byref(arguments))
    np.testing.assert_allclose(y, [np.tanh(1.0), 0.0], rtol=1e-6)
