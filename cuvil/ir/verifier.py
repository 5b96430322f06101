"""Checks a module against the spec of its stage: which ops may stand where, and what they may mention."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal, NoReturn, get_args

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Block, BlockArgument, Operation, SSAValue
from xdsl.utils.exceptions import VerifyException

from cuvil.dtypes import bool_, int64
from cuvil.ir.control import CheckOp, ControlOp
from cuvil.ir.dialect import ConstantOp, FusionOp, TensorOp, YieldOp, aval_of
from cuvil.ir.interpreter import location_text
from cuvil.ir.kernel import (
    AccumulatorOp,
    AllocOp,
    BindOp,
    BufferType,
    CallOp,
    ConstBufferOp,
    ConstOp,
    CopyOp,
    ForOp,
    HoleOp,
    HostCheckOp,
    HostSwitchOp,
    HostWhileOp,
    IndexOp,
    KernelFunc,
    KernelOp,
    LoadOp,
    PackOp,
    ProgramOp,
    PutOp,
    RepeatOp,
    ScalarOp,
    ScratchOp,
    StoreOp,
    TemplateOp,
    TestOp,
    TotalOp,
    UpdateOp,
    ViewOp,
    buffer_aval,
)
from cuvil.ops.record import Aval, Decomposition, ReduceBody
from cuvil.ops.reshaping import ALIASES
from cuvil.support.errors import IRError
from cuvil.symbolic import Dim, free_symbols, product

Stage = Literal["tensor", "optimised", "fused", "kernel"]

STAGES: tuple[Stage, ...] = get_args(Stage)

#: Kinds of ``cuvil.fusion``.
FUSION_KINDS = frozenset({"loop", "matmul", "conv", "conv_channels_last", "conv_winograd", "attention", "library"})

_CONTROL = (ControlOp, CheckOp, ReturnOp, YieldOp)
_LOOP_OPS = (
    ForOp, LoadOp, StoreOp, ScalarOp, ConstOp, IndexOp, TestOp, BindOp, AccumulatorOp, UpdateOp, TotalOp, ScratchOp,
)  # fmt: skip
_EPILOGUE_OPS = (HoleOp, LoadOp, StoreOp, ScalarOp, ConstOp, IndexOp, TestOp, BindOp)
_HOST_OPS = (
    AllocOp, ViewOp, ConstBufferOp, PackOp, CallOp, CopyOp, PutOp, HostCheckOp, HostSwitchOp, RepeatOp, HostWhileOp,
)  # fmt: skip
_COMBINES = frozenset({"add", "mul", "min", "max", "and", "or"})
_BIND_MODES = frozenset({"error", "clip", "wrap", "fill"})
#: Index variables that an epilogue is given by its template.
_TEMPLATE_VARIABLES = {
    "matmul": ("_b", "_m", "_n"),
    "conv": ("_b", "_m", "_p"),
    "conv_channels_last": ("_b", "_m", "_n"),
    "conv_winograd": ("_b", "_m", "_n"),
}


def verify_stage(module: ModuleOp, stage: Stage) -> None:
    """Check a module against the spec of a stage.

    ``tensor`` and ``optimised``: one function of named ops and constants. ``fused``: constants, reshapes (aliases of
    memory) and fusions. ``kernel``: kernels, then the host program that calls them. The shape and dtype rule of every
    op runs again, and every operand must be defined before its use.

    Raises:
        IRError: what is wrong, at which op and which line of the user's code.
    """
    if stage not in STAGES:
        raise IRError(f"no stage is named {stage!r}; expected one of {', '.join(STAGES)}")
    try:
        module.verify()
    except VerifyException as error:
        raise IRError(f"{stage} stage: {error}") from error
    _SPECS[stage](module)


def stage_of(module: ModuleOp) -> Stage:
    """The stage that a module's ops belong to (``tensor`` for tensor-level programs, decomposed or not)."""
    for op in module.body.block.ops:
        if isinstance(op, (KernelFunc, ProgramOp)):
            return "kernel"
        if isinstance(op, FuncOp) and any(isinstance(o, FusionOp) for o in op.body.block.ops):
            return "fused"
    return "tensor"


def main_function(module: ModuleOp) -> FuncOp:
    """The one function of a tensor-level module.

    Raises:
        IRError: the module does not consist of one function with a body.
    """
    ops = list(module.body.block.ops)
    if len(ops) != 1 or not isinstance(ops[0], FuncOp) or ops[0].is_declaration:
        raise IRError(f"expected a module of one func.func with a body, got {[op.name for op in ops]}")
    return ops[0]


