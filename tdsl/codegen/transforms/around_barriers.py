"""Conditions that only some threads meet, around barriers that all of them come to."""

from __future__ import annotations

from collections.abc import Iterable

from tdsl.codegen.ir.loops import Alloc, Barrier, Block, For, If, Let, Phases, Stmt
from tdsl.codegen.ir.statements import loads_of, rebuilt, sequence, walk
from tdsl.lang.expr import Expr


def around_barriers(cond: Expr, s: Stmt) -> Stmt | None:
    """The statement where a condition holds, with its barriers outside: what stands between them is tested.

    None where loops, conditions or values around a barrier read memory, which may be none of theirs where the
    condition does not hold.

    >>> from tdsl.codegen.ir.loops import Store
    >>> from tdsl.codegen.ir.show import show
    >>> from tdsl.lang.expr import ZERO, Binary, Var, const
    >>> i = Var("i")
    >>> store = lambda name: Store(name, (i,), i)
    >>> nest = For("i", ZERO, const(4), "serial", Block((store("a"), Barrier(), store("b"))))
    >>> print(show(around_barriers(Binary("lt", Var("row"), const(7)), nest)))
    for i in range(0, 4):
      if row < 7:
        a[i] = i
      barrier()
      if row < 7:
        b[i] = i
    """
    if isinstance(s, Barrier):
        return s
    if not any(isinstance(x, Barrier | Phases) for x in walk(s)):
        return If(cond, s)
    match s:
        case Block(parts):
            made = [around_barriers(cond, part) for part in _runs(parts)]
            known = [x for x in made if x is not None]
            return sequence(known) if len(known) == len(made) else None
        case Alloc():
            return _with_body(s, around_barriers(cond, s.body))
        case Let() if not loads_of(s.value):
            return _with_body(s, around_barriers(cond, s.body))
        case For() if not (loads_of(s.lo) | loads_of(s.extent)):
            return _with_body(s, around_barriers(cond, s.body))
        case If(inner, then, None) if not loads_of(inner):
            body = around_barriers(cond, then)
            return None if body is None else rebuilt(s, then=body)
        case _:
            return None


def _with_body(s: Alloc | Let | For, body: Stmt | None) -> Stmt | None:
    return None if body is None else rebuilt(s, body=body)


def _runs(parts: Iterable[Stmt]) -> list[Stmt]:
    """Statements in a row, those without barriers between them as one."""
    made: list[list[Stmt]] = []
    open_ = False
    for part in parts:
        waits = any(isinstance(x, Barrier | Phases) for x in walk(part))
        if open_ and not waits:
            made[-1].append(part)
        else:
            made.append([part])
        open_ = not waits
    return [sequence(run) for run in made]
