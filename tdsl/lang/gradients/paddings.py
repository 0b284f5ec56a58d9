"""`with_paddings`: the program in which a padding that is read at several indices is a func.

    f[x] = a[pad_edge(x - 1, n)] + a[pad_edge(x + 1, n)]      p[w] = a[pad_edge(w, n)]
                                                              f[x] = p[x - 1] + p[x + 1]

The adjoint of p is a stencil without edges, and that of a adds what is beyond the edges, once and not for
each of the reads.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from tdsl.core.node import Node, post_order, transform
from tdsl.lang.definition import Definition
from tdsl.lang.expr import TRUE, ZERO, Access, Binary, Call, Expr, Read, Select, Var
from tdsl.lang.gradients.contribution import unused_name
from tdsl.lang.program import FuncDef, Program
from tdsl.lang.regions import UNBOUNDED
from tdsl.lang.simplify import conjuncts
from tdsl.lang.tensor import Func

# the padding of one axis: the function, the extent and the first index
_Axis = tuple[str, Expr, Expr] | None
_Padding = tuple[str, int, tuple[_Axis, ...]]


def with_paddings(program: Program, handles: dict[str, Any]) -> Program:
    """The program with a func for each padding of a tensor or func that is read more than once."""
    reads: dict[_Padding, dict[Read, None]] = {}
    for f in program.funcs:
        for d in f.definitions:
            for n in _padded_reads(d):
                reads.setdefault(_padding_of(n), {})[n] = None
    padded: dict[Read, Read] = {}
    names: dict[str, FuncDef] = {}
    for (source, component, axes), group in reads.items():
        if len(group) > 1:
            f = _padded(unused_name(f"{source}_padded", handles), source, component, axes, next(iter(group)))
            handles[f.name] = _handle_of(f, handles[source])
            names[f.name] = f
            padded |= {n: replace(n, name=f.name, component=0, index=_inner_index(n)) for n in group}
    if not padded:
        return program

    def visit(n: Node) -> Node:
        return padded.get(n, n) if isinstance(n, Read) else n

    funcs: list[FuncDef] = []
    for f in program.funcs:
        new = f.map_expressions(lambda e: transform(e, visit))
        used = {name for d in new.definitions for name in d.sources} & names.keys()
        funcs += [names.pop(name) for name in sorted(used)]
        funcs.append(new)
    return replace(program, funcs=tuple(funcs))


def _padded_reads(d: Definition) -> Iterator[Read]:
    """The reads of padding in a definition, but for those of constant padding, which a condition protects."""
    protected = set[Expr]()
    for n in post_order(*d.values):
        if isinstance(n, Select):
            tests = {*conjuncts(n.cond)}
            for m in post_order(n.yes):
                match m:
                    case Call("pad_edge", (e, extent)) if Binary("lt", e, extent) in tests:
                        protected.add(m)
    for n in post_order(*d.values):
        if isinstance(n, Read) and any(_padding_of(n)[2]) and protected.isdisjoint(post_order(*n.index)):
            yield n


def _padding_of(n: Read) -> _Padding:
    return n.name, n.component, tuple(map(_axis_of, n.index))


def _axis_of(e: Expr) -> _Axis:
    match e:
        case Call(fn, (_, extent)) if fn.startswith("pad_"):
            return fn, extent, ZERO
        case Binary("add", Call(fn, (_, extent)), lo) if fn.startswith("pad_"):
            return fn, extent, lo
        case _:
            return None


def _inner_index(n: Read) -> tuple[Expr, ...]:
    """The index of a read as an index of the padding."""
    index: list[Expr] = []
    for e in n.index:
        match e:
            case Call(fn, (x, _)) if fn.startswith("pad_"):
                index.append(x)
            case Binary("add", Call(fn, (x, _)), lo) if fn.startswith("pad_"):
                index.append(Binary("add", x, lo))
            case _:
                index.append(e)
    return tuple(index)


def _padded(name: str, source: str, component: int, axes: tuple[_Axis, ...], n: Read) -> FuncDef:
    """The func that is the padding of a tensor or func."""
    variables = tuple(f"{name}_{axis}" for axis in range(len(axes)))
    index: list[Expr] = []
    for v, padding in zip(variables, axes, strict=True):
        e: Expr = Var(v)
        if padding is not None:
            fn, extent, lo = padding
            e = Call(fn, (e if lo == ZERO else Binary("sub", e, lo), extent), ZERO.dtype)
            e = e if lo == ZERO else Binary("add", e, lo)
        index.append(e)
    value = Read(source, tuple(index), component, n.dtype)
    d = Definition(tuple(map(Var, variables)), variables, (), TRUE, (value,), None, None, n.loc)
    unbounded = (UNBOUNDED,) * len(axes)
    return FuncDef(name, (n.dtype,), (d,), unbounded, unbounded, loc=n.loc)


def _handle_of(f: FuncDef, source: Any) -> Func:
    """The handle of the padding of `source`."""
    new = Func(f.name)
    new.loc, new.dtypes = f.loc, f.dtypes
    (d,) = f.definitions
    (value,) = d.values
    assert isinstance(value, Read)
    read = Access(source, value.index, value.component, value.dtype, loc=value.loc)
    new.definitions = [replace(d, values=(read,))]
    return new