def _fail(stage: str, op: Operation, what: str) -> NoReturn:
    where = location_text(op)
    at = "" if where == "unknown line" else f" (from {where})"
    raise IRError(f"{stage} stage: {op.name}{at}: {what}")


def _check_defined(stage: str, op: Operation, defined: set[SSAValue]) -> None:
    for k, operand in enumerate(op.operands):
        if operand not in defined:
            _fail(stage, op, f"operand {k} is not defined before this op in the blocks around it")


# ------------------------------------------------------------------------------------ tensor and fused stage


def _check_function(stage: str, module: ModuleOp, check: Callable[[Operation], None]) -> None:
    func = main_function(module)
    if len(func.body.blocks) != 1:
        _fail(stage, func, f"a function has one block, got {len(func.body.blocks)}")
    block = func.body.block
    returned = block.last_op
    if not isinstance(returned, ReturnOp):
        _fail(stage, func, "the function's block must end in func.return")
    _check_block(stage, block, check)
    given, results = list(func.function_type.inputs), list(func.function_type.outputs)
    if given != [a.type for a in block.args]:
        _fail(stage, func, "the function's type does not name the types of its block's arguments")
    if results != [v.type for v in returned.operands]:
        _fail(stage, returned, "returns values of other types than the function's type says")
    for value in (*block.args, *returned.operands):
        aval_of(value)


def _check_block(stage: str, block: Block, check: Callable[[Operation], None]) -> None:
    """Operands come from the block itself, its arguments and earlier ops; the same holds in control flow's regions."""
    defined: set[SSAValue] = set(block.args)
    for op in block.ops:
        _check_defined(stage, op, defined)
        if isinstance(op, (ReturnOp, YieldOp)) and op is not block.last_op:
            _fail(stage, op, "ends a block, but stands before its end")
        check(op)
        if isinstance(op, ControlOp):
            for body in op.bodies:
                _check_block(stage, body, check)
        defined.update(op.results)


def _check_tensor(module: ModuleOp) -> None:
    def check(op: Operation) -> None:
        if not isinstance(op, (TensorOp, ConstantOp, *_CONTROL)):
            _fail("tensor", op, "only named ops, constants, control flow and the return may stand here")

    _check_function("tensor", module, check)


def _check_optimised(module: ModuleOp) -> None:
    def check(op: Operation) -> None:
        if not isinstance(op, (TensorOp, ConstantOp, *_CONTROL)):
            _fail("optimised", op, "only named ops, constants, control flow and the return may stand here")
        if isinstance(op, TensorOp) and isinstance(op.record.body, Decomposition):
            _fail("optimised", op, "must have been decomposed")

    _check_function("optimised", module, check)


def _check_fused(module: ModuleOp) -> None:
    def inside(op: Operation) -> None:
        if isinstance(op, ConstantOp):
            if op.value.size != 1:
                _fail("fused", op, "a constant of several elements is an operand of its fusion, not part of it")
        elif isinstance(op, TensorOp):
            if isinstance(op.record.body, Decomposition):
                _fail("fused", op, "must have been decomposed")
        elif not isinstance(op, YieldOp):
            _fail("fused", op, "only named ops, single-element constants and the yield may stand in a fusion")

    def check(op: Operation) -> None:
        if isinstance(op, FusionOp):
            if op.kind not in FUSION_KINDS:
                _fail("fused", op, f"unknown kind {op.kind!r}; expected one of {', '.join(sorted(FUSION_KINDS))}")
            if not op.results:
                _fail("fused", op, "yields nothing")
            _check_block("fused", op.body, inside)
            reduced = {
                (aval_of(o.operands[0]).shape, tuple(o.params["axes"]))
                for o in op.body.ops
                if isinstance(o, TensorOp) and isinstance(o.record.body, ReduceBody)
            }
            if len(reduced) > 1:
                _fail("fused", op, f"its reductions differ in shape or axes: {sorted(map(str, reduced))}")
        elif isinstance(op, TensorOp):
            if op.record.name not in ALIASES:
                _fail("fused", op, "only aliases of memory may stand outside of a fusion")
        elif not isinstance(op, (ConstantOp, *_CONTROL)):
            _fail("fused", op, "only constants, aliases of memory, fusions, control flow and the return may stand here")

    _check_function("fused", module, check)


