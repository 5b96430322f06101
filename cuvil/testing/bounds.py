"""Runs ops on the reference with a bound on how far a correct implementation's values may lie from it.

Each value is an array with an error bound per element: 0 where every correct implementation gives that value (the
rule for integers and booleans), infinity where nothing can be said, for instance an argmax between two elements that
are closer than their own errors. Bounds start at 0 for inputs and grow by what the numerics contract leaves open: the
order of sums, FMA contraction, and the declared tolerance of each op. They pass through an op by evaluating the
reference at the ends of its operands' intervals (element-wise ops), or by the analysis of that op's arithmetic
(sums, products, contractions, orderings). The analysis is first order with a generous factor: it must never blame a
correct program, and a wrong one is hardly ever wrong by a few units in the last place.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cuvil.dtypes import DType, dtype, float32
from cuvil.ops.builder import Builder
from cuvil.ops.record import Array, Aval, Decomposition, IndexMap, Opaque, OpRecord, ParamValue, ScalarBody
from cuvil.ops.registry import get

Bounds = NDArray[np.float64]

#: Beyond this share of a value (and this much absolutely) its bound is of no use as an interval: nothing is known.
_LOOSE = 0.25
_LOOSE_ABSOLUTE = 1e-2
#: Functions that oscillate within an interval: at a bound above this nothing is known of the result.
_PERIODIC = frozenset({"sin", "cos", "tan"})
_SAWTOOTH = frozenset({"remainder", "fmod"})
_LOGICAL = frozenset({"logical_and", "logical_or", "logical_xor", "logical_not"})
_PASS_THROUGH = frozenset({"take", "take_along_axis", "gather"})


@dataclass(frozen=True)
class Bounded:
    """The reference's value and, element by element, how far a correct value may be from it."""

    value: Array
    error: Bounds

    @property
    def known(self) -> NDArray[np.bool_]:
        """Elements of which something is known."""
        return np.isfinite(self.error)


def exact(value: Any) -> Bounded:
    """A value that has no error."""
    array = np.asarray(value)
    return Bounded(array, np.zeros(array.shape))


def epsilon(dt: DType) -> float:
    """Spacing of the floats of ``dt`` above 1.

    >>> epsilon(float32) == 2.0**-23
    True
    """
    return {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23, "float64": 2.0**-52}[dt.name]


def _smallest(dt: DType) -> float:
    return {"float16": 2.0**-24, "bfloat16": 2.0**-133, "float32": 2.0**-149, "float64": 2.0**-1074}[dt.name]


def _largest(dt: DType) -> float:
    return {"float16": 65504.0, "bfloat16": 3.3895e38, "float32": 3.4028e38, "float64": 1.7976e308}[dt.name]


def _spacing(value: Array, dt: DType) -> Bounds:
    magnitude = np.abs(wide(value))
    return np.where(np.isfinite(magnitude), np.maximum(epsilon(dt) * magnitude, _smallest(dt)), 0.0)


def wide(value: Array) -> Bounds:
    """As float64."""
    return np.asarray(value).astype(np.float64)


def run_bounded(record: OpRecord, operands: Sequence[Bounded | None], params: dict[str, ParamValue]) -> list[Bounded]:
    """All results of one op, parameters being concrete.

    Raises:
        CuvilError: what the op's reference raises.
    """
    with np.errstate(all="ignore"):
        out = record.reference(*(None if o is None else o.value for o in operands), **params)
        values = list(out) if len(record.results) > 1 else [np.asarray(out)]
        given = [o for o in operands if o is not None]
        clean = not any(o.error.any() for o in given)
        if clean and record.name != "signbit" and not any(dtype(v.dtype).is_float for v in values):
            return [exact(v) for v in values]
        rule = _RULES.get(record.name)
        if isinstance(record.body, ScalarBody):
            errors = [_elementwise(record, given, params, values[0])]
        elif isinstance(record.body, IndexMap) or record.name in _PASS_THROUGH:
            errors = [_moved(record, operands, params)]
        elif rule is not None:
            errors = rule(record, given, params, values)
        elif (decompose := _decomposition(record)) is not None:
            errors = _decomposed(decompose, operands, params, values, record)
        else:
            errors = _sampled(record, operands, params, values)
        return [_settle(v, e) for v, e in zip(values, errors, strict=True)]


