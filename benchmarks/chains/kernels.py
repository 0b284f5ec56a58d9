"""The command `python -m benchmarks kernels`: what a search makes of the chains for a GPU, compiled only."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

import tdsl as td
from benchmarks import report
from benchmarks.chains.chain import Chain
from benchmarks.chains.table import CHAINS
from tdsl.graph.merged_program import MergedGraph, merge_graph
from tdsl.target import Target
from tdsl.tilegraph.search import Candidate, candidates

ARCHITECTURES = ("sm_80", "sm_90a")


@dataclass(frozen=True)
class Used:
    """What a kernel uses, as ptxas says: `spills` and `stack` are bytes of a thread, `shared` of a block."""

    name: str
    threads: int
    registers: int
    spills: int
    stack: int
    shared: int


@dataclass(frozen=True)
class Found:
    """What the search takes for a chain; and what that would be with its calls apart.

    `bytes` are those of global memory and `predicted` seconds, both by the model.
    """

    chain: str
    arch: str
    schedule: str
    kernels: tuple[Used, ...]
    bytes: float
    bytes_apart: float
    predicted: float
    predicted_apart: float


def run(
    case: Annotated[list[str] | None, typer.Option(help="only this chain; may be repeated")] = None,
    arch: Annotated[
        list[str] | None, typer.Option(help="only this architecture; may be repeated")
    ] = None,
    json_: Annotated[
        Path | None, typer.Option("--json", help="write a record to this file")
    ] = None,
) -> None:
    """Compile the schedules that a search finds for chains on GPUs; no GPU is needed, and nothing is run."""
    console = Console(width=None if sys.stdout.isatty() else 110)
    chosen = [c for c in CHAINS if not case or c.name in case]
    if not chosen:
        raise typer.BadParameter(f"no chain {case}; there are {', '.join(c.name for c in CHAINS)}")
    results = [made(c, name) for c in chosen for name in arch or ARCHITECTURES]
    console.print(table(results))
    if json_:
        head = report.machine() | {"suite": "kernels"}
        head["command"] = " ".join(["python -m benchmarks", *sys.argv[1:]])
        json_.write_text(json.dumps(head | {"results": [*map(asdict, results)]}, indent=1) + "\n")


def made(chain: Chain, arch: str) -> Found:
    """The best schedule for a chain, and what its kernels use; errors as those of `td.compile`."""
    target = Target("cuda", arch=arch)
    whole = program_of(chain)
    found = candidates(whole.program, {}, target, None, whole.results)
    best, apart = found[0], _apart(found)
    kernels = td.compile(best.schedule, target=target).launch.kernels
    used = tuple(
        Used(k.name, k.block[0] * k.block[1] * k.block[2], k.registers, k.spills, k.stack, k.used_shared)
        for k in kernels
    )  # fmt: skip
    return Found(
        chain.name, arch, best.label, used, best.schedule.traffic("global"),
        apart.schedule.traffic("global"), best.seconds, apart.seconds,
    )  # fmt: skip


def program_of(chain: Chain) -> MergedGraph:
    """The program of a chain, which knows what its calls give to each other."""
    plan = chain.graph(fuse=False).plan(*(td.f32[shape] for shape in chain.shapes))
    return merge_graph(plan, chain.shapes)


def _apart(found: Sequence[Candidate]) -> Candidate:
    """A kernel for each call by its default schedule, or for what is one call the default schedule."""
    for label in ("calls apart", "default"):
        for c in found:
            if c.label == label:
                return c
    raise AssertionError("the search looks at the default schedule")


def table(found: Sequence[Found]) -> Table:
    """A line for each chain and architecture."""
    shown = Table(
        title="chains on GPUs, compiled; bytes of global memory as predicted", title_justify="left"
    )
    shown.add_column("chain", no_wrap=True)
    shown.add_column("arch")
    shown.add_column("schedule")
    for head in ("kernels", "registers", "spills", "shared KiB", "MB", "MB apart"):
        shown.add_column(head, justify="right")
    for f in found:
        shown.add_row(
            f.chain, f.arch, f.schedule, str(len(f.kernels)),
            str(max(k.registers for k in f.kernels)), str(sum(k.spills for k in f.kernels)),
            f"{max(k.shared for k in f.kernels) / 1024:.1f}", f"{f.bytes / 1e6:.1f}",
            f"{f.bytes_apart / 1e6:.1f}",
        )  # fmt: skip
    return shown
