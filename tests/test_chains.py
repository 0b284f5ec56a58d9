"""The operators of the chains: tdsl, NumPy and PyTorch mean the same by them."""

import numpy as np
import pytest

import tdsl as td
from benchmarks.chains import numpy_operators, tdsl_operators
from benchmarks.chains.table import CHAINS

X, ROWS, MATRIX = (2, 3, 6, 5), (2, 3, 6), (4, 6)
PICTURE, CHANNELS = (2, 8, 7, 9), (8,)
OPERATORS = {
    **dict.fromkeys(("exp", "tanh", "relu", "relu6", "gelu", "silu", "softmax", "causal"), (X,)),
    **dict.fromkeys(("row_max", "row_sum", "column_sums"), (X,)),
    **dict.fromkeys(("minus_rows", "over_rows", "times_steps"), (X, ROWS)),
    **dict.fromkeys(("gate", "gelu_gate"), (PICTURE,)),
    "layer_norm": (MATRIX, (6,), (6,)), "rms_norm": (MATRIX,),
    "layer_norm2d": (PICTURE, CHANNELS, CHANNELS), "scale_channels": (PICTURE, CHANNELS),
    "decayed": ((2, 4, 4), (2, 4, 3), (2, 4, 3)), "left_over": ((2, 4, 3), (2, 4, 3)),
}  # fmt: skip
WITH_NUMBERS = {
    "any_above": ((X,), (0.4,)),
    "max_pool": ((PICTURE,), (3, 2)),
    "pixel_shuffle": ((PICTURE,), (2,)),
    "conv": ((PICTURE, (4, 8, 3, 3)), (2,)),
    "depthwise": ((PICTURE, (8, 5, 5)), (2,)),
}
CALLS = {name: (shapes, ()) for name, shapes in OPERATORS.items()} | WITH_NUMBERS


def arrays_of(shapes):
    rng = np.random.default_rng(1)
    return [rng.random(s, dtype=np.float32) * 4 - 2 for s in shapes]


@pytest.mark.parametrize("name", CALLS)
def test_operators_equal_numpy(name):
    shapes, numbers = CALLS[name]
    arrays = arrays_of(shapes)
    graph = td.Graph(lambda *a: getattr(tdsl_operators, name)(*a, *numbers))
    expected = getattr(numpy_operators, name)(*arrays, *numbers)
    np.testing.assert_allclose(graph(*arrays), expected, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("name", CALLS)
def test_pytorch_operators_equal_numpy(name):
    torch = pytest.importorskip("torch")
    from benchmarks.chains import torch_operators

    shapes, numbers = CALLS[name]
    arrays = arrays_of(shapes)
    result = getattr(torch_operators, name)(*map(torch.from_numpy, arrays), *numbers)
    expected = getattr(numpy_operators, name)(*arrays, *numbers)
    np.testing.assert_allclose(result.numpy(), expected, rtol=2e-5, atol=2e-6)


def test_concat_joins_channels():
    parts = arrays_of([PICTURE] * 3)
    graph = td.Graph(lambda *a: tdsl_operators.concat(a))
    np.testing.assert_array_equal(graph(*parts), np.concatenate(parts, 1))


def test_every_row_of_the_table_is_there():
    rows = {int(chain.name.split("-")[1]) for chain in CHAINS}
    assert rows == {1, 3, 5, 7, 8, 10, 12, 14, 15, 16, 17, 22, 23, 25, 27, 28, 30, 31, 35, 36, 38, 40,
                    41, 42, 43}  # fmt: skip
    assert len({chain.name for chain in CHAINS}) == len(CHAINS)


def test_a_chain_of_many_results_is_judged_by_all():
    chain = next(c for c in CHAINS if c.name == "chain-38-state")
    arrays = chain.inputs()
    right = chain.expected(*(a.astype(np.float64) for a in arrays))
    assert chain.is_right(right.astype(np.float32), arrays)
    assert not chain.is_right((right + 1e-2).astype(np.float32), arrays)
