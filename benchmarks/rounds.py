"""Peers side by side: one process each, taking turns, so that noise hits all of them alike."""

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.case import Case

TURN_S = 0.15  # how long a peer runs before the next one does
SETTLE_S = 0.03  # until the threads of the peer before have stopped spinning
ROOT = Path(__file__).parent.parent

THREAD_VARIABLES = (
    "HL_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS",
)  # fmt: skip

# Freed memory stays with the process, or a peer that makes its result anew in each call would spend its
# time on page faults, which a peer that is given memory for the result does not have.
KEEP_MEMORY = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 62)}
COLD = {"TDSL_CACHE": "0"}  # compiling is timed, too


@dataclass
class Timing:
    """What is known of one peer: `turns` holds the median time of each turn in milliseconds.

    `compile_ms` is how long tdsl took to compile the program, defining it included, when it had compiled it
    before; of others, how much longer than the second call the first one took, with all preparation.
    `note` is empty, or why there are no times: not installed, wrong result, or the error.
    """

    peer: str
    note: str = ""
    compile_ms: float = 0.0
    turns: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        return statistics.median(self.turns)


class Worker:
    """The process of one peer."""

    def __init__(self, case: Case, peer: str, process: subprocess.Popen[str]) -> None:
        self.timing = Timing(peer)
        self.process = process
        self.count = 1
        first = self._answer()
        if first is None:
            self.timing.note = "failed (see above)"
        elif "missing" in first:
            self.timing.note = first["missing"]
        else:
            self.timing.compile_ms = first["compile_ms"]
            if not first["right"]:
                self.timing.note = f"WRONG result for {case.name}"

    def _answer(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        return json.loads(line) if line else None

    def turn(self) -> list[float]:
        """The times of this turn's calls."""
        assert self.process.stdin is not None
        time.sleep(SETTLE_S)
        self.process.stdin.write(f"{self.count}\n")
        self.process.stdin.flush()
        times = self._answer()
        if times is None:
            self.timing.note = "died while it was timed"
            return []
        return list(times)


@contextmanager
def running(case: Case, peer: str, threads: int) -> Iterator[Worker]:
    """A worker that is gone when the block ends."""
    command = [sys.executable, "-m", "benchmarks.worker", case.name, peer]
    environment = os.environ | KEEP_MEMORY | COLD | dict.fromkeys(THREAD_VARIABLES, str(threads))
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with process:
        try:
            yield Worker(case, peer, process)
        finally:
            process.kill()


def compare(case: Case, peers: list[str], rounds: int, threads: int) -> list[Timing]:
    """Time the peers of a case; a peer that is missing or wrong is reported, not timed."""
    with ExitStack() as stack:
        workers = [stack.enter_context(running(case, peer, threads)) for peer in peers]
        ready = [worker for worker in workers if not worker.timing.note]
        for worker in ready:
            slowest = max(worker.turn(), default=1e3 * TURN_S)
            worker.count = max(1, min(1000, int(1e3 * TURN_S / slowest)))
        for round_ in range(rounds):
            first = round_ % max(len(ready), 1)
            for worker in ready[first:] + ready[:first]:
                if not worker.timing.note and (times := worker.turn()):
                    worker.timing.turns.append(statistics.median(times))
    return [worker.timing for worker in workers]
