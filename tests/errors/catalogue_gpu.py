"""Schedules that no GPU can run."""

import numpy as np

import tdsl as td
from tests.errors.case import Catalogue

CASES = Catalogue()
wrong = CASES.wrong

i, j, k = td.vars("i j k")
a = td.Tensor("a", (256, 256), td.f32)


def doubled():
    f = td.Func("f")
    f[i, j] = a[i, j] * 2
    return f, td.Schedule(f)


def tiled():
    """Blocks and threads, and a copy of what a block reads."""
    f, s = doubled()
    io, jo, ii, ji = s[f].tile((i, j), (16, 16))
    s[f].bind(io, "blockIdx.y").bind(jo, "blockIdx.x").bind(ii, "threadIdx.y").bind(ji, "threadIdx.x")
    return f, s, ji


@wrong(td.ScheduleError, "bind(\"i\") of 'f'", "no axis 'thread.x'", hint="did you mean 'threadIdx.x'")
def axis_that_no_gpu_has():
    f, s = doubled()
    s[f].bind(i, "thread.x")  # here


@wrong(td.ScheduleError, "has 16 iterations, and a cluster 8 blocks at most", hint="split('i_i', 8)")
def more_blocks_than_run_at_one_time():
    f, s = doubled()
    s[f].split(i, 16)
    s[f].bind("i_i", "clusterCtaIdx.x")  # here


@wrong(td.ScheduleError, "a copy is padded, mapped, filled or gathered", hint="all but one")
def copy_of_two_kinds():
    f, s = doubled()
    s.cache_read(a, f, at=i, padded=True, filled=True)  # here


@wrong(td.ScheduleError, "'f_i' run on threadIdx.x is not known before", hint="bind the inner loop")
def threads_for_a_size_of_the_call():
    t, f = td.Tensor("t", ("N",), td.f32), td.Func("f")
    f[i] = t[i] * 2
    s = td.Schedule(f)
    s[f].bind(i, "threadIdx.x")  # here
    td.compile(s, target="cuda", dynamic="N").source()


@wrong(td.ScheduleError, "loop 'i' runs on threadIdx.x already", hint="fuse 'i' and 'j'")
def two_loops_on_an_axis():
    f, s = doubled()
    s[f].bind(i, "threadIdx.x")
    s[f].bind(j, "threadIdx.x")  # here


@wrong(td.TargetError, "loop 'f_i' is parallel, on threads of a CPU", hint='bind(loop, "blockIdx.x")')
def threads_of_a_cpu_on_a_gpu():
    f, s = doubled()
    s[f].parallel(i)
    td.compile(s, target="cuda").loops("final")  # here


@wrong(td.ScheduleError, "iterations of 'k' add to the same elements of 'f'", hint="rfactor('k')")
def reduction_on_blocks():
    f = td.Func("f")
    f[i] = td.sum(a[i, k], axis=k)
    td.Schedule(f)[f].bind(k, "blockIdx.x")  # here


@wrong(td.ScheduleError, "'f' is not in shared memory", hint='set_scope("shared")')
def cooperation_without_shared_memory():
    f, s = doubled()
    s[f].cooperate()  # here


@wrong(td.ScheduleError, "'f' is not in shared memory", hint='set_scope("shared")')
def swizzle_without_shared_memory():
    f, _ = doubled()
    g = td.Func("g")
    g[i, j] = f[i, j] + 1
    s = td.Schedule(g)
    s[f].swizzle(64)  # here


@wrong(td.ScheduleError, "chunks of 48 bytes cannot be swizzled", hint="32, 64, 128")
def swizzle_of_another_number():
    f, s, ji = tiled()
    s.cache_read(a, f, at=ji, scope="shared").swizzle(48)  # here


