"""Wrong directives on places, memory and copies."""

import numpy as np

import tdsl as td
from tests.errors.case import Catalogue

CASES = Catalogue()
wrong = CASES.wrong

i, j, k = td.vars("i j k")
a = td.Tensor("a", (20, 30), td.f32)


def chain():
    """f reads g at its own points and one row further."""
    g, f = td.Func("g"), td.Func("f")
    g[i, j] = a[i, j] * 2
    f[i, j] = g[i, j] + g[i + 1, j]
    return g, f, td.Schedule(f)


def summed():
    """A reduction over its own stage, and a consumer."""
    g, f = td.Func("g"), td.Func("f")
    g[i] = td.sum(a[i, k], axis=k)
    f[i] = g[i] * 2
    return g, f, td.Schedule(f)


@wrong(td.ScheduleError, "no func 'gg'", hint="did you mean 'g'")
def unknown_func():
    _, _, s = chain()
    s["gg"].inline()  # here


@wrong(td.ScheduleError, "'g' is not part of this program", hint="outputs", caret="s[g]")
def func_of_another_program():
    _, _, s = chain()
    g = td.Func("g")
    g[i] = a[i, 0]
    s[g].inline()  # here


@wrong(td.TypeMismatch, "not 0", hint="td.Func")
def stage_by_number():
    _, _, s = chain()
    s[0].inline()  # here


@wrong(td.TypeMismatch, "takes funcs, not Tensor", hint="td.Schedule(f)")
def schedule_of_a_tensor():
    td.Schedule(a)  # here


@wrong(td.TypeMismatch, "takes funcs, not nothing", hint="td.Schedule(f)")
def schedule_of_nothing():
    td.Schedule()  # here


@wrong(td.ScheduleError, "compute_at", "'f' is an output", hint="producers")
def compute_at_of_an_output():
    g, f, s = chain()
    s[f].compute_at(s[g], i)  # here


@wrong(td.ScheduleError, "'g' cannot be computed inside itself", hint="consumer")
def compute_at_inside_itself():
    g, _, s = chain()
    s[g].compute_at(s[g], i)  # here


@wrong(td.ScheduleError, "no loop 'k'", hint="There are: i, j")
def compute_at_an_unknown_loop():
    g, f, s = chain()
    s[g].compute_at(s[f], k)  # here


@wrong(td.ScheduleError, "reads 'g' outside of loop", hint="around both")
def compute_at_where_another_reader_is_outside():
    g, h, f = td.Func("g"), td.Func("h"), td.Func("f")
    g[i, j] = a[i, j] * 2
    h[i, j] = g[i, j] + 1
    f[i, j] = g[i, j] + h[i, j]
    s = td.Schedule(f)
    s[h].compute_root()
    s[g].compute_at(s[f], i)  # here


@wrong(
    td.ScheduleError,
    "'h' reads 'g' outside of loop",
    hint="compute what 'h' is inlined into inside",
)
def compute_at_where_a_reader_of_what_is_inlined_is_outside():
    g, h, w, f = (td.Func(n) for n in "ghwf")
    g[i, j] = a[i, j] * 2
    h[i, j] = g[i, j] + 1
    w[i, j] = h[i, j] * 3
    f[i, j] = w[i, j] + 1
    s = td.Schedule(f)
    s[h].inline()
    s[w].compute_root()
    s[g].compute_at(s[f], i)  # here


@wrong(td.ScheduleError, "place at loop 'i' of 'f'", hint="before placing 'g'")
def loop_that_holds_a_func_is_fused():
    g, f, s = chain()
    s[g].compute_at(s[f], i)
    s[f].fuse(i, j)  # here


@wrong(td.ScheduleError, "store_at", "'f' is an output", hint="producers")
def store_at_of_an_output():
    g, f, s = chain()
    s[f].store_at(s[g], i)  # here


