"""Programs: unique names, order, arguments, sizes, text."""

import copy

import numpy as np
import pytest

import tdsl as td
from tdsl.codegen.runtime.fingerprint import fingerprint
from tdsl.core.node import post_order
from tdsl.errors import DefinitionError, ShapeError, TypeMismatch
from tdsl.lang.build_program import build_program, inputs_in_read_order
from tdsl.lang.expr import Size, const
from tdsl.lang.program import Program, bind_sizes

i, j, k = td.vars("i j k")


def test_arguments_come_in_the_order_in_which_they_were_created() -> None:
    b, s, a = td.Tensor("b", (3,), td.f32), td.Scalar("s", td.f32), td.Tensor("a", (3,), td.f32)
    f = td.Func("f")
    f[i] = a[i] * s + b[i]
    program = build_program((f,))
    assert program.parameters == ("b", "s", "a")
    assert [t.name for t in program.inputs] == ["b", "a"]
    assert build_program((f,), (a,)).parameters == ("a", "b", "s")
    assert inputs_in_read_order((f,)) == ("a", "s", "b")


def test_a_copied_and_renamed_tensor_keeps_its_place_among_arguments() -> None:
    a, b = td.Tensor("a", (3,), td.f32), td.Tensor("b", (3,), td.f32)
    first = copy.copy(a)
    first.name = "z"
    f = td.Func("f")
    f[i] = b[i] + first[i]
    assert build_program((f,)).parameters == ("z", "b")


def test_a_scalar_that_is_declared_again_keeps_its_first_place() -> None:
    early, a = td.Scalar("s", td.f32), td.Tensor("a", (3,), td.f32)
    late = td.Scalar("s", td.f32)
    f = td.Func("f")
    f[i] = a[i] * late + early
    assert build_program((f,)).parameters == ("s", "a")


def test_when_inputs_were_created_is_in_no_text_and_no_fingerprint() -> None:
    def build() -> Program:
        a, s, b = td.Tensor("a", (3,), td.f32), td.Scalar("s", td.f32), td.Tensor("b", (3,), td.f32)
        f = td.Func("f")
        f[i] = b[i] * s + a[i]
        return build_program((f,))

    one, other = build(), build()
    assert one == other
    assert (str(one), repr(one), hash(one)) == (str(other), repr(other), hash(other))
    assert fingerprint(one) == fingerprint(other)


def test_operands_of_an_einsum_stand_in_the_order_given_in_the_places_that_are_theirs() -> None:
    a, b, c, x = (td.Tensor(n, (4, 4), td.f32) for n in "abcx")
    product = td.einsum("ij,jk,kl->il", c, x, a)
    assert build_program((product,)).parameters == ("c", "x", "a")
    f, g = td.Func("f"), td.Func("g")
    f[i, j] = b[i, j] + product[i, j]
    assert build_program((f,)).parameters == ("c", "b", "x", "a")
    again = td.einsum("ij,jk->ik", a, td.pad(c, shape=(4, 4)))
    g[i, j] = product[i, j] + again[i, j]
    assert build_program((g,)).parameters == ("a", "x", "c")


def test_operands_of_an_einsum_may_be_scalars_values_funcs_and_numbers() -> None:
    a, b = td.Tensor("a", (4, 4), td.f32), td.Tensor("b", (4, 4), td.f32)
    s, f = td.Scalar("s", td.f32), td.Func("f")
    f[i, j] = a[i, j] * 2
    assert build_program((td.einsum(",ij,ij->ij", s, b[i, j] + 1, a),)).parameters == (
        "s",
        "b",
        "a",
    )
    assert build_program((td.einsum(",ij,ij->ij", 2, b, f),)).parameters == ("a", "b")


def test_producers_come_before_consumers() -> None:
    a, f, g, h = td.Tensor("a", (9,), td.f32), td.Func("f"), td.Func("g"), td.Func("h")
    f[i] = a[i]
    h[i] = f[i] + 1
    g[i] = h[i] + f[i]
    assert [x.name for x in build_program((g,)).funcs] == ["f", "h", "g"]