@wrong(
    td.ScheduleError,
    "has 1 rows of 40 bytes; a swizzle of 64",
    hint="another tile",
    caret="tile.swizzle(64)",
)
def swizzle_of_odd_rows():
    t, f = td.Tensor("t", (4, 40), td.f32), td.Func("f")
    f[i, j] = t[i, j]
    s = td.Schedule(f)
    block, thread = s[f].split(j, 10)
    s[f].bind(i, "blockIdx.y").bind(block, "blockIdx.x").bind(thread, "threadIdx.x")
    tile = s.cache_read(t, f, at=thread, scope="shared").cooperate()
    tile.swizzle(64)  # here
    td.emulate(td.compile(s, target="cuda"))(np.zeros((4, 40), np.float32))


@wrong(td.ScheduleError, "no loop around 'a_cache' runs on threads", hint="threadIdx.x")
def cooperation_without_threads():
    f, s = doubled()
    s[f].bind(i, "blockIdx.x")
    tile = s.cache_read(a, f, at=i, scope="shared")
    tile.cooperate()  # here


@wrong(
    td.ScheduleError,
    "'a_cache' is computed at 'i_o' of 'f', outside of its loops over threads",
    hint="at='j_i'; the block still shares it",
)
def cooperation_outside_of_the_loops_over_threads():
    f, s = doubled()
    io, jo, ii, ji = s[f].tile((i, j), (16, 16))
    s[f].reorder(jo, io, ii, ji).bind(io, "blockIdx.x").bind(ii, "threadIdx.y")
    s[f].bind(ji, "threadIdx.x")
    s.cache_read(a, f, at=io, scope="shared").cooperate()  # here


@wrong(td.ScheduleError, "number of threads that run 'j' of 'f' is not known", hint="by a constant")
def cooperation_of_an_unknown_number():
    t, f = td.Tensor("t", ("M", "N"), td.f32), td.Func("f")
    f[i, j] = t[i, j]
    s = td.Schedule(f)
    s[f].bind(i, "blockIdx.x").bind(j, "threadIdx.x")
    s.cache_read(t, f, at=j, scope="shared").cooperate()  # here


@wrong(td.ScheduleError, "were changed before", hint="from the first", caret="tile.cooperate(4)")
def cooperation_of_loops_that_were_changed():
    f, s, ji = tiled()
    tile = s.cache_read(a, f, at=ji, scope="shared")
    tile.split("d0", 4)
    tile.cooperate(4)  # here


@wrong(td.ScheduleError, "'j' runs on blockIdx.x, but is nested in another loop", hint="reorder")
def blocks_inside_of_a_loop():
    f, s = doubled()
    s[f].bind(j, "blockIdx.x")  # here
    td.compile(s, target="cuda")


@wrong(td.ScheduleError, "'g' is in shared memory, but not inside of a block", hint="blockIdx.x")
def shared_memory_without_a_block():
    g, f = td.Func("g"), td.Func("f")
    g[i, j] = a[i, j] * 2
    f[i, j] = g[i, j] + 1
    s = td.Schedule(f)
    s[g].compute_root().set_scope("shared")  # here
    td.compile(s, target="cuda")


@wrong(td.ScheduleError, "each thread around it has a 'a_cache' of its own", hint='set_scope("shared")')
def threads_inside_of_a_thread():
    f, s, ji = tiled()
    s.cache_read(a, f, at=ji).bind("d0", "threadIdx.y")  # here
    td.compile(s, target="cuda")


@wrong(td.ScheduleError, "but the producer is computed once for all", hint='set_scope("shared")')
def private_copy_of_what_threads_share():
    g, f = td.Func("g"), td.Func("f")
    g[i, j] = a[i, j] * 2
    f[i, j] = g[i, j] + 1
    s = td.Schedule(f)
    s[f].bind(i, "blockIdx.x").bind(j, "threadIdx.x")
    s[g].compute_at(s[f], j)
    s.cache_write(g, at=i, scope="shared")  # here
    td.compile(s, target="cuda")


@wrong(td.TargetError, "runs on blockIdx.x, and the target cpu is no GPU", hint='target="cuda"')
def blocks_on_a_cpu():
    f, s = doubled()
    s[f].bind(i, "blockIdx.x")
    td.compile(s).loops("final")  # here


@wrong(td.TargetError, "no architecture of cuda 'sm_91'", hint="did you mean 'sm_90'")
def architecture_that_is_not_known():
    td.Target("cuda", arch="sm_91")  # here


