"""Gradients of a layer norm, a transformer block and a ResNet block by all inputs, forward pass included."""

import math
import os
from collections.abc import Callable
from typing import Any

import numpy as np

import tdsl as td
from benchmarks import torch_peers
from benchmarks.case import Array, Arrays, Call, Case, Converted, PeerMissing, Prepare, kernel
from tdsl.lang.bounds import upper

EPS = 1e-5
ROWS, COLUMNS = 4096, 1024
T, D, HEADS = 256, 256, 4
N, C, MID, SIZE = 4, 64, 32, 28


def norm(x: Any, gain: Any, shift: Any, name: str) -> td.Func:
    """The layer norm of rows."""
    t, d = td.vars("t d")
    mean, var, y = td.Func(f"{name}_mean"), td.Func(f"{name}_var"), td.Func(name)
    mean[t] = td.mean(x[t, d], axis=d)
    var[t] = td.mean((x[t, d] - mean[t]) ** 2, axis=d)
    y[t, d] = (x[t, d] - mean[t]) * td.rsqrt(var[t] + EPS) * gain[d] + shift[d]
    return y


def linear(x: Any, w: Any, bias: Any, name: str) -> td.Func:
    """A product of matrices, with a bias."""
    t, k, n = td.vars("t k n")
    y = td.Func(name)
    y[t, n] = td.sum(x[t, k] * w[k, n], axis=k) + bias[n]
    return y


@td.op
def layer_norm(x: td.f32[ROWS, COLUMNS], gain: td.f32[COLUMNS], shift: td.f32[COLUMNS]):
    """The layer norm of rows."""
    return norm(x, gain, shift, "y")


