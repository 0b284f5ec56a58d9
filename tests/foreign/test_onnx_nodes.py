"""ONNX's tests of operators judge `td.onnx.load`; `python -m tests.foreign.onnx_nodes` runs all of them."""

import pytest

from tests.foreign.onnx_nodes import cases, judge

MODULES = ("argmax", "batch_normalization", "gather", "pow", "qlinearmatmul", "reshape", "split", "trilu")
CASES = {case.name: case for case in cases(*MODULES)}


@pytest.mark.parametrize("name", sorted(CASES)[::4])
def test_onnx_accepts_what_graphs_compute(name):
    verdict = judge(CASES[name])
    assert verdict.outcome in ("passed", "known"), verdict.reason


def test_no_cases_of_onnx_are_lost():
    assert len(CASES) >= 88
