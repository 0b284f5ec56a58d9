"""Merges the programs of several calls into one: a result that another call reads becomes an inner func.

A view of such a result is read by an index into the func, and needs no separate func.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import TypeGuard

from tdsl.core.node import Node, frozen, transform
from tdsl.graph.values import Base, Call, Operand, Result, Source, Spec, View, base_of
from tdsl.graph.views import index_of_base
from tdsl.lang.definition import Definition
from tdsl.lang.expr import Expr, Param, Read, const
from tdsl.lang.program import FuncDef, Input, Program, ScalarInput, bind_sizes, map_expressions
from tdsl.lang.simplify import add


@frozen
class MergedCalls:
    """The merged program, the value passed for each parameter, and the result in each output array.

    For a func of several values `outputs` has the results of all its values, read or not. `funcs` maps each
    result of a merged call to the name of its func.
    """

    program: Program
    inputs: tuple[Operand, ...]
    outputs: tuple[Result, ...]
    funcs: Mapping[Result, str]


def merge(
    calls: Sequence[Call],
    group: Sequence[int],
    results: Collection[Result],
    name: str,
    arrays: Callable[[Base], Spec] | None = None,
    is_input: Callable[[View], bool] = lambda _: False,
) -> MergedCalls:
    """Merges a group of calls into one program that computes `results`.

    Sizes are bound. Groups of the same operators on the same shapes give equal programs. `arrays` returns the
    spec of a base array: with it, views are read by index from their base arrays, except those for which
    `is_input` is true; without it, a view of an array that is computed outside the group is a separate input.
    """
    merger = _Merger(calls, arrays, is_input)
    for n in group:
        merger.add(n, calls[n])
    outputs = [f for f in merger.results if any(r in results for r in merger.results[f])]
    program = Program(
        name,
        tuple(merger.inputs),
        tuple(merger.scalars),
        tuple(merger.funcs),
        tuple(outputs),
        tuple(merger.arguments),
        tuple(outputs),
    )
    arguments = tuple(merger.arguments.values())
    output_results = tuple(r for f in outputs for r in merger.results[f])
    return MergedCalls(
        program,
        arguments,
        output_results,
        {r: f for f in merger.results for r in merger.results[f]},
    )


class _Merger:
    """Collects the inputs and funcs of several programs under unique names."""

    def __init__(
        self,
        calls: Sequence[Call],
        arrays: Callable[[Base], Spec] | None,
        is_input: Callable[[View], bool],
    ) -> None:
        self._calls, self._arrays, self._is_input_view = calls, arrays, is_input
        self.inputs: list[Input] = []
        self.scalars: list[ScalarInput] = []
        self.funcs: list[FuncDef] = []
        self.arguments: dict[str, Operand] = {}  # by parameter
        self.results: dict[str, tuple[Result, ...]] = {}  # by func
        self._used_names: set[str] = set()
        self._input_of_source: dict[Source, str] = {}
        self._func_of_result: dict[Base, tuple[FuncDef, int]] = {}

    def add(self, number: int, call: Call) -> None:
        """Adds the program of a call; reads of results of calls added before become reads of their funcs."""
        program = bind_sizes(call.compiled.state.program, call.sizes)
        arguments = dict(zip(program.parameters, call.inputs, strict=True))
        names: dict[str, str] = {}
        for t in program.inputs:
            source = arguments[t.name]
            assert isinstance(source, Source)
            if base_of(source) not in self._func_of_result:
                names[t.name] = self._input(source, t)
        for s in program.scalars:
            names[s.name] = self._scalar(arguments[s.name], s)
        rewrite = self._rewrite(names, arguments)
        for f in program.funcs:
            names[f.name] = self._unique_name(f.name)
            definitions = tuple(_rewrite_definition(d, rewrite) for d in f.definitions)
            self.funcs.append(replace(f, name=names[f.name], definitions=definitions))
        funcs = {f.name: f for f in self.funcs}
        output = 0
        for o in program.outputs:
            f = funcs[names[o]]
            results = tuple(Result(number, output + n) for n in range(len(f.dtypes)))
            output += len(results)
            self.results[f.name] = results
            self._func_of_result |= {r: (f, n) for n, r in enumerate(results)}

    def _input(self, source: Source, t: Input) -> str:
        if self._is_read_by_index(source):
            source = base_of(source)
            t = replace(t, shape=tuple(map(const, self._spec(source).shape)))
        if source not in self._input_of_source:
            name = self._input_of_source[source] = self._unique_name(t.name)
            self.inputs.append(replace(t, name=name))
            self.arguments[name] = source
        return self._input_of_source[source]

    def _is_read_by_index(self, source: Source) -> TypeGuard[View]:
        """True for a view that is read by index from its base array."""
        if not isinstance(source, View):
            return False
        is_indexable = self._arrays is not None and not self._is_input_view(source)
        return is_indexable or source.base in self._func_of_result

    def _spec(self, base: Base) -> Spec:
        if isinstance(base, Result):
            return self._calls[base.call].results[base.output]
        assert self._arrays is not None
        return self._arrays(base)

    def _scalar(self, value: Operand, s: ScalarInput) -> str:
        if isinstance(value, Source):  # a number that is an array without dimensions
            if base_of(value) in self._func_of_result:
                return ""
            return self._input(value, Input(s.name, (), s.dtype, s.loc))
        name = self._unique_name(s.name)
        self.scalars.append(replace(s, name=name))
        self.arguments[name] = value
        return name

    def _unique_name(self, stem: str) -> str:
        name, count = stem, 0
        while name in self._used_names:
            count += 1
            name = f"{stem}_{count}"
        self._used_names.add(name)
        return name

    def _rewrite(self, names: dict[str, str], arguments: dict[str, Operand]) -> Callable[[Expr], Expr]:
        """A function that rewrites an expression of the call's program for the merged program."""

        def read(name: str, index: tuple[Expr, ...], n: Read | Param) -> Expr:
            source, producer = arguments.get(name), None
            if isinstance(source, Source):
                producer = self._func_of_result.get(base_of(source))
                if self._is_read_by_index(source):
                    index = index_of_base(source, self._spec(source.base), index)
            if producer is None:
                return Read(
                    names[name],
                    index,
                    n.component if isinstance(n, Read) else 0,
                    n.dtype,
                    loc=n.loc,
                )
            f, component = producer
            offset_index = (add(lo, e) for (lo, _), e in zip(f.output_box(None), index, strict=True))
            return Read(f.name, tuple(offset_index), component, n.dtype, loc=n.loc)

        def visit(n: Node) -> Node:
            match n:
                case Read(name, index):
                    return read(name, index, n)
                case Param(name) if isinstance(arguments.get(name), Source):
                    return read(name, (), n)
                case Param(name, dtype) if name in arguments:
                    return Param(names[name], dtype, loc=n.loc)
                case _:
                    return n

        return lambda e: transform(e, visit)


def _rewrite_definition(d: Definition, rewrite: Callable[[Expr], Expr]) -> Definition:
    d = map_expressions(d, rewrite)
    combine, init = d.combine, d.init
    if combine is not None and combine.scalars():
        combine = replace(combine, exprs=tuple(map(rewrite, combine.exprs)))
    return replace(d, combine=combine, init=None if init is None else tuple(map(rewrite, init)))
