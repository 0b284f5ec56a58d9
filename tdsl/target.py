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


@dataclass(frozen=True, slots=True)
class Target:
    """A backend by name.

    >>> Target("cpu")
    Target(name='cpu')

    Raises TargetError for a name that is not in TARGETS.
    """

    name: str

    def __post_init__(self) -> None:
        if not is_one_of(self.name, TARGETS):
            raise TargetError(
                f"there is no target {self.name!r}",
                loc=here(),
                label="this target",
                hint=did_you_mean(str(self.name), TARGETS),
            )


def as_target(target: Target | str | None) -> Target:
    """The target for a name; the CPU by default."""
    if isinstance(target, Target):
        return target
    return Target("cpu" if target is None else target)
