"""Calls of compiled functions: the same through the native dispatcher and through ctypes, without leaks or locks."""

from __future__ import annotations

import copy
import ctypes
import gc
import logging
import os
import resource
import subprocess
import sys
import threading
import time
import tracemalloc
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, cast

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cuvil
import cuvil.compiler
import cuvil.jit
import cuvil.numpy as cnp
from cuvil.backends.c.toolchain import compile_shared
from cuvil.frontend import pytree
from cuvil.runtime import dispatch
from cuvil.runtime.dispatch import DispatchModule
from cuvil.support.errors import ArgumentError, BackendError, DTypeError, IndexOutOfBoundsError, ToolchainError

jit_module: Any = sys.modules["cuvil.jit"]  # `cuvil.jit` is the function


@pytest.fixture(params=["native", "ctypes"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The way that calls go, of both."""
    monkeypatch.setenv("CUVIL_DISPATCH", request.param)
    return request.param


@pytest.fixture
def native(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUVIL_DISPATCH", "native")


@pytest.fixture(scope="module")
def module() -> DispatchModule:
    with pytest.MonkeyPatch.context() as m:
        m.setenv("CUVIL_DISPATCH", "native")
        loaded = cuvil.compiler.start_dispatcher().result()
    assert loaded is not None
    return loaded


def never_read(f: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on the general way of reading a call of ``f`` fails."""

    def read(*_: Any) -> Any:
        raise AssertionError("the call went the general way")

    monkeypatch.setattr(f, "_read", read)


class Pair(NamedTuple):
    a: Any
    b: Any


X = np.arange(12, dtype=np.float32).reshape(3, 4)
W = np.linspace(-1, 1, 16, dtype=np.float32).reshape(4, 4)
UNALIGNED = np.zeros(X.nbytes + 1, np.uint8)[1:].view(np.float32).reshape(X.shape)
UNALIGNED[...] = X
READ_ONLY = X.copy()
READ_ONLY.setflags(write=False)
DEEP: Any = X
for _ in range(70):
    DEEP = [DEEP]

# (function, arguments, named arguments, whether the dispatcher reads them)
CALLS: dict[str, tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any], bool]] = {
    "array": (lambda x: x + 1, (X,), {}, True),
    "matrices": (lambda x, w: cnp.sum(x @ w, axis=1), (X, W), {}, True),
    "named": (lambda x, *, m: x * m, (X,), {"m": X}, True),
    "containers": (
        lambda p, x: {"y": x @ p["w"][0] + p["b"], "w": p["w"][1][0]},
        ({"w": [W, (X[0], None)], "b": X[1]}, X),
        {},
        True,
    ),
    "tuple out": (lambda x: (x + 1, x - 1), (X,), {}, True),
    "list out": (lambda x: [x + 1, x - 1, x], (X,), {}, True),
    "nested out": (lambda x: [x + 1, (None, {"x": x})], (X,), {}, True),
    "empty out": (lambda x: (), (X,), {}, True),
    "named tuple out": (lambda x: Pair(x, x * 2), (X,), {}, True),
    "dict with numbers out": (lambda x: {1: x, 2: x * 2}, (X,), {}, True),
    "python numbers": (lambda x, a, b, c: cnp.where(c, x * a, x + b), (X, 2.5, -3, True), {}, True),
    "False": (lambda x, c: cnp.where(c, x, -x), (X, False), {}, True),
    "a large int": (lambda a: a + 1, (2**62,), {}, True),
    "no arguments": (lambda: cnp.arange(3) * 2, (), {}, True),
    "unused": (lambda x, _: x, (X, W), {}, True),
    "zero size": (lambda x: (x + 1, cnp.sum(x)), (np.zeros((0, 4), np.float32),), {}, True),
    "rank 0": (lambda x: x + 1, (np.array(2.0),), {}, True),
    "not contiguous": (lambda x, y: x + y, (X.T, W[:, ::-1][:, :3]), {}, True),
    "broadcast": (lambda x: x + 1, (np.broadcast_to(X[0], (5, 4)),), {}, True),
    "unaligned": (lambda x: x + 1, (UNALIGNED,), {}, True),
    "read-only": (lambda x: x + 1, (READ_ONLY,), {}, True),
    "Fortran order": (lambda x: x @ x.T, (np.asfortranarray(X),), {}, True),
    "bfloat16": (lambda x: x + x, (X.astype(ml_dtypes.bfloat16),), {}, True),
    "integers and bools": (lambda i, b: (cnp.where(b, i, 0), i > 3), (np.arange(9), np.arange(9) % 2 == 0), {}, True),
    "byte-swapped": (lambda x: x + 1, (X.astype(">f4"),), {}, False),
    "named tuple in": (lambda p: p.a + p.b, (Pair(X, X),), {}, False),
    "ordered dict in": (lambda d: d["x"] + 1, (OrderedDict(x=X),), {}, False),
    "int keys": (lambda d: d[1] + d[2], ({1: X, 2: X},), {}, False),
    "numpy scalar": (lambda x, s: x * s, (X, np.float32(2)), {}, False),
    "deep": (lambda d: _innermost(d) + 1, (DEEP,), {}, False),
}


