"""Neural network functions with PyTorch's definitions and layouts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cuvil.dtypes import DType, float32
from cuvil.frontend.dispatch import ArrayLike, apply, asoperand, dtype_of, elementwise, result_dtype
from cuvil.frontend.namespace.arguments import (
    AnyArray,
    Axes,
    DTypeLike,
    ShapeLike,
    as_dtype,
    as_int,
    as_scalar,
    as_shape,
    as_size,
    cast,
    choice,
    float_dtype,
    one_axis,
    operand,
    shape_of,
    some_axes,
)
from cuvil.frontend.namespace.creation import zeros
from cuvil.frontend.namespace.elementwise import add, multiply
from cuvil.frontend.namespace.indexing import take
from cuvil.frontend.namespace.linalg import matmul
from cuvil.frontend.namespace.manipulation import concat, stack, transpose
from cuvil.frontend.namespace.reduction import mean
from cuvil.frontend.namespace.slicing import Span, reshaped, slice_axis
from cuvil.frontend.source import at_user_line
from cuvil.ops.requirements import format_shape
from cuvil.support.errors import ArgumentError, DTypeError, ShapeError
from cuvil.symbolic import Dim, floordiv

#: One number for every spatial axis, or one per axis.
PerAxis = int | Sequence[int]


def _float(x: ArrayLike) -> AnyArray:
    """An operand as a float: integers in the float that NumPy's functions of analysis choose."""
    given = operand(x)
    return cast(given, float_dtype(given))


def _floats(*arrays: ArrayLike | None) -> list[Any]:
    """Operands in one float dtype, None where an optional one is absent."""
    given = [None if x is None else asoperand(x) for x in arrays]
    present = [x for x in given if x is not None]
    dt = result_dtype(*present)
    target: DType = dt if dt.is_float else float_dtype(*present)
    return [None if x is None else cast(x, target) for x in given]


# ---------------------------------------------------------------------------------------------- activations


def relu(x: ArrayLike) -> AnyArray:
    """``max(x, 0)``, NaN for NaN.

    >>> relu([-1.0, 2.0]).tolist()
    [0.0, 2.0]
    """
    return elementwise("relu", operand(x))


def relu6(x: ArrayLike) -> AnyArray:
    """``min(max(x, 0), 6)``.

    >>> relu6([-1.0, 2.0, 9.0]).tolist()
    [0.0, 2.0, 6.0]
    """
    return elementwise("relu6", operand(x))


def gelu(x: ArrayLike, approximate: str | bool = "none") -> AnyArray:
    """x times the normal distribution function of x, by erf (``"none"``) or approximately (``"tanh"``).

    Raises:
        ArgumentError: another ``approximate``.

    >>> gelu([0.0]).tolist()
    [0.0]
    """
    if not isinstance(approximate, bool):
        approximate = choice(approximate, ("none", "tanh"), "gelu: approximate") == "tanh"
    return elementwise("gelu", _float(x), approximate=approximate)


def sigmoid(x: ArrayLike) -> AnyArray:
    """``1 / (1 + exp(-x))``.

    >>> sigmoid([0.0]).tolist()
    [0.5]
    """
    return elementwise("sigmoid", _float(x))


def silu(x: ArrayLike) -> AnyArray:
    """``x * sigmoid(x)``, also called swish.

    >>> silu([0.0]).tolist()
    [0.0]
    """
    return elementwise("silu", _float(x))


swish = silu


def softplus(x: ArrayLike) -> AnyArray:
    """``log(1 + exp(x))`` without overflow.

    >>> softplus([1000.0]).tolist()
    [1000.0]
    """
    return elementwise("softplus", _float(x))


def softsign(x: ArrayLike) -> AnyArray:
    """``x / (1 + abs(x))``.

    >>> softsign([1.0]).tolist()
    [0.5]
    """
    return elementwise("softsign", _float(x))


def mish(x: ArrayLike) -> AnyArray:
    """``x * tanh(softplus(x))``.

    >>> mish([0.0]).tolist()
    [0.0]
    """
    return elementwise("mish", _float(x))