def test_funcs_of_one_name_are_renamed() -> None:
    a, f, g, h = td.Tensor("f", (9,), td.f32), td.Func("f"), td.Func("f"), td.Func("h")
    f[i] = a[i]
    g[i] = f[i] * 2
    h[i] = g[i] + f[i]
    program = build_program((h,))
    assert [x.name for x in program.funcs] == ["f_1", "f_2", "h"]
    assert str(program) == str(build_program((h,)))


def test_a_func_without_readers_is_left_out() -> None:
    a, f, g = td.Tensor("a", (9,), td.f32), td.Func("f"), td.Func("g")
    f[i] = a[i]
    g[i] = f[i]
    assert not build_program((f,)).has_func("g")


def test_two_inputs_of_one_name_are_refused() -> None:
    a, b, f = td.Tensor("a", (9,), td.f32), td.Tensor("a", (9,), td.i32), td.Func("f")
    f[i] = a[i] + b[i]
    with pytest.raises(DefinitionError, match="two inputs are named 'a'"):
        build_program((f,))


def test_a_scalar_of_two_types_is_refused() -> None:
    f = td.Func("f", shape=(3,))
    f[i] = td.Scalar("s", td.f32) + td.Scalar("s", td.f64) + i
    with pytest.raises(TypeMismatch, match="both f32 and f64"):
        build_program((f,))


def test_a_scalar_may_be_declared_twice() -> None:
    f = td.Func("f", shape=(3,))
    f[i] = td.Scalar("s", td.f32) + td.Scalar("s", td.f32)
    assert build_program((f,)).parameters == ("s",)


def test_binding_sizes_leaves_numbers() -> None:
    a, f = td.Tensor("a", ("M", "N"), td.f32), td.Func("f")
    f[i, j] = td.pad(a, mode="reflect")[i - 1, j] + a[i, j + 1] * a.shape[0]
    program = build_program((f,))
    assert program.sizes == ("M", "N")
    fixed = bind_sizes(program, {"M": 4, "N": 6})
    assert fixed.sizes == ()
    assert fixed.func("f").natural == ((const(0), const(3)), (const(-1), const(4)))
    for d in fixed.func("f").definitions:
        assert not any(isinstance(n, Size) for n in post_order(*d.expressions()))
    assert bind_sizes(program, {"M": 4}).sizes == ("N",)


def test_programs_of_equal_text_are_equal() -> None:
    def make() -> object:
        a, f = td.Tensor("a", ("M",), td.f32), td.Func("f")
        f[i] = td.sum(a[k] * a[i], axis=k)
        return build_program((f,))

    assert make() == make()


def test_a_program_reads_as_it_was_written() -> None:
    image, hist, cdf = td.Tensor("image", ("H", "W"), td.u8), td.Func("hist"), td.Func("cdf")
    eps, out = td.Scalar("eps", td.f32), td.Func("out")
    r = td.range("r", 1, 256)
    hist[i] = td.cast(0, td.i32)
    hist[image[j, k]] += 1
    cdf[i] = hist[i]
    cdf[r] += cdf[r - 1]
    out[j, k] = cdf[image[j, k]] * eps
    assert (
        str(build_program((out,)))
        == """\
out(image: u8[H, W], eps: f32) -> out
hist: i32
  hist[i] = 0
  hist[cast(image[j, k], i64)] += 1 for j in range(0, H) for k in range(0, W)
cdf: i32
  cdf[i] = hist[i]
  cdf[r] += cdf[r - 1] for r in range(1, 256)
out: f64 on 0 <= j < H, 0 <= k < W
  out[j, k] = cast(cdf[cast(image[j, k], i64)], f64) * cast(eps, f64)"""
    )


