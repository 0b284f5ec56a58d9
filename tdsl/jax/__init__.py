"""Operators for JAX.

operators   an operator as a function of JAX arrays, with its gradient    operators.py
targets     kernels as functions that XLA calls, by their names           targets.py
"""

import os as _os

try:
    import jax as _jax
except ImportError as error:
    raise ImportError("td.jax needs JAX: pip install 'tdsl[jax]'") from error

from tdsl.core.source import skip_folder
from tdsl.jax.operators import op

skip_folder(_os.path.dirname(_jax.__file__))

__all__ = ["op"]


def __dir__() -> list[str]:
    return [*__all__]
