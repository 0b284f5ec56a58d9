"""The text of kernels as Python: readable, and what it computes for every statement of the loop IR."""

import numpy as np
import pytest

from tdsl.codegen.ir.loops import (
    Alloc,
    Block,
    BufferParam,
    Check,
    For,
    If,
    Invoke,
    Kernel,
    Let,
    Message,
    Operand,
    Prefetch,
    Print,
    ScalarParam,
    SizeParam,
    Store,
)  # fmt: skip
from tdsl.codegen.ir.verify import verify
from tdsl.codegen.python.emit import emit
from tdsl.codegen.python.run import PythonExecutable
from tdsl.errors import IndexBoundError, RequireError, TargetError
from tdsl.lang.build_program import build_program
from tdsl.lang.expr import (
    FALSE,
    TRUE,
    Binary,
    Broadcast,
    Cast,
    Const,
    Load,
    Param,
    Ramp,
    Select,
    Size,
    Unary,
    Var,
    const,
)  # fmt: skip
from tdsl.lang.tensor import Func, Tensor
from tdsl.lang.types import bf16, bool_, f32, i32, i64, u8
from tdsl.lang.value import vars as variables
from tdsl.machine.instructions.instruction import Instruction
from tests.codegen.python.kernels import buffer, out

i, j, y, x = map(Var, "ijyx")


def add(a, b):
    return Binary("add", a, b)


def mul(a, b):
    return Binary("mul", a, b)


def run(kernel, *arguments, checked=True):
    verify(kernel)
    PythonExecutable(kernel, checked=checked).run(arguments)


def function_text(kernel):
    """The emitted function without the head of the module."""
    text = emit(kernel)
    return text[text.index("def " + kernel.name) :].rstrip()


def loop(name, extent, body, lo=0, kind="serial"):
    as_expr = lambda e: const(e) if isinstance(e, int) else e
    return For(name, as_expr(lo), as_expr(extent), kind, body)


def blur():
    a = buffer("image", f32, 6, 10)
    row = lambda dy: Load("rows", (add(y, const(dy)), Ramp(x, 1, 4)), f32)
    pixel = lambda dx: Load("image", (y, add(x, const(dx))), f32)
    rows = Store("rows", (y, x), add(add(pixel(0), pixel(1)), pixel(2)))
    third = Broadcast(Const(1 / 3, f32), 4)
    blurred = Store("out", (y, Ramp(x, 1, 4)), mul(add(add(row(0), row(1)), row(2)), third))
    strips = For("x", mul(Var("x_o"), const(4)), const(1), "serial", blurred)
    body = Block((
        loop("y", 6, loop("x", 8, rows)),
        loop("y", 4, loop("x_o", 2, strips), kind="parallel"),
    ))  # fmt: skip
    return Kernel("blur", (a, out(f32, 4, 8)), Alloc("rows", f32, (const(6), const(8)), "heap", body))


def test_a_stencil_reads_like_the_loops_it_is():
    assert function_text(blur()) == (
        "def blur(image, out):\n"
        "    rows = np.empty((6, 8), np.float32)\n"
        "    for y in range(6):\n"
        "        for x in range(8):\n"
        "            rows[y, x] = image[y, x + 0] + image[y, x + 1] + image[y, x + 2]\n"
        "    for y in range(4):\n"
        "        for x_o in range(2):\n"
        "            for x in range(x_o * 4, x_o * 4 + 1):\n"
        "                out[y, x:x + 4] = (rows[y + 0, x:x + 4] + rows[y + 1, x:x + 4] + "
        "rows[y + 2, x:x + 4]) * 0.33333334"
    )


@pytest.mark.parametrize("checked", [False, True])
def test_a_stencil_computes_what_numpy_does(checked):
    image = np.random.default_rng(0).random((6, 10), np.float32)
    result = np.zeros((4, 8), np.float32)
    run(blur(), image, result, checked=checked)
    rows = image[:, :-2] + image[:, 1:-1] + image[:, 2:]
    assert np.array_equal(result, (rows[:-2] + rows[1:-1] + rows[2:]) * np.float32(1 / 3))


def test_arrays_of_any_strides_are_arguments():
    image = np.random.default_rng(0).random((20, 12), np.float32)
    result = np.zeros((8, 4), np.float32)
    run(blur(), image[::-3][:6, ::-1][:, :10], result.T)
    expected = np.zeros((4, 8), np.float32)
    run(blur(), np.ascontiguousarray(image[::-3][:6, ::-1][:, :10]), expected)
    assert np.array_equal(result.T, expected)


