"""The functions that user code calls, on NumPy arrays (at once) and on traced arrays (into the trace)."""
