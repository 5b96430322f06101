"""Reductions: sums, extremes, moments, positions of extremes and running totals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from cuvil.dtypes import ALL, FLOATS, NUMERIC, DType, bool_, dtype, int64, uint8
from cuvil.ops import batching, tangents, transposes
from cuvil.ops.arithmetic import convert, in_float32, widen
from cuvil.ops.builder import Builder, V
from cuvil.ops.cost import ShapeRule, per_operand
from cuvil.ops.drawing import draw_axes, draw_shape
from cuvil.ops.dtype_rules import (
    DTypeRule,
    DTypes,
    accept,
    mean_accumulator,
    mean_dtype,
    sum_accumulator,
    sum_dtype,
)
from cuvil.ops.record import (
    Array,
    Chooser,
    Decomposition,
    Example,
    Opaque,
    OperandSample,
    OpRecord,
    Param,
    Params,
    ReduceBody,
    Shape,
    ShapeResult,
    Tolerance,
)
from cuvil.ops.registry import register
from cuvil.ops.requirements import Requirements, format_shape, present
from cuvil.ops.shape_rules import Shapes, nonempty, reduced_shape
from cuvil.support.errors import ArgumentError

Axes = tuple[int, ...]

AXES = Param("axes", "ints", "reduced axes, sorted; none of them reduces nothing")
KEEPDIMS = Param("keepdims", "bool", "keep reduced axes with size 1", False)

#: Sums in another order (numerics rule 10): samples reduce a few hundred elements of magnitude 8 at most.
SUM_TOLERANCE = Tolerance(ulp=16, absolute=1024)


def reduction_rule(op: str, needs_elements: bool = False) -> ShapeRule:
    """The shape rule of a reduction over ``params["axes"]``."""

    def rule(shapes: Shapes, params: Params) -> ShapeResult:
        need = Requirements(op)
        x = present(shapes[0])
        out = reduced_shape(need, x, params["axes"], params["keepdims"])
        if needs_elements:
            nonempty(need, x, params["axes"])
        return need.result(out)

    return rule


def mapped_dtype(op: str, accepted: tuple[DType, ...], result: Callable[[DType], DType]) -> DTypeRule:
    """The result dtype as a function of the one operand's."""

    def rule(dtypes: DTypes, params: Params) -> tuple[DType, ...]:
        return (result(accept(op, dtypes[0], accepted)),)

    return rule


def same(dt: DType) -> DType:
    """The dtype itself."""
    return dt


def always(dt: DType) -> Callable[[DType], DType]:
    """A function to one dtype."""

    def constant(_: DType) -> DType:
        return dt

    return constant


def sampler(
    accepted: tuple[DType, ...], domain: Literal["any", "moderate", "unit"], positive: bool = False
) -> Callable[[Chooser], Example]:
    """Samples of a reduction of one operand."""

    def sample(c: Chooser) -> Example:
        shape = draw_shape(c, 0, 4, positive)
        params = {"axes": draw_axes(c, len(shape)), "keepdims": c.boolean()}
        return Example((OperandSample(shape, c.choice(accepted), domain),), params)

    return sample


def require_elements(op: str, x: Array, axes: Axes) -> None:
    """The run-time side of :func:`~cuvil.ops.shape_rules.nonempty`.

    Raises:
        ArgumentError: an axis to reduce is empty.
    """
    empty = [a for a in axes if x.shape[a] == 0]
    if empty:
        raise ArgumentError(
            f"{op}: axis {empty[0]} of shape {format_shape(x.shape)} is empty and {op} has no value over nothing; "
            "reduce an axis of size 1 or more"
        )


# ------------------------------------------------------------------------------------- sum and product


def _zero(dt: DType) -> int:
    return 0


def _one(dt: DType) -> int:
    return 1


def _sum_reference(x: Array, *, axes: Axes, keepdims: bool) -> Array:
    dt = dtype(x.dtype)
    with np.errstate(all="ignore"):
        total = np.sum(x, axis=axes, keepdims=keepdims, dtype=sum_accumulator(dt).numpy)
    return convert(total, sum_dtype(dt))


