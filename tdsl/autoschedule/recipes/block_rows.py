"""Chains of row operations on a GPU: softmax, norms, log-sum-exp, argmax, and what else needs whole rows.

    for rows (blocks; short ones side by side on threadIdx.y):
      the row, in the registers of its threads: each holds some vectors of it
      stage by stage:
        reductions: each thread its part, then all threads by shuffles
        element-wise stages: each thread its part

A row is read once and written once, 16 bytes at a time where its length allows that. One that registers
cannot hold is read by each stage.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

from tdsl.autoschedule.patterns.groups import boxes_of_rows, moves, open_group
from tdsl.autoschedule.recipes.choices import Unsuited, choose, recipe
from tdsl.core.node import frozen
from tdsl.errors import counted
from tdsl.lang.affine import variables
from tdsl.lang.expr import ZERO, Read, Var
from tdsl.lang.operations import arithmetic_of
from tdsl.lang.program import FuncDef
from tdsl.lang.regions import Box, reads_in
from tdsl.schedule.bind import bind_state
from tdsl.schedule.bounds_inference import bounds_of
from tdsl.schedule.fluent import Stage
from tdsl.schedule.inlining import inline_funcs
from tdsl.schedule.properties import extents, has_effects, root_boxes, unplaced_at_root, volume
from tdsl.schedule.state import State, is_ordered

ACCESS = 16  # bytes that a thread can load or store at once
_WARP = 32
_MOST_THREADS = 1024
_OTHER_AXES = ("blockIdx.y", "blockIdx.z")  # axes of blocks other than the first
_EACH = 16  # elements of a long row that a thread should have
_SHORT = 1024  # elements of a row that one warp can do
_TOGETHER = 128  # threads of a block with several rows
_REGISTER_BYTES = 192 << 10  # bytes in the registers of a block, of 4 for each element
_LEAST = 2  # elements of a row that are worth threads
_WARPS = 8  # of a block whose rows read the same
_MANY = 264 * _WARPS  # rows that keep a GPU busy with a warp for each


@frozen
class BlockRows:
    """The variables that count the rows of a func, and the funcs that are computed `inside` of these.

    `threads`, a power of two up to 1024, share a row, `vector` neighbours at a time; a block has `together`
    rows. What several stages read is `held` in registers.
    """

    rows: tuple[str, ...]
    inside: tuple[str, ...]
    threads: int = field(metadata={"among": [1 << n for n in range(11)]})
    together: int
    vector: int
    held: tuple[str, ...]


@recipe
def block_rows(stage: Stage, **choices: Any) -> BlockRows:
    """Schedule a func and what only its rows read: a block, or a part of one, for each row.

    `choices` replace what is chosen: the numbers of `BlockRows`. Float sums are in another order. Returns
    what was chosen. Something reduces rows of several elements along memory, of extents
    that the schedule knows.

    >>> import tdsl as td
    >>> i, j = td.vars("i j")
    >>> x, total, y = td.Tensor("x", (64, 4096), td.f32), td.Func("total"), td.Func("y")
    >>> total[i] = td.sum(x[i, j], axis=j)
    >>> y[i, j] = x[i, j] / total[i]
    >>> s = td.Schedule(y)
    >>> td.recipes.block_rows(s[y])
    BlockRows(rows=('i',), inside=('total',), threads=256, together=1, vector=4, held=('x',))
    """
    chain = _find(stage)
    if chain is None:
        raise Unsuited(
            "it has no rows, of extents that the schedule knows, that a reduction goes through along memory",
            "td.Schedule(f, sizes={...}) tells extents; td.recipes.block_columns reduces across memory",
        )
    if chain.length < _LEAST:
        raise Unsuited(
            f"its rows have {counted(chain.length, 'element')}, which is one thread's work",
            "td.recipes.elements has a thread for each row",
        )
    if chain.length < _WARP and _reads_only_shared(chain):
        raise Unsuited(
            f"rows of {chain.length} elements are of few values, which many of them read",
            "td.recipes.elements has a thread for each row",
        )
    chain = _with_inlined(stage, chain)
    plan = choose(_plan(chain), choices)
    _Writer(stage, chain, plan).write()
    return plan


def _with_inlined(stage: Stage, chain: _Chain) -> _Chain:
    """The chain without funcs of one operation, which are inlined; as it is where no rows would be left."""
    try:
        with stage.schedule.all_or_nothing():
            for f in chain.funcs[1:]:
                if chain.along(f) and not f.definitions[0].ranges and arithmetic_of(f.definitions[0]) <= 1:
                    stage.schedule[f.name].inline()
            inlined = _find(stage)
            if inlined is None:
                raise Unsuited("what would be inlined has its rows")
            return inlined
    except Unsuited:
        return chain


@frozen
class _Chain:
    """Funcs that one row of the first needs, consumers first, and the boxes of these and what they read.

    Rows are `count`, 0 where that is not known.
    The first `outer` of the variables of rows have an axis of blocks of their own: nothing is known of a
    number that is divided by the next extent, which only a call tells.
    """

    rows: tuple[str, ...]
    funcs: tuple[FuncDef, ...]
    row_boxes: Mapping[str, Box]
    outer: int = 0
    count: int = 0

    def sizes(self, f: FuncDef) -> dict[str, int]:
        """The extents of a func's variables in a row."""
        known = extents(f, f.definitions[0], self.row_boxes[f.name])
        return {v: 1 if n is None else n for v, n in known.items()}

    def along(self, f: FuncDef) -> list[str]:
        """The variables that go through the row: those that are reduced over, or free ones."""
        d, sizes = f.definitions[0], self.sizes(f)
        return [v for v, _, _ in d.ranges] or [v for v in d.free if sizes[v] != 1]

    def length_of(self, f: FuncDef) -> int:
        """The points of a func in a row."""
        return prod(self.sizes(f).values())

    @property
    def length(self) -> int:
        """The most points of a func in a row."""
        return max(map(self.length_of, self.funcs))


