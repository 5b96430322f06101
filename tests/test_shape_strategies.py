"""Shape strategies: symbols shared by arguments, derived sizes, bounds, hints and buckets."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cuvil
import cuvil.numpy as cnp
from cuvil import nn
from cuvil.frontend.buckets import Buckets
from cuvil.frontend.pytree import flatten
from cuvil.passes.validate import difference
from cuvil.support.errors import ArgumentError, ArgumentTypeError, CuvilError, ShapeError
from cuvil.testing import RandomChooser, draw_program
from cuvil.testing.programs import Program

HERE = Path(__file__).name


def f32(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


# ------------------------------------------------------------------------------------------------------- symbols


def model(x: Any, mask: Any, w: Any) -> Any:
    y = cnp.concat([x, x], axis=1) @ w
    return nn.softmax(cnp.where(mask, cnp.sum(y, axis=2), -1e9), axis=-1), cnp.reshape(y, (-1, 3))


def test_zero_recompiles_over_any_sequence_of_sizes() -> None:
    w = f32(4, 3)
    f = cuvil.jit(
        model,
        input_spec=[("x", "float32", ("B", "S", 4)), ("mask", None, ("B", "2*S")), ("w", "float32", (4, 3))],
        constraints=["S <= 4096"],
    )
    rng = np.random.default_rng(0)
    for b, s in ((1, 1), (0, 3), (3, 0), (7, 130), (1, 4096), *rng.integers(0, 40, (12, 2)).tolist()):
        x, mask = f32(b, s, 4, seed=s), rng.random((b, 2 * s)) < 0.8
        for got, want in zip(f(x, mask, w), model(x, mask, w), strict=True):
            assert got.shape == want.shape
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    (variant,) = f.variants()
    assert variant.hits == 17 and "hits 17" in f.explain()
    with pytest.raises(ShapeError, match=r"mask.*axis 1.*with S = 3.*got 5"):
        f(f32(2, 3, 4), np.zeros((2, 5), bool), w)
    with pytest.raises(ShapeError, match="S <= 4096, got S = 4097"):
        f(f32(0, 4097, 4), np.zeros((0, 8194), bool), w)


def symbolic_programs() -> list[Program]:
    drawn = (draw_program(RandomChooser(seed)) for seed in range(9000, 9040))
    return [p for p in drawn if p.symbols()][:6]


@pytest.mark.parametrize("program", symbolic_programs(), ids=lambda p: "-".join(sorted(p.symbols())))
def test_further_sizes_of_generated_programs_compile_nothing(program: Program) -> None:
    """Guards on sizes (an axis of 1 broadcasts) lead to variants; sizes alone do not."""
    fn = program.function()
    spec = [(f"a{k}", i.dtype.name, i.shape) for k, i in enumerate(program.arguments)]
    f = cuvil.jit(lambda *arrays: fn(*arrays), input_spec=spec, backend="reference")
    ran = 0
    for n in (2, 3, 5, 8, 11, 4, 6):
        if n == 11:
            known = len(f.variants())
        arrays = program.draw(dict.fromkeys(program.symbols(), n))
        try:
            want = flatten(fn(*arrays))[0]
        except CuvilError:
            continue  # these sizes do not fit the program
        for got, w in zip(flatten(f(*arrays))[0], want, strict=True):
            assert got.shape == np.shape(w)
            assert not difference(got, np.asarray(w), None)
        ran += n >= 11 or n in (4, 6)
    assert ran and len(f.variants()) == known, f.explain()


def test_a_shape_error_names_both_values_their_shapes_and_the_line() -> None:
    def fn(x: Any, y: Any) -> Any:
        z = cnp.concat([x, x], axis=0)
        return z @ y

    f = cuvil.jit(fn, input_spec=[("x", "float32", ("B", 5)), ("y", "float32", (6, "N"))])
    where = rf"{HERE}:\d+, in fn\)"
    with pytest.raises(ShapeError) as caught:
        f(f32(2, 5), f32(6, 2))
    assert re.search(where, str(caught.value))
    given = str(caught.value).partition("Given: ")[2]
    assert re.search(rf"result of concat\w* at .*{HERE}:\d+: float32\[2\*B, 5\]; argument y: float32\[6, N\]$", given)


# --------------------------------------------------------------------------------------------------------- hints


def test_hints_unlock_variants_behind_a_guard() -> None:
    f = cuvil.jit(
        lambda x: cnp.sum(cnp.exp(x), axis=1),
        input_spec=[("x", None, ("B", "S"))],
        hints=["S % 64 == 0", "S % 16 == 0"],
    )
    for n in (5, 16, 64, 32, 128, 1, 0, 48):
        np.testing.assert_allclose(f(f32(2, n)), np.exp(f32(2, n)).sum(1), rtol=1e-5)
    assert sorted((v.hint or "", v.hits) for v in f.variants()) == [("", 2), ("S % 16 == 0", 3), ("S % 64 == 0", 3)]
    assert "hint S % 64 == 0" in f.explain()
    general = next(v for v in f.variants() if v.hint is None)
    assert all("%" not in str(r) for r in general.scope.relations)


def test_a_divisible_size_needs_no_tail() -> None:
    """What the hint unlocks: whole vectors only; so do constant sizes."""

    def source(shape: tuple[Any, ...], *constraints: str) -> str:
        f = cuvil.jit(lambda x: cnp.exp(x) * 2, input_spec=[("x", "float32", shape)], constraints=constraints)
        return f.lower(f32(2, 32)).as_text("source")

    tail = "cv_imin(CV_LANES"
    assert tail in source(("B", "S"))
    assert tail not in source(("B", "S"), "S % 16 == 0")
    assert tail not in source(("B", 32))
    assert tail in source(("B", "S"), "S % 8 == 0")  # 16 lanes where the CPU has them


@pytest.mark.parametrize("fn", [
    lambda x: cnp.exp(x) * 2,
    lambda x: nn.softmax(x, axis=1),
    lambda x: nn.softmax(x, axis=0),
    lambda x: cnp.sum(x, axis=0),
    lambda x: cnp.max(x, axis=1) - cnp.mean(x),
    lambda x: cnp.cumulative_sum(x, axis=1)[:, ::2] + 1,
])  # fmt: skip
def test_loops_without_tails_give_the_same(fn: Any) -> None:
    whole = cuvil.jit(fn, input_spec=[("x", "float32", ("16*B", "S"))], constraints=["S % 16 == 0"])
    general = cuvil.jit(fn, input_spec=[("x", "float32", ("B", "S"))])
    for b, s in ((16, 16), (32, 48), (16, 4096), (48, 0)):
        x = f32(b, s, seed=s)
        try:
            want = general(x)
        except ValueError:
            with pytest.raises(ValueError, match="empty"):
                whole(x)
            continue
        np.testing.assert_array_equal(whole(x), want)


def test_ahead_of_time_hints_are_compiled_too() -> None:
    f = cuvil.compile(lambda x: x * 2, [("x", "float32", ("B", "S"))], hints=["S == 1"])
    assert [v.hint for v in f.variants()] == [None, "S == 1"]
    for n in (1, 2, 0):
        np.testing.assert_array_equal(f(f32(3, n)), f32(3, n) * 2)
    assert [v.hits for v in f.variants()] == [2, 1]


@pytest.mark.parametrize(
    "options, message",
    [
        ({"hints": ["S % 16 == 0"]}, "hints such as 'S % 16 == 0' need an input_spec"),
        ({"hints": "S == 1", "input_spec": [("x", None, ("S",))]}, "hints is one text"),
        ({"hints": ["T == 1"], "input_spec": [("x", None, ("S",))]}, "the hint T == 1 speaks of T"),
        (
            {"hints": ["S == 9"], "constraints": ["S <= 8"], "input_spec": [("x", None, ("S",))]},
            "the hint S == 9 can never hold together with S <= 8",
        ),
        (
            {"hints": ["S == 9"], "shapes": Buckets({"S": (4,)}), "input_spec": [("x", None, ("S",))]},
            "hints and Buckets exclude each other",
        ),
    ],
)
def test_hints_that_cannot_be_meant(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        cuvil.jit(lambda x: x, **options)


def test_a_spec_without_dtype_takes_any_and_cannot_be_compiled_ahead() -> None:
    f = cuvil.jit(lambda x: x + x, input_spec=[("x", None, ("B",))])
    for dt in (np.float32, np.int8, np.float64, np.bool_):
        x = np.ones(3, dt)
        assert f(x).dtype == (x + x).dtype
    with pytest.raises(ArgumentError, match="x needs a dtype in input_spec"):
        cuvil.compile(lambda x: x, [("x", None, ("B",))])


# ------------------------------------------------------------------------------------------------------- buckets


def unrolled(x: Any, mask: Any) -> tuple[Any, Any]:
    """Needs the length: a Python loop over it. What is masked does not count."""
    state = x[:, 0] * 0
    for k in range(x.shape[1]):
        state = cnp.where(mask[:, k : k + 1], cnp.tanh(state + x[:, k]), state)
    return state, x * 2


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(1, 8)), min_size=1, max_size=4))
def test_buckets_give_what_exact_sizes_give(sizes: list[tuple[int, int]]) -> None:
    for b, s in sizes:
        x, mask = f32(b, s, 3, seed=s), np.arange(s) < np.arange(1, b + 1)[:, None]
        got = BUCKETED(x, mask)
        for g, w in zip(got, unrolled(x, mask), strict=True):
            assert g.shape == w.shape and g.flags.c_contiguous
            np.testing.assert_allclose(g, w, rtol=1e-5, atol=1e-6)
    assert len(BUCKETED.variants()) <= 3


BUCKETED = cuvil.jit(
    unrolled,
    input_spec=[("x", "float32", ("B", "S", 3)), ("mask", "bool", ("B", "S"))],
    shapes=Buckets({"S": (2, 4, 8)}),
)


def test_a_size_above_the_largest_bucket() -> None:
    with pytest.raises(ShapeError, match=rf"unrolled: S = 9 is above the largest bucket, 8;.*{HERE}"):
        BUCKETED(f32(1, 9, 3), np.ones((1, 9), bool))


def test_padding_that_reaches_a_result_is_an_error() -> None:
    f = cuvil.jit(
        lambda x: cnp.mean(x, axis=1), input_spec=[("x", "float32", ("B", "S"))], shapes=Buckets({"S": (4, 8)})
    )
    np.testing.assert_allclose(f(f32(2, 4)), f32(2, 4).mean(1), rtol=1e-6)  # not padded
    for _ in range(2):
        with pytest.raises(ShapeError, match=rf"padding \[2, 3\] to \[2, 4\] changes result 0 \(at .*{HERE}.*mask"):
            f(f32(2, 3))


def test_a_fill_that_does_not_count() -> None:
    f = cuvil.jit(
        lambda x, y: (cnp.max(x, axis=1), cnp.sum(y, axis=1)),
        input_spec=[("x", "float32", ("B", "S")), ("y", "int32", ("B", "S"))],
        shapes=Buckets({"S": (4, 8)}, fill={"x": -np.inf}),
    )
    x, y = -1 - np.abs(f32(2, 3)), np.arange(6, dtype=np.int32).reshape(2, 3)
    top, total = f(x, y)
    np.testing.assert_array_equal(top, x.max(1))
    np.testing.assert_array_equal(total, y.sum(1))


def test_derived_sizes_are_padded_with_their_symbol() -> None:
    f = cuvil.jit(
        lambda x, y: (x * 2, y + 1),
        input_spec=[("x", "float32", ("2*S + 1",)), ("y", "float32", ("S",))],
        shapes=Buckets({"S": (4,)}),
    )
    a, b = f(f32(7), f32(3))
    np.testing.assert_array_equal(a, f32(7) * 2)
    np.testing.assert_array_equal(b, f32(3) + 1)
    assert [str(p) for p in f.variants()[0].patterns] == ["(9,)", "(4,)"]


@pytest.mark.parametrize(
    "make, error, message",
    [
        (lambda: Buckets({}), ArgumentError, "Buckets takes sizes by symbol"),
        (lambda: Buckets({"S": (4, 4)}), ArgumentError, "whole numbers that increase"),
        (lambda: Buckets({"S": (-1, 4)}), ArgumentError, "whole numbers that increase"),
        (lambda: Buckets({"S": 4}), ArgumentError, "whole numbers that increase"),  # type: ignore[dict-item]
        (lambda: bucketed({"T": (4,)}), ArgumentError, "Buckets has sizes for T, which no size of input_spec is"),
        (lambda: bucketed({"S": (4,)}, fill={"z": 1}), ArgumentError, "a fill for z, which is no argument"),
        (lambda: cuvil.jit(lambda x: x, shapes=Buckets({"S": (4,)})), ArgumentError, "needs an input_spec"),
        (lambda: bucketed({"S": (4,)}, fill="zero")(f32(3)), ArgumentTypeError, "cannot be padded with 'zero'"),
        (lambda: bucketed({"S": (4,)})(np.zeros(3)), ArgumentTypeError, "float64.*its input_spec says float32"),
        (lambda: bucketed({"S": (4,)})(f32(3, 1)), ShapeError, "has shape"),
    ],
)
def test_buckets_that_cannot_be_meant(make: Callable[[], Any], error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        make()


def bucketed(sizes: dict[str, tuple[int, ...]], **options: Any) -> Any:
    return cuvil.jit(lambda x: x * 2, input_spec=[("x", "float32", ("S",))], shapes=Buckets(sizes, **options))


def test_results_that_shrink_where_sizes_grow_are_refused() -> None:
    f = cuvil.jit(
        lambda x: cnp.zeros(10 - x.shape[0]), input_spec=[("x", "float32", ("S",))], shapes=Buckets({"S": (8,)})
    )
    with pytest.raises(ShapeError, match=r"result 0 has shape \[5\] and, once S = 5 is padded to 8, \[2\]"):
        f(f32(5))
