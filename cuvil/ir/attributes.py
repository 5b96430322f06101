"""IR attributes: tensor types, static parameters, constant arrays and symbol constraints."""

from __future__ import annotations

import hashlib
import math
import re
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, cast

import numpy as np
from xdsl.ir import Data, SSAValue, TypeAttribute
from xdsl.irdl import irdl_attr_definition
from xdsl.parser import AttrParser, Parser
from xdsl.printer import Printer

from cuvil.dtypes import DType, dtype
from cuvil.ops.record import Array, Aval, Param, ParamValue, Shape
from cuvil.ops.registry import get
from cuvil.support.errors import CuvilError, IRError
from cuvil.symbolic import parse_dim

# ------------------------------------------------------------------------------------- raw text scanning


def scan_balanced(parser: AttrParser, close: str) -> str:
    """The raw text from the current token up to the matching ``close``, which is consumed.

    Dimension expressions contain ``//`` and ``%``, which the MLIR lexer takes for comments and value names, so
    they are read as text instead of tokens.
    """
    text = parser.lexer.input.content
    start = parser._current_token.span.start  # pyright: ignore[reportPrivateUsage]
    depth, i, n = 0, start, len(text)
    pairs = {"[": "]", "(": ")", "{": "}", "<": ">"}
    closers = set(pairs.values())
    while i < n:
        c = text[i]
        if c == '"':
            i += 1
            while i < n and text[i] != '"':
                i += 2 if text[i] == "\\" else 1
        elif depth == 0 and c == close:
            parser._resume_from(i + 1)  # pyright: ignore[reportPrivateUsage]
            return text[start:i]
        elif c in pairs:
            depth += 1
        elif c in closers:
            depth -= 1
        i += 1
    return parser.raise_error(f"expected {close!r} before the end of the text")


def parse_defined_operand(parser: Parser) -> SSAValue | None:
    """An operand that an earlier op defined, if one comes next: its type is known, so text need not repeat it."""
    unresolved = parser.parse_optional_unresolved_operand()
    if unresolved is None:
        return None
    values = parser.ssa_values.get(unresolved.operand_name)
    if values is None or unresolved.index >= len(values):
        return parser.raise_error(f"%{unresolved.operand_name} is used before it is defined", unresolved.span)
    return values[unresolved.index]


def split_commas(text: str) -> list[str]:
    """Split at top-level commas."""
    parts: list[str] = []
    depth, quoted, current = 0, False, ""
    i = 0
    while i < len(text):
        c = text[i]
        if quoted:
            if c == "\\":
                current += c
                i += 1
                c = text[i] if i < len(text) else ""
            elif c == '"':
                quoted = False
        elif c == '"':
            quoted = True
        elif c in "[({":
            depth += 1
        elif c in "])}":
            depth -= 1
        elif c == "," and depth == 0:
            parts.append(current.strip())
            current = ""
            i += 1
            continue
        current += c
        i += 1
    if current.strip() or parts:
        parts.append(current.strip())
    return parts


# ------------------------------------------------------------------------------------------- tensor type


@irdl_attr_definition
class TensorType(Data[Aval], TypeAttribute):
    """``!cuvil.tensor<[B, 2*S] x f32>``: an array's symbolic shape and dtype."""

    name = "cuvil.tensor"

    @property
    def shape(self) -> Shape:
        return self.data.shape

    @property
    def dtype(self) -> DType:
        return self.data.dtype

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, TensorType) and self.data == other.data)

    def __hash__(self) -> int:
        return hash(self.data.shape) ^ id(self.data.dtype)

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> Aval:
        parser.parse_punctuation("<")
        return parse_aval(scan_balanced(parser, ">"))

    def print_parameter(self, printer: Printer) -> None:
        printer.print_string(f"<{format_aval(self.data)}>")


def format_aval(aval: Aval) -> str:
    """``[B, 2*S] x f32``"""
    return f"[{', '.join(map(str, aval.shape))}] x {aval.dtype.short}"


def parse_dtype(text: str) -> DType:
    """The dtype of a name.

    Raises:
        IRError: no dtype has that name.
    """
    if not text.isalnum():
        raise IRError(f"expected a dtype such as f32, got {text!r}")
    return dtype(text)


