"""Register tiles for contractions: sums of products in which each operand is reused along another axis.

    for others, blocks of `along` (threads):
      [copy the panel of what moves along]
      for blocks of `across`:
        for the terms:  rows of `across` x vectors of `along`, in registers

`along` is the variable of the vectors: what moves with it is loaded as vectors, everything else is
broadcast. `across` uses each of these vectors again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tdsl.lang.affine import variables
from tdsl.lang.expr import Read, Var
from tdsl.lang.program import FuncDef
from tdsl.lang.regions import Box, reads_in
from tdsl.schedule import loops, stages
from tdsl.schedule.facts import extents, stride_of, widest
from tdsl.schedule.nest import At, Level, Root, State, is_ordered

LEAST_TERMS = 8  # of a sum, below which tiles do not pay
REUSE = 64  # rows and terms from which copying a panel pays
UNKNOWN = 1 << 20  # stands for an extent that is not known


@dataclass(frozen=True, slots=True)
class Contraction:
    """`func` reduces; `owner` is it, or an element-wise func that alone reads it.

    `names` gives the owner's variable for each of the func's; `moving` is the operand of the vectors.
    """

    func: str
    owner: str
    along: str
    across: str
    names: dict[str, str]
    sizes: dict[str, int]
    element: int
    moving: Read


def find_contraction(
    state: State, owner: str, group: list[str], boxes: dict[str, Box]
) -> Contraction | None:
    """The contraction that `owner` is, or that it reads element by element."""
    f = state.program.func(owner)
    if len(f.definitions) > 1:
        return None
    if f.definitions[0].ranges:
        return _contraction(f, f, {v: v for v in f.variables}, boxes)
    for name in group:
        g = state.program.func(name)
        reads = [r for r in reads_in(f.definitions[0].expressions()) if r.name == name]
        if len(reads) != 1 or {c.name for c, _ in state.consumers(name)} != {owner}:
            continue
        bare = [e.name for e in reads[0].index if isinstance(e, Var)]
        if len(bare) < len(reads[0].index):
            continue
        if len(g.definitions) == 1 and sorted(bare) == sorted(f.variables):
            found = _contraction(g, f, dict(zip(g.variables, bare, strict=True)), boxes)
            if found is not None and found.names[found.along] == f.variables[-1]:
                return found
    return None


def _contraction(
    f: FuncDef, owner: FuncDef, names: dict[str, str], boxes: dict[str, Box]
) -> Contraction | None:
    d = f.definitions[0]
    if (
        d.init is None
        or is_ordered(f, 0)
        or len(f.dtypes) > 1
        or len(d.free) < 2
        or f.name not in boxes
    ):
        return None
    sizes = {n: UNKNOWN if e is None else e for n, e in extents(f, d, boxes[f.name]).items()}
    terms = 1
    for name, _, _ in d.ranges:
        terms *= sizes[name]
    if terms < LEAST_TERMS:
        return None
    best: tuple[int, Contraction] | None = None
    for along in d.free:
        scored = _candidate(f, along, sizes)
        if scored is None:
            continue
        score, across, moving = scored
        made = Contraction(f.name, owner.name, along, across, names, sizes, widest(d), moving)
        if best is None or score > best[0]:
            best = score, made
    return None if best is None else best[1]


def _candidate(f: FuncDef, along: str, sizes: dict[str, int]) -> tuple[int, str, Read] | None:
    """(how good, the variable across, what moves) for vectors along a variable."""
    d = f.definitions[0]
    reads = list(dict.fromkeys(reads_in(d.values)))
    moving = [r for r in reads if any(along in variables(e) for e in r.index)]
    if len(moving) != 1 or sizes[along] < 4:
        return None
    (read,) = moving
    axes = [e for e in read.index if along in variables(e)]
    if axes != [Var(along)]:
        return None
    for across in reversed(d.free):
        again = any(across in variables(e) for e in read.index)
        used = any(across in variables(e) for r in reads if r != read for e in r.index)
        if across != along and not again and used and sizes[across] >= 2:
            adjacent = stride_of(read, along) == 1
            last = d.index[-1] == Var(along)
            plain = all(isinstance(e, Var) for e in read.index)
            if not (adjacent or plain):
                return None
            return 2 * adjacent + last + (sizes[along] >= 16) + plain, across, read
    return None


def tile_shape(rows: int, columns: int, lanes: int, registers: int) -> tuple[int, int]:
    """(rows, vectors) of a register tile: few loads for each multiplication, and little waste at the ends.

    >>> tile_shape(512, 1024, 16, 32), tile_shape(28, 64, 8, 16)
    ((6, 4), (4, 3))
    """
    best, shape = 0.0, (1, 1)
    for r in range(1, min(rows, 8) + 1):
        for v in range(1, 5):
            if r * v + v + 1 > registers or (v > 1 and (v - 1) * lanes >= columns):
                continue
            used = rows / (-(-rows // r) * r) * columns / (-(-columns // (v * lanes)) * v * lanes)
            value = r * v / (r + v) * used
            if value > best:
                best, shape = value, (r, v)
    return shape


def schedule_contraction(state: State, c: Contraction, vector_bytes: int, threads: int) -> State:
    """Tiles of accumulators in registers: rows of `across`, a few vectors of `along`, all terms inside."""
    lanes = max(vector_bytes // c.element, 1)
    while lanes > 1 and lanes > c.sizes[c.along]:
        lanes //= 2
    rows, vectors = tile_shape(
        c.sizes[c.across], c.sizes[c.along], lanes, 32 if vector_bytes == 64 else 16
    )
    own, across, along = c.owner, c.names[c.across], c.names[c.along]
    f = state.program.func(own)
    outer, inner = (f"{along}_o", f"{across}_o"), (f"{across}_i", f"{along}_i")
    if {*outer, *inner} & {*f.definitions[0].variables}:
        return state
    state = loops.split(
        state, own, 0, loop=across, factor=rows, tail="peel", names=(outer[1], inner[0])
    )
    state = loops.split(
        state, own, 0, loop=along, factor=vectors * lanes, tail="peel", names=(outer[0], inner[1])
    )
    others = [v for v in f.definitions[0].free if v not in (across, along)]
    ranges = [n for n, _, _ in f.definitions[0].ranges]
    state = loops.reorder(state, own, 0, loops=(*others, *outer, *ranges, *inner))
    own_size = {c.names[v]: n for v, n in c.sizes.items() if v in c.names}
    blocks = {o: own_size[o] for o in others}
    blocks |= {outer[0]: own_size[along] // (vectors * lanes), outer[1]: own_size[across] // rows}
    state = loops.parallel(state, own, 0, loop=_for_threads(blocks, threads))
    state = _vectors(state, own, *inner, lanes)
    if c.func == own:
        state = _accumulate(state, c, outer[1], lanes)
    else:
        state = _inside(state, c, outer[1], lanes)
    return _copy_panel(state, c, outer[0], others, lanes)


def _for_threads(blocks: dict[str, int], threads: int) -> str:
    """The outermost loop with enough iterations for the threads, else the longest."""
    for name, n in blocks.items():
        if n >= 4 * threads:
            return name
    return max(blocks, key=lambda name: blocks[name])


def _order(f: FuncDef, along: str) -> tuple[int, ...]:
    """Storage with a variable's dimension last."""
    axes = list(range(len(f.variables)))
    axes.sort(key=lambda a: f.variables[a] == along)
    return tuple(axes)


