"""Traced values and the trace that collects the ops they go through."""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np
from xdsl.dialects.builtin import LocationAttr
from xdsl.ir import Block, BlockArgument, SSAValue

from cuvil.dtypes import DType
from cuvil.frontend.source import at_user_line, compares_in_user_code, user_line
from cuvil.ir.attributes import ConstantArray, tensor_type
from cuvil.ir.builder import IRBuilder, source_location
from cuvil.ir.dialect import TensorOp, aval_of
from cuvil.ir.interpreter import location_text
from cuvil.ops.record import Array, Aval, Obligation, ParamValue, Shape
from cuvil.support.errors import CuvilError, DTypeError, ShapeError, TracingError
from cuvil.symbolic import Dim, Scope, Truth, comparison_hook, product

#: Captured arrays up to this size are copied at once, larger ones when the program is compiled.
_COPIED_BYTES = 64 << 10


@dataclass(frozen=True)
class Guard:
    """A relation that a compiled variant relies on and that each call checks."""

    obligation: Obligation
    op: str
    line: str


@dataclass(frozen=True)
class Missing:
    """A call of something that cuvil does not have, with the nearest names that it does."""

    what: str
    nearest: tuple[str, ...]
    line: str


@dataclass
class Trace:
    """One run of a user function over traced values: the block being filled, its symbols and guards.

    A trace within another one (``parent``) shares its symbols and guards. Traced values of the traces around it that
    the function uses become further arguments of its block (``lifted``).
    """

    scope: Scope
    name: str
    block: Block = field(default_factory=Block)
    guards: list[Guard] = field(default_factory=list[Guard])
    alive: bool = True
    #: Calls that cuvil does not have, where they are to be listed; None: the first one is an error.
    missing: list[Missing] | None = None
    parent: Trace | None = None

    def __post_init__(self) -> None:
        if self.parent is not None and self.missing is None:
            self.missing = self.parent.missing
        self.builder = IRBuilder(self.block, discharge=self.require)
        self.int_ranges: dict[int, tuple[int, int]] = {}
        #: Values of the traces around this one that it uses: the value, and the argument that stands for it here.
        self.lifted: dict[SSAValue, tuple[Tracer, SSAValue]] = {}
        #: Where the ops being emitted come from when they are copies of others; the user's current line otherwise.
        self.origin: LocationAttr | None = None
        self._captured: dict[int, tuple[Any, SSAValue]] = {}
        self._copies: dict[int, tuple[Any, ConstantArray]] = {}  # of the outermost trace: shared by all within it

    @property
    def outermost(self) -> Trace:
        """The trace of the whole function."""
        trace = self
        while trace.parent is not None:
            trace = trace.parent
        return trace

    def within(self, name: str) -> Trace:
        """A trace of a function that is called inside of the one being traced."""
        return Trace(self.scope, name, guards=self.guards, parent=self)

    def encloses(self, other: Trace | None) -> bool:
        """Whether another trace is this one or lies within it."""
        while other is not None and other is not self:
            other = other.parent
        return other is self

    def lift(self, outer: Tracer, value: SSAValue) -> SSAValue:
        """The argument of this trace that stands for a value of a trace around it."""
        known = self.lifted.get(value)
        if known is None:
            known = self.lifted[value] = (outer, self.block.insert_arg(value.type, len(self.block.args)))
            known[1].name_hint = value.name_hint
        return known[1]

    def argument(self, aval: Aval, name: str, weak: type | None = None) -> Tracer:
        """A new input of the traced function."""
        arg = self.block.insert_arg(tensor_type(aval), len(self.block.args))
        arg.name_hint = "".join(c if c.isalnum() or c == "_" else "_" for c in name).strip("_") or None
        return Tracer(self, arg, weak)

    def emit(self, name: str, operands: Sequence[SSAValue | None], params: dict[str, ParamValue]) -> tuple[Tracer, ...]:
        """Emit one op at the user's current line."""
        self.builder.location = self._location()
        try:
            results = self.builder.emit(name, operands, params)
        except CuvilError as error:
            _point_at_user(error)
            if isinstance(error, ShapeError | DTypeError):
                _name_operands(error, operands)
            raise
        return tuple(Tracer(self, r) for r in results)

    def capture(self, array: Array) -> SSAValue:
        """A concrete array used by the function becomes a constant, shared by later uses.

        Large ones are read where they are until the program is compiled, and not copied before.
        """
        known = self._captured.get(id(array))
        if known is not None and known[0] is array:
            return known[1]
        copies = self.outermost._copies
        made = copies.get(id(array))
        if made is None or made[0] is not array:
            kept = array.view() if array.nbytes > _COPIED_BYTES else np.array(array, copy=True)
            kept.flags.writeable = False
            made = copies[id(array)] = (array, ConstantArray(kept))
        self.builder.location = self._location()
        value = self.builder.shared_constant(made[1])
        self._captured[id(array)] = (array, value)
        return value

    def _location(self) -> LocationAttr:
        return self.origin or source_location(*user_line())

    def require_range(self, value: SSAValue, dt: DType) -> None:
        """A Python integer argument is used as ``dt``: each call must give one that fits (NEP 50)."""
        if isinstance(value, BlockArgument) and value in self.block.args:
            info = np.iinfo(dt.numpy)
            low, high = self.int_ranges.get(value.index, (-(2**63), 2**63 - 1))
            self.int_ranges[value.index] = (max(low, int(info.min)), min(high, int(info.max)))

    def compare(self, left: Dim, right: Dim) -> bool:
        """What ``==`` of two sizes is in the user's Python code: proved, or False behind a guard that they differ.

        The compiler's own comparisons stay structural.
        """
        if not compares_in_user_code():
            return False
        truth = self.scope.prove("==", left, right)
        if truth is Truth.UNKNOWN:
            self.require("Python", Obligation("!=", left, right, "a condition of the traced function"))
        return truth is Truth.YES

    def require(self, op: str, obligation: Obligation) -> None:
        """See that a relation holds: proved, else guarded at each call; refuted, it is an error."""
        truth = self.scope.prove(obligation.relation, obligation.left, obligation.right)
        if truth is Truth.YES:
            return
        if truth is Truth.NO:
            raise ShapeError(
                f"{op}: {obligation.reason}: {obligation.left} {obligation.relation} {obligation.right} can never hold"
            )
        filename, line = user_line()
        self.guards.append(Guard(obligation, op, f"{filename}:{line}"))
        self.scope.assume(f"{obligation.left} {obligation.relation} {obligation.right}")


