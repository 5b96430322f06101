"""The workloads' models, each written once against the names of ``cuvil.numpy`` and ``cuvil.nn``.

``forward(np, nn, parameters, *inputs)`` is handed the two namespaces, so that the same source runs under cuvil, under
jax.numpy and under torch (see ``bench.namespaces``). Linear weights are [out, in] and convolution weights [O, I, ...], as
the checkpoints have them.
"""
