"""The nests of a complete schedule as a tree, with what is touched between their loops.

A `NestSpot` is the nest of one definition where it stands: the loops around it are looked at in one iteration
in their midst, so that every box has a size. What an iteration of its first k loops touches is `touched(k)`.
All of it comes from `required`, and so from the region function.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from tdsl.lang.bounds import NOTHING, upper
from tdsl.lang.expr import Expr, const
from tdsl.lang.program import FuncDef
from tdsl.lang.regions import Box, box_of, boxes_of, is_empty, tighten
from tdsl.lang.simplify import add
from tdsl.schedule.facts import volume
from tdsl.schedule.nest import SHARED, THREADS, Level, Nest, State
from tdsl.schedule.relate import Related, relate
from tdsl.schedule.required import Active, bounds_of, inside, required
from tdsl.schedule.tree import ROOT, Tree, build_tree


@dataclass(slots=True)
class Nests:
    """A complete state, its tree, and what is needed in all."""

    state: State
    whole: dict[str, Box]
    tree: Tree
    stored: dict[str, float] = field(default_factory=dict)  # bytes of each func, where it is stored

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

    def roots(self) -> list[NestSpot]:
        """The nests outside of all loops, in running order."""
        return list(self.spots(ROOT, self.whole))

    def spots(self, at: Level, boxes: Mapping[str, Box]) -> Iterator[NestSpot]:
        """The nests at a place, of which so much is needed."""
        places = (self.tree.computed, self.tree.after, self.tree.joined)
        for name in (name for found in places for name in found.get(at, ())):
            box = boxes.get(name, self.whole.get(name))
            if box is None or any(is_empty(i) for i in box):
                continue
            f = self.state.program.func(name)
            for n in range(len(f.definitions)):
                yield NestSpot(self, f, n, box)

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

    def bytes_of(self, name: str, box: Box) -> float:
        """The bytes of a box of an input or func."""
        points = volume(box)
        if self.state.program.has_func(name):
            size = sum(t.bytes for t in self.state.program.func(name).dtypes)
        else:
            size = self.state.program.input(name).dtype.bytes
        return float("inf") if points is None else float(points * size)


@dataclass(frozen=True, slots=True)
class NestSpot:
    """The nest of a definition on a box, inside open loops of others."""

    nests: Nests
    func: FuncDef
    definition: int
    box: Box

    @property
    def nest(self) -> Nest:
        """Its loops."""
        return self.nests.state.plan(self.func.name).nests[self.definition]

    def related(self) -> tuple[dict[str, tuple[Expr, Expr]], Related]:
        """The bounds of its variables, and how its loops make these."""
        bounds = bounds_of(self.func, self.func.definitions[self.definition], self.box)
        return bounds, relate(self.nest, bounds)

    def extents(self) -> dict[str, int]:
        """The iterations of each loop, outermost first."""
        _, related = self.related()
        return {x: max(upper(related.extents[x]) or 1, 0) for x in self.nest.names()}

    def opened(self, loops: tuple[str, ...]) -> Active:
        """The nest with some loops in one iteration in their midst."""
        bounds, related = self.related()
        midst: dict[str, Expr] = {}
        for x in loops:
            first = bounds[x][0] if x in bounds else const(0)
            midst[x] = add(first, const((upper(related.extents[x]) or 1) // 2))
        return Active(
            self.func, self.definition, self.nest, related.roots, related.extents, bounds, midst
        )

    def first(self, k: int) -> tuple[str, ...]:
        """Its first k loops."""
        return self.nest.names()[:k]

    def boxes(self, k: int) -> dict[str, Box]:
        """What one iteration of the first k loops needs, by name; that of its func is what is written.

        What threads share is needed by all of them.
        """
        found = self.needs(self.first(k), max(k - 1, 0))
        state = self.nests.state
        if any(state.program.has_func(n) and state.plan(n).scope == SHARED for n in found):
            wide = self.block_boxes(k)
            found |= {
                n: wide[n]
                for n in found
                if n in wide and state.program.has_func(n) and state.plan(n).scope == SHARED
            }
        return found

    def block_boxes(self, k: int) -> dict[str, Box]:
        """What one iteration of the first k loops needs for all threads of a block together."""
        loops = tuple(x for x in self.first(k) if self.kind(x) not in THREADS)
        return self.needs(loops, max(k - 1, 0))

    def needs(self, loops: tuple[str, ...], depth: int) -> dict[str, Box]:
        """What is needed of all funcs and inputs in one iteration of some loops, from a loop inwards."""
        nests, name = self.nests, self.func.name
        active = self.opened(loops)
        levels = tuple(Level(name, self.definition, x) for x in self.nest.names()[depth:])
        levels = levels or (Level(name, self.definition, ""),)
        found = required(nests.tree, nests.state, levels, {}, [active], NOTHING)
        return {**found, name: active.written(NOTHING)}

    def internal(self, k: int) -> set[str]:
        """The funcs whose memory is inside of the first k loops."""
        names = self.nest.names()[max(k - 1, 0) :]
        levels = [Level(self.func.name, self.definition, x) for x in names]
        here = inside(self.nests.tree, self.nests.state, levels)
        stores = self.nests.tree.stored
        kept = {g for x in (*levels, *_levels(self.nests.state, here)) for g in stores.get(x, ())}
        return kept & here

    def children(self, k: int, *, of_block: bool = False) -> list[NestSpot]:
        """The nests that stand in the body of its k-th loop, for an iteration or for all threads."""
        here = Level(self.func.name, self.definition, self.nest.names()[k - 1])
        if not self.nests.tree.at(here):
            return []
        return list(self.nests.spots(here, self.block_boxes(k) if of_block else self.boxes(k)))

    def own_reads(self, loops: tuple[str, ...]) -> dict[str, Box]:
        """What the definition itself reads in one iteration of some loops."""
        d, active = self.func.definitions[self.definition], self.opened(loops)
        ranges = tighten(active.ranges(NOTHING), d.where)
        return boxes_of(d.expressions(), ranges, NOTHING, d.where)

    def own_writes(self, loops: tuple[str, ...]) -> Box:
        """What the definition itself writes in one iteration of some loops."""
        return box_of(
            self.func.definitions[self.definition].index, self.opened(loops).ranges(NOTHING)
        )

    def kind(self, loop: str) -> str:
        """How a loop runs."""
        return self.nest.kind(loop)


def _levels(state: State, names: set[str]) -> Iterator[Level]:
    for name in sorted(names):
        for n, nest in enumerate(state.plan(name).nests):
            yield from (Level(name, n, x) for x in nest.names())
