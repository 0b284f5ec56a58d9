"""Who owns what: golden tables of uneven, empty and nested blocks, and pieces that cover a box once."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tdsl.placement.grid import Grid
from tdsl.placement.notation import PlacementSyntaxError, read_placement
from tdsl.placement.ownership import (
    SpanBox,
    contains,
    element_count,
    index_within,
    owned,
    owned_pieces,
    ranks_with_copy,
    stored_shape,
)
from tdsl.placement.spans import contiguous_parts


def table(text: str | tuple[str, ...], grid: Grid, *whole: tuple[int, int]) -> list[SpanBox | None]:
    """What each rank owns."""
    placement = read_placement(text, len(whole), grid)
    return [owned(placement, grid, whole, grid.coordinates(r)) for r in range(grid.size)]


def test_the_last_blocks_are_short_or_empty() -> None:
    assert table("r -> r", Grid(x=4), (0, 10)) == [((0, 3),), ((3, 6),), ((6, 9),), ((9, 10),)]
    assert table("r -> r", Grid(x=4), (0, 9)) == [((0, 3),), ((3, 6),), ((6, 9),), None]
    assert table("r -> r", Grid(x=5), (0, 2)) == [((0, 1),), ((1, 2),), None, None, None]


def test_blocks_start_where_the_tensor_does() -> None:
    assert table("r -> r", Grid(x=2), (-3, 4)) == [((-3, 1),), ((1, 4),)]


def test_an_axis_of_a_tile() -> None:
    grid = Grid(x=2, y=3)
    tiles = table("rc -> r c", grid, (0, 4), (0, 5))
    assert tiles[:3] == [((0, 2), (0, 2)), ((0, 2), (2, 4)), ((0, 2), (4, 5))]
    assert tiles[3:] == [((2, 4), (0, 2)), ((2, 4), (2, 4)), ((2, 4), (4, 5))]


def test_dimensions_cut_over_permuted_axes() -> None:
    assert table("rc -> c r", Grid(x=2, y=2), (0, 2), (0, 4)) == [
        ((0, 1), (0, 2)), ((1, 2), (0, 2)), ((0, 1), (2, 4)), ((1, 2), (2, 4)),
    ]  # fmt: skip


def test_two_axes_of_a_dimension_are_blocks_of_blocks() -> None:
    """Five rows over 2 x 2 are 2 1 1 1, not 2 2 1 0 as over four."""
    nested = table("r -> r r", Grid(x=2, y=2), (0, 5))
    assert nested == [((0, 2),), ((2, 3),), ((3, 4),), ((4, 5),)]
    assert table("r -> r", Grid(x=4), (0, 5)) == [((0, 2),), ((2, 4),), ((4, 5),), None]


def test_a_prime_says_which_axis_cuts_later() -> None:
    """Over the second axis first: ranks that differ in it lie further apart."""
    turned = table("r -> r' r", Grid(x=2, y=2), (0, 5))
    assert turned == [((0, 2),), ((3, 4),), ((2, 3),), ((4, 5),)]
    assert str(read_placement("r -> r' r", 1, Grid(x=2, y=2))) == "r -> r' r"


def test_copies_and_one_side_of_the_grid() -> None:
    grid = Grid(x=2, y=2)
    assert table("r -> r *", grid, (0, 4)) == [((0, 2),), ((0, 2),), ((2, 4),), ((2, 4),)]
    assert table("r -> r 1", grid, (0, 4)) == [None, ((0, 2),), None, ((2, 4),)]
    assert table("-> 0 1", grid) == [None, (), None, None]


def rows(text: str, ranks: int, extent: int) -> list[list[int]]:
    """The rows that each rank owns, in the order in which it stores them."""
    rows_of_rank = []
    for box in table(text, Grid(x=ranks), (0, extent)):
        rows_of_rank.append(
            [] if box is None else [n for lo, hi in contiguous_parts(box[0]) for n in range(lo, hi)]
        )
        assert box is None or stored_shape(box) == (len(rows_of_rank[-1]),)
    return rows_of_rank


def test_block_cyclic_ownership() -> None:
    """As ScaLAPACK's NUMROC and INDXL2G say for 9 rows in blocks of 2 over 2, over 3, and over 6."""
    assert rows("r -> r/2", 2, 9) == [[0, 1, 4, 5, 8], [2, 3, 6, 7]]
    assert rows("r -> r/2", 3, 9) == [[0, 1, 6, 7], [2, 3, 8], [4, 5]]
    assert rows("r -> r/2", 6, 9) == [[0, 1], [2, 3], [4, 5], [6, 7], [8], []]
    assert rows("r -> r/1", 4, 6) == [[0, 4], [1, 5], [2], [3]]
    assert rows("r -> r/3", 2, 6) == [[0, 1, 2], [3, 4, 5]]


def test_block_cyclic_tiles_in_two_dimensions() -> None:
    grid = Grid(x=2, y=2)
    tiles = table("rc -> r/1 c/2", grid, (0, 3), (0, 5))
    assert [[list(contiguous_parts(span)) for span in box or ()] for box in tiles] == [
        [[(0, 1), (2, 3)], [(0, 2), (4, 5)]],
        [[(0, 1), (2, 3)], [(2, 4)]],
        [[(1, 2)], [(0, 2), (4, 5)]],
        [[(1, 2)], [(2, 4)]],
    ]
    assert str(read_placement("rc -> r/1 c/2", 2, grid)) == "rc -> r/1 c/2"


