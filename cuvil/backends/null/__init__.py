"""The null backend: compiles everything and runs nothing."""
