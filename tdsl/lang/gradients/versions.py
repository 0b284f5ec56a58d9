"""`with_versions`: the program in which every func is updated at most once, so that old values can be read.

    f[i] = a[i]                       f_0[i] = a[i]
    f[r] = f[r] * f[r - 1] for r      f[i] = f_0[i]; f[r] = f_0[r] * f[r - 1] for r

In the result an update reads its func only at cells that were written before it, and each cell is written
once: then the values at the end are those that were read. Updates that add values which do not read the func
need no versions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tdsl.core.node import Node, transform
from tdsl.errors import DefinitionError
from tdsl.lang.affine import as_sum, has_data
from tdsl.lang.definition import Definition
from tdsl.lang.expr import ONE, TRUE, Access, Expr, Param, Read, Unary, Var
from tdsl.lang.gradients.contribution import unused_name
from tdsl.lang.gradients.inverse import Inverse, invert
from tdsl.lang.program import FuncDef, Program, map_expressions
from tdsl.lang.regions import Interval
from tdsl.lang.simplify import conjunction, simplify, substitute, subtract
from tdsl.lang.tensor import Func

A_FUNC_FOR_EACH_STEP = (  # a hint
    "store each cell once: in a loop of Python, define a func for each step, which reads that of the step "
    "before"
)


def with_versions(program: Program, handles: dict[str, Any]) -> Program:
    """The program with a func for each version of a func that its updates read; adds their handles."""
    funcs: list[FuncDef] = []
    for f in program.funcs:
        funcs += _versions(f, handles)
    return replace(program, funcs=tuple(funcs))


def _versions(f: FuncDef, handles: dict[str, Any]) -> list[FuncDef]:
    runs = _runs(f)
    if len(runs) == 1:
        return [f]
    versions: list[FuncDef] = []
    count = 0
    for n, run in enumerate(runs):
        count += len(run)
        name = f.name if n == len(runs) - 1 else unused_name(f"{f.name}_{n}", handles)
        if name != f.name:
            handles[name] = _copy_of(handles[f.name], count, name)
        if versions:
            run = (_copy(f, versions[-1].name), *(_update(f, d, versions[-1].name) for d in run))
        definitions = tuple(_renamed(d, f.name, name) for d in run)
        versions.append(replace(f, name=name, definitions=definitions))
    return versions


def _runs(f: FuncDef) -> list[tuple[Definition, ...]]:
    """The definitions in groups: reductions of one kind with their start; each other update alone."""
    runs: list[tuple[Definition, ...]] = [f.definitions[:1]]
    kind = _kind(f.definitions[0]) or "any"
    for d in f.definitions[1:]:
        combined = "" if f.name in d.sources else _kind(d)
        if combined and kind in (combined, "any"):
            runs[-1] += (d,)
        else:
            runs.append((d,))
        kind = combined
    return runs


def _kind(d: Definition) -> str:
    return "" if d.combine is None else d.combine.kind


def _copy_of(f: Func, count: int, name: str) -> Func:
    """A new func with the first definitions of `f`."""
    new = Func(name)
    new.loc, new.dtypes, new.fast_math = f.loc, f.dtypes, f.fast_math
    new.declared, new._first = f.declared, f._first

    def visit(n: Node) -> Node:
        return replace(n, source=new) if isinstance(n, Access) and n.source is f else n

    new.definitions = [map_expressions(d, lambda e: transform(e, visit)) for d in f.definitions[:count]]
    return new


def _copy(f: FuncDef, source: str) -> Definition:
    """The pure definition that copies an earlier version."""
    index = tuple(Var(v) for v in f.variables)
    values = tuple(Read(source, index, n, t) for n, t in enumerate(f.dtypes))
    loc = f.definitions[0].loc
    return Definition(index, f.variables, (), TRUE, values, None, None, loc)


def _renamed(d: Definition, old: str, new: str) -> Definition:
    def visit(n: Node) -> Node:
        return replace(n, name=new) if isinstance(n, Read) and n.name == old else n

    return d if old == new else map_expressions(d, lambda e: transform(e, visit))


def _update(f: FuncDef, d: Definition, before: str) -> Definition:
    """An update as a store, with reads of values that it does not write before by the version `before`."""
    if f.name not in d.sources or adds_to_rows(f.name, d):
        return d
    if d.combine is not None:
        d = _as_store(f, d)
    written = written_cells(f.name, d)
    order = [name for name, _, _ in d.ranges]

    def visit(n: Node) -> Node:
        if not isinstance(n, Read) or n.name != f.name:
            return n
        cell = dict(zip(_cell_names(d), n.index, strict=True))
        for name in order:  # the first range along which the cells differ decides which one is stored first
            difference = as_sum(simplify(substitute(written.values[name], cell)))
            difference = difference.plus(as_sum(Var(name)), -1)
            if difference.terms:
                raise DefinitionError(
                    f"this update of {f.name!r} reads it at a varying distance from the cell it stores",
                    loc=n.loc or d.loc,
                    label="no derivative of this read is known",
                    hint=A_FUNC_FOR_EACH_STEP,
                )
            if difference.constant:
                return n if difference.constant < 0 else replace(n, name=before)
        return replace(n, name=before)

    return replace(d, values=tuple(transform(v, visit) for v in d.values))


def adds_to_rows(name: str, d: Definition) -> bool:
    """True for an update that adds to one row of its func in each step of its outermost range, of one before.

    h[t, k] += h[t - 1, d] * U[d, k] over t, d, k: what is read has its value at the end.
    """
    return d.combine is not None and d.combine.kind == "sum" and reads_a_row_before(name, d)


def reads_a_row_before(name: str, d: Definition) -> bool:
    """True if each step of the outermost range stores in one row of a func, and reads one cell before it."""
    if not d.ranges:
        return False
    step = Var(d.ranges[0][0])
    rows = [n for n, e in enumerate(d.index) if as_sum(e).terms.get(step) in (1, -1)]
    reads = {n.index for n in d.reads if n.name == name}
    if len(rows) != 1 or len(reads) != 1:
        return False
    (row,), (index,) = rows, reads
    written = as_sum(d.index[row])
    distance = as_sum(index[row]).plus(written, -1).times(written.terms[step])
    return set(written.terms) == {step} and not distance.terms and distance.constant < 0


def addition_of(f: FuncDef) -> Definition | None:
    """The update of a version that adds to its rows what it computes of earlier ones, if it has one."""
    last = f.definitions[-1]
    return last if f.name in last.sources and adds_to_rows(f.name, last) else None


def _as_store(f: FuncDef, d: Definition) -> Definition:
    """An update `f[i] op= value` as `f[i] = f[i] op value`."""
    assert d.combine is not None
    sides: dict[str, Expr] = {f"b{n}": v for n, v in enumerate(d.values)}
    sides |= {f"a{n}": Read(f.name, d.index, n, t) for n, t in enumerate(f.dtypes)}

    def visit(n: Node) -> Node:
        return sides.get(n.name, n) if isinstance(n, Param) else n

    values = tuple(transform(e, visit) for e in d.combine.exprs)
    return replace(d, values=values, combine=None)


def _cell_names(d: Definition) -> list[str]:
    return [f"cell {n}" for n in range(len(d.index))]


def written_cells(name: str, d: Definition, cells: Sequence[str] = ()) -> Inverse:
    """The point of a definition that stores a cell, in terms of variables for the axes of the cell.

    Raises DefinitionError if two points may store one cell.
    """
    elements: dict[str, Interval] = dict.fromkeys(cells or _cell_names(d), (None, None))
    ranges: dict[str, Interval] = dict.fromkeys(d.free, (None, None))
    ranges |= {n: (lo, subtract(hi, ONE)) for n, lo, hi in d.ranges if hi is not None}
    new: dict[str, Expr] = {n: Var(f"{n}'") for n in ranges}
    index = tuple(substitute(e, new) for e in d.index)
    inverses = invert(index, elements, {f"{n}'": i for n, i in ranges.items()})
    if inverses is None or len(inverses) != 1 or inverses[0].ranges:
        where = ", at a place that data choose" if any(map(has_data, d.index)) else ""
        if name in d.sources:
            raise DefinitionError(
                f"this update of {name!r} may store a cell several times{where}, and reads {name!r}",
                loc=d.loc,
                label="its derivative needs the values between, of which only the last is kept",
                hint=A_FUNC_FOR_EACH_STEP,
            )
        raise DefinitionError(
            f"this update of {name!r} may store a cell twice{where}",
            loc=d.loc,
            label="only the last value would have a derivative",
            hint="add what is stored, f[...] += ..., or store each value in a cell of its own",
        )
    point = inverses[0]
    return replace(point, values={n: point.values[f"{n}'"] for n in ranges})


def is_not_written(f: FuncDef, d: Definition, cells: Sequence[str]) -> Expr:
    """The condition that a definition does not store the cell named by the variables `cells`."""
    point = written_cells(f.name, d, cells)
    written = conjunction((*point.guards, simplify(substitute(d.where, point.values))))
    return simplify(Unary("not", written))


def store_of(f: FuncDef) -> Definition | None:
    """The update of a version that stores values, if that is what it does."""
    last = f.definitions[-1]
    return last if len(f.definitions) > 1 and last.combine is None else None
