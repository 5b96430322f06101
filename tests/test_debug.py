"""``cuvil.debug_trace``: ops, kernels, what is between kernels and what cuvil does not have."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cuvil
import cuvil.numpy as cnp
from cuvil import nn
from cuvil.debug import TraceReport
from cuvil.support.errors import ArgumentTypeError
from cuvil.testing import RandomChooser, draw_program

HERE = Path(__file__).name


def f32(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


def report(fn: Any, *args: Any, **kwargs: Any) -> TraceReport:
    out = io.StringIO()
    found = cuvil.debug_trace(fn, *args, file=out, **kwargs)
    assert out.getvalue() == f"{found}\n"
    return found


def block(x: Any, w: Any) -> tuple[Any, Any]:
    h = nn.gelu(x @ w)
    s = nn.softmax(cnp.transpose(h), axis=-1)
    return cnp.sum(s, axis=0), h


def test_ops_kernels_and_what_is_between() -> None:
    r = report(block, f32(4, 6), w=f32(6, 8))
    assert r.inputs == (("x", "float32[4, 6]"), ("w", "float32[6, 8]"))
    assert [o.op for o in r.ops] == ["matmul", "gelu", "transpose", "softmax", "sum"]
    assert r.ops[0].operands == ("x", "w") and r.ops[1].operands == r.ops[0].results
    assert r.ops[2].params == {"axes": "[1, 0]"}
    assert all(HERE in o.line for o in r.ops)
    assert [k.kind for k in r.kernels] == ["matmul", "loop", "loop"]
    assert r.kernels[0].ops == ("matmul", "gelu")
    assert [(b.producer, b.consumer) for b in r.boundaries] == [(1, 2), (2, 3)]
    assert "transpose" in r.boundaries[0].reason
    assert r.boundaries[1].reason == "one reduces over axes [1], the other over axes [0]"
    text = str(r)
    for part in ("block(x: float32[4, 6], w: float32[6, 8])", "kernels (3)", "not fused", "1 -> 2  float32[4, 8]: "):
        assert part in text
    assert json.loads(json.dumps(r.as_json()))["kernels"][0]["kind"] == "matmul"


@pytest.mark.parametrize(
    "fn, shapes, reason",
    [
        (lambda x: nn.layer_norm(x @ x, f32(4), f32(4)), [(4, 4)], "matmul takes element-wise ops only.*a reduction"),
        (lambda x: cnp.exp(x) @ cnp.exp(x), [(4, 4)], "matmul reads its operands from memory"),
        (lambda x: cnp.sort(x) + 1, [(4, 4)], "library is a kernel of its own"),
        (lambda x: cnp.sort(x @ x), [(4, 4)], "kernels of their own"),
        (lambda x: cnp.flip(cnp.cumulative_sum(x, axis=0)) + 1, [(4,)], "kernel of its own"),
        (lambda x: cnp.exp(cnp.sum(x, axis=1))[:, None] * cnp.ones((4, 7), np.float32), [(4, 4)], "their loops differ"),
    ],
)
def test_reasons(fn: Any, shapes: list[tuple[int, ...]], reason: str) -> None:
    r = report(fn, *(f32(*s) for s in shapes))
    assert r.boundaries
    assert any(re.search(reason, b.reason) for b in r.boundaries), [b.reason for b in r.boundaries]


def test_unsupported_calls_are_listed_all_at_once() -> None:
    def fn(x: Any) -> Any:
        y = np.partition(x, 2)
        z = cnp.nanpercentile(y, 3, axis=1) + np.interp(x[0, :4], x[0], x[1])
        return cnp.expp(y), z

    r = report(fn, f32(4, 6))
    assert [m.what for m in r.unsupported] == [
        "numpy.partition",
        "cuvil.numpy.nanpercentile",
        "numpy.interp",
        "cuvil.numpy.expp",
    ]
    assert "exp" in r.unsupported[-1].nearest
    assert all(HERE in m.line for m in r.unsupported)
    assert r.error is not None and "expp" in r.error  # NumPy has no such function either: nothing to go on with
    assert not r.kernels
    assert "unsupported (4)" in str(r) and "nearest: " in str(r)


def test_after_the_listing_tracing_goes_on() -> None:
    r = report(lambda x: cnp.exp(np.partition(x, 2)) * np.partition(x, 1), f32(4, 6))
    assert len(r.unsupported) == 2 and r.error is None
    assert [o.op for o in r.ops] == ["exp", "multiply"]
    assert "kernels" not in str(r)


def test_names_that_do_not_exist_name_the_nearest() -> None:
    with pytest.raises(AttributeError, match=r"'cuvil\.numpy' has no attribute 'expp'; the nearest names are exp"):
        cnp.expp  # noqa: B018
    with pytest.raises(
        AttributeError, match=r"'cuvil\.nn' has no attribute 'softmaxx'; the nearest names are .*softmax"
    ):
        nn.softmaxx  # noqa: B018
    assert not hasattr(cnp, "__wrapped__") and not hasattr(nn, "_private")


def test_an_error_of_the_user_ends_tracing_and_is_shown() -> None:
    r = report(lambda x, y: x @ y, f32(2, 3), f32(4, 5))
    assert r.error is not None and "expected 3 == 4" in r.error and HERE in r.error
    with pytest.raises(ArgumentTypeError, match=r"debug_trace takes arrays and numbers; x is str"):
        report(lambda x: x, "text")
    with pytest.raises(ZeroDivisionError):
        report(lambda x: 1 / 0, f32(2))


def test_python_scalars_containers_and_jitted_functions() -> None:
    r = report(cuvil.jit(lambda tree, scale: {"y": tree["a"] * scale}), {"a": np.ones(3, np.float16)}, 2.0)
    assert r.inputs[0] == ("tree['a']", "float16[3]")
    assert r.ops[-1].types == ("float16[3]",)


@pytest.mark.parametrize("seed", range(7000, 7012))
def test_every_value_between_kernels_has_a_reason(seed: int) -> None:
    program = draw_program(RandomChooser(seed))
    r = report(program.function(), *program.draw())
    assert r.error is None and r.kernels
    numbers = {k.number for k in r.kernels}
    for b in r.boundaries:
        assert b.producer < b.consumer and {b.producer, b.consumer} <= numbers
        assert b.reason


def test_branches_and_loops() -> None:
    def fn(x: Any) -> Any:
        total = cnp.sum(x)
        while total < 100:
            if total > 10:
                x = cnp.exp(x @ x)
            total = total + cnp.sum(x) + 1
        return total

    r = report(fn, f32(3, 3))
    depths = {o.op: o.depth for o in r.ops}
    assert depths["while"] == 0 and depths["less"] == 1 and depths["matmul"] == 2
    assert all("?" not in o.operands for o in r.ops)
    (product,) = [k for k in r.kernels if "matmul" in k.ops]
    assert product.inside == ("while", "switch")
    assert "in while, switch: matmul" in str(r)


def test_explain_names_options_that_are_not_the_default() -> None:
    f = cuvil.jit(lambda x: x + 1, precision="bf16", numerics="relaxed")
    assert f.explain().splitlines()[0] == "<lambda> (bf16, relaxed): 0 compiled variants"
    assert cuvil.jit(lambda x: x).explain() == "<lambda>: 0 compiled variants"