def _accumulate(state: State, c: Contraction, loop: str, lanes: int) -> State:
    before = {g.name for g in state.program.funcs}
    state = stages.cache_write(state, c.func, 0, loop=loop)
    copy = next(g for g in state.program.funcs if g.name not in before)
    if copy.variables[-1] == c.along:
        state = loops.vectorize(state, copy.name, 0, loop=c.along, factor=lanes)
    f, plan = state.program.func(c.func), state.plan(c.func)
    return state.with_plan(c.func, replace(plan, order=_order(f, c.along)))


def _inside(state: State, c: Contraction, loop: str, lanes: int) -> State:
    g = state.program.func(c.func)
    ranges = [n for n, _, _ in g.definitions[0].ranges]
    rest = [v for v in g.definitions[0].free if v not in (c.across, c.along)]
    state = loops.reorder(state, c.func, 0, loops=(*rest, *ranges, c.across, c.along))
    state = _vectors(state, c.func, c.across, c.along, lanes)
    plan = replace(state.plan(c.func), place=At(Level(c.owner, 0, loop)), order=_order(g, c.along))
    return state.with_plan(c.func, plan)


def _vectors(state: State, func: str, across: str, along: str, lanes: int) -> State:
    state = loops.vectorize(state, func, 0, loop=along, factor=lanes)
    state = loops.unroll(state, func, 0, loop=along)
    return loops.unroll(state, func, 0, loop=across)


def _copy_panel(state: State, c: Contraction, loop: str, others: list[str], lanes: int) -> State:
    """Copy what moves along, so that its vectors are adjacent: a panel a block, or all of it before."""
    adjacent = stride_of(c.moving, c.along) == 1
    terms = 1
    for name, _, _ in state.program.func(c.func).definitions[0].ranges:
        terms *= c.sizes[name]
    if adjacent and (c.sizes[c.across] < REUSE or terms < REUSE):
        return state
    before = {g.name for g in state.program.funcs}
    state = stages.cache_read(state, c.func, 0, source=c.moving.name, loop=None)
    copy = next(g for g in state.program.funcs if g.name not in before)
    axis = next(n for n, e in enumerate(c.moving.index) if c.along in variables(e))
    order = (*(n for n in range(len(c.moving.index)) if n != axis), axis)
    used = {c.names.get(v) for e in c.moving.index for v in variables(e)}
    inside = all(o in used for o in others)
    place = At(Level(c.owner, 0, loop)) if inside else Root()
    state = state.with_plan(copy.name, replace(state.plan(copy.name), order=order, place=place))
    last = copy.variables[-1]
    if adjacent:
        return loops.vectorize(state, copy.name, 0, loop=last, factor=lanes)
    return state
