"""The CuvilError family: every message says what was given, what was expected and what to do."""

from __future__ import annotations


class CuvilError(Exception):
    """Base of every error that cuvil raises on purpose."""


class ShapeError(CuvilError, ValueError):
    """Shapes that an operation cannot combine."""


class DTypeError(CuvilError, TypeError):
    """A dtype that an operation does not take."""


class AxisError(CuvilError, ValueError, IndexError):
    """An axis outside the rank of its array."""


class IndexOutOfBoundsError(CuvilError, IndexError):
    """An index outside its axis, found while a program ran."""


class CheckFailed(CuvilError, AssertionError):
    """An ``assert`` of a compiled function that did not hold for a call's values."""


class ArgumentError(CuvilError, ValueError):
    """A parameter or argument with a value that is not accepted."""


class ArgumentTypeError(CuvilError, TypeError):
    """A parameter or argument of a type that is not accepted."""


class TracingError(CuvilError, TypeError):
    """A traced value used where a concrete one is needed, leaked, or mutated."""


class UnsupportedError(CuvilError, NotImplementedError):
    """Something that cuvil does not do, named, with the nearest thing that it does."""


class IRError(CuvilError, ValueError):
    """IR text or IR objects that do not parse or verify."""


class PassError(CuvilError, RuntimeError):
    """A pass that ran over its budget or changed a value."""


class BackendError(CuvilError, RuntimeError):
    """A backend that cannot compile or run a program."""


class ToolchainError(BackendError):
    """No usable C compiler, or one that failed."""


class WeightsError(CuvilError, ValueError):
    """A weights file that is malformed, hostile or does not fit the model."""


class CacheError(CuvilError, OSError):
    """The disk cache cannot be used as configured."""
