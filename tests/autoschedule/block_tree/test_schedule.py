"""Tile trees of a GPU: right at every size, with whole sectors, no conflicts and no tests of products."""

from dataclasses import replace

import numpy as np
import pytest

import tdsl as td
from tdsl.autoschedule.block_tree.search import best_tree
from tdsl.autoschedule.block_tree.tree import BlockTree, Cut, Shared
from tdsl.autoschedule.block_tree.write import write_tree
from tdsl.autoschedule.problem import Problem
from tdsl.autoschedule.recipes.choices import Unsuited
from tdsl.machine.devices import describe_gpu

i, j, k, b, c = td.vars("i j k b c")


def agrees(f, expected, rng):
    compiled = td.compile(f, target="cuda")
    arrays = [
        rng.integers(-3, 4, [n.value for n in t.shape]).astype(t.dtype.numpy)
        for t in td.Schedule(f).program.inputs
    ]
    got = td.emulate(compiled)(*arrays)
    wide = [a.astype(np.float64) for a in arrays]
    np.testing.assert_array_equal(np.asarray(got, np.float64), expected(*wide))


def counted(f, arch="sm_90a"):
    compiled = td.compile(f, target=td.Target("cuda", arch=arch))
    arrays = [np.zeros([n.value for n in t.shape], t.dtype.numpy) for t in td.Schedule(f).program.inputs]
    return td.count_memory(compiled, *arrays, blocks=4, iterations=3)


def product(m, n, terms, dtype=td.f32, turned=(False, False)):
    x = td.Tensor("x", (terms, m) if turned[0] else (m, terms), dtype)
    w = td.Tensor("w", (n, terms) if turned[1] else (terms, n), dtype)
    f = td.Func("f")
    left, right = x[k, i] if turned[0] else x[i, k], w[j, k] if turned[1] else w[k, j]
    f[i, j] = td.sum(left * right, axis=k)
    return f


@pytest.mark.in_part(8)
@pytest.mark.parametrize("turned", [(False, False), (True, False), (False, True), (True, True)], ids=str)
@pytest.mark.parametrize("sizes", [(1, 1, 1), (67, 131, 37), (64, 96, 40), (130, 3, 200)], ids=str)
def test_products_of_any_sides(rng, sizes, turned):
    agrees(
        product(*sizes, turned=turned),
        lambda x, w: (x.T if turned[0] else x) @ (w.T if turned[1] else w),
        rng,
    )


@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_89", "sm_90a", "sm_100a", "sm_120"])
def test_products_at_edges_have_no_tests_and_no_conflicts(arch):
    f = product(1028, 1028, 260)
    s, machine = td.Schedule(f, target=td.Target("cuda", arch=arch)), describe_gpu(arch)
    p = Problem.of(s[f])
    tree, cost = best_tree(p, machine)
    assert {x.array for x in tree.shared} == {"x", "w"}
    assert cost.shared <= machine.level("shared").bytes
    assert counted(f, arch).conflict_degree == 1
    write_tree(s[f], p, tree)
    text = str(td.compile(s).loops("final"))
    products = [line for line in text.splitlines() if line.count("*") and "f[" in line and "+=" in line]
    assert not any(" if " in line for line in products)


@pytest.mark.parametrize(
    "sizes, arch",
    [((4100, 4100, 4100), "sm_90a"), ((4095, 1000, 77), "sm_80"), ((4095, 1000, 77), "sm_90a")], ids=str
)  # fmt: skip
def test_products_of_aligned_rows_use_their_sectors(sizes, arch):
    assert counted(product(*sizes), arch).sector_efficiency >= 0.9


def test_threads_have_equal_parts_of_short_sides(rng):
    x, y = td.Tensor("x", (300, 20, 20), td.f32), td.Tensor("y", (300, 20, 20), td.f32)
    f = td.einsum("bij,bjk->bik", x, y, name="f")
    tree, _ = best_tree(Problem.of(td.Schedule(f)[f]), describe_gpu("sm_90a"))
    assert all(20 % tree.cut(v).size == 0 for v in ("i", "k"))
    agrees(f, lambda x, y: x @ y, rng)


