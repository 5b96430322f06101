"""Makes concrete arrays of a shape, dtype and domain from a seed, special values among them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from cuvil.dtypes import DType, dtype
from cuvil.ops.record import Array, Domain, OperandSample


class RandomChooser:
    """Makes a record's sample choices from a seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def integer(self, low: int, high: int) -> int:
        return self.random.randint(low, high)

    def boolean(self) -> bool:
        return self.random.random() < 0.5

    def choice(self, options: Sequence[Any]) -> Any:
        return self.random.choice(options)


def special_values(dt: DType) -> list[Any]:
    """Values at which implementations go wrong: zeros of both signs, extremes, subnormals, NaN, infinities.

    >>> special_values(dtype("int8"))
    [0, 1, -1, -128, 127]
    """
    if dt.is_bool:
        return [False, True]
    if dt.is_integer:
        info = np.iinfo(dt.numpy)
        return [0, 1, -1 if dt.is_signed else 2, int(info.min), int(info.max)]
    tiny, largest = {
        "float16": (2.0**-24, 65504.0),
        "bfloat16": (2.0**-133, 3.3895313892515355e38),
        "float32": (2.0**-149, 3.4028234663852886e38),
        "float64": (2.0**-1074, 1.7976931348623157e308),
    }[dt.name]
    return [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, tiny, -tiny, largest, -largest, 0.5, 2.5, 88.5]


def draw_array(rng: np.random.Generator, sample: OperandSample) -> Array:
    """An array of the sample's shape, dtype and domain."""
    dt, shape, domain = sample.dtype, sample.shape, sample.domain
    if dt.is_complex:
        out = np.empty(shape, dt.numpy)
        out.real, out.imag = (draw_array(rng, replace(sample, dtype=dt.part)) for _ in range(2))
        return out
    if domain == "index":
        low, high = (-sample.size, sample.size) if dt.is_signed else (0, sample.size)
        return rng.integers(low, max(high, low + 1), shape).astype(dt.numpy)
    if dt.is_bool:
        return rng.integers(0, 2, shape).astype(np.bool_)
    if dt.is_integer:
        return _integers(rng, shape, dt, domain)
    if domain == "unit":
        out = rng.uniform(-1, 1, shape)
    elif domain == "positive":
        out = rng.uniform(0.125, 8, shape)
    else:
        out = rng.uniform(-8, 8, shape)
        # Halves and small integers meet ties and equal elements far more often than uniform reals do.
        out = np.where(rng.random(shape) < 0.3, np.round(out * 2) / 2, out)
    if domain == "nonzero":
        out = np.where(np.abs(out) < 0.125, 1.0, out)
    if domain == "finite":
        out = np.where(rng.random(shape) < 0.1, rng.choice([0.0, -0.0, 1e4, -1e4, 1e-6], shape), out)
    if domain == "any":
        out = np.where(rng.random(shape) < 0.2, rng.choice(special_values(dt), shape), out)
    with np.errstate(over="ignore", invalid="ignore"):
        return out.astype(dt.numpy)


def _integers(rng: np.random.Generator, shape: tuple[int, ...], dt: DType, domain: Domain) -> Array:
    info = np.iinfo(dt.numpy)
    low = 1 if domain == "positive" else max(int(info.min), -8)
    out = rng.integers(low, 9, shape).astype(dt.numpy)
    if domain == "any":
        special = np.array(special_values(dt), dt.numpy)
        out = np.where(rng.random(shape) < 0.2, rng.choice(special, shape), out).astype(dt.numpy)
        wide = rng.integers(int(info.min), int(info.max), shape, dtype=dt.numpy, endpoint=True)
        out = np.where(rng.random(shape) < 0.2, wide, out).astype(dt.numpy)
    if domain == "nonzero":
        out = np.where(out == 0, 1, out).astype(dt.numpy)
    return out


def sample_array(
    name: str, shape: Sequence[int], domain: Domain = "moderate", *, seed: int = 0, size: int = 0
) -> Array:
    """An array made from a seed: what failing programs print instead of long lists of numbers.

    ``name`` is a dtype, ``domain`` one of :data:`cuvil.ops.record.Domain`; ``size`` bounds the indices of the domain
    ``"index"``.

    Raises:
        DTypeError: no such dtype.

    >>> sample_array("float32", (2, 3), seed=1).shape
    (2, 3)
    """
    return draw_array(np.random.default_rng(seed), OperandSample(tuple(shape), dtype(name), domain, size))
