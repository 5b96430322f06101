"""Every rule by generation, what must not be rewritten, symbolic shapes, and random programs under all rules."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from cuvil.dtypes import bool_, float32, int64
from cuvil.ir.interpreter import run_function
from cuvil.ops.record import Aval, OperandSample
from cuvil.passes.engine import ALLOWED, Case, apply_rules, rule
from cuvil.passes.pipeline import rules_for
from cuvil.passes.rule_check import check_rule, disagreement, draw_values
from cuvil.passes.rules import RULE_SETS, RULES
from cuvil.passes.rules.equation import equation, filled
from cuvil.passes.rules.table import format_table
from cuvil.support.errors import PassError
from cuvil.symbolic import Scope, symbol
from tests.passes.programs import constants, function, names

B, S = symbol("B"), symbol("S")
DOCUMENT = Path(__file__).parents[2] / "docs" / "design" / "rules.md"


@pytest.mark.parametrize("name", RULES)
def test_rule(name: str) -> None:
    assert check_rule(RULES[name], examples=30) >= 15


def test_each_name_is_given_once() -> None:
    assert len(RULES) == sum(len(s.rules) for s in RULE_SETS)
    assert all(s.measure for s in RULE_SETS)
    assert all(r.doc for r in RULES.values())


def test_reassociating_rules_are_for_relaxed_numerics_only() -> None:
    standard, relaxed = set(rules_for("standard")), set(rules_for("relaxed"))
    assert {r.kind for r in relaxed - standard} == {"reassociates"}
    assert standard < relaxed
    assert set(ALLOWED) == {"standard", "relaxed"}


def test_the_document_lists_the_rules(request: pytest.FixtureRequest) -> None:
    head, begin, rest = DOCUMENT.read_text().partition("--update-golden -->\n")
    _, end, tail = rest.partition("<!-- end of rules -->")
    assert begin and end
    want = head + begin + "\n" + format_table(RULE_SETS) + "\n" + end + tail
    if request.config.getoption("--update-golden"):
        DOCUMENT.write_text(want)
    assert DOCUMENT.read_text() == want, "run this test with --update-golden"


# ------------------------------------------------------------------------ the check finds wrong rules


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (equation("x+0.0", lambda F, x, c: F.add(x, c), lambda F, x, c: x, dtypes=(float32,),
                  constants={"c": filled(0.0)}),
         "changed result"),
        (equation("x*0", lambda F, x, c: F.mul(x, c), lambda F, x, c: c, dtypes=(float32,),
                  constants={"c": filled(0.0)}),
         "changed result"),
        (equation("x/x", lambda F, x: F.div(x, x), lambda F, x: F.broadcast_to(F.like(1, x), F.shape(x)),
                  dtypes=(float32,)), "changed result"),
        (equation("not-less", lambda F, x, y: F.op("logical_not", F.op("less", x, y)),
                  lambda F, x, y: F.op("greater_equal", x, y), dtypes=(float32,)), "changed result"),
        (equation("sqrt", lambda F, x, c: F.op("pow", x, c), lambda F, x, c: F.op("sqrt", x), dtypes=(float32,),
                  constants={"c": filled(0.5)}), "changed result"),
        (equation("dearer", lambda F, x: F.op("square", x), lambda F, x: F.mul(x, x), dtypes=(float32,)),
         "each firing must lower it"),
        (equation("never", lambda F, x: F.op("square", x), lambda F, x: None, dtypes=(float32,)),
         "fired in 0 of 40 examples"),
    ],
    ids=lambda v: getattr(v, "name", None),
)  # fmt: skip
def test_the_generated_test_finds_a_wrong_rule(wrong, message: str) -> None:
    with pytest.raises(PassError, match=message):
        check_rule(wrong)


def test_a_contraction_of_the_wrong_scale_is_found() -> None:
    def program(c):
        w = np.array([[c.integer(1, 8)]], np.float32)
        return Case(
            lambda F, x: F.mul(F.matmul(x, F.constant(w)), F.like(3, x)), (OperandSample((2, 1), float32, "moderate"),)
        )

    @rule("multiply", name="nearly", kind="contracts", example=program)
    def nearly(F, op):
        "(x @ w) * c -> x @ (w * c * 1.0001)"
        inner = F.producer(op.operands[0], "matmul")
        return F.matmul(inner.operands[0], F.constant(F.array(inner.operands[1]) * np.float32(3.0003)))

    with pytest.raises(PassError, match="changed result"):
        check_rule(nearly)


@pytest.mark.parametrize(
    ("got", "want", "kind", "agree"),
    [
        (0.0, -0.0, "exact", False),
        (0.0, -0.0, "reorders", True),
        (np.nan, np.nan, "exact", True),
        (np.nan, 1.0, "reassociates", False),
        (np.inf, 3e38, "reassociates", False),
        (1.0000001, 1.0, "exact", False),
        (1.0000001, 1.0, "refines", True),
        (1.001, 1.0, "refines", False),
    ],
)
def test_agreement_by_kind(got: float, want: float, kind: str, agree: bool) -> None:
    assert (disagreement(np.float32([got]), np.float32([want]), kind) == "") is agree


# ---------------------------------------------------------------------------- what must stay as it is

X = Aval((B,), float32)


@pytest.mark.parametrize(
    "build",
    [
        lambda F, x: F.add(x, F.like(0.0, x)),
        lambda F, x: F.sub(x, F.like(-0.0, x)),
        lambda F, x: F.mul(x, F.like(0.0, x)),
        lambda F, x: F.sub(x, x),
        lambda F, x: F.div(x, x),
        lambda F, x: F.div(x, F.like(3.0, x)),
        lambda F, x: F.div(F.like(0.0, x), x),
        lambda F, x: F.op("pow", x, F.like(0.5, x)),
        lambda F, x: F.mul(F.mul(x, F.like(0.5, x)), F.like(0.25, x)),
        lambda F, x: F.mul(F.mul(x, F.like(2.0, x)), F.like(0.25, x)),
        lambda F, x: F.mul(F.mul(x, F.like(3.0, x)), F.like(5.0, x)),
        lambda F, x: F.add(F.add(x, F.like(3.0, x)), F.like(5.0, x)),
        lambda F, x: F.op("log", F.exp(x)),
        lambda F, x: F.mul(F.op("sqrt", x), F.op("sqrt", x)),
        lambda F, x: F.op("logical_not", F.op("less", x, F.like(1.0, x))),
        lambda F, x: F.op("equal", x, x),
        lambda F, x: F.op("negative", F.sub(x, F.like(1.0, x))),
        lambda F, x: F.op("abs", F.op("sqrt", x)),
        lambda F, x: F.cast(F.cast(x, int64), float32),
    ],
)
def test_floats_are_left_alone(build) -> None:
    func = function(build, X)
    before = names(func)
    assert apply_rules(func, rules_for("standard"), Scope()).counts == {}
    assert names(func) == before


# ---------------------------------------------------------------------------------- symbolic shapes


def _rewritten(build, *avals: Aval, scope: Scope | None = None) -> list[str]:
    func = function(build, *avals)
    apply_rules(func, rules_for("standard"), scope or Scope())
    func.verify()
    return names(func)


def test_slices_of_a_concat_with_symbolic_pieces_are_the_pieces() -> None:
    def build(F, x, y):
        joined = F.op("concat", x, y, axis=0)
        return (
            F.op("slice", joined, starts=(0,), sizes=(B,), steps=(1,)),
            F.op("slice", joined, starts=(B,), sizes=(S,), steps=(1,)),
        )

    scope = Scope(["B >= 1", "S >= 1"])
    assert _rewritten(build, Aval((B,), float32), Aval((S,), float32), scope=scope) == []


def test_a_slice_that_may_cross_a_piece_stays() -> None:
    def build(F, x, y):
        return F.op("slice", F.op("concat", x, y, axis=0), starts=(0,), sizes=(4,), steps=(1,))

    assert _rewritten(build, Aval((B,), float32), Aval((S,), float32), scope=Scope(["B + S >= 4"])) == [
        "concat",
        "slice",
    ]


def test_attention_heads_split_and_merge_to_nothing() -> None:
    def build(F, x):
        split = F.op("transpose", F.op("reshape", x, shape=(B, S, 4, 8)), axes=(0, 2, 1, 3))
        back = F.op("transpose", F.op("relu", split), axes=(0, 2, 1, 3))
        return F.op("reshape", back, shape=(B, S, 32))

    assert _rewritten(build, Aval((B, S, 32), float32)) == ["relu"]


def test_a_value_of_another_symbolic_shape_does_not_replace() -> None:
    # B and S are equal by a guard; x * y has the shape [B], y has [S].
    build = lambda F, x, y: F.where(F.op("less", x, x), x, y)  # noqa: E731
    result = _rewritten(build, Aval((B,), float32), Aval((S,), float32), scope=Scope(["B == S"]))
    assert "where" in result


# ------------------------------------------------------------------------------------- contractions


def test_projections_that_are_read_by_views_become_one() -> None:
    rng = np.random.default_rng(0)
    w = [rng.standard_normal((8, n)).astype(np.float32) for n in (8, 4, 4)]
    bias = rng.standard_normal(8).astype(np.float32)

    def build(F, x):
        q, k, v = (F.matmul(x, F.constant(m)) for m in w)
        q = F.add(q, F.constant(bias))
        return [F.op("transpose", t, axes=(1, 0, 2)) for t in (q, k, v)]

    func = function(build, Aval((B, S, 8), float32))
    x = rng.standard_normal((2, 3, 8)).astype(np.float32)
    want = run_function(func, [x], {"B": 2, "S": 3})
    apply_rules(func, rules_for("standard"), Scope())
    assert names(func) == ["matmul", "add", *["slice"] * 3, *["transpose"] * 3]
    for g, e in zip(run_function(func, [x], {"B": 2, "S": 3}), want, strict=True):
        np.testing.assert_allclose(g, e, rtol=1e-5, atol=1e-5)


def test_projections_with_epilogues_stay_apart() -> None:
    w = np.ones((8, 8), np.float32)

    def build(F, x):
        return F.mul(F.op("silu", F.matmul(x, F.constant(w))), F.matmul(x, F.constant(2 * w)))

    func = function(build, Aval((B, 8), float32))
    apply_rules(func, rules_for("standard"), Scope())
    assert names(func).count("matmul") == 2


@pytest.mark.parametrize("scale", [1e-44, 1e38, np.inf, np.nan, 0.0])
def test_a_scale_that_the_weights_cannot_take_stays(scale: float) -> None:
    w = np.full((4, 4), 8.0, np.float32)
    func = function(
        lambda F, x: F.mul(F.matmul(x, F.constant(w)), F.constant(np.float32(scale))), Aval((B, 4), float32)
    )
    apply_rules(func, rules_for("standard"), Scope())
    assert names(func) == ["matmul", "multiply"]


def test_a_product_with_other_readers_is_not_scaled() -> None:
    w = np.full((4, 4), 8.0, np.float32)

    def build(F, x):
        y = F.matmul(x, F.constant(w))
        return F.mul(y, F.like(3, y)), F.op("exp", y)

    func = function(build, Aval((B, 4), float32))
    apply_rules(func, rules_for("standard"), Scope())
    assert names(func).count("matmul") == 1
    assert len(constants(func)) == 2


# ---------------------------------------------------------------------------------- random programs

_SPECIAL = (0.0, -0.0, 1.0, -1.0, 2.0, 0.5, 4.0, float("inf"), -float("inf"), float("nan"))
_UNARY = ("negative", "abs", "relu", "sqrt", "floor", "round", "square", "sign", "reciprocal", "positive")
_BINARY = ("add", "subtract", "multiply", "divide", "minimum", "maximum")


def _random_program(r: random.Random):
    """A program over [3, 4] floats: element-wise ops with special constants, conditions and movement."""

    def build(F, x, y):
        values = [x, y]
        for _ in range(14):
            a, b = r.choice(values), r.choice(values)
            kind = r.randrange(8)
            if kind == 0:
                values.append(F.op(r.choice(_UNARY), a))
            elif kind == 1:
                values.append(F.op(r.choice(_BINARY), a, b))
            elif kind == 2:
                c = F.constant(np.full(r.choice(((), (4,), (3, 4))), r.choice(_SPECIAL), np.float32))
                values.append(F.op(r.choice(_BINARY), *((a, c) if r.random() < 0.7 else (c, a))))
            elif kind == 3:
                turned = F.op("transpose", a, axes=(1, 0))
                values.append(F.op("transpose", F.op(r.choice(_UNARY), turned), axes=(1, 0)))
            elif kind == 4:
                flat = F.op("reshape", F.op("reshape", a, shape=(12,)), shape=(4, 3))
                values.append(F.op("reshape", F.op(r.choice(_UNARY), flat), shape=(3, 4)))
            elif kind == 5:
                test = F.op(r.choice(("less", "equal", "greater_equal")), a, b)
                test = F.op("logical_not", test) if r.random() < 0.5 else test
                values.append(F.where(test, a, b))
            elif kind == 6:
                joined = F.op("concat", a, b, axis=0)
                start = r.randrange(4)
                values.append(F.op("slice", joined, starts=(start, 0), sizes=(3, 4), steps=(1, 1)))
            else:
                values.append(F.op("flip", F.op("flip", a, axes=(r.randrange(2),)), axes=(0, 1)))
        return values[-3:]

    return build


@pytest.mark.parametrize("seed", range(60))
def test_a_random_program_keeps_its_values(seed: int) -> None:
    func = function(_random_program(random.Random(seed)), *[Aval((3, 4), float32)] * 2)
    rng = np.random.default_rng(seed)
    arrays = [draw_values(rng, OperandSample((3, 4), float32)) for _ in range(2)]
    before = run_function(func, arrays, {})
    rules = [r for r in rules_for("standard") if r.kind == "exact"]
    apply_rules(func, rules, Scope())
    func.verify()
    for g, w in zip(run_function(func, arrays, {}), before, strict=True):
        assert disagreement(g, w, "exact") == ""


def test_conditions_of_bool_arrays_fold_to_the_array() -> None:
    func = function(lambda F, c: F.where(c, F.scalar(True, bool_), F.scalar(False, bool_)), Aval((S,), bool_))
    apply_rules(func, rules_for("standard"), Scope())
    assert names(func) == []
