"""Loops and expressions as text."""

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
from tdsl.codegen.ir.show import message_text, show
from tdsl.lang.expr import (
    FALSE,
    TRUE,
    Binary,
    Broadcast,
    Call,
    Cast,
    Const,
    Load,
    Param,
    Ramp,
    Range,
    Read,
    Reduce,
    Select,
    Size,
    Unary,
    Var,
    const,
)  # fmt: skip
from tdsl.lang.show import LONGEST, show_expr
from tdsl.lang.types import f16, f32, f64, i32, u8

x, y, n = Var("x"), Var("y"), Size("n")
ZERO = Const(0.0, f32)


def add(a, b):
    return Binary("add", a, b)


MESSAGES = (Message("require", ("row ", " is {empty}"), ""), Message("print", ("done",), ""))
PARAMS = (
    BufferParam("image", f32, (n, const(1923)), (None, 1), False),
    ScalarParam("s", f32),
    SizeParam("n"),
    BufferParam("blur", f32, (n, const(1923)), (None, None), True),
)


def test_a_kernel_reads_like_python():
    vector = Ramp(x, 1, 16)
    mask = Binary("lt", vector, Broadcast(const(1923), 16))
    value = Binary("mul", Load("rows", (const(0), vector), f32, mask), Broadcast(Param("s", f32), 16))
    row = For("x_o", const(0), const(121), "serial", Let("x", Binary("mul", Var("x_o"), const(16)),
              Store("blur", (y, vector), value, mask, streaming=True)))  # fmt: skip
    body = Block((
        Check(Binary("gt", n, const(0)), 0, (n,)),
        For("y", const(0), n, "parallel", Alloc("rows", f32, (const(18), const(1923)), "heap", row)),
        Print(TRUE, 1, ()),
    ))  # fmt: skip
    assert show(Kernel("blur", PARAMS, body, MESSAGES, fast_math=True)) == (
        "def blur(image: f32[n, 1923] strides (?, 1), s: f32, n: size, "
        "out blur: f32[n, 1923]):  # fast math\n"
        '  check n > 0, f"row {n} is {{empty}}"\n'
        "  for y in range(0, n):  # parallel\n"
        "    rows = alloc(f32, [18, 1923])  # heap\n"
        "    for x_o in range(0, 121):\n"
        "      x = x_o * 16\n"
        "      if x + ramp(16) < 1923:\n"
        "        blur[y, x:x + 16] = (rows[0, x:x + 16] if x + ramp(16) < 1923 else 0) * s  # streaming\n"
        '  print(f"done")'
    )


STATEMENTS = {
    "for x in range(0, 4):  # unrolled\n  pass": For("x", const(0), const(4), "unrolled", Block(())),
    "for x in range(3, 7):\n  pass": For("x", const(3), const(4), "serial", Block(())),
    "for x in range(y, n):\n  pass": For("x", y, Binary("sub", n, y), "serial", Block(())),
    "for x in range(y, y + 16):\n  pass": For("x", y, const(16), "serial", Block(())),
    "t = alloc(u8, [3])  # stack strides (2,)\nt[0] = 7": Alloc(
        "t", u8, (const(3),), "stack", Store("t", (const(0),), Const(7, u8)), (2,)
    ),
    "if x < 3:\n  a[()] = 0.0\nelse:\n  a[()] = 1.0": If(
        Binary("lt", x, const(3)), Store("a", (), ZERO), Store("a", (), Const(1.0, f32))
    ),
    "a[x] += 1.0  # atomic": Store("a", (x,), Const(1.0, f32), atomic="add"),
    "a[x] = max(a[x], 1.0)  # atomic": Store("a", (x,), Const(1.0, f32), atomic="max"),
    "print(site 3, x) if False": Print(FALSE, 3, (x,)),
    "prefetch a[y, x + 64]": Prefetch("a", (y, add(x, const(64)))),
    "tile(a[x, 0:, 0:], t[()])": Invoke(
        "tile", (Operand("a", (x, const(0), const(0)), (1, 2)), Operand("t", (), ()))
    ),
}


