"""Software pipelining of the loops of a kernel that load tiles, as far as shared memory suffices."""

from __future__ import annotations

from math import prod

from tdsl.core.node import frozen
from tdsl.cost.block_memory import Memory, is_ahead, memories, total_bytes
from tdsl.lang.expr import Read, Select
from tdsl.schedule.bind import bind_state
from tdsl.schedule.fluent import Stage
from tdsl.schedule.inlining import inline_funcs
from tdsl.schedule.properties import root_boxes, unplaced_at_root
from tdsl.schedule.state import SERIAL, VECTORIZED, Level, Split, State
from tdsl.schedule.tree import ROOT, ScheduleTree, build_tree

COPIED = 4  # bytes that a GPU copies to shared memory by itself, at least
STAGES = 3  # tiles that are there at a time, at most: one in use and two on their way
SYSTEM = 1 << 10  # bytes of shared memory of each block that the system reserves


@frozen
class _Steps:
    """A loop that runs so often, and the bytes that each iteration fetches."""

    level: Level
    runs: int
    bytes: float


def pipeline_loads(stage: Stage, capacity: int) -> None:
    """Pipeline the loops of a kernel that fetch tiles of memory, of a block with so many bytes to share.

    `stage` is the one whose loops are those of blocks. Loops that fetch the most come first; each has as many
    stages as fit beside the kernel's other shared memory, and no more than iterations. Where two
    blocks have room on a multiprocessor, they still do: one works while the other waits.

    >>> import tdsl as td
    >>> from tdsl.machine.devices import describe_gpu
    >>> i, j, k = td.vars("i j k")
    >>> a, b, c = td.Tensor("a", (64, 999), td.f32), td.Tensor("b", (999, 64), td.f32), td.Func("c")
    >>> c[i, j] = td.sum(a[i, k] * b[k, j], axis=k)
    >>> s = td.Schedule(c, target="cuda")
    >>> _ = td.recipes.block_tiles(s[c], machine=describe_gpu("sm_75"), parts=1)  # which copies nothing ahead
    >>> pipeline_loads(s[c], 99 << 10)
    >>> print(str(s).splitlines()[-1])
    s["c"].pipeline("k_o", 2)
    """
    schedule = stage.schedule
    state = inline_funcs(unplaced_at_root(bind_state(schedule.state, schedule.sizes)))
    tree = build_tree(state)
    allocations = memories(state, tree, root_boxes(state), stage.func)
    used, half = total_bytes(allocations), (capacity - SYSTEM) // 2
    room = half if used <= half else capacity
    for x in sorted(_steps(state, tree, allocations), key=lambda x: -x.runs * x.bytes):
        stages = min(STAGES, x.runs, 1 + int((room - used) // x.bytes))
        if stages > 1:
            used += (stages - 1) * x.bytes
            host = schedule[x.level.func]
            host = host.update(x.level.definition - 1) if x.level.definition else host
            host.pipeline(x.level.loop, stages)


def _steps(state: State, tree: ScheduleTree, allocations: list[Memory]) -> list[_Steps]:
    """The serial loops with tiles that can be fetched ahead, some of which a GPU copies by itself."""
    fetched: dict[Level, list[Memory]] = {}
    for m in allocations:
        if m.loop is not None and is_ahead(state, tree, m.name):
            fetched.setdefault(m.loop, []).append(m)
    steps = []
    for level, tiles in fetched.items():
        kind, runs = state.plan(level.func).nests[level.definition].kind(level.loop), tiles[0].runs
        if kind == SERIAL and runs and runs > 1 and any(_is_copied(state, tree, m.name) for m in tiles):
            steps.append(_Steps(level, runs, sum(-(-m.bytes // m.align) * m.align for m in tiles)))
    return steps


def _is_copied(state: State, tree: ScheduleTree, name: str) -> bool:
    """True for a copy of an array, as many bytes at a time as a GPU fetches by itself."""
    f, plan = state.program.func(name), state.plan(name)
    nest, (value, *others) = plan.nests[0], f.definitions[0].values
    read = value.yes if isinstance(value, Select) else value
    if not isinstance(read, Read) or others or len(f.definitions) > 1 or plan.bulk:
        return False
    last = (r for r in nest.relations if isinstance(r, Split) and r.inner in nest.names())
    lanes = prod(r.factor or 1 for r in last if nest.kind(r.inner) == VECTORIZED)
    is_far = not state.program.has_func(read.name) or read.name in tree.stored.get(ROOT, ())
    return is_far and lanes * read.dtype.bytes >= COPIED
