"""`propagate`: placements of some tensors extended to all, with the least communication and no gather."""

from __future__ import annotations

from tdsl.machine.model import Machine
from tdsl.planner.cluster import Cluster, Level
from tdsl.planner.planned import Planned
from tdsl.planner.search import search
from tdsl.schedule.state import Illegal, State

FAST = 1e24  # operations a second: tasks only decide between plans of equal bytes
GATHERS = frozenset({"all-gather"})


def propagate(state: State, machine: Machine) -> Planned:
    """The plan that receives the fewest bytes, and of those computes least, without a gather of a tensor.

    Raises Illegal if nothing is placed, and if each plan has to gather a tensor: it names those of the best.
    """
    grid = state.grid
    if grid is None:
        raise Illegal("nothing is placed that could be propagated", "place a tensor first, or plan(cluster)")
    levels = []
    for n, axes in enumerate(grid.levels):
        count = 1
        for _, size in axes:
            count *= size
        levels.append(Level(f"level{n}", count, latency=0.0, bandwidth=1.0))
    cluster = Cluster(*levels, operations=FAST, memory_bandwidth=FAST)
    planned = search(state, cluster, machine, {}, None, GATHERS)
    if planned is not None:
        return planned
    planned = search(state, cluster, machine, {}, None, frozenset())
    if planned is None:
        raise Illegal("the directives allow no distribution of all funcs", "distribute fewer funcs yourself")
    gathers = [x for x in planned.space.chosen_prices(planned.solution.choice) if x[2].kind in GATHERS]
    shown = ", ".join(
        f"{tensor!r} ({price.bytes} bytes a rank) for {func!r}" for func, tensor, price in gathers
    )  # fmt: skip
    related = []
    for func, _, _ in gathers:
        f = state.program.func(func)
        related.append((f.loc, f"{func!r} needs all of it"))
    raise Illegal(
        f"the placements need a gather of {shown}",
        'place it as copies, "... -> *", place its reader in blocks, or let plan(cluster) decide',
        tuple(related),
    )
