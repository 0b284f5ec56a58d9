"""Comments in CUDA text that name the func or tile that the statements below them compute."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from tdsl.codegen.cuda.identifiers import without_number
from tdsl.codegen.ir.loops import (
    AXES,
    HEAP,
    SHARED,
    Alloc,
    CopyTile,
    For,
    InitBarriers,
    Invoke,
    Let,
    Shuffle,
    Stmt,
    Store,
)
from tdsl.codegen.ir.statements import loads_of, parts_of, scalars_of, walk
from tdsl.lang.expr import Broadcast, Const, Load

_HELPERS = re.compile(r"(?:_lanes|_own|_other|_new)+$")  # buffers of reductions across lanes and threads


@dataclass(slots=True)
class StageComments:
    """The comments of one kernel; `buffers` has the scope of each of its arrays, heap for arguments."""

    buffers: Mapping[str, str]
    last: tuple[str, str] = ("", "")  # the stage of the last comment, and what it says
    inside: bool = False  # a statement that has a comment
    known: dict[int, frozenset[str]] = field(default_factory=dict)
    bases: set[str] = field(init=False)

    def __post_init__(self) -> None:
        self.bases = {self.base(b) for b in self.buffers} | set(map(without_number, self.buffers))

    def base(self, buffer: str) -> str:
        """The name of a buffer without the number of a copy; tuples number their components from 0.

        >>> x = StageComments(dict.fromkeys(("score_1", "score_2", "state_0", "state_1"), "register"))
        >>> x.base("score_2"), x.base("state_1")
        ('score', 'state_1')
        """
        name = without_number(buffer)
        return buffer if f"{name}_0" in self.buffers else name

    def stage(self, buffer: str) -> str:
        """The array that a helper array of a reduction belongs to, otherwise the array itself.

        >>> x = StageComments({"top": "register", "top_lanes": "register", "c": "heap", "c_1": "shared"})
        >>> x.stage("top_lanes_own"), x.stage("c"), x.stage("c_1")
        ('top', 'c', 'c_shared')
        """
        name = self.base(buffer)
        root = _HELPERS.sub("", name)
        if root != name and root in self.bases:
            return root
        if buffer != name and self.buffers.get(name) == HEAP:
            return f"{name}_{'shared' if self.buffers[buffer] == SHARED else 'local'}"
        return name

    def loop(self, name: str) -> tuple[str, ...]:
        """The names for a loop, the preferred one first: without that of its func, with it, that of the IR.

        >>> StageComments({"c": "heap"}).loop("c_k_o_1")
        ('k_o', 'c_k_o', 'c_k_o_1')
        """
        full = without_number(name)
        func = max((b for b in self.bases if full.startswith(f"{b}_")), key=len, default="")
        return (full[len(func) + 1 :], full, name) if func else (full, name)

    def stages(self, s: Stmt) -> frozenset[str]:
        """The stages whose arrays a statement writes."""
        if id(s) not in self.known:
            written: frozenset[str] = frozenset()
            if (target := _target(s)) is not None:
                written = frozenset((self.stage(target),))
            self.known[id(s)] = written.union(*(self.stages(part) for part in parts_of(s)))
        return self.known[id(s)]

    def comment(self, s: Stmt, loop: str) -> str:
        """The comment above a statement, "" if none belongs there; `loop` is the name of the loop around it.

        A statement of one stage gets one unless the statements above do the same, or one is above all of it.
        """
        stages = self.stages(s)
        if self.inside or isinstance(s, Alloc | InitBarriers | Let) or not stages:
            return ""
        if len(stages) > 1:
            self.last = ("", "")
            return ""
        (stage,) = stages
        said = self.description(stage, s)
        if stage == self.last[0] and (said == self.last[1] or not isinstance(s, For)):
            return ""
        self.last = stage, said
        return f"{stage}: {said}{f' for {loop}' if loop else ''}"

    def description(self, stage: str, s: Stmt) -> str:
        """What a statement does to the arrays of a stage."""
        sources: dict[str, None] = {}
        copies, accumulates = True, False
        for part in walk(s):
            match part:
                case CopyTile():
                    read = [part.source]
                case Store():
                    accumulates |= part.buffer in loads_of(part.value) or bool(part.atomic)
                    constant = isinstance(part.value, Const | Broadcast) and not loads_of(part.value)
                    copies &= isinstance(part.value, Load) or constant
                    indices = [x for i in part.index for x in sorted(loads_of(i))]
                    read = [*sorted(loads_of(part.value)), *indices]
                case Invoke():
                    _, *others = (o.buffer for o in part.operands)
                    read, copies = others, copies and len(others) == 1
                    accumulates |= len(others) > 1
                case Shuffle():
                    read, copies = sorted(loads_of(part.value)), False
                case _:
                    continue
            sources |= dict.fromkeys(self.stage(b) for b in read)
        updates = sources.pop(stage, stage) is None
        names = " and ".join(filter(None, (", ".join([*sources][:-1]), "".join([*sources][-1:]))))
        if not names:
            return "updated" if accumulates or updates else "initial value"
        if accumulates:
            over = ", ".join(self.loop(x)[0] for x in _reduction_loops(s))
            return f"accumulated from {names}{f' over {over}' if over else ''}"
        if copies:
            return f"stored from {names}" if self.buffers.get(stage) == HEAP else f"tile of {names}"
        return f"computed from {names}"


def _reduction_loops(s: Stmt) -> list[str]:
    """The loops inside a statement that are not threads or blocks, and that no index of a result uses."""
    used: set[str] = set()
    for part in walk(s):
        if isinstance(part, Store):
            used.update(*map(scalars_of, part.index))
        elif isinstance(part, Invoke):
            used.update(*map(scalars_of, part.operands[0].index))
    return [x.name for x in walk(s) if isinstance(x, For) and x.kind not in AXES and x.name not in used]


def _target(s: Stmt) -> str | None:
    """The array that a statement itself writes."""
    match s:
        case Store() | CopyTile() | Shuffle():
            return s.buffer
        case Invoke():
            return s.operands[0].buffer
        case _:
            return None
