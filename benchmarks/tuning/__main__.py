"""`python -m benchmarks.tuning`: tuning of twenty operators, and tuning that is killed.

    tune      FOLDER [--seconds 30] [NAME ...]     tunes each operator; goes on where it stopped
    measure   FOLDER [--processes 3] [NAME ...]    in new processes: the recorded schedules against defaults
    kill      FOLDER [--times 50]                  kills tuning at random moments; what is lost or repeated
    table     FOLDER                               prints what was measured

FOLDER has the records (`records.jsonl`) and what was measured (`results.json`).
"""

import argparse
import json
import math
import os
import random
import signal
import statistics
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.tuning.operators import OPERATORS

COPIES, COPY_S = 5, 0.1  # of the arrays, and seconds for which calls are measured on each
KILLED = "product_relu"  # the operator whose tuning is killed


def records_of(folder: Path) -> Path:
    return folder / "records.jsonl"


def results_of(folder: Path) -> dict[str, Any]:
    file = folder / "results.json"
    return json.loads(file.read_text()) if file.exists() else {}


def store(folder: Path, name: str, result: dict[str, Any]) -> None:
    results = results_of(folder)
    results.setdefault(name, {}).update(result)
    (folder / "results.json").write_text(json.dumps(results, indent=1) + "\n")


def tune(folder: Path, names: list[str], seconds: float) -> None:
    for name in names:
        if "trials" in results_of(folder).get(name, {}):
            continue
        op, sizes = OPERATORS[name]
        report = op.tune(**sizes, seconds=seconds, records=records_of(folder))
        ratio = report.default_seconds / report.best_seconds
        print(f"{name}: {report.trials} trials, {ratio:.2f}: {report.label}", flush=True)
        store(folder, name, {"trials": report.trials, "recorded": ratio, "label": report.label})


def measure(folder: Path, names: list[str], processes: int) -> None:
    for name in names:
        command = [sys.executable, "-m", "benchmarks.tuning", "child", str(folder), name]
        runs = [
            json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            for _ in range(processes)
        ]
        store(folder, name, {"runs": runs})


def child(folder: Path, name: str) -> None:
    """Print how much faster the recorded schedule is than the default one, on copies of the arrays."""
    import tdsl as td
    from tdsl.records.file import read
    from tdsl.records.lookup import task_of
    from tdsl.target import as_target
    from tdsl.tuning.oracle import random_values
    from tdsl.tuning.times_in_turns import FAST, USUAL, placed, times_in_turns

    op, sizes = OPERATORS[name]
    os.environ.pop("TDSL_TUNING", None)
    default = td.compile(op.schedule(**sizes), **sizes)
    recorded = op.schedule(**sizes, records=records_of(folder))
    tuned = td.compile(recorded, **sizes)
    values = random_values(op.program, sizes)
    times: list[list[float]] = [[], []]
    for _ in range(COPIES):
        arguments = [placed(values[p]) for p in op.program.parameters]
        out = default(*arguments)
        calls = [partial(default, *arguments, out=out), partial(tuned, *arguments, out=out)]
        for all_times, rounds in zip(times, times_in_turns(calls, COPY_S), strict=True):
            all_times += rounds
    fast, usual = (float(np.divide(*np.quantile(times, q, axis=1))) for q in (FAST, USUAL))
    task = task_of(op.program, sizes, as_target(None))
    best = min(r.ratio for r in read(records_of(folder)) if r.task == task)
    result = {
        "fast": fast, "usual": usual, "record": 1 / min(best, 1.0), "is_default": not recorded.directives,
    }  # fmt: skip
    print(json.dumps(result))


def kill(folder: Path, times: int) -> None:
    """Kill tuning at random moments; each trial that it told of must be in the file, and none be repeated."""
    from tdsl.records.file import read

    file = folder / "killed.jsonl"
    choice, lost = random.Random(0), []
    for n in range(times):
        before = len(read(file)) if file.exists() else 0
        process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.tuning", "victim", str(folder)],
            stdout=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        time.sleep(choice.uniform(1.0, 14.0))
        os.kill(process.pid, signal.SIGKILL)
        told = len(process.communicate()[0].splitlines())
        written = len(read(file)) - before if file.exists() else 0
        lost.append(told - written)
        print(f"{n}: told of {told}, recorded {written}", flush=True)
    directives = [r.directives for r in read(file)]
    repeated = len(directives) - len({*directives})
    print(f"{times} kills, {len(directives)} trials: most lost {max(lost)}, repeated {repeated}")
    store(
        folder, "kills", {"kills": times, "trials": len(directives), "lost": max(lost), "repeated": repeated}
    )


def victim(folder: Path) -> None:
    op, sizes = OPERATORS[KILLED]
    op.tune(
        **sizes, seconds=600, records=folder / "killed.jsonl", workers=1,
        on_trial=lambda r: print(r.label, flush=True),
    )  # fmt: skip


def table(folder: Path) -> None:
    """Speed over the default, the geometric mean over new processes: of fast calls, and of usual ones."""
    print(f"{'operator':20} {'trials':>6} {'record':>7} {'fast':>7} {'usual':>7} {'of record':>9}")
    columns: dict[str, list[float]] = {"fast": [], "usual": []}
    parts = []
    for name, r in results_of(folder).items():
        if "runs" not in r:
            continue
        is_default, record = r["runs"][0]["is_default"], r["runs"][0]["record"]
        for key, column in columns.items():  # a schedule that is the default is not slower than itself
            column.append(1.0 if is_default else mean([run[key] for run in r["runs"]]))
        fast, usual = (column[-1] for column in columns.values())
        parts.append(1.0 if is_default else min(fast, usual) / record)
        print(
            f"{name:20} {r.get('trials', 0):6} {record:7.2f} {fast:7.2f} {usual:7.2f} "
            f"{parts[-1]:9.2f}{'  default' if is_default else ''}"
        )
    for key, column in columns.items():
        print(f"{key}: {len(column)} operators, geometric mean {mean(column):.3f}, least {min(column):.3f}")
    print(f"replayed at {min(parts):.3f} of the record or more, median {statistics.median(parts):.3f}")


def mean(ratios: list[float]) -> float:
    return math.exp(statistics.fmean(map(math.log, ratios)))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tuning", description=__doc__)
    parser.add_argument("command", choices=("tune", "measure", "kill", "table", "child", "victim"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", help="operators; by default all")
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--processes", type=int, default=3)
    parser.add_argument("--times", type=int, default=50)
    options = parser.parse_intermixed_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    names = options.names or [*OPERATORS]
    match options.command:
        case "tune":
            tune(options.folder, names, options.seconds)
        case "measure":
            measure(options.folder, names, options.processes)
        case "kill":
            kill(options.folder, options.times)
        case "child":
            child(options.folder, names[0])
        case "victim":
            victim(options.folder)
    if options.command in ("measure", "table"):
        table(options.folder)


if __name__ == "__main__":
    main()