def hard_sigmoid(x: ArrayLike) -> AnyArray:
    """``relu6(x + 3) / 6``.

    >>> hard_sigmoid([0.0]).tolist()
    [0.5]
    """
    return elementwise("hard_sigmoid", _float(x))


def hard_swish(x: ArrayLike) -> AnyArray:
    """``x * relu6(x + 3) / 6``.

    >>> hard_swish([3.0]).tolist()
    [3.0]
    """
    return elementwise("hard_swish", _float(x))


def elu(x: ArrayLike, alpha: float = 1.0) -> AnyArray:
    """x above 0, ``alpha * (exp(x) - 1)`` below.

    >>> elu([2.0, 0.0]).tolist()
    [2.0, 0.0]
    """
    return elementwise("elu", _float(x), alpha=float(as_scalar(alpha, "elu: alpha")))


def leaky_relu(x: ArrayLike, negative_slope: float = 0.01) -> AnyArray:
    """x above 0, ``negative_slope * x`` below.

    >>> leaky_relu([2.0, -1.0], 0.5).tolist()
    [2.0, -0.5]
    """
    return elementwise("leaky_relu", _float(x), alpha=float(as_scalar(negative_slope, "leaky_relu: negative_slope")))


def softmax(x: ArrayLike, axis: int = -1) -> AnyArray:
    """``exp(x) / sum(exp(x))`` along an axis without overflow; halves compute in float32.

    Raises:
        AxisError: an axis outside the rank.

    >>> softmax([0.0, 0.0]).tolist()
    [0.5, 0.5]
    """
    given = _float(x)
    return apply("softmax", given, axis=one_axis(axis, len(shape_of(given))))


def log_softmax(x: ArrayLike, axis: int = -1) -> AnyArray:
    """The logarithm of :func:`softmax`, accurate where softmax is near 0.

    Raises:
        AxisError: an axis outside the rank.

    >>> log_softmax([5.0]).tolist()
    [0.0]
    """
    given = _float(x)
    return apply("log_softmax", given, axis=one_axis(axis, len(shape_of(given))))


def glu(x: ArrayLike, axis: int = -1) -> AnyArray:
    """The first half along an axis times the sigmoid of the second.

    Raises:
        ArgumentError: an axis whose size is odd.

    >>> glu([4.0, 0.0]).tolist()
    [2.0]
    """
    given = _float(x)
    a = one_axis(axis, len(shape_of(given)))
    d = shape_of(given)[a]
    if isinstance(d, int) and d % 2:
        raise ArgumentError(f"glu: axis {a} has the odd size {d}{at_user_line()}; it is split into halves")
    half = floordiv(d, 2)
    gate = slice_axis(given, a, Span(half, half, 1))
    return multiply(slice_axis(given, a, Span(0, half, 1)), sigmoid(gate))


# ------------------------------------------------------------------------------------------- normalisation


def _norm_axes(x: Any, normalized_shape: ShapeLike, axis: Axes) -> tuple[int, ...]:
    rank = len(shape_of(x))
    if normalized_shape is not None:
        wanted = as_shape(normalized_shape)
        found = shape_of(x)[rank - len(wanted) :]
        if len(wanted) > rank or any(
            isinstance(d, int) and isinstance(e, int) and d != e for d, e in zip(found, wanted, strict=True)
        ):
            raise ShapeError(
                f"normalized_shape {format_shape(wanted)} is not the end of {format_shape(shape_of(x))}{at_user_line()}"
            )
        return tuple(range(rank - len(wanted), rank))
    return tuple(sorted(some_axes(axis, rank)))


