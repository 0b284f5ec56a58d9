"""Wrong directives on the loops of one stage."""

import tdsl as td
from tests.errors.case import Catalogue

CASES = Catalogue()
wrong = CASES.wrong

i, j, k = td.vars("i j k")
a = td.Tensor("a", (20, 30), td.f32)
b = td.Tensor("b", ("M", "N"), td.f32)


def doubled():
    """A func without reductions."""
    f = td.Func("f")
    f[i, j] = a[i, j] * 2
    return td.Schedule(f)["f"]


def summed():
    """A func with a reduction."""
    f = td.Func("f")
    f[i] = td.sum(a[i, k], axis=k)
    return td.Schedule(f)["f"]


def scanned():
    """An update that must run in order."""
    f, r = td.Func("f"), td.range("r", 1, 20)
    f[i] = a[i, 0]
    f[r] += f[r - 1]
    return td.Schedule(f)["f"].update(0)


@wrong(td.ScheduleError, "split", "'f'", "no loop 'jj'", hint="did you mean 'j'")
def split_of_an_unknown_loop():
    doubled().split("jj", 4)  # here


@wrong(td.UnknownAttribute, "Stage has no attribute 'vectorise'", hint="did you mean 'vectorize'?")
def misspelt_directive():
    doubled().vectorise("j", 8)  # here


@wrong(td.TypeMismatch, "tile: too many positional arguments", hint="tile(loops, factors, *")
def loops_of_a_tile_one_by_one():
    doubled().tile(i, j, 4, 4)  # here


@wrong(td.TypeMismatch, "bind: missing a required argument: 'axis'", hint="bind(loop, axis)")
def binding_to_nothing():
    doubled().bind(i)  # here


@wrong(td.TypeMismatch, "Schedule: got an unexpected keyword argument 'size'", hint="sizes=None")
def schedule_of_one_size():
    td.Schedule(doubled, size=3)  # here


@wrong(td.ScheduleError, "'i' was split into 'i_o' and 'i_i'", hint="one of them")
def loop_that_was_split():
    f = doubled()
    f.split("i", 4)
    f.parallel("i")  # here


@wrong(td.ScheduleError, "'i' was fused into 'i_j'", hint="'i_j'")
def loop_that_was_fused():
    f = doubled()
    f.fuse("i", "j")
    f.unroll("i", 4)  # here


@wrong(td.ScheduleError, "'i' was renamed to 'row'", hint="'row'")
def loop_that_was_renamed():
    f = doubled()
    f.rename("i", "row")
    f.serial("i")  # here


@wrong(td.ScheduleError, "no loop 'j_vv'", hint="There are: i, j_o, j_v, j")
def loop_behind_a_vectorized_one():
    f = doubled()
    f.vectorize("j", 8)
    f.split("j_vv", 2)  # here


@wrong(td.ScheduleError, "loop 'i' belongs to 'g'", hint="'f' has the loops i, j")
def loop_of_another_stage():
    g, f = td.Func("g"), td.Func("f")
    g[i, j] = a[i, j] * 2
    f[i, j] = g[i, j] + 1
    s = td.Schedule(f)
    outer = s[g].loops[0]
    s[f].split(outer, 4)  # here


@wrong(td.TypeMismatch, "loop", "not 0", hint="one of the loops: i, j")
def loop_by_number():
    doubled().split(0, 4)  # here


@wrong(td.TypeMismatch, "loop", "not None", hint="name")
def loop_that_is_none():
    doubled().parallel(None)  # here


@wrong(td.TypeMismatch, "loop", "not i + 1", hint="name")
def loop_by_an_expression():
    doubled().parallel(i + 1)  # here


@wrong(td.ScheduleError, "split", "factor must be positive, not 0", hint="1")
def split_by_zero():
    doubled().split(i, 0)  # here


@wrong(td.ScheduleError, "factor must be positive, not -4", hint="1")
def split_by_a_negative_number():
    doubled().split(i, -4)  # here


@wrong(td.ScheduleError, "factor must be an integer, not 2.5", hint="an integer")
def split_by_a_float():
    doubled().split(i, 2.5)  # here


@wrong(td.ScheduleError, "factor must be an integer, not '8'", hint="int")
def split_by_a_string():
    doubled().split(i, "8")  # here


@wrong(td.ScheduleError, "factor must be an integer, not True", hint="int")
def split_by_a_bool():
    doubled().split(i, True)  # here