def parse_aval(text: str) -> Aval:
    """The inverse of :func:`format_aval`.

    Raises:
        IRError: text of another form.
    """
    body, sep, short = text.rpartition(" x ")
    body = body.strip()
    if not sep or not body.startswith("[") or not body.endswith("]"):
        raise IRError(f"expected a tensor such as '[B, 2*S] x f32', got {text!r}")
    return Aval(tuple(parse_dim(d) for d in split_commas(body[1:-1])), parse_dtype(short.strip()))


@lru_cache(maxsize=1 << 16)
def _tensor_type(shape: Shape, dt: DType) -> TensorType:
    return TensorType(Aval(shape, dt))


def tensor_type(aval: Aval) -> TensorType:
    """The interned type of an abstract value."""
    return _tensor_type(aval.shape, aval.dtype)


# -------------------------------------------------------------------------------------------- parameters


def param_key(value: ParamValue) -> Any:
    """A hashable key under which equal means the same value: 0.0 is not -0.0, 1 is not True, NaN is NaN."""
    if isinstance(value, tuple):
        return ("t", *(param_key(v) for v in value))  # pyright: ignore[reportUnknownVariableType,reportUnknownArgumentType]
    if isinstance(value, bool):
        return ("b", value)
    if isinstance(value, float):
        return ("f", value.hex() if math.isfinite(value) else repr(value))
    if isinstance(value, complex):
        return ("c", param_key(value.real), param_key(value.imag))
    return value


def format_param(value: ParamValue) -> str:
    """Text of a parameter value; floats always look like floats."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, complex):
        return f"complex({value.real!r}, {value.imag!r})"
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        return f'"{escaped}"'
    if isinstance(value, DType):
        return value.short
    if isinstance(value, tuple):
        return "[" + ", ".join(format_param(v) for v in value) + "]"  # pyright: ignore[reportUnknownVariableType,reportUnknownArgumentType]
    return str(value)


#: What ``repr`` of a float looks like; an integer is no float, and no dimension looks like this.
_FLOAT = re.compile(r"-?(\d+\.\d*(e[+-]?\d+)?|\d+e[+-]?\d+|inf|nan)")


def parse_param(text: str, kind: str) -> ParamValue:
    """The inverse of :func:`format_param` for a parameter of the given kind."""
    if text == "none":
        return None
    if text.startswith("["):
        if not text.endswith("]"):
            raise IRError(f"expected a list, got {text!r}")
        inner = {"ints": "int", "dims": "dim", "pairs": "dims"}.get(kind, kind)
        return tuple(parse_param(t, inner) for t in split_commas(text[1:-1]))
    if text.startswith('"'):
        return text[1:-1].replace("\\n", "\n").replace('\\"', '"').replace("\\\\", "\\")
    if text in ("true", "false"):
        return text == "true"
    if text.startswith("complex(") and text.endswith(")"):
        return complex(*(float(t) for t in split_commas(text[8:-1])))
    if kind == "dtype":
        return parse_dtype(text)
    if kind in ("float", "scalar", "any") and _FLOAT.fullmatch(text):
        return float(text)
    try:
        return parse_dim(text)
    except CuvilError as error:
        raise IRError(f"cannot read {text!r} as a parameter of kind {kind}: {error}") from error


@irdl_attr_definition
class ParamsAttr(Data[tuple[tuple[str, Any], ...]]):
    """The static parameters of one op, in its record's order."""

    name = "cuvil.params"

    @property
    def values(self) -> dict[str, ParamValue]:
        return dict(self.data)

    @property
    def key(self) -> Any:
        """Hashable identity (see :func:`param_key`)."""
        cached = self.__dict__.get("_key")
        if cached is None:
            cached = tuple((k, param_key(v)) for k, v in self.data)
            object.__setattr__(self, "_key", cached)
        return cached

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, ParamsAttr) and self.key == other.key)

    def __hash__(self) -> int:
        return hash(self.key)

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> tuple[tuple[str, Any], ...]:
        parser.parse_punctuation("<")
        return parse_params(scan_balanced(parser, ">"), ())

    def print_parameter(self, printer: Printer) -> None:
        printer.print_string(f"<{format_params(self.data)}>")


NO_PARAMS = ParamsAttr(())


def format_params(items: Sequence[tuple[str, ParamValue]]) -> str:
    """``axes = [1], keepdims = true``"""
    return ", ".join(f"{k} = {format_param(v)}" for k, v in items)


