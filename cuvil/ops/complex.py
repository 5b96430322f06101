"""Complex operands: which ops take them, what they give, and how each comes apart into ops on real parts.

The kernel level knows no complex numbers. Before fusion every complex value becomes its real and its imaginary part
(``cuvil/passes/complex_parts.py``), by the ``parts`` function of its op's rule here; what is left is ordinary real ops
that fuse as always. An op without such a function runs its NumPy reference from the compiled program (a host call).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from cuvil.dtypes import COMPLEX, DType, bool_, complex64, complex128, complex_of, dtype, float32, float64
from cuvil.ops import (
    batching,
    complex_derivatives,
    contraction,
    einsum,
    indexing,
    movement,
    reduction,
    reshaping,
    transposes,
    windows,
)
from cuvil.ops.builder import Builder
from cuvil.ops.cost import ShapeRule, per_result
from cuvil.ops.differentiation import through
from cuvil.ops.drawing import draw_shape
from cuvil.ops.dtype_rules import DTypes, accept, shared
from cuvil.ops.elementwise import broadcast_rule, draw_operands
from cuvil.ops.record import (
    Array,
    Chooser,
    ComplexRule,
    Example,
    Opaque,
    OperandSample,
    OpRecord,
    Pair,
    Param,
    Params,
    ParamValue,
    ShapeResult,
)
from cuvil.ops.registry import get, register, revise
from cuvil.ops.requirements import present
from cuvil.ops.shape_rules import Shapes
from cuvil.support.errors import DTypeError, UnsupportedError
from cuvil.symbolic import Dim

V = TypeVar("V")

#: Modules whose records are revised here: they must have been imported.
REVISED = (contraction, einsum, indexing, movement, reduction, reshaping, windows)


Part = Any  # a Pair, or a real value of the builder
PartsRule = Callable[..., Any]


def take_complex(
    name: str, parts: PartsRule | None, *, gives_part: bool = False, reference: Callable[..., Any] | None = None
) -> None:
    """Let a registered op take complex operands.

    Its dtype rule sees the dtype of their parts; a float result becomes complex unless ``gives_part``.
    """
    record = get(name)
    rule = ComplexRule(parts)

    def dtype_rule(dtypes: DTypes, params: Params) -> tuple[DType, ...]:
        dt = next((d for d in dtypes if d is complex64 or d is complex128), None)
        if dt is None:  # almost always
            return record.dtype_rule(dtypes, params)
        if any(d is not None and (d.is_float or (d.is_complex and d is not dt)) for d in dtypes):
            names = ", ".join(d.name for d in dtypes if d is not None)
            raise DTypeError(f"{name}: operands of {names} do not mix; cast them to one dtype first")
        out = record.dtype_rule(tuple(None if d is None else d.part for d in dtypes), params)
        return out if gives_part else tuple(dt if d is dt.part else d for d in out)

    if reference is None:
        revise(replace(record, dtype_rule=dtype_rule, complex_rule=rule))
        return

    def run(*arrays: Any, **params: Any) -> Any:
        if any(a is not None and np.iscomplexobj(a) for a in arrays):
            with np.errstate(all="ignore"):
                return reference(*arrays, **params)
        return record.reference(*arrays, **params)

    revise(replace(record, dtype_rule=dtype_rule, reference=run, complex_rule=rule))


# ------------------------------------------------------------------------------------- complex from and to parts


def _complex_dtype(dtypes: DTypes, params: Params) -> tuple[DType, ...]:
    return (complex_of(shared("complex", dtypes, (float32, float64))),)


def _part_dtype(name: str) -> Callable[[DTypes, Params], tuple[DType, ...]]:
    def rule(dtypes: DTypes, params: Params) -> tuple[DType, ...]:
        return (accept(name, dtypes[0], COMPLEX).part,)

    return rule


def _complex_reference(re: Array, im: Array) -> Array:
    out = np.empty(np.broadcast_shapes(re.shape, im.shape), complex_of(dtype(re.dtype)).numpy)
    out.real, out.imag = re, im
    return out


def _parts_sample(c: Chooser) -> Example:
    dt = c.choice((float32, float64))
    return Example(draw_operands(c, (dt, dt), ("any", "any")))


def _one_complex(c: Chooser) -> Example:
    return Example((OperandSample(draw_shape(c, 0, 3), c.choice(COMPLEX)),))


def _same(dtypes: DTypes, params: Params) -> tuple[DType, ...]:
    return (accept("conj", dtypes[0], COMPLEX),)


def _conj_reference(x: Array) -> Array:
    return np.asarray(np.conjugate(x))


def _negate(F: Builder[V], x: V) -> V:
    return F.op("negative", x)


def _record(
    name: str, doc: str, operands: str, dtype_rule: Any, reference: Any, parts: PartsRule, sample: Any, kernel: str
) -> OpRecord:
    rule: ShapeRule = broadcast_rule(name)
    return register(
        OpRecord(
            name=name,
            doc=doc,
            category="complex",
            operands=tuple(operands.split()),
            shape_rule=rule,
            dtype_rule=dtype_rule,
            reference=reference,
            body=Opaque(kernel),
            sample=sample,
            cost=per_result(rule),
            complex_rule=ComplexRule(parts),
            jvp=transposes.jointly(name),
            transpose=complex_derivatives.complex_ if name == "complex" else getattr(complex_derivatives, name),
            batch_rule=batching.stacked(name),
        )
    )


_record("complex", "The complex number re + im * i.", "re im", _complex_dtype, _complex_reference,
        lambda F, re, im: Pair(re, im), _parts_sample, "complex_parts")  # fmt: skip
_record("real", "The real part.", "x", _part_dtype("real"), lambda x: np.array(x.real), lambda F, x: x.re,
        _one_complex, "complex_parts")  # fmt: skip
_record("imag", "The imaginary part.", "x", _part_dtype("imag"), lambda x: np.array(x.imag), lambda F, x: x.im,
        _one_complex, "complex_parts")  # fmt: skip
_record("conj", "The conjugate: the imaginary part with the other sign.", "x", _same, _conj_reference,
        lambda F, x: Pair(x.re, _negate(F, x.im)), _one_complex, "complex_parts")  # fmt: skip


def _as_parts_shape(shapes: Shapes, params: Params) -> ShapeResult:
    return ShapeResult(((*present(shapes[0]), 2),))


def _as_parts_batch(
    F: Builder[Any], operands: Sequence[Any], own: Sequence[bool], size: Dim, **params: ParamValue
) -> Sequence[Any]:
    return [F.op("as_parts", *operands)]


register(
    OpRecord(
        name="as_parts",
        doc="The memory of complex numbers: real and imaginary part along a last axis of size 2.",
        category="complex",
        operands=("x",),
        shape_rule=_as_parts_shape,
        dtype_rule=_part_dtype("as_parts"),
        reference=lambda x: np.stack([np.real(x), np.imag(x)], axis=-1),
        body=Opaque("view"),
        sample=_one_complex,
        cost=per_result(_as_parts_shape),
        batch_rule=_as_parts_batch,
        no_gradient="the compiler puts it in when derivatives are taken already",
    )
)

# ------------------------------------------------------------------------------------------------- arithmetic


def _by_part(name: str) -> PartsRule:
    """An op that treats both parts alike; real operands (conditions, indices) go to both."""

    def rule(F: Builder[Any], *operands: Part, **params: ParamValue) -> Any:
        def run(k: int) -> Any:
            chosen = {key: _part_of(value, k) if key in ("fill", "value") else value for key, value in params.items()}
            return F.op(name, *(o[k] if isinstance(o, Pair) else o for o in operands), **chosen)

        return Pair(run(0), run(1))

    return rule


def _part_of(value: ParamValue, k: int) -> ParamValue:
    number = complex(value)
    return number.imag if k else number.real


def _multiply(F: Builder[V], a: Pair[V], b: Pair[V]) -> Pair[V]:
    return Pair(F.sub(F.mul(a.re, b.re), F.mul(a.im, b.im)), F.add(F.mul(a.re, b.im), F.mul(a.im, b.re)))


def _divide(F: Builder[V], a: Pair[V], b: Pair[V]) -> Pair[V]:
    """Smith's algorithm, as NumPy divides: scaled by the larger part, so that nothing overflows on the way."""
    size_re, size_im = F.op("abs", b.re), F.op("abs", b.im)
    wide = F.op("greater_equal", size_re, size_im)
    large, small = F.where(wide, b.re, b.im), F.where(wide, b.im, b.re)
    ratio = F.div(small, large)
    scale = F.div(F.like(1, b.re), F.add(large, F.mul(small, ratio)))
    first, second = F.where(wide, a.re, a.im), F.where(wide, a.im, a.re)
    re = F.mul(F.add(first, F.mul(second, ratio)), scale)
    im = F.mul(F.sub(second, F.mul(first, ratio)), scale)
    im = F.where(wide, im, _negate(F, im))
    zero = F.op("equal", F.maximum(size_re, size_im), F.like(0, b.re))
    return Pair(F.where(zero, F.div(a.re, size_re), re), F.where(zero, F.div(a.im, size_re), im))


