"""Bytes counted by running loops through caches, beside those that are predicted."""

from __future__ import annotations

import mmap

import numpy as np
import pytest

import tdsl as td
from tdsl.codegen.python import simulated_caches as counted
from tdsl.codegen.python.estimate_accesses import accesses
from tdsl.codegen.runtime.cache_misses import count_event, last_level_misses
from tests.tilegraph.chains import CHAINS

i, j, k = td.vars("i j k")


def profile(*outputs: td.Func) -> dict[str, tuple[float, int]]:
    s = td.Schedule(*outputs)
    given = {t.name: np.ones([n.value for n in t.shape], t.dtype.numpy) for t in s.program.inputs}
    made = td.compile(s).profile(**given, repeat=1, counters=True)
    assert "predicted MB" in str(made)
    return {c.name: (c.predicted, c.counted) for c in made.caches}


def test_what_fits_moves_once() -> None:
    x, y = td.Tensor("x", (32, 48), td.f32), td.Func("y")
    y[j, i] = x[i, j] * 2
    assert all(found == (12288, 12288) for found in profile(y).values())


@pytest.mark.parametrize("name", ["masked softmax", "gated block", "two products"])
def test_bytes_of_chains_are_within_a_tenth_of_those_counted(name: str) -> None:
    for predicted, found in profile(*CHAINS[name](20)).values():
        assert predicted == pytest.approx(found, rel=0.1)


def test_rows_that_fit_no_cache_are_read_again() -> None:
    capacity = td.Target("cpu").capacity("L1")
    assert capacity is not None
    n = capacity // 4
    x, total, y = td.Tensor("x", (2, n), td.f32), td.Func("total"), td.Func("y")
    total[i] = td.sum(x[i, j], axis=j)
    y[i, j] = x[i, j] / total[i]
    predicted, found = profile(y)["L1"]
    assert found == pytest.approx(4 * n * 2 * 3, rel=0.01)
    assert predicted == pytest.approx(found, rel=0.1)


@pytest.mark.parametrize(
    "guess, told",
    [(accesses, "about 12,288 accesses, more than the 1,000"), (lambda _: 0, "more than 1,000")],
)
def test_too_many_accesses_are_refused(monkeypatch: pytest.MonkeyPatch, guess, told) -> None:
    """Before any is made, or when there were as many."""
    monkeypatch.setattr(counted, "MOST", 1000)
    monkeypatch.setattr(counted, "accesses", guess)
    x, y = td.Tensor("x", (64, 96), td.f32), td.Func("y")
    y[i, j] = x[i, j] * 2
    with pytest.raises(td.TargetError, match=f"(?s){told}.*smaller sizes") as caught:
        profile(y)
    assert caught.value.loc is not None and caught.value.loc.file == __file__


@pytest.mark.parametrize("name", ["masked softmax", "gated block", "two products", "triangle"])
def test_accesses_are_about_as_many_as_are_guessed(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    guessed, made = [], []

    def guess(body):
        guessed.append(accesses(body))
        return guessed[-1]

    class Counting(counted._Memory):
        def use(self, address, *, write):
            made.append(address)
            super().use(address, write=write)

    monkeypatch.setattr(counted, "accesses", guess)
    monkeypatch.setattr(counted, "_Memory", Counting)
    profile(*(CHAINS[name](32) if name in CHAINS else triangle(40)))
    assert guessed[0] == pytest.approx(len(made), rel=0.1)


def triangle(n: int) -> tuple[td.Func, ...]:
    """Sums of the beginning of each row."""
    x, y = td.Tensor("x", (n, n), td.f32), td.Func("y")
    y[i] = td.sum(td.where(j <= i, x[i, j], 0), axis=j)
    return (y,)


def test_the_processor_is_asked_and_its_answer_told() -> None:
    told = last_level_misses(lambda: None)
    assert "misses of its last cache" in told or "counters are not there" in told
    software, page_faults = 1, 2
    found = count_event(software, page_faults, write_new_pages)
    assert isinstance(found, str) or found >= 16  # as many if pages are of 2 MiB


def write_new_pages() -> None:
    with mmap.mmap(-1, 1 << 25) as memory:
        for page in range(0, len(memory), mmap.PAGESIZE):
            memory[page] = 1
