"""``cuvil.jit`` and ``cuvil.compile``: the user's entry, with the cache of compiled variants."""

from __future__ import annotations

import functools
import inspect
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any, Literal, cast

import numpy as np

from cuvil.compiler import Compiled, CompileOptions, Numerics, Precision, compile_program
from cuvil.dtypes import DType, complex128, dtype, float64, int64
from cuvil.dtypes import bool_ as bool_dtype
from cuvil.frontend.buckets import Buckets, cut, padded_shapes
from cuvil.frontend.program import TracedProgram, trace
from cuvil.frontend.pytree import TreeDef, argument_paths, flatten
from cuvil.frontend.rewrite.convert import convert
from cuvil.frontend.source import at_user_line
from cuvil.frontend.specs import Spec, check_hints, check_spec, parse_spec, spec_symbols, spec_text, widen
from cuvil.frontend.tracer import Tracer, current_trace
from cuvil.ops.record import Array, Aval, Shape
from cuvil.passes.engine import Rule
from cuvil.passes.validate import difference
from cuvil.runtime.dispatch import Calls, ResultForm
from cuvil.support.config import dump_stages, max_variants
from cuvil.support.dump import write_stages
from cuvil.support.errors import ArgumentError, ArgumentTypeError, DTypeError, ShapeError, TracingError
from cuvil.symbolic import Expr, Scope, free_symbols, solve, substitute

log = logging.getLogger("cuvil.jit")

ShapeMode = Literal["auto", "static", "symbolic"]
_EXACT_CALLS = 1024  # signatures whose variant and symbol values are remembered
_SEEN = 64  # shapes of one signature that widening looks at

_WEAK_DTYPES: dict[type, DType] = {bool: bool_dtype, int: int64, float: float64, complex: complex128}


@dataclass(frozen=True)
class _Static:
    """A static argument; ``key`` also tells apart what compares equal: 1, 1.0 and True."""

    name: str
    key: Hashable
    value: Any = field(compare=False)


def _static_key(value: Any) -> Hashable:
    if isinstance(value, tuple):
        return (type(value), *(_static_key(v) for v in value))
    if isinstance(value, float):
        return (type(value), value.hex())  # 0.0 is not -0.0, and NaN is NaN
    return (type(value), value)


@dataclass(frozen=True)
class _Family:
    """Calls that can share a variant: structure, static arguments, dtypes and ranks."""

    tree: TreeDef
    statics: tuple[_Static, ...]
    leaves: tuple[tuple[DType, int, type | None], ...]


def _match(patterns: Sequence[Shape], scope: Scope, shapes: Sequence[Sequence[int]]) -> dict[str, int] | None:
    try:
        return solve(patterns, shapes, scope)
    except ShapeError:
        return None


def _static_axes(patterns: Sequence[Shape], chosen: Sequence[Shape]) -> set[tuple[int, int]]:
    """(argument, axis) of the symbols of ``patterns`` that are concrete in ``chosen``."""
    return {
        (k, axis)
        for k, (p, c) in enumerate(zip(patterns, chosen, strict=True))
        for axis, (d, n) in enumerate(zip(p, c, strict=True))
        if free_symbols(d) and not free_symbols(n)
    }


@dataclass
class Variant:
    """One compiled version of a function: for which shapes, why it was compiled, and how often it served."""

    patterns: tuple[Shape, ...]
    scope: Scope
    compiled: Compiled
    out_tree: TreeDef
    guards: tuple[str, ...]
    reason: str
    seconds: float
    hint: str | None = None  # holds for the sizes that this variant serves
    hits: int = 0
    hits_before: int = 0  # at the time when the function last forgot a variant
    padding_checked: bool = False

    def match(self, shapes: Sequence[Sequence[int]]) -> dict[str, int] | None:
        """The symbols' values for concrete shapes, or None where the shapes or a guard do not fit."""
        return _match(self.patterns, self.scope, shapes)

    def __str__(self) -> str:
        shapes = ", ".join("[" + ", ".join(map(str, p)) + "]" for p in self.patterns)
        guards = f" guards: {'; '.join(self.guards)}" if self.guards else ""
        how = "loaded from the compile cache" if self.compiled.from_cache else "compiled"
        return f"({shapes}) hits {self.hits}, {how} in {self.seconds:.2f} s: {self.reason}{guards}"


@dataclass(frozen=True)
class _Padding:
    """How a call with bucketed sizes runs: its variant, the padded shapes, and the shapes of its results."""

    variant: Variant
    env: dict[str, int]
    padded: tuple[tuple[int, ...], ...]
    results: tuple[tuple[int, ...], ...]