def _decomposition(record: OpRecord) -> Callable[..., Any] | None:
    body = record.body
    if isinstance(body, Decomposition):
        return body.build
    return body.decompose if isinstance(body, Opaque) else None


def _settle(value: Array, error: Bounds) -> Bounded:
    """Give up where a bound is too wide to be worth keeping, or where it decides between finite and not."""
    dt = dtype(value.dtype)
    error = np.broadcast_to(np.where(np.isnan(error), np.inf, error), value.shape).copy()
    if not dt.is_float:
        return Bounded(value, np.where(error > 0, np.inf, 0.0))
    v = wide(value)
    finite = np.isfinite(v)
    error = np.where(finite, error + (error > 0) * _spacing(value, dt), np.where(np.isinf(error), np.inf, 0.0))
    loose = finite & (error > _LOOSE * np.abs(v) + _LOOSE_ABSOLUTE)
    border = finite & (error > 0) & (np.abs(v) + error > 0.99 * _largest(dt))
    return Bounded(value, np.where(loose | border, np.inf, error))


# ------------------------------------------------------------------------------------------ element-wise


def _ends(x: Bounded) -> list[Array]:
    """The value, and its interval's ends where it has one."""
    dt = dtype(x.value.dtype)
    usable = np.where(np.isfinite(x.error), x.error, 0.0)
    if not dt.is_float or not usable.any():
        return [x.value]
    v = wide(x.value)
    ends: list[Array] = [x.value]
    for sign in (-1.0, 1.0):
        end = (v + sign * usable).astype(x.value.dtype)
        stuck = (usable > 0) & (end == x.value)
        step = np.nextafter(x.value, np.asarray(sign * np.inf, x.value.dtype))
        ends.append(np.where(stuck, step, end).astype(x.value.dtype))
    return ends


def _elementwise(record: OpRecord, xs: Sequence[Bounded], params: dict[str, ParamValue], value: Array) -> Bounds:
    name = record.name
    dt = dtype(value.dtype)
    unknown = np.zeros(value.shape, bool)
    for x in xs:
        unknown = unknown | ~x.known
    if name == "where" and not xs[0].error.any():
        chosen = np.broadcast_to(xs[0].value, value.shape)
        error = np.where(chosen, xs[1].error, xs[2].error)
        return np.where(np.isinf(error), np.inf, error)
    error = np.zeros(value.shape)
    if any(x.error.any() for x in xs):
        for corner in itertools.product(*(_ends(x) for x in xs)):
            end = record.reference(*corner, **params)
            error = np.maximum(error, _difference(end, value) + _zeros_differ(end, value))
        error = 1.25 * error
    spread = [np.where(x.known, x.error, 0.0) for x in xs]
    if name in ("equal", "not_equal"):
        near = np.abs(wide(xs[0].value) - wide(xs[1].value)) <= spread[0] + spread[1]
        unknown = unknown | (near & (spread[0] + spread[1] > 0))
    elif name in _LOGICAL or (dt.name == "bool" and name == "cast"):
        # Zero alone is false, and may lie between ends that are both true.
        for x, doubt in zip(xs, spread, strict=True):
            unknown = unknown | ((np.abs(wide(x.value)) <= doubt) & (doubt > 0))
    elif name in _PERIODIC:
        unknown = unknown | (spread[0] > 0.5)
    elif name in _SAWTOOTH:
        # The remainder comes round once where the quotient changes by one.
        divisor = np.abs(wide(xs[1].value))
        quotient = np.abs(wide(xs[0].value)) / divisor
        turned = ~((spread[0] + quotient * spread[1]) / divisor <= 0.25)
        unknown = unknown | (turned & (spread[0] + spread[1] > 0))
    elif name in ("signbit", "copysign"):
        unknown = unknown | np.isnan(wide(xs[-1].value))  # nothing fixes the sign of a NaN
    elif name == "lgamma":
        v = wide(xs[0].value)
        unknown = unknown | ((v < 0.5) & (np.abs(v - np.round(v)) <= spread[0]) & (spread[0] > 0))
    if dt.is_float:
        error = error + _own_error(record, xs, value, dt)
    return np.where(unknown, np.inf, error)


def _difference(a: Array, b: Array) -> Bounds:
    """How far apart two results are: 0 for the same (NaN is NaN), infinity for a different kind of value."""
    a, b = np.asarray(a), np.asarray(b)
    if not dtype(b.dtype).is_float:
        return np.where(a != b, np.inf, 0.0)
    x, y = wide(a), wide(b)
    same = (x == y) | (np.isnan(x) & np.isnan(y))
    return np.where(same, 0.0, np.where(np.isfinite(x) & np.isfinite(y), np.abs(x - y), np.inf))


