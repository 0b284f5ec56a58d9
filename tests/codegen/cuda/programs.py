"""Scheduled programs for a GPU, and their kernels, for the tests beside this file."""

from collections.abc import Callable

import tdsl as td
from tdsl.codegen.ir.loops import Barrier, Block, Kernel, Stmt
from tdsl.codegen.ir.statements import map_parts, walk
from tdsl.codegen.runtime.signature import dense_specialisation
from tdsl.pipeline import make_kernel

i, j, k = td.vars("i j k")


def matmul(
    dtype: td.DType = td.i32, vector: int = 4, stages: int = 0, bulk: bool = False,
    producer: bool = False, rounds: int = 1,
) -> td.Schedule:  # fmt: skip
    """Tiles of 16 x 32 in blocks of 8 x 8 threads; both operands go through shared memory.

    With `stages` they are fetched ahead, with `bulk` as a whole, with `producer` by a producer warp. A block
    makes a tile after the other, in so many `rounds`.
    """
    a, b, c = td.Tensor("a", ("M", "K"), dtype), td.Tensor("b", ("K", "N"), dtype), td.Func("c")
    c[i, j] = td.sum(a[i, k] * b[k, j], axis=k, dtype=None if dtype.kind == "i" else dtype)
    s = td.Schedule(c)
    io, jo, ii, ji = s[c].tile((i, j), (16, 32))
    ty, tx, i0, j0 = s[c].tile((ii, ji), (2, 4))
    ko, ki = s[c].split(k, 8)
    s[c].reorder(io, jo, ty, tx, ko, ki, i0, j0)
    if rounds > 1:
        jo, _ = s[c].split(jo, rounds)
    s[c].bind(io, "blockIdx.y").bind(jo, "blockIdx.x").bind(ty, "threadIdx.y").bind(tx, "threadIdx.x")
    s.cache_write(c, at=tx, scope="register")
    for t in (a, b):
        tile = s.cache_read(t, c, at=ko, scope="shared")
        _ = tile.bulk_copy() if bulk else tile.cooperate(vector)
    s[c].unroll(i0).unroll(j0)
    if stages:
        s[c].pipeline(ko, stages, producer)
    return s


def scaled(vector: int = 4) -> td.Schedule:
    """One vector for each thread."""
    a, f = td.Tensor("a", ("N",), td.f32), td.Func("f")
    f[i] = a[i] * 2 + 1
    s = td.Schedule(f)
    block, inner = s[f].split(i, 64 * vector)
    thread, lanes = s[f].split(inner, vector)
    s[f].bind(block, "blockIdx.x").bind(thread, "threadIdx.x").vectorize(lanes)
    return s


def transposed() -> td.Schedule:
    """Tiles of 16 x 16 turned in shared memory."""
    a, f = td.Tensor("a", ("M", "N"), td.i32), td.Func("f")
    f[i, j] = a[j, i]
    s = td.Schedule(f)
    io, jo, ii, ji = s[f].tile((i, j), (16, 16))
    s[f].bind(io, "blockIdx.y").bind(jo, "blockIdx.x").bind(ii, "threadIdx.y").bind(ji, "threadIdx.x")
    s.cache_read(a, f, at=ji, scope="shared").cooperate()
    return s


def cross(stages: int = 3, fill: float = 0) -> td.Schedule:
    """Sums of four neighbours, `fill` beyond the edges, of bands of rows that are fetched ahead."""
    a, f = td.Tensor("a", ("M", "N"), td.f32), td.Func("f")
    p = td.pad(a, "constant", fill)
    f[i, j] = p[i - 1, j] + p[i + 1, j] + p[i, j - 1] + p[i, j + 1]
    f = f.with_shape("M", "N")
    s = td.Schedule(f)
    jo, ji = s[f].split(j, 32)
    io, ii = s[f].split(i, 4)
    s[f].reorder(jo, ji, io, ii).bind(jo, "blockIdx.x").bind(ji, "threadIdx.x")
    s.cache_read(a, f, at=io, scope="shared", padded=True).cooperate()
    s[f].pipeline(io, stages)
    return s


def row_sums() -> td.Schedule:
    """A block for each row: every thread sums a part, the first one the parts."""
    a, f = td.Tensor("a", ("M", "N"), td.i32), td.Func("f")
    f[i] = td.sum(a[i, j], axis=j)
    s = td.Schedule(f)
    _, part = s[f].split(j, 32)
    parts = s[f].rfactor(part)
    s[f].bind(i, "blockIdx.x")
    parts.compute_at(s[f], i).set_scope("shared")
    parts.bind(part.name, "threadIdx.x")
    return s


def kernel_of(s: td.Schedule, **sizes: int) -> Kernel:
    """The loops that a GPU runs."""
    f = td.compile(s, target="cuda")
    return make_kernel(f.variant(dense_specialisation(f.signature, sizes, frozenset())))


def barriers(kernel: Kernel) -> int:
    """How many barriers stand in a kernel."""
    return sum(isinstance(s, Barrier) for s in walk(kernel.body))


def map_statements(s: Stmt, change: Callable[[Stmt], Stmt]) -> Stmt:
    """A statement with each one inside, and itself, changed."""
    return change(map_parts(s, lambda part: map_statements(part, change)))


def without_barrier(s: Stmt, n: int) -> Stmt:
    """The same without its n-th barrier."""
    seen = [0]

    def change(x: Stmt) -> Stmt:
        if not isinstance(x, Barrier):
            return x
        seen[0] += 1
        return Block(()) if seen[0] == n + 1 else x

    return map_statements(s, change)
