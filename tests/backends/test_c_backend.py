"""The C backend as a whole: element-wise instructions in every dtype against the interpreter, on special values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sample_programs import traced

from cuvil.compiler import CompileOptions, compile_program
from cuvil.dtypes import bool_, float16, float32, float64, int8, int16, int32, int64, uint8, uint16, uint32, uint64
from cuvil.frontend.dispatch import apply
from cuvil.ops.record import Aval
from cuvil.support.errors import IndexOutOfBoundsError
from cuvil.symbolic import symbol

N = symbol("N")
INTS = (int8, int16, int32, int64, uint8, uint16, uint32, uint64)
FLOATS = (float16, float32, float64)


def _values(dt: Any, n: int = 37) -> Any:
    rng = np.random.default_rng(5)
    if dt is bool_:
        return rng.integers(0, 2, n).astype(bool)
    if dt.is_integer:
        info = np.iinfo(dt.numpy)
        edge = [info.min, info.max, 0, 1, info.max - 1]
        return np.array([*edge, *rng.integers(max(info.min, -100), 100, n - len(edge))], dtype=dt.numpy)
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0]
    return np.array([*special, *rng.standard_normal(n - len(special))], dtype=dt.numpy)


def _agree(fn: Any, arrays: list[Any], rtol: float = 0) -> None:
    avals = [Aval((N,), a) for a in map(_dtype_of, arrays)]
    env = {"N": len(arrays[0])}
    with np.errstate(all="ignore"):
        want = compile_program(traced(fn, *avals), CompileOptions(backend="reference", optimise=False)).run(arrays, env)
    got = compile_program(traced(fn, *avals), CompileOptions()).run(arrays, env)
    for g, w in zip(got, want, strict=True):
        assert g.dtype == w.dtype
        np.testing.assert_allclose(g, w, rtol=rtol, atol=0, equal_nan=True)
        if g.dtype.kind == "f":
            exact = ~np.isnan(w)
            np.testing.assert_array_equal(np.signbit(g)[exact], np.signbit(w)[exact])


def _dtype_of(array: Any) -> Any:
    return next(d for d in (bool_, *INTS, *FLOATS) if d.numpy == array.dtype)


@pytest.mark.parametrize("dt", [*INTS, *FLOATS])
def test_arithmetic(dt: Any) -> None:
    def fn(x: Any, y: Any) -> Any:
        results = [apply(n, x, y) for n in ("add", "subtract", "multiply", "maximum", "minimum", "less", "equal")]
        return (*results, apply("negative", x), apply("abs", x)) if dt.is_float or dt in INTS[:4] else results

    x = _values(dt)
    _agree(fn, [x, x[::-1].copy()])


@pytest.mark.parametrize("dt", INTS)
def test_integer_division_floors(dt: Any) -> None:
    x = _values(dt)
    y = np.where(x[::-1] == 0, 3, x[::-1]).astype(x.dtype)
    if dt in INTS[:4]:
        y[y == -1] = 2  # the least integer divided by -1 has no value
    _agree(lambda a, b: (apply("floor_divide", a, b), apply("remainder", a, b)), [x, y])


@pytest.mark.parametrize("source", [bool_, *INTS, *FLOATS])
def test_casts(source: Any) -> None:
    x = _values(source)
    if source.is_float:
        x = np.clip(np.nan_to_num(x, nan=1.5, posinf=3.0, neginf=0.0), 0, 100).astype(x.dtype)
    elif source.is_integer:
        x = np.abs(x % 100).astype(x.dtype)
    _agree(lambda a: tuple(apply("cast", a, dtype=t) for t in (bool_, *INTS, *FLOATS)), [x])


@pytest.mark.parametrize("dt", FLOATS)
def test_functions(dt: Any) -> None:
    rtol = {16: 2e-3, 32: 1e-6, 64: 1e-14}[dt.bits]
    _agree(lambda x: tuple(apply(n, x) for n in ("exp", "tanh", "sin", "sqrt", "floor", "isnan")), [_values(dt)], rtol)


@pytest.mark.parametrize("n", [0, 1, 15, 16, 17, 4095, 4096, 4097, 10_000])
def test_lengths_around_vectors_and_blocks(n: int) -> None:
    x = np.random.default_rng(0).standard_normal(n).astype(np.float32)
    program = compile_program(
        traced(lambda a: (apply("multiply", a, a), apply("sum", a, axes=(0,), keepdims=False)), Aval((N,), float32)),
        CompileOptions(),
    )
    square, total = program.run([x], {"N": n})
    np.testing.assert_array_equal(square, x * x)
    np.testing.assert_allclose(total, x.sum(dtype=np.float64), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("mode", ["error", "clip", "wrap", "fill"])
def test_data_dependent_indices_never_leave_their_axis(mode: str) -> None:
    rows = Aval((4, 3), float32)
    program = compile_program(
        traced(lambda x, i: apply("take", x, i, axis=0, mode=mode), rows, Aval((N,), int64)), CompileOptions()
    )
    x = np.arange(12, dtype=np.float32).reshape(4, 3)
    inside = np.array([0, 3, -1, -4])
    (out,) = program.run([x, inside], {"N": 4})
    want = {"clip": x[[0, 3, 0, 0]]}.get(mode, x[inside])
    np.testing.assert_array_equal(out, want)
    outside = np.array([4, -5, 2**62, -(2**63), 1])
    if mode == "error":
        with pytest.raises(IndexOutOfBoundsError, match="out of bounds for an axis of size 4"):
            program.run([x, outside], {"N": 5})
    else:
        (out,) = program.run([x, outside], {"N": 5})
        np.testing.assert_array_equal(out[4], x[1])
        if mode == "clip":
            np.testing.assert_array_equal(out[:4], x[[3, 0, 3, 0]])
        if mode == "wrap":
            np.testing.assert_array_equal(out[:4], x[[0, 3, 0, 0]])
