"""The default schedules of random programs replay from their directives."""

import pytest

import tdsl as td
from tests.fuzz.campaign import program_of
from tests.fuzz.replayed import check_replays


@pytest.mark.in_part(2)
@pytest.mark.parametrize("first", range(0, 120, 20))
def test_default_schedules_are_directives(first: int) -> None:
    for number in range(first, first + 20):
        made = program_of(0, number)
        s = td.Schedule(*made.outputs)
        check_replays(s, {n: v for n, v in made.sizes.items() if n in s.state.program.sizes})
