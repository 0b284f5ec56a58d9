"""Emitted CUDA text, run on the CPU, computes what programs mean."""

import re
from dataclasses import replace

import numpy as np
import pytest

import tdsl as td
from tdsl.codegen.gpu.launches import Launches, launches_of
from tdsl.lang.interp import interpret
from tests.codegen.cuda import programs
from tests.codegen.cuda.test_tiles import batches

pytest.importorskip("tvm", reason='pip install "tdsl[cuda]"')
from tests.autoschedule.block_tree.test_reductions import columns
from tests.autoschedule.recipes.test_block_conv import PROGRAMS as CONVOLUTIONS
from tests.autoschedule.recipes.test_block_rows import scheduled
from tests.autoschedule.recipes.test_blocks import dense_layer, layered
from tests.codegen.cuda.shim import HAS_COMPILER, run_text  # imports tvm
from tests.fuzz.cases import Meaning
from tests.fuzz.gpu import outcome_of
from tests.tilegraph.test_windows_on_gpus import PROGRAMS as WINDOWS

pytestmark = pytest.mark.skipif(not HAS_COMPILER, reason="g++ runs the text")

i, j, k = td.vars("i j k")


def numbers(*shape: int, dtype=np.int32):
    return (np.arange(np.prod(shape)) * 7 % 11 - 3).reshape(shape).astype(dtype)


def check(s: td.Schedule, folder, **arrays) -> Launches:
    compiled = td.compile(s, target="cuda")
    sizes = {n: x for a in s.program.inputs for n, x in _sizes(a, arrays[a.name])}
    launches = launches_of(programs.kernel_of(s, **sizes))
    want = interpret(s.program, arrays)
    outputs = [np.zeros_like(x) for x in want]
    names = [a.name for a in compiled.signature.outputs]
    given = {**arrays, **dict(zip(names, outputs, strict=True))}
    run_text(launches, [given[p.name] for p in launches.kernel.params], folder)
    for got, expected in zip(outputs, want, strict=True):
        if expected.dtype.kind in "biu":
            np.testing.assert_array_equal(got, expected, strict=True)
        else:  # a rounding of each of a few functions
            with np.errstate(invalid="ignore"):  # NaN of 8 bits
                wide = [np.asarray(x, np.float64) for x in (got, expected)]
            small = 2.0 ** -(8 if expected.dtype.itemsize == 2 else 20)
            np.testing.assert_allclose(*wide, rtol=small, atol=small)
    return launches


def _sizes(a, array):
    named = ((getattr(e, "name", None), n) for e, n in zip(a.shape, array.shape, strict=True))
    return [(name, n) for name, n in named if name is not None]


@pytest.mark.parametrize("m, n, p", [(32, 16, 64), (17, 9, 33)])
def test_a_matmul_through_shared_memory(m, n, p, tmp_path):
    check(programs.matmul(), tmp_path, a=numbers(m, n), b=numbers(n, p))


@pytest.mark.parametrize("stages", [2, 3, 4])
@pytest.mark.parametrize("m, n, p", [(32, 64, 64), (17, 9, 33), (16, 1, 1)])
def test_a_pipelined_matmul(m, n, p, stages, tmp_path):
    check(programs.matmul(stages=stages), tmp_path, a=numbers(m, n), b=numbers(n, p))


@pytest.mark.parametrize("stages", [2, 3])
@pytest.mark.parametrize("m, n, p", [(32, 64, 64), (17, 12, 36), (5, 4, 4)])
def test_tiles_copied_as_a_whole(m, n, p, stages, tmp_path):
    s = programs.matmul(td.f32, stages=stages, bulk=True)
    check(s, tmp_path, a=numbers(m, n, dtype=np.float32), b=numbers(n, p, dtype=np.float32))


