"""Wrong uses of recipes."""

import tdsl as td
from tests.errors.case import Catalogue

CASES = Catalogue()
wrong = CASES.wrong

i, j, k = td.vars("i j k")
a, b = td.Tensor("a", (256, 256), td.f32), td.Tensor("b", (256, 256), td.f32)


def product():
    """The stage of a product of matrices."""
    c = td.Func("c")
    c[i, j] = td.sum(a[i, k] * b[k, j], axis=k)
    return td.Schedule(c)["c"]


@wrong(td.ScheduleError, "no choice 'row'", hint="did you mean 'rows'")
def unknown_choice():
    td.recipes.matmul(product(), row=6)  # here


@wrong(td.ScheduleError, "rows must be an integer, not 'many'", hint="the choices are: lanes, rows")
def choice_of_another_type():
    td.recipes.matmul(product(), rows="many")  # here


@wrong(td.ScheduleError, "rows must be at least 1, not -1", hint="the choices are")
def negative_choice():
    td.recipes.matmul(product(), rows=-1)  # here


@wrong(td.ScheduleError, "panel cannot be 'maybe'", hint="'no', 'block', 'root'")
def choice_that_there_is_not():
    td.recipes.matmul(product(), panel="maybe")  # here


@wrong(td.ScheduleError, "dot cannot be 'vnni'", hint="dot_bf16")
def instruction_that_there_is_not():
    td.recipes.matmul(product(), dot="vnni")  # here


@wrong(td.ScheduleError, "no operand alone moves along 'k'", hint="default schedule")
def vectors_along_the_terms():
    td.recipes.matmul(product(), along=k)  # here


@wrong(td.TypeMismatch, "a loop is named by a string", hint="one of the loops: i, j, k")
def vectors_along_a_number():
    td.recipes.matmul(product(), along=1)  # here


@wrong(td.TypeMismatch, "machine=", "'zen'", hint="leave it out")
def machine_by_name():
    td.recipes.matmul(product(), machine="zen")  # here


@wrong(td.TypeMismatch, "a stage of a schedule, not Schedule", hint="td.recipes.matmul(s[f])")
def recipe_for_a_schedule():
    td.recipes.matmul(product().schedule)  # here


@wrong(td.TypeMismatch, "missing a required argument: 'stage'", hint="elements(stage, *, threads=256")
def recipe_for_nothing():
    td.recipes.elements()  # here


@wrong(td.TypeMismatch, "unexpected keyword argument 'thread'", hint="elements(stage, *, threads=256")
def choice_that_sharing_out_does_not_have():
    td.recipes.elements(product(), thread=128)  # here


@wrong(
    td.TypeMismatch,
    "too many positional arguments",
    hint="tensor_core_matmul(stage, *, machine=None, **choices)",
)
def choice_without_its_name():
    td.recipes.tensor_core_matmul(product(), (64, 64, 32))  # here


@wrong(td.TypeMismatch, "not 4", hint="td.Grid")
def product_on_a_number_of_ranks():
    td.recipes.summa(product(), 4)  # here


@wrong(td.ScheduleError, "no choice 'tile'", hint="block")
def choice_that_tensor_cores_do_not_have():
    td.recipes.tensor_core_matmul(product(), tile=(64, 64))  # here


@wrong(td.ScheduleError, "block must be a tuple of 3", "not (128, 128)", hint="block=(128, 128, 32)")
def tile_without_terms():
    td.recipes.tensor_core_matmul(product(), block=(128, 128))  # here


@wrong(td.ScheduleError, "warp must be a tuple of 2", "not (64,)", hint="warp=(64, 32)")
def tile_of_a_warp_without_columns():
    td.recipes.tensor_core_matmul(product(), warp=(64,))  # here


@wrong(td.ScheduleError, "each an integer), not 128", hint="block=(128, 128, 32)")
def tile_of_one_number():
    td.recipes.tensor_core_matmul(product(), block=128)  # here


@wrong(td.ScheduleError, "block must be", "not ('a', 128, 32)", hint="the choices are")
def tile_of_a_name():
    td.recipes.tensor_core_matmul(product(), block=("a", 128, 32))  # here


@wrong(td.ScheduleError, "stages must be an integer, not '3'", hint="stages=3")
def stages_in_words():
    td.recipes.tensor_core_matmul(product(), stages="3")  # here


@wrong(td.ScheduleError, "group must be at least 1, not 0", hint="group=1")
def group_of_no_rows():
    td.recipes.tensor_core_matmul(product(), group=0)  # here


