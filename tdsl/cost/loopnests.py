"""The nests of a complete schedule as a tree, with the boxes that each of their loops needs.

A `NestSpot` is the nest of one definition at its place: the loops around it are at one typical iteration,
so that every box has a size. What an iteration of its first k loops needs is `boxes(k)`; of
what slides forward with a loop only the new part is computed, in a ring that holds what is in use at a time.
All of it comes from `required_boxes`, and so from the region function.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import inf, prod
from typing import Any, Concatenate, ParamSpec, TypeVar

from tdsl.core.node import frozen
from tdsl.cost.gathers import within_inputs
from tdsl.cost.typical_iterations import aside, middle
from tdsl.errors import IndexBoundError
from tdsl.lang.bounds import NO_FACTS, upper
from tdsl.lang.expr import ONE, TRUE, Expr, Var, const
from tdsl.lang.program import FuncDef
from tdsl.lang.regions import Box, Interval, box_of, boxes_of, is_empty, restrict_ranges, union_box
from tdsl.lang.simplify import add, conjuncts, subtract
from tdsl.schedule.bounds_inference import OpenNest, bounds_of, funcs_inside, required_boxes
from tdsl.schedule.loop_relations import Related, relate_known
from tdsl.schedule.properties import element_bytes, extent, volume
from tdsl.schedule.sliding import ring_size, window_axis
from tdsl.schedule.state import (
    BLOCKS,
    SERIAL,
    SHARED,
    THREADS,
    Fuse,
    Level,
    Nest,
    Rename,
    Rotate,
    Split,
    State,
    roots_of,
)  # fmt: skip
from tdsl.schedule.tree import ROOT, ScheduleTree, build_tree

P = ParamSpec("P")
R = TypeVar("R")
O = TypeVar("O", "Nests", "NestSpot")
Extents = tuple[int | None, ...]


def memoised(f: Callable[Concatenate[O, P], R]) -> Callable[Concatenate[O, P], R]:
    """A function of nests or of a spot, memoised in its `known`; callers must not change the results."""

    @functools.wraps(f)
    def wrapper(of: O, /, *args: P.args, **kwargs: P.kwargs) -> R:
        key = (f, args, *kwargs.items())
        if key not in of.known:
            of.known[key] = f(of, *args, **kwargs)
        result: R = of.known[key]
        return result

    return wrapper


@frozen
class Window:
    """What slides along an axis: `new` elements of `length` at a time, in `part` of the iterations."""

    axis: int
    length: int
    new: int
    part: float

    def newest(self, box: Box) -> Box:
        """The part of a box that earlier iterations have not computed."""
        _, hi = box[self.axis]
        if hi is None:
            return box
        new = (subtract(hi, const(self.new - 1)), hi)
        return (*box[: self.axis], new, *box[self.axis + 1 :])


@dataclass(slots=True)
class Nests:
    """A complete state, its tree, and what is needed in all.

    `memory` has the extents of each func where it is stored.
    """

    state: State
    whole: dict[str, Box]
    tree: ScheduleTree
    memory: dict[str, Extents] = field(default_factory=dict)
    masked: bool = False  # whether how often loops run differs from iteration to iteration
    cut: bool = False  # whether predicates do that to tiles of blocks
    known: dict[object, Any] = field(default_factory=dict)  # memoised results

    @staticmethod
    def of(state: State) -> Nests:
        """The nests of a state whose funcs all have places, for sizes that are known."""
        start: dict[str, Box] = {}
        for name in state.program.outputs:
            f = state.program.func(name)
            f.output_box(None)
            start[name] = f.natural
        tree = build_tree(state)
        needed = required_boxes(tree, state, (ROOT,), start, [], NO_FACTS)
        nests = Nests(state, within_inputs(state.program, needed), tree)
        every = [d for f in state.program.funcs for d in f.definitions]
        in_blocks = any(x.kind in BLOCKS for _, p in state.plans for n in p.nests for x in n.loops)
        nests.masked = any(d.mask != TRUE for d in every)
        nests.cut = in_blocks and any(d.where != TRUE for d in every)
        for name in tree.stored.get(ROOT, ()):
            if name in nests.whole:
                nests.hold(name, nests.whole[name])
        for spot in nests.roots():
            nests._store(spot)
        return nests

    @memoised
    def roots(self) -> list[NestSpot]:
        """The nests outside of all loops, in running order."""
        return list(self.spots(ROOT, self.whole, self.whole, 1, 1))

    def spots(
        self, at: Level, boxes: Mapping[str, Box], wide: Mapping[str, Box], times: float, blocks: float
    ) -> Iterator[NestSpot]:
        """The nests at a place: one iteration needs `boxes`, all threads around it together `wide`."""
        places = (self.tree.computed, self.tree.after, self.tree.joined)
        for name in (name for by_level in places for name in by_level.get(at, ())):
            box = boxes.get(name, self.whole.get(name))
            if box is None or any(is_empty(i) for i in box):
                continue
            often = times
            if self.is_shared(name):
                box, often = wide.get(name, box), blocks
            f = self.state.program.func(name)
            if any(lo is None or hi is None for lo, hi in box):
                raise IndexBoundError(
                    f"how much of {name!r} is needed has no bounds",
                    loc=f.loc,
                    label="defined here",
                    hint="limit the index at which it is read: td.clip(index, 0, n - 1)",
                )
            for n in range(len(f.definitions)):
                yield NestSpot(self, f, n, box, wide.get(name, box), often, blocks)

    def _store(self, spot: NestSpot) -> None:
        for k, loop in enumerate(spot.nest.names(), 1):
            here = Level(spot.func.name, spot.definition, loop)
            if not self.tree.has_funcs_at(here):
                continue
            for name in self.tree.stored.get(here, ()):
                box = spot.boxes(k).get(name)
                if box is not None:
                    self.hold(name, box)
            for name, window in spot.windows(k).items():
                self._fold(name, window)
            for child in spot.children(k):
                self._store(child)

    def _fold(self, name: str, window: Window) -> None:
        """Replace the extent along which a func slides by that of the ring which it is stored in."""
        memory, axis, ring = self.memory.get(name), window.axis, ring_size(window.length)
        if memory is not None:
            ring = min(ring, memory[axis] or ring)
            self.memory[name] = (*memory[:axis], ring, *memory[axis + 1 :])

    def hold(self, name: str, box: Box) -> None:
        """Remember the memory of a func for a box, with the rings that the schedule asks for."""
        folds = dict(self.state.plan(name).fold)
        self.memory[name] = tuple(folds.get(a, extent(box, a)) for a in range(len(box)))

    def stored(self, name: str) -> float | None:
        """The bytes of a func where it is stored; None for what has no memory of its own."""
        extents = self.memory.get(name)
        if extents is None or None in extents:
            return None if extents is None else inf
        # a thread beyond a tile needs less than nothing
        return prod(max(n or 0, 0) for n in extents) * self.element_bytes(name)

    def is_shared(self, name: str) -> bool:
        """True for a func in memory that the threads of a block share: they make it together."""
        return self.state.program.has_func(name) and self.state.plan(name).scope == SHARED

    def every(self) -> Iterator[NestSpot]:
        """All nests, those inside of others included."""
        stack = [*self.roots()]
        while stack:
            spot = stack.pop()
            yield spot
            for k in range(1, len(spot.nest.loops) + 1):
                stack += spot.children(k)

    def bytes_of(self, name: str, box: Box) -> float:
        """The bytes of a box of an input or func."""
        points = volume(box)
        return inf if points is None else float(points * self.element_bytes(name))

    def extents_in_memory(self, name: str, box: Box) -> tuple[int, ...]:
        """How long each dimension of an input or func is where it is stored, of which a box is needed."""
        if not self.state.program.has_func(name):
            return tuple(upper(n) or 0 for n in self.state.program.input(name).shape)
        whole = self.whole.get(name, box)
        sizes = self.memory.get(name) or tuple(extent(whole, a) for a in range(len(box)))
        return tuple(max(n or 0, 0) for n in sizes)

    def element_bytes(self, name: str) -> int:
        """The bytes of an element of an input or func, of which all components count."""
        return element_bytes(self.state.program, name)


@dataclass(frozen=True, slots=True, eq=False)
class NestSpot:
    """The nest of a definition on a box, inside open loops of others.

    `wide` is the box of all threads of a block together. It runs so many `times`; for what a block makes
    together there are `blocks` times.
    """

    nests: Nests
    func: FuncDef
    definition: int
    box: Box
    wide: Box
    times: float
    blocks: float
    known: dict[object, Any] = field(default_factory=dict, repr=False)  # memoised results

    @property
    def nest(self) -> Nest:
        """Its loops."""
        return self.nests.state.plan(self.func.name).nests[self.definition]

    @memoised
    def related(self, *, wide: bool = False) -> tuple[dict[str, tuple[Expr, Expr]], Related]:
        """The bounds of its variables, and how its loops make these."""
        box = self.wide if wide else self.box
        bounds = bounds_of(self.func, self.func.definitions[self.definition], box)
        return bounds, relate_known(self.nest, tuple(bounds.items()))

    @memoised
    def typical_related(self) -> tuple[dict[str, tuple[Expr, Expr]], Related]:
        """As `related`, over the terms that masks leave in a typical iteration of the loops around them."""
        bounds, related = self.related()
        d, names = self.func.definitions[self.definition], self.nest.names()
        if d.mask == TRUE == d.where:
            return bounds, related
        for v, _, _ in d.ranges:
            positions = [n for n, x in enumerate(names) if v in roots_of(self.nest, x)]
            around = names[: min(positions)]
            lo, hi = restrict_ranges(self.ranges(around, wide=False), d.where)[v]
            if lo is not None and hi is not None:
                bounds = {**bounds, v: (lo, add(subtract(hi, lo), ONE))}
        return bounds, relate_known(self.nest, tuple(bounds.items()))

    @memoised
    def extents(self) -> dict[str, int]:
        """The iterations of each loop, outermost first."""
        _, related = self.typical_related()
        return {x: max(upper(related.extents[x]) or 1, 0) for x in self.nest.names()}

    @memoised
    def counts(self) -> dict[str, float]:
        """As `extents`; of a split that leaves a tail, as many outer iterations as the tail is worth."""
        bounds, related = self.typical_related()
        counts = {n: float(upper(e) or 1) for n, (_, e) in bounds.items()}
        for r in self.nest.relations:
            match r:
                case Split(parent, outer, inner):
                    counts[inner] = min(float(upper(related.extents[inner]) or 1), counts[parent])
                    counts[outer] = counts[parent] / max(counts[inner], 1.0)
                case Fuse(fused, outer, inner):
                    counts[fused] = counts[outer] * counts[inner]
                case Rename(old, new) | Rotate(old, new):
                    counts[new] = counts[old]
        return {x: max(counts[x], 0.0) for x in self.nest.names()}

    @memoised
    def points(self) -> tuple[int, ...]:
        """The extent of each variable of the definition."""
        bounds, _ = self.typical_related()
        return tuple(max(upper(e) or 1, 0) for _, e in bounds.values())

    @memoised
    def opened(self, loops: tuple[str, ...], *, wide: bool = False) -> OpenNest:
        """The nest with some loops at a typical iteration, not the last one, which may be short."""
        bounds, related = self.related(wide=wide)
        extents = {x: upper(e) or 1 for x, e in related.extents.items()}
        if self.nests.masked:
            at = middle(self.nest, extents)
        else:
            d = self.func.definitions[self.definition]
            terms = {v for v, _, _ in d.ranges} if self.nests.cut else None
            at = aside(self.nest, extents, terms)
        iteration = {x: add(bounds[x][0] if x in bounds else const(0), const(at[x])) for x in loops}
        return OpenNest(
            self.func, self.definition, self.nest, related.roots, related.extents, bounds, iteration
        )

    def first(self, k: int) -> tuple[str, ...]:
        """Its first k loops."""
        return self.nest.names()[:k]

    @memoised
    def boxes(self, k: int) -> dict[str, Box]:
        """What one iteration of the first k loops needs, by name; that of its func is what is written.

        What threads share is needed by all of them.
        """
        boxes = dict(self._needs(self.first(k), k, wide=False))
        if any(map(self.nests.is_shared, boxes)):
            wide = self.block_boxes(k)
            boxes |= {n: wide[n] for n in boxes if n in wide and self.nests.is_shared(n)}
        return boxes

    @memoised
    def block_boxes(self, k: int) -> dict[str, Box]:
        """What one iteration of the first k loops needs for all threads of a block together.

        A loop that has one iteration in each thread is at another one in each.
        """
        one = {x for x, n in self.extents().items() if n == 1}
        loops = tuple(x for x in self.first(k) if self.kind(x) not in THREADS and x not in one)
        return self._needs(loops, k, wide=True)

    def rest_boxes(self, k: int) -> dict[str, Box]:
        """What one iteration of the first k loops needs without what is computed at the k-th itself."""
        return self._needs(self.first(k), k + 1, wide=False)

    @memoised
    def _needs(self, loops: tuple[str, ...], k: int, *, wide: bool) -> dict[str, Box]:
        nests, active, levels = self.nests, self.opened(loops, wide=wide), self._levels(k)
        state, limits = nests.state, nests.whole
        boxes = required_boxes(nests.tree, state, levels, {}, [active], NO_FACTS, limits=limits)
        for level in levels:  # what runs in these loops, too, is needed by nobody in them
            for other in nests.tree.joined.get(level, ()):
                if other not in nests.whole:
                    continue  # none of its values is needed
                f, whole = nests.state.program.func(other), nests.whole[other]
                spot = NestSpot(nests, f, 0, whole, whole, 1, 1)
                for name, box in spot._needs(spot.first(k), k, wide=wide).items():
                    boxes[name] = union_box(boxes.get(name), box)
        index = self.func.definitions[self.definition].index
        # loops over empty ranges read nothing, though a typical iteration would
        boxes = {name: box for name, box in boxes.items() if name in nests.whole}
        return {**boxes, self.func.name: box_of(index, self.ranges(loops, wide=wide))}

    @memoised
    def ranges(self, loops: tuple[str, ...], *, wide: bool) -> dict[str, Interval]:
        """Where the variables of the definition run in one iteration of some loops."""
        return self.opened(loops, wide=wide).ranges(NO_FACTS)

    def _levels(self, k: int) -> tuple[Level, ...]:
        """The bodies of its loops from the k-th on."""
        inner = self.nest.names()[max(k - 1, 0) :] or ("",)
        return tuple(Level(self.func.name, self.definition, x) for x in inner)

    @memoised
    def windows(self, k: int) -> dict[str, Window]:
        """What slides forward with the k-th loop, by name: it is stored further out."""
        loop, d = self.nest.names()[k - 1], self.func.definitions[self.definition]
        here = Level(self.func.name, self.definition, loop)
        computed = self.nests.tree.computed.get(here, ())
        names = [n for n in computed if self._is_stored_around(n, here)]
        if not names or self.kind(loop) != SERIAL or conjuncts(d.where):
            return {}
        return self._windows(k, names)

    def _is_stored_around(self, name: str, here: Level) -> bool:
        store = self.nests.state.plan(name).store
        return store not in (None, here) and store.func != name

    def _windows(self, k: int, names: list[str]) -> dict[str, Window]:
        nests, loop = self.nests, self.nest.names()[k - 1]
        active = self.opened(self.first(k))
        first = active.first_of(loop)
        last = subtract(add(first, active.extents[loop]), ONE)
        active = replace(active, opened={**active.opened, loop: Var(_ITERATION)})
        facts = NO_FACTS.with_range(_ITERATION, first, last)
        boxes = required_boxes(nests.tree, nests.state, self._levels(k), {}, [active], facts)
        one, all_, count = self.boxes(k), self.boxes(k - 1), self.counts()[loop]
        windows: dict[str, Window] = {}
        for name in names:
            f = nests.state.program.func(name)
            needed = name in boxes and name in one and name in all_
            axis = window_axis(f, boxes[name], _ITERATION) if needed else None
            if axis is None:
                continue
            length, total = extent(one[name], axis), extent(all_[name], axis)
            if length is None or total is None:
                continue
            new = min(max(round((total - length) / max(count - 1, 1)), 1), max(length, 1))
            windows[name] = Window(axis, length, new, total / (new * max(count, 1)))
        return windows

    @memoised
    def internal(self, k: int) -> set[str]:
        """The funcs whose memory is inside of the first k loops."""
        names = self.nest.names()[max(k - 1, 0) :]
        levels = [Level(self.func.name, self.definition, x) for x in names]
        here, stores = self.computed(k), self.nests.tree.stored
        every = (*levels, *_levels(self.nests.state, here - {self.func.name}))
        return {g for x in every for g in stores.get(x, ())} & here

    @memoised
    def computed(self, k: int) -> set[str]:
        """The nest's func, and those that are computed inside of its first k loops."""
        names = self.nest.names()[max(k - 1, 0) :]
        levels = [Level(self.func.name, self.definition, x) for x in names]
        return funcs_inside(self.nests.tree, self.nests.state, levels) | {self.func.name}

    @memoised
    def children(self, k: int) -> list[NestSpot]:
        """The nests that stand in the body of its k-th loop."""
        here = Level(self.func.name, self.definition, self.nest.names()[k - 1])
        if not self.nests.tree.has_funcs_at(here):
            return []
        counts, loops = self.counts(), self.first(k)
        times = self.times * prod(counts[x] for x in loops)
        blocks = self.blocks * prod(counts[x] for x in loops if self.kind(x) not in THREADS)
        boxes = self.boxes(k)
        wide = self.block_boxes(k) if times != blocks else boxes
        joined, windows = self.nests.tree.joined.get(here, ()), self.windows(k)
        children = []
        for spot in self.nests.spots(here, boxes, wide, times, blocks):
            name = spot.func.name
            spot = spot.continued(k) if name in joined else spot
            children.append(spot.sliding(windows[name]) if name in windows else spot)
        return children

    def continued(self, k: int) -> NestSpot:
        """The nest as it goes on inside of its first k loops, which another one has opened."""
        loops = self.first(k)
        box, wide = (self.opened(loops, wide=w).written_box(NO_FACTS) for w in (False, True))
        inner = replace(self, box=box, wide=wide, known={})
        again = prod(inner.counts()[x] for x in loops) or 1.0  # what it reduces over is still there
        return replace(inner, times=self.times / again, blocks=self.blocks / again, known={})

    def sliding(self, window: Window) -> NestSpot:
        """The same where only the new part of a window is computed."""
        return replace(
            self,
            box=window.newest(self.box),
            wide=window.newest(self.wide),
            times=self.times * window.part,
            blocks=self.blocks * window.part,
            known={},
        )

    @memoised
    def definition_reads(self, loops: tuple[str, ...]) -> dict[str, Box]:
        """What the definition itself reads in one iteration of some loops, all threads together."""
        d = self.func.definitions[self.definition]
        ranges = restrict_ranges(self.ranges(loops, wide=True), d.where)
        return boxes_of(d.indices, ranges, NO_FACTS, d.where)

    def filled(self, k: int, boxes: Mapping[str, Box]) -> dict[str, float]:
        """Which part of some boxes the definition itself reads in one iteration of the first k loops.

        It is below 1 where reads leave gaps between them, as those of two halves of the channels.
        """
        d = self.func.definitions[self.definition]
        reads: dict[str, dict[tuple[Expr, ...], None]] = {}
        for r in d.reads:
            reads.setdefault(r.name, {})[r.index] = None
        several = {name: [*indices] for name, indices in reads.items() if len(indices) > 1}
        if not several:
            return {}
        ranges = restrict_ranges(self.ranges(self.first(k), wide=True), d.where)
        parts: dict[str, float] = {}
        for name, indices in several.items():
            around = volume(boxes[name]) if name in boxes else None
            one = volume(box_of(indices[0], ranges, NO_FACTS, d.where))
            if not around or one is None or len(indices) * one >= around:
                continue
            points = [volume(box_of(index, ranges, NO_FACTS, d.where)) for index in indices]
            if all(n is not None for n in points):
                parts[name] = min(sum(n or 0 for n in points) / around, 1.0)
        return parts

    def definition_writes(self, loops: tuple[str, ...]) -> Box:
        """What the definition itself writes in one iteration of some loops, all threads together."""
        index = self.func.definitions[self.definition].index
        return box_of(index, self.ranges(loops, wide=True))

    def kind(self, loop: str) -> str:
        """How a loop runs."""
        return self.nest.kind(loop)


_ITERATION = "iteration"  # of the loop with which windows slide


def _levels(state: State, names: set[str]) -> Iterator[Level]:
    for name in sorted(names):
        for n, nest in enumerate(state.plan(name).nests):
            yield from (Level(name, n, x) for x in nest.names())
