"""Operators and casts of the Python backend against Python's integers and float64, at the edges."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tdsl.codegen.ir.loops import Kernel, ScalarParam, Store
from tdsl.codegen.ir.verify import verify
from tdsl.codegen.python.run import PythonExecutable
from tdsl.lang import arithmetic
from tdsl.lang.expr import FUNCTIONS, Binary, Call, Cast, Const, Param, Select, Unary
from tdsl.lang.types import ALL, BY_NAME, DType, bool_, f32, f64, i32, i64, u64
from tests.codegen.python.kernels import buffer, element, out, paired, pointwise, vectors

INTEGERS = [t for t in ALL if t.is_integer]
FLOATS = [t for t in ALL if t.is_float]


def evaluate(expression, dtype, result, *columns):
    """expression(operands...) for each row of the columns, computed by scalars and by a vector, equal."""
    arrays = [np.array(c, dtype.numpy) for c in columns]
    n = len(arrays[0])
    params = [buffer(f"x{k}", dtype, n) for k in range(len(arrays))]
    results = []
    for build, lanes in ((pointwise, 0), (vectors, n)):
        operands = [element(p.name, dtype, lanes) for p in params]
        kernel = build(params, result, n, expression(*operands))
        verify(kernel)
        out = np.zeros(n, result.numpy)
        PythonExecutable(kernel, checked=True).run([*arrays, out])
        results.append(out)
    assert results[0].tobytes() == results[1].tobytes()
    return results[0]


def wrap(value: int, t: DType) -> int:
    value %= 1 << t.bits
    return value - (1 << t.bits) if value > t.high else value


def edges(t: DType) -> list[int]:
    edge_values = {
        t.low,
        t.low + 1,
        t.high,
        t.high - 1,
        0,
        1,
        2,
        3,
        7,
        t.bits,
        t.bits - 1,
        -1,
        -2,
        -7,
    }
    return sorted(v for v in edge_values if t.low <= v <= t.high)


def shift_left(a, b, t):
    return a << b if 0 <= b < t.bits else 0


def shift_right(a, b, t):
    return a >> b if 0 <= b < t.bits else (-1 if a < 0 else 0)


def power(a, b, t):
    if b >= 0:
        return pow(a, b, 1 << t.bits)
    return {1: 1, -1: 1 if b % 2 == 0 else -1}.get(a, 0)


INTEGER_OPERATORS = {
    "add": lambda a, b, t: a + b,
    "sub": lambda a, b, t: a - b,
    "mul": lambda a, b, t: a * b,
    "floordiv": lambda a, b, t: a // b if b else 0,
    "mod": lambda a, b, t: a % b if b else 0,
    "pow": power,
    "min": lambda a, b, t: min(a, b),
    "max": lambda a, b, t: max(a, b),
    "and": lambda a, b, t: a & b,
    "or": lambda a, b, t: a | b,
    "xor": lambda a, b, t: a ^ b,
    "shl": shift_left,
    "shr": shift_right,
}


@pytest.mark.parametrize("op", INTEGER_OPERATORS)
@pytest.mark.parametrize("t", INTEGERS, ids=str)
def test_integer_operators_wrap_at_their_width(t, op):
    pairs = [(a, b) for a in edges(t) for b in edges(t)]
    got = evaluate(lambda a, b: Binary(op, a, b), t, t, *zip(*pairs, strict=True))
    assert got.tolist() == [wrap(INTEGER_OPERATORS[op](a, b, t), t) for a, b in pairs]


@pytest.mark.parametrize("t", INTEGERS, ids=str)
def test_integer_operators_take_constants_of_their_dtype(t):
    values = edges(t)
    for constant in values:
        c = Const(constant, t)
        for op in ("add", "mul", "floordiv", "max", "xor", "shl", "pow"):
            expected = [wrap(INTEGER_OPERATORS[op](constant, b, t), t) for b in values]
            params = [buffer("x0", t, len(values))]
            kernel = pointwise(params, t, len(values), Binary(op, c, element("x0", t)))
            out = np.zeros(len(values), t.numpy)
            PythonExecutable(kernel).run([np.array(values, t.numpy), out])
            assert out.tolist() == expected, (op, constant)


@pytest.mark.parametrize("t", INTEGERS, ids=str)
def test_unary_integer_operators_wrap(t):
    values = edges(t)
    meanings = {"neg": lambda a: -a, "not": lambda a: ~a, "abs": abs}
    for op, meaning in meanings.items():
        got = evaluate(lambda a, op=op: Unary(op, a), t, t, values)
        assert got.tolist() == [wrap(meaning(v), t) for v in values]


@pytest.mark.parametrize("t", INTEGERS, ids=str)
def test_bit_counts(t):
    values = edges(t)
    bits = [v % (1 << t.bits) for v in values]
    meanings = {
        "popcount": [b.bit_count() for b in bits],
        "clz": [t.bits - b.bit_length() for b in bits],
        "ctz": [(b & -b).bit_length() - 1 if b else t.bits for b in bits],
    }
    for fn, expected in meanings.items():
        got = evaluate(lambda a, fn=fn: Call(fn, (a,), i32), t, i32, values)
        assert got.tolist() == expected, fn


@pytest.mark.parametrize("target", INTEGERS, ids=str)
@pytest.mark.parametrize("source", INTEGERS, ids=str)
def test_integer_casts_wrap_or_clip(source, target):
    values = edges(source)
    got = evaluate(lambda a: Cast(a, target), source, target, values)
    assert got.tolist() == [wrap(v, target) for v in values]
    got = evaluate(lambda a: Cast(a, target, saturate=True), source, target, values)
    assert got.tolist() == [min(max(v, target.low), target.high) for v in values]


FLOAT_EDGES = [
    0.0, -0.0, 0.5, -0.5, 1.5, -1.5, 2.5, 127.0, 128.0, -128.0, -129.0, 255.0, 256.0, 65504.0, 2.0**31,
    -(2.0**31), 2.0**63, -(2.0**63), 2.0**64, 1e30, math.inf, -math.inf, math.nan,
]  # fmt: skip


def truncated(v: float, t: DType) -> int:
    if math.isnan(v):
        return 0
    return int(min(max(v, t.low), t.high)) if math.isinf(v) else min(max(math.trunc(v), t.low), t.high)


@pytest.mark.parametrize("target", INTEGERS, ids=str)
@pytest.mark.parametrize("source", FLOATS, ids=str)
@pytest.mark.parametrize("saturate", [False, True])
def test_float_to_integer_truncates_clips_and_takes_nan_as_zero(source, target, saturate):
    with np.errstate(over="ignore"):
        values = [float(v) for v in np.array(FLOAT_EDGES).astype(source.numpy)]
    got = evaluate(lambda a: Cast(a, target, saturate), source, target, values)
    assert got.tolist() == [truncated(v, target) for v in values]


@pytest.mark.parametrize("source", [bool_, *INTEGERS], ids=str)
@pytest.mark.parametrize("target", FLOATS, ids=str)
def test_integer_to_float_rounds_to_nearest_even(source, target):
    values = [0, 1] if source == bool_ else [*edges(source), source.high // 3]
    got = evaluate(lambda a: Cast(a, target), source, target, values)
    with np.errstate(over="ignore"):
        expected = np.array(values, source.numpy).astype(target.numpy)
    assert got.tobytes() == expected.tobytes()


@pytest.mark.parametrize("t", [t for t in ALL if t != bool_], ids=str)
def test_cast_to_bool_asks_for_nonzero(t):
    values = edges(t) if t.is_integer else [0.0, -0.0, 0.5, math.nan, math.inf]
    got = evaluate(lambda a: Cast(a, bool_), t, bool_, values)
    assert got.tolist() == [v != 0 for v in values]


@pytest.mark.parametrize("target", FLOATS, ids=str)
@pytest.mark.parametrize("source", FLOATS, ids=str)
def test_float_casts_are_numpys(source, target):
    values = np.array([*FLOAT_EDGES, 1 / 3, 1e-8, 65519.0, 65520.0])
    with np.errstate(over="ignore"):
        values = values.astype(source.numpy)
        expected = values.astype(target.numpy)
    got = evaluate(lambda a: Cast(a, target), source, target, values)
    np.testing.assert_array_equal(got.astype(float), expected.astype(float))


FLOAT_OPERATORS = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "floordiv": np.floor_divide,
    "mod": np.mod, "min": np.minimum, "max": np.maximum, "pow": np.power,
}  # fmt: skip


@pytest.mark.parametrize("op", FLOAT_OPERATORS)
@pytest.mark.parametrize("t", FLOATS, ids=str)
def test_float_operators_are_numpys_and_round_each_time(t, op):
    numbers = [0.0, -0.0, 1.0, -1.0, 3.0, -7.5, 1 / 3, 60000.0, t.high, t.low, math.nan]
    pairs = [(a, b) for a in numbers for b in numbers]
    left, right = (np.array(c).astype(t.numpy) for c in zip(*pairs, strict=True))
    got = evaluate(lambda a, b: Binary(op, a, b), t, t, left, right)
    wide = np.float32 if t.is_narrow else t.numpy
    with np.errstate(all="ignore"):
        expected = FLOAT_OPERATORS[op](left.astype(wide), right.astype(wide)).astype(t.numpy)
    np.testing.assert_array_equal(got.astype(float), expected.astype(float))


@pytest.mark.parametrize("op", ["eq", "ne", "lt", "le", "gt", "ge"])
@pytest.mark.parametrize("t", ALL, ids=str)
def test_comparisons(t, op):
    values = [0, 1] if t == bool_ else edges(t) if t.is_integer else [0.0, -0.0, 1.5, t.high, math.nan]
    pairs = [(a, b) for a in values for b in values]
    got = evaluate(lambda a, b: Binary(op, a, b), t, bool_, *zip(*pairs, strict=True))
    meaning = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}[op]
    assert got.tolist() == [eval(f"a {meaning} b", {"a": a, "b": b}) for a, b in pairs]


@pytest.mark.parametrize("op", ["and", "or", "xor", "min", "max"])
def test_bool_operators_are_logical(op):
    a, b = np.array([0, 0, 1, 1], bool), np.array([0, 1, 0, 1], bool)
    got = evaluate(lambda x, y: Binary(op, x, y), bool_, bool_, a, b)
    meaning = {"and": a & b, "or": a | b, "xor": a ^ b, "min": a & b, "max": a | b}[op]
    assert got.tolist() == meaning.tolist()
    assert evaluate(lambda x: Unary("not", x), bool_, bool_, a).tolist() == (~a).tolist()


FLOAT_FUNCTIONS = [
    fn for fn, arity in FUNCTIONS.items()
    if arity > 0 and not fn.startswith(("is", "pad_", "re", "ex")) and fn not in ("popcount", "clz", "ctz")
] + ["exp", "exp2", "expm1"]  # fmt: skip


@pytest.mark.parametrize("fn", FLOAT_FUNCTIONS)
@pytest.mark.parametrize("t", FLOATS, ids=str)
def test_functions_are_those_of_the_interpreter(t, fn):
    numbers = [0.25, 1.0, 2.5, -3.7, 0.0, -0.0, 1000.0, math.inf, math.nan]
    x, y, z = (np.array(numbers[k:] + numbers[:k]).astype(t.numpy) for k in (0, 2, 5))
    columns = (x, y, z)[: FUNCTIONS[fn]]
    got = evaluate(lambda *args: Call(fn, args, t), t, t, *columns)
    expected = arithmetic.call(fn, columns, t)
    np.testing.assert_array_equal(got.astype(float), expected.astype(float))


@pytest.mark.parametrize("fn", ["isnan", "isinf", "isfinite"])
@pytest.mark.parametrize("t", FLOATS, ids=str)
def test_float_tests(t, fn):
    values = np.array([0.0, 1.0, math.inf, -math.inf, math.nan]).astype(t.numpy)
    got = evaluate(lambda a: Call(fn, (a,), bool_), t, bool_, values)
    assert got.tolist() == getattr(np, fn)(values.astype(float)).tolist()


@pytest.mark.parametrize("t", [f32, f64], ids=str)
def test_fma_rounds_once(t):
    tiny = float(np.finfo(t.numpy).eps)
    a = np.array([1 + tiny, 3.0, math.inf, 0.0], t.numpy)
    c = np.array([-(1 + 2 * tiny), 4.0, 1.0, -0.0], t.numpy)
    got = evaluate(lambda x, y, z: Call("fma", (x, y, z), t), t, t, a, a, c)
    assert got.tolist() == [tiny * tiny, 13.0, math.inf, 0.0]


def test_fma_of_f32_rounds_once_where_f64_would_round_too():
    a, c = np.array([4097.0, 3.0], np.float32), np.array([2.0**-40, 1.0], np.float32)
    got = evaluate(lambda x, y, z: Call("fma", (x, y, z), f32), f32, f32, a, a, c)
    assert got.tolist() == [16785410.0, 10.0]


def splitmix(x: int) -> int:
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB % 2**64
    return x ^ (x >> 31)


@pytest.mark.parametrize("t", [i32, i64, u64], ids=str)
def test_random_is_the_documented_hash(t):
    values = edges(t)
    got = evaluate(lambda k: Call("random", (paired(Const(5, t), k), k), f64), t, f64, values)
    bits = [
        splitmix(splitmix(5 ^ 0x9E3779B97F4A7C15) ^ (v % 2**64 * 0x9E3779B97F4A7C15 % 2**64)) for v in values
    ]
    assert got.tolist() == [(b >> 11) * 2.0**-53 for b in bits]
    got = evaluate(lambda k: Call("random", (paired(Const(5, t), k), k), f32), t, f32, values)
    assert got.tolist() == [(b >> 40) * 2.0**-24 for b in bits]


@pytest.mark.parametrize("pair", ["f32 u32", "f64 i64", "f16 u16", "bf16 i16", "f8e4m3 u8", "i8 u8"])
def test_reinterpret_keeps_the_bits(pair):
    a, b = (BY_NAME[name] for name in pair.split())
    values = np.array([0, 1, 100]).astype(a.numpy)
    got = evaluate(lambda x: Call("reinterpret", (x,), b), a, b, values)
    assert got.tobytes() == values.tobytes()
    back = evaluate(lambda x: Call("reinterpret", (x,), a), b, a, got)
    assert back.tobytes() == values.tobytes()


@pytest.mark.parametrize("t", ALL, ids=str)
def test_select_takes_either_arm(t):
    values = np.array([0, 1, 1, 0]).astype(t.numpy)

    def choose(a, no):
        zero, one = paired(Const(0, t), a), paired(Const(1, t), a)
        return Select(Binary("eq", a, zero), one, no or zero)

    got = evaluate(lambda a: choose(a, a), t, t, values)
    assert got.astype(float).tolist() == [1, 1, 1, 1]
    got = evaluate(lambda a: choose(a, None), t, t, values)
    assert got.astype(float).tolist() == [1, 0, 0, 1]


@st.composite
def index_expressions(draw, depth=3):
    """An i64 expression over `n` and constants near the edges, with its meaning in Python integers."""
    if depth == 0 or (draw(st.booleans()) and depth < 3):
        value = draw(st.sampled_from([0, 1, -1, 5, 64, 2**62, -(2**63), 2**63 - 1]))
        return draw(st.sampled_from([(Const(value, i64), value), (Param("n", i64), None)]))
    op = draw(st.sampled_from(list(INTEGER_OPERATORS)))
    return op, draw(index_expressions(depth - 1)), draw(index_expressions(depth - 1))


def build(tree):
    return tree[0] if len(tree) == 2 else Binary(tree[0], build(tree[1]), build(tree[2]))


def meaning(tree, n):
    if len(tree) == 2:
        return n if tree[1] is None else tree[1]
    return wrap(INTEGER_OPERATORS[tree[0]](meaning(tree[1], n), meaning(tree[2], n), i64), i64)


@given(tree=index_expressions(), n=st.sampled_from(edges(i64)))
def test_python_integers_wrap_where_it_shows(tree, n):
    kernel = Kernel("k", (ScalarParam("n", i64), out(i64)), Store("out", (), build(tree)))
    result = np.zeros((), np.int64)
    PythonExecutable(kernel).run([n, result])
    assert result[()] == meaning(tree, n)
