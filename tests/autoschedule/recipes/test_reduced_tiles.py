"""Reductions of the rows of a product, in the kernel that makes it."""

import numpy as np
import pytest

import tdsl as td
from tdsl.errors import ScheduleError
from tdsl.lang.interp import interpret
from tdsl.tilegraph.default import decide

b, i, j, k = td.vars("b i j k")


def compiled(*outputs, arch="sm_90a"):
    """By the default schedule."""
    return td.compile(*outputs, target=td.Target("cuda", arch=arch))


def agrees(f, *outputs, rtol=1e-5):
    """Emulated results are those of the interpreter, for small integers in floats exact sums."""
    rng = np.random.default_rng(1)
    program = td.Schedule(*outputs).program
    given = {
        t.name: rng.integers(-3, 4, [e.value for e in t.shape]).astype(t.dtype.numpy) for t in program.inputs
    }
    got, want = td.emulate(f)(**given), interpret(program, given)
    for one, other in zip(got if isinstance(got, tuple) else (got,), want, strict=True):
        np.testing.assert_allclose(one, other, rtol=rtol)
    return given


def operands(m, n, d, dtype=td.f32):
    return td.Tensor("x", (m, d), dtype), td.Tensor("y", (n, d), dtype)


def nearest(m, n, d, reduce=td.min):
    x, y = operands(m, n, d)
    distance, out = td.Func("distance"), td.Func("out")
    distance[i, j] = td.sum((x[i, k] - y[j, k]) ** 2, axis=k)
    out[i] = reduce(distance[i, j], axis=j)
    return out


@pytest.mark.parametrize("reduce", [td.min, td.argmin, td.max, td.sum])
@pytest.mark.parametrize("sizes", [(130, 129, 16), (33, 300, 5)])
def test_reductions_at_edges(reduce, sizes):
    out = nearest(*sizes, reduce=reduce)
    agrees(compiled(out), out)


def test_the_product_is_not_stored_and_nothing_conflicts():
    out = nearest(260, 384, 64)
    f = compiled(out)
    given = agrees(f, out)
    counts = td.count_memory(f, *given.values())
    assert counts.conflict_degree == 1
    large = [a for a in counts.accesses if a.site.array in ("x", "y")]
    assert all(a.sector_efficiency == 1 for a in large)
    assert all(size < 4 * 260 * 384 / 8 for _, size in f.launch.temporaries)


def transposed(m, n, d):
    x, y = td.Tensor("x", (d, m), td.f32), td.Tensor("y", (d, n), td.f32)
    product, out = td.Func("p"), td.Func("o")
    product[i, j] = td.sum(x[k, i] * y[k, j], axis=k)
    out[i] = td.sum(td.maximum(product[i, j], 0), axis=j)
    return out


def batches(m, n, d):
    x, y = td.Tensor("x", (3, m, d), td.f32), td.Tensor("y", (3, n, d), td.f32)
    product, out = td.Func("p"), td.Func("o")
    product[b, i, j] = td.max(x[b, i, k] + y[b, j, k], axis=k)
    out[b, i] = td.min(product[b, i, j], axis=j)
    return out


def norms(m, n, d):
    (x, y), (xx, yy, product, distance, out) = operands(m, n, d), map(td.Func, ("xx", "yy", "p", "d", "o"))
    xx[i] = td.sum(x[i, k] ** 2, axis=k)
    yy[j] = td.sum(y[j, k] ** 2, axis=k)
    product[i, j] = td.sum(x[i, k] * y[j, k], axis=k)
    distance[i, j] = xx[i] + yy[j] - 2 * product[i, j]
    out[i] = td.argmin(distance[i, j], axis=j)
    return out


def itself(m, _, d):
    x, product, out = td.Tensor("x", (m, d), td.f32), td.Func("p"), td.Func("o")
    product[i, j] = td.sum(x[i, k] * x[j, k], axis=k)
    out[i] = td.max(td.where(i != j, product[i, j], -1000), axis=j)
    return out


def weighted(m, n, d):
    (x, y), g = operands(m, n, d), td.Tensor("g", (d,), td.f32)
    product, out = td.Func("p"), td.Func("o")
    product[i, j] = td.sum(abs(x[i, k] - y[j, k]) * g[k], axis=k)
    out[i] = td.sqrt(abs(td.min(product[i, j], axis=j)))
    return out


def doubles(m, n, d):
    (x, y), product, out = operands(m, n, d, td.f64), td.Func("p"), td.Func("o")
    product[i, j] = td.sum(x[i, k] * y[j, k], axis=k)
    out[i] = td.max(product[i, j], axis=j)
    return out


