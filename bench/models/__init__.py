"""The workloads' models, each written once against the names of ``cuvil.numpy`` and ``cuvil.nn``.

``forward(np, nn, parameters, *inputs)`` is handed the two namespaces, so that the same source runs under cuvil, under
jax.numpy and under torch (see ``bench.namespaces``). Weights have the layouts of PyTorch's checkpoints: linear ones
[out, in], convolutions [O, I, ...].
"""
