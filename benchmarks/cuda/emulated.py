"""Cases without a GPU: results at small sizes by emulation, and full-sized kernels by ptxas and counters."""

import time
from collections.abc import Iterable
from typing import Any

from rich.table import Table

import tdsl as td
from benchmarks.cuda.case import GpuCase, in_double

BLOCKS, ITERATIONS = 4, 3  # of each kernel and each serial loop, whose transactions are counted


def check(case: GpuCase) -> dict[str, Any]:
    """How far the emulated result of a case is off, and what its kernels use and waste at full size."""
    small = case.compiled(case.small)
    arrays = case.arrays(small)
    start = time.perf_counter()
    result = td.emulate(small)(*arrays)
    seconds = time.perf_counter() - start
    error, right = case.error(small, result, case.expected(*in_double(arrays)))
    start = time.perf_counter()
    full = case.compiled(case.sizes)
    launch = full.launch
    seconds_of_compilation = time.perf_counter() - start
    counts = td.count_memory(full, blocks=BLOCKS, iterations=ITERATIONS)
    return {
        "case": case.name, "group": case.group, "small": dict(case.small), "right": right, "error": error,
        "emulated_s": seconds, "compile_ms": 1e3 * seconds_of_compilation,
        "useful": counts.sector_efficiency, "conflicts": counts.conflict_degree,
        "kernels": [
            {
                "name": k.name, "grid": k.grid, "block": k.block, "registers": k.registers,
                "spills": k.spills, "shared": k.used_shared,
            }
            for k in launch.kernels
        ],
    }  # fmt: skip


def table(records: Iterable[dict[str, Any]]) -> Table:
    """A line for each case."""
    out = Table(
        title="no GPU: results by emulation at small sizes, kernels as ptxas sees them at full size",
        title_justify="left",
    )
    out.add_column("case", no_wrap=True)
    heads = ("result", "error", "kernels", "registers", "spills", "shared bytes", "sectors", "conflicts")
    for head in (*heads, "compile ms"):
        out.add_column(head, justify="right", no_wrap=True)
    for r in records:
        kernels = r["kernels"]
        out.add_row(
            r["case"],
            "[green]right[/]" if r["right"] else "[red]WRONG[/]",
            f"{r['error']:.1e}",
            str(len(kernels)),
            *(str(max(k[what] for k in kernels)) for what in ("registers", "spills", "shared")),
            f"{r['useful']:.2f}",
            f"{r['conflicts']:.2f}",
            f"{r['compile_ms']:.0f}",
        )
    return out