def layer_norm(
    x: ArrayLike, weight: ArrayLike | None = None, bias: ArrayLike | None = None, *, axis: Axes = -1,
    eps: float = 1e-5, normalized_shape: ShapeLike = None,
) -> AnyArray:  # fmt: skip
    """``(x - mean) / sqrt(var + eps) * weight + bias`` over axes; halves compute in float32 and round once.

    Args:
        x: floats [..., D].
        weight: the sizes of the normalised axes.
        bias: the sizes of the normalised axes.
        axis: the axes to normalise over, the last one by default.
        eps: added to the variance.
        normalized_shape: instead of ``axis``: the sizes of the last axes, as in PyTorch.

    Raises:
        ShapeError: a weight, bias or ``normalized_shape`` of other sizes.

    >>> layer_norm([[1.0, 1.0]]).tolist()
    [[0.0, 0.0]]
    """
    given, w, b = _floats(x, weight, bias)
    return apply("layer_norm", given, w, b, axes=_norm_axes(given, normalized_shape, axis), eps=float(eps))


def rms_norm(
    x: ArrayLike, weight: ArrayLike | None = None, *, axis: Axes = -1, eps: float = 1e-6,
    normalized_shape: ShapeLike = None,
) -> AnyArray:  # fmt: skip
    """``x / sqrt(mean(x * x) + eps) * weight`` over axes; halves compute in float32 and round once.

    Raises:
        ShapeError: a weight or ``normalized_shape`` of other sizes.

    >>> rms_norm([[2.0, 2.0]], eps=0.0).tolist()
    [[1.0, 1.0]]
    """
    given, w = _floats(x, weight)
    return apply("rms_norm", given, w, axes=_norm_axes(given, normalized_shape, axis), eps=float(eps))


def group_norm(
    x: ArrayLike, num_groups: int, weight: ArrayLike | None = None, bias: ArrayLike | None = None, eps: float = 1e-5
) -> AnyArray:
    """Normalisation of [N, C, ...] over groups of channels, then ``* weight + bias`` per channel.

    Raises:
        ShapeError: channels that do not split into the groups.

    >>> group_norm([[[1.0], [1.0]]], 1).tolist()
    [[[0.0], [0.0]]]
    """
    given, w, b = _floats(x, weight, bias)
    return apply("group_norm", given, w, b, groups=as_int(num_groups, "group_norm: num_groups"), eps=float(eps))


def batch_norm(
    x: ArrayLike, running_mean: ArrayLike, running_var: ArrayLike, weight: ArrayLike | None = None,
    bias: ArrayLike | None = None, eps: float = 1e-5, *, axis: int = 1,
) -> AnyArray:  # fmt: skip
    """Inference: ``(x - mean) / sqrt(var + eps) * weight + bias`` per channel with the statistics given.

    Raises:
        ShapeError: statistics or parameters that are no vector of the channels.

    >>> batch_norm([[1.0, 2.0]], [1.0, 0.0], [1.0, 4.0], eps=0.0).tolist()
    [[0.0, 1.0]]
    """
    given, m, v, w, b = _floats(x, running_mean, running_var, weight, bias)
    channel = one_axis(axis, len(shape_of(given)))
    return apply("batch_norm", given, m, v, w, b, axis=channel, eps=float(eps))


# ----------------------------------------------------------------------------------- linear, embeddings


def linear(x: ArrayLike, weight: ArrayLike, bias: ArrayLike | None = None) -> AnyArray:
    """``x @ weight.T + bias`` for x [..., I] and weight [O, I] as PyTorch stores it.

    Raises:
        ShapeError: sizes that do not fit.

    >>> linear([1.0, 2.0], [[3.0, 4.0]], [1.0]).tolist()
    [12.0]
    """
    given, w, b = _floats(x, weight, bias)
    out = matmul(given, transpose(w))
    return out if b is None else add(out, b)


def embedding(indices: ArrayLike, weight: ArrayLike, *, mode: str = "error") -> AnyArray:
    """Rows of ``weight`` [V, D] at integer indices [...]: [..., D].

    Raises:
        IndexOutOfBoundsError: an index outside the rows, under mode "error".

    >>> embedding([1, 0], [[1.0, 2.0], [3.0, 4.0]]).tolist()
    [[3.0, 4.0], [1.0, 2.0]]
    """
    return take(weight, indices, axis=0, mode=mode)