@wrong(td.ScheduleError, "factor is too large: 1099511627776", hint="at most 1073741824")
def split_by_a_huge_number():
    doubled().split(i, 1 << 40)  # here


@wrong(td.ScheduleError, "a factor or nparts", hint="nparts=4")
def split_without_a_factor():
    doubled().split(i)  # here


@wrong(td.ScheduleError, "a factor or nparts", hint="nparts=4")
def split_with_factor_and_parts():
    doubled().split(i, 4, nparts=5)  # here


@wrong(td.ScheduleError, "nparts must be positive, not 0", hint="1")
def division_into_no_parts():
    doubled().divide(i, 0)  # here


@wrong(td.ScheduleError, "tail strategy 'pad'", hint="guard, shift, round_up, peel, align")
def unknown_tail():
    doubled().split(i, 8, tail="pad")  # here


@wrong(td.ScheduleError, "'i_i' begin at multiples", "only if it is a variable", hint="by a factor")
def blocks_of_a_part_that_are_aligned():
    s = doubled()
    s.split(i, 8)
    s.split("i_i", 4, tail="align")  # here


@wrong(td.ScheduleError, "computed twice", "reduction", hint="tail='guard'")
def shifted_tail_of_a_reduction():
    summed().split(k, 8, tail="shift")  # here


@wrong(td.ScheduleError, "last block of 'i'", "'k', a reduction", "twice", hint="tail='guard'")
def shifted_tail_inside_of_a_reduction():
    f = summed()
    f.reorder("k", "i")
    f.split("i", 8, tail="shift")  # here


@wrong(td.ScheduleError, "last block of 'i'", "two iterations of 'i_o'", hint="tail='guard'")
def shifted_tail_of_a_sum_on_threads():
    f = summed()
    f.split("i", 8, tail="shift")
    f.parallel("i_o")  # here


@wrong(td.ScheduleError, "splitting 30 by 8", "count points twice", hint="tail='guard'")
def rounded_tail_of_a_reduction():
    summed().split(k, 8, tail="round_up")  # here


@wrong(td.ScheduleError, "splitting 20 by 8", "outside of the output", hint="tail='guard'")
def rounded_tail_of_an_output():
    doubled().split(i, 8, tail="round_up")  # here


@wrong(td.ScheduleError, "'j_i' is vectorized already", hint="split it before")
def split_of_a_vectorized_loop():
    f = td.Func("f")
    f[i, j] = a[i, j] * 2
    s = td.Schedule(f)
    x = s[f].split(j, 8)[1]
    s[f].vectorize(x)
    s[f].split(x, 2)  # here


@wrong(td.ScheduleError, "already a loop 'j'", hint="another name")
def split_with_a_name_in_use():
    doubled().split(i, 4, names=("io", "j"))  # here


@wrong(td.ScheduleError, "names must be a tuple of 2", "('io',)", hint="a tuple of 2")
def split_with_too_few_names():
    doubled().split(i, 4, names=("io",))  # here


@wrong(td.ScheduleError, "'a b' is not a name", hint="letters")
def split_with_a_bad_name():
    doubled().split(i, 4, names=("a b", "c"))  # here


@wrong(td.ScheduleError, "as many factors as loops", "(4,) for (i, j)", hint="one factor for each")
def tile_with_too_few_factors():
    doubled().tile((i, j), (4,))  # here


@wrong(td.ScheduleError, "as many factors as loops", hint="tile(")
def tile_of_nothing():
    doubled().tile((), ())  # here


@wrong(td.ScheduleError, "as many factors as loops", "4 for (i, j)", hint="(8, 32)")
def tile_with_one_number():
    doubled().tile((i, j), 4)  # here


@wrong(td.ScheduleError, "'i' is not directly inside 'j'", "i, j", hint="reorder first")
def fuse_in_the_wrong_order():
    doubled().fuse(j, i)  # here


@wrong(td.ScheduleError, "one of 'i' and 'k' is reduced over", hint="of a kind")
def fuse_of_a_free_and_a_reduction_loop():
    summed().fuse(i, k)  # here


@wrong(td.ScheduleError, "'i' is parallel already", hint="fuse before")
def fuse_of_a_parallel_loop():
    f = doubled()
    f.parallel(i)
    f.fuse(i, j)  # here


@wrong(td.ScheduleError, "already a loop 'j'", hint="another name")
def rename_to_a_name_in_use():
    doubled().rename(i, "j")  # here


@wrong(td.ScheduleError, "name must be a string, not None", hint="a string")
def rename_to_none():
    doubled().rename(i, None)  # here


