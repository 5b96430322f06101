"""The systems that are measured. Each module is imported in the worker process of its system alone."""
