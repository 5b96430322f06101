"""Lowers convolutions of channels-last arrays to template kernels."""

from __future__ import annotations

from cuvil.ir.dialect import aval_of
from cuvil.ops.record import ParamValue
from cuvil.passes.lowering.region import Index, nonempty
from cuvil.passes.lowering.templates import Lowered, TemplateFusion, accumulator_dtype, add_bias, lowers, unflatten
from cuvil.symbolic import ceildiv, product


@lowers("conv_channels_last")
def _lower_conv_channels_last(t: TemplateFusion) -> Lowered:
    x, w, bias = (*t.anchor.arguments, None)[:3]
    assert x is not None and w is not None
    xs, ws, out = aval_of(x).shape, aval_of(w).shape, aval_of(t.anchor.results[0]).shape
    p = t.anchor.params
    groups: int = p["groups"]
    nonempty(t.scope, out)
    scope = t.scope
    rows = product(out[:-1])
    row = scope.loop("_m", rows)
    channel = 0 if out[-1] == 1 else scope.loop("_n", out[-1])
    index: Index = (*unflatten(row, out[:-1], scope), channel)
    acc = accumulator_dtype(aval_of(x).dtype)
    kw = t.operand_number(w)
    packed = (kw,) if t.constant[kw] and acc.is_float and t.fusion.body.args[kw].uses.get_length() == 1 else ()
    variables = ("_b", "_m", "_n")
    block = t.epilogue(index, variables, acc, add_bias(t, bias, channel, acc))
    spatial = range(len(p["strides"]))
    steps = (*ws[2:], *p["strides"], *p["input_dilation"])
    if groups == 1 and all(n == 1 for n in steps) and all(p["padding"][a] == (0, 0) for a in spatial):
        # One tap, and pixels of the result lie as those of the operand: a matrix product as it stands.
        params: dict[str, ParamValue] = {
            "batch": 1, "m": rows, "n": out[-1], "k": xs[-1], "acc": acc.short,
            "a": t.operand_number(x), "a_offset": 0, "a_row": xs[-1], "a_col": 1,
            "b": kw, "b_offset": 0, "b_row": 1, "b_col": xs[-1], "b_packed": bool(packed),
        }  # fmt: skip
        return t.finish("matmul", params, block, variables), packed
    depthwise = groups > 1 and groups == xs[-1] and groups == ws[0]
    params = {
        "acc": acc.short, "x": t.operand_number(x), "w": kw, "w_packed": bool(packed), "x_shape": xs, "w_shape": ws,
        "out_shape": out, "strides": p["strides"], "padding": p["padding"], "dilation": p["dilation"],
        "input_dilation": p["input_dilation"], "groups": groups, "depthwise": depthwise,
    }  # fmt: skip
    if not packed:
        # Whole panels of channels hold the packed form (see gemm.md), which is made at each call.
        columns = ceildiv(ws[0] // groups, 32) * 32 * groups
        params["packed"] = t.workspace(columns * product(ws[1:]) * acc.itemsize)
    return t.finish("conv_channels_last", params, block, variables), packed
