"""Choices for the kernels of a GPU that it cannot have: cache policies, instructions."""

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
