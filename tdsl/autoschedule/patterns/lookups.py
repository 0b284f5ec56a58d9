"""Dimensions that are looked up: few elements, of which data chooses one for each lane of a vector.

    out[y, x] = row[level(y, x), y, x // 8]

Where all levels of a cell are contiguous, the lanes of a vector of `out` select from a register or two.
"""

from __future__ import annotations

from collections.abc import Sequence

from tdsl.core.node import post_order
from tdsl.lang.affine import as_sum, variables
from tdsl.lang.definition import Definition
from tdsl.lang.expr import Binary, Const, Expr, Read, Var
from tdsl.lang.regions import Box
from tdsl.schedule.properties import extent
from tdsl.schedule.state import State

LEAST = 4  # elements, below which a vector of them is mostly empty
SLOW = 4  # lanes for which another index must stay the same


def lookup_axes(
    state: State, names: Sequence[str], boxes: dict[str, Box], vector_bytes: int
) -> dict[str, str]:
    """The variable of each func along which it is looked up, or its consumer is; `names` are consumers first.

    Only funcs whose elements along it fit into one vector.
    """
    by_func: dict[str, str] = {}
    for name in names[1:]:
        f = state.program.func(name)
        axes = {
            _axis(r, d, by_func.get(reader.name))
            for reader, n in state.consumers(name)
            for d in (reader.definitions[n],)
            for r in d.reads
            if r.name == name
        }
        axis = axes.pop() if len(axes) == 1 else None
        if axis is None or name not in boxes:
            continue
        elements = extent(boxes[name], axis)
        if elements is None or not LEAST <= elements <= vector_bytes // max(t.bytes for t in f.dtypes):
            continue
        if all(f.variables[axis] in d.free for d in f.definitions[:1]):
            by_func[name] = f.variables[axis]
    return by_func


def _axis(r: Read, reader: Definition, along: str | None) -> int | None:
    """The one axis of a read that data decides, or that follows what its reader is looked up along."""
    if along is not None:
        following = [n for n, e in enumerate(r.index) if along in variables(e)]
        return following[0] if len(following) == 1 else None
    chosen = [n for n, e in enumerate(r.index) if _is_data(e)]
    lane = reader.index[-1] if reader.index else None
    if len(chosen) != 1 or not isinstance(lane, Var):
        return None
    others = [e for n, e in enumerate(r.index) if n != chosen[0]]
    return chosen[0] if all(_is_slow(e, lane.name) for e in others) else None


def _is_data(e: Expr) -> bool:
    return any(isinstance(n, Read) for n in post_order(e))


def _is_slow(e: Expr, lane: str) -> bool:
    """True for an index that is the same for several neighbours."""
    for atom in as_sum(e).terms:
        match atom:
            case Binary("floordiv", _, Const(k)) if k >= SLOW:
                continue
            case _ if lane in variables(atom):
                return False
    return True