def _reciprocal(F: Builder[V], x: Pair[V]) -> Pair[V]:
    return _divide(F, Pair(F.like(1, x.re), F.like(0, x.re)), x)


def _square(F: Builder[V], x: Pair[V]) -> Pair[V]:
    return Pair(F.sub(F.mul(x.re, x.re), F.mul(x.im, x.im)), F.add(F.mul(x.re, x.im), F.mul(x.im, x.re)))


def _abs(F: Builder[V], x: Pair[V]) -> V:
    return F.op("hypot", x.re, x.im)


def _exp(F: Builder[V], x: Pair[V]) -> Pair[V]:
    """exp(re) * (cos(im), sin(im)) with the special values of C99, G.6.3.1."""
    dt = F.dtype(x.re)
    limit = 88.0 if dt is float32 else 709.0
    # Where exp(re) alone overflows, its product with a small cosine may not.
    beyond = F.op("greater", x.re, F.like(limit, x.re))
    size = F.exp(F.where(beyond, F.sub(x.re, F.like(limit, x.re)), x.re))
    factor = F.where(beyond, F.like(float(np.exp(dt.numpy.type(limit))), x.re), F.like(1, x.re))
    re, im = (F.mul(F.mul(size, F.op(f, x.im)), factor) for f in ("cos", "sin"))
    real = F.op("equal", x.im, F.like(0, x.im))
    open_ended = F.op("logical_not", F.op("isfinite", x.im))
    inf, zero, nan = F.like(np.inf, x.re), F.like(0, x.re), F.like(np.nan, x.re)
    low = F.op("logical_and", open_ended, F.op("equal", x.re, _negate(F, inf)))
    high = F.op("logical_and", open_ended, F.op("equal", x.re, inf))
    re = F.where(real, F.exp(x.re), F.where(low, zero, F.where(high, inf, re)))
    im = F.where(real, x.im, F.where(low, zero, F.where(high, nan, im)))
    return Pair(re, im)


