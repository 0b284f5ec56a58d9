"""All cases on a GPU, a line each. A new recipe is one more line, or the `schedule=` of one that is there."""

import math
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np

import tdsl as td
from benchmarks.case import Array
from benchmarks.cases import rows
from benchmarks.cuda import triton_peers
from benchmarks.cuda.case import GpuCase, Sizes

HEADS, DEPTH = 16, 128


@td.op
def add(a: td.f32["N"], b: td.f32["N"]):
    """The simplest of all."""
    i = td.vars("i")
    c = td.Func("c")
    c[i] = a[i] + b[i]
    return c


@td.op
def gelu_bias(x: td.f16["M", "N"], bias: td.f16["N"]):
    """A chain of element-wise operations, between halves in single precision."""
    i, j = td.vars("i j")
    y = td.Func("y")
    t = td.cast(x[i, j], td.f32) + td.cast(bias[j], td.f32)
    y[i, j] = td.cast(0.5 * t * (1 + td.erf(t * math.sqrt(0.5))), td.f16)
    return y


@td.op
def transpose(a: td.f32["M", "N"]):
    """Rows become columns."""
    i, j = td.vars("i j")
    t = td.Func("t")
    t[i, j] = a[j, i]
    return t


@td.op
def row_sums(a: td.f32["M", "N"]):
    """The sum of each row."""
    i, j = td.vars("i j")
    s = td.Func("s")
    s[i] = td.sum(a[i, j], axis=j)
    return s


@td.op
def five_points(a: td.f32["M", "N"]):
    """A step of Jacobi's method on the inner points."""
    i, j = td.vars("i j")
    f = td.Func("f")
    around = a[i, j + 1] + a[i + 2, j + 1] + a[i + 1, j] + a[i + 1, j + 2]
    f[i, j] = 0.25 * around
    return f


@td.op
def sgemm(a: td.f32["M", "K"], b: td.f32["K", "N"]):
    """A product of matrices in single precision."""
    i, j, k = td.vars("i j k")
    c = td.Func("c")
    c[i, j] = td.sum(a[i, k] * b[k, j], axis=k)
    return c


@td.op
def matmul(a: td.bf16["M", "K"], b: td.bf16["K", "N"]):
    """A product of matrices of bfloat16, summed in single precision."""
    i, j, k = td.vars("i j k")
    total, c = td.Func("total"), td.Func("c")
    total[i, j] = td.sum(td.cast(a[i, k], td.f32) * td.cast(b[k, j], td.f32), axis=k)
    c[i, j] = td.cast(total[i, j], td.bf16)
    return c


@td.op
def matmul_bytes(a: td.f8e4m3["M", "K"], b: td.f8e4m3["N", "K"]):
    """A product of matrices of 8-bit floats, both with the terms along rows."""
    i, j, k = td.vars("i j k")
    total, c = td.Func("total"), td.Func("c")
    total[i, j] = td.sum(td.cast(a[i, k], td.f32) * td.cast(b[j, k], td.f32), axis=k)
    c[i, j] = td.cast(total[i, j], td.bf16)
    return c


def _attention(q: Any, k: Any, v: Any, causal: bool) -> td.Func:
    h, i, j, d = td.vars("h i j d")
    score, e, result = td.Func("score"), td.Func("e"), td.Func("result")
    top, total, out = td.Func("top"), td.Func("total"), td.Func("out")
    dot = td.sum(td.cast(q[h, i, d], td.f32) * td.cast(k[h, j, d], td.f32), axis=d)
    raw = td.Func("raw")
    raw[h, i, j] = dot
    scaled = raw[h, i, j] * (1 / math.sqrt(DEPTH))
    score[h, i, j] = td.where(j <= i, scaled, -math.inf) if causal else scaled
    top[h, i] = td.max(score[h, i, j], axis=j)
    e[h, i, j] = td.exp(score[h, i, j] - top[h, i])
    if not causal:  # without infinities
        td.fast_math(e)
    total[h, i] = td.sum(e[h, i, j], axis=j)
    weight = td.cast(td.cast(e[h, i, j], td.bf16), td.f32)  # as the libraries round it
    out[h, i, d] = td.sum(weight * td.cast(v[h, j, d], td.f32), axis=j)
    result[h, i, d] = td.cast(out[h, i, d] / total[h, i], td.bf16)
    return result


@td.op
def attention(q: td.bf16["H", "S", DEPTH], k: td.bf16["H", "S", DEPTH], v: td.bf16["H", "S", DEPTH]):
    """softmax(q k') v for each head."""
    return _attention(q, k, v, causal=False)


@td.op
def causal_attention(q: td.bf16["H", "S", DEPTH], k: td.bf16["H", "S", DEPTH], v: td.bf16["H", "S", DEPTH]):
    """The same, where what comes later is not seen."""
    return _attention(q, k, v, causal=True)


