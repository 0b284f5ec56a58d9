"""The verifier accepts what lowering makes and names what no pass may make."""

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
from tdsl.codegen.ir.type_check import BadIR
from tdsl.codegen.ir.verify import Verifier, verify
from tdsl.lang.expr import (
    TRUE,
    Access,
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
    Require,
    Select,
    Show,
    Size,
    Unary,
    Var,
    const,
)  # fmt: skip
from tdsl.lang.types import bool_, f32, f64, i8, i32, i64, u8

i, n = Var("i"), Size("n")
ZERO, ONE = Const(0.0, f32), Const(1.0, f32)
FIRST, SIZE = (const(0),), const(8)
PARAMS = (
    BufferParam("a", f32, (n, const(8)), (None, 1), False),
    BufferParam("out", f32, (n,), (None,), True),
    BufferParam("where", i64, (const(8),), (1,), False),
    ScalarParam("s", f32),
    SizeParam("n"),
)


class Tile:
    name = "tile"


def kernel(body, params=PARAMS):
    return Kernel("k", params, body, (Message("require", ("",), ""),), False, (Tile,))


def store(value, index=FIRST, **options):
    return Store("out", index, value, **options)


def loop(body, name="i", lo=FIRST[0], extent=SIZE, kind="serial"):
    return For(name, lo, extent, kind, body)


def lanes(x, count=4):
    return Broadcast(x, count)


RAMP = Ramp(i, 1, 4)
MASK = Binary("lt", RAMP, lanes(const(6)))

GOOD = {
    "scalar": store(Binary("add", Load("a", (const(0), const(1)), f32), Param("s", f32))),
    "vector": loop(store(Load("a", (const(0), RAMP), f32, MASK), (RAMP,), mask=MASK)),
    "gather": store(lanes(ZERO), (Load("where", (Ramp(const(0), 2, 4),), i64),)),
    "same name beside": Block((loop(store(ZERO)), loop(store(ONE), kind="parallel"))),
    "lets": Let("x", ONE, Let("m", Binary("mul", n, n), store(Param("x", f32), (Var("m"),)))),
    "alloc": Alloc("t", f32, (n,), "heap", Store("t", (const(0),), ZERO)),
    "memory to place": Alloc("t", f32, (n,), "auto", store(ZERO)),
    "atomic": store(ONE, atomic="add"),
    "bool": If(Unary("not", Binary("and", TRUE, Call("isnan", (ONE,), bool_))), store(ONE)),
    "check": Block((Check(TRUE, 0, ()), Print(TRUE, 0, ()), Prefetch("a", (n, const(-5))))),
    "tile": Invoke("tile", (Operand("a", (const(0), const(0)), (1,)),)),
    "random": store(Call("random", (Const(1, i32), const(2)), f32)),
    "bits": store(Call("reinterpret", (Const(1, i32),), f32)),
    "saturate": store(Cast(Cast(Param("s", f32), u8, True), f32)),
}


@pytest.mark.parametrize("name", GOOD)
def test_accepts(name):
    verify(kernel(GOOD[name]))


