"""Products of a loop's tiles that begin an iteration before the one that uses them."""

from __future__ import annotations

from collections.abc import Sequence

from tdsl.codegen.analysis.asynchronous import is_asynchronous
from tdsl.codegen.ir.fresh_names import Fresh
from tdsl.codegen.ir.loops import Alloc, For, If, Stmt
from tdsl.codegen.ir.statements import read_in, rebuilt, sequence, substituted, written_in
from tdsl.lang.expr import ONE, ZERO, Binary, Expr, Var
from tdsl.lang.simplify import add, subtract


def begin_early(
    loop: For,
    filled: Stmt,
    memory: Sequence[Alloc],
    parts: Sequence[Stmt],
    used: Stmt,
    fresh: Fresh,
) -> Stmt | None:
    """A loop whose asynchronous products of nothing but tiles are made as soon as their memory is free.

    wait for a tile, use it                --> wait for the first tile, begin products
    for n:                                     for n, but for the last:
      wait for tile n                            use the products of tile n
      products of tile n                         wait for tile n + 1, begin its products
      what is made of them                       what is made of those of tile n
                                               the same for the last tile, with nothing to begin

    Each iteration is `parts` within `memory`, behind `filled`, which waits for its tile, and before `used`.
    None where no memory is made of tiles alone.

    >>> from tdsl.codegen.ir.loops import FRAGMENT, Arrive, Await, Block, Invoke, Kernel, Operand, Store
    >>> from tdsl.codegen.ir.show import show
    >>> from tdsl.lang.expr import Load, const
    >>> from tdsl.lang.types import f32
    >>> from tdsl.schedule.instructions.tensor_cores import find
    >>> name = find("wgmma_m64n8k16_f16_mk_nk").name
    >>> operands = [Operand(x, (ZERO, ZERO), (0, 1)) for x in ("acc", "rows", "tile")]
    >>> taken = Store("b", (Var("t"),), Load("acc", (Var("t"),), f32))
    >>> take = For("t", ZERO, const(128), "threadIdx.x", taken)
    >>> loop = For("n", ZERO, const(9), "serial", Block(()))
    >>> meets = Await("full", ZERO, ZERO), Arrive("empty", ZERO, together=True)
    >>> acc = Alloc("acc", f32, (const(64), const(8)), FRAGMENT, Block(()))
    >>> made = begin_early(
    ...     loop, meets[0], [acc], [Invoke(name, tuple(operands)), take], meets[1],
    ...     Fresh(Kernel("k", (), loop)),
    ... )
    >>> print(show(made))
    acc = alloc(f32, [64, 8])  # fragment
    if 0 < 9:
      wait(full[0], 0)
      wgmma_m64n8k16_f16_mk_nk(acc[0:, 0:], rows[0:, 0:], tile[0:, 0:])
      for n in range(0, 8):
        for t in range(0, 128):  # threadIdx.x
          b[t] = acc[t]
        wait(full[0], 0)
        wgmma_m64n8k16_f16_mk_nk(acc[0:, 0:], rows[0:, 0:], tile[0:, 0:])
        arrive(empty[0], as a warp)
      for t_1 in range(0, 128):  # threadIdx.x
        b[t_1] = acc[t_1]
      arrive(empty[0], as a warp)
    """
    name = _of_tiles(memory, parts)
    if name is None:
        return None
    makes = [x for x in parts if name in written_in(x)]
    first = 1 + max(
        (n for n, x in enumerate(parts) if x not in makes and name in read_in(x)), default=-1
    )
    before, behind = (
        [x for x in some if x not in makes] for some in (parts[:first], parts[first:])
    )
    begun = sequence([filled, *makes])

    def iteration(ahead: Sequence[Stmt], value: Expr) -> Stmt:
        body = sequence([*before, *ahead, *behind])
        for a in reversed(memory):
            if a.name != name:
                body = rebuilt(a, body=body)
        return fresh.copy(sequence([body, used]), {loop.name: value})

    last = subtract(add(loop.lo, loop.extent), ONE)
    after = substituted(begun, loop.name, add(Var(loop.name), ONE))
    most = rebuilt(loop, extent=subtract(loop.extent, ONE), body=iteration([after], Var(loop.name)))
    whole = sequence([fresh.copy(begun, {loop.name: loop.lo}), most, iteration([], last)])
    own = next(a for a in memory if a.name == name)
    return rebuilt(own, body=If(Binary("lt", ZERO, loop.extent), whole))


def _of_tiles(memory: Sequence[Alloc], parts: Sequence[Stmt]) -> str | None:
    """The memory of asynchronous products that read nothing of what an iteration makes."""
    made = {name for x in parts for name in written_in(x)}
    for a in memory:
        makes = [x for x in parts if a.name in written_in(x)]
        alone = all(written_in(x) == {a.name} and not (read_in(x) - {a.name}) & made for x in makes)
        if alone and any(map(is_asynchronous, makes)):
            return a.name
    return None
