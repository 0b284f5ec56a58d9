"""NPBench's programs in plain NumPy, unchanged, as functions of `td.Graph`.

`python -m tests.foreign.npbench FOLDER` judges a checkout of https://github.com/spcl/npbench (BSD 3-clause),
which has no package: `bench_info/NAME.json` names the parameters, the function that initialises the
arguments and the function to run, which is in `npbench/benchmarks/PATH/MODULE_numpy.py`. A program is refused
if tracing or the call says what graphs cannot compute. It has run unchanged if its results, and the arguments
that it writes to, are those of NumPy. Sizes are those of the preset S, but `LARGEST` at most: loops in Python
are traced step by step, and each extent of a part is a kernel of its own.

The exit code is 0 if nothing is wrong, 1 for wrong results, 2 without a checkout.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

import tdsl as td

LARGEST = 6  # of the integers among the parameters of a program
SIZES: Mapping[str, Mapping[str, int]] = {  # of programs that need larger ones
    "lenet": {"H": 16, "W": 16},
    "resnet": {"W": 4, "H": 4},
}
UNCHANGED, REACHED = 43, 50  # the floor of programs that run unchanged, and of those judged


@dataclass(frozen=True)
class Program:
    """A program of a checkout: its name, its parameters, arguments and functions as `bench_info` has them."""

    folder: Path
    info: Mapping[str, Any]

    @property
    def name(self) -> str:
        """The short name."""
        name: str = self.info["short_name"]
        return name

    def module(self, suffix: str = "") -> ModuleType:
        """The module with the functions to initialise the arguments, or with "_numpy" that of NumPy."""
        path = self.info["relative_path"].replace("/", ".")
        return importlib.import_module(f"npbench.benchmarks.{path}.{self.info['module_name']}{suffix}")

    def arguments(self) -> list[Any]:
        """The arguments of the function for small sizes."""
        sizes = {n: _small(x) for n, x in self.info["parameters"]["S"].items()} | dict(
            SIZES.get(self.name, {})
        )
        init = self.info["init"]
        results = getattr(self.module(), init["func_name"])(*(sizes[n] for n in init["input_args"]))
        results = results if isinstance(results, tuple) else (results,)
        values = sizes | dict(zip(init["output_args"], results, strict=True))
        return [values[n] for n in self.info["input_args"]]


def _small(size: Any) -> Any:
    return min(size, LARGEST) if isinstance(size, int) else size


@dataclass(frozen=True)
class Verdict:
    """How a program went: "unchanged", "refused" or "wrong", why, and the seconds that it took."""

    name: str
    outcome: str
    reason: str = ""
    seconds: float = 0.0


def programs(folder: Path) -> list[Program]:
    """The programs of a checkout; FileNotFoundError for a folder that is none."""
    paths = sorted((folder / "bench_info").glob("*.json"))
    if not paths:
        raise FileNotFoundError(f"{folder} has no bench_info/*.json: it is no checkout of NPBench")
    return [Program(folder, json.loads(path.read_text())["benchmark"]) for path in paths]


def judge(program: Program) -> Verdict:
    """The verdict on a program."""
    start = time.perf_counter()
    with _importable(program.folder), np.errstate(all="ignore"):
        arguments = program.arguments()
        function = getattr(program.module("_numpy"), program.info["func_name"])
        expected = deepcopy(arguments)
        expected_result = function(*expected)
        try:
            result = td.Graph(function)(*arguments)
        except td.InternalError as error:
            return Verdict(program.name, "wrong", error.message)
        except td.TdslError as error:
            return Verdict(program.name, "refused", error.message)
    try:
        for want, have in zip(
            _leaves((expected, expected_result)), _leaves((arguments, result)), strict=True
        ):
            np.testing.assert_allclose(have, want, rtol=1e-4 if want.dtype == np.float32 else 1e-10)
            assert have.dtype == want.dtype
    except (AssertionError, ValueError) as error:
        return Verdict(program.name, "wrong", str(error))
    return Verdict(program.name, "unchanged", seconds=time.perf_counter() - start)


def _leaves(x: Any) -> Iterator[np.ndarray[Any, Any]]:
    if isinstance(x, tuple | list):
        for part in x:
            yield from _leaves(part)
    elif x is not None:
        yield np.asarray(x)


@contextlib.contextmanager
def _importable(folder: Path) -> Iterator[None]:
    """Lets modules of a checkout be imported."""
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))


def main(arguments: list[str]) -> int:
    """Judge the programs of a checkout, or those named after it; the exit code."""
    if not arguments:
        print("usage: python -m tests.foreign.npbench FOLDER [NAME ...]: FOLDER is a checkout of NPBench")
        return 2
    try:
        every = programs(Path(arguments[0]))
    except FileNotFoundError as error:
        print(error)
        return 2
    counts = Counter[str]()
    for program in every:
        if len(arguments) == 1 or program.name in arguments[1:]:
            verdict = judge(program)
            counts[verdict.outcome] += 1
            print(
                f"{verdict.outcome:9} {verdict.name:18} {verdict.seconds:6.1f} s  {verdict.reason}",
                flush=True,
            )
    print(f"{counts.total()} programs: " + ", ".join(f"{n} {outcome}" for outcome, n in counts.most_common()))
    few = len(arguments) == 1 and (counts["unchanged"] < UNCHANGED or counts.total() < REACHED)
    if few:
        print(f"expected: {REACHED} programs, {UNCHANGED} of them unchanged")
    return int(few or counts["wrong"] > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