LAYOUTS = {
    "columns as rows": Shared("x", None, 1, (1, 0), 36),
    "columns as rows, copied in sectors": Shared("x", None, 1, (1, 0), 36, lanes=8),
    "padding after the rows of a thread": Shared("x", None, 1, (0, 1), 5, padded=0, run=4),
    "padded rows": Shared("x", None, 4, (0, 1), 20),
}


@pytest.mark.in_part(6)
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("sizes", [(64, 64, 64), (37, 70, 20), (1, 33, 100)], ids=str)
def test_copies_in_any_layout(rng, sizes, layout):
    m, n, terms = sizes
    x, w, f = td.Tensor("x", (m, terms), td.f32), td.Tensor("w", (terms, n), td.f32), td.Func("f")
    f[i, j] = td.sum(x[i, k] * w[k, j], axis=k)
    s, cuts = td.Schedule(f), (Cut("i", 8, 4), Cut("j", 8, 4))
    copies = (replace(layout, vector=1 if terms % 4 else layout.vector), Shared("w", None, 1, (0, 1)))
    order = (("j", 8), ("i", 8))
    write_tree(s[f], Problem.of(s[f]), BlockTree("f", cuts, order, (("k", 16),), copies, 1, 3))
    arrays = [rng.integers(-3, 4, t).astype(np.float32) for t in ((m, terms), (terms, n))]
    np.testing.assert_array_equal(td.emulate(td.compile(s, target="cuda"))(*arrays), arrays[0] @ arrays[1])


@pytest.mark.in_part(4)
@pytest.mark.parametrize("turned", [(False, False), (True, False), (False, True), (True, True)], ids=str)
@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_90a"])
def test_products_of_even_rows_have_no_conflicts(turned, arch):
    assert counted(product(1024, 1024, 1024, turned=turned), arch).conflict_degree == 1


@pytest.mark.parametrize("subscripts, most", [("ibk,kbj->bij", 1), ("bij,bjk->bik", 1.02)])
@pytest.mark.parametrize("n", [20, 32, 512])
def test_batches_have_few_conflicts(subscripts, most, n):
    terms = subscripts.partition("->")[0].split(",")
    sizes = {"b": 64, "i": n, "j": n, "k": n}
    x, y = (td.Tensor(a, tuple(sizes[v] for v in t), td.f32) for a, t in zip("xy", terms, strict=True))
    assert counted(td.einsum(subscripts, x, y, name="f")).conflict_degree <= most


@pytest.mark.parametrize(
    "subscripts", ["ijk,jc,kc->ic", "ijk,kjc->ijc", "ibk,kbj->bij", "bij,bjk->bik", "bijk,bkc->bijc"]
)
@pytest.mark.parametrize("n", [3, 10, 33])
def test_contractions_of_any_order(rng, subscripts, n):
    terms = subscripts.partition("->")[0].split(",")
    extents = dict(zip("bijkc", (2, n, 7, 5, n + 1), strict=True))
    tensors = [td.Tensor(x, tuple(extents[v] for v in t), td.f32) for x, t in zip("pqr", terms, strict=False)]
    agrees(td.einsum(subscripts, *tensors, name="f"), lambda *a: np.einsum(subscripts, *a), rng)


@pytest.mark.parametrize("dtype", [td.u8, td.f16, td.f32, td.f64])
@pytest.mark.parametrize("shape", [(1, 5), (64, 96), (70, 33)], ids=str)
def test_transposes_of_any_type(rng, dtype, shape):
    x, f = td.Tensor("x", shape, dtype), td.Func("f")
    f[j, i] = x[i, j]
    compiled = td.compile(f, target="cuda")
    given = rng.integers(0, 100, shape).astype(dtype.numpy)
    np.testing.assert_array_equal(td.emulate(compiled)(given), given.T)


@pytest.mark.parametrize("dtype", [td.u8, td.f16, td.f32, td.f64])
def test_transposes_use_whole_sectors_without_conflicts(dtype):
    x, f = td.Tensor("x", (4096, 2048), dtype), td.Func("f")
    f[j, i] = x[i, j]
    counts = counted(f)
    assert counts.sector_efficiency == counts.conflict_degree == 1
    assert max(a.site.width for a in counts.accesses) >= 8


