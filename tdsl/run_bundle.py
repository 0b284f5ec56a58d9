"""Run a bundle of kernels on the GPU of this machine: `python -m tdsl.run_bundle FOLDER`.

Every program of the bundle (written by `tdsl bundle`, with or without a GPU) is run, compared with the
expected results of the bundle, and timed. No compiler is needed: neither TVM nor llvmlite nor a CUDA toolkit
is loaded.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import statistics
import sys
from dataclasses import asdict
from typing import Any

import numpy as np

from tdsl.codegen.cuda.driver import DEFAULT_STREAM, Device, Driver, Memory, driver, read
from tdsl.codegen.cuda.launcher import POINTER, Launcher, code_of, module_for, plain
from tdsl.codegen.cuda.manifest import (
    Argument,
    Array,
    Program,
    compared_indices,
    error_of,
    load,
    random_array,
)
from tdsl.codegen.cuda.timing import Clock
from tdsl.core.node import frozen
from tdsl.errors import TdslError
from tdsl.lang.types import BY_NAME


@frozen
class Outcome:
    """The outcome of a program: `note` says why it was not timed, `error` is its largest error."""

    name: str
    note: str = ""
    error: float = 0.0
    turns_ms: tuple[float, ...] = ()
    bytes: int = 0
    flops: float = 0.0

    @property
    def median_ms(self) -> float:
        """The median time of a run in milliseconds; NaN if the program was not timed."""
        return statistics.median(self.turns_ms) if self.turns_ms else float("nan")


def run_program(folder: str, program: Program, device: Device, clock: Clock, count: int) -> Outcome:
    """Runs, checks and times a program; an error of the driver becomes the note of the outcome."""
    try:
        return _check_and_time(folder, program, device, clock, count)
    except TdslError as error:
        return Outcome(program.name, note=error.message)


def _check_and_time(folder: str, program: Program, device: Device, clock: Clock, count: int) -> Outcome:
    module = module_for(device, program.modules(folder))
    launcher = Launcher(device, module, formats(program.arguments))
    with np.load(os.path.join(folder, f"{program.name}.npz")) as stored:
        arrays = dict(stored)
    values: list[Any] = []
    buffers: dict[str, Memory] = {}
    for a in program.arguments:
        if a.scalar:
            values.append(plain(_input(a, arrays)[()]))
            continue
        size = int(np.prod(a.shape, dtype=np.int64)) * BY_NAME[a.dtype].bytes
        buffers[a.name] = memory = device.allocate(size)
        if not a.written:
            memory.fill(np.ascontiguousarray(_input(a, arrays)))
        values.append(memory.pointer)
    launcher.start(values, DEFAULT_STREAM, wait=True)
    errors = {}
    for a in program.arguments:
        if a.written:
            result = np.empty(a.shape, BY_NAME[a.dtype].numpy)
            read(device, buffers[a.name].pointer, result, DEFAULT_STREAM)
            expected = arrays[f"expected_{a.name}"].view(result.dtype)
            errors[a.name] = error_of(result.reshape(-1)[compared_indices(result.size)], expected)
    largest_error = max(errors.values())
    failed = [name for name, most in program.tolerances if not errors[name] <= most]
    if failed:
        return Outcome(program.name, note=f"WRONG: {', '.join(failed)}", error=largest_error)
    turns = clock.times(lambda: launcher.start(values, DEFAULT_STREAM), count)
    return Outcome(program.name, "", largest_error, tuple(turns), program.bytes, program.flops)


def formats(arguments: tuple[Argument, ...]) -> dict[str, str]:
    """The type code of each argument for a `Launcher`, by name."""
    return {a.name: code_of(a.dtype) if a.scalar else POINTER for a in arguments}


def _input(a: Argument, arrays: dict[str, Array]) -> Array:
    """An input array, generated from its seed or loaded from the bundle."""
    if a.seed:
        return random_array(a.shape, a.dtype, a.seed)
    return arrays[f"input_{a.name}"].view(BY_NAME[a.dtype].numpy).reshape(a.shape)


def table(outcomes: list[Outcome], bandwidth: float) -> str:
    """The outcomes as a table, with each rate also as a fraction of the measured copy bandwidth."""
    rows: list[tuple[str, ...]] = [("program", "result", "error", "median ms", "TFLOP/s", "GB/s", "of copy")]
    for o in outcomes:
        if not o.turns_ms:
            rows.append((o.name, o.note, *[""] * 5))
            continue
        rate = o.bytes / o.median_ms * 1e3
        flops = f"{o.flops / o.median_ms / 1e9:.1f}" if o.flops else ""
        part = f"{rate / bandwidth:.2f}"
        rows.append(
            (o.name, "right", f"{o.error:.1e}", f"{o.median_ms:.4f}", flops, f"{rate / 1e9:.0f}", part)
        )  # fmt: skip
    short = [row for row in rows if len(row[1]) < 8]
    widths = [max(len(row[n]) for row in short) for n in range(len(rows[0]))]
    widths[0] = max(len(row[0]) for row in rows)
    lines = ("  ".join(x.ljust(w) for x, w in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)


def main(arguments: list[str] | None = None) -> int:
    """Runs the bundle named on the command line; returns 1 if a result is wrong or a program fails."""
    parser = argparse.ArgumentParser(
        prog="python -m tdsl.run_bundle", description="Run, check and time a bundle of kernels."
    )
    parser.add_argument("folder", help="what tdsl bundle has made")
    parser.add_argument("--json", help="write a record here, instead of FOLDER/results.json")
    parser.add_argument("--count", type=int, default=30, help="timed runs of each program")
    parser.add_argument("--only", action="append", help="a program; may be repeated")
    parser.add_argument("--driver", help="the CUDA driver, instead of libcuda.so.1")
    options = parser.parse_args(arguments)
    try:
        bundle, programs = load(options.folder)
        device = (Driver(options.driver) if options.driver else driver()).device()
    except TdslError as error:
        print(f"{error.message}\n  hint: {error.hint}", file=sys.stderr)  # noqa: T201  # a program
        return 1
    clock = Clock(device)
    bandwidth = clock.copy_bandwidth()
    chosen = [p for p in programs if not options.only or p.name in options.only]
    outcomes = [run_program(options.folder, p, device, clock, options.count) for p in chosen]
    record = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "device": device.name, "arch": device.arch, "driver": device.driver.version(),
        "copy_bandwidth": bandwidth, "bundle": bundle,
    }  # fmt: skip
    text = f"{device.name} ({device.arch}), copies at {bandwidth / 1e9:.0f} GB/s"
    print(f"{text}\n{table(outcomes, bandwidth)}")  # noqa: T201  # a program
    results = [asdict(o) | {"median_ms": o.median_ms} for o in outcomes]
    with open(options.json or os.path.join(options.folder, "results.json"), "w") as file:
        json.dump(record | {"results": results}, file, indent=1)
    return int(any(o.note for o in outcomes))


if __name__ == "__main__":
    sys.exit(main())
