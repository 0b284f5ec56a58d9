"""The search for the tile tree of a problem: steps that improve the price, then the layouts of copies."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import islice, product
from math import inf, prod

from tdsl.autoschedule.block_tree.climb import climb
from tdsl.autoschedule.block_tree.layouts import ASYNCHRONOUS, best_layout, copy_of
from tdsl.autoschedule.block_tree.price import (
    Price,
    has_tail,
    price,
)
from tdsl.autoschedule.block_tree.tree import BlockTree, Cut, Shared
from tdsl.autoschedule.problem import Axis, Operand, Problem
from tdsl.core.node import frozen
from tdsl.cost.sectors import SECTOR, WARP, WIDEST
from tdsl.machine.model import Machine

_MOST = 1024  # threads of a block
_EACH = (1, 2, 4, 8, 16)  # values of an axis in a thread
_SHORT = 48  # values of an axis that threads may have in equal parts of any size
_QUARTER = 8  # threads whose accesses of 16 bytes shared memory serves together
_STAGES = 3  # steps in shared memory at a time, at most
_WHOLE = 96  # terms that may be one step, whatever their number
_FINALS = 3  # trees for which layouts are chosen
_NARROW = 0.02  # of the time for each vector that 16 neighbours need
_PLAIN = 120  # cheapest trees, of which those without padding or conflicts compete with padded ones
_CONFLICTS = 0.5  # of the time that twice the wavefronts add, whatever else is slower
_FIRST_CONFLICTS = 1.5  # the same of the first conflicts, which are often avoided by another tree as fast,
_MOST_OF_FEW = 0.05  # up to this part of the time
_FEW_WASTED = 0.1  # of the sectors, with which a tree competes that is not among the fastest
_WASTE = 0.5  # of the time that twice the sectors add, in kernels that wait for something else
_MOST_OF_WASTE = 0.2  # of the time that any number of sectors adds


@frozen
class _Choice:
    """What the search varies: threads and values of a thread for each free axis, steps, and copies.

    If `shifted`, copies of rows that begin anywhere have vectors.
    """

    threads: tuple[tuple[str, int], ...]
    each: tuple[tuple[str, int], ...]
    steps: tuple[tuple[str, int], ...]
    copies: frozenset[int]
    registers: frozenset[int] = frozenset()
    shifted: bool = False


@functools.lru_cache(256)
def best_tree(p: Problem, machine: Machine) -> tuple[BlockTree, Price]:
    """The tree with the lowest price that the search has seen, and its price.

    >>> import tdsl as td
    >>> from tdsl.machine.devices import describe_gpu
    >>> i, j, x, t = *td.vars("i j"), td.Tensor("x", (4096, 4096), td.f32), td.Func("t")
    >>> t[j, i] = x[i, j]
    >>> tree, _ = best_tree(Problem.of(td.Schedule(t)["t"]), describe_gpu("sm_90a"))
    >>> [(s.array, s.vector) for s in tree.registers], tree.vector
    ([('x', 4)], 4)
    """
    known: dict[_Choice, tuple[Price, BlockTree]] = {}

    def seconds(c: _Choice) -> float:
        if c not in known:
            tree = _tree(p, c, machine)
            known[c] = price(p, tree, machine, ideal=True), tree
        return known[c][0].seconds

    moves, to_equal_parts = (functools.partial(m, p) for m in (_moves, _moves_to_equal_parts))
    best = dict.fromkeys(climb(seed, seconds, moves) for seed in _seeds(p))
    nearest = sorted(best, key=seconds)[:_FINALS]
    best |= dict.fromkeys(climb(c, seconds, to_equal_parts) for c in nearest)
    ranked, cheapest = list[_Choice](), sorted(known, key=seconds)
    for shifted in (False, True):
        ranked += sorted((c for c in best if c.shifted == shifted), key=seconds)[:_FINALS]
        few = (c for c in cheapest if c.shifted == shifted and known[c][0].wasted < _FEW_WASTED)
        ranked += islice(few, 1)
    finals = [_with_layouts(p, known[c][1], machine) for c in dict.fromkeys(ranked) if seconds(c) < inf]
    if not finals:
        return known[ranked[0]][1], Price(inf)
    trees = [known[c][1] for c in cheapest if seconds(c) < inf]
    wide = [t for t in trees if _is_wide(p, t)]
    if not _is_wide(p, min(finals, key=_seconds)[0]):
        finals += [_with_layouts(p, t, machine) for t in wide[:_FINALS]]
    if min(finals, key=_seconds)[1].conflicts:
        several = (wide or trees)[:_PLAIN]
        plain = (_with_conflicts(p, t, machine) for tree in several for t in _turned(tree))
        finals += [x for x in plain if not x[1].conflicts]
    return min(finals, key=_seconds)


def _turned(t: BlockTree) -> Iterator[BlockTree]:
    """A tree, and that with the other threads than the fastest in reverse order."""
    yield t
    if len(t.order) > 2:
        yield replace(t, order=(t.order[0], *reversed(t.order[1:])))


def _is_wide(p: Problem, t: BlockTree) -> bool:
    """True if all vectors that threads copy and write have as many elements as 16 bytes hold."""
    sizes = {(x.array, x.along): x.reads[0].size for x in p.operands}
    copied = (s.vector * sizes[s.array, s.along] >= WIDEST for s in t.shared)
    return t.vector * p.write.size >= WIDEST and all(copied)


def _seconds(final: tuple[BlockTree, Price]) -> float:
    """The seconds of a tree, a little more for narrow vectors and for sectors of which a part is used."""
    t, cost = final
    lanes = [WIDEST / max(s.vector, 1) for s in t.shared] + [WIDEST / t.vector]
    wasted = min(_WASTE * cost.wasted, _MOST_OF_WASTE)
    return cost.seconds * (1 + _NARROW * sum(lanes) / len(lanes) + wasted)


def _seeds(p: Problem) -> Iterator[_Choice]:
    """Where the search begins: a warp along neighbours of the result, or of an operand, and small tiles."""
    free, lane = p.free, p.lane or p.free[-1].name
    copied = frozenset(n for n in _copyable(p) if p.summed or _is_shared(p, p.operands[n]))
    others = [a.name for a in free if a.name != lane]
    along = [a for x in p.operands for r in x.reads for a, s in r.steps if s == 1 and a in others]
    second = next(iter(along), next((v for v in reversed(others) if p.axis(v).extent > 1), None))
    steps = tuple((a.name, _first_step(a)) for a in p.summed)
    wide = max(WIDEST // p.write.size, 1)
    for copies in dict.fromkeys((frozenset[int](), copied)):
        for tile in ((WARP, 4, 1, 1), (16, 16, min(wide, 4), 4), (8, 16, wide, 2), (4 * WARP, 1, wide, 1)):
            threads = {lane: _most(p.axis(lane), tile[0])}
            each = {lane: _most(p.axis(lane), tile[2])}
            if second is not None:
                threads[second] = _most(p.axis(second), tile[1])
                each[second] = _most(p.axis(second), tile[3])
            seed = _Choice(tuple(threads.items()), tuple(each.items()), steps, copies)
            yield seed
            if any(p.operands[n].reads[0].has_narrow_rows for n in copies):
                yield replace(seed, shifted=True)


def _most(a: Axis, count: int) -> int:
    """A power of two up to `count` that is not far beyond an extent."""
    return min(count, 1 << (a.extent - 1).bit_length())


def _first_step(a: Axis) -> int:
    return a.extent if a.extent <= _QUARTER else _QUARTER


def _copyable(p: Problem) -> frozenset[int]:
    """The numbers of the operands of which a tile can be copied: arrays read by affine indices."""
    return frozenset(n for n, x in enumerate(p.operands) if x.is_affine and x.reads[0].dims)


def _is_shared(p: Problem, x: Operand) -> bool:
    """True if points of a block read the same elements, or others than they write as neighbours."""
    windows = any(
        r.step(p.lane or "") != 1 or r.offset * r.size % SECTOR or len(dim) > 1
        for r in x.reads
        for dim in r.dims
    )
    return windows or len(x.reads) > 1 or any(not x.uses(a.name) for a in p.free)


def _moves(p: Problem, c: _Choice) -> Iterator[_Choice]:
    """The choices that differ in one cut, or move a factor of two from one axis to another."""
    threads, each = dict(c.threads), dict(c.each)
    names = [a.name for a in p.free]
    changes: list[tuple[dict[str, int], dict[str, int]]] = []
    for v in names:
        changes += [({v: n}, {}) for n in _counts(p.axis(v), threads.get(v, 1), each.get(v, 1))]
        for count in _each(each.get(v, 1)):
            changes.append(({}, {v: count}))
            if count > each.get(v, 1):
                changes.append(({v: max(threads.get(v, 1) // 2, 1)}, {v: count}))
            else:
                changes.append(({v: threads.get(v, 1) * 2}, {v: count}))
    for v, w in product(names, names):
        if v != w and threads.get(v, 1) % 2 == 0:
            changes.append(({v: threads[v] // 2, w: threads.get(w, 1) * 2}, {}))
    for more, values in changes:
        t, e = threads | more, each | values
        count = prod(t.values())
        fits = all(t[v] * e.get(v, 1) < 2 * p.axis(v).extent or t[v] * e.get(v, 1) == 1 for v in t)
        if fits and count <= _MOST and all(e[v] <= 2 * p.axis(v).extent for v in e):
            yield replace(c, threads=tuple(sorted(t.items())), each=tuple(sorted(e.items())))
    for n, (v, size) in enumerate(c.steps):
        whole = p.axis(v).extent
        for other in dict.fromkeys((size * 2, max(size // 2, 1), whole if whole <= _WHOLE else size)):
            if other != size:
                step = (v, min(other, whole))
                yield replace(c, steps=(*c.steps[:n], step, *c.steps[n + 1 :]))
    affine = _copyable(p)
    if p.summed:
        yield replace(c, copies=frozenset() if c.copies else affine)
        return
    for n in affine:
        yield replace(c, copies=c.copies ^ {n}, registers=c.registers - {n})
        yield replace(c, copies=c.copies - {n}, registers=c.registers ^ {n})


def _counts(a: Axis, threads: int, each: int) -> list[int]:
    exact = -(-a.extent // each)
    counts = [threads * 2, threads // 2, *([exact] if exact <= 4 * WARP else [])]
    if threads & (threads - 1):
        counts = [1 << threads.bit_length(), 1 << (threads.bit_length() - 1)]
    return [n for n in counts if n >= 1 and n != threads]


def _each(each: int) -> list[int]:
    above = [n for n in _EACH if n > each]
    return [*[n for n in _EACH if n < each][-1:], *above[:1]]


def _moves_to_equal_parts(p: Problem, c: _Choice) -> Iterator[_Choice]:
    """The choices of `_moves`, and those in which threads have equal parts of a short axis, of any size."""
    yield from _moves(p, c)
    threads, each = dict(c.threads), dict(c.each)
    for a in p.free:
        for n in range(3, min(a.extent, _EACH[-1]) + 1) if a.known and a.extent <= _SHORT else ():
            t, e = threads | {a.name: a.extent // n}, each | {a.name: n}
            if a.extent % n == 0 and n not in _EACH and prod(t.values()) <= _MOST:
                yield replace(c, threads=tuple(sorted(t.items())), each=tuple(sorted(e.items())))


def _tree(p: Problem, c: _Choice, machine: Machine) -> BlockTree:
    """The tree of a choice, without padding of its copies."""
    threads, each = dict(c.threads), dict(c.each)
    cuts = tuple(Cut(a.name, threads.get(a.name, 1), each.get(a.name, 1)) for a in p.free)
    lane = p.lane
    moves = sorted((x for x in cuts if x.threads > 1), key=lambda x: (x.axis != lane, p.write.step(x.axis)))
    order = tuple((x.axis, x.threads) for x in moves)
    steps = c.steps
    t = BlockTree(p.func, cuts, order, steps, vector=_written(p, each))
    copies = tuple(copy_of(p, p.operands[n], t, shifted=c.shifted) for n in sorted(c.copies))
    t = replace(t, shared=copies)
    if c.registers and not has_tail(p, t):
        loaded = (_in_registers(p.operands[n], t) for n in sorted(c.registers))
        t = replace(t, registers=tuple(s for s in loaded if s.vector > 1))
    stepped = any(size < p.axis(v).extent for v, size in steps)
    sizes = {(x.array, x.along): x.reads[0].size for x in p.operands}
    ahead = [s for s in copies if s.vector * sizes[s.array, s.along] >= ASYNCHRONOUS]
    if stepped and ahead and "cp.async" in machine.features:
        return replace(t, stages=2 if any(s.shifted for s in copies) else _STAGES)
    return t


def _written(p: Problem, each: Mapping[str, int]) -> int:
    """The neighbours that a thread writes at once."""
    if p.lane is None:
        return 1
    width = p.write.width(p.lane, each.get(p.lane, 1)) if p.axis(p.lane).known else 1
    if any(p.lane in r.data for x in p.operands for r in x.reads):  # indices have as many lanes
        width = min(width, *(max(WIDEST // r.size, 1) for x in p.operands for r in x.reads))
    return width


def _in_registers(x: Operand, t: BlockTree) -> Shared:
    """A copy in registers of a thread, loaded in vectors along the last dimension."""
    units = [v for v, c in x.reads[0].dims[-1] if c == 1] if x.reads[0].dims else []
    width = min((r.width(units[0], t.cut(units[0]).each) for r in x.reads), default=1) if units else 1
    return Shared(x.array, x.along, width if len(x.reads) == 1 else 1, tuple(range(len(x.reads[0].dims))))


def _with_layouts(p: Problem, t: BlockTree, machine: Machine) -> tuple[BlockTree, Price]:
    """The tree with the order of threads and the layouts of copies that have the lowest price."""
    best: tuple[BlockTree, Price] | None = None
    for order in _orders(p, t):
        turned = replace(t, order=order)
        copies = []
        for s in t.shared:
            x = next(x for x in p.operands if (x.array, x.along) == (s.array, s.along))
            copies.append(best_layout(p, x, s, turned))
        stages = min(t.stages, 2) if any(s.is_scattered for s in copies) else t.stages
        candidate = _with_conflicts(p, replace(turned, shared=tuple(copies), stages=stages), machine)
        if candidate[1].seconds == inf:  # padding does not fit
            candidate = _with_conflicts(p, turned, machine)
        if best is None or candidate[1].seconds < best[1].seconds:
            best = candidate
    assert best is not None, "there is an order"
    return best


def _with_conflicts(p: Problem, t: BlockTree, machine: Machine) -> tuple[BlockTree, Price]:
    """A tree with the order of its blocks, and its price, which bank conflicts raise in any case."""
    cost = price(p, t, machine)
    t = replace(t, group=cost.group if all(a.known for a in p.free) else 1)
    few = min(_FIRST_CONFLICTS * cost.conflicts, _MOST_OF_FEW)
    return t, replace(cost, seconds=cost.seconds * (1 + few + _CONFLICTS * cost.conflicts))


def _orders(p: Problem, t: BlockTree) -> Iterator[tuple[tuple[str, int], ...]]:
    """Orders of the threads: each axis first, and in two parts, so that a warp is a tile of both."""
    yield t.order
    for first, n in t.order:
        rest = tuple(x for x in t.order if x[0] != first)
        if rest and first != t.order[0][0]:
            yield ((first, n), *rest)
        for part in (2, 4, 8, 16):
            written = part * t.cut(first).each * p.write.size if first == p.lane else SECTOR
            if rest and part < n and n % part == 0 and written >= SECTOR:
                yield ((first, part), *rest, (first, n // part))
