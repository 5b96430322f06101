"""What Python cannot do with a symbolic size is told with the user's line and a way out."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import cuvil
import cuvil.numpy as cnp
from cuvil.support.errors import TracingError

SPEC = [("x", "float32", ("N",))]


@pytest.mark.parametrize(
    ("fn", "says"),
    [
        (lambda x: x if x.shape[0] > 3 else -x, "N > 3 has no answer"),
        (lambda x: x / math.sqrt(x.shape[0]), r"cuvil\.numpy\.sqrt\(N\)"),
        (lambda x: x * float(x.shape[0]), r"instead of math or float\(\)"),
        (lambda x: [x[i] for i in range(x.shape[0])], "for a list use cuvil.map.*make that axis static"),
    ],
)  # fmt: skip
def test_the_message_names_the_line_and_a_way_out(fn: Callable[[Any], Any], says: str) -> None:
    with pytest.raises(TracingError, match=says) as caught:
        cuvil.compile(fn, input_spec=SPEC, backend="null")
    assert str(caught.value).count("test_symbolic_sizes.py:") == 1


def test_the_way_out_works() -> None:
    root = cuvil.compile(lambda x: x / cnp.sqrt(x.shape[0]), input_spec=SPEC, backend="reference")
    np.testing.assert_array_equal(root(np.ones(4, np.float32)), np.full(4, 0.5, np.float32))