def test_loops_of_extent_zero_or_less_do_not_run():
    store = Store("out", (const(0),), const(1))
    for extent in (0, -3):
        result = np.zeros(1, np.int64)
        run(Kernel("k", (out(i64, 1),), loop("i", extent, store)), result)
        assert result[0] == 0


def test_scalars_and_sizes_are_arguments_in_order():
    value = add(Load("a", (i,), i32), Param("s", i32))
    body = loop("i", Size("n"), Store("out", (i,), value))
    params = (
        SizeParam("n"),
        BufferParam("a", i32, (Size("n"),), (None,), False),
        ScalarParam("s", i32),
        BufferParam("out", i32, (Size("n"),), (None,), True),
    )
    a, result = np.array([1, 2**31 - 1], np.int32), np.zeros(2, np.int32)
    run(Kernel("k", params, body), 2, a, 5, result)
    assert result.tolist() == [6, -(2**31) + 4]


def test_if_else_and_let():
    even = Binary("eq", Binary("mod", i, const(2)), const(0))
    half = Let("h", Binary("floordiv", i, const(2)), Store("out", (i,), Var("h")))
    body = loop("i", 6, If(even, half, Store("out", (i,), const(-1))))
    result = np.zeros(6, np.int64)
    run(Kernel("k", (out(i64, 6),), body), result)
    assert result.tolist() == [0, -1, 1, -1, 2, -1]


def test_a_let_of_a_float_is_a_param():
    body = Let("s", Const(0.1, f32), Store("out", (), mul(Param("s", f32), Param("s", f32))))
    result = np.zeros((), np.float32)
    run(Kernel("k", (out(f32),), body), result)
    assert result == np.float32(0.1) * np.float32(0.1)


def test_names_reserved_by_python_are_changed():
    params = (buffer("np", f32, 2), buffer("for", f32, 2), buffer("out", f32, 2, written=True))
    value = add(Load("np", (Var("lambda"),), f32), Load("for", (Var("lambda"),), f32))
    kernel = Kernel("max", params, loop("lambda", 2, Store("out", (Var("lambda"),), value)))
    result = np.zeros(2, np.float32)
    run(kernel, np.ones(2, np.float32), np.ones(2, np.float32), result)
    assert result.tolist() == [2, 2]


def test_a_buffer_and_a_variable_may_share_a_name():
    kernel = Kernel(
        "k",
        (buffer("i", f32, 3), out(f32, 3)),
        loop("i", 3, Store("out", (i,), Load("i", (i,), f32))),
    )
    result = np.zeros(3, np.float32)
    run(kernel, np.arange(3, dtype=np.float32), result)
    assert result.tolist() == [0, 1, 2]


def test_vectors_with_strides_and_gathers():
    n = 4
    backwards = Load("a", (Ramp(const(7), -2, n),), i32)
    forwards = Load("a", (Ramp(const(1), 2, n),), i32)
    gathered = Load("a", (Cast(Load("a", (Ramp(const(0), 1, n),), i32), i64),), i32)
    for value, expected in (
        (backwards, [7, 5, 3, 1]),
        (forwards, [1, 3, 5, 7]),
        (gathered, [0, 1, 2, 3]),
    ):
        result = np.zeros(n, np.int32)
        kernel = Kernel("k", (buffer("a", i32, 8), out(i32, n)), Store("out", (Ramp(const(0), 1, n),), value))
        run(kernel, np.arange(8, dtype=np.int32), result, checked=False)
        assert result.tolist() == expected


def test_a_scatter_stores_lanes_along_two_axes():
    index = (Ramp(const(0), 1, 3), Ramp(const(2), -1, 3))
    result = np.zeros((3, 3), np.int32)
    run(Kernel("k", (out(i32, 3, 3),), Store("out", index, Broadcast(Const(7, i32), 3))), result)
    assert np.array_equal(result, 7 * np.eye(3, dtype=np.int32)[::-1])