# ---------------------------------------------------------------------------------------------- kernel stage


def _symbols(value: Any) -> frozenset[str]:
    if isinstance(value, tuple):
        return frozenset[str]().union(*(_symbols(v) for v in value))  # pyright: ignore[reportUnknownVariableType]
    return free_symbols(value) if hasattr(value, "symbols") else frozenset()


class _KernelCheck:
    """One walk over one kernel."""

    def __init__(self, func: KernelFunc) -> None:
        self.func = func
        self.name = str(func.params.get("name", "?"))
        args = list(func.body.args)
        outputs = func.params.get("outputs", ())
        if not all(isinstance(k, int) and 0 <= k < len(args) for k in outputs):
            self.fail(func, f"outputs {outputs} are not numbers of its {len(args)} buffers")
        self.writable: set[SSAValue] = {args[k] for k in outputs}
        self.dims = frozenset(func.params.get("dims", ()))
        self.stored: set[SSAValue] = set()

    def fail(self, op: Operation, what: str) -> NoReturn:
        raise IRError(f"kernel stage: {self.name}: {op.name}: {what}")

    def run(self) -> None:
        for arg in self.func.body.args:
            if not isinstance(arg.type, BufferType):
                self.fail(self.func, f"takes buffers, got an argument of type {arg.type}")
            self._known(self.func, buffer_aval(arg).shape, self.dims)
        templates = [op for op in self.func.body.ops if isinstance(op, TemplateOp)]
        if templates:
            if len(templates) != 1:
                self.fail(self.func, "has one template")
            self._template(templates[0])
            return
        self._block(self.func.body, set(self.func.body.args), self.dims, _LOOP_OPS)
        missing = self.writable - self.stored
        if missing:
            numbers = [k for k, a in enumerate(self.func.body.args) if a in missing]
            self.fail(self.func, f"never stores to its outputs {numbers}")

    def _known(self, op: Operation, values: Any, scope: frozenset[str]) -> None:
        unknown = _symbols(values) - scope
        if unknown:
            self.fail(
                op, f"mentions {', '.join(sorted(unknown))}, which is no dimension of the kernel, no variable of a loop"
                " around it and not bound before it"
            )  # fmt: skip

    def _template(self, op: TemplateOp) -> None:
        defined: set[SSAValue] = set(self.func.body.args)
        for other in self.func.body.ops:
            if other is not op:
                self.fail(other, "stands beside a template")
        _check_defined("kernel", op, defined)
        variables = frozenset(_TEMPLATE_VARIABLES.get(op.params["kind"], ()))
        self._known(op, tuple(op.params.values()), self.dims | variables)
        for region in op.regions:
            self._block(region.block, defined, self.dims | variables, _EPILOGUE_OPS)

    def _block(
        self, block: Block, outer: set[SSAValue], scope: frozenset[str], allowed: tuple[type[Operation], ...]
    ) -> None:
        # Sibling loops do not see each other's values and names: both sets are copies.
        defined = set(outer)
        for op in block.ops:
            if not isinstance(op, allowed) or not isinstance(op, KernelOp):
                self.fail(op, f"cannot stand here; expected one of {', '.join(sorted(c.name for c in allowed))}")
            _check_defined("kernel", op, defined)
            params = {k: v for k, v in op.params.items() if k != "when" or v}
            self._known(op, tuple(params.values()), scope)
            scope = self._op(op, defined, scope, allowed)
            defined.update(op.results)

    def _op(
        self, op: KernelOp, defined: set[SSAValue], scope: frozenset[str], allowed: tuple[type[Operation], ...]
    ) -> frozenset[str]:
        """Check one op; returns the names in scope after it."""
        p = op.params
        if isinstance(op, ForOp):
            if p["var"] in scope:
                self.fail(op, f"its variable {p['var']} hides a name that is in scope")
            self._block(op.body, defined, scope | {p["var"]}, allowed)
        elif isinstance(op, BindOp):
            if p["mode"] not in _BIND_MODES:
                self.fail(op, f"unknown mode {p['mode']!r}")
            if p["var"] in scope:
                self.fail(op, f"binds {p['var']}, which is in scope already")
            return scope | {p["var"]}
        elif isinstance(op, StoreOp):
            target = op.operands[0]
            if target not in self.writable:
                self.fail(op, "stores to a buffer that is neither an output nor scratch")
            self.stored.add(target)
        elif isinstance(op, ScratchOp):
            self.writable.add(op.results[0])
            self.stored.add(op.results[0])
            self._known(op, buffer_aval(op.results[0]).shape, scope)
        elif isinstance(op, AccumulatorOp):
            if p["combine"] not in _COMBINES:
                self.fail(op, f"unknown combination {p['combine']!r}")
        elif isinstance(op, (UpdateOp, TotalOp)):
            source = op.operands[0]
            if isinstance(source, BlockArgument) or not isinstance(source.owner, AccumulatorOp):
                self.fail(op, "its first operand must be an accumulator")
            if isinstance(op, UpdateOp) and op.operands[1].type != source.type:
                self.fail(op, f"combines {op.operands[1].type} into an accumulator of {source.type}")
        return scope


