"""NumPy's own tests of einsum judge `np.einsum` in graphs: they come with NumPy, whatever its version.

`python -m tests.foreign.numpy_einsum` runs all of them, with each element type.
"""

import pytest

from tests.foreign.numpy_einsum import LARGE, VIEWS, Judge, cases

SHORT = [c for c in cases() if c.name not in LARGE]


@pytest.mark.parametrize("case", SHORT, ids=str)
def test_numpy_accepts_what_graphs_compute(case):
    if case.name in VIEWS:
        pytest.skip("NumPy's result is a view or in an operand's memory order: a graph's is a new array")
    assert (Judge().run(case) > 0) == case.has_calls


def test_no_tests_of_numpy_are_lost():
    assert len(SHORT) >= 55
    assert len({*cases()}) >= 66
