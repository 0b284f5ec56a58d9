"""The interpreter: arguments, sizes, effects, empty ranges, boxes; whole pipelines against NumPy."""

import numpy as np
import pytest

import tdsl as td
from tdsl.errors import IndexBoundError, RequireError, ShapeError, TypeMismatch
from tdsl.lang import interp
from tdsl.lang import interpreted_boxes as realised
from tdsl.lang.build_program import build_program
from tdsl.lang.interp import interpret
from tdsl.lang.interpreted_boxes import realised_boxes
from tdsl.lang.program import bind_sizes
from tests.lang.meaning import counted, run

i, j, k = td.vars("i j k")


def test_a_blur_of_two_stages() -> None:
    image, rows, blur = td.Tensor("image", ("H", "W"), td.f32), td.Func("rows"), td.Func("blur")
    edge = td.pad(image, mode="edge")
    rows[i, j] = (edge[i, j - 1] + edge[i, j] + edge[i, j + 1]) / 3
    blur[i, j] = (rows[i - 1, j] + rows[i, j] + rows[i + 1, j]) / 3
    a = counted(9, 13)
    p = np.pad(a, 1, mode="edge")
    h = (p[:, :-2] + p[:, 1:-1] + p[:, 2:]) / 3
    np.testing.assert_array_equal(run(blur, image=a), (h[:-2] + h[1:-1] + h[2:]) / 3)


def test_a_matrix_product_adds_in_order() -> None:
    a, b, c = td.Tensor("a", ("M", "K"), td.f32), td.Tensor("b", ("K", "N"), td.f32), td.Func("c")
    c[i, j] = td.sum(a[i, k] * b[k, j], axis=k)
    rng = np.random.default_rng(0)
    x, y = rng.random((3, 7), dtype=np.float32), rng.random((7, 5), dtype=np.float32)
    want = np.zeros((3, 5), np.float32)
    for n in range(7):
        want = want + x[:, n : n + 1] * y[n]
    np.testing.assert_array_equal(run(c, a=x, b=y), want)


def test_equal_names_need_equal_extents() -> None:
    a, b, f = td.Tensor("a", ("N",), td.f32), td.Tensor("b", ("N",), td.f32), td.Func("f")
    f[i] = a[i] + b[i]
    with pytest.raises(ShapeError, match="'b' has shape"):
        run(f, a=counted(3), b=counted(4))


def test_arguments_must_fit() -> None:
    a, f = td.Tensor("a", (3,), td.f32), td.Func("f")
    f[i] = a[i]
    with pytest.raises(TypeMismatch, match="holds f32"):
        run(f, a=counted(3, dtype=np.float64))
    with pytest.raises(ShapeError, match="of 1 dimension"):
        run(f, a=counted(3, 1))
    with pytest.raises(ShapeError, match="shape"):
        run(f, a=counted(4))


def test_a_size_that_no_array_tells_is_given() -> None:
    f = td.Func("f", shape=("N",))
    f[i] = td.cast(i * i, td.i32)
    (got,) = interpret(build_program((f,)), {}, {"N": 4})
    np.testing.assert_array_equal(got, [0, 1, 4, 9])


def test_an_array_of_any_layout_is_read_by_its_index() -> None:
    a, f = td.Tensor("a", (4, 3), td.f32), td.Func("f")
    f[i, j] = a[i, j] * 2
    x = counted(3, 8).T[::2]
    np.testing.assert_array_equal(run(f, a=x), x * 2)


@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (0, 0)])
def test_empty_arrays_give_empty_results(shape: tuple[int, int]) -> None:
    a, f, g, h = td.Tensor("a", ("M", "N"), td.f32), td.Func("f"), td.Func("g"), td.Func("h")
    f[i, j] = a[i, j] + td.pad(a, mode="edge")[i - 1, j + 1]
    g[i] = td.sum(f[i, k], axis=k)
    h[()] = td.sum(g[k], axis=k)
    x = np.zeros(shape, np.float32)
    rows, total, inner = run(g, h, f, a=x)
    assert rows.shape == (shape[0],)
    assert not rows.any()
    assert total == 0
    assert inner.shape == shape


def test_only_what_is_read_is_computed() -> None:
    a, f, g = td.Tensor("a", ("N",), td.f32), td.Func("f"), td.Func("g", shape=(2,))
    f[i] = td.require(i < 5, a[i], "never read")
    g[i] = f[i + 1]
    np.testing.assert_array_equal(run(g, a=counted(9)), counted(9)[1:3])
    program = bind_sizes(build_program((g,)), {"N": 9})
    assert realised_boxes(program) == {"f": ((1, 2),), "g": ((0, 1),)}


def test_the_updates_of_a_func_add_to_what_is_computed_of_it() -> None:
    f, g, r = td.Func("f"), td.Func("g", shape=(1,)), td.range("r", 3, 9)
    f[i] = td.cast(i, td.i32)
    f[r] += f[r - 2]
    g[i] = f[i + 8]
    assert realised_boxes(build_program((g,)))["f"] == ((1, 8),)


