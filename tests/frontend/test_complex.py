"""Complex numbers: promotion, each op against NumPy at once, traced and compiled, special values among the operands."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import cuvil
import cuvil.numpy as cnp
from cuvil.dtypes import COMPLEX, EVERY, bfloat16, complex64, complex128, dtype, promote, promote_weak
from cuvil.ops.registry import records
from cuvil.passes.complex_parts import say_once, split_complex
from cuvil.support.errors import CuvilError, DTypeError, UnsupportedError
from cuvil.symbolic import symbol
from tests.frontend.tracing import run_traced, traced

PARTS = (0.0, -0.0, 1.5, -2.0, np.inf, -np.inf, np.nan)
SPECIAL = np.array([complex(a, b) for a, b in itertools.product(PARTS, PARTS)])


def drawn(*shape: int, dt: Any = np.complex64, seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    return (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(dt)


def assert_close(got: Any, want: Any, tolerance: float | None = None) -> None:
    """The same dtype, shape, NaNs and infinities part by part, and finite parts close."""
    got, want = np.asarray(got), np.asarray(want)
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    if tolerance is None:
        tolerance = 2e-5 if want.dtype in (np.complex64, np.float32) else 1e-12
    for g, w in ((got.real, want.real), (got.imag, want.imag)) if np.iscomplexobj(want) else ((got, want),):
        np.testing.assert_allclose(g, w, rtol=tolerance, atol=tolerance, equal_nan=True)


# ------------------------------------------------------------------------------------------------ dtypes


def test_promotion_is_numpys() -> None:
    for a, b in itertools.product(EVERY, EVERY):
        if bfloat16 in (a, b) or not (a.is_complex or b.is_complex):
            continue
        assert promote(a, b).numpy == np.promote_types(a.numpy, b.numpy)
    assert promote(bfloat16, complex64) is complex64
    for dt in EVERY:
        if dt is not bfloat16:
            assert promote_weak(dt, complex).numpy == np.result_type(dt.numpy, 1j)
    assert promote_weak(bfloat16, complex) is complex64


def test_python_complex_numbers_are_weak() -> None:
    x = np.ones(3, np.float32)
    for fn in (lambda a: a * 2j, lambda a: 1j + a, lambda a: a - (1 + 1j)):
        assert cuvil.jit(fn)(x).dtype == np.complex64 == fn(x).dtype
    assert cnp.asarray(1j).dtype == np.complex64
    assert cnp.asarray([1j, 2.0]).dtype == np.complex64
    assert cnp.asarray(0.1 + 0.2j, dtype="complex128").item() == 0.1 + 0.2j
    f = cuvil.jit(lambda a, c: a * c)
    assert f(x, 2j).tolist() == [2j] * 3
    assert f(x.astype(np.complex128), 2j).dtype == np.complex128


def test_dtype_functions() -> None:
    assert [cnp.isdtype(d.numpy, "complex floating") for d in COMPLEX] == [True, True]
    assert cnp.isdtype("complex64", "numeric") and not cnp.isdtype("complex64", "real floating")
    assert cnp.finfo("complex128").dtype == np.float64
    assert cnp.result_type("complex64", "float64") == np.complex128
    assert dtype(complex) is complex64 and dtype("c128") is complex128
    with pytest.raises(DTypeError, match="no float"):
        cnp.finfo("int8")


# --------------------------------------------------------------------------------------------- each function

UNARY = """
abs acos acosh asin asinh atan atanh conj cos cosh exp expm1 imag isfinite isinf isnan log log10 log1p log2 negative
positive real reciprocal round sign sin sinh sqrt square tan tanh logical_not angle
""".split()
BINARY = "add subtract multiply divide pow equal not_equal logical_and logical_or logical_xor".split()
_NUMPY = {"acos": "arccos", "acosh": "arccosh", "asin": "arcsin", "asinh": "arcsinh", "atan": "arctan",
          "atanh": "arctanh", "pow": "power"}  # fmt: skip


@pytest.mark.parametrize("name", UNARY)
def test_functions_of_one_operand_at_once(name: str) -> None:
    for x in (SPECIAL, drawn(3, 4), drawn(0, 2)):
        with np.errstate(all="ignore"):
            want = getattr(np, _NUMPY.get(name, name))(x)
            assert_close(getattr(cnp, name)(x), want, 0.0)
            assert_close(run_traced(getattr(cnp, name), x), want, 0.0)


@pytest.mark.parametrize("name", BINARY)
def test_functions_of_two_operands_at_once(name: str) -> None:
    x, y = np.broadcast_arrays(SPECIAL[:, None], SPECIAL)
    with np.errstate(all="ignore"):
        want = getattr(np, _NUMPY.get(name, name))(x, y)
        assert_close(getattr(cnp, name)(x, y), want, 0.0)
        assert_close(run_traced(getattr(cnp, name), x, y), want, 0.0)


def test_functions_compiled() -> None:
    """All of them in one program, on numbers and on special values."""

    def fn(x: Any, y: Any) -> Any:
        return [getattr(cnp, n)(x) for n in UNARY], [getattr(cnp, n)(x, y) for n in BINARY]

    x, y = drawn(5, 7), drawn(7, seed=1)
    with np.errstate(all="ignore"):
        ones, twos = cuvil.jit(fn)(x, y)
        for name, got in zip(UNARY + BINARY, ones + twos, strict=True):
            want = getattr(cnp, name)(*((x,) if name in UNARY else (x, y)))
            assert_close(got, want)


#: Ops on parts whose special values are NumPy's, part by part.
EXACT = "abs conj exp imag isfinite isinf isnan negative real square sqrt log sin tanh".split()


def test_special_values_compiled() -> None:
    def fn(x: Any, y: Any) -> Any:
        return [getattr(cnp, n)(x) for n in EXACT], [
            getattr(cnp, n)(x, y) for n in ("add", "multiply", "divide", "equal")
        ]

    x, y = (a.reshape(-1) for a in np.broadcast_arrays(SPECIAL[:, None], SPECIAL))
    with np.errstate(all="ignore"):
        ones, twos = cuvil.jit(fn)(x, y)
        for name, got in zip(EXACT, ones, strict=True):
            assert_close(got, getattr(np, name)(x))
        for name, got in zip(("add", "multiply", "divide", "equal"), twos, strict=True):
            assert_close(got, getattr(np, name)(x, y))


def test_division_neither_overflows_nor_loses_small_divisors() -> None:
    x = np.array([1e300 + 1e300j, 1e-300 + 1e-300j, 1 + 1j, 1j], np.complex128)
    y = np.array([1e300 + 2e300j, 2e-300 - 1e-300j, 1e-310 + 1e-310j, -1e308 + 1e-308j], np.complex128)
    assert_close(cuvil.jit(lambda a, b: a / b)(x, y), x / y)
    assert_close(cuvil.jit(cnp.exp)(np.array([88.8 + 1.57j, -1000 + 1j, 0 + 100j], np.complex64)),
                 np.exp(np.array([88.8 + 1.57j, -1000 + 1j, 0 + 100j], np.complex64)), 1e-4)  # fmt: skip


MOVEMENT: dict[str, Callable[[Any], Any]] = {
    "reshape": lambda x: x.reshape(4, 6),
    "transpose": lambda x: x.T,
    "slice": lambda x: x[1:, ::-2],
    "concat": lambda x: cnp.concat([x, cnp.conj(x)], axis=1),
    "stack": lambda x: cnp.stack([x, 2 * x]),
    "pad": lambda x: cnp.pad(x, ((1, 0), (0, 2), (0, 0))),
    "flip": lambda x: cnp.flip(x, axis=0),
    "roll": lambda x: cnp.roll(x, 1, axis=1),
    "tile": lambda x: cnp.tile(x, (1, 2, 1)),
    "repeat": lambda x: cnp.repeat(x, 2, axis=0),
    "tril": cnp.tril,
    "triu": lambda x: cnp.triu(x, k=1),
    "broadcast": lambda x: cnp.broadcast_to(x[:, :1], (2, 3, 4)),
    "where": lambda x: cnp.where(cnp.real(x) > 0, x, 0),
    "take": lambda x: cnp.take(x, np.array([1, 0, -1]), axis=2),
    "gather": lambda x: x[np.array([0, 1]), np.array([2, 0])],
    "set": lambda x: x.at[0, np.array([1, 1])].set(1j),
    "add": lambda x: x.at[:, np.array([1, 1])].add(x[:, :2]),
    "sum": lambda x: cnp.sum(x, axis=(0, 2)),
    "mean": lambda x: cnp.mean(x, axis=1, keepdims=True),
    "prod": lambda x: cnp.prod(x, axis=2),
    "cumulative_sum": lambda x: cnp.cumulative_sum(x, axis=1),
    "cumulative_prod": lambda x: cnp.cumulative_prod(x, axis=1),
    "any": lambda x: cnp.any(x, axis=0),
    "count_nonzero": lambda x: cnp.count_nonzero(x * 0 + x[0], axis=0),
    "matmul": lambda x: x @ cnp.matrix_transpose(x),
    "vecdot": lambda x: cnp.vecdot(x, x[0]),
    "tensordot": lambda x: cnp.tensordot(x, x, axes=((0, 2), (0, 2))),
    "einsum": lambda x: cnp.einsum("aij,akj->ik", x, cnp.conj(x)),
    "einsum of three": lambda x: cnp.einsum("aij,aij,ai->a", x, x, x[..., 0]),
    "casts": lambda x: cnp.real(x).astype("complex64") + x.astype("complex128"),
    "bool": lambda x: x.astype(bool),
    "diff": lambda x: cnp.diff(x, axis=-1),
    "constant": lambda x: x * np.array([1j, 2, 3 - 1j, 0], np.complex64),
    "weak": lambda x: x * 2 + (1 - 3j),
    "isclose": lambda x: cnp.isclose(x, x + 1e-9),
}


@pytest.mark.parametrize("name", MOVEMENT)
def test_other_functions_traced(name: str) -> None:
    x = drawn(2, 3, 4)
    want = run_at_once(MOVEMENT[name], x)
    assert_close(run_traced(MOVEMENT[name], x), want)
    if name not in ("reshape", "broadcast", "constant"):
        assert_close(run_traced(MOVEMENT[name], x, shapes=[(2, symbol("S"), 4)]), want)


def run_at_once(fn: Callable[[Any], Any], x: Any) -> Any:
    """On values, as the reference backend gives it: NumPy's arrays have no ``at``."""
    return np.asarray(cuvil.jit(fn, backend="reference")(x))


