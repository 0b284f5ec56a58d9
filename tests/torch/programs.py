"""Operators of many kinds for one element type, with arguments for them."""

from collections.abc import Callable
from typing import Any

import torch

import tdsl as td

Arguments = Callable[[Callable[..., torch.Tensor]], tuple[Any, ...]]


Operators = dict[str, tuple[td.Operator, Arguments]]


def operators(t: Any) -> Operators:
    """The operators by name, each with a function that makes its arguments by a source of random tensors."""
    result: Operators = {}

    def define(arguments: Arguments) -> Callable[[Any], None]:
        def add(function: Any) -> None:
            result[function.__name__] = td.op(function), arguments

        return add

    define_small(t, define)
    define_others(t, define)
    return result


def define_small(t: Any, define: Any) -> None:
    """Element-wise operators, and views."""
    i, j, k = td.vars("i j k")
    x1, x2 = t["N"], t["M", "N"]

    @define(lambda r: (r(9), 2.5))
    def scale(x: x1, factor: t):
        y = td.Func("y")
        y[i] = x[i] * factor
        return y

    @define(lambda r: (r(5, 7), r(5, 7)))
    def add(a: x2, b: x2):
        y = td.Func("y")
        y[i, j] = a[i, j] + 2 * b[i, j]
        return y

    @define(lambda r: (r(5, 7),))
    def transpose(a: x2):
        y = td.Func("y")
        y[j, i] = a[i, j]
        return y

    @define(lambda r: (r(5, 7), r(7)))
    def broadcast(a: x2, b: x1):
        y = td.Func("y")
        y[i, j] = a[i, j] * b[j]
        return y

    @define(lambda r: (r(5, 7),))
    def tanh(a: x2):
        y = td.Func("y")
        y[i, j] = td.tanh(a[i, j])
        return y

    @define(lambda r: (r(11),))
    def gelu(a: x1):
        y = td.Func("y")
        y[i] = a[i] * 0.5 * (1 + td.erf(a[i] * 0.7071067811865476))
        return y

    @define(lambda r: (r(11),))
    def silu(a: x1):
        y = td.Func("y")
        y[i] = a[i] * td.sigmoid(a[i])
        return y

    @define(lambda r: (r(11),))
    def relu(a: x1):
        y = td.Func("y")
        y[i] = td.maximum(a[i], 0)
        return y

    @define(lambda r: (r(5, 7),))
    def softmax(a: x2):
        e, y = td.Func("e"), td.Func("y")
        e[i, j] = td.exp(a[i, j] - td.max(a[i, k], axis=k))
        y[i, j] = e[i, j] / td.sum(e[i, k], axis=k)
        return y


def define_others(t: Any, define: Any) -> None:
    """Reductions, products, windows, and reads by data."""
    i, j, k, m = td.vars("i j k m")
    x1, x2, x3 = t["N"], t["M", "N"], t["B", "M", "N"]

    @define(lambda r: (r(5, 7), r(7)))
    def rms_norm(a: x2, g: x1):
        y = td.Func("y")
        y[i, j] = a[i, j] * td.rsqrt(td.sum(a[i, k] * a[i, k], axis=k) / a.shape[1] + 1e-6) * g[j]
        return y

    @define(lambda r: (r(5, 7), r(7), r(7)))
    def layer_norm(a: x2, g: x1, b: x1):
        mean, c, y = td.Func("mean"), td.Func("c"), td.Func("y")
        mean[i] = td.sum(a[i, k], axis=k) / a.shape[1]
        c[i, j] = a[i, j] - mean[i]
        y[i, j] = c[i, j] * td.rsqrt(td.sum(c[i, k] * c[i, k], axis=k) / a.shape[1] + 1e-5) * g[j] + b[j]
        return y

    @define(lambda r: (r(5, 6), r(6, 4)))
    def matmul(a: t["M", "K"], b: t["K", "N"]):
        y = td.Func("y")
        y[i, j] = td.sum(a[i, k] * b[k, j], axis=k)
        return y

    @define(lambda r: (r(5, 6), r(4, 6), r(4)))
    def linear(a: t["M", "K"], w: t["N", "K"], b: t["N"]):
        y = td.Func("y")
        y[i, j] = td.sum(a[i, k] * w[j, k], axis=k) + b[j]
        return y

    @define(lambda r: (r(2, 5, 6), r(2, 6, 4)))
    def batched(a: t["B", "M", "K"], b: t["B", "K", "N"]):
        y = td.Func("y")
        y[m, i, j] = td.sum(a[m, i, k] * b[m, k, j], axis=k)
        return y

    @define(lambda r: (r(5, 7),))
    def total(a: x2):
        y = td.Func("y")
        y[()] = td.sum(a[i, j], axis=(i, j))
        return y

    @define(lambda r: (r(5, 7),))
    def row_maximum(a: x2):
        y = td.Func("y")
        y[i] = td.max(a[i, k], axis=k)
        return y

    @define(lambda r: (r(2, 5, 7),))
    def middle_sum(a: x3):
        y = td.Func("y")
        y[i, j] = td.sum(a[i, k, j], axis=k)
        return y

    @define(lambda r: (r(12),))
    def difference(a: x1):
        y = td.Func("y")
        y[i] = a[i + 2] - a[i]
        return y

    @define(lambda r: (r(12), r(3)))
    def convolution(a: x1, w: t["W"]):
        y, n = td.Func("y"), td.vars("n")
        y[i] = td.sum(a[i + n] * w[n], axis=n)
        return y

    @define(lambda r: (r(4, 6),))
    def blur(a: x2):
        y = td.Func("y", shape=a.shape)
        p = td.pad(a, mode="edge")
        y[i, j] = (p[i - 1, j] + p[i, j] + p[i + 1, j]) / 3
        return y

    @define(lambda r: (r(6, 3), torch.tensor([0, 5, 2, 2])))
    def embedding(table: x2, at: td.i64["K"]):
        y = td.Func("y")
        y[i, j] = table[td.clip(at[i], 0, table.shape[0] - 1), j]
        return y

    @define(lambda r: (r(5, 7), torch.arange(7) % 2 == 0))
    def masked(a: x2, keep: td.bool_["N"]):
        y = td.Func("y")
        y[i, j] = td.where(keep[j], a[i, j], 0)
        return y

    @define(lambda r: (r(5, 7),))
    def sum_and_scaled(a: x2):
        s, y = td.Func("s"), td.Func("y")
        s[i] = td.sum(a[i, k], axis=k)
        y[i, j] = a[i, j] * s[i]
        return s, y

    @define(lambda r: (r(5, 7),))
    def largest(a: x2):
        at, y = td.Func("at"), td.Func("y")
        at[i] = td.argmax(a[i, k], axis=k)
        y[i] = td.max(a[i, k], axis=k)
        return y, at
