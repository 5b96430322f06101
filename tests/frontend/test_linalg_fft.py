"""``linalg`` and ``fft`` against NumPy: at once, compiled (host calls), over symbolic batches, and their errors."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import cuvil
import cuvil.numpy as cnp
from cuvil.support.errors import ArgumentError, CuvilError, DTypeError, ShapeError
from tests.frontend.test_complex import assert_close, drawn

DTYPES = (np.float32, np.float64, np.complex64, np.complex128)


def matrix(*shape: int, dt: Any = np.float64, seed: int = 0) -> Any:
    z = drawn(*shape, dt=np.complex128, seed=seed)
    return (z if np.dtype(dt).kind == "c" else z.real).astype(dt)


def hermitian(*shape: int, dt: Any = np.float64) -> Any:
    x = matrix(*shape, dt=dt)
    return x @ np.conj(np.swapaxes(x, -1, -2)) + np.eye(shape[-1], dtype=dt)


FUNCTIONS: dict[str, tuple[Callable[..., Any], Callable[..., Any], Callable[[Any], tuple[Any, ...]]]] = {
    "cholesky": (cnp.linalg.cholesky, np.linalg.cholesky, lambda dt: (hermitian(2, 3, 3, dt=dt),)),
    "cholesky upper": (
        lambda x: cnp.linalg.cholesky(x, upper=True),
        lambda x: np.linalg.cholesky(x, upper=True),
        lambda dt: (hermitian(3, 3, dt=dt),),
    ),
    "inv": (cnp.linalg.inv, np.linalg.inv, lambda dt: (hermitian(2, 4, 4, dt=dt),)),
    "det": (cnp.linalg.det, np.linalg.det, lambda dt: (matrix(2, 3, 3, dt=dt),)),
    "slogdet": (cnp.linalg.slogdet, np.linalg.slogdet, lambda dt: (matrix(3, 3, dt=dt),)),
    "solve": (cnp.linalg.solve, np.linalg.solve, lambda dt: (hermitian(2, 3, 3, dt=dt), matrix(3, 2, dt=dt))),
    "solve vector": (cnp.linalg.solve, np.linalg.solve, lambda dt: (hermitian(3, 3, dt=dt), matrix(3, dt=dt))),
    "qr": (cnp.linalg.qr, np.linalg.qr, lambda dt: (matrix(4, 3, dt=dt),)),
    "qr complete": (
        lambda x: cnp.linalg.qr(x, mode="complete"),
        lambda x: np.linalg.qr(x, mode="complete"),
        lambda dt: (matrix(4, 3, dt=dt),),
    ),
    "svd": (cnp.linalg.svd, np.linalg.svd, lambda dt: (matrix(3, 4, dt=dt),)),
    "svd thin": (
        lambda x: cnp.linalg.svd(x, full_matrices=False),
        lambda x: np.linalg.svd(x, full_matrices=False),
        lambda dt: (matrix(2, 4, 3, dt=dt),),
    ),
    "svdvals": (cnp.linalg.svdvals, np.linalg.svdvals, lambda dt: (matrix(2, 3, 4, dt=dt),)),
    "eigh": (cnp.linalg.eigh, np.linalg.eigh, lambda dt: (hermitian(3, 3, dt=dt),)),
    "eigvalsh": (cnp.linalg.eigvalsh, np.linalg.eigvalsh, lambda dt: (hermitian(2, 3, 3, dt=dt),)),
    "pinv": (cnp.linalg.pinv, np.linalg.pinv, lambda dt: (matrix(2, 4, 3, dt=dt),)),
    "matrix_rank": (
        cnp.linalg.matrix_rank,
        np.linalg.matrix_rank,
        lambda dt: (matrix(4, 2, dt=dt) @ matrix(2, 3, dt=dt),),
    ),
    "matrix_power": (
        lambda x: cnp.linalg.matrix_power(x, 5),
        lambda x: np.linalg.matrix_power(x, 5),
        lambda dt: (matrix(3, 3, dt=dt),),
    ),
    "matrix_power of the inverse": (
        lambda x: cnp.linalg.matrix_power(x, -2),
        lambda x: np.linalg.matrix_power(x, -2),
        lambda dt: (hermitian(3, 3, dt=dt),),
    ),
    "trace": (
        lambda x: cnp.linalg.trace(x, offset=1),
        lambda x: np.linalg.trace(x, offset=1),
        lambda dt: (matrix(2, 3, 4, dt=dt),),
    ),
    "diagonal": (
        lambda x: cnp.linalg.diagonal(x, offset=-1),
        lambda x: np.linalg.diagonal(x, offset=-1),
        lambda dt: (matrix(2, 3, 4, dt=dt),),
    ),
    "cross": (cnp.linalg.cross, np.linalg.cross, lambda dt: (matrix(2, 3, dt=dt), matrix(3, dt=dt))),
    "fft": (cnp.fft.fft, np.fft.fft, lambda dt: (matrix(2, 5, dt=dt),)),
    "ifft": (
        lambda x: cnp.fft.ifft(x, n=3, axis=0, norm="ortho"),
        lambda x: np.fft.ifft(x, n=3, axis=0, norm="ortho"),
        lambda dt: (matrix(4, 2, dt=dt),),
    ),
    "fftn": (
        lambda x: cnp.fft.fftn(x, s=(3, 4), axes=(0, 2)),
        lambda x: np.fft.fftn(x, s=(3, 4), axes=(0, 2)),
        lambda dt: (matrix(2, 3, 4, dt=dt),),
    ),
    "ifftn": (cnp.fft.ifftn, np.fft.ifftn, lambda dt: (matrix(2, 3, 4, dt=dt),)),
    "irfft": (cnp.fft.irfft, np.fft.irfft, lambda dt: (matrix(2, 4, dt=dt),)),
    "irfftn": (cnp.fft.irfftn, np.fft.irfftn, lambda dt: (matrix(3, 2, 4, dt=dt),)),
    "hfft": (
        lambda x: cnp.fft.hfft(x, norm="forward"),
        lambda x: np.fft.hfft(x, norm="forward"),
        lambda dt: (matrix(2, 4, dt=dt),),
    ),
    "fftshift": (cnp.fft.fftshift, np.fft.fftshift, lambda dt: (matrix(3, 4, dt=dt),)),
    "ifftshift": (
        lambda x: cnp.fft.ifftshift(x, axes=1),
        lambda x: np.fft.ifftshift(x, axes=1),
        lambda dt: (matrix(3, 5, dt=dt),),
    ),
}
REAL = {
    "rfft": (lambda x: cnp.fft.rfft(x, axis=0), lambda x: np.fft.rfft(x, axis=0), lambda dt: (matrix(5, 2, dt=dt),)),
    "rfftn": (cnp.fft.rfftn, np.fft.rfftn, lambda dt: (matrix(3, 2, 4, dt=dt),)),
    "ihfft": (cnp.fft.ihfft, np.fft.ihfft, lambda dt: (matrix(2, 5, dt=dt),)),
}
CASES = [(name, dt) for name in FUNCTIONS for dt in DTYPES] + [(name, dt) for name in REAL for dt in DTYPES[:2]]


def results(value: Any) -> list[Any]:
    return list(value) if isinstance(value, tuple) else [value]


@pytest.mark.parametrize("name, dt", CASES)
def test_functions(name: str, dt: Any) -> None:
    ours, numpys, operands = (FUNCTIONS | REAL)[name]
    arrays = operands(dt)
    for traced in (ours, cuvil.jit(ours, backend="reference")):
        for got, want in zip(results(traced(*arrays)), results(numpys(*arrays)), strict=True):
            want = np.asarray(want)
            if name == "matrix_rank" or want.dtype == np.dtype(dt) or want.dtype == np.dtype(dt).type(0).real.dtype:
                assert_close(got, want, 1e-4 if dt in (np.float32, np.complex64) else 1e-10)
            else:  # a real operand of a transform
                assert_close(got, want.astype(np.asarray(got).dtype), 1e-4 if dt is np.float32 else 1e-10)


def test_functions_compiled() -> None:
    """All of them in one program."""
    operands = [(name, dt, (FUNCTIONS | REAL)[name][2](dt)) for name, dt in CASES if dt in (np.float64, np.complex64)]

    def fn(arrays: Any) -> Any:
        return [results((FUNCTIONS | REAL)[name][0](*a)) for (name, _, _), a in zip(operands, arrays, strict=True)]

    arrays = [a for _, _, a in operands]
    for (_, dt, _), got, want in zip(operands, cuvil.jit(fn)(arrays), fn(arrays), strict=True):
        for g, w in zip(got, want, strict=True):
            assert_close(g, w, 1e-4 if dt is np.complex64 else 1e-10)


def test_norms() -> None:
    x = matrix(3, 4, 5)
    for order in (2, 1, 3.5, 0, np.inf, -np.inf, -1):
        for axis, keepdims in itertools.product((0, (0, 2), None), (False, True)):
            want = np.linalg.vector_norm(x, axis=axis, keepdims=keepdims, ord=order)
            assert_close(cnp.linalg.vector_norm(x, axis=axis, keepdims=keepdims, ord=order), want, 1e-12)
    for order in ("fro", "nuc", 1, -1, 2, -2, np.inf, -np.inf):
        for keepdims in (False, True):
            want = np.linalg.matrix_norm(x, keepdims=keepdims, ord=order)
            assert_close(cnp.linalg.matrix_norm(x, keepdims=keepdims, ord=order), want, 1e-12)
    for options in ({}, {"axis": 1}, {"ord": 1, "axis": (0, 2)}, {"axis": (2, 0), "keepdims": True, "ord": 2}):
        assert_close(cuvil.jit(lambda a, o=options: np.linalg.norm(a, **o), backend="reference")(x),
                     np.linalg.norm(x, **options), 1e-12)  # fmt: skip
    with pytest.raises(ArgumentError, match="no norm of order 7"):
        cnp.linalg.matrix_norm(x, ord=7)
    with pytest.raises(ArgumentError, match="needs an axis"):
        cnp.linalg.norm(x, ord=1)


def test_integers_compute_in_float64_and_empty_matrices_pass() -> None:
    assert cnp.linalg.inv(np.array([[2, 0], [0, 4]])).dtype == np.float64
    assert cnp.linalg.det(np.zeros((2, 0, 0))).tolist() == [1, 1]
    assert cnp.linalg.svdvals(np.zeros((0, 3))).shape == (0,)
    assert cnp.linalg.matrix_rank(np.zeros((2, 0, 3))).tolist() == [0, 0]
    assert cnp.linalg.pinv(np.zeros((0, 3))).shape == (3, 0)
    assert cnp.linalg.matrix_power(np.array([[1, 1], [0, 1]]), 0).tolist() == [[1, 0], [0, 1]]
    assert cnp.linalg.diagonal(np.zeros((2, 2)), offset=3).shape == (0,)


def test_symbolic_batches() -> None:
    spec = [("a", "float32", ("B", "N", "N")), ("b", "float32", ("B", "N", "K"))]
    f = cuvil.jit(lambda a, b: (cnp.linalg.solve(a, b), cnp.linalg.svdvals(b), cnp.fft.rfft(b, axis=1)),
                  input_spec=spec, shapes="symbolic")  # fmt: skip
    for b, n, k in ((1, 2, 3), (3, 4, 1), (0, 2, 2)):
        x, y = hermitian(b, n, n, dt=np.float32), matrix(b, n, k, dt=np.float32)
        wanted = np.linalg.solve(x, y), np.linalg.svdvals(y), np.fft.rfft(y, axis=1)
        for got, want in zip(f(x, y), wanted, strict=True):
            assert_close(got, want, 1e-4)


def test_numpys_own_names_on_traced_arrays() -> None:
    def fn(x: Any) -> Any:
        u, s, v = np.linalg.svd(x, full_matrices=False)
        return np.linalg.solve(x, x[:, 0]), u * s @ v, np.linalg.norm(x), np.fft.fft(x, 4, 0), np.real(np.fft.ifft(x))

    x = hermitian(3, 3)
    for got, want in zip(cuvil.jit(fn, backend="reference")(x), fn(x), strict=True):
        assert_close(got, want, 1e-10)


def test_errors() -> None:
    singular, compiled = np.zeros((2, 2)), cuvil.jit(cnp.linalg.inv)
    for fn in (cnp.linalg.inv, compiled):
        with pytest.raises(np.linalg.LinAlgError, match="Singular"):
            fn(singular)
        assert_close(fn(np.eye(2)), np.eye(2))  # nothing is left of the error
    with pytest.raises(np.linalg.LinAlgError, match="positive definite"):
        cuvil.jit(cnp.linalg.cholesky)(-np.eye(2))
    with pytest.raises(ShapeError, match="are square"):
        cnp.linalg.inv(np.ones((2, 3)))
    with pytest.raises(ShapeError, match="takes matrices"):
        cnp.linalg.det(np.ones(3))
    with pytest.raises(DTypeError, match="float16"):
        cnp.linalg.inv(np.eye(2, dtype=np.float16))
    with pytest.raises(DTypeError, match="real signal"):
        cnp.fft.rfft(np.ones(3, np.complex64))
    with pytest.raises(ArgumentError, match="expected 1 or more"):
        cnp.fft.fft(np.ones(3), n=0)
    with pytest.raises(ShapeError, match="vectors of 3"):
        cnp.linalg.cross(np.ones(2), np.ones(2))
    with pytest.raises(CuvilError, match="norm"):
        cnp.fft.fft(np.ones(3), norm="other")


def test_frequencies() -> None:
    assert_close(cnp.fft.fftfreq(5, d=0.5, dtype="float64"), np.fft.fftfreq(5, 0.5))
    assert_close(cnp.fft.rfftfreq(5), np.fft.rfftfreq(5).astype(np.float32))
