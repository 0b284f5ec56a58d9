"""Bounds inference: the box of each func that the body of a loop needs, by the region function.

In an `OpenNest`, which is being lowered, the variables of open loops are fixed and the other loops run over
their whole range. `required_boxes` starts from the reads of open nests and from the outputs, and goes back
through every func that is computed inside that loop.

The predicate (`where`) of a definition restricts the points that it computes; terms of a reduction for which
its `mask` is false equal the identity and may be skipped.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from tdsl.core.node import frozen
from tdsl.lang.access_boxes import accessed_boxes, propagate, reads_of_func, update_closure
from tdsl.lang.affine import constant_bounds, variables
from tdsl.lang.bounds import Facts, at_most, upper
from tdsl.lang.definition import Definition
from tdsl.lang.expr import ONE, TRUE, Expr, Var, const
from tdsl.lang.program import FuncDef
from tdsl.lang.regions import (
    Box,
    Interval,
    box_of,
    boxes_of,
    free_range,
    intersection,
    intersection_box,
    interval_of,
    interval_where,
    is_empty,
    restrict_ranges,
    union_box,
)  # fmt: skip
from tdsl.lang.simplify import (
    add,
    ceildiv,
    conjunction,
    minimum,
    multiply,
    simplify,
    substitute,
    subtract,
)
from tdsl.schedule.full_tiles import full_tile_box, is_total
from tdsl.schedule.state import (
    COOPERATIVE,
    FRAGMENT,
    REGISTER,
    ROUND_UP,
    SHARED,
    AfterProducer,
    FuncPlan,
    Level,
    Nest,
    Split,
    State,
)
from tdsl.schedule.tree import ScheduleTree


@frozen
class ThreadLoops:
    """The open loops over threads of a GPU and their ranges, outermost first.

    `program_boxes` are the boxes that the whole program needs, an upper bound for the threads of a block.
    `enclosing_boxes` are the boxes of the enclosing places, an upper bound for which memory is allocated.
    `copied` are funcs of which each thread has a copy for all threads (`read_by_block`).
    """

    ranges: Mapping[str, Interval]
    program_boxes: Mapping[str, Box]
    enclosing_boxes: Mapping[str, Box] = field(default_factory=dict)
    copied: Collection[str] = ()

    def clip(self, name: str, box: Box, facts: Facts) -> Box:
        """The box of a func clipped to the box that the enclosing place, or the whole program, needs.

        An index that is not affine, as `i % 4`, may have wider bounds for one iteration than for all of them.

        >>> from tdsl.lang.bounds import NO_FACTS
        >>> threads = ThreadLoops({}, {"f": ((const(1), const(14)),)})
        >>> (lo, hi), = threads.clip("f", ((const(0), Var("t")),), NO_FACTS)
        >>> lo.value, hi.name
        (1, 't')
        """
        outer = self.enclosing_boxes.get(name) or self.program_boxes.get(name)
        if outer is None:
            return box
        return tuple(_clip(a, b, facts) for a, b in zip(box, outer, strict=True))

    def box_of_all(self, name: str, box: Box, facts: Facts) -> Box:
        """The box of a func that all threads need, from the box that one of them needs.

        >>> from tdsl.lang.bounds import NO_FACTS
        >>> t = Var("t")
        >>> threads = ThreadLoops({"t": (const(0), const(15))}, {"f": ((const(0), const(14)),)})
        >>> (lo, hi), = threads.box_of_all("f", ((t, add(t, const(3))),), NO_FACTS)
        >>> lo.value, hi.value
        (0, 14)

        Without threads the box is unchanged: its readers, too, may have boxes beyond `program_boxes`.

        >>> box = ((t, add(t, const(30))),)
        >>> ThreadLoops({}, threads.program_boxes).box_of_all("f", box, NO_FACTS) == box
        True
        """
        if not self.ranges:
            return box
        for variable, run in reversed(list(self.ranges.items())):
            box = tuple(
                (
                    None if lo is None else interval_of(lo, {variable: run}, facts)[0],
                    None if hi is None else interval_of(hi, {variable: run}, facts)[1],
                )
                for lo, hi in box
            )
        bound = self.program_boxes.get(name)
        return box if bound is None else intersection_box(box, bound, facts)


NO_THREADS = ThreadLoops({}, {})
NO_LIMITS: Mapping[str, Box] = {}


def _clip(interval: Interval, bound: Interval, facts: Facts) -> Interval:
    (lo, hi), (first, last) = interval, bound
    if lo is not None and first is not None and at_most(lo, first, facts):
        lo = lo if at_most(first, lo, facts) else first  # equal ends keep their expression
    if hi is not None and last is not None and at_most(last, hi, facts):
        hi = hi if at_most(hi, last, facts) else last
    return lo, hi


@dataclass(slots=True)
class OpenNest:
    """A nest that is being lowered, some of whose loops are open.

    `roots` has each variable as an expression of loops; `opened` maps a loop to its variable in the loop IR;
    `extents` are the extents of loops, `bounds` the (first, extent) of variables.
    With `past_bounds`, points of loops beyond these bounds are computed, too. `guards` are the conditions
    under which a point of the loops is a point of the definition.
    """

    func: FuncDef
    definition: int
    nest: Nest
    roots: dict[str, Expr]
    extents: dict[str, Expr]
    bounds: dict[str, tuple[Expr, Expr]]
    opened: dict[str, Expr] = field(default_factory=dict)
    past_bounds: bool = False
    guards: tuple[Expr, ...] = ()

    @property
    def d(self) -> Definition:
        """The definition whose loops are open."""
        return self.func.definitions[self.definition]

    def first_of(self, loop: str) -> Expr:
        """The first value of a loop: the first of its variable if the loop is that variable, else 0."""
        return self.bounds[loop][0] if loop in self.bounds else const(0)

    def ranges(self, facts: Facts, guards: tuple[Expr, ...] = ()) -> dict[str, Interval]:
        """The range of each variable of the definition for fixed open loops, if all `guards` hold."""
        free: dict[str, Interval] = {}
        for loop in self.nest.names():
            if loop not in self.opened:
                lo = self.first_of(loop)
                free[loop] = (lo, subtract(add(lo, self.extents[loop]), ONE))
        condition = conjunction(substitute(g, self.opened) for g in guards)
        result: dict[str, Interval] = {}
        runs = {**free, **{loop: (e, e) for loop, e in self.opened.items()}}
        for name, value in self.roots.items():
            ends = constant_bounds(value, runs) if condition == TRUE else None
            fixed = value if ends else substitute(value, self.opened)
            lo_, hi_ = ends or interval_where(fixed, free, condition, facts)
            first, extent = self.bounds[name]
            last = subtract(add(first, extent), ONE)
            if self.past_bounds:
                result[name] = lo_, hi_
                continue
            # a product of a loop and an unknown extent has no bounds; the bounds of the variable apply
            result[name] = intersection((lo_, hi_), (first, last), facts)
        if self.d.mask == TRUE:
            return result
        opened = {n for n, value in self.roots.items() if variables(value) & self.opened.keys()}
        return masked_ranges(result, self.d, facts, opened)

    def written_box(self, facts: Facts) -> Box:
        """The box that the nest writes while its open loops are fixed."""
        return box_of(self.d.index, self.ranges(facts), facts)

    def computed_box(self, facts: Facts) -> Box:
        """The box that the nest writes, without points that the tail guards of inner splits skip."""
        return box_of(self.d.index, self.ranges(facts, self.guards), facts)

    def values(self) -> dict[str, Expr]:
        """Each variable of the definition as an expression of the loop IR; all loops must be open."""
        return {name: substitute(value, self.opened) for name, value in self.roots.items()}


def bounds_of(f: FuncDef, d: Definition, box: Box) -> dict[str, tuple[Expr, Expr]]:
    """(first, extent) of each variable if a func is computed on a box."""
    bounds: dict[str, tuple[Expr, Expr]] = {}
    for name in d.free:
        lo, hi = free_range(name, d.index, box)
        assert lo is not None and hi is not None, f"{f.name} is unbounded"
        bounds[name] = (lo, simplify(add(subtract(hi, lo), ONE)))
    for name, low, high in d.ranges:
        assert low is not None and high is not None
        bounds[name] = (low, simplify(subtract(high, low)))
    return bounds


def definition_ranges(d: Definition, box: Box, facts: Facts) -> dict[str, Interval]:
    """The range of each variable if a func is computed on a box, narrowed by its predicate and mask."""
    ranges = variable_ranges(d, box, facts)
    ranges = ranges if d.where == TRUE else restrict_ranges(ranges, d.where, facts)
    return masked_ranges(ranges, d, facts)


def variable_ranges(d: Definition, box: Box, facts: Facts) -> dict[str, Interval]:
    """The range of each variable if a func is computed on a box, without predicates and masks."""
    ranges: dict[str, Interval] = {}
    for name in d.free:
        ranges[name] = free_range(name, d.index, box, facts)
    for name, lo, hi in d.ranges:
        assert hi is not None
        ranges[name] = (lo, subtract(hi, ONE))
    return ranges


def term_ranges(d: Definition, box: Box, facts: Facts) -> dict[str, Interval]:
    """The range of each variable if a func is computed on a box, without predicates; masks narrow terms."""
    return masked_ranges(variable_ranges(d, box, facts), d, facts)


def boxes_read(d: Definition, box: Box, facts: Facts) -> dict[str, Box]:
    """The boxes that a definition reads if a func is computed on a box."""
    return accessed_boxes(d, term_ranges(d, box, facts), facts)


def masked_ranges(
    ranges: dict[str, Interval], d: Definition, facts: Facts, opened: Collection[str] = ()
) -> dict[str, Interval]:
    """`ranges`, with the ranges of reduction variables narrowed to the terms that the mask keeps.

    Variables in `opened`, whose loops are open, keep their ranges.
    """
    if d.mask == TRUE:
        return ranges
    narrow = restrict_ranges(ranges, d.mask, facts)
    return ranges | {n: narrow[n] for n, _, _ in d.ranges if n not in opened}


def box_with_updates(f: FuncDef, box: Box, facts: Facts, bound: Box | None = None) -> Box:
    """The box enlarged by what the updates of the func write and read of it; `bound` if unbounded."""
    return update_closure(f, box, lambda d, b: variable_ranges(d, b, facts), facts, bound)


def round_up_box(state: State, f: FuncDef, box: Box, facts: Facts, *, whole: bool) -> Box:
    """The box enlarged for splits that round up: to a multiple of the factor if `whole`, else by factor - 1.

    It contains the elements that updates access at the additional points. Outputs, and funcs computed after
    their producer, are not enlarged.
    """
    if f.name in state.program.outputs or isinstance(state.plan(f.name).place, AfterProducer):
        return box
    intervals = list(box)
    for axis, step in _rounded_axes(state, f):
        lo, hi = intervals[axis]
        if lo is None or hi is None:
            continue
        if whole:
            extent = add(subtract(hi, lo), ONE)
            full = multiply(ceildiv(extent, const(step), facts), const(step))
            intervals[axis] = (lo, simplify(subtract(add(lo, full), ONE), facts))
        else:
            intervals[axis] = (lo, add(hi, const(step - 1)))
    larger = tuple(intervals)
    return box if larger == box else box_with_updates(replace(f, declared=False), larger, facts)


def _rounded_axes(state: State, f: FuncDef) -> list[tuple[int, int]]:
    """The axis and the factor of each split that rounds up the range of an axis of a func."""
    return [
        (next(n for n, e in enumerate(d.index) if e == Var(r.parent)), r.factor or r.parts or 1)
        for d, nest in zip(f.definitions, state.plan(f.name).nests, strict=True)
        for r in nest.relations
        if isinstance(r, Split) and r.tail == ROUND_UP and r.parent in d.free
    ]


def fix_extents(state: State, name: str, box: Box, limits: Mapping[str, Box], facts: Facts) -> Box:
    """The box of a func with the extents of `bound_extent`, moved back to stay inside `limits`.

    >>> from tdsl.lang.bounds import NO_FACTS
    >>> import tdsl as td
    >>> i, g, f = td.vars("i"), td.Func("g"), td.Func("f", shape=(100,))
    >>> g[i] = i * 2
    >>> f[i] = g[i]
    >>> s = td.Schedule(f)
    >>> block, _ = s[f].split(i, 16)
    >>> _ = s[g].compute_at(f, block).bound_extent(i, 16)
    >>> lo = multiply(Var("b"), const(16))
    >>> box = ((lo, minimum(add(lo, const(15)), const(99))),)
    >>> (lo, hi), = fix_extents(s.state, "g", box, {"g": ((const(0), const(99)),)}, NO_FACTS)
    >>> from tdsl.lang.show import show_expr
    >>> print(show_expr(lo), show_expr(hi))
    min(b * 16, 84) min(b * 16 + 15, 99)
    """
    intervals, f = list(box), state.program.func(name)
    rounds = _rounded_axes(state, f)
    for axis, given in state.plan(name).extents:
        (lo, hi), (first, last) = box[axis], limits.get(name, box)[axis]
        if lo is None or hi is None or first is None or last is None:
            continue
        if name in limits and (steps := [step for n, step in rounds if n == axis]):
            if len(f.definitions) > 1:
                continue
            # the limits already contain the rounding
            last = subtract(last, const(sum(steps) - len(steps)))
        extent = upper(simplify(add(subtract(hi, lo), ONE), facts), facts) if given is None else given
        if extent is None:
            continue
        available = simplify(add(subtract(last, first), ONE), facts)
        if at_most(available, const(extent), facts):
            intervals[axis] = first, last
        elif at_most(const(extent), available, facts) and at_most(
            add(subtract(hi, lo), ONE), const(extent), facts
        ):
            lo = minimum(lo, subtract(last, const(extent - 1)), facts)
            intervals[axis] = lo, add(lo, const(extent - 1))
    return tuple(intervals)


def funcs_inside(tree: ScheduleTree, state: State, levels: Iterable[Level]) -> set[str]:
    """Every func whose loops are nested in one of the levels, directly or in the loops of such a func."""
    names: set[str] = set()
    stack = list(levels)
    while stack:
        level = stack.pop()
        for places in (tree.computed, tree.after, tree.joined):
            for name in places.get(level, ()):
                if name not in names:
                    names.add(name)
                    for n, nest in enumerate(state.plan(name).nests if name in tree.hosts else ()):
                        stack += [Level(name, n, loop) for loop in nest.names()]
    return names


def read_by_block(tree: ScheduleTree, state: State, level: Level) -> frozenset[str]:
    """The funcs computed at a level, not in shared memory, that funcs in shared memory there read.

    Any thread may compute the latter, also one that has no points of its own.
    """
    inside = funcs_inside(tree, state, [level])
    readers = {name for name in inside if state.plan(name).scope == SHARED}
    copied: set[str] = set()
    for name in reversed(tree.computed.get(level, ())):
        definitions = [d for reader in readers for d in state.program.func(reader).definitions]
        read = any(r.name == name for d in definitions for r in d.reads)
        if read and name not in readers and state.plan(name).scope not in COOPERATIVE:
            copied.add(name)
            readers.add(name)
    return frozenset(copied)


def required_boxes(
    tree: ScheduleTree, state: State, levels: tuple[Level, ...], start: dict[str, Box],
    actives: list[OpenNest], facts: Facts, threads: ThreadLoops = NO_THREADS, exact: bool = False,
    limits: Mapping[str, Box] = NO_LIMITS,
) -> dict[str, Box]:  # fmt: skip
    """The box of every input and func that is needed inside a loop body, the first of `levels`.

    `levels` are that level and those inside it. Boxes start from outputs (`start`) and from the reads of
    open nests, and propagate from consumers to producers through every func computed inside. Boxes in
    shared memory are the union over all `threads`. `limits` are the boxes that the whole program needs.
    With `exact`, boxes of fragments are not rounded up to whole tiles.
    """
    names = funcs_inside(tree, state, levels)
    here = set(tree.computed.get(levels[0], ()))
    boxes = dict(start)
    producers = {level.func for level in tree.after}
    for active in actives:
        if active.func.name in producers:
            _add_after(tree, state, names, {active.func.name: active.computed_box(facts)}, boxes, facts)
        _add_boxes(boxes, active.func.name, _iteration_reads(active, facts, threads), facts)

    def computed(f: FuncDef, needed: Box) -> Box:
        name, plan = f.name, state.plan(f.name)
        after_outer = _is_after_outer_producer(state, name, names)
        # limits that were rounded up must not be rounded again
        bound = None if _rounded_axes(state, f) else limits.get(name)
        updated = box_with_updates(f, needed, facts, bound)
        box = _box_for_threads(plan, name, updated, threads, facts, after_outer=after_outer)
        if plan.extents and not after_outer:
            box = fix_extents(state, name, box, limits, facts)
        if not exact:
            box = full_tile_box(state, f, box, facts)
        return round_up_box(state, f, box, facts, whole=name in here)

    def reads(f: FuncDef, box: Box) -> dict[str, Box]:
        if not exact and state.plan(f.name).scope in (FRAGMENT, REGISTER) and is_total(state, f.name):
            f = replace(f, definitions=tuple(replace(d, where=TRUE) for d in f.definitions))
        return reads_of_func(f, box, lambda d, b: term_ranges(d, b, facts), facts)

    funcs = (state.program.func(name) for name in reversed(tree.order) if name in names)
    return propagate(funcs, boxes, reads, computed, facts)


def _iteration_reads(active: OpenNest, facts: Facts, threads: ThreadLoops) -> dict[str, Box]:
    """The boxes that the open iteration of a nest reads."""
    # tiles that the threads of a block compute together have one shape, wherever a mask cuts them
    everywhere = active.past_bounds or threads.ranges
    ranges = active.ranges(facts, () if active.past_bounds else active.guards)
    if not everywhere or any(is_empty(r, facts) for r in ranges.values()):
        return accessed_boxes(active.d, ranges, facts)
    return boxes_of(active.d.indices, ranges, facts)


def _box_for_threads(
    plan: FuncPlan, name: str, box: Box, threads: ThreadLoops, facts: Facts, *, after_outer: bool
) -> Box:
    """The box of a func that all threads sharing its memory need, from the box that one thread needs."""
    if plan.scope != FRAGMENT and not plan.bulk:
        box = threads.clip(name, box, facts)
    # a func computed after its producer copies the points of one thread
    of_all = plan.scope == SHARED or name in threads.copied
    return threads.box_of_all(name, box, facts) if of_all and not after_outer else box


def _add_boxes(boxes: dict[str, Box], reader: str, reads: dict[str, Box], facts: Facts) -> None:
    for name, box in reads.items():
        if name != reader:
            boxes[name] = union_box(boxes.get(name), box, facts)


def _is_after_outer_producer(state: State, name: str, names: set[str]) -> bool:
    """True if a func is computed after a producer, directly or not, that is not one of `names`."""
    match state.plan(name).place:
        case AfterProducer(level):
            return level.func not in names or _is_after_outer_producer(state, level.func, names)
        case _:
            return False


def _add_after(
    tree: ScheduleTree,
    state: State,
    names: set[str],
    computed: dict[str, Box],
    boxes: dict[str, Box],
    facts: Facts,
) -> None:
    """Set the boxes of element-wise funcs that are computed after a producer to the box it computed."""
    for name in tree.order:
        place = state.plan(name).place
        if name in names and isinstance(place, AfterProducer) and place.level.func in computed:
            f = state.program.func(name)
            box = box_after_producer(f, place.level.func, computed[place.level.func])
            computed[name] = boxes[name] = box


def box_after_producer(f: FuncDef, producer: str, box: Box) -> Box:
    """The box of an element-wise func, from the box of the producer after which it is computed."""
    d = f.definitions[0]
    read = next(r for r in d.reads if r.name == producer)
    return tuple(box[read.index.index(e)] for e in d.index)
