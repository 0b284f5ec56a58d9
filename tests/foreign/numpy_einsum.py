"""NumPy's tests of einsum with `np.einsum` of graphs in its place.

A call whose element types a graph has not (complex numbers, objects, long double), or that passes `out=`,
`order=` or `casting=`, is NumPy's own; so is one that NumPy refuses. Each other call counts as reached.
Graphs choose the order of contraction themselves: `optimize=` is not passed on.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, product
from typing import Any

import numpy as np
import numpy._core.tests.test_einsum as foreign

import tdsl as td

NUMBERS = (
    "float16",
    "float32",
    "float64",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
)
LARGE = {f"test_einsum_sums_{t}" for t in NUMBERS}  # the same hundreds of calls for each type
VIEWS = {"test_einsum_views", "test_output_order"}
WITHOUT_CALLS = {  # tests of `out=`, `casting=`, objects and refusals
    "test_einsum_0d_out", "test_einsum_all_contig_non_contig_output", "test_einsum_errors",
    "test_einsum_fixed_collapsingbug", "test_einsum_object_errors", "test_einsum_sorting_behavior",
    "test_einsum_specific_errors", "test_object_loop", "test_out_is_res", "test_small_boolean_arrays",
}  # fmt: skip
OPTIONS = {"optimize", "dtype"}
TYPES = {np.dtype(c) for c in "?bBhHiIlLqQefd"}


@dataclass(frozen=True)
class Case:
    """A test of NumPy with the arguments that it is parametrised by."""

    name: str
    arguments: tuple[tuple[str, Any], ...] = ()

    def __str__(self) -> str:
        return "-".join([self.name, *(getattr(a, "__name__", str(a)) for _, a in self.arguments)])

    @property
    def has_calls(self) -> bool:
        """True if some calls have the element types and options of graphs."""
        types = {np.dtype(a) for name, a in self.arguments if name == "dtype"}
        return self.name not in WITHOUT_CALLS and types <= TYPES


def cases() -> Iterator[Case]:
    """All tests of NumPy's class."""
    for name, test in inspect.getmembers(foreign.TestEinsum, inspect.isfunction):
        if not name.startswith("test"):
            continue
        marks = [m for m in getattr(test, "pytestmark", ()) if m.name == "parametrize"]
        for rows in product(*(_rows(*m.args) for m in marks)):
            yield Case(name, tuple(chain(*rows)))


def _rows(names: str, values: Iterable[Any]) -> list[tuple[tuple[str, Any], ...]]:
    """The arguments by name of each row of a parametrisation."""
    rows = (v if isinstance(v, tuple) else (v,) for v in values)
    return [tuple(zip(names.replace(" ", "").split(","), row, strict=True)) for row in rows]


class Judge:
    """Runs tests of NumPy, and counts the calls that graphs compute."""

    def __init__(self) -> None:
        self.reached = 0

    def run(self, case: Case) -> int:
        """Run a test; how many of its calls a graph computed. AssertionError if NumPy refuses a result."""
        before = self.reached
        module, foreign.np = foreign.np, self  # type: ignore[assignment]
        try:
            getattr(foreign.TestEinsum(), case.name)(**dict(case.arguments))
        finally:
            foreign.np = module
        return self.reached - before

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)

    def einsum(self, *arguments: Any, **options: Any) -> Any:
        """`np.einsum` of a graph where it has the types, else NumPy's."""
        expected = np.einsum(*arguments, **options)  # raises what NumPy raises
        text = isinstance(arguments[0], str)
        last = len(arguments) if text else len(arguments) // 2 * 2
        places = range(1, last) if text else range(0, last, 2)
        arrays = {n: np.asanyarray(arguments[n]) for n in places}
        if options.keys() - OPTIONS or not TYPES.issuperset(a.dtype for a in arrays.values()):
            return expected

        def traced(*operands: Any) -> Any:
            given = dict(zip(arrays, operands, strict=True))
            kept = {n: x for n, x in options.items() if n == "dtype"}
            return np.einsum(*(given.get(n, x) for n, x in enumerate(arguments)), **kept)

        self.reached += 1
        return td.Graph(traced)(*arrays.values())


def main() -> int:
    """Run all tests; the number of those that fail."""
    judge, failed = Judge(), 0
    every = [c for c in cases() if c.name not in VIEWS]
    for case in every:
        try:
            judge.run(case)
        except (AssertionError, td.TdslError) as error:
            failed += 1
            print(f"{case}: {error}")
    print(f"{len(every)} tests of NumPy {np.__version__}, {judge.reached} calls of graphs, {failed} failed")
    return failed


if __name__ == "__main__":
    sys.exit(bool(main()))
