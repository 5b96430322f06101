"""Element-wise records: special values, integer corner cases, casts, broadcasting rules and rejections."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cuvil.ops  # noqa: F401  # fills the registry
from cuvil.dtypes import (
    ALL,
    FLOATS,
    INTEGERS,
    DType,
    bfloat16,
    bool_,
    dtype,
    float16,
    float32,
    float64,
    int8,
    int32,
    int64,
    uint8,
    uint64,
)
from cuvil.ops.arithmetic import convert, tgamma
from cuvil.ops.body import build_program
from cuvil.ops.evaluate import constant, evaluate_program
from cuvil.ops.record import Aval, ScalarBody
from cuvil.ops.registry import get, records
from cuvil.support.errors import ArgumentError, DTypeError, ShapeError
from cuvil.symbolic import symbol
from tests.ops.record_checks import assert_close

INF, NAN = math.inf, math.nan
FLOAT_EXTREMES = (NAN, INF, -INF, 0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 1e-40, -1e-40, 3e38, -3e38, 65504.0)
ELEMENTWISE = [r for r in records() if isinstance(r.body, ScalarBody) and r.name != "cast"]


def ref(name: str, *xs: Any, **params: Any) -> Any:
    """The reference of an op on arrays, defaults filled in."""
    record = get(name)
    return record.reference(*xs, **record.fill_params(params))


def extremes(dt: DType) -> Any:
    """All corner values of a dtype."""
    if dt.is_bool:
        return np.array([False, True])
    if dt.is_integer:
        info = np.iinfo(dt.numpy)
        return np.array([info.min, info.min + dt.is_signed, 0, 1, 2, 3, 7, info.max - 1, info.max], dt.numpy)
    with np.errstate(over="ignore"):
        return np.array(FLOAT_EXTREMES).astype(dt.numpy)


@pytest.mark.parametrize("record", ELEMENTWISE, ids=lambda r: r.name)
def test_body_on_extremes(record: Any) -> None:
    """The scalar body gives the reference's value for every pair of corner values of every dtype."""
    for dt in ALL:
        dtypes = [bool_ if o == "condition" else dt for o in record.operands]
        params = record.fill_params({})
        try:
            record.dtype_rule(tuple(dtypes), params)
        except DTypeError:
            continue
        arrays = list(np.meshgrid(*(extremes(d) for d in dtypes), indexing="ij"))
        if record.name == "pow" and dt.is_integer:
            arrays[1] = arrays[1] % 8 if not dt.is_signed else np.abs(arrays[1] % 8)
        program = build_program(record.body.build, dtypes, params)
        assert_close(evaluate_program(program, arrays), record.reference(*arrays, **params), record)


@pytest.mark.parametrize("dt", INTEGERS)
def test_integer_division_never_traps(dt: DType) -> None:
    info = np.iinfo(dt.numpy)
    x = np.array([info.min, info.max, 5, 0], dt.numpy)
    zero = np.zeros((), dt.numpy)
    for name in ("floor_divide", "remainder", "fmod"):
        np.testing.assert_array_equal(ref(name, x, zero), 0)
    if dt.is_signed:
        minus = np.array(-1, dt.numpy)
        assert ref("floor_divide", x, minus)[0] == info.min
        assert ref("remainder", x, minus)[0] == 0
        assert ref("abs", x)[0] == info.min


