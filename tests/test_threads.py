"""Default schedules give the same bits with any number of threads, and shares of work that are even."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from math import ceil, prod

import numpy as np
import pytest

import tdsl as td
from tdsl.codegen.cpu.runtime import set_num_threads
from tdsl.cost.loopnests import Nests, NestSpot
from tdsl.cost.predict import Prediction
from tdsl.machine.devices import reference_cpu
from tdsl.machine.threads import num_threads
from tdsl.schedule.bind import bind_state
from tdsl.schedule.state import PARALLEL
from tdsl.tilegraph.default import decide

i, j, k = td.vars("i j k")
x = td.Tensor("x", ("R", "C"), td.f32)
y = td.Tensor("y", ("C", "K"), td.f32)


def total() -> td.Func:
    f = td.Func("total")
    f[()] = td.sum(x[i, j] * x[i, j], axis=(i, j))
    return f


def rows() -> td.Func:
    f = td.Func("rows")
    f[i] = td.sum(x[i, k], axis=k)
    return f


def columns() -> td.Func:
    mean, normal = td.Func("mean"), td.Func("normal")
    mean[j] = td.mean(x[k, j], axis=k)
    normal[i, j] = x[i, j] - mean[j]
    return normal


def products() -> td.Func:
    f = td.Func("products")
    f[i, j] = td.sum(x[i, k] * y[k, j], axis=k)
    return f


@pytest.fixture
def restored() -> Iterator[None]:
    before = num_threads()
    yield
    set_num_threads(before)


@pytest.mark.parametrize("program", [total, rows, columns, products], ids=lambda p: p.__name__)
@pytest.mark.parametrize("shape", [(1, 300_007), (1003, 517), (20_011, 5)], ids=str)
def test_any_number_of_threads_gives_the_same_bits(program, shape, restored):
    f = program()
    compiled = td.compile(f)
    rng = np.random.default_rng(0)
    given = [rng.standard_normal(shape, dtype=np.float32)]
    if program is products:
        given.append(rng.standard_normal((shape[1], 7), dtype=np.float32))
    results = []
    for count in (1, 2, 3, 8):
        set_num_threads(count)
        results.append(np.asarray(compiled(*given)).tobytes())
    assert len(set(results)) == 1


THREADS = (1, 2, 3, 4, 8)
SHARE = 1.5  # times the work of a thread if all had the same
SHORT = 1e-5  # seconds of a nest, below which it does not matter who runs it


def array(name: str, *shape: int) -> td.Tensor:
    return td.Tensor(name, shape, td.f32)


def product() -> td.Func:
    a, b, c = array("a", 257, 301), array("b", 301, 217), td.Func("c")
    c[i, j] = td.sum(a[i, k] * b[k, j], axis=k)
    return c


def small_products() -> td.Func:
    return td.einsum("bij,bkj->bik", array("a", 5000, 5, 7), array("b", 5000, 3, 7))


def product_of_products() -> td.Func:
    t, r, o = td.Func("t"), td.Func("r"), td.Func("o")
    a, b, c = array("a", 192, 96), array("b", 96, 128), array("c", 128, 64)
    t[i, j] = td.sum(a[i, k] * b[k, j], axis=k)
    r[i, j] = td.maximum(t[i, j], 0)
    o[i, j] = td.sum(r[i, k] * c[k, j], axis=k)
    return o


def softmax() -> td.Func:
    x, top, total, o = array("x", 300, 411), td.Func("top"), td.Func("total"), td.Func("o")
    top[i] = td.max(x[i, k], axis=k)
    total[i] = td.sum(td.exp(x[i, k] - top[i]), axis=k)
    o[i, j] = td.exp(x[i, j] - top[i]) / total[i]
    return o


def stencil() -> td.Func:
    edge, across, o = (
        td.pad(array("a", 400, 600), mode="edge"),
        td.Func("across"),
        td.Func("o", shape=(400, 600)),
    )
    across[i, j] = edge[i, j - 1] + edge[i, j] * 2 + edge[i, j + 1]
    o[i, j] = across[i - 1, j] + across[i, j] * 2 + across[i + 1, j]
    return o


def long_sum() -> td.Func:
    f, x = td.Func("f"), array("x", 600_011)
    f[()] = td.sum(x[i] * x[i], axis=i)
    return f


def trace() -> td.Func:
    return td.einsum("ij,ji->", array("a", 700, 900), array("b", 900, 700))


def sums_of_columns() -> td.Func:
    f, x = td.Func("f"), array("x", 2049, 301)
    f[j] = td.sum(x[k, j], axis=k)
    return f


def scans() -> td.Func:
    x, f, r = array("x", 300, 2000), td.Func("f", shape=(300, 2000)), td.range("r", 1, 2000)
    f[i, j] = x[i, j]
    f[i, r] = f[i, r - 1] * 0.5 + x[i, r]
    return f


def histogram() -> td.Func:
    x, h, r = array("x", 200_000), td.Func("h", shape=64), td.range("r", 0, 200_000)
    h[i] = td.cast(0, td.f32)
    h[td.clip(td.cast(x[r] * 16 + 32, td.i64), 0, 63)] += x[r]
    return h


def interior() -> td.Func:
    a, o = array("a", 500, 700), td.Func("o", shape=(500, 700))
    r, c = td.range("r", 1, 499), td.range("c", 1, 699)
    o[i, j] = a[i, j]
    o[r, c] = (a[r - 1, c] + a[r + 1, c] + a[r, c - 1] + a[r, c + 1]) * 0.25
    return o


PROGRAMS = [
    product, small_products, product_of_products, softmax, stencil, long_sum, trace, sums_of_columns, scans,
    histogram, interior,
]  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_schedules_for_any_number_of_threads_give_the_same_bits(
    program: Callable[[], td.Func], restored: None
) -> None:
    rng = np.random.default_rng(0)
    inputs = td.Schedule(program()).program.inputs
    given = [rng.standard_normal([n.value for n in t.shape], dtype=np.float32) for t in inputs]
    results, texts = set(), dict[str, bytes]()
    for count in THREADS:
        set_num_threads(count)
        schedule = td.Schedule(program(), target="cpu")
        text = str(schedule.completed())
        if text not in texts:
            texts[text] = np.asarray(td.compile(schedule)(*given)).tobytes()
        results.add(texts[text])
    assert len(results) == 1


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
@pytest.mark.parametrize("threads", THREADS[1:])
def test_no_thread_has_much_more_than_its_share(program: Callable[[], td.Func], threads: int) -> None:
    machine = replace(reference_cpu(32), threads=threads)
    state, _ = decide(bind_state(td.Schedule(program()).state, {}), machine)
    shares = {}
    for spot, time in zip(Nests.of(state).roots(), Prediction.of(state, machine).times, strict=True):
        if time.seconds > SHORT:
            parts = iterations_of_threads(spot)
            shares[spot.func.name] = ceil(parts / threads) * threads / parts
    assert all(share <= SHARE for share in shares.values()), shares


def iterations_of_threads(spot: NestSpot) -> int:
    """The iterations of the parallel loops of a nest."""
    return prod(n for x, n in spot.extents().items() if spot.kind(x) == PARALLEL)
