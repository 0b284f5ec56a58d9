"""The command `python -m benchmarks predicted`."""

import json
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from benchmarks import report
from benchmarks.predicted.figures import MACHINES, Figure, figures
from benchmarks.predicted.schedules import SCHEDULES


def run(
    group: Annotated[list[str] | None, typer.Option(help="programs of this name; may be repeated")] = None,
    json_: Annotated[Path | None, typer.Option("--json", help="write a record to this file")] = None,
) -> None:
    """Count the bytes that caches move for schedules, line by line, beside those that are predicted."""
    console = Console(width=None if sys.stdout.isatty() else 110)
    chosen = [c for c in SCHEDULES if not group or c.group in group]
    if not chosen:
        names = ", ".join(dict.fromkeys(c.group for c in SCHEDULES))
        raise typer.BadParameter(f"no program {group}; there are {names}")
    all_figures = [f for c in chosen for machine in MACHINES for f in figures(c, machine)]
    console.print(table(all_figures))
    if json_:
        record = report.machine() | {"suite": "predicted", "summary": summary(all_figures)}
        record["command"] = " ".join(["python -m benchmarks", *sys.argv[1:]])
        results = [asdict(f) | {"error": round(f.error, 4)} for f in all_figures]
        json_.write_text(json.dumps(record | {"results": results}, indent=1) + "\n")


def summary(all_figures: Sequence[Figure]) -> dict[str, float]:
    """How many predictions there are, how many are close to what was counted, and the mean of the errors."""
    errors = [abs(f.error) for f in all_figures]
    return {
        "figures": len(errors),
        "within 10 %": sum(e <= 0.1 for e in errors),
        "within a quarter": sum(e <= 0.25 for e in errors),
        "mean error": round(statistics.mean(errors), 4),
    }


def table(all_figures: Sequence[Figure]) -> Table:
    """A line for each schedule and cache, then the summary."""
    totals = summary(all_figures)
    counts = ", ".join(f"{n} {name}" for name, n in totals.items() if name != "mean error")
    out = Table(
        title="bytes beyond caches of one thread, predicted and counted",
        title_justify="left",
        caption=f"{counts}; mean error {totals['mean error']:.1%}",
        caption_justify="left",
    )
    out.add_column("schedule", no_wrap=True)
    for head in ("cache KiB", "predicted kB", "counted kB", "error"):
        out.add_column(head, justify="right", no_wrap=True)
    for f in all_figures:
        sizes = (f"{n / 1e3:.1f}" for n in (f.predicted, f.counted))
        out.add_row(f.schedule, f"{f.cache >> 10}", *sizes, f"{f.error:+.1%}")
    return out
