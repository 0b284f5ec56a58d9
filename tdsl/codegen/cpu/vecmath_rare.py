"""A function whose usual code is wrong for rare arguments, and a branch to code that mends those lanes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tdsl.codegen.cpu.builder import Builder
from tdsl.codegen.cpu.ir_types import suffix
from tdsl.codegen.cpu.vecmath_arith import Arith

Emit = Callable[..., str]


def with_rare_lanes(
    a: Arith, name: str, args: Sequence[str], usual: Emit, rare: Emit, mend: Emit
) -> str:
    """usual(a, *args); where the mask rare(a, *args) holds, mend(a, *args, usual value).

    A lane's result does not depend on the others, so `mend` leaves the usual ones as they are. A branch needs
    blocks: the code is a function of the module, inlined into its callers; `mend` stays out of the way.
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
