"""The state of a schedule: a program, and for each func its loop nests, compute level and storage.

A nest is a list of loops, outermost first, and the relations (split, fuse, ...) that derive them from the
variables of the definition. All classes are frozen; a directive returns a new state.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from dataclasses import field, replace

from tdsl.core.node import frozen
from tdsl.core.source import Loc
from tdsl.lang.definition import Definition
from tdsl.lang.expr import Expr
from tdsl.lang.program import FuncDef, Program
from tdsl.placement.grid import Grid
from tdsl.placement.notation import Copies, Fixed, Partial, Placement

SERIAL, PARALLEL, VECTORIZED, UNROLLED = "serial", "parallel", "vectorized", "unrolled"
PIPELINED = "pipelined"  # iterations in order, with copies to shared memory issued some iterations ahead
CLUSTER = "clusterCtaIdx.x"  # the axis of the blocks of a cluster, which run concurrently
BLOCKS = (CLUSTER, "blockIdx.x", "blockIdx.y", "blockIdx.z")
THREADS = ("threadIdx.x", "threadIdx.y", "threadIdx.z")
LANES = "threadIdx.x"  # the axis of the lanes of a warp
AXES = (*BLOCKS, *THREADS)  # axes of a GPU launch; they are kinds of loops, too
CONCURRENT = (PARALLEL, *AXES)  # kinds whose iterations run concurrently
KINDS = (SERIAL, PARALLEL, VECTORIZED, UNROLLED, PIPELINED, *AXES)
GUARD, SHIFT, ROUND_UP, PEEL, ALIGN = "guard", "shift", "round_up", "peel", "align"
TAILS = (GUARD, SHIFT, ROUND_UP, PEEL, ALIGN)
AUTO, HEAP, STACK, REGISTER = "auto", "heap", "stack", "register"  # the first is chosen by a pass
SHARED = "shared"  # shared memory of a GPU, one for all threads of a block
FRAGMENT = "fragment"  # a tile in the registers of several GPU threads, each element in a single thread
CACHE_POLICIES = ("evict_first", "evict_last")  # which lines of the last cache of a GPU are evicted
SWIZZLES = (32, 64, 128)  # bytes of a row of shared memory within which chunks are permuted
GROUP = "group"  # shared memory of the GPU threads along threadIdx.x, one part for each row of threads
COOPERATIVE = (SHARED, FRAGMENT, GROUP)  # memory that several threads fill cooperatively
SCOPES = (AUTO, HEAP, STACK, REGISTER, *COOPERATIVE)


class Illegal(Exception):  # converted to a ScheduleError where the directive is known
    """The reason why a directive cannot be applied."""

    def __init__(self, reason: str, hint: str = "", related: tuple[tuple[Loc | None, str], ...] = ()) -> None:
        Exception.__init__(self, reason)
        self.reason, self.hint, self.related = reason, hint, related


@frozen
class Loop:
    """A loop of a nest; a pipelined one has the tiles of `stages` iterations in memory at a time.

    With `producer_warps`, warps of their own issue the copies of these tiles; with `overlap_mma`, MMAs of
    tiles alone are issued one iteration early. `fixed`: a directive says that the loop is as it is.
    """

    name: str
    kind: str = SERIAL
    stages: int = 0
    producer_warps: bool = False
    overlap_mma: bool = False
    fixed: bool = False


@frozen
class Split:
    """parent = outer * factor + inner. With `parts` instead of `factor`, the outer loop has that extent.

    With tail ALIGN blocks begin at multiples of the factor: the parent's first index modulo it is subtracted.
    """

    parent: str
    outer: str
    inner: str
    factor: int | None
    parts: int | None
    tail: str


@frozen
class Fuse:
    """outer, inner = divmod(fused, extent of inner)."""

    fused: str
    outer: str
    inner: str


@frozen
class Rename:
    """old = new."""

    old: str
    new: str


@frozen
class Rotate:
    """old = (new + the loops of `by`) modulo the extent of both."""

    old: str
    new: str
    by: tuple[str, ...]


Relation = Split | Fuse | Rename | Rotate


@frozen
class Nest:
    """Loops, outermost first, and the relations between them and the variables of the definition.

    `aliases` map the name of a loop that a directive split implicitly to the loop that the name now means.
    `ordered` are the pairs of loops, the outer one first, whose order a directive gives.
    """

    loops: tuple[Loop, ...]
    relations: tuple[Relation, ...] = ()
    aliases: tuple[tuple[str, str], ...] = ()
    ordered: tuple[tuple[str, str], ...] = ()

    def names(self) -> tuple[str, ...]:
        """The loops by name, outermost first."""
        return tuple(loop.name for loop in self.loops)

    def position(self, name: str) -> int:
        """The position of a loop, 0 for the outermost."""
        return self.names().index(name)

    def kind(self, name: str) -> str:
        """The kind of a loop: one of KINDS."""
        return self.loops[self.position(name)].kind

    def used_names(self) -> set[str]:
        """Every name that a loop of this nest has, or had."""
        used = set(self.names()) | {a for a, _ in self.aliases}
        for r in self.relations:
            match r:
                case Split(parent, outer, inner):
                    used |= {parent, outer, inner}
                case Fuse(fused, outer, inner):
                    used |= {fused, outer, inner}
                case Rename(old, new) | Rotate(old, new):
                    used |= {old, new}
        return used

    def fresh_name(self, base: str) -> str:
        """`base`, or the first unused name of base_1, base_2, ..."""
        used, name, count = self.used_names(), base, 0
        while name in used:
            count += 1
            name = f"{base}_{count}"
        return name

    def with_kind(self, name: str, kind: str) -> Nest:
        """The nest with another kind for one loop."""
        return self.with_loop(Loop(name, kind))

    def with_loop(self, new: Loop) -> Nest:
        """The nest with `new` in place of the loop of the same name."""
        loops = tuple(new if x.name == new.name else x for x in self.loops)
        return replace(self, loops=loops)

    def replaced(self, name: str, *new: Loop) -> Nest:
        """The nest with one loop replaced by others in its place."""
        at = self.position(name)
        return replace(self, loops=(*self.loops[:at], *new, *self.loops[at + 1 :]))


def roots_of(nest: Nest, name: str) -> frozenset[str]:
    """The variables of the definition from which a loop is derived by splits, fuses and renames."""
    roots = {name}
    for r in reversed(nest.relations):
        match r:
            case Split(parent, outer, inner) if roots & {outer, inner}:
                roots = roots - {outer, inner} | {parent}
            case Fuse(fused, outer, inner) if fused in roots:
                roots = roots - {fused} | {outer, inner}
            case Rename(old, new) | Rotate(old, new) if new in roots:
                roots = roots - {new} | {old}
    return frozenset(roots)


def parts_of(nest: Nest, name: str) -> frozenset[str]:
    """The current loops derived from a loop or variable by splits, fuses and renames."""
    parts = {name}
    for r in nest.relations:
        match r:
            case Split(parent, outer, inner) if parent in parts:
                parts |= {outer, inner}
            case Fuse(fused, outer, inner) if parts & {outer, inner}:
                parts.add(fused)
            case Rename(old, new) | Rotate(old, new) if old in parts:
                parts.add(new)
    return frozenset(parts & set(nest.names()))


def is_ordered_outside(nest: Nest, outer: str, inner: str) -> bool:
    """True if directives say that a current loop, or one that it is a piece of, is outside of another one."""
    return any(outer in parts_of(nest, a) and inner in parts_of(nest, b) for a, b in nest.ordered)


@frozen
class Level:
    """The body of a loop of one definition of a func (Halide LoopLevel)."""

    func: str
    definition: int
    loop: str


@frozen
class Root:
    """Place outside all loops, before all consumers."""


@frozen
class Inline:
    """Place at every read: the definition replaces the read."""


@frozen
class At:
    """Place inside a loop of a consumer, before the stages that read the func."""

    level: Level


@frozen
class AfterProducer:
    """Place inside a loop of the producer, after the points of it that the loop's body computes."""

    level: Level


