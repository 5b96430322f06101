"""Wrong arguments are told apart, with the user's line and what to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import cuvil
import cuvil.numpy as cnp
from cuvil import nn
from cuvil.support.errors import CuvilError, DTypeError, ShapeError, TracingError

X = np.ones((3, 4), np.float32)


def _delete(x: Any) -> Any:
    del x[0]
    return x


def _attend(x: Any) -> Any:
    # 0 and 1 were added to the scores, where the caller meant "takes part"
    return nn.scaled_dot_product_attention(x, x, x, np.ones((3, 3), np.int64))


@pytest.mark.parametrize(
    ("fn", "error", "says"),
    [
        (lambda x: x.astype("foo"), DTypeError, "no such dtype: 'foo'"),
        (lambda x: cnp.sum(x, dtype="foo"), DTypeError, "no such dtype: 'foo'"),
        (lambda x: cnp.eye(3, dtype="datetime64[s]"), DTypeError, "no such dtype"),
        (lambda x: cnp.zeros((2, -1)), ShapeError, "negative size"),
        (_attend, DTypeError, r"astype\('bool'\)"),
        (_delete, TracingError, "cannot be deleted"),
        (lambda x: 2**70, DTypeError, "does not fit int64"),
        (lambda x: cnp.full((2,), 2**70), DTypeError, "does not fit int64"),
    ],
)  # fmt: skip
def test_the_message_names_the_fault_and_the_line(
    fn: Callable[[Any], Any], error: type[CuvilError], says: str
) -> None:  # fmt: skip
    with pytest.raises(error, match=says) as caught:
        cuvil.jit(fn)(X)
    assert "test_argument_errors.py:" in str(caught.value)


def test_a_python_integer_argument_beyond_int64() -> None:
    with pytest.raises(DTypeError, match=r"argument n of <lambda>.*does not fit int64"):
        cuvil.jit(lambda n: n + 1)(2**70)