def _prod_reference(x: Array, *, axes: Axes, keepdims: bool) -> Array:
    dt = dtype(x.dtype)
    with np.errstate(all="ignore"):
        total = np.prod(x, axis=axes, keepdims=keepdims, dtype=sum_accumulator(dt).numpy)
    return convert(total, sum_dtype(dt))


SUM = register(
    OpRecord(
        name="sum",
        doc="The sum over axes: integers in 64 bits, halves in float32; 0 over nothing.",
        category="reduction",
        operands=("x",),
        params=(AXES, KEEPDIMS),
        shape_rule=reduction_rule("sum"),
        dtype_rule=mapped_dtype("sum", ALL, sum_dtype),
        reference=_sum_reference,
        body=ReduceBody("add", _zero),
        sample=sampler(ALL, "moderate"),
        batch_rule=batching.over("sum"),
        jvp=transposes.jointly("sum"),
        transpose=transposes.sum,
        accumulate=sum_accumulator,
        cost=per_operand(reduction_rule("sum"), 1),
        tolerance=SUM_TOLERANCE,
        onnx=("ReduceSum",),
        torch=("aten.sum",),
    )
)

PROD = register(
    OpRecord(
        name="prod",
        doc="The product over axes: integers in 64 bits, halves in float32; 1 over nothing.",
        category="reduction",
        operands=("x",),
        params=(AXES, KEEPDIMS),
        shape_rule=reduction_rule("prod"),
        dtype_rule=mapped_dtype("prod", ALL, sum_dtype),
        reference=_prod_reference,
        body=ReduceBody("mul", _one),
        sample=sampler(ALL, "unit"),
        batch_rule=batching.over("prod"),
        jvp=tangents.prod,
        accumulate=sum_accumulator,
        cost=per_operand(reduction_rule("prod"), 1),
        # Each factor rounds once, and a few hundred factors of the unit interval never grow.
        tolerance=Tolerance(ulp=1024),
        onnx=("ReduceProd",),
        torch=("aten.prod",),
    )
)

# ------------------------------------------------------------------------------------------- extremes


def _extreme_accumulator(dt: DType) -> DType:
    """bool has no order in the instruction set: it goes through uint8. Halves are compared in float32."""
    return uint8 if dt.is_bool else sum_accumulator(dt) if dt.is_float else dt


def _least(dt: DType) -> int | float:
    return float("-inf") if dt.is_float else int(np.iinfo(dt.numpy).min)


def _greatest(dt: DType) -> int | float:
    return float("inf") if dt.is_float else int(np.iinfo(dt.numpy).max)


def _max_reference(x: Array, *, axes: Axes, keepdims: bool) -> Array:
    require_elements("max", x, axes)
    return in_float32(np.max)(x, axis=axes, keepdims=keepdims)


def _min_reference(x: Array, *, axes: Axes, keepdims: bool) -> Array:
    require_elements("min", x, axes)
    return in_float32(np.min)(x, axis=axes, keepdims=keepdims)


MAX = register(
    OpRecord(
        name="max",
        doc="The largest element over axes; NaN if there is one. Over nothing it is an error.",
        category="reduction",
        operands=("x",),
        params=(AXES, KEEPDIMS),
        shape_rule=reduction_rule("max", needs_elements=True),
        dtype_rule=mapped_dtype("max", ALL, same),
        reference=_max_reference,
        body=ReduceBody("max", _least, allow_empty=False),
        sample=sampler(ALL, "any", positive=True),
        batch_rule=batching.over("max"),
        jvp=tangents.extreme,
        accumulate=_extreme_accumulator,
        cost=per_operand(reduction_rule("max"), 1),
        onnx=("ReduceMax",),
        torch=("aten.amax", "aten.max"),
    )
)


def _supremum_reference(x: Array, *, axes: Axes, keepdims: bool) -> Array:
    return in_float32(np.max)(x, axis=axes, keepdims=keepdims, initial=_least(dtype(x.dtype)))


