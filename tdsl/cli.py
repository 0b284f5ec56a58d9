"""The command `tdsl`: what works here (doctor), a demonstration (demo), the disk cache (cache)."""

from __future__ import annotations

import dataclasses
import json
import sys
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from tdsl import doctor as checks
from tdsl.codegen import cache

app = typer.Typer(
    add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, help=__doc__
)
cache_app = typer.Typer(no_args_is_help=True, help="Look at or empty the disk cache of kernels.")
app.add_typer(cache_app, name="cache")

COLOURS = {"PASS": "green", "SKIP": "yellow", "FAIL": "red"}


def main() -> None:
    """Run the command line."""
    app()


@app.command()
def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="for programs and bug reports")] = False,
) -> None:
    """Say of each part whether it works on this machine; exit code 1 if one fails."""
    found = []
    console = Console(soft_wrap=True, highlight=False)
    for check in checks.check_all():
        found.append(check)
        if not as_json:
            colour = COLOURS[check.status]
            console.print(f"[{colour}]{check.status}[/] {check.name:8}", end="")
            console.print(check.detail + (f" ({check.hint})" if check.hint else ""), markup=False)
    if as_json:
        typer.echo(json.dumps([dataclasses.asdict(check) for check in found], indent=1))
    if any(check.status == "FAIL" for check in found):
        raise typer.Exit(1)


@app.command()
def demo(
    case: Annotated[list[str] | None, typer.Argument(help="which cases; all by default")] = None,
) -> None:
    """Compile five programs, run them on real data, check them against NumPy and time them."""
    from tdsl import demo as programs

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
    """Where the cache is, and what it holds."""
    state = cache.info()
    typer.echo(f"folder   {state.path or '(turned off)'}")
    typer.echo(f"entries  {state.entries}")
    typer.echo(f"size     {state.bytes / 1e6:.2f} MB")
    if state.problem:
        typer.echo(f"problem  {state.problem}")
        raise typer.Exit(1)


@cache_app.command("verify")
def cache_verify() -> None:
    """Read every entry and put damaged ones aside; exit code 1 if there are any."""
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
