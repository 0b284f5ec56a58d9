"""Loops of updates run side by side, as lanes or in another order where no dependence is in the way."""

import itertools
import random

import numpy as np
import pytest

import tdsl as td
from tdsl.errors import ScheduleError
from tdsl.lang.interp import interpret
from tdsl.schedule.state import PARALLEL, VECTORIZED, Split

S, OFF = 60, 30  # extent of a dimension, and what keeps indices inside of it


class Program:
    """A random affine update of a func of one or two dimensions, as a program and as points of a loop."""

    def __init__(self, draw):
        self.dims = draw.choice([1, 1, 2])
        count = draw.choice([1, 2, 2]) if self.dims == 1 else draw.choice([2, 2, 3])
        names = ["r", "q", "s"][:count]
        lows, extents = [draw.randint(0, 2) for _ in names], [draw.randint(2, 5) for _ in names]
        below = count > 1 and draw.random() < 0.3
        ranges = []
        for n, name in enumerate(names):
            where = (lambda v: v <= ranges[0]) if below and n == 1 else None
            ranges.append(td.range(name, lows[n], lows[n] + extents[n], where=where))

        def index():
            coefficients = [[draw.choice([0, 1, 1, 1, -1, 2]) for _ in names] for _ in range(self.dims)]
            return [(c, draw.randint(-2, 3)) for c in coefficients]

        def at(index):
            point = tuple(
                sum((c * r for c, r in zip(cs, ranges, strict=True) if c), k + OFF) for cs, k in index
            )
            return point if self.dims > 1 else point[0]

        self.write = index()
        # each range stands in the index: else it is no range of the update
        self.write[0] = ([c or 1 for c in self.write[0][0]], self.write[0][1])
        shifted = [(c, k + draw.choice([0, 1, -1, 2, 4])) for c, k in self.write]
        self.reads = [draw.choice([shifted, shifted, index()])]
        i, j = td.vars("i j")
        free = (i, j) if self.dims > 1 else i
        a = td.Tensor("a", (S,) * self.dims, td.i32)
        self.f = f = td.Func("f", shape=(S,) * self.dims)
        f[free] = a[free]
        if draw.random() < 0.6:
            f[at(self.write)] = f[at(self.reads[0])] * 2 + a[at(self.write)]
        elif draw.random() < 0.5:
            f[at(self.write)] += a[at(self.reads[0])]
            self.reads = None  # the order of terms is free
        else:
            f[at(self.write)] = a[at(self.reads[0])] * 3
            self.reads = []
        order = [n for n, _, _ in td.Schedule(f).state.program.func("f").definitions[1].ranges]
        self.names, places = order, [names.index(n) for n in order]
        self.lows = [lows[p] for p in places]
        points = itertools.product(*(range(lo, lo + e) for lo, e in zip(lows, extents, strict=True)))
        self.points = sorted((tuple(p[k] for k in places), p) for p in points if not below or p[1] <= p[0])

    def run(self, what, target):
        values = np.random.default_rng(1).integers(-3, 4, (S,) * self.dims).astype(np.int32)
        return td.compile(what, target=target)(values)

    def touched(self, index, point):
        return tuple(sum(c * x for c, x in zip(cs, point, strict=True)) + k for cs, k in index)

    def keeps_order(self, nest):
        """Whether a nest keeps the order of all pairs of iterations that meet in an element."""
        for (a, first), (b, second) in itertools.combinations(self.points, 2):
            wrote = self.touched(self.write, first), self.touched(self.write, second)
            meet = wrote[0] == wrote[1]
            for r in self.reads or ():
                meet |= self.touched(r, second) == wrote[0] or self.touched(r, first) == wrote[1]
            if meet and not self._in_order(nest, self._loops(nest, a), self._loops(nest, b)):
                return False
        return True

    def _in_order(self, nest, first, second):
        for loop in nest.loops:
            if first[loop.name] != second[loop.name]:
                serial = loop.kind not in (PARALLEL, VECTORIZED)
                return serial and (self.reads is None or first[loop.name] < second[loop.name])
        raise AssertionError("one iteration twice")

    def _loops(self, nest, point):
        at = {n: x - lo for n, x, lo in zip(self.names, point, self.lows, strict=True)}
        for r in nest.relations:
            assert isinstance(r, Split)
            at[r.outer], at[r.inner] = divmod(at[r.parent], r.factor)
        return at


def try_directive(program, schedule, draw):
    """Give a random directive; whether it was accepted, and the nest that was asked for."""
    stage, nest = schedule["f"].update(0), schedule.state.plan("f").nests[1]
    loops = list(nest.names())
    loop = draw.choice(loops)
    match draw.randrange(4):
        case 0:
            new_nest, give = None, lambda: stage.split(loop, draw.choice([2, 3]))
        case 1:
            draw.shuffle(loops)
            order = tuple(next(x for x in nest.loops if x.name == name) for name in loops)
            new_nest, give = type(nest)(order, nest.relations), lambda: stage.reorder(*loops)
        case 2:
            new_nest, give = nest.with_kind(loop, PARALLEL), lambda: stage.parallel(loop)
        case _:
            ahead, lane = td.Schedule.of_state(schedule.state), loop
            if nest.kind(loop) == "serial":
                ahead["f"].update(0).split(loop, 2)
                nest = ahead.state.plan("f").nests[1]
                lane = nest.relations[-1].inner
            new_nest, give = nest.with_kind(lane, VECTORIZED), lambda: stage.vectorize(loop, 2)
    try:
        give()
    except ScheduleError as e:
        return "already" in str(e), new_nest
    return True, new_nest


