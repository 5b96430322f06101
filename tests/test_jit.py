"""jit: arguments and results, constants, the cache of variants, shapes that vary, and what a user does wrong."""

from __future__ import annotations

import dataclasses
import gc
import logging
import operator
import os
import re
import subprocess
import sys
import threading
import weakref
from collections import OrderedDict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import cuvil
import cuvil.numpy as cnp
from cuvil.jit import widen
from cuvil.support.errors import (
    ArgumentError,
    ArgumentTypeError,
    DTypeError,
    IndexOutOfBoundsError,
    ShapeError,
    TracingError,
)
from cuvil.symbolic import symbol

HERE = re.escape(__file__)


def f32(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


X = f32(4, 8)

# ------------------------------------------------------------------------------------------ pytrees and arguments


class Pair(NamedTuple):
    a: Any
    b: Any


@dataclasses.dataclass
class Layer:
    w: Any
    b: Any = None


def test_containers_in_and_out() -> None:
    @cuvil.jit
    def f(t: Any) -> Any:
        return {
            "pair": Pair(t["pair"].a + 1, t["pair"].b),
            "layer": Layer(t["layer"].w * 2, t["layer"].b),
            "list": [t["list"][0], (t["list"][1],), None],
            "empty": ((), [], {}),
        }

    out = f({"pair": Pair(X, None), "layer": Layer(X), "list": [X, 2.5]})
    assert isinstance(out["pair"], Pair) and out["pair"].b is None
    assert isinstance(out["layer"], Layer) and out["layer"].b is None
    assert isinstance(out["list"][1], tuple) and out["list"][2] is None and out["empty"] == ((), [], {})
    np.testing.assert_array_equal(out["pair"].a, X + 1)
    np.testing.assert_array_equal(out["layer"].w, X * 2)
    np.testing.assert_array_equal(out["list"][0], X)
    assert out["list"][1][0] == np.float32(2.5)


def test_dict_order_belongs_to_the_call() -> None:
    f = cuvil.jit(lambda t: {k: v + k.count("b") for k, v in t.items()})
    first, second = f({"a": X, "b": X}), f({"b": X, "a": X})
    assert list(first) == ["a", "b"] and list(second) == ["b", "a"]
    np.testing.assert_array_equal(second["b"], X + 1)
    np.testing.assert_array_equal(second["a"], X)
    assert list(f(OrderedDict(a=X))) == ["a"]


def test_keyword_arguments_and_defaults() -> None:
    @cuvil.jit
    def f(x: Any, *more: Any, scale: Any = 2.0, bias: Any = None) -> Any:
        out = x * scale + sum(more)
        return out if bias is None else out + bias

    np.testing.assert_allclose(f(X), X * 2)
    np.testing.assert_allclose(f(X, scale=3.0), X * 3)
    np.testing.assert_allclose(f(X, X, X, bias=X), X * 5, rtol=1e-6)
    np.testing.assert_allclose(f(x=X), X * 2)
    with pytest.raises(TypeError):
        f()


def test_python_scalars_are_weak_and_do_not_recompile() -> None:
    f = cuvil.jit(lambda x, s: x * s)
    assert f(X, 2).dtype == np.float32
    np.testing.assert_array_equal(f(X, 3), X * 3)
    assert len(f.variants()) == 1
    assert f(X, 2.5).dtype == np.float32 and len(f.variants()) == 2  # an int and a float promote differently
    assert f(X, np.float64(2.5)).dtype == np.float64


def test_functions_without_arguments_or_with_unused_ones() -> None:
    np.testing.assert_array_equal(cuvil.jit(lambda: cnp.arange(4))(), np.arange(4))
    np.testing.assert_array_equal(cuvil.jit(lambda x, y: y + 1)(X, X), X + 1)
    assert cuvil.jit(lambda x: None)(X) is None
    out = cuvil.jit(lambda x: (3, 2.5, True))(X)
    assert [o.item() for o in out] == [3, 2.5, True]


@pytest.mark.parametrize(
    "fn, args, kwargs",
    [
        (lambda x, n: x * n, (X, 3), {}),
        (lambda x, n: x * n, (X,), {"n": 3}),
        (lambda n, x: x * n, (3, X), {}),
        (lambda n, x: x * n, (3,), {"x": X}),
        (lambda x, n=3: x * n, (X,), {}),
        (lambda x, *more, n: (x + sum(more)) * n, (X,), {"n": 3}),
        (lambda x, y=None, *more, n=3, **named: (x + sum(more)) * n, (X,), {}),
        (lambda x, **named: x * named["n"], (X,), {"n": 3}),
    ],
)
def test_static_arguments(fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    f = cuvil.jit(fn, static_argnames="n")
    np.testing.assert_allclose(f(*args, **kwargs), X * 3)
    np.testing.assert_allclose(f(*args, **kwargs), X * 3)
    assert len(f.variants()) == 1


def test_positional_only_static_arguments_and_var_arguments() -> None:
    def g(x: Any, n: int, /, *more: Any) -> Any:
        return x * n + sum(more)

    f = cuvil.jit(g, static_argnames=["n"])
    np.testing.assert_allclose(f(X, 2, X, X), X * 4)


def test_static_arguments_are_told_apart_by_type_and_bits() -> None:
    f = cuvil.jit(lambda x, n: x * 0 + (1 if n[0] is True else 2 if isinstance(n[0], int) else 3), static_argnames="n")
    assert [f(np.float32(1), (v,)).item() for v in (1, True, 1.0)] == [2, 1, 3]
    g = cuvil.jit(lambda x, n: cnp.copysign(x, n), static_argnames="n")
    assert [g(np.float32(1), v).item() for v in (0.0, -0.0)] == [1, -1]
    for _ in range(3):
        g(np.float32(1), float("nan"))
    assert len(g.variants()) == 3


def test_static_arguments_must_hash_and_exist() -> None:
    f = cuvil.jit(lambda x, n: x, static_argnames="n")
    with pytest.raises(ArgumentTypeError, match=rf"static argument 'n' .* got list \(at {HERE}:\d+.*tuple instead"):
        f(X, [1])
    with pytest.raises(ArgumentError, match="'q', which is no parameter of <lambda>; it has: x"):
        cuvil.jit(lambda x: x, static_argnames="q")


@pytest.mark.parametrize(
    "array",
    [
        f32(8, 8)[::2], f32(8, 8)[::-1], f32(8, 8).T, f32(8, 8)[:, ::-3], np.broadcast_to(f32(8), (3, 8)), f32(0, 8),
        f32(4, 0), f32(4, 4).astype(">f4"), np.zeros(33, np.uint8)[1:].view(np.float32), np.float32(3), np.array(3.0),
        np.asfortranarray(f32(3, 5)),
    ],
)  # fmt: skip
def test_layouts_of_arguments(array: Any) -> None:
    f = cuvil.jit(lambda x: x * 2 + 1)
    want = np.asarray(array) * 2 + 1
    out = f(array)
    assert out.dtype == want.dtype.newbyteorder("=") and out.shape == want.shape
    np.testing.assert_allclose(out, want)


def test_read_only_arguments_and_writable_results() -> None:
    x = X.copy()
    x.flags.writeable = False
    out = cuvil.jit(lambda x: (x, x + 1))(x)
    assert all(o.flags.writeable for o in out)


@pytest.mark.parametrize(
    "value, error, message",
    [
        ("hi", ArgumentTypeError, "is str: 'hi'"),
        ({1, 2}, ArgumentTypeError, "is set"),
        (object(), ArgumentTypeError, "is object"),
        (np.array(["a"]), DTypeError, "<U1"),
        (np.array([b"a"]), DTypeError, r"S1"),
        (np.array([object()]), DTypeError, r"dtype\('O'\)"),
        (np.ma.masked_array(f32(2)), ArgumentTypeError, "masked array"),
    ],
)
def test_arguments_of_other_types(value: Any, error: Any, message: str) -> None:
    f = cuvil.jit(lambda x, params: x)
    with pytest.raises(error, match=rf"argument params\['k'\]\[0\] of <lambda> .*{message}|{message}") as caught:
        f(X, {"k": [value]})
    assert re.search(rf"\(at {HERE}:\d+, in test_arguments_of_other_types\)", str(caught.value))
    assert "params['k'][0]" in str(caught.value)


# --------------------------------------------------------------------------------------------- constants, aliasing


def test_captured_arrays_are_constants_by_value() -> None:
    w = f32(8)
    before = w.copy()
    f = cuvil.jit(lambda x: x + w)
    first = f(X)
    w[:] = 0
    np.testing.assert_array_equal(f(X), first)
    np.testing.assert_array_equal(first, X + before)


def test_closures_are_separate_functions() -> None:
    def scaled(k: float) -> Any:
        return cuvil.jit(lambda x: x * k)

    np.testing.assert_array_equal(scaled(2.0)(X), X * 2)
    np.testing.assert_array_equal(scaled(3.0)(X), X * 3)


@pytest.mark.parametrize("backend", ["c", "reference"])
def test_results_never_alias_arguments_constants_or_each_other(backend: str) -> None:
    c = f32(4, 8, seed=1)
    f = cuvil.jit(lambda x: (x, x, x.reshape(8, 4), x[1:], x.T, cnp.asarray(c), cnp.asarray(c), x[:0]), backend=backend)
    x = X.copy()
    out = f(x)
    want = (x, x, x.reshape(8, 4), x[1:], x.T, c, c, x[:0])
    for o, w in zip(out, want, strict=True):
        np.testing.assert_array_equal(o, w)
    everything = [x, c, *out, *f(x)]
    for i, a in enumerate(everything):
        for b in everything[i + 1 :]:
            assert not np.shares_memory(a, b)
    for o in out:
        o[...] = 77
    np.testing.assert_array_equal(f(x)[5], c)
    np.testing.assert_array_equal(x, X)


def test_nested_functions_are_inlined() -> None:
    inner = cuvil.jit(lambda t: cnp.exp(t))
    outer = cuvil.jit(lambda t: inner(t) + inner(-t))
    np.testing.assert_allclose(outer(X), np.exp(X) + np.exp(-X), rtol=1e-5)
    assert inner.variants() == []
    assert outer.lower(X).as_text("tensor").count("cuvil.exp") == 2


def test_methods() -> None:
    @dataclasses.dataclass
    class Model:
        w: Any

        @cuvil.jit
        def __call__(self, x: Any) -> Any:
            return x * self.w

    np.testing.assert_array_equal(Model(f32(8))(X), X * f32(8))


def test_stages_as_text() -> None:
    lowered = cuvil.jit(lambda x: cnp.sum(cnp.exp(x), axis=1)).lower(X)
    assert "cuvil.exp" in lowered.as_text() and "test_jit" not in lowered.as_text()
    assert "cuvil.sum" in lowered.as_text("optimised")
    assert "cuvil.fusion" in lowered.as_text("fused")
    assert "kernel.for" in lowered.as_text("kernel")
    assert "cuvil_main" in lowered.as_text("source") and "test_jit.py" in lowered.as_text("source")
    with pytest.raises(ArgumentError, match="no stage is named 'asm'; expected one of tensor, optimised"):
        lowered.as_text("asm")


# ---------------------------------------------------------------------------------------------- variants and shapes


def test_two_compiles_reach_steady_state() -> None:
    """A batch axis that was 4 at the first call takes 1 or 0 at the next."""
    f = cuvil.jit(lambda x, w: cnp.tanh(x @ w) + cnp.sum(x, axis=1, keepdims=True))
    w = f32(8, 5)
    for n in (4, 1, 0, 2, 65, 3, 1000, 4, 1, 0):
        x = f32(n, 8, seed=n)
        np.testing.assert_allclose(f(x, w), np.tanh(x @ w) + x.sum(1, keepdims=True), rtol=1e-4, atol=1e-5)
    assert [v.reason for v in f.variants()] == ["first call", "sizes seen to vary became symbols: x_0"]
    assert sum(v.hits for v in f.variants()) == 10


def test_axes_that_vary_together_share_a_symbol() -> None:
    f = cuvil.jit(lambda x, y: x @ y)
    for a, b, c in ((2, 3, 4), (5, 6, 7), (1, 1, 1), (0, 2, 3), (3, 0, 2), (1, 9, 1)):
        x, y = f32(a, b), f32(b, c)
        np.testing.assert_allclose(f(x, y), x @ y, rtol=1e-4, atol=1e-6)
    assert [str(p) for p in f.variants()[1].patterns] == ["(Expr('x_0'), Expr('x_1'))", "(Expr('x_1'), Expr('y_1'))"]
    assert len(f.variants()) == 2


def test_broadcasting_sizes_get_their_own_variants() -> None:
    f = cuvil.jit(lambda x, y: x + y)
    for a, b in ((4, 4), (3, 3), (2, 2), (5, 1), (1, 5), (1, 1), (6, 1), (1, 9), (8, 1), (0, 1), (7, 7)):
        x, y = f32(a, 2), f32(b, 2, seed=1)
        np.testing.assert_array_equal(f(x, y), x + y)
    assert len(f.variants()) == 4  # static, equal, (n, 1), (1, n): and no more for any further sizes
    with pytest.raises(ShapeError, match=rf"expected 6 == 5 \(at {HERE}:\d+"):
        f(f32(5, 2), f32(6, 2))


def test_a_guard_that_fails_selects_another_variant() -> None:
    f = cuvil.jit(lambda x: cnp.reshape(x, (-1, 4)))
    for n in (8, 4, 12, 400):
        assert f(f32(n)).shape == (n // 4, 4)
    assert len(f.variants()) <= 3, f.explain()
    with pytest.raises(ShapeError):
        f(f32(7))


def test_python_control_flow_over_sizes_compiles_for_each_size(caplog: pytest.LogCaptureFixture) -> None:
    def fn(x: Any, y: Any) -> tuple[Any, Any]:
        return sum(v * (k + 1) for k, v in enumerate(x)), y * 2 if y.shape[1] > 2 else y * 3

    f = cuvil.jit(fn)
    with caplog.at_level(logging.WARNING, "cuvil.jit"):
        for a, b, c in ((3, 2, 2), (3, 5, 3), (2, 6, 4), (2, 7, 2), (3, 1, 4), (3, 0, 4), (2, 9, 3)):
            x, y = f32(a, b), f32(b, c, seed=1)
            got = f(x, y)
            want = fn(x, y)
            for g, w in zip(got, want, strict=True):
                np.testing.assert_allclose(g, w, rtol=1e-5, atol=1e-6)
    before = len(f.variants())
    for n in (11, 12, 13):
        f(f32(3, n), f32(n, 4))
        f(f32(2, n), f32(n, 2))
    assert len(f.variants()) == before, f.explain()  # n stays a symbol: only the sizes that Python needs are static
    assert 1 <= sum("not shape-polymorphic" in r.message for r in caplog.records) <= 3


def test_a_mistake_of_the_user_is_raised_as_it_is() -> None:
    def fn(x: Any) -> Any:
        raise RuntimeError("mine")

    f = cuvil.jit(fn)
    for n in (3, 4, 5):
        with pytest.raises(RuntimeError, match=r"^mine$"):
            f(f32(n))
    assert f.variants() == []


def test_static_shapes() -> None:
    f = cuvil.jit(lambda x: x * x.shape[0], shapes="static")
    for n in (1, 2, 3, 2):
        np.testing.assert_array_equal(f(f32(n)), f32(n) * n)
    assert len(f.variants()) == 3


def test_sizes_are_values_inside_the_function() -> None:
    f = cuvil.jit(lambda x: x * x.shape[0] + (x.shape[0] + 1) // 2)
    for n in (4, 3, 1, 0, 9):
        np.testing.assert_allclose(f(f32(n)), f32(n) * n + (n + 1) // 2, rtol=1e-6)
    assert len(f.variants()) == 2


def test_symbolic_shapes_with_a_spec() -> None:
    f = cuvil.jit(
        lambda x, y: x @ y,
        shapes="symbolic",
        input_spec=[("x", "float32", ("B", "2*S")), ("y", "float32", ("2*S", 4))],
        constraints=["1 <= S <= 8"],
    )
    for b, s in ((3, 3), (1, 1), (0, 8)):
        x, y = f32(b, 2 * s), f32(2 * s, 4)
        np.testing.assert_allclose(f(x, y), x @ y, rtol=1e-4, atol=1e-6)
    assert len(f.variants()) == 1
    for bad, message in (
        ((f32(3, 5), f32(5, 4)), "x.*axis 1: expected 2[*]S"),
        ((f32(3, 18), f32(18, 4)), "S <= 8, got S = 9"),
        ((f32(3, 4), f32(6, 4)), "y.*with S = 2.*got 6"),
        ((f32(3), f32(6, 4)), r"x of <lambda> has shape \[3\], its input_spec says \[B, 2[*]S\]"),
    ):
        with pytest.raises(ShapeError, match=message):
            f(*bad)
    with pytest.raises(ArgumentTypeError, match=r"x of <lambda> has dtype float64.*x.astype\('float32'\)"):
        f(np.zeros((1, 2)), f32(2, 4))
    with pytest.raises(ArgumentError, match="was given 1 arrays, its input_spec has 2"):
        f(f32(1, 2))


@pytest.mark.parametrize(
    "name", ["n", "m", "b", "p", "i0", "blk", "g0", "ctx", "dim", "buf", "task", "int", "for", "I"]
)
def test_symbols_may_be_called_anything(name: str) -> None:
    w = f32(8, 6)
    spec = [("x", "float32", (name, 8)), ("i", "int64", (name,))]

    def fn(x: Any, i: Any) -> Any:
        return cnp.matmul(x, w) + 1, cnp.sum(cnp.exp(x), axis=1), cnp.take(w, i, axis=0)

    f = cuvil.jit(fn, input_spec=spec, validate=False)
    x, i = f32(5, 8), np.arange(5)
    for got, want in zip(f(x, i), fn(x, i), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_compile_ahead_of_time() -> None:
    f = cuvil.compile(lambda x: x * 2, [("x", "float32", ("B", 3))])
    assert [v.reason for v in f.variants()] == ["input_spec, ahead of time"]
    for n in (0, 1, 5):
        np.testing.assert_array_equal(f(f32(n, 3)), f32(n, 3) * 2)
    assert len(f.variants()) == 1


@pytest.mark.parametrize(
    "options, error, message",
    [
        (
            {"shapes": "sometimes"},
            ArgumentError,
            "unknown shapes 'sometimes'; expected 'auto', 'static', 'symbolic' or Buckets",
        ),
        ({"shapes": "symbolic"}, ArgumentError, "needs an input_spec"),
        ({"backend": "abacus"}, ArgumentError, "unknown backend 'abacus'"),
        ({"numerics": "fast"}, ArgumentError, "unknown numerics 'fast'"),
        ({"input_spec": [("x", "float32")]}, ArgumentError, r"is \(name, dtype, shape\)"),
        ({"input_spec": [("x", "floof", ("B",))]}, ArgumentError, "no such dtype: 'floof'"),
        ({"input_spec": [("x", "float32", ("B+",))]}, ArgumentError, "cannot read the dimension 'B[+]'"),
        ({"input_spec": [("x", "float32", ("_b",))]}, ArgumentError, "'_b' begins with an underscore.*'b'"),
        ({"input_spec": [("x", "float32", ("B",))], "constraints": ["S <"]}, ArgumentError, "S <"),
    ],
)
def test_options_are_checked(options: dict[str, Any], error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        cuvil.jit(lambda x: x, **options)(f32(3))
    with pytest.raises(ArgumentTypeError, match="jit takes a function, got int"):
        cuvil.jit(3)  # type: ignore[arg-type]


def test_widen_is_by_history() -> None:
    a, b = symbol("x_0"), symbol("y_0")
    assert widen([(4, 8), (4,)], [], ["x", "y"]) == ((4, 8), (4,))
    assert widen([(4, 8), (4,)], [[(2, 8), (2,)]], ["x", "y"]) == ((a, 8), (a,))
    assert widen([(4, 8), (4,)], [[(2, 8), (2,)], [(3, 8), (1,)]], ["x", "y"]) == ((a, 8), (b,))


# ------------------------------------------------------------------------------------------------------- messages

_LEAKED: list[Any] = []


def _leak(x: Any) -> Any:
    _LEAKED.append(x * 2)
    return x


@pytest.mark.parametrize(
    "what, use",
    [
        ("a Python condition.*cuvil.cond.*cuvil.numpy.where.*static_argnames", lambda x: bool(x > 0)),
        (r"array of shape \[4, 8\], whose truth is ambiguous.*cuvil.numpy.any", lambda x: 1 if x > 0 else 2),
        (r"int\(x\).*astype\('int64'\)", lambda x: int(x)),
        (r"float\(x\).*astype\('float32'\)", lambda x: float(x)),
        ("an index or a size.*cuvil.numpy.take", lambda x: [1, 2][x]),
        ("an index or a size.*static argument", lambda x: operator.index(x)),
        ("range of traced bounds.*cuvil.numpy.arange", lambda x: list(range(cnp.sum(x).astype("int32")))),
        (r"len\(\) of a rank-0.*reshape", lambda x: len(cnp.sum(x))),
        ("rank-0 traced array cannot be iterated", lambda x: list(cnp.sum(x))),
        (r"cannot be changed in place.*x.at\[index\].set\(value\)", lambda x: x.__setitem__(0, 1)),
        (r"x.item\(\).*Return the array", lambda x: x.item()),
        ("conversion to a NumPy array.*import cuvil.numpy as cnp", lambda x: np.asarray(x)),
        (r"complex\(x\)", lambda x: complex(x)),
    ],
)
def test_traced_values_say_what_they_cannot_do(what: str, use: Any) -> None:
    with pytest.raises(TracingError, match=what) as caught:
        cuvil.jit(use)(X)
    assert re.search(rf"\(at {HERE}:\d+, in <lambda>\)", str(caught.value))


def test_sizes_that_are_symbols_say_what_they_cannot_do() -> None:
    spec = [("x", "float32", ("B", 8))]
    for use, message in ((lambda x: len(x), "use x.shape"), (lambda x: list(x), "symbolic dimension B")):
        with pytest.raises(TracingError, match=message):
            cuvil.jit(use, input_spec=spec)(X)


def test_leaked_values_are_found_wherever_they_are_used() -> None:
    _LEAKED.clear()
    cuvil.jit(_leak)(X)
    (leaked,) = _LEAKED
    assert repr(leaked) == "Tracer(float32[4, 8])" and leaked.shape == (4, 8)
    for use in (
        lambda: leaked + 1,
        lambda: cnp.exp(leaked),
        lambda: cuvil.jit(lambda y: y + leaked)(X),
        lambda: cuvil.jit(lambda y: y)(leaked),
        lambda: cuvil.jit(lambda y: leaked)(X),
    ):
        with pytest.raises(
            TracingError, match=rf"of '_leak' \(float32\[4, 8\]\) was used outside.*{HERE}:\d+.*return them"
        ):
            use()


def test_results_that_are_no_arrays() -> None:
    with pytest.raises(TracingError, match=r"returned object at result\['a'\]\[0\]; a traced function returns arrays"):
        cuvil.jit(lambda x: {"a": [object()]})(X)


def test_indices_out_of_bounds() -> None:
    f = cuvil.jit(lambda x, i: cnp.take(x, i, axis=0))
    with pytest.raises(
        IndexOutOfBoundsError,
        match=rf"take: index 9 is out of bounds for an axis of size 4 \(at .*{HERE}:\d+\); pass mode=",
    ):
        f(X, np.array([0, 9]))
    np.testing.assert_array_equal(f(X, np.array([1, -1])), X[[1, -1]])
    with pytest.raises(IndexError):
        f(X, np.array([-5, 0]))


@pytest.mark.parametrize(
    "fn, args, message",
    [
        (
            lambda x, i: cnp.exp(x)[i] * 2,
            (f32(3), np.array([1, 7])),
            "take: index 7 is out of bounds",
        ),
        (lambda x, i: x.at[i].set(0), (f32(3), np.array([-4])), "scatter: index -4 is out of bounds"),
        (lambda x, i: x**i, (np.array([2, 3]), np.array([1, -1])), "pow: integers to negative integer powers"),
        (
            lambda x, i: cuvil.fori_loop(0, 3, lambda k, s: s + x[i + k], np.zeros(1, np.float32)),
            (f32(3), np.array([1])),
            "take: index 3 is out of bounds",
        ),
    ],
)
@pytest.mark.parametrize("dispatch", ["native", "ctypes"])
def test_errors_at_run_time_name_op_and_line(
    fn: Any, args: Any, message: str, dispatch: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUVIL_DISPATCH", dispatch)
    f = cuvil.jit(fn)
    line = fn.__code__.co_firstlineno
    for _ in range(2):
        with pytest.raises((IndexError, ArgumentError), match=rf"{message}.*\(at .*{HERE}:\d+\)") as caught:
            f(*args)
        found = re.search(rf"{HERE}:(\d+)\)", str(caught.value))
        assert found is not None and abs(int(found[1]) - line) <= 1


def test_the_line_is_that_of_the_caller_when_the_program_comes_from_the_cache(tmp_path: Path) -> None:
    """The same program at another line has the same entry in the cache, and its own line in the error."""
    texts = ["", "# moved", "# moved"]
    for text in texts:
        code = f"import numpy as np, cuvil\n{text}\ndef f(x, i):\n    return x[i]\ng = cuvil.jit(f)\n"
        call = "try:\n    g(np.ones(3), np.array([9]))\nexcept IndexError as error:\n    print(error)\n"
        script = tmp_path / f"model{len(text)}.py"
        script.write_text("\n" * len(text) + code + call)
        env = {**os.environ, "CUVIL_CACHE_DIR": str(tmp_path / "cache")}
        done = subprocess.run([sys.executable, script], capture_output=True, text=True, env=env, timeout=120)
        assert f"{script}:{len(text) + 4})" in done.stdout, done.stdout + done.stderr
    assert len(list((tmp_path / "cache" / "entries").glob("program-*"))) == 1


def test_no_memory_leaves_the_process_usable() -> None:
    f = cuvil.jit(
        lambda x: cnp.sum(cnp.cumulative_sum(x[:, None] + x[None, :], axis=0)), input_spec=[("x", "float32", ("N",))]
    )
    first = f(np.ones(10, np.float32))
    with pytest.raises(MemoryError):
        f(np.ones(3_000_000, np.float32))
    assert f(np.ones(10, np.float32)) == first == 1100


# ------------------------------------------------------------------------------------------------------- processes


def test_threads_call_one_function() -> None:
    f = cuvil.jit(lambda x, w: cnp.sum(cnp.exp(x @ w), axis=-1))
    w = f32(16, 32)
    wrong: list[Any] = []

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(25):
            x = rng.standard_normal((int(rng.integers(0, 40)), 16)).astype(np.float32)
            if not np.allclose(f(x, w), np.exp(x @ w).sum(-1), rtol=1e-4):
                wrong.append(x)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(5)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong and len(f.variants()) == 2


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_computes_too() -> None:
    script = """
import os, numpy as np, cuvil, cuvil.numpy as cnp
f = cuvil.jit(lambda x: cnp.sum(cnp.exp(x), axis=1))
x = np.ones((4096, 64), np.float32)
want = f(x)
pid = os.fork()
if pid == 0:
    os._exit(0 if np.array_equal(f(x), want) else 3)
assert os.waitpid(pid, 0)[1] == 0
assert np.array_equal(f(x), want)
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60, env={**os.environ, "CUVIL_NUM_THREADS": "3"})


def test_results_are_the_same_bit_for_bit() -> None:
    f = cuvil.jit(lambda x, w: cnp.sum(cnp.exp(x @ w), axis=0))
    x, w = f32(300, 33), f32(33, 65)
    assert len({f(x, w).tobytes() for _ in range(20)}) == 1
    again = cuvil.jit(lambda x, w: cnp.sum(cnp.exp(x @ w), axis=0))
    assert again(x, w).tobytes() == f(x, w).tobytes()


def test_a_second_process_compiles_nothing(tmp_path: Path) -> None:
    log = tmp_path / "runs"
    cc = tmp_path / "counting-cc"
    cc.write_text(f'#!/bin/sh\ncase " $* " in *" -shared "*) echo run >> {log};; esac\nexec gcc "$@"\n')
    cc.chmod(0o755)
    script = """
import numpy as np, cuvil, cuvil.numpy as cnp
f = cuvil.jit(lambda x: cnp.exp(x) + 1)
for n in (4, 3, 2):
    f(np.ones((n, 5), np.float32))
"""
    env = {**os.environ, "CUVIL_CC": str(cc), "CUVIL_CACHE_DIR": str(tmp_path / "cache")}
    counts: list[int] = []
    for _ in range(2):
        subprocess.run([sys.executable, "-c", script], check=True, timeout=120, env=env)
        counts.append(len(log.read_text().split()))
    assert counts[0] >= 4 and counts[1] == counts[0]


def test_a_function_forgets_the_variants_that_are_not_called(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CUVIL_MAX_VARIANTS", "3")
    f = cuvil.jit(lambda x: x + 1, shapes="static")
    freed = []
    with caplog.at_level(logging.INFO, "cuvil.jit"):
        for n in (1, 2, 3, 4, 1, 5, 1, 6, 1, 7, 1, 2):
            np.testing.assert_array_equal(f(f32(n)), f32(n) + 1)
            freed.append(weakref.ref(f.variants()[-1]))
            assert len(f.variants()) <= 3
    patterns = [v.patterns for v in f.variants()]
    assert ((1,),) in patterns and ((2,),) in patterns  # 1 was called between all others
    assert sum("forgot the variant" in r.message for r in caplog.records) >= 4
    gc.collect()
    assert sum(r() is not None for r in freed) <= len(freed) - 4


def test_functions_and_their_constants_are_freed() -> None:
    w = f32(64, 64)
    f = cuvil.jit(lambda x: x @ w)
    f(f32(2, 64))
    gone = weakref.ref(f)
    del f
    gc.collect()
    assert gone() is None
