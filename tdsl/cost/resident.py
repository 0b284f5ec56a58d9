"""The blocks of a kernel that a multiprocessor has at a time, and the loads that their threads wait for."""

from __future__ import annotations

from math import prod

from tdsl.cost.block_memory import stages_of
from tdsl.cost.loopnests import NestSpot
from tdsl.lang.regions import reads_in
from tdsl.machine.model import Machine
from tdsl.schedule.state import COOPERATIVE, PIPELINED, SERIAL, SHARED

IN_FLIGHT = 4  # iterations of serial loops whose loads compilers begin together
_WARP = 32


def resident_blocks(spot: NestSpot, threads: float, machine: Machine) -> int:
    """The blocks of a kernel, with so many threads each, that a multiprocessor has at a time, at least 1.

    Their shared memory and their threads are counted; registers are known only after compilation.
    """
    gpu = machine.gpu
    if gpu is None:
        return 1
    nests, state = spot.nests, spot.nests.state
    shared = sum(
        stages_of(state, nests.tree, n) * (nests.stored(n) or 0)
        for n in spot.internal(0)
        if state.plan(n).scope == SHARED
    )
    shared += gpu.shared_reserved
    by_threads = int(gpu.warps // max(-(-threads // _WARP), 1))
    by_shared = int(gpu.shared // max(shared, 1))
    return max(min(gpu.blocks, by_threads, by_shared), 1)


def waiting_loads(spot: NestSpot, inner: set[str]) -> float:
    """The loads from memory that a thread of a kernel makes one after another; `inner` is not in memory.

    Copies to shared memory load all of a tile at a time.
    """
    return max(_waiting(spot, inner, 1.0), 1.0)


def _waiting(spot: NestSpot, inner: set[str], around: float) -> float:
    """As `waiting_loads` in a nest, in so many iterations of loops around it."""
    plan, d = spot.nests.state.plan(spot.func.name), spot.func.definitions[spot.definition]
    copies = plan.bulk or (plan.scope in COOPERATIVE and not d.ranges)
    steps = [1.0 if copies else _steps(spot, x) for x in spot.extents()]
    loads = any(r.index and r.name not in inner for r in reads_in(d.values))
    total = max(around * prod(steps) / (1 if copies else IN_FLIGHT), 1.0) if loads else 0.0
    for k in range(1, len(steps) + 1):
        total += sum(_waiting(child, inner, around * prod(steps[:k])) for child in spot.children(k))
    return total


def _steps(spot: NestSpot, loop: str) -> float:
    """The iterations of a loop that come one after another, each with its loads."""
    iterations = float(spot.extents()[loop])
    if spot.kind(loop) == PIPELINED:
        stages = next(x.stages for x in spot.nest.loops if x.name == loop)
        return max(iterations / max(stages - 1, 1), 1.0)
    return iterations if spot.kind(loop) == SERIAL else 1.0
