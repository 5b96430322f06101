"""Constants of one element as operands of kernels that read memory."""

from __future__ import annotations

import numpy as np

import cuvil
import cuvil.numpy as cnp


def test_scatter_of_a_constant_scalar() -> None:
    f = cuvil.jit(lambda a: cnp.at(a)[1].set(3.0), input_spec=[("a", "float32", ("N", 4))])
    want = np.zeros((3, 4), np.float32)
    want[1] = 3
    np.testing.assert_array_equal(f(np.zeros((3, 4), np.float32)), want)


def test_matmul_by_a_constant_of_one_element() -> None:
    f = cuvil.jit(lambda a: cnp.sum(a @ np.float32([[2]])) + 1)
    assert f(np.ones((3, 1), np.float32)) == 7
