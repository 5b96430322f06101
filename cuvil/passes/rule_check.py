"""The generated test of a rewrite rule: programs in which it fires, run on the interpreter before and after."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Block, Region, SSAValue
from xdsl.utils.exceptions import VerifyException

from cuvil.dtypes import DType, dtype
from cuvil.ir.attributes import ConstantArray, tensor_type
from cuvil.ir.builder import IRBuilder
from cuvil.ir.dialect import ConstantOp, TensorOp
from cuvil.ir.interpreter import run_function, run_op
from cuvil.ops.record import Array, Aval, OperandSample
from cuvil.passes.cost import total_weight
from cuvil.passes.engine import Case, Rule, apply_rules
from cuvil.support.errors import PassError
from cuvil.symbolic import Scope


class SeededChooser:
    """Makes sample choices from a seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def integer(self, low: int, high: int) -> int:
        """An integer of a closed range."""
        return self.random.randint(low, high)

    def boolean(self) -> bool:
        """A fair coin."""
        return self.random.random() < 0.5

    def choice(self, options: Sequence[Any]) -> Any:
        """One of several."""
        return self.random.choice(options)


def draw_values(rng: np.random.Generator, sample: OperandSample) -> Array:
    """An array of a sample's shape, dtype and domain; ``any`` holds special values and the ends of the range."""
    dt, shape = sample.dtype, sample.shape
    if sample.domain == "index":
        return rng.integers(-sample.size, max(sample.size, 1 - sample.size), shape).astype(dt.numpy)
    if dt.is_bool:
        return rng.integers(0, 2, shape).astype(bool)
    if dt.is_integer:
        if sample.domain == "any":
            info = np.iinfo(dt.numpy)
            wide = rng.integers(info.min, info.max, shape, dtype=dt.numpy, endpoint=True)
            ends = rng.choice(np.array([info.min, info.max, 0, 1, 2], dt.numpy), shape)
            return np.where(rng.random(shape) < 0.3, ends, wide)
        low = 1 if sample.domain in ("positive", "nonzero") else 0 if not dt.is_signed else -8
        return rng.integers(low, 9, shape).astype(dt.numpy)
    scale = 1.0 if sample.domain == "unit" else 8.0
    out = rng.uniform(0.125 if sample.domain == "positive" else -scale, scale, shape)
    if sample.domain == "nonzero":
        out = np.where(np.abs(out) < 0.125, 1.0, out)
    if sample.domain == "any":
        tiny, huge = _extremes(dt)
        special = rng.choice([np.nan, np.inf, -np.inf, 0.0, -0.0, tiny, -tiny, huge, -huge], shape)
        out = np.where(rng.random(shape) < 0.35, special, out)
    with np.errstate(over="ignore", under="ignore"):
        return out.astype(dt.numpy)


def _extremes(dt: DType) -> tuple[float, float]:
    """The least subnormal and the largest finite value."""
    if dt.name == "bfloat16":
        return 2.0**-133, float.fromhex("0x1.fep127")
    info = np.finfo(dt.numpy)
    return float(info.smallest_subnormal), float(info.max)


def build_function(case: Case) -> FuncOp:
    """The function of a case, its operands as arguments."""
    types = [tensor_type(Aval(s.shape, s.dtype)) for s in case.operands]
    block = Block(arg_types=types)
    made = case.build(IRBuilder(block), *block.args)
    values = [made] if isinstance(made, SSAValue) else list(made)
    block.add_op(ReturnOp(*values))
    return FuncOp("main", (types, [v.type for v in values]), Region(block))


def check_rule(rule: Rule, examples: int = 40, seed: int = 0) -> int:
    """Run a rule's generated test; returns how often it fired.

    Each example is run on the reference interpreter before and after the rule is applied. Results must agree as the
    rule's kind says: bit for bit for ``exact`` (any NaN is equal to any NaN), within the dot product's bound for
    ``contracts``, and so on. Each firing must lower the program's weight (see :mod:`cuvil.passes.cost`).

    Raises:
        PassError: values, shapes or dtypes changed, the weight did not go down, or the rule fired in fewer than half of
            the examples.
    """
    fired = hit = 0
    for k in range(examples):
        number = seed * 1_000_003 + k
        case = rule.example(SeededChooser(number))
        rng = np.random.default_rng(number)
        arrays = [draw_values(rng, s) for s in case.operands]
        func = build_function(case)
        text = str(func)
        want = run_function(func, arrays, {})
        bound = _dot_bound(func, arrays) if rule.kind == "contracts" else None
        before = total_weight(func)
        report = apply_rules(func, [rule], Scope())
        try:
            func.verify()
        except VerifyException as error:
            raise PassError(f"rule {rule.name!r}: what it made does not verify: {error}\n{text}") from error
        n = len(report.firings)
        fired += n
        hit += n > 0
        if n and total_weight(func) >= before:
            raise PassError(
                f"rule {rule.name!r}: the weight went from {before} to {total_weight(func)}; each firing must lower it"
                f"\n{text}\n{func}"
            )
        for op in func.body.block.ops:
            if isinstance(op, ConstantOp) and not _follows(op):
                raise PassError(f"rule {rule.name!r}: a constant is not what its origin gives\n{text}\n{func}")
        got = run_function(func, arrays, {})
        for i, (g, w) in enumerate(zip(got, want, strict=True)):
            problem = disagreement(np.asarray(g), np.asarray(w), rule.kind, None if bound is None else bound[i])
            if problem:
                raise PassError(f"rule {rule.name!r} changed result {i} of example {number}: {problem}\n{text}\n{func}")
    if 2 * hit < examples:
        raise PassError(f"rule {rule.name!r} fired in {hit} of {examples} examples; draw examples that it applies to")
    return fired


