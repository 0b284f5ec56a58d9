"""Fresh names in a kernel, substitution, and copies of statements whose bound names are renamed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tdsl.codegen.ir.loops import (
    Alloc,
    CopyTile,
    For,
    Invoke,
    Kernel,
    Let,
    Operand,
    Prefetch,
    Shuffle,
    Stmt,
    Store,
)  # fmt: skip
from tdsl.codegen.ir.statements import loads_of, map_exprs, map_parts, rebuilt, walk
from tdsl.core.node import Node, map_children, post_order
from tdsl.lang.expr import Expr, Load, Param, Var, dtype_of
from tdsl.lang.types import i64


@dataclass(slots=True)
class Renaming:
    """A substitution: values for scalars and new names for buffers; shared subexpressions stay shared."""

    values: Mapping[str, Expr] = field(default_factory=dict)
    buffers: Mapping[str, str] = field(default_factory=dict)
    done: dict[int, tuple[Node, Node]] = field(default_factory=dict)

    def expr(self, e: Expr) -> Expr:
        """The expression after the substitution."""
        done = self.done
        for n in post_order(e):
            if id(n) in done:
                continue
            new: Node
            match n:
                case Var(name) | Param(name) if name in self.values:
                    new = self.values[name]
                case _:
                    new = map_children(n, lambda child: done[id(child)][1])
                    if isinstance(new, Load) and new.buffer in self.buffers:
                        new = dataclasses.replace(new, buffer=self.buffers[new.buffer])
            done[id(n)] = n, new  # with the old node, so that its id is not reused
        return done[id(e)][1]  # type: ignore[return-value]  # an Expr stays one


class FreshNames:
    """Generates names that a kernel does not use.

    >>> from tdsl.codegen.ir.loops import SERIAL
    >>> from tdsl.codegen.ir.show import show
    >>> from tdsl.lang.expr import const
    >>> loop = For("i", const(0), const(4), SERIAL, Store("a", (Var("i"),), Var("j")))
    >>> print(show(FreshNames(Kernel("k", (), loop)).copy(loop, {"j": const(7)})))
    for i_1 in range(0, 4):
      a[i_1] = 7
    """

    def __init__(self, kernel: Kernel) -> None:
        self.used = {p.name for p in kernel.params}
        self.count: dict[str, int] = {}
        for s in walk(kernel.body):
            if isinstance(s, For | Let | Alloc):
                self.used.add(s.name)

    def name(self, preferred: str) -> str:
        """`preferred` if the kernel does not use it, else `preferred` with a numeric suffix."""
        if preferred not in self.used:
            self.used.add(preferred)
            return preferred
        base, _, number = preferred.rpartition("_")
        if not base or not number.isdigit():
            base = preferred
        count = self.count.get(base, 0)
        while True:
            count += 1
            name = f"{base}_{count}"
            if name not in self.used:
                break
        self.count[base] = count
        self.used.add(name)
        return name

    def copy(self, s: Stmt, values: Mapping[str, Expr] | None = None) -> Stmt:
        """A copy of `s` with fresh names for all names that it binds; `values` replace its free variables."""
        scalars: dict[str, Expr] = dict(values or {})
        names: dict[str, str] = {}
        buffers: dict[str, str] = {}
        for inner in walk(s):
            match inner:
                case For(name):
                    names[name] = self.name(name)
                    scalars[name] = Var(names[name])
                case Let(name, value):
                    names[name] = self.name(name)
                    t = dtype_of(value)
                    scalars[name] = Var(names[name]) if t == i64 else Param(names[name], t)
                case Alloc(name):
                    names[name] = buffers[name] = self.name(name)
                case _:
                    pass
        return renamed(s, Renaming(scalars, buffers), names)


def renamed(s: Stmt, renaming: Renaming, names: Mapping[str, str]) -> Stmt:
    """The statement after a substitution, with its bound names replaced according to `names`."""
    buffers = renaming.buffers

    def copied(old: Stmt) -> Stmt:
        new = map_parts(map_exprs(old, renaming.expr), copied)
        match new:
            case For(name):
                merges = tuple((buffers.get(x, x), buffers.get(y, y)) for x, y in new.merges)
                return rebuilt(new, name=names.get(name, name), merges=merges)
            case Let(name) | Alloc(name):
                return rebuilt(new, name=names.get(name, name))
            case Store(buffer) | Shuffle(buffer) | Prefetch(buffer) | CopyTile(buffer) if buffer in buffers:
                return rebuilt(new, buffer=buffers[buffer])
            case Invoke(_, operands):
                return rebuilt(new, operands=tuple(_renamed(o, buffers) for o in operands))
            case _:
                return new

    return copied(s)


def bind_loaded_bounds(loop: For, fresh: FreshNames, then: Callable[[For], Stmt]) -> Stmt:
    """`then(loop)`, with bounds that load data evaluated in lets before the body can overwrite the data."""
    lets: list[tuple[str, Expr]] = []

    def bind_if_loaded(e: Expr) -> Expr:
        if not loads_of(e):
            return e
        lets.append((fresh.name(f"{loop.name}_bound"), e))
        return Var(lets[-1][0])

    result = then(rebuilt(loop, lo=bind_if_loaded(loop.lo), extent=bind_if_loaded(loop.extent)))
    for name, value in reversed(lets):
        result = Let(name, value, result)
    return result


def _renamed(o: Operand, buffers: Mapping[str, str]) -> Operand:
    return rebuilt(o, buffer=buffers.get(o.buffer, o.buffer))
