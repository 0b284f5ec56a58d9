"""Software pipelining: the asynchronous MMAs of tile n + 1 are issued before the epilogue of tile n."""

from __future__ import annotations

from collections.abc import Sequence

from tdsl.codegen.analysis.asynchronous import is_asynchronous
from tdsl.codegen.ir.fresh_names import FreshNames
from tdsl.codegen.ir.loops import Alloc, For, If, Stmt
from tdsl.codegen.ir.statements import inputs_of, outputs_of, rebuilt, sequence, substituted
from tdsl.lang.expr import ONE, ZERO, Binary, Expr, Var
from tdsl.lang.simplify import add, subtract


def overlap_mma(
    loop: For,
    wait: Stmt,
    allocs: Sequence[Alloc],
    parts: Sequence[Stmt],
    release: Stmt,
    fresh: FreshNames,
) -> Stmt | None:
    """The loop software-pipelined: the MMAs of the next tile are issued when their accumulator is free.

    for n:                                 --> wait for the first tile, issue its MMAs
      wait for tile n                          for n, but for the last:
      issue the MMAs of tile n                   read the accumulator of tile n
      read the accumulator                       wait for tile n + 1, issue its MMAs
      the rest of the epilogue                   the rest of the epilogue of tile n
                                               the epilogue of the last tile

    Each iteration is `parts` nested in the allocations `allocs`, after `wait`, which waits for its tile,
    and before `release`, which frees its slot. None if every MMA reads a result of its iteration.

    >>> from tdsl.codegen.ir.loops import FRAGMENT, ArriveBarrier, WaitBarrier
    >>> from tdsl.codegen.ir.loops import Block, Invoke, Kernel, Operand, Store
    >>> from tdsl.codegen.ir.show import show
    >>> from tdsl.lang.expr import Load, const
    >>> from tdsl.lang.types import f32
    >>> from tdsl.machine.instructions.tensor_cores import find
    >>> accumulator_name = find("wgmma_m64n8k16_f16_mk_nk").name
    >>> operands = [Operand(x, (ZERO, ZERO), (0, 1)) for x in ("acc", "rows", "tile")]
    >>> read = Store("b", (Var("t"),), Load("acc", (Var("t"),), f32))
    >>> reads = For("t", ZERO, const(128), "threadIdx.x", read)
    >>> loop = For("n", ZERO, const(9), "serial", Block(()))
    >>> barriers = WaitBarrier("full", ZERO, ZERO), ArriveBarrier("empty", ZERO, per_warp=True)
    >>> acc = Alloc("acc", f32, (const(64), const(8)), FRAGMENT, Block(()))
    >>> pipelined = overlap_mma(
    ...     loop, barriers[0], [acc], [Invoke(accumulator_name, tuple(operands)), reads], barriers[1],
    ...     FreshNames(Kernel("k", (), loop)),
    ... )
    >>> print(show(pipelined))
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
    accumulator_name = _tile_accumulator(allocs, parts)
    if accumulator_name is None:
        return None
    mmas = [x for x in parts if accumulator_name in outputs_of(x)]
    first = 1 + max(
        (n for n, x in enumerate(parts) if x not in mmas and accumulator_name in inputs_of(x)),
        default=-1,
    )
    before, rest = ([x for x in some if x not in mmas] for some in (parts[:first], parts[first:]))
    first_mmas = sequence([wait, *mmas])

    def iteration(ahead: Sequence[Stmt], value: Expr) -> Stmt:
        body = sequence([*before, *ahead, *rest])
        for a in reversed(allocs):
            if a.name != accumulator_name:
                body = rebuilt(a, body=body)
        return fresh.copy(sequence([body, release]), {loop.name: value})

    last = subtract(add(loop.lo, loop.extent), ONE)
    after = substituted(first_mmas, loop.name, add(Var(loop.name), ONE))
    main = rebuilt(loop, extent=subtract(loop.extent, ONE), body=iteration([after], Var(loop.name)))
    whole = sequence([fresh.copy(first_mmas, {loop.name: loop.lo}), main, iteration([], last)])
    accumulator = next(a for a in allocs if a.name == accumulator_name)
    return rebuilt(accumulator, body=If(Binary("lt", ZERO, loop.extent), whole))


def _tile_accumulator(allocs: Sequence[Alloc], parts: Sequence[Stmt]) -> str | None:
    """The accumulator of asynchronous MMAs that read no result of the iteration; None without such MMAs."""
    written = {name for x in parts for name in outputs_of(x)}
    for a in allocs:
        mmas = [x for x in parts if a.name in outputs_of(x)]
        reads_tiles = all(outputs_of(x) == {a.name} and not (inputs_of(x) - {a.name}) & written for x in mmas)
        if reads_tiles and any(map(is_asynchronous, mmas)):
            return a.name
    return None
