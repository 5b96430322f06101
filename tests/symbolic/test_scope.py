"""Scopes: bounds, proofs and simplification against every small assignment that they admit."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import HealthCheck, given, settings

from cuvil.support.errors import ArgumentError, ShapeError, TracingError
from cuvil.symbolic import Dim, Relation, Scope, Truth, free_symbols, parse_dim, symbol
from cuvil.symbolic.scope import is_true

from .strategies import NAMES, admitted, dims, scopes, signs, value

generated = settings(
    max_examples=200,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


@generated
@given(scopes, dims)
def test_simplify_keeps_every_value(scope: Scope, dim: Dim) -> None:
    simple = scope.simplify(dim)
    assert free_symbols(simple) <= set(NAMES)
    for env in admitted(scope):
        before = value(dim, env)
        if before is not None:
            assert value(simple, env) == before, (env, str(simple))


@generated
@given(scopes, dims)
def test_bounds_hold(scope: Scope, dim: Dim) -> None:
    low, high = scope.bounds(dim)
    for env in admitted(scope):
        size = value(dim, env)
        if size is not None:
            assert low is None or low <= size
            assert high is None or size <= high


@generated
@given(scopes, signs, dims, dims)
def test_proofs_hold(scope: Scope, sign: str, left: Dim, right: Dim) -> None:
    answer = scope.prove(sign, left, right)
    if answer is Truth.UNKNOWN:
        return
    for env in admitted(scope):
        a, b = value(left, env), value(right, env)
        if a is not None and b is not None:
            assert is_true(sign, a, b) is (answer is Truth.YES), env  # type: ignore[arg-type]


@generated
@given(scopes)
def test_a_scope_that_admits_something_is_not_called_empty(scope: Scope) -> None:
    if scope.admits_nothing:
        assert admitted(scope) == []


#: (relations, expression, its simplification)
SIMPLIFICATIONS = [
    (["j < S"], "(i*S + j)//S", "i"),
    (["j < S"], "(i*S + j) % S", "j"),
    (["r < 4"], "(4*x + r)//4", "x"),
    (["r < 8"], "(8*x + r)//16", "x//2"),
    (["j < S"], "(i*S + j)//(4*S)", "i//4"),
    (["j <= S"], "(i*(S + 1) + j)//(S + 1)", "i"),
    (["j < S"], "(i*S + S - 1 - j)//S", "i"),
    (["i < N"], "(N - 1 - i) % N", "N - i - 1"),
    (["1 <= j <= S"], "(i*S - j)//S", "i - 1"),
    (["1 <= j <= 2*S"], "(i*S - j)//S", "i + (-j)//S"),
    (["1 <= j <= 8"], "(8*i + j - 1)//8", "i"),
    (["8 <= j < 16"], "(16*i + j) % 8", "j - 8"),
    (["j < H", "k < W"], "((i*H + j)*W + k)//(H*W)", "i"),
    (["j < H", "k < W"], "(((i*H + j)*W + k)//W) % H", "j"),
    (["j < H", "k < W"], "((i*H + j)*W + k) % (H*W)", "j*W + k"),
    ([], "x//4//5", "x//20"),
    ([], "x//a//b", "x//(a*b)"),
    (["a >= 1"], "(x//a)*a + x % a", "x"),
    ([], "(x//4)*4 + x % 4", "x"),
    ([], "(x//a)*a + x % a", "a*(x//a) + x % a"),
    ([], "(2*S)//2", "S"),
    ([], "S//S", "S//S"),
    ([], "S % S", "S % S"),
    (["S >= 1"], "S//S", "1"),
    (["S != 0"], "S//S", "1"),
    (["S >= 1"], "S % S", "0"),
    (["S >= 1"], "(B*S)//S", "B"),
    (["S <= 512"], "min(S, 512)", "S"),
    (["N >= 1"], "max(N, 1)", "N"),
    (["i < N"], "min(i + 1, N)", "i + 1"),
    (["S % 16 == 0"], "(S//16)*16", "S"),
    (["S % 16 == 0"], "(S + 3)//4", "S//4"),
    (["S % 16 == 0"], "ceildiv(S, 16)*16", "S"),
    (["S % 16 == 3"], "S % 8", "3"),
    (["S % 4 == 0", "S % 6 == 0"], "(S//12)*12", "S"),
    (["H == 2*K"], "H//2", "K"),
    (["K1 == K2"], "K1 - K2", "0"),
    (["(S + T) % 4 == 0"], "(S + T) % 4 + 1", "1"),
    (["3 <= S <= 3"], "S*B", "3*B"),
    (["x < 4"], "x % 4 + x//4", "x"),
]


@pytest.mark.parametrize(("relations", "before", "after"), SIMPLIFICATIONS)
def test_simplifications(relations: list[str], before: str, after: str) -> None:
    scope = Scope(relations)
    dim, simple = parse_dim(before), scope.simplify(parse_dim(before))
    assert str(simple) == str(parse_dim(after))
    assert scope.simplify(simple) == simple
    names = sorted(free_symbols(dim, *(side for r in scope.relations for side in (r.left, r.right))))
    sizes = (0, 1, 2, 3, 4, 12, 16, 19, 24) if len(names) <= 3 else (0, 1, 2, 3)
    checked = 0
    for values in product(sizes, repeat=len(names)):
        env = dict(zip(names, values, strict=True))
        if scope.first_broken(env) is None:
            assert value(dim, env) == value(simple, env)  # where one has no value the other has none
            checked += 1
    assert checked


@pytest.mark.parametrize(
    ("relations", "sign", "left", "right", "answer"),
    [
        ([], ">=", "S", "0", Truth.YES),
        ([], ">=", "S", "1", Truth.UNKNOWN),
        ([], "<", "S", "0", Truth.NO),
        ([], "==", "S", "T", Truth.UNKNOWN),
        ([], "==", "2*S", "2*T + 1", Truth.NO),
        ([], "!=", "2*S", "2*T + 1", Truth.YES),
        ([], "==", "S", "S + 1", Truth.NO),
        ([], "<=", "16*(S//16)", "S", Truth.YES),
        ([], "<=", "S", "16*ceildiv(S, 16)", Truth.YES),
        ([], "<", "S % T", "T", Truth.UNKNOWN),
        (["T >= 1"], "<", "S % T", "T", Truth.YES),
        (["K1 >= K2 + 1"], ">", "K1", "K2", Truth.YES),
        (["K1 >= K2 + 1"], "==", "K1", "K2", Truth.NO),
        (["K1 >= K2 + 1"], ">=", "K1", "1", Truth.YES),
        (["a <= b", "b <= c", "c <= d"], "<=", "a", "d", Truth.YES),
        (["i < N", "j < S"], "<", "i*S + j", "N*S", Truth.YES),
        (["i < N", "j < S"], ">=", "N*S", "1", Truth.YES),
        (["i < N", "j < H", "k < W"], "<", "(i*H + j)*W + k", "N*H*W", Truth.YES),
        (["j < S"], "==", "(i*S + j)//S", "i", Truth.YES),
        (["t < ceildiv(S, 16)"], "<", "16*t", "S", Truth.YES),
        (["j < min(S, 16*t + 16)"], "<", "j", "S", Truth.YES),
        (["j < max(S, T)"], "<", "j", "S + T", Truth.YES),
        (["S != 0"], ">=", "S", "1", Truth.YES),
        (["A != B"], "==", "A", "B", Truth.NO),
        (["S % 16 == 0"], "==", "S % 8", "0", Truth.YES),
        (["S % 16 == 0", "S >= 1"], ">=", "S", "16", Truth.YES),
        (["H == 2*K", "K >= 3"], ">", "H", "5", Truth.YES),
        ([], ">=", "max(A, B)", "min(A, B)", Truth.YES),
        ([], "==", "max(A, B) + min(A, B)", "A + B", Truth.YES),
        ([], "==", "S//S", "1", Truth.UNKNOWN),
    ],
)
def test_proofs(relations: list[str], sign: str, left: str, right: str, answer: Truth) -> None:
    assert Scope(relations).prove(sign, parse_dim(left), parse_dim(right)) is answer


def test_bounds() -> None:
    scope = Scope(["1 <= S <= 512", "S % 16 == 0"])
    scope.loop("j", symbol("S"))
    assert scope.bounds(symbol("S")) == (16, 512)
    assert scope.bounds(parse_dim("j")) == (0, 511)
    assert scope.bounds(parse_dim("S - j")) == (1, 512)
    assert scope.bounds(parse_dim("S % 7 + B")) == (0, None)
    assert scope.bounds(parse_dim("3 - B")) == (None, 3)
    assert scope.bounds(parse_dim("B % T")) == (None, None)  # T may be zero
    assert scope.bounds(7) == (7, 7)


def test_building_a_scope() -> None:
    scope = Scope()
    assert scope.bound("S", 1, 8) is symbol("S")
    scope.assume(Relation("<", symbol("S"), symbol("T")))
    scope.assume(">=", symbol("U"), symbol("T"))
    scope.assume("S < T")
    assert [str(relation) for relation in scope.relations] == ["1 <= S", "S <= 8", "S < T", "U >= T"]
    inner = scope.copy()
    inner.loop("i", symbol("S"))
    assert len(scope.relations) == 4
    assert inner.prove("<", symbol("i"), symbol("U")) is Truth.YES
    assert scope.prove("<", symbol("i"), symbol("U")) is Truth.UNKNOWN
    assert Scope(str(scope).split(", ")).relations == scope.relations
    with pytest.raises(ArgumentError, match="use i - 3"):
        scope.bound("i", -3, 5)
    with pytest.raises(ArgumentError, match="a relation is one of"):
        scope.prove("=", 1, 2)
    with pytest.raises(ArgumentError, match="both sides"):
        scope.assume("<", symbol("S"))
    with pytest.raises(ShapeError, match="expected sizes with S <= 8, got S = 9"):
        scope.check({"S": 9})
    scope.check({"S": 8, "T": 9, "U": 9})


def test_assumptions_made_later_count() -> None:
    scope = Scope()
    S = symbol("S")
    assert scope.prove(">=", S, 1) is Truth.UNKNOWN
    assert scope.simplify(S // S) is S // S
    scope.assume("S >= 1")
    assert scope.prove(">=", S, 1) is Truth.YES
    assert scope.simplify(S // S) == 1


def test_contradictions() -> None:
    for relations in (["S <= 3", "S >= 5"], ["S == S + 1"], ["S % 4 == 5"], ["i < N", "N == 0"]):
        scope = Scope(relations)
        assert scope.admits_nothing
        assert scope.prove("==", symbol("S"), 4) is Truth.UNKNOWN
    assert not Scope(["S <= 3"]).admits_nothing


def test_a_truth_has_no_truth_value() -> None:
    with pytest.raises(TracingError, match=r"is Truth\.YES"):
        if Scope().prove("==", 1, 1):
            raise AssertionError