SUPREMUM = register(
    OpRecord(
        name="supremum",
        doc="The least upper bound over axes: the largest element, NaN if there is one; over nothing -infinity, or the "
        "least integer. What softmax subtracts, so that it has a value at every size.",
        category="reduction",
        operands=("x",),
        params=(AXES, KEEPDIMS),
        shape_rule=reduction_rule("supremum"),
        dtype_rule=mapped_dtype("supremum", NUMERIC, same),
        reference=_supremum_reference,
        body=ReduceBody("max", _least),
        sample=sampler(NUMERIC, "any"),
        batch_rule=batching.over("supremum"),
        jvp=tangents.extreme,
        accumulate=_extreme_accumulator,
        cost=per_operand(reduction_rule("supremum"), 1),
    )
)

MIN = register(
    OpRecord(
        name="min",
        doc="The smallest element over axes; NaN if there is one. Over nothing it is an error.",
        category="reduction",
        operands=("x",),
        params=(AXES, KEEPDIMS),
        shape_rule=reduction_rule("min", needs_elements=True),
        dtype_rule=mapped_dtype("min", ALL, same),
        reference=_min_reference,
        body=ReduceBody("min", _greatest, allow_empty=False),
        sample=sampler(ALL, "any", positive=True),
        batch_rule=batching.over("min"),
        jvp=tangents.extreme,
        accumulate=_extreme_accumulator,
        cost=per_operand(reduction_rule("min"), 1),
        onnx=("ReduceMin",),
        torch=("aten.amin", "aten.min"),
    )
)

# ------------------------------------------------------------------------------------------ any and all


def _any_reference(x: Array, *, axes: Axes, keepdims: bool) -> Array:
    return np.asarray(np.any(convert(x, bool_), axis=axes, keepdims=keepdims))


def _all_reference(x: Array, *, axes: Axes, keepdims: bool) -> Array:
    return np.asarray(np.all(convert(x, bool_), axis=axes, keepdims=keepdims))


def _false(dt: DType) -> bool:
    return False


def _true(dt: DType) -> bool:
    return True


ANY = register(
    OpRecord(
        name="any",
        doc="Whether some element over axes is not 0 (NaN is not); false over nothing.",
        category="reduction",
        operands=("x",),
        params=(AXES, KEEPDIMS),
        shape_rule=reduction_rule("any"),
        dtype_rule=mapped_dtype("any", ALL, always(bool_)),
        reference=_any_reference,
        body=ReduceBody("or", _false),
        sample=sampler(ALL, "any"),
        batch_rule=batching.over("any"),
        accumulate=always(bool_),
        cost=per_operand(reduction_rule("any"), 1),
        torch=("aten.any",),
    )
)

ALL_OF = register(
    OpRecord(
        name="all",
        doc="Whether every element over axes is not 0 (NaN is not); true over nothing.",
        category="reduction",
        operands=("x",),
        params=(AXES, KEEPDIMS),
        shape_rule=reduction_rule("all"),
        dtype_rule=mapped_dtype("all", ALL, always(bool_)),
        reference=_all_reference,
        body=ReduceBody("and", _true),
        sample=sampler(ALL, "any"),
        batch_rule=batching.over("all"),
        accumulate=always(bool_),
        cost=per_operand(reduction_rule("all"), 1),
        torch=("aten.all",),
    )
)

# ---------------------------------------------------------------------------------------------- moments


def _mean_of(F: Builder[V], x: V, axes: Axes, keepdims: bool) -> V:
    return F.div(F.sum(x, axes, keepdims), F.dim(F.size(x, axes), F.dtype(x)))


def _mean_body(F: Builder[V], x: V, *, axes: Axes, keepdims: bool) -> V:
    dt = F.dtype(x)
    return F.cast(_mean_of(F, F.cast(x, mean_accumulator(dt)), axes, keepdims), mean_dtype(dt))


def _count(x: Array, axes: Axes) -> int:
    return int(np.prod([x.shape[a] for a in axes], dtype=np.int64))


def _mean_wide(x: Array, axes: Axes, keepdims: bool) -> Array:
    wide = convert(x, mean_accumulator(dtype(x.dtype)))
    total = np.sum(wide, axis=axes, keepdims=keepdims)
    return np.asarray(total / np.asarray(_count(x, axes), wide.dtype))


