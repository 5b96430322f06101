"""Strategies and checkers for functions, programs, passes, rules and backends: what cuvil's own tests are made of.

>>> import numpy as np
>>> from cuvil.testing import apply, check_backend
>>> def softplus(x):
...     return apply("log1p", apply("exp", x))
>>> check_backend(softplus, np.float32([[0, 1], [2, 3]]), shapes="(B, 2)", backend="reference")
"""

from cuvil.frontend.dispatch import apply
from cuvil.testing.arrays import RandomChooser, sample_array
from cuvil.testing.checkers import Mismatch, check_backend, check_pass, check_rule, check_transform
from cuvil.testing.compare import disagreement
from cuvil.testing.generate import draw_program
from cuvil.testing.programs import Input, Program, Step
from cuvil.testing.strategies import HypothesisChooser, arrays, dims, dtypes, examples, programs, shapes

__all__ = [
    "HypothesisChooser",
    "Input",
    "Mismatch",
    "Program",
    "RandomChooser",
    "Step",
    "apply",
    "arrays",
    "check_backend",
    "check_pass",
    "check_rule",
    "check_transform",
    "dims",
    "disagreement",
    "draw_program",
    "dtypes",
    "examples",
    "programs",
    "sample_array",
    "shapes",
]
