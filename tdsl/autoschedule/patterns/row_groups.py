"""What one pass over rows can compute on a GPU: chains of row operations, and what reads the same rows."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from math import prod

from tdsl.autoschedule.open_stages import host_funcs
from tdsl.core.node import frozen
from tdsl.lang.affine import variables
from tdsl.lang.expr import ZERO, Read, Var
from tdsl.lang.program import FuncDef
from tdsl.lang.regions import Box, reads_in
from tdsl.schedule.bind import bind_state
from tdsl.schedule.bounds_inference import bounds_of
from tdsl.schedule.fluent import Stage
from tdsl.schedule.inlining import inline_funcs
from tdsl.schedule.legality import depends_on
from tdsl.schedule.needed_boxes import with_boxes_read
from tdsl.schedule.properties import extents, has_effects, root_boxes, unplaced_at_root, volume
from tdsl.schedule.state import State, is_ordered

MOST_OUTER = 2  # rows of sizes that only a call tells: axes of blocks other than the first


@frozen
class RowGroup:
    """Funcs that one row of the first needs, consumers first, and `siblings` that need the same row.

    `rows` are the variables of the first func that count rows, of which there are `count`, 0 where that is
    not known. `row_boxes` are the boxes of a row of these funcs and of what they read. Siblings
    do not read the first func; `row_of` are the variables that count their rows. Those over which one
    reduces are the rows of a sum of columns. `copies` are outputs that others of the group read, or that
    reduce a row: they have to be copies of stages inside.
    The first `outer` of the variables of rows have an axis of blocks of their own: nothing is known of a
    number that is divided by the next extent, which only a call tells.
    """

    rows: tuple[str, ...]
    funcs: tuple[FuncDef, ...]
    row_boxes: Mapping[str, Box]
    row_of: Mapping[str, tuple[str, ...]]
    outer: int = 0
    count: int = 0
    siblings: tuple[FuncDef, ...] = ()
    copies: tuple[str, ...] = ()

    @property
    def members(self) -> tuple[FuncDef, ...]:
        """All funcs of the group."""
        return (*self.funcs, *self.siblings)

    @property
    def reads(self) -> list[tuple[FuncDef, Read]]:
        """The reads of all funcs, each with its func."""
        return [(f, r) for f in self.members for r in reads_in(f.definitions[0].values)]

    @property
    def far_reads(self) -> list[Read]:
        """The reads of memory."""
        names = {f.name for f in self.members}
        return [r for _, r in self.reads if r.name not in names and r.name in self.row_boxes]

    @property
    def sums(self) -> tuple[FuncDef, ...]:
        """The siblings that sum columns."""
        return tuple(f for f in self.siblings if self.reduces_rows(f))

    def reduces_rows(self, f: FuncDef) -> bool:
        """True for a sibling that reduces over the rows."""
        return bool({v for v, _, _ in f.definitions[0].ranges} & {*self.row_of.get(f.name, ())})

    def sizes(self, f: FuncDef) -> dict[str, int]:
        """The extents of a func's variables in a row."""
        known = extents(f, f.definitions[0], self.row_boxes[f.name])
        rows = self.row_of.get(f.name, ()) if self.reduces_rows(f) else ()
        return {v: 1 if n is None or v in rows else n for v, n in known.items()}

    def along(self, f: FuncDef) -> list[str]:
        """The variables that go through the row, as in memory: those that are reduced over, or free ones."""
        d, sizes = f.definitions[0], self.sizes(f)
        if not d.ranges or self.reduces_rows(f):
            return [v for v in d.free if sizes[v] != 1]
        names = [v for v, _, _ in d.ranges]
        for r in reads_in(d.values):
            places = {e.name: n for n, e in enumerate(r.index) if isinstance(e, Var)}
            if {*names} <= places.keys():
                return sorted(names, key=places.__getitem__)
        return names

    def length_of(self, f: FuncDef) -> int:
        """The points of a func in a row."""
        return prod(self.sizes(f).values())

    @property
    def length(self) -> int:
        """The most points of a func in a row."""
        return max(map(self.length_of, self.members))

    def is_of_row(self, f: FuncDef, r: Read) -> bool:
        """True for a read of a row at the position that the func computes."""
        names, sizes = self.along(f), self.sizes(f)
        box = self.row_boxes.get(r.name)  # none where it is read over an empty range
        places = [n for n, e in enumerate(r.index) if variables(e) & {*names}]
        if box is None or not names or [r.index[n] for n in places] != [Var(v) for v in names]:
            return False
        bounds = bounds_of(f, f.definitions[0], self.row_boxes[f.name])
        if any(bounds[v][0] != ZERO or box[n][0] != ZERO for v, n in zip(names, places, strict=True)):
            return False
        whole = prod(sizes[v] for v in names) == self.length == volume(box)
        return whole and all(volume((box[n],)) == sizes[v] for v, n in zip(names, places, strict=True))


