"""Pipelined loops: right for every size, with asynchronous copies and all waits and barriers needed."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

import tdsl as td
from tdsl.codegen.emulation.run import EmulatedExecutable
from tdsl.codegen.gpu.launches import launches_of
from tdsl.codegen.ir.loops import Barrier, Block, Commit, For, If, Kernel, Stmt, Store, Wait
from tdsl.codegen.ir.statements import walk
from tdsl.lang.expr import Binary, const
from tdsl.lang.interp import interpret
from tests.codegen.cuda import programs

i, j, k = td.vars("i j k")


def numbers(*shape: int, dtype=np.int32):
    """Small whole numbers: their sums are exact in any order."""
    return (np.arange(np.prod(shape)) * 7 % 11 - 3).reshape(shape).astype(dtype)


def operands(m: int, n: int, p: int, dtype=np.int32):
    return numbers(m, n, dtype=dtype), numbers(n, p, dtype=dtype)


def agrees(s: td.Schedule, **arrays) -> None:
    got = td.emulate(td.compile(s, target="cuda"))(**arrays)
    (want,) = interpret(s.program, arrays)
    np.testing.assert_array_equal(got, want, strict=True)


def count(kernel: Kernel, test: Callable[[Stmt], bool]) -> int:
    return sum(map(test, walk(kernel.body)))


def is_asynchronous(s: Stmt) -> bool:
    return isinstance(s, Store) and s.asynchronous


SIZES = ((16, 8, 32), (32, 16, 64), (17, 9, 33), (1, 1, 1), (15, 20, 5), (40, 3, 70), (33, 100, 36))


@pytest.mark.parametrize("stages", [2, 3, 5])
@pytest.mark.parametrize("m, n, p", SIZES)
def test_a_matmul_is_right_at_every_size(m, n, p, stages):
    a, b = operands(m, n, p)
    agrees(programs.matmul(stages=stages), a=a, b=b)


@pytest.mark.parametrize("dtype", [td.u8, td.i16, td.f16, td.f64], ids=str)
@pytest.mark.parametrize("vector", [1, 4])
@pytest.mark.parametrize("n", [24, 25])
def test_copies_of_every_width_are_right(dtype, vector, n):
    a, b = operands(18, n, 33, dtype.numpy)
    agrees(programs.matmul(dtype, vector, stages=3), a=a, b=b)


@pytest.mark.parametrize(
    "dtype, vector, copies",
    [
        (td.f32, 1, 4),
        (td.f32, 4, 4),
        (td.f16, 4, 4),
        (td.f16, 1, 0),  # 2 bytes
        (td.u8, 4, 4),
        (td.f64, 4, 4),
    ],
)
def test_copies_of_4_to_16_bytes_are_asynchronous(dtype, vector, copies):
    kernel = programs.kernel_of(programs.matmul(dtype, vector, stages=3), M=32, K=64, N=64)
    assert count(kernel, is_asynchronous) == copies
    assert count(kernel, lambda s: isinstance(s, Wait)) == (copies > 0)
    # one in each iteration; what is stored at once needs another one before the loop
    assert programs.barriers(kernel) == (1 if copies else 2)


def test_vectors_of_rows_that_are_not_aligned_go_through_registers():
    kernel = programs.kernel_of(programs.matmul(td.f32, 1, stages=2), M=32, K=63, N=64)
    assert count(kernel, is_asynchronous) == 4
    kernel = programs.kernel_of(programs.matmul(td.f32, stages=2), M=32, K=63, N=64)
    assert count(kernel, is_asynchronous) == 2  # the other operand
    kernel = programs.kernel_of(programs.matmul(td.f16, stages=2), M=32, K=63, N=63)
    assert count(kernel, is_asynchronous) == 0


def test_each_iteration_waits_for_one_tile():
    for stages in (2, 3, 4):
        kernel = programs.kernel_of(programs.matmul(stages=stages), M=32, K=64, N=64)
        assert [s.pending for s in walk(kernel.body) if isinstance(s, Wait)] == [stages - 2]
        assert count(kernel, lambda s: isinstance(s, Commit)) == 2


def test_a_loop_of_one_iteration_is_none():
    kernel = programs.kernel_of(programs.matmul(stages=3), M=32, K=8, N=64)
    assert count(kernel, is_asynchronous) == count(kernel, lambda s: isinstance(s, Wait)) == 0


def converted() -> td.Schedule:
    """A tile of f16 that is multiplied, kept as f32, beside one that is copied."""
    a, b, h, c = (td.Tensor("a", ("M", "K"), td.f16), td.Tensor("b", ("K", "N"), td.f32),
                  td.Func("h"), td.Func("c"))  # fmt: skip
    h[i, j] = td.cast(a[i, j], td.f32) * 2
    c[i, j] = td.sum(h[i, k] * b[k, j], axis=k)
    s = td.Schedule(c)
    io, jo, ii, ji = s[c].tile((i, j), (16, 16))
    ko, ki = s[c].split(k, 8)
    s[c].reorder(io, jo, ii, ji, ko, ki)
    s[c].bind(io, "blockIdx.y").bind(jo, "blockIdx.x").bind(ii, "threadIdx.y").bind(ji, "threadIdx.x")
    s[h].compute_at(s[c], ko).set_scope("shared").cooperate()
    s.cache_read(b, c, at=ko, scope="shared").cooperate(4)
    s[c].pipeline(ko, 3)
    return s


@pytest.mark.parametrize("m, n, p", [(32, 32, 32), (17, 19, 21)])
def test_converted_and_copied_tiles_are_prefetched_together(m, n, p):
    a, b = numbers(m, n, dtype=np.float16), numbers(n, p, dtype=np.float32)
    s = converted()
    agrees(s, a=a, b=b)
    kernel = programs.kernel_of(s, M=m, K=n, N=p)
    assert count(kernel, is_asynchronous) == (2 if p % 4 == 0 else 0)
    assert programs.barriers(kernel) == (1 if p % 4 == 0 else 2)


def test_funcs_computed_from_a_tile_are_not_prefetched():
    a, g, f = td.Tensor("a", ("M", "N"), td.f32), td.Func("g"), td.Func("f")
    g[i, j] = a[i, j] * 2 + a[i, j + 1]
    f[j] = td.sum(g[k, j + 1] - g[k, j], axis=k)
    s = td.Schedule(f)
    block, thread = s[f].split(j, 32)
    s[f].reorder(block, thread, "k").bind(block, "blockIdx.x").bind(thread, "threadIdx.x")
    s[g].compute_at(s[f], "k").set_scope("shared").cooperate()
    s.cache_read(a, g, at=None)  # read through a copy
    s["a_cache"].compute_at(s[f], "k").set_scope("shared").cooperate()
    s[f].pipeline("k", 3)
    agrees(s, a=numbers(9, 70, dtype=np.float32))
    kernel = programs.kernel_of(s, M=9, N=70)
    rings = {s.buffer for s in walk(kernel.body) if is_asynchronous(s)}
    assert rings == {"a_cache"}


@pytest.mark.parametrize("m, n", [(1, 1), (4, 32), (9, 33), (30, 70)])
@pytest.mark.parametrize("fill", [0, 1])
def test_bands_of_a_stencil_with_their_edges(m, n, fill):
    agrees(programs.cross(fill=fill), a=numbers(m, n, dtype=np.float32))


def test_zeros_beyond_the_edges_are_filled_in_by_asynchronous_copies():
    zeros, ones = (programs.kernel_of(programs.cross(fill=n), M=30, N=70) for n in (0, 1))
    assert count(zeros, is_asynchronous) == 2
    assert count(ones, is_asynchronous) == 0


def chain() -> td.Schedule:
    """A product of three, the first two in tiles inside of the tiles of the third: two pipelines."""
    a, b, d = (td.Tensor(n, (f"{n}0", f"{n}1"), td.f32) for n in "abd")
    g, f, m = td.Func("g"), td.Func("f"), td.vars("m")
    g[i, k] = td.sum(a[i, m] * b[m, k], axis=m)
    f[i, j] = td.sum(g[i, k] * d[k, j], axis=k)
    s = td.Schedule(f)
    io, jo, ii, ji = s[f].tile((i, j), (8, 8))
    ko, ki = s[f].split(k, 8)
    s[f].reorder(io, jo, ii, ji, ko, ki).bind(io, "blockIdx.y").bind(jo, "blockIdx.x")
    s[f].bind(ii, "threadIdx.y").bind(ji, "threadIdx.x")
    s.cache_read(d, f, at=ko, scope="shared").cooperate()
    s[g].compute_at(s[f], ko).set_scope("shared")
    row, column, gi, gk = s[g].tile((i, k), (8, 8))
    mo, mi = s[g].split(m, 4)
    s[g].reorder(row, column, gi, gk, mo, mi).bind(gi, "threadIdx.y").bind(gk, "threadIdx.x")
    for t in (a, b):
        s.cache_read(t, g, at=mo, scope="shared").cooperate()
    s[g].pipeline(mo, 2)
    s[f].pipeline(ko, 3)
    return s


@pytest.mark.parametrize("m, n, p, q", [(8, 8, 8, 8), (9, 17, 11, 10), (3, 30, 21, 5)])
def test_a_pipeline_inside_of_a_pipeline(m, n, p, q):
    a, b, d = (numbers(*shape, dtype=np.float32) for shape in ((m, n), (n, p), (p, q)))
    agrees(chain(), a=a, b=b, d=d)


def test_a_ring_that_is_larger_than_static_memory():
    kernel = programs.kernel_of(programs.matmul(td.f32, stages=48), M=32, K=512, N=64)
    (launch,) = launches_of(kernel).launches
    assert launch.shared == 48 * (16 * 8 + 8 * 32) * 4
    a, b = operands(32, 512, 64, np.float32)
    agrees(programs.matmul(td.f32, stages=48), a=a, b=b)


# Bugs put in by hand.


def broken(stages: int, change: Callable[[Stmt], Stmt]) -> None:
    kernel = programs.kernel_of(programs.matmul(stages=stages), M=32, K=64, N=64)
    arrays = (*operands(32, 64, 64), np.zeros((32, 64), np.int64))
    EmulatedExecutable(kernel).run(arrays)
    EmulatedExecutable(replace(kernel, body=programs.map_statements(kernel.body, change))).run(arrays)


def without(kind: type) -> Callable[[Stmt], Stmt]:
    return lambda s: Block(()) if isinstance(s, kind) else s


@pytest.mark.parametrize("stages", [2, 3, 4])
def test_a_missing_wait_is_a_hazard(stages):
    with pytest.raises(td.Hazard, match="reads a pending copy before a wait: a_cache"):
        broken(stages, without(Wait))


@pytest.mark.parametrize("stages", [2, 3, 4])
def test_a_wait_that_is_too_weak_is_a_hazard(stages):
    with pytest.raises(td.Hazard, match="reads a pending copy before a wait: a_cache"):
        broken(stages, lambda s: Wait(s.pending + 1) if isinstance(s, Wait) else s)


def test_uncommitted_copies_are_a_hazard():
    with pytest.raises(td.Hazard, match="reads a pending copy before a wait: a_cache"):
        broken(3, without(Commit))


def test_a_missing_barrier_after_a_wait_is_a_hazard():
    with pytest.raises(td.Hazard, match="reads what another thread writes: a_cache"):
        broken(3, without(Barrier))


def test_overwriting_a_slot_that_is_read_is_a_hazard():
    def change(s: Stmt) -> Stmt:
        if is_asynchronous(s) and isinstance(s.index[0], Binary):
            ring = s.index[0].right
            before = Binary("sub", s.index[0].left, const(1))
            return replace(s, index=(Binary("mod", before, ring), *s.index[1:]))
        return s

    with pytest.raises(td.Hazard, match="a pending copy before a wait"):
        broken(3, change)


def test_a_ring_of_too_few_slots_is_a_hazard():
    def change(s: Stmt) -> Stmt:
        if isinstance(s, Store) and s.asynchronous and isinstance(s.index[0], Binary):
            return replace(s, index=(Binary("mod", s.index[0].left, const(2)), *s.index[1:]))
        return s

    with pytest.raises(td.Hazard):
        broken(3, change)


def test_copies_before_the_barrier_are_a_hazard():
    """The slot that they go to is read by slower threads."""

    def change(s: Stmt) -> Stmt:
        if isinstance(s, Block) and any(isinstance(x, Wait) for x in s.body):
            wait, barrier, copies, *rest = s.body
            assert isinstance(barrier, Barrier) and isinstance(copies, If)
            return Block((wait, copies, barrier, *rest))
        return s

    with pytest.raises(td.Hazard, match="writes what another thread reads"):
        broken(2, change)


def test_a_thread_that_ends_before_its_copies_is_a_hazard():
    def change(s: Stmt) -> Stmt:
        return Block(()) if isinstance(s, For) and any(isinstance(x, Wait) for x in walk(s)) else s

    with pytest.raises(td.Hazard, match="ends before its copy to 'a_cache'"):
        broken(2, lambda s: change(s) if isinstance(s, For) and s.kind == "serial" else s)


@pytest.mark.parametrize("stages", [2, 3])
@pytest.mark.parametrize("m, n, p", [(64, 64, 64), (33, 50, 36)])
def test_computed_tiles_are_loaded_before_the_body_and_stored_after_it(m, n, p, stages):
    a, b, c = td.Tensor("a", (m, n), td.i32), td.Tensor("b", (n, p), td.i32), td.Func("c")
    c[i, j] = td.sum(abs(a[i, k] * 3) * b[k, j], axis=k, dtype=td.i32)
    s = td.Schedule(c)
    s[c].outline(i).inline()
    io, jo, ii, ji = s[c].tile((i, j), (16, 16))
    ko, ki = s[c].split(k, 8)
    s[c].reorder(io, jo, ii, ji, ko, ki).bind(io, "blockIdx.y").bind(jo, "blockIdx.x")
    s[c].bind(ii, "threadIdx.y").bind(ji, "threadIdx.x")
    for name in ("a_factor", "b"):
        s.cache_read(name, c, at=ko, scope="shared", filled=True).cooperate()
    s[c].pipeline(ko, stages)
    agrees(s, a=numbers(m, n), b=numbers(n, p))
    lines = [x.strip() for x in str(td.compile(s, target="cuda").loops("final")).splitlines()]
    body = lines[next(n for n, x in enumerate(lines) if x.startswith("for c_k_o in")) :]
    (load,) = (n for n, x in enumerate(body) if x.startswith("a_ahead["))
    (product,) = (n for n, x in enumerate(body) if x.startswith("c["))
    (store,) = (n for n, x in enumerate(body) if x.startswith("a_factor_cache["))
    assert load < product < store


def test_arguments_of_pipeline_have_their_old_names_for_one_version() -> None:
    new = programs.matmul(td.f32, stages=3, bulk=True, producer=True)
    old = programs.matmul(td.f32, bulk=True)
    with pytest.warns(DeprecationWarning, match="apart=.* is deprecated: producer_warps="):
        old["c"].pipeline("k_o", 3, apart=True)
    assert old.state.plan("c").nests == new.state.plan("c").nests
    text = new.to_json()
    fresh = programs.matmul(td.f32).of_program(new.program)
    assert fresh.replay(text.replace("producer_warps", "apart")).to_json() == text
