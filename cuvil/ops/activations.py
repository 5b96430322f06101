"""Activation functions as element-wise ops, with PyTorch's definitions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from cuvil.dtypes import FLOATS, NUMERIC
from cuvil.ops import tangents
from cuvil.ops.arithmetic import erf
from cuvil.ops.body import Scalar, ScalarBuilder
from cuvil.ops.drawing import draw_shape
from cuvil.ops.elementwise import define
from cuvil.ops.record import Array, Chooser, Example, OperandSample, Param, Tolerance

#: Relative where the function is large; absolute where it is a small difference of larger terms.
_TOLERANCE = Tolerance(ulp=8, absolute=4)


def _wide(fn: Callable[..., Any]) -> Callable[..., Array]:
    """A formula evaluated in float64 and rounded once to the operand's dtype."""

    def run(x: Array, **params: Any) -> Array:
        a = np.asarray(x)
        return np.asarray(fn(a.astype(np.float64), **params)).astype(a.dtype)

    return run


# ------------------------------------------------------------------------------------------------- relu


def _relu(s: ScalarBuilder, x: Scalar) -> Scalar:
    return s.max(x, s.const(0, x.dtype))


def _relu_reference(x: Array) -> Any:
    return np.maximum(x, np.asarray(0, x.dtype))


def _relu6(s: ScalarBuilder, x: Scalar) -> Scalar:
    return s.min(s.max(x, s.const(0, x.dtype)), s.const(6, x.dtype))


def _relu6_reference(x: Array) -> Any:
    return np.minimum(np.maximum(x, np.asarray(0, x.dtype)), np.asarray(6, x.dtype))


define(
    "relu", "max(x, 0).", "x", NUMERIC, _relu_reference, _relu,
    traits=("idempotent",), onnx=("Relu",), torch=("aten.relu",),
)  # fmt: skip
define(
    "relu6", "min(max(x, 0), 6).", "x", NUMERIC, _relu6_reference, _relu6,
    flops=2, traits=("idempotent",), torch=("aten.hardtanh",),
)  # fmt: skip

# ---------------------------------------------------------------------------------------------- sigmoid


def _sigmoid_of(s: ScalarBuilder, x: Scalar) -> Scalar:
    one = s.const(1, x.dtype)
    return s.div(one, s.add(one, s.exp(s.neg(x))))


def _silu(s: ScalarBuilder, x: Scalar) -> Scalar:
    return s.div(x, s.add(s.const(1, x.dtype), s.exp(s.neg(x))))


def _softplus_of(s: ScalarBuilder, x: Scalar) -> Scalar:
    return s.add(s.max(x, s.const(0, x.dtype)), s.instr("log1p", s.exp(s.neg(s.abs(x)))))


def _mish(s: ScalarBuilder, x: Scalar) -> Scalar:
    return s.mul(x, s.instr("tanh", _softplus_of(s, x)))


def _softplus_reference(x: Array) -> Any:
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def _sigmoid_reference(x: Array) -> Any:
    return 1 / (1 + np.exp(-x))


def _silu_reference(x: Array) -> Any:
    return x / (1 + np.exp(-x))


def _mish_reference(x: Array) -> Any:
    return x * np.tanh(_softplus_reference(x))


_SLOPES = {"sigmoid": tangents.sigmoid, "silu": tangents.silu, "softplus": tangents.softplus, "mish": tangents.mish}
for _name, _doc, _fn, _body, _onnx in (
    ("sigmoid", "1 / (1 + exp(-x)).", _sigmoid_reference, _sigmoid_of, ("Sigmoid",)),
    ("silu", "x / (1 + exp(-x)), also called swish.", _silu_reference, _silu, ()),
    ("softplus", "log(1 + exp(x)) without overflow.", _softplus_reference, _softplus_of, ("Softplus",)),
    ("mish", "x * tanh(softplus(x)).", _mish_reference, _mish, ("Mish",)),
):
    define(
        _name, _doc, "x", FLOATS, _wide(_fn), _body,
        tolerance=_TOLERANCE, flops=20, jvp=tangents.slope(_SLOPES[_name]), onnx=_onnx, torch=("aten." + _name,),
    )  # fmt: skip

# ------------------------------------------------------------------------------------------------- gelu

_GELU_SCALE = math.sqrt(2 / math.pi)
_GELU_CUBIC = 0.044715  # Hendrycks and Gimpel, "Gaussian Error Linear Units" (2016)


def _gelu(s: ScalarBuilder, x: Scalar, *, approximate: bool) -> Scalar:
    half, one = s.const(0.5, x.dtype), s.const(1, x.dtype)
    if approximate:
        cube = s.mul(s.mul(x, x), s.mul(x, s.const(_GELU_CUBIC, x.dtype)))
        bent = s.instr("tanh", s.mul(s.const(_GELU_SCALE, x.dtype), s.add(x, cube)))
    else:
        bent = s.instr("erf", s.mul(x, s.const(math.sqrt(0.5), x.dtype)))
    return s.mul(s.mul(half, x), s.add(one, bent))


