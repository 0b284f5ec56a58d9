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

from tdsl.compile import Compiled
from tdsl.compile import compile as compiled
from tdsl.folded_kernel import FoldedKernel, fold_constants
from tdsl.records.lookup import VARIABLE
from tdsl.tilegraph.schedule import Schedule
from tdsl.tuning.fastest_in_turns import fastest_in_turns
from tdsl.tuning.oracle import is_close

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
            values = pickle.load(inputs)  # written by the parent process
        # as a caller allocates them: in what was unpickled, arrays begin elsewhere in a cache line
        self.values = {n: x.copy("K") if isinstance(x, np.ndarray) else x for n, x in values.items()}
        self.default = self.call_of(state)
        self.expected = self.results(self.default)
        self.candidate = self.default

    def call_of(self, state: Any) -> Callable[..., Any]:
        """The compiled state as a function of `out` alone."""
        run: Compiled = compiled(Schedule.of_state(state), target=self.target, **self.sizes)
        parameters = tuple(a.name for a in run.signature.inputs)
        kernel = fold_constants(run) if self.folds else FoldedKernel(parameters, run)
        values = [self.values[name] for name in kernel.parameters]
        return partial(kernel.per_call, *kernel.select_inputs(values), *kernel.folded_arrays(values))

    def results(self, call: Callable[..., Any]) -> tuple[Any, ...]:
        result = call()
        return result if isinstance(result, tuple) else (result,)

    def measure(self, seconds: float) -> dict[str, Any]:
        results = self.results(self.default)
        out = results if len(results) > 1 else results[0]  # the same memory for both
        default_call, call = partial(self.default, out=out), partial(self.candidate, out=out)

        def is_right() -> bool:
            for x in results:
                x.fill(113)  # which no call may leave
            call()
            pairs = zip(results, self.expected, strict=True)
            return all(is_close(x, y, self.tolerance) for x, y in pairs)

        if not is_right():
            return {"problem": "its results are wrong"}
        default, candidate = fastest_in_turns([default_call, call], seconds)
        if not is_right():
            return {"problem": "its results are wrong"}
        return {"seconds": candidate, "default_seconds": default}


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
                bench.candidate = bench.call_of(arguments[0])
                bench.results(bench.candidate)
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
