"""Copies of what is read beyond the edges of a tensor."""

import numpy as np
import pytest

import tdsl as td

i, j, r, s = td.vars("i j r s")
MODES = ("constant", "edge", "reflect", "symmetric", "wrap")


def window(mode, step=1):
    """Sums of windows of 3 x 3 around every `step`-th point."""
    a, w = td.Tensor("a", ("H", "W"), td.f32), td.Tensor("w", (3, 3), td.f32)
    padded = td.pad(a, mode=mode)
    out = td.Func("out", shape=((a.shape[0] + step - 1) // step, (a.shape[1] + step - 1) // step))
    out[i, j] = td.sum(padded[step * i + r - 1, step * j + s - 1] * w[r, s], axis=(r, s))
    return out


def expected(a, w, mode, step=1):
    around = np.pad(a, 1, mode=mode)
    views = np.lib.stride_tricks.sliding_window_view(around, (3, 3))[::step, ::step]
    return np.einsum("ijrs,rs->ij", views, w)


@pytest.mark.in_part(15)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("step", [1, 2])
@pytest.mark.parametrize("shape", [(5, 7), (1, 1), (2, 20)], ids=str)
def test_copy_of_a_padding_holds_its_values(rng, mode, step, shape):
    if mode == "reflect" and 1 in shape:
        shape = (2, 2)
    a, w = (rng.integers(-4, 5, n).astype(np.float32) for n in (shape, (3, 3)))
    schedule = td.Schedule(window(mode, step))
    schedule.cache_read("a", "out", padded=True).compute_root()
    np.testing.assert_array_equal(td.compile(schedule)(a, w), expected(a, w, mode, step))


def test_readers_of_the_copy_need_no_tests():
    schedule = td.Schedule(window("constant"), sizes={"H": 5, "W": 7})
    schedule.cache_read("a", "out", padded=True)
    text = str(td.compile(schedule, target="python").loops())
    assert text.count("where(") == 1
    assert "a_cache[out_i + out_r, out_j + out_s]" in text


@pytest.mark.parametrize("pack", [None, {1: 4}])
def test_copy_inside_a_loop_and_in_panels(rng, pack):
    a, w = (rng.integers(-4, 5, n).astype(np.float32) for n in ((6, 9), (3, 3)))
    schedule = td.Schedule(window("edge"))
    copy = schedule.cache_read("a", "out", at=i, pack=pack, padded=True)
    copy.vectorize(copy.loops[-1], 4)
    np.testing.assert_array_equal(td.compile(schedule)(a, w), expected(a, w, "edge"))


def test_other_reads_of_the_tensor_stay(rng):
    a = td.Tensor("a", ("N",), td.f32)
    padded, out = td.pad(a), td.Func("out")
    out[i] = a[i] - padded[i - 1]
    schedule = td.Schedule(out)
    schedule.cache_read("a", "out", padded=True)
    x = rng.integers(-4, 5, 9).astype(np.float32)
    np.testing.assert_array_equal(td.compile(schedule)(x), np.diff(x, prepend=np.float32(0)))


def test_directive_is_stored_and_replayed():
    schedule = td.Schedule(window("constant"))
    schedule.cache_read("a", "out", padded=True)
    again = td.Schedule(window("constant")).replay(schedule.to_json())
    assert str(again) == str(schedule) == 's.cache_read("a", s["out"], padded=True)'