@wrong(td.ScheduleError, "blocks must be at least 0, not -1", hint="blocks=0")
def fewer_blocks_than_none():
    td.recipes.tensor_core_matmul(product(), blocks=-1)  # here


@wrong(td.ScheduleError, "warpgroups must be True or False, not 'yes'", hint="warpgroups=False")
def instructions_in_words():
    td.recipes.tensor_core_matmul(product(), warpgroups="yes")  # here


@wrong(
    td.ScheduleError,
    "rows of 48 bytes of tiles of 'y' are no multiple of 32",
    hint="choose a multiple of 16 columns of a block",
)
def columns_that_no_swizzle_divides():
    x, y, c = td.Tensor("x", (256, 256), td.f16), td.Tensor("y", (256, 256), td.f16), td.Func("c")
    c[i, j] = td.sum(td.cast(x[i, k], td.f32) * td.cast(y[k, j], td.f32), axis=k)
    stage = td.Schedule(c)[c]
    td.recipes.tensor_core_matmul(stage, block=(64, 24, 64), warp=(64, 24), warpgroups=True)  # here


def rows_of(n):
    x, total, y = td.Tensor("x", (64, n), td.f32), td.Func("total"), td.Func("y")
    total[i] = td.sum(x[i, k], axis=k)
    y[i, j] = x[i, j] / total[i]
    return td.Schedule(y)[y]


@wrong(td.ScheduleError, "threads cannot be 33", hint="1, 2, 4, 8, 16, 32")
def threads_that_are_no_power_of_two():
    td.recipes.block_rows(rows_of(4096), threads=33)  # here


@wrong(td.ScheduleError, "threads cannot be 2048", hint="512, 1024")
def more_threads_than_a_block_has():
    td.recipes.block_rows(rows_of(4096), threads=2048)  # here


@wrong(td.ScheduleError, "block_rows is not for 'y': its rows have 1 element", hint="elements")
def rows_that_are_short():
    td.recipes.block_rows(rows_of(1))  # here


@wrong(td.ScheduleError, "parts must be a number of 1 or more, not 0", hint="leave parts out")
def no_parts_of_terms():
    td.recipes.block_tiles(product(), parts=0)  # here


@wrong(td.ScheduleError, "parts must be a number of 1 or more, not 2.5", hint="leave parts out")
def half_a_part_of_terms():
    td.recipes.block_sums(product(), parts=2.5)  # here


@wrong(
    td.ScheduleError,
    "block_tiles is not for 'f': the 64 terms of 'k' are not 3 equal parts",
    hint="parts that divide them",
)
def parts_that_do_not_divide_terms():
    a, b, f = td.Tensor("a", (64, 64), td.f32), td.Tensor("b", (64, 64), td.f32), td.Func("f")
    f[i, j] = td.sum(a[i, k] * b[k, j], axis=k)
    td.recipes.block_tiles(td.Schedule(f)[f], parts=3)  # here


@wrong(
    td.ScheduleError,
    "tensor_core_matmul is not for 'f': a factor of its terms is",
    hint="make a td.Func",
)
def products_of_what_is_computed():
    x, w, f = td.Tensor("x", (64, 64), td.f16), td.Tensor("w", (64, 64), td.f16), td.Func("f")
    f[i, j] = td.sum((td.cast(x[i, k], td.f32) + 1) * td.cast(w[k, j], td.f32), axis=k)
    td.recipes.tensor_core_matmul(td.Schedule(f)[f])  # here


@wrong(td.ScheduleError, "no variable of the result indexes 'x' alone", hint="default schedule")
def products_without_columns():
    x, w, f = td.Tensor("x", (64, 64), td.f16), td.Tensor("w", (64, 64), td.f16), td.Func("f")
    f[i] = td.sum(td.cast(x[i, k], td.f32) * td.cast(w[k, i], td.f32), axis=k)
    td.recipes.tensor_core_matmul(td.Schedule(f)[f])  # here


@wrong(td.ScheduleError, "'w' is not indexed by 'k'", hint="default schedule")
def products_by_what_all_terms_share():
    x, w, f = td.Tensor("x", (64, 64), td.f16), td.Tensor("w", (64, 64), td.f16), td.Func("f")
    f[i, j] = td.sum(td.cast(x[i, k], td.f32) * td.cast(w[0, j], td.f32), axis=k)
    td.recipes.tensor_core_matmul(td.Schedule(f)[f])  # here


