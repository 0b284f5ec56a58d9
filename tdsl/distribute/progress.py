"""The progress of ranks in their plans, in files that the launcher reads if a run fails.

Each rank of such a run has two files: the steps of its plan as text, one a line, and 24 bytes that it keeps
up to date: its process id, the number of its step from 1, and whether it is in a call.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from tdsl.codegen.runtime.arrays import Array
from tdsl.communication.steps import RankPlan
from tdsl.core.node import frozen
from tdsl.distribute.show import show_step

FOLDER = "TDSL_RUN_FOLDER"  # the environment variable with the folder of these files


_COUNT = itertools.count()


@frozen
class Progress:
    """The progress of one rank in one program; `at` is None if no launcher reads it."""

    at: Array | None = None

    @staticmethod
    def create(plan: RankPlan) -> Progress:
        """Create the files for calls that run a plan, if the run has a folder for them."""
        folder = os.environ.get(FOLDER)
        if folder is None or not os.path.isdir(folder):
            return Progress()
        texts = [show_step(step).partition("\n")[0] for step in plan.steps]
        steps_file = Path(folder, f"{plan.rank}-{next(_COUNT)}.steps")
        steps_file.write_text("\n".join(texts))
        at = np.memmap(steps_file.with_suffix(".at"), np.int64, "w+", shape=(3,))
        at[0] = os.getpid()
        return Progress(at)

    def reach(self, step: int) -> None:
        """Record that the rank begins a step; 0 is the start of a call."""
        if self.at is not None:
            self.at[1:] = step, 1

    def leave(self) -> None:
        """Record that the call has ended."""
        if self.at is not None:
            self.at[2] = 0


def processes(folder: str) -> dict[int, int]:
    """The process id of each rank that has begun a call."""
    return {rank: pid for rank, (pid, _, _), _ in _files(folder)}


def rank_positions(folder: str) -> dict[int, str]:
    """A text for each rank that is in a call, or was when it ended: its step."""
    positions: dict[int, str] = {}
    for rank, (_, step, inside), path in _files(folder):
        if inside:
            steps = path.with_suffix(".steps").read_text().splitlines()
            positions[rank] = f"step {step}: {steps[step - 1]}" if step else "a call, before its first step"
    return dict(sorted(positions.items()))


def _files(folder: str) -> Iterator[tuple[int, list[int], Path]]:
    for path in Path(folder).glob("*.at"):
        data = np.frombuffer(path.read_bytes(), np.int64).tolist()
        if len(data) == 3 and data[0]:
            yield int(path.stem.partition("-")[0]), data, path