@wrong(td.ScheduleError, "is not around loop 'i' of 'f'", hint="further out")
def store_inside_of_where_it_is_computed():
    g, f, s = chain()
    s[g].compute_at(s[f], i)
    s[g].store_at(s[f], j)  # here


@wrong(td.ScheduleError, "loop 'i' of 'f' is parallel", hint="inside that loop")
def sliding_window_over_a_parallel_loop():
    g, f, s = chain()
    s[g].compute_at(s[f], i)
    s[f].parallel(i)
    s[g].store_root()  # here


@wrong(td.ScheduleError, "'g' is not computed inside a loop", hint="compute_at")
def store_root_without_compute_at():
    g, _, s = chain()
    s[g].store_root()  # here


@wrong(td.ScheduleError, "inline", "'f' is an output", hint="producers")
def inline_of_an_output():
    _, f, s = chain()
    s[f].inline()  # here


@wrong(td.ScheduleError, "inline", "'g'", "expression", hint="compute_at")
def inline_of_a_reduction():
    g, _, s = summed()
    s[g].inline()  # here


@wrong(td.ScheduleError, "'f' reads 'g' at other points than its own", hint="element-wise")
def reverse_compute_at_of_a_stencil():
    g, f, s = chain()
    s[f].reverse_compute_at(s[g], i)  # here


@wrong(td.ScheduleError, "'f' does not read 'h'", hint="producer")
def reverse_compute_at_of_what_is_not_read():
    g, h, f = td.Func("g"), td.Func("h"), td.Func("f")
    h[i, j] = a[i, j] * 2
    g[i, j] = a[i, j] * 3
    f[i, j] = g[i, j] + 1
    td.Schedule(f, h)["f"].reverse_compute_at("h", i)  # here


@wrong(td.ScheduleError, "inside 'k' the values of 'g' are not complete", hint="outside of 'k'")
def reverse_compute_at_inside_a_reduction():
    g, f, s = summed()
    s[f].reverse_compute_at(s[g], k)  # here


@wrong(td.ScheduleError, "'f' and 'g' depend on each other", hint="compute_at")
def compute_with_a_producer():
    g, f, s = chain()
    s[f].compute_with(s[g], i)  # here


@wrong(td.ScheduleError, "another number of iterations", hint="equal ranges")
def compute_with_another_extent():
    g, f = td.Func("g"), td.Func("f")
    g[i] = a[i, 0]
    f[j] = a[0, j]
    s = td.Schedule(g, f)
    s[g].compute_with(s[f], j)  # here
    td.compile(s, target="python")(np.zeros((20, 30), np.float32))


@wrong(td.ScheduleError, "'g' has 1 loop, fewer than the 2", hint="further out")
def compute_with_too_few_loops():
    g, f = td.Func("g"), td.Func("f")
    g[i] = a[i, 0]
    f[i, j] = a[i, j]
    s = td.Schedule(g, f)
    s[g].compute_with(s[f], j)  # here


@wrong(td.ScheduleError, "'i' of 'f' does not run in order", hint="serial")
def compute_with_a_parallel_loop_that_is_reduced_over():
    g, f = td.Func("g"), td.Func("f")
    g[j] = td.sum(a[k, j], axis=k)
    f[i, j] = a[i, j]
    s = td.Schedule(g, f)
    s[f].parallel(i)
    s[g].reorder(k, j).compute_with(s[f], i)  # here


@wrong(td.ScheduleError, "'f' shares with another stage", hint="of that stage")
def compute_with_a_loop_reduced_over_at_second_hand():
    g, f, h = td.Func("g"), td.Func("f"), td.Func("h")
    g[j] = td.sum(a[k, j], axis=k)
    f[i, j] = a[i, j]
    h[i, j] = a[i, j]
    s = td.Schedule(g, f, h)
    s[f].compute_with(s[h], i)
    s[g].reorder(k, j).compute_with(s[f], j)  # here