def test_levels_of_a_machine_are_axes_of_one_grid() -> None:
    """Five rows over two nodes, those of a node over its three ranks; whole columns on each node."""
    machine = Grid.of([Grid(node=2), Grid(x=3)])
    assert machine.coordinates(4) == (1, 1)
    by_level = table(("rc -> r", "rc -> r"), machine, (0, 5), (0, 2))
    assert by_level == table("rc -> r r", machine, (0, 5), (0, 2))
    assert [box and box[0] for box in by_level] == [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), None]
    assert table(("rc -> *", "rc -> c"), machine, (0, 5), (0, 2))[3:5] == [
        ((0, 5), (0, 1)), ((0, 5), (1, 2)),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "texts, says",
    [
        (("rc -> r",), "1 notation for the 2 levels of"),
        (("rc -> r", "ab -> a"), "name the dimensions differently"),
        (("rc -> r c", "rc -> r"), "has 2 entries, its level 1"),
    ],
)
def test_an_unreadable_placement_of_levels_says_why(texts: tuple[str, ...], says: str) -> None:
    with pytest.raises(PlacementSyntaxError, match=says):
        read_placement(texts, 2, Grid.of([Grid(node=2), Grid(x=3)]))


@pytest.mark.parametrize(
    "text, says",
    [
        ("rc", "is no placement"),
        ("rc -> r/2 r", "'r' is block-cyclic along one axis and cut along another"),
        ("rc -> r/0 c", "'r/0' has blocks of no elements"),
        ("rc -> */2 c", "is no dimension"),
        ("r c -> r c", "is no placement"),
        ("rr -> r r", "calls two dimensions 'r'"),
        ("r -> r r", "names 1 dimension, the tensor has 2"),
        ("rc -> r", "has 1 entry, the grid 2"),
        ("rc -> r 2", "axis 'y' has no coordinate 2"),
        ("rc -> r z", "'z' is no dimension of 'rc'"),
        ("rc -> r -1", "'-1' is no dimension"),
    ],
)
def test_an_unreadable_placement_says_why(text: str, says: str) -> None:
    with pytest.raises(PlacementSyntaxError, match=says):
        read_placement(text, 2, Grid(x=2, y=2))


GRIDS = st.lists(st.integers(1, 4), min_size=1, max_size=3).map(
    lambda sizes: Grid(**{"xyz"[n]: size for n, size in enumerate(sizes)})
)


@st.composite
def placed(draw: st.DrawFn) -> tuple[str, Grid, SpanBox]:
    grid, ndim = draw(GRIDS), draw(st.integers(0, 3))
    dims = "abc"[:ndim]
    entries = [
        draw(st.sampled_from([*dims, *(f"{d}'" for d in dims), "*", *map(str, range(size))]))
        for size in grid.shape
    ]
    for d in dims:  # what is cut along one axis may be block-cyclic
        if [e[0] for e in entries].count(d) == 1 and draw(st.booleans()):
            size = draw(st.integers(1, 3))
            entries = [f"{d}/{size}" if e[0] == d else e for e in entries]
    starts = [draw(st.integers(-2, 2)) for _ in dims]
    whole = tuple((lo, lo + draw(st.integers(0, 7))) for lo in starts)
    return f"{dims} -> {' '.join(entries)}", grid, whole


@given(placed())
def test_every_element_is_owned_and_copies_are_equal(case: tuple[str, Grid, SpanBox]) -> None:
    text, grid, whole = case
    placement = read_placement(text, len(whole), grid)
    times = np.zeros([hi - lo for lo, hi in whole], int)
    for at in itertools.product(*map(range, grid.shape)):
        box = owned(placement, grid, whole, at)
        if box is not None:
            assert contains(whole, box)
            times[index_within(box, whole)] += 1
            assert all(owned(placement, grid, whole, c) == box for c in ranks_with_copy(placement, grid, at))
    replicas = len(list(ranks_with_copy(placement, grid, (0,) * len(grid.shape))))
    assert np.all(times == replicas)


@given(placed(), st.data())
def test_pieces_cover_a_box_once_and_lie_with_their_owners(
    case: tuple[str, Grid, SpanBox], data: st.DataObject
) -> None:
    text, grid, whole = case
    placement = read_placement(text, len(whole), grid)
    ends = [sorted(data.draw(st.tuples(*[st.integers(lo, hi)] * 2))) for lo, hi in whole]
    box = tuple((lo, hi) for lo, hi in ends)
    preferred = grid.coordinates(data.draw(st.integers(0, grid.size - 1)))
    times = np.zeros([hi - lo for lo, hi in whole], int)
    for at, piece in owned_pieces(placement, grid, whole, box, preferred):
        owned_box = owned(placement, grid, whole, at)
        assert owned_box is not None
        assert contains(owned_box, piece)
        assert element_count(piece)
        times[index_within(piece, whole)] += 1
    inside = np.zeros_like(times)
    inside[index_within(box, whole)] = 1
    np.testing.assert_array_equal(times, inside)


def test_a_grid_counts_ranks_along_its_last_axis_first() -> None:
    grid = Grid(x=2, y=3)
    assert [grid.coordinates(r) for r in range(6)] == list(itertools.product(range(2), range(3)))
    assert [grid.rank(grid.coordinates(r)) for r in range(6)] == list(range(6))
