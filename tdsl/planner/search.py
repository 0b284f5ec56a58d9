"""`search`: the best plan over the grids of a cluster."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tdsl.machine.model import Machine
from tdsl.placement.grid import Grid
from tdsl.placement.notation import Placement, PlacementSyntaxError, read_placement
from tdsl.planner.bounds import GridBounds, ProgramBounds
from tdsl.planner.cluster import Cluster
from tdsl.planner.planned import Planned, Tried
from tdsl.planner.problem import GridPrices, Space
from tdsl.planner.solve import Solution, solve
from tdsl.schedule.state import Illegal, State

MAX_AXES = 3  # of one level of a cluster
MAX_PRICED = 20_000  # strategies times placements of different funcs, on all grids
LARGE = 5_000  # of these on one grid: of a whole model, which is tried on a fine grid first
MANY_RANKS = 256  # from which on each price takes longer
MAX_BOUNDED = 4  # funcs of a program whose strategies have useful bounds
EQUAL = 1e-9  # seconds of plans whose relative difference is less are equal
MAX_PRICED_LEVELS = 1_000  # on a grid of several levels, whose prices take longer


def candidate_grids(state: State, cluster: Cluster, fix: Mapping[str, str | Sequence[str]]) -> Iterator[Grid]:
    """The grids on which all of `fix` can be read: that of the state, or those of the cluster.

    Those of fewer axes come first, of these the most even ones.
    """
    if state.grid is not None:
        yield state.grid
        return
    counts = {len(_words(text)) for text in fix.values() if not is_name(text)}
    levels = len(cluster.levels)
    for grid in sorted(cluster.grids(MAX_AXES), key=lambda grid: (len(grid.axes), max(grid.shape))):
        if all(n in (levels, len(grid.axes)) for n in counts):
            yield grid


def is_name(text: str | Sequence[str]) -> bool:
    """True if a value of `fix` is the name of a tensor whose placement is taken, not a placement."""
    return isinstance(text, str) and "->" not in text


def _words(text: str | Sequence[str]) -> list[str]:
    parts = [text] if isinstance(text, str) else list(text)
    return [w for part in parts for w in part.partition("->")[2].split()]


def placement_on(text: str | Sequence[str], ndim: int, grid: Grid) -> Placement:
    """The placement of a text; an entry for a level is that of all axes of the level.

    >>> print(placement_on("ab -> b", 2, Grid(x=2, y=2)))
    ab -> b b
    """
    words = _words(text)
    if len(words) == len(grid.depths) < len(grid.axes):
        dims = (text if isinstance(text, str) else text[0]).partition("->")[0]
        spread = [w for w, depth in zip(words, grid.depths, strict=True) for _ in range(depth)]
        text = f"{dims}-> {' '.join(spread)}"
    return read_placement(text, ndim, grid)


def search(
    state: State, cluster: Cluster, machine: Machine, fix: Mapping[str, str | Sequence[str]],
    memory: int | None, forbid: frozenset[str],
) -> Planned | None:  # fmt: skip
    """The plan of least seconds over the grids of a cluster; None if none has so little memory.

    Raises Illegal if a text of `fix` is no placement on any of the grids.
    """
    fixed: dict[Grid, dict[str, Placement]] = {}
    error = Illegal("no grid of the cluster has an axis for each entry", "one for each level")
    for grid in candidate_grids(state, cluster, fix):
        try:
            fixed[grid] = fixed_placements(state, fix, grid)
        except PlacementSyntaxError as wrong:
            error = Illegal(str(wrong), wrong.hint)
    if not fixed:
        raise error
    request = _Request(state, cluster, machine, fixed, memory, forbid, same_placements(fix))
    sizes = {grid: _size(state, grid) for grid in fixed}
    few = len(state.program.funcs) <= MAX_BOUNDED and max(sizes.values()) <= LARGE
    if few and state.grid is None:
        return _best_of_bounded(request)
    return _best_within_budget(request, sizes)


@dataclass(frozen=True, slots=True)
class _Request:
    """What is planned: the arguments of `search`, with the placements that are fixed on each of its grids."""

    state: State
    cluster: Cluster
    machine: Machine
    fixed: Mapping[Grid, dict[str, Placement]]
    memory: int | None
    forbid: frozenset[str]
    same: tuple[tuple[str, str], ...]

    def prices(self, grid: Grid) -> GridPrices:
        """The prices on a grid."""
        return GridPrices(
            self.state, grid, self.cluster, self.machine, self.fixed[grid], self.forbid, self.same
        )


def _best_within_budget(request: _Request, raw_sizes: Mapping[Grid, int]) -> Planned | None:
    """The best plan of the grids that can be priced within a budget, those of the largest size first."""
    sizes = {g: n * max(1.0, g.size / MANY_RANKS) for g, n in raw_sizes.items()}
    limits = {g: MAX_PRICED if len(g.depths) == 1 else MAX_PRICED_LEVELS for g in sizes}
    best: Planned | None = None
    tried: list[Tried] = []
    budget, bound = float(MAX_PRICED), math.inf
    for grid in sorted(sizes, key=lambda g: not LARGE < sizes[g] <= limits[g]):
        if best is not None and sizes[best.grid] > LARGE and len(grid.axes) < len(best.grid.axes):
            continue  # a finer grid has the same choices, except for uneven blocks
        if tried and sizes[grid] > min(budget, limits[grid]):
            continue
        budget -= sizes[grid]
        space = request.prices(grid).space()
        solution = solve(space, request.memory)
        tried.append(Tried(grid, math.inf if solution is None else solution.seconds, True))
        if solution is None:
            continue
        bound = min(bound, solution.bound)
        if best is None or solution.seconds < best.seconds * (1 - EQUAL):
            best = Planned(grid, space, solution, 0.0, ())
    return None if best is None else Planned(best.grid, best.space, best.solution, bound, tuple(tried))


def _best_of_bounded(request: _Request) -> Planned | None:
    """The best plan of all grids, that of the least bound first; of each, strategies that may be better.

    Of equally good plans that of the first grid is chosen.
    """
    program = ProgramBounds(
        request.state, request.cluster, request.machine, copies="copies" not in request.forbid
    )
    bounds = {grid: program.on(grid, request.fixed[grid]) for grid in request.fixed}
    position = {grid: n for n, grid in enumerate(bounds)}
    best: Planned | None = None
    tried: dict[Grid, Tried] = {}
    bound = math.inf
    for grid in sorted(bounds, key=lambda g: bounds[g].least):
        limit = math.inf if best is None else best.seconds
        least = bounds[grid].least
        if best is not None and least >= limit * (1 if position[grid] > position[best.grid] else 1 + EQUAL):
            tried[grid] = Tried(grid, least, False)
            bound = min(bound, least)
            continue
        space, solution, proved = _solved_within(request, grid, program, bounds[grid], limit)
        bound = min(bound, proved)
        seconds = math.inf if solution is None else solution.seconds
        tried[grid] = Tried(grid, seconds if seconds <= limit else proved, seconds <= limit)
        first = best is not None and position[grid] < position[best.grid]
        if solution is not None and seconds < limit * (1 + EQUAL if first else 1 - EQUAL):
            best = Planned(grid, space, solution, 0.0, ())
    if best is None:
        return None
    return Planned(
        best.grid, best.space, best.solution, min(bound, best.seconds), tuple(tried[g] for g in bounds)
    )


def _solved_within(
    request: _Request, grid: Grid, program: ProgramBounds, bounds: GridBounds, limit: float
) -> tuple[Space, Solution | None, float]:  # fmt: skip
    """The problem of a grid with the strategies of plans within a limit, its solution, and a bound.

    First the strategies of the least bounds are priced, then those that may be better than their best plan.
    """
    prices, reached = request.prices(grid), bounds.least
    while True:
        kept = bounds.within(reached)
        space = prices.space(program.options, kept)
        solution = solve(space, request.memory)
        seconds = math.inf if solution is None else solution.seconds
        if min(seconds, limit) <= reached:
            bound = math.inf if solution is None else solution.bound
            return space, solution, min(bound, bounds.beyond(reached))
        reached = min(seconds, limit)


def fixed_placements(
    state: State, fix: Mapping[str, str | Sequence[str]], grid: Grid
) -> dict[str, Placement]:  # fmt: skip
    """The placements that `fix` states on a grid."""
    return {n: placement_on(t, dimensions(state, n), grid) for n, t in fix.items() if not is_name(t)}


def same_placements(fix: Mapping[str, str | Sequence[str]]) -> tuple[tuple[str, str], ...]:
    """The pairs of tensors that have one placement, as `fix` says."""
    return tuple((n, str(t)) for n, t in fix.items() if is_name(t))


def dimensions(state: State, tensor: str) -> int:
    """The number of dimensions of a tensor or func."""
    program = state.program
    return len(program.func(tensor).variables if program.has_func(tensor) else program.input(tensor).shape)


def _size(state: State, grid: Grid) -> int:
    """The strategies times placements of the funcs on a grid, about; similar funcs are priced once."""
    axes = len(grid.axes)
    kinds = {
        (len(f.variables), tuple((d.variables, len(d.reads)) for d in f.definitions))
        for f in state.program.funcs
    }
    return sum((len(ds[0][0]) + 1) ** axes * (dims + 1) ** axes for dims, ds in kinds)