@td.op
def conv(x: td.bf16["B", "H", "W", "C"], w: td.bf16[3, 3, "C", "F"]):
    """A convolution of 3 by 3, channels last."""
    b, y, x_, f = td.vars("b y x f")
    r, s, c = td.range("r", 0, 3), td.range("s", 0, 3), td.vars("c")
    total, out = td.Func("total"), td.Func("out")
    product = td.cast(x[b, y + r, x_ + s, c], td.f32) * td.cast(w[r, s, c, f], td.f32)
    total[b, y, x_, f] = td.sum(product, axis=(r, s, c))
    out[b, y, x_, f] = td.cast(total[b, y, x_, f], td.bf16)
    return out


def expected_attention(q: Array, k: Array, v: Array, causal: bool = False) -> Array:
    """By NumPy, a head at a time."""
    out = np.empty_like(q)
    for h in range(len(q)):
        score = q[h] @ k[h].T / np.sqrt(q.dtype.type(DEPTH))
        if causal:
            score[np.triu_indices(len(score), 1)] = -1e30
        e = np.exp(score - score.max(1, keepdims=True))
        out[h] = e @ v[h] / e.sum(1, keepdims=True)
    return out


def expected_conv(x: Array, w: Array) -> Array:
    """By NumPy, a tap at a time."""
    height, width = x.shape[1] - 2, x.shape[2] - 2
    taps = [(r, s) for r in range(3) for s in range(3)]
    return np.asarray(sum(x[:, r : r + height, s : s + width] @ w[r, s] for r, s in taps))


def torch_conv(torch: Any, x: Any, w: Any) -> Any:
    """By cuDNN, on the memory that channels-last tensors have."""
    out = torch.nn.functional.conv2d(x.permute(0, 3, 1, 2), w.permute(3, 2, 0, 1))
    return out.permute(0, 2, 3, 1)


def sdpa(backend: str, causal: bool) -> Any:
    """Attention by one of PyTorch's backends."""

    def run(torch: Any, q: Any, k: Any, v: Any) -> Any:
        sdp_backend = getattr(torch.nn.attention.SDPBackend, backend)
        with torch.nn.attention.sdpa_kernel([sdp_backend]):
            operands = (x.unsqueeze(0) for x in (q, k, v))
            return torch.nn.functional.scaled_dot_product_attention(*operands, is_causal=causal)[0]

    return run


def sdpas(causal: bool) -> dict[str, Any]:
    """All backends."""
    names = {
        "sdpa-flash": "FLASH_ATTENTION",
        "sdpa-cudnn": "CUDNN_ATTENTION",
        "sdpa-efficient": "EFFICIENT_ATTENTION",
    }
    return {name: sdpa(backend, causal) for name, backend in names.items()}


def products(s: Sizes) -> float:
    """Two operations for each product."""
    return 2.0 * s["M"] * s["N"] * s["K"]


def attended(share: float) -> Any:
    """Two products of matrices for each head, of which a share is needed."""
    return lambda s: share * 4.0 * s["H"] * s["S"] ** 2 * DEPTH


_WIDE = {"M": 32768, "N": 4096}
_HEADS = {"H": HEADS, "S": 8192}
_ROWS = {"softmax": rows.softmax, "rms_norm": rows.rms_norm, "gelu_norm": rows.gelu_norm}
_EXPECTED_ROWS = {
    "softmax": rows.expected_softmax,
    "rms_norm": rows.expected_rms_norm,
    "gelu_norm": rows.expected_gelu_norm,
}
_TORCH_ROWS = {
    "softmax": lambda torch, x: torch.softmax(x, -1),
    "rms_norm": lambda torch, x, gain: torch.nn.functional.rms_norm(x, x.shape[1:], gain, rows.EPS),
    "gelu_norm": rows.torch_gelu_norm,
}


def matrices(n: int) -> GpuCase:
    """A product of square matrices by the instructions of Hopper."""
    return GpuCase(
        f"matmul-bf16-{n}", f"product of matrices of {n} squared in bfloat16", matmul,
        sizes={"M": n, "N": n, "K": n}, small={"M": 256, "N": 256, "K": 128},
        expected=lambda a, b: a @ b, group="cuda-matmul", flops=products, schedule=by_wgmma,
        peers={"cublas": lambda torch, a, b: a @ b, **triton_peers.matmul},
    )  # fmt: skip


_LARGE = 4096  # rows and columns with enough tiles for all of a GPU


def by_wgmma(s: td.Schedule) -> None:
    """Tiles fetched as wholes for two groups of warps, in blocks that make several tiles each."""
    terms = 128 // s.program.inputs[0].dtype.bytes
    if s.sizes["M"] >= _LARGE:
        td.recipes.tensor_core_matmul(s["total"], warpgroups=True, group=8, blocks=128, cluster=2)
    else:
        td.recipes.tensor_core_matmul(s["total"], block=(128, 128, terms), warpgroups=True, blocks=2)