def _own_error(record: OpRecord, xs: Sequence[Bounded], value: Array, dt: DType) -> Bounds:
    """What the op itself may add: its tolerance, and the rounding that an FMA leaves out."""
    name, t = record.name, record.tolerance
    error = np.zeros(value.shape)
    if t.ulp or t.absolute:
        small = epsilon(float32 if dt.is_half else dt)
        error = t.ulp * _spacing(value, dt) + t.absolute * small
        error = np.where(np.isfinite(wide(value)), error, 0.0)
    elif name in ("multiply", "square"):
        a, b = wide(xs[0].value), wide(xs[-1].value)
        product = a * b
        lost = np.abs(product - wide(value))
        if dt.name == "float64":
            lost = epsilon(dt) * np.abs(product)
        error = np.where(np.isfinite(lost), 1.001 * lost, 0.0)
    if name in ("minimum", "maximum", "clip", "relu", "relu6"):
        error = error + np.where(wide(value) == 0, _smallest(dt), 0.0)  # either zero is right
    return error


# ---------------------------------------------------------------------------------------------- movement


def _moved(record: OpRecord, operands: Sequence[Bounded | None], params: dict[str, ParamValue]) -> Bounds:
    """Move the bounds as the values are moved; what is filled in has none."""
    quiet = {k: (0 if k in ("value", "fill") else v) for k, v in params.items()}
    data = len(operands) if isinstance(record.body, IndexMap) else 1
    errors = [None if o is None else o.error if k < data else o.value for k, o in enumerate(operands)]
    moved = np.asarray(record.reference(*errors, **quiet), np.float64)
    indices = [o for o in operands[data:] if o is not None]
    return np.full(moved.shape, np.inf) if any(o.error.any() for o in indices) else moved


# -------------------------------------------------------------------------------------------- reductions

Rule = Callable[[OpRecord, Sequence[Bounded], dict[str, ParamValue], Sequence[Array]], list[Bounds]]


def _reduce(record: OpRecord, x: Bounded, params: dict[str, ParamValue], values: Sequence[Array]) -> list[Bounds]:
    axes, keep = tuple(params["axes"]), bool(params["keepdims"])
    value = values[0]
    dt = dtype(value.dtype)
    source = dtype(x.value.dtype)
    if record.name in ("any", "all"):
        doubtful = ~x.known | ((x.error > 0) & (np.abs(wide(x.value)) <= x.error))
        return [np.where(np.any(doubtful, axis=axes, keepdims=keep), np.inf, 0.0)]
    if not source.is_float:
        return [np.where(np.any(x.error > 0, axis=axes, keepdims=keep), np.inf, 0.0)]
    if record.name in ("max", "min", "supremum"):
        error = np.max(x.error, axis=axes, keepdims=keep, initial=0.0)
        return [error + np.where(wide(value) == 0, _smallest(dt), 0.0)]
    v = wide(x.value)
    magnitude = np.where(np.isfinite(v), np.abs(v), 0.0)
    odd = np.any(~np.isfinite(v), axis=axes, keepdims=keep)
    count = int(np.prod([v.shape[a] for a in axes]))
    acc = float32 if dt.is_half else dt
    if record.name == "sum":
        total = np.sum(magnitude, axis=axes, keepdims=keep)
        error = np.sum(x.error, axis=axes, keepdims=keep)
        if count > 1:
            error = error + count * epsilon(acc) * total
        error = error + np.where(wide(value) == 0, _smallest(dt), 0.0)  # sums may start from either zero
        error = np.where(total > 0.25 * _largest(acc), np.inf, error)
        return [np.where(~np.isfinite(wide(value)) & ~odd, np.inf, error)]
    # prod: relative errors add up, and partial products may leave the range in another order.
    grown = np.prod(np.where(magnitude > 1, magnitude, 1.0), axis=axes, keepdims=keep)
    shrunk = np.prod(np.where((magnitude < 1) & (magnitude > 0), magnitude, 1.0), axis=axes, keepdims=keep)
    total = np.prod(magnitude + np.where(x.known, x.error, 0.0), axis=axes, keepdims=keep)
    error = total - np.prod(magnitude, axis=axes, keepdims=keep)
    error = error + 2 * count * (epsilon(acc) * total + _smallest(acc))
    bad = (grown > 0.25 * _largest(acc)) | (shrunk < 4e-38) | np.any(~x.known, axis=axes, keepdims=keep)
    doubtful = odd & np.any(x.error > 0, axis=axes, keepdims=keep)
    return [np.where(bad | doubtful, np.inf, error)]


