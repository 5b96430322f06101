"""Transposes of matmul and conv, which are linear in each operand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cuvil.ops.builder import Builder
from cuvil.ops.differentiation import Tangent, fitted
from cuvil.ops.record import Aval, ParamValue
from cuvil.ops.transposes import Cotangents, Operands, Value, cut, placed, unbroadcast, zeros
from cuvil.symbolic import Dim, dim_max

Ints = tuple[int, ...]
Pairs = tuple[tuple[Dim, Dim], ...]


def _swapped(F: Builder[Any], x: Value) -> Value:
    """A matrix transposed."""
    rank = len(F.shape(x))
    return F.transpose(x, (*range(rank - 2), rank - 1, rank - 2))


def matmul(F: Builder[Any], c: Value, operands: Operands) -> Cotangents:
    a, b = operands
    if isinstance(a, Tangent):
        return [unbroadcast(F, F.matmul(c, _swapped(F, b)), a.aval.shape), None]
    return [None, unbroadcast(F, F.matmul(_swapped(F, a), c), b.aval.shape)]


# ------------------------------------------------------------------------------------------------ conv


def conv_jvp(
    F: Builder[Any], operands: Sequence[Any], results: Sequence[Any], tangents: Sequence[Any], **params: ParamValue
) -> Sequence[Value | None]:
    """Linear in x and in w, and the bias is added."""
    x, w = operands[:2]
    tx, tw = tangents[:2]
    tb = tangents[2] if len(tangents) > 2 else None
    total: Value | None = None
    for left, right in ((tx, w), (x, tw)):
        if left is not None and right is not None:
            part = F.op("conv", left, right, None, **params)
            total = part if total is None else F.add(total, part)
    if tb is not None:
        spatial = len(F.shape(x)) - 2
        column = F.reshape(tb, (*F.shape(tb), *(1,) * spatial))
        total = F.broadcast_to(column, F.shape(results[0])) if total is None else F.add(total, column)
    return [total]


def conv(
    F: Builder[Any],
    c: Value,
    operands: Operands,
    *,
    strides: Ints,
    padding: Pairs,
    dilation: Ints,
    input_dilation: Ints,
    groups: int,
) -> Cotangents:
    x, w, *bias = operands
    none = [None] * len(bias)
    # Without a window there is nothing to add up, and no kernel that could do it.
    empty = any(d == 0 for d in F.shape(c)[2:])
    if isinstance(x, Tangent):
        if empty:
            return [zeros(F, x.aval), None, *none]
        return [_by_input(F, c, w, x.aval, strides, padding, dilation, input_dilation, groups), None, *none]
    if empty:
        return [None, zeros(F, w.aval), *none]
    return [None, _by_weight(F, c, x, w.aval, strides, padding, dilation, input_dilation, groups), *none]


def _by_input(
    F: Builder[Any], c: Value, w: Value, x: Aval, strides: Ints, padding: Pairs, dilation: Ints, spacing: Ints,
    groups: int,
) -> Value:  # fmt: skip
    """Every output spreads the kernel over the input: the convolution of the outputs, strides apart, with the
    mirrored kernel, its channels exchanged."""
    out_channels, per_group, *kernel = F.shape(w)
    n = len(kernel)
    spatial = tuple(range(2, 2 + n))
    outputs = out_channels // groups
    w = F.reshape(w, (groups, outputs, per_group, *kernel))
    w = F.transpose(w, (0, 2, 1, *(a + 1 for a in spatial)))
    w = F.reshape(w, (per_group * groups, outputs, *kernel))
    if any(k != 1 for k in kernel):
        w = F.op("flip", w, axes=spatial)
    pads: list[tuple[Dim, Dim]] = []
    crops: list[Dim] = []
    sizes: list[Dim] = []
    for a in range(n):
        reach = (kernel[a] - 1) * dilation[a]
        spread = (F.shape(c)[2 + a] - 1) * strides[a] + 1
        size = (x.shape[2 + a] - 1) * spacing[a] + 1
        before = reach - padding[a][0]
        # Where the padding is wider than the kernel's reach, the first outputs saw nothing but padding.
        crop = dim_max(-before, 0)
        before = before + crop
        after = dim_max(size + crop + reach - before - spread, 0)
        pads.append((before, after))
        crops.append(crop)
        sizes.append(size)
    ones = (1,) * n
    out = F.op(
        "conv", c, w, None,
        strides=ones, padding=tuple(pads), dilation=dilation, input_dilation=strides, groups=groups,
    )  # fmt: skip
    for a in range(n):
        out = cut(F, out, 2 + a, crops[a], sizes[a])
        if spacing[a] > 1:
            shape = F.shape(out)
            taken = tuple(x.shape[2 + a] if b == 2 + a else d for b, d in enumerate(shape))
            steps = tuple(spacing[a] if b == 2 + a else 1 for b in range(len(shape)))
            out = F.op("slice", out, starts=(0,) * len(shape), sizes=taken, steps=steps)
    return fitted(F, out, x.shape)


def _by_weight(
    F: Builder[Any], c: Value, x: Value, w: Aval, strides: Ints, padding: Pairs, dilation: Ints, spacing: Ints,
    groups: int,
) -> Value:  # fmt: skip
    """Each tap of the kernel is the product of the outputs with the inputs that it met: the convolution of the inputs
    with the outputs, whose batch is the channels that are summed over, strides and dilations exchanged."""
    _, per_group, *kernel = w.shape
    batch, _, *sizes = F.shape(x)
    n = len(kernel)
    spatial = tuple(range(2, 2 + n))
    x = F.reshape(x, (batch, groups, per_group, *sizes))
    x = F.transpose(x, (2, 1, 0, *(a + 1 for a in spatial)))
    x = F.reshape(x, (per_group, batch * groups, *sizes))
    c = F.transpose(c, (1, 0, *spatial))
    out = F.op(
        "conv", x, c, None,
        strides=dilation, padding=padding, dilation=strides, input_dilation=spacing, groups=groups,
    )  # fmt: skip
    # Inputs behind the last window make further taps; a kernel of symbolic size is filled up where they are too few.
    for a in range(n):
        out = placed(F, out, 2 + a, 0, kernel[a])
    return fitted(F, F.transpose(out, (1, 0, *spatial)), w.shape)
