"""Plans are schedules: they print, replay to the same plan, survive edits, and compute what one rank does."""

from __future__ import annotations

import re

import numpy as np
import pytest

import tdsl as td
from tests.planner.test_prices import chain
from tests.planner.test_published import SLOW, layers, mlp

CLUSTER = td.Cluster(ranks=4, latency=1e-6, bandwidth=1e9, operations=1e9, memory_bandwidth=1e10)


def replayed(new: td.Schedule, text: str) -> td.Schedule:
    """A schedule after the calls that another one prints."""
    exec(text, {"s": new, "td": td})
    return new


def line_of(text: str, start: str) -> str:
    return next(line for line in text.splitlines() if line.startswith(start))


@pytest.mark.parametrize("seed", range(8))
def test_printed_plans_replay_to_the_same_plan(seed):
    s = chain(seed)
    planned = s.plan(CLUSTER)
    again = replayed(chain(seed), str(s))
    assert again.directives == s.directives
    same = again.plan(CLUSTER)
    assert str(again) == str(s)
    assert (same.bytes, same.seconds) == (planned.bytes, planned.seconds)


def test_an_edited_line_is_kept_and_the_rest_planned_again():
    s = mlp()
    s.plan(CLUSTER)
    lines = str(s).splitlines()
    edited = re.sub(r'"ab -> [^"]*"', '"ab -> a"', line_of(str(s), 's.place("W1"'))
    assert edited not in lines
    new = replayed(mlp(), edited)
    planned = new.plan(td.Cluster(ranks=4, **SLOW))
    assert edited in str(new).splitlines()
    assert planned.bytes == max(td.compile(new).plan().received)
    assert "W1: ab -> a (given)" in str(planned)


@pytest.mark.parametrize("seed", range(8))
def test_results_are_those_of_one_rank_and_bytes_are_counted(seed):
    s, alone = chain(seed), td.compile(chain(seed))
    planned = s.plan(CLUSTER)
    rng = np.random.default_rng(seed)
    arrays = [rng.integers(-5, 5, [e.value for e in t.shape]).astype(float) for t in s.program.inputs]
    p = td.compile(s)
    out, counted = p.simulate(*arrays, count=True)
    np.testing.assert_array_equal(out, alone(*arrays))
    assert counted.received == p.plan().received
    assert max(counted.received) <= planned.bytes


def test_training_steps_compute_what_one_rank_does():
    s, same = layers(8, 4, 2)
    s.plan(CLUSTER, fix=same)
    alone = td.compile(layers(8, 4, 2)[0])
    rng = np.random.default_rng(0)
    arrays = [rng.integers(-3, 3, [e.value for e in t.shape]).astype(np.float32) for t in s.program.inputs]
    p = td.compile(s)
    out, counted = p.simulate(*arrays, count=True)
    for a, b in zip(out, alone(*arrays), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
    assert counted.received == p.plan().received


def test_the_picture_shows_placements_and_the_bytes_of_communication():
    s = mlp()
    limited = td.Cluster(ranks=4, latency=1e-6, bandwidth=10e9, memory=int(0.4 * 2 * 4 * 256 * 1024))
    planned = s.plan(limited, fix={"X": "bh -> *", "Y": "bh -> *"})
    picture = planned.picture()
    assert picture.startswith("<svg ")
    assert picture.count("<rect") == len(planned.space.tensors)
    assert ">ab -&gt; b<" in picture
    assert ">bh -&gt; *, 49.15 kB<" in picture
    assert picture in planned._repr_html_()
