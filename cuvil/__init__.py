"""cuvil turns Python models into fast native inference code."""

__version__ = "0.1.0"
