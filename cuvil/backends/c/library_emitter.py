"""Emits kernels that are one call of a human-written template: attention, recurrent, sort, scan, scatter."""

from __future__ import annotations

from collections.abc import Sequence

from cuvil.backends.c.expressions import MEMORY, dim, literal
from cuvil.backends.c.template_emitter import TemplateText, emits
from cuvil.dtypes import float64
from cuvil.symbolic import Dim

_MODES = {"error": "CV_INDEX_ERROR", "clip": "CV_INDEX_CLIP", "wrap": "CV_INDEX_WRAP", "fill": "CV_INDEX_FILL"}


def _define(t: TemplateText, header: str, **macros: str) -> None:
    for key, value in macros.items():
        t.w.line(f"#define {key} {value}")
    t.w.line(f'#include "cuvil/{header}.h"')
    t.w.line()


def _dims(values: Sequence[Dim]) -> str:
    return "{ " + ", ".join(dim(v) for v in values) + " }"


def _sizes(t: TemplateText) -> str:
    return ", ".join(dim(t.params[k]) for k in ("outer", "size", "inner"))


def _output(t: TemplateText, k: int = 0) -> int:
    return t.func.params["outputs"][k]


@emits("attention")
def _emit_attention(t: TemplateText) -> None:
    p, w, name = t.params, t.w, t.name
    q, k, v = p["operands"]
    t.environment()
    macros = {"CV_ATTENTION_NAME": f"{name}_attention", "CV_ATTENTION_DT": t.short(q)}
    masked = "mask" in p
    if masked:
        macros["CV_ATTENTION_MASK"] = t.short(p["mask"])
    _define(t, "attention", **macros)
    t.entry()
    w.open("const cv_attention args =")
    for field, number, offset in zip(("q", "k", "v"), (q, k, v), p["offsets"], strict=True):
        w.line(f".{field} = {t.buffer(number)} + ({dim(offset)}),")
    if masked:
        w.line(f".mask = {t.buffer(p['mask'])} + ({dim(p['mask_offset'])}),")
        w.line(f".mask_stride = {_dims(p['mask_strides'])},")
    w.line(f".out = {t.buffer(_output(t))},")
    for field in ("batch", "heads", "kv_heads", "queries", "keys", "depth", "value_depth"):
        w.line(f".{field} = {dim(p[field])},")
    for field in ("q", "k", "v", "out"):
        w.line(f".{field}_stride = {_dims(p[f'{field}_strides'])},")
    if p["scale"] is None:
        w.line(f".scale = 1.0 / __builtin_sqrt((double)({dim(p['depth'])})),")
    else:
        w.line(f".scale = {literal(float(p['scale']), float64)},")
    w.line(f".causal = {int(p['causal'])},")
    w.close("};")
    w.line(f"{name}_attention(ctx, &args);")
    w.close()


@emits("permute")
def _emit_permute(t: TemplateText) -> None:
    p, w = t.params, t.w
    w.line('#include "cuvil/permute.h"')
    w.line()
    t.environment()
    t.entry()
    w.line(f"const int64_t size[] = {_dims(p['sizes'])}, stride[] = {_dims(p['strides'])};")
    source = f"{t.buffer(0)} + ({dim(p['offset'])})"
    tail = f"{p['itemsize']}, {len(p['sizes'])}, size, stride, {p['axis']}"
    w.line(f"cv_permute(ctx, {source}, {t.buffer(1)}, {tail});")
    w.close()


@emits("argreduce")
def _emit_argreduce(t: TemplateText) -> None:
    t.environment()
    macros = {"CV_ARGREDUCE_NAME": f"{t.name}_rows", "CV_ARGREDUCE_DT": t.short(0), "CV_ARGREDUCE_OP": t.params["op"]}
    _define(t, "argreduce", **macros)
    t.entry()
    t.w.line(f"{t.name}_rows(ctx, {t.buffer(0)}, {t.buffer(_output(t))}, {_sizes(t)});")
    t.w.close()