@wrong(td.ScheduleError, "named twice", hint="once")
def reorder_with_a_loop_twice():
    doubled().reorder(i, j, i)  # here


@wrong(td.ScheduleError, "no loop 'k'", hint="There are: i, j")
def reorder_with_an_unknown_loop():
    doubled().reorder(k, j, i)  # here


@wrong(td.TypeMismatch, "loop", "not (j, i)", hint="one of the loops: i, j")
def reorder_with_a_tuple():
    doubled().reorder((j, i))  # here


@wrong(
    td.ScheduleError,
    "r=2, t=1 reads f[1, 2], which iteration r=1, t=2",
    "order",
    hint="comes first",
)
def reorder_of_ordered_loops():
    f, r, t = td.Func("f"), td.range("r", 1, 20), td.range("t", 1, 30)
    f[i, j] = a[i, j]
    f[r, t] = f[r - 1, t + 1] + f[r, t - 1]
    td.Schedule(f)[f].update(0).reorder("t", "r")  # here


@wrong(
    td.ScheduleError,
    "parallel",
    "r=2 reads f[1], which iteration r=1 writes",
    hint="leave 'r' serial",
)
def parallel_scan():
    scanned().parallel("r")  # here


@wrong(
    td.ScheduleError,
    "vectorize",
    "r=2 reads f[1], which iteration r=1 writes",
    hint="leave 'r' serial",
)
def vectorized_scan():
    scanned().vectorize("r", 8)  # here


@wrong(td.ScheduleError, "may write the same element of 'f'", hint="leave 'r' serial")
def parallel_scatter():
    f, r = td.Func("f", shape=(9,)), td.range("r", 0, 20)
    f[i] = 0.0
    f[td.clip(td.cast(a[r, 0], td.i64), 0, 8)] = a[r, 1]
    td.Schedule(f)[f].update(0).parallel(r)  # here


@wrong(td.ScheduleError, "parallel", "'k'", hint="rfactor")
def parallel_reduction():
    summed().parallel(k)  # here


@wrong(td.ScheduleError, "'j' is not a constant", hint="vectorize('j', 16)")
def vectors_of_unknown_length():
    f = td.Func("f")
    f[i, j] = b[i, j] * 2
    td.Schedule(f)[f].vectorize(j)  # here


@wrong(td.ScheduleError, "4096 lanes are too many", hint="vector width")
def vectors_that_are_too_long():
    doubled().vectorize(j, 4096)  # here


@wrong(td.ScheduleError, "number of lanes must be positive, not 0", hint="1")
def vectors_of_no_lanes():
    doubled().vectorize(j, 0)  # here


@wrong(td.ScheduleError, "5000 iterations, too many", hint="vectorize('j', 16)")
def vectors_of_a_whole_long_loop():
    f = td.Func("f")
    f[i, j] = td.Tensor("x", (4, 5000), td.f32)[i, j]
    td.Schedule(f)[f].vectorize(j)  # here


@wrong(td.ScheduleError, "unroll", "'half'", hint="int")
def unrolling_by_a_string():
    doubled().unroll(j, "half")  # here


@wrong(td.ScheduleError, "atomic", "not an update", hint="+=")
def atomic_pure_definition():
    doubled().atomic()  # here


@wrong(td.ScheduleError, "its loops are in use already", hint="atomic() comes before")
def atomic_reduction_whose_loops_are_in_use():
    stage = summed()
    stage.prefetch("a", k, 4)
    stage.atomic()  # here


@wrong(td.ScheduleError, "atomic", "not an update", hint="+=")
def atomic_scan():
    scanned().atomic()  # here


@wrong(td.ScheduleError, "'f' has 0 updates, there is no update(0)", hint="func itself")
def update_of_a_pure_func():
    f = td.Func("f")
    f[i] = a[i, 0]
    td.Schedule(f)[f].update()  # here


@wrong(td.ScheduleError, "'f' has 1 update, there is no update(1)", hint="update(0)")
def update_that_is_not_there():
    f, r = td.Func("f"), td.range("r", 1, 20)
    f[i] = a[i, 0]
    f[r] += f[r - 1]
    td.Schedule(f)[f].update(1)  # here


@wrong(td.ScheduleError, "no update('first')", hint="update(0)")
def update_by_name():
    f, r = td.Func("f"), td.range("r", 1, 20)
    f[i] = a[i, 0]
    f[r] += f[r - 1]
    td.Schedule(f)[f].update("first")  # here
