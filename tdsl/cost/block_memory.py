"""The shared memory that a block of a kernel has: stages in it, slots of pipelines, what warps pass on.

Loops are at any of their iterations, as in the loop nest of a schedule, so boxes have the same
extents as there. Memories lie one behind the other, as `codegen/gpu/shared_memory.py` places them. A stage
whose scope a schedule leaves open is not counted, though the compiler may find that threads have to share it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf, prod

from tdsl.core.node import frozen
from tdsl.lang.affine import variables
from tdsl.lang.bounds import NO_FACTS, Facts, upper
from tdsl.lang.expr import ONE, ZERO, Const, Expr, Read, Var
from tdsl.lang.program import FuncDef
from tdsl.lang.regions import Box, Interval, is_empty, restrict_ranges
from tdsl.lang.simplify import add, conjunction, simplify, substitute, subtract
from tdsl.schedule.bounds_inference import (
    OpenNest,
    ThreadLoops,
    bounds_of,
    funcs_inside,
    required_boxes,
)
from tdsl.schedule.full_tiles import is_total, total_stages
from tdsl.schedule.loop_relations import relate
from tdsl.schedule.narrow import find_narrowed
from tdsl.schedule.pipelines import bulk_row_extent
from tdsl.schedule.state import (
    COOPERATIVE,
    GROUP,
    LANES,
    PIPELINED,
    SHARED,
    THREADS,
    At,
    Level,
    Loop,
    State,
    is_reduction,
    levels_of,
)  # fmt: skip
from tdsl.schedule.tree import ROOT, ScheduleTree

CHUNK = 16  # bytes, the granularity of allocations and of swizzles
ALIGN = 128  # bytes, the alignment of allocations of as many or more
ALIGN_SWIZZLED = 1024  # bytes, the alignment of swizzled allocations: the period of the pattern
MBARRIER_BYTES = 8  # bytes of an mbarrier in shared memory
WARP = 32


@frozen
class Memory:
    """An allocation in shared memory: bytes of a func or of a loop's barriers, and their alignment.

    Those of producer warps are allocated `first`, outside of all loops of the block. A func is stored in a
    `loop`, which `runs` so often, None where that differs.
    """

    name: str
    bytes: float
    align: int
    first: bool = False
    loop: Level | None = None
    runs: int | None = None


def shared_bytes(state: State, tree: ScheduleTree, whole: Mapping[str, Box]) -> float:
    """The bytes of shared memory of a block, of the kernel that has the most; `whole` is needed in all."""
    funcs = map(state.program.func, tree.computed.get(ROOT, ()))
    roots = ((f.name, n) for f in funcs for n in range(len(f.definitions)))
    return max((total_bytes(memories(state, tree, whole, *x)) for x in roots), default=0.0)


def total_bytes(allocations: Sequence[Memory]) -> float:
    """The bytes of allocations one behind the other, each aligned."""
    end = 0.0
    for m in sorted(allocations, key=lambda m: not m.first):
        end = -(-end // m.align) * m.align + -(-m.bytes // CHUNK) * CHUNK
    return end


def memories(
    state: State, tree: ScheduleTree, whole: Mapping[str, Box], name: str, definition: int = 0
) -> list[Memory]:
    """The shared memories of a block of a root definition's kernel, in the order of their allocation."""
    kernel, box = _Kernel(state, tree, whole, _places(state)), whole.get(name)
    if name in kernel.places and box is not None and not any(map(is_empty, box)):
        kernel.nest(state.program.func(name), definition, box, _Around(enclosing=whole))
    return kernel.allocations


def _places(state: State) -> dict[str, set[Level]]:
    """By func, its loops inside of which something is shared; funcs whose warps pass something on, too."""
    places: dict[str, set[Level]] = {}
    stack = []
    for name, plan in state.plans:
        f, nests = state.program.func(name), enumerate(plan.nests)
        loops = ((n, nest, x) for n, nest in nests for x in nest.loops if x.kind == LANES)
        if any(is_reduction(f, n, nest, x.name) for n, nest, x in loops):
            places[name] = set()
            stack.append(name)
        elif plan.scope in (SHARED, GROUP):
            stack.append(name)
    while stack:
        for level in levels_of(state.plan(stack.pop())):
            shared = places.setdefault(level.func, set())
            if level not in shared:
                shared.add(level)
                stack.append(level.func)
    return places


