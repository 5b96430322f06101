"""Derivatives of factorisations and solvers (Giles, "Collected matrix derivative results", 2008).

They are exact for what the ops compute: cholesky and eigh read one triangle of their operand, which alone matters.
Factors that are not unique (repeated eigenvalues or singular values) have infinite or NaN tangents.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cuvil.ops.builder import Builder
from cuvil.ops.differentiation import Tangent, no_derivative
from cuvil.ops.transposes import Cotangents, Operands, Value, unbroadcast

Tangents = Sequence[Value | None]


def _swapped(F: Builder[Any], x: Value) -> Value:
    rank = len(F.shape(x))
    return F.transpose(x, (*range(rank - 2), rank - 1, rank - 2))


def _right_divided(F: Builder[Any], x: Value, a: Value) -> Value:
    """``x @ inv(a)``"""
    return _swapped(F, F.op("solve", _swapped(F, a), _swapped(F, x)))


def _row(F: Builder[Any], v: Value) -> Value:
    """Numbers [..., K] as rows [..., 1, K]: what scales the columns of a matrix."""
    shape = F.shape(v)
    return F.reshape(v, (*shape[:-1], 1, shape[-1]))


def _column(F: Builder[Any], v: Value) -> Value:
    return F.reshape(v, (*F.shape(v), 1))


def _on_diagonal(F: Builder[Any], x: Value) -> Value:
    """Where a matrix has its diagonal, as bool."""
    rows, cols = F.shape(x)[-2:]
    return F.op("equal", F.iota((rows, 1), 0), F.iota((1, cols), 1))


def _diagonal_sum(F: Builder[Any], x: Value) -> Value:
    rank = len(F.shape(x))
    return F.sum(F.where(_on_diagonal(F, x), x, F.like(0, x)), (rank - 2, rank - 1))


def _diagonal(F: Builder[Any], x: Value) -> Value:
    """The diagonal of square matrices."""
    return F.sum(F.where(_on_diagonal(F, x), x, F.like(0, x)), (len(F.shape(x)) - 2,))


def _identity_minus(F: Builder[Any], x: Value) -> Value:
    return F.sub(F.cast(_on_diagonal(F, x), F.dtype(x)), x)


def _only_real(F: Builder[Any], name: str, x: Value) -> None:
    if F.dtype(x).is_complex:
        raise no_derivative(name, "of complex matrices its factors are not unique")


def _symmetric(F: Builder[Any], t: Value, upper: bool) -> Value:
    """The symmetric matrix of which an op reads one triangle."""
    kept = F.op("triu" if upper else "tril", t, k=0)
    other = F.op("triu" if upper else "tril", t, k=1 if upper else -1)
    return F.add(kept, _swapped(F, other))


# --------------------------------------------------------------------------------- inverses, determinants


def inv(F: Builder[Any], operands: Operands, results: Operands, tangents: Operands) -> Tangents:
    y = results[0]
    return [F.op("negative", F.matmul(y, F.matmul(tangents[0], y)))]


def det(F: Builder[Any], operands: Operands, results: Operands, tangents: Operands) -> Tangents:
    relative = _diagonal_sum(F, F.matmul(F.op("inv", operands[0]), tangents[0]))
    return [F.mul(relative, results[0])]


def slogdet(F: Builder[Any], operands: Operands, results: Operands, tangents: Operands) -> Tangents:
    relative = _diagonal_sum(F, F.matmul(F.op("inv", operands[0]), tangents[0]))
    if not F.dtype(operands[0]).is_complex:
        return [None, relative]
    turned = F.op("imag", relative)
    zero = F.like(0, results[1])
    return [
        F.mul(F.op("complex", F.broadcast_to(zero, F.shape(results[1])), turned), results[0]),
        F.op("real", relative),
    ]


def solve_jvp(F: Builder[Any], operands: Operands, results: Operands, tangents: Operands) -> Tangents:
    a, _ = operands
    ta, tb = tangents
    total = tb
    if ta is not None:
        part = F.op("negative", F.matmul(ta, results[0]))
        total = part if total is None else F.add(total, part)
    return [F.broadcast_to(F.op("solve", a, total), F.shape(results[0]))]


def solve(F: Builder[Any], c: Value, operands: Operands) -> Cotangents:
    # It is linear in the right side alone.
    a, b = operands
    assert isinstance(b, Tangent)
    return [None, unbroadcast(F, F.op("solve", _swapped(F, a), c), b.aval.shape)]


# ------------------------------------------------------------------------------------------ factorisations


def cholesky(F: Builder[Any], operands: Operands, results: Operands, tangents: Operands, *, upper: bool) -> Tangents:
    _only_real(F, "cholesky", operands[0])
    low = _swapped(F, results[0]) if upper else results[0]
    t = _symmetric(F, tangents[0], upper)
    inner = F.op("solve", low, _swapped(F, F.op("solve", low, t)))
    halved = F.where(_on_diagonal(F, low), F.like(0.5, low), F.like(1, low))
    out = F.matmul(low, F.mul(F.op("tril", inner, k=0), halved))
    return [_swapped(F, out) if upper else out]


def _differences(F: Builder[Any], values: Value) -> Value:
    """``1 / (v_j - v_i)``, 0 on the diagonal."""
    gaps = F.sub(_row(F, values), _column(F, values))
    on = _on_diagonal(F, gaps)
    return F.where(on, F.like(0, gaps), F.op("reciprocal", F.where(on, F.like(1, gaps), gaps)))


def eigh(F: Builder[Any], operands: Operands, results: Operands, tangents: Operands) -> Tangents:
    _only_real(F, "eigh", operands[0])
    values, vectors = results
    turned = F.matmul(_swapped(F, vectors), F.matmul(_symmetric(F, tangents[0], upper=False), vectors))
    return [_diagonal(F, turned), F.matmul(vectors, F.mul(turned, _differences(F, values)))]


def eigvalsh(F: Builder[Any], operands: Operands, results: Operands, tangents: Operands) -> Tangents:
    _only_real(F, "eigvalsh", operands[0])
    _, vectors = F.emit("eigh", operands, {})
    moved = F.matmul(_symmetric(F, tangents[0], upper=False), vectors)
    return [F.sum(F.mul(moved, vectors), (len(F.shape(vectors)) - 2,))]


def svd(F: Builder[Any], operands: Operands, results: Operands, tangents: Operands, *, full_matrices: bool) -> Tangents:
    _only_real(F, "svd", operands[0])
    rows, cols = F.shape(operands[0])[-2:]
    if full_matrices and rows != cols:
        raise no_derivative("svd", "the vectors that full_matrices adds are not unique; use full_matrices=False")
    u, s, vh = results
    t = tangents[0]
    uh, v = _swapped(F, u), _swapped(F, vh)
    turned = F.matmul(uh, F.matmul(t, v))
    back = _swapped(F, turned)
    squared = _differences(F, F.mul(s, s))
    across, down = _row(F, s), _column(F, s)
    tu = F.matmul(u, F.mul(F.add(F.mul(turned, across), F.mul(back, down)), squared))
    tv = F.matmul(v, F.mul(F.add(F.mul(turned, down), F.mul(back, across)), squared))
    # What leaves the space that the vectors span: nothing where they span all of it.
    if rows != F.shape(s)[-1]:
        rest = F.matmul(_identity_minus(F, F.matmul(u, uh)), F.matmul(t, v))
        tu = F.add(tu, F.div(rest, across))
    if cols != F.shape(s)[-1]:
        rest = F.matmul(_identity_minus(F, F.matmul(v, vh)), F.matmul(_swapped(F, t), u))
        tv = F.add(tv, F.div(rest, across))
    return [tu, _diagonal(F, turned), _swapped(F, tv)]


def svdvals(F: Builder[Any], operands: Operands, results: Operands, tangents: Operands) -> Tangents:
    _only_real(F, "svdvals", operands[0])
    u, _, vh = F.emit("svd", operands, {"full_matrices": False})
    moved = F.matmul(tangents[0], _swapped(F, vh))
    return [F.sum(F.mul(moved, u), (len(F.shape(u)) - 2,))]


def qr(F: Builder[Any], operands: Operands, results: Operands, tangents: Operands, *, mode: str) -> Tangents:
    _only_real(F, "qr", operands[0])
    rows, cols = F.shape(operands[0])[-2:]
    tall = rows == cols or (isinstance(rows, int) and isinstance(cols, int) and rows >= cols)
    if not tall or (mode == "complete" and rows != cols):
        raise no_derivative("qr", "it has one for at least as many rows as columns, in mode reduced")
    q, r = results
    moved = _right_divided(F, tangents[0], r)
    inner = F.matmul(_swapped(F, q), moved)
    below = F.op("tril", inner, k=-1)
    turn = F.sub(below, _swapped(F, below))
    left = F.sub(inner, turn)
    return [F.sub(moved, F.matmul(q, left)), F.matmul(left, r)]
