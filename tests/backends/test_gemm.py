"""The matrix product template against NumPy: shapes, strides, dtypes, packing, batches, hooks, threads."""

from __future__ import annotations

import ctypes
import dataclasses
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from .c_library import compile_c, context, error, hidden_features, instruction_sets, runtime

NUMPY: dict[str, np.dtype[Any]] = {
    "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "i8": np.dtype(np.int8),
    "i16": np.dtype(np.int16),
    "i32": np.dtype(np.int32),
    "i64": np.dtype(np.int64),
    "u8": np.dtype(np.uint8),
    "bool": np.dtype(np.bool_),
}

# The epilogue adds a bias per column and stores through row and column strides.
SOURCE = r"""
#include "cuvil/gemm.h"

typedef struct {
    cv_elem_@ACC *out;
    const cv_elem_@ACC *bias;
    int64_t batch_stride, row_stride, extra;
    const void *a, *b;
} env;

static inline void store(const env *e, int64_t batch, int64_t m, int64_t n, int64_t count, cv_v@ACC v) {
    v = cv_add_@ACC(v, cv_load_part_@ACC(e->bias + n, count));
    cv_store_part_@ACC(e->out + batch * e->batch_stride + m * e->row_stride + n, v, count);
}

#define CV_GEMM_NAME product
#define CV_GEMM_ACC @ACC
#define CV_GEMM_A_T @A
#define CV_GEMM_B_T @B
#define CV_GEMM_STORE(e, batch, m, n, count, v) store(e, batch, m, n, count, v)
@HOOKS
#include "cuvil/gemm.h"

void run(cv_ctx *ctx, const env *e, int64_t batch, int64_t m, int64_t n, int64_t k, const cv_matrix *a,
         const cv_matrix *b) {
    product_run(ctx, e, batch, m, n, k, *a, *b);
}
int64_t packed_a_bytes(int64_t m, int64_t k) { return product_packed_a_bytes(m, k); }
int64_t packed_b_bytes(int64_t k, int64_t n) { return product_packed_b_bytes(k, n); }
void pack_a(cv_ctx *ctx, const env *e, void *to, const cv_matrix *a, int64_t m, int64_t k) {
    product_pack_a(ctx, e, to, *a, m, k);
}
void pack_b(cv_ctx *ctx, const env *e, void *to, const cv_matrix *b, int64_t k, int64_t n) {
    product_pack_b(ctx, e, to, *b, k, n);
}
"""


class Matrix(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("row_stride", ctypes.c_int64),
        ("col_stride", ctypes.c_int64),
        ("batch_stride", ctypes.c_int64),
        ("packed", ctypes.c_int),
    ]