def _innermost(tree: Any) -> Any:
    while isinstance(tree, list):
        (tree,) = tree
    return tree


def _leaves(tree: Any) -> tuple[list[Any], Any]:
    return pytree.flatten(tree)


@pytest.mark.parametrize("name", CALLS)
def test_calls_give_what_the_function_gives(name: str, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fn, args, kwargs, short = CALLS[name]
    want, tree = _leaves(fn(*copy.deepcopy(args), **kwargs))
    f = cuvil.jit(fn)
    for call in range(4):
        got, got_tree = _leaves(f(*args, **kwargs))
        assert got_tree == tree
        for g, w in zip(got, want, strict=True):
            w = np.asarray(w)
            assert type(g) is np.ndarray and (g.dtype, g.shape) == (w.dtype, w.shape)
            np.testing.assert_allclose(g.astype(np.float64), w.astype(np.float64), rtol=1e-6)
            assert g.flags.writeable and g.flags.owndata
        if call == 1 and short and path == "native":
            never_read(f, monkeypatch)
    assert [v.hits for v in f.variants()] == [4]
    assert (path == "native" and short) == bool(f._calls)


def test_new_arguments_are_read_each_time(path: str) -> None:
    f = cuvil.jit(lambda x, s: x * s)
    for s in (1.0, 2.5, -0.0, float("inf")):
        for x in (X + 1, X + 2):
            np.testing.assert_array_equal(f(x, s), x * np.float32(s))
    for s in (2, True):
        np.testing.assert_array_equal(f(X, s), X * s)
    assert f(X[:0], 2).shape == (0, 4)


def test_what_differs_is_told_apart(path: str) -> None:
    f = cuvil.jit(lambda t: t)
    trees = [
        (X,), [X], {"a": X}, {"b": X}, ((X,),), (X, None), (None, X), (X, (None,)), (1, X), (True, X), (1.0, X),
        (X.astype(np.int32),), (X.view(np.int32),), (X.T,), (X[None],), (X[0],), {"a": X, "b": W}, {"b": W, "a": X},
    ]  # fmt: skip
    for _ in range(3):
        for tree in trees:
            got, got_tree = _leaves(f(tree))
            want, want_tree = _leaves(tree)
            assert got_tree == want_tree
            for g, w in zip(got, want, strict=True):
                np.testing.assert_array_equal(g, w)
                assert g.dtype == (np.float32 if type(w) is float else np.asarray(w).dtype)


@pytest.mark.usefixtures("native")
def test_equal_keys_of_different_identity_are_one(monkeypatch: pytest.MonkeyPatch) -> None:
    f = cuvil.jit(lambda d: d["weight_of_layer_0"] + 1)
    f({"weight_of_layer_0": X})
    never_read(f, monkeypatch)
    number = int("0")
    np.testing.assert_array_equal(f({f"weight_of_layer_{number}": X}), X + 1)


def test_outputs_share_no_memory(path: str) -> None:
    f = cuvil.jit(lambda x: (x, x, x + 0, cnp.reshape(x, (-1,))))
    x = X.copy()
    arrays = [x, *f(x), *f(x), *f(x)]
    for k, a in enumerate(arrays):
        for b in arrays[k + 1 :]:
            assert not np.shares_memory(a, b)


def test_errors_are_raised_and_forgotten(path: str) -> None:
    f = cuvil.jit(lambda x, i: cnp.take(x, i, axis=0))
    good, bad = np.array([1, -1]), np.array([0, 9])
    for _ in range(3):
        with pytest.raises(
            IndexOutOfBoundsError,
            match=r"take: index 9 is out of bounds for an axis of size 3 \(at .*test_dispatch.py:\d+\); pass mode=",
        ):
            f(X, bad)
        np.testing.assert_array_equal(f(X, good), X[good])


def test_no_memory(path: str) -> None:
    f = cuvil.jit(lambda x: cnp.sum(x[:, None] + x[None, :] * cnp.ones((1, 1)), axis=0), shapes="static")
    g = cuvil.jit(lambda x: x[:, None] + x[None, :], input_spec=[("x", "float32", ("N",))])
    assert f(np.ones(3, np.float32)).tolist() == [6, 6, 6]
    huge = np.broadcast_to(np.float32(1), (1 << 23,))  # 2**48 bytes out
    for _ in range(2):
        with pytest.raises(MemoryError):
            g(huge)
        assert g(np.ones(2, np.float32)).tolist() == [[2, 2], [2, 2]]


def test_a_number_that_fits_no_dtype(path: str) -> None:
    f = cuvil.jit(lambda x, n: x + n)
    f(X, 1)
    with pytest.raises(DTypeError, match="does not fit int64"):
        f(X, 2**64)
    np.testing.assert_array_equal(f(X, -(2**53)), X - np.float32(2**53))


def test_a_container_that_contains_itself(path: str) -> None:
    f = cuvil.jit(lambda t: t[0])
    f([X])
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(RecursionError):
        f(loop)


def test_calls_inside_a_trace_are_inlined(path: str) -> None:
    inner = cuvil.jit(lambda x: x * 2)
    inner(X)
    outer = cuvil.jit(lambda x: inner(x) + inner(X))
    for _ in range(2):
        np.testing.assert_array_equal(outer(X), X * 4)


def test_static_arguments(path: str) -> None:
    f = cuvil.jit(lambda x, axis: cnp.sum(x, axis=axis), static_argnames="axis")
    for _ in range(3):
        for axis in (0, 1):
            np.testing.assert_allclose(f(X, axis=axis), X.sum(axis))


def test_guards_and_variants(path: str) -> None:
    f = cuvil.jit(lambda x, y: x + y)
    shapes = [((3,), (3,)), ((4,), (4,)), ((1,), (5,)), ((7,), (7,)), ((0,), (1,))]
    for _ in range(3):
        for a, b in shapes:
            assert f(np.ones(a, np.float32), np.ones(b, np.float32)).tolist() == [2] * np.broadcast_shapes(a, b)[0]


@pytest.mark.usefixtures("native")
def test_the_least_recently_used_call_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jit_module, "_EXACT_CALLS", 3)
    f = cuvil.jit(lambda x: x * 2, input_spec=[("x", "float32", ("N",))])

    def call(n: int) -> None:
        x = np.arange(n, dtype=np.float32)
        np.testing.assert_array_equal(f(x), x * 2)

    for n in range(40):
        call(n)
        call(0)
        assert len(f._calls) <= 3
    with monkeypatch.context() as m:
        never_read(f, m)
        for n in (0, 38, 39):
            call(n)
        with pytest.raises(AssertionError, match="general way"):
            call(37)