def _point_at_user(error: CuvilError) -> None:
    where = at_user_line()
    if where and error.args and isinstance(error.args[0], str) and where not in error.args[0]:
        error.args = (error.args[0] + where, *error.args[1:])


def _name_operands(error: CuvilError, operands: Sequence[SSAValue | None]) -> None:
    """Append what the op was given: each value by the user's name or by where it was computed, with dtype and shape."""
    given: list[str] = []
    for value in operands:
        if value is None:
            continue
        aval = aval_of(value)
        if isinstance(value, BlockArgument):
            what = f"argument {value.name_hint}" if value.name_hint else "an argument"
        elif isinstance(value.owner, TensorOp):
            what = f"result of {value.owner.record.name} at {location_text(value.owner)}"
        else:
            what = "a constant"
        given.append(f"{what}: {aval.dtype.name}[{', '.join(map(str, aval.shape))}]")
    if given and error.args and isinstance(error.args[0], str) and "\nGiven: " not in error.args[0]:
        error.args = (f"{error.args[0]}\nGiven: {'; '.join(given)}", *error.args[1:])


_CURRENT: contextvars.ContextVar[Trace | None] = contextvars.ContextVar("cuvil_trace", default=None)


def current_trace() -> Trace | None:
    """The trace in progress in this context, if any."""
    return _CURRENT.get()


