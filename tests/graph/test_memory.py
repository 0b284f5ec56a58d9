"""Places of results: never two at once in one place, and few bytes in all."""

from hypothesis import given
from hypothesis import strategies as st

from tdsl.graph.memory import Need, place

needs = st.builds(
    lambda nbytes, first, more: Need(nbytes, first, first + more),
    st.integers(0, 1000),
    st.integers(0, 12),
    st.integers(0, 5),
)


@given(st.lists(needs, max_size=20))
def test_what_is_needed_at_one_time_lies_apart(listed):
    made = place(dict(enumerate(listed)))
    for a, need in enumerate(listed):
        assert made.offsets[a] % 64 == 0
        assert made.offsets[a] + need.nbytes <= made.peak
        for b, other in enumerate(listed[:a]):
            if need.first <= other.last and other.first <= need.last:
                lo, hi = sorted([(made.offsets[a], need.nbytes), (made.offsets[b], other.nbytes)])
                assert lo[0] + lo[1] <= hi[0] or not (lo[1] and hi[1])
    assert made.least <= made.peak <= made.apart


def test_a_chain_takes_the_memory_of_two_results():
    made = place({n: Need(1000, n, n + 1) for n in range(10)})
    assert (made.peak, made.least, made.apart) == (2048, 2048, 10240)


def test_nothing_takes_no_memory():
    assert place({}).peak == 0
