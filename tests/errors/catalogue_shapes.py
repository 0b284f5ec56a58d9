"""Wrong extents and ranges, and accesses that may leave their tensor."""

import numpy as np

import tdsl as td
from tests.errors.case import Catalogue

CASES = Catalogue()
wrong = CASES.wrong

i, j, k = td.vars("i j k")
a = td.Tensor("a", (8, 9), td.f32)
b = td.Tensor("b", (10, 8), td.f32)
x = td.Tensor("x", ("N",), td.f32)
n = td.Tensor("n", (8,), td.i32)


@wrong(td.ShapeError, "'k' has two extents", "9 as axis 1 of 'a'", "10 as axis 0 of 'b'",
       hint="one extent", caret="b[k, j]")  # fmt: skip
def extents_that_disagree():
    c = td.Func("c")
    c[i, j] = td.sum(a[i, k] * b[k, j], axis=k)  # here
    return c.shape


@wrong(td.ShapeError, "'i' has two extents", "8 as axis 0 of 'a'", "10 as axis 0 of 'b'", hint="extent")
def extents_that_disagree_in_compile():
    c = td.Func("c")
    c[i] = a[i, 0] + b[i, 0]  # here
    td.compile(c)


@wrong(td.ShapeError, "an extent cannot be negative: -1", hint="0")
def negative_extent():
    td.Tensor("y", (4, -1), td.f32)  # here


@wrong(td.TypeMismatch, "integers and named extents, not 2.5", hint="shape=")
def fractional_extent():
    td.Tensor("y", (4, 2.5), td.f32)  # here


@wrong(td.TypeMismatch, "integers and named extents, not None", hint="shape=")
def extent_that_is_none():
    td.Tensor("y", (4, None), td.f32)  # here


@wrong(td.TypeMismatch, "integers and named extents, not True", hint="shape=")
def extent_that_is_a_bool():
    td.Tensor("y", (4, True), td.f32)  # here


@wrong(td.TypeMismatch, "a shape is a tuple of extents, not None", hint="shape=")
def tensor_without_a_shape():
    td.Tensor("y", None, td.f32)  # here


@wrong(td.DefinitionError, "'2N' is not a name", hint="letters")
def extent_with_a_bad_name():
    td.Tensor("y", ("2N",), td.f32)  # here


@wrong(td.TypeMismatch, "named extents, not n[0]", hint="shape=")
def extent_that_depends_on_data():
    td.Func("f", shape=(n[0],))  # here


@wrong(td.TypeMismatch, "named extents, not i", hint="shape=")
def extent_by_a_loop_variable():
    td.Func("f", shape=(i,))  # here


@wrong(td.ShapeError, "range of 'i' of 'f' does not follow", hint="f.with_shape(...)")
def range_that_nothing_says():
    f = td.Func("f")
    f[i] = i * 2  # here
    td.compile(f)


@wrong(td.ShapeError, "range of 'k' in 'f' does not follow", hint='td.range("k", lo, hi)')
def reduction_range_that_nothing_says():
    f = td.Func("f")
    f[i] = td.sum(a[i, 0] * k, axis=k)  # here
    td.compile(f)


@wrong(td.ShapeError, "range of 'i' of 'g' does not follow", hint="shape")
def padding_of_a_func_without_a_range():
    g = td.Func("g")
    g[i] = i * 2  # here
    td.pad(g)


@wrong(td.ShapeError, "'f' has 1 dimension, the shape has 2", hint="each dimension")
def shape_of_another_rank():
    f = td.Func("f")
    f[i] = a[i, 0]
    f.with_shape(8, 9)  # here


@wrong(td.ShapeError, "'f' has 2 dimensions, its shape has 1", hint="each dimension")
def declared_shape_of_another_rank():
    f = td.Func("f", shape=(8,))
    f[i, j] = a[i, j]  # here


@wrong(td.ShapeError, "'a' has 2 dimensions, the shape has 1", hint="each dimension")
def padding_with_a_shape_of_another_rank():
    td.pad(a, shape=(8,))  # here


@wrong(td.ShapeError, "extent cannot be negative: -3", hint="0")
def negative_declared_shape():
    td.Func("f").with_shape(-3)  # here


@wrong(td.ShapeError, "'f' has no size 'K'", hint="N")
def unknown_size_in_compile():
    f = td.Func("f")
    f[i] = x[i] * 2
    td.compile(f, K=3)  # here


@wrong(td.ShapeError, "'f' has no size 'M'", hint="N")
def unknown_dynamic_size():
    f = td.Func("f")
    f[i] = x[i] * 2
    td.compile(f, dynamic="M")  # here


