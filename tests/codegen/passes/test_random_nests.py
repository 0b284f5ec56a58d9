"""Every pass alone, and all in order, keep the meaning of random kernels."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tdsl.codegen.ir.loops import Kernel
from tdsl.codegen.passes import PASSES
from tdsl.codegen.passes.expand_padding import expand_padding
from tdsl.codegen.passes.simplify_loops import simplify_loops
from tests.codegen.passes.nests import Nests, assert_same_results

seeds = st.integers(0, 2**32)
few = settings(max_examples=max(settings.default.max_examples // 4, 5))


def random_kernel(seed: int, pads: bool = False) -> Kernel:
    return Nests(Random(seed), pads).kernel()


@pytest.mark.parametrize("step", dict.fromkeys(PASSES), ids=lambda f: f.__name__)
@few
@given(seed=seeds)
def test_each_pass_preserves_results(step, seed):
    kernel = random_kernel(seed)
    assert_same_results(kernel, step(kernel))


@given(seed=seeds, n=st.sampled_from([1, 4, 9]))
def test_all_passes_preserve_results(seed, n):
    kernel = random_kernel(seed)
    after = kernel
    for step in PASSES:
        after = step(after)
    assert_same_results(kernel, after, n)


@few
@given(seed=seeds)
def test_expand_padding_commutes_with_simplify(seed):
    kernel = random_kernel(seed, pads=True)
    after = kernel
    for step in PASSES:
        after = step(after)
    assert_same_results(expand_padding(kernel), after)


@few
@given(seed=seeds)
def test_simplify_loops_is_idempotent(seed):
    once = simplify_loops(random_kernel(seed))
    assert_same_results(once, simplify_loops(once))
