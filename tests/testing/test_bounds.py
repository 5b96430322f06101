from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cuvil.dtypes import bool_
from cuvil.ops.registry import get, records
from cuvil.support.errors import CuvilError
from cuvil.testing import HypothesisChooser, RandomChooser, disagreement, draw_program
from cuvil.testing.arrays import draw_array
from cuvil.testing.bounds import Bounded, exact, run_bounded, wide
from cuvil.testing.compare import run_function_bounded

NAMES = [r.name for r in records() if r.category not in ("complex", "linalg", "fourier")]


def one(name: str, *operands: Any, **params: Any) -> Bounded:
    record = get(name)
    given = [o if isinstance(o, Bounded) else exact(o) for o in operands]
    return run_bounded(record, given, record.fill_params(params))[0]


def near(value: Any, error: float) -> Bounded:
    array = np.asarray(value, np.float32)
    return Bounded(array, np.full(array.shape, error))


def test_exact_operands_of_exact_ops_have_no_error() -> None:
    assert not one("add", np.float32([1, 2]), np.float32([3, np.inf])).error.any()
    assert not one("floor", np.float32([1.5])).error.any()


def test_a_step_within_the_interval_makes_the_result_unknown() -> None:
    out = one("floor", near([3.0, 3.5], 1e-6))
    assert out.known.tolist() == [False, True]
    assert out.error[1] == 0


def test_comparisons_are_unknown_where_operands_could_be_equal() -> None:
    x = near([1.0, 1.0, 1.0], 1e-6)
    other = np.float32([1.0 + 1.2e-6, 1.0, 2.0])
    for name in ("equal", "less", "greater_equal"):
        known = one(name, x, other).known.tolist()
        assert known[1:] == [False, True], name
    assert one("equal", x, near(other, 1e-6)).known.tolist() == [False, False, True]


def test_truth_is_unknown_where_an_operand_could_be_zero() -> None:
    """Zero between two true ends; what is certainly not zero stays true."""
    x = near([-1e-7, 1e-7, 0.0, 0.5], 1e-6)
    assert one("logical_not", x).known.tolist() == [False, False, False, True]
    assert one("cast", x, dtype=bool_).known.tolist() == [False, False, False, True]
    for name in ("logical_and", "logical_or", "logical_xor"):
        assert one(name, x, np.float32([1])).known.tolist() == [False, False, False, True], name


def test_a_remainder_is_unknown_where_the_quotient_could_change_by_one() -> None:
    """A large quotient multiplies the divisor's error: 1e6 of 1e-6 relative is a whole turn."""
    for name in ("remainder", "fmod"):
        out = one(name, np.float32([1.3, 1.3]), Bounded(np.float32([1e-3, 1e-6]), np.array([1e-9, 1e-12])))
        assert out.known.tolist() == [True, False], name
        assert one(name, near([0.5, 5.0], 0.3), np.float32([1.0])).known.tolist() == [False, False], name


def test_an_argmax_between_near_ties_is_unknown() -> None:
    assert one("argmax", near([[1, 2], [1, 1]], 1e-6), axis=1).known.tolist() == [True, False]


def test_a_reciprocal_across_zero_is_unknown() -> None:
    assert one("reciprocal", near([0.0, 2.0], 1e-6)).known.tolist() == [False, True]


def test_the_sign_of_a_zero_that_either_operand_may_give_is_unknown() -> None:
    zero = one("minimum", np.float32([0.0]), np.float32([-0.0]))
    assert not one("reciprocal", zero).known.any()


def test_a_select_takes_the_bound_of_the_branch_that_it_takes() -> None:
    out = one("where", np.array([True, False]), near([1, 1], np.inf), np.float32([5, 6]))
    assert out.known.tolist() == [False, True]


@given(st.sampled_from(NAMES), st.data())
def test_perturbed_operands_stay_within_the_bounds(name: str, data: st.DataObject) -> None:
    """What any correct implementation could have made of operands with errors is within the result's bound."""
    record = get(name)
    example = record.sample(HypothesisChooser(data.draw))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**16)))
    arrays = [None if o is None else draw_array(rng, o) for o in example.operands]
    operands: list[Bounded | None] = []
    shaken: list[Any] = []
    for a in arrays:
        if a is None or a.dtype.kind in "biu":
            operands.append(None if a is None else exact(a))
            shaken.append(a)
            continue
        noise = np.where(np.isfinite(wide(a)), 1e-2 * np.abs(wide(a)), 0.0)
        with np.errstate(all="ignore"):
            moved = (wide(a) + rng.uniform(-1, 1, a.shape) * noise).astype(a.dtype)
        moved = np.where(noise == 0, a, moved)  # a zero keeps its sign
        operands.append(Bounded(a, np.where(np.isfinite(wide(a)), 1.2 * np.abs(wide(moved) - wide(a)), 0.0)))
        shaken.append(moved)
    params = record.fill_params(example.params)
    try:
        want = run_bounded(record, operands, params)
        got = record.reference(*shaken, **params)
    except CuvilError:
        return
    if record.name == "searchsorted":
        return  # a perturbed array is not sorted any more
    for g, w in zip(got if isinstance(got, tuple) else (got,), want, strict=True):
        assert disagreement(np.asarray(g), w) is None, (name, example)


@pytest.mark.parametrize("seed", range(8))
def test_most_of_a_random_program_is_compared(seed: int) -> None:
    program = draw_program(RandomChooser(seed))
    out = run_function_bounded(program.trace(symbolic=False).func, program.draw(), {})
    known, total = sum(int(o.known.sum()) for o in out), sum(o.value.size for o in out)
    assert known >= total // 2
