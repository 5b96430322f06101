"""Services without any knowledge of tensors: configuration, errors, naming, disk cache, timing."""
