"""What a nest asks of a machine: the operations of what runs, where it runs, and what they wait for."""

from dataclasses import replace

import pytest

import tdsl as td
from tdsl.cost.loopnests import Nests
from tdsl.cost.predict import Prediction
from tdsl.cost.seconds import time_of
from tdsl.cost.terms import Issue, terms_of
from tdsl.machine.devices import describe_gpu, reference_cpu
from tdsl.machine.model import Machine, MemoryLevel
from tdsl.schedule.properties import unplaced_at_root

i, j, k = td.vars("i j k")
ROWS, TERMS, COLUMNS, TILE = 8, 96, 16, 32


def issues(s: td.Schedule) -> dict[Issue, float]:
    """All operations of a schedule."""
    total: dict[Issue, float] = {}
    for terms in terms_of(Nests.of(unplaced_at_root(s.state)), Machine()):
        for issue, count in terms.issues.items():
            total[issue] = total.get(issue, 0.0) + count
    return total


def weighted() -> td.Func:
    """Softmax-weighted sums."""
    x, v = td.Tensor("x", (ROWS, TERMS), td.f32), td.Tensor("v", (TERMS, COLUMNS), td.f32)
    top, p, out = td.Func("top"), td.Func("p"), td.Func("out")
    top[i] = td.max(x[i, j], axis=j)
    p[i, j] = td.exp(x[i, j] - top[i])
    out[i, k] = td.sum(p[i, j] * v[j, k], axis=j)
    return out


