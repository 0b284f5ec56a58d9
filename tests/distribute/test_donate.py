"""Blocks of donated inputs are freed after their last reader, in plans and in memory."""

import weakref
from typing import Any

import numpy as np
import pytest

import tdsl as td
from tdsl.communication.steps import Free
from tdsl.distribute.check import check
from tdsl.distribute.progress import Progress
from tests.distribute.volumes import assert_volume_is_of_plan

i, j, k = td.vars("i j k")


def chain(ranks: int, *donated: str, extent: int = 12) -> td.Schedule:
    """z = (a @ b) + c on blocks of rows; a and b are read by the first stage only, d by none."""
    grid = td.Grid(x=ranks)
    square = td.f64[extent, extent]

    @td.op
    def result(a: square, b: square, c: square, d: square):
        y, z = td.Func("y"), td.Func("z")
        y[i, j] = td.sum(a[i, k] * b[k, j], axis=k)
        z[i, j] = y[i, j] + c[j, i]
        return z

    s = result.schedule()
    for t in "abcdyz":
        s.place(t, "rc -> r", grid)
    for f in "yz":
        s[f].distribute("i", grid)
    return s.donate(*donated)


@pytest.mark.parametrize("ranks", [1, 3, 5])
@pytest.mark.parametrize("donated", ["", "a", "ab", "abcd"])
def test_peak_memory_counts_donated_blocks_until_their_last_reader(ranks: int, donated: str) -> None:
    s = chain(ranks, *donated)
    p = td.compile(s, target="python")
    rng = np.random.default_rng(0)
    given = [rng.integers(-3, 3, (12, 12)).astype(float) for _ in "abcd"]
    before = [x.copy() for x in given]
    out, counted = p.simulate(*given, count=True)
    np.testing.assert_array_equal(out, given[0] @ given[1] + given[2].T)
    for x, kept in zip(given, before, strict=True):
        np.testing.assert_array_equal(x, kept)
    assert counted.received == p.plan().received
    check(p.plan())  # peak memory, too
    assert_volume_is_of_plan(p._specialise({}))


def test_peak_memory_on_one_rank_is_that_of_what_is_in_use() -> None:
    block = 12 * 12 * 8
    peaks = {n: td.compile(chain(1, *n)).plan().peak_memory[0] // block for n in ("", "d", "a", "ab", "abcd")}
    assert peaks == {"": 6, "d": 5, "a": 5, "ab": 5, "abcd": 4}  # a b c y, then c y z


def test_a_call_frees_the_memory_of_donated_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the step after the last reader, and only of those."""
    p = td.compile(chain(1, "a", "b", extent=4), target="python")
    whole = np.arange(16.0).reshape(4, 4)
    arrays = [p.block(n, whole) for n in "abcd"]
    alive = dict(zip("abcd", map(weakref.ref, arrays), strict=True))
    blocks = [*map(td.Donated, arrays[:2]), *arrays[2:]]
    del arrays
    seen: list[str] = []

    def reach(progress: Progress, step: int) -> None:
        seen.append("".join(n for n, r in alive.items() if r() is not None))

    monkeypatch.setattr(Progress, "reach", reach)
    result = p(*blocks)
    np.testing.assert_array_equal(result, whole @ whole + whole.T)
    steps = p.plan().rank(0).steps
    freed = max(n for n, step in enumerate(steps, 1) if step in (Free("a"), Free("b")))
    assert seen[freed + 1 :] == ["cd"] * (len(steps) - freed), "a and b have no memory from the next step on"
    assert seen[1] == "abcd"
    with pytest.raises(td.TargetError, match="this block was donated to a call, which has freed it"):
        p(*blocks)
    assert repr(blocks[0]) == "<donated block, freed>"


def test_arrays_of_the_caller_stay() -> None:
    p = td.compile(chain(1, "a", extent=4), target="python")
    whole = np.arange(16.0).reshape(4, 4)
    given = [whole.copy() for _ in "abcd"]
    np.testing.assert_array_equal(p(*given), p(td.Donated(given[0]), *given[1:]))
    np.testing.assert_array_equal(given[0], whole)


def test_a_rank_without_elements_donates_none() -> None:
    donated = td.Donated(None)
    assert donated.block is None
    assert repr(donated) == "<donated block>"
    donated.release()
    with pytest.raises(td.TypeMismatch, match="this block was donated to a call, which has freed it"):
        _ = donated.block


def test_the_emitted_module_drops_donated_blocks() -> None:
    assert "    del a\n" in str(td.compile(chain(2, "a"), target="python").source("mpi"))


@pytest.mark.parametrize(
    "directives, message",
    [
        (lambda s: s.donate("z"), "there is no input 'z'"),
        (lambda s: s.donate("c", "c"), "'c' is donated already"),
        (lambda s: s.overwrite("z", "c").donate("c"), "'z' overwrites 'c' already"),
        (lambda s: s.donate("c").overwrite("z", "c"), "'c' is donated already"),
    ],
)
def test_what_cannot_be_donated_is_refused(directives: Any, message: str) -> None:
    grid = td.Grid(x=2)
    c, z = td.Tensor("c", (4, 4), td.f64), td.Func("z")
    z[i, j] = 2 * c[i, j]
    s = td.Schedule(z).place(c, "rc -> r", grid).place(z, "rc -> r", grid)
    s[z].distribute(i, grid)
    with pytest.raises(td.ScheduleError, match=message):
        directives(s)


def test_without_a_grid_nothing_is_donated_and_only_what_is_donated_is_taken() -> None:
    a, f = td.Tensor("a", (4,), td.f64), td.Func("f")
    f[i] = a[i] + 1
    with pytest.raises(td.ScheduleError, match="nothing is placed on a grid yet"):
        td.Schedule(f).donate(a)
    p = td.compile(chain(1, extent=4), target="python")
    with pytest.raises(td.TargetError, match="'b' is passed as a donated block, which this program keeps"):
        p(np.ones((4, 4)), td.Donated(np.ones((4, 4))), np.ones((4, 4)), np.ones((4, 4)))
    with pytest.raises(td.TypeMismatch, match="list is no array of NumPy"):
        td.Donated([1.0])
