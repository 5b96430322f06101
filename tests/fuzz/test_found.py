"""Programs that the fuzzer found compiled wrongly, each as small as it became."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from cuvil.testing import apply, check_backend, sample_array

Case = tuple[Callable[..., Any], list[Any]]


def bools_have_extremes() -> Case:
    def program(x: Any) -> Any:
        return apply("max", x, axes=(0,), keepdims=False), apply("min", x, axes=(0,), keepdims=False)

    return program, [np.array([[True, False], [False, False], [True, True]])]


def take_from_a_constant_of_one_element() -> Case:
    def program(x: Any) -> Any:
        return apply("take", np.array([7], np.uint64), x, axis=0, mode="error")

    return program, [sample_array("int32", (3,), "index", size=1)]


def matmul_of_an_empty_batch() -> Case:
    def program(x: Any, bias: Any) -> Any:
        return apply("add", apply("matmul", x, x), bias)

    return program, [np.ones((2, 0, 1, 1), np.float32), np.ones((2, 0, 1, 1), np.float32)]


def conv_of_no_channels() -> Case:
    def program(x: Any, w: Any, bias: Any) -> Any:
        none = {"strides": (2,), "padding": ((1, 1),), "dilation": (2,), "input_dilation": (1,), "groups": 1}
        return apply("conv", x, w, bias, **none), apply("conv", x, np.ones((3, 0, 2), np.float32), bias, **none)

    return program, [np.ones((4, 0, 3), np.float32), np.ones((3, 0, 2), np.float32), np.float32([1, 2, 3])]


def movement_that_an_epilogue_reads_is_returned_too() -> Case:
    def program(x: Any, w: Any) -> Any:
        product = apply("matmul", x, w)
        same = apply("broadcast_to", product, shape=(3, 2))
        return apply("minimum", product, same), same, apply("reshape", same, shape=(6,))

    return program, [np.ones((3, 4), np.int32), np.ones((4, 2), np.int32)]


CASES = [
    bools_have_extremes,
    take_from_a_constant_of_one_element,
    matmul_of_an_empty_batch,
    conv_of_no_channels,
    movement_that_an_epilogue_reads_is_returned_too,
]


@pytest.mark.parametrize("case", CASES, ids=[c.__name__ for c in CASES])
def test_compiled_as_the_reference(case: Callable[[], Case]) -> None:
    program, inputs = case()
    check_backend(program, *inputs)
