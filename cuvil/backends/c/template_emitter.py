"""Emits kernels around human-written templates: their parameters, and the fused epilogue as a hook."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from xdsl.ir import SSAValue

from cuvil.backends.c.expressions import MEMORY, c_name, dim
from cuvil.backends.c.loop_emitter import BodyEmitter, Writer, buffer_names
from cuvil.ir.kernel import KernelFunc, LoadOp, StoreOp, TemplateOp, buffer_aval
from cuvil.ops.record import ParamValue, Shape
from cuvil.support.errors import BackendError
from cuvil.symbolic import Dim, free_symbols, linear_coefficient, product

TemplateEmitter = Callable[["TemplateText"], None]

#: Emitter by template kind.
EMITTERS: dict[str, TemplateEmitter] = {}


def emits(*kinds: str) -> Callable[[TemplateEmitter], TemplateEmitter]:
    """Register the emitter of template kinds."""

    def register(fn: TemplateEmitter) -> TemplateEmitter:
        for kind in kinds:
            EMITTERS[kind] = fn
        return fn

    return register


class TemplateText:
    """The C text of one template kernel while it is being written."""

    def __init__(self, func: KernelFunc, template: TemplateOp) -> None:
        self.func = func
        self.template = template
        self.params = template.params
        self.name: str = func.params["name"]
        self.w = Writer()
        self.buffers: dict[SSAValue, str] = buffer_names(func)

    def short(self, number: int) -> str:
        """Dtype short name of argument ``number``."""
        return buffer_aval(self.func.body.args[number]).dtype.short

    def buffer(self, number: int) -> str:
        """C name of argument ``number``."""
        return self.buffers[self.func.body.args[number]]

    def environment(self) -> None:
        """The struct that hooks receive: every buffer and dimension of the kernel, typed."""
        w = self.w
        w.open(f"struct {self.name}_env")
        w.line("cv_ctx *ctx;")
        outputs = set(self.func.params["outputs"])
        for k, arg in enumerate(self.func.body.args):
            const = "" if k in outputs else "const "
            shape = ", ".join(map(str, buffer_aval(arg).shape))
            w.line(f"{const}{MEMORY[self.short(k)]} *{self.buffers[arg]}; /* [{shape}] */")
        for d in self.func.params["dims"]:
            w.line(f"int64_t {c_name(d)};")
        w.close("};")
        w.line()

    def unpack(self, source: str, *, with_ctx: bool = True) -> None:
        """Local names for everything in the environment."""
        w = self.w
        w.line(f"const struct {self.name}_env *const env = {source};")
        if with_ctx:
            w.line("cv_ctx *const ctx = env->ctx; (void)ctx;")
        outputs = set(self.func.params["outputs"])
        for k, arg in enumerate(self.func.body.args):
            name = self.buffers[arg]
            const = "" if k in outputs else "const "
            w.line(f"{const}{MEMORY[self.short(k)]} *const {name} = env->{name}; (void){name};")
        for d in self.func.params["dims"]:
            w.line(f"const int64_t {c_name(d)} = env->{c_name(d)}; (void){c_name(d)};")

    def entry(self) -> None:
        """Open the kernel's function with its environment filled in."""
        w = self.w
        w.open(f"void {self.name}(cv_ctx *ctx, void *const *buf, const int64_t *dim)")
        fields = ["ctx", *(f"buf[{k}]" for k in range(len(self.func.body.args)))]
        fields += [f"dim[{k}]" for k in range(len(self.func.params["dims"]))]
        w.line("(void)dim;")
        w.line(f"const struct {self.name}_env environment = {{ {', '.join(fields)} }};")
        self.unpack("&environment", with_ctx=False)

    def store_hook(self, signature: str, acc: str, vector: str) -> None:
        """The epilogue region as a function of the accumulated vector ``acc``."""
        w = self.w
        w.open(f"CV_INLINE void {self.name}_store({signature})")
        w.line("(void)b; (void)m; (void)count;")
        self.unpack("env_")
        body = BodyEmitter(w, self.buffers)
        body.vector, body.count = vector, "count"
        body.hole = acc
        body.block(self.template.body)
        w.close()
        w.line()

    def ahead_hook(self) -> None:
        """The lines that the epilogue of row ``m``, columns from ``n`` on reads and writes, fetched beforehand."""
        known = {"_b", "_m", "_n", *self.func.params["dims"]}
        touched: dict[str, None] = {}
        for op in self.template.body.ops:
            if not isinstance(op, LoadOp | StoreOp):
                continue
            index: Dim = op.params["index"]
            symbols = free_symbols(index)
            if not symbols <= known or not {"_m", "_n"} <= symbols or linear_coefficient(index, "_n") is None:
                continue
            buffer = op.operands[0]
            write = int(isinstance(op, StoreOp))
            size = 32 * buffer_aval(buffer).dtype.itemsize  # the columns of a panel, at most
            touched |= {
                f"__builtin_prefetch((const char *)({self.buffers[buffer]} + {dim(index)}) + {line}, {write}, 3);": None
                for line in range(0, size, 64)
            }
        w = self.w
        w.open(f"CV_INLINE void {self.name}_ahead(const void *env_, int64_t b, int64_t m, int64_t n)")
        w.line("(void)b; (void)m; (void)n;")
        self.unpack("env_")
        for text in touched:
            w.line(text)
        w.close()
        w.line()


