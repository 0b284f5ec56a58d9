"""Consecutive statements of one block run in one kernel."""

import numpy as np

import tdsl as td

k = td.vars("k")


def reductions(n: int) -> td.Compiled:
    x, top, total, out = td.Tensor("x", (n,), td.f32), *map(td.Func, ("top", "total", "out"))
    top[()] = td.max(x[k], axis=k)
    total[()] = td.sum(x[k], axis=k)
    out[()] = top[()] * total[()]
    compiled: td.Compiled = td.compile(out, target="cuda:sm_80")
    return compiled


def test_the_last_steps_of_reductions_and_what_reads_them_are_one_kernel() -> None:
    compiled = reductions(300_000)
    last = compiled.launch.kernels[-1]
    assert (last.grid, last.block[0] > 1) == ((1, 1, 1), True)
    assert all(np.prod(x.block) > 1 for x in compiled.launch.kernels)
    assert sum(np.prod(x.grid) == 1 for x in compiled.launch.kernels) == 1
    a = np.arange(300_000, dtype=np.float32) / 300_000
    assert np.allclose(td.emulate(compiled)(a), a.max() * a.sum(), rtol=1e-5)


def test_few_terms_are_reduced_by_one_block_in_one_kernel() -> None:
    for n in (1, 33, 30_000):
        compiled = reductions(n)
        (kernel,) = compiled.launch.kernels
        assert kernel.grid == (1, 1, 1) and not compiled.launch.temporaries
        a = np.arange(n, dtype=np.float32) / n
        assert np.allclose(td.emulate(compiled)(a), a.max() * a.sum(), rtol=1e-5)


def test_memory_between_the_statements_of_a_kernel_is_no_argument() -> None:
    temporaries = dict(reductions(300_000).launch.temporaries)
    assert temporaries and all(int(n) > 4 for n in temporaries.values())


def test_statements_with_other_numbers_of_threads_are_kernels_of_their_own() -> None:
    i = td.vars("i")
    a, f, g = td.Tensor("a", (64,), td.f32), td.Func("f"), td.Func("g", shape=64)
    f[i] = a[i] + 1
    g[i] = f[63 - i] * 2
    s = td.Schedule(g)
    s[f].compute_root().bind(i, "threadIdx.x")
    s[g].split(i, 32)
    s[g].bind(s[g].loops[-1], "threadIdx.x")
    compiled = td.compile(s, target="cuda:sm_80")
    assert [x.block[0] for x in compiled.launch.kernels] == [64, 32]
    x = np.arange(64, dtype=np.float32)
    assert (td.emulate(compiled)(x) == (x[::-1] + 1) * 2).all()


def test_barriers_order_the_statements_of_a_kernel() -> None:
    i = td.vars("i")
    a, f, g = td.Tensor("a", (64,), td.f32), td.Func("f"), td.Func("g", shape=64)
    f[i] = a[i] + 1
    g[i] = f[63 - i] * 2
    s = td.Schedule(g)
    s[f].compute_root().bind(i, "threadIdx.x")
    s[g].bind(i, "threadIdx.x")
    compiled = td.compile(s, target="cuda:sm_80")
    assert len(compiled.launch.kernels) == 1
    assert str(compiled.loops("final")).count("barrier()") == 1
    x = np.arange(64, dtype=np.float32)
    assert (td.emulate(compiled)(x) == (x[::-1] + 1) * 2).all()
