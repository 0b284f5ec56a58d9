"""Register tiles for contractions: sums of products in which each operand is reused along another axis."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tdsl.lang.expr import Var
from tdsl.lang.program import FuncDef
from tdsl.lang.regions import Box, reads_in
from tdsl.schedule import loops, stages
from tdsl.schedule.facts import extents, stride_of, widest
from tdsl.schedule.nest import At, Level, State, is_ordered
from tdsl.lang.affine import variables

LEAST_SUM = 8  # terms of a sum below which tiles do not pay
PANEL = 256 * 1024  # bytes of an operand's panel that stay near


@dataclass(frozen=True, slots=True)
class Contraction:
    """`func` reduces; `owner` is it, or an element-wise func that alone reads it.

    `along` is the free variable of adjacent memory, `across` the one that reuses what moves along it;
    `panel` an operand that is worth copying together. The same variables by their names in `owner`.
    """

    func: str
    owner: str
    across: str
    along: str
    owner_across: str
    owner_along: str
    rows: int
    columns: int
    element: int
    panel: str | None


def find_contraction(
    state: State, owner: str, group: list[str], boxes: dict[str, Box]
) -> Contraction | None:
    """The contraction that `owner` is, or that it reads element by element."""
    f = state.program.func(owner)
    if len(f.definitions) > 1:
        return None
    d = f.definitions[0]
    if d.ranges:
        names = {v: v for v in f.variables}
        return _contraction(state, f, f, names, boxes)
    for name in group:
        g = state.program.func(name)
        reads = [r for r in reads_in(d.expressions()) if r.name == name]
        if len(reads) != 1 or {c.name for c, _ in state.consumers(name)} != {owner}:
            continue
        index = reads[0].index
        bare = [e.name for e in index if isinstance(e, Var)]
        if len(bare) == len(index) and sorted(bare) == sorted(f.variables) and len(g.definitions) == 1:
            names = dict(zip(g.variables, bare, strict=True))
            found = _contraction(state, g, f, names, boxes)
            if found is not None:
                return found
    return None


def _contraction(
    state: State, f: FuncDef, owner: FuncDef, names: dict[str, str], boxes: dict[str, Box]
) -> Contraction | None:
    d = f.definitions[0]
    if d.init is None or is_ordered(f, 0) or len(f.dtypes) > 1 or len(d.free) < 2 or f.name not in boxes:
        return None
    sizes = extents(f, d, boxes[f.name])
    terms = 1
    for name, _, _ in d.ranges:
        terms *= 1000 if sizes[name] is None else sizes[name] or 0
    along = d.free[-1]
    reads = list(reads_in(d.values))
    moving = [r for r in reads if stride_of(r, along)]
    if terms < LEAST_SUM or not moving or any(stride_of(r, along) is None for r in reads):
        return None
    if any(abs(stride_of(r, along) or 0) > 2 for r in moving):
        return None
    for across in reversed(d.free[:-1]):
        reused = [r for r in moving if not any(across in variables(e) for e in r.index)]
        other = [r for r in reads if any(across in variables(e) for e in r.index)]
        if reused and other:
            rows, columns = sizes[across] or 1 << 30, sizes[along] or 1 << 30
            if rows < 2 or columns < 4:
                return None
            panel = _panel(state, reused[0].name, rows, terms) if stride_of(reused[0], along) == 1 else None
            return Contraction(
                f.name, owner.name, across, along, names[across], names[along], rows, columns, widest(d), panel
            )
    return None


def _panel(state: State, source: str, rows: int, terms: int) -> str | None:
    """Copying an operand's panel pays where many rows use it again."""
    return source if rows >= 64 and terms >= 64 else None


def schedule_contraction(state: State, c: Contraction, vector_bytes: int) -> State:
    """Tiles of accumulators in registers: rows of `across`, a few vectors of `along`, all terms inside."""
    lanes = max(vector_bytes // c.element, 1)
    while lanes > 1 and lanes > c.columns:
        lanes //= 2
    registers = 32 if vector_bytes == 64 else 16
    vectors = min(4 if registers == 32 else 2, max(c.columns // lanes, 1))
    rows = min(c.rows, 6 if registers == 32 else 4)
    while rows * vectors + vectors + 1 > registers:
        rows -= 1
    own = c.owner
    outer_across, inner_across = f"{c.owner_across}_o", f"{c.owner_across}_i"
    outer_along, inner_along = f"{c.owner_along}_o", f"{c.owner_along}_i"
    state = loops.split(
        state, own, 0, loop=c.owner_across, factor=rows, tail="peel", names=(outer_across, inner_across)
    )
    state = loops.split(
        state, own, 0, loop=c.owner_along, factor=vectors * lanes, tail="peel", names=(outer_along, inner_along)
    )
    f = state.program.func(own)
    others = [v for v in f.definitions[0].free if v not in (c.owner_across, c.owner_along)]
    ranges = [n for n, _, _ in f.definitions[0].ranges]
    order = (*others, outer_along, outer_across, *ranges, inner_across, inner_along)
    state = loops.reorder(state, own, 0, loops=order)
    state = loops.parallel(state, own, 0, loop=(*others, outer_along)[0])
    state = _vectors(state, own, inner_across, inner_along, lanes)
    if c.func == own:
        before = {g.name for g in state.program.funcs}
        state = stages.cache_write(state, own, 0, loop=outer_across, scope="auto")
        copy = next(g for g in state.program.funcs if g.name not in before)
        state = loops.vectorize(state, copy.name, 0, loop=copy.variables[-1], factor=lanes)
    else:
        g = state.program.func(c.func)
        inner = [n for n, _, _ in g.definitions[0].ranges]
        rest = [v for v in g.definitions[0].free if v not in (c.across, c.along)]
        state = loops.reorder(state, c.func, 0, loops=(*rest, *inner, c.across, c.along))
        state = _vectors(state, c.func, c.across, c.along, lanes)
        plan = state.plan(c.func)
        state = state.with_plan(c.func, replace(plan, place=At(Level(own, 0, outer_across))))
    if c.panel is not None:
        state = _copy_panel(state, c, outer_along, lanes)
    return state


def _vectors(state: State, func: str, across: str, along: str, lanes: int) -> State:
    state = loops.vectorize(state, func, 0, loop=along, factor=lanes)
    state = loops.unroll(state, func, 0, loop=along)
    return loops.unroll(state, func, 0, loop=across)


def _copy_panel(state: State, c: Contraction, loop: str, lanes: int) -> State:
    """The operand's panel for a block of columns, copied together once for all rows."""
    assert c.panel is not None
    before = {g.name for g in state.program.funcs}
    state = stages.cache_read(state, c.func, 0, source=c.panel, loop=None)
    copy = next(g for g in state.program.funcs if g.name not in before)
    state = loops.vectorize(state, copy.name, 0, loop=copy.variables[-1], factor=lanes)
    plan = state.plan(copy.name)
    return state.with_plan(copy.name, replace(plan, place=At(Level(c.owner, 0, loop))))