class _HostCheck:
    """One walk over the host program."""

    def __init__(self, host: ProgramOp, kernels: dict[str, KernelFunc]) -> None:
        self.host = host
        self.kernels = kernels
        args = list(host.body.args)
        inputs = host.params["inputs"]
        if not 0 <= inputs <= len(args):
            self.fail(host, f"says that {inputs} of its {len(args)} buffers are inputs")
        self.outputs = args[inputs:]
        self.read_only: set[SSAValue] = set(args[:inputs])
        self.written: set[SSAValue] = set()
        self.root: dict[SSAValue, SSAValue] = {a: a for a in args}

    def fail(self, op: Operation, what: str) -> NoReturn:
        raise IRError(f"kernel stage: host program: {op.name}: {what}")

    def run(self) -> None:
        self._block(self.host.body, set(self.host.body.args), frozenset(self.host.params.get("symbols", ())), 0)
        missing = [k for k, a in enumerate(self.outputs) if a not in self.written and _may_have_elements(a)]
        if missing:
            self.fail(self.host, f"never writes its outputs {missing}")

    def _known(self, op: Operation, dims: Iterable[Dim], symbols: frozenset[str]) -> None:
        unknown = free_symbols(*dims) - symbols
        if unknown:
            self.fail(
                op, f"mentions {', '.join(sorted(unknown))}, which is no symbol of the program and no variable of a"
                " loop around it"
            )  # fmt: skip

    def _write(self, op: Operation, buffer: SSAValue, what: str) -> None:
        if self.root[buffer] in self.read_only:
            self.fail(op, f"{what} an input or a constant")
        self.written.add(self.root[buffer])

    def _block(self, block: Block, outer: set[SSAValue], symbols: frozenset[str], depth: int) -> None:
        defined = outer | set(block.args)
        for op in block.ops:
            if not isinstance(op, _HOST_OPS) or (depth and isinstance(op, (ConstBufferOp, PackOp))):
                self.fail(op, "cannot stand in the host program" if not depth else "cannot stand in control flow")
            _check_defined("kernel", op, defined)
            for r in op.results:
                self._known(op, buffer_aval(r).shape, symbols)
            self._op(op, defined, symbols, depth)
            defined.update(op.results)

    def _op(self, op: Operation, defined: set[SSAValue], symbols: frozenset[str], depth: int) -> None:
        if isinstance(op, ViewOp):
            (source,) = op.operands
            self.root[op.results[0]] = self.root[source]
            a, b = buffer_aval(source), buffer_aval(op.results[0])
            if b.dtype not in (a.dtype, a.dtype.part):
                self.fail(op, f"views {a.dtype.short} as {b.dtype.short}")
            self._known(op, [op.params.get("offset", 0)], symbols)
        elif isinstance(op, (ConstBufferOp, PackOp)):
            self.root[op.results[0]] = op.results[0]
            self.read_only.add(op.results[0])
            if isinstance(op, PackOp) and op.params["kernel"] not in self.kernels:
                self.fail(op, f"packs for {op.params['kernel']!r}, which is no kernel of the module")
        elif isinstance(op, AllocOp):
            self.root[op.results[0]] = op.results[0]
        elif isinstance(op, CopyOp):
            self._write(op, op.operands[1], "copies into")
        elif isinstance(op, PutOp):
            if buffer_aval(op.operands[0]) != Aval((), int64):
                self.fail(op, f"writes a size into {op.operands[0].type}")
            self._known(op, [op.params["value"]], symbols)
            self._write(op, op.operands[0], "writes into")
        elif isinstance(op, HostCheckOp):
            if buffer_aval(op.operands[0]) != Aval((), bool_):
                self.fail(op, f"checks a {op.operands[0].type}")
        elif isinstance(op, HostSwitchOp):
            selector = buffer_aval(op.operands[0])
            two = selector.dtype is bool_ and len(op.regions) == 2
            if selector.shape != () or not (two or selector.dtype is int64):
                self.fail(op, f"chooses between {len(op.regions)} regions by {selector}")
            for region in op.regions:
                if region.block.args:
                    self.fail(op, "its regions take no arguments")
                self._block(region.block, defined, symbols, depth + 1)
        elif isinstance(op, (RepeatOp, HostWhileOp)):
            self._loop(op, defined, symbols, depth)
        else:
            assert isinstance(op, CallOp)
            self._call(op, symbols)

    def _loop(self, op: RepeatOp | HostWhileOp, defined: set[SSAValue], symbols: frozenset[str], depth: int) -> None:
        for k, (init, first, second) in enumerate(op.carried):
            for buffer in (first, second):
                self._write(op, buffer, "carries values in")
            if (init is first) != (first is second):
                self.fail(op, f"carried value {k} has one buffer, or three")
            for block in (r.block for r in op.regions):
                self.root.update({a: a for a in block.args})
            self.root[op.results[k]] = op.results[k]
        if isinstance(op, RepeatOp):
            self._known(op, [op.params["trip"]], symbols)
            if op.params["var"] in symbols:
                self.fail(op, f"its variable {op.params['var']} hides a name that is in scope")
            symbols = symbols | {op.params["var"]}
        elif buffer_aval(op.operands[0]) != Aval((), bool_):
            self.fail(op, f"its condition is a {op.operands[0].type}")
        for region in op.regions:
            self._block(region.block, defined, symbols, depth + 1)

    def _call(self, op: CallOp, symbols: frozenset[str]) -> None:
        kernel = self.kernels.get(op.params["kernel"])
        if kernel is None:
            self.fail(op, f"calls {op.params['kernel']!r}, which is no kernel of the module")
        self._known(op, op.params["dims"], symbols)
        if len(op.params["dims"]) != len(kernel.params.get("dims", ())):
            self.fail(op, f"gives {len(op.params['dims'])} dims to a kernel of {len(kernel.params.get('dims', ()))}")
        want, got = [a.type for a in kernel.body.args], [o.type for o in op.operands]
        if len(want) != len(got):
            self.fail(op, f"gives {len(got)} buffers to a kernel of {len(want)}")
        outputs = set(kernel.params.get("outputs", ()))
        for k, o in enumerate(op.operands):
            if buffer_aval(o).dtype is not buffer_aval(kernel.body.args[k]).dtype:
                self.fail(op, f"gives a buffer of {got[k]} as argument {k} of type {want[k]}")
            if k in outputs:
                if self.root[o] in self.read_only:
                    self.fail(op, f"lets {op.params['kernel']} write to an input or a constant (argument {k})")
                self.written.add(self.root[o])


def _may_have_elements(buffer: SSAValue) -> bool:
    return product(buffer_aval(buffer).shape) != 0


def _check_kernel(module: ModuleOp) -> None:
    ops = list(module.body.block.ops)
    host = ops[-1] if ops else None
    if not isinstance(host, ProgramOp) or not all(isinstance(op, KernelFunc) for op in ops[:-1]):
        raise IRError(
            f"kernel stage: expected kernel.func ops and then one kernel.program, got {[op.name for op in ops]}"
        )
    kernels: dict[str, KernelFunc] = {}
    for op in ops[:-1]:
        assert isinstance(op, KernelFunc)
        name = op.params.get("name")
        if not isinstance(name, str) or name in kernels:
            raise IRError(f"kernel stage: kernels need names of their own, got {name!r}")
        kernels[name] = op
        _KernelCheck(op).run()
    _HostCheck(host, kernels).run()


_SPECS: dict[Stage, Callable[[ModuleOp], None]] = {
    "tensor": _check_tensor,
    "optimised": _check_optimised,
    "fused": _check_fused,
    "kernel": _check_kernel,
}

__all__ = ["FUSION_KINDS", "STAGES", "Stage", "main_function", "stage_of", "verify_stage"]
