"""A compiled program as a JSON text: all that the runtime needs, and how constants follow from what was captured.

A reader trusts nothing: what does not have the form that a writer gives it is an IRError.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np

from cuvil.ir.attributes import (
    MAX_ORIGIN_DEPTH,
    ConstantArray,
    Origin,
    format_aval,
    format_params,
    parse_aval,
    parse_params,
)
from cuvil.ir.binary import HostCall, NativeProgram, Packing, Site, Slot, kernel_name
from cuvil.ops.record import Aval, Opaque
from cuvil.ops.registry import get
from cuvil.support.errors import CuvilError, IRError
from cuvil.symbolic import Dim, parse_dim

FORMAT = 3
_MAX_BYTES = 64 << 20  # of the text; a program of 50,000 calls has about 10


# ------------------------------------------------------------------------------------------------ writing


def write_program(
    program: NativeProgram, captured: Sequence[ConstantArray], records: Any, lines: Callable[[], Sequence[str]] = tuple
) -> tuple[str, bytes]:
    """The text, and the elements of constants that do not follow from the captured ones.

    ``records`` is stored as it is; it consists of what JSON has. ``lines()`` are those of the traced ops: the same
    program may stand elsewhere in the user's code when it is read.
    """
    number = {id(c): k for k, c in enumerate(captured)}
    nodes: list[Any] = []
    data = bytearray()
    done: dict[int, int] = {}

    def visit(root: ConstantArray) -> int:
        stack = [root]
        while stack:
            c = stack[-1]
            if id(c) in done:
                stack.pop()
                continue
            if id(c) in number:
                node: dict[str, Any] = {"captured": number[id(c)]}
            elif c.origin is not None:
                waiting = [o for o in c.origin.operands if o is not None and id(o) not in done]
                if waiting:
                    stack.extend(waiting)
                    continue
                node = {
                    "op": c.origin.op,
                    "params": format_params(c.origin.params),
                    "operands": [None if o is None else done[id(o)] for o in c.origin.operands],
                }
            else:
                elements = np.ascontiguousarray(c.array).tobytes()
                node = {"at": len(data)}
                data.extend(elements)
            done[id(c)] = len(nodes)
            nodes.append({**node, "aval": format_aval(c.aval)})
            stack.pop()
        return done[id(root)]

    roots = [visit(c) for c in program.constants]
    text = json.dumps(
        {
            "format": FORMAT,
            "entry": program.entry,
            "kernels": [_host_json(k) if isinstance(k, HostCall) else k[1] for k in program.kernels],
            "inputs": [format_aval(a) for a in program.inputs],
            "outputs": [format_aval(a) for a in program.outputs],
            "symbols": list(program.symbols),
            "packings": [[list(p.constants), p.kernel] for p in program.packings],
            "plain": sorted(program.plain_constants),
            "slots": [[_dim_json(s.size), s.first, s.last] for s in program.slots],
            "calls": list(program.calls),
            "loops": program.loops,
            "messages": list(program.messages),
            "sites": _sites_json(program.sites, lines),
            "nodes": nodes,
            "constants": roots,
            "records": records,
        },
        separators=(",", ":"),
    )
    return text, bytes(data)


def _sites_json(sites: Sequence[Site], lines: Callable[[], Sequence[str]]) -> list[Any]:
    number: dict[str, int] = {}
    for k, line in enumerate(lines() if sites else ()):
        number.setdefault(line, k)
    return [[s.op, number.get(s.line, -1)] for s in sites]


def _host_json(call: HostCall) -> dict[str, Any]:
    return {
        "name": call.name,
        "op": call.op,
        "params": format_params(tuple(zip(call.names, call.values, strict=True))),
        "operands": list(call.operands),
        "results": list(call.results),
        "arguments": [format_aval(a) for a in call.arguments],
        "dims": list(call.dims),
    }


def _dim_json(d: Dim) -> int | str:
    return d if isinstance(d, int) else str(d)


# ------------------------------------------------------------------------------------------------ reading


def read_program(
    text: bytes,
    data: bytes,
    library: Path,
    captured: Sequence[ConstantArray],
    lines: Callable[[], Sequence[str]] = tuple,
) -> tuple[NativeProgram, list[Any]]:
    """The program, whose code is in ``library``, and the records; ``lines()`` are those of the traced ops.

    Raises:
        IRError: the text is not what :func:`write_program` gives, or was made for other captured constants.
    """
    if len(text) > _MAX_BYTES:
        raise IRError(f"a program's text of {len(text)} bytes is longer than any that is written")
    try:
        whole = _object(json.loads(text))
        if whole["format"] != FORMAT:
            raise IRError(f"the program has format {whole['format']!r}, expected {FORMAT}")
        constants = _constants(whole, data, captured)
        kernels = tuple(_kernel(k, library) for k in _list(whole["kernels"]))
        count, calls = len(kernels), _strings(whole["calls"])
        if not set(calls) <= {kernel_name(k) for k in kernels}:
            raise IRError("a call names no kernel")
        program = NativeProgram(
            library=library,
            kernels=kernels,
            inputs=_avals(whole["inputs"]),
            outputs=_avals(whole["outputs"]),
            symbols=_strings(whole["symbols"]),
            constants=constants,
            packings=tuple(
                Packing(tuple(_below(c, len(constants)) for c in _list(p[0])), _below(p[1], count))
                for p in _pairs(whole["packings"], 2)
            ),
            slots=tuple(_slot(s) for s in _pairs(whole["slots"], 3)),
            calls=calls,
            plain_constants=frozenset(_below(c, len(constants)) for c in _list(whole["plain"])),
            entry=_identifier(_string(whole["entry"])),
            loops=_truth(whole["loops"]),
            messages=_strings(whole["messages"]),
            sites=_sites(_pairs(whole["sites"], 2), lines),
        )
        return program, _list(whole["records"])
    except IRError:
        raise
    except (CuvilError, ValueError, TypeError, LookupError, RecursionError) as error:
        raise IRError(f"malformed program text: {error}") from error


def _sites(values: Sequence[Any], lines: Callable[[], Sequence[str]]) -> tuple[Site, ...]:
    known = lines() if values else ()
    out: list[Site] = []
    for op, number in values:
        out.append(Site(_string(op), "unknown line" if number == -1 else known[_below(number, len(known))]))
    return tuple(out)


def _kernel(value: Any, library: Path) -> tuple[Path, str] | HostCall:
    if isinstance(value, str):
        return library, _identifier(value)
    call = _object(value)
    record = get(_string(call["op"]))
    if not (isinstance(record.body, Opaque) and record.body.kernel == "host"):
        raise IRError(f"{record.name} is no op of host calls")
    arguments = _avals(call["arguments"])
    items = parse_params(_string(call["params"]), record.params)
    results = tuple(None if k is None else _below(k, len(arguments)) for k in _list(call["results"]))
    if len(results) != len(record.results):
        raise IRError(f"{record.name} has {len(record.results)} results, got {len(results)}")
    return HostCall(
        name=_identifier(_string(call["name"])),
        op=record.name,
        names=tuple(k for k, _ in items),
        values=tuple(v for _, v in items),
        operands=tuple(_below(k, len(arguments)) for k in _list(call["operands"])),
        results=results,
        arguments=arguments,
        dims=_strings(call["dims"]),
    )


def _constants(whole: dict[str, Any], data: bytes, captured: Sequence[ConstantArray]) -> list[ConstantArray]:
    nodes: list[ConstantArray] = []
    for item in _list(whole["nodes"]):
        node = _object(item)
        aval = parse_aval(_string(node["aval"]))
        if not all(isinstance(d, int) and d >= 0 for d in aval.shape):
            raise IRError(f"a constant has the shape {aval.shape}")
        nodes.append(_constant(node, aval, data, captured, nodes))
    return [nodes[_below(k, len(nodes))] for k in _list(whole["constants"])]


def _constant(
    node: dict[str, Any], aval: Aval, data: bytes, captured: Sequence[ConstantArray], nodes: Sequence[ConstantArray]
) -> ConstantArray:
    if "captured" in node:
        found = captured[_below(node["captured"], len(captured))]
        if found.aval != aval:
            raise IRError(f"a captured constant is {format_aval(found.aval)}, expected {format_aval(aval)}")
        return found
    if "op" in node:
        record = get(_string(node["op"]))
        operands = tuple(None if o is None else nodes[_below(o, len(nodes))] for o in _list(node["operands"]))
        origin = Origin(record.name, parse_params(_string(node["params"]), record.params), operands)
        if origin.depth > MAX_ORIGIN_DEPTH:
            raise IRError(f"a constant follows from others in {origin.depth} steps, more than {MAX_ORIGIN_DEPTH}")
        return ConstantArray.lazy(aval, origin)
    start, size = _below(node["at"], len(data) + 1), aval.dtype.itemsize
    for d in aval.shape:
        size *= cast(int, d)
    if start + size > len(data):
        raise IRError("a constant's elements lie outside of the data")
    flat = np.frombuffer(data[start : start + size], np.uint8)  # sliced first: the slice is aligned
    return ConstantArray(flat.view(aval.dtype.numpy).reshape(cast("tuple[int, ...]", aval.shape)))


def _slot(parts: Sequence[Any]) -> Slot:
    size = parse_dim(_string(parts[0])) if isinstance(parts[0], str) else _below(parts[0], 1 << 62)
    return Slot(size, _below(parts[1], 1 << 31), _below(parts[2], 1 << 31))


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise IRError(f"expected an object, got {type(value).__name__}")
    return cast("dict[str, Any]", value)


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise IRError(f"expected a list, got {type(value).__name__}")
    return cast("list[Any]", value)


def _pairs(value: Any, length: int) -> list[list[Any]]:
    found = [_list(v) for v in _list(value)]
    if any(len(v) != length for v in found):
        raise IRError(f"expected lists of length {length}")
    return found


def _string(value: Any) -> str:
    if not isinstance(value, str):
        raise IRError(f"expected a string, got {type(value).__name__}")
    return value


def _strings(value: Any) -> tuple[str, ...]:
    return tuple(_string(v) for v in _list(value))


def _truth(value: Any) -> bool:
    if not isinstance(value, bool):
        raise IRError(f"expected true or false, got {value!r}")
    return value


def _identifier(name: str) -> str:
    if not (name.isascii() and name.isidentifier()):
        raise IRError(f"{name!r} is no name of a C function")
    return name


def _below(value: Any, limit: int) -> int:
    if type(value) is not int or not 0 <= value < limit:
        raise IRError(f"expected a whole number below {limit}, got {value!r}")
    return value


def _avals(value: Any) -> tuple[Aval, ...]:
    return tuple(parse_aval(v) for v in _strings(value))


__all__ = ["FORMAT", "read_program", "write_program"]
