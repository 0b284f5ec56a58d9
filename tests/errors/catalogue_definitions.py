"""Wrong definitions of funcs, reductions and operators."""

import numpy as np

import tdsl as td
from tests.errors.case import Catalogue

CASES = Catalogue()
wrong = CASES.wrong

i, j, k = td.vars("i j k")
a = td.Tensor("a", (8, 9), td.f32)
n = td.Tensor("n", (8,), td.i32)


@wrong(td.DefinitionError, "'g' is read before it is defined", hint="g[...] =", caret="g[i]")
def read_of_an_undefined_func():
    f, g = td.Func("f"), td.Func("g")
    f[i] = a[i, 0] + g[i]  # here
    return f


@wrong(td.DefinitionError, "'f' has no definition", hint="f[i, j] =")
def compiled_without_a_definition():
    f = td.Func("f")
    td.compile(f)  # here


@wrong(td.DefinitionError, "'f' has no definition", hint="f[i, j] =")
def shape_of_an_undefined_func():
    f = td.Func("f")
    return f.shape  # here


@wrong(td.DefinitionError, "'f' has no definition", hint="f[i, j] =")
def padding_of_an_undefined_func():
    f = td.Func("f")
    td.pad(f)  # here


@wrong(td.DefinitionError, "'j' is on the right of 'f' but not on the left", hint="axis=j")
def free_variable_on_the_right():
    f = td.Func("f")
    f[i] = a[i, j]  # here


@wrong(td.DefinitionError, "'r'", "on the right", hint="axis=r")
def range_on_the_right_of_a_pure_definition():
    f, r = td.Func("f"), td.range("r", 0, 9)
    f[i] = a[i, r]  # here


@wrong(td.DefinitionError, "'f' is defined twice", hint="another td.Func")
def redefinition():
    f = td.Func("f")
    f[i, j] = a[i, j]
    f[i, j] = a[i, j] * 2  # here


@wrong(td.DefinitionError, "variable of its own for each dimension", hint="f[i, j] =")
def first_definition_at_an_expression():
    f = td.Func("f")
    f[i + 1] = a[i, 0]  # here


@wrong(td.DefinitionError, "variable of its own for each dimension", hint="f[i, j] =")
def first_definition_with_one_variable_twice():
    f = td.Func("f")
    f[i, i] = a[i, i]  # here


@wrong(td.DefinitionError, "variable of its own for each dimension", hint="f[i, j] =")
def first_definition_at_a_number():
    f = td.Func("f")
    f[0] = 1.0  # here


@wrong(td.DefinitionError, "`&=`", "'f' has no definition yet", hint="first write f[...]")
def augmented_update_without_a_start():
    f, m = td.Func("f"), td.Tensor("m", (8,), td.bool_)
    f[i] &= m[i]  # here


@wrong(td.DefinitionError, "'f' is read before it is defined", hint="td.range")
def recursion_in_the_first_definition():
    f = td.Func("f")
    f[i] = f[i - 1] + a[i, 0]  # here


@wrong(td.DefinitionError, "reads itself at another 'i'", "order", hint="td.range", caret="f[i - 1]")
def update_that_orders_a_free_variable():
    f = td.Func("f")
    f[i] = a[i, 0]
    f[i] += f[i - 1]  # here


@wrong(td.DefinitionError, "'a' is an input", hint="td.Func")
def assignment_to_a_tensor():
    a[i, j] = 1.0  # here


@wrong(td.DefinitionError, "'a' is an input", hint="td.Func")
def increment_of_a_tensor():
    a[i, j] += 1.0  # here


@wrong(td.DefinitionError, "padding", hint="td.Func")
def assignment_to_a_padding():
    edge = td.pad(a, mode="edge")
    edge[i, j] = 1.0  # here


@wrong(td.DefinitionError, "no truth value", hint="td.where", caret="a[i, j] > 0")
def truth_value_of_a_condition():
    f = td.Func("f")
    f[i, j] = 1.0 if a[i, j] > 0 else 0.0  # here


@wrong(td.DefinitionError, "no truth value", hint="&")
def chained_comparison():
    f = td.Func("f")
    f[i, j] = td.where(0 < a[i, j] < 1, 1.0, 0.0)  # here


