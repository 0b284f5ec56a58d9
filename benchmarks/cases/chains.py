"""Chains of products: attention, and two dense layers with what stands around them in a network."""

from typing import Any

import numpy as np
from scipy.special import erf

import tdsl as td
from benchmarks import jax_peers, torch_peers
from benchmarks.case import Array, Arrays, Case, kernel, within

HEADS, DEPTH = 16, 64
ROWS, WIDTH, HIDDEN = 1024, 768, 3072
EPSILON = 1e-5


def attention() -> td.Func:
    """softmax(q k^T / sqrt(D)) v, for each head."""
    h, i, j, k, e = td.vars("h i j k e")
    q, key, v = (td.Tensor(n, ("H", "S", "D"), td.f32) for n in ("q", "key", "v"))
    scores, most, p, total, out = (td.Func(n) for n in ("scores", "most", "p", "total", "out"))
    scores[h, i, j] = td.sum(q[h, i, k] * key[h, j, k], axis=k) / DEPTH**0.5
    most[h, i] = td.max(scores[h, i, j], axis=j)
    p[h, i, j] = td.exp(scores[h, i, j] - most[h, i])
    total[h, i] = td.sum(p[h, i, j], axis=j)
    out[h, i, e] = td.sum(p[h, i, j] * v[h, j, e], axis=j) / total[h, i]
    return out


def expected_attention(q: Array, key: Array, v: Array) -> Array:
    scores = q @ key.transpose(0, 2, 1) / DEPTH**0.5
    p = np.exp(scores - scores.max(-1, keepdims=True))
    return (p / p.sum(-1, keepdims=True)) @ v


def attention_case(size: int) -> Case:
    def inputs() -> Arrays:
        rng = np.random.default_rng(8)
        shape = (HEADS, size, DEPTH)
        return tuple(rng.standard_normal(shape, dtype=np.float32) for _ in range(3))

    def torch_attention(torch: Any, *operands: Any) -> Any:
        q, key, v = (x[None] for x in operands)
        return torch.nn.functional.scaled_dot_product_attention(q, key, v)[0]

    def jax_attention(jax: Any, *operands: Any) -> Any:
        q, key, v = (x.transpose(1, 0, 2)[None] for x in operands)
        return jax.nn.dot_product_attention(q, key, v)[0].transpose(1, 0, 2)

    return Case(
        name=f"attention-{size}",
        title=f"attention, {HEADS} heads, {size} x {DEPTH}",
        inputs=inputs,
        is_right=within(size * float(np.finfo(np.float32).eps), expected_attention),
        peers={
            "tdsl": kernel(lambda: td.compile(attention(), H=HEADS, S=size, D=DEPTH)),
            **torch_peers.peers(torch_attention),
            "jax": jax_peers.peer(jax_attention),
        },
        flops=4 * HEADS * size * size * DEPTH,
        group="attention",
    )


def mlp() -> td.Func:
    """Layer norm of x + gelu(x w1 + b1) w2 + b2."""
    i, j, k = td.vars("i j k")
    x = td.Tensor("x", ("M", "D"), td.f32)
    w1, b1 = td.Tensor("w1", ("D", "F"), td.f32), td.Tensor("b1", ("F",), td.f32)
    w2, b2 = td.Tensor("w2", ("F", "D"), td.f32), td.Tensor("b2", ("D",), td.f32)
    scale, shift = td.Tensor("scale", ("D",), td.f32), td.Tensor("shift", ("D",), td.f32)
    sums, hidden, y = td.Func("sums"), td.Func("hidden"), td.Func("y")
    mean, spread, out = td.Func("mean"), td.Func("spread"), td.Func("out")
    sums[i, j] = td.sum(x[i, k] * w1[k, j], axis=k) + b1[j]
    hidden[i, j] = sums[i, j] * (td.erf(sums[i, j] * 0.5**0.5) + 1) / 2
    y[i, j] = td.sum(hidden[i, k] * w2[k, j], axis=k) + b2[j] + x[i, j]
    mean[i] = td.sum(y[i, j], axis=j) / x.shape[1]
    spread[i] = td.sum((y[i, j] - mean[i]) ** 2, axis=j) / x.shape[1]
    normal = (y[i, j] - mean[i]) * td.rsqrt(spread[i] + EPSILON)
    out[i, j] = normal * scale[j] + shift[j]
    return out


def expected_mlp(x: Array, w1: Array, b1: Array, w2: Array, b2: Array, scale: Array, shift: Array) -> Array:
    sums = x @ w1 + b1
    y = sums * (erf(sums / 2**0.5) + 1) / 2 @ w2 + b2 + x
    normal = (y - y.mean(1, keepdims=True)) / np.sqrt(y.var(1, keepdims=True) + EPSILON)
    return normal * scale + shift


def mlp_inputs() -> Arrays:
    rng = np.random.default_rng(9)
    shapes = (
        (ROWS, WIDTH),
        (WIDTH, HIDDEN),
        (HIDDEN,),
        (HIDDEN, WIDTH),
        (WIDTH,),
        (WIDTH,),
        (WIDTH,),
    )
    scales = (1, WIDTH**-0.5, 1, HIDDEN**-0.5, 1, 1, 1)
    return tuple(
        rng.standard_normal(shape, dtype=np.float32) * np.float32(scale)
        for shape, scale in zip(shapes, scales, strict=True)
    )


def torch_mlp(torch: Any, *operands: Any) -> Any:
    x, w1, b1, w2, b2, scale, shift = operands
    f = torch.nn.functional
    y = torch.addmm(b2, f.gelu(torch.addmm(b1, x, w1)), w2) + x
    return f.layer_norm(y, (WIDTH,), scale, shift, EPSILON)


def jax_mlp(jax: Any, *operands: Any) -> Any:
    x, w1, b1, w2, b2, scale, shift = operands
    y = jax.nn.gelu(x @ w1 + b1, approximate=False) @ w2 + b2 + x
    centred = y - y.mean(1, keepdims=True)
    spread = (centred * centred).mean(1, keepdims=True)
    return centred * jax.lax.rsqrt(spread + EPSILON) * scale + shift


MLP = Case(
    name="mlp",
    title=f"dense {ROWS} x {WIDTH} x {HIDDEN}, gelu, dense, residual, layer norm",
    inputs=mlp_inputs,
    is_right=within(HIDDEN * float(np.finfo(np.float32).eps), expected_mlp),
    peers={
        "tdsl": kernel(lambda: td.compile(mlp(), M=ROWS, D=WIDTH, F=HIDDEN)),
        **torch_peers.peers(torch_mlp),
        "jax": jax_peers.peer(jax_mlp),
    },
    flops=4 * ROWS * WIDTH * HIDDEN,
    group="attention",
)

CASES = (attention_case(512), attention_case(2048), MLP)
