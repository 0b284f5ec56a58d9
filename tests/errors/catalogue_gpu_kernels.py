"""Choices for the kernels of a GPU that it cannot have: cache policies, instructions, grid barriers."""

import tdsl as td
from tests.codegen.cuda.test_stmatrix import staged
from tests.errors.case import Catalogue
from tests.errors.catalogue_gpu import a, doubled

CASES = Catalogue()
wrong = CASES.wrong

i, j, k = td.vars("i j k")


@wrong(td.ScheduleError, "there is no cache policy 'evict_frist'", hint="did you mean 'evict_first'")
def policy_that_no_gpu_has():
    f, s = doubled()
    s[f].cache_policy(a, "evict_frist")  # here


@wrong(td.ScheduleError, "'f' does not read 'g'", hint="There are: a")
def policy_of_what_is_not_read():
    f, g = td.Func("f"), td.Func("g")
    g[i, j] = a[i, j] + 1
    f[i, j] = a[i, j] * 2
    s = td.Schedule(f, g)
    s[f].cache_policy(g, "evict_last")  # here


@wrong(
    td.TargetError, "sm_75 has no cache policies of loads, which sm_80 has", hint="leave out cache_policy()"
)
def policy_on_a_gpu_without():
    f, s = doubled()
    s[f].bind(i, "blockIdx.x").bind(j, "threadIdx.x").cache_policy(a, "evict_last")
    td.compile(s, target="cuda:sm_75").source()  # here


@wrong(td.TargetError, "'stmatrix_m16n16_f16' needs sm_90, the target is sm_80", hint='target="cuda:sm_90"')
def tiles_stored_at_once_on_a_gpu_without():
    td.compile(staged(), target="cuda:sm_80").loops("final", M=64, K=16, N=64)
    td.compile(staged(), target="cuda:sm_80").source(M=64, K=16, N=64)  # here


@wrong(td.ScheduleError, "stmatrix_m16n16_f32", hint="stmatrix_m16n16_f16")
def tiles_of_a_type_that_is_not_stored_at_once():
    f, s = doubled()
    tile = s[f].tile((i, j), (16, 16))[2]
    s[f].tensorize(tile, "stmatrix_m16n16_f32")  # here


@wrong(
    td.ScheduleError, "wait for each other, and 4096 are too many", "runs 1 of 1024 threads",
    "on each of 82 multiprocessors", hint="82 blocks at most",
)  # fmt: skip
def more_blocks_that_wait_for_each_other_than_run_at_a_time():
    g, f = td.Func("g", shape=(1 << 22,)), td.Func("f", shape=(1 << 22,))
    g[i] = i
    f[i] = g[(1 << 22) - 1 - i]
    s = td.Schedule(f)
    for stage in (s[g].compute_root(), s[f].grid_sync()):
        block, thread = stage.split(i, 1024)
        stage.bind(block, "blockIdx.x").bind(thread, "threadIdx.x")
    td.compile(s, target="cuda:sm_86").source()  # here


@wrong(td.ScheduleError, "only a call tells how many they are", hint="fix the sizes")
def blocks_that_wait_for_each_other_in_open_numbers():
    a, g, f = td.Tensor("a", ("N",), td.f32), td.Func("g"), td.Func("f")
    g[i] = a[i] * 2
    f[i] = g[i] + a[0]
    s = td.Schedule(f)
    for stage in (s[g].compute_root(), s[f].grid_sync()):
        block, thread = stage.split(i, 64)
        stage.bind(block, "blockIdx.x").bind(thread, "threadIdx.x")
    td.compile(s, target="cuda:sm_86", dynamic=["N"]).source()  # here


@wrong(td.ScheduleError, "grid_sync of f: a stage of the kernel has clusters", hint="clusterCtaIdx.x")
def blocks_of_clusters_that_wait_for_all():
    g, f = td.Func("g", shape=(64, 64)), td.Func("f", shape=(64, 64))
    g[i, j] = i + j
    f[i, j] = g[j, i]
    s = td.Schedule(f)
    s[g].compute_root().split(i, 2)
    s[g].bind("i_o", "blockIdx.x").bind("i_i", "clusterCtaIdx.x").bind(j, "threadIdx.x")
    s[f].bind(i, "blockIdx.x").bind(j, "threadIdx.x").grid_sync()  # here
    td.compile(s, target="cuda:sm_90a").source()