def without_cuts(nest):
    """A nest whose lanes are cut where one writes what others read, in the order that the cuts keep."""
    for loop in nest.loops:
        nest = nest.with_kind(loop.name, "serial") if loop.kind == VECTORIZED else nest
    return nest


@pytest.mark.parametrize("seed", range(40))
def test_directives_are_refused_for_dependences_that_exist_and_for_no_others(seed):
    draw = random.Random(seed)
    program = Program(draw)
    schedule, want = td.Schedule(program.f), program.run(program.f, "python")
    for _ in range(4):
        accepted, new_nest = try_directive(program, schedule, draw)
        if len(schedule.state.program.funcs) > 1:  # lanes that add to the same elements are merged
            assert not program.keeps_order(new_nest)
            break
        if not accepted:
            assert not program.keeps_order(new_nest)
        assert program.keeps_order(without_cuts(schedule.state.plan("f").nests[1]))
    for target in ("cpu", "python"):
        np.testing.assert_array_equal(program.run(schedule, target), want)


i, j = td.vars("i j")


def interior(n=40):
    """A stencil at the inner points, as an update that reads another tensor."""
    a, b = td.Tensor("a", (n, n), td.f64), td.Tensor("b", (n, n), td.f64)
    y, x = td.range("y", 1, n - 1), td.range("x", 1, n - 1)
    o = td.Func("o")
    o[i, j] = b[i, j]
    o[y, x] = 0.2 * (a[y, x] + a[y, x - 1] + a[y, x + 1] + a[y + 1, x] + a[y - 1, x])
    return o


@pytest.mark.parametrize("directives", ["parallel", "lanes", "both", "tiles", "turned", "fused"])
def test_points_of_an_interior_update_run_in_any_way(directives):
    o = interior()
    values = {name: np.random.default_rng(0).random((40, 40)) for name in "ab"}
    s = td.Schedule(o)
    update = s[o].update(0)
    match directives:
        case "parallel":
            update.parallel("y")
        case "lanes":
            update.vectorize("x", 8)
        case "both":
            update.parallel("y").vectorize("x", 4)
        case "tiles":
            outer, *_ = update.tile(("y", "x"), (8, 16))
            update.vectorize("x_i", 4).parallel(outer)
        case "turned":
            update.reorder("x", "y").parallel("x").vectorize("y", 4)
        case "fused":
            update.parallel(update.fuse("y", "x"))
    want = td.compile(o, target="python")(**values)
    for target in ("cpu", "python"):
        np.testing.assert_array_equal(td.compile(s, target=target)(**values), want)


def scan(index, extent=20, reads=lambda f, r: f[r - 1]):
    """An update of one range, its stage, and its func."""
    a, f, r = td.Tensor("a", (extent,), td.i32), td.Func("f"), td.range("r", 2, extent - 2)
    f[i] = a[i]
    f[index(r)] = reads(f, r) + a[r]
    return td.Schedule(f)["f"].update(0)


def refused(give, text):
    with pytest.raises(ScheduleError) as e:
        give()
    assert text in str(e.value).replace("\n", " ")


