from __future__ import annotations

import numpy as np
import pytest
from hypothesis import find, given, settings
from hypothesis import strategies as st

from cuvil.dtypes import ALL, dtype, float32, int8
from cuvil.ops.registry import get
from cuvil.symbolic import Expr, free_symbols
from cuvil.testing import arrays, dims, dtypes, examples, sample_array, shapes
from cuvil.testing.arrays import special_values

QUICK = settings(max_examples=200, database=None, derandomize=True, deadline=None)


@given(shapes(1, 3, max_size=5))
def test_shapes_keep_their_limits(shape: tuple[int, ...]) -> None:
    assert 1 <= len(shape) <= 3
    assert all(isinstance(n, int) and 0 <= n <= 5 for n in shape)


def test_shapes_hold_zero_and_unit_axes() -> None:
    assert find(shapes(1, 2), lambda s: 0 in s, settings=QUICK) == (0,)
    assert find(shapes(1, 2), lambda s: 1 in s, settings=QUICK) == (1,)


def test_symbolic_shapes_use_the_given_names() -> None:
    found = find(shapes(1, 2, names=("Q",)), lambda s: any(isinstance(n, Expr) for n in s), settings=QUICK)
    assert free_symbols(*found) == {"Q"}
    assert isinstance(find(dims(("Q",)), lambda d: str(d) == "2*Q + 1", settings=QUICK), Expr)


@given(arrays())
def test_arrays_are_of_a_dtype_that_cuvil_has(array: np.ndarray) -> None:
    assert dtype(array.dtype) in ALL
    assert array.ndim <= 3


@pytest.mark.parametrize(
    "what",
    [np.isnan, np.isposinf, lambda a: (a == 0) & np.signbit(a), lambda a: (a != 0) & (np.abs(a) < 2.0**-126)],
    ids=["nan", "inf", "negative-zero", "subnormal"],
)
def test_arrays_reach_special_values(what: object) -> None:
    found = find(arrays("float32", (2,)), lambda a: bool(what(a).any()), settings=QUICK)  # type: ignore[operator]
    assert found.shape == (2,)


@given(st.data())
def test_domains_hold(data: st.DataObject) -> None:
    assert (np.abs(data.draw(arrays("float32", (5,), "unit"))) <= 1).all()
    assert (data.draw(arrays("float32", (5,), "positive")) > 0).all()
    indices = data.draw(arrays("int64", (5,), "index", size=3))
    assert ((indices >= -3) & (indices < 3)).all()
    assert data.draw(arrays(dtypes((int8,)), shapes(0, 1))).dtype == np.int8


@given(examples("matmul"))
def test_examples_fit_their_op(drawn: tuple) -> None:
    example, operands = drawn
    record = get("matmul")
    for sample, array in zip(example.operands, operands, strict=True):
        assert (array.shape, dtype(array.dtype)) == (sample.shape, sample.dtype)
    record.reference(*operands, **record.fill_params(example.params))


def test_an_array_of_a_seed_is_always_the_same() -> None:
    a, b = (sample_array("float32", (4,), "any", seed=3) for _ in range(2))
    np.testing.assert_array_equal(a, b)
    assert not np.array_equal(a, sample_array("float32", (4,), "any", seed=4), equal_nan=True)


def test_special_values_fit_their_dtype() -> None:
    for dt in ALL:
        array = np.array(special_values(dt), dt.numpy)
        assert len(set(array.astype(np.float64).tolist())) >= 2
    assert len(special_values(float32)) > 10
