"""Wrong placements and distributions."""

import numpy as np

import tdsl as td
from tests.errors.case import Catalogue

CASES = Catalogue()
wrong = CASES.wrong

i, j, k = td.vars("i j k")
a = td.Tensor("a", (20, 30), td.f32)
square = td.Grid(x=2, y=2)


def doubled():
    """A schedule of a func without reductions."""
    f = td.Func("f")
    f[i, j] = a[i, j] * 2
    return td.Schedule(f)


def tiled():
    """The same, distributed."""
    s = doubled().place("a", "rc -> r c", square).place("f", "rc -> r c", square)
    s["f"].distribute((i, j), square)
    return s


@wrong(td.ShapeError, "axis 'y' of a grid has 0 ranks", hint="td.Grid(x=2, y=2)")
def grid_without_ranks():
    td.Grid(x=2, y=0)  # here


@wrong(td.ShapeError, "a grid has no axes", hint="td.Grid(x=4)")
def grid_without_axes():
    td.Grid()  # here


@wrong(td.ShapeError, "two levels of a grid have an axis 'x'", hint="name each axis once")
def levels_with_the_same_axis():
    doubled().place("a", "rc -> r c", [td.Grid(x=2), td.Grid(x=2)])  # here


@wrong(td.ScheduleError, "'r' is block-cyclic along one axis", hint="one axis only")
def block_cyclic_and_cut():
    doubled().place("a", "rc -> r/2 r", square)  # here


@wrong(td.TypeMismatch, "not (2, 2)", hint="td.Grid(x=2, y=2)")
def ranks_on_a_tuple():
    doubled().place("a", "rc -> r c", (2, 2))  # here


@wrong(td.ScheduleError, "no tensor or func 'aa'", hint="did you mean 'a'")
def place_of_an_unknown_tensor():
    doubled().place("aa", "rc -> r c", square)  # here


@wrong(td.ScheduleError, "'a' is placed already", hint="once")
def placed_twice():
    tiled().place("a", "rc -> r c", square)  # here


@wrong(td.ScheduleError, "names 1 dimension, the tensor has 2", hint="one letter for each")
def placement_of_another_rank():
    doubled().place("a", "r -> r *", square)  # here


@wrong(td.ScheduleError, "has 1 entry, the grid 2", hint="one entry for each axis")
def placement_for_another_grid():
    doubled().place("a", "rc -> r", square)  # here


@wrong(td.ScheduleError, "another grid is in use: Grid(x=2, y=2)", hint="one grid")
def two_grids():
    tiled()["f"].schedule.place("a", "rc -> r", td.Grid(x=4))  # here


@wrong(td.ScheduleError, "1 loops for the 2 axes", hint="one loop for each axis")
def too_few_loops():
    doubled()["f"].distribute(i, square)  # here


@wrong(td.ScheduleError, "'a' has no place on a grid", hint="place it first")
def distribute_onto_what_is_not_placed():
    doubled()["f"].distribute(onto="a")  # here


@wrong(td.ScheduleError, "axis 'y' has no block of 'f': rc -> r partial(sum)", hint="name the loops yourself")
def distribute_onto_parts_of_itself():
    doubled().place("f", "rc -> r partial(sum)", square)["f"].distribute(onto="f")  # here


@wrong(td.ScheduleError, "axis 'y' has no coordinate 2", hint="0 to 1")
def distribute_to_a_coordinate_that_is_not_there():
    doubled()["f"].distribute((i, 2), square)  # here


@wrong(td.ScheduleError, "every coordinate would repeat the checks and prints of 'f'", hint="one coordinate")
def distribute_checks_to_every_coordinate():
    f = td.Func("f")
    f[i, j] = td.require(a[i, j] > 0, a[i, j])
    td.Schedule(f)["f"].distribute((i, "*"), square)  # here


@wrong(td.ScheduleError, "has updates or several values, and is no sum of partial results", hint="of its own")
def distribute_updates_from_partial_sources():
    summed_along_rows().distribute("partial", td.Grid(x=2))  # here


@wrong(td.ScheduleError, "are cut along a later axis first", hint="without primes")
def distribute_onto_blocks_the_other_way_round():
    doubled().place("a", "rc -> r' r", square)["f"].distribute(onto="a")  # here


@wrong(td.ScheduleError, "no variable alone is the index of dimension 0 of 'a'", hint="yourself")
def distribute_onto_what_is_read_at_several_places():
    f = td.Func("f", shape=(10, 20))
    f[i, j] = a[i, j] + a[i + 1, j]
    s = td.Schedule(f).place("a", "rc -> r c", square)
    s["f"].distribute(onto="a")  # here