@wrong(td.ScheduleError, "cannot be computed with itself", hint="another func")
def compute_with_itself():
    _, f, s = chain()
    s[f].compute_with(s[f], i)  # here


@wrong(td.ScheduleError, "cache_read", "'f' does not read 'a'", hint="g")
def cache_of_what_is_not_read():
    _, f, s = chain()
    s.cache_read("a", f, at=i)  # here


@wrong(td.TypeMismatch, "not None", hint="name")
def cache_of_none():
    _, f, s = chain()
    s.cache_read(None, f)  # here


@wrong(td.ScheduleError, "no memory scope 'cloud'", hint="auto, heap, stack, register, shared")
def cache_in_an_unknown_memory():
    g, _, s = chain()
    s.cache_read(a, g, at=i, scope="cloud")  # here


@wrong(td.ScheduleError, "'g' does not read one padding of 'a'", hint="td.pad")
def padded_cache_of_what_is_not_padded():
    g, _, s = chain()
    s.cache_read(a, g, at=i, padded=True)  # here


@wrong(td.ScheduleError, "pack names axis 2 of 2", hint="axes 0 to 1")
def cache_packed_along_a_missing_axis():
    g, _, s = chain()
    s.cache_read(a, g, at=i, pack={2: 4})  # here


@wrong(td.ScheduleError, "packing factor must be positive, not 0", hint="1")
def cache_packed_by_zero():
    g, _, s = chain()
    s.cache_read(a, g, at=i, pack={0: 0})  # here


@wrong(td.ScheduleError, "already a func or input 'f'", hint="another name")
def cache_with_a_name_in_use():
    g, _, s = chain()
    s.cache_read(a, g, at=i, name="f")  # here


@wrong(td.ScheduleError, "'g' has no variable 'k'", hint="i, j")
def cache_along_a_variable_of_another_func():
    g, _, s = chain()
    s.cache_read(a, g, at=i, along=k)  # here


@wrong(td.ScheduleError, "'f' does not read 'a' along 'j'", hint="moves what is read")
def cache_along_a_variable_that_moves_nothing():
    f = td.Func("f")
    f[i, j] = a[i, 0] + j
    s = td.Schedule(f.with_shape(4, 4))
    s.cache_read(a, f, along=j)  # here


@wrong(td.ScheduleError, "a copy along a variable serves one reader", hint="leave out inside")
def cache_along_a_variable_for_what_is_inside():
    g, _, s = chain()
    s.cache_read(a, g, at=i, inside=True, along=i)  # here


@wrong(td.ScheduleError, "pack must be a tuple", "not 4", hint="each a tuple of 2")
def cache_packed_by_a_number():
    g, _, s = chain()
    s.cache_read(a, g, at=i, pack=4)  # here


@wrong(td.ScheduleError, "cache_write", "'g' is no output", hint="name a loop")
def cache_write_without_a_loop_of_what_is_no_output():
    g, _, s = chain()
    s.cache_write(g)  # here


@wrong(td.ScheduleError, "cache_write", "has updates", hint="one definition")
def cache_write_of_a_func_with_updates():
    f = td.Func("f")
    f[i] += a[i, k]
    s = td.Schedule(f)
    s.cache_write(f, at=i)  # here


@wrong(td.ScheduleError, "inside 'k' the values of 'f' are not complete", hint="outside of 'k'")
def cache_write_inside_a_reduction():
    f = td.Func("f")
    f[i] = td.sum(a[i, k], axis=k)
    s = td.Schedule(f)
    s.cache_write(f, at=k)  # here


@wrong(td.ScheduleError, "no memory scope 'L1'", hint="stack")
def cache_write_in_an_unknown_memory():
    _, f, s = chain()
    s.cache_write(f, at=i, scope="L1")  # here


@wrong(td.ScheduleError, "set_scope", "no memory scope 'smem'", hint="heap")
def unknown_scope():
    g, _, s = chain()
    s[g].set_scope("smem")  # here


