"""Verification of a plan, from the plan alone, by executing all ranks without data.

It is verified that

1. every send matches one receive, of the same box of the same tensor, with the same tag and collective;
2. exchanges do not deadlock, even if every send is synchronous and a collective is a barrier of its ranks,
   all of which must name the same ranks;
3. steps access allocated buffers only, inside of their boxes; tasks read complete values only, from buffers
   that contain all that they read; the blocks from which data select rows are all of a tensor; between a
   start and its finish no step accesses the boxes that are received, nor writes those that are sent;
4. at the end each owner of an output has every point of every element exactly once;
5. the peak memory of each rank is what the plan states.

Each rank is verified by its own steps and by what others post to it (`check_messages.py`). Here all ranks are
in one process; `check_with_partners` is what each rank of a run does for itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from tdsl.distribute.buffer_contents import (
    BufferContents,
    PlanFault,
    have_same_points,
    point_count,
    reduction_points,
)
from tdsl.distribute.check_messages import PartialResult, Post, RankMatcher
from tdsl.distribute.check_rank import RankCheck
from tdsl.distribute.plan import Plan

# takes a rank's posts to others, or None for a fault; returns those for this rank, and if any rank posts
Swap = Callable[[Mapping[int, Sequence[Post]] | None], tuple[list[Post], bool]]


class PartnerFault(PlanFault):
    """The plan of another rank is incorrect."""


def check(plan: Plan) -> None:
    """Raise PlanFault unless a plan is correct and its ranks have the peak memory that its costs state."""
    matchers = _matchers(plan, range(plan.grid.size))
    ready = list(matchers)
    while ready:
        matcher = ready.pop()
        matcher.run()
        posts, matcher.outbox = matcher.outbox, []
        for rank, post in posts:
            matchers[rank].receive(post)
            ready.append(matchers[rank])
    parts: dict[int, list[PartialResult]] = {}
    for matcher in matchers:
        matcher.check_complete()
    for matcher in matchers:
        _check_end(plan, matcher)
        for rank, post in _partial_results(plan, matcher.check):
            parts.setdefault(rank, []).append(post)
    for posts_of_rank in parts.values():
        _check_parts(plan, posts_of_rank)


def check_with_partners(plan: Plan, rank: int, swap: Swap) -> None:
    """Raise PlanFault on all ranks of a run unless the plan is correct; each rank plans its own steps only.

    All ranks call it at once. They execute their steps without data, and swap what they post to each other,
    until nobody posts anything; `swap` raises PartnerFault where another one passes None.
    """
    try:
        (matcher,) = _matchers(plan, [rank])
        active = True
        while active:
            matcher.run()
            posts, matcher.outbox = matcher.outbox, []
            received, active = swap(_by_rank(posts))
            for post in received:
                matcher.receive(post)
        matcher.check_complete()
        _check_end(plan, matcher)
        received, _ = swap(_by_rank(_partial_results(plan, matcher.check)))
        _check_parts(plan, [post for post in received if isinstance(post, PartialResult)])
    except PartnerFault:
        raise
    except PlanFault:
        swap(None)
        raise
    swap({})  # a fault that another one has seen after the last posts


def _matchers(plan: Plan, ranks: Iterable[int]) -> list[RankMatcher]:
    points = {h.name: reduction_points(h) for h in plan.tensors}
    sizes = {h.name: h.bytes for h in plan.tensors}
    tensors = {h.name: h for h in plan.tensors}
    plans = (plan.rank(rank) for rank in ranks)
    return [RankMatcher(RankCheck(p, points, sizes, dict(p.owned), tensors), plan.grid.size) for p in plans]


def _by_rank(posts: Iterable[tuple[int, Post]]) -> dict[int, list[Post]]:
    result: dict[int, list[Post]] = {}
    for rank, post in posts:
        result.setdefault(rank, []).append(post)
    return result


def _check_end(plan: Plan, matcher: RankMatcher) -> None:
    """Raise PlanFault unless a rank ends with its blocks of the outputs, and has the stated peak memory."""
    rank, check = matcher.rank, matcher.check
    whole = {h.name for h in plan.tensors if not h.placement.partial}
    check.check_end({name: plan.owned(name, rank) for name in plan.outputs}, whole)
    stated = plan.volume.peak_memory[rank] if rank < plan.grid.size else 0
    if check.peak != stated:
        raise PlanFault(f"rank {rank} holds {check.peak} bytes, the plan says {stated}")


def _partial_results(plan: Plan, check: RankCheck) -> Iterator[tuple[int, PartialResult]]:
    """The parts of partial tensors that a rank has at the end or has read, with the rank that compares them.

    Ranks whose coordinates differ only along the axes of the parts have parts of one box; the first compares.
    """
    tensors, rank = {h.name: h for h in plan.tensors}, check.plan.rank

    def first(axes: tuple[int, ...]) -> int:
        at = plan.grid.coordinates(rank)
        return plan.grid.rank(tuple(0 if n in axes else p for n, p in enumerate(at)))

    for name in plan.outputs:
        axes = tensors[name].placement.partial
        if axes and name in check.buffers:
            box = check.buffers[name].box
            yield first(axes), PartialResult(rank, name, "", box, tuple(check.values(name, box)))
    for (reader, name, box), contents in check.parts_read.items():
        part = PartialResult(rank, name, reader, box, tuple(contents.pieces))
        yield first(tensors[reader].partial_axes), part


def _check_parts(plan: Plan, parts: Iterable[PartialResult]) -> None:
    """Raise PlanFault unless the partial results of all ranks of a group together have every point once.

    A reader may be partial along more axes than a tensor that it reads: ranks that differ along these axes
    only must read the same part, since each part of this tensor meets all parts of the others.
    """
    tensors = {h.name: h for h in plan.tensors}
    groups: dict[tuple[str, str, object], dict[tuple[int, ...], PartialResult]] = {}
    for part in parts:
        axes, at = tensors[part.tensor].placement.partial, plan.grid.coordinates(part.rank)
        if part.reader:
            axes = tuple(n for n in axes if n in tensors[part.reader].partial_axes)
        group = groups.setdefault((part.tensor, part.reader, part.box if part.reader else None), {})
        same = group.setdefault(tuple(at[n] for n in axes), part)
        if same is not part and not have_same_points(same.pieces, part.pieces):
            ranks = f"ranks {same.rank} and {part.rank}"
            raise PlanFault(f"{part.reader!r} reads other parts of {part.tensor!r}{part.box} on {ranks}")
    for (tensor, _, _), group in groups.items():
        first, *others = group.values()
        total = BufferContents(tensor, first.box, list(first.pieces))
        for part in others:
            total.add(list(part.pieces))
        expected = point_count(reduction_points(tensors[tensor]))
        for box, combined in total.pieces:
            if point_count(combined) != expected:
                raise PlanFault(f"the parts of {tensor!r}{box} have the points {combined} only")
