"""What a predicate, or a bound that is data, reads is there before it is tested, or the place is refused."""

import random

import numpy as np
import pytest

import tdsl as td
from tdsl.errors import ScheduleError

N = 8
DATA = {
    "c": np.int32([1, -1, 1, 3, -1, 1, 1, -1]),
    "m": np.random.default_rng(0).integers(-3, 4, (N, N)).astype(np.int32),
}


def programs(kind):
    """Funcs f, and f0 and g, which the predicates of a range of f read."""
    i, j = td.vars("i j")
    c, m = td.Tensor("c", (N,), td.i32), td.Tensor("m", (N, N), td.i32)
    f0, g, f = td.Func("f0"), td.Func("g"), td.Func("f", shape=(N, N))
    f0[i] = c[i] * 2
    g[i, j] = m[i, j] + f0[j]
    if kind == "update":
        r, q = td.range("r", 1, N, where=lambda r: f0[r] > 0), td.range("q", 1, N)
        f[i, j] = i
        f[r, q] = f[r - 1, q] + 10
    elif kind == "two":
        r = td.range("r", 1, N, where=lambda r: (r < 5) & (f0[r] > 0))
        q = td.range("q", 1, N, where=lambda q: g[r, q] > 1)
        f[i, j] = i
        f[r, q] = f[r - 1, q] + g[r, q]
    elif kind == "free":
        q = td.range("q", 0, N, where=f0[i] > 0)
        f[i, j] = td.sum(m[i, q] * g[q, j], axis=q, dtype=td.i32)
    elif kind == "bound":
        q = td.range("q", 0, td.clip(f0[i], 0, N))
        f[i, j] = td.sum(m[i, q] * g[q, j], axis=q, dtype=td.i32)
    else:
        q = td.range("q", 0, N, where=lambda q: g[i, q] > 0)
        f[i, j] = td.sum(m[i, q] * g[q, j], axis=q, dtype=td.i32)
    return f


def run(what, target="python"):
    f = td.compile(what, target=target)
    return f(**{a.name: DATA[a.name] for a in f.signature.inputs})


@pytest.mark.in_part(30)
@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("kind", ["update", "two", "free", "bound", "both"])
def test_places_and_copies_respect_the_predicate_or_are_refused(kind, seed):
    draw, f = random.Random(seed), programs(kind)
    want, s = run(f), td.Schedule(f)
    last = len(s.state.program.func("f").definitions) - 1
    stage = s[f].update(0) if last else s[f]
    for _ in range(5):
        loops = list(s.state.plan("f").nests[last].names())
        name = draw.choice(["f0", "g"] if s.state.program.has_func("g") else ["f0"])
        try:
            match draw.randrange(6):
                case 0:
                    stage.split(draw.choice(loops), 4)
                case 1:
                    draw.shuffle(loops)
                    stage.reorder(*loops)
                case 2 | 3:
                    s[name].compute_at(stage, draw.choice(loops))
                case 4:
                    s[name].store_root()
                case 5:
                    s.cache_read(draw.choice(["c", "m", "f0", "g"]), stage, at=draw.choice(loops))
        except ScheduleError:
            pass
    try:
        got = [run(s, t) for t in ("python", "cpu")]
    except ScheduleError:
        return
    for result in got:
        np.testing.assert_array_equal(result, want)


def test_a_func_at_the_loop_of_the_predicate_that_reads_it_is_refused_with_places_that_serve():
    f = programs("two")
    s = td.Schedule(f)
    with pytest.raises(ScheduleError, match="predicate of 'f' that reads 'g' is tested at loop 'q'") as e:
        s["g"].compute_at(s[f].update(0), "q")
    assert "place it at loop 'r', or outside of all loops" in str(e.value)
    s["g"].compute_at(s[f].update(0), "r")
    np.testing.assert_array_equal(run(s), run(f))
    with pytest.raises(ScheduleError, match="reads 'f0' is tested at loop 'r'"):
        s["f0"].compute_at(s[f].update(0), "r")