@wrong(td.ShapeError, "'N' is fixed to 4 and dynamic", hint="one of them")
def size_that_is_fixed_and_dynamic():
    f = td.Func("f")
    f[i] = x[i] * 2
    td.compile(f, dynamic="N", N=4)  # here


@wrong(td.ShapeError, "size 'N'", "-4", hint="not negative")
def negative_size_in_compile():
    f = td.Func("f")
    f[i] = x[i] * 2
    td.compile(f, N=-4)  # here


@wrong(td.ShapeError, "size 'N'", "2.5", hint="integer")
def fractional_size_in_compile():
    f = td.Func("f")
    f[i] = x[i] * 2
    td.compile(f, N=2.5)  # here


@wrong(td.ShapeError, "'f' has no size 'K'", hint="N")
def unknown_size_of_a_schedule():
    f = td.Func("f")
    f[i] = x[i] * 2
    td.Schedule(f, sizes={"K": 3})  # here


@wrong(td.ShapeError, "size 'N' of 'f' is fixed to 4, it cannot be 8", hint="td.compile(..., N=8)")
def code_for_another_size_than_the_schedule_has():
    f = td.Func("f")
    f[i] = x[i] * 2
    td.compile(td.Schedule(f, sizes={"N": 4})).source(N=8)  # here


@wrong(td.ShapeError, "'f' has no size 'targt'", hint="did you mean 'target'")
def misspelt_argument_of_compile():
    f = td.Func("f")
    f[i] = x[i] * 2
    td.compile(f, targt="cuda")  # here


@wrong(td.ShapeError, "'double' has no size 'M'", hint="N")
def unknown_size_of_an_operator():
    double.schedule(M=3)  # here


@wrong(td.ShapeError, "size 'N'", "-1", hint="not negative")
def negative_size_of_an_operator():
    double.compile(N=-1)  # here


@td.op
def double(y: td.f32["N"]):
    f = td.Func("f")
    f[i] = y[i] * 2
    return f


@wrong(td.ShapeError, "sizes that are not known yet: N", hint=".loops(N=100)")
def loops_of_unknown_sizes():
    f = td.Func("f")
    f[i] = x[i] * 2
    td.compile(f).loops()  # here


@wrong(td.TargetError, "has no 'wasm' source", hint="llvm")
def source_of_an_unknown_kind():
    f = td.Func("f")
    f[i] = a[i, 0] * 2
    td.compile(f).source("wasm")  # here


@wrong(
    td.IndexBoundError,
    "'a' is read at 8 in axis 0, outside of [0, 8)",
    hint="td.pad",
    caret="a[i + 1, 0]",
)
def read_beyond_the_end():
    f = td.Func("f", shape=(8,))
    f[i] = a[i + 1, 0]  # here
    td.compile(f)(np.zeros((8, 9), np.float32))


@wrong(td.IndexBoundError, "'a' is read at -1 in axis 0", hint="td.pad")
def read_before_the_start():
    f = td.Func("f", shape=(8,))
    f[i] = a[i - 1, 0]  # here
    td.compile(f)(np.zeros((8, 9), np.float32))


@wrong(td.IndexBoundError, "'a' is read at 9 in axis 1", hint="td.clip")
def read_at_a_number_that_is_outside():
    f = td.Func("f")
    f[i] = a[i, 9]  # here
    td.compile(f)(np.zeros((8, 9), np.float32))


@wrong(td.IndexBoundError, "outside of [0, 8)", hint="td.clip")
def read_at_data_without_a_limit():
    f = td.Func("f")
    f[i] = a[n[i], 0]  # here
    td.compile(f)(np.zeros((8, 9), np.float32), np.zeros(8, np.int32))


