"""The state of a schedule: a program, and for each func its loops, where it is computed, where it lives.

A nest is a list of loops, outermost first, and the relations by which they came from the variables of the
definition. All of it is frozen; a directive makes a new state from an old one.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from tdsl.core.source import Loc
from tdsl.lang.definition import Definition
from tdsl.lang.expr import Expr
from tdsl.lang.program import FuncDef, Program
from tdsl.placement.grid import Grid
from tdsl.placement.notation import Placement

SERIAL, PARALLEL, VECTORIZED, UNROLLED = "serial", "parallel", "vectorized", "unrolled"
PIPELINED = "pipelined"  # in order, with copies to shared memory begun some iterations ahead
CLUSTER = "clusterCtaIdx.x"  # the axis of blocks that run at one time and reach each other's memory
BLOCKS = (CLUSTER, "blockIdx.x", "blockIdx.y", "blockIdx.z")
THREADS = ("threadIdx.x", "threadIdx.y", "threadIdx.z")
LANES = "threadIdx.x"  # the axis along which threads lie that run an instruction together
AXES = (*BLOCKS, *THREADS)  # of a launch on a GPU: kinds of loops, too
CONCURRENT = (PARALLEL, *AXES)  # kinds whose iterations run side by side
KINDS = (SERIAL, PARALLEL, VECTORIZED, UNROLLED, PIPELINED, *AXES)
GUARD, SHIFT, ROUND_UP, PEEL = "guard", "shift", "round_up", "peel"
TAILS = (GUARD, SHIFT, ROUND_UP, PEEL)
AUTO, HEAP, STACK, REGISTER = "auto", "heap", "stack", "register"  # the first is chosen by a pass
SHARED = "shared"  # of a GPU: one memory for all threads of a block
FRAGMENT = (
    "fragment"  # of a GPU: registers of several threads together, each element in one of them
)
SWIZZLES = (32, 64, 128)  # bytes of a row of shared memory whose chunks are ordered anew
GROUP = (
    "group"  # of a GPU: shared memory of the threads along threadIdx.x, one for each row of them
)
TOGETHER = (SHARED, FRAGMENT, GROUP)  # memory that several threads fill together
SCOPES = (AUTO, HEAP, STACK, REGISTER, *TOGETHER)


class Illegal(Exception):  # a reason, made a ScheduleError where the directive is known
    """Why a directive cannot be applied."""

    def __init__(
        self, reason: str, hint: str = "", related: tuple[tuple[Loc | None, str], ...] = ()
    ) -> None:
        Exception.__init__(self, reason)
        self.reason, self.hint, self.related = reason, hint, related


@dataclass(frozen=True, slots=True)
class Loop:
    """A loop of a nest; a pipelined one has tiles of `stages` iterations in memory at a time.

    With `apart`, threads of their own ask for these tiles; with `early`, products of tiles alone begin an
    iteration early.
    """

    name: str
    kind: str = SERIAL
    stages: int = 0
    apart: bool = False
    early: bool = False


@dataclass(frozen=True, slots=True)
class Split:
    """parent = outer * factor + inner. With `parts`, the outer loop has that many iterations instead."""

    parent: str
    outer: str
    inner: str
    factor: int | None
    parts: int | None
    tail: str


@dataclass(frozen=True, slots=True)
class Fuse:
    """outer, inner = divmod(fused, extent of inner)."""

    fused: str
    outer: str
    inner: str


@dataclass(frozen=True, slots=True)
class Rename:
    """old = new."""

    old: str
    new: str


@dataclass(frozen=True, slots=True)
class Rotate:
    """old = (new + the loops of `by`) modulo the extent of both."""

    old: str
    new: str
    by: tuple[str, ...]


Relation = Split | Fuse | Rename | Rotate


@dataclass(frozen=True, slots=True)
class Nest:
    """Loops, outermost first, and how the variables of the definition follow from them.

    `aliases` are names that still find a loop after a directive split it behind the scenes.
    """

    loops: tuple[Loop, ...]
    relations: tuple[Relation, ...] = ()
    aliases: tuple[tuple[str, str], ...] = ()

    def names(self) -> tuple[str, ...]:
        """The loops by name, outermost first."""
        return tuple(loop.name for loop in self.loops)

    def position(self, name: str) -> int:
        """How many loops are outside of one."""
        return self.names().index(name)

    def kind(self, name: str) -> str:
        """How a loop runs: one of KINDS."""
        return self.loops[self.position(name)].kind

    def used_names(self) -> set[str]:
        """Every name that a loop of this nest has, or had."""
        found = set(self.names()) | {a for a, _ in self.aliases}
        for r in self.relations:
            match r:
                case Split(parent, outer, inner):
                    found |= {parent, outer, inner}
                case Fuse(fused, outer, inner):
                    found |= {fused, outer, inner}
                case Rename(old, new) | Rotate(old, new):
                    found |= {old, new}
        return found

    def fresh(self, wanted: str) -> str:
        """`wanted`, or the first of wanted_1, wanted_2, ... that is free."""
        used, name, count = self.used_names(), wanted, 0
        while name in used:
            count += 1
            name = f"{wanted}_{count}"
        return name

    def with_kind(
        self, name: str, kind: str, stages: int = 0, *, apart: bool = False, early: bool = False
    ) -> Nest:
        """The nest with one loop run in another way."""
        new = Loop(name, kind, stages, apart, early)
        loops = tuple(new if x.name == name else x for x in self.loops)
        return replace(self, loops=loops)

    def replaced(self, name: str, *new: Loop) -> Nest:
        """The nest with one loop replaced by others in its place."""
        at = self.position(name)
        return replace(self, loops=(*self.loops[:at], *new, *self.loops[at + 1 :]))


def roots_of(nest: Nest, name: str) -> frozenset[str]:
    """The variables of the definition that a loop is a part of."""
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
    """The loops that are there now of one that may have been split, fused or renamed."""
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


@dataclass(frozen=True, slots=True)
class Level:
    """A place in the program: the body of a loop of one definition of a func."""

    func: str
    definition: int
    loop: str


@dataclass(frozen=True, slots=True)
class Root:
    """Before everything that uses it, outside all loops."""


@dataclass(frozen=True, slots=True)
class Inline:
    """In the place of every read."""


@dataclass(frozen=True, slots=True)
class At:
    """Inside a loop of a consumer, before what uses it."""

    level: Level


@dataclass(frozen=True, slots=True)
class After:
    """Inside a loop of the producer, after the part of it that the loop's body makes."""

    level: Level


