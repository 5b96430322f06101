"""Draws random well-typed programs, op by op, running each on the reference as it goes.

A step is kept when its shape and dtype rules accept it, its guards hold at the drawn sizes, and the reference's bounds
still say something about its result. So no program is thrown away, and few results are too ill-conditioned to compare.
Two kinds of steps mix: those that follow the symbolic shapes at hand, and samples of any op record, whose operands are
existing values brought into the sample's shape.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from cuvil.dtypes import (
    DType,
    bfloat16,
    bool_,
    float16,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    uint8,
    uint16,
    uint32,
    uint64,
)
from cuvil.ops.builder import concrete
from cuvil.ops.record import Aval, Chooser, Domain, Obligation, ParamValue, ScalarBody, Shape
from cuvil.ops.registry import get, records
from cuvil.support.errors import CuvilError
from cuvil.symbolic import Dim, evaluate, is_static, product, symbol
from cuvil.testing.bounds import Bounded, exact, run_bounded
from cuvil.testing.programs import Input, Program, Step, from_values

SIZES = (0, 1, 2, 3, 4, 5, 7, 8, 16, 17, 33)
#: Sizes of a few programs: past a vector, a block of a contraction, a worker's share.
LARGE_SIZES = (1, 3, 31, 64, 100, 130, 257)
_STATIC = (1, 2, 3, 4, 5, 8)
_DTYPES = (float32,) * 7 + (float64, float16, bfloat16, int32, int32, int64, int64, int8, uint8, bool_)
_CASTS = (float32, float32, float64, float16, bfloat16, int32, int64, int8, int16, uint8, uint16, uint32, uint64, bool_)
_MAX_ELEMENTS = 4096
_MAX_ELEMENTS_LARGE = 1 << 16
_MAX_RANK = 5
_TRIES = 40

_FLOAT_UNARY = tuple(
    r.name
    for r in records()
    if r.category == "elementwise" and len(r.operands) == 1 and not r.params and isinstance(r.body, ScalarBody)
)
_BINARY = tuple(r.name for r in records() if r.category == "elementwise" and len(r.operands) == 2 and not r.params)
_COMMON_BINARY = ("add", "multiply", "subtract", "divide", "maximum", "minimum", "add", "multiply")
_COMPARE = ("less", "less_equal", "greater", "equal", "not_equal")
_REDUCTIONS = ("sum", "sum", "mean", "max", "min", "prod", "any", "all", "count_nonzero", "logsumexp")


@dataclass(frozen=True)
class _Value:
    """A value of the draft: an input (its number) or a step's result (step, result)."""

    aval: Aval
    bounded: Bounded
    input: int = -1
    step: int = -1
    result: int = 0


