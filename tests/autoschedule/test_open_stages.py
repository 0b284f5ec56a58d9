"""What directives leave open is filled in by the default; what they say stays, and `serial` closes it."""

import itertools

import numpy as np
import pytest

import tdsl as td
from tdsl.cost.predict import Prediction
from tdsl.machine.model import Machine
from tdsl.schedule.bind import bind_state
from tdsl.schedule.state import At, Root
from tdsl.tilegraph.default import complete, decide

i, j, k = td.vars("i j k")
WIDE = Machine(vector_bytes=64, threads=2, registers=32)


def products(n=256, count=2):
    arrays = [td.Tensor(f"a{t}", (n, n), td.f32) for t in range(count + 1)]
    funcs, left = [], arrays[0]
    for t in range(count):
        f = td.Func(f"p{t}")
        f[i, j] = td.sum(left[i, k] * arrays[t + 1][k, j], axis=k)
        funcs.append(f)
        left = f
    return funcs


def scaled(n=500):
    a, f = td.Tensor("a", (n, n), td.f32), td.Func("f")
    f[i, j] = a[i, j] * 2 + 1
    return f


def completed(s):
    return complete(bind_state(s.state, s.sizes), WIDE)


def loops(s, name, definition=0):
    return [(x.name, x.kind) for x in completed(s).plan(name).nests[definition].loops]


def kinds(s, name):
    return {kind for _, kind in loops(s, name)}


def test_a_place_leaves_tiles_vectors_and_threads_to_the_default():
    funcs = products()
    s = td.Schedule(funcs[-1])
    for f in funcs:
        s[f].compute_root()
    state, decisions = decide(bind_state(s.state, {}), WIDE)
    assert [d.how for d in decisions] == ["matmul", "matmul"]
    assert all(d.why[-1] == "by hand: the place" for d in decisions)
    assert all(isinstance(state.plan(f.name).place, Root) for f in funcs)


def test_a_place_keeps_a_func_out_of_its_reader():
    a = td.Tensor("a", (300, 500), td.f32)
    total, y = td.Func("total"), td.Func("y")
    total[i] = td.sum(a[i, j], axis=j)
    y[i, j] = a[i, j] / total[i]
    s = td.Schedule(y)
    assert isinstance(completed(s).plan("total").place, At)
    s[total].compute_root()
    assert isinstance(completed(s).plan("total").place, Root)
    assert {kind for _, kind in loops(s, "total")} >= {"parallel"}


@pytest.mark.parametrize("loop", [i, j])
def test_threads_stay_where_they_are_said_and_the_rest_is_by_default(loop):
    (f,) = products(count=1)
    s = td.Schedule(f)
    s[f].parallel(loop)
    assert decide(bind_state(s.state, {}), WIDE)[1][0].how == "matmul"
    threads = [name for name, kind in loops(s, "p0") if kind == "parallel"]
    assert len(threads) == 1
    assert threads[0].startswith(loop.name)


def test_vectors_by_hand_leave_threads_to_the_default():
    s = td.Schedule(scaled())
    s["f"].vectorize(j, 4)
    assert loops(s, "f") == [("i", "parallel"), ("j_o", "serial"), ("j_v", "vectorized")]


def test_loops_by_hand_keep_their_structure():
    s = td.Schedule(scaled())
    s["f"].tile((i, j), (20, 50))
    assert [name for name, _ in loops(s, "f")] == ["i_o", "j_o", "i_i", "j_i_o", "j_i_v"]
    assert loops(s, "f")[0] == ("i_o", "parallel")


def test_a_func_inside_loops_gets_vectors_and_no_threads():
    f = scaled()
    g = td.Func("g")
    g[i, j] = f[i, j] * f[i, 499 - j]
    s = td.Schedule(g)
    s[f].compute_at(g, i)
    assert loops(s, "f") == [("i", "serial"), ("j_o", "serial"), ("j_v", "vectorized")]
    assert loops(s, "g") == [("i", "parallel"), ("j_o", "serial"), ("j_v", "vectorized")]