@emits("scan")
def _emit_scan(t: TemplateText) -> None:
    out = _output(t)
    t.environment()
    _define(
        t, "scan", CV_SCAN_NAME=f"{t.name}_rows", CV_SCAN_OP=t.params["op"], CV_SCAN_IN=t.short(0),
        CV_SCAN_ACC=t.params["acc"], CV_SCAN_OUT=t.short(out),
    )  # fmt: skip
    t.entry()
    initial = int(t.params["include_initial"])
    t.w.line(f"{t.name}_rows(ctx, {t.buffer(0)}, {t.buffer(out)}, {_sizes(t)}, {initial}, 0);")
    t.w.close()


@emits("sort", "argsort")
def _emit_sort(t: TemplateText) -> None:
    t.environment()
    _define(t, "sort", CV_SORT_NAME=f"{t.name}_rows", CV_SORT_DT=t.short(0))
    t.entry()
    call = f"{t.name}_rows_{t.params['kind']}"
    t.w.line(f"{call}(ctx, {t.buffer(0)}, {t.buffer(_output(t))}, {_sizes(t)}, {int(t.params['descending'])});")
    t.w.close()


@emits("top_k")
def _emit_top_k(t: TemplateText) -> None:
    p = t.params
    t.environment()
    _define(t, "sort", CV_SORT_NAME=f"{t.name}_rows", CV_SORT_DT=t.short(0))
    t.entry()
    values, indices = ("NULL" if n is None else t.buffer(n) for n in p["results"])
    tail = f"{_sizes(t)}, {dim(p['k'])}, {int(p['largest'])}"
    t.w.line(f"{t.name}_rows_top_k(ctx, {t.buffer(0)}, {values}, {indices}, {tail});")
    t.w.close()


@emits("searchsorted")
def _emit_searchsorted(t: TemplateText) -> None:
    p = t.params
    ordered, values = p["operands"]
    t.environment()
    _define(t, "sort", CV_SORT_NAME=f"{t.name}_rows", CV_SORT_DT=t.short(ordered))
    t.entry()
    sizes = f"{dim(p['rows'])}, {dim(p['size'])}, {dim(p['values'])}"
    t.w.line(
        f"{t.name}_rows_searchsorted(ctx, {t.buffer(ordered)}, {t.buffer(values)}, {t.buffer(_output(t))}, {sizes},"
        f" {int(p['right'])});"
    )
    t.w.close()


@emits("scatter")
def _emit_scatter(t: TemplateText) -> None:
    p, w = t.params, t.w
    x, updates, *indices = p["operands"]
    t.environment()
    _define(t, "scatter", CV_SCATTER_NAME=f"{t.name}_rows", CV_SCATTER_DT=t.short(x), CV_SCATTER_OP=p["op"])
    t.entry()
    rank = len(p["index_shape"])
    w.line(f"const int64_t size[] = {_dims(p['sizes'])};")
    w.line(f"const int64_t shape[] = {_dims(p['index_shape'] or (1,))};")
    w.line(f"const void *const index[] = {{ {', '.join(t.buffer(i) for i in indices)} }};")
    flat = tuple(s for row in p["index_strides"] for s in row) or (0,)
    w.line(f"const int64_t stride[] = {_dims(flat)};")
    w.line(
        f"const cv_index_tuple tuple = {{ .axes = {len(indices)}, .rank = {rank},"
        f" .dtype = CV_ELEM_ID({t.short(indices[0])}), .size = size, .shape = shape, .index = index,"
        " .stride = stride };"
    )
    inner = dim(p["inner"])
    w.line(f"const int64_t update_stride[3] = {{ 0, {'0, 0' if p['scalar'] else f'{inner}, 1'} }};")
    w.line(
        f"{t.name}_rows(ctx, {t.buffer(x)}, {t.buffer(updates)}, {t.buffer(_output(t))}, 1, &tuple, {inner},"
        f" update_stride, {_MODES[p['mode']]});"
    )
    w.close()


