"""Measures cuvil against its peers: the same function, the same threads, interleaved in one run."""
