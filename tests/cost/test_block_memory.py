"""The shared memory that a schedule is said to need is what its kernels ask for."""

from collections.abc import Callable

import pytest

import tdsl as td
from tdsl.codegen.gpu.launches import launches_of
from tdsl.codegen.runtime.signature import dense_specialisation
from tdsl.machine.devices import describe_gpu
from tdsl.pipeline import make_kernel
from tests.codegen.cuda import programs
from tests.cost.test_traffic import attention

i, j, k = td.vars("i j k")


def launched_bytes(s: td.Schedule) -> int:
    """The most bytes of shared memory that a kernel of a schedule asks for."""
    program = td.compile(s)
    kernel = make_kernel(program.variant(dense_specialisation(program.signature, s.sizes, frozenset())))
    return max(x.shared for x in launches_of(kernel).launches)


def product(rows: int, terms: int, columns: int, dtype: td.DType = td.f32) -> td.Schedule:
    a, b = td.Tensor("a", (rows, terms), dtype), td.Tensor("b", (terms, columns), dtype)
    c = td.Func("c")
    c[i, j] = td.sum(td.cast(a[i, k], td.f32) * td.cast(b[k, j], td.f32), axis=k)
    return td.Schedule(c, target="cuda")


def plain_tiles(*, is_ahead: bool, rows: int = 300) -> td.Schedule:
    s = product(rows, 100, 70)
    td.recipes.block_tiles(s["c"], machine=describe_gpu("sm_90a" if is_ahead else "sm_75"))
    return s


def pipelined(stages: int) -> td.Schedule:
    s = programs.matmul(td.f32, stages=stages)
    return td.Schedule.of_program(s.program, {"M": 64, "K": 64, "N": 64}, "cuda").replay(s.to_json())


def tensor_cores(*, terms: int = 512, **choices: object) -> td.Schedule:
    s = product(1024, terms, 512, td.f16)
    td.recipes.tensor_core_matmul(s["c"], **choices)
    return s


def online_on_tensor_cores() -> td.Schedule:
    q, kk, v = (td.Tensor(n, (256, 64), td.f16) for n in ("q", "k", "v"))
    d, e = td.vars("d e")
    score, top, p, total, out = (td.Func(n) for n in ("score", "top", "p", "total", "out"))
    score[i, j] = td.sum(td.cast(q[i, d], td.f32) * td.cast(kk[j, d], td.f32), axis=d)
    top[i] = td.max(score[i, j], axis=j)
    p[i, j] = td.cast(td.exp(score[i, j] - top[i]), td.f16)
    total[i] = td.sum(td.cast(p[i, j], td.f32), axis=j)
    out[i, e] = td.sum(td.cast(p[i, j], td.f32) * td.cast(v[j, e], td.f32), axis=j) / total[i]
    s = td.Schedule(out, target="cuda")
    td.recipes.online_tensor_cores(s["out_sum"])
    return s


def online_in_blocks() -> td.Schedule:
    s = td.Schedule(attention(2, 70, 96, 32), target="cuda")
    td.recipes.online_blocks(s["out_sum"], rows=32, terms=32, parts=1, each=(4, 4))
    return s


def long_rows() -> td.Schedule:
    """Warps of a block pass their sums on."""
    x, total, y = td.Tensor("x", (50, 20_000), td.f32), td.Func("total"), td.Func("y")
    total[i] = td.sum(x[i, k], axis=k)
    y[i, j] = x[i, j] / total[i]
    s = td.Schedule(y, target="cuda")
    td.recipes.block_rows(s["y"], parts=1)
    return s


def transposed() -> td.Schedule:
    """Rows of the tile are an element longer, and of 70 rows no tile has more than 32."""
    a, t = td.Tensor("a", (70, 45), td.f32), td.Func("t")
    t[i, j] = a[j, i]
    s = td.Schedule(t, target="cuda")
    rows, columns, row, column = s[t].tile((i, j), (32, 32))
    part, line = s[t].split(row, 8)
    s[t].reorder(rows, columns, part, line, column)
    s[t].bind(rows, "blockIdx.y").bind(columns, "blockIdx.x")
    s[t].bind(line, "threadIdx.y").bind(column, "threadIdx.x")
    tile = s.cache_read(a, t, at=columns, scope="shared").align_storage(1, 33)
    part, line = tile.split(tile.loops[0], 8)
    tile.bind(line, "threadIdx.y").bind(tile.loops[-1], "threadIdx.x")
    return s


def computed_late() -> td.Schedule:
    """One tile is fetched ahead, the other one is made of it in each iteration."""
    a, twice, c = td.Tensor("a", (64, 32), td.f32), td.Func("twice"), td.Func("c")
    twice[i, k] = a[i, k] * 2
    c[i] = td.sum(twice[i, k] * twice[i, 31 - k], axis=k)
    s = td.Schedule(c, target="cuda")
    block, thread = s[c].split(i, 32)
    s[c].bind(block, "blockIdx.x").bind(thread, "threadIdx.x")
    ko, _ = s[c].split(k, 8)
    s.cache_write(c, at=thread, scope="register")
    s[twice].compute_at(s[c], ko).set_scope("shared").cooperate()
    s.cache_read(a, twice, scope="shared").compute_at(s[c], ko).cooperate()
    s[c].pipeline(ko, 4)
    return s


MADE: dict[str, Callable[[], td.Schedule]] = {
    "tiles": lambda: plain_tiles(is_ahead=False),
    "tiles ahead": lambda: plain_tiles(is_ahead=True),
    "tiles larger than what there is": lambda: plain_tiles(is_ahead=True, rows=20),
    "mma": lambda: tensor_cores(stages=3),
    "mma, an odd number of terms": lambda: tensor_cores(terms=500, stages=4),
    "wgmma": lambda: tensor_cores(warpgroups=True),
    "wgmma in clusters": lambda: tensor_cores(warpgroups=True, block=(128, 128, 64), cluster=2, blocks=4),
    "online": online_in_blocks,
    "online on tensor cores": online_on_tensor_cores,
    "rows": long_rows,
    "transposed": transposed,
    "computed late": computed_late,
}


@pytest.mark.parametrize("make", MADE.values(), ids=MADE)
def test_the_footprint_is_what_kernels_ask_for(make: Callable[[], td.Schedule]) -> None:
    s = make()
    assert s.footprint("shared") == launched_bytes(s) > 0


def test_each_stage_of_a_pipeline_counts() -> None:
    one, three = (s.footprint("shared") for s in (pipelined(0), pipelined(3)))
    assert three == 3 * one == 3 * 4 * (16 * 8 + 8 * 32)