def one_hot(indices: ArrayLike, num_classes: Any, dtype: DTypeLike = None) -> AnyArray:
    """A new last axis of ``num_classes`` with a 1 at each index, zeros elsewhere (float32 by default).

    An index outside gives zeros only.

    >>> one_hot([1, 0], 2).tolist()
    [[0.0, 1.0], [1.0, 0.0]]
    """
    depth = as_size(num_classes, "num_classes")
    return apply("one_hot", operand(indices), depth=depth, dtype=as_dtype(dtype or float32))


def scaled_dot_product_attention(
    query: ArrayLike, key: ArrayLike, value: ArrayLike, mask: ArrayLike | None = None, *, causal: bool = False,
    scale: float | None = None,
) -> AnyArray:  # fmt: skip
    """``softmax(query @ key.T * scale + mask) @ value`` over [B, H, S, D] (or [S, D], [H, S, D]).

    Args:
        query: [B, H, S, D].
        key: [B, G, T, D]; the G heads divide the H query heads (grouped-query attention).
        value: [B, G, T, E].
        mask: broadcasts to [B, H, S, T]: bool (true takes part) or floats that are added to the scores.
        causal: query i sees keys 0 to i only.
        scale: 1 / sqrt(D) by default.

    Raises:
        ShapeError: sizes that do not fit.
        DTypeError: a mask of integers.

    >>> scaled_dot_product_attention([[1.0]], [[1.0]], [[5.0]]).tolist()
    [[5.0]]
    """
    q, k, v = _floats(query, key, value)
    rank = len(shape_of(q))
    if len({len(shape_of(a)) for a in (q, k, v)}) != 1 or not rank >= 2:
        raise ShapeError(
            "scaled_dot_product_attention takes q, k and v of one rank, 2 or more, got"
            f" {', '.join(format_shape(shape_of(a)) for a in (q, k, v))}{at_user_line()}"
        )
    m = None if mask is None else operand(mask)
    if m is not None and dtype_of(m).is_integer:
        raise DTypeError(
            f"scaled_dot_product_attention: the mask is {dtype_of(m).name}{at_user_line()}; expected bool (true takes"
            " part) or floats that are added to the scores. For a mask of 0 and 1 pass mask.astype('bool')."
        )
    if m is not None and not dtype_of(m).is_bool:
        m = cast(m, dtype_of(q))
    if rank > 4:
        raise ShapeError(f"attention takes arrays of rank 2 to 4, got rank {rank}{at_user_line()}; merge batch axes")
    ones = (1,) * (4 - rank)
    q, k, v = (reshaped(a, ones + shape_of(a)) for a in (q, k, v))
    factor = None if scale is None else float(as_scalar(scale, "scale"))
    out = apply("scaled_dot_product_attention", q, k, v, m, causal=bool(causal), scale=factor)
    return reshaped(out, shape_of(out)[4 - rank :])


# ------------------------------------------------------------------------------ convolution and pooling


def _per_axis(value: PerAxis, n: int, what: str) -> tuple[int, ...]:
    if isinstance(value, (tuple, list)):
        out = tuple(as_int(v, what) for v in value)
        if len(out) == 1:
            out *= n
    else:
        out = (as_int(value, what),) * n  # type: ignore[arg-type]
    if len(out) != n:
        raise ArgumentError(f"{what}: expected one number or {n}, one per spatial axis, got {value!r}{at_user_line()}")
    return out


