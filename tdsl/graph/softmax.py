"""Softmax of the arrays of a graph, for models of torch and ONNX."""

from __future__ import annotations

from typing import Any

from tdsl.compile import compile
from tdsl.graph.elementwise import index_variables
from tdsl.lang import functions, reduction
from tdsl.lang.tensor import Func, Tensor
from tdsl.lang.types import from_numpy
from tdsl.lang.value import vars


def softmax(x: Any, axis: int) -> Any:
    """The exponentials of a symbol or array divided by their sums along an axis.

    It is one operator, which a search for schedules fuses better than NumPy's functions one by one.

    >>> import numpy as np
    >>> softmax(np.zeros((2, 4)), -1)
    array([[0.25, 0.25, 0.25, 0.25],
           [0.25, 0.25, 0.25, 0.25]])
    """
    if not x.size:
        return x
    a, e, y = Tensor("a", x.shape, from_numpy(x.dtype)), Func("e"), Func("softmax")
    index, k = index_variables(x.ndim), vars("k")
    row = tuple(k if n == axis % x.ndim else i for n, i in enumerate(index))
    e[index] = functions.exp(a[index] - reduction.max(a[row], axis=k))
    y[index] = e[index] / reduction.sum(e[row], axis=k)
    return compile(y)(x)