def test_reordering_loops_around_a_place_is_refused_where_the_predicate_comes_first():
    f = programs("free")
    s = td.Schedule(f)
    s["g"].compute_at(f, "i")
    s["f0"].compute_at(f, "i")
    with pytest.raises(ScheduleError, match="is tested at loop 'i', before loop 'i' computes 'f0'"):
        s[f].reorder("q", "i")
    np.testing.assert_array_equal(run(s, "cpu"), run(f))


@pytest.mark.parametrize("at", ["i", "q"])
@pytest.mark.parametrize("bound", [False, True])
def test_a_copy_of_a_tensor_in_the_bound_of_its_loop_is_refused(bound, at):
    i = td.vars("i")
    c, f = td.Tensor("c", (N,), td.i32), td.Func("f", shape=N)
    where = None if bound else (lambda q: c[q] > 0)
    q = td.range("q", 0, td.clip(c[i] * 4, 0, N) if bound else N, where=where)
    f[i] = td.sum(c[q] * 2, axis=q, dtype=td.i32)
    s = td.Schedule(f)
    if at == "q":
        with pytest.raises(ScheduleError, match="place it at loop 'i', or outside of all loops"):
            s.cache_read(c, s[f], at=at)
        return
    s.cache_read(c, s[f], at=at)
    for target in ("python", "cpu"):
        np.testing.assert_array_equal(run(s, target), run(f))


def test_a_predicate_reads_shared_memory():
    """Local values of the block that stand behind it do not test it before its values are there."""
    i = td.vars("i")
    c, h, f0, f = td.Tensor("c", (N,), td.i32), td.Func("h"), td.Func("f0"), td.Func("f", shape=N)
    f0[i] = c[i] * 2
    h[i] = c[i] * 3 + 1
    q = td.range("q", 0, N, where=lambda q: f0[q] > 0)
    f[i] = td.sum(h[q], axis=q, dtype=td.i32)
    s = td.Schedule(f, target="cuda")
    block, thread = s[f].split(i, 4)
    s[f].bind(block, "blockIdx.x").bind(thread, "threadIdx.x")
    s[h].compute_at(f, q)
    s[f0].compute_at(f, q).set_scope("shared")
    got = td.emulate(td.compile(s, target="cuda"))(DATA["c"])
    np.testing.assert_array_equal(got, run(f))


def test_a_predicate_that_sizes_simplify_is_tested_after_its_reads():
    """r is 0: as numbers, the test depends on no loop that is inside of where f0 is computed."""
    i, j = td.vars("i j")
    f0, f, g = td.Func("f0", shape=1), td.Func("f", shape=(1, 7)), td.Func("g", shape=(1, 7))
    f0[i] = td.cast(i * 2, td.i32)
    f[i, j] = td.cast(i + j, td.i32)
    end = td.clip(j + 0, 0, 1)
    r = td.range("r", 0, end, where=lambda r: f0[td.clip(r, 0, 0)] <= f0[td.clip(j, 0, 0)])
    f[r, j] += f0[td.clip(r, 0, 0)] + 5
    g[i, j] = f[i, j] * 2 + 1
    s = td.Schedule(g)
    s[f0].compute_at(s[f].update(0), "j")
    for target in ("python", "cpu"):
        np.testing.assert_array_equal(run(s, target), run(g))


def test_mutually_exclusive_conditions_need_no_memory_for_their_values():
    i, m = td.vars("i m")
    f0, f = td.Func("f0", shape=3), td.Func("f", shape=3)
    f0[i] = i * 2
    m = td.range("m", td.clip(i, 0, 1), td.clip(i, 0, 1), where=lambda m: m != i)
    f[i] = td.min(f0[td.clip(m, 0, 0)], axis=m)
    s = td.Schedule(f)
    s[f0].compute_at(f, "i")
    for target in ("python", "cpu"):
        np.testing.assert_array_equal(run(s, target), run(f))
