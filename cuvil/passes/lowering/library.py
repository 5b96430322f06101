"""Lowers the opaque ops that are whole kernels: attention, recurrent layers, sorting, scans, scatter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from xdsl.ir import SSAValue

from cuvil.dtypes import float32
from cuvil.ir.dialect import TensorOp, aval_of
from cuvil.ops.record import ParamValue, Shape
from cuvil.passes.lowering.region import row_major_strides
from cuvil.passes.lowering.templates import Lowered, TemplateFusion, lowers
from cuvil.support.errors import PassError
from cuvil.symbolic import Dim, ceildiv, product


def around(shape: Shape, axis: int) -> tuple[Dim, Dim, Dim]:
    """(outer, n, inner): a dense array seen as three axes, the middle one being ``axis``."""
    return product(shape[:axis]), shape[axis], product(shape[axis + 1 :])


def _library(t: TemplateFusion, kind: str, **params: ParamValue) -> Lowered:
    return t.finish(kind, params, None), ()


def _number(t: TemplateFusion, value: SSAValue | None) -> int | None:
    return None if value is None else t.operand_number(value)


def _output_numbers(t: TemplateFusion, results: Sequence[SSAValue]) -> tuple[int | None, ...]:
    """Argument number of each result, None where nobody reads it."""
    n = len(t.fusion.operands)
    outputs = list(t.outputs)
    return tuple(n + outputs.index(r) if r in outputs else None for r in results)


@lowers("attention")
def _lower_attention(t: TemplateFusion) -> Lowered:
    q, k, v, *rest = t.anchor.arguments
    mask = rest[0] if rest else None
    assert q is not None and k is not None and v is not None
    views = [t.view(x) for x in (q, k, v)]
    out_value = t.outputs[0]
    strides = row_major_strides(aval_of(out_value).shape)
    if out_value is not t.anchor.results[0]:
        owner = out_value.owner
        if not isinstance(owner, TensorOp) or owner.record.name != "transpose":
            raise PassError("attention stores through a transpose only; this is a fault in cuvil")
        axes = owner.params["axes"]
        strides = tuple(strides[axes.index(a)] for a in range(len(axes)))
    qs, ks, vs = aval_of(q).shape, aval_of(k).shape, aval_of(v).shape
    if len(qs) != 4:
        raise PassError(f"attention takes rank 4 here, got {qs}; this is a fault in cuvil")
    params: dict[str, ParamValue] = {
        "operands": tuple(t.operand_number(view.base) for view in views),
        "offsets": tuple(view.offset for view in views),
        "q_strides": views[0].strides, "k_strides": views[1].strides, "v_strides": views[2].strides,
        "out_strides": strides,
        "batch": qs[0], "heads": qs[1], "kv_heads": ks[1], "queries": qs[2], "keys": ks[2], "depth": qs[3],
        "value_depth": vs[3], "causal": t.anchor.params["causal"], "scale": t.anchor.params["scale"],
    }  # fmt: skip
    if mask is not None:
        view = t.view(mask)
        pad: tuple[Dim, ...] = (0,) * (4 - len(view.strides))
        params["mask"] = t.operand_number(view.base)
        params["mask_offset"] = view.offset
        params["mask_strides"] = pad + view.strides
    return t.finish("attention", params, None), ()


@lowers("argreduce")
def _lower_argreduce(t: TemplateFusion) -> Lowered:
    (x,) = t.anchor.operands
    shape = aval_of(x).shape
    axis = t.anchor.params["axis"]
    outer, n, inner = (1, product(shape), 1) if axis is None else around(shape, axis)
    op = "max" if t.anchor.record.name == "argmax" else "min"
    return _library(t, "argreduce", op=op, outer=outer, size=n, inner=inner)


@lowers("scan")
def _lower_scan(t: TemplateFusion) -> Lowered:
    (x,) = t.anchor.operands
    outer, n, inner = around(aval_of(x).shape, t.anchor.params["axis"])
    op = "add" if t.anchor.record.name == "cumulative_sum" else "mul"
    out = aval_of(t.outputs[0]).dtype
    acc = float32 if out.is_half else out
    return _library(
        t, "scan", op=op, acc=acc.short, outer=outer, size=n, inner=inner,
        include_initial=t.anchor.params["include_initial"],
    )  # fmt: skip


@lowers("sort")
@lowers("argsort")
def _lower_sort(t: TemplateFusion) -> Lowered:
    (x,) = t.anchor.operands
    outer, n, inner = around(aval_of(x).shape, t.anchor.params["axis"])
    descending = t.anchor.params["descending"]
    return _library(t, t.anchor.record.name, outer=outer, size=n, inner=inner, descending=descending)


@lowers("top_k")
def _lower_top_k(t: TemplateFusion) -> Lowered:
    (x,) = t.anchor.operands
    p = t.anchor.params
    outer, n, inner = around(aval_of(x).shape, p["axis"])
    results = _output_numbers(t, t.anchor.results)
    return _library(t, "top_k", outer=outer, size=n, inner=inner, k=p["k"], largest=p["largest"], results=results)


@lowers("searchsorted")
def _lower_searchsorted(t: TemplateFusion) -> Lowered:
    ordered, values = t.anchor.operands
    a, b = aval_of(ordered).shape, aval_of(values).shape
    rows: Dim = product(a[:-1])
    per_row: Dim = product(b[-1:]) if len(a) > 1 else product(b)
    return _library(t, "searchsorted", rows=rows, size=product(a[-1:]), values=per_row, right=t.anchor.params["right"],
                    operands=(t.operand_number(ordered), t.operand_number(values)))  # fmt: skip


@lowers("scatter")
def _lower_scatter(t: TemplateFusion) -> Lowered:
    x, updates, *indices = t.anchor.operands
    shape = aval_of(x).shape
    count = len(indices)
    ranks = [aval_of(i).rank for i in indices]
    rank = max(ranks)
    inner = product(shape[count:])
    out_index: list[Dim] = [1] * rank
    for i in indices:
        s = aval_of(i).shape
        for k, n in enumerate(s, rank - len(s)):
            out_index[k] = n if out_index[k] == 1 else out_index[k]
    strides: list[tuple[Dim, ...]] = []
    for i in indices:
        s = aval_of(i).shape
        full = (0,) * (rank - len(s)) + tuple(
            0 if n == 1 else step for n, step in zip(s, row_major_strides(s), strict=True)
        )
        strides.append(full)
    # Updates broadcast to [index shape..., inner shape...]; a dense array of that shape is what the kernel reads.
    want = (*out_index, *shape[count:])
    got = aval_of(updates).shape
    scalar = all(n == 1 for n in got)
    if not scalar and tuple(got) != tuple(want):
        raise PassError(f"scatter updates of shape {got} must be broadcast to {want} first; this is a fault in cuvil")
    return _library(
        t, "scatter", op=t.anchor.params["op"], mode=t.anchor.params["mode"], sizes=shape[:count],
        index_shape=tuple(out_index), index_strides=tuple(strides), inner=inner, scalar=scalar,
        operands=tuple(t.operand_number(o) for o in t.anchor.operands),
    )  # fmt: skip


@lowers("host")
def _lower_host(t: TemplateFusion) -> Lowered:
    anchor = t.anchor
    names, values = zip(*anchor.params.items(), strict=True) if anchor.params else ((), ())
    return _library(
        t, "host", op=anchor.record.name, names=tuple(names), values=tuple(values),
        operands=tuple(t.operand_number(o) for o in anchor.operands), results=_output_numbers(t, anchor.results),
        # A kernel is given the dims that its parameters mention.
        shapes=tuple(aval_of(v).shape for v in (*t.fusion.operands, *t.outputs)),
    )  # fmt: skip


@lowers("complex_parts")
def _lower_complex_parts(t: TemplateFusion) -> Lowered:
    anchor = t.anchor
    shape = aval_of(anchor.results[0]).shape
    operands = tuple(t.operand_number(o) for o in anchor.operands)
    return _library(t, f"complex_{anchor.record.name}", operands=operands, size=product(shape))


@lowers("lstm")
@lowers("gru")
def _lower_recurrent(t: TemplateFusion) -> Lowered:
    names = [n.rstrip("?") for n in t.anchor.record.operands]
    arguments = dict(zip(names, t.anchor.arguments, strict=False))
    x = arguments["x"]
    w_hh = arguments["w_hh"]
    assert x is not None and w_hh is not None
    steps, batch, features = aval_of(x).shape
    hidden = aval_of(w_hh).shape[1]
    numbers = {n: _number(t, arguments.get(n)) for n in names}
    results = _output_numbers(t, t.anchor.results)
    # Packed weights: panels of at most 16 units, each with a row per input, hidden unit and bias.
    gates = 4 if t.anchor.record.name == "lstm" else 3
    size = ceildiv(hidden, 16) * 16 * (features + hidden + 2) * gates * aval_of(x).dtype.itemsize
    weights = [n for n in ("w_ih", "w_hh", "b_ih", "b_hh") if numbers.get(n) is not None]
    packed = tuple(dict.fromkeys(cast(int, numbers[n]) for n in weights))
    if not all(t.constant[k] for k in packed):
        numbers["packed"] = t.workspace(size)
        packed = ()
    params: dict[str, ParamValue] = {
        "steps": steps, "batch": batch, "input": features, "hidden": hidden, "results": results,
        "reverse": t.anchor.params["reverse"], "w_packed": packed, **{f"arg_{n}": v for n, v in numbers.items()},
    }  # fmt: skip
    return t.finish(t.anchor.record.name, params, None), packed
