"""Memory of directives that does not fit is an error that names the func, its bytes and the limit."""

import numpy as np
import pytest

import tdsl as td

i, j = td.vars("i j")


def _chain(n=64):
    a, p, q = td.Tensor("a", (n, n), td.f32), td.Func("p"), td.Func("q")
    p[i, j] = td.exp(a[i, j])
    q[i, j] = p[i, j] + p[i, n - 1 - j]
    return td.Schedule(q)


@pytest.mark.parametrize("scope", ["stack", "register"])
def test_a_large_func_does_not_fit_the_stack(scope):
    s = _chain(5000)
    s["p"].compute_root().set_scope(scope)
    with pytest.raises(td.ScheduleError, match=f"'p' takes 100 MB of {scope} memory, and 1.05 MB") as error:
        td.compile(s).loops()
    assert 'set_scope("heap")' in str(error.value)


@pytest.mark.parametrize("scope", ["stack", "register"])
def test_a_row_fits_the_stack(scope):
    s = _chain(5000)
    s["p"].compute_at("q", i).set_scope(scope)
    assert td.compile(s).loops()


def test_a_failed_allocation_names_the_func_and_its_bytes():
    s = _chain()
    s["p"].compute_root().align_storage(i, 10**9).align_storage(j, 10**9)
    with pytest.raises(MemoryError, match="'p', which takes 4e"):
        td.compile(s)(np.zeros((64, 64), np.float32))


def test_a_ring_that_is_too_small_is_reported_at_its_directive():
    s = _chain()
    s["p"].compute_root().fold_storage(i, 2)
    f = td.compile(s)
    with pytest.raises(td.ScheduleError, match="64 elements at a time, not 2") as error:
        f(np.zeros((64, 64), np.float32))
    assert 's["p"].compute_root().fold_storage(i, 2)' in str(error.value)