def _gelu_reference(x: Array, *, approximate: bool) -> Any:
    bent = np.tanh(_GELU_SCALE * (x + _GELU_CUBIC * x**3)) if approximate else erf(x * math.sqrt(0.5))
    return 0.5 * x * (1 + bent)


def _gelu_sample(c: Chooser) -> Example:
    return Example((OperandSample(draw_shape(c, 0, 4), c.choice(FLOATS)),), {"approximate": c.boolean()})


define(
    "gelu",
    "x times the normal distribution function of x, exactly by erf or approximately by tanh.",
    "x",
    FLOATS,
    _wide(_gelu_reference),
    _gelu,
    params=(Param("approximate", "bool", "use the tanh approximation", False),),
    sample=_gelu_sample,
    # 1 + erf cancels for negative x, and x multiplies what is left.
    tolerance=Tolerance(ulp=8, absolute=16),
    flops=25,
    onnx=("Gelu",),
    torch=("aten.gelu",),
)

# ------------------------------------------------------------------------------------- piecewise linear


def _hard_sigmoid_of(s: ScalarBuilder, x: Scalar) -> Scalar:
    return s.div(_relu6(s, s.add(x, s.const(3, x.dtype))), s.const(6, x.dtype))


def _hard_swish(s: ScalarBuilder, x: Scalar) -> Scalar:
    return s.mul(x, _hard_sigmoid_of(s, x))


def _softsign(s: ScalarBuilder, x: Scalar) -> Scalar:
    return s.div(x, s.add(s.const(1, x.dtype), s.abs(x)))


def _hard_sigmoid_reference(x: Array) -> Any:
    return np.minimum(np.maximum(x + 3, 0), 6) / 6


def _hard_swish_reference(x: Array) -> Any:
    return x * _hard_sigmoid_reference(x)


def _softsign_reference(x: Array) -> Any:
    return x / (1 + np.abs(x))


for _name, _doc, _fn, _body, _onnx, _torch in (
    ("hard_sigmoid", "relu6(x + 3) / 6.", _hard_sigmoid_reference, _hard_sigmoid_of, (), "aten.hardsigmoid"),
    ("hard_swish", "x * relu6(x + 3) / 6.", _hard_swish_reference, _hard_swish, ("HardSwish",), "aten.hardswish"),
    ("softsign", "x / (1 + abs(x)).", _softsign_reference, _softsign, ("Softsign",), "aten.softsign"),
):
    define(
        _name, _doc, "x", FLOATS, _wide(_fn), _body,
        tolerance=_TOLERANCE, flops=5, jvp=tangents.slope(tangents.softsign) if _name == "softsign" else None,
        onnx=_onnx, torch=(_torch,),
    )  # fmt: skip

# ------------------------------------------------------------------------------------------ elu and kin


def _elu(s: ScalarBuilder, x: Scalar, *, alpha: float) -> Scalar:
    below = s.mul(s.const(alpha, x.dtype), s.instr("expm1", x))
    return s.select(s.instr("gt", x, s.const(0, x.dtype)), x, below)


def _leaky_relu(s: ScalarBuilder, x: Scalar, *, alpha: float) -> Scalar:
    return s.select(s.instr("gt", x, s.const(0, x.dtype)), x, s.mul(s.const(alpha, x.dtype), x))


def _elu_reference(x: Array, *, alpha: float) -> Any:
    return np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0)))


def _leaky_relu_reference(x: Array, *, alpha: float) -> Any:
    return np.where(x > 0, x, alpha * x)


def _alpha_sample(c: Chooser) -> Example:
    params = {"alpha": c.choice((1.0, 0.5, 0.01, 2.0))}
    return Example((OperandSample(draw_shape(c, 0, 4), c.choice(FLOATS)),), params)


for _name, _doc, _fn, _body, _alpha, _flops, _onnx in (
    ("elu", "x above 0, alpha * (exp(x) - 1) below.", _elu_reference, _elu, 1.0, 20, "Elu"),
    ("leaky_relu", "x above 0, alpha * x below.", _leaky_relu_reference, _leaky_relu, 0.01, 2, "LeakyRelu"),
):
    define(
        _name, _doc, "x", FLOATS, _wide(_fn), _body,
        params=(Param("alpha", "float", "slope of the negative side", _alpha),), sample=_alpha_sample,
        tolerance=_TOLERANCE, flops=_flops, onnx=(_onnx,), torch=("aten." + _name,),
    )  # fmt: skip
