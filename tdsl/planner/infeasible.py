"""The error for a plan that does not exist: the fewest lines that conflict, and the bytes missing."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from tdsl.machine.model import Machine
from tdsl.planner import milp
from tdsl.planner.cluster import Cluster
from tdsl.planner.problem import space_of
from tdsl.planner.search import candidate_grids, fixed_placements, same_placements
from tdsl.schedule.state import Illegal, State

MAX_LINES = 12  # placements of the user of which all subsets are tried


def conflict(
    state: State, cluster: Cluster, machine: Machine, fix: Mapping[str, str | Sequence[str]],
    memory: int | None, forbid: frozenset[str],
) -> Illegal:  # fmt: skip
    """Why there is no plan."""
    least = least_bytes(state, cluster, machine, fix, forbid)
    if memory is None or least is None:
        what = f" without {', '.join(sorted(forbid))}" if forbid else ""
        return Illegal(f"there is no plan{what}", "allow more kinds of communication, or fix less")
    given = [*fix, *(name for name, _ in state.placed)]
    for count in range(1, min(len(given), MAX_LINES) + 1):
        for lines in itertools.combinations(given, count):
            kept = {n: t for n, t in fix.items() if n in lines}
            partly = replace(state, placed=tuple((n, p) for n, p in state.placed if n in lines))
            needed = least_bytes(partly, cluster, machine, kept, forbid)
            if needed is not None and needed > memory and _fits(state, cluster, machine, forbid, memory):
                shown = ", ".join(f"{n}: {_text(state, fix, n)}" for n in lines)
                return Illegal(
                    f"{shown} needs {needed} bytes of a rank, {needed - memory} more than there are",
                    "place one of these in blocks, or take more ranks",
                )
    return Illegal(
        f"a rank needs {least} bytes at least, {least - memory} more than the {memory} there are",
        "take more ranks, or store less: funcs that are inlined need no memory",
    )


def _fits(state: State, cluster: Cluster, machine: Machine, forbid: frozenset[str], memory: int) -> bool:
    """True if the program has a plan in which nothing is placed by the user."""
    least = least_bytes(replace(state, placed=()), cluster, machine, {}, forbid)
    return least is not None and least <= memory


def _text(state: State, fix: Mapping[str, str | Sequence[str]], name: str) -> str:
    return str(fix[name] if name in fix else dict(state.placed)[name])


def least_bytes(
    state: State, cluster: Cluster, machine: Machine, fix: Mapping[str, str | Sequence[str]],
    forbid: frozenset[str],
) -> int | None:  # fmt: skip
    """The least bytes of a rank with which a plan exists; None if there is none with any memory."""
    grid = next(candidate_grids(state, cluster, fix))
    fixed = fixed_placements(state, fix, grid)
    space = space_of(state, grid, cluster, machine, fixed, forbid, same_placements(fix))
    if milp.is_available():
        choice = milp.solve(space.problem, least_memory=True).choice
    else:
        from tdsl.planner.solve import least_memory

        choice = least_memory(space)
    if choice is None or not np.isfinite(space.problem.seconds(choice)):
        return None
    return space.problem.memory(choice)
