"""Offsets of results: results that are live at once do not overlap, and few bytes in all."""

from hypothesis import given
from hypothesis import strategies as st

from tdsl.graph.memory import LiveBuffer, assign_offsets

live_buffers = st.builds(
    lambda nbytes, first, more: LiveBuffer(nbytes, first, first + more),
    st.integers(0, 1000),
    st.integers(0, 12),
    st.integers(0, 5),
)


@given(st.lists(live_buffers, max_size=20))
def test_buffers_live_at_the_same_time_do_not_overlap(buffers):
    plan = assign_offsets(dict(enumerate(buffers)))
    for a, buffer in enumerate(buffers):
        assert plan.offsets[a] % 64 == 0
        assert plan.offsets[a] + buffer.nbytes <= plan.peak
        for b, other in enumerate(buffers[:a]):
            if buffer.first <= other.last and other.first <= buffer.last:
                lo, hi = sorted([(plan.offsets[a], buffer.nbytes), (plan.offsets[b], other.nbytes)])
                assert lo[0] + lo[1] <= hi[0] or not (lo[1] and hi[1])
    assert plan.lower_bound <= plan.peak <= plan.unshared_bytes


def test_a_chain_takes_the_memory_of_two_results():
    plan = assign_offsets({n: LiveBuffer(1000, n, n + 1) for n in range(10)})
    assert (plan.peak, plan.lower_bound, plan.unshared_bytes) == (2048, 2048, 10240)


def test_no_buffers_take_no_memory():
    assert assign_offsets({}).peak == 0