def _padding(
    padding: Any, n: int, kernel: Sequence[Dim], strides: Sequence[int], dilation: Sequence[int], what: str
) -> tuple[tuple[Dim, Dim], ...]:
    if isinstance(padding, str):
        if choice(padding.lower(), ("same", "valid"), f"{what}: padding") == "valid":
            return ((0, 0),) * n
        if any(s != 1 for s in strides):
            raise ArgumentError(f'{what}: padding="same" needs a stride of 1{at_user_line()}; give numbers')
        total = [d * (k - 1) for k, d in zip(kernel, dilation, strict=True)]
        return tuple((floordiv(t, 2), t - floordiv(t, 2)) for t in total)
    if isinstance(padding, (tuple, list)) and any(isinstance(p, (tuple, list)) for p in padding):
        pairs = tuple((as_int(p[0], what), as_int(p[1], what)) for p in padding)
        if len(pairs) != n:
            raise ArgumentError(f"{what}: expected {n} padding pairs, got {padding!r}{at_user_line()}")
        return pairs
    return tuple((p, p) for p in _per_axis(padding, n, f"{what}: padding"))


def _spatial(x: Any, name: str, rank: int | None = None) -> int:
    n = len(shape_of(x)) - 2
    if n < 1 or (rank is not None and n != rank):
        wanted = "[N, C, spatial...]" if rank is None else f"[N, C] and {rank} spatial axes"
        raise ShapeError(f"{name} takes an array of {wanted}, got {format_shape(shape_of(x))}{at_user_line()}")
    return n


def conv(
    x: ArrayLike, weight: ArrayLike, bias: ArrayLike | None = None, stride: PerAxis = 1, padding: Any = 0,
    dilation: PerAxis = 1, groups: int = 1,
) -> AnyArray:  # fmt: skip
    """Cross-correlation of x [N, C, spatial...] with weight [O, C / groups, spatial...], plus bias [O].

    ``padding``: a number, one per spatial axis, (before, after) pairs, "same" or "valid".

    Raises:
        ShapeError: ranks or channels that do not fit.

    >>> conv([[[1.0, 2.0, 3.0]]], [[[1.0, 1.0]]]).tolist()
    [[[3.0, 5.0]]]
    """
    given, w, b = _floats(x, weight, bias)
    n = _spatial(given, "conv")
    strides, dilations = _per_axis(stride, n, "conv: stride"), _per_axis(dilation, n, "conv: dilation")
    pairs = _padding(padding, n, shape_of(w)[2:], strides, dilations, "conv")
    return apply(
        "conv", given, w, b, strides=strides, padding=pairs, dilation=dilations, input_dilation=(1,) * n,
        groups=as_int(groups, "conv: groups"),
    )  # fmt: skip


def conv1d(
    x: ArrayLike, weight: ArrayLike, bias: ArrayLike | None = None, stride: PerAxis = 1, padding: Any = 0,
    dilation: PerAxis = 1, groups: int = 1,
) -> AnyArray:  # fmt: skip
    """:func:`conv` of [N, C, L].

    >>> conv1d([[[1.0, 2.0]]], [[[1.0, 1.0]]]).tolist()
    [[[3.0]]]
    """
    _spatial(operand(x), "conv1d", 1)
    return conv(x, weight, bias, stride, padding, dilation, groups)


def conv2d(
    x: ArrayLike, weight: ArrayLike, bias: ArrayLike | None = None, stride: PerAxis = 1, padding: Any = 0,
    dilation: PerAxis = 1, groups: int = 1,
) -> AnyArray:  # fmt: skip
    """:func:`conv` of [N, C, H, W].

    >>> conv2d([[[[1.0, 2.0]]]], [[[[2.0]]]]).tolist()
    [[[[2.0, 4.0]]]]
    """
    _spatial(operand(x), "conv2d", 2)
    return conv(x, weight, bias, stride, padding, dilation, groups)


def conv3d(
    x: ArrayLike, weight: ArrayLike, bias: ArrayLike | None = None, stride: PerAxis = 1, padding: Any = 0,
    dilation: PerAxis = 1, groups: int = 1,
) -> AnyArray:  # fmt: skip
    """:func:`conv` of [N, C, D, H, W].

    >>> conv3d([[[[[1.0, 2.0]]]]], [[[[[2.0]]]]]).tolist()
    [[[[[2.0, 4.0]]]]]
    """
    _spatial(operand(x), "conv3d", 3)
    return conv(x, weight, bias, stride, padding, dilation, groups)


