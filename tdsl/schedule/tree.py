"""The schedule tree: which funcs are computed, stored and continued at each loop."""

from __future__ import annotations

from dataclasses import dataclass, field
from graphlib import TopologicalSorter

from tdsl.lang.program import Program
from tdsl.schedule.state import AfterProducer, At, Level, State, WithStage

ROOT = Level("", 0, "")


@dataclass(slots=True)
class ScheduleTree:
    """For each loop body, the funcs computed there (in order), stored there, run after or with the body."""

    computed: dict[Level, list[str]] = field(default_factory=dict)
    stored: dict[Level, list[str]] = field(default_factory=dict)
    after: dict[Level, list[str]] = field(default_factory=dict)
    joined: dict[Level, list[str]] = field(default_factory=dict)
    parent: dict[str, Level] = field(default_factory=dict)  # the loop around the loops of a func
    order: list[str] = field(default_factory=list)  # producers first; joined funcs are neighbours
    hosts: frozenset[str] = frozenset()  # the funcs in whose loops others are computed, continued or joined

    def has_funcs_at(self, level: Level) -> bool:
        """True if a func is computed, stored, continued or joined in the body of this loop."""
        return any(level in places for places in (self.computed, self.stored, self.after, self.joined))


def build_tree(state: State) -> ScheduleTree:
    """The tree of a complete state: every func has a place and none is inlined."""
    tree = ScheduleTree(order=producers_first(state))
    for name in tree.order:
        plan = state.plan(name)
        match plan.place:
            case At(level):
                tree.parent[name] = level
                tree.computed.setdefault(level, []).append(name)
            case AfterProducer(level):
                tree.parent[name] = level
                tree.after.setdefault(level, []).append(name)
            case WithStage(level):
                tree.parent[name] = level
                tree.joined.setdefault(level, []).append(name)
            case _:
                tree.parent[name] = ROOT
                tree.computed.setdefault(ROOT, []).append(name)
    for name in tree.order:
        tree.stored.setdefault(_store_level(state, name), []).append(name)
    tree.hosts = frozenset(x.func for at in (tree.computed, tree.after, tree.joined) for x in at)
    return tree


def _store_level(state: State, name: str) -> Level:
    plan = state.plan(name)
    if plan.store is not None and plan.store.func == name:
        return plan.store  # a func with a write cache, stored in its own loops
    return _level_of_values(state, name)


def _level_of_values(state: State, name: str) -> Level:
    """The loop in whose body the values of a func, or of its write cache, are stored."""
    plan = state.plan(name)
    if plan.store is not None and plan.store.func != name:
        return ROOT if plan.store.definition == -1 else plan.store
    match plan.place:
        case At(level):
            return level
        case AfterProducer(level) | WithStage(level):
            return _level_of_values(state, level.func)
        case _:
            return ROOT


def producers_first(state: State) -> list[str]:
    """All funcs, producers before consumers; funcs that share loops count as one and are adjacent."""
    global _latest
    group: dict[str, str] = {}
    for name, plan in state.plans:
        if isinstance(plan.place, WithStage | AfterProducer):
            group[name] = plan.place.level.func
    if _latest is None or _latest[0] is not state.program or _latest[1] != group:
        _latest = state.program, group, _sorted_names(state.program, group)
    return _latest[2]


_latest: tuple[Program, dict[str, str], list[str]] | None = None  # a cache, as each directive needs the order


def _sorted_names(program: Program, group: dict[str, str]) -> list[str]:
    position = {f.name: n for n, f in enumerate(program.funcs)}

    def leader(name: str) -> str:
        while name in group:
            name = group[name]
        return name

    leaders = {name: leader(name) for name in position}
    members: dict[str, list[str]] = {}
    producers: dict[str, set[str]] = {}
    for f in program.funcs:
        leader_of_f = leaders[f.name]
        members.setdefault(leader_of_f, []).append(f.name)
        needed = producers.setdefault(leader_of_f, set())
        for d in f.definitions:
            needed |= {leaders[name] for name in d.sources if name in leaders} - {leader_of_f}
    sorter = TopologicalSorter(producers)
    sorter.prepare()
    order: list[str] = []
    while sorter.is_active():
        ready = sorted(sorter.get_ready(), key=lambda name: position[name])
        sorter.done(*ready)
        order += ready
    return [name for top in order for name in sorted(members[top], key=lambda n: n != top)]


def nested_funcs(state: State, func: str) -> set[str]:
    """A func and all funcs whose places are in its loops, directly or through other funcs."""
    placed, queue = set(), [func]
    while queue:
        name = queue.pop()
        if name not in placed:
            placed.add(name)
            queue += state.placed_in.get(name, ())
    return placed
