"""Directives on where a func is computed and stored; `legality.py` checks the resulting places."""

from __future__ import annotations

from dataclasses import replace

from tdsl.errors import counted, did_you_mean
from tdsl.schedule.arguments import check_scope
from tdsl.schedule.inlining import expand_reads, inlined_into
from tdsl.schedule.legality import AT_ROOT
from tdsl.schedule.loops import check_positive, find_loop
from tdsl.schedule.state import (
    CACHE_POLICIES,
    GROUP,
    SHARED,
    SWIZZLES,
    AfterProducer,
    At,
    FuncPlan,
    Illegal,
    Inline,
    Level,
    PrefetchPlan,
    Root,
    State,
    WithStage,
)  # fmt: skip


def _with_plan(state: State, func: str, plan: FuncPlan) -> State:
    return state.with_plan(func, replace(plan, scheduled=True))


def _level(state: State, consumer: str, definition: int, loop: str) -> Level:
    return Level(consumer, definition, find_loop(state, consumer, definition, loop))


def _check_not_output(state: State, func: str, what: str) -> None:
    if func in state.program.outputs:
        raise Illegal(f"{func!r} is an output, which is computed at the root", f"{what} its producers")


def _check_memory(state: State, func: str) -> None:
    if func in state.program.outputs:
        raise Illegal(
            f"{func!r} is an output, whose memory belongs to the caller",
            "pass out= with other strides, or give the values memory of their own with cache_write",
        )


def compute_at(
    state: State, func: str, definition: int, *, consumer: str, consumer_definition: int, loop: str
) -> State:
    """Compute, in each iteration of a loop of a consumer, the box of this func that the body needs."""
    _check_not_output(state, func, "compute_at")
    level = _level(state, consumer, consumer_definition, loop)
    if consumer == func:
        raise Illegal(f"{func!r} cannot be computed inside itself", "name a consumer")
    return _with_plan(state, func, replace(state.plan(func), place=At(level)))


def store_at(
    state: State, func: str, definition: int, *, consumer: str, consumer_definition: int, loop: str
) -> State:
    """Allocate this func's memory in a loop outside of the loop where it is computed."""
    _check_not_output(state, func, "store_at")
    level = _level(state, consumer, consumer_definition, loop)
    if consumer == func and all(plan.place != AfterProducer(level) for _, plan in state.plans):
        raise Illegal(f"{func!r} cannot be stored inside itself", "name a consumer")
    return _with_plan(state, func, replace(state.plan(func), store=level))


def store_root(state: State, func: str, definition: int) -> State:
    """Allocate this func's memory once for the whole kernel, although it is computed inside a loop."""
    _check_not_output(state, func, "store_at")
    plan = state.plan(func)
    if not isinstance(plan.place, At):
        raise Illegal(f"{func!r} is not computed inside a loop", "compute_at first")
    outermost = state.plan(plan.place.level.func).nests[plan.place.level.definition]
    return _with_plan(
        state,
        func,
        replace(plan, store=Level(plan.place.level.func, AT_ROOT, outermost.names()[0])),
    )


def compute_root(state: State, func: str, definition: int) -> State:
    """Compute the whole required box of this func before its consumers, outside all loops."""
    return _with_plan(state, func, replace(state.plan(func), place=Root(), store=None))


def inline(state: State, func: str, definition: int) -> State:
    """Replace every read of this func by its definition."""
    _check_not_output(state, func, "inline")
    f = state.program.func(func)
    if len(f.definitions) > 1 or f.definitions[0].init is not None:
        what = "has updates" if len(f.definitions) > 1 else "is a reduction"
        raise Illegal(f"{func!r} {what}; its loops cannot be part of an expression", "use compute_at")
    if any(
        isinstance(p.place, At | AfterProducer | WithStage) and p.place.level.func == func
        for _, p in state.plans
    ):
        raise Illegal(f"another func is computed inside the loops of {func!r}", "move that one first")
    return _with_plan(state, func, replace(state.plan(func), place=Inline(), store=None))


def reverse_compute_at(
    state: State, func: str, definition: int, *, producer: str, producer_definition: int, loop: str
) -> State:
    """Compute this func inside a loop of its producer, on the box that the loop's body computes."""
    level = _level(state, producer, producer_definition, loop)
    if producer == func:
        raise Illegal(f"{func!r} cannot be computed inside itself", "name its producer")
    state = expand_reads(state, func, producer)
    return _with_plan(state, func, replace(state.plan(func), place=AfterProducer(level), store=None))


def compute_with(
    state: State, func: str, definition: int, *, other: str, other_definition: int, loop: str
) -> State:
    """Run this stage in the loops of another one, down to a loop, after the other's body."""
    level = _level(state, other, other_definition, loop)
    if other == func:
        raise Illegal("a stage cannot be computed with itself", "name another func")
    return _with_plan(state, func, replace(state.plan(func), place=WithStage(level), store=None))


def _axis(state: State, func: str, dim: int | str) -> int:
    f = state.program.func(func)
    if isinstance(dim, str):
        if dim not in f.variables:
            raise Illegal(f"{func!r} has no dimension {dim!r}", did_you_mean(dim, f.variables))
        return f.variables.index(dim)
    if not -len(f.variables) <= dim < len(f.variables):
        raise Illegal(
            f"{func!r} has {counted(len(f.variables), 'dimension')}, there is no dimension {dim}",
            f"name one of {', '.join(f.variables)}",
        )
    return dim % len(f.variables)


