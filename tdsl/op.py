"""`td.op` and `Operator`: functions of tensors, compiled for the shapes of the arrays of each call."""

from __future__ import annotations

import functools
import inspect
import operator
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, overload

from tdsl.codegen.runtime.arrays import placeholder
from tdsl.codegen.runtime.program_signature import signature_of
from tdsl.compile import Compiled, compile
from tdsl.core.by_name import reduce_by_name
from tdsl.core.notebook import page
from tdsl.core.source import Loc, here
from tdsl.errors import (
    DefinitionError,
    ShapeError,
    Suggesting,
    TdslError,
    TypeMismatch,
    counted,
)  # fmt: skip
from tdsl.lang.abstract_types import abstract_types, check_types, concrete, types_of_arrays
from tdsl.lang.build_program import build_program
from tdsl.lang.program import Program
from tdsl.lang.sizes import check_sizes
from tdsl.lang.tensor import Func, Scalar, Tensor, tensor_from_annotation
from tdsl.lang.types import DType, TensorType
from tdsl.schedule.fluent import Stage
from tdsl.target import Target, as_target
from tdsl.viewer.schedule import Schedule

if TYPE_CHECKING:  # loaded by the first call that tunes
    from tdsl.records.file import Paths, Record
    from tdsl.tuning.tuner import TuningReport


