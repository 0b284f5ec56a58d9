"""Samples of PyTorch's operators judge the backend "tdsl" of `torch.compile`.

`python -m tests.foreign.torch_opinfo` runs all of them, and `python -m tests.foreign.torch_models` models.
"""

import pytest

pytest.importorskip("torch", reason="torch is an optional package")
pytest.importorskip("expecttest", reason="torch's samples of its operators need expecttest")

from tests.foreign.torch_opinfo import cases, run

OPERATORS = (
    "add",
    "div.floor_rounding",
    "softmax",
    "cumsum",
    "gather",
    "index_put",
    "nn.functional.avg_pool2d",
)


@pytest.mark.parametrize("name", OPERATORS)
def test_torch_accepts_what_the_backend_computes(name):
    outcomes = [run(case) for case in cases([name], samples=1)]
    assert outcomes
    assert {o.kind for o in outcomes} == {"complete"}, outcomes
