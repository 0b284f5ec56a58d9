"""Predicted bytes are those that are counted: of copies exactly, of caches by running loops through one."""

from __future__ import annotations

from collections import OrderedDict
from math import prod
from typing import Any

import numpy as np
import pytest

import tdsl as td
from tdsl.codegen.ir.loops import BufferParam, For, If, Stmt, Store
from tdsl.codegen.ir.statements import parts_of
from tdsl.codegen.python.count_bytes import count_bytes
from tdsl.codegen.runtime.signature import dense_specialisation
from tdsl.core.node import post_order
from tdsl.cost.moved import total
from tdsl.lang.expr import Const, Load, dtype_of, lanes_of
from tdsl.machine.model import Machine, MemoryLevel
from tdsl.pipeline import make_kernel
from tdsl.profiling import arguments_of
from tdsl.schedule.state import AXES
from tdsl.tilegraph.predict import predict

b, i, j, d, e, k = td.vars("b i j d e k")


def attention(batches: int, rows: int, terms: int, depth: int) -> td.Func:
    q, kk, v = (
        td.Tensor(n, (batches, m, depth), td.f32) for n, m in (("q", rows), ("k", terms), ("v", terms))
    )
    score, top, p, sums, out = (td.Func(n) for n in ("score", "top", "p", "sums", "out"))
    score[b, i, j] = td.sum(q[b, i, d] * kk[b, j, d], axis=d) * 0.125
    top[b, i] = td.max(score[b, i, j], axis=j)
    p[b, i, j] = td.exp(score[b, i, j] - top[b, i])
    sums[b, i] = td.sum(p[b, i, j], axis=j)
    out[b, i, e] = td.sum(p[b, i, j] * v[b, j, e], axis=j) / sums[b, i]
    return out


def loaded(s: td.Schedule) -> int:
    """The bytes that the kernels of a schedule load from and store to arrays, counted in their loops."""
    program = td.compile(s)
    kernel = make_kernel(program.variant(dense_specialisation(program.signature, s.sizes, frozenset())))
    far = {p.name for p in kernel.params if isinstance(p, BufferParam)}

    def count(x: Stmt | None, times: int, axes: dict[str, int]) -> int:
        match x:
            case None:
                return 0
            case For(extent=Const(value), kind=kind, body=body) if kind in AXES:
                return count(body, times, {**axes, kind: value})  # inside of another it takes its place
            case For(extent=Const(value), body=body):
                return count(body, times * value, axes)
            case If(then=then, orelse=orelse):
                return max(count(then, times, axes), count(orelse, times, axes))
            case Store(buffer, index, value):
                loads = {n for n in post_order(value) if isinstance(n, Load) and n.buffer in far}
                moved = sum(max(map(lanes_of, n.index)) * n.dtype.bytes for n in loads)
                if buffer in far:
                    moved += max(map(lanes_of, index)) * dtype_of(value).bytes
                return moved * times * prod(axes.values())
            case _:
                return sum(count(y, times, axes) for y in parts_of(x))

    return count(kernel.body, 1, {})


def test_copies_into_shared_memory_move_what_is_predicted() -> None:
    s = td.Schedule(attention(2, 64, 96, 32), target="cuda")
    td.recipes.online_blocks(s["out_sum"], rows=32, terms=32, parts=1, each=(4, 4))
    s["out_sum_online"].serial("j_o")  # what is fetched ahead stands under conditions in its loops
    assert s.traffic("global") == loaded(s) == 4 * (2 * 64 * 32 + 2 * 2 * 2 * 96 * 32 + 2 * 64 * 32)
    padded = 36  # of the keys, whose terms are rows, the scores and the weights
    assert s.footprint("shared") == 4 * (2 * 32 * 32 + 3 * 32 * padded + 2 * 32)


def test_separate_kernels_move_intermediate_results() -> None:
    x, f, g = td.Tensor("x", (100, 64), td.f32), td.Func("f"), td.Func("g")
    f[i, j] = td.exp(x[i, j]) * x[i, j]
    g[i] = td.sum(f[i, j], axis=j)
    s = td.Schedule(g, target="cuda")
    td.recipes.elements(s[f])
    td.recipes.elements(s[g])
    assert s.traffic("global") == 4 * (3 * 100 * 64 + 100)
    assert s.footprint("shared") == 0


class Cache:
    """Elements that were used last, and how often one was not there."""

    def __init__(self, elements: int) -> None:
        self.elements, self.missed, self.written = elements, 0, 0
        self.there: OrderedDict[tuple[str, Any], bool] = OrderedDict()

    def use(self, name: str, at: Any, *, write: bool) -> None:
        dirty = self.there.pop((name, at), None)
        self.missed += dirty is None and not write
        self.there[name, at] = bool(dirty) or write
        if len(self.there) > self.elements:
            self.written += self.there.popitem(last=False)[1]

    def moved(self) -> int:
        """Elements fetched and written back; of what is freed at the end nothing is."""
        left = sum(dirty for (name, _), dirty in self.there.items() if not name.startswith("own"))
        return self.missed + self.written + left


