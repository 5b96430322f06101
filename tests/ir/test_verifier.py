"""The spec of each stage refuses what does not belong there, and says what and where."""

from __future__ import annotations

import re
from typing import Any

import pytest
from sample_programs import SAMPLES, compiled, traced

import cuvil.compiler
from cuvil.compiler import CompileOptions, compile_program
from cuvil.dtypes import float32
from cuvil.frontend.dispatch import apply
from cuvil.ir.dialect import OP_CLASSES, aval_of
from cuvil.ir.text import parse_module
from cuvil.ir.verifier import STAGES, main_function, stage_of, verify_stage
from cuvil.ops.record import Aval
from cuvil.support.errors import IRError


def _text(name: str, stage: str) -> str:
    return compiled(SAMPLES[name], backend="null").as_text(stage)


@pytest.mark.parametrize("stage", STAGES)
def test_unoptimised_and_optimised_programs_pass(stage: Any) -> None:
    for sample in SAMPLES.values():
        for optimise in (True, False):
            program = compiled(sample, backend="null", optimise=optimise, validate=True)
            module = parse_module(program.as_text(stage))
            verify_stage(module, stage)
            assert stage_of(module) == ("tensor" if stage == "optimised" else stage)


@pytest.mark.parametrize(
    "name, stage, pattern, replacement, message",
    [
        # tensor
        ("softmax", "tensor", r"func.return %0", "func.return %x0", None),
        ("softmax", "optimised", r"cuvil.exp", "cuvil.relu", None),
        ("softmax", "optimised", r"cuvil.exp (%\d+)", r"cuvil.softmax \1 {axis = 1}", "must have been decomposed"),
        # fused
        ("softmax", "fused", r'kind = "loop"', 'kind = "loopy"', "unknown kind 'loopy'"),
        ("softmax", "fused", r", reason = \"[^\"]*\"", "", "parameter 'reason'"),
        ("softmax", "fused", r"(cuvil.sum %\d+ \{axes = \[)1", r"\g<1>0", "rules"),
        # kernel
        ("softmax", "kernel", r"index = _i1\b", "index = _i7", "mentions _i7"),
        ("softmax", "kernel", r"upper = S", "upper = T", "mentions T"),
        ("softmax", "kernel", r'dims = \["B", "S"\]', 'dims = ["B"]', "mentions S"),
        ("softmax", "kernel", r'var = "_i1"', 'var = "_i0"', "hides a name"),
        ("softmax", "kernel", r"outputs = \[1\]", "outputs = [0]", "neither an output nor scratch"),
        ("softmax", "kernel", r"outputs = \[1\]", "outputs = [7]", "not numbers of its 2 buffers"),
        ("softmax", "kernel", r'instr = "exp"', 'instr = "expp"', "does not take"),
        ("softmax", "kernel", r'combine = "max"', 'combine = "sub"', "unknown combination"),
        ("softmax", "kernel", r"lanes = true", "lanes = 3", "kind bool"),
        ("softmax", "kernel", r'kind = "vector"', 'kind = "sideways"', "unknown kind"),
        ("softmax", "kernel", r"dims = \[B, S\]", "dims = [B]", "1 dims to a kernel of 2"),
        ("softmax", "kernel", r'kernel = "[^"]*"', 'kernel = "other"', "no kernel of the module"),
        ("softmax", "kernel", r"kernel.call %13, %14", "kernel.call %13, %13", "write to an input"),
        ("softmax", "kernel", r"kernel.call %13, %14", "kernel.call %13", "1 buffers to a kernel of 2"),
        ("softmax", "kernel", r"inputs = 1", "inputs = 9", "9 of its 2 buffers"),
        ("embedding", "kernel", r'mode = "error"', 'mode = "perhaps"', "unknown mode"),
        ("embedding", "kernel", r'kernel.bind %\d+ \{var = "_g0", size = 11, mode = "error"\}', "", "mentions _g0"),
        ("linear_gelu", "kernel", r"a_offset = 0", "a_offset = _z", "mentions _z"),
        ("linear_gelu", "kernel", r"kernel.hole :.*", "kernel.scratch : !kernel.buffer<[4] x f32>", None),
    ],
)  # fmt: skip
def test_what_does_not_belong_is_refused(
    name: str, stage: Any, pattern: str, replacement: str, message: str | None
) -> None:
    text = _text(name, stage)
    changed = re.sub(pattern, replacement, text, count=0 if '_i1"' in pattern else 1)
    assert changed != text
    if message is None and stage != "kernel":
        verify_stage(parse_module(changed), stage)  # another valid program
        return
    with pytest.raises(IRError, match=message):
        verify_stage(parse_module(changed), stage)


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("other", STAGES)
def test_a_module_of_another_stage_is_refused(stage: Any, other: Any) -> None:
    module = parse_module(_text("residual_layer_norm", other))
    if stage == other or (stage, other) == ("tensor", "optimised"):
        verify_stage(module, stage)
        return
    with pytest.raises(IRError):
        verify_stage(module, stage)


def test_an_operand_must_be_defined_before_its_use() -> None:
    module = parse_module(_text("softmax", "optimised"))
    block = main_function(module).body.block
    ops = list(block.ops)
    ops[1].detach()
    block.insert_op_before(ops[1], ops[3])
    with pytest.raises(IRError, match=r"cuvil.exp \(from .*sample_programs.py:\d+\)|operand 0 is not defined before"):
        verify_stage(module, "optimised")


def test_a_fault_in_a_pass_is_found_with_validate(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lowering that forgets to store is caught between lowering and the C compiler, and names the kernel."""
    lower = cuvil.compiler.lower_program

    def broken(*args: Any, **options: Any) -> Any:
        program = lower(*args, **options)
        for op in list(program.module.walk()):
            if op.name == "kernel.store":
                op.detach()
        return program

    monkeypatch.setattr(cuvil.compiler, "lower_program", broken)
    program = traced(lambda x: apply("exp", x), Aval((4, 4), float32))
    with pytest.raises(IRError, match=r"never stores to its outputs \[1\]"):
        compile_program(program, CompileOptions(backend="null", validate=True))


def test_every_record_has_an_op_class_with_its_rules() -> None:
    for name, cls in OP_CLASSES.items():
        assert cls.name == f"cuvil.{name}" and cls.record.name == name and cls.__doc__ == cls.record.doc


def test_messages_name_the_users_line() -> None:
    module = parse_module(
        "builtin.module { func.func @main(%a: !cuvil.tensor<[2] x f32>) -> !cuvil.tensor<[2] x f32> {"
        ' %0 = cuvil.softmax %a {axis = 0} : !cuvil.tensor<[2] x f32> loc("model.py":7:0)'
        " func.return %0 : !cuvil.tensor<[2] x f32> } }"
    )
    assert aval_of(main_function(module).body.block.args[0]).shape == (2,)
    with pytest.raises(IRError, match=r"model.py:7"):
        verify_stage(module, "optimised")
