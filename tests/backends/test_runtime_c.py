"""The runtime library: parallel loops, nesting, sharing, fork, scratch memory, the error flag, processors."""

from __future__ import annotations

import ctypes
import os
import threading
from pathlib import Path

import numpy as np
import pytest

from .c_library import CODES, compile_c, context, error, machine, runtime

# A loop that writes its range's number of calls, worker and begin to every element of the range.
LOOPS = r"""
#include "cuvil/runtime.h"
#include <unistd.h>

typedef struct { cv_ctx *ctx; int64_t *visits, *begins, *workers; int64_t inner; int usleep_for; } marks;

static void mark(void *arg, int64_t begin, int64_t end, int worker) {
    marks *m = arg;
    for (int64_t i = begin; i < end; i++) {
        m->visits[i]++;
        m->begins[i] = begin;
        m->workers[i] = worker;
    }
    if (m->usleep_for) usleep((unsigned)m->usleep_for);
}

void run(cv_ctx *ctx, int64_t n, int64_t grain, int64_t *visits, int64_t *begins, int64_t *workers, int usleep_for) {
    marks m = {ctx, visits, begins, workers, 0, usleep_for};
    cv_parallel(ctx, n, grain, mark, &m);
}

static void outer(void *arg, int64_t begin, int64_t end, int worker) {
    marks *m = arg;
    for (int64_t i = begin; i < end; i++) {
        marks inner = {m->ctx, m->visits + i * m->inner, m->begins + i * m->inner, m->workers + i * m->inner, 0, 0};
        cv_parallel(m->ctx, m->inner, 1, mark, &inner);
        for (int64_t j = 0; j < m->inner; j++) {
            if (inner.workers[j] != worker) m->visits[i * m->inner + j] = -1000;
        }
    }
}

void run_nested(cv_ctx *ctx, int64_t n, int64_t inner, int64_t *visits, int64_t *begins, int64_t *workers) {
    marks m = {ctx, visits, begins, workers, inner, 0};
    cv_parallel(ctx, n, 1, outer, &m);
}

static void fill_scratch(void *arg, int64_t begin, int64_t end, int worker) {
    marks *m = arg;
    int64_t *mine = cv_scratch(m->ctx, worker, (size_t)m->inner * sizeof *mine);
    if (!mine || (uintptr_t)mine % 64) return;
    for (int64_t i = 0; i < m->inner; i++) mine[i] = worker;
    usleep(1000);
    for (int64_t i = begin; i < end; i++) {
        m->visits[i] = 1;
        for (int64_t j = 0; j < m->inner; j++) m->visits[i] &= mine[j] == worker;
    }
}

void run_scratch(cv_ctx *ctx, int64_t n, int64_t count, int64_t *visits) {
    marks m = {ctx, visits, 0, 0, count, 0};
    int64_t *shared = cv_scratch_shared(ctx, (size_t)count * sizeof *shared);
    if (!shared || (uintptr_t)shared % 64) return;
    for (int64_t i = 0; i < count; i++) shared[i] = -7;
    cv_parallel(ctx, n, 1, fill_scratch, &m);
    for (int64_t i = 0; i < count; i++) if (shared[i] != -7) visits[0] = -1;
}

void fail(cv_ctx *ctx, int code, int64_t a, int64_t b) { cv_fail(ctx, code, a, b); }

static void fail_body(void *arg, int64_t begin, int64_t end, int worker) {
    (void)worker;
    for (int64_t i = begin; i < end; i++) cv_fail(arg, CV_EINDEX, i, 2 * i);
}
void fail_in_loop(cv_ctx *ctx, int64_t n) { cv_parallel(ctx, n, 1, fail_body, ctx); }
void *scratch(cv_ctx *ctx, size_t bytes) { return cv_scratch(ctx, 0, bytes); }
"""