@dataclass
class _Draft:
    """A program in the making."""

    c: Chooser
    sizes: dict[str, int]
    limit: int = _MAX_ELEMENTS
    inputs: list[Input] = field(default_factory=list[Input])
    steps: list[tuple[str, list[int | None], dict[str, ParamValue]]] = field(
        default_factory=list[tuple[str, list[int | None], dict[str, ParamValue]]]
    )
    values: list[_Value] = field(default_factory=list[_Value])
    used: set[int] = field(default_factory=set[int])

    # ------------------------------------------------------------------------------------------- values
    def add_input(self, shape: Shape, dt: DType, domain: Domain, size: Dim = 0, constant: bool = False) -> int:
        """A new input or constant."""
        i = Input(shape, dt, domain, size, constant and all(is_static(n) for n in shape), self.c.integer(0, 9999))
        self.inputs.append(i)
        self.values.append(_Value(Aval(shape, dt), exact(i.array(self.sizes)), input=len(self.inputs) - 1))
        return len(self.values) - 1

    def shape(self, v: int) -> Shape:
        return self.values[v].aval.shape

    def dtype(self, v: int) -> DType:
        return self.values[v].aval.dtype

    def rank(self, v: int) -> int:
        return len(self.shape(v))

    def size(self, d: Dim) -> int:
        return evaluate(d, self.sizes)

    def pick(self, suits: Callable[[_Value], bool] | None = None) -> int | None:
        """An existing value, the latest most often."""
        options = [k for k in reversed(range(len(self.values))) if suits is None or suits(self.values[k])]
        if not options:
            return None
        fresh = [k for k in options if k not in self.used]
        if fresh and self.c.integer(0, 3) > 0:
            return self.c.choice(fresh[:3])
        return self.c.choice(options[:6])

    def emit(self, op: str, operands: Sequence[int | None], /, **params: ParamValue) -> list[int] | None:
        """Add a step, unless it does not type-check, its guards fail, or nothing is known of its results."""
        record = get(op)
        try:
            filled = record.fill_params(params)
            given = [None if o is None else self.values[o] for o in operands]
            avals, obligations = record.infer([None if g is None else g.aval for g in given], filled)
            if not all(holds(o, self.sizes) for o in obligations):
                return None
            if any(len(a.shape) > _MAX_RANK or self.size(product(a.shape)) > self.limit for a in avals):
                return None
            now = {k: concrete(v, self.sizes) for k, v in filled.items()}
            results = run_bounded(record, [None if g is None else g.bounded for g in given], now)
        except CuvilError:
            return None
        for r in results:
            if r.value.size and r.known.sum() * 2 < r.value.size:
                return None
            if r.value.dtype.kind == "f" and r.value.size and np.isnan(r.value).mean() > 0.7:
                return None
        self.steps.append((op, list(operands), dict(params)))
        self.used.update(o for o in operands if o is not None)
        first = len(self.values)
        for k, (a, r) in enumerate(zip(avals, results, strict=True)):
            self.values.append(_Value(a, r, step=len(self.steps) - 1, result=k))
        return list(range(first, len(self.values)))

    def one(self, op: str, /, *operands: int | None, **params: ParamValue) -> int | None:
        """:meth:`emit` for its first result."""
        out = self.emit(op, operands, **params)
        return None if out is None else out[0]

    def finish(self) -> Program:
        """The program that returns the values nothing reads, four at most."""
        numbers: dict[int, int] = {}
        steps: list[Step] = []
        order = [k for k, v in enumerate(self.values) if v.input >= 0]
        order += [k for k, v in enumerate(self.values) if v.input < 0]
        for new, old in enumerate(order):
            numbers[old] = new
        inputs = [self.inputs[self.values[k].input] for k in order if self.values[k].input >= 0]
        for op, operands, params in self.steps:
            steps.append(Step(op, tuple(None if o is None else numbers[o] for o in operands), params))
        leaves = [k for k, v in enumerate(self.values) if k not in self.used and v.input < 0]
        if not leaves:
            leaves = [len(self.values) - 1]
        outputs = [numbers[k] for k in leaves[-4:]]
        if self.c.integer(0, 4) == 0:
            inner = [k for k, v in enumerate(self.values) if k in self.used and v.input < 0]
            if inner:
                outputs.append(numbers[self.c.choice(inner)])  # a value that is both read and returned
        return from_values(inputs, steps, outputs, self.sizes)


def holds(o: Obligation, sizes: dict[str, int]) -> bool:
    """Whether an obligation holds at sizes."""
    left, right = evaluate(o.left, sizes), evaluate(o.right, sizes)
    return {"==": left == right, "<=": left <= right, ">=": left >= right}[o.relation]


# -------------------------------------------------------------------------------------- steps by the shapes


def _is_float(v: _Value) -> bool:
    return v.aval.dtype.is_float


def _has_axes(v: _Value) -> bool:
    return len(v.aval.shape) > 0


def _unary(d: _Draft) -> None:
    v = d.pick(_is_float if d.c.integer(0, 3) else None)
    if v is not None:
        d.one(d.c.choice(_FLOAT_UNARY), v)


