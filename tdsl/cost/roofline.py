"""How long a schedule takes, by its bytes at each level of memory and its operations: a roofline.

A nest at the root waits for the slowest of what it does at the same time: each level of memory for its bytes,
each unit for its operations. Nests run one after another; each that is shared out begins with a launch.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import replace
from math import ceil, inf, prod

from tdsl.core.node import Node, frozen, post_order, transform
from tdsl.cost.accesses import accessed, partly_filled, variable_of
from tdsl.cost.caches import CacheModel
from tdsl.cost.loopnests import Nests, NestSpot
from tdsl.cost.moved import Bytes, Moved, total
from tdsl.cost.traffic import of_block
from tdsl.lang.affine import variables
from tdsl.lang.definition import Definition
from tdsl.lang.expr import TRUE, Call, Const, Expr, Param, Select
from tdsl.lang.program import map_expressions
from tdsl.lang.regions import reads_in
from tdsl.machine.devices import reference_cpu
from tdsl.machine.instructions.instruction import INSTRUCTIONS
from tdsl.machine.model import Machine, MemoryLevel
from tdsl.schedule.properties import cost, max_bytes, node_cost
from tdsl.schedule.state import BLOCKS, PARALLEL, THREADS, VECTORIZED

_CHEAP = ("fma", "isnan", "isinf", "isfinite", "floor", "ceil", "trunc", "sqrt", "absolute")
WARM = 0.5  # of the last cache, in which the arrays of a small program stay from call to call
_CALL = 12  # operations that `cost` takes a call for
HALF = 2  # bytes of the elements that rates of tensor cores are said for
KNOWN = 1 << 10  # definitions that are looked at once: each candidate of a search has them
LAUNCH = 3e-6  # seconds of a kernel of a GPU, where it has not been measured


@frozen
class Work:
    """Operations by unit: "vector" and "scalar" ones, and values of functions such as exp.

    Those of tensor cores count by the bytes of what they multiply: twice as much takes twice as long.
    """

    vector: float = 0.0
    scalar: float = 0.0
    exp: float = 0.0
    tensor: float = 0.0

    def __add__(self, other: Work) -> Work:
        return Work(
            self.vector + other.vector, self.scalar + other.scalar, self.exp + other.exp,
            self.tensor + other.tensor,
        )  # fmt: skip

    def times(self, n: float) -> Work:
        """So many times as much."""
        return Work(n * self.vector, n * self.scalar, n * self.exp, n * self.tensor)


@frozen
class NestTime:
    """The seconds of a nest at the root: by level of memory, by unit, and for its launch.

    `far` is the level that a processor waits for without doing anything else, "" for none.
    """

    func: str
    memory: tuple[tuple[str, float], ...]
    units: tuple[tuple[str, float], ...]
    launch: float
    far: str = ""

    @property
    def seconds(self) -> float:
        """The slowest of what is done at the same time, the level that nothing hides, and the launch."""
        together = (s for name, s in (*self.memory, *self.units) if name != self.far)
        exposed = sum(s for name, s in self.memory if name == self.far)
        return max(together, default=0.0) + exposed + self.launch

    def times(self, part: float) -> NestTime:
        """That of a part of its iterations."""
        if part == 1:
            return self
        memory = tuple((name, part * s) for name, s in self.memory)
        units = tuple((name, part * s) for name, s in self.units)
        return replace(self, memory=memory, units=units)

    @property
    def waits_for(self) -> str:
        """What takes the longest."""
        return max((*self.memory, *self.units), key=lambda x: x[1], default=("nothing", 0.0))[0]


def roofline(nests: Nests, machine: Machine) -> tuple[NestTime, ...]:
    """The time of each nest at the root, in running order.

    >>> import tdsl as td
    >>> from tdsl.schedule.properties import rest_at_root
    >>> i, a, f = td.vars("i"), td.Tensor("a", (1 << 26,), td.f32), td.Func("f")
    >>> f[i] = a[i] + 1
    >>> (time,) = roofline(Nests.of(rest_at_root(td.Schedule(f).state)), Machine(vector_bytes=64))
    >>> time.func, time.waits_for
    ('f', 'memory')
    """
    if machine.block_threads:
        return tuple(_on_gpu(spot, machine) for spot in nests.roots())
    caches, last = machine.caches, machine.caches[-1]
    size = sum(map(nests.bytes_of, nests.whole, nests.whole.values()))
    warm = size <= WARM * (last.bytes or 0)  # all is there from one call to the next
    moved: dict[str, list[Bytes]] = {
        x.name: [{} for _ in nests.roots()]
        if warm and x is last
        else CacheModel.of(nests, x, machine).by_nest(freed=size <= WARM * (x.bytes or 0))
        for x in caches
    }
    return tuple(
        _on_cpu(spot, machine, {x.name: moved[x.name][n] for x in caches})
        for n, spot in enumerate(nests.roots())
    )


def _on_cpu(spot: NestSpot, machine: Machine, moved: Mapping[str, Bytes]) -> NestTime:
    """`moved` is what each cache moves for this nest."""
    shared = _has(spot, PARALLEL)
    threads = _busy(spot, machine.threads) if shared else 1
    levels = machine.levels
    memory = [_loading(spot, machine, threads)]
    for n, level in enumerate(levels[:-1]):
        if level in machine.caches:
            behind = levels[n + 1]
            size = total(moved[level.name])
            if behind is levels[-1]:
                size += sum(_filled(spot, name, m) for name, m in moved[level.name].items())
            memory.append((behind.name, size / bytes_per_second(behind, machine, threads)))
    launch = launch_seconds(machine) if shared else 0.0
    units = unit_seconds(work_of(spot, machine.vector_bytes), machine, threads)
    return NestTime(spot.func.name, tuple(memory), units, launch, levels[-1].name)


def _loading(spot: NestSpot, machine: Machine, threads: int) -> tuple[str, float]:
    """The time in which the nearest cache gives registers what a nest loads."""
    cache = machine.caches[0]
    size = loaded_of(spot, machine)
    return cache.name, size / bytes_per_second(cache, machine, threads)


def loaded_of(spot: NestSpot, machine: Machine) -> float:
    """What a nest loads with all that stands in its loops, in bytes of vectors side by side."""
    definition = _without_tests_of_indices(spot.func.definitions[spot.definition])
    wide = machine.vector_bytes or max_bytes(definition)
    bytes_loaded = accessed(spot, definition, wide, wide * machine.registers)
    for k in range(1, len(spot.nest.loops) + 1):
        children = spot.children(k)
        short = partly_filled(spot, spot.first(k)) if children else 1.0
        bytes_loaded += sum(short * loaded_of(child, machine) for child in children)
    return bytes_loaded


def _filled(spot: NestSpot, name: str, moved: Moved) -> float:
    """The bytes of lines that are read because they are written, unless that goes past the caches.

    What a nest makes itself it reads only to write it again, as sums to which loops come back.
    """
    if _streams(spot.nests, name):
        return 0.0
    return max(moved.written - (moved.read if name == spot.func.name else 0.0), 0.0)


def _streams(nests: Nests, name: str) -> bool:
    """Whether stores of a func go past the caches."""
    return nests.state.program.has_func(name) and nests.state.plan(name).stream


def unit_seconds(work: Work, machine: Machine, threads: int) -> tuple[tuple[str, float], ...]:
    """The time that so many threads take for operations, by unit."""
    measured = reference_cpu(machine.vector_bytes)
    return tuple(
        (unit, n / (threads * (machine.rate(unit) or measured.rate(unit) or inf)))
        for unit, n in (
            ("vector", work.vector),
            ("scalar", work.scalar),
            ("exp", work.exp),
            ("tensor", work.tensor),
        )
    )


def launch_seconds(machine: Machine) -> float:
    """What a parallel loop takes beyond its work."""
    return machine.launch or reference_cpu(machine.vector_bytes).launch or 0.0


def bytes_per_second(level: MemoryLevel, machine: Machine, threads: int) -> float:
    """The bytes a second that threads read of a level, where not measured those of a like processor."""
    measured = {x.name: x for x in reference_cpu(machine.vector_bytes).levels}
    like = measured.get(level.name, measured["memory"])
    return level.bytes_per_second(threads) or like.bytes_per_second(threads) or inf


def _on_gpu(spot: NestSpot, machine: Machine) -> NestTime:
    """Blocks take turns on the multiprocessors; the memory is shared by all that run."""
    extents = spot.extents()
    blocks = prod(extents[x] for x in extents if spot.kind(x) in BLOCKS)
    threads = _lanes(spot) * prod(extents[x] for x in extents if spot.kind(x) in THREADS)
    waves = ceil(blocks / machine.threads)
    busy = blocks / max(waves, 1) * min(threads / machine.block_threads, 1.0)
    far = machine.level("global")
    speed = far.bytes_per_second(machine.threads)
    assert speed is not None, "a GPU is described by its data sheet"
    used = min(blocks / machine.threads * 2, 1.0)  # half of them already keep the memory busy
    size = total(of_block(spot))
    work = work_of(spot)
    units = [
        (unit, n / (busy * (machine.rate(name) or inf)))
        for unit, name, n in (
            ("vector", "vector", work.vector + work.scalar),
            ("exp", "exp", work.exp),
            ("tensor", "tensor", work.tensor),
        )
    ]
    memory = ((far.name, size / (speed * max(used, 1 / machine.threads))),)
    return NestTime(spot.func.name, memory, tuple(units), machine.launch or LAUNCH)


def work_of(spot: NestSpot, vector_bytes: int = 0) -> Work:
    """The operations of a nest with all that stands in its loops.

    With the bytes of vectors, those on less than half of one count as those on half: as long as they take
    where processors make whole vectors in two halves.
    """
    work = _of_point(spot, vector_bytes).times(spot.times * prod(spot.points()))
    for k in range(1, len(spot.nest.loops) + 1):
        children = spot.children(k)
        short = partly_filled(spot, spot.first(k)) if vector_bytes and children else 1.0
        for child in children:
            work += work_of(child, vector_bytes).times(short)
    return work


def _of_point(spot: NestSpot, vector_bytes: int) -> Work:
    d = spot.func.definitions[spot.definition]
    wide = any(x.kind in (VECTORIZED, *THREADS) for x in spot.nest.loops)
    work, extents = work_of_point(d, wide=wide), spot.extents()
    if _lanes(spot) > 1 and d.init is not None:
        size = max(r.dtype.bytes for r in reads_in(d.values))
        return Work(tensor=(work.vector + work.scalar) * size / HALF)
    lanes = prod(extents[x] for x in extents if spot.kind(x) == VECTORIZED)
    if wide and vector_bytes:
        filled = 2 * lanes * max_bytes(d) / vector_bytes
        work = replace(work, vector=work.vector / min(filled, 1.0)).times(partly_filled(spot))
    return work + _of_merge(spot, wide=wide)


def _lanes(spot: NestSpot) -> int:
    """The threads that run an instruction of a GPU together, in the place of loops of a stage."""
    instructions = spot.nests.state.plan(spot.func.name).tensorizations
    known = (INSTRUCTIONS[t.instruction] for t in instructions if t.definition == spot.definition)
    return max((x.threads for x in known if x.cuda), default=1)


def _of_merge(spot: NestSpot, *, wide: bool) -> Work:
    """The operations of a point by which a combiner of several values goes beyond one for each.

    What is the same for the iterations of loops inside of those that reduce is computed once for them.
    """
    d = spot.func.definitions[spot.definition]
    if d.combine is None or not d.combine.kind.startswith("custom"):
        return Work()
    exprs = d.combine.exprs
    used = [{n.name for n in post_order(e) if isinstance(n, Param)} for e in exprs]
    differ = [variables(v) for v in d.values]
    for _ in exprs:  # a value depends on those that it is corrected by, and on what these depend on
        differ = [
            needs | frozenset().union(*(x for n, x in enumerate(differ) if {f"a{n}", f"b{n}"} & names))
            for needs, names in zip(differ, used, strict=True)
        ]
    inner = _inside_reduction(spot, d)
    work = Work(-len(exprs) if wide else 0.0, 0.0 if wide else -len(exprs))
    for n in post_order(*exprs):
        names = {x.name for x in post_order(n) if isinstance(x, Param)}
        needs = frozenset().union(*(x for c, x in enumerate(differ) if {f"a{c}", f"b{c}"} & names))
        part = 1 / prod(count for v, count in inner if v not in needs)
        if isinstance(n, Call) and n.fn not in _CHEAP:
            work += Work(exp=part)
        else:
            plain = part * node_cost(n)
            work += Work(plain if wide else 0.0, 0.0 if wide else plain)
    return work


def _inside_reduction(spot: NestSpot, d: Definition) -> list[tuple[str, int]]:
    """The loops inside of all that reduce: the variable that each belongs to, and its iterations."""
    variable = variable_of(spot)
    ranges = {name for name, _, _ in d.ranges}
    inner: list[tuple[str, int]] = []
    for x, count in spot.extents().items():
        v = variable[x]
        inner = [] if v in ranges or spot.kind(x) in THREADS else [*inner, (v, count)]
    return inner


@functools.lru_cache(KNOWN)
def work_of_point(d: Definition, *, wide: bool) -> Work:
    """The operations of one point of a definition, on vectors or not."""
    d = _without_tests_of_indices(d)
    calls = sum(
        1
        for v in d.values
        for n in post_order(v)
        if isinstance(n, Call) and n.fn not in _CHEAP and n.dtype.is_float
    )
    plain = max(cost(d) - _CALL * calls, 0)
    plain += len(d.combine.exprs) if d.combine else 0
    return Work(plain if wide else 0.0, 0.0 if wide else plain, float(calls))


@functools.lru_cache(KNOWN)
def _without_tests_of_indices(d: Definition) -> Definition:
    """A definition with the longer of two values that a condition on indices chooses, without the condition.

    Loops are cut where these change, so few vectors have any. Beyond edges a constant is chosen.
    """

    def chosen(n: Node) -> Node:
        if not isinstance(n, Select) or any(True for _ in reads_in((n.cond,))):
            return n
        if isinstance(n.no, Const):
            return replace(n, cond=TRUE)
        return max(n.yes, n.no, key=_length)

    return map_expressions(d, lambda e: transform(e, chosen))


def _length(e: Expr) -> int:
    return sum(1 for _ in post_order(e))


def _busy(spot: NestSpot, threads: int) -> int:
    """How many threads have work: no more than there are iterations of the parallel loops."""
    extents = spot.extents()
    return max(min(prod(extents[x] for x in extents if spot.kind(x) == PARALLEL), threads), 1)


def _has(spot: NestSpot, kind: str) -> bool:
    return any(x.kind == kind for x in spot.nest.loops)


def seconds(times: tuple[NestTime, ...]) -> float:
    """All nests, one after another."""
    return sum(t.seconds for t in times)
