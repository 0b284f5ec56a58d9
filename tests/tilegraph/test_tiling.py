"""Tiles that are grown, cuts that are searched, and nested tiles as directives."""

from __future__ import annotations

import numpy as np
import pytest

import tdsl as td
from tdsl.lang.interp import interpret
from tdsl.machine.model import Machine, MemoryLevel
from tdsl.schedule.legality import check_all
from tdsl.target import Target
from tdsl.tilegraph.cuts import partitions
from tdsl.tilegraph.graph import TileGraph
from tdsl.tilegraph.levels import Part, nested_tiles
from tdsl.tilegraph.pins import read_pins
from tdsl.tilegraph.search import _makers, candidates
from tdsl.tilegraph.tiling import FULL, Group, Needs, Place, grow, price
from tdsl.tilegraph.write import write_tiles
from tests.tilegraph.chains import CHAINS

i, j, k = td.vars("i j k")
MEMORY = MemoryLevel("memory", None, managed=True)


def machine(*sizes: int) -> Machine:
    caches = (MemoryLevel(f"L{n}", size) for n, size in enumerate(sizes, 1))
    return Machine(vector_bytes=64, threads=2, levels=(*caches, MEMORY))


def place(size: int) -> Place:
    level = MemoryLevel("L2", size)
    return Place(Machine(vector_bytes=64, levels=(level, MEMORY)), level, MEMORY, outermost=False)


def group(graph: TileGraph, producer: str, owner: str) -> Group:
    return Group.of(Needs.of(graph, (producer, owner), place(0).machine), owner).joined(producer)


def stencils(size: int, steps: int = 2) -> td.Func:
    last: td.Tensor | td.Func = td.Tensor("a", (size, size), td.f32)
    for n in range(steps):
        small = size - 2 * (n + 1)
        step = td.Func(f"s{n}", shape=(small, small))
        step[i, j] = last[i, j] + last[i + 1, j + 2] * last[i + 2, j + 1]
        last = step
    assert isinstance(last, td.Func)
    return last


def test_tiles_grow_in_both_directions_until_the_level_is_full() -> None:
    graph = TileGraph.of(td.Schedule(stencils(1026)).program)
    tiled = group(graph, "s0", "s1")
    small, large = (grow(tiled, place(n)) for n in (1 << 15, 1 << 18))
    assert small is not None and large is not None
    for tiling, size in ((small, 1 << 15), (large, 1 << 18)):
        assert FULL * size / 5 < tiling.footprint <= FULL * size
        assert min(tiling.shape) > 1
    assert large.moved < small.moved


def test_the_price_of_a_tile_counts_what_neighbours_compute_again() -> None:
    graph = TileGraph.of(td.Schedule(stencils(258)).program)
    tiled = group(graph, "s0", "s1")
    seconds = [price(tiled, shape, place(1 << 20)).seconds for shape in ((1, 16), (8, 64))]
    assert seconds[0] > 2 * seconds[1]


def test_a_row_that_is_needed_whole_is_not_cut() -> None:
    x, total, y = td.Tensor("x", (512, 512), td.f32), td.Func("total"), td.Func("y")
    total[i] = td.sum(td.exp(x[i, j]), axis=j)
    y[i, j] = x[i, j] / total[i]
    graph = TileGraph.of(td.Schedule(y).program)
    tiling = grow(group(graph, "total", "y"), place(1 << 16))
    assert tiling is not None and tiling.shape[1] == 512


def test_the_beam_finds_what_trying_all_partitions_does() -> None:
    graph = TileGraph.of(td.Schedule(stencils(130, steps=4)).program)
    names = [f.name for f in graph.program.funcs]
    best, priced = partitions(graph, names, place(1 << 14), together=lambda _: True)
    chains = []
    for cuts in range(8):  # between neighbours of the chain
        groups: list[list[str]] = [[names[0]]]
        for n, name in enumerate(names[1:]):
            groups = [*groups, [name]] if cuts >> n & 1 else [*groups[:-1], [*groups[-1], name]]
        groups_priced = [priced[g[-1], frozenset(g)] for g in groups]
        chains.append(sum(f[1].seconds for f in groups_priced if f) if all(groups_priced) else float("inf"))
    assert best[0].seconds == pytest.approx(min(chains))


def test_funcs_that_must_not_be_fused_are_not() -> None:
    graph = TileGraph.of(td.Schedule(stencils(514)).program)
    cuts = nested_tiles(graph, machine(1 << 15, 1 << 18), together=lambda n: n != "s0")
    assert all([p.owner for p in parts] == ["s0", "s1"] for parts in cuts)


