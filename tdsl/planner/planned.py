"""`Planned`: a plan with its prices; as text each communication, its runner-up, and the gap."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from tdsl.core.notebook import Listing, page
from tdsl.core.text import in_bytes
from tdsl.placement.grid import Grid
from tdsl.placement.notation import Placement
from tdsl.planner.problem import Space, Table, Variable
from tdsl.planner.solve import Solution
from tdsl.schedule.directive import Directive
from tdsl.tilegraph.drawing import Arrow, Drawing, svg


@dataclass(frozen=True, slots=True)
class Tried:
    """The seconds of the best plan on a grid; a lower bound of them where no plan was priced."""

    grid: Grid
    seconds: float
    is_priced: bool

    def __str__(self) -> str:
        return f"{self.grid} {'' if self.is_priced else 'at least '}{_time(self.seconds)}"


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
    tried: tuple[Tried, ...]
    rewrites: tuple[Directive, ...] = ()
    seconds_unrewritten: float = math.inf

    def after(self, rewrites: tuple[Directive, ...], unrewritten: Planned | None) -> Planned:
        """The plan with the directives that rewrote its program, and the plan of the program as it was."""
        seconds = math.inf if unrewritten is None else unrewritten.seconds
        return replace(self, rewrites=rewrites, seconds_unrewritten=seconds)

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

    def picture(self) -> str:
        """The program as SVG: each tensor with its placement, and bytes where a rank receives any.

        Those of an edge are fetched by the reader; those after a placement bring results to their owners.
        """
        return svg(_drawing(self))

    def _repr_html_(self) -> str:
        return page(str(self.grid), [("plan", self.picture()), ("explanation", _text(self))])

    __str__ = explain
    __repr__ = explain


def _drawing(planned: Planned) -> Drawing:
    """The tensors of a plan with their placements, and what is read with the bytes that a rank receives."""
    space = planned.space
    captions = {t: str(planned.placement(t)) for t in space.tensors}
    arrows = tuple(
        Arrow(tensor, func, in_bytes(price.bytes) if price.bytes else "", price.bytes > 0)
        for func, tensor, price in space.chosen_prices(planned.solution.choice)
        if tensor != func
    )
    for func, tensor, price in space.chosen_prices(planned.solution.choice):
        if tensor == func and price.bytes:
            captions[func] += f", {in_bytes(price.bytes)}"
    funcs = {f.name for f in space.funcs}
    inputs = tuple(t for t in space.tensors if t not in funcs)
    return Drawing("plan", inputs, captions, (), arrows)


def _text(planned: Planned) -> str:
    """The lines of a plan."""
    space, choice = planned.space, planned.solution.choice
    first = f"{planned.grid}: {_time(planned.seconds)}, {planned.bytes} bytes received a rank"
    lines = [f"{first}, memory {planned.memory} bytes; {planned.solution.method}; {_gap(planned)}"]
    if len(planned.tried) > 1:
        others = (str(x) for x in planned.tried if x.grid != planned.grid)
        lines.append(f"other grids: {', '.join(others)}")
    if planned.rewrites:
        steps = ", ".join(map(_rewrite_text, planned.rewrites))
        lines.append(f"rewritten by {steps}: {_time(planned.seconds_unrewritten)} before")
    heading = len(lines)
    alternatives = _Alternatives(planned)
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
            f"{_runner_up(planned, alternatives.runner_up(func, tensor))}"
        )
    if len(lines) == heading:
        lines.append("no communication")
    lines += [f"{t}: {planned.placement(t)}{_why(planned, t)}" for t in space.tensors]
    return "\n".join(lines)


def _rewrite_text(step: Directive) -> str:
    of = ", ".join(" ".join(v) if isinstance(v, tuple) else str(v) for _, v in step.arguments)
    return f"{step.name} of {step.func}" + (f" ({of})" if of else "")


def _time(seconds: float) -> str:
    if not np.isfinite(seconds):
        return "does not fit"
    return f"{seconds * 1e6:.1f} us" if seconds < 1e-3 else f"{seconds * 1e3:.2f} ms"


def _gap(planned: Planned) -> str:
    if not np.isfinite(planned.gap):
        return "no lower bound is proved"
    return f"at most {100 * planned.gap:.2f} % above the best"


def _runner_up(planned: Planned, alternative: tuple[float, str] | None) -> str:
    """The best plan without a communication, as text."""
    if alternative is None:
        return "; no other strategy is legal"
    more, what = alternative
    return f"; runner-up: {what}, {_time(planned.seconds + more)} in all"


class _Alternatives:
    """Plans that differ from a plan in one choice, and in those around it that follow."""

    def __init__(self, planned: Planned) -> None:
        self.space, self.problem, self.choice = planned.space, planned.space.problem, planned.solution.choice
        self.around: dict[Variable, dict[Variable, Table]] = {v: {} for v in self.problem.sizes}
        for (a, b), table in self.problem.pairs.items():
            self.around[a][b] = table
            self.around[b][a] = table.T

    def runner_up(self, func: str, tensor: str) -> tuple[float, str] | None:
        """The seconds that the best plan takes longer in which the func or the tensor differs, and how."""
        options = []
        for v in (("loops", func), ("place", tensor)):
            best = self._best_without(v)
            if best is not None:
                options.append((best[0], v, best[1]))
        if not options:
            return None
        more, (kind, name), n = min(options)
        if kind == "loops":
            return more, f"{name} by {self.space.strategies[name][n]}"
        return more, f"{name} as {self.space.placements[name][n]}"

    def _best_without(self, v: Variable) -> tuple[float, int] | None:
        """The least seconds by which a plan with another choice of a variable takes longer, and that choice.

        None if no other choice is legal.
        """
        others = (n for n in range(self.problem.sizes[v]) if n != self.choice[v])
        options = ((self._difference(v, n), n) for n in others)
        return min((x for x in options if np.isfinite(x[0])), default=None)

    def _difference(self, kept: Variable, n: int) -> float:
        """The seconds that a plan takes longer in which the variables around take their best values."""
        around = {kept: None} | dict.fromkeys(self.around[kept])
        around |= dict.fromkeys(u for v in (*around,) for u in self.around[v])
        changed = {kept: n}
        for _ in range(3):
            for v in around:
                if v != kept:
                    costs = self._costs(v, changed)
                    at = changed.get(v, self.choice[v])
                    changed[v] = int(np.argmin(costs)) if costs.min() < costs[at] else at
        return self._seconds(changed) - self._seconds({v: self.choice[v] for v in changed})

    def _costs(self, v: Variable, changed: Mapping[Variable, int]) -> Table:
        """The seconds of each choice of a variable, all others as they are."""
        costs = self.problem.unary[v]
        for u, table in self.around[v].items():
            costs = costs + table[:, changed.get(u, self.choice[u])]
        return costs

    def _seconds(self, changed: Mapping[Variable, int]) -> float:
        """The seconds of what depends on some variables."""
        total = 0.0
        for v, n in changed.items():
            total += float(self.problem.unary[v][n])
            for u, table in self.around[v].items():
                if u not in changed:
                    total += float(table[n, self.choice[u]])
                elif v < u:
                    total += float(table[n, changed[u]])
        return total


def _why(planned: Planned, tensor: str) -> str:
    """Whether the user placed a tensor, else what the placement costs each func that reads or computes it."""
    if len(planned.space.placements[tensor]) == 1:
        return " (given)"
    paid = [
        f"{price.kind} by its own func" if func == tensor else f"{price.kind} for {func}"
        for func, t, price in planned.space.chosen_prices(planned.solution.choice)
        if t == tensor and price.bytes
    ]
    return f" ({', '.join(paid)})" if paid else " (no rank receives any of it)"
