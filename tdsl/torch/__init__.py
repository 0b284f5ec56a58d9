"""Operators for PyTorch, and a backend of `torch.compile`.

tensors     torch tensors over the memory of arrays, and back     tensors.py
operators   an operator as a torch operator with its gradient     operators.py
calls       calls past the dispatcher and below it                calls.py
shapes      the shapes of results, of known or symbolic extents   shapes.py
backend     torch.compile(backend="tdsl")                         backend.py, planned_part.py
graphs      torch's graphs, rewritten before they are divided     fold_constants.py, strided_views.py
bodies      torch's operators on the symbols of a graph           supported.py: elements.py, arrays.py,
                                                                  indexing.py, windows.py
report      what was compiled, and what was left to torch         report.py
"""

try:
    import torch as _torch  # noqa: F401  # one message for all modules
except ImportError as error:
    raise ImportError(
        "td.torch needs PyTorch: pip install 'tdsl[torch]', or its wheel for CPUs, as pytorch.org says"
    ) from error

from tdsl.torch.operators import op
from tdsl.torch.report import report
from tdsl.torch.tensors import as_tensor

__all__ = ["as_tensor", "op", "report"]


def __dir__() -> list[str]:
    return [*__all__]