def emit_template_kernel(func: KernelFunc) -> str:
    """A template kernel as C."""
    (template,) = [op for op in func.body.ops if isinstance(op, TemplateOp)]
    kind = template.params["kind"]
    if kind not in EMITTERS:
        raise BackendError(f"the C backend has no template for {kind!r}; it has: {', '.join(EMITTERS)}")
    text = TemplateText(func, template)
    text.w.line(f"/* {func.params['reason']} */")
    EMITTERS[kind](text)
    return text.w.text()


def _defines(w: Writer, pairs: Sequence[tuple[str, str]]) -> None:
    for key, value in pairs:
        w.line(f"#define {key} {value}")


def _narrow_define(params: Mapping[str, ParamValue], prefix: str) -> list[tuple[str, str]]:
    """Asks the template for kernels of narrow elements, where the lowering allows them."""
    return [(f"{prefix}_{params['narrow'].upper()}", "1")] if params.get("narrow") else []


@emits("matmul")
def _emit_matmul(t: TemplateText) -> None:
    p, w, name = t.params, t.w, t.name
    acc = p["acc"]
    t.environment()
    signature = f"const void *env_, int64_t b, int64_t m, int64_t n, int64_t count, cv_v{acc} acc"
    t.store_hook(signature, "acc", "_n")
    t.ahead_hook()
    for operand in ("a", "b"):
        w.open(f"CV_INLINE int64_t {name}_{operand}_offset(const void *env_, int64_t b)")
        w.line("(void)b;")
        t.unpack("env_")
        w.line(f"return {dim(p[f'{operand}_offset'])};")
        w.close()
        w.line()
    packed = p["b_packed"]
    _defines(
        w,
        [
            ("CV_GEMM_NAME", f"{name}_gemm"),
            ("CV_GEMM_ACC", acc),
            ("CV_GEMM_A_T", t.short(p["a"])),
            ("CV_GEMM_B_T", t.short(p["b"])),
            ("CV_GEMM_STORE(env, b, m, n, count, acc)", f"{name}_store(env, b, m, n, count, acc)"),
            *_narrow_define(p, "CV_GEMM"),
            ("CV_GEMM_AHEAD_C(env, b, m, n)", f"{name}_ahead(env, b, m, n)"),
            ("CV_GEMM_A_OFFSET(env, batch)", f"{name}_a_offset(env, batch)"),
            ("CV_GEMM_B_OFFSET(env, batch)", f"{name}_b_offset(env, batch)"),
        ],
    )
    w.line('#include "cuvil/gemm.h"')
    w.line()
    b_row, b_col = dim(p["b_row"]), dim(p["b_col"])
    if packed:
        k, n = dim(p["k"]), dim(p["n"])
        w.open(f"int64_t {name}_packed_bytes(void)")
        w.line(f"return {name}_gemm_packed_b_bytes({k}, {n});")
        w.close()
        w.line()
        w.open(f"void {name}_pack(cv_ctx *ctx, void *to, const void *const *from)")
        w.line(f"const cv_matrix b = {{ from[0], {b_row}, {b_col}, 0, 0 }};")
        w.line("const struct " + name + "_env environment = { .ctx = ctx };")
        w.line(f"{name}_gemm_pack_b(ctx, &environment, to, b, {k}, {n});")
        w.close()
        w.line()
    t.entry()
    w.line(f"const cv_matrix a = {{ {t.buffer(p['a'])}, {dim(p['a_row'])}, {dim(p['a_col'])}, 0, 0 }};")
    w.line(f"const cv_matrix bm = {{ {t.buffer(p['b'])}, {b_row}, {b_col}, 0, {1 if packed else 0} }};")
    sizes = ", ".join(dim(p[k]) for k in ("batch", "m", "n", "k"))
    w.line(f"{name}_gemm_run(ctx, env, {sizes}, a, bm);")
    w.close()