@pytest.mark.parametrize("n", [1, 9, 40])
def test_windows_in_three_dimensions(rng, n):
    u, f = td.Tensor("u", (n + 2, n + 2, n + 2), td.f32), td.Func("f", shape=(n, n, n))
    f[i, j, k] = (
        u[i, j + 1, k + 1] + u[i + 2, j + 1, k + 1] + u[i + 1, j, k + 1] + u[i + 1, j + 2, k + 1]
        + u[i + 1, j + 1, k] + u[i + 1, j + 1, k + 2]
    )  # fmt: skip
    agrees(
        f,
        lambda u: u[:-2, 1:-1, 1:-1] + u[2:, 1:-1, 1:-1] + u[1:-1, :-2, 1:-1] + u[1:-1, 2:, 1:-1]
        + u[1:-1, 1:-1, :-2] + u[1:-1, 1:-1, 2:],
        rng,
    )  # fmt: skip


@pytest.mark.parametrize("width, window", [(200, 64), (33, 2), (17, 17)])
def test_sums_of_windows_are_one_kernel(rng, width, window):
    x, f = td.Tensor("x", (5, width), td.f32), td.Func("f", shape=(5, width - window + 1))
    r = td.range("r", 0, window)
    f[i, j] = td.sum(x[i, j + r], axis=r) * 2
    view = np.lib.stride_tricks.sliding_window_view
    agrees(f, lambda x: view(x, window, 1).sum(-1) * 2, rng)
    assert len(td.compile(f, target="cuda").launch.kernels) == 1


@pytest.mark.parametrize("dtype", [td.f16, td.f32], ids=str)
def test_transposes_of_prime_sides_are_copied_in_vectors(rng, dtype):
    def turned(count):
        x, f = td.Tensor("x", (count, 127, 131), dtype), td.Func("f")
        f[b, j, i] = x[b, i, j]
        return f

    agrees(turned(3), lambda x: x.transpose(0, 2, 1), rng)
    counts = counted(turned(600))
    loads = [a for a in counts.accesses if a.site.array == "x"]
    assert sum(a.useful for a in loads if a.site.width == 16) > 0.9 * sum(a.useful for a in loads)
    assert sum(a.useful for a in loads) > 0.9 * 32 * sum(a.sectors for a in loads)
    assert counts.conflict_degree < 1.2


@pytest.mark.parametrize("arch", ["sm_89", "sm_90a"])
def test_pools_of_odd_rows_fit_in_shared_memory_and_are_copied_in_vectors(rng, arch):
    x, out = td.Tensor("x", (2, 113, 113), td.f32), td.Func("out")
    r, s = td.range("r", 0, 3), td.range("s", 0, 3)
    out[b, i, j] = td.max(x[b, 2 * i + r, 2 * j + s], axis=(r, s))
    out = out.with_shape(2, 56, 56)
    compiled = td.compile(out, target=td.Target("cuda", arch=arch))
    values = rng.integers(-9, 9, (2, 113, 113)).astype(np.float32)
    windows = np.lib.stride_tricks.sliding_window_view(values, (3, 3), (1, 2))[:, ::2, ::2]
    np.testing.assert_array_equal(td.emulate(compiled)(values), windows.max((-1, -2)))
    shared = max(k.used_shared for k in compiled.launch.kernels)
    assert 0 < shared <= describe_gpu(arch).level("shared").bytes


