"""What a nest asks of a machine: operations, dependent steps, loads and stores, and bytes at each level.

`terms_of` finds the terms of a nest at the root in a schedule; `seconds.py` is their price.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import ceil, log2, prod

from tdsl.core.node import frozen
from tdsl.cost.accesses import accessed, loops_of, partly_filled, repeated, variable_of
from tdsl.cost.branches import without_tests_of_indices
from tdsl.cost.caches import CacheModel
from tdsl.cost.chains import chain_cycles
from tdsl.cost.loopnests import Nests, NestSpot
from tdsl.cost.moved import Moved, MovedByName
from tdsl.cost.resident import resident_blocks, waiting_loads
from tdsl.cost.sectors import SECTOR
from tdsl.cost.traffic import not_in_memory, of_block
from tdsl.lang.definition import Definition
from tdsl.lang.operations import BY_LANE, FUNCTIONS, PRODUCTS, operations_of
from tdsl.lang.regions import reads_in
from tdsl.machine.instructions.instruction import INSTRUCTIONS
from tdsl.machine.model import PAGE_BYTES, Machine
from tdsl.schedule.properties import max_bytes
from tdsl.schedule.state import BLOCKS, PARALLEL, THREADS, VECTORIZED

WARM = 0.5  # fraction of the last cache; arrays that together fit into it stay from call to call
VECTOR, SCALAR, TENSOR = "vector", "scalar", "tensor"


@frozen
class Issue:
    """An operation on numbers of a type, by a unit: vectors, scalars, or a tensor instruction."""

    unit: str
    op: str
    dtype: str


Issues = Mapping[Issue, float]


@frozen
class Body:
    """The operations of a nest without those inside it, in all its iterations.

    `issues` are numbers that are computed, `chain` the cycles that operations take which wait for each other,
    `loads` and `stores` vectors of the nearest memory, `gathers` numbers that vectors load or store singly.
    """

    issues: tuple[tuple[Issue, float], ...]
    chain: float = 0.0
    loads: float = 0.0
    stores: float = 0.0
    gathers: float = 0.0


@frozen
class Traffic:
    """The bytes that a level of memory reads from one behind it and writes to it.

    `filled` are those of lines that are read only because they are written, `non_temporal` those of `written`
    that are not, as they go past the caches.
    """

    read: float
    written: float
    filled: float = 0.0
    non_temporal: float = 0.0

    @property
    def total(self) -> float:
        """All bytes."""
        return self.read + self.written + self.filled


@frozen
class Terms:
    """What a nest at the root asks of a machine; `seconds.seconds` is the time of it.

    `moved` are the bytes that caches exchange with each level behind them. `workers` is how many threads, or
    multiprocessors, work throughout; of the speed of memory they reach the part `reach`. `pages` is how often
    an access is to a page whose address is no longer known. A parallel nest after another has a barrier
    instead of a launch, as its threads are awake. On a GPU loads from memory are `waits` times one after
    another, at least.
    """

    func: str
    bodies: tuple[Body, ...]
    moved: tuple[tuple[str, Traffic], ...]
    workers: float = 1.0
    reach: float = 1.0
    launches: int = 0
    barriers: int = 0
    pages: float = 0.0
    waits: float = 0.0

    @property
    def issues(self) -> dict[Issue, float]:
        """The operations of all bodies."""
        issues: dict[Issue, float] = {}
        for body in self.bodies:
            for issue, count in body.issues:
                issues[issue] = issues.get(issue, 0.0) + count
        return issues


def terms_of(nests: Nests, machine: Machine) -> tuple[Terms, ...]:
    """The terms of each nest at the root, in running order.

    >>> import tdsl as td
    >>> from tdsl.schedule.properties import unplaced_at_root
    >>> i, a, f = td.vars("i"), td.Tensor("a", (1 << 26,), td.f64), td.Func("f")
    >>> f[i] = a[i] / 3
    >>> (terms,) = terms_of(Nests.of(unplaced_at_root(td.Schedule(f).state)), Machine(vector_bytes=64))
    >>> [(x.unit, x.dtype, n / (1 << 26)) for x, n in terms.issues.items()]
    [('scalar', 'f64', 1.0)]
    >>> [(level, moved.read, moved.written, moved.filled) for level, moved in terms.moved][-1]
    ('memory', 536870912.0, 536870912.0, 536870912.0)
    """
    caches, last = machine.caches, machine.caches[-1]
    size = sum(map(nests.bytes_of, nests.whole, nests.whole.values()))
    if machine.block_threads:
        freed = size <= WARM * (machine.capacity(last) or 0)
        far = CacheModel.of(nests, last, machine).by_nest(freed=freed)
        return tuple(_on_gpu(spot, machine, x) for spot, x in zip(nests.roots(), far, strict=True))
    warm = size <= WARM * machine.llc_bytes  # all arrays stay in the cache from call to call
    moved: dict[str, list[MovedByName]] = {
        x.name: [{} for _ in nests.roots()]
        if warm and x is last
        else CacheModel.of(nests, x, machine, sets=True).by_nest(
            freed=size <= WARM * (machine.capacity(x) or 0)
        )
        for x in caches
    }
    pages = CacheModel.of_pages(nests, machine).by_nest(freed=False)
    terms = [
        _on_cpu(spot, machine, {x.name: moved[x.name][n] for x in caches}, pages[n])
        for n, spot in enumerate(nests.roots())
    ]
    return tuple(
        replace(t, launches=0, barriers=1) if n and t.launches and terms[n - 1].launches else t
        for n, t in enumerate(terms)
    )


def _on_cpu(spot: NestSpot, machine: Machine, moved: Mapping[str, MovedByName], pages: MovedByName) -> Terms:
    """The terms of a nest on a CPU; `moved` is what each cache moves for it, `pages` bytes of whole pages."""
    levels, behind = machine.levels, list[tuple[str, Traffic]]()
    for n, level in enumerate(levels[:-1]):
        if level.name in moved:
            each = moved[level.name]
            sizes = sum(each.values(), Moved())
            filled = past = 0.0
            if n == len(levels) - 2:
                filled = sum(_filled(spot, name, m) for name, m in each.items())
                past = sum(m.written for name, m in each.items() if _streams(spot.nests, name))
            behind.append((levels[n + 1].name, Traffic(sizes.read, sizes.written, filled, past)))
    shared = any(x.kind == PARALLEL for x in spot.nest.loops)
    workers = _workers(spot, machine.threads) if shared else 1.0
    entered = sum(max(m.read, m.written) for m in pages.values()) / PAGE_BYTES
    bodies = tuple(bodies_of(spot, machine))
    return Terms(spot.func.name, bodies, tuple(behind), workers, launches=shared, pages=entered)


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


def _workers(spot: NestSpot, threads: int) -> float:
    """How many threads work throughout, where the iterations of parallel loops are shared out evenly."""
    extents = spot.extents()
    parts = max(prod(extents[x] for x in extents if spot.kind(x) == PARALLEL), 1)
    return parts / ceil(parts / threads)


def _on_gpu(spot: NestSpot, machine: Machine, far: MovedByName) -> Terms:
    """The terms of a nest on a GPU: blocks on multiprocessors, sectors of the L2 cache, and what it misses.

    `far` is what the L2 cache moves for the nest.
    """
    extents = spot.extents()
    blocks = prod(extents[x] for x in extents if spot.kind(x) in BLOCKS)
    threads = _threads(spot)
    resident = resident_blocks(spot, threads, machine)
    at_a_time = min(resident, ceil(blocks / machine.threads))
    waves = ceil(blocks / machine.threads)
    busy = blocks / max(waves, 1) * min(at_a_time * threads / machine.block_threads, 1.0)
    used = min(blocks / machine.threads * 2, 1.0)  # blocks on half of the multiprocessors saturate the memory
    rounds = ceil(blocks / (machine.threads * resident))
    loaded = of_block(spot, SECTOR)
    loads = sum(loaded.values(), Moved())
    missed = sum((_missed(spot, n, m, far.get(n, m), rounds) for n, m in loaded.items()), Moved())
    return Terms(
        spot.func.name,
        tuple(bodies_of(spot, machine)),
        tuple(
            (level.name, Traffic(moved.read, moved.written))
            for level, moved in ((machine.caches[-1], loads), (machine.level("global"), missed))
        ),
        busy,
        max(used, 1 / machine.threads),
        1,
        waits=rounds * waiting_loads(spot, not_in_memory(spot.nests)),
    )


def _threads(spot: NestSpot) -> float:
    """The threads of a block: of the nest that has most of those that it computes."""
    extents = spot.extents()
    inside = (_threads(x) for k in range(1, len(spot.nest.loops) + 1) for x in spot.children(k))
    threads = _cooperating(spot) * prod(extents[x] for x in extents if spot.kind(x) in THREADS)
    return max((threads, *inside))


def _missed(spot: NestSpot, name: str, loaded: Moved, far: Moved, rounds: int) -> Moved:
    """What the L2 cache moves of what blocks load and store: blocks that run together read the same once."""
    once = spot.nests.bytes_of(name, spot.nests.whole[name]) if name in spot.nests.whole else loaded.read
    return Moved(min(far.read, loaded.read, rounds * once), min(far.written, loaded.written))


def bodies_of(spot: NestSpot, machine: Machine, times: float = 1.0) -> list[Body]:
    """The bodies of a nest and of the nests inside its loops."""
    bodies = [_body(spot, machine, times)]
    for k in range(1, len(spot.nest.loops) + 1):
        children = spot.children(k)
        if children:
            short = partly_filled(spot, spot.first(k)) if machine.vector_bytes else 1.0
            for child in children:
                bodies += bodies_of(child, machine, times * short)
    return bodies


def _body(spot: NestSpot, machine: Machine, times: float) -> Body:
    d = without_tests_of_indices(spot.func.definitions[spot.definition])
    issues = issues_of(spot, d, machine)
    scaled = tuple((issue, times * n) for issue, n in issues.items())
    if machine.block_threads or _instruction(spot):
        return Body(scaled)
    wide = machine.vector_bytes or max_bytes(d)
    loads, stores, gathers = accessed(spot, d, wide, wide * machine.registers)
    cycles = times * chain_cycles(spot, d, machine.vector_bytes)
    return Body(scaled, cycles, times * loads / wide, times * stores / wide, times * gathers)


def issues_of(spot: NestSpot, d: Definition, machine: Machine) -> dict[Issue, float]:
    """The operations of a nest without those inside it.

    What does not depend on inner loops is computed once for all of their iterations. An operation on less
    than half a vector counts as one on half a vector: as long as it takes on CPUs that execute a vector in
    two halves. Lanes that are summed are merged by halves: a shuffle and a sum for each. All operations of a
    GPU are those of its vectors, whose lanes are threads.
    """
    vector_bytes, on_gpu = machine.vector_bytes, machine.block_threads > 0
    vectors = {x.name for x in spot.nest.loops if x.kind == VECTORIZED}
    extents = spot.extents()
    lanes = prod(extents[x] for x in vectors)
    points = spot.times * prod(spot.points()) * (partly_filled(spot) if vector_bytes and vectors else 1.0)
    instruction = _instruction(spot)
    summed = {v for v, _, _ in d.ranges} if d.combine is not None else set[str]()
    variable = variable_of(spot) if vectors and summed else {}
    halves = 2 * log2(max(prod(extents[x] for x in vectors if variable.get(x) in summed), 1)) or 1.0
    issues: dict[Issue, float] = {}
    for x in operations_of(d):
        if instruction == TENSOR or (instruction and x.op not in FUNCTIONS):
            if x.op in PRODUCTS:
                operand = max((r.dtype for r in reads_in(d.values)), key=lambda t: t.bytes)
                dtype = operand if instruction == TENSOR else x.dtype  # of which a GPU gives the rates
                _add(issues, Issue(instruction, x.op, dtype.name), points * x.count)
            continue
        needs = loops_of(spot, x.needs)
        count = points * x.count / repeated(spot, needs)
        wide = bool(vectors & needs) and x.op not in BY_LANE
        if wide and vector_bytes:
            count *= halves / min(2 * lanes * x.dtype.bytes / vector_bytes, 1.0)
        _add(issues, Issue(VECTOR if wide or on_gpu else SCALAR, x.op, x.dtype.name), count)
    return issues


def _add(issues: dict[Issue, float], issue: Issue, count: float) -> None:
    issues[issue] = issues.get(issue, 0.0) + count


def _cooperating(spot: NestSpot) -> int:
    """The threads that execute together the GPU instruction to which a stage is tensorized; 1 if none."""
    instructions = spot.nests.state.plan(spot.func.name).tensorizations
    known = (INSTRUCTIONS[t.instruction] for t in instructions if t.definition == spot.definition)
    return max((x.threads for x in known if x.cuda), default=1)


def _instruction(spot: NestSpot) -> str:
    """The unit that computes the products of a tensorized stage; "" for vectors and scalars."""
    if _cooperating(spot) > 1:
        return TENSOR if spot.func.definitions[spot.definition].init is not None else ""
    for t in spot.nests.state.plan(spot.func.name).tensorizations:
        if t.definition == spot.definition and not INSTRUCTIONS[t.instruction].cuda:
            return t.instruction
    return ""
