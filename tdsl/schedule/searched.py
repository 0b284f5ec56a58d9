"""The hook by which the tile-graph search schedules programs that have no directives."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tdsl.schedule.cost.machine import Machine
    from tdsl.schedule.explain import Decision
    from tdsl.schedule.nest import State

    Found = tuple[State, list[Decision]] | None
    Search = Callable[[State, Machine, State], Found]

_search: list[Search] = []


def searched_by(search: Search) -> None:
    """Register the search: a function of a state, the machine, and the state that recipes derive."""
    _search[:] = [search]


def searched(state: State, machine: Machine, by_recipes: State) -> Found:
    """The state that the search finds, with its decisions; None if recipes are as good."""
    return _search[0](state, machine, by_recipes) if _search else None
