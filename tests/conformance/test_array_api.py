"""What the Python array API 2024.12 asks for, condensed: names, signatures, inspection, sizes that depend on values.

``make conformance`` runs the standard's own suite; this runs without it.
"""

from __future__ import annotations

import inspect
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cuvil
import cuvil.numpy as cnp
from cuvil.support.errors import ArgumentError, CuvilError, TracingError
from tests.conformance import cuvil_jitted

SKIPS = Path(__file__).with_name("skips.txt")

#: The standard's functions: parameters before the slash by place only, those behind the star by name only.
SIGNATURES = """
arange(start,/,stop,step,*,dtype,device) asarray(obj,/,*,dtype,device,copy) empty(shape,*,dtype,device)
empty_like(x,/,*,dtype,device) eye(n_rows,n_cols,/,*,k,dtype,device) from_dlpack(x,/,*,device,copy)
full(shape,fill_value,*,dtype,device) full_like(x,/,fill_value,*,dtype,device)
linspace(start,stop,/,num,*,dtype,device,endpoint) meshgrid(*arrays,indexing) ones(shape,*,dtype,device)
ones_like(x,/,*,dtype,device) tril(x,/,*,k) triu(x,/,*,k) zeros(shape,*,dtype,device)
zeros_like(x,/,*,dtype,device) astype(x,dtype,/,*,copy,device) can_cast(from_,to,/) finfo(type,/) iinfo(type,/)
isdtype(dtype,kind) result_type(*arrays_and_dtypes) abs(x,/) acos(x,/) acosh(x,/) add(x1,x2,/) asin(x,/) asinh(x,/)
atan(x,/) atan2(x1,x2,/) atanh(x,/) bitwise_and(x1,x2,/) bitwise_left_shift(x1,x2,/) bitwise_invert(x,/)
bitwise_or(x1,x2,/) bitwise_right_shift(x1,x2,/) bitwise_xor(x1,x2,/) ceil(x,/) clip(x,/,min,max) conj(x,/)
copysign(x1,x2,/) cos(x,/) cosh(x,/) divide(x1,x2,/) equal(x1,x2,/) exp(x,/) expm1(x,/) floor(x,/)
floor_divide(x1,x2,/) greater(x1,x2,/) greater_equal(x1,x2,/) hypot(x1,x2,/) imag(x,/) isfinite(x,/) isinf(x,/)
isnan(x,/) less(x1,x2,/) less_equal(x1,x2,/) log(x,/) log1p(x,/) log2(x,/) log10(x,/) logaddexp(x1,x2,/)
logical_and(x1,x2,/) logical_not(x,/) logical_or(x1,x2,/) logical_xor(x1,x2,/) maximum(x1,x2,/) minimum(x1,x2,/)
multiply(x1,x2,/) negative(x,/) nextafter(x1,x2,/) not_equal(x1,x2,/) positive(x,/) pow(x1,x2,/) real(x,/)
reciprocal(x,/) remainder(x1,x2,/) round(x,/) sign(x,/) signbit(x,/) sin(x,/) sinh(x,/) square(x,/) sqrt(x,/)
subtract(x1,x2,/) tan(x,/) tanh(x,/) trunc(x,/) take(x,indices,/,*,axis) take_along_axis(x,indices,/,*,axis)
matmul(x1,x2,/) matrix_transpose(x,/) tensordot(x1,x2,/,*,axes) vecdot(x1,x2,/,*,axis) broadcast_arrays(*arrays)
broadcast_to(x,/,shape) concat(arrays,/,*,axis) expand_dims(x,/,axis) flip(x,/,*,axis)
moveaxis(x,source,destination,/) permute_dims(x,/,axes) repeat(x,repeats,/,*,axis) reshape(x,/,shape,*,copy)
roll(x,/,shift,*,axis) squeeze(x,/,axis) stack(arrays,/,*,axis) tile(x,repetitions,/) unstack(x,/,*,axis)
argmax(x,/,*,axis,keepdims) argmin(x,/,*,axis,keepdims) count_nonzero(x,/,*,axis,keepdims) nonzero(x,/)
searchsorted(x1,x2,/,*,side,sorter) where(condition,x1,x2,/) unique_all(x,/) unique_counts(x,/) unique_inverse(x,/)
unique_values(x,/) argsort(x,/,*,axis,descending,stable) sort(x,/,*,axis,descending,stable)
cumulative_sum(x,/,*,axis,dtype,include_initial) cumulative_prod(x,/,*,axis,dtype,include_initial)
max(x,/,*,axis,keepdims) mean(x,/,*,axis,keepdims) min(x,/,*,axis,keepdims) prod(x,/,*,axis,dtype,keepdims)
std(x,/,*,axis,correction,keepdims) sum(x,/,*,axis,dtype,keepdims) var(x,/,*,axis,correction,keepdims)
all(x,/,*,axis,keepdims) any(x,/,*,axis,keepdims) diff(x,/,*,axis,n,prepend,append) linalg.cholesky(x,/,*,upper)
linalg.cross(x1,x2,/,*,axis) linalg.det(x,/) linalg.diagonal(x,/,*,offset) linalg.eigh(x,/) linalg.eigvalsh(x,/)
linalg.inv(x,/) linalg.matmul(x1,x2,/) linalg.matrix_norm(x,/,*,keepdims,ord) linalg.matrix_power(x,n,/)
linalg.matrix_rank(x,/,*,rtol) linalg.matrix_transpose(x,/) linalg.outer(x1,x2,/) linalg.pinv(x,/,*,rtol)
linalg.qr(x,/,*,mode) linalg.slogdet(x,/) linalg.solve(x1,x2,/) linalg.svd(x,/,*,full_matrices) linalg.svdvals(x,/)
linalg.tensordot(x1,x2,/,*,axes) linalg.trace(x,/,*,offset,dtype) linalg.vecdot(x1,x2,/,*,axis)
linalg.vector_norm(x,/,*,axis,keepdims,ord) fft.fft(x,/,*,n,axis,norm) fft.ifft(x,/,*,n,axis,norm)
fft.fftn(x,/,*,s,axes,norm) fft.ifftn(x,/,*,s,axes,norm) fft.rfft(x,/,*,n,axis,norm) fft.irfft(x,/,*,n,axis,norm)
fft.rfftn(x,/,*,s,axes,norm) fft.irfftn(x,/,*,s,axes,norm) fft.hfft(x,/,*,n,axis,norm)
fft.ihfft(x,/,*,n,axis,norm) fft.fftfreq(n,/,*,d,dtype,device) fft.rfftfreq(n,/,*,d,dtype,device)
fft.fftshift(x,/,*,axes) fft.ifftshift(x,/,*,axes)
"""


