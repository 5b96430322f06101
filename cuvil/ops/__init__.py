"""The op records. Importing this package fills the registry, in the order of the imports below."""

from cuvil.ops import reshaping  # noqa: F401  # isort: skip
from cuvil.ops import movement  # noqa: F401  # isort: skip
from cuvil.ops import windows  # noqa: F401  # isort: skip
from cuvil.ops import contraction  # noqa: F401  # isort: skip
from cuvil.ops import einsum  # noqa: F401  # isort: skip
from cuvil.ops import convolution  # noqa: F401  # isort: skip
from cuvil.ops import pooling  # noqa: F401  # isort: skip
from cuvil.ops import composite  # noqa: F401  # isort: skip
from cuvil.ops import normalization  # noqa: F401  # isort: skip
from cuvil.ops import interpolation  # noqa: F401  # isort: skip
from cuvil.ops import attention  # noqa: F401  # isort: skip
from cuvil.ops import recurrent  # noqa: F401  # isort: skip