@frozen
class WithStage:
    """Place in the loops of another stage, shared down to and including `level.loop`."""

    level: Level


Place = Root | Inline | At | AfterProducer | WithStage


@frozen
class PrefetchPlan:
    """Prefetch the region of `source` that the body of `loop` reads `offset` iterations of `of` later."""

    definition: int
    loop: str
    source: str
    offset: int
    of: str


@frozen
class Specialization:
    """Use `nest` for a definition if a condition on sizes and scalars holds."""

    definition: int
    cond: Expr
    nest: Nest


@frozen
class Tensorization:
    """Replace the body of a loop by an instruction."""

    definition: int
    loop: str
    instruction: str
    loc: Loc | None = field(default=None, compare=False, repr=False)


AxisEntry = str | Copies | Fixed | Partial


@frozen
class FuncPlan:
    """The schedule of one func. `place` None leaves the place to the default schedule.

    `bulk`: its box is copied by bulk asynchronous copies (TMA).
    `distributed` has an entry for each axis of the grid: the loop of `distributed_definition` over it; or
    Copies where every coordinate computes the func, Fixed where one does, Partial where each computes it from
    its own part of partial sources. `communicated` maps a tensor or func to the loop at which it is received,
    or sent to its owners, `ahead` to the iterations before its use; `overlapped` are received while
    points that read local elements are computed. `routed` are those of which the rows that data select are
    received, or if False never so. `since` has, for tensors that are received early, the func at whose begin,
    `behind` the tensor after whose messages; `until` is the func before whose begin results arrive. If
    `deterministic`, partial results combine in rank order.
    `policies` has the cache policy of the loads of each source that has one.
    `filled`: a copy that is 0 beyond the edges of its source. `extents` are fixed extents of dimensions, the
    same wherever the func is computed, None for the largest that is needed.
    """

    nests: tuple[Nest, ...]
    place: Place | None = None
    store: Level | None = None
    scope: str = "auto"
    order: tuple[int, ...] | None = None
    align: tuple[tuple[int, int], ...] = ()
    fold: tuple[tuple[int, int], ...] = ()
    extents: tuple[tuple[int, int | None], ...] = ()
    stream: bool = False
    policies: tuple[tuple[str, str], ...] = ()
    bulk: bool = False
    atomic: frozenset[int] = frozenset()
    prefetches: tuple[PrefetchPlan, ...] = ()
    specializations: tuple[Specialization, ...] = ()
    tensorizations: tuple[Tensorization, ...] = ()
    distributed: tuple[AxisEntry, ...] = ()
    distributed_definition: int = 0
    swizzle: int = 0
    filled: bool = False
    min_blocks: int = 0
    grid_sync: bool = False
    communicated: tuple[tuple[str, str], ...] = ()
    ahead: tuple[tuple[str, int], ...] = ()
    overlapped: tuple[str, ...] = ()
    routed: tuple[tuple[str, bool], ...] = ()
    since: tuple[tuple[str, str], ...] = ()
    behind: tuple[tuple[str, str], ...] = ()
    until: str | None = None
    deterministic: bool = False
    scheduled: bool = False
    loc: Loc | None = field(default=None, compare=False)

    def with_nest(self, definition: int, nest: Nest) -> FuncPlan:
        """The plan with the loops of one definition replaced."""
        nests = (*self.nests[:definition], nest, *self.nests[definition + 1 :])
        return replace(self, nests=nests)


