"""Emits a kernel of loops as vectorised C."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from xdsl.ir import Block, Operation, SSAValue

from cuvil.backends.c.expressions import MEMORY, c_name, dim, literal, register_suffix, vector_type
from cuvil.dtypes import DType, float32
from cuvil.ir.kernel import (
    AccumulatorOp,
    BindOp,
    ConstOp,
    ForOp,
    HoleOp,
    IndexOp,
    KernelFunc,
    LoadOp,
    ScalarOp,
    ScratchOp,
    StoreOp,
    TestOp,
    TotalOp,
    UpdateOp,
    When,
    buffer_aval,
    scalar_dtype,
)
from cuvil.support.errors import BackendError
from cuvil.symbolic import Dim, free_symbols, linear_coefficient, product, substitute

_HORIZONTAL = {"add": "hsum", "mul": "hprod", "min": "hmin", "max": "hmax", "or": "hor", "and": "hand"}


class Writer:
    """Indented C text."""

    def __init__(self, depth: int = 0) -> None:
        self.lines: list[str] = []
        self.depth = depth

    def line(self, text: str = "") -> None:
        self.lines.append("    " * self.depth + text if text else "")

    def open(self, text: str) -> None:
        self.line(text + " {")
        self.depth += 1

    def close(self, text: str = "}") -> None:
        self.depth -= 1
        self.line(text)

    def text(self) -> str:
        return "\n".join(self.lines) + "\n"


class BodyEmitter:
    """Writes kernel-stage ops as C statements; shared by loop kernels and template epilogues.

    ``vector`` is the variable that runs over lanes here, ``count`` the C expression of how many lanes are live.
    """

    def __init__(self, writer: Writer, buffers: dict[SSAValue, str]) -> None:
        self.w = writer
        self.names: dict[SSAValue, str] = {}
        self.buffers = dict(buffers)
        self.vector: str | None = None
        self.count = "1"
        self.varying: set[SSAValue] = set()
        self.lane_symbols: set[str] = set()
        self._used: Counter[str] = Counter()
        self._accumulators: dict[SSAValue, tuple[str, bool | int | float]] = {}
        self.hole: str | None = None

    # ------------------------------------------------------------------------------------------ names
    def fresh(self, base: str) -> str:
        """A new C identifier."""
        self._used[base] += 1
        return f"{base}{self._used[base]}"

    def _define(self, op: Operation, base: str, expr: str, varying: bool) -> None:
        result = op.results[0]
        name = self.fresh(base)
        self.names[result] = name
        if varying:
            self.varying.add(result)
        self.w.line(f"const {vector_type(scalar_dtype(result))} {name} = {expr};")

    # ------------------------------------------------------------------------------------------ blocks
    def block(self, ops: Block) -> None:
        """Emit every op of a block."""
        for op in ops.ops:
            self.op(op)

    def op(self, op: Operation) -> None:
        """Emit one op."""
        if isinstance(op, ForOp):
            self.loop(op)
        elif isinstance(op, LoadOp):
            self._load(op)
        elif isinstance(op, StoreOp):
            self._store(op)
        elif isinstance(op, ScalarOp):
            self._scalar(op)
        elif isinstance(op, ConstOp):
            dt = scalar_dtype(op.results[0])
            text = literal(op.params["value"], float32 if dt.is_half else dt)
            self._define(op, "c", f"cv_splat_{register_suffix(dt)}({text})", False)
        elif isinstance(op, IndexOp):
            self._index(op)
        elif isinstance(op, TestOp):
            self._test(op)
        elif isinstance(op, BindOp):
            self._bind(op)
        elif isinstance(op, AccumulatorOp):
            dt = scalar_dtype(op.results[0])
            name = self.fresh("acc")
            self.names[op.results[0]] = name
            self._accumulators[op.results[0]] = (op.params["combine"], op.params["identity"])
            self.w.line(f"{vector_type(dt)} {name} = {self._splat(op.params['identity'], dt)};")
        elif isinstance(op, UpdateOp):
            self._update(op)
        elif isinstance(op, TotalOp):
            self._total(op)
        elif isinstance(op, HoleOp):
            assert self.hole is not None
            self.names[op.results[0]] = self.hole
            self.varying.add(op.results[0])
        elif isinstance(op, ScratchOp):
            pass  # carved out before the loops
        else:
            raise BackendError(f"the C backend has no text for {op.name}")

    def loop(self, op: ForOp) -> None:
        """A serial or vector loop (parallel ones are handled by the kernel's frame)."""
        p = op.params
        var, lower, upper = c_name(p["var"]), dim(p["lower"]), dim(p["upper"])
        if p["kind"] != "vector":
            self.w.open(f"for (int64_t {var} = {lower}; {var} < {upper}; ++{var})")
            self.block(op.body)
            self.w.close()
            return
        before = (self.vector, self.count)
        end = self.fresh("end")
        self.w.line(f"const int64_t {end} = {upper};")
        self.w.open(f"for (int64_t {var} = {lower}; {var} < {end}; {var} += CV_LANES)")
        count = self.fresh("n")
        live = "CV_LANES" if p.get("whole") else f"cv_imin(CV_LANES, {end} - {var})"
        self.w.line(f"const int64_t {count} = {live};")
        self.vector, self.count = p["var"], count
        self.block(op.body)
        self.vector, self.count = before
        self.w.close()

    # ------------------------------------------------------------------------------------------ access
    def _coefficient(self, expr: Dim) -> Dim | None:
        """How fast an expression grows along the lanes: 0, a dim, or None where it is not linear."""
        if free_symbols(expr) & self.lane_symbols:
            return None
        if self.vector is None or self.vector not in free_symbols(expr):
            return 0
        found = linear_coefficient(expr, self.vector)
        return None if found is None else found[0]

    def _is_uniform(self, *exprs: Dim) -> bool:
        return all(self._coefficient(e) == 0 for e in exprs)

    def _guard(self, when: When) -> tuple[str, list[tuple[Dim, Dim, Dim]]]:
        """C text of the uniform conditions, and the conditions that vary by lane."""
        uniform: list[str] = []
        varying: list[tuple[Dim, Dim, Dim]] = []
        for expr, low, high in when:
            if self._is_uniform(expr, low, high):
                e = dim(expr)
                uniform.append(f"{dim(low)} <= {e} && {e} < {dim(high)}")
            else:
                varying.append((expr, low, high))
        return " && ".join(uniform), varying

    def _window(self, conditions: Sequence[tuple[Dim, Dim, Dim]]) -> tuple[str, str] | None:
        """First and last live lane where every condition is ``low <= v + c < high``; None where one is not."""
        first, last = ["0"], [self.count]
        for expr, low, high in conditions:
            if self._coefficient(expr) != 1 or not self._is_uniform(low, high):
                return None
            first.append(dim(low - expr))
            last.append(dim(high - expr))
        return _nested("cv_imax", first), _nested("cv_imin", last)

    def _lane_expr(self, expr: Dim) -> str:
        """An expression for lane ``l``."""
        names = {s: f"{c_name(s)}[l]" for s in self.lane_symbols}
        if self.vector is not None:
            names[self.vector] = f"({c_name(self.vector)} + l)"
        return dim(expr, names)

    def _lane_offsets(self, index: Dim, when: Sequence[tuple[Dim, Dim, Dim]]) -> str:
        name = self.fresh("off")
        self.w.line(f"int64_t {name}[CV_LANES];")
        tests = [f"l < {self.count}"]
        for expr, low, high in when:
            e = self._lane_expr(expr)
            tests.append(f"{self._lane_expr(low)} <= {e} && {e} < {self._lane_expr(high)}")
        body = f"{name}[l] = {' && '.join(tests)} ? {self._lane_expr(index)} : -1;"
        self.w.line(f"for (int64_t l = 0; l < CV_LANES; ++l) {body}")
        return name

    def _load(self, op: LoadOp) -> None:
        dt = buffer_aval(op.operands[0]).dtype
        p = self.buffers[op.operands[0]]
        index: Dim = op.params["index"]
        guard, varying = self._guard(op.params.get("when", ()))
        step = self._coefficient(index)
        short = dt.short
        if not varying and step == 0:
            element = f"{p}[{dim(index)}]"
            if dt.is_half:
                value = f"cv_splat_f32(cv_elem_get_{short}(&{element}))"
            else:
                value = f"cv_splat_{short}({element})"
            if guard:
                value = f"({guard}) ? {value} : {self._splat(0, dt)}"
            self._define(op, "x", value, False)
            return
        count = self.count
        if guard:
            count = self.fresh("m")
            self.w.line(f"const int64_t {count} = ({guard}) ? {self.count} : 0;")
        if step == 1 and not varying:
            value = f"cv_load_part_{short}({p} + {_term(index)}, {count})"
        elif step == 1 and (window := self._window(varying)) is not None:
            value = f"cv_load_window_{short}({p} + ({dim(index)}), {window[0]}, cv_imin({count}, {window[1]}))"
        elif step is not None and not varying:
            value = f"cv_load_strided_{short}({p} + {_term(index)}, {dim(step)}, {count})"
        else:
            saved, self.count = self.count, count
            offsets = self._lane_offsets(index, varying)
            self.count = saved
            value = f"cv_gather_guarded_{short}({p}, {offsets})"
        if guard:
            # A masked load of no lanes takes hundreds of cycles where its address is far from any array.
            value = f"{count} > 0 ? {value} : {self._splat(0, dt)}"
        self._define(op, "x", value, True)

    def _store(self, op: StoreOp) -> None:
        buffer, value = op.operands
        dt = buffer_aval(buffer).dtype
        p, v, index = self.buffers[buffer], self.names[value], op.params["index"]
        step = self._coefficient(index)
        if self.vector is None:
            if step != 0:
                raise BackendError(f"a store at {index} varies by lane outside of a vector loop")
            self.w.line(f"cv_store_part_{dt.short}({p} + {_term(index)}, {v}, 1);")
        elif step == 1:
            self.w.line(f"cv_store_part_{dt.short}({p} + {_term(index)}, {v}, {self.count});")
        elif step == 0:
            self.w.line(f"cv_store_part_{dt.short}({p} + {_term(index)}, {v}, 1);")
        elif step is not None:
            self.w.line(f"cv_store_strided_{dt.short}({p} + {_term(index)}, {dim(step)}, {v}, {self.count});")
        else:
            offsets = self._lane_offsets(index, ())
            self.w.line(f"cv_scatter_{dt.short}({p}, {offsets}, {v});")

    # ------------------------------------------------------------------------------------------ scalars
    def _splat(self, value: bool | int | float, dt: DType) -> str:
        return f"cv_splat_{register_suffix(dt)}({literal(value, float32 if dt.is_half else dt)})"

    def _scalar(self, op: ScalarOp) -> None:
        instr = op.params["instr"]
        args = [self.names[o] for o in op.operands]
        out = scalar_dtype(op.results[0])
        varying = any(o in self.varying for o in op.operands)
        if instr == "cast":
            self._define(op, "cast", cast_text(args[0], scalar_dtype(op.operands[0]), out), varying)
            return
        dt = scalar_dtype(op.operands[-1])
        if instr == "pow" and dt.kind == "int":
            self.w.line(f"cv_check_exponent_{dt.short}(ctx, {args[1]}, {self.count});")
        call = f"cv_{instr}_{register_suffix(dt)}({', '.join(args)})"
        if out.is_half and instr != "select":
            call = f"cv_round_{out.short}({call})"
        self._define(op, instr + "_" if instr in _KEYWORDS else instr, call, varying)

    def _index(self, op: IndexOp) -> None:
        expr: Dim = op.params["expr"]
        step = self._coefficient(expr)
        if step == 0:
            self._define(op, "idx", f"cv_splat_i64({dim(expr)})", False)
        elif step == 1:
            self._define(op, "idx", f"cv_iota_i64({dim(expr)})", True)
        else:
            lanes = self.fresh("lane")
            self.w.line(f"int64_t {lanes}[CV_LANES];")
            live = f"l < {self.count}"
            self.w.line(f"for (int64_t l = 0; l < CV_LANES; ++l) {lanes}[l] = {live} ? {self._lane_expr(expr)} : 0;")
            self._define(op, "idx", f"cv_load_i64({lanes})", True)

    def _test(self, op: TestOp) -> None:
        guard, varying = self._guard(op.params["when"])
        if not varying:
            self._define(op, "ok", f"cv_splat_bool({guard or '1'})", False)
            return
        window = self._window(varying)
        if window is not None:
            value = f"cv_lane_range({window[0]}, {window[1]})"
        else:
            lanes = self.fresh("lane")
            tests: list[str] = [f"l < {self.count}"]
            for expr, low, high in varying:
                e = self._lane_expr(expr)
                tests.append(f"{self._lane_expr(low)} <= {e} && {e} < {self._lane_expr(high)}")
            self.w.line(f"int32_t {lanes}[CV_LANES];")
            self.w.line(f"for (int64_t l = 0; l < CV_LANES; ++l) {lanes}[l] = {' && '.join(tests)} ? -1 : 0;")
            value = f"cv_mask_from({lanes})"
        if guard:
            value = f"cv_and_bool(cv_splat_bool({guard}), {value})"
        self._define(op, "ok", value, True)

    def _bind(self, op: BindOp) -> None:
        (value,) = op.operands
        p = op.params
        name, size, mode = c_name(p["var"]), dim(p["size"]), p["mode"]
        v = self.names[value]
        if value not in self.varying:
            self.w.line(f"const int64_t {name} = cv_index_{mode}(ctx, cv_lane_i64({v}, 0), {size});")
            return
        self.lane_symbols.add(p["var"])
        self.w.line(f"int64_t {name}[CV_LANES];")
        self.w.line(
            f"for (int64_t l = 0; l < CV_LANES; ++l)"
            f" {name}[l] = l < {self.count} ? cv_index_{mode}(ctx, cv_lane_i64({v}, l), {size}) : -1;"
        )

    # --------------------------------------------------------------------------------------- reductions
    def _update(self, op: UpdateOp) -> None:
        acc, value = op.operands
        combine, identity = self._accumulators[acc]
        dt = scalar_dtype(acc)
        a, v = self.names[acc], self.names[value]
        if self.vector is not None and self._reduces_lanes(acc):
            v = f"cv_tail_{register_suffix(dt)}({v}, {self.count}, {self._splat(identity, dt)})"
        self.w.line(f"{a} = cv_{combine}_{register_suffix(dt)}({a}, {v});")

    def _reduces_lanes(self, acc: SSAValue) -> bool:
        return any(isinstance(u.operation, TotalOp) and u.operation.params["lanes"] for u in acc.uses)

    def _total(self, op: TotalOp) -> None:
        (acc,) = op.operands
        combine, _ = self._accumulators[acc]
        dt = scalar_dtype(acc)
        a = self.names[acc]
        if not op.params["lanes"]:
            self._define(op, "total", a, self.vector is not None)
            return
        suffix = "" if combine in ("or", "and") else f"_{register_suffix(dt)}"
        self._define(op, "total", f"cv_splat_{register_suffix(dt)}(cv_{_HORIZONTAL[combine]}{suffix}({a}))", False)


_KEYWORDS = frozenset({"and", "or", "not", "xor", "div", "min", "max", "abs", "exp", "log", "sin", "cos", "n", "x"})


def _nested(name: str, parts: Sequence[str]) -> str:
    text = parts[0]
    for p in parts[1:]:
        text = f"{name}({text}, {p})"
    return text


def _term(index: Dim) -> str:
    text = dim(index)
    return text if text.replace("_", "a").isalnum() else f"({text})"


def cast_text(value: str, source: DType, target: DType) -> str:
    """C text of a conversion between dtypes, through the register forms of halves."""
    if source is target:
        return value
    if target.is_half:
        if source is float32 or source.is_half:
            return f"cv_round_{target.short}({value})"
        if source.short == "f64":
            return f"cv_cast_f64_{target.short}r({value})"
        return f"cv_round_{target.short}(cv_cast_{source.short}_f32({value}))"
    origin = register_suffix(source)
    if origin == target.short:
        return value
    return f"cv_cast_{origin}_{target.short}({value})"


def emit_loop_kernel(func: KernelFunc) -> str:
    """A whole loop kernel as C functions: the body of its parallel loops, and the entry."""
    name = func.params["name"]
    w = Writer()
    buffers = buffer_names(func)
    parallel: list[ForOp] = []
    block = func.body
    while True:
        loops = [op for op in block.ops if isinstance(op, ForOp) and op.params["kind"] == "parallel"]
        if len(loops) == 1 and all(op is loops[0] for op in block.ops):
            parallel.append(loops[0])
            block = loops[0].body
            continue
        break
    w.line(f"/* {func.params.get('reason', name)} */")
    w.line(f"struct {name}_args {{ cv_ctx *ctx; void *const *buf; const int64_t *dim; }};")
    w.line()
    w.open(f"static void {name}_body(void *arg, int64_t begin, int64_t end, int worker)")
    w.line(f"const struct {name}_args *const a = arg;")
    w.line("cv_ctx *const ctx = a->ctx;")
    w.line("(void)ctx; (void)worker; (void)begin; (void)end;")
    emit_parameters(w, func, "a->", buffers)
    emitter = BodyEmitter(w, buffers)
    _emit_scratch(w, emitter, block)
    if parallel:
        w.open("for (int64_t task = begin; task < end; ++task)")
        _emit_task_indices(w, parallel)
        emitter.block(block)
        w.close()
    else:
        emitter.block(block)
    w.close()
    w.line()
    w.open(f"void {name}(cv_ctx *ctx, void *const *buf, const int64_t *dim)")
    emit_dims(w, func, "")
    w.line(f"struct {name}_args a = {{ ctx, buf, dim }};")
    if parallel:
        trips = product(op.params["upper"] for op in parallel)
        work = _work(block)
        w.line(f"cv_parallel(ctx, {dim(trips)}, cv_grain({dim(work)}), {name}_body, &a);")
    else:
        w.line(f"{name}_body(&a, 0, 1, 0);")
    w.close()
    return w.text()


def buffer_names(func: KernelFunc) -> dict[SSAValue, str]:
    """C names of a kernel's buffers: ``in0`` ... and ``out0`` ...."""
    outputs = set(func.params.get("outputs", ()))
    names: dict[SSAValue, str] = {}
    ins = outs = 0
    for k, arg in enumerate(func.body.args):
        if k in outputs:
            names[arg] = f"out{outs}"
            outs += 1
        else:
            names[arg] = f"in{ins}"
            ins += 1
    return names


def emit_parameters(w: Writer, func: KernelFunc, prefix: str, names: dict[SSAValue, str]) -> None:
    """Local variables for a kernel's buffers and dims."""
    outputs = set(func.params.get("outputs", ()))
    for k, arg in enumerate(func.body.args):
        memory = MEMORY[buffer_aval(arg).dtype.short]
        const = "" if k in outputs else "const "
        shape = ", ".join(map(str, buffer_aval(arg).shape))
        w.line(f"{const}{memory} *const {names[arg]} = {prefix}buf[{k}]; /* [{shape}] */")
    emit_dims(w, func, prefix)


def emit_dims(w: Writer, func: KernelFunc, prefix: str) -> None:
    """Local constants for a kernel's dimension symbols."""
    for k, d in enumerate(func.params.get("dims", ())):
        w.line(f"const int64_t {c_name(d)} = {prefix}dim[{k}]; (void){c_name(d)};")
    if not func.params.get("dims", ()):
        w.line(f"(void){prefix}dim;" if prefix else "(void)dim;")


def _emit_task_indices(w: Writer, parallel: Sequence[ForOp]) -> None:
    if len(parallel) == 1:
        w.line(f"const int64_t {c_name(parallel[0].params['var'])} = task;")
        return
    w.line("int64_t rest = task;")
    for op in reversed(parallel[1:]):
        extent = _term(op.params["upper"])
        w.line(f"const int64_t {c_name(op.params['var'])} = rest % {extent}; rest /= {extent};")
    w.line(f"const int64_t {c_name(parallel[0].params['var'])} = rest;")


def _emit_scratch(w: Writer, emitter: BodyEmitter, block: Block) -> None:
    rows = [op for op in block.ops if isinstance(op, ScratchOp)]
    if not rows:
        return
    offset: Dim = 0
    for k, op in enumerate(rows):
        aval = buffer_aval(op.results[0])
        emitter.buffers[op.results[0]] = f"row{k}"
        op_bytes = (aval.shape[0] * aval.dtype.itemsize + 63) // 64 * 64
        if k == 0:
            total: Dim = 0
            for other in rows:
                a = buffer_aval(other.results[0])
                total = total + (a.shape[0] * a.dtype.itemsize + 63) // 64 * 64
            w.line(f"char *const scratch = cv_scratch(ctx, worker, {dim(total)});")
            w.line("if (scratch == NULL) return; /* cv_scratch has set the error flag */")
        memory = MEMORY[aval.dtype.short]
        w.line(f"{memory} *const row{k} = ({memory} *)(scratch + {_term(offset)});")
        offset = offset + op_bytes


def _work(block: Block) -> Dim:
    """Element operations of one task: for the decision how many tasks a thread should get."""
    total: Dim = 0
    for op in block.ops:
        if isinstance(op, ForOp):
            inner = op.params["upper"] - op.params["lower"]
            if op.params["kind"] == "vector" and op.params["lower"] != 0:
                inner = 4096 if free_symbols(op.params["upper"]) else inner
            nested = [o for o in op.body.ops if isinstance(o, ForOp)]
            scale: Dim = _work(op.body) if nested else sum(1 for _ in op.body.ops)
            total = total + inner * scale
        else:
            total = total + 1
    # Loop variables of the frame do not exist at the call: only extents count.
    names = {s: 0 for s in free_symbols(total) if s.startswith("_")}
    return substitute(total, names) if names else total


__all__ = ["BodyEmitter", "Writer", "buffer_names", "cast_text", "emit_dims", "emit_loop_kernel", "emit_parameters"]
