"""Directives for a GPU: loops bound to blocks and threads, stages that a block computes cooperatively."""

from __future__ import annotations

from dataclasses import replace

from tdsl.errors import did_you_mean
from tdsl.lang.expr import Read, Var
from tdsl.lang.program import FuncDef
from tdsl.machine.instructions.instruction import INSTRUCTIONS
from tdsl.schedule.dependence import is_independent
from tdsl.schedule.layout_distribution import distribute_by_layout
from tdsl.schedule.legality import loops_around
from tdsl.schedule.loops import (
    check_concurrent,
    check_positive,
    find_loop,
    fuse,
    iterations_of,
    set_kind,
    split,
)  # fmt: skip
from tdsl.schedule.rfactor import reduce_concurrently
from tdsl.schedule.state import (
    AXES,
    CLUSTER,
    GROUP,
    GUARD,
    LANES,
    ROUND_UP,
    SERIAL,
    SHARED,
    THREADS,
    At,
    Illegal,
    Nest,
    State,
    is_ordered,
    is_reduction,
)  # fmt: skip
from tdsl.schedule.tree import nested_funcs
from tdsl.schedule.vectorize import vectorize

MAX_BLOCKS = {"blockIdx.x": 2**31 - 1, "blockIdx.y": 2**16 - 1, "blockIdx.z": 2**16 - 1}
MAX_THREADS = 1024  # the largest number of threads of a block
MAX_CLUSTER_BLOCKS = 8  # the largest number of blocks of a cluster, on each GPU that has clusters


def bind(state: State, func: str, definition: int, *, loop: str, axis: str) -> State:
    """Run each iteration of a loop on the blocks or threads whose index along `axis` equals the iteration.

    If threads run a reduction loop, they combine their partial results.
    """
    if axis not in AXES:
        raise Illegal(f"a GPU has no axis {axis!r}", did_you_mean(axis, AXES))
    name = find_loop(state, func, definition, loop)
    count = iterations_of(state, func, definition, name)
    if axis == CLUSTER and count is not None and count > MAX_CLUSTER_BLOCKS:
        raise Illegal(
            f"loop {name!r} has {count} iterations, and a cluster {MAX_CLUSTER_BLOCKS} blocks at most",
            f"split({name!r}, {MAX_CLUSTER_BLOCKS}), and bind the inner loop",
        )
    reduced = axis in THREADS and _needs_merge(state, func, definition, name)
    if not reduced:
        check_concurrent(state, func, definition, name)
    for x in state.plan(func).nests[definition].loops:
        if x.kind == axis and x.name != name:
            raise Illegal(
                f"loop {x.name!r} runs on {axis} already",
                f"fuse {x.name!r} and {name!r}, or bind one of them to another axis",
            )
    if reduced and not _merges_partials(state, func, definition, name):
        return reduce_concurrently(state, func, definition, name, axis)
    return set_kind(state, func, definition, name, axis)


def _needs_merge(state: State, func: str, definition: int, loop: str) -> bool:
    """True for a reduction loop whose partial results have to be combined between threads."""
    f, plan = state.program.func(func), state.plan(func)
    reduces = is_reduction(f, definition, plan.nests[definition], loop)
    if not reduces or is_ordered(f, definition) or definition in plan.atomic:
        return False
    update = f.definitions[definition].init is None
    return not (update and is_independent(state, func, definition, loop))


def _merges_partials(state: State, func: str, definition: int, loop: str) -> bool:
    """True if a definition only combines one partial result of each iteration of a loop."""
    d = state.program.func(func).definitions[definition]
    each = (isinstance(v, Read) and v.index[-1:] == (Var(loop),) for v in d.values)
    return len(d.ranges) == 1 and all(each)


