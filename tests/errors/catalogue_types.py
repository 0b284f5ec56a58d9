"""Wrong element types: promotion, operators, casts, constants, updates."""

import math

import numpy as np

import tdsl as td
from tests.errors.case import Catalogue

CASES = Catalogue()
wrong = CASES.wrong

i, j, k = td.vars("i j k")
x = td.Tensor("x", (8,), td.f32)
n = td.Tensor("n", (8,), td.i32)
b = td.Tensor("b", (8,), td.u8)
t = td.Tensor("t", (8,), td.bool_)


@wrong(td.TypeMismatch, "'float23' is not an element type", hint="float32")
def misspelt_dtype():
    td.Tensor("y", (8,), "float23")  # here


@wrong(td.TypeMismatch, "complex128 has no element type", hint="f64")
def complex_tensor():
    td.Tensor("y", (8,), complex)  # here


@wrong(td.TypeMismatch, "object has no element type", hint="there are:")
def object_tensor():
    td.Tensor("y", (8,), object)  # here


@wrong(td.TypeMismatch, "<U5", hint="there are:")
def string_tensor():
    td.Tensor("y", (8,), "U5")  # here


@wrong(td.TypeMismatch, "None is not an element type", hint="f32")
def tensor_without_a_dtype():
    td.Tensor("y", (8,), None)  # here


@wrong(td.TypeMismatch, "3 is not an element type", hint="f32")
def scalar_with_a_number_for_a_dtype():
    td.Scalar("y", 3)  # here


@wrong(td.TypeMismatch, "an expression has no number", hint="td.exp(x)")
def function_of_math():
    f = td.Func("f")
    f[i] = math.exp(x[i])  # here


@wrong(td.TypeMismatch, "an expression has no number", hint="td.cast")
def integer_of_an_expression():
    f = td.Func("f")
    f[i] = int(x[i])  # here


@wrong(td.TypeMismatch, "complex is not a value", hint="numbers")
def complex_number():
    f = td.Func("f")
    f[i] = x[i] * 1j  # here


@wrong(td.TypeMismatch, "complex64 has no element type", hint="f64")
def complex_numpy_scalar():
    f = td.Func("f")
    f[i] = x[i] * np.complex64(1)  # here


@wrong(td.TypeMismatch, "`&` needs integers or bools, not f32", hint="td.reinterpret")
def bitwise_and_of_floats():
    f = td.Func("f")
    f[i] = x[i] & 1  # here


@wrong(td.TypeMismatch, "`<<` needs integers", hint="td.reinterpret")
def shift_of_a_float():
    f = td.Func("f")
    f[i] = x[i] << 2  # here


@wrong(td.TypeMismatch, "`~` is not defined on f32", hint="td.reinterpret")
def inversion_of_a_float():
    f = td.Func("f")
    f[i] = ~x[i]  # here


@wrong(td.TypeMismatch, "`-` is not defined on bool_", hint="~")
def negative_of_a_bool():
    f = td.Func("f")
    f[i] = -t[i]  # here


@wrong(td.TypeMismatch, "`-` is not defined on bools", hint="^", caret="t[i] - t[i]")
def difference_of_bools():
    f = td.Func("f")
    f[i] = t[i] - t[i]  # here


@wrong(td.TypeMismatch, "`<<` is not defined on bools", hint="cast")
def shift_of_bools():
    f = td.Func("f")
    f[i] = t[i] << t[i]  # here


@wrong(td.TypeMismatch, "300 does not fit in u8", hint="0 to 255")
def constant_that_does_not_fit():
    f = td.Func("f")
    f[i] = b[i] + 300  # here


@wrong(td.TypeMismatch, "-1 does not fit in u8", hint="td.cast")
def negative_constant_with_unsigned():
    f = td.Func("f")
    f[i] = td.maximum(b[i], -1)  # here


@wrong(td.TypeMismatch, "does not fit in any integer type", hint="float")
def constant_beyond_all_integers():
    f = td.Func("f")
    f[i] = n[i] + (1 << 70)  # here


@wrong(td.TypeMismatch, "'f' holds i32, this update gives f32", hint="td.cast(value, td.i32)")
def float_update_of_integers():
    f = td.Func("f")
    f[i] = n[i]
    f[i] += x[i]  # here


@wrong(td.TypeMismatch, "'f' holds i32, this update gives f64", hint="td.cast(value, td.i32)")
def float_constant_update_of_integers():
    f = td.Func("f")
    f[i] = n[i]
    f[i] *= 0.5  # here


@wrong(td.TypeMismatch, "'f' holds bool_, this update gives i64", hint="td.cast(value, td.bool_)")
def integer_update_of_bools():
    f = td.Func("f")
    f[i] = t[i]
    f[i] += td.cast(n[i], td.i64)  # here


@wrong(td.TypeMismatch, "condition of where is f32, not bool", hint="x != 0")
def choice_by_a_float():
    f = td.Func("f")
    f[i] = td.where(x[i], 1.0, 2.0)  # here