def scaled(torch: Any, a: Any, b: Any) -> Any:
    """cuBLAS for 8-bit floats, with scales of one."""
    one = torch.ones((), device=a.device)
    return torch._scaled_mm(a, b.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16)


def by_tensor_cores(s: td.Schedule) -> None:
    """Attention in one kernel."""
    td.recipes.online_tensor_cores(s["out"])


CASES = (
    GpuCase(
        "add", "sum of two arrays of 256 MB", add, sizes={"N": 1 << 26}, small={"N": 1000},
        expected=lambda a, b: a + b, group="cuda-memory", bound=True,
        peers={"torch": lambda torch, a, b: a + b},
    ),
    GpuCase(
        "gelu-bias", "gelu of halves and a bias", gelu_bias, sizes=_WIDE, small={"M": 9, "N": 200},
        expected=lambda x, bias: rows.gelu(x + bias), group="cuda-memory", bound=True,
        peers={"torch": lambda torch, x, bias: torch.nn.functional.gelu(x + bias)},
    ),
    GpuCase(
        "transpose", "transpose of 8192 squared", transpose, sizes={"M": 8192, "N": 8192},
        small={"M": 70, "N": 45}, expected=lambda a: a.T, group="cuda-memory", bound=True,
        peers={"torch": lambda torch, a: a.t().contiguous()},
    ),
    GpuCase(
        "row-sums", "sums of 32768 rows of 4096", row_sums, sizes=_WIDE, small={"M": 5, "N": 700},
        expected=lambda a: a.sum(1), group="cuda-memory", bound=True,
        peers={"torch": lambda torch, a: a.sum(1)},
    ),
    GpuCase(
        "five-points", "a step of Jacobi on 8192 squared", five_points, sizes={"M": 8194, "N": 8194},
        small={"M": 37, "N": 70}, group="cuda-memory", bound=True,
        expected=lambda a: (a[:-2, 1:-1] + a[2:, 1:-1] + a[1:-1, :-2] + a[1:-1, 2:]) / 4,
        peers={
            "torch": lambda torch, a: 0.25 * (a[:-2, 1:-1] + a[2:, 1:-1] + a[1:-1, :-2] + a[1:-1, 2:])
        },
    ),
    *(
        GpuCase(
            f"{name.replace('_', '-')}-{r}x{c}", f"{name.replace('_', ' ')} of {r} rows of {c}", _ROWS[name],
            sizes={"R": r, "C": c}, small={"R": 6, "C": 300}, expected=_EXPECTED_ROWS[name],
            group="cuda-rows", peers={"torch": _TORCH_ROWS[name], **triton_peers.rows(name)},
        )
        for name in _ROWS
        for r, c in ((32768, 1024), (4096, 16384))
    ),
    GpuCase(
        "sgemm-4096", "product of matrices of 4096 squared, no tensor cores", sgemm,
        sizes={"M": 4096, "N": 4096, "K": 4096}, small={"M": 100, "N": 70, "K": 36},
        expected=lambda a, b: a @ b, flops=products, peers={"cublas": lambda torch, a, b: a @ b},
    ),
    matrices(4096),
    matrices(8192),
    replace(
        matrices(4096), name="matmul-default-4096", title="the same by the default schedule",
        schedule=None, small={"M": 100, "N": 136, "K": 72}, group="",
    ),
    GpuCase(
        "matmul-f8-8192", "product of matrices of 8192 squared in f8e4m3", matmul_bytes,
        sizes={"M": 8192, "N": 8192, "K": 8192}, small={"M": 256, "N": 256, "K": 256},
        expected=lambda a, b: a.astype(np.float32) @ b.astype(np.float32).T, flops=products,
        schedule=by_wgmma, peers={"cublas": scaled},
    ),
    GpuCase(
        "attention", "attention, 16 heads of 8192 by 128", attention, sizes=_HEADS,
        small={"H": 2, "S": 72}, expected=expected_attention, group="cuda-attention",
        flops=attended(1.0), peers=sdpas(causal=False), schedule=by_tensor_cores,
    ),
    GpuCase(
        "attention-causal", "causal attention, 16 heads of 8192 by 128", causal_attention,
        sizes=_HEADS, small={"H": 2, "S": 72}, group="cuda-attention", flops=attended(0.5),
        expected=lambda q, k, v: expected_attention(q, k, v, causal=True), peers=sdpas(causal=True),
        schedule=by_tensor_cores,
    ),
    GpuCase(
        "conv-3x3", "convolution of 32 images of 56 by 56, 256 channels", conv,
        sizes={"B": 32, "H": 58, "W": 58, "C": 256, "F": 256},
        small={"B": 2, "H": 9, "W": 11, "C": 16, "F": 24}, expected=expected_conv,
        flops=lambda s: 2.0 * s["B"] * (s["H"] - 2) * (s["W"] - 2) * s["C"] * s["F"] * 9,
        peers={"cudnn": torch_conv},
    ),
)  # fmt: skip

ALL = MappingProxyType({case.name: case for case in CASES})
