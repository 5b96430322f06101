"""lstm and gru: one layer in one direction over time-major sequences, with PyTorch's gates and layouts."""

from __future__ import annotations

import numpy as np

from cuvil.dtypes import DType
from cuvil.ops import batching
from cuvil.ops.builder import Builder, V
from cuvil.ops.contraction import wide
from cuvil.ops.cost import Cost, CostRule, traffic
from cuvil.ops.differentiation import through
from cuvil.ops.drawing import FLOAT_DTYPES, draw_dtype
from cuvil.ops.operand_dtypes import compute_dtype, one_float
from cuvil.ops.record import (
    Array,
    Chooser,
    Example,
    Opaque,
    OperandSample,
    OpRecord,
    Param,
    Params,
    Shape,
    ShapeResult,
    Tolerance,
)
from cuvil.ops.registry import register
from cuvil.ops.requirements import Requirements, present
from cuvil.support.errors import UnsupportedError
from cuvil.symbolic import product

Shapes = tuple[Shape | None, ...]

#: Errors feed back through the state, but the gates are contractions: a few steps magnify little.
RECURRENT_TOLERANCE = Tolerance(ulp=256, absolute=1024)


def _check(op: str, gates: int, states: int, shapes: Shapes) -> tuple[Requirements, Shape, Shape]:
    """Requirements, the shape of y and of a state, after every operand was checked."""
    need = Requirements(op)
    x = present(shapes[0])
    need.rank(x, 3, "x [T, N, I]")
    steps, batch, features = x
    state = present(shapes[1])
    need.rank(state, 2, "h0 [N, H]")
    hidden = state[1]
    for name, shape in zip(("h0", "c0"), shapes[1 : 1 + states], strict=False):
        got = present(shape)
        need.rank(got, 2, f"{name} [N, H]")
        need.equal(got[0], batch, f"{name} has the batch size of x")
        need.equal(got[1], hidden, f"{name} has the hidden size of h0")
    w_ih, w_hh = present(shapes[1 + states]), present(shapes[2 + states])
    for name, got, columns in (("w_ih", w_ih, features), ("w_hh", w_hh, hidden)):
        need.rank(got, 2, name)
        need.equal(got[0], hidden * gates, f"{name} has {gates} gates of the hidden size as rows")
        need.equal(got[1], columns, f"{name} has the size of its input as columns")
    for name, shape in zip(("b_ih", "b_hh"), shapes[3 + states :], strict=False):
        if shape is not None:
            need.rank(shape, 1, name)
            need.equal(shape[0], hidden * gates, f"{name} has {gates} gates of the hidden size")
    return need, (steps, batch, hidden), (batch, hidden)


def _project(x: Array, w: Array, bias: Array | None) -> Array:
    y = x @ wide(w).swapaxes(0, 1)
    return y if bias is None else y + wide(bias)


def _sigmoid(x: Array) -> Array:
    # Through tanh, which does not overflow.
    return x.dtype.type(0.5) * (np.tanh(x.dtype.type(0.5) * x) + 1)


def _times(steps: int, reverse: bool) -> range:
    return range(steps - 1, -1, -1) if reverse else range(steps)


def _cost_rule(gates: int, states: int, op: str) -> CostRule:
    def rule(shapes: Shapes, params: Params) -> Cost:
        _, y, state = _check(op, gates, states, shapes)
        steps, batch, hidden = y
        features = present(shapes[0])[2]
        macs = steps * batch * hidden * gates * (features + hidden)
        return macs * 2 + product(y) * gates * 4, traffic(*shapes, y, state)

    return rule


def _operands(c: Chooser, gates: int, states: int) -> tuple[OperandSample | None, ...]:
    steps, batch, features, hidden = c.integer(0, 4), c.integer(0, 3), c.integer(0, 4), c.integer(1, 4)
    dt = draw_dtype(c, FLOAT_DTYPES)
    state = OperandSample((batch, hidden), dt, "unit")
    bias = OperandSample((gates * hidden,), dt, "unit")
    return (
        OperandSample((steps, batch, features), dt, "moderate"),
        *((state,) * states),
        OperandSample((gates * hidden, features), dt, "unit"),
        OperandSample((gates * hidden, hidden), dt, "unit"),
        bias if c.boolean() else None,
        bias if c.boolean() else None,
    )


_REVERSE = Param("reverse", "bool", "whether time runs from the last step to the first", False)

