"""Who looks for something better than recipes where nothing has been scheduled: the tile graph does."""

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
    """Say who searches: what schedules come before does. It gets a state, and what recipes make of it."""
    _search[:] = [search]


def searched(state: State, machine: Machine, by_recipes: State) -> Found:
    """A state with directives, and the decisions in it; None where recipes are as good."""
    return _search[0](state, machine, by_recipes) if _search else None
