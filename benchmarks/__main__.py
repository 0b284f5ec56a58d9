"""`python -m benchmarks run [--suite cpu|compile|growth|mpi|links] [--group G] [--case NAME] [--peer NAME]
    [--json FILE]`,
`python -m benchmarks cuda [--emulate] [--group G] [--case NAME] [--peer NAME] [--bundle DIR]`,
`python -m benchmarks gpu-unknown [--case NAME] [--arch ARCH] [--json FILE]`,
`python -m benchmarks predicted [--group NAME] [--json FILE]`,
`python -m benchmarks kernels [--case NAME] [--arch ARCH] [--json FILE]`,
`python -m benchmarks page FILE...`.
"""

import json
import os
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from benchmarks import cases, compile_time, goals, growth, page, report, rounds
from benchmarks.chains import kernels
from benchmarks.cuda import command as cuda_command
from benchmarks.cuda.unknown import command as gpu_unknown_command
from benchmarks.mpi import links
from benchmarks.mpi import page as mpi_page
from benchmarks.mpi import suite as mpi_suite
from benchmarks.predicted import command as predicted_command

app = typer.Typer(add_completion=False, help="Time tdsl and its peers side by side.")
console = Console(width=None if sys.stdout.isatty() else 110)


@app.command()
def run(
    suite: Annotated[
        str,
        typer.Option(
            help="cpu: run time; compile: time until it runs; growth: that by n; mpi: on ranks; "
            "links: on nodes with slow links"
        ),
    ] = "cpu",
    group: Annotated[list[str] | None, typer.Option(help="cases of this group; may be repeated")] = None,
    case: Annotated[list[str] | None, typer.Option(help="only this case; may be repeated")] = None,
    peer: Annotated[list[str] | None, typer.Option(help="only this peer; may be repeated")] = None,
    count: Annotated[int, typer.Option("--rounds", help="turns of each peer")] = 9,
    threads: Annotated[int, typer.Option(help="threads of each peer")] = os.cpu_count() or 1,
    json_: Annotated[Path | None, typer.Option("--json", help="write a record to this file")] = None,
) -> None:
    """Check every result, time the peers in alternating turns, print tables with ratios."""
    record = report.machine() | {"suite": suite, "rounds": count, "threads": threads}
    record["command"] = " ".join(["python -m benchmarks", *sys.argv[1:]])
    console.print(f"{record['date']}  {record['cpu']}, {record['cores']} cores, load {record['load']:.1f}")
    if suite == "compile":
        results = compile_time.run(console, case or [], count)
    elif suite == "growth":
        results = growth.run(console, case or [], count)
    elif suite == "mpi":
        results = mpi_suite.run(console, case or [], count)
    elif suite == "links":
        results = links.run(console, case or [], count)
    else:
        results = run_cases(choose(group or [], case or []), peer or [], count, threads)
        record["summary"] = goals.summarize(results)
        console.print(report.summary(record["summary"]))
    if json_:
        json_.write_text(json.dumps(record | {"results": results}, indent=1) + "\n")
    if any("WRONG" in p["note"] for r in results for p in r.get("peers", {}).values()):
        raise typer.Exit(1)


def choose(groups: list[str], names: list[str]) -> list[str]:
    """The cases with these names and of these groups; all when none are given."""
    chosen = {cases.find(name).name for name in names}
    chosen |= {case.name for case in cases.ALL.values() if case.group in groups}
    return [name for name in cases.ALL if name in chosen or not (groups or names)]


def run_cases(names: list[str], peers: list[str], count: int, threads: int) -> list[dict]:
    """The records of the named cases."""
    records = []
    for name in names:
        case = cases.find(name)
        timings = rounds.compare(case, case.select_peers(peers), count, threads)
        console.print(report.table(case, timings))
        records.append(report.record(case, timings))
    return records


app.command("cuda")(cuda_command.run)
app.command("gpu-unknown")(gpu_unknown_command.run)
app.command("predicted")(predicted_command.run)
app.command("kernels")(kernels.run)


@app.command("page")
def print_page(
    records: Annotated[list[Path], typer.Argument(help="what `run --json` wrote, by parts")],
) -> None:
    """Print docs/performance.md for these results, docs/mpi-performance.md for those of the suite mpi."""
    runs = [json.loads(path.read_text()) for path in records]
    on_ranks = all(record["suite"] == "mpi" for record in runs)
    sys.stdout.write(mpi_page.markdown(runs) if on_ranks else page.markdown(runs))


@app.command("list")
def list_cases() -> None:
    """The cases and their peers."""
    for case in cases.ALL.values():
        peers = ", ".join(case.peers)
        console.print(f"{case.name:20} {case.title}  [{peers}]", markup=False, soft_wrap=True)


if __name__ == "__main__":
    sys.exit(app())
