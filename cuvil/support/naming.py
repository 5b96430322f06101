"""Identifiers that are legal in C and CUDA, readable, and unique within one scope."""

from __future__ import annotations

import re
from collections.abc import Iterable

# C11 and C23 keywords, C++ keywords that NVRTC reserves, and names that headers commonly define as macros.
_RESERVED = frozenset(
    """
    alignas alignof and and_eq asm auto bitand bitor bool break case catch char char16_t char32_t char8_t class compl
    concept const const_cast consteval constexpr constinit continue co_await co_return co_yield decltype default delete
    do double dynamic_cast else enum explicit export extern false float for friend goto half if inline int long main
    mutable namespace new noexcept not not_eq nullptr operator or or_eq private protected public register
    reinterpret_cast requires restrict return short signed sizeof static static_assert static_cast struct switch
    template this thread_local throw true try typedef typeid typename typeof typeof_unqual union unsigned using virtual
    void volatile wchar_t while xor xor_eq
    assert complex errno imaginary INFINITY NAN NULL I linux unix stdin stdout stderr
    """.split()
)
_MAX_LENGTH = 48  # C11 5.2.4.1 promises 63 significant characters; the rest is left for prefixes and counters


def identifier(text: str) -> str:
    """A legal identifier that reads like `text`: other characters become `_`; reserved words get one at the end.

    Equal texts give equal identifiers; different ones may too (see `Names` for unique ones). Identifiers that begin
    with `_` belong to the C implementation, so none does.

    >>> identifier("layer.0/attention"), identifier("int"), identifier("3x3"), identifier("")
    ('layer_0_attention', 'int_', 'v3x3', 'v')
    """
    name = re.sub(r"[^0-9A-Za-z]+", "_", text).strip("_")[:_MAX_LENGTH].rstrip("_")
    if not name or name[0].isdigit():
        name = "v" + name
    return name + "_" if name in _RESERVED else name


class Names:
    """The identifiers in use within one scope. `fresh` gives each only once.

    >>> names = Names(reserved=["ctx"])
    >>> names.fresh("x"), names.fresh("x"), names.fresh("ctx"), names.fresh("x_1")
    ('x', 'x_1', 'ctx_1', 'x_1_1')
    """

    def __init__(self, reserved: Iterable[str] = ()) -> None:
        self._taken: set[str] = set(reserved)
        self._next: dict[str, int] = {}

    def fresh(self, hint: str) -> str:
        """A new identifier that reads like `hint`; the order of calls alone decides the counters."""
        base = identifier(hint)
        name, count = base, self._next.get(base, 1)
        while name in self._taken:
            name, count = f"{base}_{count}", count + 1
        self._next[base] = count
        self._taken.add(name)
        return name

    def __contains__(self, name: str) -> bool:
        return name in self._taken