def _reduction(
    record: OpRecord, xs: Sequence[Bounded], params: dict[str, ParamValue], values: Sequence[Array]
) -> list[Bounds]:
    return _reduce(record, xs[0], params, values)


def _cumulative(
    record: OpRecord, xs: Sequence[Bounded], params: dict[str, ParamValue], values: Sequence[Array]
) -> list[Bounds]:
    x, axis, value = xs[0], params["axis"], values[0]
    dt = dtype(value.dtype)
    if not dtype(x.value.dtype).is_float:
        tainted = np.cumsum(x.error > 0, axis=axis) > 0
        return [np.where(_initial(tainted, axis, params), np.inf, 0.0)]
    v = wide(x.value)
    magnitude = np.where(np.isfinite(v), np.abs(v), 0.0)
    count = v.shape[axis]
    acc = float32 if dt.is_half else dt
    odd = np.cumsum(~np.isfinite(v), axis=axis) > 0
    if record.name == "cumulative_sum":
        total = np.cumsum(magnitude, axis=axis)
        error = np.cumsum(x.error, axis=axis) + count * epsilon(acc) * total + _smallest(acc)
        error = np.where(total > 0.25 * _largest(acc), np.inf, error)
    else:
        total = np.cumprod(magnitude + np.where(x.known, x.error, 0.0), axis=axis)
        error = total - np.cumprod(magnitude, axis=axis) + 2 * count * (epsilon(acc) * total + _smallest(acc))
        grown = np.cumprod(np.where(magnitude > 1, magnitude, 1.0), axis=axis)
        shrunk = np.cumprod(np.where((magnitude < 1) & (magnitude > 0), magnitude, 1.0), axis=axis)
        doubtful = odd & (np.cumsum(x.error > 0, axis=axis) > 0)
        bad = (grown > 0.25 * _largest(acc)) | (shrunk < 4e-38) | (np.cumsum(~x.known, axis=axis) > 0) | doubtful
        error = np.where(bad, np.inf, error)
    error = _initial(error, axis, params)
    return [np.where(~np.isfinite(wide(value)) & ~_initial(odd, axis, params), np.inf, error)]


def _initial(x: Array, axis: int, params: dict[str, ParamValue]) -> Array:
    """With a leading element along ``axis`` where the op puts its identity in front."""
    if not params["include_initial"]:
        return x
    widths = [(1, 0) if a == axis else (0, 0) for a in range(x.ndim)]
    return np.pad(x, widths)


# ------------------------------------------------------------------------------------------ contractions


def _bilinear(
    record: OpRecord, xs: Sequence[Bounded], params: dict[str, ParamValue], values: Sequence[Array]
) -> list[Bounds]:
    """``f(a, b)`` linear in each operand, with an optional bias behind."""
    a, b = xs[0], xs[1]
    dt = dtype(values[0].dtype)

    def f(x: Array, y: Array) -> Bounds:
        return np.asarray(record.reference(x, y, *([None] * (len(record.operands) - 2)), **params), np.float64)

    def finite(x: Array) -> Bounds:
        v = wide(x)
        return np.where(np.isfinite(v), np.abs(v), 0.0)

    doubt_a = f((~a.known | ((a.error > 0) & ~np.isfinite(wide(a.value)))).astype(np.float64), np.ones(b.value.shape))
    doubt_b = f(np.ones(a.value.shape), (~b.known | ((b.error > 0) & ~np.isfinite(wide(b.value)))).astype(np.float64))
    unknown = (doubt_a > 0) | (doubt_b > 0)
    if not dt.is_float:
        return [np.where(unknown, np.inf, 0.0)]
    ea, eb = np.where(a.known, a.error, 0.0), np.where(b.known, b.error, 0.0)
    # An infinity times a value whose sign is in doubt.
    odd_a, odd_b = (~np.isfinite(wide(a.value))).astype(np.float64), (~np.isfinite(wide(b.value))).astype(np.float64)
    unknown = unknown | (f(odd_a, (eb > 0).astype(np.float64)) > 0) | (f((ea > 0).astype(np.float64), odd_b) > 0)
    total = f(finite(a.value), finite(b.value))
    count = max(1, int(f(np.ones(a.value.shape), np.ones(b.value.shape)).max(initial=1)))
    acc = float32 if dt.is_half else dt
    error = f(finite(a.value), eb) + f(ea, finite(b.value)) + f(ea, eb)
    error = error + (count + 1) * epsilon(acc) * total + count * _smallest(acc)
    if len(xs) > 2:
        channel = values[0].ndim - 1 if record.name == "conv_channels_last" else 1
        shape = tuple(-1 if axis == channel else 1 for axis in range(values[0].ndim))
        error = error + xs[2].error.reshape(shape) + epsilon(acc) * np.abs(wide(xs[2].value)).reshape(shape)
    odd = (f(odd_a, np.ones(b.value.shape)) + f(np.ones(a.value.shape), odd_b)) > 0
    overflow = (total > 0.25 * _largest(acc)) | (~np.isfinite(wide(values[0])) & ~odd & (len(xs) == 2))
    return [np.where(unknown | overflow, np.inf, error)]