@wrong(td.IndexBoundError, "'a' may be read at -3 in axis 0", hint="td.clip")
def index_whose_parts_share_a_variable():
    f = td.Func("f", shape=8)
    f[i] = a[i - i // 2, 0]  # here
    td.compile(f).loops()


@wrong(td.IndexBoundError, "'a' is read at 8 in axis 0", hint="td.clip")
def index_of_whole_steps():
    f = td.Func("f", shape=16)
    f[i] = a[i - i % 8, 0]  # here
    td.compile(f).loops()


@wrong(td.IndexBoundError, "'a' may be read at 8 in axis 0", hint="td.clip")
def read_at_data_with_a_wrong_limit():
    f = td.Func("f")
    f[i] = a[td.clip(n[i], 0, 8), 0]  # here
    td.compile(f)(np.zeros((8, 9), np.float32), np.zeros(8, np.int32))


@wrong(td.IndexBoundError, "'g' is read at 4", "outside of [0, 4)", hint="td.pad")
def read_beyond_a_declared_func():
    g, f = td.Func("g", shape=(4,)), td.Func("f", shape=(5,))
    g[i] = a[i, 0]
    f[i] = g[i]  # here
    td.compile(f)(np.zeros((8, 9), np.float32))


@wrong(td.IndexBoundError, "axis 0 of 'f'", "may be written", hint="td.clip")
def scatter_outside_of_the_shape():
    f = td.Func("f", shape=(4,))
    f[i] = 0
    f[n[j]] += 1  # here
    td.compile(f)(np.zeros(8, np.int32))


@wrong(td.IndexBoundError, "axis 0 of 'f'", "[0, 8) is written", hint="larger shape")
def update_beyond_the_shape():
    f, r = td.Func("f", shape=(4,)), td.range("r", 0, 8)
    f[i] = 0
    f[r] += n[r]  # here
    td.compile(f)(np.zeros(8, np.int32))


@wrong(td.IndexBoundError, "axis 0 of 'g'", "[0, 8) is written", hint="larger shape")
def update_beyond_the_shape_of_a_func_in_the_middle():
    g, f, r = td.Func("g", shape=(4,)), td.Func("f"), td.range("r", 0, 8)
    g[i] = 0
    g[r] += n[r]  # here
    f[i] = g[i] * 2
    td.compile(f)(np.zeros(8, np.int32))


@wrong(td.IndexBoundError, "'g' may be written out of range in axis 0", hint="td.clip")
def scatter_that_is_outside_for_the_size_of_a_call():
    g, f = td.Func("g", shape="N"), td.Func("f")
    g[i] = x[i]
    g[td.clip(n[j], 0, 4)] += 1  # here
    f[i] = g[i] * 2
    td.compile(f, dynamic="N")(np.zeros(4, np.float32), np.zeros(8, np.int32))


@wrong(td.IndexBoundError, "'x' is read out of range in axis 0", hint="td.pad")
def read_that_is_outside_for_the_size_of_a_call():
    f = td.Func("f", shape=(4,))
    f[i] = x[i]  # here
    td.compile(f, dynamic="N")(np.zeros(3, np.float32))


@wrong(td.IndexBoundError, "'x' is read at 3 in axis 0", hint="td.pad")
def read_that_is_outside_for_a_fixed_size():
    f = td.Func("f", shape=(4,))
    f[i] = x[i]  # here
    td.compile(f)(np.zeros(3, np.float32))


@wrong(td.ScheduleError, "unroll", "number of iterations", hint="unroll('i', 8)")
def unrolling_of_a_dynamic_loop():
    f = td.Func("f")
    f[i] = x[i] * 2
    s = td.Schedule(f)
    s[f].unroll(i)  # here
    td.compile(s, dynamic="N")(np.zeros(3, np.float32))


@wrong(td.ShapeError, "1000000000000000000000000 is too large", hint="2**63")
def extent_beyond_all_integers():
    td.Tensor("y", (10**24,), td.f32)  # here


@wrong(td.TypeMismatch, "dynamic= names sizes", "3", hint='dynamic="N"')
def dynamic_size_by_number():
    f = td.Func("f")
    f[i] = x[i] * 2
    td.compile(f, dynamic=3)  # here


@wrong(td.TypeMismatch, "sizes are given by name", hint="sizes={")
def sizes_of_a_schedule_by_position():
    f = td.Func("f")
    f[i] = x[i] * 2
    td.Schedule(f, sizes=(3,))  # here


@wrong(td.TypeMismatch, "repeat must be a positive integer, not 0", hint="repeat=5")
def profile_of_no_calls():
    f = td.Func("f")
    f[i] = a[i, 0] * 2
    td.compile(f).profile(np.zeros((8, 9), np.float32), repeat=0)  # here


@wrong(td.TargetError, "no 'raw' loops", hint="scheduled, final")
def loops_of_an_unknown_stage():
    f = td.Func("f")
    f[i] = a[i, 0] * 2
    td.compile(f).loops("raw")  # here


@wrong(td.IndexBoundError, "'a' may be read at 255 in axis 0, outside of [0, 8)", hint="td.clip")
def index_that_is_data():
    a, at, f = td.Tensor("a", (8,), td.f32), td.Tensor("at", (3,), td.u8), td.Func("f")
    f[i] = a[at[i]]  # here
    td.compile(f)(np.zeros(8, np.float32), np.zeros(3, np.uint8))
