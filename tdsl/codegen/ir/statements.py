"""Constructors, traversals and rewriters of statements, which all passes share."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar, assert_never

from tdsl.codegen.ir.loops import (
    Alloc,
    ArriveBarrier,
    Barrier,
    Block,
    Check,
    Commit,
    CopyTile,
    For,
    If,
    InitBarriers,
    Invoke,
    Let,
    Operand,
    Prefetch,
    Print,
    Shuffle,
    Stmt,
    Store,
    Wait,
    WaitBarrier,
    WarpSpecialize,
)  # fmt: skip
from tdsl.core.node import Memo, Node, memoised
from tdsl.lang.affine import union_of_children
from tdsl.lang.expr import FALSE, TRUE, Expr, Load, Param, Var
from tdsl.lang.simplify import substitute

S = TypeVar("S", bound=Stmt | Operand)

EMPTY = Block(())


def sequence(parts: Iterable[Stmt]) -> Stmt:
    """A block of the statements in order, with nested blocks flattened; a single statement as it is."""
    flat: list[Stmt] = []
    for part in parts:
        if isinstance(part, Block):
            flat += part.body
        else:
            flat.append(part)
    return flat[0] if len(flat) == 1 else Block(tuple(flat)) if flat else EMPTY


def is_empty(s: Stmt | None) -> bool:
    """True for None and for a block without statements."""
    return s is None or (isinstance(s, Block) and not s.body)


def rebuilt(s: S, **changes: object) -> S:
    """`s` with some fields replaced; `s` itself if they do not change."""
    changed = {k: v for k, v in changes.items() if getattr(s, k) is not v}
    return dataclasses.replace(s, **changed) if changed else s  # type: ignore[arg-type]  # by name


def parts_of(s: Stmt) -> tuple[Stmt, ...]:
    """The statements directly inside a statement."""
    match s:
        case For() | Let() | Alloc() | InitBarriers():
            return (s.body,)
        case If(_, then, orelse):
            return (then,) if orelse is None else (then, orelse)
        case Block(body) | WarpSpecialize(body):
            return body
        case _:
            return ()


def walk(s: Stmt) -> Iterator[Stmt]:
    """A statement and all statements nested in it, in pre-order."""
    stack = [s]
    while stack:
        top = stack.pop()
        yield top
        stack += reversed(parts_of(top))


def exprs_of(s: Stmt) -> tuple[Expr, ...]:
    """The expressions of a statement itself, without those of nested statements."""
    match s:
        case For(_, lo, extent):
            return lo, extent
        case Let(_, value) | Shuffle(_, value):
            return (value,)
        case Alloc(_, _, extents):
            return extents
        case Store(_, index, value, mask):
            return (*index, value) if mask is None else (*index, value, mask)
        case If(cond):
            return (cond,)
        case Block() | WarpSpecialize() | Barrier() | Commit() | Wait() | InitBarriers():
            return ()
        case ArriveBarrier(_, slot):
            return (slot,)
        case WaitBarrier(_, slot, parity):
            return slot, parity
        case CopyTile(_, index, _, start):
            return (*index, *start, s.slot)
        case Check(cond, _, values) | Print(cond, _, values):
            return cond, *values
        case Prefetch(_, index):
            return index
        case Invoke(_, operands):
            return tuple(i for o in operands for i in o.index)
        case _:
            assert_never(s)


def map_exprs(s: Stmt, f: Callable[[Expr], Expr]) -> Stmt:
    """`s` with `f` applied to its own expressions, not to those of nested statements."""
    match s:
        case For(_, lo, extent):
            return rebuilt(s, lo=f(lo), extent=f(extent))
        case Let(_, value) | Shuffle(_, value):
            return rebuilt(s, value=f(value))
        case Alloc(_, _, extents):
            return rebuilt(s, extents=_map_all(extents, f))
        case Store(_, index, value, mask):
            new_mask = None if mask is None else f(mask)
            return rebuilt(s, index=_map_all(index, f), value=f(value), mask=new_mask)
        case If(cond):
            return rebuilt(s, cond=f(cond))
        case Block() | WarpSpecialize() | Barrier() | Commit() | Wait() | InitBarriers():
            return s
        case ArriveBarrier(_, slot):
            return rebuilt(s, slot=f(slot))
        case WaitBarrier(_, slot, parity):
            return rebuilt(s, slot=f(slot), parity=f(parity))
        case CopyTile(_, index, _, start):
            return rebuilt(s, index=_map_all(index, f), start=_map_all(start, f), slot=f(s.slot))
        case Check(cond, _, values) | Print(cond, _, values):
            return rebuilt(s, cond=f(cond), values=_map_all(values, f))
        case Prefetch(_, index):
            return rebuilt(s, index=_map_all(index, f))
        case Invoke(_, operands):
            return rebuilt(s, operands=tuple(rebuilt(o, index=_map_all(o.index, f)) for o in operands))
        case _:
            assert_never(s)


def map_parts(s: Stmt, f: Callable[[Stmt], Stmt]) -> Stmt:
    """`s` with `f` applied to the statements directly inside; EMPTY if a loop, let or branch gets no body."""
    match s:
        case For() | Let() | Alloc() | InitBarriers():
            body = f(s.body)
            return EMPTY if is_empty(body) else rebuilt(s, body=body)
        case If(cond, then, orelse):
            return conditional(cond, f(then), None if orelse is None else f(orelse), s)
        case WarpSpecialize(parts):
            return rebuilt(s, parts=_map_all(parts, f))
        case Block(body):
            parts = _map_all(body, f)
            return s if parts is body else sequence(parts)
        case _:
            return s


def conditional(cond: Expr, then: Stmt, orelse: Stmt | None = None, like: If | None = None) -> Stmt:
    """An `If`; only the branch taken if the condition is a constant, EMPTY if both branches are empty."""
    if cond == TRUE:
        return then
    if cond == FALSE:
        return EMPTY if orelse is None else orelse
    if is_empty(orelse):
        if is_empty(then):
            return EMPTY
        orelse = None
    if like is None:
        return If(cond, then, orelse)
    return rebuilt(like, cond=cond, then=then, orelse=orelse)


T = TypeVar("T")


def _map_all(items: tuple[T, ...], f: Callable[[T], T]) -> tuple[T, ...]:
    new = tuple(map(f, items))
    return items if all(a is b for a, b in zip(new, items, strict=True)) else new


def loads_of(e: Expr) -> frozenset[str]:
    """The buffers that an expression loads from."""
    buffers = _LOADS.get(e)
    return memoised(_LOADS, e, _loads_of) if buffers is None else buffers


def _loads_of(n: Node) -> frozenset[str]:
    inside = union_of_children(_LOADS, n)
    return inside | {n.buffer} if isinstance(n, Load) else inside


def scalars_of(e: Expr) -> frozenset[str]:
    """The loop variables, lets and parameters in an expression."""
    names = _SCALARS.get(e)
    return memoised(_SCALARS, e, _scalars_of) if names is None else names


def _scalars_of(n: Node) -> frozenset[str]:
    return frozenset((n.name,)) if isinstance(n, Var | Param) else union_of_children(_SCALARS, n)


_LOADS: Memo[Node, frozenset[str]] = Memo()
_SCALARS: Memo[Node, frozenset[str]] = Memo()


def stored_in(s: Stmt) -> frozenset[str]:
    """The buffers that a statement may write."""
    names = set()
    for inner in walk(s):
        if isinstance(inner, Store | Shuffle | CopyTile):
            names.add(inner.buffer)
        elif isinstance(inner, Invoke):
            names |= {o.buffer for o in inner.operands}
    return frozenset(names)


def outputs_of(s: Stmt) -> frozenset[str]:
    """The buffers that a statement writes and does not allocate; an instruction writes its first operand."""
    only_read = {o.buffer for x in walk(s) if isinstance(x, Invoke) for o in x.operands[1:]}
    results = {x.operands[0].buffer for x in walk(s) if isinstance(x, Invoke)}
    stored = frozenset(x.buffer for x in walk(s) if isinstance(x, Store))
    allocated = {x.name for x in walk(s) if isinstance(x, Alloc)}
    return (stored_in(s) - (only_read - results - stored)) - allocated


def inputs_of(s: Stmt) -> set[str]:
    """The buffers that a statement reads, with all operands of its instructions."""
    operands = {o.buffer for x in walk(s) if isinstance(x, Invoke) for o in x.operands}
    operands |= {x.source for x in walk(s) if isinstance(x, CopyTile)}
    return {name for x in walk(s) for e in exprs_of(x) for name in loads_of(e)} | operands


def substituted(s: Stmt, name: str, value: Expr) -> Stmt:
    """A statement with the free variable `name` replaced by an expression."""
    s = map_exprs(s, lambda e: substitute(e, {name: value}))
    return map_parts(s, lambda part: substituted(part, name, value))
