"""`BaseSchedule` and `Stage`: record the directives of a program and apply them to its state."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from typing import Any, Self

from tdsl.core.notebook import page
from tdsl.core.source import here
from tdsl.errors import (
    DefinitionError,
    ScheduleError,
    Suggesting,
    TypeMismatch,
    did_you_mean,
)  # fmt: skip
from tdsl.lang.build_program import (
    build_program,
    inputs_in_read_order,
    mutable_state,
    names_by_handle,
)
from tdsl.lang.program import Program
from tdsl.lang.sizes import check_sizes
from tdsl.lang.tensor import Func, Tensor
from tdsl.lang.types import DType, as_dtype
from tdsl.lang.value import Variable
from tdsl.placement.grid import Grid
from tdsl.schedule.arguments import items_of, json_value
from tdsl.schedule.directive import Directive, apply, from_json, to_json
from tdsl.schedule.naming import Loop, LoopLike, check_grid, check_recipe, name_of_loop, name_of_source
from tdsl.schedule.rank_directives import RankDirectives
from tdsl.schedule.show import show_nests, show_schedule
from tdsl.schedule.stage import StageDirectives
from tdsl.schedule.state import State, initial_state
from tdsl.target import Target, as_target

FuncLike = StageDirectives | Func | str
StepLoops = Any  # Loop | tuple[Func | Stage | str, Variable | str] | Sequence[StepLoops]
EDITED = "directives were given since this schedule was found; when it was:"


class Stage(RankDirectives):
    """One definition of a func in a schedule; its methods are directives."""

    __slots__ = ()
    schedule: BaseSchedule

    def _names_of(self, funcs: FuncLike | Sequence[FuncLike]) -> tuple[str, ...]:
        each = (funcs,) if isinstance(funcs, StageDirectives | Func | str) else funcs
        return tuple(map(self.schedule.source_name, each))

    def in_blocks(self, loop: LoopLike, factor: int | None = None) -> Self:
        """Compute an argmax or argmin in steps: the best value of each block, the first best block, where.

        Blocks are the terms of the ranges from `loop` inwards, or `factor` terms of the last range. The new
        stages are named `..._best` and `..._block`. Equal values and NaN give the same index as before.

        Of an update that is a scan, such as f[r] += f[r - 1]: the scan of each block of `factor` elements,
        `..._local`, what the blocks give, `..._total`, and the scan of that, `..._upto`.
        """
        self.do("in_blocks", loop=self.loop_name(loop), **({} if factor is None else {"factor": factor}))
        return self

    def outline(self, along: LoopLike, dtype: DType | str | None = None, name: str | None = None) -> Self:
        """Make a func of the factor of this sum's terms that depends on the variable `along`.

        Its elements are of type `dtype`, by default the factor's own before it was widened; the type must
        hold all values of the factor. Returns the stage of the new func, which is not inlined.
        """
        given: dict[str, Any] = {} if dtype is None else {"dtype": as_dtype(dtype).name}
        given |= {} if name is None else {"name": name}
        (added,) = self._do_adding("outline", along=self.loop_name(along), **given)
        return type(self)(self.schedule, added.name, 0)

    def double(self, loop: LoopLike) -> Self:
        """Compute a scan over `loop` by element-wise funcs, named `..._step`; returns the stage of the last.

        Each combines elements twice as far from each other as the one before. Floats are combined in another
        order.
        """
        self.do("double", loop=self.loop_name(loop))
        return type(self)(self.schedule, self.func, 0)

    def fuse_reductions(self, source: Func | Stage | str, name: str | None = None) -> Self:
        """Reduce this func and `source`, over the same ranges, in one pass; returns the new stage of both."""
        given = {} if name is None else {"name": name}
        (both,) = self._do_adding("fuse_reductions", source=self.schedule.source_name(source), **given)
        return type(self)(self.schedule, both.name, 0)

    def merge_products(self, sources: FuncLike | Sequence[FuncLike], name: str | None = None) -> Self:
        """Compute this sum and `sources` as one: products of their shared operand and a stack of the others.

        y[i, j] = x[i, k] * W[k, j] and z[i, j] = x[i, k] * V[k, j], summed over k, become one product of x
        and a new func `W_stack[k, n, j]`. Extents, ranges and types are equal; results do not change. Returns
        the stage of the new sum, of which this func and the sources are the elements of each n.
        """
        given = {} if name is None else {"name": name}
        added = self._do_adding("merge_products", sources=self._names_of(sources), **given)
        return type(self)(self.schedule, added[1].name, 0)

    def add_first(self, sources: FuncLike | Sequence[FuncLike], name: str | None = None) -> Self:
        """Add the terms of this func's value that read `sources` by a new func, whose stage is returned.

        x[i] + a[i] + b[i] becomes x[i] + f_terms[i] with f_terms[i] = a[i] + b[i]. Floats are added in
        another order.
        """
        given = {} if name is None else {"name": name}
        (added,) = self._do_adding("add_first", sources=self._names_of(sources), **given)
        return type(self)(self.schedule, added.name, 0)

    def clone_in(self, readers: FuncLike | Sequence[FuncLike], name: str | None = None) -> Self:
        """Compute this func again for `readers`, before the first of them; returns the stage of the clone."""
        given = {} if name is None else {"name": name}
        (added,) = self._do_adding("clone_in", readers=self._names_of(readers), **given)
        return type(self)(self.schedule, added.name, 0)

    def factor_out(self, name: str | None = None) -> Self:
        """Multiply this sum by the factors of its terms that depend on no range, instead of each term.

        Floats are rounded in another order. Returns the stage of the sum of the other factors, a new
        func, which this func multiplies.
        """
        (added,) = self._do_adding("factor_out", **({} if name is None else {"name": name}))
        return type(self)(self.schedule, added.name, 0)


class BaseSchedule(Suggesting):
    """The directives of a program and the state that results from them; `s[f]` is a stage.

    Each directive is checked when it is called and raises ScheduleError if it would change the meaning of
    the program or names an unknown func or loop. `print(s)` shows Python code that rebuilds the schedule;
    `to_json` and `replay` store and restore it. What no directive says is as in the default schedule.
    """

    _internal = (
        "all_or_nothing", "check_unchanged", "do", "notes", "of_program", "of_state", "origins", "reasons",
        "source_name", "state",
    )  # fmt: skip

    def __init__(self, *outputs: Func, sizes: Mapping[str, int] | None = None, target: Any = None) -> None:
        if not outputs or not all(isinstance(f, Func) for f in outputs):
            given = ", ".join(type(f).__name__ for f in outputs) or "nothing"
            raise TypeMismatch(
                f"a schedule takes funcs, not {given}",
                loc=here(),
                label="this schedule",
                hint="td.Schedule(f), or td.Schedule(f, g) for two outputs; for an operator, op.schedule()",
            )
        self._set_state(initial_state(build_program(outputs)), outputs)
        self._set_sizes(sizes, target)

    @classmethod
    def of_program(cls, program: Program, sizes: Mapping[str, int] | None = None, target: Any = None) -> Self:
        """The empty schedule of a program."""
        schedule = cls.of_state(initial_state(program))
        schedule._continues = False
        schedule._set_sizes(sizes, target)
        return schedule

    @classmethod
    def of_state(cls, state: State) -> Self:
        """A schedule that starts from a state and records the directives that follow."""
        schedule = cls.__new__(cls)
        schedule._set_state(state, ())
        schedule._continues = True
        return schedule

    def _set_state(self, state: State, outputs: tuple[Func, ...]) -> None:
        self.program = state.program
        self.target: Target | None = None
        self.sizes: dict[str, int] = {}
        self._outputs = outputs  # keeps the handles alive whose ids are keys of `_names`
        self._names, self._outline = names_by_handle(outputs), mutable_state(outputs)
        self.origins: dict[str, str] = {}  # func that a directive added: func the directive was for
        self.state = state
        self.directives: tuple[Directive, ...] = ()
        self.notes: tuple[str, ...] = ()  # remarks of a search on its choices
        self.reasons: dict[str, str] = {}  # name of a func: why the search stores it whole
        self._prediction: Any = None  # see schedule.py
        self._continues = False  # messages name the directives before, not those that a default adds

    def _set_sizes(self, sizes: Mapping[str, int] | None, target: Any) -> None:
        """Check and store the sizes and the target of this schedule."""
        program, sizes = self.program, {} if sizes is None else sizes
        self.target = None if target is None else as_target(target)
        self.sizes = check_sizes(
            program.name, program.sizes, sizes, equal=program.equal, agreements=program.agreements
        )

    def __getstate__(self) -> dict[str, Any]:
        """The attributes to pickle, without the cached prediction and the names by id of handles."""
        return {**vars(self), "_prediction": None, "_names": {}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._names = names_by_handle(self._outputs)

    def __getitem__(self, stage: Func | Stage | str) -> Stage:
        """The stage of a func, by handle or name."""
        if isinstance(stage, Stage):
            return stage if stage.schedule is self else Stage(self, stage.func, stage.definition)
        name = name_of_source(stage, self._names)
        if not self.state.program.has_func(name):
            names = [f.name for f in self.state.program.funcs]
            raise ScheduleError(
                f"there is no func {name!r} in this program",
                loc=here(),
                label="this stage",
                hint=did_you_mean(name, names),
            )
        return Stage(self, name, 0)

    def check_unchanged(self) -> None:
        """Raise DefinitionError if a func was changed after this schedule was created."""
        now = mutable_state(self._outputs)
        for was, is_now in zip(self._outline, now, strict=False):
            if was != is_now:
                raise DefinitionError(
                    f"{is_now[0]!r} was changed after this schedule was created",
                    loc=here(),
                    label="compiled here",
                    hint="create the schedule after the last definition and the shape",
                )

    def _with_arguments(self, arguments: object) -> Self:
        """A copy of this schedule whose program takes its arguments in the order in which it reads them."""
        if arguments != "reads":
            raise TypeMismatch(
                f"arguments= is an order of arguments, not {arguments!r}",
                loc=here(),
                label="this call",
                hint='"created" for the order in which inputs were created, "reads" for that of the reads',
            )
        warnings.warn(
            'td.compile(..., arguments="reads") is deprecated: create tensors in the order of the arguments',
            DeprecationWarning,
            stacklevel=4,  # where td.compile is called
        )
        names, schedule = self.program.parameters, copy(self)
        if self._outputs:  # an operator has its parameters
            names = tuple(n for n in inputs_in_read_order(self._outputs) if n in names)
        schedule.program = replace(self.program, parameters=names)
        schedule.state = replace(self.state, program=replace(self.state.program, parameters=names))
        return schedule

    def source_name(self, source: StageDirectives | Func | Tensor | str) -> str:
        """The name in this program of a tensor or func given by handle, by stage or by name."""
        return source.func if isinstance(source, StageDirectives) else name_of_source(source, self._names)

    def do(self, directive: Directive) -> None:
        """Apply a directive and record it."""
        arguments = tuple((name, json_value(value)) for name, value in directive.arguments)
        directive = replace(directive, arguments=arguments)
        known = self.state.by_name
        self.state = apply(directive, self.state)
        if self._continues and directive.func in known and directive.func in self.state.by_name:
            given, plan = known[directive.func], self.state.plan(directive.func)
            self.state = self.state.with_plan(directive.func, replace(plan, loc=given.loc or plan.loc))
        if len(self.state.plans) > len(known):
            added = {n: directive.func for n, _ in self.state.plans if n not in known}
            self.origins = {**self.origins, **added}
        self.directives = (*self.directives, directive)
        if self.notes and self.notes[0] != EDITED:
            self.notes, self.reasons = (EDITED, *self.notes), {}

    @contextmanager
    def all_or_nothing(self) -> Iterator[None]:
        """Undo all directives of a `with` block if one of them raises."""
        before = self.state, self.origins, self.directives
        try:
            yield
        except BaseException:
            self.state, self.origins, self.directives = before
            raise

    def cache_read(
        self, source: Tensor | Func | str, consumer: Stage | Func | str, at: LoopLike | None = None, *,
        scope: str = "auto", pack: Mapping[int, int] | None = None, padded: bool = False,
        mapped: bool = False, inside: bool = False, filled: bool = False, gathered: bool = False,
        along: LoopLike | None = None, name: str | None = None,
    ) -> Stage:  # fmt: skip
        """Copy the region of `source` that the body of a loop of `consumer` reads into a buffer of its own.

        The copy is computed in each iteration of the loop `at`, or once at the root without it.
        `pack={axis: n}` splits an axis of the copy into panels of n; the position in the panel becomes the
        last dimension. With `padded` the copy includes the padding (`td.pad`), which is then read without
        tests. With `mapped` the copy stores the largest expression of one element of `source` alone, such as
        `maximum(source[i], 0)` in `maximum(source[i], 0) * b[j]`. With `inside`, stages computed inside the
        loop read the copy, too. With `filled` the copy is 0 beyond the edges of `source`, so that
        instructions may read whole tiles there. With `gathered` the copy has one dimension for each variable
        of `consumer` in the indices of the read, the contiguous one last (im2col). If `source` is read twice,
        as in `x[k, i] * x[k, j]`, the copy serves the read that has the variable `along`.
        Returns the stage of the copy.
        """
        stage = self[consumer]
        before = {f.name for f in self.state.program.funcs}
        tensor = self.source_name(source)
        loop = None if at is None else stage.loop_name(at)
        # with several definitions the copy serves the one with the loop
        arguments: dict[str, Any] = {"inside": True} if inside else {}
        arguments |= {"filled": True} if filled else {}
        arguments |= {"gathered": True} if gathered else {}
        arguments |= {} if along is None else {"along": stage.loop_name(along)}
        stage.do(
            "cache_read", source=tensor, loop=loop, scope=scope, pack=items_of(pack), padded=padded,
            mapped=mapped, **arguments, name=name,
        )  # fmt: skip
        copy_name = next(f.name for f in self.state.program.funcs if f.name not in before)
        return Stage(self, copy_name, 0)

    def cache_write(
        self,
        stage: Stage | Func | str,
        at: LoopLike | None = None,
        *,
        scope: str = "auto",
        name: str | None = None,
    ) -> Stage:
        """Compute the values of a loop's body in a buffer of its own, copied out at the end of the body.

        Without a loop, an output becomes a copy of `stage`, which can then be computed in the loops of what
        reads it: its other readers go on reading `stage`.
        Returns the stage of the copy; `stage` keeps its loops and its name.
        """
        producer = self[stage]
        before = {f.name for f in self.state.program.funcs}
        loop = None if at is None else producer.loop_name(at)
        producer.do("cache_write", loop=loop, scope=scope, name=name)
        copy_name = next(f.name for f in self.state.program.funcs if f.name not in before)
        return Stage(self, copy_name, 0)

    def place(
        self,
        tensor: Tensor | Func | Stage | str,
        notation: str | Sequence[str],
        grid: Grid | Sequence[Grid],
    ) -> Self:
        """Set the placement of an input or a func on a grid of ranks; returns the schedule.

        The notation has a letter for each dimension and, after an arrow, an entry for each axis of the
        grid: a dimension that is divided into blocks along the axis, `*` for a copy at each coordinate, or
        the only coordinate that stores elements. "rc -> r c" are tiles, "rc -> r 0" rows on one side of the
        grid, "rc -> r/64 *" rows distributed block-cyclically in blocks of 64. A machine of several levels is
        a list of grids, with a notation for each or one for the axes of all.
        """
        text = notation if isinstance(notation, str) else tuple(notation)
        named = (("tensor", self.source_name(tensor)), ("notation", text))
        where = ("grid", check_grid(grid).levels)
        self.do(Directive("place", self.state.program.outputs[0], 0, (*named, where), here()))
        return self

    def ranks(self, count: int) -> Self:
        """Set the number of ranks of a run, if larger than the grid; returns the schedule.

        Ranks beyond those of the grid are idle: they take part in calls, with None for each block.
        """
        self.do(Directive("ranks", self.state.program.outputs[0], 0, (("count", count),), here()))
        return self

    def overwrite(self, func: Func | Stage | str, source: Tensor | str) -> Self:
        """Store an output of ranks in the memory of an input, after its last reader; returns the schedule.

        Both have the same type, shape and placement. A call writes into the block of the input that it is
        given, and returns it. `func` may read the input at the index of the element that it replaces.
        ScheduleError if anything that comes after `func` reads the input.
        """
        arguments = (("source", self.source_name(source)),)
        self.do(Directive("overwrite", self.source_name(func), 0, arguments, here()))
        return self

    def donate(self, *sources: Tensor | str) -> Self:
        """Free the blocks of inputs on each rank after their last reader; returns the schedule.

        Peak memory of a plan counts a donated block until then. A call frees a block that it is passed as
        `td.Donated(block)`, if nothing else refers to it; any other array is freed by its owner.
        ScheduleError for what is no input, or is overwritten.
        """
        for source in sources:
            arguments = (("source", self.source_name(source)),)
            self.do(Directive("donate", self.state.program.outputs[0], 0, arguments, here()))
        return self

    def interleave(self, loops: Sequence[StepLoops], order: Sequence[tuple[int, int]] | None = None) -> Self:
        """Run the iterations of loops of several distributed funcs in one order; returns the schedule.

        Each loop is the first one inside of the distributed loops of its func; its iterations are steps. It
        is given by its handle, or as a pair of its func and its name; a list of loops in place of one
        advances as one. `order` has a pair for each step: the position in `loops`, and the number of the
        step. Without it one step of each follows the other, step by step. Ranks run what they compute, send
        and receive in this order; what a step reads of the others must be computed before. Elements of funcs
        that are computed and read in steps, and are no outputs, are stored from their first step to the last.
        `td.recipes` has the orders of pipelines.
        """
        items = tuple(self._step_loops(x) for x in loops)
        pairs = tuple(pair for item in items for pair in item)
        arguments = (("items", items), ("order", order))
        func = pairs[0][0] if pairs else self.state.program.outputs[0]
        self.do(Directive("interleave", func, 0, arguments, here()))
        return self

    def _step_loops(self, item: StepLoops) -> tuple[tuple[str, str], ...]:
        """The funcs and names of the loops that advance together."""
        match item:
            case Loop():
                return ((item.stage.func, item.name),)
            case (Func() | Stage() | str() as func, (Variable() | str()) as loop):
                return ((self.source_name(func), name_of_loop(loop, ())),)
            case [*several] if several:
                return tuple(pair for x in several for pair in self._step_loops(x))
            case _:
                raise TypeMismatch(
                    f"{item!r} is no loop of a func",
                    loc=here(),
                    label="this directive",
                    hint='pass what divide or split returns, or a pair: ("f", "x_o")',
                )

    def apply(self, recipe: Callable[[Self], Any]) -> Self:
        """Run a recipe, a function of the schedule; returns the schedule."""
        check_recipe(recipe)
        with self.all_or_nothing():
            recipe(self)
        return self

    def to_json(self) -> str:
        """The directives as JSON text."""
        return to_json(self.directives)

    def replay(self, text: str) -> Self:
        """Apply the directives of `to_json` to this schedule; returns it."""
        for d in from_json(text, here()):
            self.do(d)
        return self

    def _func_name(self) -> str:
        return self.program.outputs[0]

    def __str__(self) -> str:
        return show_schedule(self.directives)

    def __repr__(self) -> str:
        funcs = ", ".join(f.name for f in self.state.program.funcs)
        return f"Schedule of {self.program.name!r} ({funcs}), {len(self.directives)} directives"

    def _repr_html_(self) -> str:
        texts = [
            ("directives", str(self) or "none: the default schedule"),
            ("loops", show_nests(self.state)),
            ("program", str(self.state.program)),
        ]
        return page(f"Schedule of {self.program.name}", texts)
