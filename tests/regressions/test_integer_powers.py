"""A negative exponent of an integer power is an error in compiled code too."""

from __future__ import annotations

import numpy as np
import pytest

import cuvil
import cuvil.numpy as cnp


@pytest.mark.parametrize("backend", ["reference", "c"])
@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.int64])
def test_a_negative_exponent_raises(backend: str, dtype: type) -> None:
    power = cuvil.jit(cnp.power, backend=backend)
    base, exponent = np.arange(2, 22, dtype=dtype), np.zeros(20, dtype)
    np.testing.assert_array_equal(power(base, exponent), np.ones(20, dtype))
    exponent[17] = -3
    with pytest.raises(ValueError, match="negative"):
        power(base, exponent)
    exponent[17] = 0
    np.testing.assert_array_equal(power(base, exponent), np.ones(20, dtype))


def test_unsigned_exponents_are_never_negative() -> None:
    power = cuvil.jit(cnp.power)
    base = np.full(3, 3, np.uint8)
    np.testing.assert_array_equal(power(base, np.full(3, 255, np.uint8)), base ** np.uint8(255))