def levels_of(plan: FuncPlan) -> Iterator[Level]:
    """The loop levels at which a plan computes and stores its func."""
    match plan.place:
        case At(level) | AfterProducer(level) | WithStage(level):
            yield level
        case _:
            pass
    if plan.store is not None:
        yield plan.store


@frozen
class Interleaving:
    """Loops of several funcs whose iterations, called steps, run in an order across the funcs.

    Each of `items` has the loops that advance together, as pairs of a func and a loop. `order` has the number
    of an item and of a step for each step; None runs one step of each item in turn.
    """

    items: tuple[tuple[tuple[str, str], ...], ...]
    order: tuple[tuple[int, int], ...] | None = None

    @property
    def loops(self) -> dict[str, str]:
        """The loop of each func."""
        return dict(loop for item in self.items for loop in item)


@frozen(slots=False)
class State:
    """A program, the plan of each of its funcs, and the placement of tensors and funcs on a grid of ranks.

    `ranks` is the number of ranks of a run, None for that of the grid; ranks beyond the grid are idle.
    `overwrites` are funcs, each with the input whose memory it takes; `donated` are the inputs whose blocks
    are freed after their last reader. `interleaved` are loops whose steps run in an order of their own.
    `strided_inputs` are the tensors that are not contiguous along the last dimension in a call, `with_gaps`
    the arrays of a call whose elements do not follow each other in memory.
    """

    program: Program
    plans: tuple[tuple[str, FuncPlan], ...]
    grid: Grid | None = None
    placed: tuple[tuple[str, Placement], ...] = ()
    ranks: int | None = None
    overwrites: tuple[tuple[str, str], ...] = ()
    donated: tuple[str, ...] = ()
    interleaved: tuple[Interleaving, ...] = ()
    strided_inputs: tuple[str, ...] = ()
    with_gaps: tuple[str, ...] = ()

    def plan(self, func: str) -> FuncPlan:
        """The plan of a func, which must be one of the program."""
        return self.by_name[func]

    @functools.cached_property
    def by_name(self) -> dict[str, FuncPlan]:
        """The plan of each func by its name."""
        return dict(self.plans)

    @functools.cached_property
    def _positions(self) -> dict[str, int]:
        return {name: n for n, (name, _) in enumerate(self.plans)}

    @functools.cached_property
    def placed_in(self) -> dict[str, tuple[str, ...]]:
        """For each func, the funcs that are computed or stored at one of its loops."""
        placed: dict[str, tuple[str, ...]] = {}
        for name, plan in self.plans:
            for level in levels_of(plan):
                placed[level.func] = (*placed.get(level.func, ()), name)
        return placed

    def with_plan(self, func: str, plan: FuncPlan) -> State:
        """The state with the plan of one func replaced."""
        at, old = self._positions[func], self.plan(func)
        state = replace(self, plans=(*self.plans[:at], (func, plan), *self.plans[at + 1 :]))
        vars(state)["_positions"] = self._positions  # most directives change one plan of many
        vars(state)["by_name"] = {**self.by_name, func: plan}
        if (old.place, old.store) == (plan.place, plan.store):
            vars(state)["placed_in"] = self.placed_in
        else:
            placed = dict(self.placed_in)
            for level in levels_of(old):
                placed[level.func] = tuple(name for name in placed[level.func] if name != func)
            for level in levels_of(plan):
                placed[level.func] = (*placed.get(level.func, ()), func)
            vars(state)["placed_in"] = placed
        return state

    def with_placements(self, grid: Grid | None, placed: tuple[tuple[str, Placement], ...]) -> State:
        """The state with a grid and with the placements on it."""
        state = replace(self, grid=grid, placed=placed)
        for cache in ("_positions", "by_name", "placed_in"):  # of the plans, which are the same
            vars(state)[cache] = getattr(self, cache)
        return state

    def in_order(self, funcs: Iterable[str]) -> list[str]:
        """Those of some names that are funcs of the program, in its order."""
        return sorted((f for f in funcs if f in self._positions), key=self._positions.__getitem__)

    def consumers(self, func: str) -> Iterator[tuple[FuncDef, int]]:
        """Each definition of another func that reads `func`."""
        yield from _readers(self.program).get(func, ())


