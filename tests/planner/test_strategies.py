"""Every legal choice computes what one rank does; extents need not divide."""

from __future__ import annotations

import numpy as np
import pytest

import tdsl as td
from tdsl.communication.collective import Layout
from tdsl.communication.rank_boxes import grid_coordinates, owned_boxes
from tdsl.placement.notation import read_placement
from tdsl.placement.spans import length
from tdsl.planner.cluster import Cluster
from tdsl.planner.problem import space_of
from tdsl.schedule.bind import bind_state
from tdsl.target import as_target
from tests.planner.test_prices import chain, random_choices


def test_five_rows_on_two_axes_are_nested_blocks():
    grid = td.Grid(x=2, y=2)
    layout = Layout(grid, {"a": read_placement("r -> r r", 1, grid)}, {"a": ((0, 5),)})
    (rows,) = owned_boxes(layout, "a", grid_coordinates(layout)).dims
    assert rows.map(length).tolist() == [2, 1, 1, 1]


@pytest.mark.parametrize("shape", [(3,), (2, 2)])
@pytest.mark.parametrize("seed", range(4))
def test_random_choices_compute_what_one_rank_does(seed, shape):
    grid, rng = td.Grid(**{f"x{n}": size for n, size in enumerate(shape)}), np.random.default_rng(seed)
    state = bind_state(chain(seed).state, {})
    space = space_of(state, grid, Cluster(ranks=grid.size), as_target(None).machine(), {})
    arrays = [rng.integers(-5, 5, [e.value for e in t.shape]).astype(float) for t in state.program.inputs]
    expected = td.compile(chain(seed), target="python")(*arrays)
    for _, s in random_choices(space, seed, grid, rng, 3):
        np.testing.assert_array_equal(td.compile(s, target="python").simulate(*arrays), expected)


def test_a_product_of_two_sums_is_computed_from_parts_along_an_axis_of_each():
    grid = td.Grid(x=2, y=2)
    state = bind_state(chain(3).state, {})
    space = space_of(state, grid, Cluster(ranks=4), as_target(None).machine(), {})
    sources = [f.name for f in space.funcs if f.name != "g"]
    assert len(sources) == 2
    one, other = (frozenset({name}) for name in sources)
    assert {(one, other), (other, one)} <= {s.axes for s in space.strategies["g"]}
