"""Reductions, creation, manipulation, products and sorting of the namespace against NumPy, with symbolic shapes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cuvil.numpy as cnp
from cuvil.support.errors import ArgumentError, AxisError, ShapeError
from cuvil.symbolic import symbol
from tests.frontend.tracing import assert_same, run_traced, symbolic_shape, traced

Fn = Callable[..., Any]


def counted(*shape: int, dt: str = "float32") -> np.ndarray[Any, Any]:
    return (np.arange(int(np.prod(shape))) % 11 - 3).reshape(shape).astype(dt)


def everywhere(fn: Fn, reference: Fn, *arrays: Any, rtol: float = 0.0, symbolic: bool = True) -> None:
    """``fn`` gives what the reference gives: at once, traced, and traced with a symbol for each axis."""
    expected = reference(*arrays)
    many = isinstance(expected, (list, tuple))
    variants: list[Any] = [fn(*arrays), run_traced(fn, *arrays)]
    if symbolic:
        shapes = [symbolic_shape(np.shape(a), f"s{k}_") for k, a in enumerate(arrays)]
        variants.append(run_traced(fn, *arrays, shapes=shapes))
    for got in variants:
        pairs = zip(got, expected, strict=True) if many else [(got, expected)]
        for g, e in pairs:
            assert_same(g, e, rtol=rtol, atol=rtol)


# ----------------------------------------------------------------------------------------------- reductions


@pytest.mark.parametrize("name", ["sum", "prod", "max", "min", "mean", "var", "std", "any", "all", "count_nonzero"])
@given(data=st.data())
def test_reductions(name: str, data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(1, 4), min_size=0, max_size=3).map(tuple))
    dt = data.draw(st.sampled_from(["bool", "int8", "uint16", "int32", "float32", "float64"]))
    if dt == "bool" and name in ("max", "min"):
        dt = "int8"
    axis = data.draw(
        st.none() | st.lists(st.integers(-len(shape), max(len(shape) - 1, 0)), max_size=len(shape)).map(tuple)
        if shape
        else st.none()
    )
    if axis is not None and len({a % len(shape) for a in axis}) != len(axis):
        axis = axis[0]
    keepdims = data.draw(st.booleans())
    x = counted(*shape, dt=dt)
    reference: Fn = getattr(np, name)
    everywhere(
        lambda a: getattr(cnp, name)(a, axis=axis, keepdims=keepdims),
        lambda a: np.asarray(reference(a, axis=axis, keepdims=keepdims)),
        x,
        rtol=1e-5,
    )


def test_reduction_options() -> None:
    x = counted(3, 4, dt="int32")
    for dt in ("float32", "int8", "float64"):
        everywhere(lambda a, dt=dt: cnp.sum(a, dtype=dt), lambda a, dt=dt: np.asarray(np.sum(a, dtype=dt)), x)
    everywhere(lambda a: cnp.mean(a, dtype="float32"), lambda a: np.asarray(np.mean(a, dtype="float32")), x)
    y = counted(3, 4)
    everywhere(lambda a: cnp.var(a, axis=0, ddof=1), lambda a: np.var(a, axis=0, ddof=1), y, rtol=1e-6)
    everywhere(lambda a: cnp.std(a, axis=-1, correction=1), lambda a: np.std(a, axis=-1, ddof=1), y, rtol=1e-6)
    with pytest.raises(ArgumentError, match="give one"):
        cnp.var(y, ddof=1, correction=1)
    with pytest.raises(AxisError, match="axis 2 is outside an array of rank 2"):
        run_traced(lambda a: cnp.sum(a, axis=2), y)
    with pytest.raises(AxisError, match="twice"):
        cnp.sum(y, axis=(0, -2))
    with pytest.raises(ValueError, match="empty"):
        run_traced(lambda a: cnp.max(a, axis=0), np.zeros((0, 3), np.float32))


@pytest.mark.parametrize("axis", [None, 0, -1])
def test_positions_and_scans(axis: int | None) -> None:
    x = counted(3, 4)
    for name in ("argmax", "argmin"):
        everywhere(
            lambda a, n=name: getattr(cnp, n)(a, axis=axis), lambda a, n=name: np.asarray(getattr(np, n)(a, axis)), x
        )
        everywhere(
            lambda a, n=name: getattr(cnp, n)(a, axis=axis, keepdims=True),
            lambda a, n=name: np.asarray(getattr(np, n)(a, axis, keepdims=True)), x,
        )  # fmt: skip
    for name in ("cumsum", "cumprod"):
        for dt in ("float32", "int8", "bool"):
            y = counted(3, 4, dt=dt)
            everywhere(lambda a, n=name: getattr(cnp, n)(a, axis), lambda a, n=name: getattr(np, n)(a, axis), y)
    if axis is not None:
        everywhere(
            lambda a: cnp.cumulative_sum(a, axis, include_initial=True),
            lambda a: np.cumulative_sum(a, axis=axis, include_initial=True), x,
        )  # fmt: skip
    expected = np.log(np.sum(np.exp(x.astype(np.float64)), axis=axis)).astype(np.float32)
    everywhere(lambda a: cnp.logsumexp(a, axis), lambda a: expected, x, rtol=1e-5)


# --------------------------------------------------------------------------------------------- manipulation

MANIPULATIONS: dict[str, tuple[Fn, Fn]] = {
    "transpose": (lambda a: cnp.transpose(a), lambda a: a.T),
    "T": (lambda a: a.T, lambda a: a.T),
    "permute": (lambda a: cnp.permute_dims(a, (1, 2, 0)), lambda a: np.transpose(a, (1, 2, 0))),
    "method transpose": (lambda a: a.transpose(2, 0, 1), lambda a: a.transpose(2, 0, 1)),
    "mT": (lambda a: cnp.matrix_transpose(a), lambda a: a.swapaxes(-1, -2)),
    "swapaxes": (lambda a: cnp.swapaxes(a, 0, -1), lambda a: a.swapaxes(0, -1)),
    "moveaxis": (lambda a: cnp.moveaxis(a, (0, 1), (-1, 0)), lambda a: np.moveaxis(a, (0, 1), (-1, 0))),
    "expand_dims": (lambda a: cnp.expand_dims(a, (0, -1)), lambda a: np.expand_dims(a, (0, -1))),
    "flatten": (lambda a: a.reshape(-1), lambda a: a.reshape(-1)),
    "reshape": (lambda a: cnp.reshape(a, (a.shape[0], -1)), lambda a: a.reshape(a.shape[0], -1)),
    "reshape inner": (lambda a: a.reshape((-1, a.shape[2])), lambda a: a.reshape((-1, a.shape[2]))),
    "broadcast_to": (lambda a: cnp.broadcast_to(a, (2, *a.shape)), lambda a: np.broadcast_to(a, (2, *a.shape))),
    "concat": (lambda a: cnp.concat([a, a + 1], axis=-1), lambda a: np.concatenate([a, a + 1], axis=-1)),
    "concat flat": (lambda a: cnp.concatenate([a, a], axis=None), lambda a: np.concatenate([a, a], axis=None)),
    "stack": (lambda a: cnp.stack([a, a * 2], axis=-1), lambda a: np.stack([a, a * 2], axis=-1)),
    "vstack": (lambda a: cnp.vstack([a, a]), lambda a: np.vstack([a, a])),
    "hstack": (lambda a: cnp.hstack([a, a]), lambda a: np.hstack([a, a])),
    "split at": (lambda a: cnp.split(a, [1, -1], axis=2), lambda a: np.split(a, [1, -1], axis=2)),
    "array_split": (lambda a: cnp.array_split(a, 3, axis=2), lambda a: np.array_split(a, 3, axis=2)),
    "pad": (lambda a: cnp.pad(a, ((0, 0), (1, 2), (0, 1))), lambda a: np.pad(a, ((0, 0), (1, 2), (0, 1)))),
    "pad pair": (
        lambda a: cnp.pad(a, (1, 2), constant_values=5), lambda a: np.pad(a, (1, 2), constant_values=5),
    ),
    "pad edge": (lambda a: cnp.pad(a, 1, "edge"), lambda a: np.pad(a, 1, "edge")),
    "pad reflect": (
        lambda a: cnp.pad(a, ((0, 0), (0, 0), (2, 1)), "reflect"),
        lambda a: np.pad(a, ((0, 0), (0, 0), (2, 1)), "reflect"),
    ),
    "flip": (lambda a: cnp.flip(a), lambda a: np.flip(a)),
    "flip axis": (lambda a: cnp.flip(a, -1), lambda a: np.flip(a, -1)),
    "roll": (lambda a: cnp.roll(a, 2), lambda a: np.roll(a, 2)),
    "roll axes": (lambda a: cnp.roll(a, (1, -2), (0, 2)), lambda a: np.roll(a, (1, -2), (0, 2))),
    "roll one": (lambda a: cnp.roll(a, 1, (0, 1)), lambda a: np.roll(a, 1, (0, 1))),
    "tile": (lambda a: cnp.tile(a, (2, 1)), lambda a: np.tile(a, (2, 1))),
    "tile more": (lambda a: cnp.tile(a, (2, 1, 1, 2)), lambda a: np.tile(a, (2, 1, 1, 2))),
    "repeat": (lambda a: cnp.repeat(a, 2, axis=1), lambda a: np.repeat(a, 2, axis=1)),
    "repeat flat": (lambda a: cnp.repeat(a, 3), lambda a: np.repeat(a, 3)),
    "ravel": (lambda a: cnp.ravel(a), lambda a: np.ravel(a)),
    "tril": (lambda a: cnp.tril(a, k=1), lambda a: np.tril(a, 1)),
    "triu": (lambda a: cnp.triu(a, k=-1), lambda a: np.triu(a, -1)),
    "zeros_like": (lambda a: cnp.zeros_like(a), lambda a: np.zeros_like(a)),
    "full_like": (lambda a: cnp.full_like(a, 3, dtype="int8"), lambda a: np.full_like(a, 3, dtype="int8")),
    "sort": (lambda a: cnp.sort(a, axis=1), lambda a: np.sort(a, axis=1)),
    "argsort": (lambda a: cnp.argsort(a), lambda a: np.argsort(a, stable=True)),
    "sort flat": (lambda a: cnp.sort(a, axis=None), lambda a: np.sort(a, axis=None)),
    "sort descending": (lambda a: cnp.sort(a, descending=True), lambda a: np.sort(a)[..., ::-1]),
}  # fmt: skip


@pytest.mark.parametrize("name", list(MANIPULATIONS))
@pytest.mark.parametrize("shape", [(2, 3, 4), (1, 2, 3), (3, 1, 5)])
def test_manipulation(name: str, shape: tuple[int, ...]) -> None:
    fn, reference = MANIPULATIONS[name]
    everywhere(fn, reference, counted(*shape))


@pytest.mark.parametrize("name", ["flip", "roll", "tile", "repeat", "concat", "stack", "split at", "array_split", "T"])
def test_manipulation_of_nothing(name: str) -> None:
    fn, reference = MANIPULATIONS[name]
    everywhere(fn, reference, counted(2, 0, 3))


def test_sizes_from_reshape() -> None:
    program, _ = traced(
        lambda a: (a.reshape(a.shape[0], -1), a.reshape(-1, 2), a.reshape(2, -1)), counted(2, 3, 4),
        shapes=[(symbol("B"), symbol("S"), 4)],
    )  # fmt: skip
    assert [tuple(map(str, o.shape)) for o in program.outputs] == [("B", "4*S"), ("2*B*S", "2"), ("2", "2*B*S")]


def test_reshape_errors() -> None:
    x = counted(2, 3)
    for shape in ((4, -1), (0, -1), (-1, -1), (-2, 3)):
        with pytest.raises(ShapeError, match="reshape"):
            run_traced(lambda a, s=shape: cnp.reshape(a, s), x)
    with pytest.raises(ShapeError, match="as many elements"):
        run_traced(lambda a: cnp.reshape(a, (7,)), x)
    with pytest.raises(ArgumentError, match="order"):
        run_traced(lambda a: a.reshape(6, order="F"), x)


def test_reshape_by_a_divisor_that_is_not_evident_is_guarded() -> None:
    program, got = traced(lambda a: a.reshape(2, -1), counted(6), shapes=[(symbol("n"),)])
    assert_same(got, counted(6).reshape(2, -1))
    assert len(program.guards) == 1


def test_squeeze_split_and_unstack() -> None:
    x = counted(1, 4, 1)
    everywhere(lambda a: cnp.squeeze(a), lambda a: np.squeeze(a), x, symbolic=False)
    everywhere(lambda a: cnp.squeeze(a, (0, -1)), lambda a: np.squeeze(a, (0, -1)), x)
    with pytest.raises(ShapeError, match="axis 1"):
        run_traced(lambda a: cnp.squeeze(a, 1), x)
    everywhere(lambda a: cnp.split(a, 2, axis=1), lambda a: np.split(a, 2, axis=1), x, symbolic=False)
    everywhere(lambda a: cnp.unstack(a, axis=1), lambda a: np.unstack(a, axis=1), x, symbolic=False)
    with pytest.raises(ArgumentError, match="multiple of 3"):
        run_traced(lambda a: cnp.split(a, 3, axis=1), x)
    heads = run_traced(lambda a: cnp.split(a, 2), counted(4), shapes=[(symbol("n") * 2,)])
    assert_same(heads[1], counted(4)[2:])


def test_joining_promotes() -> None:
    x, y = counted(2, dt="int8"), counted(2, dt="float16")
    everywhere(lambda a, b: cnp.concat([a, b]), lambda a, b: np.concatenate([a, b]), x, y)
    everywhere(lambda a, b: cnp.stack([a, b, [1.0, 2.0]]), lambda a, b: np.stack([a, b, np.float32([1, 2])]), x, y,
               symbolic=False)  # fmt: skip


def test_reflection_longer_than_the_axis() -> None:
    everywhere(
        lambda a: cnp.pad(a, (4, 7), "reflect"), lambda a: np.pad(a, (4, 7), "reflect"), counted(3), symbolic=False
    )
    everywhere(
        lambda a: cnp.pad(a, (2, 1), "reflect"), lambda a: np.pad(a, (2, 1), "reflect"), counted(1), symbolic=False
    )


def test_broadcast_arrays_and_shapes() -> None:
    x, y = counted(3, 1), counted(4, dt="int8")
    everywhere(lambda a, b: cnp.broadcast_arrays(a, b), lambda a, b: np.broadcast_arrays(a, b), x, y, symbolic=False)
    assert cnp.broadcast_shapes((symbol("B"), 1), (4,)) == (symbol("B"), 4)
    with pytest.raises(ShapeError, match="broadcast"):
        cnp.broadcast_shapes((2,), (3,))


# ------------------------------------------------------------------------------------------------- creation


def test_creation_defaults() -> None:
    assert_same(cnp.zeros(2), np.zeros(2, np.float32))
    assert_same(cnp.ones((2, 1)), np.ones((2, 1), np.float32))
    assert_same(cnp.full(2, 3), np.full(2, 3, np.int64))
    assert_same(cnp.full(2, 0.5), np.full(2, 0.5, np.float32))
    assert_same(cnp.full(2, True), np.full(2, True))
    assert_same(cnp.arange(3), np.arange(3))
    assert_same(cnp.arange(1, 7, 2, dtype="int8"), np.arange(1, 7, 2, dtype="int8"))
    assert_same(cnp.arange(0, 1, 0.25), np.arange(0, 1, 0.25, dtype=np.float32))
    assert_same(cnp.arange(5, 0, -2), np.arange(5, 0, -2))
    assert_same(cnp.linspace(0, 1, 5), np.linspace(0, 1, 5, dtype=np.float32))
    assert_same(cnp.eye(2, 3, k=1), np.eye(2, 3, 1, dtype=np.float32))
    assert_same(cnp.asarray([1.5]), np.array([1.5], np.float32))
    assert_same(cnp.asarray(np.array([1.5])), np.array([1.5]))
    assert_same(cnp.array([2**60 + 1], "int64"), np.array([2**60 + 1]))
    for indexing in ("xy", "ij"):
        mine = cnp.meshgrid([1, 2], [3, 4, 5], indexing=indexing)
        for got, expected in zip(mine, np.meshgrid([1, 2], [3, 4, 5], indexing=indexing), strict=True):
            assert_same(got, expected)
    with pytest.raises(ArgumentError, match="step is 0"):
        cnp.arange(0, 5, 0)


@pytest.mark.parametrize("n", [0, 1, 4])
def test_creation_of_symbolic_sizes(n: int) -> None:
    x = counted(n)

    def fn(a: Any) -> Any:
        d = a.shape[0]
        return (
            cnp.zeros((d, 3)), cnp.ones(d, "int8"), cnp.full((2, d), 7), cnp.arange(d), cnp.arange(1, d + 1, 2),
            cnp.arange(d, -1, -1), cnp.eye(d), cnp.arange(d, dtype="float32") * 2, cnp.full((d,), cnp.sum(a)),
            cnp.meshgrid(a, cnp.arange(3))[0],
        )  # fmt: skip

    def reference(a: Any) -> Any:
        d = a.shape[0]
        return (
            np.zeros((d, 3), "f4"), np.ones(d, "i1"), np.full((2, d), 7), np.arange(d), np.arange(1, d + 1, 2),
            np.arange(d, -1, -1), np.eye(d, dtype="f4"), np.arange(d, dtype="f4") * 2, np.full((d,), np.sum(a)),
            np.meshgrid(a, np.arange(3))[0],
        )  # fmt: skip

    everywhere(fn, reference, x)


# ------------------------------------------------------------------------------------------ products, search

MATMUL_SHAPES = [
    ((3,), (3,)), ((2, 3), (3,)), ((3,), (3, 4)), ((2, 3), (3, 4)), ((5, 2, 3), (3, 4)), ((5, 2, 3), (5, 3, 4)),
    ((5, 1, 2, 3), (6, 3, 4)), ((3,), (5, 3, 4)), ((5, 2, 3), (3,)),
]  # fmt: skip


@pytest.mark.parametrize("dt", ["float32", "int32", "bool"])
@pytest.mark.parametrize("shapes", MATMUL_SHAPES)
def test_matmul(shapes: tuple[tuple[int, ...], tuple[int, ...]], dt: str) -> None:
    x, y = counted(*shapes[0], dt=dt), counted(*shapes[1], dt=dt)
    everywhere(lambda a, b: cnp.matmul(a, b), lambda a, b: np.asarray(a @ b), x, y, symbolic=False)
    everywhere(lambda a, b: a @ b, lambda a, b: np.asarray(a @ b), x, y, symbolic=False)
    batch = symbol("B")
    got = run_traced(lambda a, b: a @ b, x, y, shapes=[(batch, *x.shape[1:]) if x.ndim > 1 else x.shape, y.shape])
    if x.ndim == 2:
        assert_same(got, x @ y)


def test_matmul_promotes_and_takes_numpy_on_the_left() -> None:
    x, y = counted(2, 3, dt="int8"), counted(3, 2, dt="float32")
    everywhere(lambda a: a @ y, lambda a: a @ y, x)
    everywhere(lambda b: x @ b, lambda b: x @ b, y)
    with pytest.raises(ShapeError, match="rank 1 or more"):
        run_traced(lambda a: a @ 2, x)
    with pytest.raises(ShapeError, match="matmul"):
        run_traced(lambda a, b: a @ b, x, counted(4, 2, dt="int8"))


def test_other_products() -> None:
    x, y, v = counted(2, 3, 4), counted(4, 3, 5), counted(3)
    pairs = ((1, 2), (1, 0))
    everywhere(
        lambda a, b: cnp.tensordot(a, b, axes=pairs), lambda a, b: np.tensordot(a, b, pairs), x, y, symbolic=False
    )
    everywhere(lambda a, b: cnp.tensordot(a, b, axes=1), lambda a, b: np.tensordot(a, b, 1), x, y, symbolic=False)
    everywhere(lambda a: cnp.tensordot(a, a, axes=0), lambda a: np.tensordot(a, a, 0), v)
    everywhere(
        lambda a, b: cnp.einsum("bij,jik->bk", a, b), lambda a, b: np.einsum("bij,jik->bk", a, b), x, y, symbolic=False
    )
    everywhere(lambda a: cnp.einsum("...ij->...ji", a), lambda a: np.einsum("...ij->...ji", a), x)
    everywhere(lambda a: cnp.outer(a, a), lambda a: np.outer(a, a), v)
    everywhere(lambda a: cnp.inner(a, a), lambda a: np.asarray(np.inner(a, a)), v)
    everywhere(lambda a: cnp.vecdot(a, a, axis=1), lambda a: np.vecdot(a, a, axis=1), x)
    everywhere(lambda a, b: cnp.dot(a, b), lambda a, b: np.dot(a, b), x, counted(5, 4, 2), symbolic=False)
    everywhere(lambda a: cnp.dot(a, 2.0), lambda a: np.dot(a, np.float32(2)), v)


def test_top_k_and_searchsorted() -> None:
    x = counted(2, 5)
    values, indices = run_traced(lambda a: cnp.top_k(a, 2, axis=-1), x)
    order = np.argsort(-x, axis=-1, stable=True)[:, :2]
    assert_same(indices, order)
    assert_same(values, np.take_along_axis(x, order, -1))
    smallest, _ = run_traced(lambda a: cnp.top_k(a, 1, axis=0, largest=False), x)
    assert_same(smallest, x.min(0, keepdims=True))
    sorted_values = np.array([1, 3, 3, 5], np.int32)
    for side in ("left", "right"):
        everywhere(
            lambda a, b, s=side: cnp.searchsorted(a, b, side=s),
            lambda a, b, s=side: np.searchsorted(a, b, side=s), sorted_values, np.array([[0, 3], [9, 4]]),
        )  # fmt: skip


# --------------------------------------------------------------------------------------------------- dtypes


def test_dtype_functions() -> None:
    assert cnp.result_type("int8", np.ones(2, np.float16)) == np.float16
    assert cnp.can_cast("uint8", "int16")
    assert cnp.finfo("bfloat16").bits == 16
    assert cnp.iinfo(np.ones(1, np.int8)).min == -128
    assert cnp.isdtype(np.float32, "real floating")
    assert not cnp.isdtype("bool", "numeric")
    with pytest.raises(ArgumentError, match="no kind"):
        cnp.isdtype("int8", "whole")


def test_a_table_sliced_by_a_symbolic_size() -> None:
    table = counted(6, 2)
    got = run_traced(lambda a: a + cnp.asarray(table)[: a.shape[0]], counted(4, 2), shapes=[(symbol("S"), 2)])
    assert_same(got, counted(4, 2) + table[:4])
