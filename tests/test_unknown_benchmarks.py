"""The cases of the groups `unknown`: tables that are complete, programs that compute what NumPy computes."""

import numpy as np
import pytest

from benchmarks import cases, unknown, worker
from benchmarks.unknown import contractions, unseen
from benchmarks.unknown.npbench import kernel, physics, triangular


def test_no_two_cases_have_one_name():
    assert len({case.name for case in unknown.CASES}) == len(unknown.CASES)
    assert all(cases.find(case.name) is case for case in unknown.CASES)


def test_each_layout_of_a_batched_product_is_compared():
    compared = [c for c in contractions.CASES if c.group == contractions.GROUP and c.name.startswith("bmm")]
    assert len({case.title.split()[0] for case in compared}) == 8
    assert {case.title.split()[1] for case in compared} == {"b1", "b16", "b512"}


@pytest.mark.parametrize(
    "subscripts, sizes",
    [("aebf,dfce->abcd", "a3 b2 c4 d3 e5 f2"), ("ij,ji->", "i5 j4"), ("abcd->acbd", "a2 b3 c4 d5")],
)
@pytest.mark.parametrize("peer", ["tdsl", "numpy"])
def test_contractions_are_right(subscripts, sizes, peer):
    case = contractions.case("some", subscripts, sizes, "f64")
    assert worker.prepare(case, peer)[0]["right"]


def test_a_program_of_two_steps_is_the_einsum_that_its_peers_compute():
    sizes = "i3 j4 k5 l2"
    case = contractions.case("some", "ijk,kjl,li->ij", sizes, "f64", program=contractions.two_steps)
    assert worker.prepare(case, "tdsl")[0]["right"]
    assert worker.prepare(case, "numpy")[0]["right"]


@pytest.mark.parametrize("words", ["ij-jk-ik", "ji-kj-ki"])
def test_batched_products_by_matmul_are_right(words):
    left, right, result = (f"b{word}" for word in words.split("-"))
    case = contractions.case("bmm", f"{left},{right}->{result}", "b3 i4 j2 k5", "f32")
    assert worker.prepare(case, "numpy-matmul")[0]["right"]


def test_a_kernel_has_its_program_numpy_and_numba_as_peers():
    for case in unknown.CASES:
        if case.group.endswith("npbench"):
            assert {"tdsl", "numpy", "numba", "numba-parallel"} <= set(case.peers)
            assert case.title


@pytest.mark.parametrize("peer", ["tdsl", "numpy"])
def test_a_kernel_of_several_results_is_right(peer):
    def inputs(rng):
        return (rng.random((7, 5)),)

    case = kernel.case("small", triangular.gramschmidt, inputs, triangular.numpy_gramschmidt, lambda a: a)
    assert worker.prepare(case, peer)[0]["right"]


def test_a_kernel_with_one_wrong_result_of_several_is_wrong():
    def swapped(a):
        q, r = triangular.numpy_gramschmidt(a)
        return q, r + 1

    arrays = (np.random.default_rng(1).random((7, 5)),)
    is_right = kernel.agrees_with(triangular.numpy_gramschmidt)
    assert is_right(triangular.numpy_gramschmidt(*arrays), arrays)
    assert not is_right(swapped(*arrays), arrays)
    assert not is_right(arrays, arrays)


def test_integers_agree_only_if_they_are_equal():
    (graph,) = physics.distances(np.random.default_rng(1))
    is_right = kernel.agrees_with(lambda graph: graph)
    assert is_right(graph, (graph,))
    assert not is_right(graph + (np.arange(200) == 3), (graph,))


def test_unseen_cases_are_in_groups_of_their_own():
    groups = {case.group for case in unseen.CASES}
    assert groups == {"unseen-contractions", "unseen-npbench"}
    assert not groups & {case.group for case in unknown.CASES if case not in unseen.CASES}