class tracing:  # noqa: N801 - used as a context manager
    """``with tracing(trace): ...`` makes a trace current and marks its tracers dead afterwards, unless it is kept."""

    def __init__(self, trace: Trace, *, keep: bool = False) -> None:
        self.trace = trace
        self.keep = keep

    def __enter__(self) -> Trace:
        self.token = _CURRENT.set(self.trace)
        self.compare_token = comparison_hook.set(self.trace.compare)
        return self.trace

    def __exit__(self, *_: object) -> None:
        comparison_hook.reset(self.compare_token)
        _CURRENT.reset(self.token)
        self.trace.alive = self.keep


#: Functions that Tracer's operators and methods call, filled in by the namespace module: name -> function.
METHODS: dict[str, Callable[..., Any]] = {}


def _method(name: str) -> Callable[..., Any]:
    return METHODS[name]


class Tracer:
    """A traced array: it has a shape and a dtype, and no values until the compiled function runs.

    ``shape`` is a tuple of dims: ints, or symbolic expressions such as ``B`` and ``2*S``.
    """

    __slots__ = ("__weakref__", "_trace", "_value", "weak")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, trace: Trace, value: SSAValue, weak: type | None = None) -> None:
        self._trace = trace
        self._value = value
        self.weak = weak  # Python scalar type when this came from a Python scalar (NEP 50: weak in promotion)

    # ----------------------------------------------------------------------------------- properties
    def value_in(self, trace: Trace | None) -> SSAValue:
        """The SSA value, for use in a trace.

        Raises:
            TracingError: this tracer belongs to a trace that has ended, or that is not around the current one.
        """
        if trace is not None and trace is not self._trace and self._trace.alive and self._trace.encloses(trace):
            return trace.lift(self, self._value)
        if not self._trace.alive or trace is not self._trace:
            raise TracingError(
                f"a traced value of {self._trace.name!r} ({self._short()}) was used outside of the call that traced it"
                f"{at_user_line()}. A traced function must not store its intermediate values in globals, attributes"
                " or lists that outlive the call; return them instead."
            )
        return self._value

    def require_range(self, dt: DType) -> None:
        """This Python integer is used as ``dt`` (see :meth:`Trace.require_range`)."""
        self._trace.require_range(self._value, dt)

    def as_weak(self, kind: type) -> Tracer:
        """The same value, with the dtype of a Python scalar in promotion."""
        return Tracer(self._trace, self._value, kind)

    @property
    def aval(self) -> Aval:
        return aval_of(self._value)

    @property
    def shape(self) -> Shape:
        return self.aval.shape

    @property
    def dtype(self) -> Any:
        """The NumPy dtype, so that ``x.dtype == np.float32`` reads as in NumPy."""
        return self.aval.dtype.numpy

    @property
    def cuvil_dtype(self) -> DType:
        return self.aval.dtype

    @property
    def ndim(self) -> int:
        return len(self.aval.shape)

    @property
    def size(self) -> Dim:
        return product(self.aval.shape)

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return self.aval.dtype.itemsize

    @property
    def nbytes(self) -> Dim:
        return self.size * self.itemsize

    @property
    def device(self) -> str:
        return "cpu"

    def to_device(self, device: Any, /, *, stream: Any = None) -> Tracer:
        """The array itself: there is one device.

        Raises:
            TracingError: another device than "cpu".
        """
        if device != "cpu":
            raise TracingError(f"there is no device {device!r}; the only device is 'cpu'{at_user_line()}")
        return self

    @property
    def real(self) -> Tracer:
        return _method("real")(self)

    @property
    def imag(self) -> Tracer:
        return _method("imag")(self)

    def conj(self) -> Tracer:
        return _method("conj")(self)

    conjugate = conj

    @property
    def T(self) -> Tracer:
        return _method("transpose")(self)

    @property
    def mT(self) -> Tracer:
        return _method("matrix_transpose")(self)

    @property
    def at(self) -> Any:
        """``x.at[index].set/add/multiply/max/min(values)``: a copy with some elements changed."""
        return _method("at")(self)

    def _short(self) -> str:
        return f"{self.aval.dtype.name}[{', '.join(map(str, self.aval.shape))}]"

    def __repr__(self) -> str:
        return f"Tracer({self._short()})"

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return repr(self)

    # ------------------------------------------------------------------------- what a tracer cannot do
    def _concrete(self, what: str, instead: str) -> NoReturn:
        raise TracingError(
            f"{what} needs the value of a traced array ({self._short()}), which is only known when the compiled"
            f" function runs{at_user_line()}. {instead}"
        )

    def __bool__(self) -> bool:
        self._concrete(
            "a Python condition",
            "In functions whose source cuvil can read, if, while, and, or, not and assert work on traced values;"
            " elsewhere use cuvil.cond or cuvil.while_loop, cuvil.numpy.where(condition, a, b) to choose by element, or"
            " mark the argument static with static_argnames=... if its value is known before the call.",
        )

    def __int__(self) -> int:
        self._concrete("int(x)", "Keep it an array (x.astype('int64')), or pass it as a static argument.")

    def __index__(self) -> int:
        self._concrete(
            "an index or a size",
            "Index with the array itself (x[i], cuvil.numpy.take(x, i)), or pass the number as a static argument.",
        )

    def __float__(self) -> float:
        self._concrete("float(x)", "Keep it an array (x.astype('float32')), or pass it as a static argument.")

    def __complex__(self) -> complex:
        self._concrete("complex(x)", "Keep it an array.")

    def item(self, *_: Any) -> NoReturn:
        self._concrete("x.item()", "Return the array and call item() on the result.")

    def tolist(self) -> NoReturn:
        self._concrete("x.tolist()", "Return the array and call tolist() on the result.")

    def __array__(self, *_: Any, **__: Any) -> NoReturn:
        self._concrete(
            "conversion to a NumPy array",
            "Call the function of cuvil.numpy instead of the one of numpy (import cuvil.numpy as cnp), or compute this"
            " part outside the traced function.",
        )

    def __setitem__(self, index: Any, value: Any) -> NoReturn:
        raise TracingError(
            f"traced arrays cannot be changed in place{at_user_line()}. Write x = x.at[index].set(value) instead of"
            " x[index] = value; it compiles to an in-place update where that is safe."
        )

    def __delitem__(self, index: Any) -> NoReturn:
        raise TracingError(
            f"elements of a traced array cannot be deleted{at_user_line()}. Take those that stay: x[:i], or"
            " cuvil.numpy.concat([x[:i], x[j:]])."
        )

    def __len__(self) -> int:
        if not self.shape:
            raise TracingError(
                f"len() of a rank-0 traced array has no meaning{at_user_line()}; index or reshape it first"
            )
        first = self.shape[0]
        if not isinstance(first, int):
            self._concrete("len(x)", f"The length is the symbolic dimension {first}: use x.shape[0].")
        return first

    def __iter__(self) -> Iterator[Tracer]:
        if not self.shape:
            raise TracingError(f"a rank-0 traced array cannot be iterated over{at_user_line()}")
        first = self.shape[0]
        if not isinstance(first, int):
            self._concrete(
                "a Python loop over a traced array",
                f"Its length is the symbolic dimension {first}; operate on the whole array, or make that axis static.",
            )
        return (self[i] for i in range(first))

    # ----------------------------------------------------------------------------------- NumPy protocol
    def __array_namespace__(self, *, api_version: str | None = None) -> Any:
        return _method("__namespace__")(api_version)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        return _method("__ufunc__")(ufunc, method, inputs, kwargs)

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        return _method("__function__")(func, args, kwargs)

    # ----------------------------------------------------------------------------------------- indexing
    def __getitem__(self, index: Any) -> Tracer:
        return _method("getitem")(self, index)

    # ------------------------------------------------------------------------------------------ methods
    def astype(self, dtype: Any, copy: bool = True) -> Tracer:
        return _method("astype")(self, dtype)

    def reshape(self, *shape: Any, order: str = "C") -> Tracer:
        return _method("reshape")(self, shape[0] if len(shape) == 1 else shape, order=order)

    def transpose(self, *axes: Any) -> Tracer:
        if len(axes) == 1 and (axes[0] is None or isinstance(axes[0], (tuple, list))):
            return _method("transpose")(self, axes[0])
        return _method("transpose")(self, axes or None)

    def flatten(self) -> Tracer:
        return _method("reshape")(self, (-1,))

    ravel = flatten

    def squeeze(self, axis: Any = None) -> Tracer:
        return _method("squeeze")(self, axis)

    def copy(self) -> Tracer:
        return self

    def __divmod__(self, other: Any) -> Any:
        return _method("divmod")(self, other)

    def __rdivmod__(self, other: Any) -> Any:
        return _method("divmod")(other, self)

    def sort(self, *_: Any, **__: Any) -> NoReturn:
        raise TracingError(
            f"x.sort() would sort a traced array in place{at_user_line()}; use cuvil.numpy.sort(x), which returns a"
            " sorted copy"
        )

    def swapaxes(self, a: int, b: int) -> Tracer:
        return _method("swapaxes")(self, a, b)


