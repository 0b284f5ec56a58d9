"""Rewrites of a program that a plan of it pays for: a best-first search with the planner as the price.

    merge_products  products that share an operand are one product     (TASO, SOSP 2019)
    add_first       partial sums are added before they are reduced     (Alpa, OSDI 2022)
    reassociate     (A B) C is A (B C)
    inline          an element-wise func is computed again by its readers
    clone_in        late readers compute a func again, so that it is not stored between (Chen et al., 2016)

Funcs of equal structure, as those of equal layers, are rewritten together. From a rewritten program the
search goes on while its plan takes at most `SLACK` times the best one's seconds, as that of TASO.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tdsl.errors import ScheduleError
from tdsl.lang.program import FuncDef, Program
from tdsl.machine.model import Machine
from tdsl.planner.cluster import Cluster
from tdsl.planner.infeasible import least_bytes
from tdsl.planner.planned import Planned
from tdsl.planner.search import is_name, search
from tdsl.planner.strategies import may_be_partial, with_all_distributed
from tdsl.planner.structure import structure_of
from tdsl.schedule.add_first import terms_that_read
from tdsl.schedule.directive import Directive, apply
from tdsl.schedule.reassociate import sums_in
from tdsl.schedule.state import Inline, State, fresh_plan

MAX_PLANS = 60  # rewritten programs that are planned
SLACK = 1.02
GAIN = 1e-3  # the least relative gain of a rewrite
Steps = tuple[Directive, ...]
Price = tuple[float, float]  # seconds; the bytes of a rank where memory does not suffice, else 0


@dataclass(frozen=True, slots=True)
class Request:
    """What a plan is asked for: the arguments of `search` but for the state."""

    cluster: Cluster
    machine: Machine
    fix: Mapping[str, str | Sequence[str]]
    memory: int | None
    forbid: frozenset[str]

    def plan(self, state: State) -> Planned | None:
        """The plan of a state; None if memory does not suffice."""
        return search(state, self.cluster, self.machine, self.fix, self.memory, self.forbid)

    def price(self, state: State, planned: Planned | None) -> Price:
        """The price of a state and its plan."""
        if planned is not None:
            return planned.seconds, 0.0
        needed = least_bytes(state, self.cluster, self.machine, self.fix, self.forbid)
        return math.inf, math.inf if needed is None else float(needed)

    @property
    def names(self) -> frozenset[str]:
        """The tensors that `fix` names."""
        return frozenset(self.fix) | {str(t) for t in self.fix.values() if is_name(t)}


def rewritten(
    state: State, request: Request, kinds: Sequence[str]
) -> tuple[Steps, Planned | None, Planned | None]:
    """The directives of the rewrites that pay, the plan after them, and the plan without them."""
    before = request.plan(state)
    if not kinds:
        return (), before, before
    on_grid = state if before is None or state.grid else replace(state, grid=before.grid)
    start = request.price(state, before)
    best, number = (start, Steps()), itertools.count()
    frontier: list[tuple[Price, int, State, Steps]] = [(start, next(number), on_grid, ())]
    seen, plans = {_key(on_grid)}, 0
    while frontier:
        price, _, now, steps = heapq.heappop(frontier)
        if price > _scaled(best[0], SLACK):
            break
        for more in candidates(now, request, kinds):
            changed = _applied(now, more)
            if changed is None or _key(changed) in seen or plans >= MAX_PLANS:
                continue
            seen.add(_key(changed))
            plans += 1
            price = request.price(changed, request.plan(changed))
            heapq.heappush(frontier, (price, next(number), changed, (*steps, *more)))
            if price < _scaled(best[0], 1 - GAIN):
                best = price, (*steps, *more)
    if not best[1]:
        return (), before, before
    final = _applied(state, best[1])
    assert final is not None
    return best[1], request.plan(final), before


def _scaled(price: Price, factor: float) -> Price:
    return price[0] * factor, price[1] * factor


def _key(state: State) -> tuple[Program, frozenset[str]]:
    """What distinguishes rewritten states: the program and the funcs that are inlined."""
    return state.program, frozenset(
        f.name for f in state.program.funcs if isinstance(state.plan(f.name).place, Inline)
    )


def _applied(state: State, steps: Steps) -> State | None:
    """The state after directives; None if one of them is not legal."""
    try:
        for step in steps:
            state = apply(step, state)
    except ScheduleError:
        return None
    return state


def candidates(state: State, request: Request, kinds: Sequence[str]) -> Iterator[Steps]:
    """The rewrites of a state; those of funcs of equal structure are one."""
    grid = state.grid or next(iter(request.cluster.grids(1)))
    base = with_all_distributed(state, grid)
    groups: dict[object, list[Directive]] = {}
    for kind in kinds:
        for funcs, steps in KINDS[kind](state, request):
            forms = tuple(structure_of(base, f).definitions for f in funcs)
            groups.setdefault((kind, forms), []).extend(steps)
    yield from map(tuple, groups.values())


def _free_funcs(state: State) -> list[FuncDef]:
    """The funcs of which no directive says how they are computed."""
    plans = {f.name: state.plan(f.name) for f in state.program.funcs}
    return [
        f for f in state.program.funcs
        if plans[f.name].nests == fresh_plan(f).nests and not plans[f.name].distributed
        and not isinstance(plans[f.name].place, Inline)
    ]  # fmt: skip


def _needed(state: State, request: Request) -> set[str]:
    """The funcs that must stay: outputs, and those that directives or `fix` place."""
    replaced = {n for pair in state.overwrites for n in pair}
    return {*state.program.outputs, *request.names, *(n for n, _ in state.placed), *replaced}


def _directive(name: str, func: str, **arguments: object) -> Directive:
    return Directive(name, func, 0, tuple(arguments.items()))


Rewrite = tuple[tuple[FuncDef, ...], Steps]  # of some funcs


def _merges(state: State, request: Request) -> Iterator[Rewrite]:
    """For each tensor the most sums that can be merged of those that read it, from each that is left."""
    needed = _needed(state, request)
    sums = [f for f in _free_funcs(state) if f.definitions[-1].combine is not None]
    for tensor in dict.fromkeys(r.name for f in sums for r in f.definitions[0].reads):
        left = [f for f in sums if any(r.name == tensor for r in f.definitions[0].reads)]
        while len(left) > 1:
            first, *others = left
            merged: list[FuncDef] = []
            for g in others:
                names = (*(m.name for m in merged), g.name)
                if _applied(state, (_directive("merge_products", first.name, sources=names),)) is not None:
                    merged.append(g)
            left = [f for f in others if f not in merged]
            if merged:
                names = tuple(f.name for f in merged)
                steps = [_directive("merge_products", first.name, sources=names)]
                steps += [_directive("inline", f.name) for f in (first, *merged) if f.name not in needed]
                yield (first, *merged), tuple(steps)


def _additions(state: State, _: Request) -> Iterator[Rewrite]:
    """The funcs that add partial sums to what is none."""
    program = state.program
    for f in _free_funcs(state):
        d = f.definitions[0]
        if d.combine is not None or len(f.definitions) > 1 or len(f.dtypes) > 1:
            continue
        sums = {
            r.name for r in d.reads
            if program.has_func(r.name) and may_be_partial(program.func(r.name))
            and program.func(r.name).definitions[-1].combine is not None
        }  # fmt: skip
        if len(sums) > 1 and terms_that_read(d.values[0], sums):
            yield (f,), (_directive("add_first", f.name, sources=tuple(sorted(sums))),)


def _orders(state: State, request: Request) -> Iterator[Rewrite]:
    """The sums of products in which another sum is a factor."""
    free, needed = _free_funcs(state), _needed(state, request)
    names = {f.name: f for f in free if f.name not in needed}
    for f in free:
        if f.definitions[-1].combine is None:
            continue
        for source in sums_in(state.program, f.name):
            if source in names:
                yield (f, names[source]), (_directive("reassociate", f.name, source=source),)


def _inlined(state: State, request: Request) -> Iterator[Rewrite]:
    """The element-wise funcs that are no outputs."""
    needed = _needed(state, request)
    for f in _free_funcs(state):
        d = f.definitions[0]
        if d.combine is None and len(f.definitions) == 1 and f.name not in needed:
            yield (f,), (_directive("inline", f.name),)


def _clones(state: State, request: Request) -> Iterator[Rewrite]:
    """The funcs between two readers of which most others are computed, where memory is limited."""
    if request.memory is None:
        return
    funcs = state.program.funcs
    for f in _free_funcs(state):
        at = [
            n
            for n, g in enumerate(funcs)
            if g is not f and any(r.name == f.name for d in g.definitions for r in d.reads)
        ]
        gaps = [b - a for a, b in itertools.pairwise(at)]
        if gaps and max(gaps) > 1:
            late = tuple(funcs[n].name for n in at[gaps.index(max(gaps)) + 1 :])
            yield (f,), (_directive("clone_in", f.name, readers=late),)


KINDS = {
    "merge_products": _merges, "add_first": _additions, "reassociate": _orders,
    "inline": _inlined, "clone_in": _clones,
}  # fmt: skip
