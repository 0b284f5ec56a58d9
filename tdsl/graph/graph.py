"""`Graph`: a function of arrays that calls operators, traced, planned and compiled as a whole."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tdsl.core.source import here
from tdsl.errors import ShapeError, Suggesting, TargetError, TypeMismatch, told
from tdsl.graph.traced_function import TracedFunction
from tdsl.target import Target, as_target

if TYPE_CHECKING:  # what traces and plans is not needed to import tdsl
    from tdsl.graph.memory import Memory
    from tdsl.graph.plan import Plan
    from tdsl.graph.planned_function import PlannedFunction
    from tdsl.graph.values import Array, Result
    from tdsl.schedule.schedule import Schedule

_KEPT = 16  # plans; each holds memory for its results
_TRIED = 4  # of these, before arguments are looked at closely


class Graph(TracedFunction, Suggesting):
    """A function of arrays that calls operators, as one callable.

    A call runs the function once for the shapes and types of its arguments, on symbols in the place of
    arrays, and makes a plan of what was called: operators that occur again are compiled once, element-wise
    calls are compiled together with what they follow, and results share memory that later ones use again.
    Further calls with such arguments run the plan. The results are those of the function itself, in arrays
    of their own.

    Arguments are arrays, in tuples, lists and dicts as well; everything else, such as numbers, is part of
    the plan. Arrays that the function takes from elsewhere are constants: they must not be changed.

    >>> import numpy as np, tdsl as td
    >>> @td.op
    ... def scale(x: td.f32["N"], factor: td.f32):
    ...     i, y = td.vars("i"), td.Func("y")
    ...     y[i] = x[i] * factor
    ...     return y
    >>> graph = td.Graph(lambda x: scale(x, 2) + scale(x, 3))
    >>> graph(np.arange(3, dtype=np.float32))
    array([ 0.,  5., 10.], dtype=float32)

    `target` is that of `td.compile`, any but cuda: for a GPU there is `autoschedule`. Without `fuse`
    every call has a kernel of its own. Several threads may call one graph at once. `print` shows the plan
    made last.
    """

    def __init__(
        self, function: Callable[..., Any], *, target: Target | str | None = None, fuse: bool = True
    ) -> None:
        if not callable(function):
            raise TypeMismatch(
                f"a graph is made of a function, not of {function!r}",
                loc=here(),
                label="this graph",
                hint="pass a function of arrays that calls operators",
            )
        super().__init__(function, as_target(target), fuse)
        if self.target.name == "cuda":
            raise TargetError(
                "graphs run on the CPU",
                loc=here(),
                label="this graph",
                hint="graph.autoschedule(..., target='cuda') makes one program of it for a GPU",
            )
        self._plans: dict[Any, PlannedFunction] = {}
        self._recent: tuple[PlannedFunction, ...] = ()
        self._lock = threading.RLock()  # the function may call this graph

    def __call__(self, *args: Any, out: Any = None, **kwargs: Any) -> Any:
        """What the function gives, for arrays; `out=` is memory for the results, in the order of these."""
        if out is None:
            for known in self._recent:
                leaves = known.read(args, kwargs)
                result = None if leaves is None else known.plan.call(leaves)
                if result is not None:
                    return known.results(result)
        return self._other(args, kwargs, out)

    @told
    def _other(self, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> Any:
        """A call that is not like the last ones."""
        from tdsl.graph.structure import has_symbols, is_array

        if has_symbols((args, kwargs)):  # this graph is a part of another one
            return self.run(args, kwargs)
        known, arrays = self._planned(args, kwargs, is_array)
        with self._lock:
            others = [k for k in self._recent if k is not known]
            self._recent = (known, *others[: _TRIED - 1])
        if out is None:
            return known.results(known.plan.call(arrays))
        results = known.plan.write(arrays, out)
        return results[0] if len(results) == 1 else results

    def plan(self, *args: Any, **kwargs: Any) -> Plan:
        """The plan for arguments as a call takes them; `td.f32[64, 128]` may stand for an array."""
        from tdsl.graph.structure import is_declared

        return self._planned(args, kwargs, is_declared)[0].plan

    def tune(self, *args: Any, seconds: float = 10.0, **kwargs: Any) -> Plan:
        """A better plan for arguments as a call takes them, which later calls use.

        Groups of which one reads what the other makes are compiled as one, and timed on these arrays beside
        the two; then groups get schedules that the tile graph finds promising. What is clearly faster is
        kept. It takes about so many seconds, or less. `print` of the plan shows what was tried. Raises what
        the call raises.
        """
        from tdsl.graph.planned_function import tuned
        from tdsl.graph.structure import is_array

        _check_seconds(seconds)
        known, arrays = self._planned(args, kwargs, is_array)
        better = tuned(self, known, arrays, seconds)
        with self._lock:
            self._plans = {k: better if v is known else v for k, v in self._plans.items()}
            self._recent = (better, *(k for k in self._recent if k is not known))
        return better.plan

    def autoschedule(
        self, *args: Any, target: Target | str | None = None, pin: object = None, measure: int = 0,
        seconds: float = 60.0, **kwargs: Any,
    ) -> Schedule:  # fmt: skip
        """A schedule of the whole graph as one program, for arguments as a call takes them.

        It is what `Operator.autoschedule` finds for an operator that computes all of it, to be compiled,
        printed and edited like that. The program takes the arrays that it reads in the order of the
        arguments, then those that the function takes from elsewhere and the numbers that it passes, and gives
        the results of the function. Views are read where their elements lie. What others must beat are the
        schedules that the calls have apart. `td.f32[64, 128]` may stand for an array where nothing
        is measured.
        `target` is that of the graph unless one is named; it may be cuda.
        DefinitionError where a call has its own schedule.
        """
        from tdsl.graph.as_one import as_one
        from tdsl.graph.structure import is_declared
        from tdsl.tuning import autoschedule, check_measure

        wanted = self.target if target is None else as_target(target)
        check_measure(measure, seconds, wanted)
        if measure:
            _check_arrays((args, kwargs), "measured", "leave measure= away: the model decides")
        known, arrays = self._planned(args, kwargs, is_declared)
        whole = as_one(known.plan, arrays)
        return autoschedule(
            whole.program, {}, wanted, whole.values, pin=pin, tries=measure, seconds=seconds,
            results=whole.results,
        )  # fmt: skip

    @property
    def memory(self) -> Memory[Result]:
        """Where the results of the plan made last lie; ShapeError where there is none."""
        return self._last().memory

    def _last(self) -> Plan:
        if not self._plans:
            raise ShapeError(
                f"graph {self.name!r} has no plan: the shapes of its arguments are not known yet",
                loc=here(),
                label="needed here",
                hint="call it first, or plan it: graph.plan(td.f32[64, 128])",
            )
        return list(self._plans.values())[-1].plan

    def _found_elsewhere(self, name: str) -> str:
        from tdsl.schedule.schedule import Schedule

        found = "schedules have it: autoschedule of a graph gives one for all of it"
        return found if hasattr(Schedule, name) else ""

    def __str__(self) -> str:
        return str(self._last()) if self._plans else repr(self)

    def __repr__(self) -> str:
        return f"<graph {self.name}{inspect.signature(self.function)}>"

    def _planned(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], is_leaf: Callable[[Any], bool]
    ) -> tuple[PlannedFunction, tuple[Array, ...]]:
        """The plan for arguments, and the arrays in them."""
        from tdsl.graph.planned_function import as_array, trace
        from tdsl.graph.structure import is_array, take_apart
        from tdsl.graph.values import Spec

        leaves: list[Any] = []
        structures = take_apart(args, is_leaf, leaves), take_apart(kwargs, is_leaf, leaves)
        arrays = tuple(as_array(x) for x in leaves)
        key = structures, tuple(Spec(array.shape, array.dtype) for array in arrays)
        with self._lock:
            if key not in self._plans:
                if is_leaf is is_array:
                    _check_arrays((args, kwargs), "run", "types to plan() and autoschedule()")
                self._plans[key] = trace(self, *key[0], key[1])
                if len(self._plans) > _KEPT:
                    del self._plans[next(iter(self._plans))]
            return self._plans[key], arrays


def _check_arrays(given: Any, done: str, otherwise: str) -> None:
    """TypeMismatch for a type that stands for an array, where something is done on arrays."""
    from tdsl.graph.structure import is_array, is_declared, take_apart

    leaves: list[Any] = []
    take_apart(given, is_declared, leaves)
    for x in leaves:
        if not is_array(x):
            raise TypeMismatch(
                f"a graph is {done} on arrays, and {x} has no values",
                loc=here(),
                label="this call",
                hint=f"pass arrays, or {otherwise}",
            )


def _check_seconds(seconds: object) -> None:
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds >= 0:
        raise TypeMismatch(
            f"seconds= is a time to measure in, not {seconds!r}",
            loc=here(),
            label="this call",
            hint="seconds=10; 0 tries nothing",
        )
