"""grad, vjp, jvp and linearize: pytrees, nesting, closures, compilation, symbolic sizes and messages."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cuvil
import cuvil.numpy as cnp
from cuvil import nn
from cuvil.dtypes import dtype
from cuvil.frontend.pytree import flatten
from cuvil.ir.interpreter import location_text
from cuvil.support.errors import (
    ArgumentError,
    ArgumentTypeError,
    DTypeError,
    ShapeError,
    TracingError,
    UnsupportedError,
)
from cuvil.testing import Program, programs
from tests.frontend.tracing import traced


def sample(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(size=shape)


def central(fn: Any, x: Any, step: float = 1e-6) -> Any:
    """The gradient of a scalar function of one float64 array by central differences."""
    out = np.zeros_like(x)
    for at in np.ndindex(*x.shape):
        up, down = x.copy(), x.copy()
        up[at] += step
        down[at] -= step
        out[at] = (float(fn(up)) - float(fn(down))) / (2 * step)
    return out


def mlp(p: Any, x: Any, y: Any) -> Any:
    h = nn.gelu(nn.linear(x, p["in"].w, p["in"].b))
    logits = nn.layer_norm(nn.linear(h, p["out"].w, p["out"].b))
    return -cnp.mean(cnp.take_along_axis(nn.log_softmax(logits), y[:, None], axis=1))


class Linear(NamedTuple):
    w: Any
    b: Any


def mlp_arguments(dt: str = "float64", rows: int = 5) -> tuple[Any, Any, Any]:
    p = {"in": Linear(sample(6, 3), sample(6, seed=1)), "out": Linear(sample(4, 6, seed=2), sample(4, seed=3))}
    p = {k: Linear(v.w.astype(dt), v.b.astype(dt)) for k, v in p.items()}
    return p, sample(rows, 3, seed=4).astype(dt), np.arange(rows) % 4


# ---------------------------------------------------------------------------------------------- values


def test_gradients_of_a_small_network() -> None:
    p, x, y = mlp_arguments()
    value, gradient = cuvil.value_and_grad(mlp)(p, x, y)
    assert float(value) == pytest.approx(float(mlp(p, x, y)))
    assert flatten(gradient)[1] == flatten(p)[1]
    for name in ("in", "out"):
        for k in range(2):

            def of_one(a: Any, name: str = name, k: int = k) -> Any:
                return mlp({**p, name: Linear(*(a if j == k else p[name][j] for j in range(2)))}, x, y)

            np.testing.assert_allclose(gradient[name][k], central(of_one, p[name][k]), rtol=1e-5, atol=1e-7)


def test_compiled_gradients_are_those_of_the_reference() -> None:
    p, x, y = mlp_arguments("float32")
    want, _ = flatten(cuvil.value_and_grad(mlp)(p, x, y))
    got, _ = flatten(cuvil.jit(cuvil.value_and_grad(mlp))(p, x, y))
    for g, w in zip(got, want, strict=True):
        assert g.dtype == w.dtype == np.float32
        np.testing.assert_allclose(g, w, rtol=2e-5, atol=1e-6)


def test_one_variant_serves_every_number_of_rows() -> None:
    """Symbolic sizes, 0 and 1 among them, without another compilation."""

    def loss(w: Any, x: Any) -> Any:
        h = nn.softmax(x @ w)
        return cnp.sum(cnp.max(h, axis=1) * cnp.sum(x[:, ::-1], axis=1) + cnp.std(h + x @ w))

    w = sample(3, 4).astype(np.float32)
    compiled = cuvil.jit(
        cuvil.grad(loss, argnums=(0, 1)), input_spec=[("w", "float32", (3, 4)), ("x", "float32", ("B", 3))]
    )
    for rows in (5, 1, 3, 0):
        x = sample(rows, 3, seed=rows).astype(np.float32)
        for g, want in zip(compiled(w, x), cuvil.grad(loss, argnums=(0, 1))(w, x), strict=True):
            np.testing.assert_allclose(g, want, rtol=1e-4, atol=1e-5)
    assert len(compiled.variants()) == 1


@settings(max_examples=25)
@given(programs(), st.integers(0, 1000))
def test_random_programs_forward_and_back_agree(program: Program, seed: int) -> None:
    """``<u, J v> == <J^T u, v>`` for whatever a program is made of, and its values do not change."""
    rng = np.random.default_rng(seed)
    arguments = [a.astype(np.float64) if dtype(a.dtype).is_float else a for a in program.draw()]
    fn = program.function()
    try:
        with np.errstate(all="ignore"):
            out = fn(*arguments)
    except DTypeError:
        return  # made for float32: some op mixes it with a constant
    tangents = tuple(rng.normal(size=a.shape) if a.dtype == np.float64 else None for a in arguments)
    try:
        with np.errstate(all="ignore"):
            value, pushed = cuvil.jvp(fn, tuple(arguments), tangents)
            _, pull = cuvil.vjp(fn, *arguments)
    except UnsupportedError as error:
        assert re.search(r"(nextafter|scatter) has no derivative", str(error))
        return
    weights = tuple(None if t is None else rng.normal(size=t.shape).astype(t.dtype) for t in pushed)
    with np.errstate(all="ignore"):
        pulled = pull(weights)
    left = sum(
        float(np.sum(np.float64(w) * np.float64(t))) for w, t in zip(weights, pushed, strict=True) if w is not None
    )
    right = sum(float(np.sum(c * t)) for c, t in zip(pulled, tangents, strict=True) if c is not None)
    for a, b in zip(flatten(out)[0], flatten(value)[0], strict=True):
        np.testing.assert_allclose(np.asarray(a, np.float64), np.asarray(b, np.float64), rtol=1e-3, atol=1e-3)
    if np.isfinite(left) and np.isfinite(right) and not any(dtype(np.asarray(o).dtype).is_half for o in out):
        assert left == pytest.approx(right, rel=1e-4, abs=1e-4 * (1 + abs(left)))


# --------------------------------------------------------------------------------------------- composition


def test_derivatives_of_derivatives() -> None:
    def f(x: Any) -> Any:
        return cnp.sin(x) * x**2

    third = cuvil.grad(cuvil.grad(cuvil.grad(f)))
    x = np.float64(1.3)
    # By Leibniz: sum of binomials times derivatives of sin and x**2.
    want = -(x**2) * np.cos(x) - 6 * x * np.sin(x) + 6 * np.cos(x)
    assert float(third(x)) == pytest.approx(want)
    assert float(cuvil.jit(third)(x)) == pytest.approx(want)
    _, forward = cuvil.jvp(cuvil.grad(f), (x,), (np.float64(1),))
    assert float(forward) == pytest.approx(float(cuvil.grad(cuvil.grad(f))(x)))


def test_inner_functions_use_what_is_traced_around_them() -> None:
    """The perturbations of nested derivatives do not mix: d/dx x * d/dy (x + y) is 1."""

    def outer(x: Any) -> Any:
        return x * cuvil.grad(lambda y: x + y)(1.0)

    assert float(cuvil.grad(outer)(2.0)) == 1.0
    assert float(cuvil.jit(cuvil.grad(outer))(2.0)) == 1.0

    def of_gradient(w: Any) -> Any:
        inner = cuvil.grad(lambda u: cnp.sum(cnp.tanh(u * w)))(w)
        return cnp.sum(inner**2)

    w = sample(3)
    np.testing.assert_allclose(cuvil.grad(of_gradient)(w), central(of_gradient, w), rtol=1e-5)
    np.testing.assert_allclose(cuvil.jit(cuvil.grad(of_gradient))(w), central(of_gradient, w), rtol=1e-5)


def test_a_compiled_function_is_differentiated_through() -> None:
    f = cuvil.jit(lambda x: cnp.sum(x**3))
    assert cuvil.grad(f)(np.float64([1, 2])).tolist() == [3.0, 12.0]
    assert f.variants() == []


def test_a_pull_is_called_again_and_within_other_transforms() -> None:
    def run(x: Any) -> Any:
        y, pull = cuvil.vjp(lambda x: cnp.stack([x[0] * x[1], cnp.sin(x[1])]), x)
        both = cuvil.vmap(pull)(np.eye(2))[0]
        return y, pull(np.float64([1, 0]))[0], pull(np.float64([0, 1]))[0], both

    x = np.float64([2, 3])
    for results in (run(x), cuvil.jit(run)(x)):
        _, first, second, both = results
        np.testing.assert_allclose(first, [3, 2])
        np.testing.assert_allclose(second, [0, np.cos(3)])
        np.testing.assert_allclose(both, [first, second])


def test_linearize_computes_the_function_once() -> None:
    calls: list[int] = []

    def f(x: Any, y: Any) -> Any:
        calls.append(1)
        return cnp.exp(x) * y

    out, push = cuvil.linearize(f, np.float64(0), np.float64(3))
    assert float(out) == 3
    assert [float(push(np.float64(1), None)), float(push(None, np.float64(2)))] == [3.0, 2.0]
    assert calls == [1]


def test_jacobians_and_hessians() -> None:
    def f(x: Any, y: Any) -> Any:
        return {"a": cnp.outer(x, y), "b": cnp.sum(x) * y[0]}

    x, y = sample(2), sample(3, seed=1)
    for jacobian in (cuvil.jacfwd, cuvil.jacrev):
        found = jacobian(f, argnums=(0, 1))(x, y)
        np.testing.assert_allclose(found["a"][0], np.einsum("ik,j->ijk", np.eye(2), y))
        np.testing.assert_allclose(found["a"][1], np.einsum("i,jk->ijk", x, np.eye(3)))
        np.testing.assert_allclose(found["b"][0], np.full(2, y[0]))
        np.testing.assert_allclose(found["b"][1], [x.sum(), 0, 0])
        assert jacobian(f)(x, y)["a"].shape == (2, 3, 2)
    np.testing.assert_allclose(cuvil.jit(cuvil.hessian(lambda x: x @ np.diag([1.0, 2.0]) @ x))(x), np.diag([2.0, 4.0]))


# ------------------------------------------------------------------------------------------ the interface


def test_arguments_by_number_and_auxiliary_results() -> None:
    def f(x: Any, y: Any, *, scale: float) -> Any:
        return cnp.sum(x * y) * scale, {"n": x.shape[0], "y": y}

    x, y = np.float32([1, 2]), np.float32([3, 4])
    (value, aux), (dx, dy) = cuvil.value_and_grad(f, argnums=(0, -1), has_aux=True)(x, y, scale=2.0)
    assert float(value) == 22 and dx.tolist() == [6.0, 8.0] and dy.tolist() == [2.0, 4.0]
    assert int(aux["n"]) == 2 and aux["y"].tolist() == [3.0, 4.0]
    gradient, aux = cuvil.grad(f, argnums=1, has_aux=True)(x, y, scale=1.0)
    assert gradient.tolist() == [1.0, 2.0] and int(aux["n"]) == 2
    out, pull, aux = cuvil.vjp(lambda x: f(x, y, scale=1.0), x, has_aux=True)
    assert float(out) == 11 and pull(np.float32(1))[0].tolist() == [3.0, 4.0] and int(aux["n"]) == 2
    out, tangent, aux = cuvil.jvp(lambda x: f(x, y, scale=1.0), (x,), (x,), has_aux=True)
    assert float(tangent) == 11 and int(aux["n"]) == 2


def test_other_arguments_are_passed_as_they_are() -> None:
    def f(x: Any, mode: str, table: Any) -> Any:
        assert isinstance(mode, str) and type(table) is np.ndarray
        return cnp.sum(x[table]) if mode == "sum" else cnp.mean(x)

    assert cuvil.grad(f)(np.float32([1, 2, 3]), "sum", np.array([0, 0])).tolist() == [2.0, 0.0, 0.0]


def test_python_numbers_stay_weak() -> None:
    gradient = cuvil.grad(lambda x: x * x)(3.0)
    assert gradient.dtype == np.float32 and float(gradient) == 6
    # A Python number keeps its digits where a float64 array meets it.
    assert float(cuvil.grad(lambda x: cnp.sum(x * np.float64([0.1])))(0.1)) == pytest.approx(0.1, rel=1e-7)
    step = cuvil.jit(lambda x, a: a * cuvil.grad(lambda v: v * v)(x))
    assert step(3.0, np.float16([1])).dtype == np.float16


def test_integers_have_no_cotangents() -> None:
    def f(x: Any, at: Any) -> Any:
        return x[at], at + 1

    x = np.float32([1, 2, 3])
    (value, moved), pull = cuvil.vjp(f, x, np.array([2, 0]))
    assert value.tolist() == [3.0, 1.0] and moved.tolist() == [3, 1]
    dx, none = pull((np.float32([5, 7]), None))
    assert dx.tolist() == [7.0, 0.0, 5.0] and none is None
    _, (tangent, none) = cuvil.jvp(f, (x, np.array([2, 0])), (x, None))
    assert tangent.tolist() == [3.0, 1.0] and none is None


def test_what_does_not_depend_on_an_argument_has_zeros() -> None:
    gradient = cuvil.grad(lambda p: cnp.sum(p["a"]))({"a": np.ones(2, np.float32), "b": np.ones((2, 2), np.float64)})
    assert gradient["b"].tolist() == [[0, 0], [0, 0]] and gradient["b"].dtype == np.float64
    assert float(cuvil.grad(lambda x: 3.0)(1.0)) == 0
    _, tangent = cuvil.jvp(lambda x: np.float32(3), (1.0,), (1.0,))
    assert float(tangent) == 0


def test_stop_gradient_takes_pytrees() -> None:
    def f(p: Any) -> Any:
        q = cuvil.stop_gradient(p)
        return cnp.sum(p["x"] * q["x"])

    x = np.float32([2, 3])
    assert cuvil.grad(f)({"x": x})["x"].tolist() == [2.0, 3.0]
    assert cuvil.jit(lambda x: cuvil.stop_gradient(x) + 1)(x).tolist() == [3.0, 4.0]


def test_the_safe_where_keeps_nan_out() -> None:
    """As the documentation says: the branch not taken still has a slope, so its operand is made safe too."""

    def naive(x: Any) -> Any:
        return cnp.sum(cnp.where(x > 0, cnp.sqrt(x), 0.0))

    def safe(x: Any) -> Any:
        return cnp.sum(cnp.where(x > 0, cnp.sqrt(cnp.where(x > 0, x, 1.0)), 0.0))

    x = np.float32([0, 4])
    with np.errstate(all="ignore"):
        assert np.isnan(cuvil.grad(naive)(x)[0])
    assert cuvil.grad(safe)(x).tolist() == [0.0, 0.25]


# ------------------------------------------------------------------------------- complex numbers, matrices


def spectrum(x: Any) -> Any:
    """A real function that goes through complex numbers: how much of a signal is in its upper frequencies."""
    f = cnp.fft.rfft(x * cnp.exp(-x))
    z = f * cnp.conj(f) + cnp.exp(1j * cnp.real(f))
    return cnp.sum(cnp.abs(z) ** 2 * np.arange(f.shape[0]))


def test_gradients_through_complex_numbers() -> None:
    x = sample(9)
    want = central(spectrum, x)
    np.testing.assert_allclose(cuvil.grad(spectrum)(x), want, rtol=1e-5)
    np.testing.assert_allclose(cuvil.jit(cuvil.grad(spectrum))(x), want, rtol=1e-5)
    both = np.stack([x, x[::-1]])
    np.testing.assert_allclose(cuvil.vmap(cuvil.grad(spectrum))(both)[0], want, rtol=1e-5)


def test_complex_arguments() -> None:
    """The pull of an analytic function multiplies with its derivative."""
    z = sample(3) + 1j * sample(3, seed=1)
    out, pull = cuvil.vjp(lambda z: z**3, z)
    np.testing.assert_allclose(out, z**3)
    np.testing.assert_allclose(pull(np.ones(3, complex))[0], 3 * z**2)
    np.testing.assert_allclose(cuvil.jvp(cnp.sin, (z,), (1j * z,))[1], 1j * z * np.cos(z))
    with pytest.raises(DTypeError, match=r"z of <lambda> is complex128.*cuvil\.vjp"):
        cuvil.grad(lambda z: cnp.sum(cnp.abs(z)))(z)


def test_gradients_of_linear_algebra() -> None:
    def evidence(a: Any, y: Any) -> Any:
        """The log-likelihood of a Gaussian with covariance a a^T + I."""
        k = a @ a.T + cnp.eye(y.shape[0], dtype=y.dtype)
        low = cnp.linalg.cholesky(k)
        fit = cnp.linalg.solve(k, y)
        return y @ fit + 2 * cnp.sum(cnp.log(cnp.sum(low * cnp.eye(y.shape[0], dtype=y.dtype), axis=0)))

    a, y = sample(4, 3), sample(4, seed=1)
    want = central(lambda a: evidence(a, y), a)
    np.testing.assert_allclose(cuvil.grad(evidence)(a, y), want, rtol=1e-5)
    np.testing.assert_allclose(cuvil.jit(cuvil.grad(evidence))(a, y), want, rtol=1e-5)
    largest = cuvil.grad(lambda a: cnp.linalg.svdvals(a)[0])
    u, _, vh = np.linalg.svd(a, full_matrices=False)
    np.testing.assert_allclose(largest(a), np.outer(u[:, 0], vh[0]), rtol=1e-9)
    assert cuvil.vmap(largest)(np.stack([a, 2 * a])).shape == (2, 4, 3)


# ------------------------------------------------------------------------------------------------ messages


def _line_of(text: str) -> int:
    with open(__file__) as source:
        return next(k for k, line in enumerate(source, 1) if text in line)


def test_an_op_without_a_derivative_is_named_with_its_line() -> None:
    def f(x: Any) -> Any:
        y = x * 2
        y = cnp.nextafter(y, np.float32(9))  # the op in question
        return cnp.sum(y)

    with pytest.raises(UnsupportedError, match=r"nextafter has no derivative.*stop_gradient") as raised:
        cuvil.grad(f)(np.float32([1]))
    assert f"test_derivatives.py:{_line_of('# the op in question')}" in str(raised.value)


def test_ops_of_a_derivative_have_the_lines_of_their_function() -> None:
    def f(x: Any) -> Any:
        return cnp.sum(cnp.tanh(x))  # where everything comes from

    program = traced(cuvil.grad(f), np.ones(3, np.float32))[0]
    ops = [op for op in program.func.body.block.ops if op.operands and op.name != "func.return"]
    assert len(ops) > 3
    assert {location_text(op).rpartition(":")[2] for op in ops} == {str(_line_of("# where everything comes from"))}


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: cuvil.grad(lambda x: x)(np.ones(2)), ShapeError, r"one float of rank 0; <lambda> returned float64"),
        (lambda: cuvil.grad(lambda x: (x, x))(1.0), ShapeError, r"returned tuple"),
        (lambda: cuvil.grad(lambda x: x > 0)(1.0), ShapeError, r"returned bool"),
        (lambda: cuvil.grad(lambda n: n * 1.0)(3), DTypeError, r"n of <lambda> is int64 .*astype\('float32'\)"),
        (
            lambda: cuvil.grad(lambda p: p["w"])({"w": 1.0, "n": np.arange(2)}),
            DTypeError,
            r"p\['n'\] of <lambda> is int64",
        ),
        (lambda: cuvil.grad(lambda s: 1.0)("text"), DTypeError, "s of <lambda> is str"),
        (lambda: cuvil.grad(lambda x: x, argnums=1)(1.0), ArgumentError, "argnums has 1"),
        (lambda: cuvil.grad(3), ArgumentTypeError, "a function is differentiated, got int"),
        (lambda: cuvil.grad(lambda x: x, has_aux=True)(1.0), ArgumentTypeError, r"must return a pair \(out, aux\)"),
        (
            lambda: cuvil.vjp(lambda x: x, np.ones(2))[1](np.ones(3)),
            ShapeError,
            r"the cotangent has shape \(3,\).*\(2,\)",
        ),
        (
            lambda: cuvil.vjp(lambda x: (x, x), np.ones(2))[1]([np.ones(2), np.ones(2)]),
            ArgumentError,
            "the cotangent is list",
        ),
        (
            lambda: cuvil.vjp(lambda x: x, np.ones(2))[1](np.ones(2, np.float32)),
            DTypeError,
            "is float32.*float64",
        ),
        (lambda: cuvil.jvp(lambda x: x, (1.0,), (1.0, 2.0)), ArgumentError, "1 primals and 2 tangents"),
        (lambda: cuvil.jvp(lambda n: n, (3,), (1.0,)), DTypeError, r"the tangent\[0\].*pass None"),
        (lambda: cuvil.jacrev(lambda x: x > 0)(np.ones(2)), DTypeError, "returned bool"),
        (lambda: cuvil.jacfwd(lambda n: n * 1.0)(np.arange(2)), DTypeError, "was given int64"),
    ],
)
def test_messages(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


def test_a_derivative_does_not_outlive_its_trace() -> None:
    kept: list[Any] = []

    def f(x: Any) -> Any:
        y, pull = cuvil.vjp(cnp.sin, x)
        kept.append(pull)
        return y

    cuvil.jit(f)(np.float32(1))
    with pytest.raises(TracingError, match="outside of the call"):
        kept[0](np.float32(1))


def test_python_conditions_on_traced_values_are_differentiated() -> None:
    gradient = cuvil.grad(lambda x: x if x > 0 else -x)
    assert [float(gradient(v)) for v in (1.0, -1.0)] == [1.0, -1.0]
    assert float(cuvil.jit(gradient)(np.float32(-2))) == -1.0
