"""Which operand of a product is loaded as vectors, and which is broadcast: that which fills vectors better.

A product commutes, so that the tile of a result may have its rows or its columns along the vectors. The
recipe for products takes the contiguous operand, which has few columns where a matrix is narrow.
"""

from __future__ import annotations

from tdsl.autoschedule.patterns.contraction import Contraction, recognize
from tdsl.machine.model import Machine
from tdsl.schedule.properties import root_boxes, unplaced_at_root
from tdsl.schedule.state import State

BETTER = 1.2  # times the lanes that are used


def exchanged(state: State, machine: Machine) -> list[tuple[str, str]]:
    """The products whose other operand fills vectors better: the func, and the variable of these vectors.

    >>> import tdsl as td
    >>> i, j, k = td.vars("i j k")
    >>> a, b = td.Tensor("a", (4096, 64), td.f32), td.Tensor("b", (64, 12), td.f32)
    >>> c = td.Func("c")
    >>> c[i, j] = td.sum(a[i, k] * b[k, j], axis=k)
    >>> exchanged(td.Schedule(c).state, Machine(vector_bytes=64))
    [('c', 'i')]
    """
    boxes, better = root_boxes(unplaced_at_root(state)), list[tuple[str, str]]()
    names = [f.name for f in state.program.funcs if f.name in boxes]
    inside: set[str] = set()
    for owner in reversed(names):
        group = [n for n in names if n != owner]
        default = recognize(state, owner, group, boxes)
        if owner in inside or not isinstance(default, Contraction):
            continue
        inside.add(default.func)
        for v in default.names.values():
            other = recognize(state, owner, group, boxes, along=v)
            if not isinstance(other, Contraction):
                continue
            if _filled(other, machine) > BETTER * _filled(default, machine):
                better.append((owner, v))
                break
    return better


def _filled(c: Contraction, machine: Machine) -> float:
    """The part of the lanes of vectors, or of halves, that a product uses."""
    lanes, extent = max(machine.vector_bytes // 2 // c.element, 1), c.sizes[c.along]
    return extent / (-(-extent // lanes) * lanes)
