"""Every record: rules predict the reference, and the body gives the reference's values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import cuvil.ops  # noqa: F401  # fills the registry
from cuvil.dtypes import dtype, int64
from cuvil.ops.arithmetic import convert
from cuvil.ops.body import ScalarProgram, build_program
from cuvil.ops.evaluate import FUNCTIONS, evaluate_program
from cuvil.ops.record import IndexBody, OpRecord, ReduceBody, ScalarBody
from cuvil.ops.registry import records
from cuvil.ops.scalar import INSTRUCTIONS, SPECIAL
from tests.ops.record_checks import RandomChooser, as_tuple, assert_close, check_sample, draw_example

RECORDS = tuple(records())
SAMPLES = 12


@pytest.mark.parametrize("record", RECORDS, ids=lambda r: r.name)
def test_samples(record: OpRecord) -> None:
    for seed in range(SAMPLES):
        check_sample(record.name, seed)


@pytest.mark.parametrize("record", RECORDS, ids=lambda r: r.name)
def test_description(record: OpRecord) -> None:
    assert record.doc.endswith(".")
    assert record.cost is not None
    assert "pure" in record.traits
    assert record.traits <= {"pure", "commutative", "associative", "idempotent", "involution"}
    for param in record.params:
        assert param.doc
    optional = [o.endswith("?") for o in record.operands]
    assert optional == sorted(optional), "an optional operand stands before a required one"
    example = record.sample(RandomChooser(0))
    assert set(example.params) <= {p.name for p in record.params}
    assert len(example.operands) >= record.min_operands
    shapes = tuple(None if s is None else s.shape for s in example.operands)
    flops, moved = record.cost(shapes, record.fill_params(example.params))
    assert flops >= 0
    assert moved >= 0


def programs(record: OpRecord) -> list[ScalarProgram]:
    """The scalar programs of a body for the dtypes of some samples."""
    out: list[ScalarProgram] = []
    for seed in range(SAMPLES):
        example, _ = draw_example(record, seed)
        params = record.fill_params(example.params)
        if isinstance(record.body, ScalarBody):
            out.append(build_program(record.body.build, [s.dtype for s in example.operands if s], params))
        elif isinstance(record.body, IndexBody):
            out.append(build_program(record.body.build, [int64] * len(index_shape(record, params)), params))
    return out


def index_shape(record: OpRecord, params: dict[str, Any]) -> tuple[Any, ...]:
    return record.shape_rule((), params).shapes[0]


SCALAR = [r for r in RECORDS if isinstance(r.body, (ScalarBody, IndexBody))]


@pytest.mark.parametrize("record", SCALAR, ids=lambda r: r.name)
def test_scalar_instructions_exist(record: OpRecord) -> None:
    for program in programs(record):
        dtypes = list(program.inputs)
        for instr in program.instructions:
            assert instr.name in INSTRUCTIONS or instr.name in SPECIAL
            if instr.name in INSTRUCTIONS:
                row = INSTRUCTIONS[instr.name]
                assert len(instr.args) == row.arity
                assert all(dtypes[a] in row.dtypes and not dtypes[a].is_half for a in instr.args)
            assert all(a < len(dtypes) for a in instr.args)
            dtypes.append(instr.dtype)


@pytest.mark.parametrize("record", SCALAR, ids=lambda r: r.name)
def test_scalar_body_agrees(record: OpRecord) -> None:
    for seed in range(SAMPLES):
        example, arrays = draw_example(record, seed)
        params = record.fill_params(example.params)
        want = record.reference(*arrays, **params)
        if isinstance(record.body, IndexBody):
            arrays = list(np.indices(want.shape, dtype=np.int64))
        assert isinstance(record.body, (ScalarBody, IndexBody))
        program = build_program(record.body.build, [dtype(a.dtype) for a in arrays], params)
        got = evaluate_program(program, arrays)
        if isinstance(record.body, IndexBody) and got.shape != want.shape:
            got = np.broadcast_to(got, want.shape)
        assert_close(got, want, record)


REDUCTIONS = [r for r in RECORDS if isinstance(r.body, ReduceBody)]
COMBINE = {
    "add": np.add,
    "mul": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.logical_and,
    "or": np.logical_or,
}


@pytest.mark.parametrize("record", REDUCTIONS, ids=lambda r: r.name)
def test_reduce_body_agrees(record: OpRecord) -> None:
    for seed in range(SAMPLES):
        example, (x,) = draw_example(record, seed)
        params = record.fill_params(example.params)
        want = record.reference(x, **params)
        body = record.body
        assert isinstance(body, ReduceBody)
        acc = record.accumulate(dtype(x.dtype))
        axes = params["axes"]
        moved = np.moveaxis(convert(x, acc), axes, range(len(axes)))
        flat = moved.reshape(int(np.prod([x.shape[a] for a in axes], dtype=int)), *moved.shape[len(axes) :])
        total = np.full(flat.shape[1:], body.identity(acc), acc.numpy)
        assert body.allow_empty or flat.shape[0] > 0
        with np.errstate(all="ignore"):
            for row in flat:
                total = np.asarray(COMBINE[body.combine](total, row)).astype(acc.numpy)
        assert_close(convert(total, dtype(want.dtype)).reshape(want.shape), want, record)


def test_every_instruction_is_evaluated() -> None:
    assert set(FUNCTIONS) == set(INSTRUCTIONS)


def test_references_keep_ranks_and_dtypes() -> None:
    """Rank-0 results are arrays of the predicted dtype, not NumPy scalars."""
    for record in RECORDS:
        for seed in range(SAMPLES):
            example, arrays = draw_example(record, seed)
            for out in as_tuple(record.reference(*arrays, **record.fill_params(example.params))):
                assert type(out) is np.ndarray, record.name
