"""Pins: what the user fixed stays, and what cannot be kept says by how much."""

import json
import re

import numpy as np
import pytest

import tdsl as td
from tdsl.tilegraph.pins import stores
from tests.tilegraph.operators import attention, softmax

LONG = {"Q": 1024, "S": 2048, "D": 64}


def test_a_func_can_be_pinned_to_memory_or_a_cache() -> None:
    free = softmax.autoschedule(M=512, N=512)
    assert free.prediction().home("e").name == "L1"
    far = softmax.autoschedule(M=512, N=512, pin={"e": "memory"})
    assert "e" in {s.func.name for s in far.prediction().nests.roots()}
    cached = softmax.autoschedule(M=512, N=512, pin={("e", "total"): "l1"})
    assert str(cached) == str(free)


def test_a_func_can_be_inlined() -> None:
    s = softmax.autoschedule(M=64, N=64, pin={"e": "inline"})
    assert 's["e"].inline()' in str(s)


@td.op
def of_exp(x: td.f32["N", "M"], w: td.f32["M", "K"]):
    i, j, k = td.vars("i j k")
    p, y = td.Func("p"), td.Func("y")
    p[i, j] = td.exp(x[i, j])
    y[i, k] = td.sum(p[i, j] * w[j, k], axis=j)
    return y


@pytest.mark.parametrize("op, sizes", [(of_exp, {"N": 500, "M": 600, "K": 700}), (attention, LONG)])
def test_an_inlined_func_is_stored_nowhere(op: td.Operator, sizes: dict[str, int]) -> None:
    s = op.autoschedule(**sizes, pin={"p": "inline"})
    assert not s.prediction().state.program.has_func("p")


@pytest.mark.in_part(1)
@pytest.mark.parametrize("name, level", [("top", "L1"), ("total", "registers")])
def test_what_one_pass_over_tiles_keeps_counts_as_the_func(name: str, level: str) -> None:
    with pytest.raises(td.ScheduleError, match=rf"'{name}' cannot be kept in {level}") as caught:
        attention.autoschedule(**LONG, pin={name: level})
    assert_hint_holds(attention, LONG, caught.value.hint)


def test_a_copy_that_is_read_in_place_of_a_func_counts_as_the_func() -> None:
    s = attention.autoschedule(**LONG)
    assert stores(s, "score") == {"score", "score_out"}


def test_the_func_that_no_schedule_keeps_is_blamed_and_the_pins_of_the_hint_hold() -> None:
    with pytest.raises(td.ScheduleError, match=r"'score' .* in L1: .*; nor can 'top' in registers") as caught:
        attention.autoschedule(**LONG, pin={"p": "L2", "score": "L1", "top": "registers"})
    assert_hint_holds(attention, LONG, caught.value.hint)


def test_a_level_of_a_hint_is_one_at_which_the_func_is_kept() -> None:
    with pytest.raises(td.ScheduleError, match=r"'p' cannot be .* needs 8192 bytes") as caught:
        attention.autoschedule(**LONG, pin={"p": "registers"})
    assert_hint_holds(attention, LONG, caught.value.hint)


def test_the_bytes_of_a_func_in_registers_are_its_own() -> None:
    @td.op
    def parts(x: td.f32["N", "M"]):
        i, j = td.vars("i j")
        a, out = td.Func("a"), td.Func("out")
        a[i] = td.sum(x[i, j], axis=j)
        out[i, j] = x[i, j] / a[i]
        return out

    with pytest.raises(td.ScheduleError, match=r"'a' .* in L1 with 4 bytes; .* the compiler") as caught:
        parts.autoschedule(N=2000, M=3000, pin={"a": "registers"})
    assert_hint_holds(parts, {"N": 2000, "M": 3000}, caught.value.hint)


def assert_hint_holds(op: td.Operator, sizes: dict[str, int], hint: str) -> None:
    (text,) = re.findall(r"pin=(\{.*?\}) is the nearest that holds", hint)
    op.autoschedule(**sizes, pin=json.loads(text))


