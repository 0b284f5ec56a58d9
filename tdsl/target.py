"""What a program is compiled for."""

from __future__ import annotations

from dataclasses import dataclass

from tdsl.errors import TargetError, did_you_mean, is_one_of
from tdsl.source import here

TARGETS = {
    "cpu": "LLVM, for the processor of this machine",
    "numba": "the loops as Python text, compiled by numba",
    "python": "the loops as Python text, run as it is: slow, and easy to step through",
}


LEVELS = {
    "sse2": "any x86-64 processor",
    "sse4": "x86-64-v2",
    "avx2": "x86-64-v3: with FMA",
    "avx512": "x86-64-v4",
    "aarch64": "any ARM processor of 64 bits",
}


@dataclass(frozen=True, slots=True)
class Target:
    """A backend by name, and for the CPU one of LEVELS instead of all that this processor has.

    >>> Target("cpu")
    Target(name='cpu', level='')

    Code for a level of another architecture can be looked at and not run. Raises TargetError for a name that
    is not in TARGETS, and for a level that is not in LEVELS or not of the CPU.
    """

    name: str
    level: str = ""

    def __post_init__(self) -> None:
        _check(self.name, TARGETS, "target", "this target")
        if not is_one_of(self.level, ("",)):
            _check(
                self.level,
                LEVELS if self.name == "cpu" else {},
                f"level of {self.name}",
                "this target",
            )

    def __str__(self) -> str:
        return f"{self.name}:{self.level}" if self.level else self.name


def _check(name: object, known: dict[str, str], kind: str, label: str) -> None:
    if not is_one_of(name, known):
        hint = did_you_mean(str(name), known) if known else "only the cpu has levels"
        raise TargetError(f"there is no {kind} {name!r}", loc=here(), label=label, hint=hint)


def as_target(target: Target | str | None) -> Target:
    """The target for its text, "cpu" or "cpu:avx2"; the CPU by default.

    >>> as_target("cpu:avx2")
    Target(name='cpu', level='avx2')
    """
    if isinstance(target, Target):
        return target
    if isinstance(target, str) and ":" in target:
        return Target(*target.split(":", 1))
    return Target("cpu" if target is None else target)