@pytest.mark.usefixtures("native")
def test_containers_that_flatten_otherwise_go_the_general_way(monkeypatch: pytest.MonkeyPatch) -> None:
    by_key = pytree.NodeType(
        lambda x: (tuple(x[k] for k in sorted(x)), tuple(sorted(x))),
        lambda a, c: dict(zip(a[1], c, strict=True)),
        lambda aux, _: [f"[{k!r}]" for k in aux],
    )
    monkeypatch.setitem(pytree._REGISTERED, dict, by_key)
    f = cuvil.jit(lambda d: d["a"] - d["b"])
    for _ in range(3):
        np.testing.assert_array_equal(f({"b": X, "a": X + 1}), np.ones_like(X))
    assert len(f._calls) == 0


# ------------------------------------------------------------------------------------------------ threads and processes


def test_threads(path: str) -> None:
    f = cuvil.jit(lambda p, x: {"y": cnp.sum(cnp.exp(x @ p["w"]), axis=-1), "x": x})
    w = np.random.default_rng(0).standard_normal((8, 16)).astype(np.float32)
    wrong: list[Any] = []

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(150):
            x = rng.standard_normal((int(rng.integers(0, 12)) * int(rng.integers(1, 60)), 8)).astype(np.float32)
            out = f({"w": w}, x)
            if not np.allclose(out["y"], np.exp(x @ w).sum(-1), rtol=1e-4) or not np.array_equal(out["x"], x):
                wrong.append(x)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(5)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong
    if path == "native":
        assert all(v.compiled.native.native.workspaces <= len(threads) for v in f.variants())