# -------------------------------------------------------------------------------------------- orderings


def _row_doubt(x: Bounded, axis: int) -> NDArray[np.bool_]:
    """Rows along ``axis`` whose order depends on the errors of their elements."""
    v = np.moveaxis(wide(x.value), axis, -1)
    e = np.moveaxis(x.error, axis, -1)
    widest = np.max(e, axis=-1, initial=0.0, keepdims=True)
    ordered = np.sort(v, axis=-1)
    gaps = np.diff(ordered, axis=-1)
    close = np.any(~(gaps > 2 * widest) & ~np.isnan(gaps), axis=-1, keepdims=True)
    odd = np.any(~np.isfinite(v), axis=-1, keepdims=True)
    return np.moveaxis((widest > 0) & (close | odd | np.isinf(widest)), -1, axis)


def _arg_extreme(
    record: OpRecord, xs: Sequence[Bounded], params: dict[str, ParamValue], values: Sequence[Array]
) -> list[Bounds]:
    doubt = _row_doubt(xs[0], params["axis"])
    if not params["keepdims"]:
        doubt = np.squeeze(doubt, params["axis"])
    return [np.where(doubt, np.inf, 0.0)]


def _order(
    record: OpRecord, xs: Sequence[Bounded], params: dict[str, ParamValue], values: Sequence[Array]
) -> list[Bounds]:
    x, axis = xs[0], params["axis"]
    widest = np.max(x.error, axis=axis, keepdims=True, initial=0.0)
    doubt = np.where(_row_doubt(x, axis), np.inf, 0.0)
    if record.name == "argsort":
        return [np.broadcast_to(doubt, values[0].shape)]
    dt = dtype(values[0].dtype)
    either = np.where(wide(values[0]) == 0, _smallest(dt), 0.0) if dt.is_float else 0.0  # zeros are equal
    widest = np.broadcast_to(widest, values[0].shape) + either
    return [widest] if record.name == "sort" else [widest, np.broadcast_to(doubt, values[1].shape)]


def _searched(
    record: OpRecord, xs: Sequence[Bounded], params: dict[str, ParamValue], values: Sequence[Array]
) -> list[Bounds]:
    spread = float(np.max(xs[0].error, initial=0.0)) + xs[1].error
    if not np.isfinite(spread).all():
        return [np.full(values[0].shape, np.inf)]
    distance = np.abs(wide(xs[1].value)[..., None] - wide(xs[0].value))
    near = np.any(~(distance > spread[..., None]), axis=-1) & (spread > 0)
    return [np.where(near, np.inf, 0.0)]