@pytest.mark.parametrize("columns, boxes", [(64, 64), (128, 64)])  # one panel, two
def test_tiles_copied_as_a_whole_to_swizzled_memory(columns, boxes, tmp_path):
    a, b, c = td.Tensor("a", (40, 72), td.f16), td.Tensor("b", (72, 136), td.f16), td.Func("c")
    c[i, j] = td.sum(td.cast(a[i, k], td.f32) * td.cast(b[k, j], td.f32), axis=k)
    s = td.Schedule(c)
    io, jo, ii, ji = s[c].tile((i, j), (8, columns))
    ko, ki = s[c].split(k, 64)
    s[c].reorder(io, jo, ii, ji, ko, ki).bind(io, "blockIdx.x").bind(jo, "blockIdx.y")
    s[c].bind(ii, "threadIdx.y").bind(ji, "threadIdx.x")
    for t in (a, b):
        s.cache_read(t, c, at=ko, scope="shared").swizzle(128).bulk_copy()
    s[c].pipeline(ko, 2)
    launches = check(s, tmp_path, a=numbers(40, 72, dtype=np.float16), b=numbers(72, 136, dtype=np.float16))
    assert [(x.swizzle, x.box[-1]) for x in launches.launches[0].maps] == [(128, 64), (128, boxes)]


def test_tiles_copied_as_a_whole_in_a_loop(tmp_path):
    a, b = (numbers(*shape, dtype=np.float32) for shape in ((3, 20, 24), (3, 24, 40)))
    check(batches(), tmp_path, a=a, b=b)


@pytest.mark.parametrize("stages", [2, 3])
@pytest.mark.parametrize("m, n, p", [(32, 64, 64), (17, 12, 36)])
def test_tiles_fetched_by_a_producer_warp(m, n, p, stages, tmp_path):
    s = programs.matmul(td.f32, stages=stages, bulk=True, producer=True)
    check(s, tmp_path, a=numbers(m, n, dtype=np.float32), b=numbers(n, p, dtype=np.float32))


@pytest.mark.parametrize(
    "pattern, replacement",
    [
        (r"(tdsl_mbarrier_init\(.*used.*), 2u\)", r"\1, 3u)"),
        (r"tdsl_mbarrier_arrive_warp\(&c_k_o_used.*\);", ""),
    ],
    ids=["more arrivals", "no arrival"],
)
def test_planted_bugs_of_rings_are_detected(pattern, replacement, tmp_path):
    s = programs.matmul(stages=3, bulk=True, producer=True)
    launches = launches_of(programs.kernel_of(s, M=32, K=64, N=64))

    def change(text: str) -> str:
        assert re.search(pattern, text)
        return re.sub(pattern, replacement, text)

    a, b, c = numbers(32, 64), numbers(64, 64), np.zeros((32, 64), np.int64)
    with pytest.raises(AssertionError, match="threads wait for ever"):
        run_text(launches, [a, b, c], tmp_path, change)


ENDLESS, TOO_MANY = "threads wait for ever", "more threads come to a phase"
BUGS = {
    "arrivals": (r"(tdsl_mbarrier_init\(.*), 2u\)", r"\1, 3u)", ENDLESS),
    "bytes": (r"\b512u\)", "516u)", ENDLESS),
    "no arrival": (r"tdsl_mbarrier_arrive(?:_expect)?\(&.*\);", "", ENDLESS),
    "no wait": (r"tdsl_mbarrier_wait\(&.*\);", "", TOO_MANY),
    "weak phase": (
        r"(tdsl_mbarrier_wait\(.*), \(unsigned int\)(.*)\);",
        r"\1, 1 - (unsigned int)\2);",
        TOO_MANY,
    ),
    "place": (r"(tdsl_tma_load_2d\(\s*&a_cache.*[^}]*) \+ 16,", r"\1 + 17,", ""),
}


@pytest.mark.parametrize("bug", BUGS)
def test_planted_bugs_of_tiles_are_detected(bug, tmp_path):
    pattern, replacement, says = BUGS[bug]
    kernel = programs.kernel_of(programs.matmul(stages=3, bulk=True), M=32, K=64, N=64)
    a, b, c = numbers(32, 64), numbers(64, 64), np.zeros((32, 64), np.int64)

    def change(text: str) -> str:
        assert re.search(pattern, text)
        return re.sub(pattern, replacement, text)

    if says:
        with pytest.raises(AssertionError, match=says):
            run_text(launches_of(kernel), [a, b, c], tmp_path, change)
    else:
        run_text(launches_of(kernel), [a, b, c], tmp_path, change)
        assert (c != a @ b).any()