def conv_transpose(
    x: ArrayLike, weight: ArrayLike, bias: ArrayLike | None = None, stride: PerAxis = 1, padding: Any = 0,
    output_padding: PerAxis = 0, groups: int = 1, dilation: PerAxis = 1,
) -> AnyArray:  # fmt: skip
    """The transpose of :func:`conv`: x [N, C, spatial...], weight [C, O / groups, spatial...], bias [O].

    Raises:
        ShapeError: ranks or channels that do not fit.

    >>> conv_transpose([[[1.0, 2.0]]], [[[1.0, 1.0]]]).tolist()
    [[[1.0, 3.0, 2.0]]]
    """
    given, w, b = _floats(x, weight, bias)
    n = _spatial(given, "conv_transpose")
    strides = _per_axis(stride, n, "conv_transpose: stride")
    dilations = _per_axis(dilation, n, "conv_transpose: dilation")
    return apply(
        "conv_transpose", given, w, b, strides=strides,
        padding=_padding(padding, n, shape_of(w)[2:], strides, dilations, "conv_transpose"),
        output_padding=_per_axis(output_padding, n, "conv_transpose: output_padding"), dilation=dilations,
        groups=as_int(groups, "conv_transpose: groups"),
    )  # fmt: skip


def max_pool(
    x: ArrayLike, kernel_size: PerAxis, stride: PerAxis | None = None, padding: Any = 0, dilation: PerAxis = 1,
    ceil_mode: bool = False,
) -> AnyArray:  # fmt: skip
    """The largest element of each window over the spatial axes of [N, C, spatial...]; the stride is the window's size
    by default.

    Raises:
        ShapeError: no spatial axis.

    >>> max_pool([[[1.0, 3.0, 2.0, 0.0]]], 2).tolist()
    [[[3.0, 2.0]]]
    """
    given = operand(x)
    n = _spatial(given, "max_pool")
    sizes = _per_axis(kernel_size, n, "max_pool: kernel_size")
    strides = sizes if stride is None else _per_axis(stride, n, "max_pool: stride")
    dilations = _per_axis(dilation, n, "max_pool: dilation")
    pairs = _padding(padding, n, sizes, strides, dilations, "max_pool")
    return apply(
        "max_pool", given, sizes=sizes, strides=strides, padding=pairs, dilation=dilations, ceil_mode=bool(ceil_mode)
    )


