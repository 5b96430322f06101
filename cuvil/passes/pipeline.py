"""The order of the passes: each runs once, in a named place."""

from __future__ import annotations

from dataclasses import dataclass, field
from time import perf_counter

from xdsl.dialects.func import FuncOp

from cuvil.ir.dialect import TensorOp
from cuvil.passes.cleanup import eliminate_common_subexpressions, eliminate_dead_code
from cuvil.passes.decompose import decompose
from cuvil.passes.fusion import fuse
from cuvil.symbolic import Scope


@dataclass(frozen=True)
class PassOptions:
    """Which passes run and how."""

    numerics: str = "standard"
    optimise: bool = True
    validate: bool = False


@dataclass(frozen=True)
class PassRecord:
    """What one pass did: changes made and seconds taken."""

    name: str
    changes: int
    seconds: float
    detail: dict[str, int] = field(default_factory=dict[str, int])


def _kept_whole(op: TensorOp) -> bool:
    """Composite ops that a backend kernel computes whole."""
    return op.record.name == "scaled_dot_product_attention"


def optimise(func: FuncOp, scope: Scope, options: PassOptions) -> list[PassRecord]:
    """The tensor-stage passes, in place."""
    records: list[PassRecord] = []

    def step(name: str, changes: int, start: float) -> None:
        records.append(PassRecord(name, changes, perf_counter() - start))

    start = perf_counter()
    step("decompose", decompose(func, _kept_whole), start)
    if options.optimise:
        start = perf_counter()
        step("cse", eliminate_common_subexpressions(func), start)
    start = perf_counter()
    step("dce", eliminate_dead_code(func), start)
    return records


def fuse_stage(func: FuncOp, scope: Scope, options: PassOptions) -> list[PassRecord]:
    """Group ops into kernels, in place."""
    start = perf_counter()
    fuse(func, scope)
    return [PassRecord("fusion", sum(1 for _ in func.body.block.ops), perf_counter() - start)]
