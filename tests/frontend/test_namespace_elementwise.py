"""Element-wise functions of the namespace against NumPy: dtypes, values, broadcasting, Python scalars."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import cuvil.numpy as cnp
from cuvil.symbolic import symbol
from tests.frontend.tracing import assert_same, run_traced, symbolic_shape

INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
FLOATS = ["float16", "float32", "float64"]
ALL = ("bool", *INTEGERS, *FLOATS)

#: Functions whose name and dtypes are NumPy's, with the dtypes that they take.
UNARY = {
    **dict.fromkeys(
        ["exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "sin", "cos", "tan", "arcsin", "arccos",
         "arctan", "sinh", "cosh", "tanh", "arcsinh", "arccosh", "arctanh", "signbit", "rint", "absolute", "ceil",
         "floor", "trunc", "square", "isnan", "isinf", "isfinite", "logical_not", "round"], ALL),
    "negative": INTEGERS + FLOATS, "positive": INTEGERS + FLOATS, "sign": INTEGERS + FLOATS,
    "reciprocal": FLOATS, "invert": ["bool", *INTEGERS],
}  # fmt: skip
BINARY = {
    **dict.fromkeys(
        ["add", "multiply", "divide", "true_divide", "arctan2", "hypot", "copysign", "logaddexp", "minimum", "maximum",
         "equal", "not_equal", "less", "less_equal", "greater", "greater_equal", "logical_and", "logical_or",
         "logical_xor", "floor_divide", "remainder", "mod", "fmod"], ALL),
    "subtract": INTEGERS + FLOATS,
    **dict.fromkeys(["bitwise_and", "bitwise_or", "bitwise_xor"], ("bool", *INTEGERS)),
    **dict.fromkeys(["left_shift", "right_shift"], ("bool", "int8", "int16", "int32", "int64")),
}  # fmt: skip
#: NumPy computes halves in its own loops with one rounding more or less; everything else is exact or near it.
CLOSE = {"float16": 4e-3, "float32": 1e-5, "float64": 1e-12}


def sample(dt: str, shape: tuple[int, ...], seed: int) -> np.ndarray[Any, Any]:
    rng = np.random.default_rng(seed)
    if dt == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    if dt in FLOATS:
        values = rng.normal(0, 2, shape).astype(dt)
        special = rng.choice([0.0, -0.0, np.nan, np.inf, -np.inf, 1.0, -1.0], shape)
        return np.where(rng.random(shape) < 0.3, special, values).astype(dt)
    low = 0 if dt[0] == "u" else -7
    return rng.integers(low, 8, shape).astype(dt)


def assert_like_numpy(got: Any, expected: Any) -> None:
    rtol = CLOSE.get(np.asarray(expected).dtype.name, 0.0)
    assert_same(got, expected, rtol=rtol, atol=rtol)


@pytest.mark.parametrize("name", sorted(UNARY))
@given(data=st.data())
def test_unary_functions(name: str, data: st.DataObject) -> None:
    dt = data.draw(st.sampled_from(UNARY[name]))
    shape = data.draw(hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3))
    x = sample(dt, shape, data.draw(st.integers(0, 99)))
    with np.errstate(all="ignore"):
        expected = np.asarray(getattr(np, name)(x))
    fn = getattr(cnp, name)
    eager = fn(x)
    assert isinstance(eager, np.ndarray)
    assert_like_numpy(eager, expected)
    assert_same(run_traced(fn, x), eager)
    assert_same(run_traced(fn, x, shapes=[symbolic_shape(shape)]), eager)


@pytest.mark.parametrize("name", sorted(BINARY))
@given(data=st.data())
def test_binary_functions(name: str, data: st.DataObject) -> None:
    accepted = BINARY[name]
    left, right = data.draw(st.sampled_from(accepted)), data.draw(st.sampled_from(accepted))
    shapes = data.draw(hnp.mutually_broadcastable_shapes(num_shapes=2, max_dims=3, min_side=0, max_side=3))
    seed = data.draw(st.integers(0, 99))
    x, y = sample(left, shapes.input_shapes[0], seed), sample(right, shapes.input_shapes[1], seed + 1)
    if name.endswith("shift"):
        x, y = np.abs(x), np.abs(y)
    with np.errstate(all="ignore"):
        try:
            expected = np.asarray(getattr(np, name)(x, y))
        except TypeError:  # uint64 with a signed integer is a float, which has no bits
            with pytest.raises(TypeError):
                getattr(cnp, name)(x, y)
            return
    fn = getattr(cnp, name)
    eager = fn(x, y)
    assert isinstance(eager, np.ndarray)
    assert_like_numpy(eager, expected)
    assert_same(run_traced(fn, x, y), eager)


@pytest.mark.parametrize("dt", ALL)
@pytest.mark.parametrize("name", ["add", "multiply", "divide", "maximum", "less", "arctan2", "logaddexp", "remainder"])
@pytest.mark.parametrize("scalar", [2, 2.0, True])
def test_python_scalars_are_weak(name: str, dt: str, scalar: Any) -> None:
    x = np.abs(sample(dt, (4,), 3)) if dt != "bool" else sample(dt, (4,), 3)
    fn = getattr(cnp, name)
    with np.errstate(all="ignore"):
        for swap in (False, True):
            args = (scalar, x) if swap else (x, scalar)
            expected = getattr(np, name)(*args)
            assert_like_numpy(fn(*args), expected)
            got = run_traced(lambda a, swap=swap: fn(scalar, a) if swap else fn(a, scalar), x)
            assert_like_numpy(got, expected)


OPERATORS = {
    "x + 2": lambda x: x + 2, "2 - x": lambda x: 2 - x, "x * 1.5": lambda x: x * 1.5, "x / 2": lambda x: x / 2,
    "x // 2": lambda x: x // 2, "x % 3": lambda x: x % 3, "x ** 2": lambda x: x**2, "-x": lambda x: -x,
    "abs(x)": lambda x: abs(x), "x < 2": lambda x: x < 2, "x == 1": lambda x: x == 1, "x != 1.5": lambda x: x != 1.5,
    "2 ** x": lambda x: 2 ** (x * x), "+x": lambda x: +x, "1 / x": lambda x: 1 / x,
}  # fmt: skip


@pytest.mark.parametrize("dt", INTEGERS + FLOATS)
@pytest.mark.parametrize("text", list(OPERATORS))
def test_operators_are_those_of_numpy(text: str, dt: str) -> None:
    x = np.array([1, 2, 3, 0], dt)
    with np.errstate(all="ignore"):
        assert_like_numpy(run_traced(OPERATORS[text], x), OPERATORS[text](x))


def test_bitwise_operators() -> None:
    x, y = np.array([6, 5], np.int32), np.array([3, 1], np.int32)
    got = run_traced(lambda a, b: (a & b, a | b, a ^ b, ~a, a << b, a >> b, 7 & a), x, y)
    for g, e in zip(got, (x & y, x | y, x ^ y, ~x, x << y, x >> y, 7 & x), strict=True):
        assert_same(g, e)


def test_roots_and_reciprocals_by_operator() -> None:
    x = np.array([4.0, 9.0, 0.25], np.float32)
    got = run_traced(lambda a: (a**0.5, a**-1, a**1, a**3), x)
    for g, e in zip(got, (x**0.5, x**-1, x**1, x**3), strict=True):
        assert_like_numpy(g, e)


def test_integers_to_a_negative_power_are_an_error() -> None:
    with pytest.raises(ValueError, match="negative power -1"):
        run_traced(lambda x: x**-1, np.array([1, 2]))


@pytest.mark.parametrize("value", [-1, 300, 1 << 40])
@pytest.mark.parametrize("name", ["equal", "not_equal", "less", "less_equal", "greater", "greater_equal"])
def test_comparison_with_a_number_beyond_the_dtype(name: str, value: int) -> None:
    x = np.array([0, 7, 255], np.uint8)
    assert_same(run_traced(lambda a: getattr(cnp, name)(a, value), x), getattr(np, name)(x, value))
    assert_same(run_traced(lambda a: getattr(cnp, name)(value, a), x), getattr(np, name)(value, x))


def test_a_number_beyond_the_dtype_in_arithmetic_is_an_error() -> None:
    with pytest.raises(TypeError, match="300 does not fit uint8"):
        run_traced(lambda a: a + 300, np.array([1], np.uint8))


@given(data=st.data())
def test_where_and_clip(data: st.DataObject) -> None:
    dt = data.draw(st.sampled_from(INTEGERS + FLOATS))
    x = sample(dt, (2, 3), data.draw(st.integers(0, 50)))
    low, high = data.draw(st.sampled_from([(0, 3), (None, 2), (1, None), (5, 2)]))
    fn = lambda a: cnp.clip(a, low, high)  # noqa: E731
    with np.errstate(all="ignore"):
        expected = np.clip(x, low, high)
    assert_same(fn(x), expected)
    assert_same(run_traced(fn, x), expected)
    chosen = run_traced(lambda a: cnp.where(a > 1, a, 0), x)
    assert_same(chosen, np.where(x > 1, x, 0))


def test_clip_ignores_python_bounds_that_the_dtype_cannot_reach() -> None:
    x = np.array([1, 200], np.uint8)
    assert_same(run_traced(lambda a: cnp.clip(a, -5, 1000), x), x)


def test_bfloat16_promotes_as_a_half() -> None:
    x = np.array([1, 2], ml_dtypes.bfloat16)
    got = run_traced(lambda a: (a + 1, cnp.exp(a * 0), a + np.ones(2, np.float32), cnp.add(a, True)), x)
    assert [g.dtype.name for g in got] == ["bfloat16", "bfloat16", "float32", "bfloat16"]


def test_isclose_and_allclose() -> None:
    x, y = np.array([1, np.nan, np.inf, 2.0]), np.array([1 + 1e-9, np.nan, np.inf, 3.0])
    for equal_nan in (False, True):
        assert_same(cnp.isclose(x, y, equal_nan=equal_nan), np.isclose(x, y, equal_nan=equal_nan))
    assert bool(cnp.allclose(x[:1], y[:1]))
    assert not bool(run_traced(cnp.allclose, x, y))


def test_astype() -> None:
    x = np.array([1.9, -1.9, np.nan], np.float32)
    assert_same(run_traced(lambda a: a.astype("int32"), x), np.array([1, -1, -(2**31)], np.int32))
    assert_same(run_traced(lambda a: cnp.astype(a, bool), x), np.array([True, True, True]))
    assert cnp.astype(x, "float32") is not x
    assert cnp.astype(x, "float32", copy=False) is x


def test_sizes_are_operands() -> None:
    x = np.ones((3, 2), np.float32)
    got = run_traced(lambda a: cnp.sum(a, axis=0) / a.shape[0], x, shapes=[(symbol("B"), 2)])
    assert_same(got, np.ones(2, np.float32))


def test_round_with_decimals() -> None:
    x = np.array([1.25, -2.345, 1234.5])
    for places in (1, 2, -2):
        assert_like_numpy(run_traced(lambda a, places=places: cnp.round(a, places), x), np.round(x, places))