@wrong(td.ScheduleError, "reorder_storage", "'f' is an output", hint="out=")
def order_in_memory_of_an_output():
    _, f, s = chain()
    s[f].reorder_storage(j, i)  # here


@wrong(td.ScheduleError, "every dimension must be named once", hint="name i, j, slowest first")
def order_in_memory_with_a_dimension_missing():
    g, _, s = chain()
    s[g].reorder_storage(j)  # here


@wrong(td.ScheduleError, "no dimension 'k'", hint="There are: i, j")
def alignment_of_a_missing_dimension():
    g, _, s = chain()
    s[g].align_storage(k, 16)  # here


@wrong(td.ScheduleError, "'g' has 2 dimensions, there is no dimension 2", hint="i, j")
def alignment_of_a_missing_axis():
    g, _, s = chain()
    s[g].align_storage(2, 16)  # here


@wrong(td.ScheduleError, "multiple must be positive, not -8", hint="1")
def alignment_to_a_negative_multiple():
    g, _, s = chain()
    s[g].align_storage(j, -8)  # here


@wrong(td.ScheduleError, "multiple must be an integer, not '64'", hint="integer")
def alignment_to_a_string():
    g, _, s = chain()
    s[g].align_storage(j, "64")  # here


@wrong(td.ScheduleError, "dim must be", "1.5", hint="integer")
def alignment_of_a_fraction_of_an_axis():
    g, _, s = chain()
    s[g].align_storage(1.5, 64)  # here


@wrong(td.ScheduleError, "extent must be positive, not 0", hint="1")
def ring_of_no_elements():
    g, _, s = chain()
    s[g].fold_storage(i, 0)  # here


@wrong(
    td.ScheduleError,
    "fold_storage",
    "'i' needs 2 elements at a time, not 1",
    hint="fold to that number",
)
def ring_that_is_too_small():
    g, f, s = chain()
    s[g].compute_at(s[f], i)
    s[g].store_root()
    s[g].fold_storage(i, 1)  # here
    td.compile(s, target="python")(np.zeros((20, 30), np.float32))


@wrong(td.ScheduleError, "extent must be positive, not 0", hint="1")
def no_elements_wherever_it_is_computed():
    g, _, s = chain()
    s[g].bound_extent(i, 0)  # here


@wrong(td.ScheduleError, "bound_extent", "'f' is an output", hint="split")
def fixed_extent_of_an_output():
    _, f, s = chain()
    s[f].bound_extent(i, 8)  # here


@wrong(
    td.ScheduleError,
    "bound_extent",
    "dimension 'i' needs 2 elements, not 1",
    hint="that number or more",
)
def fixed_extent_that_is_too_small():
    g, f, s = chain()
    s[g].compute_at(s[f], i)
    s[g].bound_extent(i, 1)  # here
    td.compile(s, target="python")(np.zeros((20, 30), np.float32))


@wrong(td.ScheduleError, "prefetch", "'f' does not read 'a'", hint="g")
def prefetch_of_what_is_not_read():
    _, f, s = chain()
    s[f].prefetch(a, i)  # here


@wrong(td.ScheduleError, "offset must be positive, not 0", hint="1")
def prefetch_of_the_present():
    g, _, s = chain()
    s[g].prefetch(a, i, offset=0)  # here


@wrong(td.ScheduleError, "loop 'j' is inside of 'i'", hint="of one around it")
def prefetch_of_iterations_inside():
    g, _, s = chain()
    s[g].prefetch(a, i, of=j)  # here


@wrong(td.ScheduleError, "offset must be an integer, not 1.5", hint="integer")
def prefetch_of_a_fraction():
    g, _, s = chain()
    s[g].prefetch(a, i, offset=1.5)  # here


@wrong(td.TypeMismatch, "a recipe is a function, not 3", hint="one argument")
def recipe_that_is_a_number():
    _, _, s = chain()
    s.apply(3)  # here
