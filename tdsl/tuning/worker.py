"""Processes that compile and measure schedules for a tuner, and that may crash or hang.

`python -m tdsl.tuning.worker` reads pickles from its input, each after its length in bytes and its time
limit, and answers each with a line of JSON. Only the parent process, a `Worker`, writes to it. The alarm of
the system ends the process if a job exceeds its limit, also after the parent process was killed.
"""

from __future__ import annotations

import json
import os
import pickle
import select
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np

from tdsl.codegen.runtime.signature import LARGE
from tdsl.compile import Compiled
from tdsl.compile import compile as compiled
from tdsl.folded_kernel import FoldedKernel, fold_constants
from tdsl.pipeline import completed_state
from tdsl.records.lookup import VARIABLE
from tdsl.tilegraph.schedule import Schedule
from tdsl.tuning.oracle import is_close
from tdsl.tuning.times_in_turns import least_favourable, placed, times_in_turns

_HEAD = struct.Struct("<Qd")  # the length of a job in bytes, and its time limit in seconds
GRACE_S = 2.0  # seconds that the parent waits after the limit of a job


Setup = tuple[Any, ...]  # the arguments of `_Bench`


class Worker:
    """A process with a program's inputs and the results of its default schedule; started again if it dies.

    `limit` is that of setting up, in seconds.
    """

    def __init__(self, setup: Setup, limit: float) -> None:
        self._setup, self._limit = setup, limit
        self._process: subprocess.Popen[bytes] | None = None
        self._pending: list[float] = []  # the deadlines of jobs that have no answer yet
        self._received = b""

    def use(self, setup: Setup) -> None:
        """Change the program that later jobs are for."""
        if setup is not self._setup:
            self._setup = setup
            if self._process is not None:
                self._write(("setup", *setup), self._limit)

    def send(self, job: tuple[Any, ...], limit: float) -> None:
        """Give the process a job, which is killed after `limit` seconds."""
        if self._process is None:
            self._start()
            self._write(("setup", *self._setup), self._limit)
        self._write(job, limit)

    def _start(self) -> None:
        package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
        path = os.pathsep.join(p for p in (package, os.environ.get("PYTHONPATH", "")) if p)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tdsl.tuning.worker"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            env=os.environ | {"PYTHONPATH": path, VARIABLE: ""}, start_new_session=True,
        )  # fmt: skip
        self._pending, self._received = [], b""

    def _write(self, job: tuple[Any, ...], limit: float) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._pending.append(limit)
        text = pickle.dumps(job)
        with suppress(OSError):  # if it has ended, `answer` says so
            self._process.stdin.write(_HEAD.pack(len(text), limit) + text)
            self._process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        """The answer to the job sent last; {"problem": ...} if it failed, crashed or took too long."""
        answer: dict[str, Any] = {}
        while self._pending:
            answer = self._next_answer(self._pending.pop(0))
            if "problem" in answer and self._process is None:
                self._pending.clear()
        return answer

    def _next_answer(self, limit: float) -> dict[str, Any]:
        process = self._process
        assert process is not None
        assert process.stdout is not None
        deadline = time.monotonic() + limit + GRACE_S
        while b"\n" not in self._received:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([process.stdout], [], [], left)[0]:
                return self._failed(f"it took longer than {limit:.3g} s")
            data = os.read(process.stdout.fileno(), 1 << 16)
            if not data:
                status = process.wait()
                if status == -getattr(signal, "SIGALRM", 0):
                    return self._failed(f"it took longer than {limit:.3g} s")
                return self._failed(f"it ended with status {status}")
            self._received += data
        line, _, self._received = self._received.partition(b"\n")
        result: dict[str, Any] = json.loads(line)
        return result

    def _failed(self, problem: str) -> dict[str, Any]:
        self.close()
        return {"problem": problem}

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            for stream in (self._process.stdin, self._process.stdout):
                if stream is not None:
                    with suppress(OSError):  # of what was not written yet
                        stream.close()
            self._process = None


