"""Rewrites Python functions so that ``if``, ``while``, ``for`` and their like also work on traced values.

``convert(fn)`` compiles a function anew from its source: each statement of control flow becomes a call of
:mod:`~cuvil.frontend.rewrite.runtime`, which runs it as Python does where its condition is concrete, and builds an op
with regions where it is traced. Three steps on the syntax tree lead there: :mod:`~cuvil.frontend.rewrite.exits` turns
``return``, ``break`` and ``continue`` into flags, :mod:`~cuvil.frontend.rewrite.liveness` finds which variables a
statement has to hand on, and :mod:`~cuvil.frontend.rewrite.transform` writes the calls.
"""
