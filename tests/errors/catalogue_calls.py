"""Wrong calls of compiled programs and operators."""

import numpy as np

import tdsl as td
from tests.errors.case import Catalogue

CASES = Catalogue()
wrong = CASES.wrong

i, j, k = td.vars("i j k")
ones = np.ones((8, 9), np.float32)


def scaled():
    """A fixed shape and a number."""
    a, s, f = td.Tensor("a", (8, 9), td.f32), td.Scalar("s", td.f32), td.Func("f")
    f[i, j] = a[i, j] * s
    return td.compile(f)


def counted():
    """An integer and a bool."""
    n, flip, f = td.Scalar("n", td.i8), td.Scalar("flip", td.bool_), td.Func("f", shape=(4,))
    f[i] = td.where(flip, -i, i) + td.cast(n, td.i64)
    return td.compile(f)


def two_results():
    """Two outputs."""
    a, f, g = td.Tensor("a", (8, 9), td.f32), td.Func("f"), td.Func("g")
    f[i, j] = a[i, j] * 2
    g[i, j] = a[i, j] + 1
    return td.compile((f, g))


@td.op
def matmul(a: td.f32["M", "K"], b: td.f32["K", "N"]):
    c = td.Func("c")
    c[i, j] = td.sum(a[i, k] * b[k, j], axis=k)
    return c


@td.op
def inner_part(x: td.f32["N"]):
    f = td.Func("f")
    f[i] = x[i] + x[i + 1] + x[i + 2]
    return f


@wrong(td.TypeMismatch, "f needs 's'", hint="2 arguments: a, s")
def argument_missing():
    scaled()(ones)  # here


@wrong(td.TypeMismatch, "f needs 'a', 's'", hint="2 arguments: a, s")
def all_arguments_missing():
    scaled()()  # here


@wrong(td.TypeMismatch, "f takes 2 arguments, got 3", hint="out=")
def too_many_arguments():
    scaled()(ones, 2.0, ones)  # here


@wrong(td.TypeMismatch, "f has no argument 'scale'", hint="There are: a, s")
def unknown_argument():
    scaled()(ones, scale=2.0)  # here


@wrong(td.TypeMismatch, "'a' by position and by name", hint="once")
def argument_given_twice():
    scaled()(ones, 2.0, a=ones)  # here


@wrong(td.TypeMismatch, "a has dtype float64, expected float32", hint="a.astype(np.float32)")
def array_of_another_dtype():
    scaled()(np.ones((8, 9)), 2.0)  # here


@wrong(td.TypeMismatch, "a has a foreign byte order", ">f4", hint="astype(np.float32)")
def array_of_foreign_byte_order():
    scaled()(ones.astype(">f4"), 2.0)  # here


@wrong(td.TypeMismatch, "a is of type list, not an array", hint="np.asarray(a, dtype=np.float32)")
def list_for_an_array():
    scaled()([[1.0]], 2.0)  # here


@wrong(td.TypeMismatch, "a is of type NoneType, not an array", hint="np.asarray")
def none_for_an_array():
    scaled()(None, 2.0)  # here


@wrong(td.TypeMismatch, "a is of type float, not an array", hint="np.asarray")
def number_for_an_array():
    scaled()(1.0, 2.0)  # here


@wrong(td.TypeMismatch, "a has dtype object", hint="astype(np.float32)")
def array_of_objects():
    scaled()(np.full((8, 9), None), 2.0)  # here


@wrong(td.TypeMismatch, "a has dtype complex64", hint="astype")
def array_of_complex_numbers():
    scaled()(ones.astype(np.complex64), 2.0)  # here


@wrong(td.TypeMismatch, "a is a masked array", hint="a.filled(...)")
def masked_array():
    scaled()(np.ma.masked_array(ones), 2.0)  # here


@wrong(td.TypeMismatch, "device cuda", hint="host")
def array_on_another_device():
    class OnDevice:
        __cuda_array_interface__ = {
            "shape": (8, 9),
            "typestr": "<f4",
            "data": (0, False),
            "version": 3,
        }

    scaled()(OnDevice(), 2.0)  # here


@wrong(td.ShapeError, "a has shape (8, 8), expected (8, 9)", hint="shape (8, 9)")
def array_of_another_shape():
    scaled()(ones[:, :8].copy(), 2.0)  # here


@wrong(td.ShapeError, "a has shape (72,), expected (8, 9)", hint="2 dimensions")
def array_of_another_rank():
    scaled()(ones.ravel(), 2.0)  # here


@wrong(td.ShapeError, "a has shape (), expected (8, 9)", hint="2 dimensions")
def array_without_dimensions():
    scaled()(np.float32(1), 2.0)  # here


@wrong(td.ShapeError, "K is 9 by axis 1 of a, but 8 by axis 0 of b", hint="arrays that agree")
def sizes_that_disagree():
    matmul(ones, ones)  # here


@wrong(td.ShapeError, "b has shape (9,), expected (K, N)", hint="2 dimensions")
def operand_of_another_rank():
    matmul(ones, ones[0])  # here


@wrong(td.ShapeError, "f would have shape (-1,), for N = 1", hint="too small")
def window_that_does_not_fit():
    inner_part(np.ones(1, np.float32))  # here


