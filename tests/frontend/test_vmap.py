"""vmap: axes, pytrees, nesting, compilation, symbolic sizes and messages."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cuvil
import cuvil.numpy as cnp
from cuvil import nn
from cuvil.frontend.pytree import flatten
from cuvil.support.errors import (
    ArgumentError,
    ArgumentTypeError,
    AxisError,
    IndexOutOfBoundsError,
    ShapeError,
)
from cuvil.testing import Program, programs, sample_array


def sample(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def looped(fn: Any, *args: Any, in_axes: Any = 0) -> Any:
    """The results of a function for each example, stacked."""
    axes = in_axes if isinstance(in_axes, tuple) else (in_axes,) * len(args)
    count = next(a.shape[x] for a, x in zip(args, axes, strict=True) if x is not None)
    rows = [fn(*(a if x is None else np.take(a, k, x) for a, x in zip(args, axes, strict=True))) for k in range(count)]
    leaves, trees = zip(*(flatten(r) for r in rows), strict=True)
    return trees[0].unflatten(np.stack(column) for column in zip(*leaves, strict=True))


def assert_same(got: Any, want: Any, tolerance: float = 2e-5) -> None:
    left, tree = flatten(got)
    right, other = flatten(want)
    assert tree == other
    for g, w in zip(left, right, strict=True):
        assert g.dtype == w.dtype and g.shape == w.shape
        np.testing.assert_allclose(
            np.asarray(g, np.float64), np.asarray(w, np.float64), rtol=tolerance, atol=tolerance, equal_nan=True
        )


def attend(q: Any, k: Any, v: Any, mask: Any) -> Any:
    scores = nn.scaled_dot_product_attention(q, k, v, mask)
    return {"out": scores, "best": cnp.argmax(cnp.sum(scores, axis=-1), axis=-1)}


@pytest.mark.parametrize("in_axes", [(0, None, None, None), (0, 0, 0, 0), (2, 0, 1, None), (-1, None, -2, 0)])
def test_examples_of_attention(in_axes: tuple[Any, ...]) -> None:
    shapes = [(2, 5, 4), (2, 6, 4), (2, 6, 3), (5, 6)]
    arrays = []
    for k, (shape, axis) in enumerate(zip(shapes, in_axes, strict=True)):
        with_examples = list(shape)
        if axis is not None:
            with_examples.insert(axis % (len(shape) + 1), 3)
        arrays.append(sample(*with_examples, seed=k))
    arrays[3] = arrays[3] > -1
    want = looped(attend, *arrays, in_axes=in_axes)
    assert_same(cuvil.vmap(attend, in_axes)(*arrays), want)
    assert_same(cuvil.jit(cuvil.vmap(attend, in_axes))(*arrays), want)


@settings(max_examples=30)
@given(programs(), st.integers(0, 2**16), st.sampled_from([0, 1, 3]))
def test_random_programs_are_loops(program: Program, seed: int, count: int) -> None:
    """A program over examples computes what it does for each; arguments are shared or not, at any axis."""
    rng = np.random.default_rng(seed)
    arguments, axes = [], []
    for i in program.arguments:
        base = [
            sample_array(i.dtype.name, a.shape, i.domain, seed=seed + k, size=_size(i, program))
            for k, a in enumerate([i.array(program.sizes)] * (count + 1))
        ]
        if rng.random() < 0.3:
            arguments.append(base[0])
            axes.append(None)
            continue
        axis = int(rng.integers(0, base[0].ndim + 1))
        arguments.append(np.stack(base, axis)[(slice(None),) * axis + (slice(0, count),)])
        axes.append(axis)
    if all(a is None for a in axes):
        return
    fn = program.function()
    with np.errstate(all="ignore"):
        try:
            got = cuvil.vmap(fn, tuple(axes))(*arguments)
        except IndexOutOfBoundsError:
            return  # a computed index left its axis for other values than those that were drawn
        if count == 0:
            assert all(np.asarray(x).shape[0] == 0 for x in got)
            return
        want = looped(fn, *arguments, in_axes=tuple(axes))
    for g, w in zip(got, want, strict=True):
        assert g.dtype == w.dtype and g.shape == w.shape
        if g.dtype.kind in "biu":
            # Rounding in another order may move an argmax or a truncation of a float; most elements are the same.
            assert g.size == 0 or np.mean(g == w) > 0.8
        else:
            half = g.dtype.itemsize == 2
            a, b = g.astype(np.float64), w.astype(np.float64)
            near = np.isclose(a, b, rtol=0.05 if half else 1e-3, atol=0.05 if half else 1e-3, equal_nan=True)
            assert g.size == 0 or near.mean() > 0.8


def _size(i: Any, program: Program) -> int:
    from cuvil.symbolic import evaluate

    return evaluate(i.size, dict(program.sizes))


def test_one_variant_serves_every_number_of_examples() -> None:
    def loss(w: Any, x: Any, y: Any) -> Any:
        return -nn.log_softmax(nn.relu(x @ w))[y]

    per_example = cuvil.vmap(cuvil.value_and_grad(loss), in_axes=(None, 0, 0))
    compiled = cuvil.jit(
        per_example, input_spec=[("w", "float32", (3, 4)), ("x", "float32", ("B", 3)), ("y", "int64", ("B",))]
    )
    w = sample(3, 4)
    for count in (5, 1, 0, 2):
        x, y = sample(count, 3, seed=count), np.arange(count) % 4
        assert_same(compiled(w, x, y), per_example(w, x, y))
    assert len(compiled.variants()) == 1


def test_symbolic_sizes_that_differ_become_a_guard() -> None:
    compiled = cuvil.jit(
        cuvil.vmap(lambda x, y: x + y), input_spec=[("x", "float32", ("A", 3)), ("y", "float32", ("B", 3))]
    )
    assert compiled(sample(4, 3), sample(4, 3)).shape == (4, 3)
    with pytest.raises(ShapeError, match=r"x has 4 along axis 0.*y has 2"):
        compiled(sample(4, 3), sample(2, 3))


def test_nested_maps_and_results_elsewhere() -> None:
    def f(x: Any, y: Any) -> Any:
        return cnp.outer(x, y), cnp.sum(x)

    x, y = sample(2, 3), sample(4, 5, seed=1)
    both = cuvil.vmap(cuvil.vmap(f, (None, 0), (0, None)), (0, None), (-1, 0))
    out, total = both(x, y)
    assert out.shape == (4, 3, 5, 2) and total.shape == (2,)
    np.testing.assert_allclose(out, np.einsum("ai,bj->bija", x, y), rtol=1e-6)
    np.testing.assert_allclose(cuvil.jit(both)(x, y)[0], out, rtol=1e-6)


def test_gradients_of_maps_and_maps_of_gradients() -> None:
    def energy(w: Any, x: Any) -> Any:
        return cnp.sum(cnp.tanh(x @ w) ** 2)

    w, x = sample(3, 2).astype(np.float64), sample(5, 3).astype(np.float64)
    each = cuvil.vmap(cuvil.grad(energy), (None, 0))(w, x)
    assert each.shape == (5, 3, 2)
    np.testing.assert_allclose(each, looped(cuvil.grad(energy), w, x, in_axes=(None, 0)), rtol=1e-10)
    whole = cuvil.grad(lambda w: cnp.sum(cuvil.vmap(energy, (None, 0))(w, x)))(w)
    np.testing.assert_allclose(whole, each.sum(0), rtol=1e-10)


def test_convolutions_with_weights_of_their_own() -> None:
    """Per-example gradients of a convolution: both operands have examples."""

    def loss(w: Any, x: Any) -> Any:
        return cnp.sum(nn.conv(x, w, stride=2, padding=1, groups=2) ** 2)

    w, x = sample(4, 1, 3, 3), sample(3, 1, 2, 7, 6)
    got = cuvil.vmap(cuvil.grad(loss), (None, 0))(w, x)
    assert_same(got, looped(cuvil.grad(loss), w, x, in_axes=(None, 0)), 1e-4)
    compiled = cuvil.jit(
        cuvil.vmap(cuvil.grad(loss), (None, 0)),
        input_spec=[("w", "float32", (4, 1, 3, 3)), ("x", "float32", ("E", 1, 2, 7, 6))],
    )
    assert_same(compiled(w, x), got, 1e-4)
    assert_same(compiled(w, x[:1]), got[:1], 1e-4)


def test_pytrees_of_axes() -> None:
    def f(p: Any, x: Any, *, scale: Any) -> Any:
        return {"y": p["w"] * x + p["b"], "b": p["b"] * scale}

    p = {"w": sample(3, 2), "b": sample(2)}
    got = cuvil.vmap(f, ({"w": 0, "b": None}, None), {"y": 1, "b": None})(p, 2.0, scale=np.float32(3))
    assert got["y"].shape == (2, 3) and got["b"].shape == (2,)
    np.testing.assert_allclose(got["y"], (p["w"] * 2 + p["b"]).T)
    every = cuvil.vmap(f, ({"w": 0, "b": None}, None))(p, 2.0, scale=np.float32(3))
    assert every["b"].shape == (3, 2)


def test_shared_python_numbers_stay_weak() -> None:
    assert cuvil.vmap(lambda x, s: x * s, (0, None))(np.ones(3, np.float16), 2.0).dtype == np.float16
    assert cuvil.jit(cuvil.vmap(lambda x, n: x * n, (0, None)))(np.ones(3, np.int8), 2).dtype == np.int8


def test_indexing_by_each_examples_own_index() -> None:
    x, at = sample(3, 5, 2), np.array([4, 0, -1])
    assert_same(cuvil.vmap(lambda x, i: x[i])(x, at), x[np.arange(3), at])
    assert_same(
        cuvil.vmap(lambda x, i: cnp.at(x)[i].add(1.0))(x, at), looped(lambda x, i: cnp.at(x)[i].add(1.0), x, at)
    )
    with pytest.raises(IndexOutOfBoundsError):
        cuvil.vmap(lambda x, i: x[i])(x, np.array([4, 0, 5]))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: cuvil.vmap(lambda x, y: x)(np.ones((3, 2)), np.ones(4)),
            ShapeError,
            r"x has 3 along axis 0 of \(3, 2\); y has 4 along axis 0 of \(4,\)",
        ),
        (lambda: cuvil.vmap(lambda x: x, (0, 0))(np.ones(2)), ArgumentError, "in_axes has 2 entries.*1 positional"),
        (lambda: cuvil.vmap(lambda x: x, None)(np.ones(2)), ArgumentError, "maps no argument"),
        (lambda: cuvil.vmap(lambda x: x, "a")(np.ones(2)), ArgumentError, "in_axes has 'a' for x"),
        (lambda: cuvil.vmap(lambda x: x, 2)(np.ones((2, 2))), AxisError, r"axis 2 of x .*expected -2 <= axis < 2"),
        (lambda: cuvil.vmap(lambda x: x)(2.0), AxisError, "it is a scalar"),
        (lambda: cuvil.vmap(lambda x: x)("text"), ArgumentTypeError, "x of <lambda> is str.*axis None"),
        (lambda: cuvil.vmap(lambda x: x, ({"a": 0},))(np.ones(2)), ArgumentError, r"in_axes\[0\] is \{'a': 0\}"),
        (
            lambda: cuvil.vmap(lambda x: x, 0, None)(np.ones(2)),
            ArgumentError,
            "out_axes has None for result of <lambda>, which differs",
        ),
        (lambda: cuvil.vmap(lambda x: x, 0, 1)(np.ones(2)), AxisError, "at axis 1.*expected -1 <= axis < 1"),
        (lambda: cuvil.vmap(lambda x: x, 0, "b")(np.ones(2)), ArgumentError, "out_axes has 'b'"),
        (lambda: cuvil.vmap(3), ArgumentTypeError, "vmap takes a function, got int"),
    ],
)
def test_messages(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()
