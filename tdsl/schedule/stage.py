"""`StageDirectives`: the directives on one definition of a func, a method for each."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, Self

from tdsl.core.source import here
from tdsl.errors import ScheduleError, Suggesting, TypeMismatch, counted, is_one_of
from tdsl.lang.program import FuncDef
from tdsl.lang.tensor import Func, Tensor
from tdsl.lang.value import Value, Variable
from tdsl.machine.instructions.instruction import Instruction
from tdsl.schedule.directive import Directive, Recorder, current_names
from tdsl.schedule.naming import (
    Loop,
    LoopLike,
    check_owner,
    check_recipe,
    name_of_dim,
    name_of_loop,
)
from tdsl.schedule.online import online_name
from tdsl.schedule.specialize import encode_condition
from tdsl.schedule.state import Illegal

TensorLike = Tensor | Func | str


class StageDirectives(Suggesting):
    """The directives on one definition of a func, as methods; the public class is `fluent.Stage`."""

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
        """The current loops, outermost first."""
        nest = self.schedule.state.plan(self.func).nests[self.definition]
        return tuple(Loop(self, name) for name in nest.names())

    def loop_name(self, loop: LoopLike) -> str:
        """The name of a loop given by handle, by variable or by name."""
        if isinstance(loop, Loop):
            check_owner(loop, self, self.schedule.origins)
        return name_of_loop(loop, [x.name for x in self.loops])

    def do(self, directive: str, /, **arguments: Any) -> Self:
        """Apply a directive by name; all other methods call this one. Returns the stage."""
        self.schedule.do(Directive(directive, self.func, self.definition, tuple(arguments.items()), here()))
        return self

    def _new_loops(self, before: tuple[str, ...]) -> tuple[Loop, ...]:
        nest = self.schedule.state.plan(self.func).nests[self.definition]
        return tuple(Loop(self, n) for n in nest.names() if n not in before)

    def _do_adding(self, directive: str, **arguments: Any) -> list[FuncDef]:
        """Apply a directive and return the funcs that it adds to the program."""
        before = {f.name for f in self.schedule.state.program.funcs}
        self.do(directive, **arguments)
        return [f for f in self.schedule.state.program.funcs if f.name not in before]

    def _names(self) -> tuple[str, ...]:
        return self.schedule.state.plan(self.func).nests[self.definition].names()

    def split(
        self, loop: LoopLike, factor: int | None = None, *, nparts: int | None = None,
        tail: str = "guard", names: Sequence[str] | None = None,
    ) -> tuple[Loop, Loop]:  # fmt: skip
        """Split a loop in two: x = x_o * factor + x_i, or `nparts` outer iterations.

        `tail` is the strategy if the factor does not divide the extent: guard (test each iteration), shift
        (move the last block back, computing points twice), round_up (compute points beyond the extent), peel
        (a separate loop for the remainder); align: blocks begin at multiples of the factor, also of a range
        that does not. Returns (outer, inner).
        """
        before = self._names()
        unusual = None if is_one_of(tail, ("guard",)) else tail
        given = only_given(factor=factor, nparts=nparts, tail=unusual, names=names)
        self.do("split", loop=self.loop_name(loop), **given)
        outer, inner = self._new_loops(before)
        return outer, inner

    def divide(self, loop: LoopLike, parts: int, **options: Any) -> tuple[Loop, Loop]:
        """Split a loop into `parts` blocks of ceil(extent / parts) iterations. Returns (outer, inner)."""
        return self.split(loop, nparts=parts, **options)

    def tile(
        self, loops: Sequence[LoopLike], factors: Sequence[int], *, tail: str = "guard"
    ) -> tuple[Loop, ...]:
        """Split each loop by its factor and reorder: all outer loops, then all inner ones, as returned."""
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
        """Fuse a loop and the loop directly inside it; returns the fused loop."""
        before = self._names()
        named = {"outer": self.loop_name(outer), "inner": self.loop_name(inner)}
        self.do("fuse", **named, **only_given(name=name))
        return self._new_loops(before)[0]

    def reorder(self, *loops: LoopLike) -> Self:
        """Permute the given loops into this order, outermost first; other loops keep their positions."""
        return self.do("reorder", loops=tuple(self.loop_name(x) for x in loops))

    def rename(self, loop: LoopLike, name: str) -> Loop:
        """Give a loop another name."""
        self.do("rename", loop=self.loop_name(loop), name=name)
        return Loop(self, name)

    def serial(self, *loops: LoopLike) -> Self:
        """Run loops in order, all loops of this stage without any; the default leaves them as they are."""
        for name in self._loop_names(loops) or self._names():
            self.do("serial", loop=name)
        return self

    def parallel(self, loop: LoopLike) -> Self:
        """Run the iterations of a loop on several threads."""
        return self.do("parallel", loop=self.loop_name(loop))

    def bind(self, loop: LoopLike, axis: str) -> Self:
        """Run each iteration on the block or thread of a GPU whose index along an axis equals the iteration.

        `axis` is "blockIdx.x", "threadIdx.x", or .y or .z of these, or "clusterCtaIdx.x" for the blocks of a
        cluster (sm_90), which are co-scheduled. Loops over blocks must be the outermost ones.
        """
        return self.do("bind", loop=self.loop_name(loop), axis=axis)

    def cooperate(self, vector: int = 1, *, rows: int = 1) -> Self:
        """Have all threads of a block compute this shared-memory stage, `vector` elements each at a time.

        The neighbours of a vector are those of the last `rows` loops as one: vectors go across the ends of
        rows that follow each other in memory.
        """
        return self.do("cooperate", vector=vector, **({"rows": rows} if rows != 1 else {}))

    def launch_bounds(self, blocks: int) -> Self:
        """Limit registers so that `blocks` blocks of this stage's kernel fit on each multiprocessor of a GPU.

        More resident blocks hide more memory latency and leave fewer registers for each thread.
        """
        return self.do("launch_bounds", blocks=blocks)

    def grid_sync(self) -> Self:
        """Run this stage in the kernel before it, after a barrier of all blocks (cooperative launch).

        All blocks of the kernel must be resident on the GPU at a time.
        """
        return self.do("grid_sync")

    def bulk_copy(self) -> Self:
        """Copy this shared-memory stage by bulk asynchronous copies (TMA) that one thread issues.

        Needs sm_90 or later, a copy of a tensor in a pipelined loop, and rows of a multiple of 16 bytes."""
        return self.do("bulk_copy")

    def pipeline(
        self, loop: LoopLike, stages: int, producer_warps: bool = False, overlap_mma: bool = False,
        **old: bool,
    ) -> Self:  # fmt: skip
        """Software-pipeline a loop: fetch the shared-memory tiles of its body some iterations ahead.

        Each tile has `stages` buffers, 2 or more: one in use while the others are filled. With
        `producer_warps` warps of their own issue bulk copies of the tiles, and consumer threads do not
        synchronise with each other between tiles. With `overlap_mma` as well, asynchronous MMAs that read
        only tiles are issued one iteration early. (`apart` and `early` are the names of both in version 0.1.)
        """
        options = only_given(producer_warps=producer_warps or None, overlap_mma=overlap_mma or None)
        options |= current_names(old)
        return self.do("pipeline", loop=self.loop_name(loop), stages=stages, **options)

    def vectorize(self, loop: LoopLike, lanes: int | None = None) -> Self:
        """Run the iterations of a loop as vector lanes, or with `lanes` groups of that many iterations.

        On a reduction loop each lane keeps a partial result, which changes the order of a float sum.
        """
        return self.do("vectorize", loop=self.loop_name(loop), **only_given(factor=lanes))

    def unroll(self, loop: LoopLike, factor: int | None = None) -> Self:
        """Unroll a loop completely, or with `factor` by groups of that many iterations."""
        return self.do("unroll", loop=self.loop_name(loop), **only_given(factor=factor))

    def atomic(self) -> Self:
        """Allow reduction loops to run in parallel, with atomic updates; returns the stage of the updates.

        A reduction becomes two definitions: its initial value (this stage) and an update.
        """
        starts = self.schedule.state.program.func(self.func).definitions[self.definition].init
        self.do("atomic")
        return type(self)(self.schedule, self.func, self.definition + (starts is not None))

    def _level(self, consumer: StageDirectives | Func | str, loop: LoopLike) -> tuple[StageDirectives, str]:
        stage = self.schedule[consumer]
        return stage, stage.loop_name(loop)

    def compute_at(self, consumer: StageDirectives | Func | str, loop: LoopLike) -> Self:
        """Compute, in each iteration of a consumer's loop, the box of this func that the body reads."""
        stage, name = self._level(consumer, loop)
        return self.do("compute_at", consumer=stage.func, consumer_definition=stage.definition, loop=name)

    def store_at(self, consumer: StageDirectives | Func | str, loop: LoopLike) -> Self:
        """Allocate the memory of this func in a loop outside of the one where it is computed.

        Values that an earlier iteration computed are then reused (sliding window), in a ring buffer if that
        suffices (folded storage); both only if proven legal, else the values are computed again.
        """
        stage, name = self._level(consumer, loop)
        return self.do("store_at", consumer=stage.func, consumer_definition=stage.definition, loop=name)

    def store_root(self) -> Self:
        """Allocate the memory of a func that is computed inside a loop once, for the whole kernel."""
        return self.do("store_root")

    def compute_root(self) -> Self:
        """Compute the whole required box of this func before its consumers, outside all loops."""
        return self.do("compute_root")

    def inline(self) -> Self:
        """Replace every read of this func by its definition."""
        return self.do("inline")

    def reverse_compute_at(self, producer: StageDirectives | Func | str, loop: LoopLike) -> Self:
        """Compute this element-wise func inside a loop of its producer, on the points of that iteration."""
        stage, name = self._level(producer, loop)
        at = {"producer": stage.func, "producer_definition": stage.definition, "loop": name}
        return self.do("reverse_compute_at", **at)

    def compute_with(self, other: StageDirectives | Func | str, loop: LoopLike) -> Self:
        """Share the loops of another stage, which must be independent of this one, down to a loop."""
        stage, name = self._level(other, loop)
        return self.do("compute_with", other=stage.func, other_definition=stage.definition, loop=name)

    def reorder_storage(self, *dims: Variable | int | str) -> Self:
        """Set the order of dimensions in memory, largest stride first."""
        return self.do("reorder_storage", dims=tuple(name_of_dim(d) for d in dims))

    def align_storage(self, dim: Variable | int | str, multiple: int) -> Self:
        """Round the extent of a dimension in memory up to a multiple, in elements."""
        return self.do("align_storage", dim=name_of_dim(dim), multiple=multiple)

    def swizzle(self, count: int) -> Self:
        """Swizzle a tile in shared memory against bank conflicts along columns; `count` is 32, 64 or 128.

        The 16-byte chunks of each `count` bytes of a row are permuted, differently in each row. `ldmatrix`
        reads this layout without bank conflicts; tensor maps use the same one.
        """
        return self.do("swizzle", count=count)

    def fold_storage(self, dim: Variable | int | str, extent: int) -> Self:
        """Store a dimension as a ring buffer of `extent` elements; an error if more are alive at a time."""
        return self.do("fold_storage", dim=name_of_dim(dim), extent=extent)

    def bound_extent(self, dim: Variable | int | str, extent: int | None = None) -> Self:
        """Compute `extent` elements of a dimension at each place of this func; an error if more are needed.

        Without a number, the largest extent that is needed. Loops over the dimension then have a constant
        extent also for tiles at edges, where elements before or behind the needed ones are computed, too.
        If fewer elements are needed in the enclosing places, or in all, only those are computed.
        """
        return self.do("bound_extent", dim=name_of_dim(dim), **only_given(extent=extent))

    def set_scope(self, scope: str) -> Self:
        """Set the memory scope: "auto", "heap", "stack", "register"; GPU: "shared", "group", "fragment"."""
        return self.do("set_scope", scope=scope)

    def stream_stores(self) -> Self:
        """Use streaming (non-temporal) stores: past a CPU's caches, evicted first from a GPU's."""
        return self.do("stream_stores")

    def cache_policy(self, source: Tensor | Func | str, policy: str) -> Self:
        """Load `source` "evict_first" or "evict_last" from L2 in the GPU kernel that stores this func."""
        return self.do("cache_policy", source=self.schedule.source_name(source), policy=policy)

    def prefetch(
        self, source: Tensor | Func | str, at: LoopLike, offset: int = 1, of: LoopLike | None = None
    ) -> Self:
        """Prefetch the region of `source` that the body of the loop `at` reads `offset` iterations later.

        With `of`, the offset counts iterations of that enclosing loop: the prefetches for its next iteration
        are spread over the current one.
        """
        name = self.schedule.source_name(source)
        arguments: dict[str, Any] = {} if of is None else {"of": self.loop_name(of)}
        return self.do("prefetch", source=name, loop=self.loop_name(at), offset=offset, **arguments)

    def flatten(self, *variables: LoopLike, inputs: bool = False, name: str | None = None) -> Loop:
        """Replace several free variables, or several reduction variables, by one; returns its loop.

        With `inputs`, those that are read at all of these points, as x[i, j], are read at the flat index.
        """
        before, given = self._names(), only_given(inputs=inputs or None, name=name)
        self.do("flatten", variables=tuple(map(self.loop_name, variables)), **given)
        return self._new_loops(before)[0]

    def unflatten(self, variable: LoopLike, factor: int) -> tuple[Loop, Loop]:
        """Replace a free variable by its quotient and its remainder by a factor; returns their loops.

        The factor divides the range of the variable, and the func is no output. Its readers read it there.
        """
        before = self._names()
        self.do("unflatten", variable=self.loop_name(variable), factor=factor)
        outer, inner = self._new_loops(before)
        return outer, inner

    def rfactor(self, loop: LoopLike, name: str | None = None) -> Self:
        """Compute a partial result per iteration of a reduction loop, merged here; returns the new stage."""
        (partial,) = self._do_adding("rfactor", loop=self.loop_name(loop), **only_given(name=name))
        return type(self)(self.schedule, partial.name, len(partial.definitions) - 1)

    def online(self, loop: LoopLike, factor: int, name: str | None = None) -> Self:
        """Reduce in one pass a loop whose terms read another reduction over it, such as exp(x - maximum).

        Each tile of `factor` iterations is reduced with its own results; sums are rescaled when tiles are
        merged. All such reductions over the loop become one reduction of several values, whose stage is
        returned; the reductions of a tile are named `..._tile`.
        """
        before = self.schedule.state.program
        self.do("online", loop=self.loop_name(loop), factor=factor, **only_given(name=name))
        return type(self)(self.schedule, online_name(before, self.func, name), 0)

    def reassociate(self, source: Func | StageDirectives | str, name: str | None = None) -> Self:
        """Exchange this sum with `source`, a sum that is a factor of its terms: (A B) C becomes A (B C).

        B C is a new func, whose stage is returned. The order of float operations changes.
        """
        named = self.schedule.source_name(source)
        added = self._do_adding("reassociate", source=named, **only_given(name=name))
        return type(self)(self.schedule, next(f.name for f in added if f.definitions[0].ranges), 0)

    def fold_update(self) -> Self:
        """Compute the points of this update, the first, in the loops of the first definition, by a select.

        Returns the stage of the first definition. Later updates are counted from 0 again.
        """
        self.do("fold_update")
        return type(self)(self.schedule, self.func, 0)

    def skip_masked(self) -> Self:
        """Skip terms that a mask makes 0 (or the identity); factors of such a 0 are assumed to be finite."""
        return self.do("skip_masked")

    def unsigned(self, source: Tensor | Func | str) -> tuple[Self, Self]:
        """Offset the signed integers of `source`, a factor of this sum, to unsigned integers.

        For processors that multiply unsigned by signed integers. Returns the stage of the unsigned copy of
        the source, and the stage of the correction term, which readers of the sum subtract.
        """
        copied, correction = self._do_adding("unsigned", source=self.schedule.source_name(source))
        return type(self)(self.schedule, copied.name, 0), type(self)(self.schedule, correction.name, 0)

    def specialize(self, cond: Value, recipe: Callable[[StageDirectives], Any] | None = None) -> Self:
        """Add a second version of this stage's loops, which runs if a condition on extents and scalars holds.

        The second version starts as a copy of the current loops; `recipe` changes that version only.
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
            encoded = encode_condition(cond.node)
        except Illegal as reason:
            raise ScheduleError(reason.reason, loc=here(), label="this directive", hint=reason.hint) from None
        return self.do("specialize", cond=encoded, loops=inner)

    def tensorize(self, loop: LoopLike, instruction: Instruction | str) -> Self:
        """Replace a loop and its body by a declared instruction that computes the same."""
        name = instruction.name if isinstance(instruction, Instruction) else instruction
        return self.do("tensorize", loop=self.loop_name(loop), instruction=name)

    def _loop_names(self, loops: LoopLike | Sequence[LoopLike]) -> tuple[str, ...]:
        listed = loops if isinstance(loops, list | tuple) else (loops,)
        return tuple(self.loop_name(x) for x in listed)

    def pin(self) -> Self:
        """Keep this stage as it is: no default or automatic schedule changes it."""
        return self.do("pin")


def only_given(**arguments: Any) -> dict[str, Any]:
    """The arguments that are not None, which a directive stores and prints."""
    return {name: value for name, value in arguments.items() if value is not None}