@td.op
def transformer(
    x: td.f32[T, D], gain1: td.f32[D], shift1: td.f32[D], qkv: td.f32[D, 3 * D], qkv_bias: td.f32[3 * D],
    proj: td.f32[D, D], proj_bias: td.f32[D], gain2: td.f32[D], shift2: td.f32[D], up: td.f32[D, 4 * D],
    up_bias: td.f32[4 * D], down: td.f32[4 * D, D], down_bias: td.f32[D],
):  # fmt: skip
    """Causal attention over heads and a perceptron of two layers, each behind a layer norm."""
    h, t, s, d = td.vars("h t s d")
    width = D // HEADS
    z = linear(norm(x, gain1, shift1, "h1"), qkv, qkv_bias, "z")
    top, p, total = td.Func("top"), td.Func("p"), td.Func("total")
    e = td.range("e", 0, width)
    past = td.sum(z[t, h * width + e] * z[s, D + h * width + e], axis=e) / math.sqrt(width)
    score = td.Func("score", shape=(HEADS, T, T))
    score[h, t, s] = td.where(s <= t, past, -math.inf)
    top[h, t] = td.max(score[h, t, s], axis=s)
    p[h, t, s] = td.exp(score[h, t, s] - top[h, t])
    total[h, t] = td.sum(p[h, t, s], axis=s)
    heads = td.Func("heads", shape=(T, D))
    r = td.range("r", 0, T)
    heads[t, d] = td.sum(p[d // width, t, r] * z[r, 2 * D + d], axis=r) / total[d // width, t]
    x1, y = td.Func("x1"), td.Func("y")
    projected = linear(heads, proj, proj_bias, "projected")
    x1[t, d] = x[t, d] + projected[t, d]
    u, g = linear(norm(x1, gain2, shift2, "h2"), up, up_bias, "u"), td.Func("g")
    g[t, d] = 0.5 * u[t, d] * (1 + td.erf(u[t, d] * math.sqrt(0.5)))
    last = linear(g, down, down_bias, "last")
    y[t, d] = x1[t, d] + last[t, d]
    return y


@td.op
def bottleneck(
    x: td.f32[N, C, SIZE, SIZE], w1: td.f32[MID, C], w2: td.f32[MID, MID, 3, 3], w3: td.f32[C, MID],
    gain1: td.f32[MID], gain2: td.f32[MID], gain3: td.f32[C],
):  # fmt: skip
    """Convolutions of 1x1, 3x3 and 1x1, scaled by channel, beside a shortcut."""
    n, c, f, r, s, v, q = td.vars("n c f r s v q")
    h1, h2, y = td.Func("h1"), td.Func("h2", shape=(N, MID, SIZE, SIZE)), td.Func("y")
    h1[n, f, v, q] = td.maximum(td.sum(x[n, c, v, q] * w1[f, c], axis=c) * gain1[f], 0)
    zero = td.pad(h1)
    h2[n, f, v, q] = td.maximum(
        td.sum(zero[n, c, v + r - 1, q + s - 1] * w2[f, c, r, s], axis=(c, r, s)) * gain2[f], 0
    )
    y[n, f, v, q] = td.maximum(td.sum(h2[n, c, v, q] * w3[f, c], axis=c) * gain3[f] + x[n, f, v, q], 0)
    return y


def torch_layer_norm(torch: Any, x: Any, gain: Any, shift: Any) -> Any:
    """By PyTorch."""
    return torch.nn.functional.layer_norm(x, x.shape[-1:], gain, shift, EPS)


def torch_transformer(torch: Any, x: Any, *w: Any) -> Any:
    """By PyTorch."""
    gain1, shift1, qkv, qkv_bias, out, out_bias, gain2, shift2, up, up_bias, down, down_bias = w
    h = torch_layer_norm(torch, x, gain1, shift1) @ qkv + qkv_bias
    q, k, v = h.reshape(T, 3, HEADS, D // HEADS).permute(1, 2, 0, 3)
    heads = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    x = x + heads.permute(1, 0, 2).reshape(T, D) @ out + out_bias
    h = torch_layer_norm(torch, x, gain2, shift2) @ up + up_bias
    return x + torch.nn.functional.gelu(h) @ down + down_bias


def torch_bottleneck(torch: Any, x: Any, w1: Any, w2: Any, w3: Any, *gains: Any) -> Any:
    """By PyTorch."""
    conv = torch.nn.functional.conv2d
    g1, g2, g3 = (g[:, None, None] for g in gains)
    h = torch.relu(conv(x, w1[:, :, None, None]) * g1)
    h = torch.relu(conv(h, w2, padding=1) * g2)
    return torch.relu(conv(h, w3[:, :, None, None]) * g3 + x)


def torch_peer(forward: Callable[..., Any], compiled: bool) -> Prepare:
    """The gradients of `forward` by all inputs but the last, which is the adjoint of its result."""

    def prepare(arrays: Arrays) -> Call:
        try:
            import torch
        except ImportError:
            raise PeerMissing("pip install torch") from None
        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", os.cpu_count() or 1)))
        torch.set_grad_enabled(True)
        *inputs, seed = (torch_peers.tensor(torch, a) for a in arrays)
        leaves = [t.requires_grad_() for t in inputs]

        def run(*tensors: Any) -> Any:
            return forward(torch, *tensors)

        called = torch.compile(run, dynamic=False) if compiled else run
        return Converted(
            lambda: torch.autograd.grad(called(*leaves), leaves, seed),
            lambda result: torch_peers.array(torch, result),
        )

    return prepare


def slope_agrees(op: td.Operator) -> Callable[[Any, Arrays], bool]:
    """A judge: the gradients along a random direction are the central difference of the program in f32."""

    def is_right(result: Any, arrays: Arrays) -> bool:
        *inputs, seed = arrays
        rng, forward = np.random.default_rng(1), td.compile(op.schedule())
        slope = by_differences = 0.0
        for n, (x, g) in enumerate(zip(inputs, result, strict=True)):
            step = np.sign(g) * rng.uniform(0, 1, x.shape).astype(np.float32)
            h = 1e-2 / max(1.0, float(np.abs(step * g).sum()) ** 0.5)
            up, down = ([*inputs[:n], x + s * np.float32(h) * step, *inputs[n + 1 :]] for s in (1, -1))
            difference = forward(*up).astype(np.float64) - forward(*down)
            slope += float(np.sum(g.astype(np.float64) * step))
            by_differences += float(np.sum(difference * seed)) / (2 * h)
        return abs(slope - by_differences) <= 0.02 * abs(slope)

    return is_right


def case(name: str, title: str, op: td.Operator, forward: Callable[..., Any], flops: float) -> Case:
    """The gradients of an operator by all of its inputs."""
    program = op.program
    backward = td.vjp(op, [t.name for t in program.inputs])

    def inputs() -> Arrays:
        rng = np.random.default_rng(0)

        def array(shape: tuple[int, ...]) -> Array:
            scale = 1 / math.sqrt(shape[0]) if len(shape) > 1 and shape != shapes[0] else 1
            return (rng.standard_normal(shape) * scale).astype(np.float32)

        shapes = [tuple(upper(e) or 0 for e in t.shape) for t in backward.program.inputs]
        return tuple(map(array, shapes))

    return Case(
        name,
        title,
        inputs,
        slope_agrees(op),
        {
            "tdsl": kernel(backward.compile),
            "torch": torch_peer(forward, compiled=False),
            "torch-compile": torch_peer(forward, compiled=True),
        },
        flops,
        group="gradients",
    )


CASES = (
    case("layer_norm_backward", "Layer norm backward, 4096 x 1024", layer_norm, torch_layer_norm, 0),
    case("transformer_backward", "Transformer block backward, 256 x 256", transformer, torch_transformer, 0),
    case("resnet_backward", "ResNet bottleneck backward, 4 x 64 x 28 x 28", bottleneck, torch_bottleneck, 0),
)