@wrong(td.ScheduleError, "loops or a grid are given, and a tensor", hint="onto= alone")
def distribute_onto_and_over():
    doubled().place("a", "rc -> r c", square)["f"].distribute((i, j), square, onto="a")  # here


@wrong(td.ScheduleError, "no loop 'l'", hint="i, j")
def distribute_an_unknown_loop():
    doubled()["f"].distribute(("i", "l"), square)  # here


@wrong(td.ScheduleError, "'f' is distributed already", hint="at once")
def distributed_twice():
    tiled()["f"].distribute((i, j), square)  # here


def summed_along_rows():
    """A func whose update reads what other columns have."""
    f, r = td.Func("f", shape=(20, 30)), td.range("r", 1, 30)
    f[i, j] = a[i, j]
    f[i, r] = f[i, r - 1] + a[i, r]
    return td.Schedule(f)["f"]


@wrong(td.ScheduleError, "an update of 'f' needs more than one iteration of 'j'", hint="alone")
def distribute_a_loop_that_updates_cross():
    summed_along_rows().distribute(j, td.Grid(x=2))  # here


@wrong(td.ScheduleError, "ranks would race", "one element of 'f'", hint="first definition")
def distribute_an_update_that_races():
    summed_along_rows().update(0).distribute("r", td.Grid(x=2))  # here