def masked_copy(n, lanes):
    """out[i:i + lanes] = a[i:i + lanes] for i = 0, lanes, ..., only where the index is below n."""
    at = Ramp(mul(i, const(lanes)), 1, lanes)
    mask = Binary("lt", at, Broadcast(const(n), lanes))
    body = Store("out", (at,), Load("a", (at,), f32, mask), mask)
    return Kernel("k", (buffer("a", f32, n), out(f32, n)), loop("i", -(-n // lanes), body))


@pytest.mark.parametrize("n", [0, 1, 4, 5, 7])
def test_masked_lanes_touch_no_memory(n):
    a, result = np.arange(n, dtype=np.float32), np.full(n, -1, np.float32)
    run(masked_copy(n, 4), a, result)
    assert np.array_equal(a, result)


def test_masked_lanes_of_a_load_are_zero():
    mask = Binary("lt", Ramp(const(0), 1, 4), Broadcast(const(2), 4))
    load = Load("a", (Ramp(const(0), 1, 4),), bf16, mask)
    result = np.ones(4, bf16.numpy)
    run(Kernel("k", (buffer("a", bf16, 2), out(bf16, 4)), Store("out", (Ramp(const(0), 1, 4),), load)),
        np.array([3, 4], bf16.numpy), result)  # fmt: skip
    assert result.astype(float).tolist() == [3, 4, 0, 0]


def test_scalar_masks_are_conditions():
    inside = Binary("lt", i, const(2))
    body = Store("out", (i,), Load("a", (i,), f32, inside), Binary("ne", i, const(3)))
    result = np.full(4, 9, np.float32)
    run(
        Kernel("k", (buffer("a", f32, 2), out(f32, 4)), loop("i", 4, body)),
        np.ones(2, np.float32),
        result,
    )
    assert result.tolist() == [1, 1, 0, 9]


ATOMICS = {
    "add": [7, 4, 5],
    "mul": [24, 3, 4],
    "min": [1, 1, 1],
    "max": [4, 3, 4],
    "or": [7, 3, 5],
    "xor": [5, 2, 5],
}


@pytest.mark.parametrize("op", ATOMICS)
def test_atomic_lanes_that_meet_all_count(op):
    # lanes 0, 0, 1, 2 get 4, 2 (and 3), 4 over an initial 1
    where, what = np.array([0, 0, 1, 2], np.int64), np.array([4, 2, 3, 4], np.int32)
    expected = np.ones(3, np.int32)
    for k, v in zip(where, what, strict=True):
        ufunc = {"add": np.add, "mul": np.multiply, "min": np.minimum, "max": np.maximum,
                 "or": np.bitwise_or, "xor": np.bitwise_xor}[op]  # fmt: skip
        expected[k] = ufunc(expected[k], v)
    at = lambda k: (Ramp(const(0), 1, 4),) if k else (i,)
    for vector in (False, True):
        target = Load("where", at(vector), i64)
        store = Store("out", (target,), Load("what", at(vector), i32), atomic=op)
        body = store if vector else loop("i", 4, store)
        result = np.ones(3, np.int32)
        run(
            Kernel("k", (buffer("where", i64, 4), buffer("what", i32, 4), out(i32, 3)), body),
            where,
            what,
            result,
        )
        assert result.tolist() == expected.tolist()


MESSAGES = (
    Message("require", ("row ", " has weight ", ""), "user.py:3"),
    Message("bounds", ("index ", " leaves a"), ""),
    Message("print", ('say "{', '}"'), ""),
)


def test_a_failed_check_is_the_error_of_its_message():
    check = Check(Binary("lt", Load("a", (i,), f32), Const(2.0, f32)), 0, (i, Load("a", (i,), f32)))
    kernel = Kernel("k", (buffer("a", f32, 3),), loop("i", 3, check), MESSAGES)
    run(kernel, np.array([0, 1, 1.5], np.float32))
    with pytest.raises(RequireError, match=r"^row 1 has weight 2\.5 \[require TD0100\]\n") as caught:
        run(kernel, np.array([0, 2.5, 1.5], np.float32))
    assert "at user.py:3" in str(caught.value)
    with pytest.raises(IndexBoundError, match=r"^index 7 leaves a"):
        run(Kernel("k", (), Check(FALSE, 1, (const(7),)), MESSAGES))


def test_a_nan_fails_its_check():
    kernel = Kernel(
        "k",
        (buffer("a", f32, 1),),
        Check(Binary("lt", Load("a", (const(0),), f32), Const(2.0, f32)), 1, (const(0),)),
        MESSAGES,
    )
    with pytest.raises(IndexBoundError):
        run(kernel, np.array([np.nan], np.float32))


def test_prints_show_values(capsys):
    body = Block(
        (
            Print(TRUE, 2, (Const(0.1, f32),)),
            Print(FALSE, 2, (const(1),)),
            Print(TRUE, 2, (Const(7, u8),)),
        )
    )
    run(Kernel("k", (), body, MESSAGES))
    assert capsys.readouterr().out == 'say "{0.1}"\nsay "{7}"\n'


def add_tile(python):
    """target[m, n] += source[m, n] on tiles of 2 by 2."""
    m, n = variables("m n")
    target, source = Func("target"), Tensor("source", (2, 2), f32)
    target[m, n] += source[m, n]
    return Instruction("add_tile", build_program((target,)), "", python)


def invoke(python):
    target = Operand("out", (const(1), const(2)), (0, 1))
    source = Operand("a", (const(0), i, const(0)), (2, 1))
    body = loop("i", 1, Invoke("add_tile", (target, source)))
    return Kernel("k", (buffer("a", f32, 1, 3, 4), out(f32, 4, 4)), body, (), False, (add_tile(python),))


def test_an_instruction_gets_views_of_its_tiles():
    a, result = np.arange(12, dtype=np.float32).reshape(1, 3, 4), np.zeros((4, 4), np.float32)
    run(invoke(lambda target, source: np.add(target, source, out=target)), a, result)
    assert np.array_equal(result[1:3, 2:4], a[0, :2, :2].T)
    assert result.sum() == a[0, :2, :2].sum()


def test_an_instruction_without_python_code_is_an_error_with_a_hint():
    with pytest.raises(TargetError, match=r"pass python= to td\.instruction"):
        PythonExecutable(invoke(None))


def test_a_prefetch_has_no_effect_even_outside_a_buffer():
    run(
        Kernel("k", (buffer("a", f32, 2),), loop("i", 2, Prefetch("a", (add(i, const(99)),)))),
        np.ones(2, np.float32),
    )


def test_more_loops_than_python_can_nest():
    names = [f"i{k}" for k in range(40)]
    body = Store("out", (), add(Load("out", (), i64), Var("i39")))
    for name in reversed(names):
        body = loop(name, 2 if name in ("i0", "i20", "i39") else 1, body)
    result = np.zeros((), np.int64)
    run(Kernel("k", (out(i64),), body), result)
    assert result == 4


def test_what_is_not_chosen_is_not_loaded():
    """However long the expressions are between which conditions choose."""
    value = Load("a", (i,), f32)
    for n in range(9):
        part = Load(f"b{n}", (i,), f32)
        value = Select(Binary("lt", i, const(n)), add(part, mul(part, part)), value)
    params = [buffer(f"b{n}", f32, 10) for n in range(9)]
    kernel = Kernel(
        "k",
        (buffer("a", f32, 10), *params, out(f32, 10)),
        For("i", const(0), const(10), "serial", Store("out", (i,), value)),
    )
    (line,) = (x for x in emit(kernel).splitlines() if "b0[" in x)
    assert "b8[" in line


def test_shared_expressions_are_computed_once():
    e = Load("a", (i,), f32)
    for _ in range(60):
        e = add(e, e)
    kernel = Kernel("k", (buffer("a", f32, 1), out(f32, 1)), loop("i", 1, Store("out", (i,), e)))
    assert len(emit(kernel)) < 3000
    result = np.zeros(1, np.float32)
    run(kernel, np.ones(1, np.float32), result)
    assert result[0] == 2.0**60


def test_expressions_of_any_depth():
    e = Load("a", (i,), i32)
    for _ in range(3000):
        e = Binary("sub", Const(1, i32), e)
    result = np.zeros(1, np.int32)
    run(
        Kernel("k", (buffer("a", i32, 1), out(i32, 1)), loop("i", 1, Store("out", (i,), e))),
        np.ones(1, np.int32),
        result,
    )
    assert result[0] == 1


def test_checked_runs_refuse_an_index_outside():
    kernel = Kernel(
        "k",
        (buffer("a", f32, 2), out(f32, 2)),
        loop("i", 2, Store("out", (i,), Load("a", (Binary("sub", i, const(1)),), f32))),
    )
    a = np.ones(2, np.float32)
    with pytest.raises(AssertionError, match="index -1 on axis 0 of extent 2"):
        run(kernel, a, a.copy())


def test_checked_runs_poison_new_memory():
    body = Store("out", (), Load("t", (), f32))
    result = np.zeros((), np.float32)
    run(Kernel("k", (out(f32),), Alloc("t", f32, (), "stack", body)), result)
    assert np.isnan(result)


def test_emitted_text_has_only_the_support_it_uses():
    assert "def " not in emit(blur()).replace("def blur", "")
    kernel = Kernel("k", (out(bool_),), Store("out", (), Unary("not", Select(TRUE, FALSE, TRUE))))
    assert "ml_dtypes" not in emit(kernel)
    result = np.zeros((), bool)
    run(kernel, result)
    assert result
