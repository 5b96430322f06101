"""Finds the user's own line in the call stack."""

from __future__ import annotations

import os
import sys
from types import FrameType

from cuvil.support.errors import CuvilError

#: Where cuvil's own code is.
PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


def user_frame() -> FrameType | None:
    """The innermost frame that is not cuvil's own code."""
    frame: FrameType | None = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame is not None and frame.f_code.co_filename.startswith(PACKAGE):
        frame = frame.f_back
    return frame


def compares_in_user_code() -> bool:
    """Whether the ``==`` of two sizes that is being answered stands in the user's code.

    Frames of generated ``__eq__`` methods (of dataclasses that hold shapes) are looked through.
    """
    frame: FrameType | None = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame is not None and frame.f_code.co_name != "__eq__":
        frame = frame.f_back
    while frame is not None and frame.f_code.co_name == "__eq__":
        frame = frame.f_back
    return frame is not None and not frame.f_code.co_filename.startswith(PACKAGE)


def name_user_line(error: CuvilError) -> None:
    """Add the user's line to the message of an error from below, where what raised it does not see the user's code."""
    if not error.args or " (at " in str(error.args[0]):
        return
    where = ""
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if not code.co_filename.startswith(PACKAGE):
            where = f" (at {code.co_filename}:{trace.tb_lineno}, in {code.co_name})"
        trace = trace.tb_next
    error.args = (f"{error.args[0]}{where}", *error.args[1:])


def user_line() -> tuple[str, int]:
    """(file, line) of the user's code, or ``("<unknown>", 0)``."""
    frame = user_frame()
    if frame is None:
        return "<unknown>", 0
    return frame.f_code.co_filename, frame.f_lineno


def at_user_line() -> str:
    """``" (at model.py:12, in forward)"``, for the end of a message."""
    frame = user_frame()
    if frame is None:
        return ""
    return f" (at {frame.f_code.co_filename}:{frame.f_lineno}, in {frame.f_code.co_name})"