@pytest.fixture(scope="module")
def loops() -> ctypes.CDLL:
    library = compile_c(LOOPS)
    pointer, i64 = ctypes.c_void_p, ctypes.c_int64
    library.run.argtypes = [pointer, i64, i64, pointer, pointer, pointer, ctypes.c_int]
    library.run_nested.argtypes = [pointer, i64, i64, pointer, pointer, pointer]
    library.run_scratch.argtypes = [pointer, i64, i64, pointer]
    library.fail.argtypes = [pointer, ctypes.c_int, i64, i64]
    library.fail_in_loop.argtypes = [pointer, i64]
    library.scratch.argtypes = [pointer, ctypes.c_size_t]
    library.scratch.restype = pointer
    return library


def marks(loops: ctypes.CDLL, ctx: ctypes.c_void_p, n: int, grain: int, sleep: int = 0) -> np.ndarray:
    out = np.zeros((3, max(n, 1)), np.int64)
    loops.run(ctx, n, grain, out[0].ctypes.data, out[1].ctypes.data, out[2].ctypes.data, sleep)
    return out[:, :n]


@pytest.mark.parametrize("workers", [1, 2, 3, 7])
@pytest.mark.parametrize("n", [0, 1, 2, 3, 5, 8, 100, 1001])
@pytest.mark.parametrize("grain", [0, 1, 3, 1000])
def test_ranges_cover_once_and_balance(loops: ctypes.CDLL, workers: int, n: int, grain: int) -> None:
    with context(workers) as ctx:
        visits, begins, who = marks(loops, ctx, n, grain)
    assert (visits == 1).all()
    assert set(who.tolist()) <= set(range(workers))
    starts, lengths = np.unique(begins, return_counts=True)
    assert len(starts) == min(workers, -(-n // max(grain, 1)))
    if n:
        assert lengths.max() - lengths.min() <= 1


def test_workers_run_at_once(loops: ctypes.CDLL) -> None:
    with context(3) as ctx:
        assert set(marks(loops, ctx, 3, 1, sleep=20000)[2].tolist()) == {0, 1, 2}


def test_many_loops_awake_and_asleep(loops: ctypes.CDLL) -> None:
    with context(2) as ctx:
        for i in range(3000):
            assert marks(loops, ctx, 2, 1, sleep=300 if i % 500 == 0 else 0)[0].tolist() == [1, 1]


def test_threads_start_late(loops: ctypes.CDLL) -> None:
    library = runtime()
    pool = library.cv_pool_create(3)
    ctx = library.cv_ctx_create(pool)
    assert library.cv_pool_workers(pool) == 3
    marks(loops, ctx, 10, 10)
    assert library.cv_pool_threads(pool) == 0
    marks(loops, ctx, 10, 1)
    assert library.cv_pool_threads(pool) == 2
    library.cv_ctx_destroy(ctx)
    library.cv_pool_destroy(pool)


def test_pool_needs_a_worker() -> None:
    assert runtime().cv_pool_create(0) is None


def test_nested_loops_run_inline(loops: ctypes.CDLL) -> None:
    with context(3) as ctx:
        out = np.zeros((3, 5 * 11), np.int64)
        loops.run_nested(ctx, 5, 11, out[0].ctypes.data, out[1].ctypes.data, out[2].ctypes.data)
    assert (out[0] == 1).all()
    # The cut of the inner loop is the one that a free pool would have used.
    assert (out[1].reshape(5, 11) == [0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8]).all()


def test_callers_share_a_pool(loops: ctypes.CDLL) -> None:
    library = runtime()
    pool = library.cv_pool_create(2)
    failures: list[object] = []

    def call() -> None:
        ctx = library.cv_ctx_create(pool)
        for _ in range(300):
            out = marks(loops, ctx, 50, 1)
            if not (out[0] == 1).all() or len(set(out[1].tolist())) != 2:
                failures.append(out)
        library.cv_ctx_destroy(ctx)

    threads = [threading.Thread(target=call) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    library.cv_pool_destroy(pool)
    assert not failures


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_fork_gives_the_child_a_working_pool(loops: ctypes.CDLL) -> None:
    library = runtime()
    pool = library.cv_pool_create(3)
    ctx = library.cv_ctx_create(pool)
    marks(loops, ctx, 9, 1)
    child = os.fork()
    if child == 0:
        ok = library.cv_pool_threads(pool) == 0
        for _ in range(50):
            ok = ok and bool((marks(loops, ctx, 9, 1)[0] == 1).all())
        ok = ok and library.cv_pool_threads(pool) == 2
        library.cv_ctx_destroy(ctx)
        library.cv_pool_destroy(pool)
        os._exit(0 if ok else 1)
    assert (marks(loops, ctx, 9, 1)[0] == 1).all()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    library.cv_ctx_destroy(ctx)
    library.cv_pool_destroy(pool)


def test_scratch_is_private_aligned_and_kept(loops: ctypes.CDLL) -> None:
    with context(3) as ctx:
        for count in (10, 1000, 5):
            ok = np.zeros(6, np.int64)
            loops.run_scratch(ctx, 6, count, ok.ctypes.data)
            assert ok.tolist() == [1] * 6
        bytes_before = runtime().cv_ctx_scratch_bytes(ctx)
        assert bytes_before >= 4 * 8000
        loops.run_scratch(ctx, 6, 1000, ok.ctypes.data)
        assert runtime().cv_ctx_scratch_bytes(ctx) == bytes_before
        assert loops.scratch(ctx, 0) is not None


def test_scratch_that_cannot_be_had_sets_the_error(loops: ctypes.CDLL) -> None:
    with context(1) as ctx:
        assert loops.scratch(ctx, 1 << 62) is None
        assert error(ctx) == (CODES["memory"], 1 << 62, 0)
        runtime().cv_ctx_reset(ctx)
        assert loops.scratch(ctx, (1 << 64) - 1) is None
        assert error(ctx)[0] == CODES["memory"]
        assert loops.scratch(ctx, 100) is not None


def test_first_error_wins_until_reset(loops: ctypes.CDLL) -> None:
    with context(2) as ctx:
        assert error(ctx)[0] == CODES["ok"]
        loops.fail(ctx, CODES["domain"], -1, 1 << 40)
        loops.fail(ctx, CODES["index"], 5, 6)
        assert error(ctx) == (CODES["domain"], -1, 1 << 40)
        runtime().cv_ctx_reset(ctx)
        assert error(ctx)[0] == CODES["ok"]
        loops.fail_in_loop(ctx, 1000)
        code, a, b = error(ctx)
        assert code == CODES["index"]
        assert 0 <= a < 1000
        assert b == 2 * a


def test_available_cpus_follow_the_affinity_mask() -> None:
    cpus = runtime().cv_available_cpus()
    if hasattr(os, "sched_getaffinity"):
        assert 1 <= cpus <= len(os.sched_getaffinity(0))
    else:
        assert 1 <= cpus <= (os.cpu_count() or 1)


@pytest.mark.skipif(not Path("/proc/cpuinfo").exists() or machine() != "x86_64", reason="reads Linux's list of flags")
def test_features_agree_with_the_kernel() -> None:
    text = Path("/proc/cpuinfo").read_text()
    flags = set(next(line for line in text.splitlines() if line.startswith("flags")).split(":")[1].split())
    features = runtime().cv_cpu_features()
    expected = {
        0: {"avx2", "fma", "f16c"},
        1: {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"},
        2: {"avx512_vnni"},
        3: {"avx512_bf16"},
        4: {"avx512_fp16"},
        5: {"avx_vnni"},
    }
    for bit, names in expected.items():
        assert bool(features >> bit & 1) == (names <= flags), names
    if features >> 6 & 3:
        assert {"amx_tile"} <= flags
