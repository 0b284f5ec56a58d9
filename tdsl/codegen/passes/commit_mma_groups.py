"""A pass that commits asynchronous instructions (wgmma) as groups and inserts the waits for them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from tdsl.codegen.analysis.asynchronous import is_asynchronous
from tdsl.codegen.analysis.disjoint_indices import are_distinct_slots
from tdsl.codegen.ir.loops import (
    AXES,
    Alloc,
    ArriveBarrier,
    Barrier,
    Block,
    Commit,
    CopyTile,
    For,
    InitBarriers,
    Invoke,
    Kernel,
    Let,
    Operand,
    Stmt,
    Store,
    Wait,
    WaitBarrier,
)  # fmt: skip
from tdsl.codegen.ir.statements import (
    EMPTY,
    exprs_of,
    loads_of,
    map_parts,
    parts_of,
    rebuilt,
    sequence,
    stored_in,
    substituted,
    walk,
)  # fmt: skip
from tdsl.core.node import frozen
from tdsl.lang.affine import as_sum
from tdsl.lang.expr import ONE, Binary, Expr, Var
from tdsl.lang.simplify import subtract

ReleasedBuffers = Mapping[str, frozenset[str]]


def commit_mma_groups(kernel: Kernel) -> Kernel:
    """Commit each run of asynchronous instructions as a group, and wait for the group as late as possible.

    The wait comes before the first statement that accesses the results of the group, writes its operands, or
    lets other threads write them: a barrier, or the arrival at the mbarrier that frees their slot.

    >>> from tdsl.codegen.ir.loops import SERIAL, Store
    >>> from tdsl.codegen.ir.show import show
    >>> from tdsl.lang.expr import ZERO, Load, const
    >>> from tdsl.lang.types import f32
    >>> from tdsl.machine.instructions.tensor_cores import find
    >>> wgmma = find("wgmma_m64n8k16_f16_mk_nk").name
    >>> operands = (Operand("acc", (ZERO, ZERO), (0, 1)), *(Operand(x, (ZERO, ZERO), (0, 1)) for x in "ab"))
    >>> steps = For("k", ZERO, const(4), SERIAL, Invoke(wgmma, operands))
    >>> take = Store("c", (ZERO,), Load("acc", (ZERO, ZERO), f32))
    >>> print(show(commit_mma_groups(Kernel("k", (), Block((steps, Store("d", (ZERO,), ZERO), take)))).body))
    for k in range(0, 4):
      wgmma_m64n8k16_f16_mk_nk(acc[0:, 0:], a[0:, 0:], b[0:, 0:])
    commit(mma)
    d[0] = 0
    wait(0, mma)
    c[0] = acc[0, 0]
    """
    if not any(map(is_asynchronous, walk(kernel.body))):
        return kernel
    body, left = _Groups(_released_buffers(kernel.body)).statement(kernel.body, ())
    return dataclasses.replace(kernel, body=sequence([body, *_wait_all(left)]))


@frozen
class _Group:
    """A committed group: the asynchronous instructions of the statement `code`, which may be unfinished."""

    code: Stmt

    def invocations(self) -> list[Invoke]:
        return [s for s in walk(self.code) if isinstance(s, Invoke)]

    def results(self) -> dict[str, str]:
        """For each buffer that the group writes, the name of the instruction that writes it."""
        return {s.operands[0].buffer: s.instruction for s in self.invocations()}

    def operands(self) -> list[Operand]:
        """The operands that the instructions read and do not write."""
        return [o for s in self.invocations() for o in s.operands[1:]]

    def previous(self, loop: For) -> _Group:
        """The group that the previous iteration of `loop` issued."""
        return _Group(substituted(self.code, loop.name, subtract(Var(loop.name), ONE)))


Groups = tuple[_Group, ...]


@frozen
class _Groups:
    """Inserts commits and waits. `released`: by name of mbarriers, the buffers that they free for writing."""

    released: ReleasedBuffers

    def statement(self, s: Stmt, pending: Groups) -> tuple[Stmt, Groups]:
        """`s` with its waits, and the groups that may be unfinished after it, the oldest first."""
        if is_asynchronous(s):
            wait, pending = self.wait_before(s, pending)
            return sequence([*wait, s, Commit(mma=True)]), (*pending, _Group(s))
        if not any(map(is_asynchronous, walk(s))):
            wait, pending = self.wait_before(s, pending)
            return sequence([*wait, s]), pending
        match s:
            case Block(body):
                code = []
                for part in body:
                    statement, pending = self.statement(part, pending)
                    code.append(statement)
                return sequence(code), pending
            case Let() | Alloc():
                wait, pending = self.wait_before(rebuilt(s, body=EMPTY), pending)
                inner, pending = self.statement(s.body, pending)
                return sequence([*wait, rebuilt(s, body=inner)]), pending
            case For(kind=kind) if kind not in AXES:
                return sequence([*_wait_all(pending), self.loop(s)]), ()
            case _:  # only some threads run the body, or it runs only in some cases
                return sequence([*_wait_all(pending), map_parts(s, self.finish)]), ()

    def finish(self, s: Stmt) -> Stmt:
        """`s` with its waits, so that all groups are finished after it."""
        code, left = self.statement(s, ())
        return sequence([code, *_wait_all(left)])

    def loop(self, s: For) -> Stmt:
        """The loop with its waits; groups pend into the next iteration if each one leaves the same groups."""
        _, first = self.statement(s.body, ())
        code, left = self.statement(s.body, tuple(g.previous(s) for g in first))
        if left != first:
            return rebuilt(s, body=self.finish(s.body))
        return sequence([rebuilt(s, body=code), *_wait_all(left)])

    def wait_before(self, s: Stmt, pending: Groups) -> tuple[list[Stmt], Groups]:
        """The wait for groups that conflict with `s`, if any, and the groups still pending after it."""
        for later, g in enumerate(reversed(pending)):
            if self.conflicts(s, g):
                return [Wait(later, mma=True)], pending[len(pending) - later :]
        return [], pending

    def conflicts(self, s: Stmt, g: _Group) -> bool:
        if is_asynchronous(s):
            group, results = _Group(s), g.results()
            changed = any(results.get(x, i) != i for x, i in group.results().items())
            read = {o.buffer for o in group.operands()}
            return changed or bool(read & results.keys() | group.results().keys() & _buffers(g))
        used = {name for x in walk(s) for e in exprs_of(x) for name in loads_of(e)} | stored_in(s)
        # the memory of a group may be allocated in `s`
        allocated = {x.name for x in walk(s) if isinstance(x, Alloc)}
        if (used | allocated) & g.results().keys() or allocated & _buffers(g):
            return True
        return any(self.releases(x, o) for x in walk(s) for o in g.operands())

    def releases(self, s: Stmt, o: Operand) -> bool:
        """True if `s` writes the operand `o`, or lets other threads write it."""
        match s:
            case Barrier() | InitBarriers():
                return True
            case ArriveBarrier(mbarriers, slot):
                known = self.released.get(mbarriers)
                return known is None or (o.buffer in known and not _are_distinct(o.index[0], slot))
            case CopyTile(buffer, index) | Store(buffer, index):
                return buffer == o.buffer and not _are_distinct(o.index[0], index[0])
            case _:
                return not parts_of(s) and o.buffer in stored_in(s)


def _buffers(g: _Group) -> set[str]:
    return {o.buffer for o in g.operands()}


def _are_distinct(a: Expr, b: Expr) -> bool:
    """True if `a` and `b` are certainly different slots of a ring, also where one has lost its modulo."""
    match a, b:
        case Binary("mod", _, n), Binary("mod", _, m) if n == m:
            pass
        case Binary("mod", _, n), _:
            b = Binary("mod", b, n)
        case _, Binary("mod", _, n):
            a = Binary("mod", a, n)
        case _:
            pass
    difference = as_sum(a).plus(as_sum(b), -1)
    return are_distinct_slots(difference) or (not difference.terms and difference.constant != 0)


def _wait_all(pending: Groups) -> list[Stmt]:
    return [Wait(0, mma=True)] if pending else []


def _released_buffers(body: Stmt) -> ReleasedBuffers:
    """For the mbarriers awaited before copies of tiles in a block: the buffers that these copies fill."""
    released: dict[str, set[str]] = {}
    for s in walk(body):
        awaited: set[str] = set()
        for part in s.body if isinstance(s, Block) else ():
            if isinstance(part, WaitBarrier):
                awaited = {part.mbarriers}
                released.setdefault(part.mbarriers, set())
            for name in awaited:
                released[name] |= {x.buffer for x in walk(part) if isinstance(x, CopyTile)}
    return {name: frozenset(tiles) for name, tiles in released.items()}