def test_a_large_ring_of_tiles(tmp_path):
    a, b = (numbers(*shape, dtype=np.float32) for shape in ((32, 300), (300, 64)))
    launches = check(programs.matmul(td.f32, stages=34), tmp_path, a=a, b=b)
    assert launches.launches[0].shared > 48 << 10


def test_bands_with_zeros_beyond_the_edges(tmp_path):
    check(programs.cross(), tmp_path, a=numbers(30, 70, dtype=np.float32))


@pytest.mark.parametrize(
    "change",
    [
        lambda text: re.sub(r"\btdsl_cp_async_wait<1>\(\)", "tdsl_cp_async_wait<2>()", text),
        lambda text: re.sub(r"\btdsl_cp_async_wait<1>\(\);", "", text),
        lambda text: re.sub(r"\btdsl_cp_async_commit\(\);", "", text),
        lambda text: re.sub(r"\+ 2\) % 3", "+ 1) % 3", text),
    ],
    ids=["weak wait", "no wait", "no commit", "wrong slot"],
)
def test_planted_bugs_of_pipelines_give_wrong_results(change, tmp_path):
    launches = launches_of(programs.kernel_of(programs.matmul(stages=3), M=32, K=64, N=64))
    a, b, c = numbers(32, 64), numbers(64, 64), np.zeros((32, 64), np.int64)
    run_text(launches, [a, b, c], tmp_path)
    np.testing.assert_array_equal(c, a @ b)
    (tmp_path / "broken").mkdir()
    run_text(launches, [a, b, c], tmp_path / "broken", change)
    assert (c != a @ b).any()


@pytest.mark.parametrize("dtype", [td.f16, td.bf16, td.f8e5m2, td.u8])
def test_tiles_of_narrow_types(dtype, tmp_path):
    a, b = (numbers(*shape).astype(dtype.numpy) for shape in ((20, 16), (16, 40)))
    check(programs.matmul(dtype), tmp_path, a=a, b=b)


@pytest.mark.parametrize("n", [1024, 1023])
def test_vectors(n, tmp_path):
    check(programs.scaled(), tmp_path, a=numbers(n, dtype=np.float32))


def test_a_transpose(tmp_path):
    check(programs.transposed(), tmp_path, a=numbers(33, 18))


def test_a_permutation_of_halves(tmp_path):
    a, f = td.Tensor("a", ("M", 2, "N"), td.f16), td.Func("f")
    f[i, j, k] = a[k, i, j]
    s = td.Schedule(f)
    assert td.recipes.block_transpose(s[f])
    check(s, tmp_path, a=numbers(40, 2, 33, dtype=np.float16))


def test_parts_of_sums(tmp_path):
    check(programs.row_sums(), tmp_path, a=numbers(5, 33))


@pytest.mark.parametrize("dtype", [td.i8, td.f16, td.f32, td.i64], ids=str)
@pytest.mark.parametrize("threads, rows", [(8, 3), (32, 2), (128, 1)])
def test_sums_of_threads(threads, rows, dtype, tmp_path):
    a, total, f = td.Tensor("a", ("M", "N"), dtype), td.Func("total"), td.Func("f")
    total[i] = td.max(a[i, k], axis=k)
    f[i, j] = a[i, j] - total[i]
    s = td.Schedule(f)
    block, row = s[f].split(i, rows)
    _, thread = s[f].split(j, threads)
    s[f].bind(block, "blockIdx.x").bind(row, "threadIdx.y").bind(thread, "threadIdx.x")
    s[total].compute_at(s[f], row)
    _, part = s[total].split(k, threads)
    s[total].bind(part, "threadIdx.x")
    check(s, tmp_path, a=numbers(5, 70, dtype=dtype.numpy))


@pytest.mark.parametrize("rows, length", [(5, 100), (2, 1100)])
def test_rows_in_registers(rows, length, tmp_path):
    s, _ = scheduled("softmax", rows, length)
    check(s, tmp_path, x=numbers(rows, length, dtype=np.float32))