@dataclass
class _Signature:
    tree: TreeDef
    statics: tuple[_Static, ...]
    arrays: list[Array]
    weak: tuple[type | None, ...]
    key: Hashable = field(default=None)


def _result_form(tree: TreeDef) -> ResultForm:
    if tree.kind is None:
        return None
    if all(child.kind is None for child in tree.children):
        if tree.kind is tuple or tree.kind is list:
            return tree.kind
        if tree.kind is dict and all(type(key) is str for key in cast(tuple[Any, ...], tree.aux)):
            return cast(tuple[str, ...], tree.aux)
    return tree.unflatten


class Lowered:
    """A function traced and compiled for some arguments, to look at: ``as_text(stage)``."""

    def __init__(self, compiled: Compiled) -> None:
        self.compiled = compiled

    def as_text(self, stage: str = "tensor") -> str:
        """The text of ``"tensor"``, ``"optimised"``, ``"fused"``, ``"kernel"`` or ``"source"``."""
        return self.compiled.as_text(stage)


class Jitted:
    """A function that compiles itself for the shapes it meets (made by :func:`jit`)."""

    def __init__(
        self,
        fn: Callable[..., Any],
        *,
        static_argnames: Sequence[str],
        shapes: ShapeMode | Buckets,
        input_spec: Sequence[Any] | None,
        constraints: Sequence[str],
        hints: Sequence[str],
        options: CompileOptions,
    ) -> None:
        functools.update_wrapper(self, fn)
        self.fn = fn
        self._buckets = shapes if isinstance(shapes, Buckets) else None
        self.shapes: ShapeMode = "symbolic" if isinstance(shapes, Buckets) else shapes
        self.options = options
        self.constraints = tuple(constraints)
        try:
            self._signature: inspect.Signature | None = inspect.signature(fn)
        except (TypeError, ValueError):
            self._signature = None
        self.static_argnames = frozenset(static_argnames)
        self._check_static_names()
        self._spec: list[Spec] | None = None if input_spec is None else [parse_spec(e) for e in input_spec]
        if self._spec is not None:
            check_spec(self._spec, constraints, list(self._signature.parameters) if self._signature else [])
        if self.shapes == "symbolic" and self._spec is None:
            what = 'shapes="symbolic"' if self._buckets is None else "shapes=Buckets(...)"
            raise ArgumentError(f'{what} needs an input_spec, e.g. input_spec=[("x", "float32", ("B", 128))]')
        if self._buckets is not None and self._spec is not None:
            self._buckets.check_names(spec_symbols(self._spec), [name for name, _, _ in self._spec])
        check_hints(hints, self._spec, constraints)
        if hints and self._buckets is not None:
            raise ArgumentError("hints and Buckets exclude each other: a bucketed size is a constant of its variant")
        self._hints = [(hint, Scope([hint])) for hint in hints]
        self._families: dict[_Family, list[Variant]] = {}
        self._seen: dict[_Family, list[tuple[tuple[int, ...], ...]]] = {}
        self._concrete: dict[_Family, set[tuple[int, int]]] = {}  # axes whose sizes the function's Python code needs
        self._exact: OrderedDict[Hashable, tuple[Variant, dict[str, int]]] = OrderedDict()
        self._padded: OrderedDict[Hashable, _Padding] = OrderedDict()
        self._calls: Calls | None = None  # the short way of calls seen before, where compiled code offers one
        self._lock = threading.RLock()

    # ------------------------------------------------------------------------------------------- calls
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        calls = self._calls  # another thread may put it out of use
        if calls is not None:
            result = calls.run(args, kwargs)
            if result is not NotImplemented:
                return result
        found = self._read(args, kwargs)
        if found is None:
            return convert(self.fn)(*args, **kwargs)  # inside another trace: inlined
        if self._buckets is not None:
            return self._run_padded(found, self._buckets)
        hit = self._exact.get(found.key)
        if hit is None:
            hit = self._select(found)
        variant, env = hit
        variant.hits += 1
        ranges = variant.compiled.program.int_ranges
        if ranges:
            self._check_ranges(ranges, found)
        elif variant.compiled.native is not None and not self.static_argnames:
            self._shorten(args, kwargs, found.arrays, variant, env)
        return variant.out_tree.unflatten(variant.compiled.run(found.arrays, env))

    def _run_padded(self, s: _Signature, buckets: Buckets) -> Any:
        names = self._spec_names()
        plan = self._padded.get(s.key)
        if plan is None:
            plan = self._plan_padding(s, buckets)
        arrays = [buckets.pad(a, shape, n) for a, shape, n in zip(s.arrays, plan.padded, names, strict=True)]
        variant = plan.variant
        variant.hits += 1
        self._check_ranges(variant.compiled.program.int_ranges, s)
        results = [cut(r, shape) for r, shape in zip(variant.compiled.run(arrays, plan.env), plan.results, strict=True)]
        if (
            buckets.check
            and not variant.padding_checked
            and any(a.shape != b for a, b in zip(s.arrays, plan.padded, strict=True))
        ):
            self._check_padding(s, results, plan)
            variant.padding_checked = True
        return variant.out_tree.unflatten(results)

    def _plan_padding(self, s: _Signature, buckets: Buckets) -> _Padding:
        """Find or compile the variant of the padded sizes; tracing the true sizes says what the results' shapes are."""
        with self._lock:
            patterns = self._spec_patterns(s)
            shapes = tuple(a.shape for a in s.arrays)
            names = self._spec_names()
            true = solve(patterns, shapes, Scope(self.constraints), names=names)
            try:
                bucket = buckets.bucket(true)
                padded = tuple(padded_shapes(patterns, true, bucket))
            except ShapeError as error:
                raise ShapeError(f"{self._name()}: {error}{at_user_line()}") from None
            arrays = [buckets.pad(a, shape, n) for a, shape, n in zip(s.arrays, padded, names, strict=True)]
            variant, env = self._select(replace(s, arrays=arrays, key=(s.key, "padded")), bucket)
            program = self._trace(s, shapes)
            results = tuple(cast(tuple[int, ...], a.shape) for a in program.outputs)
            larger = [tuple(substitute(d, env) for d in a.shape) for a in variant.compiled.program.outputs]
            for k, (r, p) in enumerate(zip(results, larger, strict=True)):
                if len(r) != len(p) or any(n > m for n, m in zip(r, p, strict=True)):
                    raise ShapeError(
                        f"{self._name()}: result {k} has shape {list(r)} and, once {self._sizes(true, bucket)},"
                        f" {list(p)}{at_user_line()}; padding must keep a result's axes, and make none smaller"
                    )
            plan = self._padded[s.key] = _Padding(variant, env, padded, results)
            if len(self._padded) > _EXACT_CALLS:
                self._padded.popitem(last=False)
            return plan

    def _check_padding(self, s: _Signature, results: Sequence[Array], plan: _Padding) -> None:
        """Raise where a result is not what the function gives without padding."""
        shapes = tuple(a.shape for a in s.arrays)
        options = replace(self.options, backend="reference", optimise=False, validate=False)
        want = compile_program(self._trace(s, shapes), options).run(s.arrays, {})
        for k, (got, expected) in enumerate(zip(results, want, strict=True)):
            problem = difference(got, expected, None)
            if problem:
                padded = ", ".join(
                    f"{list(a)} to {list(b)}" for a, b in zip(shapes, plan.padded, strict=True) if a != b
                )
                raise ShapeError(
                    f"{self._name()}: padding {padded} changes result {k}{at_user_line()}: {problem}. What lies beyond"
                    " the true sizes must not reach the results: pass a mask or the lengths and use them (where="
                    ", an attention mask), choose a fill that does not count, or give up Buckets: with a symbol for"
                    ' the size (shapes="symbolic") nothing is padded'
                )

    @staticmethod
    def _sizes(true: dict[str, int], bucket: dict[str, int]) -> str:
        return " and ".join(f"{n} = {true[n]} is padded to {m}" for n, m in bucket.items() if true[n] != m)

    def _spec_names(self) -> list[str]:
        return [name for name, _, _ in self._spec or ()]

    def _check_ranges(self, ranges: dict[int, tuple[int, int]], s: _Signature) -> None:
        """Python integers that are used with narrower integer arrays must fit them, as in NumPy."""
        for k, (low, high) in ranges.items():
            value = int(s.arrays[k])
            if not low <= value <= high:
                raise DTypeError(
                    f"argument {self._leaf_names(s.tree)[k]} of {self._name()} is {value}{at_user_line()}, which does"
                    f" not fit the integer array that it is used with ([{low}, {high}]); cast the array first, e.g."
                    " x.astype('int64')"
                )

    def _shorten(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], inputs: list[Array], variant: Variant, env: dict[str, int]
    ) -> None:
        """Let the dispatcher answer calls like this one from now on."""
        executable = variant.compiled.native
        assert executable is not None and executable.native is not None and executable.dispatch is not None
        with self._lock:
            if self._calls is None:
                self._calls = executable.dispatch.Calls(_EXACT_CALLS)
            calls = self._calls
        plan = executable.native_plan(env)
        calls.add(args, kwargs, inputs, executable.native, plan, _result_form(variant.out_tree), variant)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None:
            return self
        return functools.partial(self, instance)

    def lower(self, *args: Any, **kwargs: Any) -> Lowered:
        """Trace and compile for these arguments (or shapes) and keep the text of every stage."""
        found = self._read(args, kwargs)
        if found is None:
            raise TracingError(f"lower() cannot be called on traced values{at_user_line()}")
        patterns = self._patterns(found)
        return Lowered(self._compile_traced(self._trace(found, patterns), keep_text=True))

    def prepare(self) -> None:
        """Compile the variants of the ``input_spec`` now: the general one and one for each hint.

        Raises:
            ArgumentError: an entry of the ``input_spec`` has no dtype.
        """
        assert self._spec is not None
        arrays: list[Array] = []
        for name, dt, dims in self._spec:
            if dt is None:
                raise ArgumentError(f"to compile ahead of the first call, {name} needs a dtype in input_spec")
            arrays.append(np.empty((0,) * len(dims), dt.numpy))
        _, tree = flatten((tuple(arrays), {}))
        s = _Signature(tree, (), arrays, (None,) * len(arrays))
        with self._lock:
            family = self._family(s)
            if family not in self._families:
                patterns = tuple(dims for _, _, dims in self._spec)
                self._families[family] = [
                    self._build(s, patterns, "input_spec, ahead of time" if hint is None else f"hint {hint}", hint)
                    for hint in (None, *(h for h, _ in self._hints))
                ]

    def variants(self) -> list[Variant]:
        """Every compiled variant."""
        return [v for family in self._families.values() for v in family]

    def explain(self) -> str:
        """A readable list of variants: their shapes, guards, hits and why each was compiled."""
        o = self.options
        choices = ((o.backend, "c"), (o.precision, "float32"), (o.numerics, "standard"))
        special = [choice for choice, default in choices if choice != default]
        how = f" ({', '.join(special)})" if special else ""
        lines = [f"{self._name()}{how}: {len(self.variants())} compiled variants"]
        lines += [f"  {k}. {v}" for k, v in enumerate(self.variants(), 1)]
        return "\n".join(lines)

    # ---------------------------------------------------------------------------------------- arguments
    def _check_static_names(self) -> None:
        if self._signature is None:
            return
        parameters = self._signature.parameters
        if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values()):
            return
        for name in self.static_argnames:
            if name not in parameters:
                raise ArgumentError(
                    f"static_argnames names {name!r}, which is no parameter of"
                    f" {getattr(self.fn, '__name__', 'the function')}; it has: {', '.join(parameters)}"
                )

    def _read(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Signature | None:
        statics: tuple[_Static, ...] = ()
        if self.static_argnames:
            args, kwargs, statics = self._split_static(args, kwargs)
        leaves, tree = flatten((args, kwargs))
        arrays: list[Array] = []
        weak: list[type | None] = []
        signature: list[Any] = []
        for k, leaf in enumerate(leaves):
            if type(leaf) is np.ndarray:
                if not leaf.dtype.isnative:
                    leaf = leaf.astype(leaf.dtype.newbyteorder("="))
                arrays.append(leaf)
                weak.append(None)
                signature.append((leaf.dtype, leaf.shape))
                continue
            if isinstance(leaf, Tracer):
                leaf.value_in(current_trace())  # raises for a value that its trace has left behind
                return None
            if isinstance(leaf, Expr):
                return None
            scalar = type(leaf)
            if scalar in _WEAK_DTYPES:
                if scalar is int and not -(2**63) <= leaf < 2**63:
                    raise DTypeError(
                        f"argument {self._leaf_names(tree)[k]} of {self._name()} is {leaf}{at_user_line()}, which does"
                        " not fit int64, the dtype of Python integers; pass a float"
                    )
                arrays.append(np.asarray(leaf, dtype=_WEAK_DTYPES[scalar].numpy))
                weak.append(scalar)
                signature.append(scalar)
                continue
            array = self._as_array(leaf, tree, k)
            arrays.append(array)
            weak.append(None)
            signature.append((array.dtype, array.shape))
        return _Signature(tree, statics, arrays, tuple(weak), (tree, statics, tuple(signature)))

    def _as_array(self, leaf: Any, tree: TreeDef, k: int) -> Array:
        if isinstance(leaf, np.ma.MaskedArray):
            raise ArgumentTypeError(
                f"argument {self._leaf_names(tree)[k]} of {self._name()} is a masked array{at_user_line()}, whose"
                " mask a compiled function would not see; pass x.filled(value), or data and mask as two arguments"
            )
        if isinstance(leaf, np.ndarray | np.generic) or hasattr(leaf, "__array__"):
            array = np.asarray(leaf)
            return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))
        if hasattr(leaf, "__dlpack__"):
            return np.from_dlpack(leaf)
        raise ArgumentTypeError(
            f"argument {self._leaf_names(tree)[k]} of {self._name()} is {type(leaf).__name__}:"
            f" {str(leaf)[:60]!r}{at_user_line()}. A compiled function takes arrays, numbers and containers (dict,"
            " list, tuple, NamedTuple, dataclass) of them; name other arguments in static_argnames."
        )

    def _name(self) -> str:
        return getattr(self.fn, "__name__", "the function")

    def _split_static(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any], tuple[_Static, ...]]:
        if self._signature is None:
            raise ArgumentError("static_argnames needs a function whose signature Python can inspect")
        given = self._signature.bind(*args, **kwargs).arguments
        statics: list[_Static] = []
        dynamic: dict[str, Any] = {}
        for name, parameter in self._signature.parameters.items():
            if name in self.static_argnames:
                value = given.get(name, parameter.default)
                if value is not inspect.Parameter.empty:
                    statics.append(self._static(name, value))
            elif parameter.kind is inspect.Parameter.VAR_KEYWORD:
                named: dict[str, Any] = given.get(name, {})
                statics += [self._static(k, v) for k, v in named.items() if k in self.static_argnames]
                dynamic[name] = {k: v for k, v in named.items() if k not in self.static_argnames}
            elif name in given:
                dynamic[name] = given[name]
        return (), dynamic, tuple(statics)

    def _static(self, name: str, value: Any) -> _Static:
        try:
            hash(value)
        except TypeError:
            raise ArgumentTypeError(
                f"static argument {name!r} of {self._name()} must be hashable, got"
                f" {type(value).__name__}{at_user_line()}; pass a tuple instead of a list, for example"
            ) from None
        return _Static(name, _static_key(value), value)

    def _callable(self, statics: tuple[_Static, ...]) -> Callable[..., Any]:
        """The function of the arrays alone; as :meth:`_split_static` gives them where some arguments are static."""
        signature = self._signature
        if not self.static_argnames or signature is None:
            return self.fn

        def call(**dynamic: Any) -> Any:
            values = {**dynamic, **{s.name: s.value for s in statics if s.name in signature.parameters}}
            for name, parameter in signature.parameters.items():
                if parameter.kind is inspect.Parameter.VAR_KEYWORD:
                    more = {s.name: s.value for s in statics if s.name not in signature.parameters}
                    values[name] = {**values.get(name, {}), **more}
            bound = inspect.BoundArguments(
                signature, OrderedDict((name, values[name]) for name in signature.parameters if name in values)
            )
            return convert(self.fn)(*bound.args, **bound.kwargs)

        return call

    # ---------------------------------------------------------------------------------------- variants
    def _family(self, s: _Signature) -> _Family:
        leaves = tuple((self._dtype(s, k), a.ndim, s.weak[k]) for k, a in enumerate(s.arrays))
        return _Family(s.tree, s.statics, leaves)

    def _dtype(self, s: _Signature, k: int) -> DType:
        try:
            return dtype(s.arrays[k].dtype)
        except DTypeError as error:
            raise DTypeError(
                f"argument {self._leaf_names(s.tree)[k]} of {self._name()} has a dtype that cuvil does not"
                f" have{at_user_line()}: {error}"
            ) from None

    def _select(self, s: _Signature, bucket: dict[str, int] | None = None) -> tuple[Variant, dict[str, int]]:
        with self._lock:
            family = self._family(s)
            shapes = tuple(a.shape for a in s.arrays)
            seen = self._seen.setdefault(family, [])
            if shapes not in seen:
                seen.append(shapes)
                del seen[:-_SEEN]
            hint = self._hint(s) if self._hints else None
            for variant in reversed(self._families.get(family, [])):
                env = variant.match(shapes) if variant.hint == hint else None
                if env is not None:
                    return self._remember(s.key, variant, env)
            patterns = self._patterns(s)
            if bucket:
                patterns = tuple(tuple(substitute(d, bucket) for d in p) for p in patterns)
            if self._spec is not None:
                # What the user stated must hold; only guards that tracing found lead to another variant.
                solve(patterns, shapes, Scope(self.constraints), names=self._spec_names())
            reason = self._reason(family, patterns) if hint is None else f"hint {hint}"
            if bucket:
                reason = "bucket " + ", ".join(f"{n} = {m}" for n, m in bucket.items())
            variant = self._specialise(s, family, patterns, reason, hint)
            env = variant.match(shapes)
            assert env is not None
            self._families.setdefault(family, []).append(variant)
            self._forget_unused(variant)
            return self._remember(s.key, variant, env)

    def _hint(self, s: _Signature) -> str | None:
        """The first hint that holds for a call."""
        env = _match(self._spec_patterns(s), Scope(), tuple(a.shape for a in s.arrays))
        if env is None:
            return None  # the call does not fit the input_spec, and is told so
        return next((hint for hint, scope in self._hints if scope.first_broken(env) is None), None)

    def _forget_unused(self, newest: Variant) -> None:
        """Keep the number of variants within its bound: the oldest goes of those not called since the last one went."""
        limit = max_variants()
        while len(variants := self.variants()) > limit:
            old = [v for v in variants if v is not newest]
            gone = next((v for v in old if v.hits == v.hits_before), old[0])
            for v in variants:
                v.hits_before = v.hits
            for family, members in list(self._families.items()):
                self._families[family] = [v for v in members if v is not gone]
                if not self._families[family]:
                    for table in (self._families, self._seen, self._concrete):
                        table.pop(family, None)
            for key in [k for k, (v, _) in self._exact.items() if v is gone]:
                del self._exact[key]
            for key in [k for k, p in self._padded.items() if p.variant is gone]:
                del self._padded[key]
            self._calls = None  # it holds variants, too; calls find their way into a new one
            log.info(
                "%s: forgot the variant for %s: more than %d (CUVIL_MAX_VARIANTS)", self._name(), gone.patterns, limit
            )

    def _remember(self, key: Hashable, variant: Variant, env: dict[str, int]) -> tuple[Variant, dict[str, int]]:
        self._exact[key] = (variant, env)
        if len(self._exact) > _EXACT_CALLS:
            self._exact.popitem(last=False)
        return variant, env

    def _specialise(
        self, s: _Signature, family: _Family, patterns: tuple[Shape, ...], reason: str, hint: str | None
    ) -> Variant:
        """Compile the most general of the patterns that the function can be traced for and that fit this call."""
        start = perf_counter()
        shapes = tuple(a.shape for a in s.arrays)
        failed = False
        for candidate in self._candidates(patterns, shapes):
            symbolic = bool(free_symbols(*(d for p in candidate for d in p)))
            try:
                program = self._trace(s, candidate, hint)
            except Exception as error:
                # In "auto" it was cuvil's idea to make symbols of sizes: the exact shapes, tried last, raise what is
                # the user's own mistake.
                if not symbolic or self.shapes != "auto":
                    raise
                if not failed:
                    log.warning("%s: not shape-polymorphic (%s); keeping some sizes static", self._name(), error)
                failed = True
                continue
            if _match(candidate, program.scope, shapes) is None:
                log.info("%s: a guard of the variant for %s fails on %s", self._name(), candidate, shapes)
                continue
            kept = _static_axes(patterns, candidate)
            if kept:
                names = self._leaf_names(s.tree)
                axes = ", ".join(f"{names[k]} axis {axis}" for k, axis in sorted(kept))
                why = "the function needs concrete sizes" if failed else "a guard fails where they are symbols"
                reason = f"{reason}; {axes} static: {why}"
            if failed:
                self._concrete.setdefault(family, set()).update(kept)
            return self._finish(program, candidate, reason, start, hint)
        raise ShapeError(f"{self._name()}: shapes {shapes} do not fit the input_spec {spec_text(self._spec)}")

    def _candidates(
        self, patterns: tuple[Shape, ...], shapes: tuple[tuple[int, ...], ...]
    ) -> Iterator[tuple[Shape, ...]]:
        """Patterns to try for a call, the most general first, its exact shapes last."""
        yield patterns
        names = sorted(free_symbols(*(d for p in patterns for d in p)))
        if not names:
            return
        if self.shapes == "auto":
            # Where sizes broadcast, an axis of 1 is another program than an axis of the other operand's size.
            ones = tuple(
                tuple(1 if n == 1 else d for d, n in zip(p, x, strict=True))
                for p, x in zip(patterns, shapes, strict=True)
            )
            if ones != patterns:
                yield ones
            sizes = solve(patterns, shapes)
            for name in names if len(names) > 1 else ():
                yield tuple(tuple(substitute(d, {name: sizes[name]}) for d in p) for p in patterns)
        yield shapes

    def _build(self, s: _Signature, patterns: tuple[Shape, ...], reason: str, hint: str | None) -> Variant:
        start = perf_counter()
        return self._finish(self._trace(s, patterns, hint), patterns, reason, start, hint)

    def _finish(
        self, program: TracedProgram, patterns: tuple[Shape, ...], reason: str, start: float, hint: str | None
    ) -> Variant:
        compiled = self._compile_traced(program)
        seconds = perf_counter() - start
        guards = tuple(
            f"{g.obligation.left} {g.obligation.relation} {g.obligation.right} ({g.op} at {g.line})"
            for g in program.guards
        )
        how = "found %s for %s in the compile cache" if compiled.from_cache else "compiled %s for %s"
        log.info(f"{how} in %.2f s: %s", self._name(), patterns, seconds, reason)
        return Variant(patterns, program.scope, compiled, program.out_tree, guards, reason, seconds, hint)

    def _trace(self, s: _Signature, patterns: Sequence[Shape], hint: str | None = None) -> TracedProgram:
        avals = [Aval(tuple(p), dtype(a.dtype)) for p, a in zip(patterns, s.arrays, strict=True)]
        return trace(
            self._callable(s.statics),
            s.tree,
            avals,
            weak=s.weak,
            names=self._leaf_names(s.tree),
            constraints=self.constraints if hint is None else (*self.constraints, hint),
            name=self._name(),
        )

    def _compile_traced(self, program: TracedProgram, keep_text: bool = False) -> Compiled:
        stages = dump_stages()
        compiled = compile_program(program, self.options, keep_text=keep_text or bool(stages))
        if stages:
            write_stages(self._name(), {k: compiled.stages[k]() for k in stages if k in compiled.stages})
        return compiled

    def _leaf_names(self, tree: TreeDef) -> list[str]:
        return argument_paths(tree, list(self._signature.parameters) if self._signature is not None else [])

    def _patterns(self, s: _Signature) -> tuple[Shape, ...]:
        shapes = tuple(a.shape for a in s.arrays)
        if self._spec is not None:
            return self._spec_patterns(s)
        if self.shapes == "static":
            return shapes
        seen = [x for x in self._seen.get(self._family(s), []) if x != shapes]
        concrete = self._concrete.get(self._family(s), set())
        widened = widen(shapes, seen, self._leaf_names(s.tree))
        return tuple(
            tuple(n if (k, axis) in concrete else d for axis, (d, n) in enumerate(zip(p, x, strict=True)))
            for k, (p, x) in enumerate(zip(widened, shapes, strict=True))
        )

    def _spec_patterns(self, s: _Signature) -> tuple[Shape, ...]:
        assert self._spec is not None
        if len(self._spec) != len(s.arrays):
            raise ArgumentError(
                f"{self._name()} was given {len(s.arrays)} arrays, its input_spec has {len(self._spec)}:"
                f" {spec_text(self._spec)}"
            )
        out: list[Shape] = []
        for (name, dt, dims), a in zip(self._spec, s.arrays, strict=True):
            if dt is not None and dtype(a.dtype) is not dt:
                raise ArgumentTypeError(
                    f"argument {name} of {self._name()} has dtype {a.dtype}, its input_spec says {dt.name};"
                    f" convert it: {name}.astype('{dt.name}')"
                )
            if len(dims) != a.ndim:
                raise ShapeError(
                    f"argument {name} of {self._name()} has shape {list(a.shape)}, its input_spec says"
                    f" [{', '.join(map(str, dims))}]"
                )
            out.append(dims)
        return tuple(out)

    def _reason(self, family: _Family, patterns: Sequence[Shape]) -> str:
        if self._spec is not None:
            return "input_spec"
        names = sorted(free_symbols(*(d for p in patterns for d in p)))
        if names:
            return f"sizes seen to vary became symbols: {', '.join(names)}"
        return "first call" if not self._families.get(family) else "new shapes"


