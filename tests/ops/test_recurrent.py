"""lstm and gru: PyTorch's values, values by hand, shapes and refused operands."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import cuvil.ops  # noqa: F401
from cuvil.dtypes import float16, float32
from cuvil.ops.record import Aval
from cuvil.ops.registry import get
from cuvil.support.errors import DTypeError, ShapeError
from cuvil.symbolic import symbol

from .record_checks import check_sample, draw_example

T, N, H = (symbol(x) for x in "TNH")


@pytest.mark.parametrize("name", ["lstm", "gru"])
@pytest.mark.parametrize("seed", range(30))
def test_rules_predict_the_reference(name: str, seed: int) -> None:
    check_sample(name, seed)


@pytest.mark.parametrize("name", ["lstm", "gru"])
@pytest.mark.parametrize("seed", range(30))
def test_is_pytorchs(name: str, seed: int) -> None:
    torch = pytest.importorskip("torch")
    example, arrays = draw_example(get(name), seed)
    x, *rest = (None if a is None else a.astype(np.float32) for a in arrays)
    states, weights = rest[:-4], rest[-4:]
    if 0 in x.shape:
        pytest.skip("PyTorch refuses empty sequences")
    hidden = states[0].shape[1]
    module = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU}[name](x.shape[2], hidden)
    with torch.no_grad():
        names = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
        for parameter, value in zip(names, weights, strict=True):
            own = getattr(module, parameter)
            own.copy_(torch.zeros_like(own) if value is None else torch.tensor(value))
        backwards = slice(None, None, -1 if example.params["reverse"] else 1)
        state = tuple(torch.tensor(s[None]) for s in states)
        y, last = module(torch.tensor(x[backwards].copy()), state if name == "lstm" else state[0])
    want = [y.numpy()[backwards], *(s.numpy()[0] for s in (last if name == "lstm" else (last,)))]
    got = get(name).reference(x, *rest, **example.params)
    for g, w in zip(got, want, strict=True):
        np.testing.assert_allclose(g, w, rtol=1e-4, atol=1e-5)


def _step(name: str, gates: list[float], x: float, *states: float, b_hh: Any = None) -> list[float]:
    """Run with one feature, one hidden unit and no recurrence but the state's."""
    w = np.array(gates, np.float64).reshape(-1, 1)
    operands = [np.full((1, 1, 1), x), *(np.full((1, 1), float(s)) for s in states), w, np.zeros_like(w), None, b_hh]
    return [r.ravel()[-1] for r in get(name).reference(*operands, reverse=False)]


def test_lstm_gate_order() -> None:
    big = 100.0  # saturates a gate
    y, h, c = _step("lstm", [-big, big, 0, big], 1.0, 0.0, 0.5)  # forget open, input closed, output open
    np.testing.assert_allclose([y, h, c], [np.tanh(0.5), np.tanh(0.5), 0.5])
    _, _, c = _step("lstm", [big, -big, 0.25, big], 1.0, 0.0, 0.5)  # input open, forget closed
    np.testing.assert_allclose(c, np.tanh(0.25))


def test_gru_gate_order() -> None:
    big = 100.0
    np.testing.assert_allclose(_step("gru", [0, big, 0.5], 1.0, 0.25), [0.25, 0.25])  # update keeps the state
    np.testing.assert_allclose(_step("gru", [0, -big, 0.5], 1.0, 0.25)[1], np.tanh(0.5))
    bias = np.array([0, 0, 2.0])  # inside the product with the reset gate, which is closed
    np.testing.assert_allclose(_step("gru", [-big, -big, 0.5], 1.0, 0.25, b_hh=bias)[1], np.tanh(0.5))
    np.testing.assert_allclose(_step("gru", [big, -big, 0.5], 1.0, 0.25, b_hh=bias)[1], np.tanh(2.5))


def test_no_steps_keep_the_state() -> None:
    x, h0 = np.zeros((0, 2, 3), np.float32), np.ones((2, 4), np.float32)
    y, h = get("gru").reference(
        x, h0, np.ones((12, 3), np.float32), np.ones((12, 4), np.float32), None, None, reverse=False
    )  # fmt: skip
    assert y.shape == (0, 2, 4)
    np.testing.assert_array_equal(h, h0)


def test_reverse_ends_at_the_first_step() -> None:
    x = np.random.default_rng(0).normal(size=(3, 2, 2)).astype(np.float32)
    rng = np.random.default_rng(1)
    h0, w_ih, w_hh = (rng.normal(size=s).astype(np.float32) for s in ((2, 4), (12, 2), (12, 4)))
    y, h = get("gru").reference(x, h0, w_ih, w_hh, None, None, reverse=True)
    np.testing.assert_array_equal(y[0], h)
    forward, _ = get("gru").reference(x[::-1], h0, w_ih, w_hh, None, None, reverse=False)
    np.testing.assert_allclose(y, forward[::-1], rtol=1e-6)


def test_symbolic_shapes() -> None:
    shapes = ((T, N, 3), (N, H), (N, H), (4 * H, 3), (4 * H, H), (4 * H,), None)
    result = get("lstm").shape_rule(shapes, {})
    assert (result.shapes, result.obligations) == (((T, N, H), (N, H), (N, H)), ())


@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        ("gru", [(5, 2, 3), (2, 4), (16, 3), (16, 4)]),
        ("gru", [(5, 2, 3), (3, 4), (12, 3), (12, 4)]),
        ("gru", [(2, 3), (2, 4), (12, 3), (12, 4)]),
        ("gru", [(5, 2, 3), (2, 4), (12, 3), (12, 4), (4,)]),
        ("lstm", [(5, 2, 3), (2, 4), (2, 5), (16, 3), (16, 4)]),
        ("lstm", [(5, 2, 3), (2, 4), (2, 4), (16, 4), (16, 4)]),
    ],
)
def test_refused_shapes(name: str, shapes: list) -> None:
    record = get(name)
    operands: list[Aval | None] = [Aval(s, float32) for s in shapes]
    operands += [None] * (len(record.operands) - len(operands))
    with pytest.raises(ShapeError):
        record.infer(operands, record.fill_params({}))


def test_refused_dtypes() -> None:
    record = get("gru")
    shapes = [(5, 2, 3), (2, 4), (12, 3), (12, 4)]
    operands = [Aval(s, d) for s, d in zip(shapes, (float32, float32, float16, float32), strict=True)]
    with pytest.raises(DTypeError):
        record.infer([*operands, None, None], record.fill_params({}))