RECIPES = {
    "columns": lambda: (columns(300, 40), "block_sums", {"parts": 2}),
    "windows": lambda: (WINDOWS["heat"](33, 60), "block_tree", {}),
    "convolution": lambda: (CONVOLUTIONS["last"](1, 5, 20, 6, 20), "block_conv", {}),
    "layer": lambda: (dense_layer(70, 20, 65)[1], "block_tiles", {}),
    "layer in parts": lambda: (dense_layer(70, 20, 65)[1], "block_tiles", {"parts": 2}),
}


@pytest.mark.parametrize("name", RECIPES)
def test_kernels_of_recipes(name, tmp_path):
    f, recipe, choices = RECIPES[name]()
    s = td.Schedule(f)
    assert getattr(td.recipes, recipe)(s["c" if recipe == "block_tiles" else f], **choices)
    shapes = {t.name: [e.value for e in t.shape] for t in s.program.inputs}
    check(s, tmp_path, **{n: numbers(*x, dtype=np.float32) for n, x in shapes.items()})


def test_large_shared_memory_is_one_memory_of_parts(tmp_path):
    a, b, f = td.Tensor("a", (64, 128), td.f32), td.Tensor("b", (64, 128), td.f32), td.Func("f")
    f[i, j] = a[i, 127 - j] + b[63 - i, j]
    s = td.Schedule(f)
    _, lane = s[f].split(j, 32)
    s[f].bind(i, "threadIdx.y").bind(lane, "threadIdx.x")
    row, inner = s[f].loops[0], s[f].loops[1]
    for t in (a, b):
        s.cache_read(t, f, at=row, scope="shared")
    assert inner.name == "j_o"
    launches = check(s, tmp_path, a=numbers(64, 128, dtype=np.float32), b=numbers(64, 128, dtype=np.float32))
    assert launches.launches[0].shared == 2 * 64 * 128 * 4


def updated(op: str, a: td.Tensor, dtype: td.DType):
    f = td.Func(op, shape=(5,))
    x = td.range("x", 0, a.shape[0])
    f[i] = td.cast(1, dtype)
    at = td.clip(td.cast(a[x], td.i64), 0, 4)
    if op == "add":
        f[at] += td.cast(2, dtype)
    elif op == "mul":
        f[at] *= td.cast(-1, dtype)
    elif op == "min":
        f[at] = td.minimum(f[at], a[x])
    else:
        f[at] = td.maximum(f[at], a[x])
    return f


@pytest.mark.parametrize("dtype", [td.i32, td.i64, td.f32, td.f64], ids=str)
def test_atomic_updates(dtype, tmp_path):
    a = td.Tensor("a", ("N",), dtype)
    funcs = [updated(op, a, dtype) for op in ("add", "mul", "min", "max")]
    s = td.Schedule(*funcs)
    for f in funcs:
        block, thread = s[f].update().split("x", 32)
        s[f].update().atomic().bind(block, "blockIdx.x").bind(thread, "threadIdx.x")
    check(s, tmp_path, a=numbers(200, dtype=dtype.numpy))


def test_scalars_and_memory_between_kernels(tmp_path):
    a, g, f = td.Tensor("a", ("N",), td.i32), td.Func("g"), td.Func("f")
    g[i] = a[i] * 3
    f[i] = g[i] + g[i + 1]
    s = td.Schedule(f)
    for stage in (s[g].compute_root(), s[f]):
        block, thread = stage.split(i, 8)
        stage.bind(block, "blockIdx.x").bind(thread, "threadIdx.x")
    assert len(check(s, tmp_path, a=numbers(30)).launches) == 2


X = np.float32([0.5, -0.5, 2.0, -3.25, 0.0, -0.0, 100.0, np.inf, -np.inf, np.nan, 1e-3, 7.0])
N = np.int32([0, 1, -1, 7, -7, 127, -128, 300, -300, 2**31 - 1, -(2**31), 12345])

