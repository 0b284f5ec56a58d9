"""Pins: what the user fixed stays, and what cannot be kept says by how much."""

import pytest

import tdsl as td


@td.op
def softmax(x: td.f32["M", "N"]):
    i, j = td.vars("i j")
    top, e, total, out = (td.Func(n) for n in ("top", "e", "total", "out"))
    top[i] = td.max(x[i, j], axis=j)
    e[i, j] = td.exp(x[i, j] - top[i])
    total[i] = td.sum(e[i, j], axis=j)
    out[i, j] = e[i, j] / total[i]
    return out


def test_a_func_can_be_kept_far_or_near() -> None:
    free = softmax.autoschedule(M=512, N=512)
    assert free.prediction().home("e").name == "L1"
    far = softmax.autoschedule(M=512, N=512, pin={"e": "memory"})
    assert "e" in {s.func.name for s in far.prediction().nests.roots()}
    near = softmax.autoschedule(M=512, N=512, pin={("e", "total"): "l1"})
    assert str(near) == str(free)


def test_a_func_can_be_inlined() -> None:
    s = softmax.autoschedule(M=64, N=64, pin={"e": "inline"})
    assert 's["e"].inline()' in str(s)


def test_what_does_not_fit_says_by_how_much() -> None:
    capacity = td.Target("cpu").capacity("L1")
    assert capacity is not None
    n = capacity  # a row is four times as large as the cache
    with pytest.raises(td.ScheduleError, match=rf"needs {4 * n} bytes, {3 * n} too many"):
        softmax.autoschedule(M=64, N=n, pin={"e": "L1"})


@pytest.mark.parametrize(
    "pin, message",
    [
        ({"f": "L1"}, r"no func 'f' to pin"),
        ({("e", "top"): "L1"}, r"'top' does not read 'e'"),
        ({("e", "total"): "L1", ("e", "out"): "memory"}, r"pinned to L1 by .* and to memory by"),
        ({"total": "inline"}, r"inline"),
    ],
)
def test_pins_that_make_no_sense_are_refused(pin: object, message: str) -> None:
    with pytest.raises(td.ScheduleError, match=message):
        softmax.autoschedule(M=64, N=64, pin=pin)


def test_other_mistakes_in_pins() -> None:
    with pytest.raises(td.TargetError, match="no level 'L9'"):
        softmax.autoschedule(M=64, N=64, pin={"e": "L9"})
    with pytest.raises(td.TypeMismatch, match="pin= says for funcs"):
        softmax.autoschedule(M=64, N=64, pin="e")