@emits("complex_complex", "complex_real", "complex_imag")
def _emit_complex_parts(t: TemplateText) -> None:
    """Complex numbers from their parts, or one of their parts: element by element through memory."""
    p, w, name = t.params, t.w, t.name
    out = t.buffer(_output(t))
    kind = p["kind"].removeprefix("complex_")
    sources = [t.buffer(k) for k in p["operands"]]
    t.environment()
    w.open(f"static void {name}_range(void *arg, int64_t begin, int64_t end, int worker)")
    w.line("(void)worker;")
    t.unpack("arg", with_ctx=False)
    w.open("for (int64_t k = begin; k < end; k++)")
    if kind == "complex":
        w.line(f"{out}[k].re = {sources[0]}[k];")
        w.line(f"{out}[k].im = {sources[1]}[k];")
    else:
        w.line(f"{out}[k] = {sources[0]}[k].{'re' if kind == 'real' else 'im'};")
    w.close()
    w.close()
    w.line()
    t.entry()
    w.line(f"cv_parallel(ctx, {dim(p['size'])}, 16384, {name}_range, (void *)&environment);")
    w.close()


@emits("lstm", "gru")
def _emit_recurrent(t: TemplateText) -> None:
    p, w, name, cell = t.params, t.w, t.name, t.params["kind"]
    memory = MEMORY[t.short(p["arg_x"])]
    t.environment()
    _define(t, "rnn", CV_RNN_NAME=f"{name}_cell", CV_RNN_CELL=cell, CV_RNN_DT=t.short(p["arg_x"]))

    def argument(key: str) -> str:
        number = p.get(f"arg_{key}")
        return "NULL" if number is None else t.buffer(number)

    steps, batch, features, hidden = (dim(p[k]) for k in ("steps", "batch", "input", "hidden"))
    if p["w_packed"]:
        # Constant weights: packed once, when the program is loaded.
        w.open(f"int64_t {name}_packed_bytes(void)")
        w.line(f"return {name}_cell_packed_elements({features}, {hidden}) * (int64_t)sizeof({memory});")
        w.close()
        w.line()
        w.open(f"void {name}_pack(cv_ctx *ctx, void *to, const void *const *from)")
        w.line("(void)ctx;")
        order = [
            f"from[{p['w_packed'].index(p[f'arg_{k}'])}]" if p.get(f"arg_{k}") is not None else "NULL"
            for k in ("w_ih", "w_hh", "b_ih", "b_hh")
        ]
        w.line(f"{name}_cell_pack({', '.join(order)}, {features}, {hidden}, to);")
        w.close()
        w.line()
    t.entry()
    if p["w_packed"]:
        w.line(f"const {memory} *const packed = {argument('w_ih')};")
    else:
        w.line(f"{memory} *const packed = ({memory} *){argument('packed')};")
        weights = ", ".join(argument(k) for k in ("w_ih", "w_hh", "b_ih", "b_hh"))
        w.line(f"{name}_cell_pack({weights}, {features}, {hidden}, packed);")
    outs = ["NULL" if n is None else t.buffer(n) for n in p["results"]]
    w.open("const cv_rnn args =")
    w.line(f".x = {argument('x')}, .h0 = {argument('h0')}, .packed = packed,")
    if cell == "lstm":
        w.line(f".c0 = {argument('c0')}, .c = {outs[2]},")
    w.line(f".y = {outs[0]}, .h = {outs[1]},")
    w.line(f".steps = {steps}, .batch = {batch}, .input = {features}, .hidden = {hidden},")
    w.line(f".x_stride = {{ ({batch})*({features}), {features} }}, .y_stride = {{ ({batch})*({hidden}), {hidden} }},")
    w.line(f".reverse = {int(p['reverse'])},")
    w.close("};")
    w.line(f"{name}_cell(ctx, &args);")
    w.close()
