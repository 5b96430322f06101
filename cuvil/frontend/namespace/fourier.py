"""The extension ``fft`` of the array API: discrete Fourier transforms over one axis or several."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from cuvil.dtypes import complex_of, float32
from cuvil.frontend.dispatch import ArrayLike, apply, dtype_of
from cuvil.frontend.namespace.arguments import (
    AnyArray,
    DTypeLike,
    as_dtype,
    as_int,
    as_size,
    cast,
    choice,
    floating,
    one_axis,
    operand,
    shape_of,
    some_axes,
)
from cuvil.frontend.namespace.creation import asarray
from cuvil.frontend.namespace.elementwise import conj
from cuvil.frontend.namespace.inspection import check_device
from cuvil.frontend.namespace.manipulation import roll
from cuvil.frontend.source import at_user_line
from cuvil.ops.fourier import NORMS
from cuvil.support.errors import ArgumentError, DTypeError
from cuvil.symbolic import Dim

#: The way to scale of a transform that runs the other way round.
_OPPOSITE = {"backward": "forward", "ortho": "ortho", "forward": "backward"}


def _complex(x: ArrayLike) -> Any:
    given = operand(x)
    dt = dtype_of(given)
    return cast(given, complex_of(floating(dt)))


def _real(name: str, x: ArrayLike) -> Any:
    given = operand(x)
    dt = dtype_of(given)
    if dt.is_complex:
        raise DTypeError(f"{name} takes a real signal, got {dt.name}{at_user_line()}; use fft for a complex one")
    dt = floating(dt)
    return cast(given, float32 if dt.is_half else dt)


def _size(name: str, n: Any) -> Dim:
    size = as_size(n, "n")
    if isinstance(size, int) and size < 1:
        raise ArgumentError(f"{name}: the transformed size is {size}{at_user_line()}; expected 1 or more")
    return size


def _run(op: str, x: Any, n: Any, axis: int, norm: str, default: Dim | None = None) -> AnyArray:
    a = one_axis(axis, len(shape_of(x)))
    size = _size(op, (shape_of(x)[a] if default is None else default) if n is None else n)
    return apply(op, x, n=size, axis=a, norm=choice(norm, NORMS, f"{op}: norm"))


def fft(x: ArrayLike, /, n: Any = None, axis: int = -1, norm: str = "backward") -> AnyArray:
    """The discrete Fourier transform along an axis, in the precision of ``x``; ``n`` cuts or pads the signal first.

    Raises:
        ArgumentError: a size below 1, or an unknown ``norm``.

    >>> fft([1.0, 1.0]).tolist()
    [(2+0j), 0j]
    """
    return _run("fft", _complex(x), n, axis, norm)


def ifft(x: ArrayLike, /, n: Any = None, axis: int = -1, norm: str = "backward") -> AnyArray:
    """The inverse of :func:`fft`.

    >>> ifft([2.0, 0.0]).tolist()
    [(1+0j), (1+0j)]
    """
    return _run("ifft", _complex(x), n, axis, norm)


def rfft(x: ArrayLike, /, n: Any = None, axis: int = -1, norm: str = "backward") -> AnyArray:
    """The transform of a real signal: its frequencies 0 to ``n // 2``.

    Raises:
        DTypeError: a complex signal.

    >>> rfft([1.0, 1.0, 1.0]).shape
    (2,)
    """
    return _run("rfft", _real("rfft", x), n, axis, norm)


def irfft(x: ArrayLike, /, n: Any = None, axis: int = -1, norm: str = "backward") -> AnyArray:
    """The inverse of :func:`rfft`: a real signal of size ``n``, by default twice the frequencies less two.

    >>> irfft([3.0, 0.0], n=3).tolist()
    [1.0, 1.0, 1.0]
    """
    given = _complex(x)
    a = one_axis(axis, len(shape_of(given)))
    return _run("irfft", given, n, axis, norm, 2 * (shape_of(given)[a] - 1))


def hfft(x: ArrayLike, /, n: Any = None, axis: int = -1, norm: str = "backward") -> AnyArray:
    """The real transform of a signal that is Hermitian in time.

    >>> hfft([1.0, 0.0]).tolist()
    [1.0, 1.0]
    """
    return irfft(conj(_complex(x)), n=n, axis=axis, norm=_OPPOSITE[choice(norm, NORMS, "hfft: norm")])


def ihfft(x: ArrayLike, /, n: Any = None, axis: int = -1, norm: str = "backward") -> AnyArray:
    """The inverse of :func:`hfft`.

    >>> ihfft([1.0, 1.0]).shape
    (2,)
    """
    return conj(rfft(x, n=n, axis=axis, norm=_OPPOSITE[choice(norm, NORMS, "ihfft: norm")]))


def _several(name: str, x: Any, s: Any, axes: Any) -> list[tuple[int, Any]]:
    """Axes in the order given, each with the size that is asked for or None."""
    rank = len(shape_of(x))
    sizes = None if s is None else [as_size(n, "s") for n in s]
    if axes is None:
        over = tuple(range(rank)) if sizes is None else tuple(range(rank - len(sizes), rank))
    else:
        over = tuple(one_axis(a, rank, "axes") for a in axes)
    if sizes is None:
        return [(a, None) for a in over]
    if len(sizes) != len(over):
        raise ArgumentError(f"{name}: {len(sizes)} sizes for {len(over)} axes{at_user_line()}")
    return [(a, shape_of(x)[a] if n == -1 else n) for a, n in zip(over, sizes, strict=True)]


def fftn(x: ArrayLike, /, s: Any = None, axes: Sequence[int] | None = None, norm: str = "backward") -> AnyArray:
    """:func:`fft` along several axes, by default all of them.

    >>> fftn([[1.0, 1.0], [1.0, 1.0]]).tolist()
    [[(4+0j), 0j], [0j, 0j]]
    """
    out = _complex(x)
    for a, n in reversed(_several("fftn", out, s, axes)):
        out = fft(out, n=n, axis=a, norm=norm)
    return out


def ifftn(x: ArrayLike, /, s: Any = None, axes: Sequence[int] | None = None, norm: str = "backward") -> AnyArray:
    """:func:`ifft` along several axes, by default all of them.

    >>> ifftn([[4.0, 0.0], [0.0, 0.0]]).tolist()
    [[(1+0j), (1+0j)], [(1+0j), (1+0j)]]
    """
    out = _complex(x)
    for a, n in reversed(_several("ifftn", out, s, axes)):
        out = ifft(out, n=n, axis=a, norm=norm)
    return out


def rfftn(x: ArrayLike, /, s: Any = None, axes: Sequence[int] | None = None, norm: str = "backward") -> AnyArray:
    """:func:`rfft` along the last of several axes, :func:`fft` along the others.

    >>> rfftn([[1.0, 1.0], [1.0, 1.0]]).shape
    (2, 2)
    """
    given = _real("rfftn", x)
    over = _several("rfftn", given, s, axes)
    if not over:
        raise ArgumentError(f"rfftn needs at least one axis{at_user_line()}")
    *others, (last, size) = over
    out = rfft(given, n=size, axis=last, norm=norm)
    for a, n in reversed(others):
        out = fft(out, n=n, axis=a, norm=norm)
    return out


def irfftn(x: ArrayLike, /, s: Any = None, axes: Sequence[int] | None = None, norm: str = "backward") -> AnyArray:
    """The inverse of :func:`rfftn`.

    >>> irfftn([[4.0, 0.0], [0.0, 0.0]]).shape
    (2, 2)
    """
    out = _complex(x)
    over = _several("irfftn", out, s, axes)
    if not over:
        raise ArgumentError(f"irfftn needs at least one axis{at_user_line()}")
    *others, (last, size) = over
    for a, n in others:
        out = ifft(out, n=n, axis=a, norm=norm)
    return irfft(out, n=size, axis=last, norm=norm)


def _frequencies(values: Any, dtype: DTypeLike, device: Any) -> AnyArray:
    check_device(device)
    return asarray(values.astype(as_dtype(dtype or float32).numpy))


def fftfreq(n: int, /, d: float = 1.0, dtype: DTypeLike = None, device: Any = None) -> AnyArray:
    """The frequencies of :func:`fft` for ``n`` samples that are ``d`` apart, float32 by default.

    >>> fftfreq(4).tolist()
    [0.0, 0.25, -0.5, -0.25]
    """
    return _frequencies(np.fft.fftfreq(as_int(n, "n"), d), dtype, device)


def rfftfreq(n: int, /, d: float = 1.0, dtype: DTypeLike = None, device: Any = None) -> AnyArray:
    """The frequencies of :func:`rfft` for ``n`` samples that are ``d`` apart, float32 by default.

    >>> rfftfreq(4).tolist()
    [0.0, 0.25, 0.5]
    """
    return _frequencies(np.fft.rfftfreq(as_int(n, "n"), d), dtype, device)


def fftshift(x: ArrayLike, /, axes: Any = None) -> AnyArray:
    """Axes rolled so that frequency 0 is in the middle.

    >>> fftshift([0, 1, -2, -1]).tolist()
    [-2, -1, 0, 1]
    """
    given = operand(x)
    over = some_axes(axes, len(shape_of(given)), "axes")
    return roll(given, tuple(shape_of(given)[a] // 2 for a in over), over) if over else given


def ifftshift(x: ArrayLike, /, axes: Any = None) -> AnyArray:
    """The inverse of :func:`fftshift`.

    >>> ifftshift([-2, -1, 0, 1]).tolist()
    [0, 1, -2, -1]
    """
    given = operand(x)
    over = some_axes(axes, len(shape_of(given)), "axes")
    return roll(given, tuple(-(shape_of(given)[a] // 2) for a in over), over) if over else given


__all__ = [
    "fft", "fftfreq", "fftn", "fftshift", "hfft", "ifft", "ifftn", "ifftshift", "ihfft", "irfft", "irfftn", "rfft",
    "rfftfreq", "rfftn",
]  # fmt: skip
