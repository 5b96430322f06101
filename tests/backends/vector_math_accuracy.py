"""Measure the error of the vector math in ulp over the whole range, and write the table of docs/accuracy.md.

    python -m backends.vector_math_accuracy          (in tests/; some minutes)

float32 functions of one argument are evaluated at every 509th bit pattern (8.4 million values, subnormals and
all exponents among them) and compared with float64; float64 functions at random bit patterns and around the places
where a method changes, compared with mpmath at 160 bits.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import mpmath
import numpy as np
from numpy.typing import NDArray

from .vector_kernels import TARGETS, instructions

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]

UNARY = (
    "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt",
    "sin", "cos", "tan", "asin", "acos", "atan",
    "sinh", "cosh", "tanh", "asinh", "acosh", "atanh",
    "erf", "erfc", "lgamma", "tgamma",
)  # fmt: skip
BINARY = ("pow", "atan2", "hypot")
#: Most ulp that a function may be off; NUMERICS rule 9 for float32.
BOUND_F32 = {name: 4.0 if name in ("pow", "tgamma", "lgamma") else 2.0 for name in UNARY + BINARY}
BOUND_F64 = dict.fromkeys(UNARY + BINARY, 4.0)
mpmath.mp.prec = 160


def _mp_lgamma(x: mpmath.mpf) -> mpmath.mpf:
    return mpmath.loggamma(x).real if x > 0 else mpmath.log(abs(mpmath.gamma(x)))


MPMATH: dict[str, Callable[..., mpmath.mpf]] = {
    **{n: getattr(mpmath, n) for n in UNARY + BINARY if hasattr(mpmath, n)},
    "exp2": lambda x: mpmath.power(2, x),
    "log2": lambda x: mpmath.log(x, 2),
    "pow": mpmath.power,
    "lgamma": _mp_lgamma,
    "tgamma": mpmath.gamma,
}
#: Open intervals where the real function is defined, and neither overflows nor, for speed, meets a huge argument.
DOMAIN: dict[str, tuple[float, float]] = {
    "log": (0, np.inf), "log2": (0, np.inf), "log10": (0, np.inf), "log1p": (-1, np.inf), "sqrt": (0, np.inf),
    "asin": (-1, 1), "acos": (-1, 1), "acosh": (1, np.inf), "atanh": (-1, 1),
    "exp": (-746, 709.7), "exp2": (-1075, 1024), "expm1": (-746, 709.7), "sinh": (-710, 710), "cosh": (-710, 710),
    "tanh": (-700, 700), "erf": (-30, 30), "erfc": (-30, 27.2), "tgamma": (-180, 171.6), "lgamma": (-1e4, 1e15),
}  # fmt: skip
_NUMPY = {"asin": "arcsin", "acos": "arccos", "atan": "arctan", "asinh": "arcsinh", "acosh": "arccosh",
          "atanh": "arctanh", "pow": "power", "atan2": "arctan2"}  # fmt: skip


def spacing(reference: F64, bits: int, least: int) -> F64:
    """One ulp of a format with `bits` significant bits and least exponent `least`, at each reference value."""
    _, exponent = np.frexp(reference)
    return np.ldexp(1.0, np.maximum(exponent - 1, least) - (bits - 1))


def error_f32(value: F32, reference: F64) -> F64:
    """Error in ulp of float32 values against float64; infinite where NaN, infinity or overflow differ."""
    with np.errstate(over="ignore", invalid="ignore"):
        rounded = reference.astype(np.float32)
        same = (value == rounded) | (np.isnan(value) & np.isnan(rounded))
        # A result that rounds to infinity may come out as the greatest float32, and the other way round.
        both = np.isfinite(value) & np.isfinite(rounded)
        wide = np.where(np.isinf(value), np.copysign(2.0**128, value), value.astype(np.float64))
        near = np.isfinite(reference) & ~np.isnan(value)
        error = np.where(both | near, np.abs(wide - reference) / spacing(reference, 24, -126), np.inf)
    return np.where(same & ~np.isfinite(value), 0.0, error)


def error_f64(name: str, value: float, *x: float) -> float:
    """Error in ulp of one float64 value against mpmath."""
    exact = MPMATH[name](*(mpmath.mpf(v) for v in x))
    if exact == 0:
        return 0.0 if value == 0 else float("inf")
    if not np.isfinite(value):
        return 0.0 if abs(exact) > mpmath.mpf(sys.float_info.max) * (1 - mpmath.mpf(2) ** -51) else float("inf")
    ulp = mpmath.mpf(2) ** (max(mpmath.mag(exact) - 1, -1022) - 52)
    return float(abs(mpmath.mpf(value) - exact) / ulp)


def oracle_f32(name: str, target: str, *x: F32) -> F64:
    """The function in float64: NumPy's, or for what NumPy lacks the C library's."""
    with np.errstate(invalid="ignore"):  # widening a signalling NaN
        wide = [v.astype(np.float64) for v in x]
    function = getattr(np, _NUMPY.get(name, name), None)
    with np.errstate(all="ignore"):
        if function is not None:
            return np.asarray(function(*wide), np.float64)
        return np.asarray(instructions(target)(f"{name}_f64", np.float64, *wide), np.float64)


def worst_f32(name: str, target: str, *x: F32) -> tuple[float, tuple[float, ...]]:
    """The largest error over the points, and where."""
    got = np.asarray(instructions(target)(f"{name}_f32", np.float32, *x), np.float32)
    reference = oracle_f32(name, target, *x)
    error = error_f32(got, reference)
    at = int(np.argmax(error))
    return float(error[at]), tuple(float(v[at]) for v in x)


def points_f32(step: int) -> F32:
    """Every `step`-th float32 bit pattern: all exponents, both signs, subnormals, infinities and NaN."""
    return np.arange(0, 2**32, step, dtype=np.uint64).astype(np.uint32).view(np.float32)


def pairs_f32(name: str, count: int, seed: int = 0) -> tuple[F32, F32]:
    """Argument pairs: random bit patterns, and for pow also pairs with a result in range."""
    rng = np.random.default_rng(seed)
    a = rng.integers(0, 2**32, count, dtype=np.uint32).view(np.float32)
    b = rng.integers(0, 2**32, count, dtype=np.uint32).view(np.float32)
    if name == "pow":
        half = count // 2
        a[:half] = np.abs(a[:half])
        with np.errstate(all="ignore"):
            b[:half] = (rng.uniform(-150, 129, half) / np.log2(a[:half].astype(np.float64))).astype(np.float32)
    else:
        half = count // 2
        with np.errstate(all="ignore"):
            b[:half] = (a[:half] * np.exp(rng.normal(size=half))).astype(np.float32)
    return a, b


def pairs_f64(name: str, count: int) -> tuple[F64, F64]:
    """Finite pairs with a positive first argument, and a second that is not zero."""
    a, b = pairs_f32(name, count * 2, seed=1)
    keep = np.isfinite(a) & np.isfinite(b) & (a > 0) & (b != 0)
    # A factor that float32 doesn't hold gives the products their low bits.
    return a[keep].astype(np.float64) * 1.0000000123, b[keep].astype(np.float64) * 0.9999999876


def points_f64(name: str, count: int, seed: int = 0) -> F64:
    """Points of the function's domain: random bit patterns, moderate values, and values close to 0, 1 and pi/2's."""
    rng = np.random.default_rng(seed)
    low, high = DOMAIN.get(name, (-np.inf, np.inf))
    finite_low, finite_high = max(low, -100.0), min(high, 100.0)
    part = count // 5
    multiples = np.arange(1, part + 1) * rng.integers(1, 600, part) * (np.pi / 2)
    values = np.concatenate(
        [
            rng.integers(0, 2**64, count, dtype=np.uint64).view(np.float64),
            rng.uniform(finite_low, finite_high, part),
            rng.uniform(max(low, -2.0e3), min(high, 2.0e3), part),
            np.exp2(rng.uniform(-60, 3, part)) * rng.choice((-1.0, 1.0), part),
            1 + np.exp2(rng.uniform(-52, -2, part)) * rng.choice((-1.0, 1.0), part),
            multiples,
        ]
    )
    values = values[np.isfinite(values) & (values > low) & (values < high)]
    return np.asarray(values[rng.permutation(values.size)[:count]], np.float64)


def worst_f64(name: str, target: str, *x: F64) -> tuple[float, tuple[float, ...]]:
    """The largest error over the points, and where."""
    got = instructions(target)(f"{name}_f64", np.float64, *x)
    errors = [(error_f64(name, float(y), *map(float, v)), v) for y, *v in zip(got, *x, strict=True)]
    error, at = max(errors, key=lambda pair: pair[0])
    return error, tuple(float(v) for v in at)


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    name: str
    float32: list[tuple[float, tuple[float, ...]]]
    float64: tuple[float, tuple[float, ...]]


def measure(step: int, count: int) -> list[Row]:
    """Every function on every target."""
    rows: list[Row] = []
    for name in UNARY + BINARY:
        if name in UNARY:
            x: tuple[F32, ...] = (points_f32(step),)
            y: tuple[F64, ...] = (points_f64(name, count),)
        else:
            x = pairs_f32(name, 2**32 // step)
            y = pairs_f64(name, count)
        rows.append(Row(name, [worst_f32(name, t, *x) for t in TARGETS], worst_f64(name, TARGETS[0], *y)))
    return rows


_HEAD = """# Accuracy of the elementary functions

