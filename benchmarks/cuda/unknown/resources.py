"""What kernels use and waste, known without a GPU: ptxas, counted transactions, predicted bytes, emulation.

A program is compiled at full size, sampled blocks of it are counted, and its small size is emulated. Each
runs in a process of its own, which is given up after a time limit.
"""

import multiprocessing
import os
import time
from collections.abc import Iterable
from math import prod
from typing import Any

from rich.table import Table

import tdsl as td
from benchmarks.cuda.emulated import BLOCKS, ITERATIONS
from benchmarks.cuda.unknown.program import ALL, Program
from tdsl.codegen.cuda.sass import disassemble, instruction_mix
from tdsl.codegen.emulation.memory_counts import MemoryCounts
from tdsl.codegen.runtime.signature import extent
from tdsl.cost.predict import Prediction
from tdsl.cost.sectors import SECTOR, WIDEST
from tdsl.pipeline import completed_state
from tdsl.schedule.state import Root

LEAST_USEFUL = 0.9  # part of sectors
MOST_BYTES = 1.5  # times the least
LEVELS = ("shared", "L2", "global")
LINE, SECTORS_OF_LINE = 128, 4  # bytes that a multiprocessor loads or stores in a clock
ASYNCHRONOUS = ("copy", "wgmma")  # do not go through the load and store unit
MMA = (
    "HMMA", "HGMMA", "UTCHMMA", "QMMA", "QGMMA", "UTCQMMA", "IMMA", "IGMMA", "UTCIMMA", "DMMA", "OMMA",
)  # fmt: skip
GOOD_PART = 0.5  # of the bytes of the access that moves most
SMALL = 1 << 21  # bytes that few multiprocessors may move
MOST_SECONDS = 10.0  # of processor time for a compilation
Record = dict[str, Any]


def resources(program: Program, arch: str) -> Record:
    """What a program is compiled to for an architecture, and whether its result is right."""
    compiled = program.compiled(arch)
    variant = compiled.variant(compiled.specialisation({}))
    start = cpu_seconds()
    launch = compiled.launch
    seconds = cpu_seconds() - start
    mixes = {x.kernel: x for x in instruction_mix(disassemble(launch.code))}
    has_tensor = any(x.count(kind) for x in mixes.values() for kind in MMA)
    rates = {x.dtype for x in variant.machine.rates if x.unit == "tensor"}
    record: Record = {"compile_s": seconds, "lacks_tensor": program.tensor in rates and not has_tensor}
    record |= {"kernels": [
        {
            "name": x.name, "blocks": prod(map(int, x.grid)), "threads": prod(x.block),
            "instructions": mixes[x.name].total, "main_loop": dict(mixes[x.name].loop),
            "registers": x.registers, "spills": x.spills, "stack": x.stack, "shared": x.used_shared,
        }
        for x in launch.kernels
    ]}  # fmt: skip
    counts = td.count_memory(
        compiled, *program.arrays(compiled, values=False), blocks=BLOCKS, iterations=ITERATIONS
    )
    record |= {"useful": counts.sector_efficiency, "conflicts": counts.conflict_degree}
    for k in record["kernels"]:
        part = counts.of_kernel(k["name"])
        k |= {
            "bytes": SECTOR * sum(a.sectors for a in part.accesses),
            "useful": part.sector_efficiency,
            "conflicts": part.conflict_degree,
        }
    record |= traffic(compiled, counts) | {"width": widest(counts)}
    small = program.compiled(arch, small=True)
    arrays = program.arrays(small)
    record["error"], record["right"] = program.error(small, td.emulate(small)(*arrays), arrays)
    return record


def cpu_seconds() -> float:
    """The processor time of this process and of the processes that it has waited for, in seconds."""
    return sum(os.times()[:4])


def traffic(compiled: td.Compiled, counts: MemoryCounts) -> Record:
    """Bytes as times of the least: of memory, if L2 serves what a kernel reads again, and of sectors from L2.

    The least are those of inputs, outputs, and stages that the author of the program puts at the root.
    `cached_s` is the time that the latter take, `lines_s` that of 128 bytes a clock of each multiprocessor's
    loads and stores, and `bound_s` that of the least bytes or of the arithmetic of the schedule.
    """
    variant = compiled.variant(compiled.specialisation({}))
    prediction, machine = Prediction.of(completed_state(variant), variant.machine), variant.machine
    sizes = {a.name: a.dtype.bytes * prod(extent(e, {}) for e in a.shape) for a in compiled.signature.arrays}
    sizes |= {name: int(n) for name, n in compiled.launch.temporaries}
    moved: dict[tuple[str, str, bool], int] = {}
    for a in counts.accesses:
        if a.sectors:
            key = a.kernel, a.site.array, a.site.kind in ("load", "copy")
            moved[key] = moved.get(key, 0) + SECTOR * a.fetched
    loads = [a for a in counts.accesses if not a.site.kind.startswith(ASYNCHRONOUS)]
    lines = sum(a.wavefronts or max(a.requests, a.sectors / SECTORS_OF_LINE) for a in loads)
    first, near, far = (machine.level(x).bytes_per_second(machine.threads) or 1.0 for x in LEVELS)
    work = sum(max((s for _, s in x.units), default=0.0) for x in prediction.times)
    least, cached = prediction.least + stored_by_hand(compiled, prediction), sum(moved.values())
    once = sum(min(n, sizes[array]) for (_, array, _), n in moved.items())
    return {
        "processors": machine.threads, "memory_bytes": once / least,
        "cached_bytes": cached / least, "cached_s": cached / near, "lines_s": lines * LINE / first,
        "bound_s": max(least / far, work),
    }  # fmt: skip