@wrong(td.TargetError, "no architecture of cuda ''", hint="sm_")
def architecture_after_a_comma():
    td.Target("cuda", arch="sm_80,")  # here


@wrong(td.TargetError, "no architecture of cpu 'sm_90'", hint="only cuda")
def architecture_of_a_cpu():
    td.Target("cpu", arch="sm_90")  # here


@wrong(td.TypeMismatch, "only what is compiled for a GPU can be emulated", hint='target="cuda"')
def emulation_of_a_cpu():
    f, _ = doubled()
    td.emulate(td.compile(f))  # here


@wrong(td.ScheduleError, "has 4096 threads in a block; sm_80 has 1024 at most", hint="smaller loops")
def too_many_threads():
    f, s = doubled()
    io, jo, ii, ji = s[f].tile((i, j), (64, 64))
    s[f].bind(io, "blockIdx.y").bind(jo, "blockIdx.x").bind(ii, "threadIdx.y").bind(ji, "threadIdx.x")
    td.compile(s, target="cuda:sm_80").source()  # here


@wrong(td.ScheduleError, "asks for 4 blocks", "sm_86 runs 1 of 1024 threads", hint="launch_bounds(1)")
def more_blocks_than_a_multiprocessor_runs():
    f, s = doubled()
    io, jo, ii, ji = s[f].tile((i, j), (32, 32))
    s[f].bind(io, "blockIdx.y").bind(jo, "blockIdx.x").bind(ii, "threadIdx.y").bind(ji, "threadIdx.x")
    s[f].launch_bounds(4)
    td.compile(s, target="cuda:sm_86").source()  # here


@wrong(td.ScheduleError, "has 262144 bytes of shared memory; sm_90a has 232448", hint="tiles smaller")
def shared_memory_beyond_the_limit():
    f, s = doubled()
    s[f].bind(i, "threadIdx.x")
    s[f].reorder(j, i)
    block, _ = s[f].split(j, 256)
    s[f].bind(block, "blockIdx.x")
    s.cache_read(a, f, at=block, scope="shared").bind("d0", "threadIdx.x")
    td.compile(s, target="cuda").source()  # here


def summed():
    """Rows of 256 sums, of tiles that can be fetched ahead."""
    f = td.Func("f")
    f[j] = td.sum(a[k, j], axis=k)
    s = td.Schedule(f)
    ko, ki = s[f].split(k, 16)
    s[f].reorder(j, ko, ki).bind(j, "threadIdx.x")
    s.cache_read(a, f, at=ko, scope="shared").cooperate(4)
    return s


@wrong(td.ScheduleError, "a pipeline has 2 stages or more", hint="pipeline(loop, 2)")
def pipeline_of_one_stage():
    s = summed()
    s["f"].pipeline("k_o", 1)  # here


@wrong(td.ScheduleError, "stages must be an integer, not 2.5", hint="pass an integer")
def pipeline_of_a_part_of_a_stage():
    s = summed()
    s["f"].pipeline("k_o", 2.5)  # here


@wrong(td.ScheduleError, "no stage in shared memory is computed at it", hint='scope="shared"')
def pipeline_without_tiles():
    f, s = doubled()
    _, step = s[f].split(i, 2)
    s[f].pipeline(step, 3)  # here


@wrong(td.ScheduleError, "no stage in shared memory is computed at it", hint="cache_read")
def pipeline_whose_tiles_are_in_registers():
    s = summed()
    s["f"].pipeline("k_o", 3)  # here
    s["a_cache"].set_scope("register")
    td.compile(s, target="cuda").source()


@wrong(td.ScheduleError, "loop 'j' is threadIdx.x already", hint="pipeline a serial loop")
def pipeline_of_threads():
    s = summed()
    s["f"].pipeline(j, 2)  # here


@wrong(td.ScheduleError, "loop 'k_o' is pipelined already", hint="split it before")
def split_of_a_pipelined_loop():
    s = summed()
    s["f"].pipeline("k_o", 2)
    s["f"].split("k_o", 2)  # here


