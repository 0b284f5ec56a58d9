"""Tiles of a group: their price at a level of memory, and their shape, grown from the smallest.

A tile begins as a line, or as a vector where that does not fit, and grows along the dimension that saves
the most time for each byte that it then holds, until the level
is full or nothing is saved; among equals along memory. Time is that of the bytes that come into the level
and of the operations, those that neighbouring tiles do again included.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from math import ceil, inf, log2, prod

from tdsl.autoschedule.patterns.rows import vectors_of
from tdsl.autoschedule.recipes.operands import is_for_tensor_cores
from tdsl.core.node import frozen
from tdsl.cost.branches import without_tests_of_indices
from tdsl.cost.moved import bytes_in_runs
from tdsl.cost.seconds import at_once, bytes_per_second, launch_seconds, work_seconds
from tdsl.cost.symbolic_boxes import SymbolicBoxes, Values, dependent_variables
from tdsl.cost.terms import SCALAR, TENSOR, VECTOR, Body, Issue
from tdsl.lang.affine import variables
from tdsl.lang.expr import Var
from tdsl.lang.operations import BY_LANE, PRODUCTS, operations_of
from tdsl.machine.instructions.tensor_cores import ROWS
from tdsl.machine.model import Machine, MemoryLevel
from tdsl.schedule.properties import extents, max_bytes, shape_of
from tdsl.schedule.state import is_ordered
from tdsl.tilegraph.graph import TileGraph

FULL = 0.5  # fraction of a memory level that tiles may fill: other data passes through it
STEP = 64  # terms of a reduction whose operands are in memory at a time
AHEAD = 32  # terms of a reduction whose operands a block holds: those of two steps
ENTER = 2e-8  # seconds to begin the loops of a func
WAIT = 3e-7  # seconds in which threads of a block wait for each other and for what they have begun to load
Shape = tuple[int, ...]


@frozen(slots=False)
class Place:
    """A level of memory that holds tiles, what is behind it, and whether processors share the tiles out.

    On a GPU these are multiprocessors, and the threads of a block share out what its registers hold.
    """

    machine: Machine
    level: MemoryLevel
    behind: MemoryLevel
    outermost: bool

    @property
    def threads(self) -> int:
        """How many threads of one processor share out the tiles."""
        machine = self.machine
        return max(machine.block_threads, 1) if self.level is machine.levels[0] else 1

    @property
    def room(self) -> float:
        """The bytes that a tile may hold."""
        share = self.machine.share(self.level)
        return inf if share is None else FULL * share / self.threads

    @property
    def step(self) -> int:
        """The terms of a reduction whose operands are in memory at a time."""
        return STEP if not self.level.managed else 1 if self.threads > 1 else AHEAD

    @property
    def granule(self) -> int:
        """The bytes that come at a time: a cache fetches lines, threads read words of shared memory."""
        level, behind = self.level, self.behind
        return min(level.line, behind.line) if level.managed else behind.line

    @functools.cached_property
    def speed(self) -> float:
        """The bytes a second that all processors read together of what is behind."""
        return bytes_per_second(self.behind, self.machine, self.machine.threads)

    @property
    def waits(self) -> bool:
        """Whether nothing is computed while memory is read, and lines are read before they are written."""
        return not self.level.managed and self.behind is self.machine.levels[-1]


@frozen
class Tiling:
    """A shape of tiles, the bytes that one holds and that all move into the level, and the seconds of all."""

    shape: Shape
    footprint: float
    moved: float
    seconds: float


@frozen
class Needs:
    """What is needed of funcs and inputs in all: first points and extents; and the bytes of an element.

    Of some funcs, too, the seconds of one thread for a point, by unit, and how many points it computes at
    once along the last dimensions.
    """

    graph: TileGraph
    first: Mapping[str, Shape]
    most: Mapping[str, Shape]
    size: Mapping[str, int]
    seconds: Mapping[str, tuple[float, ...]]
    lanes: Mapping[str, Shape]

    @staticmethod
    def of(graph: TileGraph, names: Iterable[str], machine: Machine) -> Needs:
        """Those of a graph, with the seconds of some of its funcs on a machine."""
        first = {n: tuple(graph.first(n, a) for a in range(len(b))) for n, b in graph.boxes.items()}
        most = {n: shape_of(box) for n, box in graph.boxes.items()}
        work = {n: _work(graph, n, machine) for n in names}
        seconds = {n: _by_unit(work_seconds(w, machine), machine) for n, w in work.items()}
        lanes = {n: _lanes(graph, n, machine, w) for n, w in work.items()}
        return Needs(graph, first, most, {n: graph.element_bytes(n) for n in most}, seconds, lanes)


@frozen
class Group:
    """Funcs that are computed tile by tile of their owner, in the order of the program.

    `needs` says what is needed of them in all, `read` is what they read of others; `stepped` are the
    dimensions of it of which a reduction needs a few elements at a time, `once` what one member reads alone.
    """

    needs: Needs
    owner: str
    members: tuple[str, ...]
    symbolic: SymbolicBoxes
    read: tuple[str, ...]
    stepped: frozenset[tuple[str, int]]
    once: frozenset[str]
    live: tuple[tuple[str, ...], ...]

    @staticmethod
    def of(needs: Needs, owner: str) -> Group:
        """The group of an owner alone."""
        graph = needs.graph
        around = graph.program.func(owner).variables
        return _group(needs, (owner,), SymbolicBoxes.of(graph.state, owner, around, (), graph.boxes))

    def joined(self, name: str) -> Group:
        """The group with one more func, which only its members read."""
        f = self.needs.graph.program.func(name)
        return _group(self.needs, (name, *self.members), self.symbolic.joined(f))

    @property
    def whole(self) -> Shape:
        """The extents of the owner."""
        return tuple(max(n, 1) for n in self.needs.most[self.owner])

    def tile(self, shape: Shape) -> dict[str, Shape]:
        """The extents that an inner tile needs of each func and input."""
        first, last = {}, {}
        starts = self.needs.first[self.owner]
        for v, lo, n, whole in zip(self.symbolic.around, starts, shape, self.whole, strict=True):
            first[v] = lo + (whole // n // 2) * n if n < whole else lo
            last[v] = first[v] + n - 1
        return {n: self._extents(n, first, last) for n in (*self.members, *self.read)}

    def _extents(self, name: str, first: Values, last: Values) -> Shape:
        lengths = self.symbolic.extents(name, first, last)
        most = self.needs.most[name]
        return tuple([w if n is None or n > w else n for n, w in zip(lengths, most, strict=True)])

    def bytes_of(self, name: str, shape: Shape, line: int = 1) -> float:
        """The bytes of a box, each contiguous run of them in whole lines."""
        return bytes_in_runs(shape, self.needs.most[name], self.needs.size[name], line)

    def uncut(self) -> Shape:
        """The least tiles of a thread: indices of registers are constant.

        Where a member is needed as a whole by one reader, and where its tile is by another one, that is all.
        """
        program, moving = self.needs.graph.program, set[str]()
        for reader in map(program.func, self.members):
            bounds = dict(zip(reader.variables, self.symbolic.boxes[reader.name], strict=True))
            for r in (r for d in reader.definitions for r in d.reads if r.name in self.members[:-1]):
                for e, box in zip(r.index, self.symbolic.boxes[r.name], strict=True):
                    intervals = [bounds[v] for v in variables(e) if v in bounds]
                    read = {v for x in intervals for v in dependent_variables(x, self.symbolic.around)}
                    moving |= read - {*dependent_variables(box, self.symbolic.around)}
        return tuple(n if v in moving else 1 for v, n in zip(self.symbolic.around, self.whole, strict=True))

    def can_be_tiled(self) -> bool:
        """Whether the loops of the owner can be split with others inside: its points are independent."""
        f = self.needs.graph.program.func(self.owner)
        d = f.definitions[0]
        return (
            len(f.definitions) == 1
            and bool(f.variables)
            and d.index == tuple(map(Var, f.variables))
            and not is_ordered(f, 0)
        )


def _group(needs: Needs, members: tuple[str, ...], symbolic: SymbolicBoxes) -> Group:
    graph, names = needs.graph, [n for n in symbolic.boxes if n in needs.most]
    read = tuple(n for n in names if n not in members)
    stepped = frozenset(_stepped(graph, members))
    readers = Counter(e.producer for e in graph.edges if e.consumer in members)
    once = frozenset(n for n, count in readers.items() if count == 1)
    live = _live(graph, members, names)
    return Group(needs, members[-1], members, symbolic, read, stepped, once, live)


UNITS = VECTOR, "exp", TENSOR  # of a GPU, which work at the same time


def _by_unit(seconds: Mapping[str, float], machine: Machine) -> tuple[float, ...]:
    """The seconds of units that work at the same time."""
    return tuple(seconds.get(u, 0.0) for u in UNITS) if machine.block_threads else at_once(seconds)


def _work(graph: TileGraph, name: str, machine: Machine) -> Body:
    """The operations of a point of a func, of which reductions have many terms."""
    f, issues = graph.program.func(name), list[tuple[Issue, float]]()
    tensor = "mma" in machine.features and is_for_tensor_cores(f)
    for n, d in enumerate(f.definitions):
        sizes = extents(f, d, graph.boxes[name])
        wide = machine.block_threads > 0 or vectors_of(f, n, sizes, machine.vector_bytes) is not None
        terms = prod(sizes[v] or 1 for v, _, _ in d.ranges)
        operand = max((r.dtype for r in d.reads), key=lambda t: t.bytes, default=None)
        for x in operations_of(without_tests_of_indices(d)):
            unit = TENSOR if tensor else VECTOR if wide and x.op not in BY_LANE else SCALAR
            if not tensor or x.op in PRODUCTS:
                dtype = operand if tensor and operand is not None else x.dtype
                issues.append((Issue(unit, x.op, dtype.name), terms * x.count))
    return Body(tuple(issues))


def _lanes(graph: TileGraph, name: str, machine: Machine, work: Body) -> Shape:
    """The points along the last dimensions that are computed together, if only for some of them."""
    if any(issue.unit == TENSOR for issue, _ in work.issues):
        return ROWS, ROWS
    return (max(machine.vector_bytes // max(graph.element_bytes(name), 1), 1),)


def _stepped(graph: TileGraph, members: tuple[str, ...]) -> set[tuple[str, int]]:
    """Dimensions of what is read of which a reduction needs a few elements at a time."""
    stepped, others = set[tuple[str, int]](), set[tuple[str, int]]()
    for name in members:
        for d in graph.program.func(name).definitions:
            ranges = {Var(v) for v, _, _ in d.ranges}
            for r in d.reads:
                for axis, e in enumerate(r.index):
                    (stepped if e in ranges else others).add((r.name, axis))
    return {(n, axis) for n, axis in stepped - others if n not in members}


def grow(group: Group, place: Place) -> Tiling | None:
    """The tiles of a group that a level holds; None where not even the smallest fit, or it has no tiles.

    A func by itself has some in any case: it passes through the level.
    """
    whole = group.whole
    if len(group.members) > 1 and not group.can_be_tiled():
        return None
    least = group.uncut() if place.threads > 1 else tuple(1 for _ in whole)
    lines, vectors = (price(group, tuple(map(max, shape, least)), place) for shape in _smallest(group, place))
    best = lines if lines.footprint <= place.room and not place.level.managed else vectors
    if best.footprint > place.room:
        return best if len(group.members) == 1 else None
    while True:
        grown = []
        for axis, n in enumerate(best.shape):
            if n < whole[axis]:
                more = _next(n, whole[axis])
                wider = price(group, (*best.shape[:axis], more, *best.shape[axis + 1 :]), place)
                if wider.footprint <= place.room and wider.seconds < best.seconds:
                    gain = (best.seconds - wider.seconds) / max(wider.footprint - best.footprint, 1.0)
                    grown.append((-round(log2(gain), 1), -axis, wider))
        if not grown:
            return best
        best = min(grown, key=lambda g: g[:2])[2]


def _smallest(group: Group, place: Place) -> tuple[Shape, Shape]:
    """All of the last dimension, or a vector along it, and one point along all others.

    Lines that are not cut have an extent that is known, and no edges within.
    """
    d = group.needs.graph.program.func(group.owner).definitions[0]
    lanes = max(place.machine.vector_bytes // max_bytes(d), 1)
    one = tuple(1 for _ in group.whole[1:])
    last = group.whole[-1:]
    return (*one, *last), (*one, *(min(lanes, n) for n in last))


def _next(n: int, whole: int) -> int:
    """Twice as many, or all where that is nearly all.

    >>> _next(4, 100), _next(4, 9), _next(64, 83)
    (8, 9, 83)
    """
    return whole if 3 * n > whole else 2 * n


def price(group: Group, shape: Shape, place: Place) -> Tiling:
    """What tiles of a shape hold and move, and the time that all of them take."""
    machine, needs, far = place.machine, group.needs, place.waits
    ratios = [w / n for w, n in zip(group.whole, shape, strict=True)]
    tiles, count = prod(ratios), prod(map(ceil, ratios))  # tiles at edges are smaller
    sizes, line = group.tile(shape), place.granule
    written = group.bytes_of(group.owner, sizes[group.owner], line)
    moved = sum([group.bytes_of(n, sizes[n], line) for n in group.read]) + written
    units = [0.0] * len(next(iter(needs.seconds.values())))
    for n in group.members:
        points = tiles * _padded(sizes[n], needs.lanes[n])
        units = [s + points * each for s, each in zip(units, needs.seconds[n], strict=True)]
    enter = (WAIT if place.level.managed else ENTER) * len(group.members) * tiles
    bytes_ = tiles * (moved + (written if far else 0.0))
    if place.outermost:
        busy = count / ceil(count / machine.threads)
        seconds = _slowest([s / busy for s in units], bytes_ / place.speed, far) + enter / busy
        seconds += launch_seconds(machine)
        if machine.gpu is None:  # which launches every kernel; one thread of a CPU just goes on
            alone = _slowest(units, bytes_ / bytes_per_second(place.behind, machine, 1), far) + enter
            seconds = min(seconds, alone)
    else:
        idle = place.threads * ceil(count / place.threads) / count  # how often all could have run
        seconds = idle * _slowest(units, bytes_ / place.speed * machine.threads, far)
        seconds += enter if place.threads == 1 else WAIT * len(group.members)
    return Tiling(shape, _footprint(group, sizes, place), tiles * moved, seconds)


def _slowest(units: list[float], memory: float, far: bool) -> float:
    """The slowest of all units; a little for the others, so that what is hidden counts between equals.

    What comes from `far` is hidden by nothing.
    """
    each = units if far else [memory, *units]
    return max(each) + 0.05 * (sum(each) - max(each)) + (memory if far else 0.0)


def _padded(shape: Shape, lanes: Shape) -> float:
    """The points of a box, its last dimensions in whole vectors, or tiles of instructions.

    >>> _padded((3, 30), (16,)), _padded((3, 5), (16,)), _padded((3, 30), (16, 16))
    (96, 15, 512)
    """
    last = shape[len(shape) - len(lanes) :]
    if len(shape) < len(lanes) or (len(lanes) == 1 and last[0] < lanes[0] // 2):
        return prod(shape)
    whole = (-(-n // step) * step for n, step in zip(last, lanes, strict=True))
    return prod(shape[: len(shape) - len(lanes)]) * prod(whole)


def _footprint(group: Group, sizes: Mapping[str, Shape], place: Place) -> float:
    """The most bytes that a tile needs at a time, members computed in order and freed after use.

    Of what several members read, managed memory holds all that they need.
    """
    footprints, most = {}, place.step
    for n, shape in sizes.items():
        in_steps, points = n in group.once or not place.level.managed, 1
        for axis, e in enumerate(shape):
            points *= most if in_steps and e > most and (n, axis) in group.stepped else e
        footprints[n] = group.needs.size[n] * points
    return max([sum([footprints[n] for n in names]) for names in group.live])


def _live(graph: TileGraph, members: tuple[str, ...], names: Collection[str]) -> tuple[tuple[str, ...], ...]:
    """The members whose values are live while each member of a tile is computed."""
    order = {n: at for at, n in enumerate(members)}
    last = dict(order)
    for e in graph.edges:
        if e.consumer in order and e.producer in names:
            last[e.producer] = max(last.get(e.producer, 0), order[e.consumer])
    return tuple(
        tuple(n for n in last if n in names and order.get(n, at) <= at <= last[n]) for at in range(len(order))
    )