def _signatures() -> list[tuple[str, list[str], list[str], list[str]]]:
    out: list[tuple[str, list[str], list[str], list[str]]] = []
    for text in SIGNATURES.split():
        name, _, rest = text.rstrip(")").partition("(")
        groups: dict[str, list[str]] = {"place": [], "either": [], "name": []}
        current = "either"
        for p in filter(None, rest.split(",")):
            if p == "/":
                groups["place"], groups["either"] = groups["either"], []
            elif p.startswith("*"):
                current = "name"
            else:
                groups[current].append(p)
        out.append((name, groups["place"], groups["either"], groups["name"]))
    return out


def _function(name: str) -> Any:
    found: Any = cnp
    for part in name.split("."):
        found = getattr(found, part)
    return found


@pytest.mark.parametrize("name, place, either, named", _signatures(), ids=lambda v: v if isinstance(v, str) else "")
def test_signatures(name: str, place: list[str], either: list[str], named: list[str]) -> None:
    parameters = inspect.signature(_function(name)).parameters
    ordered = [p for p in parameters.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if not any(p.kind is p.VAR_POSITIONAL for p in parameters.values()):
        assert len(ordered) >= len(place) + len(either)
        assert [p.name for p in ordered[len(place) : len(place) + len(either)]] == either
    for p in named:
        assert parameters[p].kind in (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        assert parameters[p].default is not inspect.Parameter.empty or p == "num"


def test_inspection() -> None:
    info = cnp.__array_namespace_info__()
    assert info.devices() == [info.default_device()] == ["cpu"]
    assert info.capabilities()["data-dependent shapes"] and info.capabilities()["boolean indexing"]
    assert info.default_dtypes() == {
        "real floating": np.float32, "complex floating": np.complex64, "integral": np.int64, "indexing": np.int64,
    }  # fmt: skip
    assert set(info.dtypes(kind=("bool", "complex floating"))) == {"bool", "complex64", "complex128"}
    assert len(info.dtypes()) == 13 and "float16" not in info.dtypes()
    with pytest.raises(ArgumentError, match="no kind"):
        info.dtypes(kind="other")
    for make in (cnp.zeros, cnp.ones, cnp.empty, cnp.arange, cnp.eye):
        assert make(2, device="cpu").shape[0] == 2
        with pytest.raises(ArgumentError, match="no device 'gpu'"):
            make(2, device="gpu")


# ------------------------------------------------------------------------------------------ data-dependent sizes

DATA_DEPENDENT = ("nonzero", "argwhere", "flatnonzero", "unique", "unique_all", "unique_counts", "unique_inverse",
                  "unique_values")  # fmt: skip


def test_data_dependent_sizes_outside_of_jit() -> None:
    x = np.array([[3.0, np.nan, 0.0], [0.0, 3.0, np.nan]], np.float32)
    assert [i.tolist() for i in cnp.nonzero(x)] == [[0, 0, 1, 1], [0, 1, 1, 2]]
    assert cnp.argwhere(x == 3).tolist() == [[0, 0], [1, 1]]
    assert cnp.flatnonzero(x == 3).tolist() == [0, 4]
    values, indices, inverse, counts = cnp.unique_all(x)
    assert values.dtype == np.float32 and values[:2].tolist() == [0, 3] and np.isnan(values[2:]).all()
    assert len(values) == 4  # each NaN is a value of its own
    assert counts.tolist() == [2, 2, 1, 1] and inverse.shape == x.shape
    np.testing.assert_array_equal(x.reshape(-1)[indices], values)
    np.testing.assert_array_equal(values[inverse], x)
    assert cnp.unique_counts(x).counts.dtype == cnp.unique_inverse(x).inverse_indices.dtype == np.int64
    assert cnp.unique([2, 1, 2], return_inverse=True)[1].tolist() == [1, 0, 1]
    assert cnp.unique_values(np.array([2, 1, 2], "uint8")).tolist() == [1, 2]
    assert cnp.unique_values(cnp.asarray([2, 1, 2], "bfloat16")).tolist() == [1, 2]
    assert cnp.repeat(np.array([1, 2]), np.array([2, 0])).tolist() == [1, 1]
    with pytest.raises(TypeError, match="rank 1 or more"):
        cnp.nonzero(np.array(1))


@pytest.mark.parametrize("name", DATA_DEPENDENT)
def test_data_dependent_sizes_inside_of_jit_say_why_and_what_to_do(name: str) -> None:
    with pytest.raises(TracingError, match=rf"{name} of a traced array has a result whose size depends on values.*"
                       rf"test_array_api\.py.*Or call {name} outside"):  # fmt: skip
        cuvil.jit(lambda x: getattr(cnp, name)(x))(np.arange(3))


def test_other_sizes_that_depend_on_values_inside_of_jit() -> None:
    x = np.arange(3)
    for fn, message in (
        (lambda x: x[x > 1], "used as an index"),
        (lambda x: cnp.repeat(x, x), "counts are the traced array"),
        (lambda x: cnp.arange(x[0]), "static"),
        (lambda x: x[: x[0]], "slice bound"),
    ):
        with pytest.raises(CuvilError, match=message):
            cuvil.jit(fn)(x)


# ------------------------------------------------------------------------------------------------------ functions


def test_diff() -> None:
    x = np.array([[1, 4, 9], [2, 2, 0]])
    for options in ({}, {"n": 2}, {"axis": 0}, {"n": 0}, {"n": 3}, {"prepend": 0}, {"append": x[:, :1]},
                    {"prepend": np.array([[5, 5, 5]]), "axis": 0}):  # fmt: skip
        np.testing.assert_array_equal(cnp.diff(x, **options), np.diff(x, **options))
    assert cnp.diff(np.array([True, True, False])).tolist() == [False, True]
    with pytest.raises(ArgumentError, match="n >= 0"):
        cnp.diff(x, n=-1)


def test_creation_keeps_digits_and_dtypes() -> None:
    assert cnp.asarray(2.5e-300, dtype="float64") == 2.5e-300
    assert cnp.full((2,), 0.1, dtype="float64")[1] == 0.1
    assert cnp.full_like(np.zeros(1), 16777217.0)[0] == 16777217.0
    assert cnp.asarray(2**53 + 1, dtype="int64") == 2**53 + 1
    assert cnp.asarray(2**64 - 1, dtype="uint64") == 2**64 - 1
    assert cnp.linspace(4.5860098989617354e-11, 0.0, 1, dtype="float64")[0] == 4.5860098989617354e-11
    assert cnp.linspace(0, 1j, 3).tolist() == [0, 0.5j, 1j]
    assert cnp.eye(2, dtype="complex64").dtype == np.complex64
    x = cnp.zeros((2, 2))
    x[0, 0] = 1  # arrays of their own, and not views of one element
    assert x.sum() == 1
    assert cnp.from_dlpack(np.ones(2)).tolist() == [1, 1]
    with pytest.raises(TypeError, match="__dlpack__"):
        cnp.from_dlpack([1])


def test_floats_of_finfo_are_python_floats() -> None:
    for name in ("float16", "bfloat16", "float32", "float64", "complex64"):
        info = cnp.finfo(name)
        assert all(type(v) is float for v in (info.eps, info.max, info.min, info.smallest_normal))
    assert cnp.finfo("float32").nmant == 23
    assert cnp.finfo(np.ones(1, np.float64)).bits == 64


def test_searchsorted_with_a_sorter() -> None:
    x = np.array([30, 10, 20])
    assert cnp.searchsorted(x, [15, 30], sorter=np.argsort(x)).tolist() == [1, 2]


# -------------------------------------------------------------------------------------------- every call compiled


def test_the_jitted_namespace_gives_what_the_eager_one_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuvil_jitted, "BACKEND", "reference")
    xp = cuvil_jitted.xp
    x = np.array([[2.0, 1.0], [1.0, 3.0]])
    for call in (
        lambda p: p.sum(x, axis=0), lambda p: p.concat([x, x], axis=1), lambda p: p.meshgrid(x[0], x[1]),
        lambda p: p.linalg.svd(x), lambda p: p.fft.rfft(x), lambda p: p.where(x > 1, x, 0.0), lambda p: p.zeros((2, 3)),
        lambda p: p.repeat(x, np.array([1, 2]), axis=0), lambda p: p.unique_values(x), lambda p: p.add(x, 1.5),
        lambda p: p.take(x, np.array([1, 0]), axis=1), lambda p: p.broadcast_arrays(x, x[0]),
    ):  # fmt: skip
        got, want = call(xp), call(cnp)
        assert type(got) is type(want)
        for g, w in zip(got, want, strict=True) if isinstance(want, (tuple, list)) else ((got, want),):
            assert g.dtype == w.dtype
            np.testing.assert_allclose(g, w)


def test_each_skip_has_a_reason_above_it() -> None:
    lines = SKIPS.read_text(encoding="utf-8").splitlines()
    ids = [line for line in lines if not line.startswith("#")]
    assert ids and len(set(ids)) == len(ids)
    for before, line in itertools.pairwise(lines):
        if not line.startswith("#"):
            assert line.startswith("array_api_tests/test_") and before.startswith("# ") and len(before) > 20
