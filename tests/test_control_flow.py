"""``cond``, ``switch``, ``while_loop``, ``fori_loop``, ``scan`` and ``map``, compiled and at once in Python."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

import cuvil
import cuvil.numpy as cnp
from cuvil.compiler import CompileOptions, compile_program
from cuvil.frontend.pytree import flatten
from cuvil.ir.text import format_module, parse_module
from cuvil.ir.verifier import verify_stage
from cuvil.support.errors import ArgumentError, ArgumentTypeError, DTypeError, PassError, ShapeError, TracingError
from cuvil.testing import Mismatch, check_backend

BACKENDS = ("reference", "c")


class State(NamedTuple):
    total: Any
    step: Any


def rows(n: int, m: int = 3) -> Any:
    return np.random.default_rng((n, m)).standard_normal((n, m)).astype(np.float32)


def assert_close(got: Any, want: Any) -> None:
    a, at = flatten(got)
    b, bt = flatten(want)
    assert at == bt
    for g, w in zip(a, b, strict=True):
        g, w = np.asarray(g), np.asarray(w)
        assert (g.dtype, g.shape) == (w.dtype, w.shape)
        np.testing.assert_allclose(g.astype(np.float64), w.astype(np.float64), rtol=2e-5, atol=1e-6)


def agree(fn: Callable[..., Any], *args: Any) -> None:
    """The function compiled in every way gives what it gives in Python; its text parses back."""
    want = fn(*args)
    for backend in BACKENDS:
        for optimise in (True, False):
            compiled = cuvil.jit(fn, backend=backend, optimise=optimise, validate=optimise)
            assert_close(compiled(*args), want)
    lowered = cuvil.jit(fn).lower(*args)
    for stage in ("tensor", "optimised", "fused", "kernel"):
        text = lowered.as_text(stage)
        module = parse_module(text)
        verify_stage(module, stage)  # type: ignore[arg-type]
        assert format_module(module) == text


def branches_of_a_condition(x: Any) -> Any:
    return cuvil.cond(cnp.sum(x) > 0, lambda a: {"y": a * 2, "n": 1}, lambda a: {"y": a - 1, "n": 0}, x)


def branches_by_number(x: Any, k: Any) -> Any:
    return cuvil.switch(k, [lambda a: a, lambda a: a * 2, lambda a: cuvil.fori_loop(0, 3, lambda i, c: c + i, a)], x)


def doubled_until_large(x: Any) -> Any:
    return cuvil.while_loop(lambda c: cnp.max(c[0]) < 100, lambda c: (c[0] * 2 + abs(x), c[1] + 1), (abs(x) + 1, 0))


def running_products(x: Any) -> Any:
    return cuvil.scan(lambda c, r: (c + r, {"p": c * r, "n": cnp.sum(r)}), cnp.zeros(3, dtype=cnp.float32), x)


def backwards(x: Any) -> Any:
    return cuvil.scan(lambda c, r: (c / 2 + r, c), cnp.zeros(3, dtype=cnp.float32), x, reverse=True)


def weighted_rows(x: Any) -> Any:
    return cuvil.fori_loop(0, x.shape[0], lambda i, c: c + x[i] * i, cnp.zeros(3, dtype=cnp.float32))


def fibonacci(n: Any) -> Any:
    return cuvil.while_loop(lambda c: c[2] < n, lambda c: (c[1], c[0] + c[1], c[2] + 1), (0, 1, 0))


def swapped(x: Any) -> Any:
    return cuvil.fori_loop(0, 3, lambda i, c: (c[1], c[0], c[2] + c[0]), (x, x + 1, x * 0))


def named_state(x: Any) -> Any:
    def step(s: State, r: Any) -> tuple[State, Any]:
        return State(s.total + r, s.step + 1), s.step

    return cuvil.scan(step, State(cnp.zeros(3, dtype=cnp.float32), 0), x)


def nested(x: Any) -> Any:
    def outer(c: Any, r: Any) -> tuple[Any, Any]:
        inner = cuvil.fori_loop(
            0, 3, lambda i, s: cuvil.cond(cnp.sum(s) > i, lambda: s / 2 + r * c[0], lambda: s * 2 + x[0]), c
        )
        return inner, cnp.max(inner)

    return cuvil.scan(outer, cnp.ones(3, dtype=cnp.float32), x)


def mapped(x: Any) -> Any:
    return cuvil.map(lambda r: (cnp.sort(r)[0] + r @ r, r[::-1]), x)


def counted_without_arrays(x: Any) -> Any:
    return cuvil.scan(lambda c, _: (c * 2, c + x[0]), 1, None, length=4)


def products(x: Any) -> Any:
    return cuvil.fori_loop(0, 4, lambda i, c: cnp.tanh(c @ cnp.eye(3, dtype=cnp.float32) + x @ x.T @ x), x)


@pytest.mark.parametrize("n", [0, 1, 4])
@pytest.mark.parametrize(
    "fn", [running_products, backwards, weighted_rows, named_state, mapped, swapped], ids=lambda f: f.__name__
)
def test_loops_over_rows_of_any_number(fn: Any, n: int) -> None:
    agree(fn, rows(n))


@pytest.mark.parametrize("sign", [-1, 1])
@pytest.mark.parametrize(
    "fn",
    [branches_of_a_condition, doubled_until_large, nested, counted_without_arrays, products],
    ids=lambda f: f.__name__,
)
def test_branches_and_nests(fn: Any, sign: int) -> None:
    agree(fn, sign * abs(rows(4)))


@pytest.mark.parametrize("k", [-3, 0, 1, 2, 9])
def test_the_number_of_a_branch_is_clamped(k: int) -> None:
    agree(branches_by_number, rows(2), np.int32(k))


@pytest.mark.parametrize("n", [0, 1, 10])
def test_a_loop_with_a_traced_bound(n: int) -> None:
    agree(fibonacci, np.int64(n))
    agree(lambda x, n: cuvil.fori_loop(1, n, lambda i, c: c + i * x, x), rows(2), np.int32(n))


@pytest.mark.parametrize("backend", BACKENDS)
def test_one_variant_serves_every_length(backend: str) -> None:
    compiled = cuvil.jit(running_products, backend=backend)
    for n in (2, 3, 5, 0, 1, 70):
        assert_close(compiled(rows(n)), running_products(rows(n)))
    assert len(compiled.variants()) == 2


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_carried_array_is_updated_at_traced_places(backend: str) -> None:
    @cuvil.jit(backend=backend)
    def squares(n: Any) -> Any:
        return cuvil.fori_loop(0, 10, lambda i, b: b.at[i].set(i * n), cnp.zeros(10, dtype=cnp.int32))

    assert squares(np.int32(3)).tolist() == [3 * i for i in range(10)]


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_index_out_of_bounds_ends_the_loop(backend: str) -> None:
    fn = cuvil.jit(lambda x: cuvil.fori_loop(0, 5, lambda i, c: c + x[i + 2], cnp.float32(0)), backend=backend)
    with pytest.raises(IndexError, match="out of bounds"):
        fn(np.ones(5, np.float32))
    assert fn(np.ones(7, np.float32)) == 5


def test_python_numbers_are_carried_weakly() -> None:
    half = np.float16([1, 2])
    out = cuvil.jit(lambda x: cuvil.fori_loop(0, 3, lambda i, c: (c[0] * (c[1] + i), c[1] + 0.5), (x, 1)))
    got = cuvil.jit(out.fn, backend="reference")(half)
    assert got[0].dtype == np.float16
    want = out.fn(half)
    assert [np.asarray(w).tolist() for w in want] == [g.tolist() for g in got]


def test_concrete_conditions_are_plain_python() -> None:
    def fn(x: Any) -> Any:
        return cuvil.cond(x.ndim == 2, lambda: x + 1, lambda: undefined_name)  # type: ignore[name-defined] # noqa: F821

    text = cuvil.jit(fn, backend="reference").lower(rows(2)).as_text("tensor")
    assert "cuvil.switch" not in text


def test_constants_go_in_and_invariants_come_out() -> None:
    weight = rows(3)

    def fn(x: Any) -> Any:
        return cuvil.fori_loop(0, 9, lambda i, c: c + cnp.exp(x @ weight.T), x)

    text = cuvil.jit(fn, backend="reference").lower(rows(2)).as_text("optimised")
    before, _, inside = text.partition("cuvil.loop")
    assert "cuvil.matmul" in before and "cuvil.matmul" not in inside
    assert "cuvil.exp" in before


def test_what_nobody_reads_is_not_carried() -> None:
    def fn(x: Any) -> Any:
        return cuvil.fori_loop(0, 9, lambda i, c: (c[0] * 2, c[1] + c[2], c[2]), (x, x, x))[0]

    text = cuvil.jit(fn, backend="reference").lower(rows(2)).as_text("optimised")
    assert "carried = 1," in text


def test_a_few_scalars_are_chosen_without_a_branch() -> None:
    def fn(x: Any) -> Any:
        return cuvil.cond(x > 0, lambda: x * 2, lambda: x - 1)

    text = cuvil.jit(fn, backend="reference").lower(np.float32(2)).as_text("optimised")
    assert "cuvil.where" in text and "cuvil.switch" not in text


def test_the_checkers_take_control_flow() -> None:
    def fn(x: Any) -> Any:
        total, sums = cuvil.scan(lambda c, r: (c + r, c * 2), cnp.zeros(3, dtype=cnp.float32), x)
        if cnp.max(total) > 0:
            total = cnp.exp(total - cnp.max(total))
        n = 0
        while n < cnp.argmax(total):
            n += 1
        assert n < 3
        return total, sums, n, cuvil.switch(n, [lambda: 5, lambda: n, lambda: 7])

    for n in (0, 1, 5):
        check_backend(fn, rows(n), shapes="(N, 3)")

    def wrong(program: Any) -> Any:
        compiled = compile_program(program, CompileOptions(backend="reference"))
        return lambda inputs, sizes: [r + 1 for r in compiled.run(inputs, sizes)]

    with pytest.raises(Mismatch):
        check_backend(fn, rows(2), backend=wrong)


def test_validation_gives_up_on_loops_that_random_values_do_not_end() -> None:
    def fn(x: Any) -> Any:
        while x != 3:
            x = x + 1
        return x

    assert cuvil.jit(fn, backend="reference")(np.int32(1)) == 3
    with pytest.raises(PassError, match="loops ran for too long"):
        cuvil.jit(fn, backend="reference", validate=True)(np.float32(1.5))


@pytest.mark.parametrize("backend", BACKENDS)
def test_transforms_take_python_control_flow(backend: str) -> None:
    def cubes(v: Any) -> Any:
        return v**3 if v > 1 else -v

    def grown(v: Any) -> Any:
        while v < 10:
            v = v * 2
        return v

    x = np.float32([1, 2, 30])
    assert cuvil.jit(cuvil.vmap(cubes), backend=backend)(x).tolist() == [-1, 8, 27000]
    assert cuvil.jit(cuvil.vmap(grown), backend=backend)(x).tolist() == [16, 16, 30]
    assert cuvil.jit(cuvil.grad(cubes), backend=backend)(np.float32(2)) == 12
    assert cuvil.grad(cubes)(np.float32(0.5)) == -1


@pytest.mark.parametrize(
    ("body", "in_place"),
    [
        (lambda i, b: b.at[i].set(i), True),
        (lambda i, b: cuvil.cond(b[i] > 3, lambda: b.at[i].set(1), lambda: b), True),
        (lambda i, b: b * 2 + 1, True),
        (lambda i, b: b.at[i].set(cnp.sum(b)), True),
        (lambda i, b: cuvil.fori_loop(0, 3, lambda j, c: c.at[j].add(i), b), True),
        (lambda i, b: b[::-1] * 2, False),
        (lambda i, b: cnp.cumulative_sum(b), False),
        (lambda i, b: b.at[i].set(i) + b, True),
    ],
)
def test_carried_arrays_are_updated_in_place_where_that_is_safe(body: Any, in_place: bool) -> None:
    fn = cuvil.jit(lambda x: cuvil.fori_loop(0, 5, body, x))
    x = np.arange(8, dtype=np.float32)
    assert_close(fn(x), cuvil.jit(fn.fn, backend="reference")(x))
    text = fn.lower(x).as_text("kernel")
    buffers = [re.findall(r"%\w+", line.split("=", 1)[1]) for line in text.splitlines() if "kernel.repeat" in line]
    assert (len(set(buffers[-1])) == 1) == in_place


def test_memory_that_a_loop_reads_is_not_reused_inside_of_it() -> None:
    def fn(x: Any) -> Any:
        doubled = cnp.sort(x * 2)  # read by every iteration, last in the program's order inside the loop

        def body(i: Any, c: Any) -> Any:
            first = cnp.sort(c + doubled)
            return cnp.sort(cnp.flip(first)) / 3

        return cuvil.fori_loop(0, 6, body, x)

    agree(fn, np.random.default_rng(3).standard_normal(64).astype(np.float32))


def test_one_native_loop_runs_ten_thousand_steps() -> None:
    fn = cuvil.jit(lambda x: cuvil.scan(lambda c, r: (c * 0.5 + r, c), np.float32(0), x))
    x = np.random.default_rng(0).standard_normal(10_000).astype(np.float32)
    last, before = fn(x)
    text = fn.lower(x).as_text("source")
    main = text[text.index("cuvil_main(") : text.index("/* ----", text.index("cuvil_main("))]
    assert main.count("for (int64_t") == 1 and len(main) < 4000
    c = np.float32(0)
    for k, r in enumerate(x):
        assert before[k] == pytest.approx(c, rel=1e-4, abs=1e-6)
        c = np.float32(c * np.float32(0.5) + r)
    assert last == pytest.approx(c, rel=1e-4)


@pytest.mark.parametrize(
    ("fn", "error", "words"),
    [
        (lambda x: cuvil.cond(x[0] > 0, lambda: x, lambda: x[1:]), ShapeError, "every branch must give the same shape"),
        (lambda x: cuvil.cond(x[0] > 0, lambda: x, lambda: x.astype("int32")), DTypeError, "float32"),
        (lambda x: cuvil.cond(x[0] > 0, lambda: x, lambda: (x,)), ArgumentTypeError, "structure"),
        (lambda x: cuvil.cond(x > 0, lambda: x, lambda: x), TracingError, "truth is ambiguous"),
        (lambda x: cuvil.cond(x[0] > 0, lambda: "a", lambda: x), ArgumentTypeError, "str"),
        (lambda x: cuvil.while_loop(lambda c: c[0] < 9, lambda c: c[:1], x), ShapeError, "enters the loop as"),
        (lambda x: cuvil.fori_loop(0, 3, lambda i, c: c.astype("float64"), x), DTypeError, "keeps its shape and dtype"),
        (lambda x: cuvil.fori_loop(0, 3, lambda i, c: (c, c), x), ArgumentTypeError, "structure"),
        (lambda x: cuvil.fori_loop(0, x[0], lambda i, c: c, x), ArgumentTypeError, "upper bound"),
        (lambda x: cuvil.scan(lambda c, r: c, 0, x), ArgumentTypeError, r"must return \(carry, y\)"),
        (lambda x: cuvil.scan(lambda c, r: (c, r), 0), ArgumentError, "length="),
        (lambda x: cuvil.scan(lambda c, r: (c, r), 0, (x, x[1:])), ShapeError, r"xs\[1\] has 2 slices, expected 3"),
        (lambda x: cuvil.scan(lambda c, r: (c, r), 0, 1.0), ShapeError, "rank 0"),
        (lambda x: cuvil.switch(x[0] > 0, []), ArgumentError, "at least one"),
        (lambda x: cuvil.cond(True, x, x), ArgumentTypeError, "true_fn"),
    ],
)  # fmt: skip
def test_errors_name_what_is_wrong(fn: Any, error: Any, words: str) -> None:
    with pytest.raises(error, match=words):
        cuvil.jit(fn, backend="reference")(np.float32([1, 2, 3]))


@pytest.mark.parametrize(
    ("fn", "error"),
    [
        (lambda x: cuvil.while_loop(lambda c: c[0] < 9, lambda c: c[:1] + 9, x), ShapeError),
        (lambda x: cuvil.fori_loop(0, 3, lambda i, c: c.astype("float64"), x), DTypeError),
        (lambda x: cuvil.scan(lambda c, r: (c, x[: int(r)]), 0, x), ShapeError),
    ],
)
def test_types_are_checked_outside_of_jit_too(fn: Any, error: Any) -> None:
    with pytest.raises(error):
        fn(np.float32([1, 2, 3]))


def test_values_of_a_region_do_not_leak() -> None:
    kept: list[Any] = []

    def fn(x: Any) -> Any:
        cuvil.fori_loop(0, 3, lambda i, c: kept.append(c) or c + 1, x)
        return kept[-1] + x

    with pytest.raises(TracingError, match="used outside"):
        cuvil.jit(fn, backend="reference")(rows(1))