@dataclass(frozen=True, slots=True)
class With:
    """In the loops of another stage, down to and including `level.loop`."""

    level: Level


Place = Root | Inline | At | After | With


@dataclass(frozen=True, slots=True)
class PrefetchPlan:
    """Prefetch what the body of `loop` reads of `source`, `offset` iterations of the loop `of` ahead."""

    definition: int
    loop: str
    source: str
    offset: int
    of: str


@dataclass(frozen=True, slots=True)
class Specialization:
    """Use `nest` for a definition where a condition on sizes and scalars holds."""

    definition: int
    cond: Expr
    nest: Nest


@dataclass(frozen=True, slots=True)
class Tensorization:
    """Replace the body of a loop by an instruction."""

    definition: int
    loop: str
    instruction: str
    loc: Loc | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class FuncPlan:
    """How one func runs. `place` None leaves the choice to the default schedule.

    `bulk` says that a unit of the GPU copies its box as a whole.
    `distributed` are the loops of definition `shared` that the axes of the grid fix, in their order;
    `communicated` says for a tensor or func at which of its loops it is fetched, or sent to its owners,
    `ahead` how many iterations before it is needed. If `deterministic`, ranks' parts are combined in order.
    What is `filled` has a value everywhere: 0 beyond what it is a copy of. `extents` are those of dimensions
    that are the same wherever it is computed, None for the most that is needed.
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
    bulk: bool = False
    atomic: frozenset[int] = frozenset()
    prefetches: tuple[PrefetchPlan, ...] = ()
    specializations: tuple[Specialization, ...] = ()
    tensorizations: tuple[Tensorization, ...] = ()
    distributed: tuple[str, ...] = ()
    shared: int = 0
    swizzle: int = 0
    filled: bool = False
    resident: int = 0
    communicated: tuple[tuple[str, str], ...] = ()
    ahead: tuple[tuple[str, int], ...] = ()
    deterministic: bool = False
    touched: bool = False
    loc: Loc | None = field(default=None, compare=False)

    def with_nest(self, definition: int, nest: Nest) -> FuncPlan:
        """The plan with the loops of one definition replaced."""
        nests = (*self.nests[:definition], nest, *self.nests[definition + 1 :])
        return replace(self, nests=nests)


def levels_of(plan: FuncPlan) -> Iterator[Level]:
    """The loops that a plan names as places."""
    match plan.place:
        case At(level) | After(level) | With(level):
            yield level
        case _:
            pass
    if plan.store is not None:
        yield plan.store


@dataclass(frozen=True, slots=False)
class State:
    """A program and the plan of each of its funcs; where tensors and funcs live on a grid of ranks.

    A run has so many `ranks`, None for those of the grid; more than these are idle. Tensors whose elements do
    not lie side by side along the last dimension in a call are `apart`.
    """

    program: Program
    plans: tuple[tuple[str, FuncPlan], ...]
    grid: Grid | None = None
    placed: tuple[tuple[str, Placement], ...] = ()
    ranks: int | None = None
    apart: tuple[str, ...] = ()

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
        """For each func, those whose plans name a loop of it as a place."""
        found: dict[str, tuple[str, ...]] = {}
        for name, plan in self.plans:
            for level in levels_of(plan):
                found[level.func] = (*found.get(level.func, ()), name)
        return found

    def with_plan(self, func: str, plan: FuncPlan) -> State:
        """The state with the plan of one func replaced."""
        at, old = self._positions[func], self.plan(func)
        made = replace(self, plans=(*self.plans[:at], (func, plan), *self.plans[at + 1 :]))
        vars(made)["_positions"] = self._positions  # most directives change one plan of many
        if (old.place, old.store) == (plan.place, plan.store):
            vars(made)["placed_in"] = self.placed_in
        else:
            found = dict(self.placed_in)
            for level in levels_of(old):
                found[level.func] = tuple(name for name in found[level.func] if name != func)
            for level in levels_of(plan):
                found[level.func] = (*found.get(level.func, ()), func)
            vars(made)["placed_in"] = found
        return made

    def consumers(self, func: str) -> Iterator[tuple[FuncDef, int]]:
        """Each definition of another func that reads `func`."""
        yield from _readers(self.program).get(func, ())


Readers = dict[str, list[tuple[FuncDef, int]]]
_latest: tuple[Program, Readers] | None = None


def _readers(program: Program) -> Readers:
    """The definitions that read each func, kept for the program that was asked about last.

    A schedule of n stages asks about n times for each of them; found anew, that would cost n ** 3 reads.
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
    """A func with the loops as defined: free variables outside, ranges inside, all serial."""
    return FuncPlan(tuple(fresh_nest(d) for d in f.definitions))


def fresh_nest(d: Definition) -> Nest:
    """The loops of one definition as it is written."""
    return Nest(tuple(Loop(name) for name in d.variables))


def initial_state(program: Program) -> State:
    """The state before any directive."""
    return State(program, tuple((f.name, fresh_plan(f)) for f in program.funcs))


def is_reduction(f: FuncDef, definition: int, nest: Nest, loop: str) -> bool:
    """True when a loop runs over (part of) a range of the definition."""
    ranges = {name for name, _, _ in f.definitions[definition].ranges}
    return bool(roots_of(nest, loop) & ranges)


def is_ordered(f: FuncDef, definition: int) -> bool:
    """True when the points of the ranges must run in order: no combiner, or the func reads itself."""
    d = f.definitions[definition]
    if d.combine is None or not d.combine.associative:
        return bool(d.ranges)
    return any(r.name == f.name for r in d.reads)