@wrong(td.DefinitionError, "no truth value", hint="&")
def conjunction_with_and():
    f = td.Func("f")
    f[i, j] = td.where(i > 0 and j > 0, 1.0, 0.0)  # here


@wrong(td.DefinitionError, "cannot be iterated over", hint="td.vars")
def iteration_over_an_expression():
    return list(a[i, j])  # here


@wrong(td.DefinitionError, "cannot be iterated over", hint="td.vars")
def iteration_over_a_tensor():
    return list(a)  # here


@wrong(td.DefinitionError, "cannot be iterated over", hint="td.vars")
def iteration_over_a_func():
    f = td.Func("f")
    f[i] = a[i, 0]
    return sum(f)  # here


@wrong(td.TypeMismatch, "index must be an integer, not f64", hint="td.cast")
def index_by_a_float():
    f = td.Func("f")
    f[i] = a[i, 0.5]  # here


@wrong(td.TypeMismatch, "index must be an integer, not f32", hint="td.cast")
def index_by_a_float_tensor():
    f = td.Func("f")
    f[i] = n[a[i, 0]]  # here


@wrong(td.TypeMismatch, "index must be an integer, not bool", hint="td.cast")
def index_by_a_condition():
    f = td.Func("f")
    f[i] = a[i, i > 3]  # here


@wrong(td.TypeMismatch, "a slice is no index", hint="td.vars")
def index_by_a_slice():
    f = td.Func("f")
    f[i] = a[i, 0:3]  # here


@wrong(td.TypeMismatch, "ellipsis", hint="loop variables")
def index_by_an_ellipsis():
    f = td.Func("f")
    f[i] = a[..., 0]  # here


@wrong(td.TypeMismatch, "str", hint="loop variables")
def index_by_a_string():
    f = td.Func("f")
    f[i] = a["i", 0]  # here


@wrong(td.ShapeError, "'a' has 2 dimensions, indexed with 1", hint="a[i, j]")
def too_few_indices():
    f = td.Func("f")
    f[i] = a[i]  # here


@wrong(td.ShapeError, "'a' has 2 dimensions, indexed with 3", hint="a[i, j]")
def too_many_indices():
    f = td.Func("f")
    f[i, j] = a[i, j, 0]  # here


@wrong(td.ShapeError, "'f' has 1 dimension, indexed with 2", hint="f[i]")
def update_with_other_rank():
    f = td.Func("f")
    f[i] = a[i, 0]
    f[i, j] += a[i, j]  # here


@wrong(td.ShapeError, "padded 'a' has 2 dimensions, indexed with 1", hint="a[i, j]")
def padding_with_other_rank():
    f, edge = td.Func("f"), td.pad(a, mode="edge")
    f[i] = edge[i]  # here


@wrong(td.TypeMismatch, "Tensor 'a' is used without an index", hint="a[i, j]", caret="a * 2")
def tensor_without_an_index():
    f = td.Func("f")
    f[i, j] = a * 2  # here


@wrong(td.TypeMismatch, "Func 'g' is used without an index", hint="g[i, j]")
def func_without_an_index():
    f, g = td.Func("f"), td.Func("g")
    g[i, j] = a[i, j]
    f[i, j] = td.exp(g)  # here


@wrong(td.TypeMismatch, "ndarray is not a value", hint="td.Tensor")
def numpy_array_in_a_definition():
    f = td.Func("f")
    f[i] = a[i, 0] + np.ones(8)  # here


@wrong(td.TypeMismatch, "str is not a value", hint="numbers")
def string_in_a_definition():
    f = td.Func("f")
    f[i] = "hello"  # here


@wrong(td.TypeMismatch, "NoneType is not a value", hint="numbers")
def none_in_a_definition():
    f = td.Func("f")
    f[i] = None  # here


@wrong(td.TypeMismatch, "axis=", "'k'", hint="axis=k")
def reduction_over_a_string():
    f = td.Func("f")
    f[i] = td.sum(a[i, k], axis="k")  # here