def find_row_group(
    stage: Stage, *, siblings: bool = True, sums: bool = True, whole: bool = False
) -> RowGroup | None:
    """The group of a func that has the most funcs, and of these the one with the most rows.

    Without `siblings` it has what the func needs only, and without `sums` no sums of columns. With `whole`
    all of a func may be one row, which no variable counts.
    """
    state = unplaced_at_root(inline_funcs(bind_state(stage.schedule.state, stage.schedule.sizes)))
    boxes = root_boxes(state)
    f = state.program.func(stage.func)
    if f.name not in boxes or not is_plain(f):
        return None
    open_ = {name for name, plan in state.plans if not plan.scheduled and name in boxes}
    open_ -= {f.name, *host_funcs(state)}
    best: RowGroup | None = None
    for rows in (*_row_choices(f, open_), *([()] if whole and not f.definitions[0].ranges else [])):
        group = _group(state, f, rows, open_, boxes, sums=sums if siblings else None)
        if group is not None and (best is None or _funcs(group) > _funcs(best)):
            best = group
    return best


def _funcs(group: RowGroup) -> int:
    return len(group.members)


def _row_choices(f: FuncDef, open_: Collection[str]) -> Iterator[tuple[str, ...]]:
    """Variables that may count rows, the most rows first: the first ones, or those at which sums are read."""
    d, others = f.definitions[0], dict[tuple[str, ...], None]()
    for n in range(len(d.free), 0, -1):
        if not d.ranges or n == len(d.free):
            yield d.free[:n]
    for r in reads_in(d.values) if not d.ranges else ():
        used = variables(r)
        rows = tuple(v for v in d.free if v in used)
        if r.name in open_ and rows and rows != d.free[: len(rows)]:
            others[rows] = None
    yield from others


def is_plain(f: FuncDef) -> bool:
    """True for a func with one definition, whose points may run in any order."""
    d = f.definitions[0]
    return len(f.definitions) == 1 and not (d.ranges and is_ordered(f, 0)) and not has_effects(d)


def _group(
    state: State, f: FuncDef, rows: tuple[str, ...], open_: Collection[str], boxes: Mapping[str, Box],
    *, sums: bool | None,
) -> RowGroup | None:  # fmt: skip
    """What can be computed row by row, each point once; None where nothing of it is a reduction.

    `sums` says if sums of columns are siblings; without any siblings it is None.
    """
    sizes = extents(f, f.definitions[0], boxes[f.name])
    count = prod(sizes[v] or 0 for v in rows)
    outer = max((n for n, v in enumerate(rows) if n and sizes[v] is None), default=0)
    if outer > MOST_OUTER:
        return None
    siblings = _siblings(state, f, rows, open_, boxes, sums=sums) if count and sums is not None else {}
    row_of = {f.name: rows, **siblings}
    others = [state.program.func(name) for name in siblings]
    starts, terms = dict[str, Box](), list[FuncDef]()
    for g in (f, *others):
        terms.append(_terms(g, row_of[g.name]))
        starts[g.name] = _row_box(terms[-1], row_of[g.name], boxes[g.name])
    inside = [
        g for g in reversed(state.program.funcs) if g.name in open_ and g.name not in siblings and is_plain(g)
    ]
    row_boxes = with_boxes_read((*terms, *inside), starts)
    row_boxes |= {g.name: boxes[g.name] for g, t in zip(others, terms[1:], strict=True) if t is not g}
    group = RowGroup(rows, (f,), row_boxes, siblings, outer, count, tuple(others))
    if not all(_is_along(group, g) for g in group.members):
        return _group(state, f, rows, (), boxes, sums=sums) if siblings and open_ else None
    copies = [g.name for g in others if g.definitions[0].ranges and not group.reduces_rows(g)]
    for g in inside:
        readers = {c.name for c, _ in state.consumers(g.name)}
        if g.name not in row_boxes or not readers <= {h.name for h in group.members} or not readers:
            continue
        points, whole = volume(row_boxes[g.name]), volume(boxes[g.name])
        once = points is not None and points * count == whole
        if once and _is_along(group, g):
            group = replace(group, funcs=(*group.funcs, g))
            copies += [g.name] if g.name in state.program.outputs else []
    if (group.siblings or copies) and f.definitions[0].ranges:
        if f.name not in state.program.outputs:
            return None
        copies.append(f.name)
    reduces = any(g.definitions[0].ranges for g in group.funcs) or (group.sums and group.along(f))
    return replace(group, copies=tuple(copies)) if reduces else None


def _terms(f: FuncDef, rows: tuple[str, ...]) -> FuncDef:
    """The func whose points are the terms of a sum over the rows; other funcs as they are."""
    d = f.definitions[0]
    if not {v for v, _, _ in d.ranges} & {*rows}:
        return f
    index = (*map(Var, rows), *d.index)
    points = replace(d, index=index, free=(*rows, *d.free), ranges=(), combine=None, init=None)
    return replace(f, definitions=(points,))


