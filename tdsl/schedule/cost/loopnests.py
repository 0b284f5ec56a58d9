"""The nests of a complete schedule as a tree, with what is touched between their loops.

A `NestSpot` is the nest of one definition where it stands: the loops around it are looked at in one iteration
in their midst, so that every box has a size. What an iteration of its first k loops touches is `touched(k)`.
All of it comes from `required`, and so from the region function.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any, Concatenate, ParamSpec, TypeVar

from tdsl.errors import IndexBoundError
from tdsl.lang.bounds import NOTHING, upper
from tdsl.lang.expr import Expr, const
from tdsl.lang.program import FuncDef
from tdsl.lang.regions import Box, box_of, boxes_at, is_empty, tighten
from tdsl.lang.simplify import add
from tdsl.schedule.facts import volume
from tdsl.schedule.nest import SHARED, THREADS, Fuse, Level, Nest, Rename, Rotate, Split, State
from tdsl.schedule.relate import Related, relate
from tdsl.schedule.required import Active, bounds_of, inside, required
from tdsl.schedule.tree import ROOT, Tree, build_tree

P = ParamSpec("P")
R = TypeVar("R")
O = TypeVar("O", "Nests", "NestSpot")


def remembered(f: Callable[Concatenate[O, P], R]) -> Callable[Concatenate[O, P], R]:
    """A function of nests or of a spot whose answers are kept there; they are not to be changed.

    Each level of memory, and each way to look at a nest, asks the same.
    """

    @functools.wraps(f)
    def asked(of: O, /, *args: P.args, **kwargs: P.kwargs) -> R:
        key = (f, args, *kwargs.items())
        if key not in of.known:
            of.known[key] = f(of, *args, **kwargs)
        found: R = of.known[key]
        return found

    return asked


@dataclass(slots=True)
class Nests:
    """A complete state, its tree, and what is needed in all."""

    state: State
    whole: dict[str, Box]
    tree: Tree
    stored: dict[str, float] = field(default_factory=dict)  # bytes of each func, where it is stored
    known: dict[object, Any] = field(default_factory=dict)  # what was asked before

    @staticmethod
    def of(state: State) -> Nests:
        """The nests of a state whose funcs all have places, for sizes that are known."""
        start: dict[str, Box] = {}
        for name in state.program.outputs:
            f = state.program.func(name)
            f.output_box(None)
            start[name] = f.natural
        tree = build_tree(state)
        made = Nests(state, required(tree, state, (ROOT,), start, [], NOTHING), tree)
        for name in tree.stored.get(ROOT, ()):
            if name in made.whole:
                made.stored[name] = made.bytes_of(name, made.whole[name])
        for spot in made.roots():
            made._store(spot)
        return made

    @remembered
    def roots(self) -> list[NestSpot]:
        """The nests outside of all loops, in running order."""
        return list(self.spots(ROOT, self.whole, self.whole, 1, 1))

    def spots(
        self,
        at: Level,
        boxes: Mapping[str, Box],
        wide: Mapping[str, Box],
        times: float,
        blocks: float,
    ) -> Iterator[NestSpot]:
        """The nests at a place, of which so much is needed by an iteration, and by all threads around."""
        places = (self.tree.computed, self.tree.after, self.tree.joined)
        for name in (name for found in places for name in found.get(at, ())):
            box = boxes.get(name, self.whole.get(name))
            if box is None or any(is_empty(i) for i in box):
                continue
            if self.is_shared(name):
                box, times = wide.get(name, box), blocks
            f = self.state.program.func(name)
            if any(lo is None or hi is None for lo, hi in box):
                raise IndexBoundError(
                    f"how much of {name!r} is needed has no bounds",
                    loc=f.loc,
                    label="defined here",
                    hint="limit the index at which it is read: td.clip(index, 0, n - 1)",
                )
            for n in range(len(f.definitions)):
                yield NestSpot(self, f, n, box, wide.get(name, box), times, blocks)

    def _store(self, spot: NestSpot) -> None:
        for k, loop in enumerate(spot.nest.names(), 1):
            here = Level(spot.func.name, spot.definition, loop)
            if not self.tree.at(here):
                continue
            for name in self.tree.stored.get(here, ()):
                box = spot.boxes(k).get(name)
                if box is not None:
                    self.stored[name] = self.bytes_of(name, box)
            for child in spot.children(k):
                self._store(child)

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
        if self.state.program.has_func(name):
            size = sum(t.bytes for t in self.state.program.func(name).dtypes)
        else:
            size = self.state.program.input(name).dtype.bytes
        return float("inf") if points is None else float(points * size)


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
    known: dict[object, Any] = field(default_factory=dict, repr=False)  # what was asked before

    @property
    def nest(self) -> Nest:
        """Its loops."""
        return self.nests.state.plan(self.func.name).nests[self.definition]

    @remembered
    def related(self, *, wide: bool = False) -> tuple[dict[str, tuple[Expr, Expr]], Related]:
        """The bounds of its variables, and how its loops make these."""
        box = self.wide if wide else self.box
        bounds = bounds_of(self.func, self.func.definitions[self.definition], box)
        return bounds, relate(self.nest, bounds)

    @remembered
    def extents(self) -> dict[str, int]:
        """The iterations of each loop, outermost first."""
        _, related = self.related()
        return {x: max(upper(related.extents[x]) or 1, 0) for x in self.nest.names()}

    @remembered
    def counts(self) -> dict[str, float]:
        """As `extents`; of a split that leaves a tail, as many outer iterations as the tail is worth."""
        bounds, related = self.related()
        found = {n: float(upper(e) or 1) for n, (_, e) in bounds.items()}
        for r in self.nest.relations:
            match r:
                case Split(parent, outer, inner):
                    found[inner] = min(float(upper(related.extents[inner]) or 1), found[parent])
                    found[outer] = found[parent] / max(found[inner], 1.0)
                case Fuse(fused, outer, inner):
                    found[fused] = found[outer] * found[inner]
                case Rename(old, new) | Rotate(old, new):
                    found[new] = found[old]
        return {x: max(found[x], 0.0) for x in self.nest.names()}

    @remembered
    def points(self) -> tuple[int, ...]:
        """The extent of each variable of the definition."""
        bounds, _ = self.related()
        return tuple(max(upper(e) or 1, 0) for _, e in bounds.values())

    @remembered
    def opened(self, loops: tuple[str, ...], *, wide: bool = False) -> Active:
        """The nest with some loops in one iteration in their midst, not the last one, which may be short."""
        bounds, related = self.related(wide=wide)
        midst: dict[str, Expr] = {}
        for x in loops:
            first = bounds[x][0] if x in bounds else const(0)
            midst[x] = add(first, const(((upper(related.extents[x]) or 1) - 1) // 2))
        return Active(
            self.func, self.definition, self.nest, related.roots, related.extents, bounds, midst
        )

    def first(self, k: int) -> tuple[str, ...]:
        """Its first k loops."""
        return self.nest.names()[:k]

    @remembered
    def boxes(self, k: int) -> dict[str, Box]:
        """What one iteration of the first k loops needs, by name; that of its func is what is written.

        What threads share is needed by all of them.
        """
        found = dict(self._needs(self.first(k), k, wide=False))
        if any(map(self.nests.is_shared, found)):
            wide = self.block_boxes(k)
            found |= {n: wide[n] for n in found if n in wide and self.nests.is_shared(n)}
        return found

    @remembered
    def block_boxes(self, k: int) -> dict[str, Box]:
        """What one iteration of the first k loops needs for all threads of a block together."""
        loops = tuple(x for x in self.first(k) if self.kind(x) not in THREADS)
        return self._needs(loops, k, wide=True)

    @remembered
    def _needs(self, loops: tuple[str, ...], k: int, *, wide: bool) -> dict[str, Box]:
        nests, name = self.nests, self.func.name
        active = self.opened(loops, wide=wide)
        inner = self.nest.names()[max(k - 1, 0) :] or ("",)
        levels = tuple(Level(name, self.definition, x) for x in inner)
        found = required(nests.tree, nests.state, levels, {}, [active], NOTHING)
        for level in levels:  # what runs in these loops, too, is written for nobody in them
            for other in nests.tree.joined.get(level, ()):
                f, whole = nests.state.program.func(other), nests.whole[other]
                spot = NestSpot(nests, f, 0, whole, whole, 1, 1)
                found[other] = spot.opened(spot.first(k), wide=wide).written(NOTHING)
        return {**found, name: active.written(NOTHING)}

    @remembered
    def internal(self, k: int) -> set[str]:
        """The funcs whose memory is inside of the first k loops."""
        names = self.nest.names()[max(k - 1, 0) :]
        levels = [Level(self.func.name, self.definition, x) for x in names]
        here = self.made(k)
        stores = self.nests.tree.stored
        kept = {
            g
            for x in (*levels, *_levels(self.nests.state, here - {self.func.name}))
            for g in stores.get(x, ())
        }
        return kept & here

    @remembered
    def made(self, k: int) -> set[str]:
        """Its func, and those that are computed inside of its first k loops."""
        names = self.nest.names()[max(k - 1, 0) :]
        levels = [Level(self.func.name, self.definition, x) for x in names]
        return inside(self.nests.tree, self.nests.state, levels) | {self.func.name}

    @remembered
    def children(self, k: int) -> list[NestSpot]:
        """The nests that stand in the body of its k-th loop."""
        here = Level(self.func.name, self.definition, self.nest.names()[k - 1])
        if not self.nests.tree.at(here):
            return []
        counts, loops = self.counts(), self.first(k)
        times = self.times * prod(counts[x] for x in loops)
        blocks = self.blocks * prod(counts[x] for x in loops if self.kind(x) not in THREADS)
        boxes = self.boxes(k)
        wide = self.block_boxes(k) if times != blocks else boxes
        joined = self.nests.tree.joined.get(here, ())
        return [
            spot.continued(k) if spot.func.name in joined else spot
            for spot in self.nests.spots(here, boxes, wide, times, blocks)
        ]

    def continued(self, k: int) -> NestSpot:
        """The nest as it goes on inside of its first k loops, which another one has opened."""
        loops = self.first(k)
        box, wide = (self.opened(loops, wide=w).written(NOTHING) for w in (False, True))
        inner = replace(self, box=box, wide=wide, known={})
        again = prod(inner.counts()[x] for x in loops)  # those that it reduces over are still there
        return replace(inner, times=self.times / again, blocks=self.blocks / again, known={})

    @remembered
    def own_reads(self, loops: tuple[str, ...]) -> dict[str, Box]:
        """What the definition itself reads in one iteration of some loops, all threads together."""
        d, active = self.func.definitions[self.definition], self.opened(loops, wide=True)
        ranges = tighten(active.ranges(NOTHING), d.where)
        return boxes_at(d.indices, ranges, NOTHING, d.where)

    @remembered
    def filled(self, k: int) -> dict[str, float]:
        """Which part of its box the definition itself reads in one iteration of the first k loops, by name.

        It is below 1 where reads are far apart, as those of two halves of the channels.
        """
        d = self.func.definitions[self.definition]
        reads = {r.name: dict[tuple[Expr, ...], None]() for r in d.reads}
        for r in d.reads:
            reads[r.name][r.index] = None
        several = {name: found for name, found in reads.items() if len(found) > 1}
        if not several:
            return {}
        ranges = tighten(self.opened(self.first(k), wide=True).ranges(NOTHING), d.where)
        whole = boxes_at(d.indices, ranges, NOTHING, d.where)
        parts: dict[str, float] = {}
        for name, found in several.items():
            points = [volume(box_of(index, ranges, NOTHING, d.where)) for index in found]
            around = volume(whole[name]) if name in whole else None
            if around and all(n is not None for n in points):
                parts[name] = min(sum(n or 0 for n in points) / around, 1.0)
        return parts

    def own_writes(self, loops: tuple[str, ...]) -> Box:
        """What the definition itself writes in one iteration of some loops, all threads together."""
        index = self.func.definitions[self.definition].index
        return box_of(index, self.opened(loops, wide=True).ranges(NOTHING))

    def kind(self, loop: str) -> str:
        """How a loop runs."""
        return self.nest.kind(loop)


def _levels(state: State, names: set[str]) -> Iterator[Level]:
    for name in sorted(names):
        for n, nest in enumerate(state.plan(name).nests):
            yield from (Level(name, n, x) for x in nest.names())
