"""`RankDirectives`: the directives of distribution on one definition of a func."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from tdsl.lang.tensor import Func
from tdsl.placement.grid import Grid
from tdsl.schedule.distribute_onto import axis_entries, deal_out, loops_of_blocks, placed_tensors
from tdsl.schedule.naming import Loop, LoopLike, check_grid
from tdsl.schedule.ranks import distributed_loops
from tdsl.schedule.stage import StageDirectives, TensorLike, only_given


class RankDirectives(StageDirectives):
    """The directives that say which rank computes what, and when it communicates, as methods."""

    __slots__ = ()

    def distribute(
        self, loops: LoopLike | int | Sequence[LoopLike | int] = (),
        grid: Grid | Sequence[Grid] | None = None, *, onto: TensorLike | None = None,
    ) -> tuple[Loop, ...]:  # fmt: skip
        """Distribute the iterations of loops over ranks, one entry for each axis of the grid.

        In place of a loop, "*" lets every coordinate compute the func, a number that one alone, and "partial"
        each from its own part of sources placed as partial(sum), in which the func must be linear and
        homogeneous (else ScheduleError): the results are parts of a sum.
        Each loop is divided into as many blocks as its axis has ranks; the loops over blocks, returned,
        become outermost, the old names mean the loops inside a block. A loop given twice is divided twice.
        If a reduction loop is distributed, partial results are combined at the owners of the func.

        `onto` is a tensor with a placement, or the func itself: loops and grid are then taken from its blocks
        (owner computes), so that none of its elements is communicated. Blocks that are dealt out, as in
        "r/64", are computed and communicated one after the other.
        """
        turns: list[str] = []
        if onto is None:
            named, levels = axis_entries(loops, self._names(), self.loop_name), check_grid(grid).levels
        else:
            alone = isinstance(loops, tuple) and not loops and grid is None
            source, state = self.schedule.source_name(onto), self.schedule.state
            owned, levels = loops_of_blocks(state, self.func, self.definition, source, alone=alone)
            ranks = [n for level in levels for _, n in level]
            named, turns = deal_out(owned, ranks, lambda x, n, t: self._loop_names(self.split(x, n, tail=t)))
        self.do("distribute", loops=named, grid=levels)
        outer = distributed_loops(self.schedule.state.plan(self.func))
        if turns:  # one block at a time
            self.reorder(*turns, *(x for x in self._names() if x not in (*outer, *turns)))
            self.communicate(list(placed_tensors(self.schedule.state, self.func)), at=turns[-1])
        return tuple(Loop(self, x) for x in outer)

    def local(self, loop: LoopLike) -> Loop:
        """The loop that each rank runs inside a distributed loop, given the name of the latter."""
        nest = self.schedule.state.plan(self.func).nests[self.definition]
        name = self.loop_name(loop)
        return Loop(self, dict(nest.aliases).get(name, name))

    def communicate(
        self, tensors: TensorLike | Sequence[TensorLike], at: LoopLike, *, prefetch: int = 0,
        deterministic: bool = False, overlap: bool = False, routed: bool | None = None,
        since: Func | StageDirectives | str | None = None, until: Func | StageDirectives | str | None = None,
        behind: TensorLike | None = None,
    ) -> Self:  # fmt: skip
        """Receive the parts of tensors that this stage reads at the start of every iteration of a loop.

        Results of the stage, if it is among `tensors`, are sent to their owners at the end. The loop is the
        last distributed one, where other tensors are communicated, or one inside of it: messages are then
        more and smaller, buffers smaller. With `prefetch`, receives start that many iterations ahead, into
        separate buffers. With `overlap`, points that read elements of this rank alone are computed meanwhile.
        With `deterministic`, partial results are combined in rank order, independently of MPI's algorithm.
        With `routed`, rows that data select, as `x[at[t], d]`, are received by all-to-alls (the call raises
        IndexBoundError for no row), if it is False the box of all; by default the expected bytes decide.

        With `since`, a func that is computed before, messages are in flight from when that func begins, or
        what they carry is computed, if that is later. Of interleaved loops this is the step of the same
        number. The buffer for them is then allocated at that time. With `behind`, a tensor that is received
        in such a window, too, messages start after those of it: these have priority.

        With `until`, a func that is computed later, results of this stage are sent when they are computed,
        and arrive before that func begins, or its step of the same number; they may be read from then on.
        Partial results are combined in rank order.
        """
        listed = tensors if isinstance(tensors, list | tuple) else (tensors,)
        names = tuple(self.schedule.source_name(t) for t in listed)
        options = {"prefetch": prefetch, "deterministic": deterministic, "overlap": overlap}
        named = {"since": since, "until": until, "behind": behind}
        window = {k: None if v is None else self.schedule.source_name(v) for k, v in named.items()}
        given = only_given(**{k: v or None for k, v in options.items()}, routed=routed, **window)
        return self.do("communicate", tensors=names, at=self.loop_name(at), **given)

    def rotate(self, loop: LoopLike, by: LoopLike | Sequence[LoopLike]) -> Loop:
        """Rotate a loop by the iterations of the loops `by` around it (systolic order); returns the new loop.

        x = (new + the loops of `by`) modulo the extent of x: neighbouring ranks are one step apart.
        """
        before = self._names()
        self.do("rotate", loop=self.loop_name(loop), by=self._loop_names(by))
        return self._new_loops(before)[0]
