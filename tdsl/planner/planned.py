"""`Planned`: a plan with its prices; as text each communication, its runner-up, and the gap."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from tdsl.core.notebook import Listing
from tdsl.placement.grid import Grid
from tdsl.placement.notation import Placement
from tdsl.planner.problem import Choice, Problem, Space, Variable
from tdsl.planner.solve import Solution


@dataclass(frozen=True, slots=True)
class Planned:
    """The plan of a program: grid, choices and prices; `gap` is how far it may be from the best.

    `seconds` are those of communication and tasks one after another, on the busiest rank; `bound` is a lower
    bound of them for all placements on the grids that were tried. `memory` is in bytes of a rank.
    """

    grid: Grid
    space: Space
    solution: Solution
    bound: float
    tried: tuple[tuple[Grid, float], ...]

    @property
    def seconds(self) -> float:
        """The predicted seconds."""
        return self.solution.seconds

    @property
    def gap(self) -> float:
        """The relative distance of the seconds from the lower bound; infinite if nothing is proved."""
        return self.seconds / self.bound - 1 if self.bound > 0 else 0.0 if self.seconds == 0 else math.inf

    @property
    def memory(self) -> int:
        """The bytes that a rank needs."""
        return self.space.problem.memory(self.solution.choice)

    @property
    def bytes(self) -> int:
        """The bytes that the busiest rank of each communication receives, summed."""
        return sum(price.bytes for _, _, price in self.space.chosen_prices(self.solution.choice))

    def placement(self, tensor: str) -> Placement:
        """The placement of a tensor."""
        return self.space.placements[tensor][self.solution.choice["place", tensor]]

    def loops(self, func: str) -> tuple[int, tuple[str | int, ...]]:
        """The definition of a func that is distributed, and the entries of `distribute`."""
        strategy = self.space.strategies[func][self.solution.choice["loops", func]]
        return strategy.definition, strategy.entries

    def explain(self) -> Listing:
        """A line for each communication, with the runner-up, for each tensor its placement, and the gap."""
        return Listing(_text(self))

    __str__ = explain
    __repr__ = explain


def _text(planned: Planned) -> str:
    """The lines of a plan."""
    space, choice = planned.space, planned.solution.choice
    first = f"{planned.grid}: {_time(planned.seconds)}, {planned.bytes} bytes received a rank"
    lines = [f"{first}, memory {planned.memory} bytes; {planned.solution.method}; {_gap(planned)}"]
    if len(planned.tried) > 1:
        others = (f"{grid} {_time(s)}" for grid, s in planned.tried if grid != planned.grid)
        lines.append(f"other grids: {', '.join(others)}")
    for func, tensor, price in space.chosen_prices(choice):
        if not price.bytes:
            continue
        verb = f"of {tensor}" if func == tensor else f"of {tensor} for {func}"
        _, entries = planned.loops(func)
        axes = ", ".join(
            f"{name}: {x}" for name, x in zip(planned.grid.names, entries, strict=True)
        )  # fmt: skip
        lines.append(
            f"{price.kind} {verb} ({axes}): {price.bytes} bytes, {_time(price.seconds)}"
            f"{_runner_up(planned, func, tensor)}"
        )
    if len(lines) == 1 + (len(planned.tried) > 1):
        lines.append("no communication")
    lines += [f"{t}: {planned.placement(t)}{_why(planned, t)}" for t in space.tensors]
    return "\n".join(lines)


def _time(seconds: float) -> str:
    if not np.isfinite(seconds):
        return "does not fit"
    return f"{seconds * 1e6:.1f} us" if seconds < 1e-3 else f"{seconds * 1e3:.2f} ms"


def _gap(planned: Planned) -> str:
    if not np.isfinite(planned.gap):
        return "no lower bound is proved"
    return f"at most {100 * planned.gap:.2f} % above the best"


def _runner_up(planned: Planned, func: str, tensor: str) -> str:
    """The best plan in which the func has another strategy or the tensor another placement."""
    problem, choice = planned.space.problem, planned.solution.choice
    options = []
    for v in (("loops", func), ("place", tensor)):
        other = _best_without(problem, choice, v)
        if other is not None:
            options.append((problem.seconds(other), v, other))
    if not options:
        return "; no other strategy is legal"
    seconds, v, other = min(options, key=lambda x: (x[0], x[1]))
    kind, name = v
    if kind == "loops":
        what = f"{name} by {planned.space.strategies[name][other[v]]}"
    else:
        what = f"{name} as {planned.space.placements[name][other[v]]}"
    return f"; runner-up: {what}, {_time(seconds)} in all"


def _best_without(problem: Problem, choice: Choice, v: Variable) -> Choice | None:
    """The best choice found by changing a variable, then those around it; None if none is legal."""
    best: Choice | None = None
    for n in range(problem.sizes[v]):
        if n == choice[v]:
            continue
        other = _settled(problem, dict(choice) | {v: n}, v)
        if np.isfinite(problem.seconds(other)) and (
            best is None or problem.seconds(other) < problem.seconds(best)
        ):
            best = other
    return best


def _settled(problem: Problem, choice: Choice, kept: Variable) -> Choice:
    """A choice after the variables next to `kept`, and those next to them, took their best values."""
    around = {kept}
    for _ in range(2):
        around |= {u for both in problem.pairs if around & {*both} for u in both}
    for _ in range(3):
        for v in sorted(around - {kept}):
            costs = problem.unary[v]
            for (a, b), t in problem.pairs.items():
                if a == v:
                    costs = costs + t[:, choice[b]]
                elif b == v:
                    costs = costs + t[choice[a], :]
            if costs.min() < costs[choice[v]]:
                choice[v] = int(np.argmin(costs))
    return choice


def _why(planned: Planned, tensor: str) -> str:
    if len(planned.space.placements[tensor]) == 1:
        return " (given)"
    return ""
