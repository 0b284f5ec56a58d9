"""Drawings of graphs as SVG, which needs no other program."""

from __future__ import annotations

from tdsl.core.node import frozen
from tdsl.core.svg import COLOURS
from tdsl.core.svg import svg as picture

WIDE, HIGH, BETWEEN, BELOW = 110, 30, 30, 58  # of a node, and between nodes, in pixels
LETTER, LINE = 6.5, 12  # the width of a letter, at most, and the height of a line


@frozen
class Arrow:
    """An edge: what is read, by whom, the label of the arrow, and whether it is highlighted."""

    producer: str
    consumer: str
    label: str
    coloured: bool


@frozen
class Drawing:
    """What is drawn of a graph: nodes by name with their captions, inputs first, and arrows between them.

    `nodes` are in an order in which each comes after what it reads. Nodes of one group share a colour.
    """

    name: str
    inputs: tuple[str, ...]
    nodes: dict[str, str]
    groups: tuple[tuple[str, ...], ...]
    arrows: tuple[Arrow, ...]


def svg(graph: Drawing) -> str:
    """The graph as SVG: each func below what it reads, funcs of one group in one colour, bytes on edges.

    >>> import tdsl as td
    >>> from tdsl.tilegraph.graph import TileGraph
    >>> i, a, f, g = td.vars("i"), td.Tensor("a", (100,), td.f32), td.Func("f"), td.Func("g")
    >>> f[i] = td.exp(a[i])
    >>> g[i] = f[i] + 1
    >>> text = svg(TileGraph.of(td.Schedule(g).program).drawing())
    >>> text.count("<rect"), text.count("<path"), "400 B" in text
    (3, 2, True)
    """
    from html import escape  # imported lazily: only pictures need it

    at = _places(graph)
    width = max(x for x, _ in at.values()) + WIDE + BETWEEN
    height = max(y for _, y in at.values()) + HIGH + BETWEEN
    colour = {
        name: COLOURS[n % len(COLOURS)]
        for n, group in enumerate(g for g in graph.groups if len(g) > 1)
        for name in group
    }
    lines = [
        (
            '<defs><marker id="end" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7"'
            ' orient="auto"><polygon points="0 0, 8 4, 0 8"/></marker></defs>'
        ),
    ]
    labels: list[tuple[float, float, float]] = []  # the middle and half the width of each label
    for e in graph.arrows:
        if e.producer in at and e.consumer in at:
            lines += _edge(e, at, labels)
    for name, (x, y) in at.items():
        round_ = 0 if name in graph.inputs else 8
        lines.append(
            f'<rect x="{x}" y="{y}" width="{WIDE}" height="{HIGH}" rx="{round_}"'
            f' fill="{colour.get(name, "#ffffff")}" stroke="#444444"/>'
        )
        middle = x + WIDE // 2
        lines.append(f'<text x="{middle}" y="{y + 13}">{escape(name)}</text>')
        lines.append(f'<text x="{middle}" y="{y + 25}" fill="#666666">{escape(graph.nodes[name])}</text>')
    return picture(width, height, lines, attributes='text-anchor="middle"')


def _places(graph: Drawing) -> dict[str, tuple[int, int]]:
    """The corner of each node: rows by the longest path from an input, in a row close to what it reads."""
    row: dict[str, int] = {}
    for name in graph.nodes:
        before = [e.producer for e in graph.arrows if e.consumer == name and e.producer in row]
        row[name] = max((row[n] + 1 for n in before), default=0)
    at: dict[str, tuple[int, int]] = {}
    for y in range(max(row.values(), default=0) + 1):
        here = sorted((n for n in graph.nodes if row[n] == y), key=lambda n: _above(graph, n, at))
        for x, name in enumerate(here):
            at[name] = (BETWEEN + x * (WIDE + BETWEEN), BETWEEN + y * (HIGH + BELOW))
    return at


def _above(graph: Drawing, name: str, at: dict[str, tuple[int, int]]) -> float:
    """The mean position of what a func reads."""
    places = [at[e.producer][0] for e in graph.arrows if e.consumer == name and e.producer in at]
    return sum(places) / max(len(places), 1)


def _edge(e: Arrow, at: dict[str, tuple[int, int]], labels: list[tuple[float, float, float]]) -> list[str]:
    """An arrow and its label, which is lower than in the middle of the arrow where another label is."""
    (x, y), (to, end) = at[e.producer], at[e.consumer]
    x, to, y = x + WIDE // 2, to + WIDE // 2, y + HIGH
    bend = x + (4 * WIDE // 5 if x == to and end - y > BELOW else 0)  # around what is between
    middle, down, half = (x + to) / 2 + (bend - x), (y + end) / 2, LETTER * len(e.label) / 2
    while any(abs(middle - a) < half + c and abs(down - b) < LINE for a, b, c in labels):
        down += LINE
    labels.append((middle, down, half))
    return [
        (
            f'<path d="M {x} {y} C {bend} {y + BELOW // 2}, {bend + to - x} {end - BELOW // 2}, {to} {end}"'
            f' fill="none" stroke="{"#2a7" if e.coloured else "#888"}" marker-end="url(#end)"/>'
        ),
        f'<text x="{middle:.0f}" y="{down:.0f}" fill="#2255aa">{e.label}</text>',
    ]
