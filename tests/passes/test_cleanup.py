"""Common subexpressions and dead code, on text."""

from __future__ import annotations

import numpy as np
import pytest

from cuvil.ir.interpreter import run_function
from cuvil.ir.text import parse_module
from cuvil.ir.verifier import main_function, verify_stage
from cuvil.passes.cleanup import eliminate_common_subexpressions, eliminate_dead_code


def _parse(body: str, results: str = "%r") -> object:
    types = ", ".join(["!cuvil.tensor<[4] x f32>"] * len(results.split(",")))
    return parse_module(
        "builtin.module { func.func @main(%x: !cuvil.tensor<[4] x f32>, %y: !cuvil.tensor<[4] x f32>)"
        f" -> ({types}) {{ {body} func.return {results} : {types} }} }}"
    )


F = " : !cuvil.tensor<[4] x f32>"
C = "cuvil.constant <[4] f32 [{}, 1.0, 2.0, 3.0]>" + F


@pytest.mark.parametrize(
    "body, results, gone, left",
    [
        (f"%a = cuvil.exp %x{F} %b = cuvil.exp %x{F} %r = cuvil.add %a, %b{F}", "%r", 1, 2),
        (f"%a = cuvil.add %x, %y{F} %r = cuvil.add %y, %x{F}", "%a, %r", 1, 1),
        (f"%a = cuvil.subtract %x, %y{F} %r = cuvil.subtract %y, %x{F}", "%a, %r", 0, 2),
        (f"%a = cuvil.gelu %x {{approximate = true}}{F} %r = cuvil.gelu %x {{approximate = false}}{F}", "%a, %r", 0, 2),
        (f"%a = cuvil.exp %x{F} %b = cuvil.exp %x{F} %c = cuvil.sin %a{F} %r = cuvil.sin %b{F}", "%c, %r", 2, 2),
        # 0.0 and -0.0 are two constants, equal arrays are one.
        (f"%a = {C.format('0.0')} %r = {C.format('-0.0')}", "%a, %r", 0, 2),
        (f"%a = {C.format('0.0')} %r = {C.format('0.0')}", "%a, %r", 1, 1),
    ],
)  # fmt: skip
def test_common_subexpressions(body: str, results: str, gone: int, left: int) -> None:
    module = _parse(body, results)
    func = main_function(module)  # type: ignore[arg-type]
    x, y = np.arange(4, dtype=np.float32), np.ones(4, np.float32)
    before = [o.tobytes() for o in run_function(func, [x, y], {})]
    assert eliminate_common_subexpressions(func) == gone
    verify_stage(module, "tensor")  # type: ignore[arg-type]
    assert sum(1 for _ in func.body.block.ops) - 1 == left
    assert [o.tobytes() for o in run_function(func, [x, y], {})] == before
    assert eliminate_common_subexpressions(func) == 0


def test_dead_code_goes_with_what_only_it_used() -> None:
    module = _parse(f"%a = cuvil.exp %x{F} %b = cuvil.sin %a{F} %c = cuvil.cos %b{F} %r = cuvil.tanh %a{F}")
    func = main_function(module)  # type: ignore[arg-type]
    assert eliminate_dead_code(func) == 2
    assert [op.name for op in func.body.block.ops] == ["cuvil.exp", "cuvil.tanh", "func.return"]
    assert eliminate_dead_code(func) == 0


def test_many_different_constants_cost_linear_time() -> None:
    body = " ".join(
        f"%c{k} = {C.format(f'{k}.0')} %a{k} = cuvil.add %{'x' if k == 0 else f'a{k - 1}'}, %c{k}{F}"
        for k in range(400)
    )
    func = main_function(_parse(body, "%a399"))  # type: ignore[arg-type]
    constants = [op.constant for op in func.body.block.ops if op.name == "cuvil.constant"]  # type: ignore[attr-defined]
    assert len({hash(c) for c in constants}) == 400
    assert eliminate_common_subexpressions(func) == 0
