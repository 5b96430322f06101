"""From Python functions to the tensor IR: tracing, pytrees and control flow."""
