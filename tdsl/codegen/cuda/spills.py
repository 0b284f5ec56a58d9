"""Chooses among candidates by what only the compiler tells: the registers that spill, and whether it ends."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from tdsl.codegen.cuda.record import Module
from tdsl.codegen.runtime.compile_limit import CompileLimit, warn_of_simpler_code

C = TypeVar("C")


def first_without_spills(candidates: Iterable[C], compiled: Callable[[C], Module]) -> tuple[C, Module]:
    """The first of the candidates, best first, that spills no registers, and its module.

    If all spill, the one that spills fewest bytes. One whose compilation was stopped at the time limit, and
    whose loops are not unrolled therefore, is taken last, and its kernels are named in a warning. One that
    cannot be compiled in the time limit at all is given up for the next, with a warning; CompileLimit if
    there is none. None after the one returned is compiled unless all spill.
    `candidates` are not empty.

    >>> from tdsl.codegen.cuda.record import KernelRecord
    >>> def compiled(spills):
    ...     print("compiling")
    ...     kernel = KernelRecord("k", (), (1,), (32, 1, 1), 0, 0, 255, 0, spills)
    ...     return Module("", "sm_80", (kernel,), (), (), b"")
    >>> first_without_spills((8, 0, 4), compiled)[0]
    compiling
    compiling
    0
    """
    tried: list[tuple[C, Module]] = []
    given_up: CompileLimit | None = None
    for candidate in candidates:
        try:
            tried.append((candidate, compiled(candidate)))
        except CompileLimit as limit:
            given_up = limit
            continue
        if _cost(tried[-1][1]) == (0.0, 0):
            break
    if given_up is not None:
        if not tried:
            raise given_up
        warn_of_simpler_code(given_up.message, "by a schedule for fewer registers")
    best = min(tried, key=lambda pair: _cost(pair[1]))
    stopped = next((m for _, m in tried if m.limit), None)
    if stopped is not None:
        kernels = ", ".join(repr(k.name) for k in stopped.kernels)
        warn_of_simpler_code(
            f"the CUDA compiler takes more than {stopped.limit:g} s of processor time for {kernels}",
            "without unrolled loops" if best[1].limit else "by a schedule for fewer registers",
        )
    return best


def _cost(module: Module) -> tuple[float, int]:
    return module.limit, module.spills
