"""`StageDirectives`: a method for each directive on one definition of a func."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, Self

from tdsl.core.source import here
from tdsl.errors import ScheduleError, Suggesting, TypeMismatch, counted, is_one_of
from tdsl.lang.program import FuncDef
from tdsl.lang.tensor import Func, Tensor
from tdsl.lang.value import Value, Variable
from tdsl.placement.grid import Grid
from tdsl.schedule.directive import Directive, Recorder
from tdsl.schedule.instructions.instruction import Instruction
from tdsl.schedule.naming import (
    Loop,
    LoopLike,
    check_grid,
    check_owner,
    check_recipe,
    name_of_dim,
    name_of_loop,
)
from tdsl.schedule.nest import Illegal
from tdsl.schedule.online import online_name
from tdsl.schedule.onto import blocks_of
from tdsl.schedule.specialize import encode

TensorLike = Tensor | Func | str


class StageDirectives(Suggesting):
    """The directives on one definition of a func, as methods; `fluent.Stage` is that of a schedule."""

    __slots__ = ("definition", "func", "schedule")
    _internal = ("definition", "do", "loop_name")

    def __init__(self, schedule: Recorder, func: str, definition: int) -> None:
        self.schedule, self.func, self.definition = schedule, func, definition

    def __repr__(self) -> str:
        update = f".update({self.definition - 1})" if self.definition else ""
        return f"Stage({self.func!r}){update}"

    def update(self, n: int = 0) -> Self:
        """The n-th update of this func."""
        count = len(self.schedule.state.program.func(self.func).definitions) - 1
        if n not in range(count):
            raise ScheduleError(
                f"{self.func!r} has {counted(count, 'update')}, there is no update({n!r})",
                loc=here(),
                label="this update",
                hint=f"update(0) to update({count - 1})" if count else "schedule the func itself",
            )
        return type(self)(self.schedule, self.func, n + 1)

    @property
    def loops(self) -> tuple[Loop, ...]:
        """The loops as they are now, outermost first."""
        nest = self.schedule.state.plan(self.func).nests[self.definition]
        return tuple(Loop(self, name) for name in nest.names())

    def loop_name(self, loop: LoopLike) -> str:
        """The name of a loop given in any way."""
        if isinstance(loop, Loop):
            check_owner(loop, self, self.schedule.origins)
        return name_of_loop(loop, [x.name for x in self.loops])

    def do(self, directive: str, /, **arguments: Any) -> None:
        """Apply a directive by name; what the other methods call."""
        self.schedule.do(
            Directive(directive, self.func, self.definition, tuple(arguments.items()), here())
        )

    def _new(self, before: tuple[str, ...]) -> tuple[Loop, ...]:
        nest = self.schedule.state.plan(self.func).nests[self.definition]
        return tuple(Loop(self, n) for n in nest.names() if n not in before)

    def _making(self, directive: str, **arguments: Any) -> list[FuncDef]:
        """Apply a directive; the funcs that it puts into the program."""
        before = {f.name for f in self.schedule.state.program.funcs}
        self.do(directive, **arguments)
        return [f for f in self.schedule.state.program.funcs if f.name not in before]

    def _names(self) -> tuple[str, ...]:
        return self.schedule.state.plan(self.func).nests[self.definition].names()

    def split(
        self, loop: LoopLike, factor: int | None = None, *, nparts: int | None = None,
        tail: str = "guard", names: Sequence[str] | None = None,
    ) -> tuple[Loop, Loop]:  # fmt: skip
        """Make two loops of one: x = x_o * factor + x_i, or `nparts` outer iterations.

        `tail` says what happens where the factor does not divide the extent: guard (skip), shift (move the
        last block back, computing some points twice), round_up (compute more than is asked for), peel (a
        loop of its own for the rest). Returns (outer, inner).
        """
        before = self._names()
        unusual = None if is_one_of(tail, ("guard",)) else tail
        given = _given(factor=factor, nparts=nparts, tail=unusual, names=names)
        self.do("split", loop=self.loop_name(loop), **given)
        outer, inner = self._new(before)
        return outer, inner

    def divide(self, loop: LoopLike, parts: int, **options: Any) -> tuple[Loop, Loop]:
        """Make `parts` blocks of ceil(extent / parts) iterations. Returns (outer, inner)."""
        return self.split(loop, nparts=parts, **options)

    def tile(
        self, loops: Sequence[LoopLike], factors: Sequence[int], *, tail: str = "guard"
    ) -> tuple[Loop, ...]:
        """Split each loop by its factor and put the outer loops outside. Returns outers, then inners."""
        listed = isinstance(loops, list | tuple) and isinstance(factors, list | tuple)
        if not listed or len(loops) != len(factors) or not loops:
            raise ScheduleError(
                f"tile takes as many factors as loops, not {factors!r} for {loops!r}",
                loc=here(),
                label="this directive",
                hint='tile(("i", "j"), (8, 32)): one factor for each loop',
            )
        pairs = [self.split(x, n, tail=tail) for x, n in zip(loops, factors, strict=True)]
        outer, inner = [o for o, _ in pairs], [i for _, i in pairs]
        self.reorder(*outer, *inner)
        return (*outer, *inner)

    def fuse(self, outer: LoopLike, inner: LoopLike, name: str | None = None) -> Loop:
        """Make one loop of a loop and the one directly inside it."""
        before = self._names()
        named = {"outer": self.loop_name(outer), "inner": self.loop_name(inner)}
        self.do("fuse", **named, **_given(name=name))
        return self._new(before)[0]

    def reorder(self, *loops: LoopLike) -> Self:
        """Put loops in this order, outermost first, into the places that they hold."""
        self.do("reorder", loops=tuple(self.loop_name(x) for x in loops))
        return self

    def rename(self, loop: LoopLike, name: str) -> Loop:
        """Give a loop another name."""
        self.do("rename", loop=self.loop_name(loop), name=name)
        return Loop(self, name)

    def serial(self, loop: LoopLike) -> Self:
        """Run a loop in order."""
        self.do("serial", loop=self.loop_name(loop))
        return self

    def parallel(self, loop: LoopLike) -> Self:
        """Run the iterations of a loop on several threads."""
        self.do("parallel", loop=self.loop_name(loop))
        return self

    def bind(self, loop: LoopLike, axis: str) -> Self:
        """Run each iteration on the block or thread of a GPU that has its number on an axis.

        `axis` is "blockIdx.x", "threadIdx.x", or .y or .z of these, or "clusterCtaIdx.x", for blocks of a
        cluster (sm_90), which run at one time. Loops over blocks stand outside of all others.
        """
        self.do("bind", loop=self.loop_name(loop), axis=axis)
        return self

    def cooperate(self, vector: int = 1) -> Self:
        """Have all threads of a block make this stage of shared memory, `vector` elements at a time."""
        self.do("cooperate", vector=vector)
        return self

    def launch_bounds(self, blocks: int) -> Self:
        """Have `blocks` blocks of this stage's kernel run at a time on each multiprocessor of a GPU.

        More of them hide more of the time that memory takes, with fewer registers for each thread.
        """
        self.do("launch_bounds", blocks=blocks)
        return self

    def bulk_copy(self) -> Self:
        """Have the GPU's own unit copy this stage of shared memory as a whole, at the request of one thread.

        For sm_90 and later, copies of a tensor in a pipelined loop, and rows of a multiple of 16 bytes.
        """
        self.do("bulk_copy")
        return self

    def pipeline(
        self, loop: LoopLike, stages: int, apart: bool = False, early: bool = False
    ) -> Self:
        """Fetch the tiles of shared memory that a loop's body computes some iterations ahead.

        Memory holds `stages` of each, 2 or more: one in use while the others are on their way. With `apart` a
        warp of its own asks for the tiles, which are copied as a whole, and no thread waits for others before
        it goes on to the next tile. With `early`, too, products of tiles alone begin an iteration early.
        """
        options = {n: True for n, on in (("apart", apart), ("early", early)) if on}
        self.do("pipeline", loop=self.loop_name(loop), stages=stages, **options)
        return self

    def vectorize(self, loop: LoopLike, lanes: int | None = None) -> Self:
        """Run iterations as vector lanes; with `lanes`, groups of that many.

        On a reduction loop each lane keeps a partial result, which changes the order of a float sum.
        """
        self.do("vectorize", loop=self.loop_name(loop), **_given(factor=lanes))
        return self

    def unroll(self, loop: LoopLike, factor: int | None = None) -> Self:
        """Repeat the body for each iteration; with `factor`, for groups of that many."""
        self.do("unroll", loop=self.loop_name(loop), **_given(factor=factor))
        return self

    def atomic(self) -> Self:
        """Allow reduction loops to run in parallel, with indivisible updates; their stage.

        A reduction becomes two definitions: its start, which this stage is from then on, and updates.
        """
        starts = self.schedule.state.program.func(self.func).definitions[self.definition].init
        self.do("atomic")
        return type(self)(self.schedule, self.func, self.definition + (starts is not None))

    def _level(
        self, consumer: StageDirectives | Func | str, loop: LoopLike
    ) -> tuple[StageDirectives, str]:
        stage = self.schedule[consumer]
        return stage, stage.loop_name(loop)

    def compute_at(self, consumer: StageDirectives | Func | str, loop: LoopLike) -> Self:
        """Compute this func inside a loop of a consumer: the box that the loop's body needs."""
        stage, name = self._level(consumer, loop)
        self.do("compute_at", consumer=stage.func, consumer_definition=stage.definition, loop=name)
        return self

    def store_at(self, consumer: StageDirectives | Func | str, loop: LoopLike) -> Self:
        """Keep the memory of this func for an iteration of an outer loop.

        What an earlier iteration computed and is still needed is then kept (a sliding window), in a ring
        where that is enough (folded storage); both only where it is proven, else it is computed again.
        """
        stage, name = self._level(consumer, loop)
        self.do("store_at", consumer=stage.func, consumer_definition=stage.definition, loop=name)
        return self

    def store_root(self) -> Self:
        """Keep the memory of a func that is computed inside a loop for the whole kernel."""
        self.do("store_root")
        return self

    def compute_root(self) -> Self:
        """Compute all of this func before its consumers."""
        self.do("compute_root")
        return self

    def inline(self) -> Self:
        """Compute this func anew wherever it is read."""
        self.do("inline")
        return self

    def reverse_compute_at(self, producer: StageDirectives | Func | str, loop: LoopLike) -> Self:
        """Compute this element-wise func inside a loop of its producer, on what the body has made."""
        stage, name = self._level(producer, loop)
        at = {"producer": stage.func, "producer_definition": stage.definition, "loop": name}
        self.do("reverse_compute_at", **at)
        return self

    def compute_with(self, other: StageDirectives | Func | str, loop: LoopLike) -> Self:
        """Run this independent stage inside the loops of another, down to a loop."""
        stage, name = self._level(other, loop)
        self.do("compute_with", other=stage.func, other_definition=stage.definition, loop=name)
        return self

    def reorder_storage(self, *dims: Variable | int | str) -> Self:
        """The order of dimensions in memory, slowest first."""
        self.do("reorder_storage", dims=tuple(name_of_dim(d) for d in dims))
        return self

    def align_storage(self, dim: Variable | int | str, multiple: int) -> Self:
        """Pad the extent of a dimension in memory to a multiple."""
        self.do("align_storage", dim=name_of_dim(dim), multiple=multiple)
        return self

    def swizzle(self, count: int) -> Self:
        """Spread equal columns of a tile in shared memory over its banks: `count` is 32, 64 or 128 bytes.

        In each row the chunks of 16 bytes of so many bytes have an order of their own. It is the layout that
        `ldmatrix` reads without waiting, and that of tensor maps.
        """
        self.do("swizzle", count=count)
        return self

    def fold_storage(self, dim: Variable | int | str, extent: int) -> Self:
        """Keep a ring of `extent` elements of a dimension; an error if more are in use at a time."""
        self.do("fold_storage", dim=name_of_dim(dim), extent=extent)
        return self

    def bound_extent(self, dim: Variable | int | str, extent: int | None = None) -> Self:
        """Make `extent` elements of a dimension wherever this func is computed; an error if more are needed.

        Without a number as many as are needed at most. Loops over them then have a known extent also where
        less is needed, as for tiles at edges: there elements before are made, too, or behind. Where
        fewer are needed in the places around, or in all, these are made.
        """
        self.do("bound_extent", dim=name_of_dim(dim), **_given(extent=extent))
        return self

    def set_scope(self, scope: str) -> Self:
        """The memory for this func: "heap", "stack", "register", "auto", or "shared" by a block."""
        self.do("set_scope", scope=scope)
        return self

    def stream_stores(self) -> Self:
        """Write past the caches."""
        self.do("stream_stores")
        return self

    def prefetch(
        self,
        source: Tensor | Func | str,
        at: LoopLike,
        offset: int = 1,
        of: LoopLike | None = None,
    ) -> Self:
        """Prefetch what the body of a loop reads of `source`, `offset` iterations ahead.

        With `of` these are iterations of a loop around it: the requests for its next iteration are then
        spread over this one.
        """
        name = self.schedule.source_name(source)
        arguments: dict[str, Any] = {} if of is None else {"of": self.loop_name(of)}
        self.do("prefetch", source=name, loop=self.loop_name(at), offset=offset, **arguments)
        return self

    def flatten(self, *variables: LoopLike, name: str | None = None) -> Loop:
        """One variable for several that are free, or for several that are summed over; its loop."""
        before = self._names()
        self.do("flatten", variables=tuple(map(self.loop_name, variables)), **_given(name=name))
        return self._new(before)[0]

    def rfactor(self, loop: LoopLike, name: str | None = None) -> Self:
        """Reduce each iteration of a reduction loop apart and merge the results; the new stage."""
        (made,) = self._making("rfactor", loop=self.loop_name(loop), **_given(name=name))
        return type(self)(self.schedule, made.name, len(made.definitions) - 1)

    def online(self, loop: LoopLike, factor: int, name: str | None = None) -> Self:
        """Sum in tiles of a loop whose terms need another reduction over it, such as exp(x - maximum).

        What was summed with the results of a tile is corrected when tiles are merged: one pass over the
        terms is enough. All such reductions over the loop become one of several values, whose stage is
        returned; those of the tiles are named `..._tile`.
        """
        before = self.schedule.state.program
        self.do("online", loop=self.loop_name(loop), factor=factor, **_given(name=name))
        return type(self)(self.schedule, online_name(before, self.func, name), 0)

    def reassociate(self, source: Func | StageDirectives | str, name: str | None = None) -> Self:
        """Sum over this func's variables before those of `source`, a sum that is a factor of its terms.

        (A B) C becomes A (B C); B C is a func, whose stage is returned. Floats are rounded in another order.
        """
        named = self.schedule.source_name(source)
        made = self._making("reassociate", source=named, **_given(name=name))
        return type(self)(self.schedule, next(f.name for f in made if f.definitions[0].ranges), 0)

    def skip_masked(self) -> Self:
        """Leave out terms that a mask makes nothing; what its 0 is multiplied by counts as finite."""
        self.do("skip_masked")
        return self

    def unsigned(self, source: Tensor | Func | str) -> tuple[Self, Self]:
        """Sum products with a source of signed integers as if they were unsigned.

        For processors that multiply unsigned by signed integers. Returns the stage of the source made
        unsigned, and that of what the sums then have too much, which their readers take away.
        """
        first, excess = self._making("unsigned", source=self.schedule.source_name(source))
        return type(self)(self.schedule, first.name, 0), type(self)(self.schedule, excess.name, 0)

    def specialize(
        self, cond: Value, recipe: Callable[[StageDirectives], Any] | None = None
    ) -> Self:
        """Other loops for when a condition on extents and scalars holds.

        The loops start as they are now; `recipe` changes them for that case only.
        """
        if not isinstance(cond, Value):
            raise TypeMismatch(
                f"a specialization needs a condition, not {cond!r}",
                loc=here(),
                label="this directive",
                hint="compare extents or scalars of the program: x.shape[1] % 16 == 0",
            )
        scratch = copy.copy(self.schedule)
        if recipe is not None:
            check_recipe(recipe)
            recipe(type(self)(scratch, self.func, self.definition))
        added = scratch.directives[len(self.schedule.directives) :]
        if any(d.func != self.func or d.definition != self.definition for d in added):
            raise ScheduleError(
                "a specialization may change the loops of its own stage only",
                loc=here(),
                label="this directive",
                hint="use only the stage that the recipe is called with",
            )
        inner = [{"do": d.name, **dict(d.arguments)} for d in added]
        try:
            encoded = encode(cond.node)
        except Illegal as reason:
            raise ScheduleError(
                reason.reason, loc=here(), label="this directive", hint=reason.hint
            ) from None
        self.do("specialize", cond=encoded, loops=inner)
        return self

    def tensorize(self, loop: LoopLike, instruction: Instruction | str) -> Self:
        """Replace a loop and its body by a declared instruction that means the same."""
        name = instruction.name if isinstance(instruction, Instruction) else instruction
        self.do("tensorize", loop=self.loop_name(loop), instruction=name)
        return self

    def distribute(
        self,
        loops: LoopLike | Sequence[LoopLike] = (),
        grid: Grid | Sequence[Grid] | None = None,
        *,
        onto: TensorLike | None = None,
    ) -> tuple[Loop, ...]:
        """Share the iterations of loops out to ranks, one loop for each axis of the grid.

        Each loop is divided into as many blocks as its axis has ranks; the loops over blocks, which are
        returned, become the outermost, and the names of the loops stand for the parts inside. A loop that
        is named again is divided again. Ranks that share a reduction out each make partial results, which
        are combined where the func lives.

        `onto` is a tensor that is placed, or the func itself: loops and grid are those of its blocks, so
        that none of it is moved.
        """
        before = self._names()
        if onto is None:
            named, levels = self._loop_names(loops), check_grid(grid).levels
        else:
            alone = isinstance(loops, tuple) and not loops and grid is None
            source, state = self.schedule.source_name(onto), self.schedule.state
            named, levels = blocks_of(state, self.func, self.definition, source, alone=alone)
        self.do("distribute", loops=named, grid=levels)
        return self._new(before)[: len(named)]

    def local(self, loop: LoopLike) -> Loop:
        """The part of a distributed loop that one rank runs."""
        nest = self.schedule.state.plan(self.func).nests[self.definition]
        name = self.loop_name(loop)
        return Loop(self, dict(nest.aliases).get(name, name))

    def communicate(
        self, tensors: TensorLike | Sequence[TensorLike], at: LoopLike, *, prefetch: int = 0,
        deterministic: bool = False,
    ) -> Self:  # fmt: skip
        """Fetch what this stage reads of tensors at the start of every iteration of a loop.

        Of the stage itself, send what an iteration made to its owners when it ends. The loop is the last
        of those distributed, or one inside of it: further in, more and smaller messages and less memory.
        What is not mentioned moves at the last distributed loop.

        With `prefetch`, messages for what is read start that many iterations ahead and arrive while those are
        computed, in buffers of their own. With `deterministic`, what ranks made of the stage itself is
        combined in their order, whatever MPI would do.
        """
        listed = tensors if isinstance(tensors, list | tuple) else (tensors,)
        names = tuple(self.schedule.source_name(t) for t in listed)
        said: dict[str, Any] = {"prefetch": prefetch} if prefetch else {}
        said |= {"deterministic": True} if deterministic else {}
        self.do("communicate", tensors=names, at=self.loop_name(at), **said)
        return self

    def rotate(self, loop: LoopLike, by: LoopLike | Sequence[LoopLike]) -> Loop:
        """Start a loop at another iteration for each iteration of the loops `by` around it; the new loop.

        x = (new + the loops of `by`) modulo the extent of x: neighbours are then at neighbouring steps.
        """
        before = self._names()
        self.do("rotate", loop=self.loop_name(loop), by=self._loop_names(by))
        return self._new(before)[0]

    def _loop_names(self, loops: LoopLike | Sequence[LoopLike]) -> tuple[str, ...]:
        listed = loops if isinstance(loops, list | tuple) else (loops,)
        return tuple(self.loop_name(x) for x in listed)

    def pin(self) -> Self:
        """Leave this stage as it is: no default or automatic schedule changes it."""
        self.do("pin")
        return self


def _given(**arguments: Any) -> dict[str, Any]:
    """The arguments that were given, which a directive prints."""
    return {name: value for name, value in arguments.items() if value is not None}
