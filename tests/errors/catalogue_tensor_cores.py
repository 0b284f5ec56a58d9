"""Products that the tensor cores of a GPU do not make."""

import tdsl as td
from tests.errors.case import Catalogue

CASES = Catalogue()
wrong = CASES.wrong

i, j, k = td.vars("i j k")
MMA = "mma_m16n8k16_f16_f16"


def tiles_of_a_product(rows, terms):
    """Tiles of rows, 8 columns, and terms in fragments; the loop over the rows of a tile."""
    x, y, z = td.Tensor("x", (64, 64), td.f16), td.Tensor("y", (64, 64), td.f16), td.Func("z")
    z[i, j] = td.sum(td.cast(x[i, k], td.f32) * td.cast(y[k, j], td.f32), axis=k)
    s = td.Schedule(z)
    io, jo, i1, j1 = s[z].tile((i, j), (rows, 8))
    ko, k1 = s[z].split(k, terms)
    s[z].reorder(io, jo, ko, i1, j1, k1).bind(io, "blockIdx.y").bind(jo, "blockIdx.x")
    for t in (x, y):
        s.cache_read(t, z, at=ko, scope="fragment")
    return s, z, i1


@wrong(td.ScheduleError, "loop 'i_i' has 12 iterations, 'i' of the instruction 16", hint="split")
def tile_that_does_not_divide_an_instruction():
    s, z, rows = tiles_of_a_product(12, 16)
    s[z].tensorize(rows, MMA)  # here
    td.compile(s, target="cuda").source()


@wrong(td.ScheduleError, "loop 'k_i' has 8 iterations, 'k' of the instruction 16", hint="split")
def terms_that_do_not_divide_an_instruction():
    s, z, rows = tiles_of_a_product(16, 8)
    s[z].tensorize(rows, MMA)  # here
    td.compile(s, target="cuda").source()


@wrong(td.ScheduleError, "loop 'i' has min(32, f_i_o * -32 + 80) iterations", hint="tiles divide")
def tile_at_the_edge_of_an_array():
    a, f = td.Tensor("a", (64, 80), td.f32), td.Func("f")
    f[i, j] = a[j, i]
    s = td.Schedule(f)
    io, jo, ii, _ = s[f].tile((i, j), (32, 32))
    s[f].bind(io, "blockIdx.y").bind(jo, "blockIdx.x")
    out = s.cache_write(f, at=jo, scope="shared")
    s[f].align_storage(1, 36).bind(ii, "threadIdx.x")
    out.tensorize(out.loops[0], "bulk_store_m32n32_f32")  # here
    td.compile(s, target="cuda:sm_90a").source()


@wrong(td.ScheduleError, "no instruction 'mma_m16n8k16_f16'", hint="mean 'mma_m16n8k16_f16_f16'")
def instruction_that_tensor_cores_do_not_have():
    s, z, rows = tiles_of_a_product(16, 16)
    s[z].tensorize(rows, "mma_m16n8k16_f16")  # here


@wrong(
    td.ScheduleError,
    "wgmma needs sm_90a, tcgen05 sm_100a, and the schedule is for sm_80",
    hint="warpgroups= out",
)
def recipe_of_another_architecture():
    x, y, z = td.Tensor("x", (64, 64), td.f16), td.Tensor("y", (64, 64), td.f16), td.Func("z")
    z[i, j] = td.sum(td.cast(x[i, k], td.f32) * td.cast(y[k, j], td.f32), axis=k)
    s = td.Schedule(z, target="cuda:sm_80")
    td.recipes.tensor_core_matmul(s[z], warpgroups=True)  # here


def on_groups_of_warps():
    """A product by wgmma."""
    x, y = td.Tensor("x", (128, 64), td.f16), td.Tensor("y", (64, 64), td.f16)
    c = td.Func("c")
    c[i, j] = td.sum(td.cast(x[i, k], td.f32) * td.cast(y[k, j], td.f32), axis=k)
    s = td.Schedule(c)
    td.recipes.tensor_core_matmul(s[c], block=(128, 64, 32), warp=(64, 64), stages=1, warpgroups=True)
    return s


@wrong(td.TargetError, "needs sm_90a, the target is sm_90", hint='target="cuda:sm_90a"')
def groups_of_warps_without_the_features_of_an_architecture():
    td.compile(on_groups_of_warps(), target="cuda:sm_90").source()  # here


@wrong(td.TargetError, "needs sm_90a, the target is sm_80", hint='target="cuda:sm_90a"')
def groups_of_warps_on_an_older_gpu():
    td.compile(on_groups_of_warps(), target="cuda:sm_80").source()  # here


@wrong(td.TargetError, "'mma_m16n8k16_f16_f16' needs sm_80, the target is sm_75", hint="cuda:sm_80")
def instruction_of_a_later_architecture():
    x, y, z = td.Tensor("x", (64, 64), td.f16), td.Tensor("y", (64, 64), td.f16), td.Func("z")
    z[i, j] = td.sum(td.cast(x[i, k], td.f32) * td.cast(y[k, j], td.f32), axis=k)
    s = td.Schedule(z)
    td.recipes.tensor_core_matmul(s[z], block=(64, 64, 32), warp=(32, 32))
    td.compile(s, target="cuda:sm_75").source()  # here


@wrong(td.ScheduleError, "registers of a thread in kernel 'c_kernel'", "sm_80 has 255", hint="smaller")
def tile_beyond_the_registers_of_a_warp():
    x, y, c = td.Tensor("x", (256, 64), td.f16), td.Tensor("y", (64, 256), td.f16), td.Func("c")
    c[i, j] = td.sum(td.cast(x[i, k], td.f32) * td.cast(y[k, j], td.f32), axis=k)
    s = td.Schedule(c)
    td.recipes.tensor_core_matmul(s[c], block=(128, 128, 16), warp=(128, 128), stages=2)
    td.compile(s, target="cuda:sm_80").source()  # here
