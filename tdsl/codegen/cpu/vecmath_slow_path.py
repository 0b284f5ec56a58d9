"""A math function with a fast path, and a branch to a slow path if a lane has a rare argument."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tdsl.codegen.cpu.builder import Builder
from tdsl.codegen.cpu.ir_types import suffix
from tdsl.codegen.cpu.vecmath_arith import Arith

Emit = Callable[..., str]


def with_slow_path(
    a: Arith, name: str, args: Sequence[str], fast_path: Emit, is_rare: Emit, slow_path: Emit
) -> str:
    """`fast_path(a, *args)`; if a lane of the mask `is_rare(a, *args)` is true, `slow_path(a, *args, value)`.

    A lane's result must not depend on other lanes, so `slow_path` must return `value`, that of the fast path,
    in lanes that are not rare. The branch needs basic blocks, so it is in a function of the module that is
    inlined into its callers, while `slow_path` is in a cold function that is not inlined.
    """
    symbol = f"tdsl.{name}.{suffix(a.type)}"
    params = [f"%x{k}" for k in range(len(args))]
    a.b.declare(_slow_function(a, f"{symbol}.rare", params, slow_path))
    a.b.declare(_fast_function(a, symbol, params, fast_path, is_rare))
    return a.b.v(_call(a, symbol, args))


def _call(a: Arith, symbol: str, args: Sequence[str]) -> str:
    return f"call {a.type} @{symbol}({', '.join(f'{a.type} {x}' for x in args)})"


def _function(like: Arith, symbol: str, params: Sequence[str], attributes: str) -> Arith:
    given = ", ".join(f"{like.type} {x}" for x in params)
    head = f"define internal {like.type} @{symbol}({given}) {attributes} nounwind memory(none)"
    return Arith(Builder(like.b.module, head), like.t, like.lanes)


def _slow_function(like: Arith, symbol: str, params: Sequence[str], slow_path: Emit) -> str:
    a = _function(like, symbol, [*params, "%usual"], "noinline cold")
    a.b.do(f"ret {a.type} {slow_path(a, *params, '%usual')}")
    return a.b.text()


def _fast_function(like: Arith, symbol: str, params: Sequence[str], fast_path: Emit, is_rare: Emit) -> str:
    a = _function(like, symbol, params, "alwaysinline")
    value, mask = fast_path(a, *params), is_rare(a, *params)
    if a.lanes > 1:
        mask = a.b.call("i1", f"llvm.vector.reduce.or.{suffix(a.mask_type)}", (a.mask_type, mask))
    a.b.do(f"br i1 {mask}, label %rare, label %done")
    a.b.label("rare")
    corrected = a.b.get(_call(a, f"{symbol}.rare", [*params, value]))
    a.b.do("br label %done")
    a.b.label("done")
    result = a.b.get(f"phi {a.type} [{value}, %entry], [{corrected}, %rare]")
    a.b.do(f"ret {a.type} {result}")
    return a.b.text()