class Watched:
    """An array whose elements go through a cache."""

    def __init__(self, name: str, array: np.ndarray, cache: Cache) -> None:
        self.name, self.array, self.cache = name, array, cache

    def __getitem__(self, at: Any) -> Any:
        self.cache.use(self.name, at, write=False)
        return self.array[at]

    def __setitem__(self, at: Any, value: Any) -> None:
        self.cache.use(self.name, at, write=True)
        self.array[at] = value


def counted(s: td.Schedule, elements: int) -> int:
    """The bytes that a cache of f32 elements exchanges with memory while the loops of a schedule run."""
    compiled = td.compile(s, target="python")
    text, cache = str(compiled.source(**s.sizes)), Cache(elements)
    names: dict[str, Any] = {}
    exec(text.replace("np.empty(", "watched("), names)

    def watched(shape: Any, dtype: Any) -> Watched:  # what is made again and again is in one place
        return Watched(f"own {shape}", np.empty(shape, dtype), cache)

    names["watched"] = watched
    program = s.program
    arrays = [Watched(t.name, np.ones([n.value for n in t.shape], np.float32), cache) for t in program.inputs]
    for name in program.outputs:
        shape = [x.value for _, x in program.func(name).output_box(None)]
        arrays.append(Watched(name, np.empty(shape, np.float32), cache))
    kernel = next(v for n, v in names.items() if n.endswith("_kernel"))
    kernel(*arrays)
    return 4 * cache.moved()


def predicted(s: td.Schedule, elements: int) -> float:
    cache = MemoryLevel("L1", 4 * elements, line=4)
    machine = Machine(levels=(cache, MemoryLevel("memory", None, managed=True)))
    return total(predict(s.state, s.sizes, machine)[0].moved("L1"))


def product(m: int, n: int, terms: int) -> td.Schedule:
    x, y, c = td.Tensor("x", (m, terms), td.f32), td.Tensor("y", (terms, n), td.f32), td.Func("c")
    c[i, j] = td.sum(x[i, k] * y[k, j], axis=k)
    return td.Schedule(c)


@pytest.mark.parametrize("tile", [4, 8])
@pytest.mark.parametrize("elements", [160, 400, 2000])
def test_a_tiled_product_misses_as_often_as_predicted(tile: int, elements: int) -> None:
    s = product(16, 24, 12)
    io, jo, ii, ji = s["c"].tile((i, j), (tile, tile))
    s["c"].reorder(io, jo, ii, ji, k)
    assert predicted(s, elements) == pytest.approx(counted(s, elements), rel=0.1)


@pytest.mark.parametrize("elements", [60, 400, 4000])
def test_a_chain_line_by_line_misses_as_often_as_predicted(elements: int) -> None:
    x, f, g = td.Tensor("x", (20, 32), td.f32), td.Func("f"), td.Func("g", shape=(18, 32))
    f[i, j] = x[i, j] * x[i, j]
    g[i, j] = f[i, j] + f[i + 1, j] + f[i + 2, j]
    s = td.Schedule(g)
    s[f].compute_at(s[g], i)
    assert predicted(s, elements) == pytest.approx(counted(s, elements), rel=0.1)


@pytest.mark.parametrize("elements", [100, 4000])
def test_funcs_one_after_another_keep_what_fits_between(elements: int) -> None:
    x, f, g = td.Tensor("x", (20, 32), td.f32), td.Func("f"), td.Func("g")
    f[i, j] = td.exp(x[i, j])
    g[j, i] = f[i, j] * 2
    s = td.Schedule(g)
    s[f].compute_root()
    assert predicted(s, elements) == pytest.approx(counted(s, elements), rel=0.1)


@pytest.mark.parametrize("elements", [20, 400, 4000])
@pytest.mark.parametrize("rows", [1, 3, 20])
def test_funcs_in_the_same_loops_miss_as_often_as_predicted(elements: int, rows: int) -> None:
    x = td.Tensor("x", (20, 32), td.f32)
    f, g, h = td.Func("f"), td.Func("g"), td.Func("h")
    f[i, j] = td.exp(x[i, j])
    g[i] = td.sum(x[i, k], axis=k)
    h[i, j] = x[i, j] * 2
    s = td.Schedule(f, g, h)
    block, _ = s[f].split(i, rows)
    for other in (g, h):
        s[other].split(i, rows)
        s[other].compute_with(s[f], block)
    assert predicted(s, elements) == pytest.approx(counted(s, elements), rel=0.1)


def test_levels_and_sizes_that_are_not_known_are_refused() -> None:
    x, f = td.Tensor("x", ("N",), td.f32), td.Func("f")
    f[i] = x[i] + 1
    with pytest.raises(td.ShapeError, match=r"(?s)sizes that are not known: N.*sizes="):
        td.Schedule(f).traffic("L1")
    with pytest.raises(td.TargetError, match=r"no level 'l7'"):
        td.Schedule(f, sizes={"N": 8}).traffic("l7")
    with pytest.raises(td.TargetError, match=r"(?s)into registers.*shared"):
        td.Schedule(f, sizes={"N": 8}, target="cuda").traffic("registers")


