"""softmax over a symbolic axis has a value at every size, on every backend and through every pass."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import cuvil
from cuvil import nn


@pytest.mark.parametrize("options", [{"backend": "reference"}, {"backend": "c"}, {"backend": "c", "validate": True}])
@pytest.mark.parametrize("function", [nn.softmax, nn.log_softmax])
def test_an_axis_may_become_empty(options: Any, function: Any) -> None:
    f = cuvil.jit(lambda x: function(x, axis=0), **options)
    for n in (3, 4, 0, 1):
        x = np.arange(n * 2, dtype=np.float32).reshape(n, 2)
        np.testing.assert_allclose(f(x), function(x, axis=0), rtol=1e-5)