class _Bench:
    """The default schedule of a program with its results, and the candidate compiled last.

    `file` has the inputs by name. If `folds`, what depends on constant inputs only is computed once, and is
    not measured.
    """

    def __init__(self, state: Any, sizes: Any, target: Any, file: str, tolerance: float, folds: bool) -> None:
        self.sizes, self.target, self.tolerance, self.folds = sizes, target, tolerance, folds
        with open(file, "rb") as inputs:
            self.values: dict[str, Any] = pickle.load(inputs)  # written by the parent process
        self.default, self.default_code = self.compiled(state)
        self.expected = _results(self.call_of(self.default, self.values))
        self.candidate, self.is_default = self.default, True

    def compile(self, state: Any) -> None:
        """Make a state the candidate, and run it once."""
        self.candidate, code = self.compiled(state)
        self.is_default = code == self.default_code
        _results(self.call_of(self.candidate, self.values))

    def compiled(self, state: Any) -> tuple[FoldedKernel, object]:
        """The kernel of a state, and the completed states from which its code is generated."""
        run: Compiled = compiled(Schedule.of_state(state), target=self.target, **self.sizes)
        parameters = tuple(a.name for a in run.signature.inputs)
        kernel = fold_constants(run) if self.folds else FoldedKernel(parameters, run)
        parts = (kernel.per_call, *kernel.once)
        return kernel, [completed_state(part.variant(part.specialisation({}))) for part in parts]

    def call_of(self, kernel: FoldedKernel, values: dict[str, Any]) -> Callable[..., Any]:
        """The kernel as a function of `out` alone."""
        inputs = [values[name] for name in kernel.parameters]
        return partial(kernel.per_call, *kernel.select_inputs(inputs), *kernel.folded_arrays(inputs))

    def measure(self, seconds: float, placements: int) -> dict[str, Any]:
        """The seconds of the candidate and of the default schedule in turns, or {"problem": ...}.

        They are measured for `seconds` seconds on each of several copies of the arrays.
        """
        times, default_times = list[float](), list[float]()
        for _ in range(placements):
            values = {n: placed(x) if isinstance(x, np.ndarray) else x for n, x in self.values.items()}
            default_call, call = (self.call_of(k, values) for k in (self.default, self.candidate))
            results = tuple(placed(x) if x.nbytes < LARGE else x for x in _results(default_call))
            out = results if len(results) > 1 else results[0]  # the same memory for both
            if not self.is_right(call, results, out):
                return {"problem": "its results are wrong"}
            calls = [partial(default_call, out=out), partial(call, out=out)]
            rounds = times_in_turns(calls[: 1 if self.is_default else 2], seconds)
            default_times += rounds[0]
            times += rounds[-1]
            if not self.is_right(call, results, out):
                return {"problem": "its results are wrong"}
        candidate, default = least_favourable(times, default_times)
        return {"seconds": candidate, "default_seconds": default}

    def is_right(self, call: Callable[..., Any], results: tuple[Any, ...], out: Any) -> bool:
        """True if a call computes the results of the default schedule, up to rounding."""
        for x in results:
            x.fill(113)  # which no call may leave
        call(out=out)
        return all(is_close(x, y, self.tolerance) for x, y in zip(results, self.expected, strict=True))


def _results(call: Callable[..., Any]) -> tuple[Any, ...]:
    result = call()
    return result if isinstance(result, tuple) else (result,)


def _serve() -> None:
    """Answer jobs until the input ends; what programs print goes to the error stream."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    bench: _Bench | None = None
    problem = ""
    source = sys.stdin.buffer
    while len(head := source.read(_HEAD.size)) == _HEAD.size:
        length, limit = _HEAD.unpack(head)
        text = source.read(length)
        answer: dict[str, Any] = {}
        try:
            if hasattr(signal, "setitimer"):
                signal.setitimer(signal.ITIMER_REAL, max(limit, 1e-3))
            kind, *arguments = pickle.loads(text)
            if kind == "setup":
                bench = None
                bench = _Bench(*arguments)
            elif bench is None:
                answer = {"problem": problem, "setup": True}
            elif kind == "compile":
                bench.compile(*arguments)
            else:
                answer = bench.measure(*arguments)
        except Exception as error:  # noqa: BLE001  # whatever is wrong with a candidate, it is dropped
            problem = str(error).partition("\n")[0] or type(error).__name__
            answer = {"problem": f"it failed: {problem}"}
        if hasattr(signal, "setitimer"):
            signal.setitimer(signal.ITIMER_REAL, 0)
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    _serve()
