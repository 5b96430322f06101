"""The pipeline: order and record of the passes, numerics modes, rules of the user, and validation."""

from __future__ import annotations

import numpy as np
import pytest

from cuvil.dtypes import bool_, float32, int64
from cuvil.ir.interpreter import run_function
from cuvil.ops.record import Aval
from cuvil.passes.engine import Rule
from cuvil.passes.pipeline import PassOptions, fuse_stage, optimise
from cuvil.passes.rules.equation import equation
from cuvil.passes.validate import Validation, draw_sizes
from cuvil.support.errors import PassError
from cuvil.symbolic import Scope, symbol
from tests.passes.programs import constants, function, names

B, S = symbol("B"), symbol("S")
X = Aval((B, S), float32)

#: Off by one part in a hundred.
WRONG = equation("off-by-a-little", lambda F, x: F.op("tanh", x), lambda F, x: F.mul(x, F.like(0.99, x)))
TANH_OF_NEGATIVE = equation(
    "tanh-of-negative",
    lambda F, x: F.op("abs", F.op("tanh", F.op("negative", x))),
    lambda F, x: F.op("abs", F.op("tanh", x)),
)


def test_passes_run_in_order_and_are_recorded() -> None:
    func = function(lambda F, x: F.mul(F.op("softmax", x, axis=1), F.like(1, x)), X)
    records = optimise(func, Scope(), PassOptions())
    assert [r.name for r in records] == [
        "complex-parts", "decompose", "widen-halves", "broadcast-updates", "cse", "rules", "cse-after-rules", "layout",
        "dce",
    ]  # fmt: skip
    assert all(r.seconds > 0 for r in records)
    rules = records[5]
    assert rules.detail["multiply-by-one"] == 1
    assert rules.changes == sum(rules.detail.values())


def test_without_optimise_no_rule_runs() -> None:
    func = function(lambda F, x: F.mul(x, F.like(1, x)), X)
    optimise(func, Scope(), PassOptions(optimise=False))
    assert names(func) == ["multiply"]


@pytest.mark.parametrize(("numerics", "left"), [("standard", ["exp", "log"]), ("relaxed", [])])
def test_relaxed_numerics_admit_reassociation(numerics: str, left: list[str]) -> None:
    func = function(lambda F, x: F.op("log", F.exp(x)), X)
    optimise(func, Scope(), PassOptions(numerics=numerics))
    assert names(func) == left


def test_rules_of_the_user_run_after_the_compilers_own() -> None:
    func = function(lambda F, x: F.op("abs", F.op("tanh", F.op("negative", x))), X)
    records = optimise(func, Scope(), PassOptions(rules=(TANH_OF_NEGATIVE,)))
    assert names(func) == ["tanh", "abs"]
    assert records[5].detail == {"tanh-of-negative": 1}


def test_a_reassociating_rule_of_the_user_is_for_relaxed_numerics() -> None:
    loose = Rule(WRONG.name, "reassociates", WRONG.roots, WRONG.rewrite, WRONG.example)
    for numerics, left in (("standard", ["tanh"]), ("relaxed", ["multiply"])):
        func = function(lambda F, x: F.op("tanh", x), X)
        optimise(func, Scope(), PassOptions(numerics=numerics, rules=(loose,)))
        assert names(func) == left


def test_batch_norm_goes_into_the_convolution() -> None:
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((8, 3, 3, 3)).astype(np.float32)
    mean, scale, shift = (rng.standard_normal(8).astype(np.float32) for _ in range(3))
    var = rng.uniform(0.5, 2, 8).astype(np.float32)

    def build(F, x):
        y = F.op(
            "conv", x, F.constant(weight), None, strides=(1, 1), padding=((1, 1), (1, 1)), dilation=(1, 1),
            input_dilation=(1, 1), groups=1,
        )  # fmt: skip
        return F.op(
            "relu", F.op("batch_norm", y, *(F.constant(v) for v in (mean, var, scale, shift)), axis=1, eps=1e-5)
        )

    func = function(build, Aval((B, 3, 8, 8), float32))
    x = rng.standard_normal((2, 3, 8, 8)).astype(np.float32)
    (want,) = run_function(func, [x], {"B": 2})
    optimise(func, Scope(), PassOptions(validate=True))
    assert names(func) == ["conv", "relu"]
    assert [c.shape for c in constants(func)] == [(8, 3, 3, 3), (8,)]
    np.testing.assert_allclose(run_function(func, [x], {"B": 2})[0], want, rtol=1e-4, atol=1e-5)


def test_a_chain_of_50_000_ops_goes_through_all_passes() -> None:
    def build(F, x):
        for k in range(50_000):
            x = F.op(("sin", "cos")[k % 2], x)
        return x

    func = function(build, Aval((S,), float32))
    optimise(func, Scope(), PassOptions())
    assert len(names(func)) == 50_000


# -------------------------------------------------------------------------------------- validation


def test_validation_passes_a_right_program() -> None:
    func = function(lambda F, x: F.op("softmax", F.mul(x, F.like(2, x)), axis=1), X)
    scope = Scope()
    optimise(func, scope, PassOptions(validate=True))
    fuse_stage(func, scope, PassOptions(validate=True))


def test_validation_names_the_pass_that_changed_a_value() -> None:
    func = function(lambda F, x: F.op("tanh", x), X)
    with pytest.raises(PassError, match=r"pass 'rules' changed result 0: \d+ of \d+ elements differ by up to .*sizes"):
        optimise(func, Scope(), PassOptions(validate=True, rules=(WRONG,)))


def test_the_tolerance_can_be_set() -> None:
    func = function(lambda F, x: F.op("tanh", x), X)
    optimise(func, Scope(), PassOptions(validate=True, tolerance=10.0, rules=(WRONG,)))


def test_a_pass_that_breaks_the_program_is_named() -> None:
    index = Aval((S,), int64)
    table = np.zeros(2, np.float32)

    def build(F, i):
        return F.op("take", F.constant(table), i, axis=0, mode="error")

    validation = Validation(function(build, index), Scope())

    def broken(F, i):
        return F.op("take", F.constant(table), F.add(i, F.scalar(9, int64)), axis=0, mode="error")

    with pytest.raises(PassError, match="pass 'shift' made a program that does not run"):
        validation.check(function(broken, index), "shift")


@pytest.mark.parametrize("wrong", [np.nan, 2.0])
def test_validation_sees_values_that_are_not_finite(wrong: float) -> None:
    validation = Validation(function(lambda F, x: F.div(F.like(1, x), F.op("abs", x)), X), Scope())
    changed = function(lambda F, x: F.mul(F.div(F.like(1, x), F.op("abs", x)), F.like(wrong, x)), X)
    with pytest.raises(PassError, match="pass 'p' changed result 0"):
        validation.check(changed, "p")


def test_integers_and_bools_are_compared_exactly() -> None:
    validation = Validation(function(lambda F, c: F.op("logical_not", c), Aval((S,), bool_)), Scope())
    with pytest.raises(PassError, match=r"pass 'p' changed result 0: 5 of 5 elements differ"):
        validation.check(function(lambda F, c: c, Aval((S,), bool_)), "p")


def test_sizes_obey_the_relations() -> None:
    scope = Scope(["S % 16 == 0", "S <= 32", "B == 2*S", "S >= 1"])
    env = draw_sizes([X], scope)
    assert scope.first_broken(env) is None


def test_impossible_sizes_are_reported() -> None:
    with pytest.raises(PassError, match="found no sizes for B, S"):
        draw_sizes([X], Scope(["B >= 1000003"]))
