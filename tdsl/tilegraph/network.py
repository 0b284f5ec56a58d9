"""The network as the last level of memory: what a rank needs of a tile graph, and does not own, it receives.

The tile of a rank is the box of a func that it owns. From it follow, as at every other level, the boxes of
all that is computed in the tile and of what this reads; a func without a placement is computed by each rank
as far as it needs it.
"""

from __future__ import annotations

from tdsl.lang.bounds import upper
from tdsl.lang.expr import const
from tdsl.lang.regions import Box
from tdsl.placement.ownership import Box as Spans
from tdsl.placement.ownership import common, elements, owned
from tdsl.schedule.nest import State
from tdsl.tilegraph.graph import TileGraph


def received(state: State, rank: int) -> float:
    """The bytes that a rank receives where each placed func fetches at once what its own box needs.

    That is what plans have of schedules with `distribute(onto=...)` and nothing communicated in steps. The
    state has a grid, placements of all inputs and results, and sizes that are known.

    >>> import tdsl as td
    >>> from tdsl.schedule.bind import bind_state
    >>> i, x, y = td.vars("i"), td.Tensor("x", (40,), td.f32), td.Func("y", shape=(38,))
    >>> y[i] = x[i] + x[i + 1] + x[i + 2]
    >>> g = td.Grid(r=4)
    >>> s = td.Schedule(y).place(x, "n -> n", g).place(y, "n -> n", g)
    >>> [received(bind_state(s.state, {}), rank) for rank in range(4)]
    [8.0, 8.0, 8.0, 0.0]
    """
    graph, placed, grid = TileGraph.of_state(state), dict(state.placed), state.grid
    assert grid is not None, "a placement names a grid"
    at, moved = grid.coordinates(rank), 0.0
    own = {n: owned(p, grid, _spans(graph.boxes[n]), at) for n, p in placed.items()}
    for name, spans in own.items():
        if spans is None or not graph.program.has_func(name):
            continue
        group = {name} | {f.name for f in graph.program.funcs if f.name not in placed}
        tile = graph.propagate(group, {name: tuple((const(a), const(b - 1)) for a, b in spans)})
        for source in tile.reads:
            needed, mine = _spans(tile.boxes[source]), own[source]
            both = None if mine is None else common(needed, mine)
            points = elements(needed) - (elements(both) if both is not None else 0)
            moved += points * graph.element_bytes(source)
    return moved


def _spans(box: Box) -> Spans:
    """Constant bounds as first index and the one behind the last."""
    ends = ((upper(lo or const(0)) or 0, upper(hi or const(0)) or 0) for lo, hi in box)
    return tuple((lo, hi + 1) for lo, hi in ends)
