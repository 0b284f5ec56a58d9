"""The command `python -m benchmarks gpu-unknown`."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from benchmarks import report
from benchmarks.cuda.unknown import resources
from benchmarks.cuda.unknown.program import ALL

ARCHS = ("sm_80", "sm_89", "sm_90a", "sm_100a")


def run(
    case: Annotated[list[str] | None, typer.Option(help="only this program; may be repeated")] = None,
    arch: Annotated[
        list[str] | None, typer.Option(help="only for this architecture; may be repeated")
    ] = None,
    limit: Annotated[float, typer.Option(help="seconds for each program")] = 120.0,
    json_: Annotated[Path | None, typer.Option("--json", help="write a record to this file")] = None,
) -> None:
    """Compile and count programs that no schedule was tuned for, and print where their kernels are slow."""
    console = Console(width=None if sys.stdout.isatty() else 170)
    unknown = [name for name in case or [] if name not in ALL]
    if unknown:
        raise typer.BadParameter(f"no program {unknown[0]!r}; there are {', '.join(ALL)}")
    record = report.machine() | {"suite": "gpu-unknown", "results": []}
    record["command"] = " ".join(["python -m benchmarks", *sys.argv[1:]])
    for one in arch or ARCHS:
        results = []
        for result in resources.run(case or ALL, one, limit):
            results.append(result | {"cliffs": resources.cliffs(result)})
            if json_:
                so_far = record | {"results": record["results"] + results}
                json_.write_text(json.dumps(so_far, indent=1) + "\n")
        record["results"] += results
        console.print(resources.table(results, one))
        smooth = sum(not r["cliffs"] for r in results)
        console.print(f"{one}: {smooth} of {len(results)} programs without a cliff")
