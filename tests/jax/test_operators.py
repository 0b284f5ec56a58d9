"""Operators as functions of JAX: values, jit, grad, vmap, donation, and refusals."""

import numpy as np
import pytest

import tdsl as td

jax = pytest.importorskip("jax", reason="JAX is an optional package")
jnp = jax.numpy

TYPES = {"f32": 1e-5, "f64": 1e-12, "bf16": 0.05, "f16": 0.005}


def operators(t):
    """The operators by name, each with the same function in JAX and the shapes of its arguments."""
    i, j, k, e = td.vars("i j k e")

    @td.op
    def scale(x: t["N"], factor: t):
        y = td.Func("y")
        y[i] = x[i] * factor
        return y

    @td.op
    def add(a: t["M", "N"], b: t["N"]):
        y = td.Func("y")
        y[i, j] = a[i, j] + 2 * b[j]
        return y

    @td.op
    def transpose(a: t["M", "N"]):
        y = td.Func("y")
        y[j, i] = a[i, j]
        return y

    @td.op
    def gelu(x: t["N"]):
        y = td.Func("y")
        y[i] = x[i] * 0.5 * (1 + td.erf(x[i] * 0.7071067811865476))
        return y

    @td.op
    def matmul(a: t["M", "K"], b: t["K", "N"]):
        y = td.Func("y")
        y[i, j] = td.sum(a[i, k] * b[k, j], axis=k)
        return y

    @td.op
    def softmax(x: t["M", "N"]):
        y, p, highest = td.Func("y"), td.Func("p"), td.Func("highest")
        highest[i] = td.max(x[i, k], axis=k)
        p[i, j] = td.exp(x[i, j] - highest[i])
        y[i, j] = p[i, j] / td.sum(p[i, k], axis=k)
        return y

    @td.op
    def rms_norm(x: t["M", "N"], g: t["N"]):
        y = td.Func("y")
        y[i, j] = x[i, j] * td.rsqrt(td.sum(x[i, e] * x[i, e], axis=e) / x.shape[1] + 1e-6) * g[j]
        return y

    @td.op
    def differences(x: t["N"]):
        y = td.Func("y", shape=(x.shape[0] - 2,))
        y[i] = x[i + 2] - x[i]
        return y

    return {
        "scale": (scale, lambda x, factor: x * factor, [(9,), ()]),
        "add": (add, lambda a, b: a + 2 * b, [(5, 7), (7,)]),
        "transpose": (transpose, jnp.transpose, [(5, 7)]),
        "gelu": (gelu, lambda x: jax.nn.gelu(x, approximate=False), [(11,)]),
        "matmul": (matmul, jnp.matmul, [(5, 6), (6, 7)]),
        "softmax": (softmax, lambda x: jax.nn.softmax(x, -1), [(5, 7)]),
        "rms_norm": (rms_norm, rms, [(5, 7), (7,)]),
        "differences": (differences, lambda x: x[2:] - x[:-2], [(9,)]),
    }


def rms(x, g):
    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * g


OPERATORS = {kind: operators(getattr(td, kind)) for kind in TYPES}
NAMES = sorted(OPERATORS["f64"])
FUNCTIONS = {name: td.jax.op(operator) for name, (operator, _, _) in OPERATORS["f32"].items()}


@pytest.fixture
def _x64():
    with jax.enable_x64(True):
        yield


def random(shapes, kind="f64", seed=0):
    generator = np.random.default_rng(seed)
    return [jnp.asarray(generator.standard_normal(s), getattr(td, kind).numpy) for s in shapes]


def assert_near(results, references, tolerance):
    for x, expected in zip(jax.tree.leaves(results), jax.tree.leaves(references), strict=True):
        assert x.shape == expected.shape
        assert isinstance(x, jax.Array)
        x, expected = np.asarray(x, np.float64), np.asarray(expected, np.float64)
        assert np.abs(x - expected).max(initial=0) <= tolerance * (np.abs(expected).max(initial=0) + 1)


def squares(function):
    return lambda *inputs: (function(*inputs) ** 2).sum()


@pytest.mark.usefixtures("_x64")
@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("name", NAMES)
def test_results_are_those_of_jax(name, kind):
    operator, reference, shapes = OPERATORS[kind][name]
    inputs = random(shapes, kind)
    expected = reference(*(x.astype(np.float64) for x in inputs))
    result = td.jax.op(operator)(*inputs)
    assert result.dtype == getattr(td, kind).numpy
    assert_near(result, expected, TYPES[kind])


