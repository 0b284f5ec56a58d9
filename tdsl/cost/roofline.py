"""Predicts the time of a schedule by a roofline, from bytes at each memory level and operations of each unit.

A nest at the root takes as long as its slowest resource: a memory level that moves bytes, or a unit that
computes operations. Nests run one after another; each parallel nest begins with a launch.
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
from tdsl.cost.moved import Moved, MovedByName, total
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
WARM = 0.5  # fraction of the last cache; arrays that together fit into it stay from call to call
_CALL = 12  # operations; what `cost` counts for a call of a function
HALF = 2  # bytes; the rate of tensor cores is that for operands of this element size
KNOWN = 1 << 10  # entries of a cache by definition: the candidates of a search share definitions
LAUNCH = 3e-6  # seconds; the launch of a GPU kernel, where it has not been measured


@frozen
class Work:
    """Operations by unit: vector, scalar, tensor-core operations, and calls of functions such as exp.

    Tensor-core operations are scaled by the size of their operands: at twice `HALF` bytes they count twice.
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
        """The operations multiplied by `n`."""
        return Work(n * self.vector, n * self.scalar, n * self.exp, n * self.tensor)


@frozen
class NestTime:
    """The seconds of a nest at the root: by memory level, by unit, and for its launch.

    `far` is the memory level whose time nothing overlaps, "" for none.
    """

    func: str
    memory: tuple[tuple[str, float], ...]
    units: tuple[tuple[str, float], ...]
    launch: float
    far: str = ""

    @property
    def seconds(self) -> float:
        """The time of the slowest level or unit that overlap, plus the level `far`, plus the launch."""
        together = (s for name, s in (*self.memory, *self.units) if name != self.far)
        exposed = sum(s for name, s in self.memory if name == self.far)
        return max(together, default=0.0) + exposed + self.launch

    def times(self, part: float) -> NestTime:
        """The time of a part of the iterations of the nest, at the same launch cost."""
        if part == 1:
            return self
        memory = tuple((name, part * s) for name, s in self.memory)
        units = tuple((name, part * s) for name, s in self.units)
        return replace(self, memory=memory, units=units)

    @property
    def waits_for(self) -> str:
        """The memory level or unit that takes longest."""
        return max((*self.memory, *self.units), key=lambda x: x[1], default=("nothing", 0.0))[0]


def roofline(nests: Nests, machine: Machine) -> tuple[NestTime, ...]:
    """The time of each nest at the root, in running order.

    >>> import tdsl as td
    >>> from tdsl.schedule.properties import unplaced_at_root
    >>> i, a, f = td.vars("i"), td.Tensor("a", (1 << 26,), td.f32), td.Func("f")
    >>> f[i] = a[i] + 1
    >>> (time,) = roofline(Nests.of(unplaced_at_root(td.Schedule(f).state)), Machine(vector_bytes=64))
    >>> time.func, time.waits_for
    ('f', 'memory')
    """
    if machine.block_threads:
        return tuple(_on_gpu(spot, machine) for spot in nests.roots())
    caches, last = machine.caches, machine.caches[-1]
    size = sum(map(nests.bytes_of, nests.whole, nests.whole.values()))
    warm = size <= WARM * (last.bytes or 0)  # all arrays stay in the cache from call to call
    moved: dict[str, list[MovedByName]] = {
        x.name: [{} for _ in nests.roots()]
        if warm and x is last
        else CacheModel.of(nests, x, machine).by_nest(freed=size <= WARM * (x.bytes or 0))
        for x in caches
    }
    return tuple(
        _on_cpu(spot, machine, {x.name: moved[x.name][n] for x in caches})
        for n, spot in enumerate(nests.roots())
    )


def _on_cpu(spot: NestSpot, machine: Machine, moved: Mapping[str, MovedByName]) -> NestTime:
    """The time of a nest on a CPU; `moved` is what each cache moves for it."""
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
    """The nearest cache, and the time in which it transfers to registers all that a nest loads."""
    cache = machine.caches[0]
    size = loaded_of(spot, machine)
    return cache.name, size / bytes_per_second(cache, machine, threads)


def loaded_of(spot: NestSpot, machine: Machine) -> float:
    """The bytes that a nest and the nests inside its loops load, counted in whole vectors."""
    definition = _without_tests_of_indices(spot.func.definitions[spot.definition])
    wide = machine.vector_bytes or max_bytes(definition)
    bytes_loaded = accessed(spot, definition, wide, wide * machine.registers)
    for k in range(1, len(spot.nest.loops) + 1):
        children = spot.children(k)
        short = partly_filled(spot, spot.first(k)) if children else 1.0
        bytes_loaded += sum(short * loaded_of(child, machine) for child in children)
    return bytes_loaded