@wrong(td.TypeMismatch, "axis=", "1", hint="axis=k")
def reduction_over_an_axis_number():
    f = td.Func("f")
    f[i] = td.sum(a[i, k], axis=1)  # here


@wrong(td.DefinitionError, "axis= names a variable twice", hint="once")
def reduction_over_a_variable_twice():
    f = td.Func("f")
    f[i] = td.sum(a[i, k], axis=(k, k))  # here


@wrong(td.DefinitionError, "axis= names no variable", hint="axis=k")
def reduction_over_nothing():
    f = td.Func("f")
    f[i] = td.sum(a[i, k], axis=())  # here


@wrong(td.DefinitionError, "'i'", "reduced", hint="left")
def reduction_over_a_variable_of_the_left():
    f = td.Func("f")
    f[i] = td.sum(a[i, 0], axis=i)  # here


@wrong(td.DefinitionError, "identity of a reduction must be a number", hint="0 for a sum")
def identity_that_is_no_number():
    f = td.Func("f")
    f[i] = td.reduce(lambda x, y: x + y, a[i, 0], a[i, k], k)  # here


@wrong(td.DefinitionError, "combiner", hint="values")
def combiner_that_reads_a_tensor():
    f = td.Func("f")
    f[i] = td.reduce(lambda x, y: x + y * a[0, 0], 0.0, a[i, k], k)  # here


@wrong(td.TypeMismatch, "init has 1 value, values has 2", hint="each")
def identities_and_values_of_different_number():
    td.reduce(lambda x, y: x, (0.0,), (a[i, k], k), k)  # here


@wrong(td.TypeMismatch, "combine returns 1 value for 2", hint="tuple")
def combiner_with_too_few_results():
    td.reduce(lambda x, y: x[0], (0.0, 0), (a[i, k], k), k)  # here


@wrong(td.TypeMismatch, "'f' has 2 values, this update gives 1", hint="tuple")
def update_of_a_tuple_with_one_value():
    f = td.Func("f")
    f[i] = (a[i, 0], n[i])
    f[i] = (f[i][0] + 1,)  # here


@wrong(td.TypeMismatch, "2 values", hint="[0]")
def tuple_value_without_a_component():
    f, g = td.Func("f"), td.Func("g")
    g[i] = (a[i, 0], n[i])
    f[i] = g[i] + 1  # here


@wrong(td.IndexBoundError, "2 values", "no value 2", hint="[0] to [1]")
def component_that_is_not_there():
    f, g = td.Func("f"), td.Func("g")
    g[i] = (a[i, 0], n[i])
    f[i] = g[i][2]  # here


@wrong(td.TypeMismatch, "2 values", hint="[0]")
def padding_of_a_tuple():
    g = td.Func("g")
    g[i] = (a[i, 0], n[i])
    td.pad(g)  # here


@wrong(td.DefinitionError, "'2x' is not a name", hint="letters")
def tensor_with_a_bad_name():
    td.Tensor("2x", (3,), td.f32)  # here


@wrong(td.DefinitionError, "'my func' is not a name", hint="letters")
def func_with_a_bad_name():
    td.Func("my func")  # here


@wrong(td.DefinitionError, "None is not a name", hint="letters")
def func_without_a_name():
    td.Func(None)  # here


@wrong(td.DefinitionError, "'lambda'", "keyword", hint="lambda_")
def variable_named_by_a_keyword():
    td.vars("i lambda")  # here


@wrong(td.DefinitionError, "at least one name", hint='td.vars("i j")')
def no_variables():
    td.vars("")  # here


@wrong(td.TypeMismatch, "names", "3", hint='td.vars("i j")')
def variables_by_number():
    td.vars(3)  # here


@wrong(td.DefinitionError, "'f' is an output twice", hint="return f once")
def one_func_as_two_outputs():
    f = td.Func("f", shape=4)
    f[i] = i
    td.compile((f, f))  # here


@wrong(td.DefinitionError, "two inputs are named 'x'", hint="its own")
def two_tensors_of_one_name():
    f, x = td.Func("f"), td.Tensor("x", (8,), td.f32)
    y = td.Tensor("x", (8,), td.f32)  # here
    f[i] = x[i] + y[i]
    td.compile(f)