def _row_box(f: FuncDef, rows: tuple[str, ...], box: Box) -> Box:
    """The box of one row, whose places are named "row"."""
    at = {v: Var(f"row {n}") for n, v in enumerate(rows)}
    whole = (*((None, None) for _ in f.variables[len(box) :]), *box)
    return tuple((at[v], at[v]) if v in at else ends for v, ends in zip(f.variables, whole, strict=True))


def moves(box: Box) -> bool:
    """True for a box of a `RowGroup` that is another one for another row."""
    ends = (e for ends in box for e in ends if e is not None)
    return any(v.startswith("row ") for e in ends for v in variables(e))


def widens(f: FuncDef, source: str) -> bool:
    """True for a func of wider elements than those it reads of an array."""
    read = [r.dtype.bytes for r in reads_in(f.definitions[0].values) if r.name == source]
    return any(n < max(t.bytes for t in f.dtypes) for n in read)


def _is_along(group: RowGroup, f: FuncDef) -> bool:
    """True where neighbours of a row are neighbours in memory, and a reduction has one result in a row."""
    d, sizes = f.definitions[0], extents(f, f.definitions[0], group.row_boxes[f.name])
    if any(n is None for n in sizes.values()):
        return False
    if group.reduces_rows(f):
        names = group.along(f)
        return len(names) == 1 and d.index[-1:] == (Var(names[0]),)
    if d.ranges and any(sizes[v] != 1 for v in d.free):
        return False
    names = group.along(f)
    if not names:
        return True
    last = Var(names[-1])
    if not d.ranges:
        return d.index[-1:] == (last,)
    moving = [r for r in reads_in(d.values) if any(names[-1] in variables(e) for e in r.index)]
    return bool(moving) and all(r.index[-1:] == (last,) for r in moving)


def _siblings(
    state: State, f: FuncDef, rows: tuple[str, ...], open_: Collection[str], boxes: Mapping[str, Box],
    *, sums: bool,
) -> dict[str, tuple[str, ...]]:  # fmt: skip
    """The open funcs that read by row what a func does, with the variables that count their rows."""
    places, siblings = _row_places(state, f, rows, open_), dict[str, tuple[str, ...]]()
    sizes = bounds_of(f, f.definitions[0], boxes[f.name])
    for g in state.program.funcs:
        if g.name not in open_ or not is_plain(g):
            continue
        if any(depends_on(state, g.name, x) or depends_on(state, x, g.name) for x in (f.name, *siblings)):
            continue
        named = _rows_of(state, g, len(rows), places, open_)
        if named is None:
            continue
        bounds = bounds_of(g, g.definitions[0], boxes[g.name])
        if any(bounds[v] != sizes[w] for v, w in zip(named, rows, strict=True)):
            continue
        reduced = {v for v, _, _ in g.definitions[0].ranges}
        by_row = g.name in state.program.outputs and reduced.isdisjoint(named)
        if by_row or (sums and reduced == {*named}):
            siblings[g.name] = named
    return siblings


def _row_places(
    state: State, f: FuncDef, rows: tuple[str, ...], open_: Collection[str]
) -> dict[str, tuple[int | None, ...]]:
    """For each dimension of what a func needs, which of the rows it counts; None for a dimension of others.

    Nothing is said of what is read in several ways.
    """
    places: dict[str, tuple[int | None, ...]] = {}
    stack = [(f, {v: n for n, v in enumerate(rows)})]
    while stack:
        g, numbers = stack.pop()
        for r in reads_in(g.definitions[0].values):
            dims = tuple(numbers.get(e.name) if isinstance(e, Var) else None for e in r.index)
            if places.setdefault(r.name, dims) != dims:
                places[r.name] = ()
            elif r.name in open_ and {*dims} != {None}:
                h = state.program.func(r.name)
                known = {v: n for v, n in zip(h.variables, dims, strict=True) if n is not None}
                if is_plain(h) and h.name != g.name and (h, known) not in stack:
                    stack.append((h, known))
    return places


def _rows_of(
    state: State, f: FuncDef, count: int, places: Mapping[str, tuple[int | None, ...]], open_: Collection[str]
) -> tuple[str, ...] | None:
    """The variables of a func that count rows, by what it reads; None where its rows are not these."""
    names: dict[int, str] = {}
    for r in reads_in(f.definitions[0].values):
        dims = places.get(r.name)
        if dims is None and r.name in open_ and r.name != f.name:
            g = state.program.func(r.name)
            inner = _rows_of(state, g, count, places, open_) if is_plain(g) else None
            dims = tuple(inner.index(v) if v in inner else None for v in g.variables) if inner else ()
        for e, n in zip(r.index, dims or (), strict=False):
            if n is not None and (not isinstance(e, Var) or names.setdefault(n, e.name) != e.name):
                return None
    if sorted(names) != [*range(count)] or len({*names.values()}) < count:
        return None
    return tuple(names[n] for n in range(count))
