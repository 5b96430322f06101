"""From fused regions of the tensor IR to loops over buffers."""
