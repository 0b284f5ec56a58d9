"""Tiles of blocks in shared memory, tiles of threads in registers: groups of funcs as one kernel of a GPU."""

import re
from dataclasses import replace

import numpy as np
import pytest

import tdsl as td
from tdsl.lang.interp import interpret
from tdsl.machine.devices import describe_gpu
from tdsl.target import Target
from tdsl.tilegraph.default import decide
from tdsl.tilegraph.graph import TileGraph
from tdsl.tilegraph.levels import nested_tiles
from tdsl.tilegraph.search import candidates
from tests.tilegraph.chains import CHAINS

GPU = Target("cuda")
i, j, k, h = td.vars("i j k h")


def products(rows, terms, inner, columns, dtype=td.f32):
    """relu(x w) u, with sums in f32."""
    x, w, u = (
        td.Tensor(n, shape, dtype)
        for n, shape in (("x", (rows, terms)), ("w", (terms, inner)), ("u", (inner, columns)))
    )
    a, r, y = td.Func("a"), td.Func("r"), td.Func("y")
    a[i, h] = td.sum(td.cast(x[i, k], td.f32) * td.cast(w[k, h], td.f32), axis=k)
    r[i, h] = td.cast(td.maximum(a[i, h], 0), dtype)
    y[i, j] = td.sum(td.cast(r[i, h], td.f32) * td.cast(u[h, j], td.f32), axis=h)
    return y


def has_tiles(program, target=GPU):
    """True if the default schedule has tiles of several funcs."""
    _, decisions = decide(td.Schedule.of_program(program, target=target).state, target.machine())
    return any(d.how == "tiles" for d in decisions)


def tiled(program, target=GPU, label="tiles"):
    """The best schedule with tiles, which may be the default one, or the best whose label ends so."""
    ranked = candidates(program, {}, target)
    label = "default" if label == "tiles" and has_tiles(program, target) else label
    return next(c.schedule for c in ranked if c.label.endswith(label))


def arrays_of(program):
    rng = np.random.default_rng(0)
    return {
        t.name: rng.standard_normal([n.value for n in t.shape]).astype(t.dtype.numpy) for t in program.inputs
    }


def check(schedule, program):
    """What a schedule computes on an emulated GPU is what the program says."""
    given = arrays_of(program)
    got = td.emulate(td.compile(schedule, target="cuda"))(**given)
    want = interpret(program, given)
    for mine, expected in zip(got if isinstance(got, tuple) else (got,), want, strict=True):
        np.testing.assert_allclose(mine, expected, rtol=2e-4, atol=1e-5 * max(abs(expected).max(), 1))


@pytest.mark.in_part(4)
@pytest.mark.parametrize("name", CHAINS)
def test_a_chain_in_tiles_is_right_and_fits(name):
    program = td.Schedule(*CHAINS[name](13)).program
    schedule = tiled(program)
    assert schedule.footprint("shared") <= GPU.capacity("shared")
    check(schedule, program)


@pytest.mark.in_part(2)
@pytest.mark.parametrize("sizes", [(1, 1, 1, 1), (250, 13, 37, 11), (7, 64, 128, 64), (64, 40, 1, 3)])
def test_two_products_of_any_sizes_are_one_kernel(sizes):
    program = td.Schedule(products(*sizes)).program
    schedule = tiled(program)
    assert str(td.compile(schedule, target="cuda").loops()).count("blockIdx") == 1
    check(schedule, program)


def test_levels_of_a_gpu_are_those_of_a_block_and_of_a_thread():
    graph = TileGraph.of(td.Schedule(products(65_536, 64, 128, 64)).program)
    (part,), *_ = nested_tiles(graph, describe_gpu("sm_90a"))
    assert (part.owner, part.members, part.level) == ("y", ("a", "r", "y"), "shared")
    assert [(p.members, p.level) for p in part.parts] == [
        (("a", "r"), "registers"),
        (("y",), "registers"),
    ]


def test_what_is_between_two_products_moves_no_bytes():
    rows, terms, inner, columns = 65_536, 64, 128, 64
    program = td.Schedule(products(rows, terms, inner, columns)).program
    schedule = tiled(program)
    (tile,) = (dict(d.arguments)["factor"] for d in schedule.directives[:1])
    weights = rows // tile * inner * (terms + columns)
    assert schedule.traffic("global") == 4 * (rows * (terms + columns) + weights)


def test_funcs_in_shared_memory_are_not_copied_there_again():
    """A product that is read by a maximum, by a product and by the result is there for all of them."""
    x, w, u = (
        td.Tensor(n, shape, td.f32) for n, shape in (("x", (128, 64)), ("w", (64, 64)), ("u", (64, 64)))
    )
    a, top, y = td.Func("a"), td.Func("top"), td.Func("y")
    a[i, h] = td.sum(x[i, k] * w[k, h], axis=k)
    top[i] = td.max(a[i, h], axis=h)
    y[i, j] = td.sum(td.exp(a[i, h] - top[i]) * u[h, j], axis=h) + a[i, j]
    schedule = tiled(td.Schedule(y).program)
    assert set(re.findall(r'cache_read\("(\w+)"', str(schedule))) == {"x", "w", "u"}