def stored_by_hand(compiled: td.Compiled, prediction: Prediction) -> float:
    """The bytes of the stages that the author of a program puts at the root, stored once and read once."""
    state = compiled.schedule.state
    names = [name for name, plan in state.plans if plan.place == Root() and name not in state.program.outputs]
    return 2 * sum(map(prediction.whole, names))


def widest(counts: MemoryCounts) -> int:
    """The bytes of a thread's widest access to global memory, of those that move many bytes."""
    moved = [a for a in counts.accesses if a.sectors]
    least = GOOD_PART * max((a.fetched for a in moved), default=0)
    return max(
        (WIDEST if a.site.kind == "copy" else a.site.width for a in moved if a.fetched >= least), default=0
    )


def cliffs(record: Record) -> list[str]:
    """What a record has that no kernel should have."""
    if "failure" in record:
        return [record["failure"]]
    kernels = record["kernels"]
    serial = sum(k["blocks"] * k["threads"] == 1 for k in kernels)
    spilled = max(k["spills"] for k in kernels)
    idle = _blocks_of_largest(record)
    tests = (
        (not record["right"], "WRONG"),
        (serial > 0, f"{serial} one-thread kernels"),
        (spilled > 0, f"{spilled} bytes spilled"),
        (record["useful"] < LEAST_USEFUL, f"{record['useful']:.2f} of sectors used"),
        (record["width"] < WIDEST, f"{record['width']}-byte accesses"),
        (record["conflicts"] > 1.005, f"conflicts {record['conflicts']:.2f}"),
        (idle is not None, f"{idle} of {record['processors']} multiprocessors"),
        (record["memory_bytes"] > MOST_BYTES, f"{record['memory_bytes']:.1f} x bytes"),
        (
            record["cached_s"] > MOST_BYTES * record["bound_s"],
            f"waits {record['cached_s'] / record['bound_s']:.1f} x for L2",
        ),
        (
            record["lines_s"] > MOST_BYTES * record["bound_s"],
            f"waits {record['lines_s'] / record['bound_s']:.1f} x for L1",
        ),
        (record["lacks_tensor"], "no tensor cores"),
        (record["compile_s"] > MOST_SECONDS, f"compiles {record['compile_s']:.0f} s"),
    )
    return [text for is_bad, text in tests if is_bad]


def _blocks_of_largest(record: Record) -> int | None:
    """The blocks of the kernel that moves most, if they are too few for the multiprocessors; else None."""
    largest = max(record["kernels"], key=lambda k: k["bytes"])
    few = largest["blocks"] < LEAST_USEFUL * record["processors"] and largest["bytes"] > SMALL
    return largest["blocks"] if few else None


def run(names: Iterable[str], arch: str, limit: float) -> Iterable[Record]:
    """The records of programs, each made in a process that has a time limit in seconds."""
    context = multiprocessing.get_context("fork")
    for name in names:
        receiver, sender = context.Pipe(duplex=False)
        child = context.Process(target=_send, args=(name, arch, sender))
        start = time.perf_counter()
        child.start()
        sender.close()
        try:
            record = receiver.recv() if receiver.poll(limit) else {"failure": f"no end within {limit:.0f} s"}
        except EOFError:
            record = {"failure": f"exit code {child.exitcode}"}
        child.kill()
        child.join()
        yield {"program": name, "arch": arch, "seconds": time.perf_counter() - start} | record


def _send(name: str, arch: str, sender: Any) -> None:
    try:
        record = resources(ALL[name], arch)
    except Exception as problem:  # noqa: BLE001  # a program that fails is a line of the table
        record = {"failure": f"{type(problem).__name__}: {str(problem).splitlines()[0]}"}
    sender.send(record)


def table(records: Iterable[Record], arch: str) -> Table:
    """A line for each program."""
    out = Table(title=f"default schedules for {arch}, without a GPU", title_justify="left")
    out.add_column("program", no_wrap=True)
    heads = (
        "kernels",
        "blocks x threads",
        "regs",
        "spills",
        "sectors",
        "conflicts",
        "bytes",
        "L2 bytes",
        "s",
    )
    for head in heads:
        out.add_column(head, justify="right", no_wrap=True)
    out.add_column("cliffs", style="red")
    for r in records:
        if "failure" in r:
            out.add_row(r["program"], *[""] * len(heads), r["failure"])
            continue
        shapes = dict.fromkeys(f"{k['blocks']} x {k['threads']}" for k in r["kernels"])
        out.add_row(
            r["program"], str(len(r["kernels"])), "\n".join(shapes),
            str(max(k["registers"] for k in r["kernels"])), str(max(k["spills"] for k in r["kernels"])),
            f"{r['useful']:.2f}", f"{r['conflicts']:.2f}", f"{r['memory_bytes']:.2f}",
            f"{r['cached_bytes']:.1f}", f"{r['compile_s']:.1f}", ", ".join(cliffs(r)),
        )  # fmt: skip
    return out
