"""The operations that a roofline counts: those of what runs, where it runs."""

import pytest

import tdsl as td
from tdsl.cost.loopnests import Nests
from tdsl.cost.roofline import Work, roofline, work_of
from tdsl.machine.model import Machine, MemoryLevel
from tdsl.schedule.properties import unplaced_at_root

i, j, k = td.vars("i j k")
ROWS, TERMS, COLUMNS, TILE = 8, 96, 16, 32


def work(s: td.Schedule) -> Work:
    """All operations of a schedule."""
    total = Work()
    for spot in Nests.of(unplaced_at_root(s.state)).roots():
        total += work_of(spot)
    return total


def weighted() -> td.Func:
    """Softmax-weighted sums."""
    x, v = td.Tensor("x", (ROWS, TERMS), td.f32), td.Tensor("v", (TERMS, COLUMNS), td.f32)
    top, p, out = td.Func("top"), td.Func("p"), td.Func("out")
    top[i] = td.max(x[i, j], axis=j)
    p[i, j] = td.exp(x[i, j] - top[i])
    out[i, k] = td.sum(p[i, j] * v[j, k], axis=j)
    return out


@pytest.mark.parametrize("inside", [True, False])
def test_tiles_are_merged_with_two_exponentials_each(inside: bool) -> None:
    """Once for a row where columns are the inner loop; for each column where they are outside."""
    s = td.Schedule(weighted())
    s["out"].online("j", TILE)
    s["out_online"].reorder(*("i", "j_o", "k") if inside else ("i", "k", "j_o"))
    merges = ROWS * (TERMS // TILE) * (1 if inside else COLUMNS)
    last = ROWS * COLUMNS  # to the greatest of all maxima
    assert work(s).exp == ROWS * TERMS + 2 * merges + last


def test_a_sum_is_merged_with_one_operation() -> None:
    x, f = td.Tensor("x", (ROWS, TERMS), td.f32), td.Func("f")
    f[i] = td.sum(x[i, j] * x[i, j], axis=j)
    assert work(td.Schedule(f)) == Work(scalar=2 * ROWS * TERMS)


def test_of_what_a_condition_on_indices_chooses_the_longer_value_counts() -> None:
    x, f = td.Tensor("x", (ROWS, TERMS), td.f32), td.Func("f")
    f[i, j] = td.where(j < 10, x[i, j] + 1, (x[i, j] + 2) * x[i, j])
    assert work(td.Schedule(f)) == Work(scalar=2 * ROWS * TERMS)


def test_sums_to_which_loops_come_back_are_read_once_each_time() -> None:
    """A line that is written is read first: that is how a sum comes back."""
    x, y, f = td.Tensor("x", (TERMS,), td.f32), td.Tensor("y", (1024,), td.f32), td.Func("f")
    f[i] = td.sum(x[j] * y[i], axis=j)
    s = td.Schedule(f)
    s[f].reorder("j", "i")
    speed = 1e9
    memory = MemoryLevel("memory", None, managed=True, bandwidth=((1, speed),))
    machine = Machine(levels=(MemoryLevel("L1", 1024), memory))
    (time,) = roofline(Nests.of(unplaced_at_root(s.state)), machine)
    size = 4 * 1024 * TERMS  # of all iterations of j
    assert dict(time.memory)["memory"] * speed == pytest.approx(3 * size + 4 * TERMS)