class Env(ctypes.Structure):
    _fields_ = [
        ("out", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("batch_stride", ctypes.c_int64),
        ("row_stride", ctypes.c_int64),
        ("extra", ctypes.c_int64),
        ("a", ctypes.c_void_p),
        ("b", ctypes.c_void_p),
    ]


def library(acc: str, a: str, b: str, hooks: str = "", flags: tuple[str, ...] = ()) -> ctypes.CDLL:
    text = SOURCE.replace("@ACC", acc).replace("@A", a).replace("@B", b).replace("@HOOKS", hooks)
    lib = compile_c(text, *flags)
    lib.packed_a_bytes.restype = lib.packed_b_bytes.restype = ctypes.c_int64
    i64 = ctypes.c_int64
    lib.packed_a_bytes.argtypes = lib.packed_b_bytes.argtypes = [i64, i64]
    pointer = ctypes.c_void_p
    lib.run.argtypes = [pointer, pointer, i64, i64, i64, i64, pointer, pointer]
    lib.pack_a.argtypes = lib.pack_b.argtypes = [pointer, pointer, pointer, pointer, i64, i64]
    return lib


@dataclasses.dataclass(frozen=True)
class Case:
    batch: int
    m: int
    n: int
    k: int
    layout_a: str = "rows"
    layout_b: str = "rows"
    packed_a: bool = False
    packed_b: bool = False
    workers: int = 2
    seed: int = 0


SIZES = st.one_of(st.integers(0, 40), st.sampled_from([1, 14, 16, 28, 31, 32, 33, 64, 65, 97, 150]))
DEPTHS = st.one_of(st.integers(0, 70), st.sampled_from([255, 256, 257, 300, 513, 700]))
LAYOUTS = st.sampled_from(["rows", "columns", "every second", "reversed", "broadcast"])
CASES = st.builds(
    Case,
    batch=st.sampled_from([0, 1, 1, 2, 3]),
    m=SIZES,
    n=SIZES,
    k=DEPTHS,
    layout_a=LAYOUTS,
    layout_b=LAYOUTS,
    packed_a=st.booleans(),
    packed_b=st.booleans(),
    workers=st.sampled_from([1, 2, 3]),
    seed=st.integers(0, 2**32 - 1),
)


def draw(rng: np.random.Generator, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(np.bool_)
    if dtype[0] in "iu":
        info = np.iinfo(NUMPY[dtype])
        return rng.integers(info.min, info.max, shape, NUMPY[dtype], endpoint=True)
    return rng.standard_normal(shape).astype(NUMPY[dtype])


def laid_out(rng: np.random.Generator, dtype: str, layout: str, batch: int, rows: int, columns: int) -> np.ndarray:
    """A (batch, rows, columns) array whose memory is laid out as asked."""
    if layout == "columns":
        return draw(rng, dtype, (batch, columns, rows)).transpose(0, 2, 1)
    if layout == "every second":
        return draw(rng, dtype, (batch, 2 * rows, 2 * columns))[:, ::2, ::2]
    if layout == "reversed":
        return draw(rng, dtype, (batch, rows, columns))[:, ::-1, ::-1]
    if layout == "broadcast":
        return np.broadcast_to(draw(rng, dtype, (rows, columns)), (batch, rows, columns))
    return draw(rng, dtype, (batch, rows, columns))


def operand(array: np.ndarray) -> Matrix:
    strides = [s // array.itemsize for s in array.strides]
    return Matrix(array.ctypes.data, strides[1], strides[2], strides[0], 0)


def aligned(count: int) -> np.ndarray:
    """`count` bytes that start at a multiple of 64, and a guard after them."""
    raw = np.full(count + 128, 0xA5, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + count + 64]


def packed(lib: ctypes.CDLL, ctx: ctypes.c_void_p, side: str, array: np.ndarray, itemsize: int) -> tuple[Matrix, Any]:
    """The operand packed by the library, one matrix of the batch after the other; and what keeps its memory alive."""
    batch, rows, columns = array.shape
    size = getattr(lib, f"packed_{side}_bytes")(rows, columns)
    room = aligned(size * batch)
    env = Env()
    for i in range(batch):
        source = operand(array[i : i + 1])
        to = room.ctypes.data + i * size
        getattr(lib, f"pack_{side}")(ctx, ctypes.byref(env), to, ctypes.byref(source), rows, columns)
    assert (room[size * batch :] == 0xA5).all()
    return Matrix(room.ctypes.data, 0, 0, size // itemsize, 1), room


def product(lib: ctypes.CDLL, case: Case, a: np.ndarray, b: np.ndarray, acc: str, flags: tuple[str, ...] = ()) -> Any:
    """The library's result and the bias that it added; checks that nothing outside of the result was written."""
    rng = np.random.default_rng(case.seed + 1)
    bias = draw(rng, acc, (case.n,))
    gap = 3
    out = np.full((case.batch, case.m, case.n + gap), 77, NUMPY[acc])
    row, batch_stride = case.n + gap, case.m * (case.n + gap)
    env = Env(out.ctypes.data, bias.ctypes.data, batch_stride, row, 5, a.ctypes.data, b.ctypes.data)
    with context(case.workers, *flags) as ctx:
        keep = []
        left, right = operand(a), operand(b)
        if case.packed_a:
            left, room = packed(lib, ctx, "a", a, NUMPY[acc].itemsize)
            keep.append(room)
        if case.packed_b:
            right, room = packed(lib, ctx, "b", b, NUMPY[acc].itemsize)
            keep.append(room)
        lib.run(ctx, ctypes.byref(env), case.batch, case.m, case.n, case.k, ctypes.byref(left), ctypes.byref(right))
        assert error(ctx)[0] == 0
    assert (out[:, :, case.n :] == 77).all()
    return out[:, :, : case.n], bias


def wide(array: np.ndarray, acc: str) -> np.ndarray:
    return array.astype(np.float64 if acc[0] == "f" else NUMPY[acc])


def check(got: np.ndarray, a: np.ndarray, b: np.ndarray, bias: np.ndarray, acc: str) -> None:
    if acc[0] == "i":
        with np.errstate(over="ignore"):
            assert (got == np.matmul(wide(a, acc), wide(b, acc)) + bias).all()
        return
    a64, b64 = wide(a, acc), wide(b, acc)
    # Each of the k + 1 additions and the products in them are rounded once.
    bound = (a.shape[-1] + 3) * np.finfo(NUMPY[acc]).eps * (np.abs(a64) @ np.abs(b64) + np.abs(bias)) + 1e-30
    assert (np.abs(got - (a64 @ b64 + bias)) <= bound).all()


def run_case(acc: str, a_type: str, b_type: str, case: Case, flags: tuple[str, ...] = ()) -> None:
    rng = np.random.default_rng(case.seed)
    a = laid_out(rng, a_type, case.layout_a, case.batch, case.m, case.k)
    b = laid_out(rng, b_type, case.layout_b, case.batch, case.k, case.n)
    got, bias = product(library(acc, a_type, b_type, flags=flags), case, a, b, acc, flags)
    check(got, a, b, bias, acc)


@pytest.mark.parametrize("flags", instruction_sets(), ids=lambda flags: "".join(flags) or "native")
@settings(max_examples=60, deadline=None)
@given(case=CASES)
@example(case=Case(1, 3, 200, 513, packed_b=True))
@example(case=Case(1, 1, 300, 1000, layout_b="columns"))
@example(case=Case(1, 200, 600, 300, packed_a=True, packed_b=True, workers=3))
@example(case=Case(2, 29, 48, 0, packed_b=True))
def test_float32(flags: tuple[str, ...], case: Case) -> None:
    run_case("f32", "f32", "f32", case, flags)


@pytest.mark.parametrize(
    ("acc", "a_type", "b_type"),
    [
        ("f32", "f16", "bf16"),
        ("f32", "bool", "f16"),
        ("f64", "f64", "f64"),
        ("f64", "f32", "f64"),
        ("i32", "i32", "i32"),
        ("i32", "u8", "i8"),
        ("i64", "i64", "i64"),
        ("i64", "i16", "i32"),
    ],
)
@settings(max_examples=25, deadline=None)
@given(case=CASES)
def test_dtypes(acc: str, a_type: str, b_type: str, case: Case) -> None:
    run_case(acc, a_type, b_type, case)


@pytest.mark.parametrize("flags", instruction_sets()[1:], ids=lambda flags: "".join(flags))
@pytest.mark.parametrize("acc", ["f64", "i32", "i64"])
@settings(max_examples=15, deadline=None)
@given(case=CASES)
def test_older_instruction_sets(acc: str, flags: tuple[str, ...], case: Case) -> None:
    run_case(acc, acc, acc, case, flags)


A_HOOK = r"""
/* A is the contiguous (m, 70) float array of the environment, doubled. */
#define CV_GEMM_LOAD_A(e, batch, m, k, count) \
    cv_mul_f32(cv_splat_f32(2), cv_load_part_f32((const float *)((const env *)(e))->a + (m) * 70 + (k), count))
"""
B_HOOK = r"""
/* B is the contiguous (70, 50) float array of the environment, plus its row number. */
#define CV_GEMM_LOAD_B(e, batch, k, n, count) \
    cv_add_f32(cv_splat_f32((float)(k)), cv_load_part_f32((const float *)((const env *)(e))->b + (k) * 50 + (n), count))
"""
B_ALONG_K_HOOK = r"""
/* B is the transpose of the contiguous (50, 70) float array of the environment, minus its column number. */
#define CV_GEMM_LOAD_B_ALONG_K(e, batch, k, n, count) \
    cv_sub_f32(cv_load_part_f32((const float *)((const env *)(e))->b + (n) * 70 + (k), count), cv_splat_f32((float)(n)))
"""


@pytest.mark.parametrize("hook", ["rows", "along k"])
@pytest.mark.parametrize("packed_b", [False, True])
@pytest.mark.parametrize("m", [1, 5, 33])
def test_prologue_hooks(hook: str, packed_b: bool, m: int) -> None:
    rng = np.random.default_rng(3)
    n, k = 50, 70
    a = rng.standard_normal((1, m, k)).astype(np.float32)
    memory = rng.standard_normal((k, n) if hook == "rows" else (n, k)).astype(np.float32)
    b = memory + np.arange(k)[:, None] if hook == "rows" else (memory - np.arange(n)[:, None]).T
    lib = library("f32", "f32", "f32", A_HOOK + (B_HOOK if hook == "rows" else B_ALONG_K_HOOK))
    out, bias = np.zeros((m, n), np.float32), np.zeros(n, np.float32)
    env = Env(out.ctypes.data, bias.ctypes.data, 0, n, 0, a.ctypes.data, memory.ctypes.data)
    with context(2) as ctx:
        left, right = Matrix(), Matrix()
        if packed_b:
            room = aligned(lib.packed_b_bytes(k, n))
            lib.pack_b(ctx, ctypes.byref(env), room.ctypes.data, ctypes.byref(right), k, n)
            right = Matrix(room.ctypes.data, 0, 0, 0, 1)
        lib.run(ctx, ctypes.byref(env), 1, m, n, k, ctypes.byref(left), ctypes.byref(right))
    check(out[None], 2 * a, b[None].astype(np.float64), bias, "f32")


def test_offset_hooks() -> None:
    lib = library(
        "f32",
        "f32",
        "f32",
        "#define CV_GEMM_A_OFFSET(e, batch) ((batch) % 2 * 15)\n#define CV_GEMM_B_OFFSET(e, batch) ((batch) / 2 * 20)",
    )
    rng = np.random.default_rng(4)
    a, b = draw(rng, "f32", (2, 3, 5)), draw(rng, "f32", (3, 5, 4))
    got, bias = product(lib, Case(6, 3, 4, 5), a, b, "f32")
    check(got, np.stack([a[i % 2] for i in range(6)]), np.stack([b[i // 2] for i in range(6)]), bias, "f32")


@pytest.mark.parametrize("packed_b", [False, True])
def test_rows_do_not_depend_on_their_company(packed_b: bool) -> None:
    """The value of a row has the same bits for every number of rows and threads."""
    rng = np.random.default_rng(5)
    lib = library("f32", "f32", "f32")
    a, b = draw(rng, "f32", (1, 100, 700)), draw(rng, "f32", (1, 700, 200))
    whole, _ = product(lib, Case(1, 100, 200, 700, packed_b=packed_b, workers=3), a, b, "f32")
    for m in (1, 2, 3, 5, 14, 15, 29, 64):
        for workers in (1, 2):
            part, _ = product(lib, Case(1, m, 200, 700, packed_b=packed_b, workers=workers), a[:, :m], b, "f32")
            assert (part == whole[:, :m]).all()


def test_infinities_and_nans_stay_in_their_row_and_column() -> None:
    rng = np.random.default_rng(6)
    a, b = draw(rng, "f32", (1, 20, 300)), draw(rng, "f32", (1, 300, 50))
    a[0, 7, 100] = np.nan
    b[0, 299, 49] = np.inf
    for packed_b in (False, True):
        got, _ = product(library("f32", "f32", "f32"), Case(1, 20, 50, 300, packed_b=packed_b), a, b, "f32")
        assert np.isnan(got[0, 7]).all()
        others = np.delete(got[0], 7, 0)
        assert np.isinf(others[:, 49]).all()
        assert np.isfinite(others[:, :49]).all()


def test_memory_shortage_is_reported() -> None:
    """A depth that would need more scratch memory than there can be (the strides are 0: nothing is read)."""
    lib = library("f32", "f32", "f32")
    one = np.ones(64, np.float32)
    env = Env(one.ctypes.data, one.ctypes.data, 0, 0, 0, 0, 0)
    with context(1) as ctx:
        left, right = Matrix(one.ctypes.data, 0, 0, 0, 0), Matrix(one.ctypes.data, 0, 0, 0, 1)
        lib.run(ctx, ctypes.byref(env), 1, 1, 1, 1 << 56, ctypes.byref(left), ctypes.byref(right))
        assert error(ctx)[0] == 2


AVX512_BF16, AMX_BF16 = 1 << 3, 1 << 7
#: Features to hide: what is left is AMX (where the machine has it), AVX512-BF16, neither.
NARROW = {"all": 0, "no AMX": AMX_BF16, "none": AMX_BF16 | AVX512_BF16}
BF16 = "#define CV_GEMM_BF16 1\n"


def has_bf16(hidden: int) -> bool:
    return bool(runtime().cv_cpu_features() & (AVX512_BF16 | AMX_BF16) & ~hidden)


def rounded(array: np.ndarray) -> np.ndarray:
    return array.astype(NUMPY["bf16"]).astype(np.float32)


@pytest.mark.parametrize("hidden", NARROW.values(), ids=list(NARROW))
@pytest.mark.parametrize("a_type", ["f32", "bf16"])
@settings(max_examples=60, deadline=None)
@given(case=CASES)
@example(case=Case(1, 3, 200, 513, packed_b=True))
@example(case=Case(1, 200, 600, 1300, packed_a=True, packed_b=True, workers=3))
@example(case=Case(2, 45, 70, 1, layout_b="columns"))
@example(case=Case(2, 29, 48, 0, packed_b=True))
def test_bfloat16_products(a_type: str, hidden: int, case: Case) -> None:
    """Both operands are rounded to bfloat16 where the machine multiplies it, and none where it does not."""
    rng = np.random.default_rng(case.seed)
    a = laid_out(rng, a_type, case.layout_a, case.batch, case.m, case.k)
    b = laid_out(rng, a_type, case.layout_b, case.batch, case.k, case.n)
    with hidden_features(hidden):
        got, bias = product(library("f32", a_type, a_type, BF16), case, a, b, "f32")
    if has_bf16(hidden):
        a, b = rounded(a), rounded(b)
    check(got, a, b, bias, "f32")


@pytest.mark.parametrize("hidden", NARROW.values(), ids=list(NARROW))
@pytest.mark.parametrize("packed_b", [False, True])
def test_bfloat16_products_keep_special_values_apart(packed_b: bool, hidden: int) -> None:
    rng = np.random.default_rng(6)
    a, b = draw(rng, "f32", (1, 40, 301)), draw(rng, "f32", (1, 301, 50))
    a[0, 7, 100] = np.nan
    a[0, 9, 300] = -np.inf
    a[0, 11, 0] = 3.4e38  # infinite in bfloat16
    b[0, 300, 49] = np.inf
    b[0, 0, :] = 1e-3
    with hidden_features(hidden):
        got, _ = product(library("f32", "f32", "f32", BF16), Case(1, 40, 50, 301, packed_b=packed_b), a, b, "f32")
    assert np.isnan(got[0, 7]).all()
    assert np.isinf(got[0, 9]).all()
    assert np.isinf(got[0, 11, :49]).all() == has_bf16(hidden)
    others = np.delete(got[0], (7, 9, 11), 0)
    assert np.isinf(others[:, 49]).all()
    assert np.isfinite(others[:, :49]).all()


@pytest.mark.parametrize("hook", ["rows", "along k"])
@pytest.mark.parametrize("packed_b", [False, True])
@pytest.mark.parametrize("m", [1, 5, 33])
def test_bfloat16_prologue_hooks(hook: str, packed_b: bool, m: int) -> None:
    rng = np.random.default_rng(3)
    n, k = 50, 70
    a = rng.standard_normal((1, m, k)).astype(np.float32)
    memory = rng.standard_normal((k, n) if hook == "rows" else (n, k)).astype(np.float32)
    ramp = np.arange(k if hook == "rows" else n, dtype=np.float32)[:, None]
    b = memory + ramp if hook == "rows" else (memory - ramp).T
    lib = library("f32", "f32", "f32", A_HOOK + (B_HOOK if hook == "rows" else B_ALONG_K_HOOK) + BF16)
    out, bias = np.zeros((m, n), np.float32), np.zeros(n, np.float32)
    env = Env(out.ctypes.data, bias.ctypes.data, 0, n, 0, a.ctypes.data, memory.ctypes.data)
    with context(2) as ctx:
        left, right = Matrix(), Matrix()
        if packed_b:
            room = aligned(lib.packed_b_bytes(k, n))
            lib.pack_b(ctx, ctypes.byref(env), room.ctypes.data, ctypes.byref(right), k, n)
            right = Matrix(room.ctypes.data, 0, 0, 0, 1)
        lib.run(ctx, ctypes.byref(env), 1, m, n, k, ctypes.byref(left), ctypes.byref(right))
    left32, right32 = (rounded(2 * a), rounded(b)) if has_bf16(0) else (2 * a, b)
    check(out[None], left32, right32[None], bias, "f32")


@pytest.mark.parametrize("hidden", NARROW.values(), ids=list(NARROW))
def test_bfloat16_rows_do_not_depend_on_their_company(hidden: int) -> None:
    rng = np.random.default_rng(5)
    lib = library("f32", "f32", "f32", BF16)
    a, b = draw(rng, "f32", (1, 100, 1400)), draw(rng, "f32", (1, 1400, 200))
    with hidden_features(hidden):
        whole, _ = product(lib, Case(1, 100, 200, 1400, packed_b=True, workers=3), a, b, "f32")
        for m in (1, 5, 15, 17, 33, 64):
            for workers in (1, 2):
                part, _ = product(lib, Case(1, m, 200, 1400, packed_b=True, workers=workers), a[:, :m], b, "f32")
                assert (part == whole[:, :m]).all()
