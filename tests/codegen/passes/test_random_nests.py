"""Every pass alone, and all in order, keep the meaning of random kernels."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tdsl.codegen.ir.loops import Kernel
from tdsl.codegen.passes import PASSES
from tdsl.codegen.passes.expand_calls import expand_calls
from tdsl.codegen.passes.simplify_loops import simplify_loops
from tests.codegen.passes.nests import Nests, same

seeds = st.integers(0, 2**32)
few = settings(max_examples=max(settings.default.max_examples // 4, 5))


def drawn(seed: int, pads: bool = False) -> Kernel:
    return Nests(Random(seed), pads).kernel()


@pytest.mark.parametrize("step", dict.fromkeys(PASSES), ids=lambda f: f.__name__)
@few
@given(seed=seeds)
def test_a_pass_keeps_the_meaning(step, seed):
    kernel = drawn(seed)
    same(kernel, step(kernel))


@given(seed=seeds, n=st.sampled_from([1, 4, 9]))
def test_all_passes_keep_the_meaning(seed, n):
    kernel = drawn(seed)
    after = kernel
    for step in PASSES:
        after = step(after)
    same(kernel, after, n)


@few
@given(seed=seeds)
def test_padding_is_expanded_the_same_way_early_and_late(seed):
    kernel = drawn(seed, pads=True)
    after = kernel
    for step in PASSES:
        after = step(after)
    same(expand_calls(kernel), after)


@few
@given(seed=seeds)
def test_simplified_loops_stay_as_they_are(seed):
    once = simplify_loops(drawn(seed))
    same(once, simplify_loops(once))
