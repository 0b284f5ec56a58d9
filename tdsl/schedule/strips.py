"""Strips: a group of funcs that is computed line by line inside the loops of the last one.

    for strips of lines (threads):
      for line:
        the lines of each producer that this line is the first to need, in a ring
        the line

`plan_strips` finds the group and decides the height of a strip; `recipes/stencil.py` writes the plan as
directives. The lines that two strips need are computed in both: a strip is so high that they are few.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from tdsl.lang.affine import variables
from tdsl.lang.bounds import NOTHING
from tdsl.lang.expr import Var, const
from tdsl.lang.program import FuncDef
from tdsl.lang.regions import Box, boxes_of, is_empty, union_box
from tdsl.lang.simplify import subtract
from tdsl.schedule.facts import extents, volume
from tdsl.schedule.lookups import lookup_axes
from tdsl.schedule.machine import Machine
from tdsl.schedule.nest import State
from tdsl.schedule.required import definition_ranges
from tdsl.schedule.streaming import pays_to_stream, work_of_a_point

HEIGHTS = (32, 64, 128, 256, 512, 1024)
AGAIN = 1.1  # how often each point may be computed for strips to be high enough
MOST_AGAIN = 2.5  # above which all of a func is better computed first
LEAST_LINES = 16  # of the whole, from which strips pay
EVEN = 8  # lines, of which a strip has a multiple
_MARK = "'"  # of variables of the owner, where those of its producers may have the same names
FAR = 64  # lines that show how much each further line costs


@dataclass(frozen=True, slots=True)
class Strips:
    """How a group runs inside the loops of its last func, the owner.

    `line` is the variable of the owner that its lines are counted by; `outer` those that stay outside of
    it. Threads share the loop over `parallel`: one of those, or the line itself, by strips. A strip has
    `height` lines; 0 means that each line is computed apart, and nothing is kept for the
    next. `inside` are the funcs of the group, consumers first. `last` gives funcs whose elements along a
    variable lie side by side, since they are looked up along it. `stream` writes past the caches.
    """

    line: str
    outer: tuple[str, ...]
    parallel: str
    height: int
    inside: tuple[str, ...]
    last: tuple[tuple[str, str], ...] = ()
    stream: bool = False


def group_of(state: State, owner: str, open_: set[str]) -> list[str]:
    """The open funcs that are read by `owner` and each other only, consumers first."""
    group: list[str] = []
    for f in reversed(state.program.funcs):
        if f.name == owner or f.name not in open_ or f.name in state.program.outputs:
            continue
        readers = {c.name for c, _ in state.consumers(f.name)}
        if readers and readers <= {owner, *group}:
            group.append(f.name)
    return group


def plan_strips(
    state: State, owner: str, group: Sequence[str], boxes: dict[str, Box], machine: Machine
) -> Strips | None:
    """The strips that compute most of a group; None where none of it moves with the lines of its owner."""
    f = state.program.func(owner)
    if len(f.definitions) > 1 or f.definitions[0].init is not None:
        return None
    best: tuple[int, Strips] | None = None
    for n, line in enumerate(f.variables):
        found = _along(_Group(state, f, tuple(group), boxes, line), machine, n + 1)
        if found is not None and (best is None or len(found.inside) > best[0]):
            best = len(found.inside), found
        if best is not None and best[0] == len(group):
            break
    return best and best[1]


@dataclass(frozen=True, slots=True)
class _Group:
    """A group, the box of each func in all, and a variable of the owner along which lines are counted."""

    state: State
    owner: FuncDef
    names: tuple[str, ...]
    boxes: dict[str, Box]
    line: str

    def near(self, lines: int) -> dict[str, Box]:
        """What some lines of the owner need, in terms of the first of them and of the variables before."""
        f, box = self.owner, list(self.boxes[self.owner.name])
        for axis, v in enumerate(f.variables):
            first = Var(v + _MARK)
            if v == self.line:
                box[axis] = (first, subtract(first, const(1 - lines)))
                break
            box[axis] = (first, first)
        found: dict[str, Box] = {f.name: tuple(box)}
        for g in map(self.state.program.func, (f.name, *self.names)):
            for d in g.definitions if g.name in found else ():
                ranges = definition_ranges(g, d, found[g.name], NOTHING)
                if any(is_empty(r) for r in ranges.values()):
                    continue
                for source, touched in boxes_of(d.expressions(), ranges, NOTHING, d.where).items():
                    if source != g.name:
                        found[source] = union_box(found.get(source), touched)
        return found

    def inside(self, near: dict[str, Box]) -> tuple[str, ...]:
        """The funcs that move with the lines and are not read from outside of them."""
        moving = {
            n for n in self.names if n in near and n in self.boxes and _uses(near[n]) & {self.line}
        }
        kept: list[str] = []
        for name in self.names:
            readers = {c.name for c, _ in self.state.consumers(name)}
            if name in moving and readers <= {self.owner.name, *kept}:
                kept.append(name)
        return tuple(kept)

    def work(self, near: dict[str, Box], inside: tuple[str, ...]) -> float | None:
        """Operations that the funcs inside take for what is near."""
        total = 0.0
        for name in inside:
            points = volume(near[name])
            if points is None:
                return None
            total += points * work_of_a_point(self.state.program.func(name))
        return total


def _along(g: _Group, machine: Machine, depth: int) -> Strips | None:
    near, f = g.near(1), g.owner
    inside = g.inside(near)
    sizes = extents(f, f.definitions[0], g.boxes[f.name])
    lines = sizes[g.line]
    if not inside or lines == 1 or _bytes(g, near, inside) > machine.near_bytes:
        return None
    one, far = g.work(near, inside), g.work(g.near(1 + FAR), inside)
    each = None if one is None or far is None else (far - one) / FAR
    if one is None or not each:
        return None
    used = frozenset[str]().union(*(_uses(near[name]) for name in inside))
    outer = tuple(v for v in f.variables[: depth - 1] if v in used)
    above = prod(sizes[v] or 1 for v in outer)
    points = (volume(g.boxes[f.name]) or 1) / (above * (lines or 1))  # of a line
    work = each / points + work_of_a_point(f)
    stream = pays_to_stream(g.state, f.name, g.boxes, work, machine)
    last = lookup_axes(g.state, (f.name, *inside), g.boxes, machine.vector_bytes)
    if one <= AGAIN * each and not last:
        return Strips(g.line, outer, g.line, 0, inside, stream=stream)
    if depth == len(f.variables) or (lines is not None and lines < LEAST_LINES):
        return None
    own = outer[0] if outer and above >= 2 * machine.threads else g.line
    threads = machine.threads if own == g.line else 1
    twice = one / each - 1  # lines that a strip computes although another does, too
    height = _height(lines, threads, twice)
    if twice > (MOST_AGAIN - 1) * height:
        return None
    return Strips(g.line, outer, own, height, inside, tuple(last.items()), stream)


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


def _bytes(g: _Group, near: dict[str, Box], inside: tuple[str, ...]) -> int:
    """The size of what a line needs of the funcs inside; unknown extents count as none."""
    total = 0
    for name in inside:
        total += (volume(near[name]) or 0) * sum(t.bytes for t in g.state.program.func(name).dtypes)
    return total


def _uses(box: Box) -> frozenset[str]:
    """The variables of the owner in the ends of a box."""
    names = {v for ends in box for e in ends if e is not None for v in variables(e)}
    return frozenset(v.removesuffix(_MARK) for v in names if v.endswith(_MARK))