def row_major(shape: Sequence[Dim]) -> list[Dim]:
    """Element strides of a contiguous array."""
    strides: list[Dim] = []
    step: Dim = 1
    for n in reversed(shape):
        strides.append(step)
        step = step * n
    return strides[::-1]


def _conv_shape_literal(
    t: TemplateText, batch: Dim, channels: Dim, w_shape: Shape, spatial: Shape, out: Shape, strides: Sequence[Dim]
) -> None:
    """``const cv_conv_shape shape``; ``strides`` are those of batch, channel, depth, height and width."""
    p, w = t.params, t.w

    def three(values: Sequence[Dim], fill: int) -> str:
        return "{ " + ", ".join(dim(v) for v in (*[fill] * (3 - len(values)), *values)) + " }"

    w.open("const cv_conv_shape shape =")
    w.line(f".batch = {dim(batch)}, .groups = {p['groups']},")
    w.line(f".channels = {dim(channels)}, .out_channels = {dim(w_shape[0])},")
    w.line(f".in = {three(spatial, 1)}, .kernel = {three(w_shape[2:], 1)}, .out = {three(out, 1)},")
    w.line(f".stride = {three(p['strides'], 1)}, .dilation = {three(p['dilation'], 1)},")
    w.line(f".input_dilation = {three(p['input_dilation'], 1)},")
    w.line(f".padding = {three([low for low, _ in p['padding']], 0)},")
    w.line(f".x_strides = {{ {', '.join(dim(s) for s in strides)} }},")
    w.close("};")


@emits("conv")
def _emit_conv(t: TemplateText) -> None:
    p, w, name = t.params, t.w, t.name
    acc, groups = p["acc"], p["groups"]
    x_shape, w_shape, out = p["x_shape"], p["w_shape"], p["out_shape"]
    depthwise = groups == x_shape[1] and groups > 1 and w_shape[1] == 1
    # Few output pixels: they become the rows of the product, so that its panels are full of channels (see gemm.md).
    pixels = product(out[2:])
    few = isinstance(pixels, int) and pixels <= 128 and isinstance(w_shape[0], int) and w_shape[0] // groups >= 32
    t.environment()
    signature = f"const void *env_, int64_t b, int64_t m, int64_t p, int64_t count, cv_v{acc} acc"
    t.store_hook(signature, "acc", "_p")
    _defines(
        w,
        [
            ("CV_CONV_NAME", f"{name}_conv"),
            ("CV_CONV_ACC", acc),
            ("CV_CONV_X_T", t.short(p["x"])),
            ("CV_CONV_W_T", t.short(p["w"])),
            ("CV_CONV_STORE(env, b, m, p, count, acc)", f"{name}_store(env, b, m, p, count, acc)"),
            *_narrow_define(p, "CV_CONV"),
            *([("CV_CONV_DEPTHWISE", "1")] if depthwise else []),
            *([("CV_CONV_FEW_PIXELS", "1")] if few and not depthwise else []),
        ],
    )
    w.line('#include "cuvil/conv.h"')
    w.line()

    strides = row_major((x_shape[0], x_shape[1], *([1] * (5 - len(x_shape))), *x_shape[2:]))

    def shape_literal() -> None:
        _conv_shape_literal(t, x_shape[0], x_shape[1], w_shape, x_shape[2:], out[2:], strides)

    if p["w_packed"] and not depthwise:
        _pack_functions(t, f"{name}_conv", shape_literal)
    t.entry()
    shape_literal()
    x, weights = t.buffer(p["x"]), t.buffer(p["w"])
    if depthwise or p["w_packed"]:
        w.line(f"{name}_conv_run(ctx, env, &shape, {x}, {weights});")
    else:
        w.line(f"{name}_conv_pack_w(ctx, &shape, {t.buffer(p['packed'])}, {weights});")
        w.line(f"{name}_conv_run(ctx, env, &shape, {x}, {t.buffer(p['packed'])});")
    w.close()


