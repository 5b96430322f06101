"""The reference backend: programs run by the interpreter with NumPy."""
