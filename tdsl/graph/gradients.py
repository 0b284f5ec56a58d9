"""Gradients of graphs: the calls that a function records, differentiated in reverse order as further calls.

Each call is differentiated by itself with `td.vjp` of its program, so that adjoints are operators, grouped,
planned and compiled as all others. The adjoint of a view is added to the adjoint of its base array.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tdsl.compile import Compiled, compile
from tdsl.core.node import frozen
from tdsl.core.source import here
from tdsl.errors import DefinitionError, ShapeError, TypeMismatch, did_you_mean
from tdsl.gradients import vjp
from tdsl.graph.created_arrays import with_namespace
from tdsl.graph.elementwise import index_variables, record_copy
from tdsl.graph.structure import Leaf, Nested, Static, Structure, flatten, unflatten
from tdsl.graph.symbol import Symbol
from tdsl.graph.trace import Trace
from tdsl.graph.values import Base, Call, Operand, Result, Source, Spec, View, base_of
from tdsl.graph.views import index_of_base
from tdsl.lang.build_program import build_program, inputs_in_read_order
from tdsl.lang.expr import Var
from tdsl.lang.gradients.contribution import unused_name
from tdsl.lang.handles_of_program import handles_of_program
from tdsl.lang.program import Program, bind_sizes
from tdsl.lang.tensor import Func, Tensor
from tdsl.lang.types import from_numpy
from tdsl.lang.value import Value, Variable
from tdsl.tilegraph.schedule import Schedule


@frozen
class Gradient:
    """A function of symbols that returns the adjoints of the parameters `wrt` of another one.

    `wrt` is the name of a parameter, whose adjoint has the structure of its argument, or a tuple of names,
    for a tuple of adjoints. With `has_seeds` the last argument has the adjoints of the results, in their
    structure; otherwise the result is a float, whose adjoint is 1. With `has_value` the result precedes the
    adjoints.
    """

    function: Callable[..., Any]
    name: str
    wrt: str | tuple[str, ...]
    has_seeds: bool
    has_value: bool = False

    @property
    def __name__(self) -> str:
        return f"d_{self.name}"

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the parameters by which the function is differentiated."""
        return (self.wrt,) if isinstance(self.wrt, str) else self.wrt

    @property
    def __signature__(self) -> inspect.Signature:
        signature = inspect.signature(self.function)
        if not self.has_seeds:
            return signature
        given = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
        keywords = [p for p in signature.parameters.values() if p.kind is p.VAR_KEYWORD]
        plain = all(p.kind <= p.POSITIONAL_OR_KEYWORD and p.default is p.empty for p in given)
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD if plain else inspect.Parameter.KEYWORD_ONLY
        seed = inspect.Parameter(self._seed(), kind)
        return signature.replace(parameters=[*given, seed, *keywords])

    def _seed(self) -> str:
        return unused_name("seed", inspect.signature(self.function).parameters)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The adjoints, recorded as calls in the trace of the arguments."""
        bound = self.__signature__.bind(*args, **kwargs)
        bound.apply_defaults()
        seeds = bound.arguments.pop(self._seed()) if self.has_seeds else None
        given: list[Any] = []
        structure = flatten(dict(bound.arguments), _is_array, given)
        assert isinstance(structure, Nested)
        for n, part in zip(structure.keys, structure.parts, strict=True):
            if n in self.names:
                self._check_numbers(str(n), part)
        trace = self._trace(given)
        symbols = _distinct(trace, given)
        bases = [x.source for x in symbols]
        bound.arguments.update(unflatten(structure, iter(symbols)))
        backward = Backward(trace)
        results = with_namespace(self.function, trace)(*bound.args, **bound.kwargs)
        if any(x.source != base for x, base in zip(symbols, bases, strict=True)):
            raise DefinitionError(
                f"graph {self.name!r} writes to its arguments, and is not differentiated",
                loc=here(),
                label="this call",
                hint="write to a copy, and return it: a = a.copy()",
            )
        outputs: list[Any] = []
        shape = flatten(results, _is_array, outputs)
        for output, seed in zip(outputs, self._seeds(trace, outputs, shape, seeds), strict=True):
            if isinstance(output, Symbol):
                backward.add(output, seed)
        arguments: list[Symbol] = []
        parts = [flatten(bound.arguments[n], _is_array, arguments) for n in self.names]
        for x in arguments:
            self._check_argument(x)
        adjoints = iter(backward.run(arguments))
        nested = tuple(unflatten(part, adjoints) for part in parts)
        gradient = nested[0] if isinstance(self.wrt, str) else nested
        return (results, gradient) if self.has_value else gradient

    def _seeds(self, trace: Trace, outputs: Sequence[Any], structure: Structure, seeds: Any) -> list[Symbol]:
        """The adjoint of each output as a symbol; ShapeError or TypeMismatch if it is of another type."""
        given: list[Any] = []
        if not self.has_seeds:
            if structure != Leaf() or outputs[0].shape:
                shapes = ", ".join(str(Spec(x.shape, x.dtype)) for x in outputs)
                raise ShapeError(
                    f"graph {self.name!r} returns {shapes}; td.grad takes a function of one number",
                    loc=here(),
                    label="this call",
                    hint="sum the result, or give the adjoint of each result: td.vjp(graph, wrt)(..., seed)",
                )
            given = [np.ones((), outputs[0].dtype)]
        elif flatten(seeds, _is_array, given) != structure:
            raise TypeMismatch(
                f"the adjoints of graph {self.name!r} are not nested as its results",
                loc=here(),
                label="this call",
                hint="for a result (y, z) pass (dy, dz)",
            )
        for x, seed in zip(outputs, given, strict=True):
            if not from_numpy(x.dtype).is_float:
                raise DefinitionError(
                    f"graph {self.name!r} returns {Spec(x.shape, x.dtype)}, which has no derivative",
                    loc=here(),
                    label="this call",
                    hint="differentiate a function of floats",
                )
            if (x.shape, x.dtype) != (seed.shape, seed.dtype):
                raise ShapeError(
                    f"the adjoint of a result {Spec(x.shape, x.dtype)} is {Spec(seed.shape, seed.dtype)}",
                    loc=here(),
                    label="this call",
                    hint="an adjoint has the shape and the element type of its result",
                )
        return [_symbol(trace, seed) for seed in given]

    def _trace(self, arrays: Sequence[Any]) -> Trace:
        """The trace of the arguments; TypeMismatch if none is an array."""
        trace = next((x.trace for x in arrays if isinstance(x, Symbol)), None)
        if trace is None:
            raise TypeMismatch(
                f"graph {self.name!r} is differentiated by arrays, and no argument is one",
                loc=here(),
                label="this call",
                hint="pass np.array(2.0) in place of a number",
            )
        assert isinstance(trace, Trace)
        return trace

    def _check_numbers(self, name: str, structure: Structure) -> None:
        """Raises TypeMismatch for a number in the argument of a parameter: it is part of the plan."""
        match structure:
            case Static(kind, value) if issubclass(kind, int | float | complex):
                raise TypeMismatch(
                    f"parameter {name!r} of graph {self.name!r} has the number {value!r}, which is no array",
                    loc=here(),
                    label="this call",
                    hint=f"numbers are constants of a graph; pass np.array({float(value.real)})",
                )
            case Nested(_, _, parts):
                for part in parts:
                    self._check_numbers(name, part)
            case _:
                pass

    def _check_argument(self, x: Symbol) -> None:
        if not from_numpy(x.dtype).is_float:
            raise DefinitionError(
                f"an argument of graph {self.name!r} is {x.spec}: there is no derivative by integers",
                loc=here(),
                label="this call",
                hint="pass the floats by which you differentiate in a parameter of their own",
            )


def gradient_of(
    function: Callable[..., Any], name: str, wrt: Any, *, has_seeds: bool, has_value: bool = False
) -> Gradient:
    """The gradient of a function of symbols; DefinitionError for a parameter that it does not have."""
    names = tuple(wrt) if isinstance(wrt, list | tuple) else (wrt,)
    parameters = inspect.signature(function).parameters
    for n in names or (None,):
        if n not in parameters:
            raise DefinitionError(
                f"graph {name!r} has no parameter {n!r}",
                loc=here(),
                label="this call",
                hint=did_you_mean(str(n), parameters) or f"name a parameter: {next(iter(parameters), 'x')!r}",
            )
    return Gradient(function, name, names if isinstance(wrt, list | tuple) else wrt, has_seeds, has_value)


class Backward:
    """The adjoints of the arrays of a trace, from those of results back to those of arguments.

    Calls that are recorded after it is created are differentiated.
    """

    def __init__(self, trace: Trace) -> None:
        self.trace, self.start = trace, len(trace.calls)
        self.adjoints: dict[Base, Symbol] = {}

    def add(self, x: Symbol, adjoint: Symbol) -> None:
        """Add to the adjoint of an array; for a view, to that of its base."""
        if isinstance(x.source, View):
            adjoint = _adjoint_of_base(x.source, self.trace.spec_of(x.source.base), adjoint)
        base = base_of(x.source)
        known = self.adjoints.get(base)
        self.adjoints[base] = adjoint if known is None else known + adjoint

    def run(self, arguments: Sequence[Symbol]) -> list[Symbol]:
        """The adjoints of arrays, zeros for those on which no result depends."""
        calls = list(enumerate(self.trace.calls))[self.start :]
        active = {base_of(x.source) for x in arguments}
        for n, call in calls:
            if any(isinstance(x, Source) and base_of(x) in active for x in call.inputs):
                active |= {
                    Result(n, o) for o, spec in enumerate(call.results) if from_numpy(spec.dtype).is_float
                }
        for n, call in reversed(calls):
            results = {o: Result(n, o) for o in range(len(call.results))}
            seeds = {o: self.adjoints[r] for o, r in results.items() if r in active & self.adjoints.keys()}
            if seeds:
                self._differentiate(call, seeds, active)
        return [self._adjoint(x) for x in arguments]

    def _adjoint(self, x: Symbol) -> Symbol:
        known = self.adjoints.get(base_of(x.source))
        return self.trace.constant_symbol(np.zeros(x.shape, x.dtype)) if known is None else known

    def _differentiate(self, call: Call, seeds: dict[int, Symbol], active: set[Base]) -> None:
        """Add the adjoints of the inputs of a call, given those of its results."""
        program = call.compiled.schedule.program
        program = bind_sizes(program.with_stops or program, call.sizes)
        arguments = dict(zip(program.parameters, call.inputs, strict=True))
        wrt = tuple(n for n, x in arguments.items() if isinstance(x, Source) and base_of(x) in active)
        adjoint = _adjoint_operator(program, tuple(seeds), wrt)
        if adjoint is None:
            return
        compiled, names, seed_names = adjoint
        given = {n: self._operand(x) for n, x in arguments.items()}
        given |= dict(zip(seed_names, seeds.values(), strict=True))
        needed = {n: given[n] for n in compiled.schedule.program.parameters}
        results = self.trace.call(compiled, (), needed)
        for n, result in zip(names, results if len(names) > 1 else (results,), strict=True):
            self.add(given[n], result)

    def _operand(self, x: Operand) -> Any:
        if not isinstance(x, Source):
            return x
        return Symbol(self.trace, x, x.spec if isinstance(x, View) else self.trace.spec_of(x))


@functools.lru_cache(maxsize=512)
def _adjoint_operator(
    program: Program, results: tuple[int, ...], wrt: tuple[str, ...]
) -> tuple[Compiled, tuple[str, ...], tuple[str, ...]] | None:
    """The adjoints of inputs `wrt` of a program, given those of some results, as a compiled program.

    With it the names of the inputs on which these results depend, in the order of its outputs, and the names
    of the parameters for the adjoints of the results. None if the results depend on no input of `wrt`.
    """
    handles = handles_of_program(program)
    outputs = [f for name in program.outputs for f in _components(handles[name])]
    outputs = [outputs[n] for n in results]
    read = inputs_in_read_order(tuple(outputs))
    names = tuple(n for n in wrt if n in read)
    if not names:
        return None
    taken, seeds = {*handles}, list[Tensor]()
    for f in outputs:
        seeds.append(Tensor(unused_name(f"d_{f.name}", taken), f.shape, f.dtype))
        taken.add(seeds[-1].name)
    adjoints = vjp(outputs, [handles[n] for n in names], seeds)
    merged = build_program(tuple(adjoints), name=f"d_{program.name}")
    return compile(Schedule.of_program(merged)), names, tuple(t.name for t in seeds)


def _components(f: Any) -> list[Func]:
    """A func itself, or a func for each of its values."""
    if len(f.dtypes) == 1:
        return [f]
    index = tuple(Variable(Var(v)) for v in f.definitions[0].free)
    components = []
    for n in range(len(f.dtypes)):
        component = Func(f"{f.name}_{n}")
        component[index] = f[index][n]
        components.append(component)
    return components


def _is_array(x: object) -> bool:
    return isinstance(x, Symbol | np.ndarray)


def _symbol(trace: Trace, x: Any) -> Symbol:
    return x if isinstance(x, Symbol) else trace.constant_symbol(x)


def _distinct(trace: Trace, arrays: Sequence[Any]) -> list[Symbol]:
    """The arrays as symbols with a base array each; views, and arrays that are passed twice, are copied."""
    symbols: list[Symbol] = []
    bases = set[Base]()
    for x in (_symbol(trace, a) for a in arrays):
        copied = isinstance(x.source, View) or x.source in bases
        symbols.append(record_copy(x) if copied else x)
        bases.add(base_of(symbols[-1].source))
    return symbols


def _adjoint_of_base(view: View, base: Spec, adjoint: Symbol) -> Symbol:
    """The adjoint of the base array of a view, given that of the view.

    It is itself a view if the view has all elements of the base, once each; otherwise an operator.
    """
    memory = np.empty(base.shape, base.dtype)  # only address and strides are used
    strided = view.apply(memory)
    order = sorted(range(strided.ndim), key=lambda n: -strided.strides[n])
    begins = strided.ctypes.data == memory.ctypes.data
    if begins and strided.size == memory.size and strided.transpose(order).flags.c_contiguous:
        return adjoint.transpose(order).reshape(base.shape)
    element = from_numpy(base.dtype)
    x, of_view = Tensor("x", base.shape, element), Tensor("d_view", view.spec.shape, element)
    index, elements = index_variables(strided.ndim), Func("view", shape=view.spec.shape)
    elements[index] = x[tuple(map(Value, index_of_base(view, base, [v.node for v in index])))]
    result: Symbol = adjoint.trace.call(compile(vjp(elements, x, of_view)), (adjoint,), {})
    return result
