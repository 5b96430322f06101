"""Lowers contractions with their epilogues, and opaque ops, to template kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from xdsl.ir import Block, SSAValue

from cuvil.dtypes import DType, bfloat16, float32, int32, int64, uint8
from cuvil.ir.dialect import FusionOp, TensorOp, YieldOp, aval_of
from cuvil.ir.kernel import BufferType, HoleOp, KernelFunc, LoadOp, ScalarOp, StoreOp, TemplateOp, scalar_dtype
from cuvil.ops.record import Aval, Opaque, ParamValue, Shape
from cuvil.passes.lowering.loops import kernel_dims
from cuvil.passes.lowering.region import Index, Key, Level, RegionEvaluator, flat_offset, is_movement, nonempty
from cuvil.passes.lowering.views import StridedView, strided_view
from cuvil.support.errors import PassError
from cuvil.symbolic import Dim, Scope, ceildiv, product

#: What a lowerer returns: the kernel, and the operand numbers that it wants packed at load (several together as one).
Lowered: TypeAlias = tuple[KernelFunc, tuple[int, ...]]
Lowerer: TypeAlias = Callable[["TemplateFusion"], Lowered]

#: Lowerer by the opaque kernel's name.
LOWERERS: dict[str, Lowerer] = {}


def lowers(kernel: str) -> Callable[[Lowerer], Lowerer]:
    """Register the lowerer of an opaque kernel."""

    def register(fn: Lowerer) -> Lowerer:
        LOWERERS[kernel] = fn
        return fn

    return register


def accumulator_dtype(dt: DType) -> DType:
    """The dtype in which a contraction multiplies and adds."""
    if dt.is_float:
        return dt if dt.bits == 64 else float32
    return int64 if dt.bits == 64 else int32


class TemplateFusion:
    """A fusion around one opaque op, while it is being lowered."""

    def __init__(self, fusion: FusionOp, scope: Scope, constant: Sequence[bool], *, bf16: bool) -> None:
        self.fusion = fusion
        self.bf16 = bf16
        self.scope = scope.copy()
        self.constant = tuple(constant)
        last = fusion.body.last_op
        assert isinstance(last, YieldOp)
        self.outputs: tuple[SSAValue, ...] = tuple(last.operands)
        anchors = [
            op
            for op in fusion.body.ops
            if isinstance(op, TensorOp) and isinstance(op.record.body, Opaque) and op.record.body.kernel in LOWERERS
        ]
        if len(anchors) != 1:
            names = [op.name for op in fusion.body.ops]
            raise PassError(f"a template kernel has one opaque op, got {names}")
        self.anchor = anchors[0]
        avals = [aval_of(o) for o in fusion.operands] + [aval_of(o) for o in self.outputs]
        self.func = KernelFunc.build("kernel", avals)
        n = len(fusion.operands)
        self.buffers: dict[SSAValue, SSAValue] = dict(zip(fusion.body.args, self.func.body.args[:n], strict=True))
        self.out_buffers = self.func.body.args[n:]
        self.workspace_bytes: Dim | None = None

    def view(self, operand: SSAValue) -> StridedView:
        """The strided view of an operand."""
        found = strided_view(operand, self.scope)
        if found is None or found.base not in self.buffers:
            raise PassError(f"{self.anchor.name} reads an operand that is not a strided view; this is a fault in cuvil")
        return found

    def narrow(self) -> dict[str, ParamValue]:
        """The parameter that lets a contraction multiply narrow elements, where its operands and the user allow it.

        The units count subnormal operands and sums as zero, so bfloat16 arrays need the user's leave as well.
        """
        dtypes = {aval_of(v).dtype for v in self.anchor.arguments[:2] if v is not None}
        return {"narrow": "bf16"} if self.bf16 and dtypes in ({bfloat16}, {float32}) else {}

    def workspace(self, size: Dim) -> int:
        """Temporary memory of ``size`` bytes for the kernel: the number of the argument that points to it."""
        self.workspace_bytes = size
        self.func.body.insert_arg(BufferType(Aval((size,), uint8)), len(self.func.body.args))
        return len(self.func.body.args) - 1

    def operand_number(self, value: SSAValue) -> int:
        """The fusion operand that a region input stands for."""
        return [*self.buffers].index(value)

    def epilogue(
        self,
        index: Index,
        variables: Sequence[str],
        acc: DType,
        extra: Callable[[Block, SSAValue], SSAValue] | None = None,
    ) -> Block:
        """The block that finishes and stores one element of the anchor's result, at ``index``.

        ``extra(block, accumulator)`` may add to the accumulator first (a bias operand).
        """
        block = Block()
        hole = HoleOp.build(acc)
        block.add_op(hole)
        value = hole.results[0]
        if extra is not None:
            value = extra(block, value)
        result = self.anchor.results[0]
        dt = aval_of(result).dtype
        if scalar_dtype(value) is not dt:
            cast = ScalarOp.build("cast", (value,), dt)
            block.add_op(cast)
            value = cast.results[0]
        final = value

        def leaf(key: Key) -> tuple[SSAValue, int] | None:
            if key[0] is not result:
                return None
            if key[1] != index:
                raise PassError(f"an epilogue reads its contraction at {key[1]} instead of {index}")
            return final, 0

        evaluator = RegionEvaluator(
            self.fusion.body,
            dict(self.buffers),
            self.scope,
            offset=self.scope.simplify,
            leaf=leaf,
            leaf_demand=lambda key: key[0] is result,
        )
        evaluator.levels = [Level(block, frozenset(variables))]
        values = evaluator.evaluate([(o, index, ()) for o in self.outputs])
        for buffer, output, v in zip(self.out_buffers, self.outputs, values, strict=True):
            block.add_op(StoreOp.build(buffer, v, self.scope.simplify(flat_offset(index, aval_of(output).shape))))
        return block

    def finish(
        self, kind: str, params: dict[str, ParamValue], epilogue: Block | None, variables: Sequence[str] = ()
    ) -> KernelFunc:
        """The kernel with its template op."""
        template = TemplateOp.build(kind, list(self.func.body.args), params, epilogue)
        self.func.body.add_op(template)
        n = len(self.fusion.operands)
        extra = {} if self.workspace_bytes is None else {"workspace": self.workspace_bytes}
        last = len(self.func.body.args)
        self.func.set_params(
            name="kernel",
            dims=kernel_dims(self.func, set(variables)),
            outputs=tuple(range(n, last)),
            reason=self.fusion.params["reason"],
            **extra,
        )
        return self.func


def lower_template(fusion: FusionOp, scope: Scope, constant: Sequence[bool], *, bf16: bool = False) -> Lowered:
    """The kernel of a fusion around an opaque op, and which operands it wants packed.

    With ``bf16``, contractions of float32 operands may round them to bfloat16.
    """
    t = TemplateFusion(fusion, scope, constant, bf16=bf16)
    body = t.anchor.record.body
    assert isinstance(body, Opaque)
    return LOWERERS[body.kernel](t)


def has_only_movement(fusion: FusionOp, anchor: TensorOp) -> bool:
    """Whether a fusion is one opaque op behind views."""
    return all(
        op is anchor or isinstance(op, YieldOp) or (isinstance(op, TensorOp) and is_movement(op.record))
        for op in fusion.body.ops
    )


# ----------------------------------------------------------------------------------------------- matmul


def _collapse(extents: Sequence[Dim], strides: Sequence[Dim]) -> tuple[Dim, Dim] | None:
    """One (extent, stride) for several, where the elements lie at even distances."""
    extent: Dim = 1
    stride: Dim = 0
    first = True
    for n, s in zip(reversed(extents), reversed(strides), strict=True):
        if n == 1:
            continue
        if first:
            extent, stride, first = n, s, False
        elif s == stride * extent:
            extent = extent * n
        else:
            return None
    return extent, stride


def unflatten(flat: Dim, extents: Sequence[Dim], scope: Scope) -> Index:
    """The index of a flat row-major position, simplified."""
    out: list[Dim] = []
    rest = flat
    for k in range(len(extents) - 1, -1, -1):
        n = extents[k]
        if n in (0, 1):  # along an axis of size 0 nothing is computed
            out.append(0)
        elif all(e == 1 for e in extents[:k]):
            out.append(scope.simplify(rest))
            rest = 0
        else:
            out.append(scope.simplify(rest % n))
            rest = scope.simplify(rest // n)
    return tuple(reversed(out))


@lowers("matmul")
def _lower_matmul(t: TemplateFusion) -> Lowered:
    a, b = t.anchor.operands
    out: Shape = aval_of(t.anchor.results[0]).shape
    batch, m, n = out[:-2], out[-2], out[-1]
    k = aval_of(a).shape[-1]
    va, vb = t.view(a), t.view(b)
    nonempty(t.scope, out)
    pad_a: tuple[Dim, ...] = (0,) * (len(out) - len(va.strides))
    pad_b: tuple[Dim, ...] = (0,) * (len(out) - len(vb.strides))
    sa, sb = pad_a + va.strides, pad_b + vb.strides
    rows = _collapse((*batch, m), sa[:-1]) if all(s == 0 for s in sb[:-2]) else None
    scope = t.scope
    if rows is not None and batch:
        m_extent, row_stride = rows
        mvar = scope.loop("_m", m_extent)
        index: Index = (*unflatten(mvar, (*batch, m), scope), scope.loop("_n", n))
        batch_extent: Dim = 1
        offset_a, offset_b = va.offset, vb.offset
    else:
        m_extent, row_stride = m, sa[-2]
        batch_extent = product(batch)
        bvar = scope.loop("_b", batch_extent)
        where = unflatten(bvar, batch, scope)
        index = (*where, scope.loop("_m", m), scope.loop("_n", n))
        offset_a = scope.simplify(va.offset + _dot(where, sa[:-2]))
        offset_b = scope.simplify(vb.offset + _dot(where, sb[:-2]))
    index = tuple(0 if e == 1 else i for i, e in zip(index, out, strict=True))
    acc = accumulator_dtype(aval_of(a).dtype)
    kb = t.operand_number(vb.base)
    packed = (
        (kb,)
        if t.constant[kb]
        and batch_extent == 1
        and acc.is_float
        and offset_b == 0
        and va.base is not vb.base
        and t.fusion.body.args[kb].uses.get_length() == 1
        else ()
    )
    params: dict[str, ParamValue] = {
        "batch": batch_extent, "m": m_extent, "n": n, "k": k, "acc": acc.short,
        "a": t.operand_number(va.base), "a_offset": offset_a, "a_row": row_stride, "a_col": sa[-1],
        "b": kb, "b_offset": offset_b, "b_row": sb[-2], "b_col": sb[-1], "b_packed": bool(packed),
        **t.narrow(),
    }  # fmt: skip
    block = t.epilogue(index, ("_b", "_m", "_n"), acc)
    return t.finish("matmul", params, block, ("_b", "_m", "_n")), packed


def _dot(index: Sequence[Dim], strides: Sequence[Dim]) -> Dim:
    total: Dim = 0
    for i, s in zip(index, strides, strict=True):
        total = total + i * s
    return total


# ------------------------------------------------------------------------------------------- convolution


def add_bias(
    t: TemplateFusion, bias: SSAValue | None, channel: Dim, acc: DType
) -> Callable[[Block, SSAValue], SSAValue] | None:
    """What an epilogue begins with where the anchor has a bias operand: the channel's bias added."""
    if bias is None:
        return None
    source = t.buffers[bias]

    def add(block: Block, value: SSAValue) -> SSAValue:
        load = LoadOp.build(source, channel)
        block.add_op(load)
        term = load.results[0]
        if scalar_dtype(term) is not acc:
            cast = ScalarOp.build("cast", (term,), acc)
            block.add_op(cast)
            term = cast.results[0]
        total = ScalarOp.build("add", (value, term), acc)
        block.add_op(total)
        return total.results[0]

    return add


