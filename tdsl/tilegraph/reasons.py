"""Why a chosen schedule materialises funcs in the last memory: what keeps them nearer, and its price."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from tdsl.autoschedule.edges import copied
from tdsl.cost.predict import Prediction
from tdsl.schedule.tree import ROOT
from tdsl.tilegraph.search import Candidate


def reasons_of(
    chosen: Candidate, candidates: Sequence[Candidate], pinned: Collection[str] = ()
) -> dict[str, str]:
    """For each func that is materialised, the best candidate that has it in tiles, or that none does.

    `pinned` are those that the user wants there.
    """
    program, reasons = chosen.schedule.program, dict[str, str]()
    far = {id(c): _whole(c.schedule.prediction()) for c in (chosen, *candidates)}
    for name, func in far[id(chosen)].items():
        if not program.has_func(func) or func in program.outputs:
            continue
        nearer = [c for c in candidates if func not in far[id(c)].values()]
        best = min(nearer, key=lambda c: c.seconds, default=None)
        if func in pinned:
            reasons[name] = "it is pinned there"
        elif best is None:
            reasons[name] = "no candidate has it nearer"
        else:
            times = best.seconds / chosen.seconds if chosen.seconds else 1.0
            reasons[name] = f"nearer in {best.label!r}, predicted to take {times:.2f} times as long"
    return reasons


def _whole(p: Prediction) -> dict[str, str]:
    """The funcs that are stored outside of all loops, except results, and what each of them is a copy of."""
    program = p.state.program
    stored = p.nests.tree.stored.get(ROOT, ())
    return {n: _origin(p, n) for n in stored if n not in program.outputs}


def _origin(p: Prediction, name: str) -> str:
    """The func whose values these are: copies have those of others."""
    program = p.state.program
    while program.has_func(source := copied(program.func(name))):
        name = source
    return name