@wrong(td.ScheduleError, "can be prefetched: each depends on", hint="leave the loop serial")
def pipeline_of_what_the_loop_makes():
    g, h, f = td.Func("g"), td.Func("h"), td.Func("f")
    g[j] = a[0, j]
    h[j] = g[j] * 2
    f[j] = td.sum(h[j] * a[k, j], axis=k)
    s = td.Schedule(f)
    s[f].reorder(j, k).bind(j, "threadIdx.x")
    s[g].compute_at(f, k).set_scope("register")
    s[h].compute_at(f, k).set_scope("shared")  # here
    s[f].pipeline(k, 2)
    td.compile(s, target="cuda").source()


@wrong(td.TargetError, "runs on threadIdx.x, and the target cpu is no GPU", hint='target="cuda"')
def pipeline_on_a_cpu():
    s = summed()
    s["f"].pipeline("k_o", 2)
    td.compile(s).loops("final")  # here


@wrong(td.ScheduleError, "has 262144 bytes of shared memory; sm_80 has 166912", hint="fewer stages")
def pipeline_of_too_many_stages():
    s = summed()
    s["f"].pipeline("k_o", 16)
    td.compile(s, target="cuda:sm_80").source()  # here


@wrong(
    td.ScheduleError,
    "MMAs are issued early only where producer warps fetch",
    hint="producer_warps=True",
)
def products_early_without_threads_that_fetch():
    s = summed()
    s["f"].pipeline("k_o", 2, overlap_mma=True)  # here


@wrong(td.ScheduleError, "'a_cache' is not in shared memory", hint='set_scope("shared")')
def copy_as_a_whole_to_registers():
    s = summed()
    s["a_cache"].set_scope("register").bulk_copy()  # here


@wrong(td.ScheduleError, "of 'a_cache' were changed before", hint="none of its own")
def copy_as_a_whole_of_loops_that_were_changed():
    s = summed()
    s["a_cache"].bulk_copy()  # here


@wrong(td.ScheduleError, "'g' is no plain copy", hint="cooperate()")
def copy_as_a_whole_of_what_is_computed():
    g, f = td.Func("g"), td.Func("f")
    g[i, j] = a[i, j] * 2
    f[i, j] = g[i, j] + 1
    s = td.Schedule(f)
    s[f].bind(i, "blockIdx.x").bind(j, "threadIdx.x")
    s[g].compute_at(f, i).set_scope("shared").bulk_copy()  # here


@wrong(td.ScheduleError, "copied as a whole at 'j_i', where nothing waits", hint="pipeline(loop, 2)")
def copy_as_a_whole_outside_of_a_pipeline():
    f, s, ji = tiled()
    s.cache_read(a, f, at=ji, scope="shared").bulk_copy()  # here
    td.compile(s, target="cuda").source()


def whole(t, tile=16):
    """Rows of sums, of tiles that can be copied as a whole."""
    f = td.Func("f")
    f[j] = td.sum(t[k, j], axis=k, dtype=t.dtype)
    s = td.Schedule(f)
    block, lane = s[f].split(j, tile)
    ko, ki = s[f].split(k, 16)
    s[f].reorder(block, lane, ko, ki).bind(block, "blockIdx.x").bind(lane, "threadIdx.x")
    s.cache_read(t, f, at=ko, scope="shared")
    return s


@wrong(td.ScheduleError, "no MMA of loop 'f_k_o' reads tiles only", hint="leave overlap_mma out")
def products_early_of_a_loop_that_has_none():
    t = td.Tensor("t", (64, 256), td.f32)
    s = whole(t, tile=32)
    s["t_cache"].bulk_copy()  # here
    s["f"].pipeline("k_o", 2, producer_warps=True, overlap_mma=True)
    td.compile(s, target="cuda").source()


@wrong(td.ScheduleError, "rows of 't' are 1004 bytes apart", hint="cooperate()")
def copy_as_a_whole_of_rows_that_are_not_aligned():
    t = td.Tensor("t", (64, 251), td.f32)
    s = whole(t)
    s["t_cache"].bulk_copy()  # here
    s["f"].pipeline("k_o", 2)
    td.compile(s, target="cuda").source()


