"""What a schedule knows of the processor."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tdsl.target import Target


@dataclass(frozen=True, slots=True)
class Machine:
    """The bytes of a vector (0: the backend makes no vectors), the number of threads, and LLVM's names of
    what the processor can do beyond its architecture."""

    vector_bytes: int = 0
    threads: int = 1
    features: frozenset[str] = frozenset()


_describe: list[Callable[[Target], Machine]] = []


def described_by(describe: Callable[[Target], Machine]) -> None:
    """Say who knows the machine of a target: backends do, which schedules come before."""
    _describe[:] = [describe]


def machine_for(target: Target) -> Machine:
    """The machine that code for a target runs on."""
    return _describe[0](target) if _describe else Machine()