def test_other_functions_compiled() -> None:
    x = drawn(2, 3, 4)
    got = cuvil.jit(lambda a: [fn(a) for fn in MOVEMENT.values()], validate=True)(x)
    for name, value in zip(MOVEMENT, got, strict=True):
        assert_close(value, run_at_once(MOVEMENT[name], x))
        if name not in ("set", "add"):
            assert_close(value, MOVEMENT[name](x))


def test_symbolic_sizes_and_strides() -> None:
    f = cuvil.jit(lambda x: cnp.exp(x) * cnp.conj(x), input_spec=[("x", "complex64", ("N", 3))], shapes="symbolic")
    for n in (0, 1, 5):
        x = drawn(2 * n, 3)[::2]
        assert_close(f(x), np.exp(x) * np.conj(x))
    x = drawn(4, 6).T
    assert_close(cuvil.jit(lambda a: a + 1)(x), x + 1)
    assert_close(cuvil.jit(lambda a: a)(x), x, 0.0)


def test_loops_and_branches_carry_complex_numbers() -> None:
    x = drawn(3)
    step = cuvil.jit(lambda z: cuvil.fori_loop(0, 4, lambda i, a: a * a / 2 + 1j, z))
    want = x
    for _ in range(4):
        want = want * want / 2 + 1j
    assert_close(step(x), want)
    f = cuvil.jit(lambda z: cuvil.cond(cnp.real(z[0]) > 0, lambda: z * 2, lambda: cnp.sqrt(z)))
    for y in (x - 9, x + 9):
        assert_close(f(y), y * 2 if y[0].real > 0 else np.sqrt(y))
    carried, out = cuvil.jit(lambda z: cuvil.scan(lambda c, v: (c * v, c + v), z[0], z))(x)
    assert_close(carried, x[0] * np.prod(x))
    assert_close(out, (x[0] * np.array([1, x[0], x[0] * x[1]]) + x).astype(np.complex64))
    inverse = cuvil.jit(lambda m: cuvil.fori_loop(0, 3, lambda i, a: cnp.linalg.inv(a) * 2, m))
    assert_close(inverse(np.eye(2) * 4), np.eye(2) / 2)
    with pytest.raises(np.linalg.LinAlgError):
        inverse(np.zeros((2, 2)))


