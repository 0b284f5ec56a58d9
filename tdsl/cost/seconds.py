"""The price of terms on a machine: the only place where operations and bytes become seconds.

A body takes as long as its slowest resource: the units that compute, the chain of operations that wait for
each other, or the loads and stores of the nearest memory. Bodies of a nest run one after another. The bytes
of each level of memory are moved meanwhile, but those of the farthest, which nothing hides. Nests run one
after another; each parallel one begins with a launch.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import replace
from math import inf

from tdsl.core.node import frozen
from tdsl.cost.chains import FLOAT
from tdsl.cost.terms import SCALAR, VECTOR, Body, Issue, Terms, Traffic
from tdsl.lang import types
from tdsl.lang.operations import DIVISIONS, FUNCTIONS, PLAIN, PRODUCTS, issues
from tdsl.lang.types import DType
from tdsl.machine.devices import reference_cpu
from tdsl.machine.model import Machine, MemoryLevel, of_nearest

PER_CYCLE = 4.0  # operations of a scalar unit: two multiply-adds
STORE = 2.0  # loads of the nearest memory in the time of a store, where that has not been measured
PAGE_SECONDS = 2e-9  # seconds to find the address of a page, where that has not been measured
DOTS = 4.0  # times as many operations as vectors do tensor instructions that were not measured


@frozen
class NestTime:
    """The seconds of a nest at the root: by memory level, by unit, of all its bodies, and for its launch.

    `far` is the memory level of whose time the other resources hide the part `hidden`, "" for none.
    """

    func: str
    memory: tuple[tuple[str, float], ...]
    units: tuple[tuple[str, float], ...]
    bodies: float
    launch: float
    far: str = ""
    hidden: float = 0.0

    @property
    def seconds(self) -> float:
        """The time of the bodies or of the slowest level meanwhile, of what is not hidden, of the launch."""
        far = sum(s for name, s in self.memory if name == self.far)
        nearer = (s for name, s in self.memory if name != self.far)
        together = max([self.bodies, self.hidden * far, *nearer])
        return together + (1 - self.hidden) * far + self.launch

    def times(self, part: float) -> NestTime:
        """The time of a part of the iterations of the nest, at the same launch cost."""
        if part == 1:
            return self
        memory = tuple((name, part * s) for name, s in self.memory)
        units = tuple((name, part * s) for name, s in self.units)
        return replace(self, memory=memory, units=units, bodies=part * self.bodies)

    @property
    def waits_for(self) -> str:
        """The memory level or unit that takes longest."""
        return max((*self.memory, *self.units), key=lambda x: x[1], default=("nothing", 0.0))[0]


def seconds(terms: Terms, machine: Machine) -> float:
    """The time that a machine takes for the terms of a nest."""
    return time_of(terms, machine).seconds


def time_of(terms: Terms, machine: Machine) -> NestTime:
    """The time that a machine takes for the terms of a nest, resource by resource.

    >>> from tdsl.cost.terms import Traffic
    >>> triad = Body(((Issue("vector", "fma", "f64"), 1e6),), loads=5e5, stores=2.5e5)
    >>> terms = Terms("f", (triad,), (("memory", Traffic(16e6, 8e6, 8e6)),))
    >>> time = time_of(terms, Machine(vector_bytes=32))
    >>> time.waits_for, time.seconds > 1e-3
    ('memory', True)
    """
    if machine.block_threads:
        return _on_gpu(terms, machine)
    workers, levels = terms.workers, {x.name: x for x in machine.levels}
    nearest, last = machine.caches[0], machine.levels[-1]
    threads = max(round(workers), 1)
    loads = bytes_per_second(nearest, machine, 1) / (machine.vector_bytes or 8)
    stores, gathers = loads / (nearest.write_cost(1) or STORE), machine.gathers or loads
    latency = machine.latency(SCALAR) or machine.latency(VECTOR)
    cycle = latency / FLOAT if latency else PER_CYCLE / rate(machine, SCALAR, types.f32)
    units: dict[str, float] = {}
    bodies = accesses = 0.0
    for body in terms.bodies:
        work = work_seconds(body, machine)
        accessed = max(body.loads / loads, body.stores / stores) + body.gathers / gathers
        bodies += max(*at_once(work), body.chain * cycle, accessed)
        accesses += accessed
        for unit, s in work.items():
            units[unit] = units.get(unit, 0.0) + s
        units[CHAIN] = units.get(CHAIN, 0.0) + body.chain * cycle
    memory = [(nearest.name, accesses / workers)]
    for name, moved in terms.moved:
        level = levels[name]
        memory.append((name, _equivalent(moved, level, threads) / bytes_per_second(level, machine, threads)))
    shared = tuple((unit, s / workers) for unit, s in units.items() if s)
    barrier = of_nearest(machine.barrier, machine.threads) or launch_seconds(machine)
    launch = terms.launches * launch_seconds(machine) + terms.barriers * barrier
    hidden = machine.hidden or 0.0
    pages = terms.pages * (PAGE_SECONDS if machine.page is None else machine.page)
    if pages:
        shared += ((PAGES, pages / workers),)
    return NestTime(terms.func, tuple(memory), shared, (bodies + pages) / workers, launch, last.name, hidden)


def _equivalent(moved: Traffic, level: MemoryLevel, threads: int) -> float:
    """The bytes that could be read from a level in the time of what is read and written."""
    filling = level.write_cost(threads) or 2.0
    past = level.write_cost(threads, non_temporal=True) or 1.0
    ordinary = moved.read + moved.written - moved.non_temporal
    return ordinary + (filling - 1) * moved.filled + past * moved.non_temporal


PAGES = "pages"  # whose addresses are looked up, which the operations wait for
CHAIN = "chain"  # of operations that wait for each other
LATENCY = "latency"  # of loads from the memory of a GPU that wait for each other


def _on_gpu(terms: Terms, machine: Machine) -> NestTime:
    """The time on a GPU, whose units and memory work at the same time."""
    units: dict[str, float] = {}
    for body in terms.bodies:
        for unit, s in work_seconds(body, machine).items():
            units[unit] = units.get(unit, 0.0) + s / terms.workers
    memory = []
    for name, moved in terms.moved:
        speed = machine.level(name).bytes_per_second(machine.threads)
        assert speed is not None, "a GPU is described by its data sheet"
        memory.append((name, moved.total / (speed * terms.reach)))
    if terms.waits and machine.gpu is not None:
        units[LATENCY] = terms.waits * machine.gpu.latency
    slowest = max(units.values(), default=0.0)
    launch = terms.launches * (of_nearest(machine.launch, 1) or 0.0)
    return NestTime(terms.func, tuple(memory), tuple(units.items()), slowest, launch)


def work_seconds(body: Body, machine: Machine) -> dict[str, float]:
    """The seconds that one worker takes for the operations of a body, by unit; functions are "exp"."""
    units: dict[str, float] = {}
    prices = _prices(machine)
    for issue, count in body.issues:
        division = "div" if issue.op in DIVISIONS else issue.unit
        unit = "exp" if issue.op in FUNCTIONS else division
        if machine.block_threads and unit == "div":
            unit = VECTOR
        if issue not in prices:
            prices[issue] = _seconds_of(issue, machine)
        units[unit] = units.get(unit, 0.0) + count * prices[issue]
    return units


def at_once(work: Mapping[str, float]) -> tuple[float, float]:
    """The seconds of units of a CPU that work at the same time: the one that divides, and all others."""
    divisions = work.get("div", 0.0)
    return sum(work.values()) - divisions, divisions


@functools.lru_cache(8)
def _prices(_: Machine) -> dict[Issue, float]:
    """The seconds of issues on a machine, which are remembered here."""
    return {}


def _seconds_of(issue: Issue, machine: Machine) -> float:
    """The seconds that one worker takes for a number, in the throughput of its unit."""
    dtype: DType = getattr(types, issue.dtype, types.bool_)
    if issue.unit not in (VECTOR, SCALAR):
        return 2 / rate(machine, issue.unit, dtype)
    if (
        issue.op != PLAIN
        and issue.op not in PRODUCTS
        and (per_second := _measured(machine, issue.op, dtype.name))
    ):
        return _lanes(machine, issue, dtype) / per_second
    count = issues(issue.op, dtype)
    if issue.op in FUNCTIONS and (of_exp := _measured(machine, "exp", "f32")):
        wide = max(machine.vector_bytes // 4, 1) if machine.vector_bytes else 1
        vector = count / issues("exp", types.f32) * wide / of_exp  # for any number of lanes
        return vector * _lanes(machine, issue, dtype) / _lanes(machine, replace(issue, unit=SCALAR), dtype)
    if issue.op == PLAIN:  # additions do not wait for multiplications, which other units do
        return count / _of_floats(machine, issue.unit, 4 if dtype.is_narrow else max(dtype.bytes, 1))
    if issue.op in PRODUCTS or dtype.is_float:
        return 2 * count / rate(machine, issue.unit, dtype)
    return 2 * count / _of_floats(machine, issue.unit, max(dtype.bytes, 1))


def _lanes(machine: Machine, issue: Issue, dtype: DType) -> int:
    """The numbers of a vector, which takes as long as the one of a scalar."""
    return max(machine.vector_bytes // max(dtype.bytes, 4), 1) if issue.unit == SCALAR else 1


def rate(machine: Machine, unit: str, dtype: DType) -> float:
    """The operations a second of one worker for a type: as measured, or as vectors of its size would do it.

    >>> from tdsl.machine.devices import reference_cpu
    >>> machine = reference_cpu(32)
    >>> rate(machine, "vector", types.f32) > 1.9 * rate(machine, "vector", types.f64)
    True
    """
    per_second = _measured(machine, unit, dtype.name)
    if per_second is not None:
        return per_second
    if unit not in (VECTOR, SCALAR):
        other = machine.rate(unit)
        return other or DOTS * rate(machine, VECTOR, dtype)
    if dtype.is_float or dtype.bytes < 4:
        return _of_floats(machine, unit, max(dtype.bytes, 1 if dtype.is_integer else 4))
    like = _measured(machine, unit, "i32") or _of_floats(machine, unit, 4)
    return like * 4 / dtype.bytes if unit == VECTOR else like


def _of_floats(machine: Machine, unit: str, size: int) -> float:
    """The operations a second on numbers of a size that are as fast as additions of floats."""
    if size == 8 and (doubles := _measured(machine, unit, "f64")):
        return doubles
    singles = _measured(machine, unit, "f32")
    if singles is None:
        return inf
    return singles * 4 / size if unit == VECTOR else singles


def _measured(machine: Machine, unit: str, dtype: str) -> float | None:
    """The rate of a unit for a type, of the machine or else of the reference CPU; None if in neither."""
    for rates in (machine.rates, () if machine.rates else reference_cpu(machine.vector_bytes).rates):
        for r in rates:
            if r.unit == unit and r.dtype == dtype:
                return r.per_second
    return None


def launch_seconds(machine: Machine) -> float:
    """The seconds to start and end a parallel loop."""
    launch = machine.launch or reference_cpu(machine.vector_bytes).launch
    return of_nearest(launch, machine.threads) or 0.0


def bytes_per_second(level: MemoryLevel, machine: Machine, threads: int) -> float:
    """The bytes per second that threads read from a level; the reference CPU's if not measured."""
    measured = {x.name: x for x in reference_cpu(machine.vector_bytes).levels}
    like = measured.get(level.name, measured["memory"])
    return level.bytes_per_second(threads) or like.bytes_per_second(threads) or inf