# ------------------------------------------------------------------------------- step by step in other ops


def _steps(F: Builder[V], op: str, x: V, reverse: bool) -> list[int]:
    steps = F.shape(x)[0]
    if not isinstance(steps, int):
        raise UnsupportedError(
            f"{op} is differentiated step by step, and its number of steps is the symbolic dimension {steps}; make the"
            " time axis static, or write the recurrence with cuvil.scan"
        )
    return list(_times(steps, reverse))


def _projected(F: Builder[V], x: V, w: V, bias: V | None, compute: DType) -> V:
    rank = len(F.shape(w))
    out = F.matmul(F.cast(x, compute), F.cast(F.transpose(w, (*range(rank - 2), rank - 1, rank - 2)), compute))
    return out if bias is None else F.add(out, F.cast(bias, compute))


def _gates(F: Builder[V], x: V, gates: int) -> list[V]:
    rows, width = F.shape(x)
    hidden = width // gates
    return [F.op("slice", x, starts=(0, hidden * g), sizes=(rows, hidden), steps=(1, 1)) for g in range(gates)]


def _at_step(F: Builder[V], x: V, t: int) -> V:
    _, batch, width = F.shape(x)
    one = F.op("slice", x, starts=(t, 0, 0), sizes=(1, batch, width), steps=(1, 1, 1))
    return F.reshape(one, (batch, width))


def _in_order_of_time(F: Builder[V], states: dict[int, V], like: V, dt: DType) -> V:
    batch, hidden = F.shape(like)
    if not states:
        return F.broadcast_to(F.scalar(0, dt), (0, batch, hidden))
    rows = [F.reshape(F.cast(states[t], dt), (1, batch, hidden)) for t in sorted(states)]
    return F.op("concat", *rows, axis=0)


def unrolled_lstm(
    F: Builder[V],
    x: V,
    h0: V,
    c0: V,
    w_ih: V,
    w_hh: V,
    b_ih: V | None = None,
    b_hh: V | None = None,
    *,
    reverse: bool,
) -> tuple[V, V, V]:
    """lstm in other ops, for a static number of steps: what its derivative goes through."""
    dt = F.dtype(x)
    compute = compute_dtype(dt)
    h, c = F.cast(h0, compute), F.cast(c0, compute)
    inputs = _projected(F, x, w_ih, b_ih, compute)
    states: dict[int, V] = {}
    for t in _steps(F, "lstm", x, reverse):
        i, f, g, o = _gates(F, F.add(_at_step(F, inputs, t), _projected(F, h, w_hh, b_hh, compute)), 4)
        kept = F.mul(F.op("sigmoid", f), c)
        c = F.add(kept, F.mul(F.op("sigmoid", i), F.op("tanh", g)))
        h = states[t] = F.mul(F.op("sigmoid", o), F.op("tanh", c))
    return _in_order_of_time(F, states, h, dt), F.cast(h, dt), F.cast(c, dt)


def unrolled_gru(
    F: Builder[V],
    x: V,
    h0: V,
    w_ih: V,
    w_hh: V,
    b_ih: V | None = None,
    b_hh: V | None = None,
    *,
    reverse: bool,
) -> tuple[V, V]:
    """gru in other ops, for a static number of steps: what its derivative goes through."""
    dt = F.dtype(x)
    compute = compute_dtype(dt)
    h = F.cast(h0, compute)
    inputs = _projected(F, x, w_ih, b_ih, compute)
    states: dict[int, V] = {}
    for t in _steps(F, "gru", x, reverse):
        r_x, z_x, n_x = _gates(F, _at_step(F, inputs, t), 3)
        r_h, z_h, n_h = _gates(F, _projected(F, h, w_hh, b_hh, compute), 3)
        r, z = F.op("sigmoid", F.add(r_x, r_h)), F.op("sigmoid", F.add(z_x, z_h))
        n = F.op("tanh", F.add(n_x, F.mul(r, n_h)))
        h = states[t] = F.add(F.mul(F.sub(F.like(1, z), z), n), F.mul(z, h))
    return _in_order_of_time(F, states, h, dt), F.cast(h, dt)


# ------------------------------------------------------------------------------------------------ lstm


def _lstm_shape(shapes: Shapes, params: Params) -> ShapeResult:
    need, y, state = _check("lstm", 4, 2, shapes)
    return need.result(y, state, state)


def _lstm_dtype(dtypes: tuple[DType | None, ...], params: Params) -> tuple[DType, ...]:
    return one_float(dtypes, params) * 3