@pytest.mark.parametrize("text", STATEMENTS)
def test_statements(text):
    assert show(STATEMENTS[text]) == text


C, A, B = (lambda *index, name=name: Read(name, index, 0, f32) for name in "CAB")
k = Var("k")
EXPRESSIONS = {
    "A[x, k] * B[k, y]": Binary("mul", A(x, k), B(k, y)),
    "(x + 1) * 2 - (y - 3)": Binary(
        "sub", Binary("mul", add(x, const(1)), const(2)), Binary("sub", y, const(3))
    ),
    "x // 2 % 3": Binary("mod", Binary("floordiv", x, const(2)), const(3)),
    "min(x, max(y, 0))": Binary("min", x, Binary("max", y, const(0))),
    "(x < 3) & (y >= 4)": Binary("and", Binary("lt", x, const(3)), Binary("ge", y, const(4))),
    "~(x == 3)": Unary("not", Binary("eq", x, const(3))),
    "-abs(x - 1)": Unary("neg", Unary("abs", Binary("sub", x, const(1)))),
    "where(x < n, C[x], 0.0)": Select(Binary("lt", x, n), C(x), ZERO),
    "cast(x, i32) << 2": Binary("shl", Cast(x, i32), Const(2, i32)),
    "cast(C[()], u8, saturate=True)": Cast(C(), u8, True),
    "reinterpret(C[()], i32)": Call("reinterpret", (C(),), i32),
    "exp(-C[x])": Call("exp", (Unary("neg", C(x)),), f32),
    "C[x][1]": Read("C", (x,), 1, f32),
    "sum(A[x, k] * B[k, y], axis=k)": Reduce(
        "sum", (Range("k", const(0), const(9)),), (Binary("mul", A(x, k), B(k, y)),), (), (), 0, f32
    ),
    "argmax((A[x, k], k), axis=(k, y), where=k < y)[1]": Reduce(
        "argmax", (Range("k", const(0), n, Binary("lt", k, y)), y), (A(x, k), k), (), (), 1, f32
    ),
    "reduce(a0 * b0, init=1.0, A[k], axis=k)": Reduce(
        "custom",
        (k,),
        (A(k),),
        (Binary("mul", Param("a0", f32), Param("b0", f32)),),
        (Const(1.0, f32),),
        0,
        f32,
    ),
    "a[2:18:2]": Load("a", (Ramp(const(2), 2, 8),), f32),
    "a[x:x + 32:2]": Load("a", (Ramp(x, 2, 16),), f32),
    "a[x - ramp(4)]": Load("a", (Ramp(x, -1, 4),), f32),
    "cast(2 * ramp(8), i32) * s": Binary(
        "mul", Cast(Ramp(const(0), 2, 8), i32), Broadcast(Param("s", i32), 8)
    ),
    "0.1": Const(float.fromhex("0x1.99999ap-4"), f32),
    "0.10000000149011612": Const(float.fromhex("0x1.99999ap-4"), f64),
    "0.333": Const(0.333, f16),
    "-inf": Const(float("-inf"), f32),
    "(-2.0) ** 2.0": Binary("pow", Const(-2.0, f32), Const(2.0, f32)),
}


@pytest.mark.parametrize("text", EXPRESSIONS)
def test_expressions(text):
    assert show_expr(EXPRESSIONS[text]) == text


def test_an_expression_too_long_to_read_is_cut_short():
    e = x
    for _ in range(100):
        e = Binary("mul", e, e)
    assert len(show_expr(e)) <= LONGEST
    assert "..." in show_expr(e)


def test_expressions_of_any_depth():
    e = x
    for _ in range(3000):
        e = add(e, const(1))
    assert show_expr(e) == "x" + 3000 * " + 1"


def test_messages_hold_values_where_their_text_says():
    message = Message("require", ("weight ", " of row ", ""), "")
    assert message_text(message, (2.5, 3)) == "weight 2.5 of row 3"
