"""Tables of timings for people, and records of them for programs."""

import datetime
import importlib.metadata
import os
import platform
import statistics
from pathlib import Path
from typing import Any

from rich.table import Table

from benchmarks.case import Case
from benchmarks.goals import COMPILE_MS
from benchmarks.rounds import Timing

PACKAGES = (
    "tdsl",
    "numpy",
    "llvmlite",
    "numba",
    "numexpr",
    "halide",
    "scipy",
    "torch",
    "jax",
    "opt_einsum",
    "mpi4py",
    "mpich",
)


def machine() -> dict[str, Any]:
    """Where and when the times were taken."""
    model = platform.processor()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [s for s in cpuinfo.read_text().splitlines() if s.startswith("model name")]
        model = names[0].partition(":")[2].strip() if names else model
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "cpu": model,
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
        "system": platform.platform(),
        "python": platform.python_version(),
        "versions": {name: version for name in PACKAGES if (version := installed(name))},
    }


def installed(package: str) -> str:
    """The version of a package; empty when it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def against(timings: list[Timing]) -> Timing | None:
    """The peer that the others are compared with: tdsl's default schedule, or else the first one."""
    timed = [t for t in timings if t.turns]
    return next((t for t in timed if t.peer == "tdsl"), timed[0] if timed else None)


def ratios(timing: Timing, reference: Timing) -> list[float]:
    """How many times as long as the reference, turn by turn."""
    return [a / b for a, b in zip(timing.turns, reference.turns, strict=False)]


def table(case: Case, timings: list[Timing]) -> Table:
    """One line a peer: times of its turns, and their ratio to the reference, above 1 when that is faster."""
    reference = against(timings)
    name = reference.peer if reference else "-"
    out = Table(title=f"{case.name}: {case.title}", title_justify="left")
    out.add_column("peer", no_wrap=True)
    for head in ("min ms", "median ms", "max ms", "rate", f"/ {name}", "range", "compile ms"):
        out.add_column(head, justify="right", no_wrap=True)
    for t in timings:
        if not t.turns or reference is None:
            out.add_row(t.peer, t.note or "right, not timed")
            continue
        r = ratios(t, reference)
        out.add_row(
            t.peer,
            *(f"{ms:.3f}" for ms in (min(t.turns), t.median, max(t.turns))),
            rate(case.flops, case.bytes, t.median),
            f"{statistics.median(r):.2f}",
            f"{min(r):.2f}-{max(r):.2f}",
            f"{t.compile_ms:.0f}",
        )
    return out


def rate(flops: float, bytes_: float, ms: float) -> str:
    """The work of a case over a time, in GFLOP/s or GB/s."""
    if flops:
        return f"{flops / ms / 1e6:.1f} GFLOP/s"
    return f"{bytes_ / ms / 1e6:.1f} GB/s" if bytes_ else ""


def summary(lines: list[dict[str, Any]]) -> Table:
    """The lines of `goals.summarize`: each case with its ratio, then the mean and the least of the group."""
    out = Table(
        title="ratio to the fastest of the peers, above 1 where tdsl is faster",
        title_justify="left",
    )
    out.add_column("group", no_wrap=True)
    out.add_column("peer")
    for head in ("ratio", "goal", "compile ms"):
        out.add_column(head, justify="right", no_wrap=True)
    for line in lines:
        for name, comparison in line["cases"].items():
            ms = comparison["compile_ms"]
            slow = "[red]" if ms > COMPILE_MS else ""
            out.add_row(f"  {name}", comparison["peer"], f"{comparison['ratio']:.2f}", "", f"{slow}{ms:.0f}")
        goal, colour = line["goal"], "green" if line["met"] else "red"
        out.add_row(
            f"[bold]{line['group']}[/]" + (f" ({line['ours']})" if line["ours"] != "tdsl" else ""),
            ", ".join(line["peers"]),
            f"[{colour}]mean {line['mean']:.2f}, least {line['least']:.2f}",
            f"{goal['mean']}" + (f", {goal['least']}" if goal["least"] else ""),
            f"{max(comparison['compile_ms'] for comparison in line['cases'].values()):.0f}",
            end_section=True,
        )
    return out


def record(case: Case, timings: list[Timing]) -> dict[str, Any]:
    """The same for a JSON file, with the time of every turn."""
    reference = against(timings)
    return {
        "case": case.name,
        "title": case.title,
        "group": case.group,
        "flops": case.flops,
        "bytes": case.bytes,
        "reference": reference.peer if reference else None,
        "peers": {
            t.peer: {
                "note": t.note,
                "compile_ms": t.compile_ms,
                "turns_ms": t.turns,
                **(_summary(t, reference) if t.turns and reference else {}),
            }
            for t in timings
        },
    }


def _summary(t: Timing, reference: Timing) -> dict[str, float]:
    return {
        "min_ms": min(t.turns),
        "median_ms": t.median,
        "max_ms": max(t.turns),
        "ratio": statistics.median(ratios(t, reference)),
    }
