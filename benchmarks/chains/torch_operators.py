"""The operators of the chains by PyTorch, for its compiler."""

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as f

Tensor = Any  # of PyTorch, whose types need not be installed


def einsum(subscripts: str, x: Tensor, y: Tensor) -> Tensor:
    return torch.einsum(subscripts, x, y)


exp, tanh, relu, relu6, gelu, silu = torch.exp, torch.tanh, f.relu, f.relu6, f.gelu, f.silu


def row_max(x: Tensor) -> Tensor:
    return x.amax(-1)


def row_sum(x: Tensor) -> Tensor:
    return x.sum(-1)


def minus_rows(x: Tensor, rows: Tensor) -> Tensor:
    return x - rows[..., None]


def over_rows(x: Tensor, rows: Tensor) -> Tensor:
    return x / rows[..., None]


def softmax(x: Tensor) -> Tensor:
    return torch.softmax(x, -1)


def causal(x: Tensor) -> Tensor:
    i = torch.arange(x.shape[-2])[:, None]
    return torch.where(torch.arange(x.shape[-1]) <= i, x, -math.inf)


def column_sums(x: Tensor) -> Tensor:
    return x.sum(-2)


def any_above(x: Tensor, least: float) -> Tensor:
    return (x >= least).any(-2)


def layer_norm(x: Tensor, gain: Tensor, shift: Tensor) -> Tensor:
    return f.layer_norm(x, (x.shape[1],), gain, shift, 1e-5)


def layer_norm2d(x: Tensor, gain: Tensor, shift: Tensor) -> Tensor:
    centred = x - x.mean(1, keepdim=True)
    normal = centred * torch.rsqrt((centred * centred).mean(1, keepdim=True) + 1e-5)
    return normal * gain[:, None, None] + shift[:, None, None]


def rms_norm(x: Tensor) -> Tensor:
    return f.rms_norm(x, (x.shape[1],), None, 1e-5)


def conv(x: Tensor, w: Tensor, step: int = 1) -> Tensor:
    return f.conv2d(x, w, stride=step, padding=w.shape[2] // 2)


def depthwise(x: Tensor, w: Tensor, step: int = 1) -> Tensor:
    half = w.shape[1] // 2
    return f.conv2d(x, w[:, None], stride=step, padding=half, groups=x.shape[1])


def max_pool(x: Tensor, size: int, step: int) -> Tensor:
    return f.max_pool2d(x, size, step)


def gate(x: Tensor) -> Tensor:
    one, other = x.chunk(2, 1)
    return one * other


def gelu_gate(x: Tensor) -> Tensor:
    one, other = x.chunk(2, 1)
    return f.gelu(one) * other


def scale_channels(x: Tensor, scale: Tensor) -> Tensor:
    return x * scale[:, None, None]


def pixel_shuffle(x: Tensor, by: int) -> Tensor:
    return f.pixel_shuffle(x, by)


def concat(parts: Sequence[Tensor]) -> Tensor:
    return torch.cat(list(parts), 1)


def decayed(similarity: Tensor, total: Tensor, dt: Tensor) -> Tensor:
    t = torch.arange(total.shape[1])
    transposed = total.transpose(1, 2)
    elapsed = torch.where(t <= t[:, None], transposed[..., None] - transposed[..., None, :], -math.inf)
    return similarity[:, None] * torch.exp(elapsed) * dt.transpose(1, 2)[:, :, None]


def left_over(total: Tensor, dt: Tensor) -> Tensor:
    return torch.exp(total[:, -1:] - total) * dt


def times_steps(x: Tensor, steps: Tensor) -> Tensor:
    return x * steps[..., None]