def parse_params(text: str, params: Sequence[Param]) -> tuple[tuple[str, ParamValue], ...]:
    """The inverse of :func:`format_params`; kinds come from the record's params."""
    kinds = {p.name: p.kind for p in params}
    out: list[tuple[str, ParamValue]] = []
    for entry in split_commas(text):
        key, sep, value = entry.partition("=")
        key = key.strip()
        if not sep:
            raise IRError(f"expected 'name = value', got {entry!r}")
        if kinds and key not in kinds:
            raise IRError(f"unknown parameter {key!r}; expected one of: {', '.join(kinds)}")
        out.append((key, parse_param(value.strip(), kinds.get(key, "any"))))
    return tuple(out)


# --------------------------------------------------------------------------------------------- constants

_INLINE_BYTES = 1 << 12
#: Arrays too large for text, by digest, alive as long as some program holds them.
_RESOURCES: weakref.WeakValueDictionary[str, ConstantArray] = weakref.WeakValueDictionary()


#: Longest chain of origins; a constant at its end is kept itself.
MAX_ORIGIN_DEPTH = 32


@dataclass(frozen=True)
class Origin:
    """How a constant follows from others: the result of an op that has one, by the op's reference."""

    op: str
    params: tuple[tuple[str, ParamValue], ...]
    operands: tuple[ConstantArray | None, ...]

    @property
    def depth(self) -> int:
        """Length of the longest chain of origins that ends in this one."""
        return 1 + max((c.origin_depth for c in self.operands if c is not None), default=0)

    def evaluate(self) -> Array:
        """The elements, in C order."""
        arrays = [None if c is None else c.array for c in self.operands]
        with np.errstate(all="ignore"):
            return np.asarray(get(self.op).reference(*arrays, **dict(self.params)), order="C")


class ConstantArray:
    """A read-only array with an identity by content: dtype, shape and bytes.

    With an ``origin`` it may forget its elements and compute them again when they are asked for.
    """

    __slots__ = ("__weakref__", "_array", "_digest", "_hash", "aval", "origin", "origin_depth")

    def __init__(self, array: Array, origin: Origin | None = None) -> None:
        self._array: Array | None = array
        self._digest: str | None = None
        self._hash: int | None = None
        self.aval = Aval(tuple(array.shape), dtype(array.dtype))
        self.origin = origin
        self.origin_depth = 0 if origin is None else origin.depth

    @classmethod
    def derived(cls, array: Array, origin: Origin | None) -> ConstantArray:
        """A constant with its origin, if it has one; what it was computed from is forgotten for the moment."""
        made = cls(array, origin)
        for operand in () if origin is None else origin.operands:
            if operand is not None:
                operand.forget()
        return made

    @classmethod
    def lazy(cls, aval: Aval, origin: Origin) -> ConstantArray:
        """A constant that is computed when its elements are asked for."""
        made = cls.__new__(cls)
        made._array, made._digest, made._hash, made.aval, made.origin = None, None, None, aval, origin
        made.origin_depth = origin.depth
        return made

    @property
    def array(self) -> Array:
        """The elements; their memory may belong to somebody else until :meth:`own`."""
        if self._array is None:
            assert self.origin is not None
            array = np.asarray(self.origin.evaluate(), self.aval.dtype.numpy)
            if array.shape != self.aval.shape:
                raise IRError(f"{self.origin.op} of constants gave shape {array.shape}, expected {self.aval.shape}")
            self._array = _read_only(array)
        return self._array

    def forget(self) -> None:
        """Let go of elements that can be computed again, and of those that they were computed from."""
        waiting, seen = [self], {id(self)}
        while waiting:
            constant = waiting.pop()
            if constant.origin is None:
                continue
            constant._array = None
            more = [o for o in constant.origin.operands if o is not None and id(o) not in seen]
            seen.update(map(id, more))
            waiting += more

    def own(self) -> None:
        """Copy the elements where somebody could still change them."""
        if self._array is not None and not is_immutable(self._array):
            self._array = _read_only(np.array(self._array, order="C", copy=True))

    @property
    def digest(self) -> str:
        """SHA-256 over dtype, shape and bytes."""
        if self._digest is None:
            h = hashlib.sha256(f"{self.array.dtype}{self.array.shape}".encode())
            h.update(np.ascontiguousarray(self.array).tobytes())
            self._digest = h.hexdigest()
        return self._digest

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, ConstantArray):
            return False
        if self.aval != other.aval or hash(self) != hash(other):
            return False
        return self.array is other.array or self.digest == other.digest

    def __hash__(self) -> int:
        # The first elements tell most constants apart; only equal hashes cost a digest of the whole array.
        if self._hash is None:
            self._hash = hash((self.aval.shape, self.aval.dtype.short, self.array.flat[:8].tobytes()))
        return self._hash