@pytest.mark.parametrize("inside", [True, False])
def test_tiles_are_merged_with_two_exponentials_each(inside: bool) -> None:
    """Once for a row where columns are the inner loop; for each column where they are outside."""
    s = td.Schedule(weighted())
    s["out"].online("j", TILE)
    s["out_online"].reorder(*("i", "j_o", "k") if inside else ("i", "k", "j_o"))
    merges = ROWS * (TERMS // TILE) * (1 if inside else COLUMNS)
    last = ROWS * COLUMNS  # to the greatest of all maxima
    assert issues(s)[Issue("scalar", "exp", "f32")] == ROWS * TERMS + 2 * merges + last


def test_a_product_and_its_sum_are_one_operation() -> None:
    x, f = td.Tensor("x", (ROWS, TERMS), td.f32), td.Func("f")
    f[i] = td.sum(x[i, j] * x[i, j], axis=j)
    assert issues(td.Schedule(f)) == {Issue("scalar", "fma", "f32"): ROWS * TERMS}


def test_of_what_a_condition_on_indices_chooses_the_longer_value_counts() -> None:
    x, f = td.Tensor("x", (ROWS, TERMS), td.f32), td.Func("f")
    f[i, j] = td.where(j < 10, x[i, j] + 1, (x[i, j] + 2) * x[i, j])
    count = ROWS * TERMS
    plain, product = (Issue("scalar", kind, "f32") for kind in ("plain", "product"))
    assert issues(td.Schedule(f)) == {plain: count, product: count}


def test_sums_to_which_loops_come_back_are_read_once_each_time() -> None:
    """A line that is written is read first: that is how a sum comes back."""
    x, y, f = td.Tensor("x", (TERMS,), td.f32), td.Tensor("y", (1024,), td.f32), td.Func("f")
    f[i] = td.sum(x[j] * y[i], axis=j)
    s = td.Schedule(f)
    s[f].reorder("j", "i")
    speed = 1e9
    memory = MemoryLevel("memory", None, managed=True, bandwidth=((1, speed),))
    machine = Machine(levels=(MemoryLevel("L1", 1024), memory))
    (terms,) = terms_of(Nests.of(unplaced_at_root(s.state)), machine)
    time = time_of(terms, machine)
    size = 4 * 1024 * TERMS  # of all iterations of j
    assert dict(time.memory)["memory"] * speed == pytest.approx(3 * size + 4 * TERMS)


def seconds(s: td.Schedule) -> float:
    """The predicted time on the CPU whose figures come with the package."""
    return Prediction.of(unplaced_at_root(s.state), replace(reference_cpu(32), threads=1)).seconds


def row_sums(dtype: td.DType) -> td.Func:
    x, f = td.Tensor("x", (64, 512), dtype), td.Func("f")
    f[i] = td.sum(x[i, k], axis=k)
    return f


def test_a_sum_in_one_accumulator_waits_for_each_addition() -> None:
    one, four = td.Schedule(row_sums(td.f32)), td.Schedule(row_sums(td.f32))
    one["f"].reorder(i, k)
    four["f"].split(i, 4)
    four["f"].reorder("i_o", "k", "i_i").unroll("i_i")
    assert seconds(one) > 3 * seconds(four)


def test_vectors_of_doubles_take_twice_as_long() -> None:
    times = []
    for dtype in (td.f32, td.f64):
        x, y = td.Tensor("x", (16, 32), dtype), td.Tensor("y", (32, 64), dtype)
        f = td.Func("f")
        f[i, j] = td.sum(x[i, k] * y[k, j], axis=k)
        s = td.Schedule(f)
        td.recipes.matmul(s["f"])
        times.append(seconds(s))
    assert times[1] == pytest.approx(2 * times[0], rel=0.2)


@pytest.mark.parametrize("dtype", [td.f32, td.f64])
def test_a_power_takes_much_longer_than_a_division(dtype: td.DType) -> None:
    x = td.Tensor("x", (16, 16), dtype)
    times = []
    for value in (x[i, j] ** -1.5, 1 / x[i, j]):
        f = td.Func("f")
        f[i, j] = value
        s = td.Schedule(f)
        s["f"].vectorize(j, 32 // dtype.bytes)
        times.append(seconds(s))
    power, division = times
    assert power > 10 * division


def test_a_value_that_inner_loops_share_is_computed_once() -> None:
    x, y, f = td.Tensor("x", (ROWS,), td.f32), td.Tensor("y", (COLUMNS,), td.f32), td.Func("f")
    f[i, j] = td.exp(x[i]) * y[j]
    inside, outside = td.Schedule(f), td.Schedule(f)
    inside["f"].reorder(j, i)
    exponentials = Issue("scalar", "exp", "f32")
    assert issues(inside)[exponentials] == COLUMNS * ROWS
    assert issues(outside)[exponentials] == ROWS


def test_a_scan_waits_along_itself_unless_rows_are_side_by_side() -> None:
    x, f = td.Tensor("x", (64, 500), td.f32), td.Func("f", shape=(64, 500))
    r = td.range("r", 1, 500)
    f[i, j] = x[i, j]
    f[i, r] = f[i, r - 1] * 0.5 + x[i, r]
    along, across = td.Schedule(f), td.Schedule(f)
    across["f"].update(0).reorder("r", "i")
    assert seconds(along) > 1.5 * seconds(across)


def test_a_parallel_nest_after_another_has_a_barrier() -> None:
    x, f, g, h = td.Tensor("x", (64, 64), td.f32), td.Func("f"), td.Func("g"), td.Func("h")
    f[i, j] = x[i, j] + 1
    g[i, j] = f[i, j] * f[j, i]
    h[i, j] = g[i, j] * g[j, i]
    s = td.Schedule(h)
    for stage in (s[f].compute_root(), s[g].compute_root(), s[h]):
        stage.parallel(i)
    machine = replace(reference_cpu(32), launch=((2, 5e-6),), barrier=((2, 1e-6),))
    terms = terms_of(Nests.of(unplaced_at_root(s.state)), machine)
    assert [(t.launches, t.barriers) for t in terms] == [(1, 0), (0, 1), (0, 1)]
    assert [time_of(t, machine).launch for t in terms] == [5e-6, 1e-6, 1e-6]
    unmeasured = replace(machine, barrier=())
    assert [time_of(t, unmeasured).launch for t in terms] == [5e-6] * 3


def test_what_a_thread_of_a_gpu_computes_in_its_registers_counts() -> None:
    x, f, g = td.Tensor("x", (256, 64), td.f32), td.Func("f"), td.Func("g")
    f[i] = td.sum(x[i, j] * x[i, j], axis=j)
    g[i] = f[i] + f[i + 1]
    s = td.Schedule(g, target="cuda")
    block, thread = s[g].split(i, 64)
    s[g].bind(block, "blockIdx.x").bind(thread, "threadIdx.x")
    s[f].compute_at(s[g], thread).set_scope("register")
    (terms,) = terms_of(Nests.of(unplaced_at_root(s.state)), describe_gpu("sm_80"))
    assert terms.issues[Issue("vector", "fma", "f32")] == 2 * 255 * 64
    assert time_of(terms, describe_gpu("sm_80")).units[0][1] > 0


def test_an_instruction_that_takes_scales_computes_them_itself() -> None:
    a, b = (td.Tensor(n, (128, 256), td.f8e4m3) for n in "ab")
    sa, sb = (td.Tensor(f"s{n}", (128, 8), td.u8) for n in "ab")
    c = td.Func("c")
    x = td.cast(a[i, k], td.f32) * td.exp2(td.cast(sa[i, k // 32], td.f32) - 127)
    y = td.cast(b[j, k], td.f32) * td.exp2(td.cast(sb[j, k // 32], td.f32) - 127)
    c[i, j] = td.sum(x * y, axis=k)
    s = td.Schedule(c, target="cuda:sm_120a")
    td.recipes.block_scaled_matmul(s[c], block_scale=True)
    assert not any(x.op.startswith("exp") for x in issues(s))