def _scattered(
    record: OpRecord, xs: Sequence[Bounded], params: dict[str, ParamValue], values: Sequence[Array]
) -> list[Bounds]:
    x, updates, *indices = xs
    dt = dtype(values[0].dtype)
    if any(i.error.any() for i in indices):
        return [np.full(values[0].shape, np.inf)]
    op = params["op"]
    where = [i.value for i in indices]
    if op == "set":
        return [np.asarray(record.reference(x.error, updates.error, *where, **params), np.float64)]
    if not dt.is_float:
        doubtful = bool(x.error.any() or updates.error.any())
        return [np.full(values[0].shape, np.inf if doubtful else 0.0)]
    if op == "add":
        total = record.reference(np.abs(wide(x.value)), np.abs(wide(updates.value)), *where, **params)
        moved = record.reference(x.error, updates.error, *where, **params)
        return [np.asarray(moved + (updates.value.size + 1) * epsilon(dt) * total, np.float64)]
    if op in ("max", "min"):
        widest = max(float(x.error.max(initial=0.0)), float(updates.error.max(initial=0.0)))
        return [np.full(values[0].shape, widest) + np.where(wide(values[0]) == 0, _smallest(dt), 0.0)]
    if x.error.any() or updates.error.any():
        return [np.full(values[0].shape, np.inf)]
    # Products in any order.
    return [2 * (updates.value.size + 1) * _spacing(values[0], dt)]


# ------------------------------------------------------------------------------- decompositions and others


class BoundedBuilder(Builder[Bounded]):
    """Runs ops with bounds, as a decomposition asks for them."""

    def emit(self, name: str, operands: Sequence[Bounded | None], params: dict[str, ParamValue]) -> tuple[Bounded, ...]:
        record = get(name)
        return tuple(run_bounded(record, operands, record.fill_params(params)))

    def constant(self, value: Array) -> Bounded:
        return exact(value)

    def aval(self, value: Bounded) -> Aval:
        return Aval(value.value.shape, dtype(value.value.dtype))


def _decomposed(
    decompose: Callable[..., Any],
    operands: Sequence[Bounded | None],
    params: dict[str, ParamValue],
    values: Sequence[Array],
    record: OpRecord,
) -> list[Bounds]:
    out = decompose(BoundedBuilder(), *operands, **params)
    results: Sequence[Bounded] = out if isinstance(out, tuple) else (out,)
    # A kernel may compute the op in another order than its decomposition does, an attention's softmax for one.
    factor = 4.0 if isinstance(record.body, Opaque) else 1.0
    return [
        factor * r.error + _difference(r.value, v) + _zeros_differ(r.value, v)
        for r, v in zip(results, values, strict=True)
    ]


def _zeros_differ(a: Array, b: Array) -> Bounds:
    """Something very small where the signs of two zeros differ: either is right then."""
    dt = dtype(b.dtype)
    if not dt.is_float:
        return np.zeros(b.shape)
    x, y = wide(a), wide(b)
    return np.where((x == 0) & (y == 0) & (np.signbit(x) != np.signbit(y)), _smallest(dt), 0.0)


def _sampled(
    record: OpRecord, operands: Sequence[Bounded | None], params: dict[str, ParamValue], values: Sequence[Array]
) -> list[Bounds]:
    """The spread of the op over operands perturbed within their bounds, several times over."""
    t = record.tolerance
    errors: list[Bounds] = []
    for v in values:
        dt = dtype(v.dtype)
        own = np.zeros(v.shape)
        if dt.is_float:
            small = epsilon(float32 if dt.is_half else dt)
            own = t.ulp * _spacing(v, dt) + t.absolute * small * (1 + np.abs(wide(v)))
        errors.append(own)
    given = [o for o in operands if o is not None]
    if not any(o.error.any() for o in given):
        return errors
    if not all(o.known.all() for o in given):
        return [np.full(v.shape, np.inf) for v in values]
    rng = np.random.default_rng(0)
    for _ in range(6):
        shaken = [None if o is None else _shake(o, rng) for o in operands]
        out = record.reference(*shaken, **params)
        results = list(out) if len(record.results) > 1 else [np.asarray(out)]
        errors = [np.maximum(e, 8 * _difference(r, v)) for e, r, v in zip(errors, results, values, strict=True)]
    return errors


def _shake(x: Bounded, rng: np.random.Generator) -> Array:
    ends = _ends(x)
    return ends[0] if len(ends) == 1 else np.where(rng.random(x.value.shape) < 0.5, ends[1], ends[2])


_RULES: dict[str, Rule] = {
    **dict.fromkeys(("sum", "prod", "max", "min", "supremum", "any", "all"), _reduction),
    **dict.fromkeys(("cumulative_sum", "cumulative_prod"), _cumulative),
    **dict.fromkeys(("matmul", "conv", "conv_channels_last"), _bilinear),
    **dict.fromkeys(("argmax", "argmin"), _arg_extreme),
    **dict.fromkeys(("sort", "argsort", "top_k"), _order),
    "searchsorted": _searched,
    "scatter": _scattered,
}
