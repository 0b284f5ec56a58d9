"""Kernels written as Python-like text, for tests that show what a pass does.

    with alloc(t, 4, 8):                  memory; the scope may follow: alloc(t, 4, "auto")
    for x in vectorized(0, 8):            loops of each kind, with begin and end
    if x < n: ... else: ...
    k = a[0] + 1                          a let, of the rest of the block
    b[x] = a[min(x + 1, 7)]               stores; += is atomic
    check(x < 8)

All numbers are i64. Names in capital letters are sizes.
"""

import ast

import numpy as np

from tdsl.codegen.ir.loops import (
    HEAP,
    Alloc,
    Block,
    BufferParam,
    Check,
    For,
    If,
    Kernel,
    Let,
    Message,
    SizeParam,
    Stmt,
    Store,
)  # fmt: skip
from tdsl.codegen.ir.show import show
from tdsl.codegen.ir.statements import map_exprs, map_parts
from tdsl.codegen.ir.verify import verify
from tdsl.codegen.passes.expand_padding import expand_padding
from tdsl.codegen.python.run import PythonExecutable
from tdsl.core.node import transform
from tdsl.lang.affine import as_expr, as_sum
from tdsl.lang.expr import Binary, Call, Expr, Load, Select, Size, Unary, Var, const
from tdsl.lang.simplify import subtract
from tdsl.lang.types import i64

SIZES = {"N": 13, "M": 5}
_BINARY = {
    ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.FloorDiv: "floordiv", ast.Mod: "mod",
    ast.BitAnd: "and", ast.BitOr: "or",
    ast.Lt: "lt", ast.LtE: "le", ast.Gt: "gt", ast.GtE: "ge", ast.Eq: "eq", ast.NotEq: "ne",
}  # fmt: skip


def kernel(arrays: str, text: str) -> Kernel:
    """A kernel over i64 arrays, "out[8], a[N, 4]"; those written first are outputs."""
    body = _block(ast.parse(_dedent(text)).body)
    stored = {ast.unparse(n) for n in _targets(text)}
    params = []
    for n in ast.parse(f"[{arrays}]").body[0].value.elts:
        extents = tuple(map(_expr, _items(n.slice)))
        params.append(BufferParam(n.value.id, i64, extents, (None,) * len(extents), n.value.id in stored))
    sizes = tuple(SizeParam(name) for name in SIZES)
    return Kernel("k", (*params, *sizes), body, (Message("require", ("failed",), ""),))


def assert_becomes(step, arrays: str, text: str, expected: str) -> None:
    """A pass makes `expected`, up to the order of sums, and it computes the same."""
    before = kernel(arrays, text)
    after = step(before)
    expected_body = canonical(kernel(arrays, expected).body)
    assert canonical(after.body) == expected_body, f"\n{show(after)}"
    assert_same_results(before, after)


def canonical(s: Stmt) -> Stmt:
    """A statement with its sums in one order."""
    return map_parts(map_exprs(s, lambda e: transform(e, _ordered)), canonical)


def _ordered(e: Expr) -> Expr:
    match e:
        case Binary("min" | "max", a, b):
            return Binary(e.op, *sorted((a, b), key=repr))
        case Binary("add" | "sub" | "mul") | Unary("neg"):
            return as_expr(as_sum(e))
        case _:
            return e


def assert_same_results(before: Kernel, after: Kernel) -> None:
    verify(after)
    for x, y in zip(run(expand_padding(before)), run(expand_padding(after)), strict=True):
        np.testing.assert_array_equal(x, y)


def run(k: Kernel) -> list[np.ndarray]:
    rng = np.random.default_rng(1)
    arrays = [
        rng.integers(0, 9, tuple(SIZES[e.name] if isinstance(e, Size) else e.value for e in p.extents))
        for p in k.params
        if isinstance(p, BufferParam)
    ]
    PythonExecutable(k, checked=True).run([*arrays, *SIZES.values()])
    return arrays


def _dedent(text: str) -> str:
    import textwrap

    return textwrap.dedent(text.strip("\n"))


def _targets(text: str) -> list[ast.expr]:
    stores = [n for n in ast.walk(ast.parse(_dedent(text))) if isinstance(n, ast.Assign | ast.AugAssign)]
    targets = [t for s in stores for t in (s.targets if isinstance(s, ast.Assign) else [s.target])]
    return [t.value for t in targets if isinstance(t, ast.Subscript)]


def _block(body: list[ast.stmt]) -> Stmt:
    parts: list[Stmt] = []
    for k, s in enumerate(body):
        if isinstance(s, ast.Assign) and isinstance(s.targets[0], ast.Name):
            parts.append(Let(s.targets[0].id, _expr(s.value), _block(body[k + 1 :])))
            break
        parts.append(_statement(s))
    return parts[0] if len(parts) == 1 else Block(tuple(parts))


def _statement(s: ast.stmt) -> Stmt:
    match s:
        case ast.For(ast.Name(name), ast.Call(ast.Name(kind), [lo, hi]), body):
            begin = _expr(lo)
            return For(name, begin, subtract(_expr(hi), begin), kind, _block(body))
        case ast.If(test, body, orelse):
            return If(_expr(test), _block(body), _block(orelse) if orelse else None)
        case ast.With([ast.withitem(ast.Call(_, [ast.Name(name), *extents]))], body):
            scope = HEAP
            if extents and isinstance(extents[-1].value if isinstance(extents[-1], ast.Constant) else 0, str):
                scope = extents.pop().value
            return Alloc(name, i64, tuple(map(_expr, extents)), scope, _block(body))
        case ast.Assign([ast.Subscript(ast.Name(name), index)], value):
            return Store(name, tuple(map(_expr, _items(index))), _expr(value))
        case ast.AugAssign(ast.Subscript(ast.Name(name), index), _, value):
            return Store(name, tuple(map(_expr, _items(index))), _expr(value), None, "add")
        case ast.Expr(ast.Call(ast.Name("check"), [test])):
            return Check(_expr(test), 0, ())
    raise AssertionError(ast.dump(s))


def _items(index: ast.expr) -> list[ast.expr]:
    return index.elts if isinstance(index, ast.Tuple) else [index]


def _expr(e: ast.expr) -> Expr:
    match e:
        case ast.Constant(value):
            return const(value)
        case ast.Name(name):
            return Size(name) if name in SIZES else Var(name)
        case ast.BinOp(a, op, b) | ast.Compare(a, [op], [b]):
            return Binary(_BINARY[type(op)], _expr(a), _expr(b))
        case ast.UnaryOp(ast.USub(), ast.Constant(value)):
            return const(-value)
        case ast.UnaryOp(ast.Invert(), x):
            return Unary("not", _expr(x))
        case ast.Call(ast.Name("min" | "max" as op), [a, b]):
            return Binary(op, _expr(a), _expr(b))
        case ast.Call(ast.Name("where"), args):
            return Select(*map(_expr, args))
        case ast.Call(ast.Name(fn), args):
            return Call(fn, tuple(map(_expr, args)), i64)
        case ast.Subscript(ast.Name(name), index):
            return Load(name, tuple(map(_expr, _items(index))), i64)
    raise AssertionError(ast.dump(e))
