"""Every record: its tangents against central differences, and its cotangents against its tangents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

import cuvil.ops  # noqa: F401  # fills the registry
from cuvil.dtypes import bfloat16, complex128, dtype, float16, float64
from cuvil.ops.body import build_program
from cuvil.ops.builder import NumpyBuilder
from cuvil.ops.catalog import accepted_dtypes
from cuvil.ops.differentiation import Dual, Duals, Tape, differentiable, has_tangent
from cuvil.ops.record import OpRecord, ScalarBody
from cuvil.ops.registry import get, records
from cuvil.ops.scalar import INSTRUCTIONS, SPECIAL
from cuvil.ops.scalar_derivatives import DISCRETE, ROWS, UNDEFINED, digamma
from cuvil.support.errors import UnsupportedError
from cuvil.testing.arrays import RandomChooser, draw_array
from tests.ops.record_checks import as_tuple

F = NumpyBuilder()
RECORDS = tuple(records())
#: Ops whose results are no floats, or depend on no float.
NOTHING_FLOWS = {"any", "all", "argmax", "argmin", "argsort", "searchsorted", "iota", "eye", "dim_value"}
#: Of those of linear algebra only well-conditioned matrices are compared, below.
DIFFERENTIABLE = [r for r in RECORDS if differentiable(r) and r.category != "linalg"]
CASES = 12
STEP = 1e-6

#: Where the functions are defined and their slopes moderate: bounds for uniform values.
DOMAINS: dict[str, tuple[float, float]] = {
    "acosh": (1.1, 3), "asin": (-0.9, 0.9), "acos": (-0.9, 0.9), "atanh": (-0.9, 0.9), "sqrt": (0.1, 3),
    "rsqrt": (0.2, 3), "log": (0.1, 3), "log2": (0.1, 3), "log10": (0.1, 3), "log1p": (-0.8, 2), "lgamma": (-2.9, 4),
    "pow": (0.2, 2), "batch_norm": (0.2, 2),
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """One use of an op in float64: operands, a direction for each float one, and a weight for each float result."""

    record: OpRecord
    arrays: list[Any]
    params: dict[str, Any]
    tangents: list[Any]
    weights: list[Any]

    def run(self, step: float) -> tuple[Any, ...]:
        moved = [a if t is None else np.asarray(a + step * t) for a, t in zip(self.arrays, self.tangents, strict=True)]
        with np.errstate(all="ignore"):
            return as_tuple(self.record.reference(*moved, **self.params))

    def duals(self, linear: Any, tangents: Sequence[Any]) -> tuple[Dual, ...]:
        given = [None if a is None else Dual(a, t) for a, t in zip(self.arrays, tangents, strict=True)]
        with np.errstate(all="ignore"):
            return Duals(linear).emit(self.record.name, given, self.params)


def case(record: OpRecord, seed: int) -> Case | None:
    """A sample of a record with its floats in float64; None where it has none."""
    example = record.sample(RandomChooser(seed))
    rng = np.random.default_rng(seed)
    low, high = DOMAINS.get(record.name, (-2, 2))
    arrays: list[Any] = []
    for sample in example.operands:
        if sample is not None and has_tangent(sample.dtype):
            arrays.append(uniform(rng, sample.shape, sample.dtype.is_complex, low, high))
        else:
            arrays.append(None if sample is None else draw_array(rng, sample))
    params = record.fill_params(example.params)
    if params.get("dtype") is not None and record.name == "cast":
        params["dtype"] = float64 if params["dtype"].is_float else params["dtype"]
    return with_directions(record, arrays, params, rng)


def with_directions(record: OpRecord, arrays: list[Any], params: dict[str, Any], rng: Any) -> Case | None:
    """A case at some operands; None where none of them has a tangent."""
    tangents = [uniform(rng, a.shape, np.iscomplexobj(a)) if _is_float(a) else None for a in arrays]
    if all(t is None for t in tangents):
        return None
    made = Case(record, arrays, params, tangents, [])
    try:
        results = made.run(0)
    except np.linalg.LinAlgError:
        return None
    return replace(made, weights=[uniform(rng, r.shape, np.iscomplexobj(r)) if _is_float(r) else None for r in results])


def uniform(rng: Any, shape: Any, is_complex: bool, low: float = -1, high: float = 1) -> Any:
    """Numbers in float64, or in complex128."""
    x = rng.uniform(low, high, shape)
    return np.asarray(x + 1j * rng.uniform(low, high, shape) if is_complex else x)


def _is_float(x: Any) -> bool:
    return x is not None and has_tangent(dtype(x.dtype))


def cases(record: OpRecord) -> list[Case]:
    found = [c for c in (case(record, seed) for seed in range(CASES * 4)) if c is not None and _has_slope(c)]
    return found[:CASES]


def _has_slope(c: Case) -> bool:
    """Not where the value is NaN or infinite, a deviation is 0, or an update may scale another one."""
    if c.record.name == "scatter" and c.params["op"] == "mul":
        return False
    results = [r for r in c.run(0) if _is_float(r)]
    return all(np.isfinite(r).all() for r in results) and (c.record.name != "std" or bool((results[0] > 0).all()))


def assert_slopes(c: Case, tangents: Sequence[Any]) -> None:
    """Tangents against central differences, where the function has no kink or jump within a step."""
    before, here, after = c.run(-STEP), c.run(0), c.run(STEP)
    for t, low, mid, high in zip(tangents, before, here, after, strict=True):
        if not _is_float(mid):
            assert t is None
            continue
        central = (high - low) / (2 * STEP)
        smooth = np.abs(high - 2 * mid + low) <= 1e-3 * STEP * (1 + np.abs(central))
        got = np.zeros_like(mid) if t is None else t
        assert got.dtype == mid.dtype and got.shape == mid.shape
        np.testing.assert_allclose(got[smooth], central[smooth], rtol=2e-5, atol=2e-6)
        assert mid.size < 8 or smooth.mean() > 0.7


@pytest.mark.parametrize("record", [r for r in DIFFERENTIABLE if r.name != "stop_gradient"], ids=lambda r: r.name)
def test_tangents_are_slopes(record: OpRecord) -> None:
    for c in cases(record):
        assert_slopes(c, [o.tangent for o in c.duals(F, c.tangents)])


@pytest.mark.parametrize("record", DIFFERENTIABLE, ids=lambda r: r.name)
def test_cotangents_are_the_transpose(record: OpRecord) -> None:
    for c in cases(record):
        assert_transposed(c)


def assert_transposed(c: Case) -> None:
    """``<u, J v> == <J^T u, v>``, and the primal values are those of the op.

    Of complex numbers the product is the real part of the usual one, without a conjugate.
    """
    tape = Tape(F)
    variables = [None if t is None else tape.variable(F.aval(a)) for a, t in zip(c.arrays, c.tangents, strict=True)]
    outputs = c.duals(tape, variables)
    forward = [o.tangent for o in c.duals(F, c.tangents)]
    asked = [v for v in variables if v is not None]
    with np.errstate(all="ignore"):
        weights = [np.zeros(()) if w is None else w for w in c.weights]
        found = tape.pull(F, [o.tangent for o in outputs], weights, asked)
    left = sum(float(np.sum(w * t).real) for w, t in zip(weights, forward, strict=True) if t is not None)
    right = 0.0
    for cotangent, variable, t in zip(found, asked, [t for t in c.tangents if t is not None], strict=True):
        if cotangent is not None:
            assert F.aval(cotangent) == variable.aval
            right += float(np.sum(cotangent * t).real)
    assert left == pytest.approx(right, rel=1e-9, abs=1e-9)
    for o, r in zip(outputs, c.run(0), strict=True):
        np.testing.assert_allclose(o.value, r, rtol=1e-9, atol=1e-9)


def matrices(name: str, seed: int) -> list[Any]:
    """Operands of an op of linear algebra for which it is well-conditioned."""
    rng = np.random.default_rng(seed)
    n, batch = 1 + seed % 4, (2,) * (seed % 2)
    x = rng.uniform(-1, 1, (*batch, n, n)) + 2 * np.eye(n)
    if name == "cholesky":
        return [x @ x.swapaxes(-1, -2) + rng.uniform(0, 1, x.shape)]  # only one triangle is read
    if name == "solve":
        return [x, rng.uniform(-1, 1, (n, 3))]
    if name in ("svd", "svdvals", "qr"):
        return [rng.uniform(-1, 1, (*batch, n + seed % 3, n))]
    return [x]


LINALG = [r for r in RECORDS if r.category == "linalg"]


@pytest.mark.parametrize("record", LINALG, ids=lambda r: r.name)
def test_linear_algebra(record: OpRecord) -> None:
    for seed in range(12):
        params = record.fill_params({})
        if record.name == "svd":
            params = {"full_matrices": False}
        elif record.name == "cholesky":
            params = {"upper": bool(seed % 2)}
        c = with_directions(record, matrices(record.name, seed), params, np.random.default_rng(seed))
        assert c is not None
        assert_slopes(c, [o.tangent for o in c.duals(F, c.tangents)])
        assert_transposed(c)


ANALYTIC = ("inv", "det", "slogdet", "solve")


@pytest.mark.parametrize("name", ANALYTIC)
def test_linear_algebra_of_complex_matrices(name: str) -> None:
    for seed in range(6):
        rng = np.random.default_rng(seed)
        arrays = [np.asarray(a + 1j * rng.uniform(-0.5, 0.5, a.shape)) for a in matrices(name, seed)]
        c = with_directions(get(name), arrays, {}, rng)
        assert c is not None
        assert_slopes(c, [o.tangent for o in c.duals(F, c.tangents)])
        assert_transposed(c)


def test_factors_that_are_not_unique_have_no_derivative() -> None:
    wide = Dual(np.ones((2, 3)), np.ones((2, 3)))
    for name, params in (("qr", {}), ("svd", {"full_matrices": True})):
        with pytest.raises(UnsupportedError, match=f"{name} has no derivative"):
            Duals(F).emit(name, [wide], params)
    hermitian = Dual(np.eye(2) + 0j, np.eye(2) + 0j)
    with pytest.raises(UnsupportedError, match="eigh has no derivative: of complex"):
        Duals(F).emit("eigh", [hermitian], {})


#: Ops on complex numbers whose samples are real: name, operands and parameters.
COMPLEX_USES: list[tuple[str, tuple[tuple[int, ...], ...], dict[str, Any]]] = [
    ("add", ((3, 1), (2,)), {}), ("subtract", ((3,), (2, 3)), {}), ("multiply", ((3, 1), (2,)), {}),
    ("divide", ((3, 1), (2,)), {}), ("negative", ((3,),), {}), ("positive", ((3,),), {}), ("reciprocal", ((3,),), {}),
    ("square", ((3,),), {}), ("abs", ((3, 2),), {}), ("exp", ((3,),), {}), ("log", ((3,),), {}), ("sqrt", ((3,),), {}),
    ("sin", ((3,),), {}), ("tanh", ((3,),), {}), ("pow", ((3,), (2, 1)), {}), ("atan", ((3,),), {}),
    ("sum", ((3, 2),), {"axes": (0,), "keepdims": False}), ("mean", ((3, 2),), {"axes": (1,), "keepdims": True}),
    ("prod", ((3, 2),), {"axes": (0,), "keepdims": False}), ("cumulative_prod", ((4,),), {"axis": 0}),
    ("cumulative_sum", ((4,),), {"axis": 0}), ("matmul", ((2, 3), (3, 2)), {}),
    ("einsum", ((2, 3), (3, 2)), {"equation": "ij,jk->ki"}), ("vecdot", ((2, 3), (3,)), {"axis": 1}),
    ("tensordot", ((2, 3), (3, 2)), {"axes": ((1,), (0,))}), ("transpose", ((2, 3),), {"axes": (1, 0)}),
    ("reshape", ((2, 3),), {"shape": (3, 2)}), ("pad", ((2,),), {"pairs": ((1, 2),)}),
    ("concat", ((2,), (3,)), {"axis": 0}), ("stack", ((2,), (2,)), {"axis": 0}), ("tril", ((3, 3),), {"k": 0}),
    ("broadcast_to", ((1, 2),), {"shape": (3, 2)}), ("flip", ((3,),), {"axes": (0,)}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "shapes", "params"), COMPLEX_USES, ids=[u[0] for u in COMPLEX_USES])
def test_complex_numbers(name: str, shapes: Any, params: dict[str, Any]) -> None:
    for seed in range(4):
        rng = np.random.default_rng(seed)
        record = get(name)
        arrays = [uniform(rng, s, True, 0.3, 1.5) for s in shapes]
        c = with_directions(record, arrays, record.fill_params(params), rng)
        assert c is not None
        assert_slopes(c, [o.tangent for o in c.duals(F, c.tangents)])
        assert_transposed(c)


def test_casts_between_real_and_complex() -> None:
    for source, target in ((np.float64, complex128), (np.complex128, float64)):
        rng = np.random.default_rng(0)
        x = uniform(rng, (3,), source is np.complex128).astype(source)
        c = with_directions(get("cast"), [x], {"dtype": target}, rng)
        assert c is not None
        with np.errstate(all="ignore"):
            assert_slopes(c, [o.tangent for o in c.duals(F, c.tangents)])
            assert_transposed(c)


SMOOTH = ("exp", "tanh", "sigmoid", "multiply", "divide", "pow", "matmul", "prod", "cumulative_prod", "softmax",
          "logsumexp", "conv", "layer_norm", "lgamma", "erf", "einsum", "gelu", "softplus", "atan2")  # fmt: skip


@pytest.mark.parametrize("name", SMOOTH)
def test_second_derivatives(name: str) -> None:
    """The tangent of the tangent, against a difference of tangents."""
    record = get(name)
    for c in cases(record)[:5]:

        def slope(step: float, c: Case = c) -> list[Any]:
            at = [a if t is None else a + step * t for a, t in zip(c.arrays, c.tangents, strict=True)]
            return [o.tangent for o in replace(c, arrays=at).duals(F, c.tangents)]

        # A dual of duals: the outer tangent of a constant direction is zero.
        outer = Duals(F)
        given = [
            None if a is None else Dual(Dual(a, t), None if t is None else Dual(t)) for a, t in
            zip(c.arrays, c.tangents, strict=True)
        ]  # fmt: skip
        with np.errstate(all="ignore"):
            outputs = Duals(outer).emit(name, given, c.params)
        for o, low, high in zip(outputs, slope(-STEP), slope(STEP), strict=True):
            if o.tangent is None or low is None:
                continue
            second = o.tangent.tangent
            want = (high - low) / (2 * STEP)
            got = np.zeros_like(want) if second is None else second
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dt", [float16, bfloat16], ids=lambda d: d.name)
def test_halves_keep_their_dtype(dt: Any) -> None:
    for record in DIFFERENTIABLE:
        c = case(record, 3)
        if c is None or (record.name == "scatter" and c.params["op"] == "mul"):
            continue
        if dt not in accepted_dtypes(record) or any(np.iscomplexobj(a) for a in c.arrays):
            continue
        low = [a.astype(dt.numpy) if _is_float(a) else a for a in c.arrays]
        tangents = [None if t is None else t.astype(dt.numpy) for t in c.tangents]
        for o in replace(c, arrays=low).duals(F, tangents):
            assert o.tangent is None or F.aval(o.tangent) == F.aval(o.value), record.name


# ------------------------------------------------------------------------------------------- completeness


def test_every_instruction_has_a_derivative() -> None:
    assert set(ROWS) | DISCRETE | set(UNDEFINED) == set(INSTRUCTIONS) | set(SPECIAL)
    assert not set(ROWS) & DISCRETE and not set(ROWS) & set(UNDEFINED)
    for name, row in ROWS.items():
        arity = {"const": 0, "cast": 1, "select": 3}.get(name) if name in SPECIAL else INSTRUCTIONS[name].arity
        assert len(row) == arity, name


def test_every_record_has_a_derivative_or_a_reason() -> None:
    for record in RECORDS:
        if record.name in NOTHING_FLOWS:
            assert not record.no_gradient
            continue
        assert bool(differentiable(record)) != bool(record.no_gradient), record.name
        if isinstance(record.body, ScalarBody) and not record.no_gradient:
            c = case(record, 1) or case(record, 2) or case(record, 3)
            dtypes = [float64] * len(record.operands) if c is None else [dtype(a.dtype) for a in c.arrays]
            try:
                program = build_program(record.body.build, dtypes, record.fill_params({} if c is None else c.params))
            except Exception:  # noqa: BLE001 - an op on integers only
                continue
            assert not {i.name for i in program.instructions} & set(UNDEFINED), record.name


def test_an_op_without_a_derivative_says_so_by_name() -> None:
    x = Dual(np.float64(1), np.float64(1))
    with pytest.raises(UnsupportedError, match="nextafter has no derivative: the next float"):
        Duals(F).emit("nextafter", [x, x], {})


def test_scaling_at_repeated_indices_has_no_derivative_by_the_updates() -> None:
    x, updates, at = Dual(np.ones(3)), Dual(np.ones(2), np.ones(2)), Dual(np.array([0, 0]))
    with pytest.raises(UnsupportedError, match="scatter has no derivative: under op='mul' where an index repeats"):
        Duals(F).emit("scatter", [x, updates, at], {"op": "mul"})
    (out,) = Duals(F).emit("scatter", [Dual(np.ones(3), np.ones(3)), Dual(np.full(2, 3.0)), at], {"op": "mul"})
    assert out.tangent.tolist() == [9.0, 1.0, 1.0]


# --------------------------------------------------------------------------------------------- special points


def slope_at(name: str, x: float, *others: float, **params: Any) -> float:
    """The derivative of an op by its first operand at a point."""
    given = [Dual(np.float64(x), np.float64(1)), *(Dual(np.float64(o)) for o in others)]
    with np.errstate(all="ignore"):
        (out,) = Duals(F).emit(name, given, params)
    return 0.0 if out.tangent is None else float(out.tangent)


@pytest.mark.parametrize(
    ("name", "operands", "slope"),
    [
        ("relu", (0.0,), 0.0),
        ("relu6", (0.0,), 0.0),
        ("relu6", (6.0,), 0.0),
        ("abs", (0.0,), 0.0),
        ("sign", (0.0,), 0.0),
        ("softplus", (0.0,), 0.5),
        ("softplus", (1000.0,), 1.0),
        ("softplus", (-1000.0,), 0.0),
        ("sigmoid", (-1000.0,), 0.0),
        ("sigmoid", (1000.0,), 0.0),
        ("silu", (-1000.0,), 0.0),
        ("tanh", (1000.0,), 0.0),
        ("sqrt", (0.0,), np.inf),
        ("hypot", (0.0, 0.0), 0.0),
        ("maximum", (1.0, 1.0), 0.5),
        ("minimum", (1.0, 1.0), 0.5),
        ("clip", (1.0, 1.0, 2.0), 1.0),
        ("clip", (2.0, 1.0, 2.0), 1.0),
        ("clip", (0.5, 1.0, 2.0), 0.0),
        ("pow", (0.0, 1.0), 1.0),
        ("pow", (0.0, 2.0), 0.0),
        ("pow", (0.0, 0.0), 0.0),
        ("logaddexp", (-np.inf, -np.inf), 0.5),
        ("logaddexp", (1000.0, 0.0), 1.0),
        ("asinh", (1e200,), 1e-200),
        ("atan2", (1e-200, 1e-200), 5e199),
        ("floor", (1.0,), 0.0),
    ],
)
def test_special_points(name: str, operands: tuple[float, ...], slope: float) -> None:
    assert slope_at(name, *operands) == pytest.approx(slope, rel=1e-12)


def test_a_stopped_gradient_is_zero() -> None:
    assert slope_at("stop_gradient", 2.0) == 0.0


def test_ties_share_the_slope_of_an_extreme() -> None:
    x = Dual(np.array([3.0, 1.0, 3.0]), np.array([1.0, 10.0, 5.0]))
    for name in ("max", "supremum"):
        (out,) = Duals(F).emit(name, [x], {"axes": (0,), "keepdims": False})
        assert float(out.tangent) == 3.0


def test_products_with_zeros() -> None:
    """The derivative by a zero is the product of the others; two zeros leave nothing."""
    for values, want in (([2.0, 0.0, 5.0], [0.0, 10.0, 0.0]), ([0.0, 0.0, 5.0], [0.0, 0.0, 0.0])):
        tape = Tape(F)
        x = np.array(values)
        v = tape.variable(F.aval(x))
        (out,) = Duals(tape).emit("prod", [Dual(x, v)], {"axes": (0,), "keepdims": False})
        assert tape.pull(F, [out.tangent], [np.float64(1)], [v])[0].tolist() == want


def test_the_last_of_repeated_updates_has_the_derivative() -> None:
    tape = Tape(F)
    updates = np.array([1.0, 2.0, 3.0])
    v = tape.variable(F.aval(updates))
    given = [Dual(np.zeros(2)), Dual(updates, v), Dual(np.array([0, 1, 0]))]
    (out,) = Duals(tape).emit("scatter", given, {"op": "set"})
    assert tape.pull(F, [out.tangent], [np.array([10.0, 20.0])], [v])[0].tolist() == [0.0, 20.0, 10.0]


@pytest.mark.parametrize("x", [0.25, 0.5, 1.0, 3.7, 40.0, -0.3, -2.6, 1e6])
def test_digamma(x: float) -> None:
    special = pytest.importorskip("scipy.special")
    assert float(digamma(F, np.float64(x))) == pytest.approx(float(special.digamma(x)), rel=1e-12)