def jit(
    fn: Callable[..., Any] | None = None,
    *,
    static_argnames: str | Sequence[str] = (),
    shapes: ShapeMode | Buckets = "auto",
    input_spec: Sequence[Any] | None = None,
    constraints: Sequence[str] = (),
    hints: Sequence[str] = (),
    backend: str = "c",
    numerics: Numerics = "standard",
    precision: Precision = "float32",
    optimise: bool = True,
    validate: bool = False,
    rules: Sequence[Rule] = (),
) -> Any:
    """Compile a function of arrays; usable as a decorator with or without arguments.

    The function takes and returns pytrees (dict, list, tuple, NamedTuple, dataclass, None) of NumPy arrays and Python
    numbers. Arrays that it captures from its surroundings become constants.

    Args:
        fn: the function, written against ``cuvil.numpy``.
        static_argnames: parameters that are Python values, one compiled variant per value; must be hashable.
        shapes: ``"auto"`` compiles the first call for its shape and makes a symbol of every axis that is seen to
            vary; ``"static"`` compiles for each shape; ``"symbolic"`` takes the shapes of ``input_spec``;
            :class:`~cuvil.Buckets` pads some of its sizes up to a few and compiles for those.
        input_spec: ``(name, dtype, shape)`` per array; a shape's entries are ints or expressions (``"B"``, ``"2*S"``).
            Arrays that name the same symbol share that size. A dtype of None takes any.
        constraints: what always holds of the symbols, e.g. ``"1 <= S <= 512"``; a call that breaks one is an error.
        hints: what often holds of them, e.g. ``"S % 16 == 0"``: calls for which the first of them holds that does get a
            variant that relies on it, all others the general one.
        backend: ``"c"``, ``"reference"`` (NumPy, op by op) or ``"null"`` (compiles, computes nothing).
        numerics: ``"standard"`` or ``"relaxed"``.
        precision: ``"float32"``, or ``"bf16"``: float32 matrix products and convolutions may round their operands to
            bfloat16, adding in float32, and subnormal operands and sums of products (of bfloat16 arrays too) may count
            as 0: about 3 significant digits, several times as fast where the processor has a unit for it; elsewhere a
            warning says that float32 is used.
        optimise: run the algebraic passes.
        validate: check every pass on the interpreter (slow; for finding faults).
        rules: rewrite rules of your own (:mod:`cuvil.rules`), tried after the compiler's.

    Raises:
        TracingError: the function needs the value of a traced array, changes one in place or leaks one.
        ShapeError, DTypeError: its ops do not fit the arguments.
        ToolchainError: no C compiler.

    >>> import numpy as np
    >>> import cuvil, cuvil.numpy as cnp
    >>> @cuvil.jit
    ... def softmax(x):
    ...     e = cnp.exp(x - cnp.max(x, axis=-1, keepdims=True))
    ...     return e / cnp.sum(e, axis=-1, keepdims=True)
    >>> softmax(np.zeros((2, 4), np.float32)).tolist()
    [[0.25, 0.25, 0.25, 0.25], [0.25, 0.25, 0.25, 0.25]]
    """
    if not isinstance(shapes, Buckets) and shapes not in ("auto", "static", "symbolic"):
        raise ArgumentError(f"unknown shapes {shapes!r}; expected 'auto', 'static', 'symbolic' or Buckets(...)")
    options = CompileOptions(
        backend=backend,
        numerics=numerics,
        precision=precision,
        optimise=optimise,
        validate=validate,
        rules=tuple(rules),
    )
    names = (static_argnames,) if isinstance(static_argnames, str) else tuple(static_argnames)
    if input_spec is not None and shapes == "auto":
        shapes = "symbolic"

    def wrap(f: Callable[..., Any]) -> Jitted:
        if not callable(f):
            raise ArgumentTypeError(f"jit takes a function, got {type(f).__name__}")
        return Jitted(
            f,
            static_argnames=names,
            shapes=shapes,
            input_spec=input_spec,
            constraints=constraints,
            hints=hints,
            options=options,
        )

    return wrap if fn is None else wrap(fn)


def compile(  # noqa: A001 - the public name
    fn: Callable[..., Any],
    input_spec: Sequence[Any],
    *,
    target: str = "native",
    constraints: Sequence[str] = (),
    **options: Any,
) -> Jitted:
    """Compile ahead of the first call, for the shapes of ``input_spec`` and each of the ``hints``.

    ``fn`` takes its arrays as positional arguments in the order of ``input_spec``. Other options are those of
    :func:`jit`.

    Raises:
        ArgumentError: an unknown target.
    """
    if target != "native":
        raise ArgumentError(f"unknown target {target!r}; expected 'native'")
    jitted: Jitted = jit(fn, shapes="symbolic", input_spec=input_spec, constraints=constraints, **options)
    jitted.prepare()
    return jitted


__all__ = ["Jitted", "Lowered", "Variant", "compile", "jit", "widen"]
