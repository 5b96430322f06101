"""The engine: firings, their record, the budget, dead code, and time linear in the length of a chain."""

from __future__ import annotations

from time import perf_counter

import numpy as np
import pytest
from xdsl.dialects.func import FuncOp

from cuvil.dtypes import float32, int32
from cuvil.ir.interpreter import run_function
from cuvil.ops.record import Aval, OperandSample
from cuvil.passes.engine import Case, Rule, apply_rules, rule
from cuvil.passes.pipeline import rules_for
from cuvil.passes.rules import RULES
from cuvil.passes.rules.equation import equation, filled
from cuvil.support.errors import PassError
from cuvil.symbolic import Scope, symbol
from tests.passes.programs import constants, function, names

N = symbol("N")
VECTOR = Aval((N,), float32)


def _example(c: object) -> Case:
    return Case(lambda F, x: F.op("abs", x), (OperandSample((2,), float32),))


def _chain(length: int) -> FuncOp:
    """A chain in which no rule applies."""

    def build(F, x):
        for k in range(length):
            x = F.op(("sin", "cos")[k % 2], x)
        return x

    return function(build, VECTOR)


def _foldable(length: int) -> FuncOp:
    """A chain in which a rule applies at each op but the first."""

    def build(F, x):
        x = F.op("abs", x)
        for _ in range(length):
            x = F.op("negative", x)
        return x

    return function(build, VECTOR)


def test_a_rule_fires_and_is_recorded() -> None:
    func = function(lambda F, x: F.op("negative", F.op("negative", x)), VECTOR)
    report = apply_rules(func, [RULES["negative-of-negative"]], Scope())
    assert names(func) == []
    (firing,) = report.firings
    assert (firing.rule, firing.op) == ("negative-of-negative", "cuvil.negative")
    assert 0 < firing.seconds <= report.seconds
    assert report.counts == {"negative-of-negative": 1}


def test_a_firing_makes_its_readers_be_looked_at_again() -> None:
    # The outer negatives meet only when the abs between them has gone.
    func = function(lambda F, x: F.op("abs", F.op("negative", F.op("abs", F.op("negative", F.op("abs", x))))), VECTOR)
    apply_rules(func, rules_for("standard"), Scope())
    assert names(func) == ["abs"]


def test_operands_that_nobody_reads_any_more_are_erased() -> None:
    func = function(lambda F, x: F.add(F.mul(x, F.like(1, x)), F.op("exp", x)), VECTOR)
    apply_rules(func, [RULES["multiply-by-one"]], Scope())
    assert names(func) == ["exp", "add"]
    assert constants(func) == []


def test_what_a_rule_that_declines_has_inserted_is_erased() -> None:
    @rule("abs", name="undecided", example=_example)
    def undecided(F, op):
        "builds, then declines"
        F.op("exp", op.operands[0])

    func = function(lambda F, x: F.op("abs", x), VECTOR)
    assert apply_rules(func, [undecided], Scope()).firings == []
    assert names(func) == ["abs"]


def test_the_budget_names_the_rules_that_undo_each_other() -> None:
    there = equation("there", lambda F, x: F.op("sin", x), lambda F, x: F.op("cos", x))
    back = equation("back", lambda F, x: F.op("cos", x), lambda F, x: F.op("sin", x))
    with pytest.raises(PassError, match=r"fired 40 times .*(there|back) \(\d+ times\), (there|back) \(\d+ times\)"):
        apply_rules(_chain(3), [there, back], Scope(), budget=40)


def test_a_rule_that_changes_the_dtype_is_named() -> None:
    @rule("abs", name="careless", example=_example)
    def careless(F, op):
        "abs(x) -> x as an integer"
        return F.cast(op.operands[0], int32)

    with pytest.raises(PassError, match=r"rule 'careless'.*keeps shape and dtype"):
        apply_rules(function(lambda F, x: F.op("abs", x), VECTOR), [careless], Scope())


def test_a_rule_that_returns_its_own_root_is_named() -> None:
    @rule("abs", name="idle", example=_example)
    def idle(F, op):
        "abs(x) -> abs(x)"
        return op.results[0]

    with pytest.raises(PassError, match=r"rule 'idle'.*by itself"):
        apply_rules(function(lambda F, x: F.op("abs", x), VECTOR), [idle], Scope())


def test_a_value_keeps_the_shape_of_what_it_replaces() -> None:
    func = function(lambda F, x: F.mul(x, F.constant(np.ones((3, 4), np.float32))), Aval((4,), float32))
    apply_rules(func, [RULES["multiply-by-one"]], Scope())
    assert names(func) == ["broadcast_to"]
    (result,) = run_function(func, [np.arange(4, dtype=np.float32)], {})
    assert result.shape == (3, 4)


def test_shared_work_is_not_done_twice() -> None:
    # log and exp are read twice: rewriting one of their readers would leave them both in place.
    cheaper = equation(
        "to-tanh", lambda F, x: F.op("exp", F.op("log", x)), lambda F, x: F.op("tanh", x), kind="reassociates"
    )

    def build(F, x):
        inner = F.op("log", x)
        return F.op("exp", inner), F.op("sin", inner)

    func = function(build, VECTOR)
    assert apply_rules(func, [cheaper], Scope()).firings == []


def _seconds(build, length: int, rules: tuple[Rule, ...]) -> float:
    best = float("inf")
    for _ in range(3):
        func = build(length)
        start = perf_counter()
        apply_rules(func, rules, Scope())
        best = min(best, perf_counter() - start)
    return best


@pytest.mark.parametrize("build", [_chain, _foldable])
def test_time_grows_linearly_with_the_chain(build) -> None:
    rules = rules_for("standard")
    short, long = _seconds(build, 2000, rules), _seconds(build, 8000, rules)
    # Four times the ops; quadratic time would be sixteen times as long.
    assert long < 8 * short, (short, long)


def test_a_chain_of_50_000_ops_is_rewritten() -> None:
    func = _foldable(50_000)
    report = apply_rules(func, rules_for("standard"), Scope())
    assert names(func) == ["abs"]
    assert len(report.firings) == 25_000


def test_a_value_with_many_readers_takes_linear_time() -> None:
    def fan(length: int) -> FuncOp:
        def build(F, x):
            shared = F.op("sin", x)
            total = x
            for _ in range(length):
                total = F.op("cos", F.add(total, F.mul(shared, F.like(1, x))))
            return total

        return function(build, VECTOR)

    rules = rules_for("standard")
    short, long = _seconds(fan, 500, rules), _seconds(fan, 2000, rules)
    assert long < 8 * short, (short, long)


def test_a_constant_of_other_bits_does_not_match() -> None:
    rules = [equation("plus", lambda F, x, c: F.add(x, c), lambda F, x, c: x, constants={"c": filled(-0.0)})]
    for value, left in ((-0.0, []), (0.0, ["add"])):
        func = function(lambda F, x, v=value: F.add(x, F.like(v, x)), VECTOR)
        apply_rules(func, rules, Scope())
        assert names(func) == left