def _lstm_reference(
    x: Array,
    h0: Array,
    c0: Array,
    w_ih: Array,
    w_hh: Array,
    b_ih: Array | None = None,
    b_hh: Array | None = None,
    *,
    reverse: bool,
) -> tuple[Array, Array, Array]:
    h, c = wide(h0), wide(c0)
    inputs = _project(wide(x), w_ih, b_ih)
    y = np.zeros((*x.shape[:2], h.shape[1]), h.dtype)
    for t in _times(x.shape[0], reverse):
        i, f, g, o = np.split(inputs[t] + _project(h, w_hh, b_hh), 4, axis=1)
        c = _sigmoid(f) * c + _sigmoid(i) * np.tanh(g)
        h = _sigmoid(o) * np.tanh(c)
        y[t] = h
    return y.astype(x.dtype), h.astype(x.dtype), c.astype(x.dtype)


def _lstm_sample(c: Chooser) -> Example:
    return Example(_operands(c, 4, 2), {"reverse": c.boolean()})


LSTM = register(
    OpRecord(
        name="lstm",
        doc="Long short-term memory over x [T, N, I] from h0, c0 [N, H]; gate rows of the weights are i, f, g, o.",
        category="control",
        operands=("x", "h0", "c0", "w_ih", "w_hh", "b_ih?", "b_hh?"),
        results=("y", "h", "c"),
        params=(_REVERSE,),
        shape_rule=_lstm_shape,
        dtype_rule=_lstm_dtype,
        reference=_lstm_reference,
        body=Opaque("lstm"),
        sample=_lstm_sample,
        batch_rule=batching.recurrent("lstm", 2, unrolled_lstm),
        jvp=through(unrolled_lstm),
        accumulate=compute_dtype,
        cost=_cost_rule(4, 2, "lstm"),
        tolerance=RECURRENT_TOLERANCE,
        onnx=("LSTM",),
        torch=("aten.lstm",),
    )
)

# ------------------------------------------------------------------------------------------------- gru


def _gru_shape(shapes: Shapes, params: Params) -> ShapeResult:
    need, y, state = _check("gru", 3, 1, shapes)
    return need.result(y, state)


def _gru_dtype(dtypes: tuple[DType | None, ...], params: Params) -> tuple[DType, ...]:
    return one_float(dtypes, params) * 2


def _gru_reference(
    x: Array,
    h0: Array,
    w_ih: Array,
    w_hh: Array,
    b_ih: Array | None = None,
    b_hh: Array | None = None,
    *,
    reverse: bool,
) -> tuple[Array, Array]:
    h = wide(h0)
    inputs = _project(wide(x), w_ih, b_ih)
    y = np.zeros((*x.shape[:2], h.shape[1]), h.dtype)
    for t in _times(x.shape[0], reverse):
        r_x, z_x, n_x = np.split(inputs[t], 3, axis=1)
        r_h, z_h, n_h = np.split(_project(h, w_hh, b_hh), 3, axis=1)
        r, z = _sigmoid(r_x + r_h), _sigmoid(z_x + z_h)
        # The bias of the hidden side is inside the product with the reset gate.
        n = np.tanh(n_x + r * n_h)
        h = (1 - z) * n + z * h
        y[t] = h
    return y.astype(x.dtype), h.astype(x.dtype)


def _gru_sample(c: Chooser) -> Example:
    return Example(_operands(c, 3, 1), {"reverse": c.boolean()})


GRU = register(
    OpRecord(
        name="gru",
        doc="Gated recurrent unit over x [T, N, I] from h0 [N, H]; gate rows of the weights are r, z, n, "
        "and the reset gate multiplies the hidden projection with its bias.",
        category="control",
        operands=("x", "h0", "w_ih", "w_hh", "b_ih?", "b_hh?"),
        results=("y", "h"),
        params=(_REVERSE,),
        shape_rule=_gru_shape,
        dtype_rule=_gru_dtype,
        reference=_gru_reference,
        body=Opaque("gru"),
        sample=_gru_sample,
        batch_rule=batching.recurrent("gru", 1, unrolled_gru),
        jvp=through(unrolled_gru),
        accumulate=compute_dtype,
        cost=_cost_rule(3, 1, "gru"),
        tolerance=RECURRENT_TOLERANCE,
        onnx=("GRU",),
        torch=("aten.gru",),
    )
)
