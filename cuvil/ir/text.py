"""Text both ways: prints IR modules and parses them back."""

from __future__ import annotations

from io import StringIO

from xdsl.dialects.builtin import ModuleOp
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.utils.exceptions import ParseError, VerifyException

from cuvil.ir.dialect import context
from cuvil.support.errors import CuvilError, IRError


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
    try:
        module = Parser(context(), text).parse_module()
        if verify:
            module.verify()
    except (ParseError, VerifyException) as error:
        raise IRError(f"not a valid cuvil module: {error}") from error
    except CuvilError as error:
        raise IRError(str(error)) from error
    return module