def test_products_of_half_floats_in_tiles_use_tensor_cores(monkeypatch):
    few = replace(describe_gpu("sm_80"), threads=2)  # so that tiles are large
    monkeypatch.setattr(td.Target, "machine", lambda _: few)
    program = td.Schedule(products(256, 64, 128, 64, td.f16)).program
    schedule = tiled(program, Target("cuda", arch="sm_80"))
    text = str(td.compile(schedule, target="cuda:sm_80").loops())
    assert text.count("mma_m16n8k16_f16_f16(") == 2
    assert text.count("blockIdx") == 1
    check(schedule, program)


def scaled(a, c, bias):
    return a / 8


def added(a, c, bias):
    return a * 0.5 + td.cast(c, td.f32) * 2


def biased(a, c, bias):
    return a + td.cast(bias, td.f32)


def between_products(combine, rows=256, terms=64, inner=128, columns=64):
    """Two products of half floats, a func of one operation or a few between them, and a cast."""
    shapes = {
        "x": (rows, terms), "w": (terms, inner), "u": (inner, columns), "c": (rows, inner),
        "bias": (inner,),
    }  # fmt: skip
    x, w, u, c, bias = (td.Tensor(n, shape, td.f16) for n, shape in shapes.items())
    a, m, r, y = td.Func("a"), td.Func("m"), td.Func("r"), td.Func("y")
    a[i, h] = td.sum(td.cast(x[i, k], td.f32) * td.cast(w[k, h], td.f32), axis=k)
    m[i, h] = combine(a[i, h], c[i, h], bias[h])
    r[i, h] = td.cast(td.maximum(m[i, h], 0), td.f16)
    y[i, j] = td.sum(td.cast(r[i, h], td.f32) * td.cast(u[h, j], td.f32), axis=h)
    return y


@pytest.mark.in_part(2)
@pytest.mark.parametrize("combine", [scaled, added, biased])
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_what_is_between_a_product_and_its_end_keeps_tensor_cores(monkeypatch, combine, arch):
    few = replace(describe_gpu(arch), threads=2)  # so that tiles are large
    monkeypatch.setattr(td.Target, "machine", lambda _: few)
    program = td.Schedule(between_products(combine)).program
    labelled = {c.label: c.schedule for c in candidates(program, {}, Target("cuda", arch=arch))}
    tiled = labelled.pop("no cuts, tiles", None) or labelled.pop("default")  # a label for each schedule
    for schedule, count in ((tiled, 0), (labelled.get("default") or labelled["cut after a"], 1)):
        text = str(td.compile(schedule, target=Target("cuda", arch=arch)).loops())
        assert len(re.findall(r"mma_m\d+n\d+k16_f16_\w+\(", text)) == 2
        between = re.findall(r"(\w+) = alloc\(.*# (?:heap|auto)", text)
        assert len(between) == count
        check(schedule, program)


def test_half_floats_take_tiles_where_bytes_are_what_takes_the_time():
    program = td.Schedule(products(65_536, 64, 128, 64, td.f16)).program
    best, *others = candidates(program, {}, GPU)
    assert best.label == "default" and has_tiles(program)
    assert best.seconds < 0.8 * min(c.seconds for c in others)


def test_sizes_with_names_are_known():
    @td.op
    def layers(x: td.f16["M", "K"], w: td.f16["K", "H"], u: td.f16["H", "N"]):
        a, r, y = td.Func("a"), td.Func("r"), td.Func("y")
        a[i, h] = td.sum(td.cast(x[i, k], td.f32) * td.cast(w[k, h], td.f32), axis=k)
        r[i, h] = td.cast(td.maximum(a[i, h], 0), td.f16)
        y[i, j] = td.sum(td.cast(r[i, h], td.f32) * td.cast(u[h, j], td.f32), axis=h)
        return y

    named = layers.autoschedule(M=65_536, K=64, H=128, N=64, target="cuda")
    program = td.Schedule(products(65_536, 64, 128, 64, td.f16)).program
    assert str(named) == str(candidates(program, {}, GPU)[0].schedule)


def test_large_products_stay_separate():
    program = td.Schedule(products(4096, 4096, 4096, 4096, td.f16)).program
    assert candidates(program, {}, GPU)[0].label == "default"


@pytest.mark.in_part(2)
@pytest.mark.parametrize("dtype", [td.f16, td.f32], ids=str)
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_machine_code_of_tiles_spills_nothing(arch, dtype):
    pytest.importorskip("tvm", reason='pip install "tdsl[cuda]"')
    target = Target("cuda", arch=arch)
    schedule = tiled(td.Schedule(products(65_536, 64, 128, 64, dtype)).program, target)
    (kernel,) = td.compile(schedule, target=target).launch.kernels
    assert (kernel.spills, kernel.stack) == (0, 0)
    assert kernel.used_shared <= target.capacity("shared")


@pytest.mark.parametrize("columns", [20, 32])
def test_registers_have_no_index_that_a_thread_alone_knows(columns):
    # weights of a whole row were in the registers of each thread, which took four of them by its number
    pytest.importorskip("tvm", reason='pip install "tdsl[cuda]"')
    program = td.Schedule(*CHAINS["masked softmax"](columns)).program
    for kernel in td.compile(tiled(program), target="cuda").launch.kernels:
        assert (kernel.spills, kernel.stack) == (0, 0)
