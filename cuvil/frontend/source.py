"""Finds the user's own line in the call stack."""

from __future__ import annotations

import os
import sys
from types import FrameType

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


def user_frame() -> FrameType | None:
    """The innermost frame that is not cuvil's own code."""
    frame: FrameType | None = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
    return frame


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
