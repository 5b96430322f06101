"""Emits the host program: one C function that calls the kernels of a model in order."""

from __future__ import annotations

from xdsl.ir import Block, Operation, SSAValue

from cuvil.backends.c.expressions import c_name, dim
from cuvil.backends.c.loop_emitter import Writer
from cuvil.ir.interpreter import location_text
from cuvil.ir.kernel import (
    AllocOp,
    CallOp,
    ConstBufferOp,
    CopyOp,
    HostCheckOp,
    HostSwitchOp,
    HostWhileOp,
    PackOp,
    ProgramOp,
    PutOp,
    RepeatOp,
    ViewOp,
    buffer_aval,
)
from cuvil.support.errors import BackendError
from cuvil.symbolic import product

_HEADER = """\
#include <string.h>
#include "cuvil/runtime.h"

typedef void (*cv_kernel)(cv_ctx *ctx, void *const *buf, const int64_t *dim);

static inline int64_t cv_imin(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t cv_imax(int64_t a, int64_t b) { return a > b ? a : b; }
static inline int64_t cv_fdiv(int64_t a, int64_t b) {
    const int64_t q = a / b;
    return q - ((a % b != 0) & ((a ^ b) < 0));
}
static inline int64_t cv_fmodi(int64_t a, int64_t b) { return a - b * cv_fdiv(a, b); }

/* in, out: user arrays; konst, packed: constants as they are and in their kernels' layouts;
 * slot: temporaries in the arena; sym: values of the dimension symbols. */
"""


#: Calls of a host program for which the compiler's second level would take as long as all kernels together.
_LONG_CALLS = 500
_LONG = """\
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize ("O1")
#endif
"""


def emit_host(
    host: ProgramOp,
    kernel_index: dict[str, int],
    slot_of: dict[SSAValue, int],
    packings: dict[tuple[tuple[int, ...], int], int],
) -> str:
    """The C text of ``cuvil_main``.

    ``packings`` maps (constants, kernel) to its number in the table of packed constants.
    """
    calls = sum(1 for op in host.body.walk() if isinstance(op, CallOp))
    text = _HostText(kernel_index, slot_of, packings).program(host)
    return (_LONG if calls > _LONG_CALLS else "") + _HEADER + text


