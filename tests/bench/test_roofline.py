"""The loops that measure the machine."""

from __future__ import annotations

from bench.roofline import Roofline


def test_rates_are_plausible() -> None:
    rates = Roofline(threads=1).measure(1 << 20, 0.002)
    assert rates["flops_per_second"] > 1e8
    assert rates["bytes_per_second"] > 1e8
    assert rates["amx_flops_per_second"] >= 0
