"""Factorisations and solvers of matrices, by the LAPACK that NumPy ships: opaque ops that call back into NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from cuvil.dtypes import COMPLEX, DType, float32, float64
from cuvil.ops import batching
from cuvil.ops import linear_algebra_derivatives as derivatives
from cuvil.ops.cost import Cost, traffic
from cuvil.ops.dtype_rules import DTypes, shared
from cuvil.ops.record import (
    Array,
    Chooser,
    Example,
    Opaque,
    OperandSample,
    OpRecord,
    Param,
    Params,
    Shape,
    ShapeResult,
    Tolerance,
)
from cuvil.ops.registry import register
from cuvil.ops.requirements import Requirements, format_shape, present
from cuvil.ops.shape_rules import Shapes, broadcast
from cuvil.support.errors import ShapeError
from cuvil.symbolic import Dim, dim_min, product

#: What LAPACK computes in.
ACCEPTED = (float32, float64, *COMPLEX)

Results = Callable[[Requirements, tuple[Shape, ...], Params], tuple[Shape, ...]]


def _matrices(op: str, shapes: Shapes) -> tuple[Shape, ...]:
    out = tuple(present(s) for s in shapes)
    for s in out:
        if len(s) < 2:
            raise ShapeError(f"{op} takes matrices in the last two axes, got shape {format_shape(s)}")
    return out


def _square(need: Requirements, x: Shape) -> None:
    need.equal(x[-2], x[-1], f"the matrices of shape {format_shape(x)} are square")


def _define(
    name: str,
    doc: str,
    operands: str,
    results: str,
    shape: Results,
    reference: Callable[..., Any],
    sample: Callable[[Chooser], Example],
    *,
    params: tuple[Param, ...] = (),
    parts: tuple[str, ...] = (),
) -> OpRecord:
    """Register one op; the results named in ``parts`` are real where the operands are complex."""
    names = tuple(results.split())

    def shape_rule(shapes: Shapes, given: Params) -> ShapeResult:
        need = Requirements(name)
        return need.result(*shape(need, _matrices(name, shapes), given))

    def dtype_rule(dtypes: DTypes, given: Params) -> tuple[DType, ...]:
        dt = shared(name, dtypes, ACCEPTED)
        return tuple(dt.part if n in parts else dt for n in names)

    def cost(shapes: Shapes, given: Params) -> Cost:
        x = present(shapes[0])
        return product(x) * dim_min(x[-1], x[-2]) * 2, traffic(*shapes, *shape_rule(shapes, given).shapes)

    def run(*arrays: Array, **given: Any) -> Any:
        with np.errstate(all="ignore"):
            return reference(*arrays, **given)

    return register(
        OpRecord(
            name=name,
            doc=doc,
            category="linalg",
            operands=tuple(operands.split()),
            params=params,
            results=names,
            shape_rule=shape_rule,
            dtype_rule=dtype_rule,
            reference=run,
            body=Opaque("host"),
            sample=sample,
            cost=cost,
            tolerance=Tolerance(ulp=64, absolute=1024),
            jvp=derivatives.solve_jvp if name == "solve" else getattr(derivatives, name),
            transpose=derivatives.solve if name == "solve" else None,
            batch_rule=batching.stacked(name),
        )
    )


def _smaller(x: Shape) -> Dim:
    return dim_min(x[-2], x[-1])


def _matrix_sample(square: bool, **params: Any) -> Callable[[Chooser], Example]:
    def sample(c: Chooser) -> Example:
        rows = c.choice((0, 1, 2, 3, 5))
        columns = rows if square else c.choice((0, 1, 2, 4))
        batch = tuple(c.choice((0, 1, 2)) for _ in range(c.integer(0, 1)))
        drawn = {k: c.choice(v) for k, v in params.items()}
        return Example((OperandSample((*batch, rows, columns), c.choice((float32, float64)), "unit"),), drawn)

    return sample


def _same(need: Requirements, shapes: tuple[Shape, ...], params: Params) -> tuple[Shape, ...]:
    (x,) = shapes
    _square(need, x)
    return (x,)


def _batch(need: Requirements, shapes: tuple[Shape, ...], params: Params) -> tuple[Shape, ...]:
    (x,) = shapes
    _square(need, x)
    return (x[:-2],)


def _signed_batch(need: Requirements, shapes: tuple[Shape, ...], params: Params) -> tuple[Shape, ...]:
    return _batch(need, shapes, params) * 2


def _solved(need: Requirements, shapes: tuple[Shape, ...], params: Params) -> tuple[Shape, ...]:
    a, b = shapes
    _square(need, a)
    what = f"{format_shape(a)} and {format_shape(b)}"
    need.equal(a[-1], b[-2], f"unknowns of the first equal rows of the second in {what}")
    return ((*broadcast(need, (a[:-2], b[:-2]), f"batch axes broadcast in {what}"), *b[-2:]),)


def _solve_sample(c: Chooser) -> Example:
    n, columns, dt = c.choice((0, 1, 3, 4)), c.choice((0, 1, 2)), c.choice((float32, float64))
    return Example((OperandSample((n, n), dt, "unit"), OperandSample((n, columns), dt, "unit")))


def _qr_shapes(need: Requirements, shapes: tuple[Shape, ...], params: Params) -> tuple[Shape, ...]:
    (x,) = shapes
    inner = _smaller(x) if params["mode"] == "reduced" else x[-2]
    return (*x[:-1], inner), (*x[:-2], inner, x[-1])


def _svd_shapes(need: Requirements, shapes: tuple[Shape, ...], params: Params) -> tuple[Shape, ...]:
    (x,) = shapes
    k = _smaller(x)
    left, right = (x[-2], x[-1]) if params["full_matrices"] else (k, k)
    return (*x[:-1], left), (*x[:-2], k), (*x[:-2], right, x[-1])


def _singular(need: Requirements, shapes: tuple[Shape, ...], params: Params) -> tuple[Shape, ...]:
    (x,) = shapes
    return ((*x[:-2], _smaller(x)),)


def _eigen_shapes(need: Requirements, shapes: tuple[Shape, ...], params: Params) -> tuple[Shape, ...]:
    (x,) = shapes
    _square(need, x)
    return x[:-1], x


def _eigenvalues(need: Requirements, shapes: tuple[Shape, ...], params: Params) -> tuple[Shape, ...]:
    (x,) = shapes
    _square(need, x)
    return (x[:-1],)


def _positive_definite(x: Array, *, upper: bool) -> Any:
    return np.linalg.cholesky(x, upper=upper)


def _cholesky_sample(c: Chooser) -> Example:
    # The one matrix for which every draw is positive definite.
    return Example((OperandSample((0, 0), c.choice((float32, float64)), "unit"),), {"upper": c.boolean()})


_define("cholesky", "The lower (or upper) triangular factor of a positive definite matrix.", "x", "factor", _same,
        _positive_definite, _cholesky_sample,
        params=(Param("upper", "bool", "give the upper triangle", False),))  # fmt: skip
_define("inv", "The inverse of a square matrix.", "x", "inverse", _same, np.linalg.inv,
        _matrix_sample(True))  # fmt: skip
_define("det", "The determinant of a square matrix.", "x", "determinant", _batch,
        lambda x: np.asarray(np.linalg.det(x)), _matrix_sample(True))  # fmt: skip
_define("slogdet", "The sign of the determinant and the logarithm of its magnitude.", "x", "sign logabsdet",
        _signed_batch, lambda x: tuple(np.asarray(r) for r in np.linalg.slogdet(x)), _matrix_sample(True),
        parts=("logabsdet",))  # fmt: skip
_define("solve", "The matrix x with a @ x == b.", "a b", "x", _solved, np.linalg.solve, _solve_sample)
_define("qr", "Orthonormal columns times an upper triangle.", "x", "q r", _qr_shapes,
        lambda x, mode: tuple(np.linalg.qr(x, mode=mode)), _matrix_sample(False, mode=("reduced", "complete")),
        params=(Param("mode", "str", "reduced, or complete", "reduced"),))  # fmt: skip
_define("svd", "Left singular vectors, singular values in descending order, right singular vectors.", "x", "u s vh",
        _svd_shapes, lambda x, full_matrices: tuple(np.linalg.svd(x, full_matrices=full_matrices)),
        _matrix_sample(False, full_matrices=(True, False)), parts=("s",),
        params=(Param("full_matrices", "bool", "square matrices of vectors", True),))  # fmt: skip
_define("svdvals", "Singular values in descending order.", "x", "s", _singular,
        lambda x: np.linalg.svd(x, compute_uv=False), _matrix_sample(False), parts=("s",))  # fmt: skip
_define("eigh", "Eigenvalues in ascending order and eigenvectors of a symmetric or Hermitian matrix.", "x",
        "eigenvalues eigenvectors", _eigen_shapes, lambda x: tuple(np.linalg.eigh(x)), _matrix_sample(True),
        parts=("eigenvalues",))  # fmt: skip
_define("eigvalsh", "Eigenvalues in ascending order of a symmetric or Hermitian matrix.", "x", "eigenvalues",
        _eigenvalues, np.linalg.eigvalsh, _matrix_sample(True), parts=("eigenvalues",))  # fmt: skip