FLOATS = {
    "arithmetic": lambda x: x * x + x / 3 - 1,
    "functions": lambda x: td.exp(td.minimum(x, 3)) + td.tanh(x) + td.erf(x) + td.sigmoid(x),
    "tests": lambda x: td.where(td.isnan(x), 1, 0) + td.where(td.isinf(x), 2, 0),
    "extremes": lambda x: td.minimum(td.maximum(x, -1), 3),
    "divisions": lambda x: x // 2 + x % 3 + x % -3,
    "rounding": lambda x: td.floor(x) + td.round(x) * 2 + td.trunc(x) * 3 + td.ceil(x),
    "halves": lambda x: td.cast(td.cast(x, td.f16) * td.cast(x, td.f16) + 1, td.f32),
    "brain": lambda x: td.cast(td.cast(x, td.bf16) * 3 + 1, td.f32),
    "integers": lambda x: td.cast(x, td.u8),
    "words": lambda x: td.cast(x, td.i32),
    "bits": lambda x: td.reinterpret(x, td.i32),
    "signs": lambda x: td.copysign(x, -1) + td.absolute(x),
}
INTEGERS = {
    "wrapping": lambda n: n * 3 + (n - 5) * n - (-n),
    "divisions": lambda n: n // 3 + n // -7 + n % 5 + n % -5,
    "zero": lambda n: n // (n - n) + n % (n - n),
    "shifts": lambda n: (n << 3) + (n >> 2) + (n << 40) + (n >> 40),
    "words": lambda n: (n & 12) | (n ^ 3) + ~n,
    "counts": lambda n: td.popcount(n) + td.count_leading_zeros(n) * 3 + td.count_trailing_zeros(n),
    "powers": lambda n: n**3,
    "narrow": lambda n: td.cast(n, td.i8) + td.cast(n, td.u8),
    "clipped": lambda n: td.saturating_cast(n, td.i8),
    "wide": lambda n: td.cast(n, td.i64) * td.cast(n, td.i64),
    "sizes": lambda n: td.absolute(n) + td.minimum(n, 3) - td.maximum(n, -3),
    "unsigned": lambda n: td.cast(n, td.u64) // td.cast(2**63 + 7, td.u64) + td.cast(-3, td.u64),
    "chance": lambda n: td.random(3, td.cast(n, td.i64)),
}


@pytest.mark.parametrize("table", [FLOATS, INTEGERS], ids=["floats", "integers"])
def test_arithmetic_is_that_of_every_target(table, tmp_path):
    data = X if table is FLOATS else N
    a = td.Tensor("a", (12,), td.f32 if table is FLOATS else td.i32)
    funcs = [td.Func(name) for name in table]
    for f, expression in zip(funcs, table.values(), strict=True):
        f[i] = expression(a[i])
    s = td.Schedule(*funcs)
    for f in funcs:
        s[f].bind(i, "threadIdx.x")
    check(s, tmp_path, a=data)


def test_every_float_of_8_bits(tmp_path):
    x = td.Tensor("x", (256,), td.u8)
    funcs = [
        td.Func(name) for name in ("wide", "wider", "back", "across", "least", "twice", "half", "halves")
    ]
    for t, (wide, back, more, half) in zip((td.f8e4m3, td.f8e5m2), (funcs[::2], funcs[1::2]), strict=True):
        y = td.reinterpret(x[i], t)
        wide[i] = td.cast(y, td.f32)
        # between neighbours, at them and a little beside, and too large
        scaled = td.cast(y, td.f32) * (1 + td.cast((i * 5) % 64, td.f32) / 256)
        back[i] = td.cast(scaled, t)
        more[i] = td.minimum(y * 2, 1) + td.absolute(y)
        half[i] = td.cast(y, td.f16)
    s = td.Schedule(*funcs)
    for f in funcs:
        s[f].bind(i, "threadIdx.x")
    check(s, tmp_path, x=np.arange(256, dtype=np.uint8))


@pytest.mark.parametrize("first", [0, 6])
def test_texts_of_random_schedules_compute_what_programs_mean(first):
    for program in range(first, first + 6):
        outcome = outcome_of(0, program, 2, Meaning(), text=True)
        assert not outcome.fault, f"python -m tests.fuzz.gpu --text --only {program}:2"


