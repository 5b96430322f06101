"""Lowers convolutions of channels-last arrays to template kernels."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.ir import Block, SSAValue

from cuvil.dtypes import DType, float32
from cuvil.ir.dialect import aval_of
from cuvil.ops.channels_last import as_conv_params
from cuvil.ops.record import ParamValue
from cuvil.passes.lowering.region import Index, nonempty
from cuvil.passes.lowering.templates import Lowered, TemplateFusion, accumulator_dtype, add_bias, lowers, unflatten
from cuvil.support.errors import PassError
from cuvil.symbolic import Dim, ceildiv, product


@dataclass(frozen=True)
class _Parts:
    """What both kinds of convolution have in common: the epilogue, and whether the weights are packed at load."""

    x: SSAValue
    w: SSAValue
    rows: Dim
    acc: DType
    packed: tuple[int, ...]
    epilogue: Block


_VARIABLES = ("_b", "_m", "_n")


def _parts(t: TemplateFusion) -> _Parts:
    x, w, bias = (*t.anchor.arguments, None)[:3]
    assert x is not None and w is not None
    out = aval_of(t.anchor.results[0]).shape
    nonempty(t.scope, out)
    rows = product(out[:-1])
    row = t.scope.loop("_m", rows)
    channel = 0 if out[-1] == 1 else t.scope.loop("_n", out[-1])
    index: Index = (*unflatten(row, out[:-1], t.scope), channel)
    acc = accumulator_dtype(aval_of(x).dtype)
    kw = t.operand_number(w)
    packed = (kw,) if t.constant[kw] and acc.is_float and t.fusion.body.args[kw].uses.get_length() == 1 else ()
    return _Parts(x, w, rows, acc, packed, t.epilogue(index, _VARIABLES, acc, add_bias(t, bias, channel, acc)))


def _whole_panels(channels: Dim) -> Dim:
    """Columns of packed weights: panels have 32 at most."""
    return ceildiv(channels, 32) * 32


@lowers("conv_channels_last")
def _lower_conv_channels_last(t: TemplateFusion) -> Lowered:
    parts = _parts(t)
    xs, ws, out = aval_of(parts.x).shape, aval_of(parts.w).shape, aval_of(t.anchor.results[0]).shape
    p = t.anchor.params
    groups: int = p["groups"]
    kw, packed = t.operand_number(parts.w), parts.packed
    steps = (*ws[2:], *p["strides"], *p["input_dilation"])
    if groups == 1 and all(n == 1 for n in steps) and all(pair == (0, 0) for pair in p["padding"]):
        # One tap, and pixels of the result lie as those of the operand: a matrix product as it stands.
        params: dict[str, ParamValue] = {
            "batch": 1, "m": parts.rows, "n": out[-1], "k": xs[-1], "acc": parts.acc.short,
            "a": t.operand_number(parts.x), "a_offset": 0, "a_row": xs[-1], "a_col": 1,
            "b": kw, "b_offset": 0, "b_row": 1, "b_col": xs[-1], "b_packed": bool(packed),
            **t.narrow(),
        }  # fmt: skip
        return t.finish("matmul", params, parts.epilogue, _VARIABLES), packed
    depthwise = groups > 1 and groups == xs[-1] and groups == ws[0]
    params = {
        "acc": parts.acc.short, "x": t.operand_number(parts.x), "w": kw, "w_packed": bool(packed), "x_shape": xs,
        "w_shape": ws, "out_shape": out, "strides": p["strides"], "padding": p["padding"], "dilation": p["dilation"],
        "input_dilation": p["input_dilation"], "groups": groups, "depthwise": depthwise,
        **t.narrow(),
    }  # fmt: skip
    if not packed:
        # Groups of narrow elements, two in the place of one, are filled up to 16.
        elements = _whole_panels(ws[0] // groups) * groups * (product(ws[1:]) + 16)
        params["packed"] = t.workspace(elements * parts.acc.itemsize)
    return t.finish("conv_channels_last", params, parts.epilogue, _VARIABLES), packed


@lowers("conv_winograd")
def _lower_conv_winograd(t: TemplateFusion) -> Lowered:
    parts = _parts(t)
    xs, ws, out = aval_of(parts.x).shape, aval_of(parts.w).shape, aval_of(t.anchor.results[0]).shape
    if aval_of(parts.x).dtype is not float32:
        raise PassError(f"Winograd's convolution takes float32, got {aval_of(parts.x).dtype}; this is a fault in cuvil")
    p = t.anchor.params
    params: dict[str, ParamValue] = {
        "acc": parts.acc.short, "x": t.operand_number(parts.x), "w": t.operand_number(parts.w),
        "w_packed": bool(parts.packed), "x_shape": xs, "w_shape": ws, "out_shape": out, "tile": p["tile"],
        **as_conv_params(p["padding"]),
    }  # fmt: skip
    if not parts.packed:
        elements = _whole_panels(ws[0]) * ws[1] * (p["tile"] + 2) ** 2
        params["packed"] = t.workspace(elements * parts.acc.itemsize)
    return t.finish("conv_winograd", params, parts.epilogue, _VARIABLES), parts.packed
