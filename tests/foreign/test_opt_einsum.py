"""opt_einsum's tests judge graphs as its backend; `python -m tests.foreign.opt_einsum` runs all of them."""

import pytest
from opt_einsum.tests import test_contract as foreign

from tests.foreign.opt_einsum import Backend

EQUATIONS = [*dict.fromkeys(foreign.tests)]
BACKEND = Backend()


@pytest.mark.parametrize("equation", EQUATIONS[::8])
def test_opt_einsum_accepts_the_contractions_of_graphs(equation):
    before = BACKEND.calls.total()
    with BACKEND.installed():
        foreign.test_compare_blas_greek(optimize="greedy", string=equation)
    assert BACKEND.calls.total() > before


def test_no_equations_of_opt_einsum_are_lost():
    assert len(EQUATIONS) >= 69
