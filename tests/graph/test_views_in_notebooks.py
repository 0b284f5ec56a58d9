"""What notebooks show of graphs, plans and operators."""

import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import numpy as np
import pytest

import tdsl as td
from tdsl.errors import ShapeError

i = td.vars("i")


@td.op
def scale(x: td.f32["N"], factor: td.f32):
    """The elements times a factor."""
    y = td.Func("y")
    y[i] = x[i] * factor
    return y


def chain(x):
    for _ in range(3):
        x = np.cumsum(x)
    return x


class Balance(HTMLParser):
    """Counts the tags that are open."""

    def __init__(self, text):
        super().__init__()
        self.stack = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.stack.append(tag)

    def handle_endtag(self, tag):
        assert self.stack.pop() == tag


def picture(page):
    return ElementTree.fromstring(re.search(r"<svg .*</svg>", page, re.S)[0])


def test_a_graph_shows_its_plan_and_its_memory():
    graph = td.Graph(chain)
    assert "none yet" in graph._repr_html_()
    graph(np.ones(1000, np.float32))
    page = graph._repr_html_()
    assert not Balance(page).stack
    assert "3 calls in 3 groups" in page
    assert "for f_i in" in page or "for " in page
    svg = "{http://www.w3.org/2000/svg}"
    rectangles = picture(page).findall(f".//{svg}rect")
    titles = [t.text for t in picture(page).findall(f"./{svg}g/{svg}title")]
    assert len(rectangles) == len(graph.memory.offsets) == 2
    assert titles == ["cumsum: 4.00 kB, steps 0 to 1", "cumsum: 4.00 kB, steps 1 to 2"]


def test_rectangles_of_results_that_live_at_once_do_not_overlap():
    graph = td.Graph(lambda x: np.cumsum(np.cumsum(x) + np.cumsum(x[::-1])) + np.cumprod(x))
    graph(np.ones(5000, np.float32))
    boxes = [
        tuple(float(r.get(n)) for n in ("x", "y", "width", "height"))
        for r in picture(graph._repr_html_()).iter("{http://www.w3.org/2000/svg}rect")
    ]
    assert len(boxes) > 2
    for n, (x, y, w, h) in enumerate(boxes):
        for u, v, p, q in boxes[:n]:
            assert x + w <= u or u + p <= x or y + h <= v + 0.1 or v + q <= y + 0.1


def test_loops_of_a_step():
    graph = td.Graph(lambda x: np.cumsum(np.exp(x)) + np.sum(x))
    with pytest.raises(ShapeError, match="has no plan"):
        graph.loops()
    plan = graph.plan(td.f32[64])
    assert str(graph.loops()).count("def ") == len(plan.steps)
    assert str(graph.loops(0)) in str(graph.loops())
    with pytest.raises(ShapeError, match=f"has {len(plan.steps)} steps, and no step 7"):
        graph.loops(7)


def test_a_graph_without_results_between_kernels_has_an_empty_picture():
    graph = td.Graph(lambda x: x + 1)
    graph(np.ones(0, np.float32))
    assert picture(graph._repr_html_()).findall(".//{http://www.w3.org/2000/svg}rect") == []


def test_an_operator_shows_its_program():
    page = scale._repr_html_()
    assert not Balance(page).stack
    assert "y[i] = x[i] * factor" in page
    assert "The elements times a factor." in page
