"""NumPy's own functions on traced arrays, the namespace of an array, and errors that point at the user's line."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import cuvil
import cuvil.numpy as cnp
from cuvil.frontend.namespace import functions
from cuvil.support.errors import ArgumentError, ShapeError, TracingError, UnsupportedError
from cuvil.symbolic import symbol
from tests.frontend.tracing import assert_same, run_traced, traced

X = np.arange(6, dtype=np.float32).reshape(2, 3)

NUMPY_CALLS = {
    "ufunc": lambda x: np.exp(x) + np.add(x, 1),
    "ufunc on the left": lambda x: np.float32(2) * x + np.ones(3, np.float32) - x,
    "comparison": lambda x: np.ones(3, np.float32) < x,
    "ufunc with dtype": lambda x: np.add(x, x, dtype=np.float64),
    "reduce": lambda x: np.add.reduce(x) + np.maximum.reduce(x, axis=0),
    "accumulate": lambda x: np.add.accumulate(x, axis=1),
    "outer": lambda x: np.multiply.outer(x[0], x[1]),
    "sum": lambda x: np.sum(x, axis=-1, keepdims=True),
    "mean": lambda x: np.mean(x, axis=(0, 1)),
    "concatenate": lambda x: np.concatenate([x, x], axis=1),
    "stack": lambda x: np.stack([x, x]),
    "where": lambda x: np.where(x > 2, x, np.float32(0)),
    "transpose": lambda x: np.transpose(x),
    "reshape": lambda x: np.reshape(x, (3, 2)),
    "einsum": lambda x: np.einsum("ij,ij->i", x, x),
    "matmul": lambda x: np.matmul(x, x.T),
    "take": lambda x: np.take(x, [0, 2], axis=1),
    "clip": lambda x: np.clip(x, 1, 3),
    "zeros_like": lambda x: np.zeros_like(x),
    "shape": lambda x: x * np.shape(x)[1] + np.ndim(x),
    "methods": lambda x: x.sum(axis=0) + x.max() - x.min(axis=0) + x.mean() + x.flatten()[:3] + x.copy().ravel()[-1],
    "method options": lambda x: x.astype("float64").sum(axis=1, keepdims=True, dtype=np.float32),
}


@pytest.mark.parametrize("name", list(NUMPY_CALLS))
def test_numpy_functions_on_traced_arrays(name: str) -> None:
    fn = NUMPY_CALLS[name]
    assert_same(run_traced(fn, X), fn(X), rtol=1e-6)
    if name not in ("ufunc on the left", "comparison", "outer"):
        assert_same(run_traced(fn, X, shapes=[(symbol("B"), symbol("S"))]), fn(X), rtol=1e-6)


def test_functions_that_are_not_there_name_the_nearest_and_the_line() -> None:
    with pytest.raises(UnsupportedError, match=r"numpy\.gradient") as caught:
        run_traced(lambda x: np.gradient(x), X)
    assert __file__ in str(caught.value)
    with pytest.raises(UnsupportedError, match=r"numpy\.linalg\.eig is not supported"):
        run_traced(lambda x: np.linalg.eig(x), X)
    with pytest.raises(UnsupportedError, match=r"the nearest names are .*mean"):
        run_traced(lambda x: np.nanmedian(x), X)
    with pytest.raises(UnsupportedError, match=r"numpy\.sum on traced arrays does not take these arguments"):
        run_traced(lambda x: np.sum(x, where=X > 1), X)
    with pytest.raises(UnsupportedError, match=r"numpy\.subtract\.reduce"):
        run_traced(lambda x: np.subtract.reduce(x), X)
    with pytest.raises(ArgumentError, match="out="):
        run_traced(lambda x: np.add(x, 1, out=X), X)


def test_errors_of_ops_point_at_the_users_line() -> None:
    for fn in (lambda x: x + np.ones(4, np.float32), lambda x: cnp.matmul(x, x), lambda x: cnp.concat([x, x[0]])):
        with pytest.raises(ShapeError) as caught:
            run_traced(fn, X)
        assert f"{__file__}:" in str(caught.value)
    with pytest.raises(ShapeError) as eager:
        cnp.add(X, np.ones(4, np.float32))
    assert f"{__file__}:" in str(eager.value)


def test_the_line_of_each_op_is_the_users() -> None:
    program, _ = traced(lambda x: cnp.sum(cnp.exp(x), axis=0) + 1, X)
    lines = [str(op.location) for op in program.func.body.block.ops if op.name.startswith("cuvil.")]
    assert lines
    assert all(__file__ in line for line in lines)


def test_the_namespace_of_a_traced_array() -> None:
    seen: list[Any] = []
    run_traced(lambda x: seen.append(x.__array_namespace__(api_version="2024.12")) or x, X)
    assert seen == [cnp]
    with pytest.raises(ArgumentError, match="API version"):
        run_traced(lambda x: x.__array_namespace__(api_version="1999.1"), X)


def test_conversions_are_refused() -> None:
    for fn in (
        lambda x: float(x[0, 0]), lambda x: int(x[0, 0]), lambda x: np.asarray(x), lambda x: bool(x.sum() > 0),
        lambda x: X[x[0].astype("int64")], lambda x: [1, 2][x[0, 0].astype("int64")],
    ):  # fmt: skip
        with pytest.raises(TracingError, match=r"test_namespace_protocol\.py"):
            run_traced(fn, X)


def test_operators_with_strangers() -> None:
    class Stranger:
        def __radd__(self, other: Any) -> str:
            return "mine"

    seen: list[Any] = []
    run_traced(lambda x: seen.append(x + Stranger()) or x, X)
    assert seen == ["mine"]
    with pytest.raises(TypeError):
        run_traced(lambda x: x + "text", X)


#: The functions of the Python array API standard 2024.12.
STANDARD = """
abs acos acosh add all any arange argmax argmin argsort asarray asin asinh astype atan atan2 atanh bitwise_and
bitwise_invert bitwise_left_shift bitwise_or bitwise_right_shift bitwise_xor broadcast_arrays broadcast_to can_cast ceil
clip concat conj copysign cos cosh count_nonzero cumulative_prod cumulative_sum divide empty empty_like equal exp
expand_dims expm1 eye finfo flip floor floor_divide full full_like greater greater_equal hypot iinfo isdtype isfinite
isinf isnan less less_equal linspace log log10 log1p log2 logaddexp logical_and logical_not logical_or logical_xor
matmul matrix_transpose max maximum mean meshgrid min minimum moveaxis multiply negative nextafter not_equal ones
ones_like
permute_dims positive pow prod real reciprocal remainder repeat reshape result_type roll round searchsorted sign signbit
sin sinh sort sqrt square squeeze stack std subtract sum take take_along_axis tan tanh tensordot tile tril triu trunc
unstack var vecdot where zeros zeros_like e inf nan newaxis pi bool int8 int16 int32 int64 uint8 uint16 uint32 uint64
float32 float64 complex64 complex128 imag diff from_dlpack nonzero unique_all unique_counts unique_inverse unique_values
linalg fft __array_namespace_info__
""".split()


def test_the_standards_names_are_there() -> None:
    assert [name for name in STANDARD if not hasattr(cnp, name)] == []


def test_every_public_function_is_listed_and_documented() -> None:
    for name in functions.__all__:
        doc = getattr(cnp, name).__doc__
        assert doc, f"{name} has no documentation"
        assert ">>>" in doc, f"{name} has no example"


def test_the_package_exports() -> None:
    assert callable(cuvil.jit)
    assert callable(cuvil.compile)
    assert cuvil.jit is __import__("importlib").import_module("cuvil.jit").jit
    assert issubclass(cuvil.errors.ShapeError, cuvil.errors.CuvilError)
    assert set(cuvil.__all__) <= set(dir(cuvil))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = cuvil.nothing
