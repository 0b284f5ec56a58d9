"""Chooses among candidates by the registers that ptxas spills, which no prediction knows."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from tdsl.codegen.cuda.record import Module

C = TypeVar("C")


def first_without_spills(candidates: Iterable[C], compiled: Callable[[C], Module]) -> tuple[C, Module]:
    """The first of the candidates, best first, that spills no registers, and its module.

    If all spill, the one that spills fewest bytes. None after the one returned is compiled unless all spill.
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
    best: tuple[C, Module] | None = None
    for candidate in candidates:
        module = compiled(candidate)
        if best is None or module.spills < best[1].spills:
            best = candidate, module
        if not best[1].spills:
            break
    assert best is not None, "there is a candidate"
    return best
