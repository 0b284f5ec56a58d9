"""ONNX's tests of single operators, `onnx.backend.test`, with graphs of `td.onnx.load` as the backend.

A case is a model of a node, or of the nodes that define it, with inputs and expected outputs. It is refused
if `load` or the first call says what graphs cannot compute; it has passed if the outputs are as ONNX's runner
asserts. Cases that pass without a kernel are counted apart: views, and results of shapes and constants alone,
which are known while a graph is traced.
"""

from __future__ import annotations

import re
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from itertools import groupby
from pathlib import Path

import numpy as np
import onnx
import onnx.backend.test.case.node as foreign
from onnx.backend.test.case.test_case import TestCase
from onnx.backend.test.runner import Runner, _normalize_tensor

import tdsl as td

FOLDER = Path(foreign.__file__).parent
JUDGED, PASSED = 1884, 1487  # the floors of cases, and of those that pass, for ONNX 1.23


def cases(*modules: str) -> list[TestCase]:
    """The cases of some modules of ONNX, by default of all of them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # expected values of overflows and divisions by zero
        for module in modules or _all_modules():
            import_module(f"{foreign.__name__}.{module}")
    return [*foreign._NodeTestCases]


def _all_modules() -> Iterator[str]:
    for path in sorted(FOLDER.rglob("*.py")):
        if path.stem != "__init__":
            yield ".".join(path.relative_to(FOLDER).with_suffix("").parts)


@dataclass(frozen=True)
class Verdict:
    """How a case went: "passed", "known" (passed without a kernel), "refused" or "wrong", and why."""

    name: str
    outcome: str
    reason: str = ""


def judge(case: TestCase) -> Verdict:
    """The verdict on a case."""
    try:
        graph = td.onnx.load(case.model)
    except td.TdslError as error:
        return Verdict(case.name, "refused", error.message)
    kernels = 0
    for inputs, expected in case.data_sets:
        arrays = [_normalize_tensor(x) for x in inputs]
        named = zip(graph.function.model.inputs, arrays, strict=True)
        given = [x.tolist() if name in graph.function.numbers else x for name, x in named]
        has_arrays = any(isinstance(x, np.ndarray) for x in given)
        try:
            results = graph(*given) if has_arrays else graph.function(*given)
            kernels += len(graph.plan(*given).steps) if has_arrays else 0
        except td.InternalError as error:
            return Verdict(case.name, "wrong", error.message)
        except td.TdslError as error:
            return Verdict(case.name, "refused", error.message)
        listed = results if isinstance(results, tuple) else (results,)
        try:
            wanted = [_normalize_tensor(x) for x in expected]
            Runner.assert_similar_outputs(wanted, listed, case.rtol, case.atol)
        except (AssertionError, TypeError, AttributeError) as error:
            return Verdict(case.name, "wrong", str(error))
    return Verdict(case.name, "passed" if kernels else "known")


def main() -> int:
    """Judge all cases; the number of wrong ones, or 1 if fewer than the floors are judged or pass."""
    verdicts = [judge(case) for case in cases()]
    counts = Counter(v.outcome for v in verdicts)
    refused = sorted((_reason(v.reason), v.name) for v in verdicts if v.outcome == "refused")
    grouped = {reason: [name for _, name in rows] for reason, rows in groupby(refused, lambda row: row[0])}
    for reason, names in sorted(grouped.items(), key=lambda row: -len(row[1])):
        print(f"{len(names):4} refused: {reason}  ({names[0]})")
    for v in verdicts:
        if v.outcome == "wrong":
            print(f"wrong: {v.name}: {v.reason}")
    print(
        f"{len(verdicts)} cases of ONNX {onnx.__version__}: {counts['passed']} passed in kernels, "
        f"{counts['known']} passed without any, {counts['refused']} refused, {counts['wrong']} wrong"
    )
    few = len(verdicts) < JUDGED or counts["passed"] + counts["known"] < PASSED
    if few:
        print(f"expected: {JUDGED} cases, {PASSED} of them passed")
    return counts["wrong"] or int(few)


def _reason(message: str) -> str:
    """A reason without the names of a case."""
    return re.sub(r"'[^']*'|\(\d[\d, ]*\)|\b\d+\b", "_", message.splitlines()[0])[:110]


if __name__ == "__main__":
    sys.exit(bool(main()))
