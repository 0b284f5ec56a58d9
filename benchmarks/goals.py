"""How fast tdsl should be: groups of cases, whom they are compared with, and what the ratios should be.

The ratio of a case is the time of the fastest of the named peers over tdsl's, the median over the turns:
above 1 where tdsl is faster.
"""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

TORCH = ("torch", "torch-compile")
LAYOUTS = (*TORCH, "torch-last", "torch-last-compile")
EINSUMS = ("numpy", "torch", "opt_einsum", "jax", "numpy-matmul", "torch-matmul")
NUMBA = ("numba", "numba-parallel", "numba-numpy", "numba-numpy-parallel")
COMPILE_MS = 300  # how long a first call may take beyond the second


@dataclass(frozen=True)
class Goal:
    """Cases of a group against peers: the geometric mean of the ratios, and the least of them.

    `least` is 0 where single cases may be anything; `ours` is the peer that is ours.
    """

    group: str
    peers: tuple[str, ...]
    mean: float
    least: float = 0.0
    ours: str = "tdsl"


GOALS = (
    Goal("sgemm", ("numpy",), 1.1, 1.0),
    Goal("sgemm", TORCH, 1.0, 0.9),
    Goal("dgemm", ("numpy",), 1.05, 0.95),
    Goal("skinny", ("numpy", *TORCH, "jax"), 1.1),
    Goal("narrow", (*TORCH, "jax"), 1.0),
    Goal("pipelines", ("halide-manual",), 1.1, 1.0, ours="tdsl-hand"),
    Goal("pipelines", ("halide-auto",), 1.3),
    Goal("pipelines", ("tdsl-hand",), 0.77, 0.77, ours="tdsl-search"),  # within 1.3 times its time
    Goal("demo", ("tdsl-hand",), 0.77, 0.77, ours="tdsl-search"),
    Goal("rows", (*TORCH, "jax", "numba"), 1.3),
    Goal("gradients", TORCH, 0.83, 0.83),  # within 1.2 times their time
    Goal("conv", LAYOUTS, 1.0),
    Goal("depthwise", LAYOUTS, 1.0),
    Goal("attention", (*TORCH, "jax"), 1.1),
    Goal("mixed", (*TORCH, "jax", "numba", "scipy"), 1.3),
    Goal("stream", ("stream",), 0.9, 0.9),
    Goal("chains", ("tdsl-unfused",), 1.5, 0.95),
    Goal("chains", ("torch-compile",), 1.2),
    Goal("unknown-contractions", EINSUMS, 2.5, 0.9),
    Goal("unknown-layouts", EINSUMS, 1.0, 0.9),
    Goal("unknown-npbench", NUMBA, 1.5, 0.8),
    Goal("unseen-contractions", EINSUMS, 2.5, 0.9),
    Goal("unseen-npbench", NUMBA, 1.5, 0.8),
)

# Of a GPU: "copy" is the time of a copy of as many bytes, "sdpa-*" are the backends of PyTorch's attention.
CUDA_GOALS = (
    Goal("cuda-memory", ("copy",), 0.9, 0.9),
    Goal("cuda-rows", ("torch-compile",), 1.1),
    Goal("cuda-matmul", ("cublas",), 0.9, 0.9),
    Goal("cuda-attention", ("sdpa-flash", "sdpa-cudnn", "sdpa-efficient"), 0.8, 0.8),
)

Record = Mapping[str, Any]  # of a case, as report.record makes it


def summarize(records: Iterable[Record], goals: Sequence[Goal] = GOALS) -> list[dict[str, Any]]:
    """For each goal whose group has been timed: the ratio of each case, their mean and the least.

    Cases in which a peer of the goal has no times are judged by the others; those without any are left out.
    """
    lines = []
    for goal in goals:
        compared = {
            record["case"]: comparison
            for record in records
            if record.get("group") == goal.group and (comparison := _compare(goal, record))
        }
        if compared:
            ratios = [comparison["ratio"] for comparison in compared.values()]
            mean, least = statistics.geometric_mean(ratios), min(ratios)
            lines.append(
                {
                    "group": goal.group,
                    "ours": goal.ours,
                    "peers": list(goal.peers),
                    "goal": {"mean": goal.mean, "least": goal.least},
                    "met": mean >= goal.mean and least >= goal.least,
                    "mean": mean,
                    "least": least,
                    "cases": compared,
                }
            )
    return lines


def _compare(goal: Goal, record: Record) -> dict[str, Any] | None:
    """The fastest peer of a case, its ratio, and our time to compile."""
    peers = record["peers"]
    ours = peers.get(goal.ours, {})
    if not ours.get("turns_ms"):
        return None
    ratios = {
        name: ratio(peers[name]["turns_ms"], ours["turns_ms"])
        for name in goal.peers
        if name in peers and peers[name]["turns_ms"]
    }
    best = min(ratios, key=lambda name: ratios[name], default=None)
    if best is None or not math.isfinite(ratios[best]):
        return None
    return {
        "peer": best,
        "ratio": ratios[best],
        "median_ms": ours["median_ms"],
        "compile_ms": ours["compile_ms"],
    }


def ratio(theirs: list[float], ours: list[float]) -> float:
    """How many times as long they take, turn by turn: the median."""
    return statistics.median(a / b for a, b in zip(theirs, ours, strict=False))