def _partner(d: _Draft, v: int, dt: DType | None = None) -> int:
    """A value of this dtype whose shape broadcasts with the value's own."""
    want = dt or d.dtype(v)
    shape = d.shape(v)
    if d.c.integer(0, 2):
        found = d.pick(lambda o: o.aval.dtype is want and _broadcasts(o.aval.shape, shape))
        if found is not None:
            return found
    start = d.c.integer(0, len(shape))
    part = tuple(1 if d.c.integer(0, 3) == 0 else s for s in shape[start:])
    return d.add_input(part, want, d.c.choice(("moderate", "moderate", "any", "unit")), constant=d.c.boolean())


def _broadcasts(a: Shape, b: Shape) -> bool:
    return all(x == y or x == 1 or y == 1 for x, y in zip(reversed(a), reversed(b), strict=False))


def _binary(d: _Draft) -> None:
    v = d.pick()
    if v is None:
        return
    op = d.c.choice(_COMMON_BINARY if d.c.integer(0, 2) else _BINARY)
    w = _partner(d, v)
    d.one(op, *((v, w) if d.c.boolean() else (w, v)))


def _compare(d: _Draft) -> None:
    v = d.pick()
    if v is not None:
        d.one(d.c.choice(_COMPARE), v, _partner(d, v))


def _where(d: _Draft) -> None:
    v = d.pick()
    if v is None:
        return
    condition = d.pick(lambda o: o.aval.dtype.is_bool and _broadcasts(o.aval.shape, d.shape(v)))
    if condition is None:
        condition = d.one(d.c.choice(_COMPARE), v, _partner(d, v))
    if condition is not None:
        d.one("where", condition, v, _partner(d, v))


def _clip(d: _Draft) -> None:
    v = d.pick(lambda o: not o.aval.dtype.is_bool)
    if v is not None:
        bounds = [d.add_input((), d.dtype(v), "moderate", constant=True) for _ in range(2)]
        d.one("clip", v, *bounds)


def _cast(d: _Draft) -> None:
    v = d.pick()
    if v is not None:
        d.one("cast", v, dtype=d.c.choice(_CASTS))


def _some_axes(d: _Draft, rank: int) -> tuple[int, ...]:
    how = d.c.integer(0, 3)
    if how == 0 and rank:
        return (rank - 1,)
    if how == 1:
        return tuple(range(rank))
    return tuple(a for a in range(rank) if d.c.boolean())


def _reduction(d: _Draft) -> None:
    v = d.pick(_has_axes)
    if v is None:
        return
    op = d.c.choice(_REDUCTIONS)
    d.one(op, v, axes=_some_axes(d, d.rank(v)), keepdims=d.c.boolean())


def _variance(d: _Draft) -> None:
    v = d.pick(lambda o: _has_axes(o) and _is_float(o))
    if v is not None:
        axes = _some_axes(d, d.rank(v))
        d.one(d.c.choice(("var", "std")), v, axes=axes, keepdims=d.c.boolean(), correction=d.c.integer(0, 1))


def _axis(d: _Draft, v: int) -> int:
    return d.c.integer(0, d.rank(v) - 1)


def _arg_extreme(d: _Draft) -> None:
    v = d.pick(_has_axes)
    if v is not None:
        d.one(d.c.choice(("argmax", "argmin")), v, axis=_axis(d, v), keepdims=d.c.boolean())


def _cumulative(d: _Draft) -> None:
    v = d.pick(_has_axes)
    if v is not None:
        op = d.c.choice(("cumulative_sum", "cumulative_sum", "cumulative_prod"))
        d.one(op, v, axis=_axis(d, v), include_initial=d.c.boolean())


def _sorting(d: _Draft) -> None:
    v = d.pick(_has_axes)
    if v is None:
        return
    axis = _axis(d, v)
    op = d.c.choice(("sort", "argsort", "top_k"))
    if op == "top_k":
        d.emit(op, (v,), k=d.c.integer(1, 3), axis=axis, largest=d.c.boolean())
    else:
        d.one(op, v, axis=axis, descending=d.c.boolean())


def _search(d: _Draft) -> None:
    v = d.pick(lambda o: len(o.aval.shape) == 1)
    if v is not None:
        ordered = d.one("sort", v, axis=0, descending=False)
        if ordered is not None:
            d.one("searchsorted", ordered, _partner(d, v), right=d.c.boolean())