def test_other_threads_run_during_a_long_call(path: str) -> None:
    f = cuvil.jit(lambda x: cnp.sum(cnp.sin(cnp.exp(x[:, None] * x[None, :]))))
    x = np.linspace(0, 1, 6000).astype(np.float32)
    f(x)
    f(x)
    turns: list[float] = []
    stop = threading.Event()

    def turn() -> None:
        while not stop.is_set():
            turns.append(time.perf_counter())
            time.sleep(0.0005)

    other = threading.Thread(target=turn)
    other.start()
    try:
        for _ in range(20):  # a machine may be too busy to give the other thread a turn in one short call
            start = time.perf_counter()
            f(x)
            end = time.perf_counter()
            inside = [t for t in list(turns) if start + (end - start) / 4 < t < end - (end - start) / 4]
            if inside:
                break
    finally:
        stop.set()
        other.join()
    assert inside, f"no other thread had a turn in the middle of a call of {end - start:.3f} s"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_fork(path: str) -> None:
    script = """
import os, numpy as np, cuvil, cuvil.numpy as cnp
f = cuvil.jit(lambda x: cnp.sum(cnp.exp(x), axis=1))
small, large = np.ones((2, 3), np.float32), np.ones((4096, 64), np.float32)
want = [f(x) for x in (small, large, small, large)]
pid = os.fork()
if pid == 0:
    ok = all(np.array_equal(f(x), w) for x, w in zip((small, large), want))
    g = cuvil.jit(lambda x: x * 3 + 1)  # the child compiles, too
    ok = ok and all(np.array_equal(g(small), small * 3 + 1) for _ in range(3))
    os._exit(0 if ok else 3)
assert os.waitpid(pid, 0)[1] == 0
assert np.array_equal(f(large), want[1])
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60, env={**os.environ, "CUVIL_NUM_THREADS": "3"})


# ------------------------------------------------------------------------------------------------------------- memory


def _resident_peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _rounds(f: Any, count: int) -> Iterator[Callable[[], None]]:
    """Rounds of calls of each kind: short, of new containers, failing, and the general way."""
    bf16 = X.astype(ml_dtypes.bfloat16)
    calls = [
        lambda: f({"x": X, "i": I_GOOD}, 2.0),
        lambda: f({"x": bf16, "i": I_GOOD}, 3),
        lambda: f({"x": X.T, "i": I_GOOD}, True),
        lambda: f(Pair(X, 1.0), 2.0, i=I_GOOD),
    ]

    def many() -> None:
        for _ in range(count):
            for call in calls:
                call()
            try:
                f({"x": X, "i": I_BAD}, 2.0)
            except IndexOutOfBoundsError:
                pass

    yield many


I_GOOD, I_BAD = np.array([0, 1]), np.array([0, 99])


def _rows(t: Any, s: Any, i: Any = None) -> Any:
    if isinstance(t, Pair):
        return [cnp.take(t.a, i, axis=0) * s * t.b]
    return {"y": cnp.take(t["x"], t["i"], axis=0) * s, "n": (t["i"],)}


def test_calls_leak_nothing(path: str) -> None:
    f = cuvil.jit(_rows)
    count = 20_000 if path == "native" else 1_000
    (many,) = _rounds(f, count)
    (few,) = _rounds(f, 300)
    few()
    watched = [X, I_GOOD, I_BAD, X.dtype, np.dtype(ml_dtypes.bfloat16), "hits", _rows, *f.variants()]
    gc.collect()
    before = [sys.getrefcount(w) for w in watched]
    peak = _resident_peak()
    many()
    gc.collect()
    assert [sys.getrefcount(w) for w in watched] == before
    assert _resident_peak() - peak < 4 << 20  # one leaked object of 16 bytes a call would be more where calls are many
    tracemalloc.start()
    try:
        few()
        gc.collect()
        held = tracemalloc.get_traced_memory()[0]
        few()
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] - held < 8 * 300
    finally:
        tracemalloc.stop()


def test_entries_keep_what_they_need_and_no_more(module: DispatchModule) -> None:
    program = _no_op(module, 2)
    plan, owner, key = program.plan((), (), 0, (), True), _Owner(), "".join(["key", "_of_", "this_test"])
    form: Any = lambda outputs: outputs  # noqa: E731 - an object of its own
    watched = [program, plan, owner, form, key, X]

    def references() -> Any:
        return np.array([sys.getrefcount(w) for w in watched])

    before = references()
    calls = module.Calls(1)
    for _ in range(3):
        assert calls.add((X,), {key: 1.0}, [X, np.array(1.0)], program, plan, form, owner)
        for _ in range(10):
            assert calls.run((X,), {key: 2.0}) == []
    assert (references() - before).tolist() == [1, 1, 1, 1, 1, 0]
    assert calls.add((X,), {"k": 1.0}, [X, np.array(1.0)], program, plan, form, owner)  # in its place
    assert (references() - before).tolist() == [1, 1, 1, 1, 0, 0]
    del calls
    assert not (references() - before).any()


_COUNTING = """
#include <stddef.h>
extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);
static long count;
long allocations(void) { return count; }
void *malloc(size_t n) { count++; return __libc_malloc(n); }
void *calloc(size_t n, size_t m) { count++; return __libc_calloc(n, m); }
void *realloc(void *p, size_t n) { count++; return __libc_realloc(p, n); }
void *memalign(size_t a, size_t n) { count++; return __libc_memalign(a, n); }
void *aligned_alloc(size_t a, size_t n) { count++; return __libc_memalign(a, n); }
int posix_memalign(void **p, size_t a, size_t n) { count++; *p = __libc_memalign(a, n); return *p ? 0 : 12; }
"""


@pytest.mark.usefixtures("native")
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs glibc")
def test_a_warm_call_allocates_nothing_on_the_heap() -> None:
    shim = compile_shared({"counting.c": _COUNTING}, name="counting_malloc", extra_flags=["-fno-builtin"])
    script = """
