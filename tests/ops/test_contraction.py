"""matmul, tensordot, vecdot and einsum: decompositions against references, shapes, dtypes and refusals."""

from __future__ import annotations

import numpy as np
import pytest

import cuvil.ops.contraction
import cuvil.ops.einsum  # noqa: F401
from cuvil.dtypes import bool_, float16, float32, int8
from cuvil.ops.builder import NumpyBuilder
from cuvil.ops.einsum import parse_equation
from cuvil.ops.record import Aval, Decomposition
from cuvil.ops.registry import get
from cuvil.support.errors import ArgumentError, DTypeError, ShapeError
from cuvil.symbolic import symbol

from .record_checks import check_sample

B, S, T, D = (symbol(x) for x in "BSTD")


@pytest.mark.parametrize("name", ["matmul", "tensordot", "vecdot"])
@pytest.mark.parametrize("seed", range(30))
def test_body_gives_the_reference(name: str, seed: int) -> None:
    check_sample(name, seed)


@pytest.mark.parametrize("seed", range(120))
def test_einsum_body_gives_the_reference(seed: int) -> None:
    check_sample("einsum", seed)


def test_hand_computed_values() -> None:
    a, b = np.array([[1, 2], [3, 4]]), np.array([[5, 6], [7, 8]])
    np.testing.assert_array_equal(get("matmul").reference(a, b), [[19, 22], [43, 50]])
    np.testing.assert_array_equal(get("tensordot").reference(a, b, axes=((0,), (1,))), [[23, 31], [34, 46]])
    np.testing.assert_array_equal(get("vecdot").reference(a, b, axis=1), [17, 53])
    np.testing.assert_array_equal(get("einsum").reference(a, b, equation="ij,jk->ki"), [[19, 43], [22, 50]])
    np.testing.assert_array_equal(get("einsum").reference(a, equation="ii->i"), [1, 4])


def test_integers_wrap() -> None:
    x = np.full((1, 4), 100, np.int8)
    assert get("matmul").reference(x, x.T)[0, 0] == np.int64(40000).astype(np.int8)
    assert get("vecdot").reference(x, x, axis=1)[0] == np.int64(40000).astype(np.int8)
    assert get("einsum").reference(x, x, equation="ij,ij->")[()] == np.int64(40000).astype(np.int8)


@pytest.mark.parametrize("name", ["matmul", "vecdot", "tensordot", "einsum"])
def test_halves_accumulate_in_float32(name: str) -> None:
    a, b = np.ones((1, 4096), np.float16), np.full((4096, 1), 1 / 4096, np.float16)
    b[0] = 16  # in float16 every later sum would round back to 16
    params = {"vecdot": {"axis": 1}, "tensordot": {"axes": ((1,), (0,))}, "einsum": {"equation": "ij,jk->ik"}}
    got = get(name).reference(a, b.T if name == "vecdot" else b, **params.get(name, {}))
    assert got.dtype == np.float16
    np.testing.assert_allclose(np.ravel(got), [17], rtol=1e-3)


def test_long_einsum_of_halves_rounds_once() -> None:
    a, b, c = (np.full((2, 2), value, np.float16) for value in (300, 300, 1e-3))
    body = get("einsum").body
    assert isinstance(body, Decomposition)
    got = body.build(NumpyBuilder(), a, b, c, equation="ab,bc,cd->ad")
    assert got.dtype == np.float16
    np.testing.assert_allclose(got, np.full((2, 2), 4 * 90), rtol=2e-3)  # 2 * 300 * 300 is past the largest float16


def test_symbolic_shapes() -> None:
    matmul = get("matmul").shape_rule
    assert matmul(((B, S, D), (D, 8)), {}).shapes == ((B, S, 8),)
    assert matmul(((B, S, D), (D, 8)), {}).obligations == ()
    assert matmul(((B, 1, S, D), (8, D, S)), {}).shapes == ((B, 8, S, S),)
    rule = matmul(((B, S, D), (T, D, S)), {})
    assert rule.shapes == ((B, S, S),)
    assert [{o.left, o.right} for o in rule.obligations] == [{B, T}]
    rule = get("einsum").shape_rule(((B, S, D), (B, T, D)), {"equation": "bqd,bkd->bqk"})
    assert (rule.shapes, rule.obligations) == (((B, S, T),), ())


def test_parsing() -> None:
    assert parse_equation("ij , jk", (2, 2)).result == ("i", "k")
    assert parse_equation("ba", (2,)).result == ("a", "b")
    assert parse_equation("...a,b...->...ab", (3, 2)).operands == ((-2, -1, "a"), ("b", -1))


@pytest.mark.parametrize(
    ("equation", "ranks", "error"),
    [
        ("ij,jk->ik", (2,), ArgumentError),
        ("ij->ik", (2,), ArgumentError),
        ("ij->ii", (2,), ArgumentError),
        ("i1->i", (2,), ArgumentError),
        ("ij....->i", (3,), ArgumentError),
        ("...i->i", (2,), ArgumentError),
        ("ij->i", (3,), ShapeError),
    ],
)
def test_malformed_equations(equation: str, ranks: tuple[int, ...], error: type[Exception]) -> None:
    with pytest.raises(error):
        parse_equation(equation, ranks)


@pytest.mark.parametrize(
    ("name", "shapes", "params"),
    [
        ("matmul", [(3,), (3, 2)], {}),
        ("matmul", [(2, 3), (4, 2)], {}),
        ("matmul", [(2, 2, 3), (3, 3, 2)], {}),
        ("tensordot", [(2, 3), (2, 3)], {"axes": ((0,), (1,))}),
        ("vecdot", [(2, 3), (2, 1)], {"axis": 1}),
        ("vecdot", [(2, 3), (3,)], {"axis": 0}),
        ("einsum", [(2, 3), (2, 3)], {"equation": "ij,jk"}),
    ],
)
def test_refused_shapes(name: str, shapes: list, params: dict) -> None:
    with pytest.raises(ShapeError):
        get(name).infer([Aval(s, float32) for s in shapes], params)


@pytest.mark.parametrize("dtypes", [(float32, float16), (bool_, bool_), (int8, float32)])
def test_refused_dtypes(dtypes: tuple) -> None:
    with pytest.raises(DTypeError):
        get("matmul").infer([Aval((2, 2), d) for d in dtypes], {})


def test_cost_counts_multiply_and_add() -> None:
    cost = get("matmul").cost
    assert cost is not None
    assert cost(((B, S, D), (D, 8)), {})[0] == 16 * B * S * D
    cost = get("einsum").cost
    assert cost is not None
    assert cost(((2, 3), (3, 4), (4, 5)), {"equation": "ab,bc,cd->ad"})[0] == 2 * 24 + 2 * 40