def test_a_loop_at_which_a_func_is_computed_is_not_split():
    f = scaled()
    g = td.Func("g")
    g[i, j] = f[i, j] * 3
    s = td.Schedule(g)
    s[f].compute_at(g, j)
    assert [name for name, _ in loops(s, "g")] == ["i", "j"]


def test_serial_and_pin_close_what_stays_plain():
    for close in ("serial", "pin"):
        s = td.Schedule(scaled())
        getattr(s["f"], close)()
        assert kinds(s, "f") == {"serial"}
    s = td.Schedule(scaled())
    s["f"].serial(i)
    assert loops(s, "f") == [("i", "serial"), ("j_o", "serial"), ("j_v", "vectorized")]
    s = td.Schedule(scaled())
    s["f"].serial(j)
    assert loops(s, "f") == [("i", "parallel"), ("j", "serial")]


def test_results_are_those_without_directives(rng):
    arrays = [rng.standard_normal((256, 256), np.float32) for _ in range(3)]
    want = arrays[0] @ arrays[1] @ arrays[2]
    for directive in (
        lambda s, f: s[f].compute_root(),
        lambda s, f: s[f].parallel(i),
        lambda s, f: s[f].vectorize(j, 4),
        lambda s, f: s[f].split(i, 24),
        lambda s, f: s[f].serial(),
    ):
        funcs = products()
        s = td.Schedule(funcs[-1])
        for f in funcs:
            directive(s, f)
        np.testing.assert_allclose(td.compile(s)(*arrays), want, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("kind", ["scan", "update", "histogram"])
def test_dependent_loops_stay_serial(kind, rng):
    a = td.Tensor("a", (64, 300), td.f32)
    f, r = td.Func("f"), td.range("r", 1, 300)
    f[i, j] = a[i, j]
    if kind == "scan":
        f[i, r] += f[i, r - 1]
    elif kind == "update":
        f[i, r] = a[i, r] * f[i, r - 1]
    else:
        f[i, 0] += a[i, r]
    want = td.compile(f, target="python")
    s = td.Schedule(f)
    s[f].compute_root().update(0).reorder("i", "r")
    x = rng.standard_normal((64, 300), np.float32)
    np.testing.assert_allclose(td.compile(s)(x), want(x), rtol=1e-4, atol=1e-4)


GIVEN = {
    "two loops on threads": lambda s, f: s[f].parallel(i).parallel(j),
    "split rows": lambda s, f: s[f].split(i, 64),
    "unrolled rows": lambda s, f: s[f].unroll(i, 4),
    "a name": lambda s, f: s[f].rename(i, "ii"),
    "a name of terms": lambda s, f: s[f].rename(k, "z"),
    "tiles": lambda s, f: s[f].tile((i, j), (64, 64)),
    "split terms": lambda s, f: s[f].split(k, 64),
    "unrolled terms": lambda s, f: s[f].unroll(k, 4),
    "vectors": lambda s, f: s[f].vectorize(j, 16),
    "narrow vectors": lambda s, f: s[f].vectorize(j, 8),
    "uneven tiles": lambda s, f: s[f].tile((i, j, k), (50, 70, 90)),
    "an order": lambda s, f: s[f].reorder(j, i),
    "rows of a copy": lambda s, f: s.cache_write(f, at=i),
}


@pytest.mark.parametrize("directive", GIVEN.values(), ids=GIVEN)
def test_inside_of_given_loops_there_are_vectors_rows_and_threads(directive, rng):
    (f,) = products(200, count=1)
    s = td.Schedule(f)
    directive(s, f)
    state = completed(s)
    seen = {x.kind for name, plan in state.plans if name.startswith("p0") for x in plan.nests[0].loops}
    assert seen >= {"parallel", "vectorized"}
    x, y = (rng.standard_normal((200, 200), np.float32) for _ in range(2))
    np.testing.assert_allclose(td.compile(s)(x, y), x @ y, rtol=1e-3, atol=1e-3)


EVEN = {n: v for n, v in GIVEN.items() if n not in ("rows of a copy", "uneven tiles")}


@pytest.mark.parametrize("directive", EVEN.values(), ids=EVEN)
def test_the_price_of_what_directives_leave_open_is_near_that_without_directives(directive):
    (f,) = products(512, count=1)
    s, alone = td.Schedule(f), td.Schedule(f)
    directive(s, f)
    seconds = [Prediction.of(completed(x), WIDE).seconds for x in (s, alone)]
    assert seconds[0] < 3 * seconds[1]


@pytest.mark.parametrize("order", [(i, j), (j, i), (i, j, k), (j, i, k)])
def test_all_pieces_outside_of_a_register_tile_keep_the_order_of_reorder(order):
    (f,) = products(512, count=1)
    s = td.Schedule(f)
    s[f].reorder(*order)
    kinds_ = [(x.name[0], x.kind) for x in completed(s).plan("p0").nests[0].loops]
    tiles = [name for name, kind in kinds_ if kind in ("serial", "parallel")]
    at = {v.name: [n for n, name in enumerate(tiles) if name == v.name] for v in order}
    for outer, inner in itertools.pairwise(order):
        assert not at[outer.name] or not at[inner.name] or max(at[outer.name]) < min(at[inner.name])


def test_a_later_order_takes_the_place_of_an_earlier_one():
    (f,) = products(512, count=1)
    s = td.Schedule(f)
    s[f].reorder(j, i).reorder(i, j)
    assert ("j", "i") not in s.state.plan("p0").nests[0].ordered


@pytest.mark.parametrize("order", [(i, j), (j, i)])
def test_a_tile_of_a_transpose_has_vectors_inside(order, rng):
    a, f = td.Tensor("a", (1000, 1000), td.f32), td.Func("f")
    f[i, j] = a[j, i]
    s = td.Schedule(f)
    s[f].tile(order, (64, 64))
    assert {kind for _, kind in loops(s, "f")} >= {"parallel", "vectorized"}
    x = rng.standard_normal((1000, 1000), np.float32)
    np.testing.assert_array_equal(td.compile(s)(x), x.T)


def test_vectors_are_along_contiguous_memory_where_sizes_are_not_known():
    a, b, f = td.Tensor("a", ("M", "K"), td.f32), td.Tensor("b", ("K", "N"), td.f32), td.Func("f")
    f[i, j] = td.sum(a[i, k] * b[k, j], axis=k)
    s = td.Schedule(f)
    s[f].split(i, 64)
    assert loops(s, "f")[-1] == ("j_v", "vectorized")


@pytest.mark.parametrize("read_by_output", [True, False])
def test_what_reads_a_func_in_a_loop_is_computed_in_this_loop(read_by_output, rng):
    a, b = td.Tensor("a", (64, 64), td.f32), td.Tensor("b", (64, 64), td.f32)
    w, c, o = td.Func("w"), td.Func("c"), td.Func("o")
    w[i, k] = td.exp(a[i, k])
    c[i, j] = td.sum(w[i, k] * b[k, j], axis=k)
    o[i, j] = c[i, j] + (w[i, j] if read_by_output else c[i, 63 - j])
    s = td.Schedule(o)
    s[w].compute_at(o, i)
    assert isinstance(completed(s).plan("c").place, At)
    x, y = (rng.standard_normal((64, 64), np.float32) for _ in range(2))
    product = np.exp(x) @ y
    want = product + (np.exp(x) if read_by_output else product[:, ::-1])
    np.testing.assert_allclose(td.compile(s)(x, y), want, rtol=1e-3, atol=1e-3)


def test_a_copy_by_hand_is_not_copied_again():
    (f,) = products(512, count=1)
    s = td.Schedule(f)
    s.cache_read("a1", f)
    assert "a1_cache_cache" not in dict(completed(s).plans)