def _binary(name: str) -> tuple[Callable[[Tracer, Any], Any], Callable[[Tracer, Any], Any]]:
    def forward(self: Tracer, other: Any) -> Any:
        return METHODS["binary"](name, self, other)

    def reflected(self: Tracer, other: Any) -> Any:
        return METHODS["binary"](name, other, self)

    return forward, reflected


def _unary(name: str) -> Callable[[Tracer], Any]:
    def method(self: Tracer) -> Any:
        return METHODS["unary"](name, self)

    return method


def _reducer(name: str) -> Callable[..., Any]:
    def method(self: Tracer, axis: Any = None, **kwargs: Any) -> Any:
        return METHODS[name](self, axis=axis, **kwargs)

    method.__name__ = name
    return method


#: Methods of NumPy's arrays that are functions of the namespace with the array first.
FUNCTION_METHODS = (
    "argsort", "clip", "cumprod", "cumsum", "diagonal", "dot", "nonzero", "repeat", "round", "take", "trace",
)  # fmt: skip


def _function_method(name: str) -> Callable[..., Any]:
    def method(self: Tracer, *args: Any, **kwargs: Any) -> Any:
        return METHODS[name](self, *args, **kwargs)

    method.__name__ = name
    return method


def _install() -> None:
    arithmetic = {
        "add": "add", "sub": "subtract", "mul": "multiply", "truediv": "divide", "floordiv": "floor_divide",
        "mod": "remainder", "pow": "pow", "and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor",
        "lshift": "bitwise_left_shift", "rshift": "bitwise_right_shift", "matmul": "matmul",
    }  # fmt: skip
    for dunder, name in arithmetic.items():
        forward, reflected = _binary(name)
        setattr(Tracer, f"__{dunder}__", forward)
        setattr(Tracer, f"__r{dunder}__", reflected)
    compare = {
        "lt": "less",
        "le": "less_equal",
        "gt": "greater",
        "ge": "greater_equal",
        "eq": "equal",
        "ne": "not_equal",
    }
    for dunder, name in compare.items():
        setattr(Tracer, f"__{dunder}__", _binary(name)[0])
    for dunder, name in {"neg": "negative", "pos": "positive", "abs": "abs", "invert": "bitwise_invert"}.items():
        setattr(Tracer, f"__{dunder}__", _unary(name))
    for name in ("sum", "prod", "max", "min", "mean", "var", "std", "any", "all", "argmax", "argmin", "cumulative_sum"):
        setattr(Tracer, name, _reducer(name))
    for name in FUNCTION_METHODS:
        setattr(Tracer, name, _function_method(name))


_install()
