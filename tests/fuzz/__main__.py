"""Random programs under random schedules, against their meaning.

    python -m tests.fuzz --programs 2000 --seed 0 --seconds 3600 --jobs 2
    python -m tests.fuzz --only 17:3 --seed 0         one case again, made small

A worker is a process of its own: one that dies, computes for too long, or is silent for too long, is a fault
of the case it was at.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from tests.fuzz.campaign import Fault, Report, program_of, run_program, scheduled
from tests.fuzz.cases import Case, Meaning, run_case
from tests.fuzz.schedules import WEIGHTS, Tally
from tests.fuzz.shrink import shrink

BUSY = 40.0  # seconds of CPU time on one case
SILENCE = 900.0  # seconds


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__.splitlines()[0])
    parser.add_argument("--programs", type=int, default=200)
    parser.add_argument("--schedules", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="the number of the first program")
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--cpu-seconds", type=float, default=1e9, help="of all workers together")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--stop", type=int, default=0, help="end after so many faults")
    parser.add_argument("--small", type=float, default=60.0, help="seconds to make a fault small")
    parser.add_argument("--without", default="", help="kinds of programs, with commas between")
    parser.add_argument("--only", metavar="PROGRAM:SCHEDULE")
    parser.add_argument("--worker", type=int, default=None, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker is not None:
        return work(options)
    if options.only:
        return again(options)
    return Campaign(options).run()


def work(options: argparse.Namespace) -> int:
    """Run every `jobs`-th program and tell of it on stdout, a line of JSON each."""
    faulthandler.enable()
    os.environ |= {"TDSL_DEBUG": "verify", "TDSL_CACHE": "0"}

    def tell(**what: Any) -> None:
        signal.setitimer(signal.ITIMER_PROF, BUSY)  # SIGPROF ends the worker
        print(json.dumps(what), flush=True)

    for program in range(options.worker, options.first + options.programs, options.jobs):
        report = Report(frozenset(options.without.split(",")))
        tell(at=[program, -1, "", False])

        def started(schedule: int, case: Case, checked: bool, program: int = program) -> None:
            tell(at=[program, schedule, case.target, checked])

        run_program(options.seed, program, options.schedules, report, started)
        tell(
            program=program, count=report.programs, cpu=time.process_time(), cases=report.cases,
            slowest=report.slowest, outcomes=report.outcomes, taken=report.tally.taken,
            dropped=report.tally.dropped,
            faults=[
                [f.program, f.schedule, f.outcome.kind, f.outcome.text[-3000:]] for f in report.faults
            ],
        )  # fmt: skip
    return 0


@dataclass(slots=True)
class Worker:
    process: subprocess.Popen[str]
    share: int
    at: Any = None
    cpu: float = 0.0
    heard: float = field(default_factory=time.monotonic)
    next: int = 0


class Campaign:
    """The workers and what they have told so far."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.outcomes: Counter[str] = Counter()
        self.cases: Counter[str] = Counter()
        self.slowest: list[list[Any]] = []
        self.tally = Tally()
        self.faults: list[tuple[int, int, str, str]] = []
        self.programs = 0
        self.cpu = 0.0
        self.selector = selectors.DefaultSelector()
        self.start = time.monotonic()
        self.cache = tempfile.TemporaryDirectory()

    def run(self) -> int:
        workers = [self.hire(n, self.options.first + n) for n in range(self.options.jobs)]
        while workers and not self.enough():
            for key, _ in self.selector.select(timeout=1.0):
                self.hear(key.data)
            for w in list(workers):
                if time.monotonic() - w.heard > SILENCE:
                    w.process.kill()
                    w.process.wait()
                if w.process.poll() is not None:
                    workers.remove(w)
                    workers += self.replaced(w)
        for w in workers:
            w.process.kill()
            w.process.wait()
        self.report()
        return bool(self.faults)

    def enough(self) -> bool:
        o = self.options
        late = time.monotonic() - self.start > o.seconds or self.cpu > o.cpu_seconds
        return late or 0 < o.stop <= len(self.faults)

    def hire(self, share: int, first: int) -> Worker:
        o = self.options
        words = ["--worker", first, "--first", o.first, "--programs", o.programs, "--seed", o.seed,
                 "--schedules", o.schedules, "--jobs", o.jobs,
                 "--without", o.without]  # fmt: skip
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.fuzz", *map(str, words)],
            stdout=subprocess.PIPE, text=True, env={**os.environ, "TDSL_CACHE_DIR": self.cache.name},
        )  # fmt: skip
        w = Worker(process, share, next=first)
        self.selector.register(process.stdout, selectors.EVENT_READ, w)  # type: ignore[arg-type]
        return w

    def hear(self, w: Worker) -> None:
        assert w.process.stdout is not None
        line = w.process.stdout.readline()
        if not line.startswith("{"):
            return
        w.heard = time.monotonic()
        told = json.loads(line)
        if "at" in told:
            w.at = told["at"]
            return
        self.programs += told["count"]
        self.cases += Counter(told["cases"])
        self.slowest = sorted([told["slowest"], *self.slowest], reverse=True)[:3]
        self.cpu += told["cpu"] - w.cpu
        w.cpu = told["cpu"]
        w.next, w.at = told["program"] + self.options.jobs, None
        self.outcomes += Counter(told["outcomes"])
        self.tally.add(Tally(Counter(told["taken"]), Counter(told["dropped"])))
        for fault in told["faults"]:
            self.found(*fault)

    def found(self, program: int, schedule: int, kind: str, text: str) -> None:
        self.faults.append((program, schedule, kind, text))
        print(f"fault {program}:{schedule} {kind}", flush=True)

    def replaced(self, w: Worker) -> list[Worker]:
        """A new worker for the programs after the one at which a worker died."""
        while w.process.stdout is not None and (line := w.process.stdout.readline()):
            if line.startswith('{"at"'):
                w.at = json.loads(line)["at"]
        self.selector.unregister(w.process.stdout)  # type: ignore[arg-type]
        if w.process.returncode == 0 and w.at is None:
            return []
        if w.at is not None:
            silent = time.monotonic() - w.heard > SILENCE
            kind = "hang" if silent or w.process.returncode == -signal.SIGPROF else "crash"
            self.found(w.at[0], w.at[1], kind, f"target {w.at[2]}, checked {w.at[3]}")
            self.outcomes[kind] += 1
            w.next = w.at[0] + self.options.jobs
        if w.next >= self.options.first + self.options.programs:
            return []
        return [self.hire(w.share, w.next)]

    def report(self) -> None:
        seconds = time.monotonic() - self.start
        cases = sum(self.outcomes.values())
        for kind, count in sorted(self.cases.items()):
            print(f"{count:8} {kind}")
        print()
        for outcome, count in self.outcomes.most_common():
            print(f"{count:8} {outcome}")
        print("\ndirective            taken  dropped")
        for name in WEIGHTS:
            print(f"{name:18} {self.tally.taken[name]:7} {self.tally.dropped[name]:8}")
        shown: set[str] = set()
        for _, _, kind, text in self.faults:
            if kind not in shown:
                shown.add(kind)
                others = [f"{p}:{n}" for p, n, k, _ in self.faults if k == kind]
                print(f"\n=== {kind} ({len(others)}: {', '.join(others[:8])})\n{text[-1500:]}")
        slow = ", ".join(f"{s:.1f} s at {p}:{n} ({t})" for s, p, n, t in self.slowest)
        by_kind = Counter(kind for _, _, kind, _ in self.faults)
        faults = ", ".join(f"{count} {kind}" for kind, count in by_kind.most_common())
        print(
            f"\n{self.programs} programs, {cases} cases, {len(self.faults)} faults ({faults or 'none'}); "
            f"slowest {slow or 'none'}; {seconds:.0f} s, {self.cpu:.0f} s of CPU"
        )


def again(options: argparse.Namespace) -> int:
    """One case again; a fault is made small and printed as a program."""
    os.environ["TDSL_DEBUG"] = "verify"
    program, schedule = map(int, options.only.split(":"))
    report = Report()
    made = program_of(options.seed, program)
    print("\n".join(made.lines), "\n")
    print(scheduled(made, options.seed, program, schedule, Tally()).schedule(), flush=True)
    run_program(options.seed, program, schedule + 1, report)
    faults: list[Fault] = [f for f in report.faults if f.schedule == schedule]
    if not faults:
        print("no fault")
        return 0
    fault = faults[0]
    print(f"\n{fault.outcome.kind}\n{fault.outcome.text}")
    if fault.case is not None:
        kind, checked = fault.outcome.kind, fault.checked
        small = shrink(fault.case, lambda c: run_case(c, Meaning(), checked).kind == kind, options.small)
        print(f"\n{'#' * 20} small, checked={checked}\n{small.source()}")
        print(run_case(small, Meaning(), checked).text[-3000:])
    return 1


if __name__ == "__main__":
    sys.exit(main())