@wrong(td.DefinitionError, "no padding mode 'zero'", hint="constant")
def unknown_padding():
    td.pad(a, mode="zero")  # here


@wrong(td.DefinitionError, "only tensors and funcs can be padded, not ndarray", hint="td.Tensor")
def padding_of_an_array():
    td.pad(np.ones(3))  # here


@wrong(td.DefinitionError, "padding must be a number", hint="td.where")
def padding_with_an_expression():
    td.pad(a, value=a[0, 0])  # here


@wrong(
    td.DefinitionError,
    "parameter 'y' of operator 'add' has no tensor type",
    hint='td.f32["M", "N"]',
)
def operator_parameter_without_a_type():
    @td.op  # here
    def add(x: td.f32["N"], y):
        f = td.Func("f")
        f[i] = x[i] + y[i]
        return f

    add(np.ones(3, np.float32), np.ones(3, np.float32))


@wrong(td.DefinitionError, "'scale'", "must return funcs, not Value", hint="return out")
def operator_that_returns_no_func():
    @td.op  # here
    def scale(x: td.f32["N"]):
        return x[i] * 2

    scale(np.ones(3, np.float32))


@wrong(td.DefinitionError, "'later'", "annotation", hint="td.f32")
def operator_with_a_broken_annotation():
    @td.op  # here
    def later(x: "td.f33['N']"):
        f = td.Func("f")
        f[i] = x[i]
        return f

    later(np.ones(3, np.float32))


@wrong(td.DefinitionError, "'xs' of operator 'many'", "any number", hint="each input")
def operator_with_any_number_of_parameters():
    @td.op  # here
    def many(*xs: td.f32["N"]):
        f = td.Func("f")
        f[i] = xs[0][i]
        return f

    many(np.ones(3, np.float32))


@wrong(td.DefinitionError, "'eps' of operator 'plus' has a default", hint="take the default away")
def operator_parameter_with_a_default():
    @td.op  # here
    def plus(x: td.f32["N"], eps: td.f32 = 1e-6):
        f = td.Func("f")
        f[i] = x[i] + eps
        return f


@wrong(td.TypeMismatch, "Tensor 'a' is used without an index", hint="a[i, j]")
def comparison_of_a_tensor():
    f = td.Func("f")
    f[i, j] = td.where(a == 0, 1.0, a[i, j])  # here


@wrong(td.DefinitionError, "'f' is defined by no values", hint="tuple")
def definition_by_nothing():
    f = td.Func("f")
    f[i] = ()  # here


@wrong(td.DefinitionError, "an input cannot be named 'out'", hint="out=")
def input_named_as_the_argument_for_results():
    f = td.Func("f")
    x = td.Tensor("out", (8,), td.f32)  # here
    f[i] = x[i] * 2
    td.compile(f)


@wrong(td.DefinitionError, "'N' is a scalar and an extent", hint="x.shape[0]")
def scalar_named_as_an_extent():
    f, x = td.Func("f"), td.Tensor("x", ("N",), td.f32)
    f[i] = x[i] * td.Scalar("N", td.f32)  # here
    td.compile(f)


@wrong(td.DefinitionError, "'f' was changed after this schedule was created", hint="last definition")
def definition_after_the_schedule():
    f = td.Func("f")
    f[i] = a[i, 0]
    s = td.Schedule(f)
    f[i] += 1
    td.compile(s)  # here


@wrong(td.TypeMismatch, "an operator is defined by a function, not by 3", hint="def name")
def operator_of_a_number():
    td.op(3)  # here


@wrong(td.TypeMismatch, "combine is a function, not None", hint="lambda")
def combiner_that_is_none():
    td.reduce(None, 0.0, a[i, k], k)  # here


@wrong(td.DefinitionError, "names a variable twice", hint="a name of its own")
def one_variable_by_two_names():
    td.vars("i i")  # here


@wrong(td.TypeMismatch, "axis= takes loop variables", hint="axis=k", caret="td.sum(a[i, k])")
def reduction_over_nothing_named():
    td.sum(a[i, k])  # here
