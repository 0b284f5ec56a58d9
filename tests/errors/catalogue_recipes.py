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


@wrong(td.TypeMismatch, "machine=", "'zen'", hint="leave it out")
def machine_by_name():
    td.recipes.matmul(product(), machine="zen")  # here


@wrong(td.TypeMismatch, "a stage of a schedule, not Schedule", hint="td.recipes.matmul(s[f])")
def recipe_for_a_schedule():
    td.recipes.matmul(product().schedule)  # here


@wrong(td.TypeMismatch, "not on 4", hint="td.Grid")
def product_on_a_number_of_ranks():
    td.recipes.summa(product(), 4)  # here


@wrong(td.ScheduleError, "no choice 'tile'", hint="block")
def choice_that_tensor_cores_do_not_have():
    td.recipes.tensor_core_matmul(product(), tile=(64, 64))  # here


@wrong(
    td.ScheduleError, "block must be a tuple of 3", "not (128, 128)", hint="block=(128, 128, 32)"
)
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


@wrong(td.ScheduleError, "hopper must be True or False, not 'yes'", hint="hopper=False")
def instructions_in_words():
    td.recipes.tensor_core_matmul(product(), hopper="yes")  # here