def _follows(op: ConstantOp) -> bool:
    """Whether a constant, if it has an origin, has the very bits that its origin gives."""
    constant = op.constant
    return constant.origin is None or (
        ConstantArray.lazy(constant.aval, constant.origin).array.tobytes() == constant.array.tobytes()
    )


def disagreement(got: Array, want: Array, kind: str, bound: Array | None = None) -> str:
    """How a result differs from what a rule of this kind may give, empty where it does not."""
    if got.shape != want.shape or got.dtype != want.dtype:
        return f"{got.dtype}{list(got.shape)} instead of {want.dtype}{list(want.shape)}"
    dt = dtype(want.dtype)
    if not dt.is_float:
        return "" if np.array_equal(got, want) else f"{got} instead of {want}"
    g, w = got.astype(np.float64), want.astype(np.float64)
    if kind == "exact":
        same = ((g == w) & (np.signbit(g) == np.signbit(w))) | (np.isnan(g) & np.isnan(w))
        return "" if same.all() else f"{got[~same]} instead of {want[~same]}"
    eps = float(np.ldexp(1.0, -7)) if dt.name == "bfloat16" else float(np.finfo(dt.numpy).eps)
    if bound is not None:
        allowed = bound.astype(np.float64) + eps * np.abs(w)
    else:
        # refines: pow's own 4 ulp; reorders, reassociates: sums of a few dozen elements of magnitude 8 at most.
        relative, absolute = {"refines": (8.0, 0.0)}.get(kind, (64.0, 256.0))
        absolute_eps = float(np.finfo(np.float32).eps) if dt.is_half else eps
        allowed = relative * eps * np.abs(w) + absolute * absolute_eps
    tiny = _extremes(dt)[0]
    with np.errstate(invalid="ignore"):
        near = (
            (g == w)
            | (np.isnan(g) & np.isnan(w))
            | (np.isfinite(g) & np.isfinite(w) & (np.abs(g - w) <= allowed + tiny))
        )
    return (
        ""
        if near.all()
        else f"{got[~near]} instead of {want[~near]}, allowed {np.broadcast_to(allowed, g.shape)[~near]}"
    )


def _dot_bound(func: FuncOp, arrays: Sequence[Array]) -> list[Array]:
    """The error bound ``(n + 8) * eps * sum(|x| * |w|)`` of each result of a program of linear ops.

    The sum of magnitudes is the program itself on magnitudes, with subtraction as addition; ``n`` is the largest
    number of products that one element sums. Eight more roundings are the scales and offsets around the product.
    """
    values: dict[SSAValue, Any] = dict(zip(func.body.block.args, (np.abs(a) for a in arrays), strict=True))
    longest = 1
    for op in func.body.block.ops:
        if isinstance(op, ConstantOp):
            values[op.results[0]] = np.abs(op.value)
        elif isinstance(op, TensorOp):
            given = [None if a is None else values[a] for a in op.arguments]
            if op.record.name == "matmul":
                longest = max(longest, int(np.asarray(given[0]).shape[-1]))
            elif op.record.name in ("conv", "conv_channels_last"):
                longest = max(longest, int(np.prod(np.asarray(given[1]).shape[1:])))
            subtracts = op.record.name == "subtract"
            magnitude = np.add(given[0], given[1]) if subtracts else np.abs(run_op(op, given, {})[0])  # pyright: ignore[reportCallIssue,reportArgumentType]
            values[op.results[0]] = np.asarray(magnitude)
    last = func.body.block.last_op
    assert last is not None
    out: list[Array] = []
    for value in last.operands:
        a = np.asarray(values[value])
        eps = float(np.finfo(a.dtype).eps if not dtype(a.dtype).is_half else np.finfo(np.float32).eps)
        out.append((longest + 8) * eps * a.astype(np.float64))
    return out


__all__ = ["SeededChooser", "build_function", "check_rule", "disagreement", "draw_values"]
