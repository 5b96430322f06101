"""Traced arrays: properties, operators, NumPy's functions, and guards that a trace collects."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sample_programs import traced

import cuvil.numpy as cnp
from cuvil.dtypes import float32, int64
from cuvil.frontend.tracer import Trace, Tracer, current_trace, tracing
from cuvil.ops.record import Aval
from cuvil.support.errors import ShapeError, TracingError
from cuvil.symbolic import Scope, symbol

B, S = symbol("B"), symbol("S")


def test_properties() -> None:
    seen: list[Any] = []

    def fn(x: Any) -> Any:
        seen.extend([x.shape, x.dtype, x.ndim, x.size, x.T.shape, x.device, repr(x), f"{x:>3}"])
        return x

    traced(fn, Aval((B, 2 * S), float32))
    assert seen == [
        (B, 2 * S), np.dtype(np.float32), 2, 2 * B * S, (2 * S, B), "cpu", "Tracer(float32[B, 2*S])",
        "Tracer(float32[B, 2*S])",
    ]  # fmt: skip


def test_operators_emit_the_ops_that_they_mean() -> None:
    def fn(x: Any, i: Any) -> Any:
        return [
            x + 1, 1 - x, x * x, x / 2, x // 2, x % 3, -x, abs(x), x < 1, x == x, x != 1, i & 1, i | i, ~i, i << 2,
            x[0], x[:, None], x.sum(), x.mean(axis=0), x.reshape(-1), x.astype("int64"), np.exp(x), np.sum(x, axis=0),
        ]  # fmt: skip

    program = traced(fn, Aval((4, 4), float32), Aval((4,), int64))
    x, i = np.arange(16, dtype=np.float32).reshape(4, 4), np.arange(4)
    from cuvil.ir.interpreter import run_function

    for got, want in zip(run_function(program.func, [x, i], {}), fn(x, i), strict=True):
        assert got.shape == np.shape(want)
        np.testing.assert_allclose(got, want, rtol=1e-6)


def test_a_trace_is_current_only_inside_its_block() -> None:
    t = Trace(Scope(), "f")
    x = t.argument(Aval((2,), float32), "x")
    assert current_trace() is None
    with tracing(t) as inner:
        assert inner is t and current_trace() is t
        y = x + 1
        assert isinstance(y, Tracer)
    assert current_trace() is None
    with pytest.raises(TracingError, match=r"of 'f' \(float32\[2\]\) was used outside.*test_tracer.py:\d+"):
        _ = y + 1


def test_obligations_are_proved_guarded_or_refused() -> None:
    t = Trace(Scope(["S == 4"]), "f")
    a, b = t.argument(Aval((S,), float32), "a"), t.argument(Aval((4,), float32), "b")
    c, d = t.argument(Aval((B,), float32), "c"), t.argument(Aval((5,), float32), "d")
    with tracing(t):
        _ = a + b
        assert t.guards == []
        _ = c + b
        assert len(t.guards) == 1
        _ = c + b  # known by now
        assert len(t.guards) == 1
        with pytest.raises(ShapeError, match=r"test_tracer.py:\d+"):
            _ = b + d


def test_stacking_lists_of_traced_values() -> None:
    program = traced(lambda x: cnp.asarray([[x, x + 1], [x * 2, 3]]), Aval((), float32))
    assert program.outputs[0].shape == (2, 2)
