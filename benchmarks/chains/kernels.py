"""The command `python -m benchmarks kernels`: what a search makes of the chains for a GPU, compiled only."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import prod
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
class KernelResources:
    """What a kernel uses, as ptxas says: `spills` and `stack` are bytes of a thread, `shared` of a block."""

    name: str
    threads: int
    registers: int
    spills: int
    stack: int
    shared: int


@dataclass(frozen=True)
class ChainResult:
    """What the search takes for a chain; and what that would be with a kernel for each call.

    `bytes` are those of global memory and `predicted` seconds, both by the model.
    """

    chain: str
    arch: str
    schedule: str
    kernels: tuple[KernelResources, ...]
    bytes: float
    bytes_separate: float
    predicted: float
    predicted_separate: float


def run(
    case: Annotated[list[str] | None, typer.Option(help="only this chain; may be repeated")] = None,
    arch: Annotated[list[str] | None, typer.Option(help="only this architecture; may be repeated")] = None,
    json_: Annotated[Path | None, typer.Option("--json", help="write a record to this file")] = None,
) -> None:
    """Compile the schedules that a search finds for chains on GPUs; no GPU is needed, and nothing is run."""
    console = Console(width=None if sys.stdout.isatty() else 110)
    chosen = [c for c in CHAINS if not case or c.name in case]
    if not chosen:
        raise typer.BadParameter(f"no chain {case}; there are {', '.join(c.name for c in CHAINS)}")
    results = [compile_chain(c, name) for c in chosen for name in arch or ARCHITECTURES]
    console.print(table(results))
    if json_:
        record = report.machine() | {"suite": "kernels"}
        record["command"] = " ".join(["python -m benchmarks", *sys.argv[1:]])
        json_.write_text(json.dumps(record | {"results": [*map(asdict, results)]}, indent=1) + "\n")


def compile_chain(chain: Chain, arch: str) -> ChainResult:
    """The best schedule for a chain, and what its kernels use; errors as those of `td.compile`."""
    target = Target("cuda", arch=arch)
    merged = program_of(chain)
    ranked = candidates(merged.program, {}, target, None, merged.results)
    best, separate = ranked[0], _separate_calls(ranked)
    kernels = td.compile(best.schedule, target=target).launch.kernels
    resources = tuple(
        KernelResources(k.name, prod(k.block), k.registers, k.spills, k.stack, k.used_shared)
        for k in kernels
    )  # fmt: skip
    return ChainResult(
        chain.name, arch, best.label, resources, best.schedule.traffic("global"),
        separate.schedule.traffic("global"), best.seconds, separate.seconds,
    )  # fmt: skip


def program_of(chain: Chain) -> MergedGraph:
    """The program of a chain, which knows what its calls give to each other."""
    plan = chain.graph(fuse=False).plan(*(td.f32[shape] for shape in chain.shapes))
    return merge_graph(plan, chain.shapes)


def _separate_calls(ranked: Sequence[Candidate]) -> Candidate:
    """A kernel for each call by its default schedule, or for what is one call the default schedule."""
    for label in ("calls apart", "default"):
        for c in ranked:
            if c.label == label:
                return c
    raise AssertionError("the search looks at the default schedule")


def table(results: Sequence[ChainResult]) -> Table:
    """A line for each chain and architecture."""
    out = Table(title="chains on GPUs, compiled; bytes of global memory as predicted", title_justify="left")
    out.add_column("chain", no_wrap=True)
    out.add_column("arch")
    out.add_column("schedule")
    for head in ("kernels", "registers", "spills", "shared KiB", "MB", "MB separate"):
        out.add_column(head, justify="right")
    for r in results:
        out.add_row(
            r.chain, r.arch, r.schedule, str(len(r.kernels)),
            str(max(k.registers for k in r.kernels)), str(sum(k.spills for k in r.kernels)),
            f"{max(k.shared for k in r.kernels) / 1024:.1f}", f"{r.bytes / 1e6:.1f}",
            f"{r.bytes_separate / 1e6:.1f}",
        )  # fmt: skip
    return out