for _name in ("add", "subtract", "negative", "positive"):
    take_complex(_name, _by_part(_name))
take_complex("round", _by_part("round"), reference=lambda x: np.asarray(np.rint(x)))
take_complex("multiply", _multiply)
take_complex("divide", _divide)
take_complex("reciprocal", _reciprocal)
take_complex("square", _square)
take_complex("abs", _abs, gives_part=True)
take_complex("exp", _exp)
for _name in (
    "pow", "sign", "sqrt", "rsqrt", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "asin", "acos",
    "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh",
):  # fmt: skip
    take_complex(_name, None)

# -------------------------------------------------------------------------- predicates, comparisons, logic, casts


def _either(name: str, joined: str) -> PartsRule:
    """A predicate of both parts."""

    def rule(F: Builder[Any], *xs: Pair[Any]) -> Any:
        return F.op(joined, F.op(name, *(x.re for x in xs)), F.op(name, *(x.im for x in xs)))

    return rule


take_complex("isnan", _either("isnan", "logical_or"))
take_complex("isinf", _either("isinf", "logical_or"))
take_complex("isfinite", _either("isfinite", "logical_and"))
take_complex("equal", _either("equal", "logical_and"))
take_complex("not_equal", _either("not_equal", "logical_or"))


def truth(F: Builder[V], x: Pair[V]) -> V:
    """Whether a complex number is not 0."""
    return F.op(
        "logical_or", F.op("not_equal", x.re, F.like(0, x.re)), F.op("not_equal", x.im, F.like(0, x.im))
    )  # fmt: skip


def _of_truth(name: str) -> PartsRule:
    def rule(F: Builder[Any], *xs: Part, **params: ParamValue) -> Any:
        return F.op(name, *(truth(F, x) if isinstance(x, Pair) else x for x in xs), **params)

    return rule


for _name in ("logical_and", "logical_or", "logical_xor", "logical_not", "any", "all", "count_nonzero"):
    take_complex(_name, _of_truth(_name))
take_complex("where", _by_part("where"))


