"""The names of ``cuvil.numpy`` and ``cuvil.nn`` that the models use, in other libraries' terms."""