def staged_rows():
    """Tiles of 32 x 32 in shared memory, and the stage that copies them."""
    b, f = td.Tensor("b", (64, 64), td.f32), td.Func("f")
    f[i, j] = b[i, j] * 2
    s = td.Schedule(f)
    io, jo, ii, _ = s[f].tile((i, j), (32, 32))
    s[f].bind(io, "blockIdx.y").bind(jo, "blockIdx.x")
    out = s.cache_write(f, at=jo, scope="shared")
    s[f].bind(ii, "threadIdx.x")
    return s, f, out


@wrong(
    td.ScheduleError, "rows of 'f_1' are not known to begin at multiples of 16 bytes", hint="such a multiple"
)
def bulk_stores_of_rows_that_are_not_aligned():
    s, f, out = staged_rows()
    s[f].align_storage(1, 33)
    out.tensorize(out.loops[0], "bulk_store_m32n32_f32")  # here
    td.compile(s, target="cuda").source()


@wrong(td.ScheduleError, "copies rows by TMA, and 'f_1' is swizzled", hint="align_storage()")
def bulk_stores_of_a_swizzled_tile():
    s, f, out = staged_rows()
    s[f].swizzle(128)
    out.tensorize(out.loops[0], "bulk_store_m32n32_f32")  # here
    td.compile(s, target="cuda").source()


def scaled(terms: int = 128, *, shared: int = 32, scale: td.DType = td.u8) -> td.Func:
    """A product of 8-bit floats with scales of rows and columns, each of `shared` terms."""
    x, y = td.Tensor("x", (64, terms), td.f8e4m3), td.Tensor("y", (64, terms), td.f8e4m3)
    sx, sy = (td.Tensor(n, (64, -(-terms // shared)), scale) for n in ("sx", "sy"))
    factors = [td.cast(x[i, k], td.f32), td.cast(y[j, k], td.f32)]
    scales = (td.cast(s, td.f32) for s in (sx[i, k // shared], sy[j, k // shared]))
    factors += [td.exp2(s - 127) if scale == td.u8 else s for s in scales]
    f = td.Func("f")
    f[i, j] = td.sum(factors[0] * factors[1] * factors[2] * factors[3], axis=k)
    return f


@wrong(td.ScheduleError, "block_scale needs sm_120a, and the schedule is for sm_90a", hint="cuda:sm_120a")
def scales_of_an_instruction_on_a_gpu_without():
    f = scaled()
    td.recipes.block_scaled_matmul(td.Schedule(f, target="cuda:sm_90a")[f], block_scale=True)  # here


@wrong(td.ScheduleError, "its 100 terms are no multiple of the 32 that have one scale", hint="multiple of 32")
def terms_that_are_no_whole_blocks():
    f = scaled(100)
    td.recipes.block_scaled_matmul(td.Schedule(f, target="cuda:sm_80")[f])  # here


@wrong(
    td.ScheduleError, "its scales along 'i' are no exponents of 32 terms each in bytes (e8m0)", hint="td.u8"
)
def scales_that_no_instruction_takes():
    f = scaled(scale=td.f16)
    td.recipes.block_scaled_matmul(td.Schedule(f, target="cuda:sm_120a")[f], block_scale=True)  # here


@wrong(td.ScheduleError, "no exponents of 32 terms each", hint="leave block_scale= out")
def scales_of_fewer_terms_than_an_instruction_multiplies():
    f = scaled(shared=16)
    td.recipes.block_scaled_matmul(td.Schedule(f, target="cuda:sm_120a")[f], block_scale=True)  # here


@wrong(td.ScheduleError, "96 terms are no multiple of parts * block[2], which is 64", hint="32")
def a_step_that_does_not_divide_the_terms():
    f = scaled(96)
    td.recipes.block_scaled_matmul(td.Schedule(f, target="cuda:sm_80")[f], block=(64, 64, 64))  # here