@wrong(td.ScheduleError, "does not start at the identity", hint="one update")
def distribute_an_update_of_something():
    f, r = td.Func("f", shape=(5,)), td.range("r", 0, 20)
    f[i] = 7
    f[r // 4] += r
    td.Schedule(f)["f"].update(0).distribute(r, td.Grid(x=2))  # here


@wrong(td.ScheduleError, "another definition is distributed", hint="that one")
def communicate_at_another_definition():
    f, r, grid = td.Func("f", shape=(5,)), td.range("r", 0, 20), td.Grid(x=2)
    f[i] = 0
    f[r // 4] += r
    s = td.Schedule(f)
    s["f"].update(0).distribute(r, grid)
    s["f"].communicate("f", at=i)  # here


@wrong(td.ScheduleError, "nothing to fetch 2 iterations of 'j_o' ahead", hint="inside of those")
def prefetch_at_a_loop_of_ranks():
    tiled()["f"].communicate("a", at="j_o", prefetch=2)  # here


@wrong(td.ScheduleError, "nothing to fetch -1 iterations", hint="a number of iterations")
def prefetch_the_past():
    tiled()["f"].communicate("a", at="i_i", prefetch=-1)  # here


@wrong(td.ScheduleError, "nothing is received during this computation", hint="without prefetch")
def overlap_with_a_prefetch():
    tiled()["f"].communicate("a", at="i_i", prefetch=1, overlap=True)  # here


@wrong(td.ScheduleError, "nothing is received during this computation", hint="what is read")
def overlap_of_results():
    tiled()["f"].communicate("f", at="j_o", overlap=True)  # here


@wrong(td.ScheduleError, "'f' has updates", hint="a func of its own")
def overlap_with_updates():
    f, grid = td.Func("f"), td.Grid(x=2)
    f[i, k] = a[i, k]
    f[i, k] += a[i, k + 1]
    s = td.Schedule(f.with_shape(8, 7))
    s["f"].distribute(i, grid)
    s["f"].communicate("a", at="i_o", overlap=True)  # here


@wrong(td.ScheduleError, "overlaps the communication of 'a', which is block-cyclic", hint="without overlap")
def overlap_of_blocks_with_gaps():
    s = doubled().place("a", "rc -> r/1 c", square).place("f", "rc -> r c", square)
    s["f"].distribute((i, j), square)
    s["f"].communicate("a", at="j_o", overlap=True)  # here
    td.compile(s).plan()


@wrong(td.ScheduleError, "of which ranks have partial results", hint="without overlap")
def overlap_of_parts():
    g, f, grid = td.Func("g"), td.Func("f"), td.Grid(x=2)
    g[i] = td.sum(a[i, k], axis=k)
    f[i] = g[i] * 2
    s = td.Schedule(f).place("a", "rc -> c", grid).place("g", "r -> partial(sum)", grid)
    s.place("f", "r -> r", grid)["g"].distribute(k, grid)
    s["f"].distribute(i, grid)
    s["f"].communicate("g", at="i_o", overlap=True)  # here
    td.compile(s).plan()


@wrong(
    td.ScheduleError, "though the loop 'k_o', where other tensors are communicated, is inside", hint="without"
)
def overlap_around_steps():
    g, f, grid = td.Tensor("g", (30, 8), td.f32), td.Func("f"), td.Grid(x=2)
    f[i, j] = td.sum(a[i, k] * g[k, j], axis=k)
    s = td.Schedule(f).place("a", "rc -> c", grid).place("g", "rc -> r", grid).place("f", "rc -> r", grid)
    s["f"].distribute(i, grid)
    steps, inside = s["f"].split(k, 10)
    s["f"].reorder(steps, i, j, inside)
    s["f"].communicate("g", at=steps).communicate("a", at="i_o", overlap=True)  # here
    td.compile(s).plan()


@wrong(td.ScheduleError, "overlaps the communication of 'a', which it overwrites", hint="without overlap")
def overlap_of_what_is_overwritten():
    s = tiled()
    s["f"].communicate("a", at="j_o", overlap=True)
    s.overwrite("f", "a")  # here
    td.compile(s).plan()


@wrong(td.ScheduleError, "none of these is combined over ranks", hint="the func that is reduced")
def deterministic_without_a_reduction():
    tiled()["f"].communicate("f", at="j_o", deterministic=True)  # here


@wrong(td.ScheduleError, "cannot be placed as partial(sum): it is an input", hint="partial(sum)")
def partial_input():
    doubled().place("a", "rc -> r partial(sum)", square)  # here


@wrong(td.ScheduleError, "cannot be placed as partial(max): it is sum", hint="its own operator")
def partial_of_another_operator():
    f = td.Func("f")
    f[i] = td.sum(a[i, k], axis=k)
    td.Schedule(f).place("f", "r -> r partial(max)", square)  # here


@wrong(td.ScheduleError, "'f_argmax' has several values, or depends on scalars", hint="whole")
def partial_of_several_values():
    f = td.Func("f")
    f[i] = td.argmax(a[i, k], axis=k)
    td.Schedule(f).place("f_argmax", "r -> r partial(argmax)", square)  # here


@wrong(td.ScheduleError, "'k' must run in order", hint="associative")
def distribute_a_fold_that_must_run_in_order():
    f = td.Func("f")
    f[i] = td.reduce(lambda x, y: x / 2 + y, 0.0, a[i, k], k, associative=False)
    td.Schedule(f)["f"].distribute(k, td.Grid(x=2))  # here


@wrong(td.ScheduleError, "'f' is not distributed", hint="distribute its loops first")
def communicate_on_one_rank():
    doubled()["f"].communicate("a", at=i)  # here


@wrong(td.ScheduleError, "'i_o' is fixed by the rank", hint="'j_o'")
def communicate_outside_of_the_rank():
    tiled()["f"].communicate("a", at="i_o")  # here


@wrong(td.ScheduleError, "'f' does not read 'b'", hint="a")
def communicate_what_is_not_read():
    tiled()["f"].communicate("b", at="j_o")  # here


@wrong(td.ScheduleError, "'i' is a variable of the definition", hint="divide('i', n) first")
def rotate_a_variable():
    doubled()["f"].rotate(i, by=())  # here


@wrong(td.ScheduleError, "'j' is not outside of 'i_o'", hint="around it")
def rotate_by_an_inner_loop():
    f = doubled()["f"]
    outer, _ = f.split(i, 4)
    f.rotate(outer, by=j)  # here


@wrong(td.ScheduleError, "are no longer the outermost ones", hint="inside")
def reorder_across_ranks():
    tiled()["f"].reorder("i_i", "i_o")  # here


@wrong(td.ScheduleError, "'j_o' is parallel, but ranks step through it", hint="inside of")
def threads_over_ranks():
    tiled()["f"].parallel("j_o")  # here


@wrong(td.ScheduleError, "'a' has no place on the grid", hint='s.place("a"')
def input_without_a_place():
    b = td.Tensor("a", (20,), td.f32)  # here
    f = td.Func("f")
    f[i] = b[i] * 2
    s = td.Schedule(f).place("f", "r -> r", td.Grid(x=2))
    s["f"].distribute(i, td.Grid(x=2))
    td.compile(s)


@wrong(td.ScheduleError, "output 'f' is not distributed", hint="distribute(loops, grid)")
def output_without_ranks():
    f = td.Func("f")  # here
    f[i, j] = a[i, j] * 2
    td.compile(td.Schedule(f).place("a", "rc -> r c", square))


@wrong(td.ScheduleError, "communicates 'g', which each rank computes", hint="distribute")
def communicate_what_each_rank_computes():
    g, f = td.Func("g"), td.Func("f")
    g[i] = a[i, 0] + 1
    f[i] = g[i] * g[i]
    grid = td.Grid(x=2)
    s = td.Schedule(f).place("a", "rc -> r", grid).place("f", "r -> r", grid)
    s["f"].distribute(i, grid)
    s["f"].communicate("g", at="i_o")  # here
    td.compile(s).plan()


@wrong(td.ShapeError, "sizes that are not known yet: N", hint="plan(N=100)")
def plan_of_unknown_sizes():
    b, f, grid = td.Tensor("b", ("N",), td.f32), td.Func("f"), td.Grid(x=2)
    f[i] = b[i] * 2
    s = td.Schedule(f).place("b", "r -> r", grid).place("f", "r -> r", grid)
    s["f"].distribute(i, grid)
    td.compile(s).plan()  # here


@wrong(td.ShapeError, "not for N", hint="leave dynamic= away")
def dynamic_sizes_of_a_plan():
    b, f, grid = td.Tensor("b", ("N",), td.f32), td.Func("f"), td.Grid(x=2)
    f[i] = b[i] * 2
    s = td.Schedule(f).place("b", "r -> r", grid).place("f", "r -> r", grid)
    s["f"].distribute(i, grid)
    td.compile(s, dynamic="N")  # here


@wrong(td.ScheduleError, "are every few points only", hint="around")
def communicate_in_strides():
    s = tiled()
    outer, inner = s["f"].split("i", 4)
    s["f"].reorder(inner, outer)
    s["f"].communicate("a", at=inner)  # here
    td.compile(s).plan()


@wrong(td.ShapeError, "no names: 2, 2", hint="td.Grid(x=2, y=2)")
def axes_without_names():
    td.Grid(2, 2)  # here


@wrong(td.ShapeError, "has no rank 9", hint="ranks are 0 to 3")
def coordinates_of_a_rank_that_is_not_there():
    square.coordinates(9)  # here


@wrong(td.ShapeError, "has no rank -1", hint="ranks are 0 to 3")
def plan_of_a_rank_that_is_not_there():
    td.compile(tiled()).plan().rank(-1)  # here


@wrong(td.ShapeError, "has no rank 'x'", hint="ranks are 0 to 3")
def formula_of_what_is_no_rank():
    td.compile(tiled()).plan().formula("x")  # here


@wrong(td.TypeMismatch, "'f' has no tensor or func 'q'", hint="There are: a, f")
def bytes_of_an_unknown_tensor():
    td.compile(tiled()).plan().moved("q")  # here


@wrong(td.TypeMismatch, "'1GB' is no number of bytes", hint="memory=2**30")
def memory_in_words():
    td.compile(tiled()).plan(memory="1GB")  # here


@wrong(td.TypeMismatch, "-1 is no number of bytes", hint="memory=2**30")
def less_than_no_memory():
    td.compile(tiled()).plan(memory=-1)  # here


@wrong(td.TypeMismatch, "f takes 1 argument, got 2 positional", hint="outputs are returned")
def result_given_to_a_simulation():
    given = np.ones((20, 30), np.float32)
    td.compile(tiled()).simulate(given, given)  # here


@wrong(td.ShapeError, "a has shape (2, 30), expected (20, 30)", hint="pass the whole array")
def block_of_a_part():
    td.compile(tiled()).block("a", np.ones((2, 30), np.float32))  # here


@wrong(td.ScheduleError, "'r/0' has blocks of no elements", hint="r/1")
def blocks_of_nothing():
    doubled().place("a", "rc -> r/0 c", square)  # here


@wrong(td.ScheduleError, "calls two dimensions 'm'", hint="another letter")
def dimensions_of_one_name():
    doubled().place("a", "mm -> m *", square)  # here


@wrong(td.ScheduleError, "no loop 'k'", hint='s["f_argmax"], which it reads, has a loop')
def loop_of_a_stage_that_was_split_off():
    f = td.Func("f")
    f[i] = td.argmax(a[i, k], axis=k)
    td.Schedule(f)[f].distribute((k, i), square)  # here


@wrong(td.ScheduleError, "output 'f' is not distributed", hint="a number for one")
def output_without_loops():
    t, grid = td.Func("t"), td.Grid(x=2)
    f = td.Func("f")  # here
    t[()] = td.sum(a[i, j], axis=(i, j))
    f[()] = td.sqrt(t[()])
    s = td.Schedule(f).place("a", "rc -> r", grid).place("t", "-> *", grid)
    s[t].distribute(i, grid)
    td.compile(s)
