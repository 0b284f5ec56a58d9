"""A convolution of arrays of a graph, as one operator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tdsl.graph.elementwise import index_variables, record_call
from tdsl.graph.symbol import Symbol
from tdsl.lang import reduction
from tdsl.lang.casts import cast
from tdsl.lang.pad import pad
from tdsl.lang.tensor import Func, Tensor
from tdsl.lang.types import from_numpy, promote
from tdsl.lang.value import vars


def convolution(
    x: Any, weight: Any, bias: Any, *, strides: Sequence[int], before: Sequence[int], after: Sequence[int],
    dilations: Sequence[int], groups: int = 1,
) -> Any:  # fmt: skip
    """The correlation of x[batch, channel, *points] with weight[channel out, channel in, *window].

    `before` and `after` are zeros added to each axis of points; `groups` divide the channels: each group of
    channels out reads its own part of the channels in. `bias`, by channel out, may be None. Arrays that are
    all known are computed at once.
    """
    axes = range(x.ndim - 2)
    shape = [
        (x.shape[n + 2] + before[n] + after[n] - dilations[n] * (weight.shape[n + 2] - 1) - 1) // strides[n]
        + 1
        for n in axes
    ]
    a, w = (Tensor(name, v.shape, from_numpy(v.dtype)) for name, v in (("a", x), ("w", weight)))
    inputs = {a: x, w: weight}
    at, c = index_variables(x.ndim), vars("c")
    window: list[Any] = [vars(f"w{n}") for n in axes]
    batch, channel, *points = at
    per_group, of_group = weight.shape[0] // groups, weight.shape[1]
    source = pad(a, mode="constant") if any(before) or any(after) else a
    read = [points[n] * strides[n] + window[n] * dilations[n] - before[n] for n in axes]
    first = channel // per_group * of_group if groups > 1 else 0
    y = Func("convolution", shape=(x.shape[0], weight.shape[0], *shape))
    result = promote(a.dtype, w.dtype)
    products = source[(batch, first + c, *read)] * w[(channel, c, *window)]
    value = cast(reduction.sum(products, axis=(c, *window), dtype=result.summed), result)
    if bias is not None:
        t = Tensor("b", bias.shape, from_numpy(bias.dtype))
        inputs[t] = bias
        value = value + t[channel]
    y[at] = value
    trace = next((v.trace for v in inputs.values() if isinstance(v, Symbol)), None)
    return record_call(trace, y, inputs)