@pytest.mark.usefixtures("_x64")
@pytest.mark.parametrize("name", NAMES)
def test_gradients_under_jit_and_vmap_are_those_of_jax(name):
    operator, reference, shapes = OPERATORS["f64"][name]
    function = td.jax.op(operator)
    inputs, positions = random(shapes), tuple(range(len(shapes)))
    for transformed in (lambda f: jax.grad(squares(f), positions), lambda f: jax.jit(f)):
        assert_near(transformed(function)(*inputs), transformed(reference)(*inputs), 1e-12)
    batch = random([(3, *s) for s in shapes])
    each = jax.jit(jax.vmap(jax.grad(squares(function), positions)))
    assert_near(each(*batch), jax.vmap(jax.grad(squares(reference), positions))(*batch), 1e-12)


def test_gradients_of_sixteen_bits_are_those_of_jax():
    operator, reference, shapes = OPERATORS["bf16"]["rms_norm"]
    inputs = random(shapes, "bf16")
    computed = jax.grad(squares(td.jax.op(operator)), (0, 1))(*inputs)
    expected = jax.grad(squares(reference), (0, 1))(*(x.astype(np.float32) for x in inputs))
    assert [x.dtype for x in computed] == [jnp.bfloat16] * 2
    assert_near(computed, expected, 0.05)


@pytest.mark.usefixtures("_x64")
def test_gradients_of_a_second_order_are_those_of_jax():
    operator, reference, shapes = OPERATORS["f64"]["rms_norm"]
    inputs = random(shapes)

    def twice(f):
        return jax.grad(lambda x, g: jax.grad(squares(f), 1)(x, g).sum(), (0, 1))(*inputs)

    assert_near(twice(td.jax.op(operator)), twice(reference), 1e-11)


def test_a_batch_of_some_inputs_and_of_batches():
    function, reference = FUNCTIONS["matmul"], jnp.matmul
    a, b = random([(2, 4, 5, 6), (6, 2, 7)], "f32")
    for x, y in ((2, 0), (0, 2)):  # the sizes 1 and 0 as well

        def nested(f, axes=(None, 1)):
            return jax.vmap(jax.vmap(f, (0, None)), (0, axes[1]))

        assert_near(nested(function)(a[:x], b[:, :x]), nested(reference)(a[:x], b[:, :x]), 1e-5)
        assert_near(nested(function)(a[:, :y], b), nested(reference)(a[:, :y], b), 1e-5)
    shared = jax.vmap(function, (0, None))
    assert_near(shared(a[0], b[:, 0]), jax.vmap(reference, (0, None))(a[0], b[:, 0]), 1e-5)


def test_numbers_are_converted_where_jax_would_and_have_gradients():
    function, x = FUNCTIONS["scale"], jnp.arange(3.0)
    for factor in (2, 2.0, np.float64(2), jnp.float32(2), jnp.int32(2), jnp.asarray(2)):
        assert jax.jit(function)(x, factor).tolist() == function(x, factor=factor).tolist() == [0, 2, 4]
    assert jax.grad(lambda factor: function(x, factor).sum())(2.0) == 3
    assert jax.vmap(function, (None, 0))(x, jnp.arange(2.0)).tolist() == [[0, 0, 0], [0, 1, 2]]


def test_several_results_of_floats_integers_and_bools():
    i, k = td.vars("i k")

    @td.op
    def extrema(x: td.f32["M", "N"], offset: td.i32["M"], is_positive: td.bool_):
        highest, where, exceeds = td.Func("highest"), td.Func("where"), td.Func("exceeds")
        highest[i] = td.max(x[i, k], axis=k)
        where[i] = td.cast(td.argmax(x[i, k], axis=k), td.i32) + offset[i]
        exceeds[i] = (highest[i] > 0) == is_positive
        return highest, where, exceeds

    function = td.jax.op(extrema)
    (x,), offset = random([(5, 7)], "f32"), jnp.arange(5, dtype=jnp.int32)

    def reference(x, offset, is_positive):
        return x.max(1), jnp.argmax(x, 1).astype(np.int32) + offset, (x.max(1) > 0) == is_positive

    for flag in (True, False):
        results = jax.jit(function)(x, offset, flag)
        assert [r.dtype for r in results] == [np.float32, np.int32, np.bool_]
        for result, expected in zip(results, reference(x, offset, flag), strict=True):
            np.testing.assert_array_equal(result, expected)
    gradient, none = jax.grad(lambda x, n: function(x, n, True)[0].sum(), (0, 1), allow_int=True)(x, offset)
    np.testing.assert_array_equal(gradient, x == x.max(1, keepdims=True))
    assert none.dtype == jax.dtypes.float0


@pytest.mark.parametrize("shape", [(0, 7), (1, 1), (5, 1)])
def test_empty_and_single_extents(shape):
    function = FUNCTIONS["rms_norm"]
    x, g = random([shape, shape[1:]], "f32")
    assert_near(function(x, g), rms(x, g), 1e-5)
    assert_near(jax.grad(squares(function), (0, 1))(x, g), jax.grad(squares(rms), (0, 1))(x, g), 1e-5)


