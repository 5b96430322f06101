"""Rewrites of the IR: rules, fusion, layout, memory plan and lowering to kernels."""
