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
