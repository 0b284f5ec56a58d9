"""A math function with a fast path, and a branch to a slow path if a lane has a rare argument."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tdsl.codegen.cpu.builder import Builder
from tdsl.codegen.cpu.ir_types import suffix
from tdsl.codegen.cpu.vecmath_arith import Arith

Emit = Callable[..., str]


def with_rare_lanes(
    a: Arith, name: str, args: Sequence[str], usual: Emit, rare: Emit, mend: Emit
) -> str:
    """usual(a, *args), and if any lane of the mask rare(a, *args) is true, mend(a, *args, usual value).

    A lane's result must not depend on other lanes, so `mend` must return the usual value in lanes that are
    not rare. The branch needs basic blocks, so it is in a function of the module that is inlined into its
    callers, while `mend` is in a cold function that is not inlined.
    """
    symbol = f"tdsl.{name}.{suffix(a.type)}"
    params = [f"%x{k}" for k in range(len(args))]
    a.b.declare(_mending(a, f"{symbol}.rare", params, mend))
    a.b.declare(_branching(a, symbol, params, usual, rare))
    return a.b.v(_call(a, symbol, args))


def _call(a: Arith, symbol: str, args: Sequence[str]) -> str:
    return f"call {a.type} @{symbol}({', '.join(f'{a.type} {x}' for x in args)})"


def _function(like: Arith, symbol: str, params: Sequence[str], attributes: str) -> Arith:
    given = ", ".join(f"{like.type} {x}" for x in params)
    head = f"define internal {like.type} @{symbol}({given}) {attributes} nounwind memory(none)"
    return Arith(Builder(like.b.module, head), like.t, like.lanes)


def _mending(like: Arith, symbol: str, params: Sequence[str], mend: Emit) -> str:
    a = _function(like, symbol, [*params, "%usual"], "noinline cold")
    a.b.do(f"ret {a.type} {mend(a, *params, '%usual')}")
    return a.b.text()


def _branching(like: Arith, symbol: str, params: Sequence[str], usual: Emit, rare: Emit) -> str:
    a = _function(like, symbol, params, "alwaysinline")
    value, mask = usual(a, *params), rare(a, *params)
    if a.lanes > 1:
        mask = a.b.call("i1", f"llvm.vector.reduce.or.{suffix(a.mask_type)}", (a.mask_type, mask))
    a.b.do(f"br i1 {mask}, label %rare, label %done")
    a.b.label("rare")
    mended = a.b.get(_call(a, f"{symbol}.rare", [*params, value]))
    a.b.do("br label %done")
    a.b.label("done")
    result = a.b.get(f"phi {a.type} [{value}, %entry], [{mended}, %rare]")
    a.b.do(f"ret {a.type} {result}")
    return a.b.text()
