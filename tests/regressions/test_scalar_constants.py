"""Constants of rank 0 that follow from others keep their rank when they are computed again."""

from __future__ import annotations

import numpy as np

import cuvil
import cuvil.numpy as cnp
from cuvil.ir.attributes import ConstantArray, Origin


def test_a_forgotten_scalar_comes_back_with_its_rank() -> None:
    two = ConstantArray(np.float32(2) * np.ones((), np.float32))
    made = ConstantArray(np.float32(-2) * np.ones((), np.float32), Origin("negative", (), (two,)))
    made.forget()
    assert made.array.shape == () and float(made.array) == -2


def test_a_program_of_folded_scalars_runs() -> None:
    f = cuvil.jit(lambda x: x * -cnp.exp(np.asarray(0.5, np.float32)))
    np.testing.assert_allclose(f(np.float32([2])), [-2 * np.exp(0.5)], rtol=1e-6)