import ctypes, sys, numpy as np, cuvil, cuvil.numpy as cnp
allocations = ctypes.CDLL(sys.argv[1]).allocations
allocations.restype = ctypes.c_long
f = cuvil.jit(lambda p, x, s: (cnp.cumulative_sum(cnp.cumulative_sum(x @ p["w"], axis=1), axis=1), s * cnp.sum(x)))
p, x = {"w": np.ones((8, 8), np.float32)}, np.ones((4, 8), np.float32)
def calls(n):
    for _ in range(n):
        f(p, x, 2.0)
calls(2000)
before = allocations()
calls(2000)
print(allocations() - before)
"""
    env = {**os.environ, "LD_PRELOAD": str(shim), "CUVIL_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", script, str(shim)], env=env, capture_output=True, text=True, timeout=60, check=True
    )
    assert int(done.stdout) < 20  # of 2,000 calls: what the interpreter itself now and then needs


def test_functions_in_cycles_are_freed(path: str) -> None:
    class Model:
        def __init__(self) -> None:
            self.call = cuvil.jit(lambda x: x @ self.w())

        def w(self) -> Any:
            return W

    model = Model()
    for _ in range(3):
        model.call(X)
    gone = [weakref.ref(model), weakref.ref(model.call), weakref.ref(model.call.variants()[0])]
    del model
    gc.collect()
    assert [g() for g in gone] == [None] * 3


@pytest.mark.usefixtures("native")
def test_what_a_call_uses_outlives_what_happens_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """A result's constructor forgets the call's entry and empties its arguments while the call goes on."""
    monkeypatch.setattr(jit_module, "_EXACT_CALLS", 1)
    f: Any = None
    args: list[Any] = []

    class Result:
        def __init__(self, x: Any) -> None:
            self.x = x
            args.clear()
            if f._calls is not None and len(f._calls):
                f([X[0] + 0])  # its entry takes the place of the running call's

    cuvil.register_pytree_node(Result, lambda r: ((r.x,), None), lambda _, c: Result(*c))
    try:
        f = cuvil.jit(lambda t: Result(t[0] + 1) if len(t[0].shape) > 1 else t[0])
        for _ in range(5):
            args[:] = [X.copy()]
            np.testing.assert_array_equal(f(args).x, X + 1)
    finally:
        del pytree._REGISTERED[Result]


# --------------------------------------------------------------------------------------------- which calls are the same

_SHAPES = st.lists(st.integers(0, 2), max_size=3).map(tuple)
_LEAVES = st.one_of(
    st.builds(np.zeros, _SHAPES, st.sampled_from([np.float32, np.int32, np.bool_, ml_dtypes.bfloat16])),
    st.sampled_from([True, False, 0, 1, 0.0, 1.0, -0.0]),
)
_TREES = st.recursive(
    _LEAVES | st.none(),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.sampled_from(["a", "b", "ab"]), inner, max_size=3),
    ),
    max_leaves=5,
)


@settings(max_examples=300, deadline=None)
@given(st.lists(_TREES, min_size=2, max_size=6))
def test_entries_are_as_fine_as_signatures(module: DispatchModule, trees: list[Any]) -> None:
    """Two calls share an entry exactly if the general way reads the same signature."""
    reader: Any = cuvil.jit(lambda t: t)
    calls = module.Calls(100)
    keys: dict[Any, int] = {}
    for number, tree in enumerate(trees):
        signature = reader._read((tree,), {})
        program = _no_op(module, len(signature.arrays))
        plan = program.plan((), (), 0, (), False)
        assert calls.add((tree,), {}, signature.arrays, program, plan, lambda _, n=number: n, _Owner())
        keys.setdefault(signature.key, number)
        assert len(calls) == len(keys)
    for tree in trees:
        assert calls.run((copy.deepcopy(tree),), {}) == keys[reader._read((tree,), {}).key]


class _Owner:
    hits = 0


def _no_op(module: DispatchModule, inputs: int, outputs: Any = ()) -> Any:
    """A program that does nothing: its entry point only reports the CPU's features."""
    library = cuvil.compiler.runtime_library()
    names = ("cv_cpu_features", "cv_ctx_create", "cv_ctx_destroy", "cv_ctx_error", "cv_ctx_reset")
    main, *context = (ctypes.cast(getattr(library.library, n), ctypes.c_void_p).value for n in names)
    return module.Program(main, 0, 0, 0, (library.pool.value, *context), (inputs, 0, 0), outputs, None, library)


