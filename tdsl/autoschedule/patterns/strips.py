"""Strips: a group of funcs that is computed line by line inside the loops of the last one.

    for strips of lines (threads):
      for line:
        the lines of each producer that this line is the first to need, in a ring
        the line

or, where that takes few operations, some lines at a time, with nothing kept in memory:

    for strips of lines (threads):
      for some lines:
        for some vectors of them:
          what they need of each producer, in registers
          the lines

`plan_strips` finds the group and decides the height of a strip; `recipes/stencil.py` writes the plan as
directives. The lines that two strips need are computed in both: a strip is so high that they are few.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from tdsl.autoschedule.patterns.contraction import contraction, find_contraction
from tdsl.autoschedule.patterns.lookups import lookup_axes
from tdsl.autoschedule.patterns.rows import vectors_of
from tdsl.autoschedule.patterns.streaming import is_bound_by_memory, pays_to_stream
from tdsl.core.node import frozen
from tdsl.cost.price import MOST_AGAIN, too_expensive
from tdsl.lang.expr import Const, Expr, Var, const
from tdsl.lang.program import FuncDef
from tdsl.lang.regions import Box, reads_in
from tdsl.lang.simplify import add
from tdsl.machine.model import Machine
from tdsl.schedule.needed_boxes import boxes_of_group
from tdsl.schedule.properties import extent, extents, volume, work_per_point
from tdsl.schedule.state import State

LONGEST = 32  # funcs of a group that are computed together, the nearest to the owner
HEIGHTS = (32, 64, 128, 256, 512, 1024)
AGAIN = 1.1  # how often each point may be computed for strips to be high enough
LEAST_LINES = 16  # of the whole, from which strips pay
EVEN = 8  # lines, of which a strip has a multiple
COARSE = 8  # times the points of a func that the owner has, from which it is computed first
INSIDE = 1 << 12  # a place between the ends of a dimension whose extent is not known
FAR = 64  # lines that show how much each further line costs
TOGETHER = (4, 8)  # lines whose operands may stay in registers
REGISTERS = 16  # vectors for that
LEAST_BLOCKS = 4  # of such vectors in a line
MANY = 16  # terms of a sum, whose operands should be used again
MOST_TWICE = 1.5  # how often each point may be computed instead of being kept in memory


@frozen
class Strips:
    """How a group runs inside the loops of its last func, the owner.

    `line` is the variable of the owner that its lines are counted by; `outer` those that stay outside of
    it. Threads share the loop over `parallel`: one of those, or the line itself, by strips. A strip has
    `height` lines; 0 means that each line is computed separately, and nothing is kept for the
    next. `inside` are the funcs of the group, consumers first. `lookup_axes` gives funcs whose elements along
    a variable are contiguous, since they are looked up along it. `stream` uses non-temporal stores.
    `lines` above 1 are computed together, `vectors` of each at a time, and what they need of the funcs
    inside is computed for them alone.
    """

    line: str
    outer: tuple[str, ...]
    parallel: str
    height: int
    inside: tuple[str, ...]
    lookup_axes: tuple[tuple[str, str], ...] = ()
    stream: bool = False
    lines: int = 1
    vectors: int = 1


def plan_strips(
    state: State, owner: str, group: Sequence[str], boxes: dict[str, Box], machine: Machine
) -> Strips | None:
    """The strips that compute most of a group; None where none of it moves with the lines of its owner."""
    f = state.program.func(owner)
    if not group or len(f.definitions) > 1 or f.definitions[0].init is not None:
        return None
    sizes = extents(f, f.definitions[0], boxes[owner])
    best: Strips | None = None
    for n, line in enumerate(f.variables):
        e = sizes[line]
        steps = FAR if e is None else max(min(FAR, e // 4), 1)
        names = _not_coarse(state, f, group, boxes, e)
        strip_group = _Group(state, f, names[:LONGEST], boxes, line, steps)
        candidate = _priced(strip_group, machine, n + 1)
        if candidate is not None and (best is None or _is_better(candidate, best, f)):
            best = candidate
        if best is not None and best.height:
            break
    return best


def separate_products(
    state: State, owner: str, group: Sequence[str], boxes: dict[str, Box], machine: Machine
) -> set[str]:
    """The sums of products in a group that get tiles of their own instead of loops in lines of the owner.

    In a line no operand would be used again, and all would come from memory. Only products of what is not
    computed in these lines: that may be in a cache. Funcs that read one sum element by element are returned,
    too.
    """
    sums = {
        name: product
        for name in group
        if (product := contraction(state.program.func(name), boxes)) and product.terms >= MANY
    }
    plan = plan_strips(state, owner, group, boxes, machine) if sums else None
    if plan is None:
        return set()
    computed = {*plan.inside}
    sums = {n: c for n, c in sums.items() if computed.isdisjoint(r.name for r in reads_in((c.value,)))}
    f = state.program.func(owner)
    needed = _Group(state, f, plan.inside, boxes, plan.line, 1).needed(max(plan.height, plan.lines))
    lost = {n for n in plan.inside if n in sums and not contraction(state.program.func(n), needed)}
    readers = {
        c.name
        for name in lost
        for c, _ in state.consumers(name)
        if c.name in plan.inside and find_contraction(state, c.name, [name], boxes)
    }
    return lost | readers


def _not_coarse(
    state: State, owner: FuncDef, group: Sequence[str], boxes: dict[str, Box], lines: int | None
) -> tuple[str, ...]:
    """The funcs of a group without the levels far down a pyramid, which take little of the whole time."""
    whole, kept = volume(boxes[owner.name]), [owner.name]
    for name in group:
        readers = {c.name for c, _ in state.consumers(name)}
        if name not in boxes or not readers <= {*kept}:
            continue
        points = volume(boxes[name])
        sides = [extent(boxes[name], axis) for axis in range(len(boxes[name]))]
        less = points is not None and whole is not None and points * COARSE <= whole
        if not less or not lines or any(n is None or 2 * n > lines for n in sides):
            kept.append(name)
    return tuple(kept[1:])


def _is_better(a: Strips, b: Strips, f: FuncDef) -> bool:
    """True when `a`, whose lines are inside of those of `b`, has more in them, or needs less for each."""
    if len(a.inside) == len(b.inside):
        return not a.height and not b.height and a.line != f.variables[-1]
    return len(a.inside) > len(b.inside)


@frozen
class _Group:
    """A group, the box of each func in all, and a variable of the owner along which lines are counted.

    `steps` is a number of lines from whose cost that of any number follows.
    """

    state: State
    owner: FuncDef
    names: tuple[str, ...]
    boxes: dict[str, Box]
    line: str
    steps: int

    def needed(self, lines: int = 1, moved: str = "", columns: int = 0) -> dict[str, Box]:
        """The boxes that some inner lines of the owner need, or only some columns of them.

        `moved` is a variable to go on along.
        """
        f, box = self.owner, list(self.boxes[self.owner.name])
        for axis, v in enumerate(f.variables):
            place = self.place(axis)
            first = add(place, const(self.steps)) if v == moved else place
            box[axis] = (first, add(first, const(lines - 1)) if v == self.line else first)
            if v == self.line:
                break
        if columns:
            first = self.place(len(box) - 1)
            box[-1] = (first, add(first, const(columns - 1)))
        return boxes_of_group(self.state, f.name, tuple(box), self.names)

    def place(self, axis: int) -> Expr:
        """A place along a dimension of the owner away from its ends."""
        lo, hi = self.boxes[self.owner.name][axis]
        if not isinstance(lo, Const):
            return Var(f"{self.owner.variables[axis]} of the owner")  # no variable has spaces
        inside = (int(hi.value) - int(lo.value)) // 4 if isinstance(hi, Const) else INSIDE
        return const(int(lo.value) + inside)

    def moving(self, here: dict[str, Box], further: dict[str, Box]) -> frozenset[str]:
        """The funcs of which another part is needed further on."""
        return frozenset(
            name
            for name in self.names
            if name in self.boxes and name in here and here[name] != further.get(name, here[name])
        )

    def inside(self, needed: dict[str, Box], further: dict[str, Box], room: int) -> tuple[str, ...]:
        """The funcs that move with the lines and are read inside only, as far as there is room."""
        kept: list[str] = []
        moving = self.moving(needed, further)
        for name in self.names:
            f = self.state.program.func(name)
            readers = {c.name for c, _ in self.state.consumers(name)}
            if name in moving and readers <= {self.owner.name, *kept}:
                room -= (volume(needed[name]) or 0) * sum(t.bytes for t in f.dtypes)
                if room < 0:
                    break
                kept.append(name)
        return tuple(kept)

    def work(self, needed: dict[str, Box], inside: tuple[str, ...]) -> float | None:
        """The operations of the funcs inside for the boxes needed."""
        total = 0.0
        for name in inside:
            points = volume(needed[name])
            if points is None:
                return None
            total += points * work_per_point(self.state.program.func(name))
        return total


def _priced(g: _Group, machine: Machine, depth: int) -> Strips | None:
    """The strips without the funcs that would be computed too often, and what only those need."""
    plan = _along(g, machine, depth)
    while plan is not None:
        height = max(plan.height, 1)
        dear = too_expensive(g.state, g.owner.name, plan.outer, plan.line, plan.inside, g.boxes, height)
        if not dear:
            return plan
        g = replace(g, names=tuple(name for name in g.names if name not in dear))
        plan = _along(g, machine, depth)
    return None


def _along(g: _Group, machine: Machine, depth: int) -> Strips | None:
    f, needed, further = g.owner, g.needed(), g.needed(1 + g.steps)
    inside = g.inside(needed, further, machine.l2_share)
    sizes = extents(f, f.definitions[0], g.boxes[f.name])
    lines = sizes[g.line]
    if not inside or lines == 1:
        return None
    one, far = g.work(needed, inside), g.work(further, inside)
    each = None if one is None or far is None else (far - one) / g.steps
    if one is None or not each:
        return None
    before = f.variables[: depth - 1]
    outer = tuple(v for v in before if g.moving(needed, g.needed(moved=v)) & {*inside})
    above = prod(sizes[v] or 1 for v in outer)
    points = (volume(g.boxes[f.name]) or 1) / (above * (lines or 1))  # of a line
    owner_work = work_per_point(f)
    if g.line == f.variables[-1] and points > 1 and each < points * owner_work:
        return None  # the owner would run across its memory for little
    work = each / points + owner_work
    stream = pays_to_stream(g.state, f.name, g.boxes, work, machine)
    axes = lookup_axes(g.state, (f.name, *inside), g.boxes, machine.vector_bytes)
    if one <= AGAIN * each and not axes:
        return Strips(g.line, outer, g.line, 0, inside, stream=stream)
    if depth == len(f.variables) or (lines is not None and lines < LEAST_LINES):
        return None
    parallel = outer[0] if outer and above >= 2 * machine.threads else g.line
    threads = machine.threads if parallel == g.line else 1
    twice = one / each - 1  # lines that a strip computes although another does, too
    height = _height(lines, threads, twice)
    if twice > (MOST_AGAIN - 1) * height:
        return None
    plan = Strips(g.line, outer, parallel, height, inside, tuple(axes.items()), stream)
    return plan if axes or not is_bound_by_memory(f, work) else _together(g, plan, each, machine)


def _together(g: _Group, plan: Strips, each: float, machine: Machine) -> Strips:
    """Several lines at a time, if what they need of the funcs inside fits into registers."""
    f, sizes = g.owner, extents(g.owner, g.owner.definitions[0], g.boxes[g.owner.name])
    first, across = vectors_of(f, 0, sizes, machine.vector_bytes) or ("", 1)
    funcs = [g.state.program.func(name) for name in plan.inside]
    plain = all(len(h.definitions) == 1 and h.definitions[0].init is None for h in funcs)
    if f.variables[-2:] != (g.line, first) or not plain:
        return plan
    if any(t.bytes * across != machine.vector_bytes for h in (f, *funcs) for t in h.dtypes):
        return plan
    for lines in (n for n in TOGETHER if n <= plan.height):
        needed = g.needed(lines, columns=across)
        points = sum(volume(needed[name]) or 0 for name in plan.inside)
        aligned = all(extent(needed[name], -1) == across for name in plan.inside)
        again = (g.work(needed, plan.inside) or 0) / (lines * across) * (sizes[first] or 0) / each
        vectors = min(REGISTERS * across // max(points, 1), 2)
        enough = (sizes[first] or 0) >= LEAST_BLOCKS * vectors * across
        if aligned and vectors and enough and again <= MOST_TWICE:
            return replace(plan, lines=lines, vectors=vectors)
    return plan


def _height(lines: int | None, threads: int, twice: float) -> int:
    """The lines of a strip: enough that few are computed twice, and a strip or two for every thread."""
    height = next((h for h in HEIGHTS if twice <= (AGAIN - 1) * h), HEIGHTS[-1])
    if lines is None:
        return height
    strips = max(-(-lines // height), 2 * threads)
    if strips >= 8 * threads:
        return -(-height // EVEN) * EVEN
    strips = -(-strips // threads) * threads  # each thread gets as many as the others
    height = max(-(-lines // strips), 1)
    even = -(-height // EVEN) * EVEN
    return even if -(-lines // even) == strips else height