@frozen
class _Around:
    """The loops around a nest: those over threads, how many there are on each axis, boxes further out.

    Only where all `tests` hold, threads have points.
    """

    facts: Facts = NO_FACTS
    runs: Mapping[str, Interval] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)
    enclosing: Mapping[str, Box] = field(default_factory=dict)
    tests: tuple[Expr, ...] = ()

    def opened(self, variable: str, run: Interval, kind: str, count: int) -> _Around:
        """The same in a loop."""
        (first, last), runs, counts = run, self.runs, self.counts
        if first is None or last is None:
            return self
        if kind in THREADS or {*runs} & (variables(first) | variables(last)):
            runs = {**runs, variable: run}
        if kind in THREADS:
            counts = {**counts, kind: count}
        facts = self.facts.with_range(variable, first, last)
        return replace(self, facts=facts, runs=runs, counts=counts)

    def of_active_threads(self) -> _Around:
        """The same with facts and ranges of the threads for which the `tests` hold."""
        if not self.tests:
            return self
        runs, facts = (
            restrict_ranges({**self.runs}, conjunction(self.tests), self.facts),
            self.facts,
        )
        for name, (lo, hi) in runs.items():
            if lo is not None and hi is not None:
                facts = facts.with_range(name, lo, hi)
        return replace(self, facts=facts, runs={n: runs[n] for n in self.runs})


