"""What a program costs by its ops' records: the floor of its time, and the rates of its kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from xdsl.ir import SSAValue

from cuvil.compiler import Compiled
from cuvil.dtypes import dtype
from cuvil.frontend.program import trace
from cuvil.frontend.pytree import flatten
from cuvil.ir.dialect import FusionOp, TensorOp, aval_of
from cuvil.ops.record import Aval
from cuvil.runtime.executable import Executable
from cuvil.symbolic import evaluate, product

#: Ops whose work is multiply-adds, which the measured FMA loop bounds.
_CONTRACTIONS = frozenset({"matmul", "tensordot", "vecdot", "einsum", "conv", "conv_channels_last", "conv_transpose",
                           "lstm", "gru", "scaled_dot_product_attention"})  # fmt: skip


def _flops(op: TensorOp, env: Mapping[str, int]) -> int:
    cost = op.record.cost
    if cost is None:
        return 0
    shapes = tuple(None if a is None else aval_of(a).shape for a in op.arguments)
    return int(evaluate(cost(shapes, op.record.fill_params(op.params))[0], env))


def _bytes(value: SSAValue, env: Mapping[str, int]) -> int:
    aval = aval_of(value)
    return int(evaluate(product(aval.shape), env)) * aval.dtype.itemsize


def _traffic(fusion: FusionOp, env: Mapping[str, int]) -> int:
    """Bytes of operands and results, once each; of a table that is only indexed, the rows that are read."""
    total = sum(_bytes(r, env) for r in fusion.results)
    for operand, argument in zip(fusion.operands, fusion.body.args, strict=True):
        users = [use.operation for use in argument.uses]
        read = _bytes(operand, env)
        if all(
            isinstance(user, TensorOp) and user.record.category == "indexing" and user.operands[0] is argument
            for user in users
        ):
            read = min(read, sum(_bytes(user.results[0], env) for user in users))
        total += read
    return total


def contraction_flops(function: Callable[..., Any], inputs: Sequence[np.ndarray]) -> int:
    """Operations of the contractions in ``function(*inputs)``, as written, before any pass."""
    leaves, tree = flatten((tuple(inputs), {}))
    program = trace(function, tree, [Aval(a.shape, dtype(a.dtype)) for a in leaves])
    return sum(
        _flops(op, {})
        for op in program.func.body.block.ops
        if isinstance(op, TensorOp) and op.record.name in _CONTRACTIONS
    )


def profile_rows(
    compiled: Compiled, inputs: Sequence[np.ndarray], env: Mapping[str, int], iterations: int
) -> list[dict[str, Any]]:
    """One row a kernel call, in order: kernel, seconds, flops, bytes (operands and results once)."""
    executable = compiled.runnable
    if not isinstance(executable, Executable):
        raise TypeError(f"only compiled programs have kernels to time, got {type(executable).__name__}")
    runs = [executable.time_calls(inputs, env) for _ in range(iterations)]
    fusions = [op for op in compiled.program.func.body.block.ops if isinstance(op, FusionOp)]
    rows: list[dict[str, Any]] = []
    for k, (kernel, _) in enumerate(runs[0]):
        row = {"kernel": kernel, "seconds": float(np.median([run[k][1] for run in runs])), "flops": None, "bytes": None}
        if len(fusions) == len(runs[0]):  # each call is one fusion; loops in the host program would break this
            fusion = fusions[k]
            row["flops"] = sum(_flops(op, env) for op in fusion.body.ops if isinstance(op, TensorOp))
            row["bytes"] = _traffic(fusion, env)
            row["reason"] = str(fusion.params["reason"])
        rows.append(row)
    return rows