def test_updates_of_every_kind_read_as_they_were_written() -> None:
    a, f = td.Tensor("a", (4, 5), td.f32), td.Func("f")
    r = td.range("r", 0, 5, where=lambda r: r < i)
    f[i] = td.prod(a[i, k], axis=k)
    f[i] = td.maximum(f[i], a[i, 0])
    f[i] *= a[i, 1]
    f[i] = f[i] * a[i, r] + 1
    g = td.Func("g")
    g[i] = td.reduce(lambda x, y: (x[0] + y[0], td.maximum(x[1], y[1])),
                     (0.0, 0.0), (a[i, k], f[i]), axis=k)  # fmt: skip
    assert (
        repr(f)
        == """\
f[i] = prod(a[i, k], axis=k)
f[i] = max(f[i], a[i, 0])
f[i] *= a[i, 1]
f[i] = f[i] * a[i, r] + 1.0 for r in range(0, 5) if r < i"""
    )
    expected = "g[i] = reduce((a0 + b0, max(a1, b1)), init=(0.0, 0.0), (a[i, k], f[i]), axis=k)"
    assert repr(g) == expected


def test_the_number_of_values_of_a_variable_is_known_once_ranges_are() -> None:
    from tdsl.lang.interp import interpret

    a, f = td.Tensor("a", ("M", "N"), td.f32), td.Func("f")
    f[()] = td.argmax(a[i, j], axis=(i, j))
    x = np.zeros((3, 4), np.float32)
    x[2, 1] = 5
    assert interpret(build_program((f,)), {"a": x})[0] == 9


def test_a_size_that_indices_make_another_may_be_given_by_either_name() -> None:
    @td.op
    def product(x: td.f32["M", "K"], w: td.f32["O", "C"]):
        f = td.Func("f")
        f[i, j] = x[i, j] * w[i, j]
        return f

    (m, k_) = product.program.sizes
    for given in ({"M": 8, "K": 9}, {"O": 8, "C": 9}, {"M": 8, "O": 8, "C": 9}):
        assert product.autoschedule(**given).sizes == {m: 8, k_: 9}
        assert product.schedule(**given).sizes == product.compile(**given).sizes == {m: 8, k_: 9}
    assert "range(0, 8)" in str(product.compile().loops(O=8, K=9))
    for name in ("K", "C"):
        assert td.compile(product, dynamic=name).dynamic == {k_}
    with pytest.raises(ShapeError, match=r"size '.' of 'product' is . by its indices, which is ., not"):
        product.autoschedule(M=8, O=9, C=4)


def test_a_size_that_indices_make_a_number_is_that() -> None:
    @td.op
    def plus(x: td.f32["N", 3], w: td.f32["P", "Q"]):
        f = td.Func("f")
        f[i, j] = x[i, j] + w[i, j]
        return f

    assert [*plus.schedule(Q=3, N=4).sizes.values()] == [4]
    with pytest.raises(ShapeError, match="size 'Q' of 'plus' is 3 by its indices, not 4"):
        plus.schedule(Q=4)


def windows() -> td.Func:
    i = td.vars("i")
    x, y = td.Tensor("x", ("N",), td.f32), td.Tensor("y", ("P",), td.f32)
    h, q, f = td.Func("h"), td.Func("q"), td.Func("f")
    h[i] = x[i] + x[i + 2]
    q[i] = y[i] + y[i + 3]
    f[i] = h[i] * q[i]
    return f


@pytest.mark.parametrize("given", [{"N": 5}, {"P": 6}, {"N": 5, "P": 6}])
def test_a_size_follows_from_one_that_is_equal_to_an_expression_of_it(given) -> None:
    loops = td.compile(windows(), **given).loops().splitlines()[0]
    assert "x: f32[5]" in loops
    assert "y: f32[6]" in loops


@pytest.mark.parametrize("dynamic", ["N", "P", ("N", "P")])
def test_each_name_of_equal_sizes_leaves_both_open(dynamic) -> None:
    f = td.compile(windows(), dynamic=dynamic)
    for n in (5, 3):
        ones = np.ones(n, np.float32), np.ones(n + 1, np.float32)
        np.testing.assert_array_equal(f(*ones), np.full(n - 2, 4.0))


def test_contradicting_sizes_are_an_error() -> None:
    with pytest.raises(ShapeError, match="size 'N' of 'f' is P - 1 by its indices, which is 6, not"):
        td.compile(windows(), N=5, P=7)