@given(st.integers(-128, 127), st.integers(-128, 127))
@settings(max_examples=60, deadline=None)
def test_integer_arithmetic_is_python_s(a: int, b: int) -> None:
    x, y = np.array(a, np.int8), np.array(b, np.int8)

    def wrap(v: int) -> int:
        return (v + 128) % 256 - 128

    assert ref("add", x, y) == wrap(a + b)
    assert ref("multiply", x, y) == wrap(a * b)
    assert ref("subtract", x, y) == wrap(a - b)
    if b:
        assert ref("floor_divide", x, y) == wrap(a // b)
        assert ref("remainder", x, y) == a % b
        assert ref("fmod", x, y) == wrap(int(math.fmod(a, b)))
    shift = b % 8
    assert ref("bitwise_left_shift", x, np.array(shift, np.int8)) == wrap(a << shift)
    assert ref("bitwise_right_shift", x, np.array(shift, np.int8)) == a >> shift


def test_narrow_integers_stay_narrow() -> None:
    assert ref("add", np.uint8([128]), np.uint8([128])).tolist() == [0]
    assert ref("add", np.uint8([128]), np.uint8([128])).dtype == np.uint8


def test_shift_counts_beyond_the_width() -> None:
    x = np.array([-5, 5], np.int32)
    for count in (32, 100, -1):
        assert ref("bitwise_left_shift", x, np.array(count, np.int32)).tolist() == [0, 0]
        assert ref("bitwise_right_shift", x, np.array(count, np.int32)).tolist() == [-1, 0]


def test_negative_integer_exponent_is_an_error() -> None:
    with pytest.raises(ArgumentError, match="exponent -2"):
        ref("pow", np.array([2, 3]), np.array([1, -2]))
    assert ref("pow", np.array([2.0]), np.array([-2.0])).tolist() == [0.25]


@pytest.mark.parametrize("dt", FLOATS)
def test_special_values(dt: DType) -> None:
    def a(*values: float) -> Any:
        return np.array(values).astype(dt.numpy)

    assert np.isnan(ref("maximum", a(NAN, 1, NAN), a(1, NAN, NAN)).astype(float)).all()
    assert np.isnan(ref("minimum", a(NAN, 1), a(1, NAN)).astype(float)).all()
    assert ref("clip", a(5, 5), a(3, 1), a(1, 3)).astype(float).tolist() == [1, 3]  # hi wins over lo
    assert np.isnan(ref("clip", a(0), a(NAN), a(1)).astype(float)).all()
    assert ref("round", a(0.5, 1.5, 2.5, -0.5)).astype(float).tolist() == [0, 2, 2, 0]
    assert np.signbit(ref("round", a(-0.25)).astype(float)).all()
    assert np.signbit(ref("ceil", a(-0.5)).astype(float)).all()
    assert np.signbit(ref("negative", a(0)).astype(float)).all()
    sign = ref("sign", a(-3, 0, -0.0, 2, NAN)).astype(float)
    np.testing.assert_array_equal(sign, [-1, 0, 0, 1, NAN])
    assert not np.signbit(sign[2])
    np.testing.assert_array_equal(ref("divide", a(1, 0, -1), a(0, 0, 0)).astype(float), [INF, NAN, -INF])
    assert ref("rsqrt", a(4, 0)).astype(float).tolist() == [0.5, INF]
    assert ref("logaddexp", a(-INF, INF), a(-INF, -INF)).astype(float).tolist() == [-INF, INF]
    assert ref("logical_not", a(NAN, 0, -0.0, 2)).tolist() == [False, True, True, False]
    assert ref("relu", a(-1, 2)).astype(float).tolist() == [0, 2]
    assert np.isnan(ref("relu", a(NAN)).astype(float)).all()


@pytest.mark.parametrize("name", ["erf", "erfc", "lgamma"])
def test_special_functions_against_mpmath(name: str) -> None:
    exact = {"erf": mpmath.erf, "erfc": mpmath.erfc, "lgamma": lambda v: mpmath.log(abs(mpmath.gamma(v)))}[name]
    xs = np.array([-4.5, -1.3, -0.1, 1e-8, 0.3, 0.999, 1.5, 3.7, 9.25])
    with mpmath.workdps(40):
        want = np.array([float(exact(mpmath.mpf(float(v)))) for v in xs])
    np.testing.assert_allclose(ref(name, xs), want, rtol=2e-14, atol=1e-16)  # lgamma is 0 at 1
    single = ref(name, xs.astype(np.float32))
    assert single.dtype == np.float32
    np.testing.assert_array_equal(ref(name, np.array([NAN])), [NAN])


def test_gamma_poles() -> None:
    assert ref("lgamma", np.array([0.0, -1.0, -INF, INF])).tolist() == [INF] * 4
    np.testing.assert_array_equal(tgamma(np.array([0.0, -0.0, -1.0, 200.0])), [INF, -INF, NAN, INF])


def test_activations_against_their_definitions() -> None:
    x = np.linspace(-8, 8, 101)
    half_erfc = np.array([0.5 * v * math.erfc(-v / math.sqrt(2)) for v in x])
    np.testing.assert_allclose(ref("gelu", x), half_erfc, atol=1e-14)
    np.testing.assert_allclose(ref("gelu", x, approximate=True), half_erfc, atol=1e-3)
    np.testing.assert_allclose(ref("silu", x), x * ref("sigmoid", x), rtol=1e-13)
    np.testing.assert_allclose(ref("softplus", x), np.logaddexp(x, 0), rtol=1e-13)
    np.testing.assert_allclose(
        ref("elu", x, alpha=2.0), np.where(x > 0, x, 2 * (np.exp(x) - 1)), rtol=1e-12, atol=1e-15
    )
    np.testing.assert_allclose(ref("leaky_relu", x), np.where(x > 0, x, 0.01 * x))
    np.testing.assert_allclose(ref("hard_swish", x), x * np.clip(x / 6 + 0.5, 0, 1), atol=1e-14)
    assert ref("softplus", np.array([1000.0, -1000.0], np.float32)).tolist() == [1000, 0]
    assert ref("sigmoid", np.array([-1000.0, 1000.0], np.float32)).tolist() == [0, 1]


# ------------------------------------------------------------------------------------------------- cast


def x86(a: Any, dt: DType) -> Any:
    with np.errstate(invalid="ignore"):
        return a.astype(dt.numpy)


@pytest.mark.parametrize("source", [float32, float64])
@pytest.mark.parametrize("target", INTEGERS)
def test_float_to_integer(source: DType, target: DType) -> None:
    """The values that the contract names, and that an x86 machine's NumPy gives."""
    a = np.array([NAN, INF, -INF, -1.5, 3e9, 5e9, 2.0**63, 1.5 * 2.0**63, 2.0**64, -3e9, 1e20, 300.7, -129, 7e4])
    a = a.astype(source.numpy)
    got = convert(a, target)
    wide = {
        "int32": [-(2**31)] * 3 + [-1] + [-(2**31)] * 7 + [300, -129, 70000],
        "uint32": [2**31, 0, 2**31, 2**32 - 1, 3 * 10**9, 0, 0, 0, 0, 2**31, 0, 300, 2**32 - 129, 70000],
    }
    narrow = target.bits <= 32
    expected = wide["uint32" if target.name == "uint32" else "int32"]
    if narrow:
        np.testing.assert_array_equal(got, np.array(expected, np.int64).astype(target.numpy))
    else:
        assert got[3:5].tolist() == [2**64 - 1 if target is uint64 else -1, 3 * 10**9]
        assert int(got[0]) == (2**63 if target is uint64 else -(2**63))


@given(st.lists(st.floats(width=32), min_size=1, max_size=20), st.sampled_from([*INTEGERS, bool_]))
@settings(max_examples=80, deadline=None)
def test_in_range_casts_are_numpy_s(values: list[float], target: DType) -> None:
    a = np.array(values, np.float32)
    if target.is_integer:
        info = np.iinfo(target.numpy)
        a = np.where((a > info.min) & (a < info.max), a, np.float32(0))
    np.testing.assert_array_equal(convert(a, target), x86(a, target))


@given(st.lists(st.floats(), min_size=1, max_size=30))
@settings(max_examples=60, deadline=None)
def test_float64_rounds_to_halves_once(values: list[float]) -> None:
    a = np.array(values)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(convert(a, float16), a.astype(np.float16))
    for v, got in zip(a, convert(a, bfloat16).astype(np.float64), strict=True):
        if not math.isfinite(v):
            np.testing.assert_array_equal(got, v)
            continue
        down = np.array(got).astype(ml_dtypes.bfloat16)
        if not math.isfinite(got):
            assert abs(v) >= float(ml_dtypes.finfo(ml_dtypes.bfloat16).max)
            continue
        for side in (-INF, INF):
            near = float(np.nextafter(down, np.array(side).astype(ml_dtypes.bfloat16)))
            assert mpmath.mpf(abs(mpmath.mpf(v) - got)) <= abs(mpmath.mpf(v) - near)


def test_float64_to_bfloat16_does_not_round_twice() -> None:
    assert float(convert(np.array(1 + 2**-8 + 2**-40), bfloat16)) == 1 + 2**-7
    assert float(convert(np.array(1 + 2**-8), bfloat16)) == 1.0


def test_cast_keeps_float32_from_a_half() -> None:
    """A body with half operands rounds its result, but not that of a cast to float32."""
    body = get("cast").body
    assert isinstance(body, ScalarBody)
    for source in (float16, bfloat16):
        for target in ALL:
            assert build_program(body.build, (source,), {"dtype": target}).dtype is target


# ------------------------------------------------------------------------------------------------ rules


def test_symbolic_broadcasting() -> None:
    n, m = symbol("n"), symbol("m")
    add = get("add")

    def infer(*shapes: Any) -> Any:
        return add.infer([Aval(s, float32) for s in shapes], {})

    (out,), obligations = infer((n, 1), (1, m))
    assert out.shape == (n, m)
    assert obligations == ()
    (out,), obligations = infer((n,), (n,))
    assert out.shape == (n,)
    assert obligations == ()
    (out,), obligations = infer((n,), (m,))
    assert out.shape == (n,)
    assert [(o.relation, o.left, o.right) for o in obligations] == [("==", m, n)]
    (out,), obligations = infer((n,), (4,))
    assert out.shape == (4,)
    assert [(o.left, o.right) for o in obligations] == [(n, 4)]
    (out,), obligations = infer((0, 1), (1, 5))
    assert out.shape == (0, 5)
    assert obligations == ()


def test_shapes_that_do_not_broadcast() -> None:
    with pytest.raises(ShapeError, match=r"add.*\(3,\), \(4,\)"):
        get("add").infer([Aval((3,), float32), Aval((4,), float32)], {})
    with pytest.raises(ShapeError):
        get("add").infer([Aval((0,), float32), Aval((4,), float32)], {})


@pytest.mark.parametrize(
    ("name", "dtypes"),
    [
        ("exp", (int32,)),
        ("subtract", (bool_, bool_)),
        ("divide", (int64, int64)),
        ("bitwise_and", (float32, float32)),
        ("bitwise_left_shift", (bool_, bool_)),
        ("add", (float32, float64)),
        ("where", (int8, float32, float32)),
        ("where", (bool_, float32, float64)),
        ("nextafter", (float16, float16)),
        ("relu", (bool_,)),
    ],
)
def test_wrong_dtypes(name: str, dtypes: tuple[DType, ...]) -> None:
    with pytest.raises(DTypeError, match=name) as caught:
        get(name).infer([Aval((2,), d) for d in dtypes], {})
    assert any(d.name in str(caught.value) for d in dtypes)


@pytest.mark.parametrize("record", ELEMENTWISE, ids=lambda r: r.name)
def test_traits_hold(record: Any) -> None:
    """A claimed trait is true for all corner values, -0 and 0 counting as one where both are legal."""
    claimed = record.traits - {"pure"}
    for dt in ALL:
        try:
            (result,) = record.dtype_rule((dt,) * len(record.operands), record.fill_params({}))
        except DTypeError:
            continue
        params = record.fill_params({})
        x, y, z = np.meshgrid(extremes(dt), extremes(dt), extremes(dt), indexing="ij")

        def f(*xs: Any, params: dict[str, Any] = params) -> Any:
            return record.reference(*xs, **params).astype(np.float64 if dtype(xs[0].dtype).is_float else None)

        if "commutative" in claimed:
            np.testing.assert_array_equal(f(x, y), f(y, x))
        if "associative" in claimed:
            xy, yz = record.reference(x, y, **params), record.reference(y, z, **params)
            assert result is dt
            np.testing.assert_array_equal(f(xy, z), f(x, yz))
        if "idempotent" in claimed:
            once = record.reference(*([x] * len(record.operands)), **params)
            again = record.reference(once, **params) if len(record.operands) == 1 else x
            np.testing.assert_array_equal(once.astype(float), again.astype(float))
        if "involution" in claimed:
            np.testing.assert_array_equal(f(record.reference(x, **params)), x.astype(float))


def test_evaluator_rejects_what_it_cannot_hold() -> None:
    with pytest.raises(DTypeError, match="300"):
        constant(300, uint8)
    program = build_program(lambda s, x: s.neg(x), (float32,), {})
    with pytest.raises(DTypeError, match="float64"):
        evaluate_program(program, [np.zeros(2)])