# -------------------------------------------------------------------------------------------------- the module's checks


def test_programs_check_what_they_are_given(module: DispatchModule) -> None:
    one, other = _no_op(module, 1), _no_op(module, 1)
    plan = one.plan((), (), 64, (), True)
    assert one.run([X], plan) == [] and one.run((X,), plan) == []
    for call, error, message in [
        (lambda: one.run([X], other.plan((), (), 0, (), False)), ValueError, "that this Program made"),
        (lambda: one.run([X], None), ValueError, "that this Program made"),
        (lambda: one.run([X, X], plan), ValueError, "expected 1 inputs, got 2"),
        (lambda: one.run([1.5], plan), TypeError, "input 0 is no NumPy array but float"),
        (lambda: one.run(plan), TypeError, "got 1 arguments"),
        (lambda: one.plan((1,), (), 0, (), False), ValueError, "symbols: expected 0 numbers, got 1"),
        (lambda: one.plan((), ("a",), 0, (), False), ValueError, "offsets"),
        (lambda: module.Program(1, 2), TypeError, "Program"),
        (lambda: _no_op(module, 0, outputs=((X.dtype, 65),)), ValueError, "at most 64 axes"),
        (lambda: _no_op(module, 0, outputs=(("float32", 1),)), TypeError, "float32|dtype|str"),
    ]:
        with pytest.raises(error, match=message):
            cast(Any, call)()
    assert one.workspaces == 1


