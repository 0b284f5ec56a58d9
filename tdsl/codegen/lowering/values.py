"""Lowers the values of a definition at a point: reads to loads, combiners and checks to statements."""

from __future__ import annotations

from collections.abc import Sequence

from tdsl.codegen.ir.loops import REGISTER, Alloc, Block, Check, Print, Stmt, Store
from tdsl.codegen.lowering.context import Lowering
from tdsl.core.node import Node, transform
from tdsl.lang.bounds import Facts
from tdsl.lang.definition import Definition
from tdsl.lang.expr import Expr, Load, Param, Read, Require, Show, Var, dtype_of
from tdsl.lang.program import FuncDef

ATOMIC = {"sum": "add", "prod": "mul", "min": "min", "max": "max", "any": "or", "all": "and"}


class ValueWriter:
    """Emits the statements of one point; `values` maps the variables of the definition to the loop IR."""

    def __init__(self, lowering: Lowering, f: FuncDef, values: dict[str, Expr], facts: Facts) -> None:
        self.low, self.f, self.values, self.facts = lowering, f, values, facts
        self.effects: list[Stmt] = []

    def convert(self, e: Expr) -> Expr:
        """The loop IR of an expression of a definition; its checks and prints are appended to `effects`."""
        return transform(e, self._step)

    def _step(self, n: Node) -> Node:
        match n:
            case Var(name):
                return self.values.get(name, n)
            case Read(name, index, component, t):
                if name in self.low.buffers:
                    return self.low.buffers[name].load(index, component, t)
                axes = self.low.input_axes.get(name)
                at = tuple(axis.place(index) for axis in axes) if axes else index
                return Load(name, at, t, loc=n.loc)
            case Require(cond, x, text, shown):
                self.effects.append(
                    Check(cond, self.low.tables.site("require", text, len(shown), n.loc), shown)
                )
                return x
            case Show(cond, x, text, shown):
                self.effects.append(
                    Print(cond, self.low.tables.site("print", text, len(shown), n.loc), shown)
                )
                return x
            case _:
                return n

    def store(
        self, d: Definition, terms: tuple[Expr, ...], *, combine: bool, atomic: bool = False,
        streaming: bool = False, components: Sequence[int] | None = None,
    ) -> list[Stmt]:  # fmt: skip
        """Stores f[index] = terms, or with `combine` combine(f[index], terms), of `components` or of all."""
        buffer = self.low.buffers[self.f.name]
        at = tuple(self.convert(e) for e in d.index)
        all_components = range(len(terms))
        index = [buffer.index(at, n) for n in all_components]
        new = tuple(self.convert(t) for t in terms)
        fast = self.f.fast_math
        if combine and d.combine is not None:
            if atomic:
                op = ATOMIC[d.combine.kind]
                statement = Store(buffer.names[0], index[0], new[0], atomic=op, fast=fast)
                return [*self.effects, statement]
            old = tuple(
                Load(name, i, t) for name, i, t in zip(buffer.names, index, self.f.dtypes, strict=True)
            )
            new = _combine(d.combine.exprs, old, new)
        components_ = all_components if components is None else components
        if len(components_) == 1:
            (n,) = components_
            statement = Store(buffer.names[n], index[n], new[n], streaming=streaming, fast=fast)
            return [*self.effects, statement]
        targets = [(buffer.names[n], index[n], new[n]) for n in components_]
        return [*self.effects, self._store_all(targets, streaming)]

    def accumulate(self, d: Definition, names: tuple[str, ...], new: tuple[Expr, ...]) -> list[Stmt]:
        """Stores names = combine(names, new), where `names` are registers of one thread."""
        assert d.combine is not None
        old = tuple(Load(name, (), t) for name, t in zip(names, self.f.dtypes, strict=True))
        combined = _combine(d.combine.exprs, old, new)
        if len(combined) == 1:
            return [*self.effects, Store(names[0], (), combined[0], fast=self.f.fast_math)]
        return [
            *self.effects,
            self._store_all([(n, (), v) for n, v in zip(names, combined, strict=True)]),
        ]

    def _store_all(
        self, targets: Sequence[tuple[str, tuple[Expr, ...], Expr]], streaming: bool = False
    ) -> Stmt:
        """Stores several values that may read the targets: all are computed before the first is stored."""
        temporaries = tuple(self.low.names.fresh(f"{name}_new") for name, _, _ in targets)
        values = [(t, name, index, v) for t, (name, index, v) in zip(temporaries, targets, strict=True)]
        evaluations = [Store(t, (), v, fast=self.f.fast_math) for t, _, _, v in values]
        stores = [
            Store(name, index, Load(t, (), dtype_of(v)), streaming=streaming) for t, name, index, v in values
        ]
        body: Stmt = Block((*evaluations, *stores))
        for t, _, _, v in values:
            body = Alloc(t, dtype_of(v), (), REGISTER, body)
        return body


def _combine(exprs: tuple[Expr, ...], old: tuple[Expr, ...], new: tuple[Expr, ...]) -> tuple[Expr, ...]:
    """A combiner's expressions with a0, a1, ... replaced by `old` and b0, b1, ... by `new`, sharing kept."""

    def fill(n: Node) -> Node:
        if isinstance(n, Param) and n.name[0] in "ab" and n.name[1:].isdigit():
            return (old if n.name[0] == "a" else new)[int(n.name[1:])]
        return n

    done: dict[int, Node] = {}
    return tuple(transform(e, fill, done) for e in exprs)