def avg_pool(
    x: ArrayLike, kernel_size: PerAxis, stride: PerAxis | None = None, padding: Any = 0, ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> AnyArray:  # fmt: skip
    """The mean of each window over the spatial axes of [N, C, spatial...]; the stride is the window's size by default.

    Raises:
        ShapeError: no spatial axis.

    >>> avg_pool([[[1.0, 3.0, 2.0, 0.0]]], 2).tolist()
    [[[2.0, 1.0]]]
    """
    given = _float(x)
    n = _spatial(given, "avg_pool")
    sizes = _per_axis(kernel_size, n, "avg_pool: kernel_size")
    strides = sizes if stride is None else _per_axis(stride, n, "avg_pool: stride")
    pairs = _padding(padding, n, sizes, strides, (1,) * n, "avg_pool")
    return apply(
        "avg_pool", given, sizes=sizes, strides=strides, padding=pairs, dilation=(1,) * n, ceil_mode=bool(ceil_mode),
        count_include_pad=bool(count_include_pad),
    )  # fmt: skip


def adaptive_avg_pool(x: ArrayLike, output_size: PerAxis = 1) -> AnyArray:
    """The mean over equal windows that give ``output_size``: 1, or sizes that divide the static spatial sizes.

    Raises:
        ArgumentError: an output size that does not divide.

    >>> adaptive_avg_pool([[[1.0, 3.0]]]).tolist()
    [[[2.0]]]
    """
    given = _float(x)
    n = _spatial(given, "adaptive_avg_pool")
    wanted = _per_axis(output_size, n, "adaptive_avg_pool: output_size")
    if all(w == 1 for w in wanted):
        return mean(given, axis=tuple(range(2, 2 + n)), keepdims=True)
    sizes: list[int] = []
    for d, w in zip(shape_of(given)[2:], wanted, strict=True):
        if not isinstance(d, int) or w < 1 or d % w:
            raise ArgumentError(
                f"adaptive_avg_pool: the output size {w} must divide the size {d}{at_user_line()}; use 1 or avg_pool"
            )
        sizes.append(d // w)
    return avg_pool(given, tuple(sizes))


def interpolate(
    x: ArrayLike, size: ShapeLike = None, scale_factor: Any = None, mode: str = "nearest", align_corners: bool = False
) -> AnyArray:
    """[N, C, spatial...] resized to ``size`` or by ``scale_factor``: nearest, linear (bilinear, trilinear) or cubic.

    A factor gives the size, rounded down, and the two sizes give the positions: PyTorch's
    ``recompute_scale_factor=True``, which is its default too where the factor times the size is an integer.

    Raises:
        ArgumentError: not exactly one of ``size`` and ``scale_factor``; another mode.

    >>> interpolate([[[1.0, 2.0]]], scale_factor=2).tolist()
    [[[1.0, 1.0, 2.0, 2.0]]]
    """
    given = operand(x)
    n = _spatial(given, "interpolate")
    names = {"nearest-exact": "nearest_exact", "bilinear": "linear", "trilinear": "linear", "bicubic": "cubic"}
    kind = choice(names.get(mode, mode), ("nearest", "nearest_exact", "linear", "cubic"), "interpolate: mode")
    if (size is None) == (scale_factor is None):
        raise ArgumentError(f"interpolate takes either size or scale_factor{at_user_line()}")
    if size is not None:
        sizes = as_shape(size)
        sizes = sizes * n if len(sizes) == 1 else sizes
    else:
        factors = scale_factor if isinstance(scale_factor, (tuple, list)) else (scale_factor,) * n
        sizes = tuple(
            _scaled(d, as_scalar(f, "scale_factor")) for d, f in zip(shape_of(given)[2:], factors, strict=True)
        )
    return apply("interpolate", given, sizes=sizes, mode=kind, align_corners=bool(align_corners))


def _scaled(d: Dim, factor: float) -> Dim:
    if float(factor).is_integer():
        return d * int(factor)
    numerator, denominator = float(factor).as_integer_ratio()
    return floordiv(d * numerator, denominator)


# ------------------------------------------------------------------------------------------ recurrent layers


def _layers(
    cell: str, x: ArrayLike, states: list[Any], params: Sequence[ArrayLike], num_layers: int, bidirectional: bool,
    has_biases: bool, batch_first: bool,
) -> tuple[AnyArray, list[AnyArray]]:  # fmt: skip
    """Layers and directions of one-layer recurrent ops; ``states`` are [layers * directions, N, H] or None."""
    directions = 2 if bidirectional else 1
    each = 4 if has_biases else 2
    if len(params) != num_layers * directions * each:
        raise ArgumentError(
            f"{cell}: expected {each} parameters for each of {num_layers} layers and {directions} directions"
            f" ({num_layers * directions * each} in all), got {len(params)}{at_user_line()}"
        )
    everything = _floats(x, *(s for s in states if s is not None), *params)
    given = everything[0]
    weights = everything[len(everything) - len(params) :]
    rank = len(shape_of(given))
    if rank not in (2, 3):
        raise ShapeError(f"{cell} takes [T, N, I] or [T, I], got {format_shape(shape_of(given))}{at_user_line()}")
    if rank == 2:
        given = reshaped(given, (shape_of(given)[0], 1, shape_of(given)[1]))
    elif batch_first:
        given = transpose(given, (1, 0, 2))
    batch = shape_of(given)[1]
    hidden = shape_of(weights[1])[1]
    passed = iter(everything[1:])
    initial = [next(passed) if s is not None else None for s in states]
    finals: list[list[Any]] = [[] for _ in states]
    for layer in range(num_layers):
        outputs: list[Any] = []
        for direction in range(directions):
            k = layer * directions + direction
            start = [_state(s, k, batch, hidden, rank, dtype_of(given)) for s in initial]
            out = apply(cell, given, *start, *weights[k * each : (k + 1) * each], reverse=direction == 1)
            outputs.append(out[0])
            for final, value in zip(finals, out[1:], strict=True):
                final.append(value)
        given = outputs[0] if directions == 1 else concat(outputs, axis=2)
    ends = [stack(final, axis=0) for final in finals]
    if rank == 2:
        given = reshaped(given, (shape_of(given)[0], shape_of(given)[2]))
        ends = [reshaped(e, (shape_of(e)[0], shape_of(e)[2])) for e in ends]
    elif batch_first:
        given = transpose(given, (1, 0, 2))
    return given, ends


def _state(states: Any, k: int, batch: Dim, hidden: Dim, rank: int, dt: DType) -> AnyArray:
    if states is None:
        return zeros((batch, hidden), dt)
    one = slice_axis(states, 0, Span(k, 1, 1))
    return reshaped(one, (1, shape_of(one)[1]) if rank == 2 else shape_of(one)[1:])


def lstm(
    x: ArrayLike, state: tuple[ArrayLike, ArrayLike] | None, params: Sequence[ArrayLike], *, num_layers: int = 1,
    bidirectional: bool = False, has_biases: bool = True, batch_first: bool = False,
) -> tuple[AnyArray, tuple[AnyArray, AnyArray]]:  # fmt: skip
    """Long short-term memory as torch.nn.LSTM: ``y, (h, c)``.

    Args:
        x: [T, N, I], [N, T, I] if ``batch_first``, or [T, I].
        state: ``(h0, c0)``, each [layers * directions, N, H]; None for zeros.
        params: for each layer and direction ``w_ih [4H, I], w_hh [4H, H], b_ih [4H], b_hh [4H]``, in PyTorch's order
            (``list(module.parameters())``); gates are i, f, g, o.
        num_layers: layers, each of which reads the one below.
        bidirectional: whether each layer also runs from the end, and the two outputs stand side by side.
        has_biases: whether ``params`` has the b_ih and b_hh.
        batch_first: whether the batch is the first axis of ``x`` and ``y``.

    Raises:
        ArgumentError: another number of parameters.
        ShapeError: sizes that do not fit.

    >>> import numpy as np
    >>> y, (h, c) = lstm(np.zeros((3, 1, 2), "f4"), None, [np.zeros((4, 2), "f4"), np.zeros((4, 1), "f4")],
    ...                  has_biases=False)
    >>> y.shape, h.shape
    ((3, 1, 1), (1, 1, 1))
    """
    states = [None, None] if state is None else list(state)
    y, (h, c) = _layers("lstm", x, states, params, num_layers, bidirectional, has_biases, batch_first)
    return y, (h, c)


def gru(
    x: ArrayLike, state: ArrayLike | None, params: Sequence[ArrayLike], *, num_layers: int = 1,
    bidirectional: bool = False, has_biases: bool = True, batch_first: bool = False,
) -> tuple[AnyArray, AnyArray]:  # fmt: skip
    """A gated recurrent unit as torch.nn.GRU: ``y, h``; as :func:`lstm` with [3H, ...] weights, gates r, z, n.

    Raises:
        ArgumentError: another number of parameters.
        ShapeError: sizes that do not fit.

    >>> import numpy as np
    >>> y, h = gru(np.zeros((3, 1, 2), "f4"), None, [np.zeros((3, 2), "f4"), np.zeros((3, 1), "f4")], has_biases=False)
    >>> y.shape, h.shape
    ((3, 1, 1), (1, 1, 1))
    """
    y, (h,) = _layers("gru", x, [state], params, num_layers, bidirectional, has_biases, batch_first)
    return y, h
