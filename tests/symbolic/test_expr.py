"""Normal form: values, interning, operators, limits."""

from __future__ import annotations

import copy
import gc
import pickle
import threading

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from cuvil.support.errors import ArgumentError, ArgumentTypeError, ShapeError, TracingError
from cuvil.symbolic import (
    Dim,
    Expr,
    atoms,
    ceildiv,
    dim_max,
    dim_min,
    dim_sum,
    element_count,
    evaluate,
    exact_div,
    floordiv,
    fold,
    free_symbols,
    is_static,
    linear_coefficient,
    mod,
    parse_dim,
    product,
    sizes,
    substitute,
    symbol,
)
from cuvil.symbolic import expr as core

from .strategies import NAMES, Tree, build, built, dims, envs, meaning, trees, value

generated = settings(max_examples=300, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
S, B, H = symbol("S"), symbol("B"), symbol("H")


@generated
@given(trees(), envs)
def test_normal_form_keeps_the_value(tree: Tree, env: dict[str, int]) -> None:
    dim = built(tree)
    try:
        expected = meaning(tree, env)
    except ZeroDivisionError:
        return
    assert dim is not None
    assert evaluate(dim, env) == expected


@generated
@given(trees())
def test_one_normal_form_is_one_object(tree: Tree) -> None:
    dim = built(tree)
    if dim is None:
        return
    assert isinstance(dim, int) or dim is build(tree)
    assert copy.deepcopy(dim) is dim if isinstance(dim, Expr) else True
    again = pickle.loads(pickle.dumps(dim))
    assert again is dim if isinstance(dim, Expr) else again == dim


@generated
@given(dims, dims, dims)
def test_ring_laws_hold_as_identity(a: Dim, b: Dim, c: Dim) -> None:
    assert a + b == b + a
    assert a * b == b * a
    assert (a + b) + c == a + (b + c)
    assert (a + b) * c == a * c + b * c
    assert a - a == 0
    assert 0 - (0 - a) == a
    assert dim_sum([a, b, c]) == a + b + c
    assert product([a, b, c]) == a * b * c


@generated
@given(dims, envs)
def test_text_reads_back_as_the_same_object(dim: Dim, env: dict[str, int]) -> None:
    again = parse_dim(str(dim))
    assert again is dim or (isinstance(dim, int) and again == dim)


@generated
@given(dims, envs)
def test_text_means_the_same_in_python(dim: Dim, env: dict[str, int]) -> None:
    expected = value(dim, env)
    if expected is not None:
        # The text is made by this package from generated trees, and Python's own grammar is the judge.
        assert eval(str(dim), {"__builtins__": {}, "min": min, "max": max}, dict(env)) == expected


@generated
@given(dims, dims, envs)
def test_substitution_commutes_with_evaluation(dim: Dim, inner: Dim, env: dict[str, int]) -> None:
    replacement = value(inner, env)
    if replacement is None or replacement < 0:
        return
    try:
        replaced = substitute(dim, {"A": inner})
    except ShapeError:
        return  # the replacement is the integer zero and divides
    expected = value(dim, env | {"A": replacement})
    if expected is not None:
        assert value(replaced, env) == expected


@generated
@given(dims, envs)
def test_fold_computes_the_value(dim: Dim, env: dict[str, int]) -> None:
    expected = value(dim, env)
    if expected is None:
        return
    for sub in (None, lambda a, b: a - b):
        found = fold(
            dim,
            const=lambda n: n,
            symbol=lambda name: env[name],
            add=lambda a, b: a + b,
            mul=lambda a, b: a * b,
            floordiv=lambda a, b: a // b,
            mod=lambda a, b: a % b,
            min=min,
            max=max,
            sub=sub,
        )
        assert found == expected


@generated
@given(dims)
def test_linear_coefficient_rebuilds_the_expression(dim: Dim) -> None:
    for name in NAMES:
        linear = linear_coefficient(dim, name)
        if linear is not None:
            coefficient, rest = linear
            assert name not in free_symbols(coefficient, rest)
            assert coefficient * symbol(name) + rest == dim


@generated
@given(dims, dims)
def test_exact_division_undoes_multiplication(a: Dim, b: Dim) -> None:
    if b != 0:
        assert exact_div(a * b, b) == a
    quotient = exact_div(a, b)
    if quotient is not None:
        assert quotient * b == a


@generated
@given(dims)
def test_flags_are_what_they_say(dim: Dim) -> None:
    if isinstance(dim, Expr):
        for env in (dict.fromkeys(NAMES, size) for size in (0, 1, 2, 7)):
            found = value(dim, env)
            assert found is not None or not dim.total
            assert found is None or found >= 0 or not dim.nonneg


def test_normal_forms() -> None:
    assert S - S == 0 and type(S - S) is int
    assert (2 * S) // 2 is S
    assert (H - 1) // 2 + 1 is (H + 1) // 2
    assert S // 2 // 3 is S // 6
    assert (4 * S + 3) // 6 is (2 * S + 1) // 3
    assert (S % 12) % 4 is S % 4
    assert (2 * S) % 4 == 2 * (S % 2)
    assert ceildiv(S, 2) is (S + 1) // 2
    assert dim_max(dim_max(S, 1), B, 3) is dim_max(B, 3, S)
    assert dim_max(S, 0) is S
    assert dim_min(S, S + 1) is S
    assert dim_min(S, 0) == 0
    assert (S * 3) ** 2 is 9 * S * S


def test_a_symbolic_divisor_is_not_assumed_to_be_nonzero() -> None:
    for dim in (S // S, S % S, 0 // S, (B * S) // S, (B * S) % S):
        assert isinstance(dim, Expr)
        with pytest.raises(ShapeError, match=r"divides by zero at .*S=0"):
            evaluate(dim, {"S": 0, "B": 2})
    assert evaluate(S // S, {"S": 3}) == 1


def test_division_by_the_integer_zero() -> None:
    for operation in (floordiv, mod, ceildiv):
        with pytest.raises(ShapeError, match="divided by zero"):
            operation(S, 0)
        with pytest.raises(ShapeError, match="divided by zero"):
            operation(4, 0)


@pytest.mark.parametrize(
    ("dim", "text"),
    [
        (2 * S + 1, "2*S + 1"),
        ((H - 1) // 2 + 1, "(H + 1)//2"),
        (dim_max(symbol("N"), 1), "max(N, 1)"),
        (1 - S, "1 - S"),
        (-S - 1, "-S - 1"),
        (B - S // 2, "B - S//2"),
        (-(S // 2), "-(S//2)"),
        (2 * (S % B), "2*(S % B)"),
        (S * S * B * 3, "3*B*S**2"),
        (0 // S, "0//S"),
    ],
)
def test_text(dim: Dim, text: str) -> None:
    assert str(dim) == text


def test_structural_equality_and_hash() -> None:
    assert (S == 3) is False
    assert S != B
    assert {S: 1}[symbol("S")] == 1
    assert (symbol("S"), 2) == (S, 2)


@pytest.mark.parametrize("compare", ["__lt__", "__le__", "__gt__", "__ge__"])
def test_order_teaches(compare: str) -> None:
    with pytest.raises(TracingError, match=r"scope\.prove"):
        getattr(S, compare)(3)


def test_truth_and_true_division_teach() -> None:
    with pytest.raises(TracingError, match="no truth value"):
        bool(S)
    with pytest.raises(ArgumentTypeError, match="exact_div"):
        S / 2
    with pytest.raises(ArgumentTypeError, match="exact_div"):
        2 / S


def test_operand_types() -> None:
    assert np.int64(3) * S is 3 * S
    assert S + np.int32(1) is S + 1
    assert type(S * 0 + S * np.int64(0)) is int
    assert divmod(S, 2) == (S // 2, S % 2)
    assert divmod(7, S) == (7 // S, 7 % S)
    for wrong in (1.5, "1", None):
        with pytest.raises(TypeError):
            S + wrong  # type: ignore[operator]
        with pytest.raises(ArgumentTypeError, match="a dimension is an integer"):
            floordiv(S, wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["", "2x", "a b", "min", "max", "ceildiv", "é", "a\n", "x" * 129, 3])
def test_bad_names(name: object) -> None:
    with pytest.raises(ArgumentError, match="named by an identifier"):
        symbol(name)  # type: ignore[arg-type]


def test_evaluate_says_what_is_missing() -> None:
    with pytest.raises(ShapeError, match="symbol S has no value here; known symbols: B"):
        evaluate(S + B, {"B": 1})
    with pytest.raises(ShapeError, match="must be >= 0, got -1"):
        evaluate(S, {"S": -1})
    assert sizes((S, 2), {"S": 0}) == (0, 2)
    assert element_count((S, 2), {"S": 4}) == 8


def test_accessors() -> None:
    dim = (H + B) // 2 + S
    assert isinstance(dim, Expr)
    assert [atom.text for atom in atoms(dim)] == ["S", "B", "H", "(B + H)//2"]
    assert free_symbols(dim, 3) == {"B", "H", "S"}
    assert is_static(3) and not is_static(S)
    assert linear_coefficient((2 + B) * S + H, "S") == (B + 2, H)
    assert linear_coefficient(S * S, "S") is None
    assert linear_coefficient(S // 2 + S, "S") is None
    assert linear_coefficient(7, "S") == (0, 7)
    assert exact_div(S, 0) is None
    assert exact_div(0, S) == 0
    assert exact_div((S + 1) * (B + 2), S + 1) == B + 2


def test_limits_are_errors_with_a_name() -> None:
    deep: Dim = S
    with pytest.raises(ShapeError, match="more than 32 deep"):
        for _ in range(100):
            deep = dim_max(deep // B + 1, 5)
    wide: Dim = S
    with pytest.raises(ShapeError, match="nodes, more than"):
        for k in range(100):
            wide = wide * (symbol(f"x{k}") + 1)
    with pytest.raises(ShapeError, match="degree 65"):
        product([S] * 65)
    with pytest.raises(ShapeError, match="bits"):
        S * 2**600
    with pytest.raises(ShapeError, match="at most 64"):
        dim_min(*(symbol(f"x{k}") for k in range(65)))
    # A small graph that is a huge tree
    shared: Dim = S
    with pytest.raises(ShapeError):
        for _ in range(30):
            shared = (shared * B) // (shared + H)


def test_a_long_chain_of_strided_layers_stays_small() -> None:
    dim: Dim = H
    for _ in range(100):
        dim = (dim + 2 - 3) // 2 + 1
    assert isinstance(dim, Expr)
    assert dim.depth == 2  # a symbol in one division


def test_interning_forgets() -> None:
    core._add.cache_clear()
    core._multiply_int.cache_clear()
    gc.collect()
    before = len(core._exprs)
    kept = [S + 1_000_000 + k for k in range(100)]
    assert len(core._exprs) >= before + 100
    del kept
    core._add.cache_clear()
    gc.collect()
    assert len(core._exprs) <= before + 1


def test_interning_is_one_object_across_threads() -> None:
    found: list[list[Dim]] = []
    barrier = threading.Barrier(4)

    def work() -> None:
        barrier.wait()
        found.append([(symbol(f"t{k}") * 3 + k) // (S + k) for k in range(1, 200)])

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(a is b for column in zip(*found, strict=True) for a in column for b in column)


@pytest.mark.parametrize(
    "text",
    [
        "(A//2 + 1)//3",
        "(A//2 - 1)//3",
        "(A//B + 2)//3",
        "(A//2 + 1)//B",
        "(A//(B - 2) + 1)//3",
        "(A//3)//(B - 2)",
        "(2*A + 1)//(2*B - 4)",
        "(2*A + 1) % (2*B - 4)",
        "(2*A + 1)//(2*B)",
        "(2*A + 1) % (2*B)",
        "(2*A + 1)//(-2*B)",
        "(2*A + 1) % (-2*B)",
        "5//(2*B)",
        "5 % (2*B)",
        "(4*A + 3)//-6",
        "(4*A + 3) % -6",
        "(7*A - 9*B - 1)//4",
        "(7*A - 9*B - 1) % 4",
        "(2*(A % 6) + B) % 4",
        "(A % 6 - B % 9) % 3",
        "(-A) % 2",
        "max(A, B - A//2, 3) - min(A, 2*B, 3, A + 1)",
        "min(max(A, 2), max(A + 1, 2), B*B)",
        "(A - B)**3 - (B - 1)**2",
    ],
)
def test_forms_against_python_over_every_small_size(text: str) -> None:
    dim = parse_dim(text)
    checked = 0
    for a in range(14):
        for b in range(14):
            env = {"A": a, "B": b}
            try:
                expected = eval(text, {"__builtins__": {}, "min": min, "max": max}, dict(env))
            except ZeroDivisionError:
                assert value(dim, env) is None  # a division by zero is still one
                continue
            assert evaluate(dim, env) == expected, env
            checked += 1
    assert checked > 100