def _find(stage: Stage) -> _Chain | None:
    """The chain of a func that has the most funcs in its rows, and of these the one with the most rows."""
    state = unplaced_at_root(inline_funcs(bind_state(stage.schedule.state, stage.schedule.sizes)))
    boxes = root_boxes(state)
    f = state.program.func(stage.func)
    if f.name not in boxes or not is_plain(f):
        return None
    group = [g for g in open_group(state, f.name) if g in boxes]
    d, best = f.definitions[0], None
    for n in range(len(d.free), 0, -1):
        if d.ranges and n < len(d.free):
            break
        chain = _chain_of(state, f, d.free[:n], group, boxes)
        if chain is not None and (best is None or len(chain.funcs) > len(best.funcs)):
            best = chain
    return best


def is_plain(f: FuncDef) -> bool:
    """True for a func with one definition, whose points may run in any order."""
    d = f.definitions[0]
    return len(f.definitions) == 1 and not (d.ranges and is_ordered(f, 0)) and not has_effects(d)


def _chain_of(
    state: State, f: FuncDef, rows: tuple[str, ...], group: list[str], boxes: dict[str, Box]
) -> _Chain | None:
    """What can be computed row by row, each point once; None where nothing of it is a reduction."""
    row_boxes = boxes_of_rows(state, f.name, rows[-1], group, boxes, 1, rows[:-1])
    sizes = extents(f, f.definitions[0], boxes[f.name])
    count = prod(sizes[v] or 0 for v in rows)
    outer = max((n for n, v in enumerate(rows) if n and sizes[v] is None), default=0)
    if outer > len(_OTHER_AXES):
        return None
    chain = _Chain(rows, (f,), row_boxes, outer, count)
    for name in group:
        g = state.program.func(name)
        readers = {c.name for c, _ in state.consumers(name)}
        if name not in row_boxes or not readers <= {h.name for h in chain.funcs}:
            continue
        points, whole = volume(row_boxes[name]), volume(boxes[name])
        once = points is not None and points * count == whole
        if once and is_plain(g) and _is_along(chain, g):
            chain = replace(chain, funcs=(*chain.funcs, g))
    if not _is_along(chain, f):
        return None
    return chain if any(g.definitions[0].ranges for g in chain.funcs) else None


