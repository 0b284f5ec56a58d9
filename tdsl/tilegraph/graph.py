"""The tile graph: funcs that are computed tile by tile, joined by edges at levels of memory.

A node is a func, an edge what one func reads of another or of an input. An edge is kept at a level of memory:
at level 0, the last one, all of the producer is there before its consumer begins; further in, both belong
to one group, which is computed tile by tile. From the tile of what a group gives follow the tiles of all
its members (`propagate`), and from these the bytes that it moves (`traffic`). Every box is an answer of the
region function.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import prod
from typing import Protocol

from tdsl.core.node import frozen
from tdsl.core.source import here
from tdsl.core.text import in_bytes
from tdsl.cost.moved import bytes_in_runs
from tdsl.cost.predict import Prediction
from tdsl.errors import ScheduleError, ShapeError, did_you_mean
from tdsl.lang.access_boxes import propagate, reads_of_func
from tdsl.lang.bounds import NO_FACTS, upper
from tdsl.lang.definition import Definition
from tdsl.lang.expr import const
from tdsl.lang.program import Program, bind_sizes
from tdsl.lang.regions import Box, Interval, restrict_ranges
from tdsl.lang.sizes import check_sizes
from tdsl.schedule.bounds_inference import box_with_updates, variable_ranges
from tdsl.schedule.properties import element_bytes, extent, root_boxes, shape_of, unplaced_at_root, volume
from tdsl.schedule.state import State, initial_state
from tdsl.tilegraph.drawing import Arrow, Drawing, svg


class Predicted(Protocol):
    """A schedule whose memory levels can be predicted, such as `td.Schedule`."""

    def prediction(self) -> Prediction:
        """The prediction for the completed schedule."""
        ...


@frozen
class Edge:
    """What `consumer` reads of `producer`, which lives at a level: 0 is the last, larger ones are nearer."""

    producer: str
    consumer: str
    level: int = 0


@frozen
class Tile:
    """A group that computes a tile: the box of each of its members and of all that they read.

    `reads` are inputs and funcs of other groups, `writes` the members that others need.
    """

    members: tuple[str, ...]
    boxes: Mapping[str, Box]
    reads: tuple[str, ...]
    writes: tuple[str, ...]

    def shape(self, name: str) -> tuple[int, ...]:
        """The extents of a member or of what is read."""
        return shape_of(self.boxes[name])


@frozen
class Traffic:
    """The bytes that a group moves: those of a full tile, the number of tiles, and those of all."""

    tile: float
    tiles: int
    total: float


@frozen
class TileGraph:
    """The funcs of a program for known sizes, with edges at levels; `boxes` is what is needed in all."""

    state: State
    edges: tuple[Edge, ...]
    boxes: Mapping[str, Box]

    @staticmethod
    def of(program: Program, sizes: Mapping[str, int] | None = None) -> TileGraph:
        """The graph of a program, with every edge at the last level; ShapeError where a size is missing."""
        known = check_sizes(
            program.name,
            program.sizes,
            sizes or {},
            equal=program.equal,
            agreements=program.agreements,
        )
        missing = [n for n in program.sizes if n not in known]
        if missing:
            raise ShapeError(
                f"a tile graph of {program.name!r} needs all sizes; not known: {', '.join(missing)}",
                loc=here(),
                label="this call",
                hint=f"TileGraph.of(program, {dict.fromkeys(missing, 100) | known})",
            )
        return TileGraph.of_state(initial_state(bind_sizes(program, known)))

    @staticmethod
    def of_state(state: State) -> TileGraph:
        """The graph of the program of a state whose sizes are known."""
        program = state.program
        edges = (
            Edge(name, f.name)
            for f in program.funcs
            for name in dict.fromkeys(r.name for d in f.definitions for r in d.reads)
            if name != f.name
        )
        return TileGraph(state, tuple(edges), root_boxes(unplaced_at_root(state)))

    @staticmethod
    def of_schedule(schedule: Predicted) -> TileGraph:
        """What a schedule makes of its program: inlined funcs are gone, edges are where their funcs live.

        >>> import tdsl as td
        >>> i, j = td.vars("i j")
        >>> x, top, y = td.Tensor("x", (800, 900), td.f32), td.Func("top"), td.Func("y")
        >>> top[i] = td.max(x[i, j], axis=j)
        >>> y[i, j] = x[i, j] - top[i]
        >>> s = td.Schedule(y)
        >>> [e.level > 0 for e in TileGraph.of_schedule(s).edges if e.producer == "top"]
        [True]
        >>> _ = s[top].compute_root()
        >>> [e.level > 0 for e in TileGraph.of_schedule(s).edges if e.producer == "top"]
        [False]
        """
        prediction = schedule.prediction()
        graph = TileGraph.of_state(initial_state(prediction.state.program))
        order = [x.name for x in reversed(prediction.machine.levels)]
        nests = prediction.nests
        inside = {e.producer for e in graph.edges} - {s.func.name for s in nests.roots()}
        levels = {n: order.index(prediction.home(n).name) for n in inside if n in nests.whole}
        edges = (replace(e, level=levels.get(e.producer, 0)) for e in graph.edges)
        return replace(graph, edges=tuple(edges))

    def picture(self) -> str:
        """The graph as SVG."""
        return svg(self.drawing())

    _repr_svg_ = picture

    def drawing(self) -> Drawing:
        """What `tdsl.tilegraph.drawing` draws: nodes with their extents, edges with the bytes that move."""
        names = [t.name for t in self.program.inputs] + [f.name for f in self.program.funcs]
        nodes = {n: " x ".join(map(str, shape_of(self.boxes[n]))) for n in names if n in self.boxes}
        inputs = tuple(t.name for t in self.program.inputs)
        arrows = tuple(Arrow(e.producer, e.consumer, self._label(e), e.level > 0) for e in self.edges)
        return Drawing(self.program.name, inputs, nodes, tuple(self.groups()), arrows)

    def _label(self, e: Edge) -> str:
        box = self.boxes.get(e.producer)  # none where nothing of it is needed
        size = 0.0 if box is None else self.bytes_moved(e.producer, box)
        return in_bytes(size) + (f", level {e.level}" if e.level else "")

    @property
    def program(self) -> Program:
        """The program whose funcs are the nodes of the graph."""
        return self.state.program

    def connect(self, producer: str, consumer: str, level: int) -> TileGraph:
        """The graph with an edge at another level; ScheduleError for one that is not there."""
        if producer not in {e.producer for e in self.edges if e.consumer == consumer}:
            raise ScheduleError(
                f"{consumer!r} does not read {producer!r}",
                loc=here(),
                label="this call",
                hint=f"{producer!r} is read by {', '.join(self.consumers(producer)) or 'no func'}",
            )
        edges = (
            replace(e, level=level) if (e.producer, e.consumer) == (producer, consumer) else e
            for e in self.edges
        )
        return replace(self, edges=tuple(edges))

    def consumers(self, name: str) -> list[str]:
        """The funcs that read a func or input."""
        return [e.consumer for e in self.edges if e.producer == name]

    def follows(self, later: str, first: str) -> bool:
        """True if `later` is `first` or depends on it."""
        dependents = {first}
        for f in self.program.funcs:  # producers first
            if any(e.consumer == f.name and e.producer in dependents for e in self.edges):
                dependents.add(f.name)
        return later in dependents

    def groups(self, level: int = 1) -> list[tuple[str, ...]]:
        """The nodes as they are seen from below a level: those joined at it or further in are one.

        >>> import tdsl as td
        >>> i, j = td.vars("i j")
        >>> x, top, y = td.Tensor("x", (8, 9), td.f32), td.Func("top"), td.Func("y")
        >>> top[i] = td.max(x[i, j], axis=j)
        >>> y[i, j] = x[i, j] - top[i]
        >>> graph = TileGraph.of(td.Schedule(y).program)
        >>> graph.groups(), graph.connect("top", "y", 1).groups()
        ([('top',), ('y',)], [('top', 'y')])
        """
        leader = {f.name: f.name for f in self.program.funcs}

        def find(name: str) -> str:
            while leader[name] != name:
                name = leader[name]
            return name

        for e in self.edges:
            if e.level >= level and e.producer in leader:
                leader[find(e.producer)] = find(e.consumer)
        groups: dict[str, list[str]] = {}
        for f in self.program.funcs:
            groups.setdefault(find(f.name), []).append(f.name)
        return [tuple(names) for names in groups.values()]

    def propagate(self, group: Iterable[str], tile: Mapping[str, Box]) -> Tile:
        """The boxes of all members of a group, and of what they read, for boxes of what it gives."""
        members = self._in_order(group)

        def ranges_at(d: Definition, box: Box) -> dict[str, Interval]:
            return restrict_ranges(variable_ranges(d, box, NO_FACTS), d.where)

        funcs = (self.program.func(name) for name in reversed(members))
        boxes = propagate(
            funcs,
            tile,
            lambda f, box: reads_of_func(f, box, ranges_at),
            lambda f, box: box_with_updates(f, box, NO_FACTS),
        )
        needed = tuple(n for n in members if n in boxes)
        reads = tuple(sorted(n for n in boxes if n not in members))
        return Tile(needed, boxes, reads, self._given(needed))

    def _in_order(self, group: Iterable[str]) -> tuple[str, ...]:
        """The funcs of a group in the order of the program; ScheduleError for what is none."""
        names, funcs = {*group}, [f.name for f in self.program.funcs]
        for name in sorted(names.difference(funcs)):
            raise ScheduleError(
                f"there is no func {name!r} in this graph",
                loc=here(),
                label="this call",
                hint=did_you_mean(name, funcs),
            )
        return tuple(n for n in funcs if n in names)

    def _given(self, members: tuple[str, ...]) -> tuple[str, ...]:
        """The members that are outputs, or read by others."""
        read = {e.producer for e in self.edges if e.consumer not in members}
        return tuple(n for n in members if n in read or n in self.program.outputs)

    def tiles(self, name: str, shape: tuple[int, ...]) -> list[tuple[Box, int]]:
        """Boxes of the kinds of tiles that cover a func, with how many there are: full ones and the rest.

        Full tiles represent the inner ones; tails are shorter where the shape does not divide.
        """
        kinds: list[list[tuple[tuple[int, int], int]]] = []
        for axis, want in enumerate(shape):
            lo = self.first(name, axis)
            whole = extent(self.boxes[name], axis) or 0
            n = max(min(want, whole), 1)
            full, rest = divmod(whole, n)
            at = lo + (full // 2) * n
            full_tiles = [((at, at + n - 1), full)] if full else []
            kinds.append(full_tiles + ([((lo + full * n, lo + whole - 1), 1)] if rest else []))
        return [
            (tuple((const(a), const(b)) for (a, b), _ in parts), prod(c for _, c in parts))
            for parts in itertools.product(*kinds)
        ]

    def tiled(
        self, group: Iterable[str], shape: Mapping[str, tuple[int, ...]]
    ) -> tuple[tuple[str, ...], str, tuple[int, ...]]:
        """The members of a group in order, and the one whose tiles have a shape; ScheduleError for others."""
        names = self._in_order(group)
        self._in_order(shape)
        needed = {n: shape_of(self.boxes[n]) for n in names if n in self.boxes}
        good = [
            name in needed
            and len(tile_shape) == len(needed[name])
            and all(n > 0 or not most for n, most in zip(tile_shape, needed[name], strict=True))
            for name, tile_shape in shape.items()
        ]
        if good != [True]:
            raise ScheduleError(
                "tiles are those of one func of the group, with an extent for each dimension",
                loc=here(),
                label="this call",
                hint=f"{dict([*needed.items()][-1:])} is one tile for all",
            )
        ((name, tile_shape),) = shape.items()
        return names, name, tile_shape

    def traffic(self, group: Iterable[str], shape: Mapping[str, tuple[int, ...]]) -> Traffic:
        """The bytes that a group reads of others and gives them, tile by tile of one of its funcs."""
        members, name, tile_shape = self.tiled(group, shape)
        total, count, one = 0.0, 0, 0.0
        for n, (box, times) in enumerate(self.tiles(name, tile_shape)):
            moved = self.moved(self.propagate(members, {name: box}))
            one = moved if n == 0 else one
            total, count = total + times * moved, count + times
        return Traffic(one, count, total)

    def moved(self, tile: Tile, granule: int = 1) -> float:
        """The bytes that one tile reads and writes, in runs of memory rounded up to a granule."""
        return sum(self.bytes_moved(n, tile.boxes[n], granule) for n in (*tile.reads, *tile.writes))

    def bytes_moved(self, name: str, box: Box, granule: int = 1) -> float:
        """The bytes of a box, each contiguous run of them rounded up to a granule."""
        assert volume(box) is not None, f"{name} is unbounded"
        most, size = shape_of(self.boxes[name]), self.element_bytes(name)
        return bytes_in_runs(shape_of(box), most, size, granule)

    def __repr__(self) -> str:
        groups = "; ".join(", ".join(names) for names in self.groups())
        return f"<tile graph of {self.program.name!r}, {len(self.edges)} edges: {groups}>"

    def first(self, name: str, axis: int) -> int:
        """Where what is needed of a func begins in one dimension."""
        lo, _ = self.boxes[name][axis]
        return upper(lo or const(0)) or 0

    def element_bytes(self, name: str) -> int:
        """The bytes of an element: of all values of a func of several."""
        return element_bytes(self.program, name)
