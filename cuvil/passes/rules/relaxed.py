"""Rules that hold for real numbers and not for floats: they run under ``numerics="relaxed"`` only."""

from __future__ import annotations

import numpy as np
from xdsl.ir import SSAValue

from cuvil.dtypes import float32, float64
from cuvil.ops.record import Array
from cuvil.passes.engine import Rewriter, RuleSet
from cuvil.passes.rules.arithmetic import elements, reciprocal
from cuvil.passes.rules.equation import Constant, drawn, equation, filled

_FLOATS = (float32, float64)


def _usual(a: Array) -> bool:
    """Whether every element is finite and neither tiny nor huge, so that a product or quotient of two stays normal."""
    wide = np.abs(a.astype(np.float64))
    return bool(np.all((wide > 1e-18) & (wide < 1e18)))


_USUAL = Constant(_usual, drawn(lambda c, dt: (c.integer(1, 24) / 8) * c.choice((1, -1))).draw)


def _merged(F: Rewriter, fn: np.ufunc, a: SSAValue, b: SSAValue) -> SSAValue:
    x, y = elements(F, a), elements(F, b)
    return F.constant(np.asarray(fn(x, y), dtype=x.dtype))


RELAXED = RuleSet(
    "relaxed",
    "the weight of the ops",
    (
        equation("add-float-constants", lambda F, x, a, b: F.add(F.add(x, a), b),
                 lambda F, x, a, b: F.add(x, _merged(F, np.add, a, b)), dtypes=_FLOATS,
                 constants={"a": _USUAL, "b": _USUAL}, kind="reassociates", domain="moderate"),
        equation("multiply-float-constants", lambda F, x, a, b: F.mul(F.mul(x, a), b),
                 lambda F, x, a, b: F.mul(x, _merged(F, np.multiply, a, b)), dtypes=_FLOATS,
                 constants={"a": _USUAL, "b": _USUAL}, kind="reassociates", domain="moderate"),
        equation("divide-float-constants", lambda F, x, a, b: F.div(F.div(x, a), b),
                 lambda F, x, a, b: F.div(x, _merged(F, np.multiply, a, b)), dtypes=_FLOATS,
                 constants={"a": _USUAL, "b": _USUAL}, kind="reassociates", domain="moderate"),
        equation("divide-by-constant", lambda F, x, c: F.div(x, c),
                 lambda F, x, c: F.mul(x, F.constant(reciprocal(elements(F, c)))),
                 dtypes=_FLOATS, constants={"c": _USUAL}, kind="reassociates", domain="moderate"),
        equation("divide-by-sqrt", lambda F, x, y: F.div(x, F.op("sqrt", y)),
                 lambda F, x, y: F.mul(x, F.op("rsqrt", y)), dtypes=_FLOATS, kind="reassociates", domain="positive"),
        equation("product-of-exps", lambda F, x, y: F.mul(F.exp(x), F.exp(y)), lambda F, x, y: F.exp(F.add(x, y)),
                 dtypes=_FLOATS, kind="reassociates", domain="moderate"),
        equation("log-of-exp", lambda F, x: F.op("log", F.exp(x)), lambda F, x: x, dtypes=_FLOATS,
                 kind="reassociates", domain="moderate"),
        equation("exp-of-log", lambda F, x: F.exp(F.op("log", x)), lambda F, x: x, dtypes=_FLOATS,
                 kind="reassociates", domain="positive"),
        equation("square-of-sqrt", lambda F, x: F.op("square", F.op("sqrt", x)), lambda F, x: x, dtypes=_FLOATS,
                 kind="reassociates", domain="positive"),
        equation("sqrt-times-sqrt", lambda F, x: F.mul(F.op("sqrt", x), F.op("sqrt", x)), lambda F, x: x,
                 dtypes=_FLOATS, kind="reassociates", domain="positive"),
        equation("sqrt-of-square", lambda F, x: F.op("sqrt", F.op("square", x)), lambda F, x: F.op("abs", x),
                 dtypes=_FLOATS, kind="reassociates", domain="moderate"),
        equation("reciprocal-of-reciprocal", lambda F, x: F.op("reciprocal", F.op("reciprocal", x)), lambda F, x: x,
                 dtypes=_FLOATS, kind="reassociates", domain="positive"),
        equation("pow-half", lambda F, x, c: F.op("pow", x, c), lambda F, x, c: F.op("sqrt", x), dtypes=_FLOATS,
                 constants={"c": filled(0.5)}, kind="reassociates", domain="positive",
                 doc="pow(x, 0.5) -> sqrt(x); they differ at -0.0 and -inf"),
        equation("common-factor", lambda F, x, y, z: F.add(F.mul(x, y), F.mul(x, z)),
                 lambda F, x, y, z: F.mul(x, F.add(y, z)), dtypes=_FLOATS, kind="reassociates", domain="positive"),
    ),
)  # fmt: skip


__all__ = ["RELAXED"]
