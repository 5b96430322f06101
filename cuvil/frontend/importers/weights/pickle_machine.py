"""An interpreter of pickle opcodes that builds only plain data and what an allow-list of inert globals builds.

Nothing is imported, no attribute is looked up and no object's own method runs: a GLOBAL is a key of a table, REDUCE
calls the table's function, everything else is refused by name. Opcodes are those of ``pickletools`` for protocols 2
to 5; the text opcodes of protocol 0, INST, OBJ, NEWOBJ, extension codes and out-of-band buffers are refused.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from cuvil.support.errors import WeightsError

# A checkpoint's pickle holds some 200 bytes and 60 opcodes per tensor, so these allow about 300,000 tensors. They bound
# memory: the costliest opcode, one byte for an empty dict, allocates 64 bytes.
MAX_PICKLE_BYTES = 2**26
MAX_OPCODES = 2**24
_MAX_INTEGER_BYTES = 64
_MAX_NAME_BYTES = 1024
# Python hashes integers modulo 2**61 - 1; larger ones could be chosen to collide.
_MAX_KEY = 2**60


@dataclass(frozen=True)
class InertGlobal:
    """A name that a pickle may mention, and what calling it builds.

    Attributes:
        module: the module that the pickle names.
        name: the name inside the module.
        construct: builds the value of REDUCE from the arguments; None for a name that only stands for itself.
        value: what the bare name means where it is used as a value, such as a dtype.
    """

    module: str
    name: str
    construct: Callable[[tuple[Any, ...]], object] | None = None
    value: object = None

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


@dataclass(frozen=True)
class PickleResult:
    """The value of a pickle and the offset of the byte after its STOP."""

    value: object
    end: int


class _PickleFault(Exception):
    """A fault whose position the interpreter adds."""


class _Machine:
    """One run over one pickle."""

    def __init__(
        self,
        data: memoryview,
        start: int,
        allowed: Mapping[tuple[str, str], InertGlobal],
        persistent: Callable[[object], object] | None,
        where: str,
    ) -> None:
        self._data = data
        self._position = start
        self._end = min(len(data), start + MAX_PICKLE_BYTES)
        self._allowed = allowed
        self._persistent = persistent
        self._where = where
        self._stack: list[Any] = []
        self._marked: list[list[Any]] = []
        self.memo: dict[int, Any] = {}

    def run(self) -> PickleResult:
        """Interpret up to STOP."""
        at = self._position
        try:
            for _ in range(MAX_OPCODES):
                at = self._position
                code = self.take(1)[0]
                if code == _STOP:
                    value = self.pop()
                    if self._stack or self._marked:
                        raise _PickleFault("STOP leaves values on the stack")
                    return PickleResult(value, self._position)
                action = _ACTIONS.get(code)
                if action is None:
                    name = _REFUSED.get(code)
                    raise _PickleFault(
                        f"opcode {name} is refused: a state dict does not need it"
                        if name
                        else f"byte {code:#04x} is no pickle opcode"
                    )
                action(self)
            raise _PickleFault(f"more than {MAX_OPCODES} opcodes; no state dict is that large")
        except _PickleFault as fault:
            raise WeightsError(f"{self._where}: pickle refused at byte {at}: {fault}") from None
        except WeightsError as error:
            raise WeightsError(f"{self._where}: pickle refused at byte {at}: {error}") from error

    # Bytes

    def take(self, count: int) -> memoryview:
        end = self._position + count
        if end > self._end:
            if self._end < len(self._data):
                raise _PickleFault(f"more than {MAX_PICKLE_BYTES} bytes; no state dict is that large")
            raise _PickleFault(f"{count} bytes are claimed but {self._end - self._position} are left; it is cut short")
        taken = self._data[self._position : end]
        self._position = end
        return taken

    def length(self, width: int) -> int:
        return int.from_bytes(self.take(width), "little")

    def text(self, width: int) -> str:
        raw = self.take(self.length(width))
        try:
            return str(raw, "utf-8", "surrogatepass")
        except UnicodeDecodeError as error:
            raise _PickleFault(f"a string is not UTF-8 ({error.reason})") from None

    def line(self) -> str:
        window = bytes(self._data[self._position : min(self._end, self._position + _MAX_NAME_BYTES)])
        length = window.find(b"\n")
        if length < 0:
            raise _PickleFault(f"a name does not end within {_MAX_NAME_BYTES} bytes")
        self._position += length + 1
        try:
            return window[:length].decode("utf-8")
        except UnicodeDecodeError as error:
            raise _PickleFault(f"a name is not UTF-8 ({error.reason})") from None

    # Stack

    def push(self, value: object) -> None:
        self._stack.append(value)

    def pop(self) -> Any:
        if not self._stack:
            raise _PickleFault("the stack is empty")
        return self._stack.pop()

    def top(self) -> Any:
        if not self._stack:
            raise _PickleFault("the stack is empty")
        return self._stack[-1]

    def pop_to_mark(self) -> list[Any]:
        if not self._marked:
            raise _PickleFault("there is no MARK")
        items = self._stack
        self._stack = self._marked.pop()
        return items

    def pop_many(self, count: int) -> tuple[Any, ...]:
        if len(self._stack) < count:
            raise _PickleFault("the stack is empty")
        items = tuple(self._stack[-count:])
        del self._stack[-count:]
        return items

    # Opcodes

    def protocol(self) -> None:
        version = self.take(1)[0]
        if version > 5:
            raise _PickleFault(f"protocol {version} is unknown; expected 2 to 5")

    def frame(self) -> None:
        length = self.length(8)
        if length > len(self._data) - self._position:
            raise _PickleFault(
                f"a frame of {length} bytes is claimed but {len(self._data) - self._position} are left; it is cut short"
            )

    def mark(self) -> None:
        self._marked.append(self._stack)
        self._stack = []

    def discard(self) -> None:
        if self._stack:
            self._stack.pop()
        else:
            self.pop_to_mark()

    def discard_to_mark(self) -> None:
        self.pop_to_mark()

    def integer(self, width: int) -> None:
        length = self.length(width)
        if length > _MAX_INTEGER_BYTES:
            raise _PickleFault(f"an integer of {length} bytes; at most {_MAX_INTEGER_BYTES} are accepted")
        self.push(int.from_bytes(self.take(length), "little", signed=True))

    def put(self, index: int) -> None:
        self.memo[index] = self.top()

    def get(self, index: int) -> None:
        if index not in self.memo:
            raise _PickleFault(f"memo entry {index} was never stored")
        self.push(self.memo[index])

    def extend(self, items: list[Any]) -> None:
        target = self.top()
        if type(target) is not list:
            raise _PickleFault(f"APPEND to a {_kind(target)}; expected a list")
        cast("list[Any]", target).extend(items)

    def set_items(self, items: list[Any]) -> None:
        target = self.top()
        if type(target) is not dict and type(target) is not OrderedDict:
            raise _PickleFault(f"SETITEM on a {_kind(target)}; expected a dict")
        if len(items) % 2:
            raise _PickleFault("SETITEMS with a key that has no value")
        for key, value in zip(items[::2], items[1::2], strict=True):
            cast("dict[Any, Any]", target)[_checked_key(key)] = value

    def add_items(self, items: list[Any]) -> None:
        target = self.top()
        if type(target) is not set:
            raise _PickleFault(f"ADDITEMS to a {_kind(target)}; expected a set")
        cast("set[Any]", target).update(_checked_key(item) for item in items)

    def new_dict(self) -> None:
        items = self.pop_to_mark()
        self.push({})
        self.set_items(items)

    def push_global(self, module: object, name: object) -> None:
        if not isinstance(module, str) or not isinstance(name, str):
            raise _PickleFault("a global is named by something that is no string")
        found = self._allowed.get((module, name))
        if found is None:
            raise _PickleFault(
                f"it names the global {f'{module}.{name}':.200}, which no state dict of tensors needs and which is not "
                "built or run; save only tensors, as in torch.save(model.state_dict(), path)"
            )
        self.push(found)

    def stack_global(self) -> None:
        module, name = self.pop_many(2)
        self.push_global(module, name)

    def reduce(self) -> None:
        function, arguments = self.pop_many(2)
        if not isinstance(function, InertGlobal):
            raise _PickleFault(f"REDUCE calls a {_kind(function)}; expected a global of the allow-list")
        if type(arguments) is not tuple:
            raise _PickleFault(f"REDUCE of {function} with a {_kind(arguments)}; expected a tuple of arguments")
        if function.construct is None:
            raise _PickleFault(f"REDUCE calls {function}, which may be named but not called")
        self.push(function.construct(cast("tuple[Any, ...]", arguments)))

    def build(self) -> None:
        # An OrderedDict's state is the attribute dict where state_dict() keeps its version numbers.
        state = self.pop()
        target = self.top()
        if type(target) is not OrderedDict or type(state) is not dict:
            raise _PickleFault(f"BUILD gives a {_kind(state)} to a {_kind(target)}; only an OrderedDict takes a state")

    def persistent_id(self) -> None:
        if self._persistent is None:
            raise _PickleFault("a persistent id where none is expected")
        self.push(self._persistent(self.pop()))


def _kind(value: object) -> str:
    return f"global {value}" if isinstance(value, InertGlobal) else type(value).__name__


def _checked_key(key: object) -> object:
    """A dict key or set member whose hash is cheap and collides with few others."""
    # Tuples are refused: one that shares its parts takes exponential time to hash.
    if key is None or isinstance(key, str | bytes | bool):
        return key
    if isinstance(key, int) and -_MAX_KEY < key < _MAX_KEY:
        return key
    raise _PickleFault(f"a {_kind(key)} as a dict key or set member; expected a string or a small integer")


def _number(form: str) -> Callable[[_Machine], None]:
    layout = struct.Struct(form)

    def read(machine: _Machine) -> None:
        machine.push(layout.unpack(machine.take(layout.size))[0])

    return read


_STOP = ord(".")


def _actions() -> dict[int, Callable[[_Machine], None]]:
    machine = _Machine
    table: dict[str | bytes, Callable[[_Machine], None]] = {
        b"\x80": machine.protocol,
        b"\x95": machine.frame,
        "(": machine.mark,
        "0": machine.discard,
        "1": machine.discard_to_mark,
        "2": lambda m: m.push(m.top()),
        # Memo
        "q": lambda m: m.put(m.length(1)),
        "r": lambda m: m.put(m.length(4)),
        b"\x94": lambda m: m.put(len(m.memo)),
        "h": lambda m: m.get(m.length(1)),
        "j": lambda m: m.get(m.length(4)),
        # Scalars
        "N": lambda m: m.push(None),
        b"\x88": lambda m: m.push(True),
        b"\x89": lambda m: m.push(False),
        "K": _number("<B"),
        "M": _number("<H"),
        "J": _number("<i"),
        "G": _number(">d"),
        b"\x8a": lambda m: m.integer(1),
        b"\x8b": lambda m: m.integer(4),
        # Strings and bytes; "U" and "T" are Python 2's str, which torch of that time wrote as ASCII.
        b"\x8c": lambda m: m.push(m.text(1)),
        "X": lambda m: m.push(m.text(4)),
        b"\x8d": lambda m: m.push(m.text(8)),
        "U": lambda m: m.push(m.text(1)),
        "T": lambda m: m.push(m.text(4)),
        "C": lambda m: m.push(bytes(m.take(m.length(1)))),
        "B": lambda m: m.push(bytes(m.take(m.length(4)))),
        b"\x8e": lambda m: m.push(bytes(m.take(m.length(8)))),
        b"\x96": lambda m: m.push(bytearray(m.take(m.length(8)))),
        # Containers
        "]": lambda m: m.push([]),
        "l": lambda m: m.push(m.pop_to_mark()),
        "a": lambda m: m.extend([m.pop()]),
        "e": lambda m: m.extend(m.pop_to_mark()),
        ")": lambda m: m.push(()),
        "t": lambda m: m.push(tuple(m.pop_to_mark())),
        b"\x85": lambda m: m.push(m.pop_many(1)),
        b"\x86": lambda m: m.push(m.pop_many(2)),
        b"\x87": lambda m: m.push(m.pop_many(3)),
        "}": lambda m: m.push({}),
        "d": machine.new_dict,
        "s": lambda m: m.set_items(list(m.pop_many(2))),
        "u": lambda m: m.set_items(m.pop_to_mark()),
        b"\x8f": lambda m: m.push(set()),
        b"\x90": lambda m: m.add_items(m.pop_to_mark()),
        b"\x91": lambda m: m.push(frozenset(_checked_key(item) for item in m.pop_to_mark())),
        # Globals and objects
        "c": lambda m: m.push_global(m.line(), m.line()),
        b"\x93": machine.stack_global,
        "R": machine.reduce,
        "b": machine.build,
        "Q": machine.persistent_id,
    }
    return {ord(code): action for code, action in table.items()}


_ACTIONS = _actions()
_REFUSED: dict[int, str] = {
    ord(code): name
    for code, name in {
        "I": "INT",
        "L": "LONG",
        "F": "FLOAT",
        "S": "STRING",
        "V": "UNICODE",
        "p": "PUT",
        "g": "GET",
        "P": "PERSID",
        "i": "INST",
        "o": "OBJ",
        b"\x81": "NEWOBJ",
        b"\x92": "NEWOBJ_EX",
        b"\x82": "EXT1",
        b"\x83": "EXT2",
        b"\x84": "EXT4",
        b"\x97": "NEXT_BUFFER",
        b"\x98": "READONLY_BUFFER",
    }.items()
}


def interpret_pickle(
    data: memoryview,
    start: int,
    allowed: Mapping[tuple[str, str], InertGlobal],
    persistent: Callable[[object], object] | None,
    where: str,
) -> PickleResult:
    """The value of the pickle that starts at ``data[start]``.

    Args:
        data: the bytes that hold the pickle.
        start: where in them it starts.
        allowed: the globals that it may mention, by (module, name).
        persistent: gives the value of a persistent id; None refuses persistent ids.
        where: the name of the file, for messages.

    Raises:
        WeightsError: a global, opcode or value that is refused, or bytes that are no pickle.

    >>> interpret_pickle(memoryview(b"\\x80\\x02]K\\x01a."), 0, {}, None, "a file")
    PickleResult(value=[1], end=7)
    """
    return _Machine(data, start, allowed, persistent, where).run()
