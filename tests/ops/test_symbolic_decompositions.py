"""Decompositions of symbolic operands: the shapes that the rules promise, and no needless obligations."""

from __future__ import annotations

from typing import Any

import pytest

import cuvil.ops  # noqa: F401
from cuvil.dtypes import DType, bfloat16, bool_, float32, int64
from cuvil.ops.record import Aval
from cuvil.support.errors import ShapeError
from cuvil.symbolic import Dim, Scope, Truth, symbol

from .record_checks import check_symbolic_decomposition

B, C, H, W, S, T = (symbol(x) for x in "BCHWST")


def x(*shape: Dim, dt: DType = float32) -> Aval:
    return Aval(shape, dt)


POOL: dict[str, Any] = {"sizes": (3, 2), "strides": (2, 2), "padding": ((1, 1), (0, 0)), "dilation": (1, 1)}
UNOBLIGED: list[tuple[str, list[Aval | None], dict[str, Any]]] = [
    ("tril", [x(B, S, T)], {"k": 0}),
    ("stack", [x(B, S), x(B, S)], {"axis": 1}),
    ("tensordot", [x(B, S, 4), x(S, 4, T)], {"axes": ((1, 2), (0, 1))}),
    ("vecdot", [x(B, 1, 8), x(S, 8)], {"axis": 2}),
    ("einsum", [x(B, H, S, 64), x(B, H, T, 64)], {"equation": "bhqd,bhkd->bhqk"}),
    ("einsum", [x(B, S, 8), x(8, H, 4), x(4, T)], {"equation": "bsd,dhk,kt->bhst"}),
    ("einsum", [x(S, S, T)], {"equation": "iit->ti"}),
    ("einsum", [x(1, S, 4), x(B, 4, T)], {"equation": "...sd,...dt->...st"}),
    (
        "conv_transpose",
        [x(B, 4, H + 1, W + 1), x(4, 3, 3, 3), x(6)],
        {
            "strides": (2, 2),
            "padding": ((1, 1), (0, 0)),
            "output_padding": (1, 0),
            "dilation": (1, 1),
            "groups": 2,
        },
    ),
    ("max_pool", [x(B, C, H + 1, W)], {**POOL, "ceil_mode": False}),
    ("avg_pool", [x(B, C, H + 1, W)], {**POOL, "ceil_mode": False, "count_include_pad": False}),
    ("log_softmax", [x(B, S, 9)], {"axis": 2}),
    ("softmax", [x(B, S + 1, dt=bfloat16)], {"axis": 1}),
    ("layer_norm", [x(B, S, C), x(C), x(C)], {"axes": (2,)}),
    ("rms_norm", [x(B, S, C), x(C)], {"axes": (2,)}),
    ("group_norm", [x(B, 6, H, W), x(6), x(6)], {"groups": 3}),
    ("group_norm", [x(B, 3 * C, H, W), None, None], {"groups": 3}),
    ("batch_norm", [x(B, C, H, W), x(C), x(C), x(C), None], {"axis": 1}),
    ("one_hot", [x(B, S, dt=int64)], {"depth": C, "dtype": float32}),
    ("interpolate", [x(B, 3, H + 1, W + 1)], {"sizes": (2 * H, W), "mode": "linear"}),
    ("interpolate", [x(B, 3, H + 1, W + 1)], {"sizes": (S, T), "mode": "cubic", "align_corners": True}),
    ("interpolate", [x(B, 3, H + 1, W + 1)], {"sizes": (2 * H, T), "mode": "nearest"}),
    (
        "scaled_dot_product_attention",
        [x(B, 8, S, 64), x(B, 2, T + 1, 64), x(B, 2, T + 1, 32), x(B, 1, S, T + 1, dt=bool_)],
        {"causal": True},
    ),
    (
        "scaled_dot_product_attention",
        [x(B, 6 * C, S, C), x(B, 2 * C, S + 1, C), x(B, 2 * C, S + 1, C), x(6 * C, S, S + 1)],
        {},
    ),
]


@pytest.mark.parametrize(("name", "operands", "params"), UNOBLIGED)
def test_shapes_agree_without_obligations(name: str, operands: list, params: dict) -> None:
    assert check_symbolic_decomposition(name, operands, params).obligations == []


OBLIGED: list[tuple[str, list[Aval | None], dict[str, Any]]] = [
    ("max_pool", [x(B, C, H, W)], {**POOL, "ceil_mode": True}),
    ("avg_pool", [x(B, C, H, W)], {**POOL, "ceil_mode": True, "count_include_pad": True}),
    ("layer_norm", [x(B, S, C), x(8), x(T)], {"axes": (2,)}),
    ("batch_norm", [x(B, C), x(S), x(S), x(4), None], {"axis": 1}),
    ("einsum", [x(B, S), x(T, 4), x(4)], {"equation": "bs,bd,d->bs"}),
    ("vecdot", [x(B, 8), x(S, 8)], {"axis": 1}),
    ("scaled_dot_product_attention", [x(B, 2, S, 8), x(4, 2, T, 8), x(4, 2, T, 8), None], {}),
]


@pytest.mark.parametrize(("name", "operands", "params"), OBLIGED)
def test_shapes_agree_under_obligations(name: str, operands: list, params: dict) -> None:
    assert check_symbolic_decomposition(name, operands, params).obligations


def test_channels_that_no_one_can_split() -> None:
    with pytest.raises(ShapeError, match="static"):
        check_symbolic_decomposition("group_norm", [x(B, C, H), None, None], {"groups": 2})


def test_outer_products_multiply_without_matmul() -> None:
    built = check_symbolic_decomposition("einsum", [x(B, S), x(B, T)], {"equation": "bs,bt->bst"})
    assert built.emitted == ["reshape", "reshape", "multiply"]


def test_one_einsum_is_one_matmul() -> None:
    built = check_symbolic_decomposition("einsum", [x(B, S, 8), x(B, 8, T)], {"equation": "bsd,bdt->bst"})
    assert built.emitted == ["matmul"]


@pytest.mark.parametrize("name", ["max_pool", "avg_pool"])
def test_ceil_mode_needs_no_guard(name: str) -> None:
    params = {**POOL, "ceil_mode": True}
    built = check_symbolic_decomposition(name, [x(B, C, H + 1, W)], params)
    scope = Scope()
    assert built.obligations
    for o in built.obligations:
        assert scope.prove(o.relation, o.left, o.right) is Truth.YES, o
