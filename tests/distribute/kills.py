"""Kills of ranks at random moments: `python -m tests.distribute.kills` has 50, and prints what each run lost.

A run on four ranks is killed three times, by SIGKILL to one rank, and restarted on fewer ranks. Its result
has to equal that of a run without kills, and each restart may repeat one step at most.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from tests.distribute import counting

ROOT = Path(__file__).parent.parent.parent
KILLS, RANKS, STEPS = 50, 4, 100
LONGEST_S = 0.7  # from when a run takes its first step to the kill; it takes 30 ms for a step
EARLY = 0.2  # the share of kills before the first step
LIMIT_S = 120  # of a run, which is an error


def killed_run(seed: int, ranks: int, kills: int, folder: Path, steps: int = STEPS) -> list[int]:
    """The steps that each restart of a run repeated; AssertionError if a result or a record is wrong."""
    rng, records = np.random.default_rng(seed), folder / "records"
    records.mkdir()
    command = [sys.executable, "-m", "tdsl", "run", "-n", str(ranks), "--restarts", str(kills)]
    command += [str(Path(counting.__file__)), str(folder / "checkpoints"), str(records), str(steps)]
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, env=env, text=True, **pipes) as process:
        until = time.monotonic() + LIMIT_S
        for size in range(ranks, ranks - kills, -1):
            pids = _pids(records, size, process, until)
            if rng.random() > EARLY:
                _wait_for(records / f"{size}.loaded", process, until)
            time.sleep(rng.uniform(0, LONGEST_S))
            os.kill(pids[rng.integers(size)], signal.SIGKILL)
        assert process.stderr is not None
        said = process.communicate(timeout=max(until - time.monotonic(), 1))[1]
    assert process.returncode == 0, said
    assert said.count("restart ") == kills, said
    np.testing.assert_array_equal(np.load(records / "result.npy"), counting.after(steps))
    return repeated_steps((records / "steps").read_text().splitlines())


def _pids(records: Path, size: int, process: subprocess.Popen[str], until: float) -> list[int]:
    """The processes of a run on so many ranks, once all have begun."""
    files = [records / f"{size}-{rank}.pid" for rank in range(size)]
    for file in files:
        _wait_for(file, process, until)
    return [int(file.read_text()) for file in files]


def _wait_for(file: Path, process: subprocess.Popen[str], until: float) -> None:
    """Wait until a rank has written a file."""
    while not file.exists():
        assert process.poll() is None, "the run has ended"
        assert time.monotonic() < until, f"no {file.name} within {LIMIT_S} s"
        time.sleep(0.005)


def repeated_steps(record: list[str]) -> list[int]:
    """The number of steps that were repeated after each restart, from the record of rank 0."""
    repeated, begun, saved = list[int](), 0, 0
    for what, number in (line.split() for line in record):
        match what:
            case "begun":
                begun = int(number) + 1
            case "saved":
                saved = int(number)
            case "loaded":
                assert saved <= int(number) <= begun
                repeated.append(begun - int(number))
    return repeated[1:]


def main() -> None:
    done, most, seed = 0, 0, 0
    while done < KILLS:
        kills = min(RANKS - 1, KILLS - done)
        with tempfile.TemporaryDirectory() as folder:
            repeated = killed_run(seed, RANKS, kills, Path(folder))
        done, most, seed = done + kills, max(most, *repeated), seed + 1
        print(f"{done} kills, steps repeated: {repeated}", flush=True)
    assert most <= 1
    print(f"right: {done} kills, at most {most} step repeated")


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