@pytest.mark.parametrize("n", [20, 37])
def test_points_of_stencils_load_their_window_once(rng, n):
    u, f = td.Tensor("u", (n, n, n), td.f32), td.Func("f")
    f[i, j, k] = sum(u[i + p, j + q, k + r] * (p + q + r) for p, q, r in np.ndindex(3, 3, 3))
    f = f.with_shape(n - 2, n - 2, n - 2)
    agrees(
        f,
        lambda u: sum(
            u[p : n - 2 + p, q : n - 2 + q, r : n - 2 + r] * (p + q + r) for p, q, r in np.ndindex(3, 3, 3)
        ),
        rng,
    )
    s = td.Schedule(f)
    tree = BlockTree(
        "f", (Cut("i", 2), Cut("j", 8), Cut("k", 8, 4)), (("k", 8), ("j", 8), ("i", 2)), (),
        (Shared("u", None, 4, (0, 1, 2), 40, window=True, shifted=True),), vector=1,
    )  # fmt: skip
    write_tree(s[f], Problem.of(s[f]), tree)
    compiled = td.compile(s, target="cuda:sm_80")
    values = rng.integers(-3, 4, (n, n, n)).astype(np.float32)
    np.testing.assert_array_equal(
        td.emulate(compiled)(values), td.emulate(td.compile(f, target="cuda"))(values)
    )
    loads = [
        a
        for a in td.count_memory(compiled, values).accesses
        if a.site.kind == "load" and a.site.space == "shared"
    ]
    assert loads and all(a.site.width == 16 for a in loads)


def test_orders_and_updates_have_no_tree():
    x, f, g = td.Tensor("x", (8,), td.f32), td.Func("f"), td.Func("g")
    f[i] = x[i]
    f[0] += 1
    g[()] = td.sum(x[i], axis=i)
    for func in (f, g):
        with pytest.raises(Unsuited):
            Problem.of(td.Schedule(func)[func])


@pytest.mark.parametrize("channels", [64, 96])
@pytest.mark.parametrize("step", [1, 2])
def test_windows_of_each_channel_use_whole_sectors_without_conflicts(channels, step):
    image, w = td.Tensor("x", (8, 58, 58, channels), td.f16), td.Tensor("w", (3, 3, channels), td.f16)
    f, r, s = td.Func("f"), td.range("r", 0, 3), td.range("s", 0, 3)
    f[b, i, j, c] = td.sum(image[b, i * step + r, j * step + s, c] * w[r, s, c], axis=(r, s))
    counts = counted(f.with_shape(8, 56 // step, 56 // step, channels))
    assert counts.sector_efficiency > 0.9
    assert counts.conflict_degree == 1
    assert {a.site.width for a in counts.accesses if a.site.array in ("x", "f")} == {16}


def planes(n, channels, side, filters, step=1, dilation=1, dtype=td.f32):
    """A convolution of images in planes, with windows of 3 x 3."""
    y, x, o = td.vars("y x o")
    r, s, ch = td.range("r", 0, 3), td.range("s", 0, 3), td.range("c", 0, channels)
    image = td.Tensor("x", (n, channels, side, side), dtype)
    w, f = td.Tensor("w", (filters, channels, 3, 3), dtype), td.Func("f")
    at = image[b, ch, y * step + r * dilation, x * step + s * dilation]
    f[b, o, y, x] = td.sum(at * w[o, ch, r, s], axis=(ch, r, s))
    count = (side - 2 * dilation - 1) // step + 1
    return f.with_shape(n, filters, count, count)


@pytest.mark.parametrize("side", [58, 66])
def test_convolutions_of_whole_rows_are_copied_16_bytes_at_a_time_without_conflicts(side):
    counts = counted(planes(8, 32, side, 64))
    assert counts.sector_efficiency > 0.9
    assert counts.conflict_degree == 1
    assert {a.site.width for a in counts.accesses if a.site.array in ("x", "f")} == {16}


@pytest.mark.parametrize("side, step, dilation", [(18, 1, 1), (17, 1, 1), (18, 2, 1), (20, 1, 2), (3, 1, 1)])
@pytest.mark.parametrize("dtype", [td.f32, td.i16])
def test_convolutions_of_planes_with_any_rows(rng, side, step, dilation, dtype):
    def expected(image, w):
        span = 2 * dilation + 1
        windows = np.lib.stride_tricks.sliding_window_view(image, (span, span), (2, 3))
        windows = windows[:, :, ::step, ::step, ::dilation, ::dilation]
        return np.einsum("bcyxrs,ocrs->boyx", windows, w)

    agrees(planes(2, 8, side, 8, step, dilation, dtype), expected, rng)
