"""opt_einsum's own tests with graphs in place of its backend for NumPy.

opt_einsum plans a contraction in pairs; each pair is a call of `einsum`, `tensordot` or `transpose` of a
backend. Calls whose element types graphs have not (complex numbers, objects) and those with `out=` are those
of NumPy. A test counts as reached if a graph computes a call of it: most others are about paths and texts.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import opt_einsum
import pytest
from opt_einsum.backends.dispatch import _cached_funcs

import tdsl as td

FOLDER = Path(opt_einsum.__file__).parent / "tests"
FUNCTIONS = ("einsum", "tensordot", "transpose")
REACHED = 7370  # the floor of tests that graphs compute, for opt_einsum 3.4
OF_JAX = "test_jax_jit_gradient"  # reads an attribute that arrays of JAX 0.10 have no longer


class Backend:
    """The functions of a backend of opt_einsum, computed by graphs; `calls` counts them by name."""

    def __init__(self) -> None:
        self.calls = Counter[str]()
        self._graphs: dict[Any, td.Graph] = {}

    def function(self, name: str) -> Callable[..., Any]:
        """NumPy's function of this name, computed by a graph where it has the types."""
        numpy_function = getattr(np, name)

        def call(*arguments: Any, **options: Any) -> Any:
            arrays = [a for a in arguments if isinstance(a, np.ndarray)]
            if "out" in options or not arrays or any(a.dtype.kind not in "biuf" for a in arrays):
                return numpy_function(*arguments, **options)
            options.pop("optimize", None)
            self.calls[name] += 1
            shapes = tuple((a.shape, a.dtype) for a in arrays)
            others = [None if isinstance(a, np.ndarray) else a for a in arguments]
            key = name, shapes, repr(others), repr(options)

            def traced(*operands: Any) -> Any:
                given = iter(operands)
                full = [next(given) if a is None else a for a in others]
                return numpy_function(*full, **options)

            if key not in self._graphs:
                self._graphs[key] = td.Graph(traced)
            return self._graphs[key](*arrays)

        return call

    @contextmanager
    def installed(self) -> Iterator[None]:
        """The functions as those of opt_einsum's backend "numpy"."""
        earlier = dict(_cached_funcs)
        _cached_funcs.update({(name, "numpy"): self.function(name) for name in FUNCTIONS})
        try:
            yield
        finally:
            _cached_funcs.clear()
            _cached_funcs.update(earlier)


class Counting:
    """A plugin of pytest that counts outcomes, and the tests of which graphs computed a call."""

    def __init__(self, backend: Backend) -> None:
        self.backend, self.outcomes, self.reached = backend, Counter[str](), 0

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Any:
        """Counts the test as reached if it passes and graphs computed a call."""
        before = self.backend.calls.total()
        result = yield
        self.reached += self.backend.calls.total() > before
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Counts the outcome of the test."""
        if report.when == "call" or report.outcome != "passed":
            self.outcomes[report.outcome] += 1


def main(arguments: list[str]) -> int:
    """Run the tests; with arguments those of pytest, such as `-k greek`."""
    backend = Backend()
    counting = Counting(backend)
    own = ["-q", "-c", "/dev/null", "-p", "no:cacheprovider", "--rootdir", str(FOLDER), str(FOLDER)]
    own += ["-k", f"not {OF_JAX}"]
    with backend.installed():
        status = pytest.main([*own, *arguments], plugins=[counting])
    outcomes = ", ".join(f"{n} {outcome}" for outcome, n in sorted(counting.outcomes.items()))
    calls = ", ".join(f"{n} of {name}" for name, n in backend.calls.most_common())
    print(f"opt_einsum {opt_einsum.__version__}: {outcomes}; {counting.reached} passed in graphs; {calls}")
    if not arguments and counting.reached < REACHED:
        print(f"expected: {REACHED} passed in graphs")
        return 1
    return int(status)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
