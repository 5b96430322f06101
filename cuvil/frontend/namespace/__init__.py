"""The names of the array API, made from the op records."""