@pytest.mark.in_part(2)
@pytest.mark.parametrize("make", [transposed, batches, norms, itself, weighted])
def test_operands_and_epilogues(make, monkeypatch):
    target = td.Target("cuda", arch="sm_90a")
    _, decisions = decide(td.Schedule(make(4096, 8192, 64), target=target).state, target.machine())
    assert "reduced tiles" in [d.how for d in decisions]
    monkeypatch.setattr("tdsl.tilegraph.kernels_together.FAR_FROM_BEST", 1e9)  # small sizes: the same kernels
    out = make(70, 131, 12)
    f = compiled(out)
    assert "reduced tiles" in str(f.explain())
    agrees(f, out)


def test_doubles_have_smaller_tiles():
    out = doubles(70, 131, 12)
    s = td.Schedule(out, target=td.Target("cuda", arch="sm_90a"))
    assert td.recipes.reduced_tiles(s[out]).each == (4, 4)
    agrees(td.compile(s, target=td.Target("cuda", arch="sm_90a")), out)


def test_parts_of_the_columns_fill_the_multiprocessors_of_the_gpu():
    counts = {}
    for arch in ("sm_80", "sm_90a"):
        s = td.Schedule(nearest(1024, 1 << 16, 64), target=td.Target("cuda", arch=arch))
        plan = td.recipes.reduced_tiles(s["out"])
        counts[arch] = -(-1024 // plan.tile[0]) * plan.parts
    assert 100 <= counts["sm_80"] <= 108
    assert 120 <= counts["sm_90a"] <= 132


def test_what_it_is_not_for():
    product, other, out = td.Func("p"), td.Func("other"), td.Func("o")
    x, y = operands(64, 64, 8)
    product[i, j] = td.sum(x[i, k] * y[j, k], axis=k)
    out[i] = td.max(product[i, j], axis=j)
    other[i, j] = product[i, j] + 1
    s = td.Schedule(out, other, target="cuda")
    with pytest.raises(ScheduleError, match="read at other places"):
        td.recipes.reduced_tiles(s[out])
    s = td.Schedule(nearest(8, 8, 8), target="cuda")
    with pytest.raises(ScheduleError, match="8 rows and 8 columns are no tiles"):
        td.recipes.reduced_tiles(s["out"])


@pytest.mark.parametrize("reduce", [td.min, td.sum])
@pytest.mark.parametrize(
    "sizes, arch, dtype", [((100, 250, 64), "sm_80", td.f16), ((33, 300, 32), "sm_90a", td.bf16)]
)
def test_tensor_cores_reduce_products_of_half_floats(sizes, arch, dtype, reduce):
    x, y = operands(*sizes, dtype)
    product, out = td.Func("p"), td.Func("o")
    product[i, j] = td.sum(td.cast(x[i, k], td.f32) * td.cast(y[j, k], td.f32), axis=k)
    out[i] = reduce(td.maximum(product[i, j], -8), axis=j)
    s = td.Schedule(out, target=td.Target("cuda", arch=arch))
    td.recipes.reduced_fragments(s[out])
    f = td.compile(s, target=td.Target("cuda", arch=arch))
    given = agrees(f, out)
    assert "mma_m16n8k16" in str(f.loops())
    assert td.count_memory(f, *given.values()).conflict_degree == 1


def test_half_floats_are_reduced_by_tensor_cores_where_that_is_predicted_to_be_faster():
    x, y = operands(16384, 16384, 64, td.f16)
    product, out = td.Func("p"), td.Func("o")
    product[i, j] = td.sum(td.cast(x[i, k], td.f32) * td.cast(y[j, k], td.f32), axis=k)
    out[i] = td.max(product[i, j], axis=j)
    target = td.Target("cuda", arch="sm_90a")
    _, decisions = decide(td.Schedule(out, target=target).state, target.machine())
    (plan,) = next(d.plan for d in decisions if d.how == "reduced tiles")
    assert type(plan).__name__ == "ReducedFragments"


def test_what_alone_reads_results_of_tensor_cores_is_in_their_kernel():
    x, y = operands(200, 64, 32, td.f16)
    product, out = td.Func("p"), td.Func("o")
    product[i, j] = td.sum(td.cast(x[i, k], td.f32) * td.cast(y[j, k], td.f32), axis=k)
    out[i] = 2 * td.max(product[i, j], axis=j)
    s = td.Schedule(out, target="cuda:sm_80")
    assert td.recipes.reduced_fragments(s["o_max"]).parts == 1
    f = td.compile(s)
    agrees(f, out)
    assert str(f.loops("final")).count("def ") == 1
