"""Wrong subscripts and operands of einsum."""

import tdsl as td
from tests.errors.case import Catalogue

CASES = Catalogue()
wrong = CASES.wrong

i, j, k = td.vars("i j k")
a = td.Tensor("a", (8, 9), td.f32)


@wrong(td.TypeMismatch, "subscripts of einsum are a string, not", hint="a letter for each axis")
def einsum_without_subscripts():
    td.einsum(a, a)  # here


@wrong(td.ShapeError, "'ij,jk' is for 2 operands, einsum is given 1", hint="commas between")
def einsum_with_too_few_operands():
    td.einsum("ij,jk", a)  # here


@wrong(
    td.ShapeError,
    "operand 0 has 2 dimensions, its subscripts 'i' are for 1",
    hint="a letter for each",
)
def einsum_with_too_few_letters():
    td.einsum("i", a)  # here


@wrong(td.DefinitionError, "'1' in the subscripts 'i1' is no letter", hint="letters name axes")
def einsum_with_a_number_for_an_axis():
    td.einsum("i1", a)  # here


@wrong(
    td.DefinitionError,
    "'k' is in the result of 'ij->ik', but in no operand",
    hint="comes from an operand",
)
def einsum_with_an_unknown_letter():
    td.einsum("ij->ik", a)  # here


@wrong(td.DefinitionError, "'i' is in the result of 'ij->ii' twice", hint="a letter of its own")
def einsum_onto_a_diagonal():
    td.einsum("ij->ii", a)  # here


@wrong(
    td.DefinitionError,
    "the result of '...j->j' leaves out the axes of '...'",
    hint="in the result, too",
)
def einsum_that_drops_axes():
    td.einsum("...j->j", a)  # here


@wrong(td.DefinitionError, "operand 0 of '...' is a value", hint="each with a letter")
def einsum_of_a_value_with_dots():
    td.einsum("...", a[i, k])  # here


@wrong(td.DefinitionError, "variable 'k' of an operand is not among its subscripts 'ij'", hint="'ijk'")
def einsum_of_a_value_with_other_letters():
    td.einsum("ij->i", a[i, k])  # here


@wrong(td.TypeMismatch, "operand 1 of einsum is no tensor, func or value, but 'jk'", hint="come first")
def einsum_with_subscripts_of_each_operand():
    td.einsum("ij,jk", a, "jk")  # here


@wrong(td.TypeMismatch, "operand 0 of einsum is 'f', which has 2 values", hint="f[...][0]")
def einsum_of_a_func_with_two_values():
    f = td.Func("f")
    f[i] = (a[i, 0], a[i, 1])
    td.einsum("i", f)  # here