def test_updates_that_ask_for_ever_more_are_refused() -> None:
    f, g = td.Func("f"), td.Func("g", shape=(3,))
    f[i, j] = td.cast(0, td.i32)
    f[i, i + 1] += 1
    f[j + 1, j] += 1
    g[i] = f[i, i]
    with pytest.raises(IndexBoundError, match="ever larger"):
        run(g)


def test_an_update_outside_of_a_declared_shape_is_refused() -> None:
    f, g = td.Func("f", shape=(2,)), td.Func("g", shape=(2,))
    f[i] = td.cast(i, td.i32)
    f[3] += 1
    g[i] = f[i]
    with pytest.raises(IndexBoundError, match="at 3 of axis 0"):
        run(g)


def test_a_negative_extent_is_refused() -> None:
    a, f = td.Tensor("a", ("N",), td.f32), td.Func("f")
    f[i] = a[i] + a[i + 5]
    assert run(f, a=counted(5)).shape == (0,)
    with pytest.raises(ShapeError, match="-1"):
        run(f, a=counted(4))


def test_an_index_without_bounds_is_refused() -> None:
    a, f, g = td.Tensor("a", (3,), td.i64), td.Func("f"), td.Func("g")
    f[i] = td.cast(i, td.i64)
    g[i] = f[a[i]]
    with pytest.raises(IndexBoundError, match=r"td\.clip"):
        run(g, a=counted(3, dtype=np.int64))


def test_index_errors_differ_from_region_bugs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    a, f, g = td.Tensor("a", (6,), td.f32), td.Func("f"), td.Func("g", shape=(5,))
    f[i] = a[i]
    g[i] = f[i + 1]
    np.testing.assert_array_equal(run(g, a=counted(6)), counted(6)[1:])
    g.with_shape(6)
    with pytest.raises(IndexBoundError):
        run(g, a=counted(6))
    g.with_shape(5)
    # the region function answers one too few
    monkeypatch.setattr(interp, "realised_boxes", lambda p: {"f": ((1, 4),), "g": ((0, 4),)})
    with pytest.raises(AssertionError, match="region bug"):
        run(g, a=counted(6))
    assert realised.realised_boxes(build_program((g,))) == {"f": ((1, 5),), "g": ((0, 4),)}


def test_a_check_that_fails_says_where() -> None:
    a, f = td.Tensor("a", (4,), td.f32), td.Func("f")
    f[i] = td.sqrt(td.require(a[i] >= 0, a[i], "a[{}] is {}", i, a[i]))
    np.testing.assert_array_equal(run(f, a=np.ones(4, np.float32)), np.ones(4))
    x = np.array([1, 4, -2.5, -3], np.float32)
    with pytest.raises(RequireError, match=r"a\[2\] is -2.5"):
        run(f, a=x)


def test_values_are_printed_where_a_condition_holds() -> None:
    a, f, lines = td.Tensor("a", (4,), td.i32), td.Func("f"), []
    f[i] = td.debug_print(a[i], "{}: {}", i, a[i], when=a[i] > 1)
    x = np.array([0, 2, 1, 5], np.int32)
    (got,) = interpret(build_program((f,)), {"a": x}, out=lines.append)
    np.testing.assert_array_equal(got, x)
    assert lines == ["1: 2", "3: 5"]


def test_scalars_are_values_and_bounds() -> None:
    n, f = td.Scalar("n", td.i32), td.Func("f", shape=(6,))
    r = td.range("r", 0, td.clip(n, 0, 6))
    f[i] = td.cast(0, td.i32)
    f[r] += n
    np.testing.assert_array_equal(run(f, n=4), [4, 4, 4, 4, 0, 0])
    np.testing.assert_array_equal(run(f, n=-1), [0] * 6)


def test_random_numbers_depend_on_their_key_alone() -> None:
    f, g = td.Func("f", shape=(3, 4)), td.Func("g", shape=(4, 3))
    f[i, j] = td.random(i, j, seed=5)
    g[i, j] = td.random(j, i, seed=5)
    x, y = run(f, g)
    np.testing.assert_array_equal(x, y.T)
    assert len(np.unique(x)) == 12
    assert np.all((x >= 0) & (x < 1))


def test_a_gather_reads_what_the_data_say() -> None:
    a, b, f = td.Tensor("a", (256,), td.f32), td.Tensor("b", (7,), td.u8), td.Func("f")
    f[i] = a[b[i]]
    x = np.array([0, 255, 3, 3, 128, 1, 2], np.uint8)
    np.testing.assert_array_equal(run(f, a=counted(256), b=x), counted(256)[x])


def test_half_floats_are_rounded_at_every_step() -> None:
    a, f = td.Tensor("a", (3,), td.f16), td.Func("f")
    f[i] = (a[i] + 1) * a[i] - a[i]
    x = np.array([0.1, 3.14159, 100.3], np.float16)
    np.testing.assert_array_equal(run(f, a=x), (x + np.float16(1)) * x - x)
