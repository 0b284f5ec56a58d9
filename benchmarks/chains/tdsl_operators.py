"""The operators of the chains as programs of tdsl; each call is a call of its own in a graph."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import tdsl as td

Values = Callable[..., Any]


def _index(rank: int) -> tuple[Any, ...]:
    return tuple(td.vars(f"i{n}") for n in range(rank))


def _input(name: str, x: Any) -> td.Tensor:
    return td.Tensor(name, x.shape, td.f32)


def _call(out: td.Func, **given: Any) -> Any:
    return td.compile(out)(**given)


def _map(name: str, f: Values, *arrays: Any) -> Any:
    """`f` of the elements of arrays of one shape."""
    inputs = [_input(n, x) for n, x in zip("abc", arrays, strict=False)]
    out, index = td.Func(name), _index(len(arrays[0].shape))
    out[index] = f(*(t[index] for t in inputs))
    return _call(out, **{t.name: x for t, x in zip(inputs, arrays, strict=True)})


def _of_rows(name: str, f: Values, x: Any) -> Any:
    """A reduction of each row."""
    a, out, (*rest, last) = _input("a", x), td.Func(name), _index(len(x.shape))
    out[tuple(rest)] = f(a[(*rest, last)], axis=last)
    return _call(out, a=x)


def _with_rows(name: str, f: Values, x: Any, rows: Any) -> Any:
    """`f` of each element and the value of its row."""
    a, b, out, (*rest, last) = (
        _input("a", x),
        _input("b", rows),
        td.Func(name),
        _index(len(x.shape)),
    )
    out[(*rest, last)] = f(a[(*rest, last)], b[tuple(rest)])
    return _call(out, a=x, b=rows)


def einsum(subscripts: str, x: Any, y: Any) -> Any:
    return _call(td.einsum(subscripts, _input("a", x), _input("b", y), name="product"), a=x, b=y)


def exp(x: Any) -> Any:
    return np.exp(x)


def tanh(x: Any) -> Any:
    return np.tanh(x)


def relu(x: Any) -> Any:
    return _map("relu", lambda a: td.maximum(a, 0), x)


def relu6(x: Any) -> Any:
    return _map("relu6", lambda a: td.clip(a, 0, 6), x)


def gelu(x: Any) -> Any:
    return _map("gelu", lambda a: a * 0.5 * (1 + td.erf(a * 0.5**0.5)), x)


def silu(x: Any) -> Any:
    return _map("silu", lambda a: a * td.sigmoid(a), x)


def row_max(x: Any) -> Any:
    return _of_rows("row_max", td.max, x)


def row_sum(x: Any) -> Any:
    return _of_rows("row_sum", td.sum, x)


def minus_rows(x: Any, rows: Any) -> Any:
    return _with_rows("minus_rows", lambda a, b: a - b, x, rows)


def over_rows(x: Any, rows: Any) -> Any:
    return _with_rows("over_rows", lambda a, b: a / b, x, rows)


def softmax(x: Any) -> Any:
    a, (*rest, j) = _input("a", x), _index(len(x.shape))
    top, e, total, out = (td.Func(n) for n in ("top", "e", "total", "softmax"))
    row = tuple(rest)
    top[row] = td.max(a[(*rest, j)], axis=j)
    e[(*rest, j)] = td.exp(a[(*rest, j)] - top[row])
    total[row] = td.sum(e[(*rest, j)], axis=j)
    out[(*rest, j)] = e[(*rest, j)] / total[row]
    return _call(out, a=x)


def causal(x: Any) -> Any:
    """Minus infinity where a key comes after its query."""
    a, out, (*rest, i, j) = _input("a", x), td.Func("causal"), _index(len(x.shape))
    out[(*rest, i, j)] = td.where(j <= i, a[(*rest, i, j)], -math.inf)
    return _call(out, a=x)


def column_sums(x: Any) -> Any:
    a, out, (*rest, i, j) = _input("a", x), td.Func("column_sums"), _index(len(x.shape))
    out[(*rest, j)] = td.sum(a[(*rest, i, j)], axis=i)
    return _call(out, a=x)


def any_above(x: Any, least: float) -> Any:
    """Which columns hold a value of at least so much."""
    a, out, (*rest, i, j) = _input("a", x), td.Func("any_above"), _index(len(x.shape))
    out[(*rest, j)] = td.any(a[(*rest, i, j)] >= least, axis=i)
    return _call(out, a=x)


def layer_norm(x: Any, gain: Any, shift: Any) -> Any:
    a, g, s, (i, j) = _input("a", x), _input("g", gain), _input("s", shift), _index(2)
    mean, var, out = td.Func("mean"), td.Func("var"), td.Func("layer_norm")
    mean[i] = td.mean(a[i, j], axis=j)
    var[i] = td.mean((a[i, j] - mean[i]) ** 2, axis=j)
    out[i, j] = (a[i, j] - mean[i]) * td.rsqrt(var[i] + 1e-5) * g[j] + s[j]
    return _call(out, a=x, g=gain, s=shift)


def layer_norm2d(x: Any, gain: Any, shift: Any) -> Any:
    """Over the channels of each pixel."""
    a, g, s, (n, c, y, q) = _input("a", x), _input("g", gain), _input("s", shift), _index(4)
    mean, var, out = td.Func("mean"), td.Func("var"), td.Func("layer_norm2d")
    mean[n, y, q] = td.mean(a[n, c, y, q], axis=c)
    var[n, y, q] = td.mean((a[n, c, y, q] - mean[n, y, q]) ** 2, axis=c)
    centred = (a[n, c, y, q] - mean[n, y, q]) * td.rsqrt(var[n, y, q] + 1e-5)
    out[n, c, y, q] = centred * g[c] + s[c]
    return _call(out, a=x, g=gain, s=shift)


def rms_norm(x: Any) -> Any:
    a, (i, j) = _input("a", x), _index(2)
    square, out = td.Func("square"), td.Func("rms_norm")
    square[i] = td.mean(a[i, j] ** 2, axis=j)
    out[i, j] = a[i, j] * td.rsqrt(square[i] + 1e-5)
    return _call(out, a=x)


def conv(x: Any, w: Any, step: int = 1) -> Any:
    """Windows of k x k around every `step`-th pixel, channels first."""
    a, b, out = _input("a", x), _input("b", w), td.Func("conv", shape=_shape(x, w.shape[0], step))
    n, c, f, r, s, y, q = td.vars("n c f r s y q")
    if w.shape[2:] == (1, 1):
        out[n, f, y, q] = td.sum(b[f, c, 0, 0] * a[n, c, step * y, step * q], axis=c)
    else:
        half, zero = w.shape[2] // 2, td.pad(a)
        read = zero[n, c, step * y + r - half, step * q + s - half]
        out[n, f, y, q] = td.sum(read * b[f, c, r, s], axis=(c, r, s))
    return _call(out, a=x, b=w)


def depthwise(x: Any, w: Any, step: int = 1) -> Any:
    """The same of each channel alone."""
    a, b = _input("a", x), _input("b", w)
    out = td.Func("depthwise", shape=_shape(x, x.shape[1], step))
    n, c, r, s, y, q = td.vars("n c r s y q")
    half, zero = w.shape[1] // 2, td.pad(a)
    read = zero[n, c, step * y + r - half, step * q + s - half]
    out[n, c, y, q] = td.sum(read * b[c, r, s], axis=(r, s))
    return _call(out, a=x, b=w)


def _shape(x: Any, channels: int, step: int) -> tuple[int, ...]:
    return (x.shape[0], channels, *((size - 1) // step + 1 for size in x.shape[2:]))


def max_pool(x: Any, size: int, step: int) -> Any:
    n, c, height, width = x.shape
    shape = (n, c, (height - size) // step + 1, (width - size) // step + 1)
    a, out = _input("a", x), td.Func("max_pool", shape=shape)
    n_, c_, y, q = td.vars("n c y q")
    r, s = td.range("r", 0, size), td.range("s", 0, size)
    out[n_, c_, y, q] = td.max(a[n_, c_, step * y + r, step * q + s], axis=(r, s))
    return _call(out, a=x)


def gate(x: Any) -> Any:
    """The product of the two halves of the channels."""
    return _halves("gate", lambda one, other: one * other, x)


def gelu_gate(x: Any) -> Any:
    """The same with a gelu of the first."""
    return _halves("gelu_gate", lambda a, b: a * 0.5 * (1 + td.erf(a * 0.5**0.5)) * b, x)


def _halves(name: str, f: Values, x: Any) -> Any:
    n, channels, *size = x.shape
    a, out, (n_, c, y, q) = (
        _input("a", x),
        td.Func(name, shape=(n, channels // 2, *size)),
        _index(4),
    )
    out[n_, c, y, q] = f(a[n_, c, y, q], a[n_, c + channels // 2, y, q])
    return _call(out, a=x)


def scale_channels(x: Any, scale: Any) -> Any:
    a, b, out, (n, c, y, q) = _input("a", x), _input("b", scale), td.Func("scaled"), _index(4)
    out[n, c, y, q] = a[n, c, y, q] * b[c]
    return _call(out, a=x, b=scale)


def pixel_shuffle(x: Any, by: int) -> Any:
    """Groups of `by` x `by` channels as pixels."""
    n, channels, height, width = x.shape
    shape = (n, channels // by**2, by * height, by * width)
    a, out, (n_, c, y, q) = _input("a", x), td.Func("pixel_shuffle", shape=shape), _index(4)
    out[n_, c, y, q] = a[n_, by * by * c + by * (y % by) + q % by, y // by, q // by]
    return _call(out, a=x)


def concat(parts: Sequence[Any]) -> Any:
    """Channels one after the other; all parts have as many."""
    n, channels, *size = parts[0].shape
    inputs = [_input(f"a{m}", part) for m, part in enumerate(parts)]
    out, (n_, c, y, q) = td.Func("concat", shape=(n, channels * len(parts), *size)), _index(4)
    value: Any = None
    for m, t in reversed([*enumerate(inputs)]):
        mine = t[n_, td.clip(c - channels * m, 0, channels - 1), y, q]
        value = mine if value is None else td.where(c < channels * (m + 1), mine, value)
    out[n_, c, y, q] = value
    return _call(out, **{t.name: part for t, part in zip(inputs, parts, strict=True)})


def decayed(similarity: Any, total: Any, dt: Any) -> Any:
    """Weights of a chunk of a scan: [c, t, u], [c, t, h] and [c, u, h] to [c, h, t, u]."""
    a, b, d = _input("a", similarity), _input("b", total), _input("d", dt)
    out, (c, h, t, u) = td.Func("decayed"), td.vars("c h t u")
    elapsed = td.where(u <= t, b[c, t, h] - b[c, u, h], -math.inf)
    out[c, h, t, u] = a[c, t, u] * td.exp(elapsed) * d[c, u, h]
    return _call(out, a=similarity, b=total, d=dt)


def left_over(total: Any, dt: Any) -> Any:
    """What is left of each step at the end of its chunk: [c, t, h] from [c, t, h]."""
    b, d, out, (c, t, h) = _input("b", total), _input("d", dt), td.Func("left_over"), _index(3)
    out[c, t, h] = td.exp(b[c, total.shape[1] - 1, h] - b[c, t, h]) * d[c, t, h]
    return _call(out, b=total, d=dt)


def times_steps(x: Any, steps: Any) -> Any:
    """[c, t, h, p] by a value for each [c, t, h]."""
    return _with_rows("times_steps", lambda a, b: a * b, x, steps)