def _cast_parts(F: Builder[Any], x: Part, *, dtype: DType) -> Any:
    if not dtype.is_complex:
        return truth(F, x) if dtype is bool_ else F.cast(x.re, dtype)
    if isinstance(x, Pair):
        return Pair(F.cast(x.re, dtype.part), F.cast(x.im, dtype.part))
    return Pair(F.cast(x, dtype.part), F.broadcast_to(F.scalar(0, dtype.part), F.shape(x)))


revise(replace(get("cast"), complex_rule=ComplexRule(_cast_parts)))

# ----------------------------------------------------------------------- reductions, movement, indexing, products

for _name in ("sum", "mean", "cumulative_sum"):
    take_complex(_name, _by_part(_name))
for _name in ("prod", "cumulative_prod"):
    take_complex(_name, None)
for _name in (
    "reshape", "transpose", "broadcast_to", "slice", "pad", "concat", "flip", "roll", "tile", "repeat", "window",
    "tril", "triu", "stack",
):  # fmt: skip
    revise(replace(get(_name), complex_rule=ComplexRule(_by_part(_name))))
for _name in ("take", "take_along_axis", "gather"):
    take_complex(_name, _by_part(_name))


def _scatter_parts(F: Builder[Any], *operands: Part, op: str, mode: str) -> Any:
    if op in ("set", "add"):
        return _by_part("scatter")(F, *operands, op=op, mode=mode)
    raise UnsupportedError(
        f"scatter: at[...].{op} is not compiled for complex arrays; set and add are. Compute the factors of each place"
        " first and multiply the whole array"
    )


take_complex("scatter", _scatter_parts)


def _bilinear(name: str) -> PartsRule:
    """A product that is linear in both operands."""

    def rule(F: Builder[Any], a: Pair[Any], b: Pair[Any], **params: ParamValue) -> Any:
        def run(x: Any, y: Any) -> Any:
            return F.op(name, x, y, **params)

        return Pair(F.sub(run(a.re, b.re), run(a.im, b.im)), F.add(run(a.re, b.im), run(a.im, b.re)))

    return rule


def _vecdot_parts(F: Builder[Any], a: Pair[Any], b: Pair[Any], **params: ParamValue) -> Any:
    return _bilinear("vecdot")(F, Pair(a.re, _negate(F, a.im)), b, **params)


_VECDOT = get("vecdot").reference
take_complex("matmul", _bilinear("matmul"))
take_complex("tensordot", _bilinear("tensordot"))
take_complex("einsum", None)
take_complex("vecdot", _vecdot_parts, reference=lambda a, b, **params: _VECDOT(np.conjugate(a), b, **params))

# ---------------------------------------------------------------------------------------------------- host calls


def _delegate(params: Params) -> tuple[OpRecord, dict[str, ParamValue]]:
    record = get(params["op"])
    return record, record.fill_params(dict(zip(params["names"], params["values"], strict=True)))


def _host_shape(shapes: Shapes, params: Params) -> ShapeResult:
    record, given = _delegate(params)
    return record.shape_rule(shapes, given)


def _host_dtype(dtypes: DTypes, params: Params) -> tuple[DType, ...]:
    record, given = _delegate(params)
    return record.dtype_rule(dtypes, given)


def _host_reference(*arrays: Array, op: str, names: tuple[str, ...], values: tuple[ParamValue, ...]) -> Any:
    record, given = _delegate({"op": op, "names": names, "values": values})
    return record.reference(*arrays, **given)


def _delegated(
    F: Builder[Any], *xs: Any, op: str, names: tuple[str, ...], values: tuple[ParamValue, ...]
) -> tuple[Any, ...]:
    return F.emit(op, xs, dict(zip(names, values, strict=True)))


def _host_sample(c: Chooser) -> Example:
    return Example((OperandSample(draw_shape(c, 0, 3), c.choice(COMPLEX), "moderate"),),
                   {"op": "sqrt", "names": (), "values": ()})  # fmt: skip


HOST_CALL = register(
    OpRecord(
        name="host_call",
        doc="Another op by its NumPy reference, called from the compiled program: for complex ops without a kernel.",
        category="complex",
        operands=("*xs",),
        params=(
            Param("op", "str", "the op that runs", "positive"),
            Param("names", "any", "names of its parameters", ()),
            Param("values", "any", "their values", ()),
        ),
        shape_rule=_host_shape,
        dtype_rule=_host_dtype,
        reference=_host_reference,
        body=Opaque("host"),
        sample=_host_sample,
        jvp=through(_delegated),
        batch_rule=batching.through(_delegated),
        cost=per_result(_host_shape),
    )
)
