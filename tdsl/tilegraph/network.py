"""The network as outermost memory level: a rank receives what its tiles read and it does not own.

The tile of a rank is the box of a func that it owns. From it follow, as at every other level, the boxes of
all funcs computed in the tile and of all that they read; a func that has no placement is computed by each
rank that needs it, in the box that it needs.
"""

from __future__ import annotations

from dataclasses import replace

from tdsl.cost.network import Received
from tdsl.lang.bounds import upper
from tdsl.lang.expr import const
from tdsl.lang.regions import Box
from tdsl.placement.ownership import SpanBox, element_count, intersection, owned
from tdsl.schedule.state import State
from tdsl.tilegraph.graph import TileGraph


def received(state: State, rank: int) -> float:
    """The bytes that a rank receives if each placed func fetches at once all that its own box needs.

    As in plans of schedules with `distribute(onto=...)` and nothing communicated in steps. The state has a
    grid, placements of all inputs and results, and known sizes.

    >>> import tdsl as td
    >>> from tdsl.schedule.bind import bind_state
    >>> i, x, y = td.vars("i"), td.Tensor("x", (40,), td.f32), td.Func("y", shape=(38,))
    >>> y[i] = x[i] + x[i + 1] + x[i + 2]
    >>> g = td.Grid(r=4)
    >>> s = td.Schedule(y).place(x, "n -> n", g).place(y, "n -> n", g)
    >>> [received(bind_state(s.state, {}), rank) for rank in range(4)]
    [8.0, 8.0, 8.0, 0.0]
    """
    graph = TileGraph.of_state(state)
    return _received(graph, _owned(graph), rank).bytes


def busiest_rank(state: State) -> Received | None:
    """The largest receive of a rank, and per func the most points a rank computes.

    None if an input or a result has no placement.
    """
    program, placed = state.program, dict(state.placed)
    if state.grid is None or not {t.name for t in program.inputs} | {*program.outputs} <= {*placed}:
        return None
    graph = TileGraph.of_state(state)
    every = _owned(graph)
    each = [_received(graph, every, rank) for rank in range(state.grid.size)]
    counts = [dict(r.computed) for r in each]
    computed = {n: max(c.get(n, 0) for c in counts) for n in dict.fromkeys(n for c in counts for n in c)}
    return replace(max(each, key=lambda r: r.bytes), computed=tuple(computed.items()))


def _owned(graph: TileGraph) -> list[dict[str, SpanBox | None]]:
    """By rank, the box that it owns of each func and input that is placed and needed."""
    grid = graph.state.grid
    assert grid is not None, "a placement names a grid"
    placed = [(n, p, _spans(graph.boxes[n])) for n, p in graph.state.placed if n in graph.boxes]
    return [
        {n: owned(p, grid, whole, grid.coordinates(rank)) for n, p, whole in placed}
        for rank in range(grid.size)
    ]


def _received(graph: TileGraph, every: list[dict[str, SpanBox | None]], rank: int) -> Received:
    """What a rank receives and computes. `every`: boxes owned, by rank."""
    free = {f.name for f in graph.program.funcs}.difference(n for n, _ in graph.state.placed)
    moved: dict[str, float] = {}
    computed: dict[str, int] = {}
    messages = 0
    for name, spans in every[rank].items():
        if spans is None or not graph.program.has_func(name):
            continue
        box = tuple((const(a), const(b - 1)) for a, b in spans)
        tile = graph.propagate({name} | free, {name: box})
        for member in tile.members:
            computed[member] = computed.get(member, 0) + element_count(_spans(tile.boxes[member]))
        for source in tile.reads:
            needed, mine = _spans(tile.boxes[source]), every[rank][source]
            both = None if mine is None else intersection(needed, mine)
            points = element_count(needed) - (element_count(both) if both is not None else 0)
            moved[source] = moved.get(source, 0.0) + points * graph.element_bytes(source)
            if points:
                theirs = {boxes[source] for boxes in every} - {mine, None}
                messages += sum(intersection(needed, box) is not None for box in theirs if box)
    return Received(rank, len(every), tuple(moved.items()), messages, tuple(computed.items()))


def _spans(box: Box) -> SpanBox:
    """A box with constant bounds as half-open spans."""
    ends = ((upper(lo or const(0)) or 0, upper(hi or const(0)) or 0) for lo, hi in box)
    return tuple((lo, hi + 1) for lo, hi in ends)
