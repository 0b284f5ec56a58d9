"""The pictures of the documentation: `python docs/pictures/draw.py` renews them."""

import math
from pathlib import Path

import tdsl as td
from tdsl.graph.drawing import memory_picture
from tdsl.tilegraph.graph import TileGraph


def attention() -> td.Func:
    """Attention of 512 queries and keys of 64 elements."""
    q, k, v = (td.Tensor(n, (512, 64), td.f32) for n in ("q", "k", "v"))
    score, top, p, total, out = (td.Func(n) for n in ("score", "top", "p", "total", "out"))
    t, s, e = td.vars("t s e")
    score[t, s] = td.sum(q[t, e] * k[s, e], axis=e) / math.sqrt(64)
    top[t] = td.max(score[t, s], axis=s)
    p[t, s] = td.exp(score[t, s] - top[t])
    total[t] = td.sum(p[t, s], axis=s)
    out[t, e] = td.sum(p[t, s] * v[s, e], axis=s) / total[t]
    return out


def perceptron(x, layers):
    """Layers with a residual each."""
    for w, bias in layers:
        x = x + ((x @ w + bias) ** 2).clip(0, 1) @ w.T
    return x


def pictures() -> dict[str, str]:
    """The text of each picture, by the name of its file."""
    graph = td.Graph(perceptron)
    layer = td.f32[256, 512], td.f32[512]
    plan = graph.plan(td.f32[64, 256], [layer] * 3)
    names = {r: plan.trace.calls[r.call].name for r in plan.results}
    return {
        "attention.svg": TileGraph.of(td.Schedule(attention()).program)._repr_svg_(),
        "memory.svg": memory_picture("perceptron", plan.memory, names, len(plan.steps)),
    }


if __name__ == "__main__":
    for name, text in pictures().items():
        (Path(__file__).parent / name).write_text(text + "\n")