def test_a_func_too_large_for_its_pin_reports_the_excess() -> None:
    capacity = td.Target("cpu").capacity("L1")
    assert capacity is not None
    n = capacity  # a row is four times as large as the cache
    wrong = rf"(?s)needs {4 * n} bytes, {3 * n} too many.*hint: .* is the nearest that holds"
    with pytest.raises(td.ScheduleError, match=wrong):
        softmax.autoschedule(M=64, N=n, pin={"e": "L1"})


def test_pins_that_fit_only_separately_report_the_excess() -> None:
    capacity = td.Target("cpu").capacity("L1")
    assert capacity is not None
    n = capacity // 6  # a row of each is two thirds of the cache

    @td.op
    def two(x: td.f32["M", "N"]):
        i, j = td.vars("i j")
        a, b, ta, tb, out = (td.Func(m) for m in ("a", "b", "ta", "tb", "out"))
        a[i, j] = td.exp(x[i, j])
        ta[i] = td.sum(a[i, j], axis=j)
        b[i, j] = td.exp(a[i, j] / ta[i])
        tb[i] = td.sum(b[i, j], axis=j)
        out[i, j] = b[i, j] / tb[i] + a[i, j]
        return out

    wrong = rf"(?s)needs {8 * n} bytes of it, [ab], {8 * n - capacity} too many"
    with pytest.raises(td.ScheduleError, match=wrong):
        two.autoschedule(M=64, N=n, pin={"a": "L1", "b": "L1"})


def test_a_pin_that_does_not_fit_with_other_reads_reports_the_excess() -> None:
    capacity = td.Target("cpu").capacity("L1")
    assert capacity is not None
    with pytest.raises(td.ScheduleError) as caught:
        weighted.autoschedule(M=256, K=1024, N=256, pin={"w": "L1"})
    text = str(caught.value)
    needed, too_many = map(int, re.findall(r"needs (\d+) bytes while it is used, (\d+) too many", text)[0])
    assert needed > 4 * 1024  # a row of it, and all of v
    assert too_many == needed - capacity
    nearest = re.findall(r"which has it in (\w+)", text)[0]
    assert f'pin={{"w": "{nearest}"}} is the nearest that holds' in text
    weighted.autoschedule(M=256, K=1024, N=256, pin={"w": nearest})


def test_registers_of_a_gpu_are_those_of_a_thread() -> None:
    with pytest.raises(td.ScheduleError, match=r"w' cannot be kept in registers: .* too many"):
        weighted.autoschedule(M=256, K=1024, N=256, target="cuda", pin={"w": "registers"})


def test_what_other_threads_read_has_no_place_in_registers_however_small() -> None:
    with pytest.raises(td.ScheduleError, match=r"while it is used, \d+ too many"):
        weighted.autoschedule(M=512, K=64, N=512, target="cuda", pin={"w": "registers"})


def test_pins_that_contradict_each_other_by_what_they_read_name_the_readers() -> None:
    with pytest.raises(
        td.ScheduleError,
        match=r"(?s)'e' cannot be kept in L1: 'total' reads it before, and 'out' after all of 'total'",
    ):
        softmax.autoschedule(M=4096, N=512, pin={"e": "L1", "total": "memory"})


@td.op
def weighted(p: td.f32["M", "K"], v: td.f32["K", "N"]):
    i, k, j = td.vars("i k j")
    w, out = td.Func("w"), td.Func("out")
    w[i, k] = td.exp(p[i, k])
    out[i, j] = td.sum(w[i, k] * v[k, j], axis=k) / 2
    return out


