"""``cuvil-opt``: runs named passes on the text of a program and prints what comes out."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from xdsl.dialects.builtin import ModuleOp

from cuvil.backends.c.backend import emit_sources
from cuvil.ir.attributes import ConstraintsAttr
from cuvil.ir.kernel_program import KernelProgram
from cuvil.ir.text import format_module, parse_module
from cuvil.ir.verifier import STAGES, main_function, stage_of, verify_stage
from cuvil.passes.cleanup import eliminate_common_subexpressions, eliminate_dead_code
from cuvil.passes.engine import apply_rules
from cuvil.passes.fusion import fuse
from cuvil.passes.lowering.program import lower_program
from cuvil.passes.memory import plan_memory
from cuvil.passes.pipeline import PassOptions, optimise, rules_for
from cuvil.support.errors import ArgumentError, CuvilError
from cuvil.symbolic import Scope

Pass = Callable[[ModuleOp], ModuleOp | None]


def module_scope(module: ModuleOp) -> Scope:
    """What a module's function knows of its symbols."""
    known = main_function(module).attributes.get("cuvil.constraints")
    return Scope(known.data if isinstance(known, ConstraintsAttr) else ())


def _decompose(module: ModuleOp) -> None:
    optimise(main_function(module), module_scope(module), PassOptions(optimise=False))


def _optimise(module: ModuleOp) -> None:
    optimise(main_function(module), module_scope(module), PassOptions())


def _rules(module: ModuleOp) -> None:
    apply_rules(main_function(module), rules_for("standard"), module_scope(module))


def _cse(module: ModuleOp) -> None:
    eliminate_common_subexpressions(main_function(module))


def _dce(module: ModuleOp) -> None:
    eliminate_dead_code(main_function(module))


def _fuse(module: ModuleOp) -> None:
    fuse(main_function(module), module_scope(module))


def _lower(module: ModuleOp) -> ModuleOp:
    return lower_program(main_function(module), module_scope(module)).module


def source_text(module: ModuleOp) -> str:
    """The C text of a kernel-stage module.

    Raises:
        IRError: a module of another stage.
    """
    verify_stage(module, "kernel")
    program = KernelProgram(module)
    program.memory = plan_memory(program.host, {k.params["name"]: k for k in program.kernels})
    return "\n".join(f"/* ---- {name} ---- */\n{text}" for name, text in emit_sources(program).items())


#: Passes by the name that ``--passes`` takes. A pass changes the module in place or returns another.
PASSES: dict[str, Pass] = {
    "decompose": _decompose,
    "rules": _rules,
    "cse": _cse,
    "dce": _dce,
    "optimise": _optimise,
    "fuse": _fuse,
    "lower": _lower,
}

#: The stage of the modules that a pass takes, where it is not the tensor stage.
_TAKES = {"lower": "fused"}

#: Passes that lead from the tensor stage to each stage that ``--stage`` names.
PIPELINES: dict[str, tuple[str, ...]] = {
    "tensor": (),
    "optimised": ("optimise",),
    "fused": ("optimise", "fuse"),
    "kernel": ("optimise", "fuse", "lower"),
    "source": ("optimise", "fuse", "lower"),
}


def run_passes(module: ModuleOp, names: Sequence[str], *, verify: bool = False) -> ModuleOp:
    """The module after the named passes, each verified against its stage when ``verify`` is set.

    Raises:
        ArgumentError: no pass has that name.
        CuvilError: a pass does not take the module, or broke it.
    """
    for name in names:
        if name not in PASSES:
            raise ArgumentError(f"no pass is named {name!r}; expected one of {', '.join(PASSES)}")
    if verify:
        verify_stage(module, stage_of(module))
    for name in names:
        stage, needed = stage_of(module), _TAKES.get(name, "tensor")
        if stage != needed:
            raise ArgumentError(
                f"the pass {name!r} takes a module of the {needed} stage, this one is of the {stage} stage"
            )
        module = PASSES[name](module) or module
        if verify:
            verify_stage(module, stage_of(module))
    return module


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="cuvil-opt",
        description="Reads the text of a program, runs passes on it and prints the result.",
        epilog=f"Passes: {', '.join(PASSES)}. Texts come from f.lower(...).as_text(stage) or from CUVIL_DUMP.",
    )
    parser.add_argument("file", nargs="?", default="-", help="file to read; - (the default) is standard input")
    parser.add_argument("--passes", default="", metavar="NAMES", help="passes to run in order, separated by commas")
    parser.add_argument(
        "--stage", choices=[*STAGES, "source"], help="instead of --passes: run what leads from the tensor stage here"
    )
    parser.add_argument(
        "--verify", action="store_true", help="check the module against its stage, before and after each pass"
    )
    parser.add_argument("--locations", action="store_true", help="print the user's source line of each op")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``cuvil-opt``; returns the exit status: 0, or 1 after one line on standard error."""
    parser = _parser()
    args = parser.parse_args(argv)
    if args.stage and args.passes:
        parser.error("--stage chooses the passes itself; give one of --stage and --passes")
    names = PIPELINES[args.stage] if args.stage else [n.strip() for n in args.passes.split(",") if n.strip()]
    try:
        text = sys.stdin.read() if args.file == "-" else Path(args.file).read_text()
        module = run_passes(parse_module(text), names, verify=args.verify)
        out = source_text(module) if args.stage == "source" else format_module(module, locations=args.locations)
    except CuvilError as error:
        return _complain(str(error))
    except UnicodeDecodeError:
        return _complain(f"{args.file} is not text")
    except OSError as error:
        return _complain(f"cannot read {args.file}: {error.strerror}")
    sys.stdout.write(out)
    return 0


def _complain(message: str) -> int:
    print("cuvil-opt: error: " + " ".join(message.split()), file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
