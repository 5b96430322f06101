"""Rules of vectorisation: ops on arrays with a leading axis of examples (see :mod:`cuvil.ops.vectorisation`).

The functions here make rules; most ops only have their axes counted one further.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from cuvil.dtypes import int64, uint64
from cuvil.ops import transposes
from cuvil.ops.builder import Builder, V
from cuvil.ops.record import ParamValue, Shape
from cuvil.ops.vectorisation import Batched, Examples, aligned, example_shape, with_axis
from cuvil.symbolic import Dim, product

Value = Any
Operands = Sequence[Any]
Own = Sequence[bool]
Results = Sequence[Value]
Rule = Callable[..., Results]
Ints = tuple[int, ...]
Pairs = tuple[tuple[Dim, Dim], ...]

# ------------------------------------------------------------------------------------- axes counted further


def along(name: str) -> Rule:
    """An op of one operand along ``axis``."""

    def rule(F: Builder[Any], operands: Operands, own: Own, size: Dim, *, axis: int, **params: ParamValue) -> Results:
        return F.emit(name, operands, {**params, "axis": axis + 1})

    return rule


def over(name: str) -> Rule:
    """An op of one operand over ``axes``."""

    def rule(
        F: Builder[Any], operands: Operands, own: Own, size: Dim, *, axes: tuple[int, ...], **params: ParamValue
    ) -> Results:
        return F.emit(name, operands, {**params, "axes": tuple(a + 1 for a in axes)})

    return rule


def trailing(name: str) -> Rule:
    """An op of one operand that leaves leading axes alone."""

    def rule(F: Builder[Any], operands: Operands, own: Own, size: Dim, **params: ParamValue) -> Results:
        return F.emit(name, operands, dict(params))

    return rule


def stacked(name: str) -> Rule:
    """An op on matrices whose leading axes broadcast, or on elements."""

    def rule(F: Builder[Any], operands: Operands, own: Own, size: Dim, **params: ParamValue) -> Results:
        return F.emit(name, aligned(F, operands, own), dict(params))

    return rule


def first_along(name: str, key: str, build: Callable[..., Any]) -> Rule:
    """An op along the axes ``key`` whose first operand has examples of its own; by its composition where others do."""

    def rule(F: Builder[Any], operands: Operands, own: Own, size: Dim, **params: ParamValue) -> Results:
        if any(own[1:]):
            return composed(F, operands, own, size, build, params)
        axes = params[key]
        moved = axes + 1 if isinstance(axes, int) else tuple(a + 1 for a in axes)
        return F.emit(name, operands, {**params, key: moved})

    return rule


def composed(
    F: Builder[Any], operands: Operands, own: Own, size: Dim, build: Callable[..., Any], params: dict[str, ParamValue]
) -> Results:
    """The results of a composition whose ops run for all examples."""
    given = [None if v is None else Batched(v, o) for v, o in zip(operands, own, strict=True)]
    out = build(Examples(F, size), *given, **params)
    results = out if isinstance(out, tuple) else (out,)
    return [with_axis(F, r.value, r.own, size) for r in results]


def through(build: Callable[..., Any]) -> Rule:
    """The rule of an op that runs for all examples as another way to compute it."""

    def rule(F: Builder[Any], operands: Operands, own: Own, size: Dim, **params: ParamValue) -> Results:
        return composed(F, operands, own, size, build, dict(params))

    return rule


# ------------------------------------------------------------------------------------------------ movement


def transpose(F: Builder[Any], operands: Operands, own: Own, size: Dim, *, axes: tuple[int, ...]) -> Results:
    return [F.transpose(operands[0], (0, *(a + 1 for a in axes)))]


def reshape(F: Builder[Any], operands: Operands, own: Own, size: Dim, *, shape: Shape) -> Results:
    return [F.reshape(operands[0], (size, *shape))]


def broadcast_to(F: Builder[Any], operands: Operands, own: Own, size: Dim, *, shape: Shape) -> Results:
    (x,) = aligned(F, operands, own, len(shape))
    return [F.broadcast_to(x, (size, *shape))]


def slice(  # noqa: A001 - the op's name
    F: Builder[Any], operands: Operands, own: Own, size: Dim, *, starts: Shape, sizes: Shape, steps: tuple[int, ...]
) -> Results:
    return F.emit("slice", operands, {"starts": (0, *starts), "sizes": (size, *sizes), "steps": (1, *steps)})


def pad(
    F: Builder[Any],
    operands: Operands,
    own: Own,
    size: Dim,
    *,
    pairs: tuple[tuple[Dim, Dim], ...],
    **params: ParamValue,
) -> Results:
    return F.emit("pad", operands, {**params, "pairs": ((0, 0), *pairs)})


def tile(F: Builder[Any], operands: Operands, own: Own, size: Dim, *, reps: Shape) -> Results:
    return F.emit("tile", operands, {"reps": (1, *reps)})


def joined(name: str) -> Rule:
    """concat and stack: every operand has the leading axis."""

    def rule(F: Builder[Any], operands: Operands, own: Own, size: Dim, *, axis: int) -> Results:
        given = [with_axis(F, v, o, size) for v, o in zip(operands, own, strict=True)]
        return [F.op(name, *given, axis=axis + 1)]

    return rule


# -------------------------------------------------------------------------------------------- contractions


def vecdot(F: Builder[Any], operands: Operands, own: Own, size: Dim, *, axis: int) -> Results:
    return [F.op("vecdot", *aligned(F, operands, own), axis=axis + 1)]


def folded(name: str, build: Callable[..., Any] | None = None) -> Rule:
    """An op whose first operand begins with an axis of samples, into which the examples go.

    Where another operand has examples of its own, the op runs by its composition.
    """

    def rule(F: Builder[Any], operands: Operands, own: Own, size: Dim, **params: ParamValue) -> Results:
        if any(own[1:]):
            assert build is not None
            return composed(F, operands, own, size, build, dict(params))
        x, *others = operands
        out = F.op(name, _merged(F, x), *others, **params)
        return [_split(F, out, size, F.shape(x)[1])]

    return rule


def _merged(F: Builder[Any], x: Value, axis: int = 0) -> Value:
    """Two neighbouring axes as one."""
    shape = F.shape(x)
    return F.reshape(x, (*shape[:axis], shape[axis] * shape[axis + 1], *shape[axis + 2 :]))


def _split(F: Builder[Any], x: Value, first: Dim, second: Dim, axis: int = 0) -> Value:
    """The inverse of :func:`_merged`."""
    shape = F.shape(x)
    return F.reshape(x, (*shape[:axis], first, second, *shape[axis + 1 :]))


def conv(F: Builder[Any], operands: Operands, own: Own, size: Dim, **params: Any) -> Results:
    """Examples of the input are samples; those of the weight are groups of channels."""
    x, w, bias = (*operands, None)[:3]
    own_x, own_w, own_bias = (*own, False)[:3]
    if own_bias or (bias is not None and own_w):
        (out,) = conv(F, [x, w, None], [own_x, own_w, False], size, **params) if own_x or own_w else [None]
        spatial = len(params["strides"])
        if out is None:
            out = F.op("conv", x, w, None, **params)
        shape = F.shape(bias)
        column = F.reshape(
            bias, (*shape[:1], 1, *shape[1:], *(1,) * spatial) if own_bias else (*shape, *(1,) * spatial)
        )
        return [F.add(out, column)]
    if not own_w:
        out = F.op("conv", _merged(F, x), w, bias, **params)
        return [_split(F, out, size, F.shape(x)[1])]
    if not isinstance(size, int) or size == 0:
        return composed(F, [x, w], [own_x, own_w], size, conv_by_windows, params)
    # [N, examples * C, ...] against [examples * O, C / groups, ...].
    x = with_axis(F, x, own_x, size)
    rank = len(F.shape(x))
    x = _merged(F, F.transpose(x, (1, 0, *range(2, rank))), 1)
    out_channels = F.shape(w)[1]
    out = F.op("conv", x, _merged(F, w), None, **{**params, "groups": params["groups"] * size})
    out = _split(F, out, size, out_channels, 1)
    return [F.transpose(out, (1, 0, *range(2, len(F.shape(out)))))]


def conv_by_windows(
    F: Builder[V], x: V, w: V, *, strides: Ints, padding: Pairs, dilation: Ints, input_dilation: Ints, groups: int
) -> V:
    """conv as a product of matrices of windows, whatever the sizes."""
    for a, d in enumerate(input_dilation):
        spread = transposes.spread(F, x, 2 + a, d)
        x = transposes.cut(F, spread, 2 + a, 0, F.shape(spread)[2 + a] - d + 1)
    n = len(strides)
    if any(pair != (0, 0) for pair in padding):
        x = F.op("pad", x, pairs=((0, 0), (0, 0), *padding), mode="constant", value=0)
    out_channels, per_group, *kernel = F.shape(w)
    spatial = tuple(range(2, 2 + n))
    taps = F.op("window", x, axes=spatial, sizes=tuple(kernel), strides=strides, dilations=dilation)
    batch, _, *positions = F.shape(taps)[: 2 + n]
    per_output = per_group * product(kernel)
    rows = F.reshape(taps, (batch, groups, per_group, *positions, *kernel))
    rows = F.transpose(rows, (0, 1, *range(3, 3 + n), 2, *range(3 + n, 3 + 2 * n)))
    rows = F.reshape(rows, (batch, groups, product(positions), per_output))
    columns = F.transpose(F.reshape(w, (groups, out_channels // groups, per_output)), (0, 2, 1))
    out = F.transpose(F.matmul(rows, columns), (0, 1, 3, 2))
    return F.reshape(out, (batch, out_channels, *positions))


def attention(F: Builder[Any], operands: Operands, own: Own, size: Dim, **params: ParamValue) -> Results:
    """Examples are samples: [examples * B, H, S, D]."""
    q, k, v, mask = (*operands, None)[:4]
    own_mask = len(own) > 3 and own[3]
    batch = example_shape(F, q, own[0])[0]
    merged = [_merged(F, with_axis(F, x, o, size)) for x, o in zip((q, k, v), own, strict=False)]
    if mask is not None:
        shape = example_shape(F, mask, own_mask)
        shape = (*(1,) * (4 - len(shape)), *shape)
        if own_mask or shape[0] != 1:
            lead = size if own_mask else 1
            mask = F.broadcast_to(F.reshape(mask, (lead, *shape)), (size, batch, *shape[1:]))
            mask = _merged(F, mask)
    out = F.op("scaled_dot_product_attention", *merged, mask, **params)
    return [_split(F, out, size, batch)]


def recurrent(name: str, states: int, unrolled: Callable[..., Any]) -> Rule:
    """lstm and gru: examples are samples where the weights are shared; else it runs step by step."""

    def rule(F: Builder[Any], operands: Operands, own: Own, size: Dim, *, reverse: bool) -> Results:
        if any(own[1 + states :]):
            return composed(F, operands, own, size, unrolled, {"reverse": reverse})
        x = with_axis(F, operands[0], own[0], size)
        batch = F.shape(x)[2]
        x = _merged(F, F.transpose(x, (1, 0, 2, 3)), 1)
        initial = [
            _merged(F, with_axis(F, s, o, size))
            for s, o in zip(operands[1 : 1 + states], own[1 : 1 + states], strict=True)
        ]
        y, *last = F.emit(name, [x, *initial, *operands[1 + states :]], {"reverse": reverse})
        y = F.transpose(_split(F, y, size, batch, 1), (1, 0, 2, 3))
        return [y, *(_split(F, s, size, batch) for s in last)]

    return rule


# ------------------------------------------------------------------------------------------------ indexing


def _example_numbers(F: Builder[Any], size: Dim, rank: int) -> Value:
    """The number of each example, ready to broadcast with indices of a rank."""
    return F.reshape(F.iota((size,), 0), (size, *(1,) * rank))


def _as_int64(F: Builder[Any], indices: Value) -> Value:
    if F.dtype(indices) is uint64:
        # What is past the int64 range is past every axis, too, and must not become negative.
        indices = F.minimum(indices, F.scalar(2**63 - 1, uint64))
    return F.cast(indices, int64)


def take(F: Builder[Any], operands: Operands, own: Own, size: Dim, *, axis: int, mode: str, fill: Any) -> Results:
    x, indices = operands
    if not own[1]:
        return [F.op("take", x, indices, axis=axis + 1, mode=mode, fill=fill)]
    rank = len(F.shape(indices)) - 1
    if not own[0]:
        out = F.op("take", x, indices, axis=axis, mode=mode, fill=fill)
        return [F.transpose(out, (axis, *range(axis), *range(axis + 1, len(F.shape(out)))))]
    others = tuple(a for a in range(1, len(F.shape(x))) if a != axis + 1)
    fronted = F.transpose(x, (0, axis + 1, *others))
    at = (_example_numbers(F, size, rank), _as_int64(F, indices))
    out = F.op("gather", fronted, *at, mode=mode, fill=fill)
    # [examples, indices..., axes before, axes after] -> [examples, axes before, indices..., axes after]
    last = len(F.shape(out))
    before = range(1 + rank, 1 + rank + axis)
    return [F.transpose(out, (0, *before, *range(1, 1 + rank), *range(1 + rank + axis, last)))]


def take_along_axis(
    F: Builder[Any], operands: Operands, own: Own, size: Dim, *, axis: int, mode: str, fill: Any
) -> Results:
    x, indices = (v if o else F.reshape(v, (1, *F.shape(v))) for v, o in zip(operands, own, strict=True))
    return [F.op("take_along_axis", x, indices, axis=axis + 1, mode=mode, fill=fill)]


def gather(F: Builder[Any], operands: Operands, own: Own, size: Dim, *, mode: str, fill: Any) -> Results:
    x, *indices = operands
    at = aligned(F, indices, own[1:])
    if own[0]:
        rank = max(len(example_shape(F, i, o)) for i, o in zip(indices, own[1:], strict=True))
        at = [_example_numbers(F, size, rank), *(_as_int64(F, i) for i in at)]
    return [F.op("gather", x, *at, mode=mode, fill=fill)]


def scatter(F: Builder[Any], operands: Operands, own: Own, size: Dim, *, op: str, mode: str) -> Results:
    x, updates, *indices = operands
    own_x, own_updates, *own_indices = own
    rank = max(len(example_shape(F, i, o)) for i, o in zip(indices, own_indices, strict=True))
    at = [_as_int64(F, i) for i in aligned(F, indices, own_indices)]
    x = with_axis(F, x, own_x, size)
    target = rank + len(F.shape(x)) - 1 - len(indices)
    (updates,) = aligned(F, [updates], [own_updates], target)
    return [F.op("scatter", x, updates, _example_numbers(F, size, rank), *at, op=op, mode=mode)]


# ------------------------------------------------------------------------------------------------- sorting


def searchsorted(F: Builder[Any], operands: Operands, own: Own, size: Dim, *, right: bool) -> Results:
    """With one sorted array for all it is the same search; with several, a count of what comes before each value."""
    ordered, values = operands
    if not own[0]:
        return [F.op("searchsorted", ordered, values, right=right)]
    values = with_axis(F, values, own[1], size)
    rank = len(F.shape(values))
    x = F.reshape(ordered, (size, *(1,) * (rank - 1), F.shape(ordered)[1]))
    v = F.reshape(values, (*F.shape(values), 1))
    before = F.op("logical_not", _less(F, v, x)) if right else _less(F, x, v)
    return [F.sum(before, (rank,))]


def _less(F: Builder[Any], a: Value, b: Value) -> Value:
    """The order of sorting: NaN is the largest value."""
    below = F.op("less", a, b)
    if not F.dtype(a).is_float:
        return below
    return F.op("logical_or", below, F.op("logical_and", F.op("isnan", b), F.op("logical_not", F.op("isnan", a))))
