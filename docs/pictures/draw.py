"""The pictures of the documentation: `python -m docs.pictures.draw` renews them."""

import doctest
import math
import tempfile
from importlib.util import find_spec
from pathlib import Path

import tdsl as td
from tdsl.graph.drawing import memory_picture
from tdsl.tilegraph.graph import TileGraph
from tests.distribute.pipelined import chain


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


GALLERY = Path(__file__).parent.parent / "gallery"
NEEDS = {"torch_operator": "torch"}  # pages whose programs need an extra


def gallery_pages() -> list[Path]:
    """The pages of the gallery whose programs run here."""
    pages = sorted(p for p in GALLERY.glob("*.md") if p.stem != "index")
    return [p for p in pages if p.stem not in NEEDS or find_spec(NEEDS[p.stem])]


def run_page(page: Path) -> tuple[int, str]:
    """How many results of the program of a page are not what it shows, and the picture that it draws."""
    names: dict[str, object] = {}
    test = doctest.DocTestParser().get_doctest(page.read_text(), names, page.name, str(page), 0)
    runner = doctest.DocTestRunner(verbose=False, optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    failed = runner.run(test, clear_globs=False).failed
    return failed, str(test.globs["picture"])


ORDERS = {  # of four stages and eight steps, and how many stages each rank has
    "gpipe": (td.recipes.gpipe(4, 8), 1),
    "one_f_one_b": (td.recipes.one_f_one_b(4, 8), 1),
    "eager_one_f_one_b": (td.recipes.eager_one_f_one_b(4, 8), 1),
    "interleaved_one_f_one_b": (td.recipes.interleaved_one_f_one_b(4, 8, 2), 2),
}


def order_of_steps(name: str) -> str:
    """Four ranks over time in one of the orders; a message takes a quarter of the time of a step."""
    order, chunks = ORDERS[name]
    program = td.compile(chain(4, 8, chunks, order), target="python")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, f"{name}.svg")
        program.trace(path, latency=0.25, bandwidth=1e30, operations=10, memory=1e30)
        return path.read_text().rstrip()


def pictures() -> dict[str, str]:
    """The text of each picture, by the name of its file."""
    graph = td.Graph(perceptron)
    layer = td.f32[256, 512], td.f32[512]
    plan = graph.plan(td.f32[64, 256], [layer] * 3)
    names = {r: plan.trace.calls[r.call].name for r in plan.results}
    return {
        "attention.svg": TileGraph.of(td.Schedule(attention()).program)._repr_svg_(),
        "memory.svg": memory_picture("perceptron", plan.memory, names, len(plan.steps)),
        **{f"{name}.svg": order_of_steps(name) for name in ORDERS},
    }


if __name__ == "__main__":
    for name, text in pictures().items():
        (Path(__file__).parent / name).write_text(text + "\n")
    for page in gallery_pages():
        page.with_suffix(".svg").write_text(run_page(page)[1] + "\n")
