"""Predication of a statement with barriers: only the code between the barriers is put under the condition."""

from __future__ import annotations

from collections.abc import Iterable

from tdsl.codegen.ir.loops import Alloc, Barrier, Block, For, If, InitBarriers, Let, Stmt
from tdsl.codegen.ir.statements import loads_of, rebuilt, sequence, walk
from tdsl.lang.expr import Expr


def guard_between_barriers(cond: Expr, s: Stmt) -> Stmt | None:
    """The statement under a condition, with its barriers unconditional: the code between them is guarded.

    Around a barrier may be blocks, allocations, loops, lets, and conditions without else. None for other
    statements around a barrier, or if these read memory, which may be invalid where the condition is false.

    >>> from tdsl.codegen.ir.loops import Store
    >>> from tdsl.codegen.ir.show import show
    >>> from tdsl.lang.expr import ZERO, Binary, Var, const
    >>> i = Var("i")
    >>> store = lambda name: Store(name, (i,), i)
    >>> nest = For("i", ZERO, const(4), "serial", Block((store("a"), Barrier(), store("b"))))
    >>> print(show(guard_between_barriers(Binary("lt", Var("row"), const(7)), nest)))
    for i in range(0, 4):
      if row < 7:
        a[i] = i
      barrier()
      if row < 7:
        b[i] = i
    """
    if isinstance(s, Barrier):
        return s
    if not any(isinstance(x, Barrier | InitBarriers) for x in walk(s)):
        return If(cond, s)
    match s:
        case Block(parts):
            guarded = [guard_between_barriers(cond, part) for part in _join_without_barriers(parts)]
            known = [x for x in guarded if x is not None]
            return sequence(known) if len(known) == len(guarded) else None
        case Alloc():
            return _with_body(s, guard_between_barriers(cond, s.body))
        case Let() if not loads_of(s.value):
            return _with_body(s, guard_between_barriers(cond, s.body))
        case For() if not (loads_of(s.lo) | loads_of(s.extent)):
            return _with_body(s, guard_between_barriers(cond, s.body))
        case If(inner, then, None) if not loads_of(inner):
            body = guard_between_barriers(cond, then)
            return None if body is None else rebuilt(s, then=body)
        case _:
            return None


def _with_body(s: Alloc | Let | For, body: Stmt | None) -> Stmt | None:
    return None if body is None else rebuilt(s, body=body)


def _join_without_barriers(parts: Iterable[Stmt]) -> list[Stmt]:
    """The statements of a block, with adjacent ones that contain no barrier joined."""
    runs: list[list[Stmt]] = []
    open_ = False
    for part in parts:
        has_barrier = any(isinstance(x, Barrier | InitBarriers) for x in walk(part))
        if open_ and not has_barrier:
            runs[-1].append(part)
        else:
            runs.append([part])
        open_ = not has_barrier
    return [sequence(run) for run in runs]
