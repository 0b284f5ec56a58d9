"""Machine code of every level calls nothing but what the C library of a process has."""

import re

import pytest

from tdsl.codegen.cpu import jit
from tdsl.codegen.cpu.emit import emit
from tdsl.codegen.ir.loops import Block, For, Kernel, Store
from tdsl.lang.expr import Binary, Call, Cast, Load, Select, Unary, const
from tdsl.lang.types import ALL, bf16, bool_, f8e4m3, f8e5m2, f16, f32, f64, i32, i64, u64
from tdsl.machine.cpu import level
from tests.codegen.cpu.running import at, dense, i

# "floor" and so on where the processor has no instruction, "fmod" everywhere
LIBM = {"ceil", "cos", "floor", "fma", "fmod", "pow", "roundeven", "sin", "tan", "trunc"}
LIBC = {"memcpy", "memmove", "memset"}
FUNCTIONS = (
    "sqrt", "floor", "round", "exp", "tanh", "log", "cos", "tan", "erf", "arctanh", "arcsinh", "arctan",
)  # fmt: skip


def values(t):
    """One expression of each kind on three elements of a type."""
    x, y, z = (Load(n, (at(Binary("mul", i, const(LANES)), LANES),), t) for n in "xyz")
    yield from (Binary(op, x, y) for op in ("eq", "lt", "le"))
    yield Select(Binary("lt", x, y), z, y)
    yield from (Cast(x, u, saturate) for u in ALL if u != t for saturate in (False, True))
    if t == bool_:
        return
    yield from (Unary(op, x) for op in ("neg", "abs"))
    yield from (Binary(op, x, y) for op in ("add", "mul", "floordiv", "mod", "pow", "min", "max"))
    if t.is_float:
        yield Binary("div", x, y)
        yield from (Call(fn, (x,), t) for fn in FUNCTIONS)
        yield from (Call(fn, (x,), bool_) for fn in ("isnan", "isinf"))
        yield from (Call(fn, (x, y), t) for fn in ("copysign", "hypot", "arctan2"))
        yield Call("fma", (x, y, z), t)


LANES = 8


@pytest.mark.in_part(17)
@pytest.mark.parametrize("name", ["sse2", "sse4", "avx2", "avx512", "aarch64"])
@pytest.mark.parametrize("t", [f8e4m3, f8e5m2, f16, bf16, f32, f64, i32, i64, u64, bool_], ids=str)
def test_code_calls_only_what_every_process_has(t, name):
    exprs = list(values(t))
    stores = (Store(f"o{n}", (at(Binary("mul", i, const(LANES)), LANES),), e) for n, e in enumerate(exprs))
    params = [dense(n, t, 64) for n in "xyz"]
    params += [dense(f"o{n}", e.dtype if isinstance(e, Cast | Call) else _type(e, t), 64, written=True)
               for n, e in enumerate(exprs)]  # fmt: skip
    loop = For("i", const(0), const(64 // LANES), "serial", Block(tuple(stores)))
    target = level(name)
    text = jit.assembly(emit(Kernel("k", tuple(params), loop), target), target)
    called = set(re.findall(r"\n\s+(?:callq?|jmp|bl|b)\s+\*?([A-Za-z_]\w+)\b(?!\.)", text))
    assert {c.removesuffix("f") for c in called} - {"k"} <= LIBM | LIBC


def _type(e, t):
    return bool_ if isinstance(e, Binary) and e.op in ("eq", "lt", "le") else t