class Operator(Suggesting):
    """A function from tensors, its annotated parameters, to funcs.

    A call compiles the operator for the shapes of the arrays, once, and runs it. `schedule` returns an empty
    schedule to be edited, `compile` a compiled program.
    """

    _internal = ("function", "loc")

    def __init__(self, function: Callable[..., Any], loc: Loc | None) -> None:
        functools.update_wrapper(self, function)
        self.function, self.loc = function, loc
        self.name = function.__name__
        self._annotated = self._annotations()
        self._abstract = abstract_types(self._annotated)
        self._typed: dict[tuple[DType, ...], Operator] = {}  # by the types in place of the abstract ones
        self._generic: tuple[Operator, tuple[DType, ...]] | None = None  # what this is one of
        self._parameters = self._declare_inputs([t.example for t in self._abstract])
        self._program: Program | None = None
        self._compiled: Compiled | None = None

    @property
    def program(self) -> Program:
        """The program of the operator, built on first use; TypeMismatch if it has abstract element types."""
        if self._program is None:
            if self._abstract:
                raise TypeMismatch(
                    f"the element types of operator {self.name!r} are not decided: it takes "
                    + ", ".join(f"td.{t}" for t in self._abstract),
                    loc=here(),
                    label="this use",
                    hint=f"say them: {self.name}[{', '.join(f'td.{t.example}' for t in self._abstract)}]",
                )
            self._program = self._build_program()
        return self._program

    def __getitem__(self, types: Any) -> Operator:
        """The operator with element types in place of its abstract ones, in the order of its parameters."""
        given = types if isinstance(types, tuple) else (types,)
        decided = check_types(self.name, self._abstract, given)
        if decided not in self._typed:
            typed = Operator(self.function, self.loc)
            typed._abstract, typed._generic = (), (self, decided)
            typed._parameters = self._declare_inputs(decided)
            self._typed[decided] = typed
        return self._typed[decided]

    __iter__ = None  # or Python would iterate by indexing, without an end

    def _declare_inputs(self, types: Sequence[DType]) -> tuple[Tensor | Scalar, ...]:
        """The inputs that the annotations declare, with `types` in place of the abstract element types."""
        decided = dict(zip(self._abstract, types, strict=True))
        return tuple(
            self._declare_input(p, concrete(self._annotated.get(p.name), decided))
            for p in inspect.signature(self.function).parameters.values()
        )

    def _annotations(self) -> dict[str, Any]:
        """The annotations of the parameters."""
        try:
            annotations = inspect.get_annotations(self.function, eval_str=True)
        except Exception as error:  # noqa: BLE001  # an annotation in a string is any code of the user
            why = error.message if isinstance(error, TdslError) else error
            raise DefinitionError(
                f"an annotation of operator {self.name!r} cannot be evaluated: {why}",
                loc=self.loc,
                label="this operator",
                hint='annotate parameters with types such as td.f32["M", "N"]',
            ) from None
        annotations.pop("return", None)
        return annotations

    def _declare_input(self, parameter: inspect.Parameter, annotation: Any) -> Tensor | Scalar:
        name = str(parameter)
        problem = hint = ""
        tensor = tensor_from_annotation(parameter.name, annotation, self.loc)
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            problem, hint = "stands for any number of arguments", "write a parameter for each input"
        elif parameter.default is not parameter.empty:
            problem, hint = "has a default", "inputs are given in each call; take the default away"
        elif tensor is None:
            problem = "has no tensor type"
            hint = f'annotate it: {name}: td.f32["M", "N"], or {name}: td.f32 for a number'
        if problem or tensor is None:
            raise DefinitionError(
                f"parameter {parameter.name!r} of operator {self.name!r} {problem}",
                loc=self.loc,
                label="this operator",
                hint=hint,
            )
        return tensor

    def _build_program(self) -> Program:
        result = self.function(*self._parameters)
        outputs = result if isinstance(result, tuple | list) else (result,)
        if not outputs or not all(isinstance(f, Func) for f in outputs):
            raise DefinitionError(
                f"operator {self.name!r} must return funcs, not {type(result).__name__}",
                loc=self.loc,
                label="this operator",
                hint='define out = td.Func("out"), out[i, j] = ..., and return out',
            )
        return build_program(tuple(outputs), self._parameters, self.name)

    # The first overloads let a checker accept a dictionary of sizes, which it tries for all keywords.
    @overload
    def schedule(self, **sizes: int) -> Schedule: ...
    @overload
    def schedule(self, *, records: Paths, **sizes: int) -> Schedule: ...
    @overload
    def schedule(
        self, *, target: Target | str | None = None, records: Paths | None = None, **sizes: int
    ) -> Schedule: ...
    def schedule(  # type: ignore[misc]  # no size has the name of a keyword
        self, *, target: Target | str | None = None, records: Paths | None = None, **sizes: int
    ) -> Schedule:
        """An empty schedule for sizes given by name; other sizes remain symbolic.

        With `records`, the path of one file of `tune` or several: the best schedule that they have for these
        sizes and this processor, or for the nearest sizes if it is legal and predicted to be as fast as the
        default; without such a record the schedule is empty. All sizes must be given.
        """
        if records is None:
            return Schedule.of_program(self.program, sizes, target)
        from tdsl.records.file import read
        from tdsl.records.lookup import recorded_schedule

        known, _ = self._sizes_and_values((), dict(sizes))
        return Schedule.of(recorded_schedule(self.program, known, as_target(target), read(records)))

    @overload
    def tune(
        self, *, records: str | os.PathLike[str], seconds: float = 60.0, trials: int | None = None,
        workers: int | None = None, **sizes: int,
    ) -> TuningReport: ...  # fmt: skip
    @overload
    def tune(
        self, *args: Any, seconds: float = 60.0, trials: int | None = None,
        records: str | os.PathLike[str] | None = None, workers: int | None = None,
        target: Target | str | None = None, on_trial: Callable[[Record], None] | None = None, **named: Any,
    ) -> TuningReport: ...  # fmt: skip
    def tune(  # type: ignore[misc]  # no size has the name of a keyword
        self, *args: Any, seconds: float = 60.0, trials: int | None = None,
        records: str | os.PathLike[str] | None = None, workers: int | None = None,
        target: Target | str | None = None, on_trial: Callable[[Record], None] | None = None, **named: Any,
    ) -> TuningReport:  # fmt: skip
        """Measures schedules for arrays, or for sizes by name, and returns a report; the best is recorded.

        Parameters of schedules are searched: tile sizes, vector widths, unrolling, threads, places of funcs,
        the order of loops. Schedules are compiled and run in separate processes, `workers` at once (by
        default one for each thread); each is measured by itself. A schedule counts if its results agree with
        those of the default schedule.

        `records` is a file of JSON lines to which each trial is appended; if it has trials already, tuning
        goes on after them. Tuning ends after `seconds` seconds or `trials` trials, when all schedules are
        tried, or with Ctrl-C; on a terminal there is a progress bar. `on_trial` is called with each record.

        TypeMismatch for an invalid budget, a target other than a CPU, or a file that cannot be opened,
        ShapeError for unknown or missing sizes, ScheduleError if no schedule could be measured.
        """
        from tdsl.tuning.oracle import random_values
        from tdsl.tuning.tune import check_budget, check_target, tune

        resolved = as_target(target)
        check_budget(seconds, trials, workers)
        check_target(resolved)
        sizes, values = self._sizes_and_values(args, named)
        return tune(
            self.program, sizes, resolved, values or random_values(self.program, sizes), seconds=seconds,
            trials=trials, path=records, workers=workers, on_trial=on_trial,
        )  # fmt: skip

    def compile(
        self, *, target: Target | str | None = None, dynamic: str | Iterable[str] = (), **sizes: int
    ) -> Compiled:
        """The operator compiled with its default schedule; see `td.compile`."""
        schedule = Schedule.of_program(self.program)
        compiled: Compiled = compile(schedule, target=target, dynamic=dynamic, arguments="created", **sizes)
        return compiled

    def autoschedule(
        self, *args: Any, target: Target | str | None = None, pin: object = None, measure: int = 0,
        seconds: float = 60.0, **named: Any,
    ) -> Schedule:  # fmt: skip
        """Searches for a schedule, for arrays or for sizes by name; returns it to print, edit and compile.

        Types may replace arrays: `td.f32[49, 83]`, or `td.f32` for a number.

        The search chooses which funcs share tiles, and the tile sizes, by the predicted traffic between
        levels of memory and the number of operations; `explain()` of the schedule shows the level of each
        func, and reasons. The result is deterministic for the same program, sizes and machine.

        `pin={"score": "L2"}` stores a func at a level of memory, `{("score", "p"): "memory"}` the part of one
        func that another reads; "inline" is a level, too. With `measure=10` the ten best candidates are
        compiled and run in separate processes, for `seconds` seconds in all, and the fastest is returned;
        candidates that fail, hang or compute wrong results are dropped. The measured choice is cached.

        ShapeError for an unknown or missing size, TypeMismatch for both sizes and arrays, ScheduleError for a
        pin that no candidate satisfies, TargetError for `measure=` without a device.
        """
        from tdsl.tuning.by_measurement import autoschedule, check_measure
        from tdsl.tuning.oracle import random_values

        resolved = as_target(target)
        check_measure(measure, seconds, resolved)
        sizes, values = self._sizes_and_values(args, named)
        if measure and values is None:
            values = random_values(self.program, sizes)
        return autoschedule(
            self.program, sizes, resolved, values or {}, pin=pin, tries=measure, seconds=seconds
        )

    def _sizes_and_values(
        self, args: tuple[Any, ...], named: dict[str, Any]
    ) -> tuple[dict[str, int], dict[str, Any] | None]:
        """The sizes, and the arguments by name if arrays are given; None for these if sizes or types are."""
        are_sizes = {*named} <= {*self.program.sizes} and all(isinstance(n, int) for n in named.values())
        if not args and (are_sizes or not {*named}.intersection(t.name for t in self.program.inputs)):
            sizes = check_sizes(
                self.name,
                self.program.sizes,
                named,
                equal=self.program.equal,
                agreements=self.program.agreements,
            )
            self._check_complete(sizes)
            return sizes, None
        from tdsl.profiling import arguments_of, sizes_of

        named_sizes = {*named}.intersection(self.program.sizes) - {*self.program.parameters}
        if named_sizes or (args and self.program.inputs and all(type(x) is int for x in args)):
            raise TypeMismatch(
                f"a search for {self.name!r} takes arrays, or sizes by name and nothing else",
                loc=here(),
                label="this call",
                hint=f"arrays have their sizes; without any: {self._example_call(named)}",
            )
        self._check_extents(args, named)
        signature = signature_of(self.program)
        if any(isinstance(x, TensorType | DType) for x in (*args, *named.values())):
            dummies = {name: placeholder(x) for name, x in named.items()}
            return sizes_of(signature, tuple(map(placeholder, args)), dummies), None
        values, specialisation = arguments_of(signature, args, named, None)
        return dict(specialisation.sizes), values

    def _check_extents(self, args: tuple[Any, ...], given: Mapping[str, Any]) -> None:
        """Raises ShapeError for the type of a number in place of an array."""
        named = {**dict(zip(self.program.parameters, args, strict=False)), **given}
        for t in self.program.inputs:
            x = named.get(t.name)
            if isinstance(x, DType) and t.shape:
                raise ShapeError(
                    f"{t.name!r} has {counted(len(t.shape), 'dimension')}, td.{x} is the type of a number",
                    loc=here(),
                    label="this call",
                    related=((t.loc, f"{t.name} is declared here"),),
                    hint=f"say its extents: td.{x}[{', '.join(['100'] * len(t.shape))}]; "
                    f"or give sizes by name: {self._example_call({})}",
                )

    def _check_complete(self, sizes: Mapping[str, int]) -> None:
        missing = [n for n in self.program.sizes if n not in sizes]
        if missing:
            raise ShapeError(
                f"a search for {self.name!r} needs all sizes; not known: {', '.join(missing)}",
                loc=here(),
                label="this call",
                hint=f"{self._example_call(sizes)}, or call it with arrays",
            )

    def _example_call(self, given: Mapping[str, Any]) -> str:
        """An example call of `autoschedule` by sizes, for hints."""
        sizes = ", ".join(f"{n}={given.get(n, 100)}" for n in self.program.sizes)
        return f"{self.name}.autoschedule({sizes})"

    def __call__(self, *args: Any, out: Any = None, **kwargs: Any) -> Any:
        """Runs the operator, compiled if necessary, on arrays and numbers; see `td.compile`."""
        if self._abstract:
            values = {**dict(zip(self._annotated, args, strict=False)), **kwargs}
            if self._annotated.keys() - values.keys():  # the call of any type raises the error
                return self[tuple(t.example for t in self._abstract)](*args, out=out, **kwargs)
            return self[types_of_arrays(self.name, self._annotated, values)](*args, out=out, **kwargs)
        if self._compiled is None:
            self._compiled = self.compile()
        return self._compiled(*args, out=out, **kwargs)

    def __reduce__(self) -> Any:
        """For pickle: the name of an operator in a module, else its program and its parameters."""
        if self._generic is not None and reduce_by_name(self._generic[0], self.function):
            return operator.getitem, self._generic
        by_name = reduce_by_name(self, self.function)
        return by_name or (_unpickle, (self.name, self._parameters, self.program))

    def _attribute_hint(self, name: str) -> str:
        op = vars(self).get("name", "op")
        if hasattr(Schedule, name):
            return f"schedules have it: {op}.schedule().{name}, or {op}.autoschedule(...).{name}"
        if hasattr(Compiled, name):
            return f"what is compiled has it: {op}.compile().{name}"
        if hasattr(Stage, name):
            return f"stages of a schedule have it: {op}.schedule()[{self.program.outputs[0]!r}].{name}"
        return ""

    def _repr_html_(self) -> str:
        text = inspect.getsource(self.function) if self._abstract else str(self.program)
        title, texts = repr(self).strip("<>"), [("program", text)]
        return page(title, [*texts, ("docstring", self.__doc__)] if self.__doc__ else texts)

    def __repr__(self) -> str:
        return f"<operator {self.name}({', '.join(p.name for p in self._parameters)})>"