@wrong(td.TypeMismatch, "s needs a number (float32), got '2' of type str", hint="number")
def string_for_a_number():
    scaled()(ones, "2")  # here


@wrong(td.TypeMismatch, "s needs a number (float32), got 1j", hint="number")
def complex_for_a_number():
    scaled()(ones, 1j)  # here


@wrong(td.TypeMismatch, "s needs a number (float32), got ndarray", hint="number")
def array_for_a_number():
    scaled()(ones, np.ones(3, np.float32))  # here


@wrong(td.TypeMismatch, "s = 1e+300 does not fit float32", hint="3.40")
def number_that_overflows():
    scaled()(ones, 1e300)  # here


@wrong(td.TypeMismatch, "n needs an integer (int8), got 1.5", hint="number")
def float_for_an_integer():
    counted()(flip=True, n=1.5)  # here


@wrong(td.TypeMismatch, "n = 128 does not fit int8", hint="-128 to 127")
def integer_that_does_not_fit():
    counted()(flip=True, n=128)  # here


@wrong(td.TypeMismatch, "flip needs a bool (bool), got 1", hint="True or False")
def integer_for_a_bool():
    counted()(flip=1, n=1)  # here


@wrong(td.ShapeError, "f has shape (9, 8), expected (8, 9)", hint="shape (8, 9)")
def out_of_another_shape():
    scaled()(ones, 2.0, out=np.empty((9, 8), np.float32))  # here


@wrong(td.TypeMismatch, "out= of f has dtype float64", hint="array of float32")
def out_of_another_dtype():
    scaled()(ones, 2.0, out=np.empty((8, 9)))  # here


@wrong(td.TypeMismatch, "read-only", hint="memory of your own")
def out_that_is_read_only():
    memory = np.empty((8, 9), np.float32)
    memory.flags.writeable = False
    scaled()(ones, 2.0, out=memory)  # here


@wrong(td.ShapeError, "share memory", "strides", hint="copy")
def out_whose_elements_share_memory():
    memory = np.lib.stride_tricks.as_strided(np.empty(9, np.float32), (8, 9), (0, 4))
    scaled()(ones, 2.0, out=memory)  # here


@wrong(td.TypeMismatch, "out= of f is of type list", hint="array of float32")
def out_that_is_a_list():
    scaled()(ones, 2.0, out=[1, 2])  # here


@wrong(td.TypeMismatch, "out= has 2 entries, but f has 1 output", hint="f")
def out_with_too_many_entries():
    scaled()(ones, 2.0, out=(None, None))  # here


@wrong(td.TypeMismatch, "f has no output 'h'", hint="There are: f")
def out_for_an_unknown_output():
    scaled()(ones, 2.0, out={"h": ones.copy()})  # here


@wrong(td.TypeMismatch, "f has 2 outputs, out= is one ndarray", hint="f, g")
def one_array_for_two_outputs():
    two_results()(ones, out=ones.copy())  # here


@wrong(td.ShapeError, "the outputs f and g share memory", hint="of its own")
def outputs_that_share_memory():
    memory = np.empty((16, 9), np.float32)
    two_results()(ones, out=(memory[:8], memory[4:12]))  # here


@wrong(td.ShapeError, "no argument of f decides the size M", hint="out=")
def size_that_nothing_decides():
    f = td.Func("f", shape=("M",))
    f[i] = i * 2
    td.compile(f)()  # here


def twice(x, y):
    return matmul(matmul(x, y), y)


@wrong(td.TypeMismatch, "twice: missing a required argument: 'y'", hint="it takes (x, y)")
def argument_of_a_graph_missing():
    td.Graph(twice)(np.ones((4, 4), np.float32))  # here


@wrong(td.TypeMismatch, "twice: too many positional arguments", hint="it takes (x, y)")
def argument_of_a_graph_too_many():
    square = np.ones((4, 4), np.float32)
    td.Graph(twice)(square, square, square)  # here


@wrong(td.ShapeError, "'matmul' has no size 'Z'", hint="There are: M, K, N")
def size_of_a_search_that_there_is_not():
    matmul.autoschedule(M=4, K=4, N=4, Z=3)  # here


@wrong(td.ShapeError, "'matmul' needs all sizes; not known: N", hint="autoschedule(M=4, K=8, N=100)")
def size_of_a_search_missing():
    matmul.autoschedule(M=4, K=8)  # here


@wrong(td.TypeMismatch, "a is of type Tensor, which has no values yet", hint="make a td.Graph")
def operator_in_an_operator():
    @td.op
    def twice(a: td.f32["M", "K"], b: td.f32["K", "N"]):
        return matmul(a, b)  # here

    twice(ones, ones.T)


@wrong(td.TypeMismatch, "b is of type Func, which has no values yet", hint="without td.op")
def compiled_program_of_a_func():
    f = td.Func("f")
    f[i, j] = 1.0
    matmul(ones, f)  # here


@wrong(td.ShapeError, "'a' has 2 dimensions, td.f32 is the type of a number", hint="td.f32[100, 100]")
def search_for_a_type_without_extents():
    matmul.autoschedule(td.f32, td.f32)  # here