def _mean_reference(x: Array, *, axes: Axes, keepdims: bool) -> Array:
    with np.errstate(all="ignore"):
        return convert(_mean_wide(x, axes, keepdims), mean_dtype(dtype(x.dtype)))


MEAN = register(
    OpRecord(
        name="mean",
        doc="The mean over axes: halves in float32, integers in float64; NaN over nothing.",
        category="reduction",
        operands=("x",),
        params=(AXES, KEEPDIMS),
        shape_rule=reduction_rule("mean"),
        dtype_rule=mapped_dtype("mean", ALL, mean_dtype),
        reference=_mean_reference,
        body=Decomposition(_mean_body),
        sample=sampler(ALL, "moderate"),
        batch_rule=batching.over("mean"),
        accumulate=mean_accumulator,
        cost=per_operand(reduction_rule("mean"), 1),
        tolerance=Tolerance(ulp=16, absolute=64),
        onnx=("ReduceMean",),
        torch=("aten.mean",),
    )
)


def _variance_of(F: Builder[V], x: V, axes: Axes, keepdims: bool, correction: float) -> V:
    centred = F.sub(x, _mean_of(F, x, axes, True))
    count = F.sub(F.dim(F.size(x, axes), F.dtype(x)), F.like(correction, x))
    return F.div(F.sum(F.mul(centred, centred), axes, keepdims), F.maximum(count, F.like(0, x)))


def _var_body(F: Builder[V], x: V, *, axes: Axes, keepdims: bool, correction: float) -> V:
    dt = F.dtype(x)
    return F.cast(_variance_of(F, F.cast(x, mean_accumulator(dt)), axes, keepdims, correction), mean_dtype(dt))


def _std_body(F: Builder[V], x: V, *, axes: Axes, keepdims: bool, correction: float) -> V:
    dt = F.dtype(x)
    variance = _variance_of(F, F.cast(x, mean_accumulator(dt)), axes, keepdims, correction)
    return F.cast(F.op("sqrt", variance), mean_dtype(dt))


def _variance_wide(x: Array, axes: Axes, keepdims: bool, correction: float) -> Array:
    wide = convert(x, mean_accumulator(dtype(x.dtype)))
    centred = wide - _mean_wide(wide, axes, True)
    total = np.sum(centred * centred, axis=axes, keepdims=keepdims)
    return np.asarray(total / np.asarray(max(_count(x, axes) - correction, 0), wide.dtype))


def _var_reference(x: Array, *, axes: Axes, keepdims: bool, correction: float) -> Array:
    with np.errstate(all="ignore"):
        return convert(_variance_wide(x, axes, keepdims, correction), mean_dtype(dtype(x.dtype)))


def _std_reference(x: Array, *, axes: Axes, keepdims: bool, correction: float) -> Array:
    with np.errstate(all="ignore"):
        return convert(np.sqrt(_variance_wide(x, axes, keepdims, correction)), mean_dtype(dtype(x.dtype)))


def _moment_sample(c: Chooser) -> Example:
    example = sampler(ALL, "moderate")(c)
    return Example(example.operands, {**example.params, "correction": c.choice((0, 1, 0.5))})


CORRECTION = Param("correction", "scalar", "taken from the number of elements in the divisor", 0)

VAR = register(
    OpRecord(
        name="var",
        doc="The mean squared distance from the mean, with a corrected divisor that never falls below 0.",
        category="reduction",
        operands=("x",),
        params=(AXES, KEEPDIMS, CORRECTION),
        shape_rule=reduction_rule("var"),
        dtype_rule=mapped_dtype("var", ALL, mean_dtype),
        reference=_var_reference,
        body=Decomposition(_var_body),
        sample=_moment_sample,
        batch_rule=batching.over("var"),
        accumulate=mean_accumulator,
        cost=per_operand(reduction_rule("var"), 4),
        tolerance=Tolerance(ulp=32, absolute=256),
        torch=("aten.var",),
    )
)