@wrong(td.TypeMismatch, "condition is i32, not bool", hint="x != 0")
def requirement_by_an_integer():
    f = td.Func("f")
    f[i] = td.require(n[i], x[i])  # here


@wrong(td.TypeMismatch, "2 places for 1 value", hint="{}")
def requirement_with_too_few_values():
    f = td.Func("f")
    f[i] = td.require(n[i] > 0, x[i], "{} of {}", i)  # here


@wrong(td.TypeMismatch, "message is 3, not a string", hint="text")
def requirement_with_a_number_for_a_message():
    f = td.Func("f")
    f[i] = td.require(n[i] > 0, x[i], 3)  # here


@wrong(td.TypeMismatch, "at most 8 values", "not 9", hint="fewer")
def print_of_too_many_values():
    f = td.Func("f")
    f[i] = td.debug_print(x[i], "{}" * 9, *[i] * 9)  # here


@wrong(td.TypeMismatch, "where= is i64, not a condition", hint="where=r <= i")
def range_with_a_number_for_a_condition():
    td.range("r", 0, 8, where=lambda r: r + 1)  # here


@wrong(td.TypeMismatch, "index must be an integer, not f64", hint="td.cast")
def range_up_to_a_float():
    td.range("r", 0, 7.5)  # here


@wrong(td.TypeMismatch, "f32 and f64 do not have the same number of bits", hint="u32")
def bits_of_another_size():
    f = td.Func("f")
    f[i] = td.reinterpret(x[i], td.f64)  # here


@wrong(td.TypeMismatch, "popcount needs an integer, not f32", hint="td.reinterpret")
def bits_counted_in_a_float():
    f = td.Func("f")
    f[i] = td.popcount(x[i])  # here


@wrong(td.TypeMismatch, "random gives f32 or f64, not i32", hint="td.cast")
def random_integers():
    f = td.Func("f", shape=(8,))
    f[i] = td.random(i, dtype=td.i32)  # here


@wrong(td.TypeMismatch, "key of random must be integers, not f32", hint="td.cast")
def random_by_a_float():
    f = td.Func("f")
    f[i] = td.random(x[i])  # here


@wrong(td.TypeMismatch, "fast_math takes a func, not Tensor", hint="td.fast_math(f)")
def fast_math_of_a_tensor():
    td.fast_math(x)  # here


@wrong(td.TypeMismatch, "scalar 's' is both f32 and f64", hint="declare it once")
def scalar_of_two_types():
    f = td.Func("f")
    f[i] = x[i] * td.Scalar("s", td.f32)
    f[i] += x[i] * td.cast(td.Scalar("s", td.f64), td.f32)  # here
    td.compile(f)


@wrong(td.TypeMismatch, "1.5 cannot be a padding of u8", hint="give an integer")
def float_padding_of_integers():
    td.pad(b, value=1.5)  # here


@wrong(td.TypeMismatch, "256 does not fit in u8", hint="0 to 255")
def padding_that_does_not_fit():
    td.pad(b, value=256)  # here


@wrong(td.TypeMismatch, "the identity is f64", "type i32", hint="td.cast")
def identity_of_another_type():
    f = td.Func("f")
    f[()] = td.reduce(lambda p, q: p + q, 1.5, n[i], i)  # here


@wrong(td.TypeMismatch, "combine gives f64", "type i32", hint="td.cast")
def combiner_of_another_type():
    f = td.Func("f")
    f[()] = td.reduce(lambda p, q: p + q * 0.5, 0, n[i], i)  # here


@wrong(td.TypeMismatch, "list cannot be compiled", hint="td.Func")
def compiled_list_of_numbers():
    td.compile([1, 2])  # here


@wrong(td.TypeMismatch, "Tensor cannot be compiled", hint="td.Func")
def compiled_tensor():
    td.compile(x)  # here


@wrong(td.TypeMismatch, "function cannot be compiled", hint="td.op")
def compiled_function():
    td.compile(lambda y: y)  # here


@wrong(td.TypeMismatch, "i32 to the power -1 is no integer", hint="td.cast", caret="n[i] ** -1")
def negative_power_of_an_integer():
    f = td.Func("f")
    f[i] = n[i] ** -1  # here


@wrong(td.TypeMismatch, "np.nextafter does not take values", hint="docs/language.md")
def function_that_only_numpy_has():
    np.nextafter(x[i], 1)  # here


@wrong(td.TypeMismatch, "np.add.reduce", hint="td.sum(x, axis=i)")
def method_of_a_ufunc():
    np.add.reduce(x[i])  # here


@wrong(td.TypeMismatch, "np.round", "too many", hint="td.round(x)")
def argument_that_only_numpy_takes():
    np.round(x[i], 2)  # here


@wrong(td.TypeMismatch, "np.add", "'out'", hint="operator")
def operator_of_numpy_into_an_array():
    np.add(x[i], 1, out=np.zeros(8))  # here


@wrong(td.TypeMismatch, "Tensor 'x' is used without an index", hint="x[i, j]")
def ufunc_of_a_whole_tensor():
    np.exp(x)  # here
