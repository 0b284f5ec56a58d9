"""The structure of a func: its definitions without names. Funcs of equal structure have equal prices."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from tdsl.communication.stages import task_funcs_and_sources
from tdsl.core.node import Node, frozen, transform
from tdsl.lang.definition import Definition
from tdsl.lang.expr import Expr, Read, Var
from tdsl.lang.program import FuncDef, map_expressions
from tdsl.planner.strategies import AxisStrategy, Strategy
from tdsl.schedule.state import State


@frozen
class Structure:
    """What a func computes, in a form that is equal for funcs that differ in names only.

    `definitions` are those of the func and of the funcs that its tasks compute, with numbers for variables
    and for tensors; `tensors` are the tensors in the order of these numbers.
    """

    definitions: tuple[FuncDef, ...]
    tensors: tuple[str, ...]

    def renamed(
        self, f: FuncDef, strategies: tuple[Strategy, ...], other: FuncDef, tensors: tuple[str, ...]
    ) -> tuple[Strategy, ...]:  # fmt: skip
        """Strategies of `f`, which has this structure, with the names of `other`, which has the same one."""
        used = {x for strategy in strategies for x in strategy.axes}
        names = dict(zip(self.tensors, tensors, strict=True))
        new: dict[tuple[int, AxisStrategy], AxisStrategy] = {}
        for n, (d, e) in enumerate(zip(f.definitions, other.definitions, strict=True)):
            variables = dict(zip(d.variables, e.variables, strict=True))
            for x in used:
                if isinstance(x, frozenset):
                    new[n, x] = frozenset(names[t] for t in x)
                else:
                    new[n, x] = variables.get(x, x) if isinstance(x, str) else x
        if all(x == y for (_, x), y in new.items()):
            return strategies
        return tuple(Strategy(s.definition, tuple(new[s.definition, x] for x in s.axes)) for s in strategies)


def structure_of(state: State, f: FuncDef) -> Structure:
    """The structure of a func in a state in which every func is distributed or inlined."""
    task_funcs, _ = task_funcs_and_sources(state, f)
    tensors: dict[str, str] = {}
    definitions = tuple(_without_names(g, tensors) for g in (f, *task_funcs))
    return Structure(definitions, tuple(tensors))


def _without_names(f: FuncDef, tensors: dict[str, str]) -> FuncDef:
    """A func with numbers for names; new tensors get the next numbers."""
    name = tensors.setdefault(f.name, str(len(tensors)))
    definitions = tuple(_numbered(d, tensors) for d in f.definitions)
    return replace(f, name=name, definitions=definitions, loc=None)


def _numbered(d: Definition, tensors: dict[str, str]) -> Definition:
    variables = _numbers(d.variables)

    def rename(n: Node) -> Node:
        match n:
            case Var(name) if name in variables:
                return Var(variables[name])
            case Read(name):
                return replace(n, name=tensors.setdefault(name, str(len(tensors))))
            case _:
                return n

    def renamed(e: Expr) -> Expr:
        return transform(e, rename)

    d = map_expressions(d, renamed)
    free = tuple(variables[v] for v in d.free)
    ranges = tuple((variables[v], lo, hi) for v, lo, hi in d.ranges)
    return replace(d, free=free, ranges=ranges)


def _numbers(names: Iterable[str]) -> Mapping[str, str]:
    return {name: str(n) for n, name in enumerate(names)}
