"""Where ranks are in their plans, in files that whoever launched them reads when a run ends badly.

Each rank of such a run has two: the steps of its plan as text, a line each, and 24 bytes that it keeps up to
date: its process, the number of the step from 1, and whether it is in a call.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tdsl.codegen.runtime.arrays import Array
from tdsl.distribute.show import show_step
from tdsl.distribute.steps import RankPlan

FOLDER = "TDSL_RUN_FOLDER"  # the variable that says where these files are


_COUNT = itertools.count()


@dataclass(frozen=True, slots=True)
class Places:
    """Of one rank in one program: nothing is written where nobody reads it."""

    at: Array | None = None

    @staticmethod
    def of_run(plan: RankPlan) -> Places:
        """The files for calls that run a plan."""
        folder = os.environ.get(FOLDER)
        if folder is None or not os.path.isdir(folder):
            return Places()
        texts = [show_step(step).partition("\n")[0] for step in plan.steps]
        own = Path(folder, f"{plan.rank}-{next(_COUNT)}.steps")
        own.write_text("\n".join(texts))
        at = np.memmap(own.with_suffix(".at"), np.int64, "w+", shape=(3,))
        at[0] = os.getpid()
        return Places(at)

    def reach(self, step: int) -> None:
        """The rank comes to a step; 0 is the start of a call."""
        if self.at is not None:
            self.at[1:] = step, 1

    def leave(self) -> None:
        """The call has ended."""
        if self.at is not None:
            self.at[2] = 0


def processes(folder: str) -> dict[int, int]:
    """The process of each rank that has made a call."""
    return {rank: pid for rank, (pid, _, _), _ in _files(folder)}


def whereabouts(folder: str) -> dict[int, str]:
    """Where each rank that has made a call is, or was when it ended."""
    found: dict[int, str] = {}
    for rank, (_, step, inside), path in _files(folder):
        if inside:
            steps = path.with_suffix(".steps").read_text().splitlines()
            found[rank] = (
                f"step {step}: {steps[step - 1]}" if step else "a call, before its first step"
            )
        else:
            found.setdefault(rank, "no call")
    return dict(sorted(found.items()))


def _files(folder: str) -> Iterator[tuple[int, list[int], Path]]:
    for path in Path(folder).glob("*.at"):
        data = np.frombuffer(path.read_bytes(), np.int64).tolist()
        if len(data) == 3 and data[0]:
            yield int(path.stem.partition("-")[0]), data, path
