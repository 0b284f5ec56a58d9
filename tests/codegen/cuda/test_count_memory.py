"""Transactions of a warp's accesses, counted in emulation: as sets of sectors and of words of banks."""

from math import ceil

import numpy as np
import pytest

import tdsl as td
from benchmarks.cuda.cases import ALL
from tdsl.codegen.cuda.sass import disassemble, instruction_mix
from tdsl.cost.sectors import distinct_addresses, sectors, wavefronts
from tests.codegen.cuda import programs

i, j, k = td.vars("i j k")


def only(counts, kind, array):
    """The access of a kind to an array."""
    (access,) = (a for a in counts.accesses if (a.site.kind, a.site.array) == (kind, array))
    return access


def served(addresses, active, width, *, atomic=False):
    """The wavefronts of a warp, and the least, from their definition."""
    total = least = 0
    threads = 32 * 4 // max(width, 4)
    for first in range(0, 32, threads):
        words = [
            a // 4 + n
            for a, on in list(zip(addresses, active, strict=True))[first : first + threads]
            for n in range(max(width // 4, 1))
            if on
        ]
        words = words if atomic else set(words)
        banks = [w % 32 for w in words]
        total += max((banks.count(b) for b in set(banks)), default=0)
        least += bool(banks)
    return total, least


@pytest.mark.parametrize("width", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("atomic", [False, True])
def test_transactions_of_random_addresses_are_those_of_sets(width, atomic):
    rng = np.random.default_rng(width)
    addresses = width * rng.integers(0, 40, (20, 32)) + 256 * rng.integers(0, 3, (20, 1))
    active = rng.random((20, 32)) < rng.random((20, 1))
    touched, different = sectors(addresses, active), distinct_addresses(addresses, active)
    got = wavefronts(addresses, active, width, atomic=atomic)
    for n in range(20):
        on = [int(a) for a, b in zip(addresses[n], active[n], strict=True) if b]
        assert touched[n] == len({a // 32 for a in on})
        assert different[n] == len(set(on))
        assert (got[0][n], got[1][n]) == served(
            addresses[n].tolist(), active[n].tolist(), width, atomic=atomic
        )


@pytest.mark.parametrize("n", [1, 31, 32, 33, 100, 257])
@pytest.mark.parametrize("stride", [1, 2, 3, 8, 33])
def test_only_active_threads_are_counted(n, stride):
    a, f = td.Tensor("a", (n * stride,), td.f32), td.Func("f", shape=(n,))
    f[i] = a[i * stride] * 2
    s = td.Schedule(f)
    block, thread = s[f].split(i, 64)
    s[f].bind(block, "blockIdx.x").bind(thread, "threadIdx.x")
    counts = td.count_memory(td.compile(s, target="cuda"))
    load = only(counts, "load", "a")
    assert load.requests == -(-n // 32)
    assert load.useful == 4 * n
    warps = [range(first, min(first + 32, n)) for first in range(0, n, 32)]
    assert load.sectors == sum(len({4 * stride * t // 32 for t in w}) for w in warps)
    assert load.loc.line == f.definitions[0].loc.line
    store = only(counts, "store", "f")
    assert store.sectors == -(-4 * n // 32)


@pytest.mark.parametrize("size, vector", [(td.f32, 4), (td.f16, 8), (td.f64, 2), (td.i8, 16)])
def test_vectors_are_one_access_of_sixteen_bytes(size, vector):
    a, f = td.Tensor("a", (1024,), size), td.Func("f")
    f[i] = a[i]
    counts = td.count_memory(td.compile(f, target="cuda"))
    assert [x.site.width for x in counts.accesses] == [16, 16]
    assert all(x.requests == 1024 // vector // 32 for x in counts.accesses)
    assert counts.sector_efficiency == 1


def tile_by_columns(width):
    """A transpose by tiles of 32 x 32 in shared memory, in rows of `width` elements."""
    a, f = td.Tensor("a", (64, 96), td.f32), td.Func("f")
    f[i, j] = a[j, i]
    s = td.Schedule(f)
    io, jo, ii, ji = s[f].tile((i, j), (32, 32))
    s[f].bind(io, "blockIdx.y").bind(jo, "blockIdx.x").bind(ii, "threadIdx.y").bind(ji, "threadIdx.x")
    s.cache_read(a, f, at=ji, scope="shared").cooperate().align_storage(1, width)
    return td.compile(s, target="cuda")


@pytest.mark.parametrize("width, degree", [(32, 32), (33, 1), (34, 2), (36, 4)])
def test_columns_of_a_shared_tile_conflict_as_their_pitch_says(width, degree):
    counts = td.count_memory(tile_by_columns(width))
    assert only(counts, "load", "a_cache").conflict_degree == degree
    assert only(counts, "store", "a_cache").conflict_degree == 1


@pytest.mark.parametrize("scope", ["shared", "global"])
def test_consecutive_scalars_of_an_unrolled_tile_are_vectors_in_shared_memory(scope):
    a, b, f = td.Tensor("a", (256, 8), td.f32), td.Func("b"), td.Func("f", shape=(256, 8))
    b[i, j] = a[i, j] + 1
    f[i, j] = b[i, j] * 2
    s = td.Schedule(f)
    block, thread = s[f].split(i, 256)
    s[f].reorder(block, thread, j).bind(block, "blockIdx.x").bind(thread, "threadIdx.x").unroll(j)
    s[b].compute_at(s[f], block)
    s[b].set_scope("shared").bind(i, "threadIdx.x") if scope == "shared" else s[b].inline()
    counts = td.count_memory(td.compile(s, target="cuda"))
    load = only(counts, "load", "b" if scope == "shared" else "a")
    assert (load.site.width, load.requests) == ((16, 2 * 8) if scope == "shared" else (4, 8 * 8))


def test_what_iterations_access_again_is_one_access():
    a, f = td.Tensor("a", (256, 64), td.f32), td.Func("f", shape=(256,))
    r = td.range("r", 0, 64)
    f[i] = td.cast(0, td.f32)
    f[i] += a[i, r]
    s = td.Schedule(f)
    for stage in (s[f], s[f].update(0)):
        block, thread = stage.split(i, 64)
        stage.reorder(block, thread).bind(block, "blockIdx.x").bind(thread, "threadIdx.x")
    for iterations in (None, 5):
        counts = td.count_memory(td.compile(s, target="cuda"), iterations=iterations)
        assert only(counts.of_kernel("f_kernel_1"), "load", "f").requests == 8
        assert only(counts.of_kernel("f_kernel_1"), "store", "f").requests == 8
        assert only(counts, "load", "a").requests == 8 * 64


def histogram(n=512, bins=16):
    a, h = td.Tensor("a", (n,), td.i32), td.Func("h", shape=(bins,))
    r = td.range("r", 0, n)
    h[i] = td.cast(0, td.i32)
    h[td.clip(a[r], 0, bins - 1)] += 1
    return h, r


def test_updates_of_one_word_are_served_one_after_the_other():
    h, r = histogram()
    s = td.Schedule(h)
    update = s[h].update(0)
    update.atomic()
    block, thread = update.split(r, 64)
    update.bind(block, "blockIdx.x").bind(thread, "threadIdx.x")
    same, spread = (
        td.count_memory(td.compile(s, target="cuda"), x.astype(np.int32))
        for x in (np.zeros(512), np.arange(512) % 16)
    )
    assert only(same, "add", "h").sectors == 16
    assert only(spread, "add", "h").sectors == 32


def product(n):
    a, b, c = td.Tensor("a", (n, n), td.f32), td.Tensor("b", (n, n), td.f32), td.Func("c")
    c[i, j] = td.sum(a[i, k] * b[k, j], axis=k)
    return td.compile(c, target="cuda:sm_80")


def test_a_sample_of_equal_blocks_gives_the_exact_counts():
    compiled = product(512)
    exact, sampled = td.count_memory(compiled), td.count_memory(compiled, blocks=2)
    assert exact.accesses == sampled.accesses
    assert exact.samples[0].counted == exact.samples[0].blocks > 2
    assert sampled.samples[0].counted == 2
    assert "estimated from 2" in str(sampled)
    assert "estimated" not in str(exact)


def test_a_sample_of_iterations_is_close_to_the_exact_counts():
    compiled = product(2048)
    every, few = td.count_memory(compiled, blocks=2), td.count_memory(compiled, blocks=2, iterations=2)
    for a, b in zip(every.accesses, few.accesses, strict=True):
        assert b.requests == pytest.approx(a.requests, rel=0.1)  # the last tiles have none to fetch ahead
        assert (a.sector_efficiency, a.conflict_degree) == (b.sector_efficiency, b.conflict_degree)


def test_large_sizes_are_sampled():
    counts = td.count_memory(product(1 << 14), blocks=1, iterations=1)
    assert sum(a.requests for a in counts.accesses) > 1 << 28


def test_tensor_instructions_read_swizzled_tiles_without_conflicts():
    x, y, z = td.Tensor("x", (256, 128), td.f16), td.Tensor("y", (128, 256), td.f16), td.Func("z")
    z[i, j] = td.sum(td.cast(x[i, k], td.f32) * td.cast(y[k, j], td.f32), axis=k)
    s = td.Schedule(z, target="cuda:sm_80")
    td.recipes.tensor_core_matmul(s[z])
    counts = td.count_memory(td.compile(s))
    matrices = [a for a in counts.accesses if a.site.kind.startswith("ldmatrix")]
    assert {a.site.array for a in matrices} == {"x_cache", "y_cache"}
    assert {a.conflict_degree for a in matrices} == {1}


def test_tile_copies_move_whole_sectors():
    s = programs.matmul(td.f32, stages=2, bulk=True)
    counts = td.count_memory(td.compile(s, target="cuda"), M=32, N=64, K=32)
    for x in counts.accesses:
        if x.site.kind == "copy":
            assert x.sector_efficiency == 1
    copied = {n: sum(x.useful for x in counts.accesses if x.site.array == n) for n in "ab"}
    assert copied == {"a": 32 * 32 * 4 * 2, "b": 32 * 64 * 4 * 2}  # for two columns, and two rows, of tiles


def test_blocks_fetch_what_neighbours_share_once():
    a, f = td.Tensor("a", (1026,), td.f32), td.Func("f", shape=(1024,))
    f[i] = a[i] + a[i + 1] + a[i + 2]
    s = td.Schedule(f)
    block, thread = s[f].split(i, 256)
    s[f].bind(block, "blockIdx.x").bind(thread, "threadIdx.x")
    loads = [x for x in td.count_memory(td.compile(s, target="cuda")).accesses if x.site.kind == "load"]
    assert sum(x.sectors for x in loads) == 32 * 4 + 2 * 32 * 5
    assert sum(x.fetched for x in loads) == 4 * 33


@pytest.mark.parametrize("iterations", [None, 4])
def test_iterations_fetch_sectors_once(iterations):
    a, f = td.Tensor("a", (64, 512), td.f32), td.Func("f", shape=(64,))
    f[i] = td.sum(a[i, k], axis=k)
    s = td.Schedule(f)
    s[f].bind(i, "threadIdx.x")
    counts = td.count_memory(td.compile(s, target="cuda"), iterations=iterations)
    load = only(counts, "load", "a")
    assert load.sectors == 64 * 512
    assert load.fetched == pytest.approx(64 * 512 // 8, rel=1.01)


def test_calls_without_arrays_take_sizes():
    a, x, f = td.Tensor("a", ("N",), td.f32), td.Scalar("x", td.f32), td.Func("f")
    f[i] = a[i] * x
    for dynamic in ((), "N"):
        compiled = td.compile(f, target="cuda", dynamic=dynamic)
        assert only(td.count_memory(compiled, N=1000), "load", "a").sectors == 125
        assert only(td.count_memory(compiled, np.zeros(500, np.float32), 2.0), "load", "a").sectors == 63
    assert str(td.count_memory(td.compile(f, target="cuda"), N=0)) == "f_kernel: no kernels"
    with pytest.raises(td.ShapeError, match="not known yet: N"):
        td.count_memory(td.compile(f, target="cuda"))


def test_indices_that_are_data_are_those_of_the_arrays():
    table, at, f = td.Tensor("table", (4096,), td.f32), td.Tensor("at", (64,), td.i32), td.Func("f")
    f[i] = table[td.clip(at[i], 0, 4095)]
    compiled = td.compile(f, target="cuda")
    arrays = np.zeros(4096, np.float32), np.arange(64, dtype=np.int32) * 8
    assert only(td.count_memory(compiled, *arrays), "load", "table").sectors == 64
    assert only(td.count_memory(compiled), "load", "table").sectors == 1


@pytest.mark.parametrize("scope", ["root", "shared"])
def test_indices_that_are_computed_in_memory_are_followed(scope):
    at, table = td.Tensor("at", (64,), td.i32), td.Tensor("table", (512,), td.f32)
    far, f = td.Func("far"), td.Func("f")
    far[i] = td.clip(at[i] * 8, 0, 511)
    f[i] = table[far[i]]
    s = td.Schedule(f)
    if scope == "root":
        s[f].bind(i, "threadIdx.x")
        s[far].compute_root().bind(i, "threadIdx.x")
    else:
        block, thread = s[f].split(i, 64)
        s[f].bind(block, "blockIdx.x").bind(thread, "threadIdx.x")
        s[far].compute_at(s[f], thread).set_scope("shared").cooperate()
    arrays = np.arange(64, dtype=np.int32), np.zeros(512, np.float32)
    counts = td.count_memory(td.compile(s, target="cuda"), *arrays)
    assert only(counts, "load", "table").sectors == 64


@pytest.mark.parametrize("name", ["transpose", "five-points", "row-sums", "softmax-32768x1024", "gelu-bias"])
def test_a_warp_executes_the_accesses_that_are_in_the_machine_code(name):
    pytest.importorskip("tvm", reason='pip install "tdsl[cuda]"')
    case = ALL[name]
    rows = {"N": 512} if name == "row-sums" else {}  # whose loop is unrolled
    compiled = case.compiled({**case.sizes, **rows})
    (mix,), (kernel,) = instruction_mix(disassemble(compiled.launch.code)), compiled.launch.kernels
    names = {"loadglobal": "LDG", "storeglobal": "STG", "loadshared": "LDS", "storeshared": "STS"}
    counted: dict[str, float] = {}
    for a in td.count_memory(compiled, blocks=4).accesses:
        accesses = f"{names[a.site.kind + a.site.space]}.{a.site.width}"
        warps = np.prod(kernel.grid) * np.prod(kernel.block) // 32
        counted[accesses] = counted.get(accesses, 0) + a.requests / warps
    whole = {x: ceil(n) for x, n in counted.items() if n >= 1}  # not what only the first threads do
    code = {x: n for x, n in mix.all if x in whole}
    if name == "five-points":  # of the vectors of a window, the assembler loads the elements that are used
        used = sum(int(x[4:]) * n for x, n in mix.all if x.startswith("LDS"))
        assert 0.7 * 16 * whole["LDS.16"] < used <= 16 * whole.pop("LDS.16")
        del code["LDS.16"]
    assert whole == code
