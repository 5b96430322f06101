"""What the tests of op records share: a seeded chooser, sample arrays, and index maps run element by element."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from typing import Any

import numpy as np

from cuvil.dtypes import dtype
from cuvil.ops.builder import Builder, NumpyBuilder, concrete
from cuvil.ops.record import Aval, Decomposition, Example, IndexMap, Obligation, OperandSample, OpRecord, Piece
from cuvil.ops.registry import get
from cuvil.symbolic import Dim, evaluate, symbol


class RandomChooser:
    """Makes sample choices from a seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def integer(self, low: int, high: int) -> int:
        return self.random.randint(low, high)

    def boolean(self) -> bool:
        return self.random.random() < 0.5

    def choice(self, options: Sequence[Any]) -> Any:
        return self.random.choice(options)


def draw_array(rng: np.random.Generator, sample: OperandSample) -> Any:
    """An array of the sample's shape, dtype and domain."""
    dt = sample.dtype
    if sample.domain == "index":
        return rng.integers(-sample.size, max(sample.size, 1 - sample.size), sample.shape).astype(dt.numpy)
    if dt.is_bool:
        return rng.integers(0, 2, sample.shape).astype(bool)
    if dt.is_integer:
        low = 0 if sample.domain == "positive" or not dt.is_signed else -8
        if sample.domain == "any":
            info = np.iinfo(dt.numpy)
            return rng.integers(info.min, info.max, sample.shape, dtype=dt.numpy, endpoint=True)
        return rng.integers(low, 9, sample.shape).astype(dt.numpy)
    scale = 1.0 if sample.domain == "unit" else 8.0
    low = 0.125 if sample.domain == "positive" else -scale
    out = rng.uniform(low, scale, sample.shape)
    if sample.domain == "any":
        special = rng.choice([np.nan, np.inf, -np.inf, -0.0], sample.shape)
        out = np.where(rng.random(sample.shape) < 0.2, special, out)
    return out.astype(dt.numpy)


def draw_example(record: OpRecord, seed: int) -> tuple[Example, list[Any]]:
    """A sample of a record and arrays for its operands."""
    example = record.sample(RandomChooser(seed))
    rng = np.random.default_rng(seed)
    return example, [None if s is None else draw_array(rng, s) for s in example.operands]


def avals(arrays: Sequence[Any]) -> list[Aval | None]:
    """What is known of arrays statically."""
    return [None if a is None else Aval(a.shape, dtype(a.dtype)) for a in arrays]