def reorder_storage(state: State, func: str, definition: int, *, dims: tuple[int | str, ...]) -> State:
    """Set the order of dimensions in memory, largest stride first."""
    _check_memory(state, func)
    axes = tuple(_axis(state, func, d) for d in dims)
    if sorted(axes) != list(range(len(state.program.func(func).variables))):
        names = ", ".join(state.program.func(func).variables)
        raise Illegal("every dimension must be named once", f"name {names}, slowest first")
    return _with_plan(state, func, replace(state.plan(func), order=axes))


def align_storage(state: State, func: str, definition: int, *, dim: int | str, multiple: int) -> State:
    """Pad the memory of a dimension to a multiple, in elements."""
    _check_memory(state, func)
    check_positive(multiple, "the multiple")
    plan = state.plan(func)
    kept = tuple(x for x in plan.align if x[0] != _axis(state, func, dim))
    return _with_plan(state, func, replace(plan, align=(*kept, (_axis(state, func, dim), multiple))))


def fold_storage(state: State, func: str, definition: int, *, dim: int | str, extent: int) -> State:
    """Store a dimension as a ring buffer of `extent` elements; checked when the program is compiled."""
    _check_memory(state, func)
    check_positive(extent, "the extent")
    plan = state.plan(func)
    kept = tuple(x for x in plan.fold if x[0] != _axis(state, func, dim))
    return _with_plan(state, func, replace(plan, fold=(*kept, (_axis(state, func, dim), extent))))


def bound_extent(
    state: State, func: str, definition: int, *, dim: int | str, extent: int | None = None
) -> State:
    """Compute `extent` points of a dimension at each place of the func; checked when it is compiled."""
    if extent is not None:
        check_positive(extent, "the extent")
    if func in state.program.outputs:
        raise Illegal(
            f"{func!r} is an output, it is computed at all of its points",
            "split its loops: s[f].split(i, 16)",
        )
    f, plan = state.program.func(func), state.plan(func)
    if len(f.definitions) > 1:
        raise Illegal(f"{func!r} has updates, which may write anywhere", "give the extent of funcs without")
    kept = tuple(x for x in plan.extents if x[0] != _axis(state, func, dim))
    return _with_plan(state, func, replace(plan, extents=(*kept, (_axis(state, func, dim), extent))))


def set_scope(state: State, func: str, definition: int, *, scope: str) -> State:
    """Set the memory of this func: one of `SCOPES`, such as heap, stack, register, shared, or auto."""
    _check_memory(state, func)
    check_scope(scope)
    return _with_plan(state, func, replace(state.plan(func), scope=scope))


def swizzle(state: State, func: str, definition: int, *, count: int) -> State:
    """Permute the 16-byte chunks of each `count` bytes of a row of shared memory, differently in each row."""
    _check_memory(state, func)
    plan = state.plan(func)
    if plan.scope not in (SHARED, GROUP):
        raise Illegal(f"{func!r} is not in shared memory", 'set_scope("shared") first')
    if count not in SWIZZLES:
        raise Illegal(
            f"chunks of {count} bytes cannot be swizzled",
            f"there are: {', '.join(map(str, SWIZZLES))}",
        )
    return _with_plan(state, func, replace(plan, swizzle=count))


def stream_stores(state: State, func: str, definition: int) -> State:
    """Use streaming (non-temporal) stores for this func: for large results that are not read soon."""
    return _with_plan(state, func, replace(state.plan(func), stream=True))


def cache_policy(state: State, func: str, definition: int, *, source: str, policy: str) -> State:
    """Load `source` with a cache policy in the GPU kernel that stores this func."""
    if policy not in CACHE_POLICIES:
        raise Illegal(f"there is no cache policy {policy!r}", did_you_mean(policy, CACHE_POLICIES))
    d = state.program.func(func).definitions[definition]
    read = sorted({r.name for reader in (d, *inlined_into(state, [d])) for r in reader.reads})
    if source not in read:
        raise Illegal(f"{func!r} does not read {source!r}", did_you_mean(source, read))
    plan = state.plan(func)
    policies = dict(plan.policies) | {source: policy}
    return _with_plan(state, func, replace(plan, policies=tuple(policies.items())))


def prefetch(
    state: State, func: str, definition: int, *, source: str, loop: str, offset: int = 1,
    of: str | None = None,
) -> State:  # fmt: skip
    """Prefetch the box of `source` that the body of a loop reads `offset` iterations later.

    The offset counts iterations of that loop, or of the enclosing loop `of`.
    """
    name = find_loop(state, func, definition, loop)
    d = state.program.func(func).definitions[definition]
    read = sorted({r.name for reader in (d, *inlined_into(state, [d])) for r in reader.reads})
    if source not in read:
        raise Illegal(f"{func!r} does not read {source!r}", did_you_mean(source, read))
    check_positive(offset, "the offset")
    plan = state.plan(func)
    outer = name if of is None else find_loop(state, func, definition, of)
    nest = plan.nests[definition]
    if nest.position(outer) > nest.position(name):
        raise Illegal(
            f"loop {outer!r} is inside of {name!r}",
            "count iterations of the loop itself, or of one around it",
        )
    prefetch_plan = PrefetchPlan(definition, name, source, offset, outer)
    return _with_plan(state, func, replace(plan, prefetches=(*plan.prefetches, prefetch_plan)))


def pin(state: State, func: str, definition: int) -> State:
    """Keep this func as it is now: no default and no automatic schedule changes it."""
    plan = state.plan(func)
    nests = (replace(n, loops=tuple(replace(x, fixed=True) for x in n.loops)) for n in plan.nests)
    return _with_plan(state, func, replace(plan, nests=tuple(nests), place=plan.place or Root()))
