"""Blocks of networks in plain NumPy: as groups of calls, and as one program that a search schedules."""

import numpy as np
import pytest

import tdsl as td


def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def layer_norm(x, gain, shift):
    left = x - x.mean(axis=-1, keepdims=True)
    return left / np.sqrt(x.var(axis=-1, keepdims=True) + np.float32(1e-5)) * gain + shift


def rms_norm(x, gain):
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + np.float32(1e-6)) * gain


def attention(q, k, v):
    """Of several heads, and causal."""
    score = q @ k.mT / np.float32(4)
    rows = np.arange(score.shape[-1])
    return softmax(np.where(rows <= rows[:, None], score, np.float32(-np.inf))) @ v


def cross_entropy(x, labels):
    top = x.max(axis=1)
    total = np.log(np.exp(x - top[:, None]).sum(axis=1)) + top
    return (total - x[np.arange(len(x)), labels]).mean()


ROWS = (37, 64)
BLOCKS = {
    "softmax": (softmax, ROWS),
    "layer norm": (layer_norm, ROWS, 64, 64),
    "rms norm": (rms_norm, ROWS, 64),
    "attention": (attention, (2, 31, 16), (2, 31, 16), (2, 31, 16)),
}


def block_and_inputs(name, rng):
    function, *shapes = BLOCKS[name]
    return function, [rng.standard_normal(s, dtype=np.float32) for s in shapes]


@pytest.mark.parametrize("name", BLOCKS)
def test_fused_groups_equal_numpy(name, rng):
    function, arrays = block_and_inputs(name, rng)
    np.testing.assert_allclose(td.Graph(function)(*arrays), function(*arrays), 1e-4, 1e-5)


@pytest.mark.parametrize("name", BLOCKS)
def test_the_search_compares_the_graph_as_one_program_with_its_calls(name, rng):
    function, arrays = block_and_inputs(name, rng)
    schedule = td.Graph(function).autoschedule(*arrays)
    run = td.compile(schedule)
    masks = [np.tri(31, dtype=bool)] if function is attention else []
    np.testing.assert_allclose(run(*arrays, *masks), function(*arrays), 1e-4, 1e-5)
    assert "taken: calls apart" in schedule.explain()


def test_a_softmax_in_one_nest_has_no_intermediate_arrays(rng):
    """The whole of a softmax is one nest, which reads its input once a pass and writes once."""
    schedule = td.Graph(softmax).autoschedule(td.f32[1024, 1024])
    assert schedule.traffic("memory") <= 1.01 * 2 * 4 * 1024**2


def test_the_same_blocks_on_a_gpu(rng):
    function, arrays = block_and_inputs("rms norm", rng)
    kernel = td.compile(td.Graph(function).autoschedule(*arrays, target="cuda"))
    np.testing.assert_allclose(td.emulate(kernel)(*arrays), function(*arrays), 1e-4, 1e-5)


def test_labels_choose_elements(rng):
    x, labels = rng.standard_normal((9, 5), dtype=np.float32), rng.integers(-5, 5, 9)
    np.testing.assert_allclose(td.Graph(cross_entropy)(x, labels), cross_entropy(x, labels), 1e-5)