def test_calls_check_what_they_are_given(module: DispatchModule) -> None:
    program: Any = _no_op(module, 1)
    plan = program.plan((), (), 0, (), False)
    calls: Any = module.Calls(2)
    assert not calls.add((X,), {}, [W], program, plan, tuple, _Owner())  # another leaf than the general way found
    assert not calls.add((X, X), {}, [X, X], program, plan, tuple, _Owner())
    assert not calls.add((object(),), {}, [X], program, plan, tuple, _Owner())
    assert len(calls) == 0
    for arguments, error, message in [
        (([X], {}), TypeError, "a tuple and a dict"),
        (((X,), {}, [X], None, plan, tuple, None), TypeError, "a list and a Program"),
        (((X,), {}, [X], program, None, tuple, None), ValueError, "that this Program made"),
        (((X,), {}, [X], program, plan, None, None), ValueError, "0 outputs"),
        (((X,), {}, [X], program, plan, ("a",), None), ValueError, "0 outputs"),
    ]:
        with pytest.raises(error, match=message):
            calls.add(*arguments)
    with pytest.raises(ValueError, match="capacity must be at least 1"):
        module.Calls(0)
    assert calls.run((X,), {}) is NotImplemented
    assert calls.add((X,), {}, [X], program, plan, tuple, None)
    with pytest.raises(AttributeError, match="hits"):
        calls.run((X,), {})


# --------------------------------------------------------------------------------------------------------- which way


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuvil.compiler, "_PREPARED", {})
    monkeypatch.delenv("CUVIL_DISPATCH", raising=False)


def _way() -> Any:
    return cuvil.compiler.start_dispatcher().result()


@pytest.mark.usefixtures("fresh")
def test_the_way_is_said_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "cuvil.compiler")
    for _ in range(3):
        assert _way() is not None
    monkeypatch.setenv("CUVIL_DISPATCH", "ctypes")
    for _ in range(3):
        assert _way() is None
    native, by_ctypes = (r.getMessage() for r in caplog.records)
    assert native.startswith("calls go through the native dispatcher /")
    assert by_ctypes == "calls go through ctypes: CUVIL_DISPATCH says so"
    monkeypatch.setenv("CUVIL_DISPATCH", "cffi")
    with pytest.raises(ArgumentError, match="CUVIL_DISPATCH is 'cffi'; expected one of native, ctypes"):
        _way()


@pytest.mark.usefixtures("fresh")
def test_without_headers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "cuvil.compiler")
    monkeypatch.setattr(dispatch, "_python_include", lambda: tmp_path)
    assert _way() is None
    assert f"the headers of Python are not installed: there is no {tmp_path}" in caplog.text
    np.testing.assert_array_equal(cuvil.jit(lambda x: x + 1)(X), X + 1)
    monkeypatch.setenv("CUVIL_DISPATCH", "native")
    for _ in range(2):
        with pytest.raises(BackendError, match="the headers of Python are not installed"):
            _way()
    monkeypatch.undo()
    assert _way() is not None


@pytest.mark.usefixtures("fresh")
def test_a_compiler_that_fails(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "cuvil.compiler")
    monkeypatch.setattr(dispatch, "source", lambda: "#error headers of another Python\n")
    assert _way() is None
    assert "headers of another Python" in caplog.text
    monkeypatch.setenv("CUVIL_DISPATCH", "native")
    with pytest.raises(ToolchainError, match="headers of another Python"):
        _way()
    monkeypatch.undo()
    assert _way() is not None


def test_obstacles(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert dispatch.obstacle() is None
    with monkeypatch.context() as m:
        m.setattr(dispatch.np, "get_include", lambda: str(tmp_path))
        assert dispatch.obstacle() == f"the headers of NumPy are not installed in {tmp_path}"
    with monkeypatch.context() as m:
        m.setattr(sys.implementation, "name", "pypy")
        assert dispatch.obstacle() == "it is made for CPython, and this is pypy"
    with monkeypatch.context() as m:
        m.setattr(dispatch.sysconfig, "get_config_var", lambda name: name == "Py_GIL_DISABLED")
        assert "without the GIL" in (dispatch.obstacle() or "")


def test_a_file_that_is_no_extension(tmp_path: Path) -> None:
    file = tmp_path / "broken.so"
    file.write_bytes(b"not a library")
    with pytest.raises(BackendError, match="cannot load the dispatcher"):
        dispatch.load_dispatch(file)
