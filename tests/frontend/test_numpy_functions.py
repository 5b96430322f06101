"""What NumPy has beside the array API, at once, called in NumPy's name on traced arrays, and on symbolic sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import cuvil
import cuvil.numpy as cnp
from cuvil.support.errors import ArgumentError, ShapeError, TracingError
from cuvil.symbolic import symbol
from tests.frontend.tracing import assert_same, run_traced

X = np.random.default_rng(0).standard_normal((4, 6)).astype(np.float32)
X[1, 2] = np.nan
Y = np.random.default_rng(1).integers(-9, 9, (4, 6))
V = np.array([3.0, -1.0, 2.0, 0.0], np.float32)
SPECIAL = np.array([0.0, -0.0, 1.5, -2.0, np.inf, -np.inf, np.nan], np.float32)

#: Name of the call: a function of NumPy or of an equal namespace, and its operands.
CALLS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "degrees": (lambda xp, x: xp.degrees(x), (X,)),
    "rad2deg": (lambda xp, x: xp.rad2deg(x), (Y,)),
    "radians": (lambda xp, x: xp.radians(x), (X,)),
    "deg2rad": (lambda xp, x: xp.deg2rad(x), (X,)),
    "divmod": (lambda xp, x: xp.divmod(x, 4)[0] * xp.divmod(x, 4)[1], (Y,)),
    "fmax": (lambda xp, x, y: xp.fmax(x, y), (SPECIAL, SPECIAL[::-1])),
    "fmin": (lambda xp, x, y: xp.fmin(x, y), (SPECIAL, SPECIAL[::-1])),
    "fmax of integers": (lambda xp, x: xp.fmax(x, x[::-1]), (Y,)),
    "heaviside": (lambda xp, x: xp.heaviside(x, np.float32(0.5)), (SPECIAL,)),
    "sinc": (lambda xp, x: xp.sinc(x), (V,)),
    "float_power": (lambda xp, x: xp.float_power(x, 2), (Y,)),
    "nan_to_num": (lambda xp, x: xp.nan_to_num(x), (SPECIAL,)),
    "nan_to_num by others": (lambda xp, x: xp.nan_to_num(x, nan=1.0, posinf=2.0, neginf=-3.0), (SPECIAL,)),
    "isposinf": (lambda xp, x: xp.isposinf(x), (SPECIAL,)),
    "isneginf": (lambda xp, x: xp.isneginf(x), (SPECIAL,)),
    "select": (lambda xp, x: xp.select([x > 1, x > 0], [x, -x], 9), (V,)),
    "ptp": (lambda xp, x: xp.ptp(x, axis=1), (Y,)),
    "average": (lambda xp, x: xp.average(x, axis=0), (Y,)),
    "average by weights": (lambda xp, x, w: xp.average(x, axis=0, weights=w), (Y, V + 5)),
    "average of all": (lambda xp, x: xp.average(x, weights=x * x), (Y,)),
    "median": (lambda xp, x: xp.median(x, axis=1), (X,)),
    "median of all": (lambda xp, x: xp.median(x), (Y,)),
    "median of an odd number": (lambda xp, x: xp.median(x[:3], axis=0, keepdims=True), (Y,)),
    "nansum": (lambda xp, x: xp.nansum(x, axis=0), (X,)),
    "nanmean": (lambda xp, x: xp.nanmean(x, axis=1), (X,)),
    "nanmax": (lambda xp, x: xp.nanmax(x, axis=0), (X,)),
    "nanmin": (lambda xp, x: xp.nanmin(x), (X,)),
    "nanmax of integers": (lambda xp, x: xp.nanmax(x, axis=0), (Y,)),
    "trapezoid": (lambda xp, x: xp.trapezoid(x, axis=0), (Y,)),
    "trapezoid over points": (lambda xp, x, p: xp.trapezoid(x, p, axis=0), (X, V)),
    "diagonal": (lambda xp, x: xp.diagonal(x, -1), (X,)),
    "diagonal of axes": (lambda xp, x: xp.diagonal(x[None], 1, 2, 1), (X,)),
    "trace": (lambda xp, x: xp.trace(x, 1), (Y,)),
    "diag": (lambda xp, x: xp.diag(x), (V,)),
    "diag above": (lambda xp, x: xp.diag(x, 2), (V,)),
    "diag below": (lambda xp, x: xp.diag(x, -1), (V,)),
    "diag of a matrix": (lambda xp, x: xp.diag(x, 1), (X,)),
    "fliplr": (lambda xp, x: xp.fliplr(x), (X,)),
    "flipud": (lambda xp, x: xp.flipud(x), (X,)),
    "rot90": (lambda xp, x: xp.rot90(x) * xp.rot90(x, 5), (X,)),
    "rot90 back": (lambda xp, x: xp.rot90(x, -1), (X,)),
    "rot90 twice": (lambda xp, x: xp.rot90(x, 2, axes=(1, 0)), (X,)),
    "column_stack": (lambda xp, x, v: xp.column_stack([x, v]), (X, V)),
    "dstack": (lambda xp, x: xp.dstack([x, x]), (X,)),
    "kron": (lambda xp, x, v: xp.kron(x, v), (X, V)),
    "ediff1d": (lambda xp, x: xp.ediff1d(x), (Y,)),
    "diff": (lambda xp, x: xp.diff(x, 2, 0), (Y,)),
    "angle": (lambda xp, x: xp.angle(x * np.complex64(1j)), (V,)),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_calls(name: str) -> None:
    fn, operands = CALLS[name]
    with np.errstate(all="ignore"):
        want = fn(np, *operands)
    assert_same(fn(cnp, *operands), want, rtol=2e-6, atol=1e-7)
    assert_same(run_traced(lambda *a: fn(np, *a), *operands), want, rtol=2e-6, atol=1e-7)
    if name not in ("diag of a matrix", "trapezoid over points", "average by weights", "average of all", "kron"):
        shapes = [(symbol("N"), *a.shape[1:]) for a in operands]
        assert_same(run_traced(lambda *a: fn(cnp, *a), *operands, shapes=shapes), want, rtol=2e-6, atol=1e-7)


def test_compiled() -> None:
    """All of them in one program."""
    with np.errstate(all="ignore"):
        got = cuvil.jit(
            lambda all_operands: [fn(cnp, *a) for (fn, _), a in zip(CALLS.values(), all_operands, strict=True)]
        )([a for _, a in CALLS.values()])
        for (fn, operands), value in zip(CALLS.values(), got, strict=True):
            assert_same(value, fn(cnp, *operands), rtol=1e-5, atol=1e-6)


def test_methods() -> None:
    x = Y.astype(np.float64) / 4
    calls: dict[str, Callable[[Any], Any]] = {
        "dot": lambda x: x.dot(x.T),
        "clip": lambda x: x.clip(-1, 1),
        "cumsum": lambda x: x.cumsum(axis=1),
        "cumprod": lambda x: x.cumprod(0),
        "argsort": lambda x: (x + np.arange(24).reshape(4, 6) / 100).argsort(axis=0),
        "round": lambda x: x.round(1),
        "take": lambda x: x.take([1, 0], axis=1),
        "repeat": lambda x: x.repeat(2, axis=0),
        "diagonal": lambda x: x.diagonal(1),
        "trace": lambda x: x.trace(),
        "divmod": lambda x: divmod(x, 2.0)[1] + divmod(7.0, x + 100)[0],
        "real": lambda x: x.real + x.imag,
        "conj": lambda x: x.conj(),
        "sizes": lambda x: x * x.itemsize + x.nbytes,
    }
    for fn in calls.values():
        assert_same(run_traced(fn, x), fn(x), rtol=1e-12)
    with pytest.raises(TracingError, match="sorted copy"):
        run_traced(lambda x: x.sort(), x)
    with pytest.raises(TracingError, match="size depends on values"):
        run_traced(lambda x: x.nonzero(), x)


def test_tri() -> None:
    for arguments in ((3,), (2, 4), (3, 3, 1), (4, 2, -2)):
        assert_same(cnp.tri(*arguments), np.tri(*arguments, dtype=np.float32))


def test_errors() -> None:
    with pytest.raises(ArgumentError, match="1 conditions for 0 choices"):
        cnp.select([V > 0], [])
    with pytest.raises(ShapeError, match="need one axis"):
        cnp.average(X, weights=V)
    with pytest.raises(ShapeError, match="a vector or a matrix"):
        cnp.diag(X[None])
