"""Choices for the kernels of a GPU that it cannot have: cache policies."""

import tdsl as td
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
