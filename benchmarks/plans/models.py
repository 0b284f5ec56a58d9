"""Programs that are planned: products, perceptrons, transformers with gradients and Adam."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import tdsl as td
from tdsl.lang.value import Variable

b, d, e, f, h, i, j, k, q, s = td.vars("b d e f h i j k q s")
Value = td.Tensor | td.Func


def _func(name: str, index: tuple[Variable, ...], value: object) -> td.Func:
    new = td.Func(name)
    new[index] = value
    return new


def adam(weights: Sequence[td.Tensor], gradients: Sequence[td.Func]) -> tuple[list[td.Func], dict[str, str]]:
    """The new weights and moments of a step of Adam, and the tensor as which each of them is placed."""
    news: list[td.Func] = []
    same: dict[str, str] = {}
    for W, g in zip(weights, gradients, strict=True):
        index = (i, j, k)[: len(W.shape)]
        m, v = (td.Tensor(f"{x}_{W.name}", W.shape, td.f32) for x in "mv")
        m2 = _func(f"new_m_{W.name}", index, 0.9 * m[index] + 0.1 * g[index])
        v2 = _func(f"new_v_{W.name}", index, 0.999 * v[index] + 0.001 * g[index] * g[index])
        step = 0.01 * m2[index] / (td.sqrt(v2[index]) + 1e-8)
        news += [_func(f"new_{W.name}", index, W[index] - step), m2, v2]
        same |= {f"new_{x}{W.name}": f"{x}{W.name}" for x in ("", "m_", "v_")}
    return news, same


def perceptron(batch: int, sizes: Sequence[int]) -> td.Schedule:
    """Layers with relu before each but the first."""
    X = td.Tensor("X", (batch, sizes[0]), td.f32)
    W = td.Tensor("W0", tuple(sizes[:2]), td.f32)
    y = _func("y0", (b, j), td.sum(X[b, i] * W[i, j], axis=i))
    for n, (rows, columns) in enumerate(itertools.pairwise(sizes[1:]), 1):
        W, x = td.Tensor(f"W{n}", (rows, columns), td.f32), _func(f"x{n}", (b, j), td.maximum(y[b, j], 0))
        y = _func(f"y{n}", (b, j), td.sum(x[b, i] * W[i, j], axis=i))
    return td.Schedule(y)


def normalised(x: Value, name: str, width: int) -> td.Func:
    """x divided by the root of the mean of its squares."""
    squares = _func(f"{name}_squares", (b, s), td.sum(x[b, s, d] * x[b, s, d], axis=d))
    return _func(name, (b, s, d), x[b, s, d] / td.sqrt(squares[b, s] / float(width) + 1e-5))


def block(
    x: Value, name: str, rows: int, width: int, heads: int, inner: int
) -> tuple[td.Func, list[td.Tensor]]:
    """A block of a transformer, and its weights: attention over heads, a perceptron of two layers."""
    each = width // heads
    weights = [td.Tensor(f"{name}_{w}", (width, heads, each), td.f32) for w in ("Wq", "Wk", "Wv")]
    before = normalised(x, f"{name}_n1", width)
    query, key, value = (
        _func(f"{name}_{n}", (b, s, h, e), td.sum(before[b, s, d] * W[d, h, e], axis=d))
        for n, W in zip(("q", "k", "v"), weights, strict=True)
    )
    score = _func(f"{name}_score", (b, h, q, k), td.sum(query[b, q, h, e] * key[b, k, h, e], axis=e))
    weight = _func(f"{name}_exp", (b, h, q, k), td.exp(score[b, h, q, k] * each**-0.5))
    total = _func(f"{name}_total", (b, h, q), td.sum(weight[b, h, q, k], axis=k))
    share = _func(f"{name}_share", (b, h, q, k), weight[b, h, q, k] / total[b, h, q])
    mixed = _func(f"{name}_mixed", (b, q, h, e), td.sum(share[b, h, q, k] * value[b, k, h, e], axis=k))
    Wo = td.Tensor(f"{name}_Wo", (heads, each, width), td.f32)
    out = _func(f"{name}_attended", (b, s, d), td.sum(mixed[b, s, h, e] * Wo[h, e, d], axis=[h, e]))
    x1 = _func(f"{name}_x1", (b, s, d), x[b, s, d] + out[b, s, d])
    W1, W2 = td.Tensor(f"{name}_W1", (width, inner), td.f32), td.Tensor(f"{name}_W2", (inner, width), td.f32)
    again = normalised(x1, f"{name}_n2", width)
    hidden = _func(f"{name}_hidden", (b, s, f), td.sum(again[b, s, d] * W1[d, f], axis=d))
    relu = _func(f"{name}_relu", (b, s, f), td.maximum(hidden[b, s, f], 0))
    y = _func(f"{name}_y", (b, s, d), td.sum(relu[b, s, f] * W2[f, d], axis=f))
    x2 = _func(f"{name}_x2", (b, s, d), x1[b, s, d] + y[b, s, d])
    return x2, [*weights, Wo, W1, W2]


def transformer(
    layers: int, batch: int = 8, rows: int = 1024, width: int = 1024, heads: int = 16
) -> tuple[td.Schedule, dict[str, str]]:
    """A step of training of a transformer with Adam, and the tensor as which each new weight is placed."""
    shape = (batch, rows, width)
    value: Value = td.Tensor("X", shape, td.f32)
    weights = []
    for n in range(layers):
        value, new = block(value, f"l{n}", rows, width, heads, 4 * width)
        weights += new
    assert isinstance(value, td.Func)
    gradients = td.vjp(value, weights, seed=td.Tensor("seed", shape, td.f32))
    news, same = adam(weights, gradients)
    return td.Schedule(*news), same