@dataclass(slots=True)
class _Kernel:
    """Goes through the loops of a kernel to the `places` inside of which there may be shared memory."""

    state: State
    tree: ScheduleTree
    whole: Mapping[str, Box]
    places: dict[str, set[Level]]
    allocations: list[Memory] = field(default_factory=list)

    def placed(self, name: str, box: Box | None, around: _Around) -> None:
        """What stands in the nests of a func, of which a box is needed."""
        if name not in self.places or box is None:
            return
        if not any(is_empty(i, around.facts) for i in box):
            f = self.state.program.func(name)
            for n in range(len(f.definitions)):
                self.nest(f, n, box, around)

    def nest(self, f: FuncDef, n: int, box: Box, around: _Around) -> None:
        state, tree = self.state, self.tree
        nest, bounds = state.plan(f.name).nests[n], bounds_of(f, f.definitions[n], box)
        related = relate(nest, bounds, around.facts)
        guards = [substitute(c, related.roots) for c in related.guards]
        if state.plan(f.name).scope in COOPERATIVE:
            around = replace(around, tests=())
        opened: dict[str, Expr] = {}
        for x in nest.loops:
            here = Level(f.name, n, x.name)
            first = bounds[x.name][0] if x.name in bounds else ZERO
            extent = simplify(related.extents[x.name], around.facts)
            variable = Var(f"{f.name} {n} {x.name}")
            count = upper(extent, around.facts) or 1
            if x.kind == LANES and count > WARP:
                rows = prod(around.counts.values())
                self.allocations += self.passed_on(f, n, x.name, count // WARP, rows)
            run = first, simplify(subtract(add(first, extent), ONE), around.facts)
            around = around.opened(variable.name, run, x.kind, count)
            opened = {**opened, x.name: variable}
            if here not in self.places[f.name]:
                continue
            ready = [g for g in guards if variables(g) & {*nest.names()} <= opened.keys()]
            tests = dict.fromkeys((*around.tests, *(substitute(g, opened) for g in ready)))
            around = replace(around, tests=tuple(tests))
            active = OpenNest(
                f, n, nest, related.roots, related.extents, bounds, opened, is_total(state, f.name),
                related.guards,
            )  # fmt: skip
            boxes = self.needed(here, active, around.of_active_threads())
            within = replace(around, enclosing={**around.enclosing, **boxes})
            self.stored(here, x, extent, boxes, within)
            for places in (tree.computed, tree.after):
                for name in places.get(here, ()):
                    self.placed(name, boxes.get(name), within)
            for name in tree.joined.get(here, ()):
                self.placed(name, self.whole.get(name), within)

    def needed(self, here: Level, active: OpenNest, around: _Around) -> dict[str, Box]:
        """The boxes that are needed at a place."""
        state, tree, whole, func = self.state, self.tree, self.whole, active.func
        total = total_stages(state)
        known, enclosing = ({n: b for n, b in x.items() if n not in total} for x in (whole, around.enclosing))
        names = active.nest.names()
        levels = tuple(Level(func.name, active.definition, x) for x in names[names.index(here.loop) :])
        threads = ThreadLoops(around.runs, known, enclosing)
        boxes = required_boxes(
            tree, state, levels, {}, [active], around.facts, threads, limits=around.enclosing
        )
        if func.name in tree.stored.get(here, ()):
            boxes[func.name] = active.written_box(around.facts)
            if state.plan(func.name).scope == SHARED:
                boxes[func.name] = threads.box_of_all(func.name, boxes[func.name], around.facts)
        return boxes

    def stored(
        self, here: Level, loop: Loop, extent: Expr, boxes: Mapping[str, Box], around: _Around
    ) -> None:
        """The memories of a place, and the barriers of what is copied there as a whole."""
        state = self.state
        for name in self.tree.stored.get(here, ()):
            plan = state.plan(name)
            if name not in boxes or plan.scope not in (SHARED, GROUP):
                continue
            runs = int(extent.value) if isinstance(extent, Const) else None
            count = 1 if runs == 1 and not plan.bulk else stages_of(state, self.tree, name)
            first = count > 1 and loop.producer_warps
            if plan.scope == GROUP:
                count = prod(n for axis, n in around.counts.items() if axis != LANES)
            for one in self.bytes_of(name, boxes[name], around.facts):
                align = ALIGN_SWIZZLED if plan.swizzle else _align(count * one)
                self.allocations.append(Memory(name, count * one, align, first, here, runs))
        copied = self.tree.computed.get(here, ())
        if loop.kind == PIPELINED and any(state.plan(n).bulk for n in copied):
            for what in ("copied", "used")[: 1 + loop.producer_warps]:
                size = MBARRIER_BYTES * loop.stages
                self.allocations.append(Memory(f"{loop.name} {what}", size, CHUNK, loop.producer_warps))

    def bytes_of(self, name: str, box: Box, facts: Facts) -> list[float]:
        """The bytes of each component of a box of a func as it is stored; infinite where that is open."""
        f, plan = self.state.program.func(name), self.state.plan(name)
        extents, folds, multiples = list[int](), dict(plan.fold), dict(plan.align)
        for axis, (lo, hi) in enumerate(box):
            most = None
            if lo is not None and hi is not None:
                most = upper(simplify(subtract(add(hi, ONE), lo), facts), facts)
            if most is None:
                return [inf]
            step = multiples.get(axis, 1)
            most = -(-max(most, 0) // step) * step
            extents.append(min(most, folds.get(axis, most)))
        if plan.bulk:
            extents[-1] = bulk_row_extent(extents, f.dtypes[0].bytes)
        uniform, sizes = find_narrowed(self.state, f), list[float]()
        for n, t in enumerate(f.dtypes):
            once = uniform.along if uniform is not None and n in uniform.components else frozenset()
            kept = zip(f.definitions[0].index, extents, strict=True)
            stored = [1 if isinstance(e, Var) and e.name in once else m for e, m in kept]
            sizes.append(prod(stored) * t.bytes)
        return sizes

    def passed_on(self, f: FuncDef, n: int, loop: str, warps: int, rows: int) -> Iterator[Memory]:
        """What the warps of each row of threads give each other where they reduce together in a loop."""
        nest = self.state.plan(f.name).nests[n]
        each = [isinstance(v, Read) and v.index[-1:] == (Var(loop),) for v in f.definitions[n].values]
        if is_reduction(f, n, nest, loop) and all(each):
            for t in f.dtypes:
                size = rows * warps * t.bytes
                yield Memory(f"{f.name} {loop}", size, _align(size))


def _align(size: float) -> int:
    return ALIGN if size >= ALIGN else CHUNK


def stages_of(state: State, tree: ScheduleTree, name: str) -> int:
    """How many tiles of a stage there are: as many as a pipelined loop has that makes it ahead, or one."""
    place = state.plan(name).place
    if not isinstance(place, At) or not is_ahead(state, tree, name):
        return 1
    loops = state.plan(place.level.func).nests[place.level.definition].loops
    return next(max(x.stages, 1) for x in loops if x.name == place.level.loop)


def is_ahead(state: State, tree: ScheduleTree, name: str) -> bool:
    """True for a stage that a pipelined loop can make ahead: it reads nothing that the loop makes."""
    plan, program = state.plan(name), state.program
    level = plan.place.level if isinstance(plan.place, At) else None
    if level is None or plan.scope != SHARED or plan.store not in (None, level):
        return False
    loops = [Level(name, n, x) for n, nest in enumerate(plan.nests) for x in nest.names()]
    stage = funcs_inside(tree, state, loops) | {name}
    body = funcs_inside(tree, state, [level]) | {level.func}
    return not any(
        r.name in body - stage for g in stage for d in program.func(g).definitions for r in d.reads
    )