def _filled(spot: NestSpot, name: str, moved: Moved) -> float:
    """The bytes of lines that are read only because they are written; 0 for streaming stores.

    Lines of the nest's own func that it reads anyway, such as sums that it updates, do not count again.
    """
    if _streams(spot.nests, name):
        return 0.0
    return max(moved.written - (moved.read if name == spot.func.name else 0.0), 0.0)


def _streams(nests: Nests, name: str) -> bool:
    """True if stores of a func bypass the caches."""
    return nests.state.program.has_func(name) and nests.state.plan(name).stream


def unit_seconds(work: Work, machine: Machine, threads: int) -> tuple[tuple[str, float], ...]:
    """The time that `threads` threads take for operations, by unit."""
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
    """The seconds to start and end a parallel loop."""
    return machine.launch or reference_cpu(machine.vector_bytes).launch or 0.0


def bytes_per_second(level: MemoryLevel, machine: Machine, threads: int) -> float:
    """The bytes per second that threads read from a level; the reference CPU's if not measured."""
    measured = {x.name: x for x in reference_cpu(machine.vector_bytes).levels}
    like = measured.get(level.name, measured["memory"])
    return level.bytes_per_second(threads) or like.bytes_per_second(threads) or inf


def _on_gpu(spot: NestSpot, machine: Machine) -> NestTime:
    """The time of a nest on a GPU: blocks run in waves on multiprocessors, which share the memory."""
    extents = spot.extents()
    blocks = prod(extents[x] for x in extents if spot.kind(x) in BLOCKS)
    threads = _lanes(spot) * prod(extents[x] for x in extents if spot.kind(x) in THREADS)
    waves = ceil(blocks / machine.threads)
    busy = blocks / max(waves, 1) * min(threads / machine.block_threads, 1.0)
    far = machine.level("global")
    speed = far.bytes_per_second(machine.threads)
    assert speed is not None, "a GPU is described by its data sheet"
    used = min(blocks / machine.threads * 2, 1.0)  # blocks on half of the multiprocessors saturate the memory
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
    """The operations of a nest and of the nests inside its loops.

    With `vector_bytes`, an operation on less than half a vector counts as one on half a vector: as long as it
    takes on CPUs that execute a vector in two halves.
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
    """The threads that execute together the GPU instruction to which a stage is tensorized; 1 if none."""
    instructions = spot.nests.state.plan(spot.func.name).tensorizations
    known = (INSTRUCTIONS[t.instruction] for t in instructions if t.definition == spot.definition)
    return max((x.threads for x in known if x.cuda), default=1)


def _of_merge(spot: NestSpot, *, wide: bool) -> Work:
    """The operations per point of a combiner of several values, less the one per value counted already.

    Operations that do not depend on the loops inside the reduction loops are computed once for all of these.
    """
    d = spot.func.definitions[spot.definition]
    if d.combine is None or not d.combine.kind.startswith("custom"):
        return Work()
    exprs = d.combine.exprs
    used = [{n.name for n in post_order(e) if isinstance(n, Param)} for e in exprs]
    differ = [variables(v) for v in d.values]
    for _ in exprs:  # transitively: a value depends on all values that its expression uses
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
    """The loops inside all reduction loops: the variable of each, and its number of iterations."""
    variable = variable_of(spot)
    ranges = {name for name, _, _ in d.ranges}
    inner: list[tuple[str, int]] = []
    for x, count in spot.extents().items():
        v = variable[x]
        inner = [] if v in ranges or spot.kind(x) in THREADS else [*inner, (v, count)]
    return inner


@functools.lru_cache(KNOWN)
def work_of_point(d: Definition, *, wide: bool) -> Work:
    """The operations of one point of a definition: vector operations if `wide`, else scalar ones."""
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
    """A definition in which a select by a condition on indices is replaced by the longer of its two values.

    Loops are split where such conditions change, so that few vectors evaluate them. If the second value is
    a constant, as beyond edges, the select remains, with a true condition.
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
    """The number of threads with work, at most one per iteration of the parallel loops."""
    extents = spot.extents()
    return max(min(prod(extents[x] for x in extents if spot.kind(x) == PARALLEL), threads), 1)


def _has(spot: NestSpot, kind: str) -> bool:
    return any(x.kind == kind for x in spot.nest.loops)


def seconds(times: tuple[NestTime, ...]) -> float:
    """The total time of nests that run one after another."""
    return sum(t.seconds for t in times)
