"""Emits the host program: one C function that calls the kernels of a model in order."""

from __future__ import annotations

from xdsl.ir import SSAValue

from cuvil.backends.c.expressions import c_name, dim
from cuvil.backends.c.loop_emitter import Writer
from cuvil.ir.interpreter import location_text
from cuvil.ir.kernel import AllocOp, CallOp, ConstBufferOp, CopyOp, PackOp, ProgramOp, ViewOp, buffer_aval
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


def emit_host(
    host: ProgramOp,
    kernel_index: dict[str, int],
    slot_of: dict[SSAValue, int],
    packings: dict[tuple[tuple[int, ...], int], int],
) -> str:
    """The C text of ``cuvil_main``.

    ``packings`` maps (constants, kernel) to its number in the table of packed constants.
    """
    w = Writer()
    names: dict[SSAValue, str] = {}
    inputs = host.params["inputs"]
    for k, arg in enumerate(host.body.args):
        names[arg] = f"in[{k}]" if k < inputs else f"out[{k - inputs}]"
    constant_of: dict[SSAValue, int] = {}
    w.open(
        "int32_t cuvil_main(cv_ctx *ctx, const cv_kernel *kernel, void *const *in, void *const *out,\n"
        "                   void *const *konst, void *const *packed, void *const *slot, const int64_t *sym)"
    )
    for k, s in enumerate(host.params["symbols"]):
        w.line(f"const int64_t {c_name(s)} = sym[{k}]; (void){c_name(s)};")
    w.line("(void)kernel; (void)in; (void)out; (void)konst; (void)packed; (void)slot; (void)sym;")
    for op in host.body.ops:
        if isinstance(op, AllocOp):
            if op.results[0] in slot_of:
                names[op.results[0]] = f"slot[{slot_of[op.results[0]]}]"
        elif isinstance(op, ViewOp):
            names[op.results[0]] = names[op.operands[0]]
            if op.operands[0] in constant_of:
                constant_of[op.results[0]] = constant_of[op.operands[0]]
        elif isinstance(op, ConstBufferOp):
            names[op.results[0]] = f"konst[{op.params['index']}]"
            constant_of[op.results[0]] = op.params["index"]
        elif isinstance(op, PackOp):
            number = packings[(tuple(constant_of[o] for o in op.operands), kernel_index[op.params["kernel"]])]
            names[op.results[0]] = f"packed[{number}]"
        elif isinstance(op, CallOp):
            name = op.params["kernel"]
            buffers = ", ".join(names[o] for o in op.operands)
            dims = ", ".join(dim(d) for d in op.params["dims"])
            w.line(f"/* {name}: {location_text(op)} */")
            w.open("")
            w.line(f"void *const buf[] = {{ {buffers} }};")
            w.line(f"const int64_t dim[] = {{ {dims or '0'} }};")
            w.line(f"kernel[{kernel_index[name]}](ctx, buf, dim);")
            w.close()
        elif isinstance(op, CopyOp):
            source, target = op.operands
            aval = buffer_aval(source)
            size = dim(product(aval.shape) * aval.dtype.itemsize)
            w.line(f"if (({size}) != 0) memcpy({names[target]}, {names[source]}, (size_t)({size}));")
        else:
            raise BackendError(f"the host program has no text for {op.name}")
    w.line("return 0;")
    w.close()
    return _HEADER + w.text()