# ------------------------------------------------------------------------------------------------- what is refused


def test_an_op_without_a_kernel_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    say_once.cache_clear()
    with caplog.at_level(logging.WARNING, "cuvil.passes"):
        for fn in (lambda x: cnp.tan(x) + cnp.tan(2 * x), lambda x: cnp.tan(x) * 3):
            split_complex(traced(fn, drawn(3))[0].func)
    assert [r.getMessage() for r in caplog.records] == [
        "tan of complex numbers has no kernel: compiled programs call NumPy for it"
    ]


def test_ops_that_have_no_complex_meaning_refuse() -> None:
    x = drawn(3)
    for fn in (cnp.floor, cnp.maximum, cnp.less, cnp.sort, cnp.argmax, cnp.max, cnp.erf, cnp.bitwise_invert):
        args = (x, x) if fn in (cnp.maximum, cnp.less) else (x,)
        with pytest.raises(CuvilError, match="complex64"):
            fn(*args)
        with pytest.raises(CuvilError, match="complex64"):
            cuvil.jit(fn)(*args)
    with pytest.raises(UnsupportedError, match="set and add are"):
        cuvil.jit(lambda a: a.at[np.array([0, 0])].multiply(2.0))(x)


def test_derivatives_through_complex_numbers() -> None:
    x = np.array([0.5, -1.25, 2.0])
    for fn in (
        lambda a: cnp.sum(cnp.real(a * (1 + 1j))), lambda a: cnp.sum(cnp.abs(cnp.fft.rfft(a))),
        lambda a: cnp.sum(cnp.abs(a.astype("complex128") * (2 - 1j) + 1)),
    ):  # fmt: skip
        steps = 1e-6 * np.eye(3)
        want = [(float(fn(x + h)) - float(fn(x - h))) / 2e-6 for h in steps]
        np.testing.assert_allclose(cuvil.grad(fn)(x), want, rtol=1e-6)
        np.testing.assert_allclose(cuvil.jit(cuvil.grad(fn))(x), want, rtol=1e-6)
    with pytest.raises(DTypeError, match="derivatives are by floats"):
        cuvil.grad(lambda a: cnp.sum(cnp.abs(a)))(drawn(3))
    assert cuvil.grad(lambda a: cnp.sum(a * cnp.abs(np.complex64(3 + 4j))))(x).tolist() == [5, 5, 5]


def test_examples_together() -> None:
    x = drawn(4, 3)
    assert_close(cuvil.jit(cuvil.vmap(lambda a: cnp.exp(a) * cnp.conj(a)))(x), np.exp(x) * np.conj(x))
    m = np.eye(3) * np.arange(1, 5)[:, None, None]
    assert_close(cuvil.vmap(cnp.linalg.inv)(m), np.linalg.inv(m))


def test_every_rule_has_parts_or_is_called() -> None:
    """An op that takes complex operands has a rule for their parts, or one result that a host call can give."""
    for record in records():
        if record.complex_rule is not None and record.complex_rule.parts is None:
            assert len(record.results) == 1, record.name
            assert all(p.kind != "dtype" for p in record.params), record.name


def test_parts_are_read_in_place() -> None:
    """One kernel computes, and one joins: nothing else touches memory."""
    f = cuvil.jit(lambda x, y: cnp.conj(x[::-1]) * y + 1j)
    x, y = drawn(9), drawn(9, seed=3)
    assert_close(f(x, y), np.conj(x[::-1]) * y + 1j)
    kernels = [line for line in f.lower(x, y).as_text("kernel").splitlines() if "kernel.call" in line]
    assert len(kernels) == 2, kernels