def test_the_message_names_the_two_iterations():
    refused(
        lambda: scan(lambda r: r).parallel("r"),
        "iteration r=3 reads f[2], which iteration r=2 writes, and they would run at a time",
    )
    refused(
        lambda: scan(lambda r: r, reads=lambda f, r: f[r + 1]).vectorize("r", 8),
        "iteration r=3 writes f[3], which iteration r=2 reads",
    )
    refused(
        lambda: scan(lambda r: r // 2, reads=lambda f, r: 1).parallel("r"),
        "iterations r=2 and r=3 write f[1]",
    )


def test_lanes_fit_between_iterations_that_depend_on_each_other():
    a, f, r = td.Tensor("a", (64,), td.i32), td.Func("f"), td.range("r", 8, 64)
    f[i] = a[i]
    f[r] = f[r - 8] * 2 + a[r]
    s = td.Schedule(f)
    s[f].update(0).vectorize("r", 8)
    refused(lambda: td.Schedule(f)[f].update(0).vectorize("r", 16), "would run at a time")
    values = np.arange(64, dtype=np.int32)
    np.testing.assert_array_equal(td.compile(s, target="cpu")(values), td.compile(f, target="python")(values))


def test_elements_that_data_choose_are_written_in_order_unless_atomic():
    at, a = td.Tensor("at", (50,), td.i32), td.Tensor("a", (50,), td.i32)
    r = td.range("r", 0, 50)
    f, g = td.Func("f", shape=(10,)), td.Func("g", shape=(10,))
    f[i] = g[i] = 0
    f[td.clip(at[r], 0, 9)] = a[r]
    g[td.clip(at[r], 0, 9)] += a[r]
    refused(lambda: td.Schedule(f)[f].update(0).parallel("r"), "may write the same element of 'f'")
    refused(lambda: td.Schedule(g)[g].update(0).parallel("r"), "atomic()")
    s = td.Schedule(g)
    s[g].update(0).atomic().parallel("r")
    values = [np.random.default_rng(0).integers(0, 10, 50).astype(np.int32) for _ in range(2)]
    np.testing.assert_array_equal(
        td.compile(s, target="cpu")(*values), td.compile(g, target="python")(*values)
    )


def test_terms_that_update_distinct_elements_need_no_partial_results():
    a, f, r = td.Tensor("a", (40,), td.i32), td.Func("f"), td.range("r", 0, 20)
    f[i] = a[i]
    f[2 * r + 1] += a[r]
    s = td.Schedule(f)
    s[f].update(0).vectorize("r", 8)
    assert len(s.state.program.funcs) == 1
    p = td.Schedule(f)
    p[f].update(0).parallel("r")
    values = np.arange(40, dtype=np.int32)
    want = td.compile(f, target="python")(values)
    for schedule in (s, p):
        np.testing.assert_array_equal(td.compile(schedule, target="cpu")(values), want)


def test_lanes_of_an_update_from_another_func_are_not_merged():
    """A value that a func gives for each lane, as the parts of a reduction are."""
    a, g, f = td.Tensor("a", (40,), td.i32), td.Func("g"), td.Func("f")
    r = td.range("r", 0, 40)
    g[i] = a[i] * 2
    f[i] = a[i]
    f[r] += g[r]
    s = td.Schedule(f)
    s[g].compute_root()
    s[f].update(0).vectorize("r", 8)
    values = np.arange(40, dtype=np.int32)
    np.testing.assert_array_equal(td.compile(s, target="cpu")(values), 3 * values)


@pytest.mark.parametrize("extent", [6, "N"])
def test_a_directive_after_an_accepted_one_may_not_break_it(extent):
    u0 = td.Tensor("u0", (extent, extent), td.i32)
    n = u0.shape[0]
    u, t, x = td.Func("u", shape=(n, n)), td.range("t", 1, n), td.range("x", 1, n - 1)
    u[i, j] = u0[i, j]
    u[t, x] = u[t - 1, x - 1] + u[t - 1, x + 1]
    stage = td.Schedule(u)[u].update(0)
    stage.parallel("x")
    refused(lambda: stage.reorder("x", "t"), "would run at a time")
    refused(lambda: stage.parallel("t"), "iteration t=2")


def test_shortest_paths_run_over_the_intermediate_node_outside():
    a, d = td.Tensor("a", ("N", "N"), td.f64), td.Func("d")
    n = a.shape[0]
    k = td.range("k", 0, n)
    d[i, j] = a[i, j]
    d[i, j] = td.minimum(d[i, j], d[i, k] + d[k, j])
    assert td.Schedule(d).state.program.func("d").definitions[1].variables == ("k", "i", "j")
    values = np.random.default_rng(0).random((20, 20))
    want = values.copy()
    for m in range(20):
        want = np.minimum(want, want[:, m, None] + want[None, m, :])
    for target in ("cpu", "python"):
        np.testing.assert_array_equal(td.compile(d, target=target)(values), want)
    refused(lambda: td.Schedule(d)[d].update(0).reorder("i", "j", "k"), "would run in another order")


@pytest.mark.parametrize("back, legal", [(1, False), (30, True)])
def test_a_loop_may_start_elsewhere_where_no_iteration_needs_another(back, legal):
    a, f, r = td.Tensor("a", (60,), td.f32), td.Func("f"), td.range("r", 0, 8)
    f[i] = a[i]
    f[r + 40] = f[r + 40 - back] * 2
    s = td.Schedule(f)
    outer, inner = s[f].update(0).split(r, 2)
    if not legal:
        with pytest.raises(ScheduleError, match="would run in another order"):
            s[f].update(0).rotate(inner, [outer])
        return
    s[f].update(0).rotate(inner, [outer])
    x = np.arange(60, dtype=np.float32)
    np.testing.assert_array_equal(td.compile(s)(x), interpret(s.program, {"a": x})[0])


def test_a_hint_to_move_a_loop_outside_is_legal() -> None:
    y, x = td.vars("y x")
    p, u = td.Tensor("p", (9, 9), td.f64), td.Func("u", shape=(9, 9, 9))
    t, st, r = td.vars("t"), td.range("st", 1, 9), td.range("r", 1, 8)
    u[t, y, x] = p[y, x]
    u[st, r, x] = u[st - 1, r - 1, x] + u[st - 1, r + 1, x]
    with pytest.raises(td.ScheduleError) as caught:
        td.Schedule(u)[u].update(0).parallel("st")
    assert caught.value.hint == "leave 'st' serial"
    with pytest.raises(td.ScheduleError, match="would run in another order"):
        td.Schedule(u)[u].update(0).reorder("r", "st")