STD = register(
    OpRecord(
        name="std",
        doc="The square root of the variance.",
        category="reduction",
        operands=("x",),
        params=(AXES, KEEPDIMS, CORRECTION),
        shape_rule=reduction_rule("std"),
        dtype_rule=mapped_dtype("std", ALL, mean_dtype),
        reference=_std_reference,
        body=Decomposition(_std_body),
        sample=_moment_sample,
        batch_rule=batching.over("std"),
        accumulate=mean_accumulator,
        cost=per_operand(reduction_rule("std"), 4),
        tolerance=Tolerance(ulp=32, absolute=256),
        torch=("aten.std",),
    )
)

# ------------------------------------------------------------------------------- counts and log-sum-exp


def _count_nonzero_body(F: Builder[V], x: V, *, axes: Axes, keepdims: bool) -> V:
    return F.sum(F.cast(x, bool_), axes, keepdims)


def _count_nonzero_reference(x: Array, *, axes: Axes, keepdims: bool) -> Array:
    return np.asarray(np.sum(convert(x, bool_), axis=axes, keepdims=keepdims, dtype=np.int64))


COUNT_NONZERO = register(
    OpRecord(
        name="count_nonzero",
        doc="How many elements over axes are not 0, as int64; NaN counts.",
        category="reduction",
        operands=("x",),
        params=(AXES, KEEPDIMS),
        shape_rule=reduction_rule("count_nonzero"),
        dtype_rule=mapped_dtype("count_nonzero", ALL, always(int64)),
        reference=_count_nonzero_reference,
        body=Decomposition(_count_nonzero_body),
        sample=sampler(ALL, "any"),
        batch_rule=batching.over("count_nonzero"),
        accumulate=always(int64),
        cost=per_operand(reduction_rule("count_nonzero"), 1),
        torch=("aten.count_nonzero",),
    )
)


def _logsumexp_body(F: Builder[V], x: V, *, axes: Axes, keepdims: bool) -> V:
    dt = F.dtype(x)
    wide = F.cast(x, sum_accumulator(dt))
    top = F.max(wide, axes, keepdims=True)
    # An infinite or NaN maximum is not subtracted: exp then gives 0, infinity or NaN as it should.
    shift = F.where(F.op("isfinite", top), top, F.like(0, top))
    total = F.op("log", F.sum(F.exp(F.sub(wide, shift)), axes, keepdims=True))
    out = F.add(total, shift)
    if not keepdims:
        out = F.reshape(out, [d for a, d in enumerate(F.shape(x)) if a not in axes])
    return F.cast(out, dt)


def _logsumexp_reference(x: Array, *, axes: Axes, keepdims: bool) -> Array:
    require_elements("logsumexp", x, axes)
    with np.errstate(all="ignore"):
        wide = widen(x)
        top = np.max(wide, axis=axes, keepdims=True)
        shift = np.where(np.isfinite(top), top, np.asarray(0, wide.dtype))
        total = np.log(np.sum(np.exp(wide - shift), axis=axes, keepdims=True)) + shift
        out = total if keepdims else np.sum(total, axis=axes)  # drops axes of size 1
    return convert(out, dtype(x.dtype))


LOGSUMEXP = register(
    OpRecord(
        name="logsumexp",
        doc="log(sum(exp(x))) over axes without overflow; over nothing it is an error.",
        category="reduction",
        operands=("x",),
        params=(AXES, KEEPDIMS),
        shape_rule=reduction_rule("logsumexp", needs_elements=True),
        dtype_rule=mapped_dtype("logsumexp", FLOATS, same),
        reference=_logsumexp_reference,
        body=Decomposition(_logsumexp_body),
        sample=sampler(FLOATS, "any", positive=True),
        batch_rule=batching.over("logsumexp"),
        jvp=tangents.logsumexp,
        accumulate=sum_accumulator,
        cost=per_operand(reduction_rule("logsumexp"), 20),
        tolerance=Tolerance(ulp=32, absolute=32),
        onnx=("ReduceLogSumExp",),
        torch=("aten.logsumexp",),
    )
)

# ------------------------------------------------------------------------------------ argmax and argmin


def _arg_rule(op: str) -> ShapeRule:
    def rule(shapes: Shapes, params: Params) -> ShapeResult:
        need = Requirements(op)
        x = present(shapes[0])
        out = reduced_shape(need, x, (params["axis"],), params["keepdims"])
        nonempty(need, x, (params["axis"],))
        return need.result(out)

    return rule