def as_tuple(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


def assert_close(got: Any, want: Any, record: OpRecord) -> None:
    """Same dtype and shape, and values within the record's tolerance; NaN equals NaN."""
    assert got.dtype == want.dtype, (got.dtype, want.dtype)
    assert got.shape == want.shape, (got.shape, want.shape)
    dt = dtype(want.dtype)
    if dt.is_float:
        eps = float(np.ldexp(1.0, -7)) if dt.name == "bfloat16" else float(np.finfo(dt.numpy).eps)
        tolerance = record.tolerance
        np.testing.assert_allclose(
            got.astype(np.float64),
            want.astype(np.float64),
            rtol=tolerance.ulp * eps,
            atol=tolerance.absolute * float(np.finfo(np.float32).eps if dt.is_half else eps) + eps * dt.is_half,
        )
    else:
        np.testing.assert_array_equal(got, want)


def check_sample(name: str, seed: int) -> None:
    """The rules predict the reference's shapes and dtypes, and the body gives the reference's values."""
    record = get(name)
    example, arrays = draw_example(record, seed)
    params = record.fill_params(example.params)
    want = as_tuple(record.reference(*arrays, **params))
    inferred, obligations = record.infer(avals(arrays), params)
    assert obligations == ()
    assert [a.shape for a in inferred] == [w.shape for w in want]
    assert [a.dtype for a in inferred] == [dtype(w.dtype) for w in want]
    body = record.body
    decompose = body.build if isinstance(body, Decomposition) else getattr(body, "decompose", None)
    if decompose is not None:
        with np.errstate(all="ignore"):
            got = as_tuple(decompose(NumpyBuilder(), *arrays, **params))
    elif isinstance(body, IndexMap):
        got = (run_index_map(record, arrays, params, [a.shape for a in arrays], {}),)
    else:
        return
    for g, w in zip(got, want, strict=True):
        assert_close(np.asarray(g), w, record)


def run_index_map(
    record: OpRecord, arrays: Sequence[Any], params: dict[str, Any], in_shapes: Sequence[Any], env: dict[str, int]
) -> Any:
    """Evaluate an index map built for (possibly symbolic) shapes, element by element; indices must be in bounds."""
    body = record.body
    assert isinstance(body, IndexMap)
    (out_shape,) = record.shape_rule(tuple(in_shapes), params).shapes
    index = tuple(symbol(f"i{a}") for a in range(len(out_shape)))
    pieces = body.build(index, tuple(in_shapes), out_shape, **params)
    sizes = [evaluate(d, env) for d in out_shape]
    out = np.empty(sizes, arrays[0].dtype)
    fill = None if body.fill is None else concrete(params[body.fill], env)
    for at in itertools.product(*(range(n) for n in sizes)):
        here = {**env, **{f"i{a}": i for a, i in enumerate(at)}}
        out[at] = _element(pieces, arrays, here, fill)
    return out


def _element(pieces: tuple[Piece, ...], arrays: Sequence[Any], env: dict[str, int], fill: Any) -> Any:
    def holds(low: Dim, expr: Dim, high: Dim) -> bool:
        return evaluate(low, env) <= evaluate(expr, env) < evaluate(high, env)

    for piece in pieces:
        if all(holds(w.low, w.expr, w.high) for w in piece.when):
            where = tuple(evaluate(d, env) for d in piece.index)
            source = arrays[piece.operand]
            assert len(where) == source.ndim
            assert all(0 <= i < n for i, n in zip(where, source.shape, strict=True)), (where, source.shape)
            return source[where]
    assert fill is not None, "no piece applies"
    return fill


def check_symbolic_index_map(name: str, in_shapes: Sequence[Any], params: dict[str, Any], env: dict[str, int]) -> None:
    """An index map built once for symbols gives the reference's elements at concrete sizes."""
    record = get(name)
    params = record.fill_params(params)
    rule = record.shape_rule(tuple(in_shapes), params)
    for o in rule.obligations:
        left, right = evaluate(o.left, env), evaluate(o.right, env)
        assert {"==": left == right, "<=": left <= right, ">=": left >= right}[o.relation], o
    rng = np.random.default_rng(0)
    arrays = [rng.integers(0, 1000, [evaluate(d, env) for d in s]) for s in in_shapes]
    want = record.reference(*arrays, **{k: concrete(v, env) for k, v in params.items()})
    assert want.shape == tuple(evaluate(d, env) for d in rule.shapes[0])
    np.testing.assert_array_equal(run_index_map(record, arrays, params, in_shapes, env), want)


class ShapeBuilder(Builder[Aval]):
    """Runs the rules of each op only: a value is its aval. Collects the obligations."""

    def __init__(self) -> None:
        self.obligations: list[Obligation] = []
        self.emitted: list[str] = []

    def emit(self, name: str, operands: Sequence[Aval | None], params: dict[str, Any]) -> tuple[Aval, ...]:
        record = get(name)
        results, obligations = record.infer(operands, record.fill_params(params))
        self.obligations += obligations
        self.emitted.append(name)
        return results

    def constant(self, value: Any) -> Aval:
        return Aval(np.shape(value), dtype(value.dtype))

    def aval(self, value: Aval) -> Aval:
        return value


def check_symbolic_decomposition(name: str, operands: Sequence[Aval | None], params: dict[str, Any]) -> ShapeBuilder:
    """A decomposition of symbolic operands has structurally the shapes and dtypes that the record's rules say."""
    record = get(name)
    filled = record.fill_params(params)
    want, _ = record.infer(operands, filled)
    body = record.body
    decompose = body.build if isinstance(body, Decomposition) else getattr(body, "decompose", None)
    assert decompose is not None
    builder = ShapeBuilder()
    assert as_tuple(decompose(builder, *operands, **filled)) == want
    return builder