def test_an_edge_to_a_reduction_in_an_expression_is_one_to_its_func() -> None:
    whole = weighted.autoschedule(M=64, K=64, N=64, pin={("w", "out"): "memory"})
    split = weighted.autoschedule(M=64, K=64, N=64, pin={("w", "out_sum"): "memory"})
    assert str(whole) == str(split)
    assert "w" in {s.func.name for s in whole.prediction().nests.roots()}


@pytest.mark.parametrize(
    "pin, message",
    [
        ({"f": "L1"}, r"no func 'f' to pin"),
        ({("e", "top"): "L1"}, r"'top' does not read 'e'"),
        ({("e", "total"): "L1", ("e", "out"): "memory"}, r"pinned to L1 by .* and to memory by"),
        (
            {"total": "inline"},
            r"(?s)pinned inline: 'total' is a reduction.*hint: pin it to a level.*'L1'",
        ),
        ({"out": "L1"}, r"'out' is a result"),
        ({"x": "L1"}, r"'x' is an argument"),
        ({("out", "e"): "L1"}, r"(?s)'e' does not read 'out'.*read by no func"),
    ],
)
def test_pins_that_make_no_sense_are_refused(pin: object, message: str) -> None:
    with pytest.raises(td.ScheduleError, match=message):
        softmax.autoschedule(M=64, N=64, pin=pin)


def test_other_mistakes_in_pins() -> None:
    with pytest.raises(td.TargetError, match="no level 'L9'"):
        softmax.autoschedule(M=64, N=64, pin={"e": "L9"})
    with pytest.raises(td.TargetError, match=r"(?s)no level None.*L1.*inline"):
        softmax.autoschedule(M=64, N=64, pin={"e": None})
    with pytest.raises(td.TypeMismatch, match="pin= says for funcs"):
        softmax.autoschedule(M=64, N=64, pin="e")
    for key in ((), ("e", "total", "out")):
        with pytest.raises(td.TypeMismatch, match="a pin is for a func or for an edge"):
            softmax.autoschedule(M=64, N=64, pin={key: "L1"})


@pytest.mark.parametrize("pins", [("e",), ("top", "total")])
def test_a_func_of_a_gpu_can_be_kept_in_global_memory(pins: tuple[str, ...]) -> None:
    x = np.random.default_rng(0).standard_normal((6, 70)).astype(np.float32)
    s = softmax.autoschedule(x, target="cuda", pin=dict.fromkeys(pins, "global"))
    assert {*pins} < {r.func.name for r in s.prediction().nests.roots()}
    np.testing.assert_allclose(td.emulate(td.compile(s))(x), softmax(x), rtol=1e-5)


def test_funcs_computed_in_tiles_are_not_materialised() -> None:
    s = attention.autoschedule(Q=64, S=128, D=32, target="cuda", pin={"top": "global"})
    assert "online" not in str(s)
    assert "top" in {r.func.name for r in s.prediction().nests.roots()}


def test_a_scan_in_a_separate_kernel_is_explained() -> None:
    @td.op
    def scanned(x: td.f32["B", "T"]):
        b, t = td.vars("b t")
        o, z, r = td.Func("o"), td.Func("z"), td.range("r", 1, x.shape[1])
        o[b, t] = x[b, t]
        o[b, r] = o[b, r - 1] * 0.5 + x[b, r]
        z[b, t] = td.tanh(o[b, t])
        return z

    with pytest.raises(td.ScheduleError, match="what has updates gets a kernel of its own"):
        scanned.autoschedule(B=4, T=8, target="cuda", pin={"o": "shared"})


def test_a_read_out_of_bounds_is_reported_before_an_impossible_pin() -> None:
    @td.op
    def beyond(x: td.f32[8]):
        i, r = td.vars("i"), td.range("r", 0, 4)
        total, out = td.Func("total"), td.Func("out", shape=8)
        total[i] = td.sum(x[i + r], axis=r)
        out[i] = total[i]
        return out

    with pytest.raises(td.IndexBoundError, match="'x' is read at 10"):
        beyond.autoschedule(pin={"total": "inline"})
