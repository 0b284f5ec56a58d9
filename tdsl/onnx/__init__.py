"""Models in the format ONNX, as graphs.

load         a file or bytes, checked, as a graph                      load.py
model        nodes, attributes and arrays as data                      model.py
evaluate     the function of the graph: node after node                evaluate.py
operators    the table of operators; their bodies are in               operators.py
             elements.py, movement.py, reductions.py, windows.py, normalisation.py, quantised.py
"""

try:
    import onnx as _onnx  # noqa: F401  # one message for all modules
except ImportError as error:
    raise ImportError("td.onnx needs the package onnx: pip install 'tdsl[onnx]'") from error

from tdsl.onnx.load import load

__all__ = ["load"]


def __dir__() -> list[str]:
    return [*__all__]