BAD = {
    "For i: no loop kind is called 'fast'": loop(store(ZERO), kind="fast"),
    "For i: For i: 'i' is bound twice": loop(loop(store(ZERO))),
    "For n: 'n' is bound twice": loop(store(ZERO), name="n"),
    "For i: Var: 'i' is used outside its loop or let": loop(store(ZERO), extent=i),
    "For i: an index or extent of dtype f32": loop(store(ZERO), extent=ONE),
    "For i: indices or extents of [4] lanes": loop(store(ZERO), extent=lanes(const(2))),
    "Let x: 4 lanes where 1 are needed": Let("x", lanes(ONE), store(ZERO)),
    "Let x: Store: Param: 'x' is f32, not f64": Let("x", ONE, store(Cast(Param("x", f64), f32))),
    "Alloc t: no scope is called 'cloud'": Alloc("t", f32, (), "cloud", store(ZERO)),
    "Alloc t: stack memory needs constant extents": Alloc("t", f32, (n,), "stack", store(ZERO)),
    "Alloc a: buffer 'a' is bound twice": Alloc("a", f32, (), "heap", store(ZERO)),
    "Alloc t: 1 strides for 2 axes": Alloc("t", f32, (n, n), "heap", store(ZERO), (1,)),
    "Store: no buffer is called 'b'": Store("b", (), ZERO),
    "Store: out: 2 indices for 1 axes": store(ZERO, (const(0), const(0))),
    "Store: out: stores f64 into f32": store(Const(0.0, f64)),
    "Store: out: an index or extent of dtype i32": store(ZERO, (Const(0, i32),)),
    "Store: out: 1 lanes where 4 are needed": store(ZERO, (Ramp(const(0), 1, 4),)),
    "Store: out: 4 lanes where 1 are needed": store(lanes(ZERO)),
    "Store: out: a mask of dtype i64": store(ZERO, mask=const(1)),
    "For i: Store: out: 4 lanes where 1 are needed": loop(store(ZERO, mask=MASK)),
    "Store: out: no atomic operator is called 'div'": store(ZERO, atomic="div"),
    "Store: out: an atomic store cannot bypass caches": store(ZERO, atomic="add", streaming=True),
    "If: a condition of dtype i64": If(const(1), store(ZERO)),
    "If: 4 lanes where 1 are needed": If(lanes(TRUE), store(ZERO)),
    "Check 0: 1 values for 0 places": Check(TRUE, 0, (n,)),
    "Check 1: the kernel has no such message": Check(TRUE, 1, ()),
    "Print 0: a condition of dtype f32": Print(ZERO, 0, ()),
    "Prefetch: a: 1 indices for 2 axes": Prefetch("a", (n,)),
    "Invoke dot: the kernel declares no such instruction": Invoke("dot", ()),
    "Invoke tile: out has no axes (1,)": Invoke("tile", (Operand("out", (const(0),), (1,)),)),
    "Store: Const: 300 in u8": store(Cast(Const(300, u8), f32)),
    "Store: out: Var: 'j' is used outside its loop or let": store(ZERO, (Var("j"),)),
    "Store: out: Size: no size is called 'm'": store(ZERO, (Size("m"),)),
    "Store: Param: 'q' is used outside its loop or let": store(Param("q", f32)),
    "Store: Unary: no operator is called 'sqrt'": store(Unary("sqrt", ZERO)),
    "Store: Unary: not of f32": store(Unary("not", ZERO)),
    "Store: Binary: add: operands of f32 and f64": store(Binary("add", ZERO, Const(0.0, f64))),
    "Store: Binary: add: 1 lanes where 4 are needed": store(Binary("add", lanes(ZERO), ZERO)),
    "Store: Binary: div: true division of i64": store(Cast(Binary("div", n, n), f32)),
    "Store: Binary: and: bit operation on f32": store(Binary("and", ZERO, ZERO)),
    "Store: Binary: add: arithmetic on bool": store(Cast(Binary("add", TRUE, TRUE), f32)),
    "Store: Binary: no operator is called 'nand'": store(Binary("nand", ZERO, ZERO)),
    "Store: Select: a condition of dtype f32": store(Select(ZERO, ZERO, ZERO)),
    "Store: Select: operands of f32 and i64": store(Select(TRUE, ZERO, n)),
    "Store: out: Call: no function of loops is called 'extent'": store(ZERO, (Call("extent", (n,), i64),)),
    "Store: Call: no function of loops is called 'gamma'": store(Call("gamma", (ZERO,), f32)),
    "Store: Call: exp: 2 arguments": store(Call("exp", (ZERO, ZERO), f32)),
    "Store: Call: exp: f32 gives f64": store(Cast(Call("exp", (ZERO,), f64), f32)),
    "Store: Call: sqrt: arguments of [i64]": store(Cast(Call("sqrt", (n,), i64), f32)),
    "Store: Call: popcount: arguments of [f32]": store(Call("popcount", (ZERO,), f32)),
    "Store: Call: reinterpret: i8 as f32": store(Call("reinterpret", (Const(1, i8),), f32)),
    "Store: Load: loads f64 from a of f32": store(Cast(Load("a", (n, n), f64), f32)),
    "Store: Load: a: indices or extents of [2, 4] lanes": store(
        Load("a", (Ramp(n, 1, 2), Ramp(n, 1, 4)), f32)
    ),
    "Store: Load: a mask of dtype i64": store(Load("a", (n, n), f32, n)),
    "Store: out: Ramp: a base of dtype i32": store(ZERO, (Ramp(Const(0, i32), 1, 4),)),
    "Store: out: Ramp: 1 lanes, stride 1": store(ZERO, (Ramp(n, 1, 1),)),
    "Store: Broadcast: 4 lanes where 1 are needed": store(lanes(lanes(ZERO))),
    "Store: Access: does not exist in loops": store(Access(None, (), 0, f32)),
    "Store: Read: does not exist in loops": store(Read("a", (n, n), 0, f32)),
    "Store: Reduce: does not exist in loops": store(Reduce("sum", (), (), (), (), 0, f32)),
    "Store: out: Range: does not exist in loops": store(ZERO, (Range("r", n, n),)),
    "Store: Require: does not exist in loops": store(Require(TRUE, ZERO, "", ())),
    "Store: Show: does not exist in loops": store(Show(TRUE, ZERO, "", ())),
}


@pytest.mark.parametrize("reason", BAD)
def test_rejects(reason):
    with pytest.raises(BadIR) as caught:
        verify(kernel(BAD[reason]))
    assert str(caught.value) == f"kernel k: {reason}"


def test_rejects_two_parameters_of_one_name():
    with pytest.raises(BadIR, match="parameter 's' is bound twice"):
        verify(kernel(store(ZERO), (*PARAMS, ScalarParam("s", f32))))


def test_rejects_a_parameter_with_strides_for_other_axes():
    with pytest.raises(BadIR, match="a has 2 strides"):
        verify(kernel(Block(()), (BufferParam("a", f32, (const(1),), (1, 1), False),)))


def test_rejects_an_extent_that_is_no_parameter():
    with pytest.raises(BadIR, match="parameter a: Size: no size is called 'm'"):
        verify(kernel(Block(()), (BufferParam("a", f32, (Size("m"),), (1,), False),)))


def test_a_name_is_looked_up_again_where_its_scope_has_ended():
    shared = store(ZERO, (i,))
    with pytest.raises(BadIR, match="'i' is used outside"):
        verify(kernel(Block((loop(shared), shared))))


def test_a_shared_expression_is_looked_at_once():
    e = Param("s", f32)
    for _ in range(80):
        e = Binary("add", e, e)
    verify(kernel(Block((store(e), store(e)))))


def test_a_shared_expression_is_looked_at_once_in_kernels_after_one_another():
    verifier, shared = Verifier(), Binary("add", n, const(1))
    verifier(kernel(loop(store(ZERO), extent=shared)))
    seen = set(verifier.typed)
    verifier(kernel(loop(store(ONE), extent=shared)))
    assert [x.expr for at, x in verifier.typed.items() if at not in seen] == [ONE]


def test_a_name_of_an_expression_that_is_known_is_looked_up_in_each_kernel():
    verifier, good = Verifier(), loop(store(ZERO, (i,)))
    verifier(kernel(good))
    with pytest.raises(BadIR, match="Store: out: Var: 'i' is used outside"):
        verifier(kernel(good.body))