def _pack_functions(t: TemplateText, prefix: str, shape_literal: Callable[[], None]) -> None:
    """The functions that pack constant weights when the program is loaded."""
    w = t.w
    for result, function, body in (
        ("int64_t", "packed_bytes(void)", f"return {prefix}_packed_w_bytes(&shape);"),
        ("void", "pack(cv_ctx *ctx, void *to, const void *const *from)", f"{prefix}_pack_w(ctx, &shape, to, from[0]);"),
    ):
        w.open(f"{result} {t.name}_{function}")
        # Packing reads the weights' sizes only; sizes of the input are symbols that have no value yet.
        for d in t.func.params["dims"]:
            w.line(f"const int64_t {c_name(d)} = 1; (void){c_name(d)};")
        shape_literal()
        w.line(body)
        w.close()
        w.line()


@emits("conv_channels_last", "conv_winograd")
def _emit_conv_channels_last(t: TemplateText) -> None:
    p, w, name = t.params, t.w, t.name
    acc = p["acc"]
    x_shape, w_shape, out = p["x_shape"], p["w_shape"], p["out_shape"]
    t.environment()
    signature = f"const void *env_, int64_t b, int64_t m, int64_t n, int64_t count, cv_v{acc} acc"
    t.store_hook(signature, "acc", "_n")
    tile = p.get("tile")
    direct = [
        ("CV_CONV_ACC", acc),
        ("CV_CONV_X_T", t.short(p["x"])),
        ("CV_CONV_W_T", t.short(p["w"])),
        *_narrow_define(p, "CV_CONV"),
        *([("CV_CONV_DEPTHWISE", "1")] if p.get("depthwise") else []),
    ]
    _defines(
        w,
        [
            ("CV_CONV_NAME", f"{name}_conv"),
            *(direct if tile is None else [("CV_CONV_TILE", str(tile))]),
            ("CV_CONV_STORE(env, m, n, count, acc)", f"{name}_store(env, 0, m, n, count, acc)"),
        ],
    )
    w.line('#include "cuvil/conv_last.h"' if tile is None else '#include "cuvil/winograd.h"')
    w.line()
    n, *spatial, channels = x_shape
    batch_step, *steps, channel_step = row_major((n, *([1] * (5 - len(x_shape))), *spatial, channels))

    def shape_literal() -> None:
        strides = (batch_step, channel_step, *steps)
        _conv_shape_literal(t, n, channels, w_shape, tuple(spatial), out[1:-1], strides)

    if p["w_packed"]:
        _pack_functions(t, f"{name}_conv", shape_literal)
    t.entry()
    shape_literal()
    x, weights = t.buffer(p["x"]), t.buffer(p["w"])
    if not p["w_packed"]:
        w.line(f"{name}_conv_pack_w(ctx, &shape, {t.buffer(p['packed'])}, {weights});")
        weights = t.buffer(p["packed"])
    w.line(f"{name}_conv_run(ctx, env, &shape, {x}, {weights});")
    w.close()