@wrong(
    td.ScheduleError,
    "operands go on beyond its 100 terms, which are no multiple of the 32 of a block",
    hint="with terms that divide 100",
)
def parts_that_are_no_whole_steps():
    x, w, f = td.Tensor("x", (64, "K"), td.f16), td.Tensor("w", ("K", 64), td.f16), td.Func("f")
    f[i, j] = td.sum(td.cast(x[i, k], td.f32) * td.cast(w[k, j], td.f32), axis=k)
    s = td.Schedule(f)
    parts = s[f].rfactor(s[f].split(k, 100)[0])
    td.recipes.tensor_core_matmul(parts)  # here


@wrong(td.ScheduleError, "it adds up its terms only where r <= i", hint="td.where(condition")
def products_under_a_condition():
    x, w, f = td.Tensor("x", (64, 64), td.f16), td.Tensor("w", (64, 64), td.f16), td.Func("f")
    r = td.range("r", 0, 64, where=lambda r: r <= i)
    f[i, j] = td.sum(td.cast(x[i, r], td.f32) * td.cast(w[r, j], td.f32), axis=r)
    td.recipes.tensor_core_matmul(td.Schedule(f)[f])  # here


@wrong(td.ScheduleError, "wgmma does not multiply f64 and f64 in f64", hint="leave warpgroups= out")
def products_that_groups_do_not_make():
    x, w, f = td.Tensor("x", (64, 64), td.f64), td.Tensor("w", (64, 64), td.f64), td.Func("f")
    f[i, j] = td.sum(x[i, k] * w[k, j], axis=k)
    td.recipes.tensor_core_matmul(td.Schedule(f)[f], warpgroups=True)  # here


@wrong(td.ScheduleError, "f32 and f32 in f32 only where terms are contiguous", hint="w[j, k]")
def floats_whose_terms_are_not_contiguous():
    td.recipes.tensor_core_matmul(product(), warpgroups=True, tf32=True)  # here


@wrong(td.ScheduleError, "matmul is not for 'y'", "no sum of products", hint="default schedule")
def tiles_of_no_product():
    td.recipes.matmul(rows_of(64))  # here


@wrong(td.ScheduleError, "cluster cannot be 16", hint="1, 2, 3, 4, 5, 6, 7, 8")
def more_blocks_than_a_cluster_has():
    td.recipes.tensor_core_matmul(product(), cluster=16, warpgroups=True)  # here


@wrong(td.ScheduleError, "blocks=3 are no whole clusters of 2", hint="a multiple of 2")
def blocks_that_are_no_whole_clusters():
    td.recipes.tensor_core_matmul(product(), cluster=2, blocks=3, warpgroups=True)  # here


def halves(dtype):
    x, w, o = td.Tensor("x", (256, 256), dtype), td.Tensor("w", (256, 256), dtype), td.Func("o")
    o[i, j] = td.sum(td.cast(x[i, k], td.f32) * td.cast(w[k, j], td.f32), axis=k) / 2
    return td.Schedule(o)


@wrong(td.ScheduleError, "only where terms are contiguous in memory", "those of 'w' are not", hint="w[j, k]")
def bytes_whose_terms_are_not_contiguous():
    td.recipes.tensor_core_matmul(halves(td.f8e4m3)["o_sum"], warpgroups=True)  # here


@wrong(td.ScheduleError, "a multiple of 8 columns, not 12", hint="warp=(64, n)")
def columns_that_groups_do_not_make():
    s = halves(td.f16)
    tiles = {"block": (128, 24, 64), "warp": (64, 12)}
    td.recipes.tensor_core_matmul(s["o_sum"], warpgroups=True, **tiles)  # here


@wrong(td.ScheduleError, "'o': it reduces nothing", hint="it is for 'o_sum', a sum that 'o' reads")
def consumer_of_a_sum_for_the_sum():
    td.recipes.tensor_core_matmul(halves(td.f16)["o"])  # here


@wrong(
    td.ScheduleError, "it has updates, several values, or nothing of it is needed", hint="default schedule"
)
def tile_tree_of_updates():
    f = td.Func("f", shape=(512,))
    f[i] = td.cast(i, td.f32)
    f[i] += 1
    td.recipes.block_tree(td.Schedule(f)[f])  # here


@wrong(td.ScheduleError, "it reduces nothing", hint="default schedule")
def lanes_of_points():
    x, f = td.Tensor("x", (8, 8), td.f32), td.Func("f")
    f[i, k] = x[i, k] * 2
    td.recipes.block_sums(td.Schedule(f)[f])  # here