Largest error found, in units in the last place (ulp), of the functions in `math.h`. Made by
`tests/backends/vector_math_accuracy.py`; do not edit.

* float32: every {step}th bit pattern ({points:.1f} million values: all exponents, subnormals, infinities, NaN); for
  two arguments as many random pairs. The columns are gcc's `-march` targets: AVX-512 or whatever the measuring
  machine has, AVX2 with FMA, and SSE4.2 without FMA.
* float64: up to {count} points of the domain each, against mpmath at 160 bits.
* The bounds that tests hold: 2 ulp in float32 (4 for pow, lgamma, tgamma), 4 ulp in float64.
* Infinities, NaN, overflow and underflow agree everywhere; a difference counts as an infinite error.
* float16 and bfloat16 compute in float32 and round once.
"""


def table(rows: list[Row], step: int, count: int) -> str:
    """The document's text."""
    lines = [_HEAD.format(step=step, points=2**32 / step / 1e6, count=count)]
    lines.append("| function | " + " | ".join(f"float32 {t}" for t in TARGETS) + " | worst at | float64 | worst at |")
    lines.append("|---|" + "---|" * (len(TARGETS) + 3))
    for row in rows:
        _, at = max(row.float32)
        cells = [f"{e:.2f}" for e, _ in row.float32]
        place = ", ".join(f"{v:.9g}" for v in at)
        place64 = ", ".join(f"{v:.17g}" for v in row.float64[1])
        lines.append(f"| {row.name} | {' | '.join(cells)} | {place} | {row.float64[0]:.2f} | {place64} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    """Measure, write docs/accuracy.md, and fail if a bound is broken."""
    step, count = 509, 6000
    rows = measure(step, count)
    (Path(__file__).parents[2] / "docs" / "accuracy.md").write_text(table(rows, step, count))
    broken = [
        f"{r.name}: float32 {max(e for e, _ in r.float32):.2f} ulp, float64 {r.float64[0]:.2f} ulp"
        for r in rows
        if max(e for e, _ in r.float32) > BOUND_F32[r.name] or r.float64[0] > BOUND_F64[r.name]
    ]
    print("\n".join(broken) if broken else "all bounds hold")
    return bool(broken)


if __name__ == "__main__":
    sys.exit(main())
