"""`python -m benchmarks.tuning`: tuning of twenty operators, and tuning that is killed.

    tune      FOLDER [--seconds 30] [NAME ...]     tunes each operator; goes on where it stopped
    measure   FOLDER [--rounds 31] [NAME ...]      in new processes: the recorded schedules against defaults
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
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.tuning.operators import OPERATORS

ROUND_S = 2e-3
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


def measure(folder: Path, names: list[str], rounds: int) -> None:
    for name in names:
        command = [sys.executable, "-m", "benchmarks.tuning", "child", str(folder), name]
        done = subprocess.run([*command, "--rounds", str(rounds)], check=True, capture_output=True, text=True)
        store(folder, name, json.loads(done.stdout))


def child(folder: Path, name: str, rounds: int) -> None:
    """Print the times of the default schedule and of the recorded one, in rounds that follow each other."""
    import tdsl as td
    from tdsl.records.file import read
    from tdsl.records.lookup import task_of
    from tdsl.target import as_target
    from tdsl.tuning.oracle import random_values

    op, sizes = OPERATORS[name]
    os.environ.pop("TDSL_TUNING", None)
    default = td.compile(op.schedule(**sizes), **sizes)
    recorded = op.schedule(**sizes, records=records_of(folder))
    tuned = td.compile(recorded, **sizes)
    values = random_values(op.program, sizes)
    arguments = [values[p] for p in op.program.parameters]
    out = default(*arguments)
    calls = [lambda: default(*arguments, out=out), lambda: tuned(*arguments, out=out)]
    times = paired_times(calls[0], calls[1], rounds)
    task = task_of(op.program, sizes, as_target(None))
    best = min(r.ratio for r in read(records_of(folder)) if r.task == task)
    result = {"times": times, "best_record": 1 / min(best, 1.0), "is_default": not recorded.directives}
    print(json.dumps(result))


def paired_times(
    first: Callable[[], object], second: Callable[[], object], rounds: int
) -> list[tuple[float, float]]:
    """The seconds of `first` and of `second` in each round; who begins alternates."""

    def seconds(call: Callable[[], object], count: int) -> float:
        start = time.perf_counter()
        for _ in range(count):
            call()
        return (time.perf_counter() - start) / count

    counts = [max(1, int(ROUND_S / max(min(seconds(f, 3) for _ in range(3)), 1e-7))) for f in (first, second)]
    result = []
    for n in range(rounds):
        order = [(0, first), (1, second)]
        times = {k: seconds(f, counts[k]) for k, f in (order if n % 2 else order[::-1])}
        result.append((times[0], times[1]))
    return result


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
    """Speed over the default: of the best deciles of the times (`fast`), and of the pairs of rounds."""
    heads = f"{'record':>7} {'fast':>7} {'median':>7} {'quartiles':>13} {'of record':>9}"
    print(f"{'operator':20} {'trials':>6} {heads}")
    medians, parts = [], []
    for name, r in results_of(folder).items():
        if "times" not in r:
            continue
        low, median, high = statistics.quantiles([a / b for a, b in r["times"]], n=4)
        default, tuned = (statistics.quantiles(x, n=10)[0] for x in zip(*r["times"], strict=True))
        shown = 1.0 if r["is_default"] else default / tuned  # both are the default schedule then
        medians.append(shown)
        part = shown / r["best_record"] if not r["is_default"] else 1.0
        parts.append(part)
        print(
            f"{name:20} {r.get('trials', 0):6} {r['best_record']:7.2f} {shown:7.2f} "
            f"{median:7.2f} {low:6.2f}-{high:<6.2f} {part:9.2f}{'  default' if r['is_default'] else ''}"
        )
    if medians:
        mean = math.exp(statistics.fmean(map(math.log, medians)))
        print(f"{len(medians)} operators: geometric mean {mean:.3f}, least {min(medians):.3f}; ", end="")
        print(f"replayed at {min(parts):.3f} of the record or more, median {statistics.median(parts):.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tuning", description=__doc__)
    parser.add_argument("command", choices=("tune", "measure", "kill", "table", "child", "victim"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", help="operators; by default all")
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--rounds", type=int, default=101)
    parser.add_argument("--times", type=int, default=50)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    names = options.names or [*OPERATORS]
    match options.command:
        case "tune":
            tune(options.folder, names, options.seconds)
        case "measure":
            measure(options.folder, names, options.rounds)
        case "kill":
            kill(options.folder, options.times)
        case "child":
            child(options.folder, names[0], options.rounds)
        case "victim":
            victim(options.folder)
    if options.command in ("measure", "table"):
        table(options.folder)


if __name__ == "__main__":
    main()
