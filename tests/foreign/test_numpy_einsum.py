"""NumPy's own tests of einsum judge `np.einsum` in graphs: they come with NumPy, whatever its version.

`python -m tests.foreign.numpy_einsum` runs all of them, with each element type.
"""

import pytest

from tests.foreign.numpy_einsum import LARGE, VIEWS, Judge, cases

SHORT = [c for c in cases() if c.name not in LARGE]


@pytest.fixture(scope="module")
def judge():
    return Judge()


@pytest.mark.parametrize("case", SHORT, ids=str)
def test_numpy_accepts_what_graphs_compute(case, judge):
    if case.name in VIEWS:
        pytest.skip(
            "NumPy's result is a view, or has the memory order of an operand: a graph's is a new array"
        )
    judge.run(case)


def test_enough_calls_reach_graphs(judge):
    for case in SHORT:
        if case.name not in VIEWS and not judge.has_run(case):
            judge.run(case)
    assert len(SHORT) >= 30
    assert judge.reached >= 400