def _transpose(d: _Draft) -> None:
    v = d.pick(lambda o: len(o.aval.shape) > 1)
    if v is not None:
        left = list(range(d.rank(v)))
        d.one("transpose", v, axes=tuple(left.pop(d.c.integer(0, len(left) - 1)) for _ in range(d.rank(v))))


def _reshape(d: _Draft) -> None:
    v = d.pick()
    if v is None:
        return
    shape = list(d.shape(v))
    how = d.c.integer(0, 4)
    if how == 0:
        shape = [product(shape)]
    elif how == 1 and len(shape) > 1:
        k = d.c.integer(0, len(shape) - 2)
        shape[k : k + 2] = [shape[k] * shape[k + 1]]
    elif how == 2 and shape:
        k = d.c.integer(0, len(shape) - 1)
        n = shape[k]
        if isinstance(n, int) and n > 1:
            parts = [p for p in (2, 3, 4) if n % p == 0]
            if parts:
                p = d.c.choice(parts)
                shape[k : k + 1] = [p, n // p]
    elif how == 3 and 1 in shape:
        shape.remove(1)
    else:
        shape.insert(d.c.integer(0, len(shape)), 1)
    d.one("reshape", v, shape=tuple(shape))


def _broadcast(d: _Draft) -> None:
    v = d.pick()
    if v is None:
        return
    shape: list[Dim] = [_dim(d) if n == 1 and d.c.boolean() else n for n in d.shape(v)]
    if d.c.boolean():
        shape.insert(0, _dim(d))
    d.one("broadcast_to", v, shape=tuple(shape))


def _dim(d: _Draft) -> Dim:
    """A static size, or a symbol that an input has as a whole axis."""
    if d.sizes and d.c.boolean():
        return symbol(d.c.choice(sorted(d.sizes)))
    return d.c.choice(_STATIC)


def _slice(d: _Draft) -> None:
    v = d.pick(_has_axes)
    if v is None:
        return
    starts: list[Dim] = []
    sizes: list[Dim] = []
    steps: list[int] = []
    for n in d.shape(v):
        how = d.c.integer(0, 3)
        now = d.size(n)
        if how == 0 and now > 1:
            start = d.c.integer(0, min(2, now - 1))
            starts.append(start)
            sizes.append(n - start)
            steps.append(1)
        elif how == 1 and now > 2:
            start = d.c.integer(0, 1)
            starts.append(start)
            sizes.append((n - start + 1) // 2)
            steps.append(2)
        elif how == 2 and now:
            starts.append(d.c.integer(0, now - 1))
            sizes.append(1)
            steps.append(1)
        else:
            starts.append(0)
            sizes.append(n)
            steps.append(1)
    d.one("slice", v, starts=tuple(starts), sizes=tuple(sizes), steps=tuple(steps))


def _join(d: _Draft) -> None:
    v = d.pick(_has_axes)
    if v is None:
        return
    axis = _axis(d, v)
    shape = d.shape(v)
    if d.c.boolean():
        w = d.pick(lambda o: o.aval.shape == shape and o.aval.dtype is d.dtype(v))
        d.one("stack", v, w if w is not None else v, axis=d.c.integer(0, d.rank(v)))
        return

    def fits(o: _Value) -> bool:
        s = o.aval.shape
        same = len(s) == len(shape) and all(a == b for k, (a, b) in enumerate(zip(s, shape, strict=True)) if k != axis)
        return same and o.aval.dtype is d.dtype(v)

    w = d.pick(fits) if d.c.boolean() else None
    if w is None:
        other = (*shape[:axis], _dim(d), *shape[axis + 1 :])
        w = d.add_input(other, d.dtype(v), "moderate", constant=d.c.boolean())
    parts = [v, w] if d.c.boolean() else [w, v]
    d.one("concat", *parts, axis=axis)


def _movement(d: _Draft) -> None:
    v = d.pick(_has_axes)
    if v is None:
        return
    axis = _axis(d, v)
    op = d.c.choice(("flip", "roll", "tile", "repeat", "tril", "triu", "window"))
    if op == "flip":
        d.one(op, v, axes=_some_axes(d, d.rank(v)))
    elif op == "roll":
        d.one(op, v, shifts=(d.c.integer(-3, 3),), axes=(axis,))
    elif op == "tile":
        d.one(op, v, reps=tuple(d.c.integer(1, 2) for _ in range(d.rank(v))))
    elif op == "repeat":
        d.one(op, v, repeats=d.c.integer(1, 3), axis=axis)
    elif op == "window":
        stride, dilation = d.c.integer(1, 2), d.c.integer(1, 2)
        d.one(op, v, axes=(axis,), sizes=(d.c.integer(1, 3),), strides=(stride,), dilations=(dilation,))
    elif d.rank(v) > 1:
        d.one(op, v, k=d.c.integer(-2, 2))


def _pad(d: _Draft) -> None:
    v = d.pick(_has_axes)
    if v is not None:
        mode = d.c.choice(("constant", "constant", "edge", "reflect"))
        pairs = tuple((d.c.integer(0, 2), d.c.integer(0, 2)) for _ in range(d.rank(v)))
        value = d.c.choice((0, 1)) if mode == "constant" else 0
        d.one("pad", v, pairs=pairs, mode=mode, value=value)


def _softmax(d: _Draft) -> None:
    v = d.pick(lambda o: _has_axes(o) and _is_float(o))
    if v is not None:
        axis = d.rank(v) - 1 if d.c.integer(0, 2) else _axis(d, v)
        d.one(d.c.choice(("softmax", "softmax", "log_softmax")), v, axis=axis)


def _norm(d: _Draft) -> None:
    v = d.pick(lambda o: _has_axes(o) and _is_float(o))
    if v is None:
        return
    rank = d.rank(v)
    axes = tuple(range(rank - d.c.integer(1, min(2, rank)), rank))
    tail = tuple(d.shape(v)[a] for a in axes)
    extra = [d.add_input(tail, d.dtype(v), "moderate", constant=d.c.boolean()) for _ in range(d.c.integer(0, 2))]
    if d.c.boolean():
        d.one("layer_norm", v, *extra, axes=axes, eps=1e-5)
    else:
        d.one("rms_norm", v, *extra[:1], axes=axes, eps=1e-6)


def _matmul(d: _Draft) -> None:
    v = d.pick(lambda o: len(o.aval.shape) > 0 and not o.aval.dtype.is_bool)
    if v is None:
        return
    how = d.c.integer(0, 2)
    shape: Sequence[Dim] = d.shape(v)
    inner = shape[len(shape) - 1]
    if how == 0 and len(shape) > 1:
        axes = (*range(len(shape) - 2), len(shape) - 1, len(shape) - 2)
        w = d.one("transpose", v, axes=axes)
        if w is not None:
            d.one("matmul", v, w)
        return
    if how == 1:
        w = d.pick(lambda o: o.aval.dtype is d.dtype(v) and len(o.aval.shape) > 1 and o.aval.shape[-2] == inner)
        if w is not None:
            d.one("matmul", v, w)
            return
    batch = shape[:-2] if d.c.boolean() else ()
    columns = _dim(d)
    w = d.add_input((*batch, inner, columns), d.dtype(v), "moderate", constant=d.c.boolean())
    out = d.one("matmul", v, w)
    if out is not None and d.c.boolean():
        bias = d.add_input((columns,), d.dtype(v), "moderate", constant=True)
        d.one("add", out, bias)


def _index(d: _Draft, shape: Shape, size: Dim) -> int:
    """Indices into an axis of a size, all inside it."""
    return d.add_input(shape, d.c.choice((int64, int32)), "index", size)


def _gather(d: _Draft) -> None:
    v = d.pick(_has_axes)
    if v is None:
        return
    axis = _axis(d, v)
    n = d.shape(v)[axis]
    mode = d.c.choice(("error", "clip", "wrap", "fill"))
    if d.c.boolean():
        shape = tuple(_dim(d) for _ in range(d.c.integer(0, 2)))
        d.one("take", v, _index(d, shape, n), axis=axis, mode=mode)
    else:
        shape = (*d.shape(v)[:axis], _dim(d), *d.shape(v)[axis + 1 :])
        d.one("take_along_axis", v, _index(d, shape, n), axis=axis, mode=mode)


def _window_op(d: _Draft) -> None:
    """Pooling or convolution over the last one or two axes."""
    v = d.pick(lambda o: len(o.aval.shape) >= 2 and _is_float(o))
    if v is None:
        return
    rank = d.rank(v)
    if rank < 3:
        v = d.one("reshape", v, shape=(1,) * (3 - rank) + tuple(d.shape(v)))
        if v is None:
            return
        rank = 3
    if rank > 4:
        return
    spatial = rank - 2
    sizes = tuple(d.c.integer(1, 3) for _ in range(spatial))
    strides = tuple(d.c.integer(1, 2) for _ in range(spatial))
    dilation = tuple(d.c.integer(1, 2) for _ in range(spatial))
    padding = tuple((p, p) for p in (d.c.integer(0, s // 2) for s in sizes))
    how = d.c.integer(0, 2)
    if how == 0:
        d.one("max_pool", v, sizes=sizes, strides=strides, padding=padding, dilation=dilation)
    elif how == 1:
        count = d.c.boolean()
        d.one("avg_pool", v, sizes=sizes, strides=strides, padding=padding, dilation=dilation, count_include_pad=count)
    else:
        channels = d.shape(v)[1]
        if not isinstance(channels, int) or d.dtype(v).bits == 64:
            return
        groups = max(channels, 1) if d.c.integer(0, 3) == 0 else 1
        outs = groups * d.c.integer(1, 3)
        w = d.add_input((outs, channels // groups, *sizes), d.dtype(v), "unit", constant=d.c.boolean())
        none = (1,) * spatial
        params: dict[str, ParamValue] = {
            "strides": strides, "padding": padding, "dilation": dilation, "input_dilation": none, "groups": groups,
        }  # fmt: skip
        if d.c.boolean():
            d.one("conv", v, w, d.add_input((outs,), d.dtype(v), "unit", constant=True), **params)
        else:
            d.one("conv", v, w, **params)


def _attention(d: _Draft) -> None:
    v = d.pick(lambda o: len(o.aval.shape) in (3, 4) and o.aval.dtype.is_float)
    if v is None:
        return
    shape = d.shape(v)
    keys = (*shape[:-2], _dim(d), shape[-1])
    k = d.add_input(keys, d.dtype(v), "unit")
    w = d.add_input(keys, d.dtype(v), "moderate")
    causal = d.c.boolean()
    if d.c.integer(0, 2) == 0:
        mask = d.add_input((shape[-2], keys[-2]), bool_, "any")
        d.one("scaled_dot_product_attention", v, k, w, mask, causal=causal, scale=None)
    else:
        d.one("scaled_dot_product_attention", v, k, w, causal=causal, scale=None)


def _creation(d: _Draft) -> None:
    shape = tuple(_dim(d) for _ in range(d.c.integer(1, 3)))
    d.one("iota", shape=shape, axis=d.c.integer(0, len(shape) - 1), dtype=d.c.choice((int64, int32, float32)))


# ------------------------------------------------------------------------------------- steps by the records

#: Error bounds are derived for real numbers and not for factorisations, so programs are drawn without these.
_UNBOUNDED = frozenset({"complex", "linalg", "fourier"})
_RECORDS = tuple(r for r in records() if r.category not in _UNBOUNDED)


def _sampled(d: _Draft) -> None:
    """A sample of any record, existing values standing for its operands where they can."""
    record = d.c.choice(_RECORDS)
    example = record.sample(d.c)
    operands: list[int | None] = []
    for o in example.operands:
        if o is None:
            operands.append(None)
            continue
        found = (
            _adapted(d, o.shape, o.dtype)
            if o.domain in ("any", "finite", "moderate") and d.c.integer(0, 2) == 0
            else None
        )
        if found is None:
            found = d.add_input(o.shape, o.dtype, o.domain, o.size, constant=d.c.integer(0, 3) == 0)
        operands.append(found)
    d.emit(record.name, operands, **example.params)


def _adapted(d: _Draft, shape: Shape, dt: DType) -> int | None:
    """An existing value brought into a shape and dtype: cast, flattened, padded, cut."""
    v = d.pick(lambda o: o.aval.dtype.is_float == dt.is_float)
    if v is None:
        return None
    if d.dtype(v) is not dt:
        v = d.one("cast", v, dtype=dt)
        if v is None:
            return None
    if d.shape(v) == shape:
        return v
    need = int(product(shape))  # type: ignore[call-overload]
    flat = d.one("reshape", v, shape=(product(d.shape(v)),))
    if flat is None:
        return None
    longer = d.one("pad", flat, pairs=((0, need),), mode="constant", value=0)
    if longer is None:
        return None
    cut = d.one("slice", longer, starts=(0,), sizes=(need,), steps=(1,))
    return None if cut is None else d.one("reshape", cut, shape=shape)


_KINDS: tuple[tuple[Callable[[_Draft], None], int], ...] = (
    (_binary, 14),
    (_unary, 11),
    (_sampled, 7),
    (_reduction, 7),
    (_compare, 2),
    (_where, 3),
    (_cast, 3),
    (_clip, 1),
    (_variance, 1),
    (_arg_extreme, 1),
    (_cumulative, 1),
    (_sorting, 1),
    (_search, 1),
    (_transpose, 4),
    (_reshape, 4),
    (_broadcast, 2),
    (_slice, 3),
    (_join, 3),
    (_movement, 3),
    (_pad, 2),
    (_softmax, 2),
    (_norm, 2),
    (_matmul, 4),
    (_gather, 2),
    (_window_op, 2),
    (_attention, 1),
    (_creation, 1),
)
_KIND_TABLE = tuple(kind for kind, weight in _KINDS for _ in range(weight))


def draw_program(c: Chooser, steps: int = 8) -> Program:
    """A random program of up to about ``steps`` steps.

    >>> from cuvil.testing.arrays import RandomChooser
    >>> program = draw_program(RandomChooser(3))
    >>> len(program.steps) > 0
    True
    """
    names = ("B", "S", "N")[: c.integer(0, 3)]
    large = c.integer(0, 9) == 9
    d = _Draft(c, {n: c.choice(LARGE_SIZES if large else SIZES) for n in names})
    if large:
        d.limit = _MAX_ELEMENTS_LARGE
    unplaced = list(names)
    for _ in range(c.integer(1, 2)):
        shape: list[Dim] = []
        for _ in range(c.integer(0 if not unplaced else 1, 3)):
            if names and c.integer(0, 2) > 0:
                name = unplaced.pop(0) if unplaced else c.choice(names)
                shape.append(symbol(name))
            else:
                shape.append(c.choice(_STATIC))
        if d.size(product(shape)) <= d.limit:
            d.add_input(tuple(shape), c.choice(_DTYPES), c.choice(("moderate", "moderate", "moderate", "unit", "any")))
    placed = {n for i in d.inputs for s in i.shape for n in getattr(s, "symbols", ())}
    d.sizes = {n: s for n, s in d.sizes.items() if n in placed}
    if not d.inputs:
        d.add_input((c.choice(_STATIC),), float32, "moderate")
    want = c.integer(1, steps) if steps < 6 else c.integer(steps // 2, steps + steps // 2)
    for _ in range(_TRIES):
        if len(d.steps) >= want:
            break
        c.choice(_KIND_TABLE)(d)
    if not d.steps:
        d.one("positive" if not d.dtype(0).is_bool else "logical_not", 0)
    return d.finish()


__all__ = ["LARGE_SIZES", "SIZES", "draw_program", "holds"]
