"""The panes of a program: what the page of a schedule shows."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import replace

from tdsl.codegen.ir.show import show_with_lines
from tdsl.compile import Compiled
from tdsl.compile import compile as compile_schedule
from tdsl.core.text import in_bytes, in_seconds
from tdsl.cost.predict import Prediction
from tdsl.distribute.program import Distributed
from tdsl.distribute.show import show_step
from tdsl.errors import TdslError
from tdsl.pipeline import completed_state, make_kernel
from tdsl.tilegraph.graph import TileGraph
from tdsl.tilegraph.schedule import Schedule
from tdsl.viewer.contents import Contents, Line, Pane
from tdsl.viewer.figures import COLUMNS, NOTE, LoopFigures
from tdsl.viewer.loops import loop_lines, loop_names
from tdsl.viewer.machine_code import assembly_lines, cuda_lines

_WORD = re.compile(r"\w+")
_SHOWN_RANKS = 64  # of which the program is shown, too
_CODE = {"cpu": "assembly", "cuda": "CUDA"}  # by target


def contents_of(schedule: Schedule) -> Contents:
    """The panes of a schedule; where one of them cannot be computed, it shows the error.

    >>> import tdsl as td
    >>> i, a, f = td.vars("i"), td.Tensor("a", (64,), td.f32), td.Func("f")
    >>> f[i] = a[i] + 1
    >>> [pane.heading for pane in contents_of(td.Schedule(f)).panes]
    ['definition', 'directives', 'loops', 'assembly', 'price', 'tile tree', 'bytes', 'tile graph']
    """
    program = schedule.program
    inputs = tuple(t.name for t in program.inputs)
    names = (*(f.name for f in program.funcs), *inputs)
    sizes = ", ".join(f"{n}={x}" for n, x in schedule.sizes.items())
    title = f"{program.name} ({sizes})" if sizes else program.name
    panes = [
        Pane("definition", _named(str(program), names)),
        _or_error("directives", lambda: _directives(schedule, names)),
    ]
    try:
        compiled = compile_schedule(schedule)
    except TdslError as error:
        return Contents(title, (*panes, _error("loops", error)))
    if isinstance(compiled, Distributed):
        return Contents(f"{title} on {schedule.state.grid}", (*panes, *_of_ranks(compiled, names)))
    return Contents(f"{title} for {compiled.target}", (*panes, *_of_kernel(schedule, compiled, inputs)))


def contents_of_steps(
    title: str, table: Iterable[Line], picture: str, kernels: Iterable[tuple[int, Compiled]]
) -> Contents:
    """The panes of a graph: the `table` and the `picture` of its plan, then those of each kernel.

    Kernels have the number of the step that they are compiled for, of which lines of `table` are named.
    """
    panes = [Pane("plan", tuple(table)), Pane("memory over the steps", picture=picture)]
    for number, compiled in kernels:
        inputs = tuple(t.name for t in compiled.schedule.program.inputs)
        for pane in _of_kernel(compiled.schedule, compiled, inputs):
            of_step = (replace(x, names=_in_step(x.names, str(number))) for x in pane.lines)
            panes.append(replace(pane, heading=f"{number}: {pane.heading}", lines=tuple(of_step)))
    return Contents(title, tuple(panes))


def _in_step(names: tuple[str, ...], step: str) -> tuple[str, ...]:
    """Names that are of a step of a graph; other steps may have equal ones."""
    return step, *(f"{step}.{n}" for n in names)


def _of_kernel(schedule: Schedule, compiled: Compiled, inputs: tuple[str, ...]) -> Iterator[Pane]:
    """The panes of a schedule and of what it compiles to on one rank."""
    code = _CODE.get(compiled.target.name, "Python")
    yield _or_error("loops", lambda: _loops(schedule, compiled))
    yield _or_error(code, lambda: _code(code, compiled))
    yield _or_error("price", lambda: _price(schedule.prediction()))
    yield _or_error("tile tree", lambda: _named_pane("tile tree", schedule.tree(), _funcs(compiled)))
    yield _or_error("bytes", lambda: _named_pane("bytes", schedule.explain(), (*_funcs(compiled), *inputs)))
    yield _or_error("tile graph", lambda: _picture(schedule))


def error_contents(title: str, text: str, error: Exception) -> Contents:
    """The text of a program, and the error that it ends with."""
    program = Pane("program", tuple(map(Line, text.splitlines())))
    return Contents(title, (program, _error("error", error)))


def _of_ranks(compiled: Distributed, names: Collection[str]) -> Iterator[Pane]:
    """The panes of a program of ranks: what each receives and sends, the steps of the first, the program."""
    try:
        plan = compiled.plan()
    except TdslError as error:
        yield _error("ranks", error)
        return
    yield _named_pane("ranks", plan, names)
    yield _named_pane("steps of rank 0", "\n".join(map(show_step, plan.rank(0).steps)), names, at=1)
    if plan.grid.size <= _SHOWN_RANKS:
        yield _or_error("program", lambda: _named_pane("program", compiled.source(), names, 2))


def _or_error(heading: str, pane: Callable[[], Pane]) -> Pane:
    try:
        return pane()
    except TdslError as error:
        return _error(heading, error)


def _error(heading: str, error: Exception) -> Pane:
    text = str(error) if isinstance(error, TdslError) else f"{type(error).__name__}: {error}"
    return Pane(heading, tuple(map(Line, text.splitlines())), is_error=True)


def _named_pane(heading: str, text: object, names: Collection[str], at: int = 0) -> Pane:
    return Pane(heading, _named(str(text), names), at=at)


def _named(text: str, names: Collection[str]) -> tuple[Line, ...]:
    """The lines of a text, each of which belongs to the first of some names in it."""
    firsts = ((line, next((w for w in _WORD.findall(line) if w in names), "")) for line in text.splitlines())
    return tuple(Line(line, (first,) if first else ()) for line, first in firsts)


def _directives(schedule: Schedule, names: Collection[str]) -> Pane:
    given = str(schedule)
    lines = [*_named(given, names)]
    if schedule.state.grid is None:
        added = str(schedule.completed()).removeprefix(given).strip("\n")
        head = Line("# added by the default schedule") if given else Line("# the default schedule")
        lines += [head, *_named(added, names)] if added else []
    return Pane("directives", tuple(lines))


def _funcs(compiled: Compiled) -> list[str]:
    """The funcs of the loops of a program, with those that the schedule adds."""
    variant = compiled.variant(compiled.specialisation({}, "view"))
    return [name for name, _ in completed_state(variant).plans]


def _loops(schedule: Schedule, compiled: Compiled) -> Pane:
    text = str(compiled.loops())
    figures = LoopFigures(schedule.prediction()).by_name(text)
    return Pane("loops", tuple(loop_lines(text, _funcs(compiled), figures)), COLUMNS, NOTE, at=1)


def _code(heading: str, compiled: Compiled) -> Pane:
    funcs = _funcs(compiled)
    match compiled.target.name:
        case "cpu":
            from tdsl.codegen.cpu.emit import emit
            from tdsl.codegen.cpu.jit import assembly
            from tdsl.machine.cpu import cpu_for

            cpu = cpu_for(compiled.target.level)
            kernel = make_kernel(compiled.variant(compiled.specialisation({}, "view")))
            text, lines = show_with_lines(kernel)
            code = assembly(emit(kernel, cpu, lines), cpu, kernel.name)
            return Pane(heading, tuple(assembly_lines(code, [*loop_lines(text, funcs)])), at=2)
        case "cuda":
            loops = {*loop_names(str(compiled.loops()))}
            return Pane(heading, tuple(cuda_lines(str(compiled.source("cuda")), funcs, loops)), at=2)
        case _:
            return _named_pane(heading, compiled.source(), funcs, 2)


def _price(p: Prediction) -> Pane:
    """The time of each nest at the root, and below it that of each resource that it asks for."""
    lines = [Line("all", (), (in_seconds(p.seconds),))]
    for t in p.times:
        lines.append(Line(f"{t.func}, waiting for {t.waits_for}", (t.func,), (in_seconds(t.seconds),)))
        resources = (*t.units, *t.memory, ("launch", t.launch))
        lines += [Line(f"  {name}", (t.func,), (in_seconds(s),)) for name, s in resources if s]
    note = f"predicted, resource by resource; the least bytes are {in_bytes(p.least)}"
    return Pane("price", tuple(lines), ("time",), note)


def _picture(schedule: Schedule) -> Pane:
    return Pane("tile graph", picture=TileGraph.of_schedule(schedule)._repr_svg_())
