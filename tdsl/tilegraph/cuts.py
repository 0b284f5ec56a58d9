"""Where a tile graph is cut: funcs that are there as a whole, and those computed in the tiles of a reader.

Funcs are decided one after the other, consumers first. Each begins a group, or joins that of its readers if
all of them are in one. A beam keeps the partitions whose groups take the least time; a group is priced once
however many of them have it. Where no more partitions are possible than the beam is wide, all are compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import inf

from tdsl.core.node import frozen
from tdsl.tilegraph.graph import TileGraph
from tdsl.tilegraph.tiling import Group, Needs, Place, Tiling, grow

WIDTH = 12  # partitions that are followed

Members = tuple[str, ...]
Priced = tuple[Group, Tiling]


@frozen
class Partition:
    """Groups by owner, each with its members, consumers first; what they take together."""

    groups: tuple[tuple[str, Members], ...]
    seconds: float

    def readers(self, names: set[str]) -> set[str]:
        """The owners of the groups in which some funcs are."""
        return {owner for owner, members in self.groups if names & {*members}}


def partitions(
    graph: TileGraph, names: Iterable[str], place: Place, *, together: Callable[[str], bool]
) -> tuple[list[Partition], dict[tuple[str, frozenset[str]], Priced | None]]:
    """The best partitions of some funcs, the best first, and the tiles of their groups.

    `together` says whether a func may join its readers.
    """
    order = [f.name for f in graph.program.funcs if f.name in {*names}]
    readers = {n: {e.consumer for e in graph.edges if e.producer == n and e.consumer in order} for n in order}
    outside = {e.producer for e in graph.edges if e.consumer not in order}
    priced: dict[tuple[str, frozenset[str]], Priced | None] = {}

    needs = Needs.of(graph, order, place.machine)

    def seconds_of(owner: str, members: Members) -> float:
        key = (owner, frozenset(members))
        if key not in priced:
            *before, name = members
            known = priced[owner, frozenset(before)] if before else None
            group = Group.of(needs, owner) if known is None else known[0].joined(name)
            tiling = grow(group, place)
            priced[key] = None if tiling is None else (group, tiling)
        tiled = priced[key]
        return inf if tiled is None else tiled[1].seconds

    beam = [Partition((), 0.0)]
    for name in reversed(order):
        following = []
        for p in beam:
            owners = p.readers(readers[name])
            free = name not in graph.program.outputs and name not in outside and together(name)
            following.append(_with(p, name, (name,), seconds_of, joined=False))
            if free and len(owners) == 1:
                (owner,) = owners
                in_group = dict(p.groups)[owner]
                following.append(_with(p, owner, (*in_group, name), seconds_of, joined=True))
        possible = [p for p in following if p.seconds < inf]
        beam = sorted(possible, key=lambda p: p.seconds)[:WIDTH]
    return beam, priced


def _with(
    p: Partition, owner: str, members: Members, seconds_of: Callable[[str, Members], float], *,
    joined: bool,
) -> Partition:  # fmt: skip
    """A partition with one group more, or one of its groups with one member more."""
    rest = tuple(g for g in p.groups if g[0] != owner)
    before = seconds_of(owner, dict(p.groups)[owner]) if joined else 0.0
    return Partition((*rest, (owner, members)), p.seconds - before + seconds_of(owner, members))