@lowers("conv")
def _lower_conv(t: TemplateFusion) -> Lowered:
    x, w = t.anchor.arguments[:2]
    bias = t.anchor.arguments[2] if len(t.anchor.arguments) > 2 else None
    assert x is not None and w is not None
    xs, ws, out = aval_of(x).shape, aval_of(w).shape, aval_of(t.anchor.results[0]).shape
    p = t.anchor.params
    nonempty(t.scope, out)
    scope = t.scope
    spatial = out[2:]
    pixel = scope.loop("_p", product(spatial))
    index: Index = (
        0 if out[0] == 1 else scope.loop("_b", out[0]),
        0 if out[1] == 1 else scope.loop("_m", out[1]),
        *unflatten(pixel, spatial, scope),
    )
    acc = accumulator_dtype(aval_of(x).dtype)

    kw = t.operand_number(w)
    single_use = t.fusion.body.args[kw].uses.get_length() == 1
    groups = p["groups"]
    depthwise = groups == xs[1] and groups > 1 and ws[1] == 1
    packed = (kw,) if t.constant[kw] and acc.is_float and single_use and not depthwise else ()
    params: dict[str, ParamValue] = {
        "acc": acc.short, "x": t.operand_number(x), "w": kw, "w_packed": bool(packed), "x_shape": xs, "w_shape": ws,
        "out_shape": out, "strides": p["strides"], "padding": p["padding"], "dilation": p["dilation"],
        "input_dilation": p["input_dilation"], "groups": p["groups"], **t.narrow(),
    }  # fmt: skip
    block = t.epilogue(index, ("_b", "_m", "_p"), acc, add_bias(t, bias, index[1], acc))
    if not packed and not depthwise:
        # Whole panels of channels by whole chunks of k hold either packed form (see gemm.md); packed at each call.
        k = product(ws[1:])
        rows = groups * ceildiv(ws[0] // groups, 32) * 32
        params["packed"] = t.workspace(rows * ceildiv(k, 64) * 64 * acc.itemsize)
    return t.finish("conv", params, block, ("_b", "_m", "_p")), packed


__all__ = [
    "LOWERERS",
    "TemplateFusion",
    "accumulator_dtype",
    "add_bias",
    "has_only_movement",
    "lower_template",
    "lowers",
    "unflatten",
]
