"""Barriers stand where threads pass values to each other, and nowhere else."""

import pytest

import tdsl as td
from tests.codegen.cuda.programs import barriers, kernel_of, matmul, transposed

i, j, k = td.vars("i j k")


def through_shared_memory(index, threads=64):
    """f[i] = g[index(i)] + g[i], with g in shared memory, an element for each thread."""
    a, g, f = td.Tensor("a", (threads + 8,), td.i32), td.Func("g"), td.Func("f", shape=(threads,))
    g[i] = a[i] * 2
    f[i] = g[index(i)] + g[i]
    s = td.Schedule(f)
    block, thread = s[f].split(i, threads)
    s[f].bind(block, "blockIdx.x").bind(thread, "threadIdx.x")
    s[g].compute_at(s[f], thread).set_scope("shared").cooperate()
    return s


@pytest.mark.parametrize(
    "index, count",
    [
        (lambda i: i, 0),  # each thread reads what it has written
        (lambda i: i + 1, 1),
        (lambda i: 63 - i, 1),
        (lambda i: i // 2, 1),
    ],
    ids=["own", "next", "mirrored", "shared by two"],
)
def test_barrier_before_read_by_another_thread(index, count):
    assert barriers(kernel_of(through_shared_memory(index))) == count


def test_tile_refilled_in_loop_needs_two_barriers():
    assert barriers(kernel_of(matmul(), M=32, K=32, N=64)) == 2
    assert barriers(kernel_of(matmul(), M=33, K=31, N=65)) == 2


def test_tile_filled_once_needs_one_barrier():
    assert barriers(kernel_of(transposed(), M=32, N=32)) == 1


def test_no_barrier_between_kernels():
    a, g, f = td.Tensor("a", (100, 70), td.f32), td.Func("g"), td.Func("f")
    g[i, j] = a[i, j] * 2
    f[i, j] = g[i, j] + g[i, 69 - j]
    s = td.Schedule(f)
    s[g].compute_root()
    for stage in (s[g], s[f]):
        td.recipes.elements(stage)
    assert barriers(kernel_of(s)) == 0


def test_no_barrier_for_thread_private_sums():
    a, f = td.Tensor("a", (10, 30, 50), td.f32), td.Func("f")
    f[i, j] = td.sum(a[i, j, k], axis=k)
    s = td.Schedule(f)
    td.recipes.elements(s[f], vector=1)  # rows and columns by division of the number of the thread
    assert barriers(kernel_of(s)) == 0


def test_disjoint_writes_of_warps_in_one_row_need_no_barrier():
    """Three warps to each of two tiles of 2 x 96, of which the last block has one: number // 3 says which."""
    shape = (5, 2, 96)
    a, g, f = td.Tensor("a", shape, td.f32), td.Func("g"), td.Func("f", shape=shape)
    g[i, j, k] = a[i, j, k] * 2
    f[i, j, k] = g[i, j, 95 - k] + g[i, j, k]
    s = td.Schedule(f)
    for func in (g, f):
        s[func].compute_root().split(i, 2)
        s[func].split(k, 2)
        s[func].fuse("i_i", j)
        s[func].fuse("i_i_j", "k_o")
        s[func].split("i_i_j_k_o", 32)
        s[func].reorder("i_o", "i_i_j_k_o_o", "i_i_j_k_o_i", "k_i").bind("i_o", "blockIdx.x")
        s[func].bind("i_i_j_k_o_o", "threadIdx.y").bind("i_i_j_k_o_i", "threadIdx.x")
    assert barriers(kernel_of(s)) == 0
