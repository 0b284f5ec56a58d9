"""The command `tdsl`: checks of this machine (doctor), a demonstration (demo), fast schedules (tune), GPU
kernels for another machine (bundle), runs under MPI (run), plans for ranks (plan), pages of loops and machine
code (view), errors by identifier (explain), the disk cache (cache), and the machine of schedules (machine).
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import sys
import webbrowser
from collections.abc import Iterator
from pathlib import Path
from textwrap import indent
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from tdsl.codegen.runtime import cache
from tdsl.core.error_ids import HOLE
from tdsl.core.error_ids import find as error_messages
from tdsl.distribute.launch import launch
from tdsl.errors import TdslError
from tdsl.machine import description
from tdsl.machine.description_json import Description, to_text
from tdsl.machine.devices import with_reference
from tdsl.machine.model import Machine, of_nearest
from tdsl.target import Target
from tdsl.tools import bundle as bundles
from tdsl.tools import doctor as checks

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, help=__doc__)
cache_app = typer.Typer(no_args_is_help=True, help="Look at or empty the disk cache of kernels.")
app.add_typer(cache_app, name="cache")
machine_app = typer.Typer(no_args_is_help=True, help="Measure or show what schedules know of it.")
app.add_typer(machine_app, name="machine")

BUSY = 0.5  # the load of a machine with other work
COLOURS = {"PASS": "green", "SKIP": "yellow", "FAIL": "red"}


def main() -> None:
    """Run the command line; for an error of tdsl, print its message and hint, and exit with code 1."""
    try:
        app()
    except TdslError as error:
        typer.echo(f"{error.message}\n  hint: {error.hint}", err=True)
        sys.exit(1)


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def run(
    context: typer.Context,
    script: Annotated[str, typer.Argument(help="a program in Python")],
    ranks: Annotated[int, typer.Option("-n", help="how many ranks")] = 1,
    restarts: Annotated[
        int, typer.Option(min=0, help="how often to run it again, on one rank less, if it fails")
    ] = 0,
) -> None:
    """Run a program on several ranks under MPI; an error on one rank ends all."""
    raise typer.Exit(launch(ranks, script, context.args, restarts))


@app.command()
def plan(
    file: Annotated[str, typer.Argument(help="a program in Python that defines schedules")],
    ranks: Annotated[int, typer.Option("-n", min=1, help="how many ranks")],
    memory: Annotated[int | None, typer.Option(help="bytes of a rank")] = None,
    latency: Annotated[float | None, typer.Option(help="seconds of a message")] = None,
    bandwidth: Annotated[float | None, typer.Option(help="bytes a second of the link of a rank")] = None,
    forbid: Annotated[list[str] | None, typer.Option(help="a kind of communication, or copies")] = None,
) -> None:
    """Plan the schedules of a program on ranks: placements, then bytes, memory and time, with reasons."""
    from tdsl.planner.cluster import Cluster
    from tdsl.tools.plan import texts

    cluster = Cluster(ranks=ranks, memory=memory, latency=latency, bandwidth=bandwidth)
    for text in texts(file, cluster, tuple(forbid or ())):
        typer.echo(text)


@app.command()
def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="for programs and bug reports")] = False,
) -> None:
    """Check whether each component works on this machine; exit code 1 if one fails."""
    results = []
    console = Console(soft_wrap=True, highlight=False)
    for check in checks.check_all():
        results.append(check)
        if not as_json:
            colour = COLOURS[check.status]
            console.print(f"[{colour}]{check.status}[/] {check.name:8}", end="")
            console.print(check.detail + (f" ({check.hint})" if check.hint else ""), markup=False)
    if as_json:
        typer.echo(json.dumps([dataclasses.asdict(check) for check in results], indent=1))
    if any(check.status == "FAIL" for check in results):
        raise typer.Exit(1)


@app.command()
def explain(
    error: Annotated[str, typer.Argument(help="an identifier, such as TD0042, or words of a message")],
) -> None:
    """Show the message with an identifier, a program that raises it, and what to do; exit code 2 if none."""
    entries = error_messages(error)
    if not entries:
        typer.echo(f"no error has the identifier or the words {error!r}", err=True)
        raise typer.Exit(2)
    for m in entries:
        typer.echo(f"{m.id} {m.template.replace(HOLE, '...')} [{m.code}]")
        if m.retired:
            typer.echo("  no longer raised")
        if m.program:
            typer.echo(f"\n{indent(m.program, '    ')}\n\n{indent(m.shown, '  ')}")
    typer.echo(f"\nAll messages: docs/error-ids.md{'#' + entries[0].id.lower() if len(entries) == 1 else ''}")


@app.command()
def bundle(
    folder: Annotated[str, typer.Argument(help="where to put it")],
    what: Annotated[list[str], typer.Argument(help="program.py, or module:function")],
) -> None:
    """Compile programs for a GPU into a folder that `python -m tdsl.run_bundle` runs on another machine."""
    for program in bundles.write(folder, bundles.collect(what)):
        archs = ", ".join(code.arch for code in program.codes)
        typer.echo(f"{program.name}: {archs}, {len(program.codes[0].kernels)} kernels")


@app.command()
def tune(
    program: Annotated[str, typer.Argument(help="a program in Python; or program.py:operator")],
    sizes: Annotated[list[str] | None, typer.Argument(help="sizes, as in M=96 K=300")] = None,
    seconds: Annotated[float, typer.Option(help="the budget")] = 60.0,
    trials: Annotated[int | None, typer.Option(help="the most schedules to measure")] = None,
    workers: Annotated[int | None, typer.Option(help="processes that compile")] = None,
    records: Annotated[str, typer.Option(help="the file; by default that of the program, .jsonl")] = "",
) -> None:
    """Search for fast schedules of an operator, and append all measurements to a file; Ctrl-C ends it."""
    from tdsl.tools.operators import operator_of, sizes_of

    file, _, name = program.rpartition(":") if not program.endswith(".py") else (program, "", "")
    operator = operator_of(file, name)
    path = records or f"{file.removesuffix('.py')}.jsonl"
    named: dict[str, Any] = dict(sizes_of(sizes or ()))
    report = operator.tune(seconds=seconds, trials=trials, workers=workers, records=path, **named)
    typer.echo(f"{report}\nrecords  {path}")


@app.command()
def view(
    file: Annotated[str, typer.Argument(help="a program in Python that defines schedules or operators")],
    sizes: Annotated[list[str] | None, typer.Argument(help="sizes of operators, as in M=96 K=300")] = None,
    to: Annotated[str, typer.Option("-o", help="the folder of the pages")] = ".",
    target: Annotated[str | None, typer.Option(help="of operators, such as cuda:sm_90a")] = None,
    browser: Annotated[bool, typer.Option("--open", help="open the pages in a browser")] = False,
) -> None:
    """Write a page for each schedule and operator of a program; exit code 1 if one shows an error."""
    from tdsl.tools.operators import sizes_of
    from tdsl.tools.view import views

    failed = False
    for name, page in views(file, sizes_of(sizes or ()), target):
        path = page.save(Path(to) / f"{name}.html")
        typer.echo(f"{path}: {page.contents.title}")
        failed = failed or any(pane.is_error for pane in page.contents.panes)
        if browser:
            webbrowser.open(path.absolute().as_uri())
    if failed:
        raise typer.Exit(1)


@app.command()
def demo(
    case: Annotated[list[str] | None, typer.Argument(help="which cases; all by default")] = None,
) -> None:
    """Compile five programs, run them, check them against NumPy and time them."""
    from tdsl.tools import demo as programs

    known = {c.name: c for c in programs.CASES}
    unknown = [name for name in case or () if name not in known]
    if unknown:
        raise typer.BadParameter(f"no case {unknown[0]!r}; there are {', '.join(known)}")
    table = Table(title="Times in milliseconds; every result is compared with NumPy's")
    table.add_column("program")
    table.add_column("result")
    for head in ("first call", "default schedule", "schedule by hand", "NumPy"):
        table.add_column(head, justify="right")
    wrong = False
    console = Console(width=None if sys.stdout.isatty() else 120)
    with console.status("compiling and running"):
        for outcome in programs.run_cases(tuple(known[name] for name in case or known)):
            right = outcome.default_right and outcome.hand_right
            wrong = wrong or not right
            table.add_row(
                outcome.case.title,
                "[green]right[/]" if right else "[red]WRONG[/]",
                f"{outcome.first_call_ms:.0f}",
                *(f"{t:.2f}" for t in (outcome.default_ms, outcome.hand_ms, outcome.numpy_ms)),
            )
    console.print(table)
    if wrong:
        raise typer.Exit(1)


@cache_app.command("info")
def cache_info() -> None:
    """Show the folder of the cache, its number of entries and its size."""
    state = cache.info()
    typer.echo(f"folder   {state.path or '(turned off)'}")
    typer.echo(f"entries  {state.entries}")
    typer.echo(f"size     {state.bytes / 1e6:.2f} MB")
    if state.problem:
        typer.echo(f"problem  {state.problem}")
        raise typer.Exit(1)


@cache_app.command("verify")
def cache_verify() -> None:
    """Read every entry and move damaged ones away; exit code 1 if there are any."""
    bad = cache.verify()
    for name in bad:
        typer.echo(f"damaged  {name}")
    typer.echo(f"{cache.info().entries} entries are sound, {len(bad)} are damaged")
    if bad:
        raise typer.Exit(1)


@cache_app.command("clear")
def cache_clear() -> None:
    """Remove every entry."""
    typer.echo(f"removed {cache.clear()} files")


@machine_app.command("measure")
def machine_measure(
    quick: Annotated[bool, typer.Option("--quick", help="seconds, with larger errors")] = False,
    to: Annotated[str, typer.Option(help="the file; by default the one that is read")] = "",
) -> None:
    """Measure bandwidths, rates and launch cost by kernels, and write them to a file for later schedules."""
    from tdsl.tools.measure import measure

    file = to or description.path()
    if not file:
        raise typer.BadParameter("TDSL_MACHINE=builtin names no file: give --to")
    console = Console(stderr=True)
    if hasattr(os, "getloadavg") and os.getloadavg()[0] > BUSY:
        console.print(
            f"other programs run (load {os.getloadavg()[0]:.1f}): figures will be too low", style="yellow"
        )
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("measuring", total=None)

        def tell(name: str, number: int, count: int) -> None:
            progress.update(task, description=name, completed=number, total=count)

        described = measure(quick=quick, tell=tell)
        progress.update(task, description="done", completed=1, total=1)
    description.write(file, described)
    typer.echo(file)


@machine_app.command("show")
def machine_show(
    as_json: Annotated[bool, typer.Option("--json", help="the form of the file")] = False,
) -> None:
    """Show the memory levels, rates and overheads that schedules for this processor use.

    What was not measured is built in: the figures of a similar processor.
    """
    from tdsl.machine.cpu import host

    of_target = Target("cpu").machine()
    machine = with_reference(of_target)
    measured = description.read()
    is_used = measured is not None and measured.cpu == host().cpu
    date = measured.date if measured is not None and is_used else ""
    if as_json:
        typer.echo(to_text(Description(machine, host().cpu, date)), nl=False)
        return
    console = Console(width=None if sys.stdout.isatty() else 100, highlight=False)
    if measured is not None and not is_used:
        console.print(f"{description.path()} describes {measured.cpu}: it is not used", soft_wrap=True)
    is_probed = of_target.non_temporal_from is not None or of_target.caches[-1].effective
    origin = "built in but for a probe" if is_probed else "built in"
    origin = f"measured {date}" if is_used else f"{origin}; `tdsl machine measure` measures it"
    console.print(
        f"{host().cpu}, {machine.threads} threads, {machine.registers} vector registers of "
        f"{machine.vector_bytes} bytes ({origin})",
        soft_wrap=True,
    )
    for table in machine_tables(machine):
        console.print(table)


@machine_app.command("check")
def machine_check(
    as_json: Annotated[bool, typer.Option("--json", help="for programs")] = False,
) -> None:
    """Compare the predicted with the measured times of a dozen reference kernels: about ten seconds."""
    from tdsl.tools import check_machine

    outcomes = []
    table = Table(title="milliseconds with the default schedules", title_justify="left")
    table.add_column("kernel")
    for head in ("predicted", "measured", "ratio"):
        table.add_column(head, justify="right")
    console = Console(width=None if sys.stdout.isatty() else 100, highlight=False)
    with Console(stderr=True).status("measuring") as status:
        for outcome in check_machine.check(tell=status.update):
            outcomes.append(outcome)
            times = (f"{1e3 * s:.3f}" for s in (outcome.predicted, outcome.measured))
            table.add_row(outcome.name, *times, f"{outcome.ratio:.2f}")
    mean, deviation = check_machine.spread(outcomes)
    if as_json:
        rows = [dataclasses.asdict(outcome) | {"ratio": outcome.ratio} for outcome in outcomes]
        typer.echo(json.dumps({"kernels": rows, "mean": mean, "spread": deviation}, indent=1))
        return
    console.print(table)
    console.print(f"geometric mean of the ratios {mean:.2f}, spread {deviation:.2f}")


def machine_tables(machine: Machine) -> list[Table]:
    """Tables of the memory levels of a machine, of its rates and of overheads, as far as they are known."""
    levels = Table(title="levels", title_justify="left")
    counts = sorted({threads for level in machine.levels for threads, _ in level.bandwidth})
    levels.add_column("level")
    speeds = [f"GB/s, {n} threads" for n in counts] + ["write", "non-temporal"] * bool(counts)
    for head in ("bytes", "that stay", "line", "shared by", *speeds):
        levels.add_column(head, justify="right")
    for level in (*machine.levels, *machine.links):
        rates = dict(level.bandwidth)
        stores = (
            of_nearest(x, machine.threads) for x in (level.write_bandwidth, level.non_temporal_bandwidth)
        )
        late = "" if level.latency is None else f", {1e6 * level.latency:.2f} us late"
        figures = [*(rates.get(n) for n in counts), *stores][: len(speeds)]
        levels.add_row(
            level.name + late,
            *("" if size is None else _short(size) for size in (level.bytes, machine.capacity(level))),
            str(level.line),
            str(level.shared_by),
            *("" if speed is None else f"{speed / 1e9:.1f}" for speed in figures),
        )
    tables = [levels]
    if machine.rates:
        rates_ = Table(title="operations of one thread", title_justify="left")
        for head in ("unit", "dtype"):
            rates_.add_column(head)
        for head in ("10^9 per second", "latency, ns"):
            rates_.add_column(head, justify="right")
        for rate in machine.rates:
            late = "" if rate.latency is None else f"{rate.latency * 1e9:.2f}"
            rates_.add_row(rate.unit, rate.dtype, f"{rate.per_second / 1e9:.2f}", late)
        tables.append(rates_)
    overheads = list(_overheads(machine))
    if overheads:
        table = Table(title="overheads", title_justify="left", show_header=False)
        for row in overheads:
            table.add_row(*row)
        tables.append(table)
    return tables


def _overheads(machine: Machine) -> Iterator[tuple[str, str]]:
    """What is known of a machine beside its levels and rates: the name of a figure, and the figure."""
    for name, pairs in (("launch of a parallel loop", machine.launch), ("barrier", machine.barrier)):
        yield from ((f"{name}, {n} threads", f"{seconds * 1e6:.1f} us") for n, seconds in pairs)
    if machine.gathers is not None:
        yield "gathers", f"{machine.gathers / 1e9:.2f} 10^9 per second"
    for name, seconds in (("another page", machine.page), ("first access to a page", machine.first_touch)):
        if seconds is not None:
            yield name, f"{seconds * 1e9:.1f} ns"
    if machine.hidden is not None:
        yield "time of memory that is hidden", f"{machine.hidden:.0%}"
    if machine.non_temporal_from is not None:
        size = machine.non_temporal_from
        yield "non-temporal stores", "never" if math.isinf(size) else f"from {_short(int(size))} on"


def _short(size: int) -> str:
    """A number of bytes in the largest binary unit of which it is a multiple."""
    for shift, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if size % (1 << shift) == 0:
            return f"{size >> shift} {unit}"
    return f"{size / (1 << 20):.1f} MiB" if size > 1 << 20 else str(size)
