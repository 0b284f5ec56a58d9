"""Attention and its like on a GPU: blocks of rows go over tiles of terms, whose weights stay in the block.

for batches, blocks of rows (and parts of all terms): blocks
  what only the rows need, fetched once
  for tiles of the terms:
    what the tile needs, fetched together, ahead of its use where there is room
    scores, their maxima, weights and sums: in shared memory
    products with the weights: in the registers of each thread, corrected as the maxima grow
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from math import prod
from typing import Any

from tdsl.autoschedule.block_tree.layouts import best_layout, best_row, copy_of
from tdsl.autoschedule.block_tree.tree import BlockTree, Cut
from tdsl.autoschedule.block_tree.write import lay_out, packed
from tdsl.autoschedule.problem import Operand, Problem
from tdsl.autoschedule.recipes.choices import Plan, Unsuited, choose, gpu_of, recipe
from tdsl.autoschedule.recipes.conv import known
from tdsl.autoschedule.recipes.elements import elements
from tdsl.autoschedule.recipes.epilogue import in_vectors
from tdsl.autoschedule.recipes.grid import fused
from tdsl.autoschedule.recipes.operand_tiles import Place
from tdsl.autoschedule.recipes.pipelining import pipeline_loads
from tdsl.autoschedule.recipes.stage_facts import even_width, known_sizes
from tdsl.core.node import frozen
from tdsl.cost.block_memory import shared_bytes
from tdsl.lang.affine import variables
from tdsl.lang.expr import Binary, Expr, Var
from tdsl.lang.program import FuncDef
from tdsl.lang.regions import reads_in
from tdsl.machine.model import Machine
from tdsl.schedule.bind import bind_state
from tdsl.schedule.fluent import BaseSchedule, Stage
from tdsl.schedule.inlining import inline_funcs
from tdsl.schedule.naming import LoopLike
from tdsl.schedule.properties import root_boxes, unplaced_at_root
from tdsl.schedule.state import REGISTER, SHARED, State
from tdsl.schedule.tree import build_tree

LARGEST = (128, 64)  # rows and terms of a tile
LEAST = 8
THREADS = (64, 512)  # of a block
FILLED = 1  # blocks for each multiprocessor, from which terms are not shared out
COPIED = 16  # bytes that a thread fetches at once


@frozen
class OnlineBlocks:
    """Blocks of `rows` go over tiles of `terms`, in so many `parts` of all terms that are merged in the end.

    `each` are the rows and columns of a thread.
    """

    rows: int
    terms: int
    each: tuple[int, int]
    parts: int = 1


@frozen
class OnlineChain:
    """The sum that leads, what ends the chain (itself, or an element-wise reader), and their extents."""

    lead: FuncDef
    end: str
    row: str
    column: str
    term: str
    sizes: Mapping[str, int]

    @property
    def outside(self) -> tuple[str, ...]:
        """All free variables but rows and columns."""
        return self.lead.variables[:-2]

    @property
    def batches(self) -> int:
        """The extent of all variables outside of rows and columns."""
        return prod(self.sizes[v] for v in self.outside)

    @property
    def tile_func(self) -> str:
        """The name of the sum over a tile of terms."""
        return f"{self.lead.name}_tile"


Work = tuple[Problem, BlockTree]  # what a func computes for a tile, and the threads that do
ROW, TERM, TILE, INNER = "row", "term", "tile", "inner"
Roles = Mapping[str, str]


def inside_tiles(state: State, running: str, row: str, tile: str) -> dict[str, Roles]:
    """The funcs that a tile of rows and terms computes, consumers first, and what their variables are.

    Those that do not differ from row to row are computed before: each block would compute them again. So are
    those that are read elsewhere, too.
    """
    program = state.program
    candidates: dict[str, Roles] = {}
    start = program.func(running)
    stack: list[tuple[FuncDef, Roles]] = [(start, {row: ROW, tile: TILE})]
    while stack:
        f, roles = stack.pop(0)
        for r in (r for d in f.definitions for r in reads_in(d.values)):
            if r.name == f.name or r.name in candidates or not program.has_func(r.name):
                continue
            g = program.func(r.name)
            axes = {v: role_of(e, roles) for v, e in zip(g.variables, r.index, strict=True)}
            if ROW in axes.values() and {TERM, TILE} & set(axes.values()):
                ranges = {v: INNER for d in g.definitions for v, _, _ in d.ranges if TILE in axes.values()}
                candidates[g.name] = {**axes, **ranges}
                stack.append((g, candidates[g.name]))
    kept, members = dict[str, Roles](), {running}
    for f in reversed(program.funcs):
        read_here = {g.name for g, _ in state.consumers(f.name)} <= members
        if f.name in candidates and read_here and f.name not in program.outputs:
            kept[f.name] = candidates[f.name]
            members.add(f.name)
    return kept


def role_of(e: Expr, roles: Roles) -> str:
    """What an index is: a row, a term, the number of a tile, a place in one, or something else, ""."""
    used = {roles.get(v, "") for v in variables(e)}
    if isinstance(e, Var):
        return roles.get(e.name, "")
    if isinstance(e, Binary) and e.op == "floordiv" and used == {TERM}:
        return TILE
    if used >= {TILE, INNER} or TERM in used:
        return TERM
    return next((role for role in (TILE, ROW) if role in used), "")


@recipe
def online_blocks(stage: Stage, *, machine: Machine | None = None, **choices: Any) -> OnlineBlocks:
    """Schedule a sum whose terms need other reductions over them, with what it ends in, on a GPU.

    `stage` is the sum, with rows and columns as the last two of its variables; the schedule has to know
    all sizes. `choices` replace what is chosen: the fields of `OnlineBlocks`. Returns the choices. Float
    sums are made in another order.

    >>> import tdsl as td
    >>> i, j, d, e = td.vars("i j d e")
    >>> q, k, v = (td.Tensor(n, (256, 64), td.f32) for n in "qkv")
    >>> score, top, p, total, out = (td.Func(n) for n in ("score", "top", "p", "total", "out"))
    >>> score[i, j] = td.sum(q[i, d] * k[j, d], axis=d)
    >>> top[i] = td.max(score[i, j], axis=j)
    >>> p[i, j] = td.exp(score[i, j] - top[i])
    >>> total[i] = td.sum(p[i, j], axis=j)
    >>> out[i, e] = td.sum(p[i, j] * v[j, e], axis=j) / total[i]
    >>> s = td.Schedule(out, target="cuda")
    >>> td.recipes.online_blocks(s["out_sum"])
    OnlineBlocks(rows=128, terms=64, each=(4, 4), parts=1)
    """
    machine = gpu_of(stage, machine)
    chain = find_online_chain(stage)
    plans = (choose(plan, choices) for plan in _plans(chain, machine))
    return first_suited(stage, plans, lambda plan: _write(stage, chain, plan, machine))


def first_suited(stage: Stage, plans: Iterable[Plan], write: Callable[[Plan], None]) -> Plan:
    """The first plan that can be written, which is done; Unsuited as the last one is if none can be."""
    *others, last = dict.fromkeys(plans)
    for plan in others:
        with suppress(Unsuited), stage.schedule.all_or_nothing():
            write(plan)
            return plan
    write(last)
    return last


def find_online_chain(stage: Stage) -> OnlineChain:
    """The chain that a sum of products with weights leads; Unsuited for another stage, or sizes not known."""
    state, _ = known(stage.schedule)
    f = state.program.func(stage.func)
    d = f.definitions[0]
    if len(d.free) < 2 or len(d.ranges) != 1 or d.init is None:
        raise Unsuited("it is no sum over one variable for rows and columns, its last two")
    sizes = known_sizes(stage)
    row, column, term = *d.free[-2:], d.ranges[0][0]
    weights = any({row, term} <= variables(r) for r in reads_in(d.values))
    values = any({column, term} <= variables(r) for r in reads_in(d.values))
    if not (weights and values):
        raise Unsuited(
            f"its terms have no weight for each {row!r} and {term!r}, "
            f"times a value for each {column!r} and {term!r}"
        )
    readers = [c for c, _ in state.consumers(f.name)]
    end = f.name
    if f.name not in state.program.outputs and len(readers) == 1:
        (reader,) = readers
        ending = reader.definitions[0]
        if len(reader.definitions) == 1 and ending.init is None and ending.free == d.free:
            end = reader.name
    return OnlineChain(f, end, row, column, term, sizes)


def _plans(chain: OnlineChain, machine: Machine) -> Iterator[OnlineBlocks]:
    """Tiles from the largest on, half as large each, and enough blocks for all multiprocessors."""
    columns = chain.sizes[chain.column]
    rows, terms = (
        max(min(most, 1 << (chain.sizes[v] - 1).bit_length()), LEAST)
        for most, v in zip(LARGEST, (chain.row, chain.term), strict=True)
    )
    while True:
        each = [4, even_width(4, columns)]
        while each[0] > 1 and rows // each[0] * (columns // each[1]) < THREADS[0]:
            each[0] //= 2
        block = rows
        while block > each[0] and block // each[0] * (columns // each[1]) > THREADS[1]:
            block //= 2
        blocks = -(-chain.sizes[chain.row] // block) * chain.batches
        tiles = -(-chain.sizes[chain.term] // terms)
        parts = min(-(-FILLED * machine.threads // blocks), max(tiles // LEAST, 1))
        yield OnlineBlocks(block, terms, (each[0], each[1]), parts)
        if max(rows, terms) <= LEAST:
            return
        rows, terms = (rows // 2, terms) if rows > terms else (rows, terms // 2)


def reduce_tiles(stage: Stage, chain: OnlineChain, terms: int) -> tuple[Stage, Stage, str]:
    """Reduce tiles of terms in one pass; its stage, that of the end of the chain, and the loop over tiles.

    Unsuited where results of the pass are for more than what the chain ends in.
    """
    schedule, running = stage.schedule, stage.online(chain.term, terms)
    state, followers = schedule.state, [running.func]
    for name in followers:  # grows
        for reader in dict.fromkeys(f for f, _ in state.consumers(name)):
            if reader.name in (chain.lead.name, chain.end, *followers):
                continue
            if reader.name in state.program.outputs or reader.definitions[0].init is not None:
                raise Unsuited(f"{reader.name!r} is made of the results of its pass, too")
            followers.append(reader.name)
    between = [] if chain.end == chain.lead.name else [chain.lead.name]
    for name in (*between, *followers[1:]):  # points of the end compute them of what their thread has
        schedule[name].inline()
    return running, schedule[chain.end], running.loops[-1].name


def _write(stage: Stage, chain: OnlineChain, plan: OnlineBlocks, machine: Machine) -> None:
    """Write a plan as directives; Unsuited if a block needs more shared memory than it can have."""
    schedule, whole = stage.schedule, ""
    running, owner, tile = reduce_tiles(stage, chain, plan.terms)
    if plan.parts > 1:
        split, _ = running.split(tile, nparts=plan.parts)
        merged, whole, owner = owner, split.name, running.rfactor(split)
        elements(merged, vector=1)
        running.compute_at(merged, merged.loops[-1]).set_scope(REGISTER)
        tile = owner.loops[-1].name
    thread = _share_out(owner, chain, plan, whole, tile)
    if whole:
        out = schedule.cache_write(owner, at=thread, scope=REGISTER)
        in_vectors(out, 1)
        running = owner
    else:
        running.compute_at(owner, thread).set_scope(REGISTER)
        running.reorder(*chain.outside, tile, chain.row, chain.column)
    for sums in {owner.func: owner, running.func: running}.values():
        for x in sums.loops[-2:]:  # a mask may cut them short: indices of registers are constant
            sums.unroll(x)
    _fill(chain, plan, (owner, thread), (running, tile))
    check_shared(schedule, machine)
    pipeline_loads(owner, machine.level("shared").bytes or 0)


def check_shared(schedule: BaseSchedule, machine: Machine) -> None:
    """Unsuited if a block needs more shared memory than it can have."""
    state = inline_funcs(unplaced_at_root(bind_state(schedule.state, schedule.sizes)))
    total, most = (
        shared_bytes(state, build_tree(state), root_boxes(state)),
        machine.level("shared").bytes or 0,
    )
    if total > most:
        raise Unsuited(
            f"its tiles take {int(total)} bytes of shared memory, and a block has {most}",
            "choose fewer rows, terms or stages",
        )


def _share_out(owner: Stage, chain: OnlineChain, plan: OnlineBlocks, whole: str, tile: str) -> str:
    """Blocks of rows, and parts of the terms, on blocks; the innermost loop over threads."""
    block, rows = owner.split(chain.row, plan.rows)
    column, inner = owner.split(chain.column, chain.sizes[chain.column])
    ty, row = owner.split(rows, plan.each[0])
    tx, lane = owner.split(inner, plan.each[1])
    parts, tiles = ([whole], [tile]) if whole else ([], [])
    owner.reorder(*chain.outside, block, column, *parts, ty, tx, *tiles, row, lane)
    owner.bind(fused(owner, [*chain.outside, block.name, column.name]), "blockIdx.x")
    if whole:
        owner.bind(whole, "blockIdx.y")
    owner.bind(ty, "threadIdx.y").bind(tx, "threadIdx.x")
    return tx.name


def _fill(chain: OnlineChain, plan: OnlineBlocks, rows: Place, tiles: Place) -> None:
    """What a tile needs, from the sum that leads back to copies, for all `rows` of a block or for its tiles.

    Products are computed by tiles in the registers of threads, other scores and weights element by element.
    """
    running, tile = tiles
    schedule = running.schedule
    inside = inside_tiles(schedule.state, running.func, chain.row, str(tile))
    columns = chain.sizes[chain.column] // plan.each[1]  # threads along these
    products = {name for name in inside if _is_kept_in_registers(schedule.state, name, inside)}
    trees = {name: _tree_of(schedule[name], roles, chain, plan) for name, roles in inside.items()}
    for name, roles in inside.items():
        stage, d = schedule[name], schedule.state.program.func(name).definitions[0]
        row = next(v for v, role in roles.items() if role == ROW)
        read = [r for r in reads_in(d.values) if r.name in products]
        if name in products:
            continue
        stage.compute_at(*tiles).set_scope(REGISTER if name == chain.tile_func else SHARED)
        if name == chain.tile_func:
            _unroll_last(stage, (row, chain.column))
            continue
        _pad_rows(stage, trees)
        cuts = {c.axis: c for c in trees[name][1].cuts}
        if TERM not in roles.values():  # a row for each thread, or several
            first = stage.split(row, cuts[row].each)[0] if cuts[row].each > 1 else row
            _on_threads(stage, *stage.split(first, columns))
            _unroll_terms(stage)
        elif d.init is None and not read:
            stage.cooperate()
        else:
            term = next(v for v, role in roles.items() if role == TERM)
            (ty, inner), (tx, few) = (stage.split(v, cuts[v].each) for v in (row, term))
            outer = [v for v in d.free if v not in (row, term)]
            stage.reorder(*outer, ty, tx, *_unroll_terms(stage), inner, few)
            _on_threads(stage, ty, tx)
            stage.unroll(inner).unroll(few)
            for r in dict.fromkeys(read):
                product = schedule[r.name].compute_at(stage, tx).set_scope(REGISTER)
                f = schedule.state.program.func(r.name)
                at = zip(f.variables, r.index, strict=True)
                _unroll_last(product, [v for v, e in at if e in (Var(row), Var(term))])
    for name, roles in inside.items():
        _fetch(schedule, roles, inside, (rows, tiles), trees[name])


def _tree_of(stage: Stage, roles: Roles, chain: OnlineChain, plan: OnlineBlocks) -> Work:
    """What a func computes, and the threads that do: those along columns or terms are neighbours."""
    columns, rows = chain.sizes[chain.column] // plan.each[1], plan.rows // plan.each[0]
    p, row = Problem.described(stage), next(v for v, role in roles.items() if role == ROW)
    term = next((v for v, role in roles.items() if role == TERM), None)
    steps = tuple((a.name, a.extent) for a in p.summed)
    if stage.func == chain.tile_func:
        cuts = [Cut(row, rows, plan.each[0]), Cut(chain.column, columns, plan.each[1])]
    elif term is None:
        each = -(-plan.rows // (rows * columns))
        cuts = [Cut(row, plan.rows // each, each)]
    else:
        cuts = [Cut(row, rows, plan.each[0]), Cut(term, columns, -(-plan.terms // columns))]
    return p, BlockTree(stage.func, tuple(cuts), tuple((c.axis, c.threads) for c in reversed(cuts)), steps)


def _pad_rows(stage: Stage, trees: Mapping[str, Work]) -> None:
    """Pad the rows of a func in shared memory against bank conflicts of the funcs that read it."""
    p, tree = trees[stage.func]
    uses = [(p.write, tree)]
    uses += [(r, t) for q, t in trees.values() for x in q.operands for r in x.reads if r.array == stage.func]
    box = Operand(stage.func, None, (p.write,)).box(tree.sizes)
    row = best_row(uses, box)
    if row > box[-1]:
        stage.align_storage(len(box) - 1, row)


def _on_threads(stage: Stage, ty: LoopLike, tx: LoopLike) -> None:
    stage.bind(ty, "threadIdx.y").bind(tx, "threadIdx.x")


def _unroll_last(stage: Stage, last: Sequence[str]) -> None:
    """Unroll some loops inside of all others."""
    _unroll_terms(stage)
    stage.reorder(*(x.name for x in stage.loops if x.name not in last), *last)
    for v in last:
        stage.unroll(v)


def _unroll_terms(stage: Stage) -> list[str]:
    """Unroll a few terms of a sum, which are loaded from shared memory as vectors; the loops over terms."""
    p = Problem.described(stage)
    loops = [a.name for a in p.summed]
    for a in p.summed[-1:]:
        few = even_width(min(COPIED // r.size for x in p.operands for r in x.reads), a.extent)
        if few > 1:
            loops[-1:] = (x.name for x in stage.split(a.name, few))
            stage.unroll(loops[-1])
    return loops


def _is_kept_in_registers(state: State, name: str, inside: Mapping[str, Roles]) -> bool:
    """True for sums that one element-wise func in a tile reads: a thread keeps those of its elements."""
    if state.program.func(name).definitions[0].init is None or TERM not in inside[name].values():
        return False
    readers = [c for c, _ in state.consumers(name)]
    return len(readers) == 1 and readers[0].definitions[0].init is None and readers[0].name in inside


def _fetch(
    schedule: BaseSchedule, roles: Roles, inside: Mapping[str, Roles], places: tuple[Place, Place], work: Work
) -> None:  # fmt: skip
    """Copies of what comes from outside: once for all rows of a block, or for each tile of terms."""
    p, tree = work
    d = schedule.state.program.func(p.func).definitions[0]
    sources = {r.name: r for r in reads_in(d.values) if r.name not in inside and r.index}
    for x in p.operands:
        used = {role_of(e, roles) for e in sources[x.array].index} if x.array in sources else set()
        if used >= {ROW, TERM} or not used & {ROW, TERM, INNER}:
            continue
        layout = best_layout(p, x, copy_of(p, x, tree, dense=False), tree)
        copy = schedule.cache_read(x.array, p.func, scope=SHARED, pack=packed(layout), along=x.along)
        lay_out(layout, copy.compute_at(*places[ROW not in used]))