@wrong(td.ScheduleError, "512 elements along an axis; copies by TMA need 256", hint="cooperate()")
def copy_as_a_whole_of_long_rows():
    s = whole(td.Tensor("t", (64, 1024), td.f16), tile=512)
    s["t_cache"].bulk_copy()  # here
    s["f"].pipeline("k_o", 2)
    td.compile(s, target="cuda").source()


@wrong(td.TargetError, "sm_80 has no TMA", hint="cooperate()")
def bulk_copy_on_a_gpu_without_the_unit():
    s = whole(a)
    s["a_cache"].bulk_copy()
    s["f"].pipeline("k_o", 2)
    td.compile(s, target="cuda:sm_80").source()  # here


@wrong(td.ScheduleError, "'a_cache' is copied by the threads that use it", hint="bulk_copy()")
def producer_warp_without_bulk_copies():
    s = summed()
    s["f"].pipeline("k_o", 2, producer_warps=True)  # here


@wrong(td.ScheduleError, "producer warps: 16 threads are no whole warps", hint="multiple of 32")
def producer_warp_with_a_partial_warp():
    s = whole(a)
    s["a_cache"].bulk_copy()  # here
    s["f"].pipeline("k_o", 2, producer_warps=True)
    td.compile(s, target="cuda").source()


@wrong(td.ScheduleError, "'g' has one element", hint="rows of 16 bytes and more")
def bulk_copy_of_one_element():
    g, f = td.Func("g"), td.Func("f")
    g[()] = a[0, 0]
    f[i, j] = a[i, j] * g[()]
    s = td.Schedule(f)
    s[f].bind(i, "blockIdx.x")
    s[g].compute_at(s[f], i).set_scope("shared").bulk_copy()  # here


@wrong(td.ScheduleError, "which needs sizes that are known", hint="leave out dynamic=")
def bulk_copy_of_dynamic_sizes():
    s = whole(td.Tensor("t", ("N", 64), td.f32))
    s["t_cache"].bulk_copy()  # here
    s["f"].pipeline("k_o", 2)
    td.compile(s, target="cuda", dynamic="N").source()


@wrong(
    td.ScheduleError,
    "memory 'g' is private to a thread, but loops over threads use it",
    hint="shared",
)
def registers_for_other_threads():
    g, f = td.Func("g"), td.Func("f")
    g[i, j] = a[i, j] * 2
    f[i, j] = g[i, j] + 1
    s = td.Schedule(f)
    s[f].bind(i, "blockIdx.x").bind(j, "threadIdx.x")
    s[g].compute_at(f, i).set_scope("register")  # here
    td.compile(s, target="cuda").source()


@wrong(td.ScheduleError, "memory 'most' is private to a block", hint="inside of all loops over blocks")
def memory_of_a_block_between_loops_over_blocks():
    most, f = td.Func("most"), td.Func("f")
    most[i] = td.max(a[i, k], axis=k)
    f[i, j] = a[i, j] - most[i]
    s = td.Schedule(f)
    blocks, threads = s[f].split(j, 32)
    s[f].bind(i, "blockIdx.y").bind(blocks, "blockIdx.x").bind(threads, "threadIdx.x")
    s[most].compute_at(s[f], i)  # here
    td.compile(s, target="cuda").source("cuda")


@wrong(td.TypeMismatch, "a schedule, as that of 'f'", hint="td.emulate(td.compile(schedule))")
def emulation_of_a_schedule():
    f, _ = doubled()
    td.emulate(td.Schedule(f, target="cuda"))  # here


@wrong(td.TypeMismatch, "a schedule", hint='td.compile(schedule, target="cuda")')
def emulation_of_a_schedule_for_a_cpu():
    td.emulate(doubled()[1])  # here


@wrong(td.TypeMismatch, "blocks must be a positive integer", hint="blocks=16")
def counting_of_no_blocks():
    f, s = doubled()
    s[f].bind(i, "blockIdx.x")
    td.count_memory(td.compile(s, target="cuda"), blocks=0)  # here
