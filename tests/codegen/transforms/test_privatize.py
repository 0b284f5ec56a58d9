"""Memory between loops over threads: registers where each thread keeps to its own part, and only there."""

import numpy as np
import pytest

import tdsl as td
from tdsl.codegen.ir.loops import Alloc
from tdsl.codegen.ir.statements import walk
from tdsl.lang.interp import interpret
from tests.codegen.cuda.programs import kernel_of

i, j = td.vars("i j")


def row(read, threads=32, vector=1, unroll=True, **sizes):
    """g of a row, then f of it: both are shared out to the threads of a block in the same way."""
    a, g, f = td.Tensor("a", ("M", 256), td.i32), td.Func("g"), td.Func("f", shape=("M", 128))
    g[i, j] = a[i, j] * 3
    f[i, j] = read(g)
    s = td.Schedule(f)
    s[g].compute_at(s[f], i)
    for stage in (s[g], s[f]):
        rest = j
        if vector > 1:
            rest, lanes = stage.split(j, vector)
            stage.vectorize(lanes)
        outer, thread = stage.split(rest, threads)
        stage.bind(thread, "threadIdx.x")
        if unroll:
            stage.unroll(outer)
    s[f].bind(i, "blockIdx.x")
    return s


def scope_and_extents(s: td.Schedule) -> tuple[str, list[int]]:
    """The scope and extents of g."""
    allocs = [x for x in walk(kernel_of(s, M=3).body) if isinstance(x, Alloc) and x.name == "g"]
    (alloc,) = allocs
    return alloc.scope, [int(e.value) for e in alloc.extents]


KINDS = {
    "own": (lambda g: g[i, j] + 1, {}, ("register", [1, 4])),
    "own vectors": (lambda g: g[i, j] + 1, {"vector": 4}, ("register", [1, 4])),
    "loops are unrolled": (lambda g: g[i, j] + 1, {"unroll": False}, ("register", [1, 4])),
    "several of its own": (lambda g: g[i, j] + g[i, j + 128], {}, ("register", [1, 8])),
    "its neighbour's": (lambda g: g[i, j] + g[i, j + 1], {}, ("shared", [1, 129])),
    "mirrored": (lambda g: g[i, 127 - j], {}, ("shared", [1, 128])),
    "other vectors": (lambda g: g[i, (j + 4) % 128], {"vector": 4}, ("shared", [1, 128])),
    "an element of another": (lambda g: g[i, 0] + j, {}, ("shared", [1, 1])),
}


@pytest.mark.parametrize("kind", KINDS)
def test_scope_of_memory_between_thread_loops(kind):
    read, options, want = KINDS[kind]
    s = row(read, **options)
    assert scope_and_extents(s) == want
    a = (np.arange(3 * 256) % 17).reshape(3, 256).astype(np.int32)
    (expected,) = interpret(s.program, {"a": a})
    np.testing.assert_array_equal(td.emulate(td.compile(s, target="cuda"))(a), expected)


def test_memory_larger_than_registers_is_shared():
    a, g, f = td.Tensor("a", ("M", 4096), td.i32), td.Func("g"), td.Func("f")
    g[i, j] = a[i, j] * 3
    f[i, j] = g[i, j] + 1
    for threads, scope in ((16, "shared"), (128, "register")):
        s = td.Schedule(f)
        s[g].compute_at(s[f], i)
        for stage in (s[g], s[f]):
            _, thread = stage.split(j, threads)
            stage.bind(thread, "threadIdx.x")
        s[f].bind(i, "blockIdx.x")
        assert scope_and_extents(s)[0] == scope


def test_register_scope_used_by_several_threads_raises():
    s = row(lambda g: g[i, 127 - j])
    s["g"].set_scope("register")
    with pytest.raises(td.ScheduleError, match="'g' is private to a thread, but loops over threads use it"):
        kernel_of(s, M=3)