def _unpickle(name: str, parameters: tuple[Tensor | Scalar, ...], program: Program) -> Operator:
    """An operator with a program, without the function that defined it, which cannot be pickled."""

    def function(*_: Any) -> Any:
        raise DefinitionError(
            f"operator {name!r} was unpickled without its function, from which a derivative is built",
            loc=here(),
            label="this call",
            hint=f"pickle td.vjp({name}, ...), or define {name} in a module, not in a function",
        )

    function.__name__ = function.__qualname__ = name
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    types = {p.name: p.dtype if isinstance(p, Scalar) else _type_of(p) for p in parameters}
    declared = [inspect.Parameter(n, kind, annotation=t) for n, t in types.items()]
    function.__annotations__ = types
    function.__signature__ = inspect.Signature(declared)  # type: ignore[attr-defined]  # as inspect allows
    unpickled = Operator(function, None)
    unpickled._parameters, unpickled._program = parameters, program
    return unpickled


def _type_of(tensor: Tensor) -> TensorType:
    return TensorType(tensor.dtype, tensor.shape)


Func._related_types += [
    (Operator, "operators have it: return {func} from a function op under @td.op, then op")
]


def op(function: Callable[..., Any]) -> Operator:
    """Decorator: turns a function of tensors into an operator.

    >>> import numpy as np, tdsl as td
    >>> @td.op
    ... def scale(x: td.f32["N"], factor: td.f32):
    ...     i = td.vars("i")
    ...     y = td.Func("y")
    ...     y[i] = x[i] * factor
    ...     return y
    >>> scale(np.arange(3, dtype=np.float32), 2)
    array([0., 2., 4.], dtype=float32)
    """
    loc = here()
    if not inspect.isroutine(function) or inspect.isbuiltin(function):
        raise TypeMismatch(
            f"an operator is defined by a function, not by {function!r}",
            loc=loc,
            label="this operator",
            hint="write def name(x: td.f32[...]): ... under @td.op",
        )
    return Operator(function, loc)