def _is_along(chain: _Chain, f: FuncDef) -> bool:
    """True where neighbours of a row are neighbours in memory, and a reduction has one result in a row."""
    d, sizes = f.definitions[0], extents(f, f.definitions[0], chain.row_boxes[f.name])
    if any(n is None for n in sizes.values()):
        return False
    if d.ranges and any(sizes[v] != 1 for v in d.free):
        return False
    names = chain.along(f)
    if not names:
        return True
    last = Var(names[-1])
    if not d.ranges:
        return d.index[-1:] == (last,)
    moving = [r for r in reads_in(d.values) if any(names[-1] in variables(e) for e in r.index)]
    return bool(moving) and all(r.index[-1:] == (last,) for r in moving)


def _plan(chain: _Chain) -> BlockRows:
    """The numbers for the length of a row."""
    vector, length = _vector(chain), chain.length
    if length <= _SHORT:
        threads = min(_power(-(-length // vector)), _WARP)
        together = _TOGETHER // threads
    elif _reads_shared_vector(chain) and chain.count >= _MANY:
        threads, together = _WARP, _WARPS
    else:
        threads = min(max(_power(-(-length // _EACH)), _TOGETHER), _MOST_THREADS)
        together = 1
    kept = (*_sources(chain), *_kept(chain))
    if 4 * length * len(kept) * together > _REGISTER_BYTES:
        kept = ()
    inside = tuple(f.name for f in chain.funcs[1:])
    return BlockRows(chain.rows, inside, threads, together, vector, kept)


def _reads_shared_vector(chain: _Chain) -> bool:
    """True for a lone sum that reads what all rows share, such as x of `a[i, k] * x[k]`."""
    (f, *others), names = chain.funcs, {*chain.rows}
    along = {v for v, _, _ in f.definitions[0].ranges}
    used = [{v for e in r.index for v in variables(e)} for r in reads_in(f.definitions[0].values)]
    return not others and any(read & along and not read & names for read in used)


def _reads_only_shared(chain: _Chain) -> bool:
    """True for a lone sum whose operands several rows share, such as `a[i, k] * b[j, k]`."""
    (f, *others), rows = chain.funcs, {*chain.rows}
    used = [{v for e in r.index for v in variables(e)} for r in reads_in(f.definitions[0].values)]
    return not others and not any(rows <= read for read in used)


def _power(n: int) -> int:
    """The least power of 2 that is as large."""
    return 1 << max(n - 1, 0).bit_length()


def _vector(chain: _Chain) -> int:
    """How many neighbours 16 bytes hold of what is read and written, where that divides all rows."""
    members = {f.name for f in chain.funcs}
    owner = chain.funcs[0]
    widest = max(t.bytes for t in owner.dtypes) if chain.along(owner) else 1
    width = ACCESS
    for f in chain.funcs:
        names = chain.along(f)
        for r in reads_in(f.definitions[0].values) if names else ():
            if r.name not in members and r.index[-1:] == (Var(names[-1]),):
                widest = max(widest, r.dtype.bytes)
        while names and chain.sizes(f)[names[-1]] % width:
            width //= 2
    return min(width, max(ACCESS // widest, 1))


def _sources(chain: _Chain) -> tuple[str, ...]:
    """What several funcs of a chain read of one row, from memory."""
    members = {f.name for f in chain.funcs}
    readers: dict[str, list[bool]] = {}
    for f in chain.funcs:
        of_row: dict[str, bool] = {}
        for r in reads_in(f.definitions[0].values):
            of_row[r.name] = of_row.get(r.name, True) and _is_of_row(chain, f, r)
        for name, same_row in of_row.items():
            readers.setdefault(name, []).append(same_row)
    shared = (n for n, x in readers.items() if n not in members and len(x) > 1 and all(x))
    return tuple(n for n in shared if moves(chain.row_boxes[n]))


def _kept(chain: _Chain) -> tuple[str, ...]:
    """The element-wise funcs inside whose values can stay in the thread that computes them."""
    kept = []
    for f in chain.funcs[1:]:
        reads = [
            _is_of_row(chain, g, r)
            for g in chain.funcs
            for r in reads_in(g.definitions[0].values)
            if r.name == f.name
        ]
        if not f.definitions[0].ranges and chain.along(f) and all(reads):
            kept.append(f.name)
    return tuple(kept)


def _is_of_row(chain: _Chain, f: FuncDef, r: Read) -> bool:
    """True for a read of a row at the position that the func computes."""
    names = chain.along(f)
    box = chain.row_boxes.get(r.name)  # none where it is read over an empty range
    if box is None or len(names) != 1 or r.index[-1:] != (Var(names[0]),):
        return False
    lo, _ = bounds_of(f, f.definitions[0], chain.row_boxes[f.name])[names[0]]
    same = lo == ZERO == box[-1][0] and chain.sizes(f)[names[0]] == chain.length
    return same and volume(box) == chain.length and volume((box[-1],)) == chain.length


@dataclass(slots=True)
class _Writer:
    """Writes a plan as directives."""

    owner: Stage
    chain: _Chain
    plan: BlockRows

    def write(self) -> None:
        schedule, plan, owner = self.owner.schedule, self.plan, self.owner
        outer, rows = plan.rows[: self.chain.outer], plan.rows[self.chain.outer :]
        for v, axis in zip(outer, _OTHER_AXES, strict=False):
            owner.bind(v, axis)
        row = fused(owner, list(rows))
        if plan.together > 1:
            block, at = (x.name for x in owner.split(row, plan.together))
            owner.bind(block, "blockIdx.x").bind(at, "threadIdx.y")
        else:
            owner.bind(row, "blockIdx.x")
            at = row
        first, *rest = self.chain.funcs
        if first.definitions[0].ranges:
            schedule.cache_write(owner, at=at)
        stages = [(owner, first)]
        for f in rest:
            if f.definitions[0].ranges or not self.chain.along(f) or f.name in plan.held:
                schedule[f.name].compute_at(owner, at)
                stages.append((schedule[f.name], f))
            else:
                schedule[f.name].inline()
        for name in plan.held:
            if name not in plan.inside:
                copy = schedule.cache_read(name, owner, at=at, inside=True)
                self.share(copy, [copy.loops[-1].name])
        for stage, f in stages:
            names = self.chain.along(f)
            if f.definitions[0].ranges:
                reduce_by_threads(stage, names, plan.threads, plan.vector, unrolled=bool(plan.held))
            elif names:
                self.share(stage, names)

    def share(self, stage: Stage, names: list[str]) -> None:
        """The points of a row for its threads."""
        lanes = None
        others = [x.name for x in stage.loops if x.name not in names]
        stage.reorder(*others, *names)
        if self.plan.vector > 1:
            outer, lanes = stage.split(names[-1], self.plan.vector)
            names = [*names[:-1], outer.name]
        outer, thread = stage.split(fused(stage, names), self.plan.threads)
        stage.bind(thread, "threadIdx.x")
        if lanes is not None:
            stage.vectorize(lanes)
        if self.plan.held:
            stage.unroll(outer)


def reduce_by_threads(
    stage: Stage, names: list[str], threads: int, vector: int, *, unrolled: bool = False
) -> None:
    """A part of a reduction over `names` for each thread, in `vector` lanes, and the results of all."""
    schedule, lanes = stage.schedule, None
    if vector > 1:
        outer, lanes = stage.split(names[-1], vector)
        names = [*names[:-1], outer.name]
    outer, thread = stage.split(fused(stage, names), threads)
    before = {f.name for f in schedule.state.program.funcs}
    stage.bind(thread, "threadIdx.x")
    parts = schedule[next(f.name for f in schedule.state.program.funcs if f.name not in before)]
    if unrolled:
        parts.unroll(outer.name)
    if lanes is not None:
        parts.vectorize(lanes.name)


def fused(stage: Stage, loops: list[str]) -> str:
    """One loop of some that follow each other."""
    whole = loops[0]
    for x in loops[1:]:
        whole = stage.fuse(whole, x).name
    return whole
