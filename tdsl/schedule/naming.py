"""Resolves funcs and loops that the user gives by handle, by string, or by variable to their names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from tdsl.core.source import here
from tdsl.errors import ScheduleError, TypeMismatch
from tdsl.lang.tensor import Func, Tensor
from tdsl.lang.value import Variable
from tdsl.placement.grid import Grid


class HasLoops(Protocol):
    """The interface of a stage that a loop handle uses."""

    func: str
    definition: int

    @property
    def loops(self) -> tuple[Loop, ...]:
        """The current loops, outermost first."""


class Loop:
    """A handle of a loop of a stage. Directives take it, its name, or a variable with that name."""

    __slots__ = ("name", "stage")

    def __init__(self, stage: HasLoops, name: str) -> None:
        self.stage, self.name = stage, name

    def __repr__(self) -> str:
        return f"Loop({self.name!r} of {self.stage.func!r})"


LoopLike = Loop | Variable | str


def name_of_source(what: Any, handles: Mapping[int, str]) -> str:
    """The name in a program of a func or tensor; `handles` maps ids of handles to names, or is empty."""
    if isinstance(what, Func | Tensor):
        if handles and id(what) not in handles:
            raise ScheduleError(
                f"{what.name!r} is not part of this program",
                loc=here(),
                label="this directive",
                related=((what.loc, "created here"),),
                hint="schedule the funcs from which this schedule's outputs are computed",
            )
        return handles.get(id(what), what.name)
    if not isinstance(what, str):
        raise TypeMismatch(
            f"a func or tensor is named by itself or a string, not {what!r}",
            loc=here(),
            label="this directive",
            hint="pass the td.Func, or its name",
        )
    return what


def name_of_loop(what: Any, names: Sequence[str]) -> str:
    """The name of a loop given by handle, variable or name; `names` are shown in the error."""
    if isinstance(what, Loop | Variable):
        return what.name
    if not isinstance(what, str):
        raise TypeMismatch(
            f"a loop is named by a string, a variable or a loop, not {what!r}",
            loc=here(),
            label="this directive",
            hint=f"name one of the loops: {', '.join(names)}",
        )
    return what


def check_grid(grid: object) -> Grid:
    """The grid, or the grid of a list of levels; raises TypeMismatch for other values."""
    if isinstance(grid, list | tuple) and grid and all(isinstance(level, Grid) for level in grid):
        return Grid.of(grid)
    if not isinstance(grid, Grid):
        raise TypeMismatch(
            f"ranks form a td.Grid, not {grid!r}",
            loc=here(),
            label="this directive",
            hint="make one, td.Grid(x=2, y=2), or a list of them for several levels",
        )
    return grid


def check_recipe(recipe: object) -> None:
    """Raise TypeMismatch unless a recipe is callable."""
    if not callable(recipe):
        raise TypeMismatch(
            f"a recipe is a function, not {recipe!r}",
            loc=here(),
            label="this directive",
            hint="pass a function of one argument that gives the directives",
        )


def check_owner(loop: Loop, stage: HasLoops, origins: Mapping[str, str]) -> None:
    """Raise ScheduleError unless a loop belongs to `stage` or to a func that `stage` was derived from."""
    owner = loop.stage
    name, ancestors = stage.func, []
    while name in origins:
        name = origins[name]
        ancestors.append(name)
    is_same = (owner.func, owner.definition) == (stage.func, stage.definition)
    if not is_same and owner.func not in ancestors:
        raise ScheduleError(
            f"loop {loop.name!r} belongs to {_stage_text(owner)}, not to {_stage_text(stage)}",
            loc=here(),
            label="this directive",
            hint=f"{_stage_text(stage)} has the loops {', '.join(x.name for x in stage.loops)}",
        )


def _stage_text(stage: HasLoops) -> str:
    number = stage.definition - 1
    return f"update {number} of {stage.func!r}" if stage.definition else repr(stage.func)


def name_of_dim(dim: Variable | int | str) -> int | str:
    """A dimension as a directive stores it: the name of its variable, or its number."""
    return dim.name if isinstance(dim, Variable) else dim
