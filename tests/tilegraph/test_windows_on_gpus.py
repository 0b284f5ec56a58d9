"""Windows on a GPU: right at every size, pipelines in one kernel with halos copied to shared memory once."""

import numpy as np
import pytest

import tdsl as td
from tdsl.lang.interp import interpret
from tdsl.schedule.inlining import inline_funcs
from tdsl.tilegraph.graph import TileGraph
from tdsl.tilegraph.levels import nested_tiles
from tdsl.tilegraph.write_blocks import write_blocks

b, i, j, p, q = td.vars("b i j p q")


def blur(m: int, n: int):
    a = td.Tensor("a", (m + 2, n + 2), td.f32)
    rows, f = td.Func("rows"), td.Func("f", shape=(m, n))
    rows[i, j] = (a[i, j] + a[i, j + 1] + a[i, j + 2]) * 2
    f[i, j] = rows[i, j] + rows[i + 1, j] + rows[i + 2, j]
    return f


def heat(m: int, n: int):
    a = td.Tensor("a", (m, n), td.f32)
    edge, f = td.pad(a, mode="edge"), td.Func("f")
    f[i, j] = a[i, j] * 4 - edge[i - 1, j] - edge[i + 1, j] - edge[i, j - 1] - edge[i, j + 1]
    return f


def filtered(m: int, n: int):
    a, w, f = (
        td.Tensor("a", (2, m + 2, n + 4), td.f32),
        td.Tensor("w", (3, 5), td.f32),
        td.Func("f"),
    )
    f[b, i, j] = td.sum(a[b, i + p, j + q] * w[p, q], axis=(p, q))
    return f.with_shape(2, m, n)


def sharpened(m: int, n: int):
    """Three stages, the last of which reads the first source, too."""
    a = td.Tensor("a", (m + 4, n + 4), td.f32)
    rows, soft, f = td.Func("rows"), td.Func("soft"), td.Func("f", shape=(m, n))
    rows[i, j] = (a[i, j] + a[i, j + 1] * 2 + a[i, j + 2]) * 3
    soft[i, j] = (rows[i, j] + rows[i + 1, j] * 2 + rows[i + 2, j]) * 5
    f[i, j] = a[i + 1, j + 1] * 2 - soft[i, j] - soft[i + 1, j + 1]
    return f


PROGRAMS = {"blur": blur, "heat": heat, "filter": filtered, "sharpen": sharpened}


def agrees(s: td.Schedule, rng) -> None:
    arrays = {
        t.name: rng.integers(-3, 4, [e.value for e in t.shape]).astype(np.float32) for t in s.program.inputs
    }
    got = td.emulate(td.compile(s, target="cuda"))(**arrays)
    (want,) = interpret(s.program, arrays)
    np.testing.assert_array_equal(got, want, strict=True)


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("m, n", [(1, 1), (5, 40), (33, 131), (64, 256)])
def test_the_default_schedule_of_windows(rng, name, m, n):
    agrees(td.Schedule(PROGRAMS[name](m, n)), rng)


@pytest.mark.parametrize("m, n", [(64, 128), (70, 256), (65, 131)])
@pytest.mark.parametrize("name", ["blur", "sharpen"])
def test_tiles_of_pipelines_at_any_size(rng, name, m, n):
    f = PROGRAMS[name](m, n)
    s = td.Schedule(f)
    graph = TileGraph.of_state(inline_funcs(s.state))
    (part,) = nested_tiles(graph, td.Target("cuda").machine())[0]
    write_blocks(s, part, td.Target("cuda").machine())
    agrees(s, rng)


@pytest.mark.parametrize("name", ["blur", "sharpen"])
def test_a_pipeline_is_one_kernel_and_reads_shared_memory_without_conflicts(name):
    s = td.Schedule(PROGRAMS[name](1024, 2048), target="cuda:sm_90a")
    compiled = td.compile(s, target=td.Target("cuda", arch="sm_90a"))
    assert len(compiled.launch.kernels) == 1
    arrays = [np.zeros([e.value for e in t.shape], np.float32) for t in s.program.inputs]
    counts = td.count_memory(compiled, *arrays, blocks=4)
    assert counts.conflict_degree == 1 and counts.sector_efficiency > 0.85
