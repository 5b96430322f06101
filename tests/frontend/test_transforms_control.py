"""grad, jvp and vmap over cond, switch, while_loop, fori_loop, scan and map."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import cuvil
import cuvil.numpy as cnp
from cuvil import nn
from cuvil.frontend.pytree import flatten
from cuvil.ir.control import LoopOp, SwitchOp, WhileOp, blocks_of
from cuvil.support.errors import CheckFailed, IndexOutOfBoundsError, UnsupportedError
from tests.frontend.test_derivatives import central
from tests.frontend.test_vmap import assert_same, looped
from tests.frontend.tracing import run_traced, traced


def sample(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(size=shape)


def control_ops(fn: Any, *args: Any) -> list[str]:
    """The ops with regions of a traced function."""
    program, _ = traced(fn, *args)
    ops = [op for block in blocks_of(program.func) for op in block.ops]
    return [op.name for op in ops if isinstance(op, (SwitchOp, WhileOp, LoopOp))]


# ---------------------------------------------------------------------------- functions of (x, w) -> scalar


def by_cond(x: Any, w: Any) -> Any:
    return cuvil.cond(
        cnp.sum(x) > 0, lambda v: cnp.sum(cnp.sin(v) * w), lambda v: cnp.sum(v * v) * w[0] + cnp.sum(w), x
    )


def by_switch(x: Any, w: Any) -> Any:
    n = cnp.astype(cnp.floor(x[0]), "int64")
    return cuvil.switch(n, [lambda v: cnp.sum(v), lambda v: cnp.sum(v * w), lambda v: cnp.prod(v) + w[1]], x)


def by_loop(x: Any, w: Any) -> Any:
    return cnp.sum(cuvil.fori_loop(0, 4, lambda i, c: cnp.tanh(c * w) + x * i, x))


def by_scan(x: Any, w: Any) -> Any:
    def step(carry: Any, v: Any) -> Any:
        h, n = carry
        h = nn.sigmoid(h * w + v)
        return (h, n + 1), (h * n, cnp.argmax(h))

    rows = cnp.stack([x, x * w, cnp.exp(x)])
    (h, _), (ys, at) = cuvil.scan(step, (w * 0.5, 1), rows, reverse=True)
    return cnp.sum(h) + cnp.sum(ys * ys) + cnp.sum(ys[0][at])


def by_nested(x: Any, w: Any) -> Any:
    def step(c: Any, v: Any) -> Any:
        moved = cuvil.cond(cnp.sum(c) > v, lambda c: c * 0.5 + w, lambda c: cnp.cos(c), c)
        return cuvil.fori_loop(0, 2, lambda i, c: c + cnp.sin(c) * v, moved), cnp.sum(moved)

    c, ys = cuvil.scan(step, x, w)
    return cnp.sum(c * c) + cnp.max(ys)


REVERSIBLE = [by_cond, by_switch, by_loop, by_scan, by_nested]
POINTS = [(sample(3, seed=k) * 1.5, sample(3, seed=k + 10)) for k in range(4)]


def by_while(x: Any, w: Any) -> Any:
    grown = cuvil.while_loop(lambda c: cnp.sum(c[0] ** 2) < 50, lambda c: (c[0] * 1.5 + w, c[1] + 1), (x, 0))
    return cnp.sum(grown[0]) * grown[1]


@pytest.mark.parametrize("fn", REVERSIBLE, ids=lambda f: f.__name__)
def test_gradients(fn: Any) -> None:
    gradient = cuvil.grad(fn, argnums=(0, 1))
    for x, w in POINTS:
        got = gradient(x, w)
        np.testing.assert_allclose(got[0], central(lambda v, w=w: fn(v, w), x), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(got[1], central(lambda v, x=x: fn(x, v), w), rtol=1e-5, atol=1e-6)
        compiled = run_traced(gradient, x, w)
        np.testing.assert_allclose(compiled[0], got[0], rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(compiled[1], got[1], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("fn", [*REVERSIBLE, by_while], ids=lambda f: f.__name__)
def test_forward_mode(fn: Any) -> None:
    for x, w in POINTS:
        dx, dw = sample(3, seed=7), sample(3, seed=8)
        value, tangent = cuvil.jvp(fn, (x, w), (dx, dw))
        step = 1e-6
        want = (float(fn(x + step * dx, w + step * dw)) - float(fn(x - step * dx, w - step * dw))) / (2 * step)
        assert float(value) == pytest.approx(float(fn(x, w)))
        assert float(tangent) == pytest.approx(want, rel=1e-5, abs=1e-6)
        _, push = cuvil.linearize(fn, x, w) if fn is not by_while else (None, None)
        if push is not None:
            assert float(push(dx, dw)) == pytest.approx(float(tangent))
        again = run_traced(lambda x, w, dx=dx, dw=dw, fn=fn: cuvil.jvp(fn, (x, w), (dx, dw))[1], x, w)
        assert float(again) == pytest.approx(float(tangent))


@pytest.mark.parametrize("fn", [by_cond, by_loop, by_scan, by_nested], ids=lambda f: f.__name__)
def test_second_derivatives(fn: Any) -> None:
    x, w = POINTS[1]
    direction = sample(3, seed=5)

    def slope(w: Any) -> Any:
        return cnp.sum(cuvil.grad(fn)(x, w) * direction)

    got = cuvil.grad(slope)(w)
    np.testing.assert_allclose(got, central(slope, w), rtol=2e-5, atol=1e-6)
    np.testing.assert_allclose(run_traced(cuvil.grad(slope), w), got, rtol=1e-9, atol=1e-12)


def test_loops_stay_loops() -> None:
    """One loop forward and one backward, however many iterations there are."""
    x, w = POINTS[0]
    assert control_ops(cuvil.grad(by_loop), x, w) == ["cuvil.loop", "cuvil.loop"]
    assert control_ops(cuvil.grad(by_cond), x, w) == ["cuvil.switch", "cuvil.switch"]
    assert control_ops(cuvil.vmap(by_loop), x[None], w[None]) == ["cuvil.loop"]


def test_symbolic_numbers_of_steps() -> None:
    def total(w: Any, xs: Any) -> Any:
        c, ys = cuvil.scan(lambda c, x: (cnp.tanh(c * w + x), c * x), cnp.zeros((), "float64"), xs)
        return c + cnp.sum(ys)

    gradient = cuvil.jit(
        cuvil.grad(total, argnums=(0, 1)), backend="reference",
        input_spec=[("w", "float64", ()), ("xs", "float64", ("T",))],
    )  # fmt: skip
    for steps in (4, 1, 0, 7):
        xs = sample(steps, seed=steps)
        got = gradient(np.float64(0.7), xs)
        np.testing.assert_allclose(got[1], central(lambda v: total(0.7, v), xs), rtol=1e-5, atol=1e-7)
        want = central(lambda v, xs=xs: total(v, xs), np.array(0.7))
        np.testing.assert_allclose(got[0], want, rtol=1e-5, atol=1e-7)
    assert len(gradient.variants()) == 1


def test_no_iteration_has_zero_slices() -> None:
    value, pull = cuvil.vjp(lambda x: cuvil.scan(lambda c, v: (c + v, c * v), 1.0, x), np.zeros((0,), np.float32))
    assert value[1].shape == (0,)
    assert pull((np.float32(1), np.zeros(0, np.float32)))[0].shape == (0,)


def test_a_while_loop_has_no_reverse_mode() -> None:
    x, w = POINTS[0]
    with pytest.raises(
        UnsupportedError, match=r"while_loop has no derivative in reverse mode.*test_transforms_control"
    ):
        cuvil.grad(by_while)(x, w)

    def counted(x: Any) -> Any:  # what decides is no float, so nothing has to go back
        n = cuvil.while_loop(lambda n: n < 5, lambda n: n + 2, 0)
        return cnp.sum(x) * n

    assert cuvil.grad(counted)(np.ones(2)).tolist() == [6.0, 6.0]


# --------------------------------------------------------------------------------------------- examples


@pytest.mark.parametrize("fn", [*REVERSIBLE, by_while], ids=lambda f: f.__name__)
@pytest.mark.parametrize("in_axes", [(0, 0), (0, None), (None, 0)])
def test_maps_are_loops(fn: Any, in_axes: tuple[Any, Any]) -> None:
    xs, ws = np.stack([p[0] for p in POINTS]), np.stack([p[1] for p in POINTS])
    x, w = (a if axis == 0 else a[0] for a, axis in zip((xs, ws), in_axes, strict=True))
    want = looped(lambda x, w: np.asarray(fn(x, w), np.float64), x, w, in_axes=in_axes)
    got = cuvil.vmap(fn, in_axes)(x, w)
    np.testing.assert_allclose(got, want, rtol=1e-9)
    np.testing.assert_allclose(run_traced(cuvil.vmap(fn, in_axes), x, w), want, rtol=1e-9)
    assert cuvil.vmap(fn, in_axes)(*(a if axis is None else a[:0] for a, axis in zip((x, w), in_axes))).shape == (0,)


@pytest.mark.parametrize("fn", REVERSIBLE, ids=lambda f: f.__name__)
def test_maps_of_gradients_and_gradients_of_maps(fn: Any) -> None:
    xs, ws = np.stack([p[0] for p in POINTS]), np.stack([p[1] for p in POINTS])
    want = looped(cuvil.grad(fn), xs, ws)
    np.testing.assert_allclose(cuvil.vmap(cuvil.grad(fn))(xs, ws), want, rtol=1e-9, atol=1e-12)
    of_map = cuvil.grad(lambda xs: cnp.sum(cuvil.vmap(fn)(xs, ws)))
    np.testing.assert_allclose(of_map(xs), want, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(run_traced(of_map, xs), want, rtol=1e-9, atol=1e-12)


def test_every_example_stops_where_it_stops() -> None:
    """Collatz lengths: as many iterations as the longest takes, each example keeps its own count."""

    def length(n: Any) -> Any:
        def step(state: Any) -> Any:
            n, count = state
            return cuvil.cond(n % 2 == 0, lambda n: n // 2, lambda n: 3 * n + 1, n), count + 1

        return cuvil.while_loop(lambda s: s[0] != 1, step, (n, 0))[1]

    numbers = np.array([1, 2, 3, 6, 7, 27])
    assert cuvil.vmap(length)(numbers).tolist() == [0, 1, 7, 8, 16, 111]
    assert run_traced(cuvil.vmap(length), numbers).tolist() == [0, 1, 7, 8, 16, 111]


def test_branches_that_are_not_taken_do_not_fail() -> None:
    """As in a loop over the examples, an index that only the other branch reads is never out of bounds."""

    def pick(x: Any, i: Any) -> Any:
        return cuvil.cond(i < 3, lambda i: x[i], lambda i: cnp.float64(-1.0), i)

    x = np.arange(3.0)
    at = np.array([0, 5, 2, 9])
    assert cuvil.vmap(pick, (None, 0))(x, at).tolist() == [0.0, -1.0, 2.0, -1.0]
    assert run_traced(cuvil.vmap(pick, (None, 0)), x, at).tolist() == [0.0, -1.0, 2.0, -1.0]
    with pytest.raises(IndexOutOfBoundsError):
        cuvil.vmap(lambda x, i: x[i], (None, 0))(x, at)


def test_examples_that_are_done_do_not_fail() -> None:
    def last(x: Any, n: Any) -> Any:
        return cuvil.while_loop(lambda s: s[0] < n, lambda s: (s[0] + 1, s[1] + x[s[0]]), (0, 0.0))[1]

    x = np.arange(4.0)
    assert cuvil.vmap(last, (None, 0))(x, np.array([4, 1, 0])).tolist() == [6.0, 0.0, 0.0]


def test_pytrees_and_python_numbers_are_carried() -> None:
    def f(x: Any) -> Any:
        out, ys = cuvil.scan(lambda c, v: ({"n": c["n"] + 1, "s": c["s"] + v}, c["n"] * v), {"n": 0, "s": 0.0}, x)
        return out, ys

    x = sample(3, 4).astype(np.float32)
    assert_same(cuvil.vmap(f)(x), looped(f, x))
    _, tangent = cuvil.jvp(f, (x[0],), (x[0],))
    assert tangent[0]["n"] is None and flatten(tangent)[0][0] == pytest.approx(x[0].sum())


def test_map_is_mapped_and_differentiated() -> None:
    def f(x: Any) -> Any:
        return cnp.sum(cuvil.map(lambda v: cnp.sin(v) * v, x))

    x = sample(2, 3)
    np.testing.assert_allclose(cuvil.vmap(cuvil.grad(f))(x), np.cos(x) * x + np.sin(x), rtol=1e-10)


def test_assertions_speak_for_the_examples_that_run_them() -> None:
    from cuvil.frontend.regions import emit_check

    def f(x: Any) -> Any:
        emit_check(x > 0, "x is positive")
        return x * 2

    def guarded(x: Any) -> Any:
        return cuvil.cond(x > 0, f, lambda x: -x, x)

    x = np.array([1.0, -1.0])
    assert cuvil.vmap(guarded)(x).tolist() == [2.0, 1.0]
    with pytest.raises(CheckFailed, match="x is positive"):
        cuvil.vmap(f)(x)
    assert cuvil.grad(f)(2.0) == 2
    with pytest.raises(CheckFailed, match="x is positive"):
        cuvil.grad(f)(-2.0)