Readers = dict[str, list[tuple[FuncDef, int]]]
_latest: tuple[Program, Readers] | None = None


def _readers(program: Program) -> Readers:
    """The definitions that read each func, cached for the last program.

    A schedule of n stages calls this about n times for each stage, which costs n ** 3 reads without a cache.
    """
    global _latest
    known = _latest
    if known is not None and known[0] is program:
        return known[1]
    readers: Readers = {}
    for f in program.funcs:
        for n, d in enumerate(f.definitions):
            for name in d.sources - {f.name}:
                readers.setdefault(name, []).append((f, n))
    _latest = (program, readers)
    return readers


def fresh_plan(f: FuncDef) -> FuncPlan:
    """The plan without directives: loops over free variables outside, over ranges inside, all serial."""
    return FuncPlan(tuple(fresh_nest(d) for d in f.definitions))


def fresh_nest(d: Definition) -> Nest:
    """The nest of one definition without directives: a serial loop for each variable."""
    return Nest(tuple(Loop(name) for name in d.variables))


def initial_state(program: Program) -> State:
    """The state before any directive."""
    return State(program, tuple((f.name, fresh_plan(f)) for f in program.funcs))


def is_reduction(f: FuncDef, definition: int, nest: Nest, loop: str) -> bool:
    """True if a loop runs over (part of) a range of the definition."""
    ranges = {name for name, _, _ in f.definitions[definition].ranges}
    return bool(roots_of(nest, loop) & ranges)


def is_ordered(f: FuncDef, definition: int) -> bool:
    """True if the points of the ranges must run in order: no combiner, or the func reads itself."""
    d = f.definitions[definition]
    if d.combine is None or not d.combine.associative:
        return bool(d.ranges)
    return any(r.name == f.name for r in d.reads)
