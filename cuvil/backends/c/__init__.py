"""The C backend: emitter, toolchain and human-written headers."""
