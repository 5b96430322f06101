"""Constant folding: what is folded, what is left, and to which values."""

from __future__ import annotations

import numpy as np
import pytest

from cuvil.dtypes import float32, int64
from cuvil.ir.interpreter import run_function
from cuvil.ops.record import Aval
from cuvil.passes.engine import apply_rules
from cuvil.passes.folding import FOLDING, MAX_CHEAP_BYTES
from cuvil.symbolic import Scope, symbol
from tests.passes.programs import constants, function, names

S = symbol("S")
X = Aval((S,), float32)


def _folded(build, *avals: Aval):
    func = function(build, *avals)
    apply_rules(func, [FOLDING], Scope())
    func.verify()
    return func


def test_a_chain_of_constants_becomes_one() -> None:
    def build(F, x):
        c = F.op("sqrt", F.add(F.constant(np.float32([3, 8])), F.scalar(1.0, float32)))
        return F.mul(x, F.op("reshape", c, shape=(2, 1)))

    func = _folded(build, X)
    assert names(func) == ["multiply"]
    (c,) = constants(func)
    np.testing.assert_array_equal(c, np.float32([[2], [3]]))
    assert not c.flags.writeable


def test_a_result_that_is_returned_is_folded() -> None:
    func = _folded(
        lambda F: F.op("matmul", F.constant(np.eye(2, dtype=np.float32)), F.constant(np.ones((2, 2), np.float32)))
    )
    assert names(func) == []
    np.testing.assert_array_equal(run_function(func, [], {})[0], np.ones((2, 2)))


def test_several_results_are_folded() -> None:
    def build(F):
        return F.emit("top_k", [F.constant(np.float32([1, 3, 2]))], {"k": 2, "axis": 0, "largest": True})

    func = _folded(build)
    assert names(func) == []
    assert [c.tolist() for c in constants(func)] == [[3.0, 2.0], [1, 2]]


def test_index_generators_are_folded_when_small() -> None:
    assert names(_folded(lambda F: F.iota((8, 4), 0))) == []
    assert names(_folded(lambda F: F.iota((MAX_CHEAP_BYTES, 1), 0))) == ["iota"]


def test_symbolic_sizes_are_not_folded() -> None:
    assert names(_folded(lambda F, x: F.iota((S,), 0), X)) == ["iota"]
    assert names(_folded(lambda F, x: F.op("dim_value", dim=S), X)) == ["dim_value"]
    assert names(_folded(lambda F, x: F.broadcast_to(F.scalar(1.0, float32), (S,)), X)) == ["broadcast_to"]


def test_cheap_growth_is_left_to_the_kernel() -> None:
    column, row = np.zeros((512, 1), np.float32), np.zeros((1, 512), np.float32)
    func = _folded(lambda F: F.add(F.constant(column), F.constant(row)))
    assert names(func) == ["add"]


def test_large_results_of_equal_size_are_folded() -> None:
    w = np.ones((512, 512), np.float32)
    assert names(_folded(lambda F: F.op("transpose", F.constant(w), axes=(1, 0)))) == []


def test_a_large_constant_that_others_read_is_not_copied() -> None:
    w = np.ones((1024, 512), np.float32)

    def build(F, x):
        c = F.constant(w)  # as an embedding that is the output projection too
        return F.op("transpose", c, axes=(1, 0)), F.matmul(x, c)

    assert names(_folded(build, Aval((S, 1024), float32))) == ["transpose", "matmul"]


@pytest.mark.parametrize(
    "build",
    [
        lambda F: F.op("pow", F.constant(np.int64([2])), F.constant(np.int64([-1]))),
        lambda F: F.op("take", F.constant(np.float32([1, 2])), F.constant(np.int64([5])), axis=0, mode="error"),
    ],
)
def test_an_op_that_raises_stays_and_raises_when_it_runs(build) -> None:
    func = _folded(build)
    assert len(names(func)) == 1
    with pytest.raises(ValueError if names(func) == ["pow"] else IndexError):
        run_function(func, [], {})


def test_special_values_fold_as_the_reference_says() -> None:
    func = _folded(lambda F: F.div(F.constant(np.float32([0, 1, -1, 0])), F.constant(np.float32([0, 0, 0, -1]))))
    (c,) = constants(func)
    assert np.isnan(c[0]) and c[1] == np.inf and c[2] == -np.inf and np.signbit(c[3])


def test_integer_sums_have_their_own_dtype() -> None:
    func = _folded(lambda F: F.op("sum", F.constant(np.int8([100, 100])), axes=(0,), keepdims=False))
    (c,) = constants(func)
    assert (c.dtype, int(c)) == (int64.numpy, 200)