def test_gaps_between_distant_reads_are_not_moved():
    x = td.Tensor("x", (256, 256, 256), td.f32)
    gate = td.Func("gate", shape=(128, 256, 256))
    gate[i, j, k] = x[i, j, k] * x[i + 128, j, k]
    s = td.Schedule(gate)
    s[gate].vectorize(k, 16)
    assert s.traffic("memory") <= 1.1 * 4 * 256 * 256 * (256 + 128)


def test_a_result_that_is_read_again_comes_from_the_cache() -> None:
    x, copy, sums = td.Tensor("x", (20, 30), td.f32), td.Func("copy"), td.Func("sums")
    copy[i, j] = x[i, j] * 2
    sums[i] = td.sum(copy[i, j], axis=j)
    s = td.Schedule(copy, sums)
    s[copy].compute_root()
    s[sums].compute_root()
    assert predicted(s, 2000) == counted(s, 2000) == 4 * (20 * 30 * 2 + 20)
    assert predicted(s, 100) == pytest.approx(counted(s, 100), rel=0.1)


@pytest.mark.parametrize("rows", [1, 4, 6])
@pytest.mark.parametrize("elements", [100, 400, 4000])
def test_of_what_conditions_choose_each_iteration_reads_one(rows: int, elements: int) -> None:
    """Three pictures side by side as channels, in blocks of these, and the sums of neighbours of each."""
    parts = [td.Tensor(f"a{n}", (4, 10, 20), td.f32) for n in range(3)]
    joined, sums = td.Func("joined"), td.Func("sums", shape=(12, 10, 18))
    value = parts[2][td.clip(i - 8, 0, 3), j, k]
    for n in (1, 0):
        value = td.where(i < 4 * (n + 1), parts[n][td.clip(i - 4 * n, 0, 3), j, k], value)
    joined[i, j, k] = value
    sums[i, j, k] = joined[i, j, k] + joined[i, j, k + 1] + joined[i, j, k + 2]
    s = td.Schedule(sums)
    block, _ = s[sums].split(i, rows)
    s[joined].compute_at(s[sums], block)
    assert predicted(s, elements) == pytest.approx(counted(s, elements), rel=0.1)


@pytest.mark.parametrize("columns", [32, 40, 52, 56])
@pytest.mark.parametrize("size", [512, 1024])
def test_rows_that_begin_within_lines_touch_more_of_them(columns: int, size: int) -> None:
    """Blocks of columns of a product, of which the last is short, in a cache of whole lines."""
    x, y, c = td.Tensor("x", (24, 16), td.f32), td.Tensor("y", (16, columns), td.f32), td.Func("c")
    c[i, j] = td.sum(x[i, k] * y[k, j], axis=k)
    s = td.Schedule(c)
    block, inner = s["c"].split(j, 16)
    s["c"].reorder(block, i, k, inner)
    program = td.compile(s, target="python")
    cache = MemoryLevel("L1", size, line=64)
    machine = Machine(levels=(cache, MemoryLevel("memory", None, managed=True)))
    values, exact = arguments_of(
        program.signature, [np.ones(z, np.float32) for z in ((24, 16), (16, columns))], {}, None
    )
    kernel = make_kernel(program.variant(exact))
    bytes_ = count_bytes(kernel, values, machine.caches)["L1"]
    assert total(predict(s.state, {}, machine)[0].moved("L1")) == pytest.approx(bytes_, rel=0.1)


def rows_of_a_table(rows: int, indices: int, columns: int) -> td.Func:
    x, at = td.Tensor("x", (rows, columns), td.f32), td.Tensor("at", (indices,), td.i32)
    f = td.Func("f")
    f[i, j] = x[at[i], j] * 2
    return f


@pytest.mark.parametrize("rows", [100_000, 10])
def test_gathers_read_the_indexed_rows_of_a_table(rows):
    """At most as many as there are, for each block: 16 of them in one of 4 blocks here."""
    s = td.Schedule(rows_of_a_table(rows, 64, 64), target="cuda")
    td.recipes.elements(s["f"])
    assert s.traffic("global") == 4 * (64 + 64 * 64 + 64 * min(64, 4 * rows))
    assert s.prediction().least == 4 * (64 + 64 * 64 + 64 * min(64, rows))


def test_of_a_table_that_is_read_plainly_too_all_is_needed():
    x, at, f = td.Tensor("x", (90, 64), td.f32), td.Tensor("at", (90,), td.i32), td.Func("f")
    f[i, j] = x[at[i], j] + x[i, 63 - j]
    s = td.Schedule(f, target="cuda")
    td.recipes.elements(s[f])
    assert s.prediction().least == 4 * (90 + 2 * 90 * 64)
    assert s.traffic("global") <= 4 * (90 + 90 * 64 + 2 * 96 * 64)