def depth_of(p: Part) -> int:
    return 1 + max((depth_of(q) for q in p.parts if q.parts), default=0)


def test_tiles_lie_inside_of_tiles() -> None:
    graph = TileGraph.of(td.Schedule(stencils(1026)).program)
    (part,), *_ = nested_tiles(graph, machine(1 << 12, 1 << 18))
    assert depth_of(part) == 2 and (part.level, part.members) == ("L2", ("s0", "s1"))
    schedule = td.Schedule(stencils(1026))
    write_tiles(schedule, part, machine(1 << 12, 1 << 18))
    assert str(schedule).count("split") == 2  # lines, and pieces of them


def test_the_reader_of_one_sum_takes_its_register_tiles() -> None:
    schedule, levels = td.Schedule(*CHAINS["inverted residual"](32)), machine(1 << 15, 1 << 18)
    (part,), *_ = nested_tiles(TileGraph.of(schedule.program), levels)
    assert ("wide_sum", "wide") in [p.members for p in part.parts]  # it would have tiles of its own
    write_tiles(schedule, part, levels)
    (place,) = [x for x in str(schedule).splitlines() if x.startswith('s["wide_sum"].compute_at')]
    assert 's["wide"]' in place and 's["wide"].unroll(' in str(schedule)


def test_rows_whose_terms_share_few_cache_sets_are_padded() -> None:
    m = td.vars("m")
    x, w = td.Tensor("x", (40, 16, 256), td.f32), td.Tensor("w", (8, 40), td.f32)
    f, g, h = td.Func("f"), td.Func("g"), td.Func("h")
    f[k, i, j] = td.sum(x[m, i, j] * w[0, k], axis=m)
    g[m, i, j] = td.sum(w[m, k] * f[k, i, j], axis=k)
    h[m, i, j] = td.exp(g[m, i, j] / 100)
    schedule = td.Schedule(h)
    (part,), *_ = nested_tiles(TileGraph.of(schedule.program), machine(1 << 12, 1 << 19))
    write_tiles(schedule, part, machine(1 << 12, 1 << 19))
    assert part.tile["f"][1] != part.boxes["f"][1] and 's["f"].align_storage(2, 272)' in str(schedule)
    rng = np.random.default_rng(0)
    given = [rng.standard_normal(shape).astype(np.float32) for shape in ((40, 16, 256), (8, 40))]
    sums = np.einsum("mij,k->kij", given[0], given[1][0])
    want = np.exp(np.einsum("mk,kij->mij", given[1] / 100, sums))
    np.testing.assert_allclose(td.compile(schedule)(x=given[0], w=given[1]), want, 1e-3)


@pytest.mark.in_part(4)
@pytest.mark.parametrize("name", CHAINS)
def test_nested_tiles_of_small_levels_are_right(name: str) -> None:
    program = td.Schedule(*CHAINS[name](22)).program
    rng = np.random.default_rng(0)
    given = {
        t.name: rng.standard_normal([n.value for n in t.shape]).astype(np.float32) for t in program.inputs
    }
    want = interpret(program, given)
    tiny = machine(1 << 11, 1 << 13)
    for parts in nested_tiles(TileGraph.of(program), tiny):
        schedule = td.Schedule(*CHAINS[name](22))
        for part in reversed(parts):
            if part.parts:
                write_tiles(schedule, part, tiny)
        got = td.compile(schedule)(**given)
        for mine, expected in zip(got if isinstance(got, tuple) else (got,), want, strict=True):
            np.testing.assert_allclose(mine, expected, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("name", CHAINS)
def test_tiles_of_every_cut_can_be_scheduled(name: str) -> None:
    program, target = td.Schedule(*CHAINS[name](64)).program, Target("cpu")
    pins = read_pins(program, target.machine(), None)
    for label, schedule, make in _makers(program, {}, target, pins, set()):
        if label.endswith("tiles"):  # a search leaves out what cannot be, and says nothing
            assert make(schedule)
            check_all(schedule.state)


def test_fused_and_tiled_candidates_compete_with_recipes() -> None:
    program = td.Schedule(*CHAINS["gated block"](128)).program
    ranked = candidates(program, {}, Target("cpu"))
    labels = [c.label for c in ranked]
    assert {"default", "apart"} <= {*labels} and any(x.endswith("tiles") for x in labels)
    again = candidates(program, {}, Target("cpu"))
    assert [(c.label, str(c.schedule)) for c in ranked] == [(c.label, str(c.schedule)) for c in again]
