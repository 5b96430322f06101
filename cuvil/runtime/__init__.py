"""Loading, calling and packaging of compiled programs."""