def _read_only(array: Array) -> Array:
    array = array if array.flags.owndata else array.view()
    array.flags.writeable = False
    return array


def is_immutable(array: Array) -> bool:
    """Whether nobody can write to an array's elements: neither it nor what holds its memory is writeable."""
    holder: Any = array
    while isinstance(holder, np.ndarray):
        if holder.flags.writeable:
            return False
        if holder.base is None:
            return True
        holder = cast(Any, holder.base)
    try:
        return memoryview(holder).readonly
    except TypeError:
        return False


@irdl_attr_definition
class ConstantAttr(Data[ConstantArray]):
    """A constant's elements: inline text when small, hexadecimal bytes or a named resource when not."""

    name = "cuvil.array"

    @property
    def array(self) -> Array:
        return self.data.array

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> ConstantArray:
        parser.parse_punctuation("<")
        return parse_constant(scan_balanced(parser, ">"))

    def print_parameter(self, printer: Printer) -> None:
        printer.print_string(f"<{format_constant(self.data)}>")


def format_constant(constant: ConstantArray) -> str:
    """``[2] f32 [1.0, 2.5]``, ``[64] f32 0x0000...`` or ``[384, 384] f32 resource 5f3a...``"""
    a = constant.array
    dt = dtype(a.dtype)
    head = f"[{', '.join(map(str, a.shape))}] {dt.short} "
    if a.size <= 16:
        return head + format_param(tuple(a.reshape(-1).astype(object).tolist()) if not dt.is_half else tuple(
            float(v) for v in a.reshape(-1)
        ))  # fmt: skip
    if a.nbytes <= _INLINE_BYTES:
        return head + "0x" + np.ascontiguousarray(a).tobytes().hex()
    _RESOURCES[constant.digest] = constant
    return head + f"resource {constant.digest}"


def parse_constant(text: str) -> ConstantArray:
    """The inverse of :func:`format_constant`.

    Raises:
        IRError: malformed text, or a resource that no living program holds.
    """
    close = text.find("]")
    head, rest = text[: close + 1].strip(), text[close + 1 :].strip()
    short, _, body = rest.partition(" ")
    if not head.startswith("[") or not body:
        raise IRError(f"expected a constant such as '[2] f32 [1.0, 2.5]', got {text[:80]!r}")
    try:
        shape = tuple(int(d) for d in split_commas(head[1:-1]))
        dt = parse_dtype(short)
        if body.startswith("resource "):
            found = _RESOURCES.get(body.removeprefix("resource ").strip())
            if found is None:
                raise IRError(f"constant {body!r} is a resource of a program that is not in memory any more")
            return found
        if body.startswith("0x"):
            flat = np.frombuffer(bytes.fromhex(body[2:]), dtype=dt.numpy)
        else:
            kind = "bool" if dt.is_bool else "float" if dt.is_float or dt.is_complex else "int"
            flat = np.array(parse_param(body, kind), dtype=dt.numpy)
        array = flat.reshape(shape).copy()
    except (ValueError, OverflowError) as error:
        raise IRError(f"malformed constant {text[:80]!r}: {error}") from error
    array.flags.writeable = False
    return ConstantArray(array)


# ----------------------------------------------------------------------------------------------- symbols


@irdl_attr_definition
class ConstraintsAttr(Data[tuple[str, ...]]):
    """What is known of a function's symbols, as relations in text: ``S <= 512``, ``S % 16 == 0``."""

    name = "cuvil.constraints"

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> tuple[str, ...]:
        parser.parse_punctuation("<")
        body = scan_balanced(parser, ">")
        return tuple(parse_param(t, "str") for t in split_commas(body))

    def print_parameter(self, printer: Printer) -> None:
        printer.print_string("<" + ", ".join(format_param(c) for c in self.data) + ">")


@lru_cache(maxsize=1 << 14)
def _params(key: Any, items: tuple[tuple[str, Any], ...]) -> ParamsAttr:
    return ParamsAttr(items)


def params_attr(params: Mapping[str, ParamValue]) -> ParamsAttr:
    """The interned attribute of a parameter dictionary."""
    if not params:
        return NO_PARAMS
    items = tuple(params.items())
    try:
        return _params(tuple((k, param_key(v)) for k, v in items), items)
    except TypeError as error:
        raise IRError(f"parameters must be hashable static values, got {dict(params)!r}") from error