def _arg_reference(op: str, fn: Callable[..., Any]) -> Callable[..., Array]:
    def run(x: Array, *, axis: int, keepdims: bool) -> Array:
        require_elements(op, x, (axis,))
        return np.asarray(fn(widen(x), axis=axis, keepdims=keepdims), np.int64)

    return run


def _arg_sample(c: Chooser) -> Example:
    shape = draw_shape(c, 1, 4, positive=True)
    params = {"axis": c.integer(0, len(shape) - 1), "keepdims": c.boolean()}
    return Example((OperandSample(shape, c.choice(ALL)),), params)


for _name, _which, _fn, _onnx in (
    ("argmax", "largest", np.argmax, "ArgMax"),
    ("argmin", "smallest", np.argmin, "ArgMin"),
):
    register(
        OpRecord(
            name=_name,
            doc=f"The index along an axis of the first {_which} element, as int64; of the first NaN if there is one.",
            category="reduction",
            operands=("x",),
            params=(Param("axis", "int", "reduced axis"), KEEPDIMS),
            shape_rule=_arg_rule(_name),
            dtype_rule=mapped_dtype(_name, ALL, always(int64)),
            reference=_arg_reference(_name, _fn),
            body=Opaque("argreduce"),
            sample=_arg_sample,
            batch_rule=batching.along(_name),
            cost=per_operand(_arg_rule(_name), 1),
            onnx=(_onnx,),
            torch=("aten." + _name,),
        )
    )

# ---------------------------------------------------------------------------------------- running totals


def _scan_rule(op: str) -> ShapeRule:
    def rule(shapes: Shapes, params: Params) -> ShapeResult:
        need = Requirements(op)
        x: Shape = present(shapes[0])
        axis: int = params["axis"]
        need.axis(axis, len(x))
        n = x[axis] + 1 if params["include_initial"] else x[axis]
        return need.result((*x[:axis], n, *x[axis + 1 :]))

    return rule


def _scan_reference(fn: Callable[..., Any], initial: int) -> Callable[..., Array]:
    def run(x: Array, *, axis: int, include_initial: bool) -> Array:
        dt = dtype(x.dtype)
        with np.errstate(all="ignore"):
            out = np.asarray(fn(x, axis=axis, dtype=sum_accumulator(dt).numpy))
        if include_initial:
            out = np.insert(out, 0, initial, axis=axis)
        return convert(out, sum_dtype(dt))

    return run


def _scan_sample(c: Chooser) -> Example:
    shape = draw_shape(c, 1, 3)
    params = {"axis": c.integer(0, len(shape) - 1), "include_initial": c.boolean()}
    return Example((OperandSample(shape, c.choice(NUMERIC if c.boolean() else ALL), "unit"),), params)


for _name, _what, _initial, _fn, _onnx, _torch in (
    ("cumulative_sum", "sums", 0, np.cumsum, ("CumSum",), "aten.cumsum"),
    ("cumulative_prod", "products", 1, np.cumprod, (), "aten.cumprod"),
):
    register(
        OpRecord(
            name=_name,
            doc=f"The running {_what} along an axis: integers in 64 bits, halves in float32 and each rounded once.",
            category="reduction",
            operands=("x",),
            params=(
                Param("axis", "int", "axis that runs"),
                Param("include_initial", "bool", f"start with {_initial}, one element more", False),
            ),
            shape_rule=_scan_rule(_name),
            dtype_rule=mapped_dtype(_name, ALL, sum_dtype),
            reference=_scan_reference(_fn, _initial),
            body=Opaque("scan"),
            sample=_scan_sample,
            batch_rule=batching.along(_name),
            jvp=transposes.jointly("cumulative_sum") if _name == "cumulative_sum" else tangents.cumulative_prod,
            transpose=transposes.cumulative_sum if _name == "cumulative_sum" else None,
            accumulate=sum_accumulator,
            cost=per_operand(_scan_rule(_name), 1),
            tolerance=SUM_TOLERANCE,
            onnx=_onnx,
            torch=(_torch,),
        )
    )