def test_an_axis_on_which_one_thread_runs(tmp_path):
    a, f = td.Tensor("a", (4,), td.i32), td.Func("f")
    f[i] = a[i] + 1
    s = td.Schedule(f)
    block, rest = s[f].split(i, 8)
    s[f].bind(block, "blockIdx.y")
    _, one = s[f].split(rest, 1)
    s[f].bind(one, "threadIdx.z")
    check(s, tmp_path, a=numbers(4))


def test_a_barrier_that_not_all_threads_reach_is_detected(tmp_path):
    kernel = programs.kernel_of(programs.matmul(), M=16, K=8, N=32)
    lines = launches_of(kernel)
    broken = replace(lines, launches=tuple(replace(x, block=(9, 8, 1)) for x in lines.launches))
    arrays = numbers(16, 8), numbers(8, 32), np.zeros((16, 32), np.int32)
    with pytest.raises(AssertionError, match="wait at a barrier"):
        run_text(broken, arrays, tmp_path)


@pytest.mark.parametrize("what, ulp", [(lambda x: td.exp(x / 4), 3), (lambda x: x / 3, 2)])
def test_fast_arithmetic_is_as_exact_as_it_says(what, ulp, tmp_path):
    a, f = td.Tensor("a", (512,), td.f32), td.Func("f")
    f[i] = what(a[i])
    s = td.Schedule(td.fast_math(f))
    s[f].bind(i, "threadIdx.x")
    x = np.linspace(-320, 320, 512, dtype=np.float32)
    x[:3] = -np.inf, np.inf, np.nan
    got = np.zeros(512, np.float32)
    run_text(launches_of(programs.kernel_of(s)), [x, got], tmp_path)
    exact = np.exp(x.astype(np.float64) / 4) if ulp == 3 else x.astype(np.float64) / 3
    np.testing.assert_array_equal(got[:3], exact[:3])
    error = np.abs(got[3:] - exact[3:]) / np.spacing(np.abs(exact[3:]).astype(np.float32))
    assert (error < ulp + 1.2 * np.abs(x[3:] / 4)).all()


@pytest.mark.parametrize("scale", [1.0, 0.125, 0.3])
@pytest.mark.parametrize("turned", [False, True])
def test_the_power_of_a_difference_is_as_exact_as_it_says(scale, turned, tmp_path):
    """One fused multiply-add makes its exponent, also where the first term is the same for all."""
    a, b, f = td.Tensor("a", (512,), td.f32), td.Tensor("b", (512,), td.f32), td.Func("f")
    f[i] = td.exp(b[i] - a[i] * scale) if turned else td.exp(a[i] * scale - b[i])
    s = td.Schedule(td.fast_math(f))
    s[f].bind(i, "threadIdx.x")
    rng = np.random.default_rng(0)
    x, y = (rng.uniform(-40, 40, 512).astype(np.float32) for _ in "xy")
    x[0] = np.inf if turned else -np.inf
    got = np.zeros(512, np.float32)
    launches = launches_of(programs.kernel_of(s))
    run_text(launches, [x, y, got], tmp_path)
    first, last = x.astype(np.float64) * scale, y.astype(np.float64)
    exact = np.exp(last - first if turned else first - last)
    assert got[0] == 0
    kept = exact > 2.0**-126  # smaller results are 0
    error = np.abs(got - exact) / np.spacing(exact.astype(np.float32))
    assert (error < 2 + 2.4 * (np.abs(first) + np.abs(last)))[kept].all()


@pytest.mark.parametrize("shape", [(16, 3), (5, 8, 33)])
def test_rows_without_gaps_are_read_as_one(shape, tmp_path):
    f = layered(shape)
    s = td.Schedule(f)
    assert td.recipes.elements(s[f]).vector == 8
    sizes = {"a": shape, "rows": shape[:1], "columns": shape[-1:]}
    check(s, tmp_path, **{n: numbers(*x, dtype=np.float16) for n, x in sizes.items()})


@pytest.mark.parametrize("length", [3, 8, 17])
def test_short_rows_share_a_warp(length, tmp_path):
    s, plan = scheduled("softmax", 70, length)
    assert plan.threads < 32 or length == 17
    check(s, tmp_path, x=numbers(70, length, dtype=np.float32))
