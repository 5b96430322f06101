"""Text both ways: prints IR modules and parses them back."""

from __future__ import annotations

import re
from io import StringIO

from xdsl.dialects.builtin import ModuleOp
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.utils.exceptions import ParseError, VerifyException

from cuvil.ir.dialect import context
from cuvil.support.errors import CuvilError, IRError

#: A line whose strings end and escape only what MLIR's strings escape.
_STRINGS = re.compile(r'(?:[^"]|"(?:[^"\\]|\\(?:["nt\\]|[0-9A-Fa-f]{2}))*")*')


def format_module(module: ModuleOp, *, locations: bool = False) -> str:
    """A module as text; ``locations`` adds the user's source line to each op."""
    out = StringIO()
    Printer(stream=out, print_debuginfo=locations).print_op(module)
    return out.getvalue() + "\n"


def parse_module(text: str, *, verify: bool = True) -> ModuleOp:
    """The module that a text stands for.

    Raises:
        IRError: the text does not parse or does not verify.
    """
    for number, line in enumerate(text.splitlines(), 1):
        # The lexer's expression for strings takes exponential time to find that one is malformed.
        if '"' in line and not _STRINGS.fullmatch(line):
            raise IRError(f"not a valid cuvil module: line {number} holds a malformed string: {line.strip()[:80]}")
    try:
        module = Parser(context(), text).parse_module()
        if verify:
            module.verify()
    except CuvilError as error:
        raise IRError(str(error)) from error
    except (ParseError, VerifyException, ValueError, RecursionError) as error:
        raise IRError(f"not a valid cuvil module: {error}") from error
    return module