def test_only_the_gradients_that_are_needed_are_computed():
    i = td.vars("i")

    @td.op
    def last(a: td.f32[9], b: td.f32[9], at: td.i32[9]):  # without a derivative by `a`
        y, r = td.Func("y", shape=(9,)), td.range("r", 0, 9)
        y[i] = b[i]
        y[td.clip(at[r], 0, 8)] = a[r]
        return y

    function, (a, b), at = td.jax.op(last), random([(9,), (9,)], "f32"), jnp.arange(9, dtype=jnp.int32)
    assert function(a, b, at).tolist() == a.tolist()
    with pytest.raises(td.DefinitionError, match="may store a cell twice"):
        jax.grad(lambda a: function(a, b, at).sum())(a)
    matmul, (c, d) = FUNCTIONS["matmul"], random([(5, 6), (6, 7)], "f32")
    text = jax.jit(jax.grad(lambda d: matmul(c, d).sum())).lower(d).compile().as_text()
    assert text.count("custom-call(") == 1  # the product itself is not needed, nor the adjoint of c


def test_donated_arrays_and_results_that_are_used_again():
    function = FUNCTIONS["add"]
    a, b = random([(512, 512), (512,)], "f32")
    expected = np.asarray(a) + 6 * np.asarray(b)
    thrice = jax.jit(lambda a, b: function(function(function(a, b), b), b), donate_argnums=0)
    np.testing.assert_allclose(thrice(a, b), expected, rtol=1e-4, atol=1e-4)
    assert a.is_deleted()


def test_loops_of_jax_call_it():
    function, (a,) = FUNCTIONS["softmax"], random([(5, 7)], "f32")
    looped = jax.jit(lambda a: jax.lax.fori_loop(0, 4, lambda _, x: function(x), a))
    expected = a
    for _ in range(4):
        expected = jax.nn.softmax(expected, -1)
    assert_near(looped(a), expected, 1e-5)


def test_a_failed_check_is_an_error_with_the_message_of_a_call():
    i = td.vars("i")

    @td.op
    def root(x: td.f32["N"]):
        y = td.Func("y")
        y[i] = td.require(x[i] >= 0, td.sqrt(x[i]), "{} is negative", x[i])
        return y

    function, x = td.jax.op(root), jnp.asarray([4.0, 9.0])
    assert function(x).tolist() == [2, 3]
    with pytest.raises(ValueError, match=r"^INVALID_ARGUMENT: -3 is negative \[require"):
        function(jnp.asarray([4.0, -3.0])).block_until_ready()
    assert function(x).tolist() == [2, 3]


@pytest.mark.parametrize(
    "arguments, error, message",
    [
        (
            lambda: (jnp.ones((5, 7), jnp.float16), jnp.ones(7)),
            td.TypeMismatch,
            "x has dtype float16, expected",
        ),
        (lambda: (jnp.ones((5, 7)), jnp.ones(7, jnp.int32)), td.TypeMismatch, "g has dtype int32, expected"),
        (lambda: (jnp.ones((5, 7)), jnp.ones(6)), td.ShapeError, "g has shape"),
        (lambda: (jnp.ones(5), jnp.ones(5)), td.ShapeError, "x has shape"),
        (lambda: (jnp.ones((5, 7)),), td.TypeMismatch, "needs 'g', too"),
        (lambda: ([1.0], jnp.ones(6)), td.TypeMismatch, "x is a list, not an array"),
    ],
)
def test_wrong_arguments_are_refused_at_the_line_of_the_call(arguments, error, message):
    function = FUNCTIONS["rms_norm"]
    for call in (function, jax.jit(lambda *x: function(*x))):
        with pytest.raises(error, match=message) as caught:
            call(*arguments())
        assert caught.value.loc.file == __file__


@pytest.mark.parametrize(
    "factor, message",
    [
        ("2", "factor needs a number"),
        (1e300, "factor"),
        (jnp.ones(3), "factor is float32 of shape"),
        (jnp.complex64(2), "factor is complex64"),
    ],
)
def test_what_is_no_number_is_refused(factor, message):
    with pytest.raises(td.TypeMismatch, match=message):
        FUNCTIONS["scale"](jnp.arange(3.0), factor)


def test_types_of_64_bits_are_refused_unless_jax_has_them():
    operator = OPERATORS["f64"]["transpose"][0]
    with pytest.raises(td.TypeMismatch, match="which JAX does not have by default"):
        td.jax.op(operator)(np.ones((2, 3)))


def test_what_is_no_operator_is_refused():
    with pytest.raises(td.TypeMismatch, match="takes an operator"):
        td.jax.op(lambda x: x)
