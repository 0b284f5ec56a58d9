"""The command `python -m benchmarks cuda`."""

import datetime
import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

import tdsl as td
from benchmarks import goals, report
from benchmarks.cuda import emulated, measure
from benchmarks.cuda.case import GpuCase
from benchmarks.cuda.cases import ALL
from tdsl.codegen.cuda.driver import Device, driver
from tdsl.codegen.cuda.timing import Clock
from tdsl.tools import bundle

RESULTS = Path(__file__).parent.parent / "results"
PACKAGES = ("apache-tvm", "nvidia-cuda-nvrtc", "torch", "triton")


def run(
    group: Annotated[list[str] | None, typer.Option(help="cases of this group; may be repeated")] = None,
    case: Annotated[list[str] | None, typer.Option(help="only this case; may be repeated")] = None,
    peer: Annotated[list[str] | None, typer.Option(help="only this peer; may be repeated")] = None,
    count: Annotated[int, typer.Option("--rounds", help="turns of each peer")] = 9,
    emulate: Annotated[bool, typer.Option("--emulate", help="no GPU: build, and check small sizes")] = False,
    into: Annotated[Path | None, typer.Option("--bundle", help="make a folder for tdsl.run_bundle")] = None,
    json_: Annotated[
        Path | None,
        typer.Option("--json", help="the record, instead of a file in benchmarks/results"),
    ] = None,
) -> None:
    """Build, check and time kernels of a GPU against cuBLAS, cuDNN, torch.compile, Triton and a copy."""
    console = Console(width=None if sys.stdout.isatty() else 140)
    chosen = choose(group or [], case or [])
    record = report.machine() | {"suite": "cuda", "rounds": count}
    record["versions"] |= {p: v for p in PACKAGES if (v := report.installed(p))}
    record["command"] = " ".join(["python -m benchmarks", *sys.argv[1:]])
    if into is not None:
        bundle.write(str(into), map(job, chosen))
        console.print(f"python -m tdsl.run_bundle {into}", markup=False)
        return
    if emulate:
        results = [emulated.check(c) for c in chosen]
        console.print(emulated.table(results))
        if json_:
            json_.write_text(json.dumps(record | {"results": results}, indent=1) + "\n")
        raise typer.Exit(int(not all(r["right"] for r in results)))
    device = find_device(console)
    record |= {"device": device.name, "arch": device.arch, "driver": device.driver.version()}
    record["copy_bandwidth"] = Clock(device).copy_bandwidth()
    copied = f"copies at {record['copy_bandwidth'] / 1e9:.0f} GB/s"
    console.print(f"{record['date']}  {device.name} ({device.arch}), {copied}")
    results = [time_case(c, device, count, peer or [], console) for c in chosen]
    record["summary"] = goals.summarize(results, goals.CUDA_GOALS)
    console.print(report.summary(record["summary"]))
    write(json_, record | {"results": results}, console)
    raise typer.Exit(int(any("WRONG" in p["note"] for r in results for p in r["peers"].values())))


def choose(groups: list[str], names: list[str]) -> list[GpuCase]:
    """The cases with these names and of these groups; all when none are given."""
    unknown = [name for name in names if name not in ALL]
    if unknown:
        raise typer.BadParameter(f"no case {unknown[0]!r}; there are {', '.join(ALL)}")
    return [c for c in ALL.values() if not (groups or names) or c.name in names or c.group in groups]


def job(case: GpuCase) -> bundle.Job:
    """A case for a bundle, with its result by NumPy."""
    from benchmarks.cuda.case import in_single

    compiled = case.compiled(case.sizes)
    arrays = case.arrays(compiled)
    (output,) = compiled.signature.outputs
    expected = case.expected(*in_single(arrays)).astype(output.dtype.numpy)
    return bundle.Job(case.name, compiled, expected=expected, flops=case.flops(case.sizes))


def find_device(console: Console) -> Device:
    """The GPU; without one, the reason and what can be done."""
    try:
        return driver().device()
    except td.TargetError as error:
        console.print(f"{error.message}. Nothing was timed.", markup=False)
        console.print("--emulate builds and checks; --bundle FOLDER is for another machine")
        raise typer.Exit(1) from None


def time_case(
    case: GpuCase, device: Device, count: int, peers: list[str], console: Console
) -> dict[str, Any]:
    """The record of a case, whose table is printed."""
    compiled, timings = measure.compare(case, device, count, peers)
    described = case.described(compiled)
    console.print(report.table(described, timings))
    return report.record(described, timings)


def write(path: Path | None, record: dict[str, Any], console: Console) -> None:
    """Keep a record; without a path in the folder of all records, by its date."""
    if path is None:
        RESULTS.mkdir(exist_ok=True)
        stamp = datetime.datetime.fromisoformat(record["date"]).strftime("%Y-%m-%d-%H%M%S")
        path = RESULTS / f"cuda-{stamp}.json"
    path.write_text(json.dumps(record, indent=1) + "\n")
    console.print(str(path), markup=False)
