"""Makes einops take traced arrays: it knows arrays by the subclasses of its backend class that exist."""

from __future__ import annotations

import sys
from functools import cache
from types import ModuleType
from typing import Any

from cuvil.frontend.tracer import METHODS, Tracer


def teach_einops() -> None:
    """Register traced arrays with einops where that is imported; what is not imported costs a dictionary look-up."""
    backends = sys.modules.get("einops._backends")
    if backends is not None:
        _register(backends)


@cache
def _register(backends: ModuleType) -> type:
    base: Any = getattr(backends, "AbstractBackend")  # noqa: B009 - a module without types

    class CuvilBackend(base):
        """Traced arrays, by the functions of the namespace."""

        framework_name = "cuvil"

        def is_appropriate_type(self, tensor: Any) -> bool:
            return isinstance(tensor, Tracer)

        def arange(self, start: int, stop: int) -> Any:
            return METHODS["arange"](start, stop)

        def stack_on_zeroth_dimension(self, tensors: list[Any]) -> Any:
            return METHODS["stack"](tensors)

        def tile(self, x: Any, repeats: Any) -> Any:
            return METHODS["tile"](x, repeats)

        def concat(self, tensors: list[Any], axis: int) -> Any:
            return METHODS["concat"](tensors, axis=axis)

        def add_axis(self, x: Any, new_position: int) -> Any:
            return METHODS["expand_dims"](x, new_position)

        def is_float_type(self, x: Any) -> bool:
            return x.cuvil_dtype.is_float or x.cuvil_dtype.is_complex

        def einsum(self, pattern: str, *x: Any) -> Any:
            return METHODS["einsum"](pattern, *x)

    return CuvilBackend
