"""`Target`: the backend, and the CPU level or GPU architecture, that a program is compiled for."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tdsl.core.source import here
from tdsl.errors import TargetError, did_you_mean, is_one_of

if TYPE_CHECKING:
    from tdsl.machine.model import Machine

TARGETS = {
    "cpu": "LLVM, for the processor of this machine",
    "cuda": "kernels of NVIDIA GPUs, through TVM",
    "numba": "the loops as Python text, compiled by numba",
    "python": "the loops as Python text, run as it is: slow, and easy to step through",
}


LEVELS = {
    "sse2": "any x86-64 processor",
    "sse4": "x86-64-v2",
    "avx2": "x86-64-v3: with FMA",
    "avx512": "x86-64-v4",
    "amx": "x86-64-v4 with products of bf16 and int8, by vectors and by AMX tiles (Sapphire Rapids)",
    "aarch64": "any ARM processor of 64 bits",
}


@dataclass(frozen=True, slots=True)
class Target:
    """A backend by name, with an instruction-set level for the CPU or an architecture for a GPU.

    `level` is one of LEVELS, by default all features of this CPU; `arch` is one of those that a file of
    `tdsl/machine/described` stands for, by default sm_90a, or several with commas between them.

    >>> Target("cpu"), Target("cuda", arch="sm_80")
    (Target(name='cpu', level='', arch=''), Target(name='cuda', level='', arch='sm_80'))

    Code for a level of another architecture, or for a GPU that this machine lacks, can be printed but not
    run. Raises TargetError for a name that is not in TARGETS, and for a level or architecture that the
    backend does not have.
    """

    name: str
    level: str = ""
    arch: str = ""

    def __post_init__(self) -> None:
        _check_name(self.name, TARGETS, "target", "only the cpu has levels")
        if not is_one_of(self.level, ("",)):
            names = LEVELS if self.name == "cpu" else {}
            _check_name(self.level, names, f"level of {self.name}", "only the cpu has levels")
        if not is_one_of(self.arch, ("",)):
            from tdsl.machine.devices import gpus  # reads files

            names = gpus() if self.name == "cuda" else {}
            for arch in str(self.arch).split(","):
                _check_name(arch, names, f"architecture of {self.name}", "only cuda has architectures")

    def capacity(self, level: str) -> float:
        """The bytes of one instance of a level of memory that stay there; inf if the level has no limit.

        Levels of a GPU are "registers", "shared" (of a block), "L2" and "global", with sizes from its data
        sheet; levels of the CPU are "registers", "L1" and so on, and "memory". TargetError for another level.

        >>> Target("cuda", arch="sm_80").capacity("shared")
        166912
        """
        machine = self.machine()
        capacity = machine.capacity(machine.level(level))
        return math.inf if capacity is None else capacity

    @property
    def archs(self) -> tuple[str, ...]:
        """The architectures of GPUs, each once, in rising order; ("",) for the default.

        >>> Target("cuda", arch="sm_90a,sm_80").archs
        ('sm_80', 'sm_90a')
        """
        return tuple(sorted(set(self.arch.split(",")), key=lambda arch: (len(arch.rstrip("a")), arch)))

    def machine(self) -> Machine:
        """The machine model of this target: vectors, threads, levels of memory, and rates if known.

        That of the first of several architectures.
        """
        from tdsl.machine.machine_of import machine_of

        return machine_of(self.name, self.level, self.archs[0])

    def __str__(self) -> str:
        part = self.level or self.arch
        return f"{self.name}:{part}" if part else self.name


def _check_name(name: object, names: Mapping[str, str], kind: str, alternative: str) -> None:
    if not is_one_of(name, names):
        hint = did_you_mean(str(name), names) if names else alternative
        raise TargetError(f"there is no {kind} {name!r}", loc=here(), label="this target", hint=hint)


def as_target(target: Target | str | None) -> Target:
    """Parses a target: "cpu", "cpu:avx2", "cuda:sm_80,sm_90a"; None means TDSL_TARGET, else the CPU.

    >>> as_target("cpu:avx2")
    Target(name='cpu', level='avx2', arch='')
    """
    if isinstance(target, Target):
        return target
    if target is None:
        target = os.environ.get("TDSL_TARGET") or "cpu"
    name, separator, part = str(target).partition(":")  # a wrong type is refused by `Target`
    if not separator:
        return Target(target)
    return Target(name, arch=part) if name == "cuda" else Target(name, part)
