"""What instructions load from the nearest cache, in bytes of vectors side by side."""

import pytest

import tdsl as td
from tdsl.cost.accesses import partly_filled
from tdsl.cost.loopnests import Nests
from tdsl.cost.seconds import time_of
from tdsl.cost.terms import terms_of
from tdsl.machine.model import Machine, MemoryLevel
from tdsl.schedule.properties import unplaced_at_root

ROWS, WIDTH, LANES, VECTOR = 24, 96, 16, 64
MEMORY = MemoryLevel("memory", None, managed=True, bandwidth=((1, 1e12),))
L1 = MemoryLevel("L1", 1 << 25, bandwidth=((1, 1e9),))
MACHINE = Machine(vector_bytes=VECTOR, registers=32, levels=(L1, MEMORY))
i, j, k = td.vars("i j k")


def loaded(s: td.Schedule) -> float:
    """By all nests, in vectors."""
    terms = terms_of(Nests.of(unplaced_at_root(s.state)), MACHINE)
    return sum(body.loads + body.gathers for t in terms for body in t.bodies)


@pytest.mark.parametrize("stride, accesses", [(1, 1), (2, 2), (4, 4), (5, LANES)])
def test_strided_elements_take_as_many_accesses_as_vectors_that_contain_them(
    stride: int, accesses: int
) -> None:
    x, f = td.Tensor("x", (ROWS, WIDTH * stride), td.f32), td.Func("f", shape=(ROWS, WIDTH))
    f[i, j] = x[i, stride * j] + 1
    s = td.Schedule(f)
    s[f].vectorize(j, LANES)
    assert loaded(s) == ROWS * WIDTH / LANES * accesses


def test_a_column_is_read_lane_by_lane() -> None:
    x, f = td.Tensor("x", (WIDTH, ROWS), td.f32), td.Func("f")
    f[i, j] = x[j, i] + 1
    s = td.Schedule(f)
    s[f].vectorize(j, LANES)
    assert loaded(s) == ROWS * WIDTH


def test_blocks_of_a_packed_array_are_vectors() -> None:
    x, f = td.Tensor("x", (WIDTH // 32, ROWS, 32), td.f32), td.Func("f", shape=(ROWS, WIDTH))
    f[i, j] = x[j // 32, i, j % 32] + 1
    s = td.Schedule(f)
    s[f].vectorize(j, LANES)
    assert loaded(s) == ROWS * WIDTH / LANES


def test_a_tile_of_unrolled_loops_loads_once_what_its_iterations_share() -> None:
    """Of a product a vector for each of its columns, a number for each of its rows."""
    x, y, f = td.Tensor("x", (ROWS, 8), td.f32), td.Tensor("y", (8, LANES), td.f32), td.Func("f")
    f[i, j] = td.sum(x[i, k] * y[k, j], axis=k)
    s = td.Schedule(f)
    s[f].split(i, 4)
    s[f].reorder("i_o", "k", "i_i", "j").vectorize(j, LANES).unroll("i_i")
    assert loaded(s) == ROWS / 4 * 8 * (1 + 4 / 2)


def test_rows_of_windows_over_each_other_are_loaded_once() -> None:
    x, w, f = td.Tensor("x", (ROWS + 2, LANES), td.f32), td.Tensor("w", (3,), td.f32), td.Func("f")
    f[i, j] = td.sum(x[i + k, j] * w[k], axis=k)
    s = td.Schedule(f)
    s[f].split(i, 4)
    s[f].reorder("i_o", "k", "i_i", "j").vectorize(j, LANES).unroll("i_i").unroll("k")
    assert loaded(s) == ROWS / 4 * (4 + 2) + 3 / 2  # the weights are loaded once for all rows


def test_the_last_vector_of_a_row_takes_as_long_as_the_others() -> None:
    x, f = td.Tensor("x", (ROWS, 40), td.f32), td.Func("f")
    f[i, j] = x[i, j] + 1
    s = td.Schedule(f)
    s[f].split(j, 32, tail="peel")
    s[f].vectorize("j_i", LANES)
    (spot,) = Nests.of(unplaced_at_root(s.state)).roots()
    assert partly_filled(spot) == 48 / 40
    assert loaded(s) == ROWS * 3


def test_a_nest_takes_as_long_as_its_accesses() -> None:
    x, f = td.Tensor("x", (WIDTH, ROWS), td.f32), td.Func("f")
    f[i, j] = x[j, i] + 1
    s = td.Schedule(f)
    s[f].vectorize(j, LANES)
    (terms,) = terms_of(Nests.of(unplaced_at_root(s.state)), MACHINE)
    time = time_of(terms, MACHINE)
    assert time.waits_for == "L1"
    vectors = ROWS * WIDTH * (1 + 2 / LANES)  # numbers are gathered, vectors stored at half the speed
    assert time.seconds == pytest.approx(vectors * VECTOR / 1e9, rel=0.01)