def cooperate(state: State, func: str, definition: int, *, vector: int = 1, rows: int = 1) -> State:
    """Distribute the points of a shared-memory stage over the threads of the block, `vector` at a time.

    The neighbours of a vector are those of the last `rows` loops as one, so that vectors go across the ends
    of rows that follow each other in memory. Rows of a filled copy are extended to whole vectors.
    With scope "group" they are distributed over the threads of the group. The loops of the stage are fused
    and distributed cyclically over the threads of the loops around it; neighbours on threadIdx.x get
    neighbours in memory. A stage that writes or reads a fragment is distributed by the fragment's layout;
    a reduction of a fragment runs in each thread first, then across the threads that share a row.
    """
    check_positive(vector, "the number of elements")
    f, plan = state.program.func(func), state.plan(func)
    distributed = None if plan.scope == SHARED else distribute_by_layout(state, func, vector)
    if distributed is not None:
        return distributed
    _check_default_loops(f, plan.nests[0])
    if plan.scope not in (SHARED, GROUP):
        raise Illegal(f"{func!r} is not in shared memory", 'set_scope("shared") first')
    counts = _threads_around(state, func)
    if plan.scope == GROUP:
        counts = tuple(x for x in counts if x[0] == LANES)
    names = list(plan.nests[0].names())
    if not 1 <= rows <= len(names):
        raise Illegal(f"{func!r} has {len(names)} loops, not {rows}", "choose rows= up to that number")
    if vector > 1:
        last = names.pop()
        for _ in range(rows - 1):
            outer = names.pop()
            state = fuse(state, func, 0, outer=outer, inner=last)
            last = f"{outer}_{last}"
        tail = ROUND_UP if plan.filled and rows == 1 else GUARD
        state = split(state, func, 0, loop=last, factor=vector, tail=tail, names=(f"{last}_o", f"{last}_v"))
        state = vectorize(state, func, 0, loop=f"{last}_v")
        names.append(f"{last}_o")
    whole = names[0]
    for name in names[1:]:
        state = fuse(state, func, 0, outer=whole, inner=name)
        whole = f"{whole}_{name}"
    for axis, count in counts:
        outer, inner = f"{axis.replace('Idx.', '_')}_o", axis.replace("Idx.", "_")
        state = split(state, func, 0, loop=whole, factor=count, names=(outer, inner))
        state = set_kind(state, func, 0, inner, axis)
        whole = outer
    return state


def launch_bounds(state: State, func: str, definition: int, *, blocks: int) -> State:
    """Set the least number of blocks of a stage's kernel that are resident on each multiprocessor.

    The registers of its threads are limited accordingly.
    """
    check_positive(blocks, "the number of blocks")
    return state.with_plan(func, replace(state.plan(func), min_blocks=blocks, scheduled=True))


def grid_sync(state: State, func: str, definition: int) -> State:
    """Run the kernels of a stage in the kernel launched before them, after a barrier of all its blocks.

    The blocks of that kernel, a cooperative launch, are all resident at a time.
    """
    return state.with_plan(func, replace(state.plan(func), grid_sync=True, scheduled=True))


def _check_default_loops(f: FuncDef, nest: Nest) -> None:
    d = f.definitions[0]
    if len(f.definitions) > 1 or d.ranges:
        raise Illegal(f"{f.name!r} is no copy or element-wise stage", "bind its loops one by one")
    if not nest.loops:
        raise Illegal(f"{f.name!r} has no loops", "one thread makes its only value")
    if nest.relations or any(x.kind != SERIAL for x in nest.loops):
        raise Illegal(f"the loops of {f.name!r} were changed before", "cooperate makes them from the first")


def _threads_around(state: State, func: str) -> tuple[tuple[str, int], ...]:
    """The thread axes of the loops around a stage, threadIdx.x first, with the number of threads of each."""
    counts: dict[str, int] = {}
    around = loops_around(state, func)
    for x in around:
        nest = state.plan(x.func).nests[x.definition]
        if nest.kind(x.loop) in THREADS:
            counts[nest.kind(x.loop)] = _thread_count(state, x.func, x.definition, x.loop)
    hosts = {x.func for x in around}
    for name in hosts.union(*(nested_funcs(state, host) for host in hosts)):
        for t in state.plan(name).tensorizations:
            if INSTRUCTIONS[t.instruction].cuda:
                counts[LANES] = INSTRUCTIONS[t.instruction].threads
    if not counts:
        raise _no_threads_error(state, func)
    return tuple(sorted(counts.items()))


def _no_threads_error(state: State, func: str) -> Illegal:
    """The error for a stage with no thread loop around it; the hint names one further inside, if any."""
    place = state.plan(func).place
    if isinstance(place, At):
        host, definition, outer = place.level.func, place.level.definition, place.level.loop
        nest = state.plan(host).nests[definition]
        inside = [x.name for x in nest.loops if x.kind in THREADS]
        if inside:
            return Illegal(
                f"{func!r} is computed at {outer!r} of {host!r}, outside of its loops over threads",
                f"compute it inside of them: compute_at or at={inside[-1]!r}; the block still shares it",
            )
    return Illegal(
        f"no loop around {func!r} runs on threads",
        'bind the loops that compute with it first: bind(x, "threadIdx.x")',
    )


def _thread_count(state: State, func: str, definition: int, loop: str) -> int:
    """The iterations of a loop over threads."""
    count = iterations_of(state, func, definition, loop)
    if count is None or count > MAX_THREADS:
        raise Illegal(
            f"the number of threads that run {loop!r} of {func!r} is not known here"
            if count is None
            else f"{count} threads run {loop!r} of {func!r}; a block has {MAX_THREADS} at most",
            f"split {loop!r} by a constant, and bind the inner loop",
        )
    return count