class _HostText:
    """Writes one host program."""

    def __init__(
        self,
        kernel_index: dict[str, int],
        slot_of: dict[SSAValue, int],
        packings: dict[tuple[tuple[int, ...], int], int],
    ) -> None:
        self.w = Writer()
        self.kernel_index = kernel_index
        self.slot_of = slot_of
        self.packings = packings
        self.names: dict[SSAValue, str] = {}
        self.constant_of: dict[SSAValue, int] = {}
        self.pointers = 0

    def program(self, host: ProgramOp) -> str:
        """The text of ``cuvil_main``."""
        w = self.w
        inputs = host.params["inputs"]
        for k, arg in enumerate(host.body.args):
            self.names[arg] = f"in[{k}]" if k < inputs else f"out[{k - inputs}]"
        w.open(
            "int32_t cuvil_main(cv_ctx *ctx, const cv_kernel *kernel, void *const *in, void *const *out,\n"
            "                   void *const *konst, void *const *packed, void *const *slot, const int64_t *sym)"
        )
        for k, s in enumerate(host.params["symbols"]):
            w.line(f"const int64_t {c_name(s)} = sym[{k}]; (void){c_name(s)};")
        w.line("(void)kernel; (void)in; (void)out; (void)konst; (void)packed; (void)slot; (void)sym;")
        self._block(host.body)
        w.line("return 0;")
        w.close()
        return w.text()

    def _block(self, block: Block) -> None:
        for op in block.ops:
            self._op(op)

    def _op(self, op: Operation) -> None:
        w, names = self.w, self.names
        if isinstance(op, AllocOp):
            if op.results[0] in self.slot_of:
                names[op.results[0]] = f"slot[{self.slot_of[op.results[0]]}]"
        elif isinstance(op, ViewOp):
            self._view(op)
        elif isinstance(op, ConstBufferOp):
            names[op.results[0]] = f"konst[{op.params['index']}]"
            self.constant_of[op.results[0]] = op.params["index"]
        elif isinstance(op, PackOp):
            constants = tuple(self.constant_of[o] for o in op.operands)
            number = self.packings[(constants, self.kernel_index[op.params["kernel"]])]
            names[op.results[0]] = f"packed[{number}]"
        elif isinstance(op, CallOp):
            name = op.params["kernel"]
            buffers = ", ".join(names[o] for o in op.operands)
            dims = ", ".join(dim(d) for d in op.params["dims"])
            w.line(f"/* {name}: {location_text(op)} */")
            w.open("")
            w.line(f"void *const buf[] = {{ {buffers} }};")
            w.line(f"const int64_t dim[] = {{ {dims or '0'} }};")
            if "site" in op.params:
                w.line(f"ctx->site = {op.params['site']};")
            w.line(f"kernel[{self.kernel_index[name]}](ctx, buf, dim);")
            w.close()
        elif isinstance(op, CopyOp):
            source, target = (names[o] for o in op.operands)
            aval = buffer_aval(op.operands[0])
            size = dim(product(aval.shape) * aval.dtype.itemsize)
            if source != target:
                w.line(f"if ({target} != {source} && ({size}) != 0) memcpy({target}, {source}, (size_t)({size}));")
        elif isinstance(op, PutOp):
            w.line(f"*(int64_t *){names[op.operands[0]]} = {dim(op.params['value'])};")
        elif isinstance(op, HostCheckOp):
            w.line(f"/* assert: {location_text(op)} */")
            w.open(f"if (!*(const uint8_t *){names[op.operands[0]]})")
            w.line(f"cv_fail(ctx, CV_ECHECK, {op.params['number']}, 0);")
            w.line("return 0;")
            w.close()
        elif isinstance(op, HostSwitchOp):
            self._switch(op)
        elif isinstance(op, (RepeatOp, HostWhileOp)):
            self._loop(op)
        else:
            raise BackendError(f"the host program has no text for {op.name}")

    def _view(self, op: ViewOp) -> None:
        (source,), (result,) = op.operands, op.results
        offset = op.params.get("offset")
        if offset is None:
            self.names[result] = self.names[source]
            if source in self.constant_of:
                self.constant_of[result] = self.constant_of[source]
            return
        self.names[result] = pointer = self._pointer()
        at = dim(offset * buffer_aval(source).dtype.itemsize)
        self.w.line(f"void *const {pointer} = (char *){self.names[source]} + {at};")

    def _pointer(self) -> str:
        self.pointers += 1
        return f"ptr{self.pointers - 1}"

    def _switch(self, op: HostSwitchOp) -> None:
        w, name = self.w, self.names[op.operands[0]]
        bodies = [r.block for r in op.regions]
        w.line(f"/* {location_text(op)} */")
        if buffer_aval(op.operands[0]).dtype.is_bool:
            w.open(f"if (*(const uint8_t *){name})")
            self._block(bodies[1])
            w.close()
            w.open("else")
            self._block(bodies[0])
            w.close()
            return
        chosen = self._pointer()
        w.line(f"const int64_t {chosen} = *(const int64_t *){name};")
        for k, body in enumerate(bodies):
            last = k == len(bodies) - 1
            w.open("else" if last and k else f"{'else ' if k else ''}if ({chosen} <= {k})" if not last else "")
            self._block(body)
            w.close()

    def _loop(self, op: RepeatOp | HostWhileOp) -> None:
        w, names = self.w, self.names
        body = op.regions[-1].block
        turns: list[tuple[str, str, str, str]] = []
        for k, (init, first, second) in enumerate(op.carried):
            current, following = body.args[2 * k], body.args[2 * k + 1]
            if init is first:
                names[current] = names[following] = names[op.results[k]] = names[init]
            else:
                now, then = self._pointer(), self._pointer()
                names[current] = names[op.results[k]] = now
                names[following] = then
                w.line(f"void *{now} = {names[init]}, *{then} = {names[first]};")
                turns.append((now, then, names[init], names[second]))
            if isinstance(op, HostWhileOp):
                names[op.regions[0].block.args[k]] = names[current]
        w.line(f"/* {location_text(op)} */")
        if isinstance(op, HostWhileOp):
            w.open("for (;;)")
            self._block(op.regions[0].block)
            w.line("if (cv_failed(ctx)) return 0;")
            w.line(f"if (!*(const uint8_t *){names[op.operands[0]]}) break;")
        else:
            v, trip = c_name(op.params["var"]), dim(op.params["trip"])
            if op.params["reverse"]:
                w.open(f"for (int64_t {v} = ({trip}) - 1; {v} >= 0; {v}--)")
            else:
                w.open(f"for (int64_t {v} = 0; {v} < {trip}; {v}++)")
        self._block(body)
        w.line("if (cv_failed(ctx)) return 0;")
        for now, then, init, second in turns:
            # The initial buffer is read once; from then on two others take turns.
            w.line(f"{{ void *const old = {now} == {init} ? {second} : {now}; {now} = {then}; {then} = old; }}")
        w.close()
