"""The clock's seconds of hand-written plans, those of examples/17_training.py, and of the planner's.

Run as python -m benchmarks.plans.hand_written. The planner is given the placements of inputs and results.
"""

from __future__ import annotations

import contextlib
import io
import os
import runpy

import tdsl as td

RANKS, LATENCY, BANDWIDTH = 4, 1e-6, 10e9
OF_LAYERS = ("X", "T", "W1", "W2", "V1", "V2")


def seconds(s: td.Schedule) -> float:
    """The length of a plan's timeline."""
    return float(td.compile(s).trace(os.devnull, latency=LATENCY, bandwidth=BANDWIDTH))


def main() -> None:
    """Print the seconds of both plans for each way to train two layers."""
    with contextlib.redirect_stdout(io.StringIO()):
        example = runpy.run_path("examples/17_training.py")
    parallel = example["data_parallel"]
    plans = {
        "data parallel": parallel("rc -> *", "rc -> *", "*"),
        "ZeRO-1": parallel("rc -> *", "rc -> partial(sum)", "r"),
        "ZeRO-2": parallel("rc -> *", "rc -> r", "r"),
        "ZeRO-3": parallel("rc -> r", "rc -> r", "r"),
        "Megatron": example["megatron"](),
    }
    for name, written in plans.items():
        s, placed = td.Schedule(*example["two_layers"]()[0]), dict(written.state.placed)
        s.place("X", str(placed["X"]), td.Grid(p=RANKS))
        cluster = td.Cluster(ranks=RANKS, latency=LATENCY, bandwidth=BANDWIDTH)
        s.plan(cluster, fix={t: str(placed[t]) for t in OF_LAYERS if t != "X"})
        print(f"{name:14} by hand {1e6 * seconds(written):6.2f} us, planner {1e6 * seconds(s):6.2f} us")


if __name__ == "__main__":
    main()
