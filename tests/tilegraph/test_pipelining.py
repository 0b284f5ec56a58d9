"""Tiles of blocks fetch their operands ahead of their use, where there is room for that."""

from dataclasses import replace

import pytest

import tdsl as td
from tdsl.autoschedule.recipes.pipelining import STAGES, SYSTEM, pipeline_loads
from tdsl.machine.devices import describe_gpu
from tdsl.schedule.state import PIPELINED
from tdsl.target import Target
from tests.tilegraph.test_blocks import check, products, tiled

i, j, k = td.vars("i j k")


def stages_of(schedule):
    """The stages of each pipelined loop, by func."""
    return {
        name: x.stages
        for name, plan in schedule.state.plans
        for nest in plan.nests
        for x in nest.loops
        if x.kind == PIPELINED
    }


@pytest.mark.in_part(2)
@pytest.mark.parametrize("terms, stages", [(1, 0), (16, 0), (20, 2), (47, 3), (130, 3)])
def test_steps_of_any_number_are_fetched_ahead(terms, stages):
    program = td.Schedule(products(70, terms, 64, 36)).program
    schedule = tiled(program)
    depths = stages_of(schedule)
    assert depths.pop("a", 0) == stages  # as many as there are steps, at most
    assert depths == {"y": STAGES}
    check(schedule, program)


@pytest.mark.in_part(1)
@pytest.mark.parametrize("terms", [32, 48, 96])
def test_operands_of_tensor_cores_are_fetched_ahead(monkeypatch, terms):
    few = replace(describe_gpu("sm_80"), threads=2)  # so that tiles are large
    monkeypatch.setattr(td.Target, "machine", lambda _: few)
    program = td.Schedule(products(250, terms, 128, 64, td.f16)).program
    schedule = tiled(program, Target("cuda", arch="sm_80"), "no cuts, tiles")
    assert stages_of(schedule).get("a", 1) == min(-(-terms // 32), STAGES)
    text = str(td.compile(schedule, target="cuda:sm_80").loops("final"))
    assert "# asynchronous" in text and "mma_" in text
    check(schedule, program)


def steps(dtype=td.f32, columns=64):
    """A product in tiles, an operand of which has so many columns, and the bytes of a step."""
    a, b, c = td.Tensor("a", (64, 64), dtype), td.Tensor("b", (64, columns), dtype), td.Func("c")
    c[i, j] = td.sum(td.cast(a[i, k], td.f32) * td.cast(b[k, j], td.f32), axis=k)
    s = td.Schedule(c, target="cuda")
    io, jo, ii, ji = s[c].tile((i, j), (64, 64))
    ty, tx, i0, j0 = s[c].tile((ii, ji), (4, 4))
    ko, ki = s[c].split(k, 8)
    s[c].reorder(io, jo, ty, tx, ko, ki, i0, j0)
    s[c].bind(io, "blockIdx.y").bind(jo, "blockIdx.x").bind(ty, "threadIdx.y").bind(tx, "threadIdx.x")
    for t in (a, b):
        s.cache_read(t, c, at=ko, scope="shared", filled=True).cooperate()
    return s, s.footprint("shared")


@pytest.mark.parametrize("room, stages", [(1, 1), (2, 2), (4, 2), (6, 3), (20, 3)])
def test_there_are_as_many_stages_as_have_room(room, stages):
    # where two blocks have room on a multiprocessor, they still do
    schedule, tile_bytes = steps()
    pipeline_loads(schedule["c"], int(room * tile_bytes) + (SYSTEM if room > 2 else 0))
    assert stages_of(schedule).get("c", 1) == stages
    assert schedule.footprint("shared") == stages * tile_bytes


def test_copies_of_two_bytes_are_not_fetched_ahead():
    # a GPU copies 4 bytes or more by itself: the others would wait in registers
    schedule, _ = steps(td.f16, columns=63)
    pipeline_loads(schedule["c"], 99 << 10)
    assert stages_of(schedule) == {}
