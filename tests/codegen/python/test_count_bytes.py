"""Bytes counted by a simulation of caches, compared with predicted bytes."""

from __future__ import annotations

import mmap

import numpy as np
import pytest

import tdsl as td
from tdsl.codegen.python import count_bytes as simulation
from tdsl.codegen.python.estimate_accesses import estimate_accesses
from tdsl.codegen.runtime.cache_misses import count_event, last_level_misses
from tests.tilegraph.chains import CHAINS

i, j, k = td.vars("i j k")


def profile(*outputs: td.Func) -> dict[str, tuple[float, int]]:
    s = td.Schedule(*outputs)
    arguments = {t.name: np.ones([n.value for n in t.shape], t.dtype.numpy) for t in s.program.inputs}
    result = td.compile(s).profile(**arguments, repeat=1, counters=True)
    assert "predicted MB" in str(result)
    return {c.name: (c.predicted, c.counted) for c in result.caches}


def test_data_that_fits_in_cache_is_moved_once() -> None:
    x, y = td.Tensor("x", (32, 48), td.f32), td.Func("y")
    y[j, i] = x[i, j] * 2
    assert all(counted == (12288, 12288) for counted in profile(y).values())


@pytest.mark.parametrize("name", ["masked softmax", "gated block", "two products"])
def test_bytes_of_chains_are_within_a_tenth_of_those_counted(name: str) -> None:
    for predicted, counted in profile(*CHAINS[name](20)).values():
        assert predicted == pytest.approx(counted, rel=0.1)


def test_rows_larger_than_every_cache_are_read_again() -> None:
    capacity = td.Target("cpu").capacity("L1")
    assert capacity is not None
    n = capacity // 4
    x, total, y = td.Tensor("x", (2, n), td.f32), td.Func("total"), td.Func("y")
    total[i] = td.sum(x[i, j], axis=j)
    y[i, j] = x[i, j] / total[i]
    predicted, counted = profile(y)["L1"]
    assert counted == pytest.approx(4 * n * 2 * 3, rel=0.01)
    assert predicted == pytest.approx(counted, rel=0.1)


@pytest.mark.parametrize(
    "estimate, message",
    [
        (estimate_accesses, "about 12,288 accesses, more than the 1,000"),
        (lambda _: 0, "more than 1,000"),
    ],
)
def test_too_many_accesses_are_an_error(monkeypatch: pytest.MonkeyPatch, estimate, message) -> None:
    """Before any is made, or when there were as many."""
    monkeypatch.setattr(simulation, "MOST_ACCESSES", 1000)
    monkeypatch.setattr(simulation, "estimate_accesses", estimate)
    x, y = td.Tensor("x", (64, 96), td.f32), td.Func("y")
    y[i, j] = x[i, j] * 2
    with pytest.raises(td.TargetError, match=f"(?s){message}.*smaller sizes") as caught:
        profile(y)
    assert caught.value.loc is not None and caught.value.loc.file == __file__


@pytest.mark.in_part(2)
@pytest.mark.parametrize("name", ["masked softmax", "gated block", "two products", "triangle"])
def test_the_estimate_of_accesses_is_within_a_tenth(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    estimates, accesses = [], []

    def estimate(body):
        estimates.append(estimate_accesses(body))
        return estimates[-1]

    class CountingMemory(simulation._AddressSpace):
        def access(self, address, *, write):
            accesses.append(address)
            super().access(address, write=write)

    monkeypatch.setattr(simulation, "estimate_accesses", estimate)
    monkeypatch.setattr(simulation, "_AddressSpace", CountingMemory)
    profile(*(CHAINS[name](32) if name in CHAINS else triangle(40)))
    assert estimates[0] == pytest.approx(len(accesses), rel=0.1)


def triangle(n: int) -> tuple[td.Func, ...]:
    """Sums of the beginning of each row."""
    x, y = td.Tensor("x", (n, n), td.f32), td.Func("y")
    y[i] = td.sum(td.where(j <= i, x[i, j], 0), axis=j)
    return (y,)


def test_last_level_misses_are_counted_by_performance_counters() -> None:
    message = last_level_misses(lambda: None)
    assert "misses of its last cache" in message or "counters are not there" in message
    software, page_faults = 1, 2
    misses = count_event(software, page_faults, write_new_pages)
    assert isinstance(misses, str) or misses >= 16  # as many if pages are of 2 MiB


def write_new_pages() -> None:
    with mmap.mmap(-1, 1 << 25) as memory:
        for page in range(0, len(memory), mmap.PAGESIZE):
            memory[page] = 1
