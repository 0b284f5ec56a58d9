"""Graphs for a GPU: emulated as planned, and launched on a stand-in that runs the text of kernels here."""

import gc
import re
import shutil
import threading
from dataclasses import replace

import numpy as np
import pytest

import tdsl as td
from benchmarks.cuda.measure import on_gpu
from tdsl.codegen.cuda import device_call, module
from tdsl.codegen.cuda.driver import Driver
from tdsl.codegen.ir.show import show
from tests.codegen.cuda import shim
from tests.codegen.cuda.fake_driver import FakeDriver, image


@td.op
def linear(x: td.f32["M", "K"], w: td.f32["K", "N"]):
    i, j, k = td.vars("i j k")
    out = td.Func("out")
    out[i, j] = td.sum(x[i, k] * w[k, j], axis=k)
    return out


@td.op
def scale(x: td.f32["M", "N"], factor: td.f32):
    i, j = td.vars("i j")
    out = td.Func("out")
    out[i, j] = x[i, j] * factor
    return out


@td.op
def row_sums(x: td.f32["M", "N"]):
    i, j = td.vars("i j")
    out = td.Func("out")
    out[i] = td.sum(x[i, j], axis=j)
    return out


@td.op
def roots(x: td.f32["M", "N"]):
    i, j = td.vars("i j")
    out = td.Func("out")
    out[i, j] = td.sqrt(td.require(x[i, j] >= 0, x[i, j], "{} is negative", x[i, j]))
    return out


def two_layers(x, w, v):
    h = np.maximum(linear(x, w), 0)
    return linear(h, v) - row_sums(h)[:, None]


@pytest.fixture
def arrays(rng):
    """Whole numbers: sums of their products are exact in any order."""
    return [rng.integers(-4, 5, shape).astype(np.float32) for shape in ((9, 7), (7, 12), (12, 5))]


def graph(f, **options):
    return td.Graph(f, target="cuda", **options)


def equal(results, expected):
    for a, b in zip(results, expected, strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        np.testing.assert_array_equal(a, b)


# Emulation.


@pytest.mark.parametrize("target", ["cuda:sm_75", "cuda:sm_90a", "cuda:sm_80,sm_120"])
@pytest.mark.parametrize("fuse", [True, False])
def test_emulated_results_are_those_of_the_function(arrays, fuse, target):
    g = td.Graph(two_layers, target=target, fuse=fuse)
    equal([td.emulate(g)(*arrays)], [two_layers(*arrays)])
    equal([g.emulate(*arrays)], [two_layers(*arrays)])
    assert [len(x) for x in g.plan(*arrays).groups] == ([2, 1, 1, 1] if fuse else [1] * 5)
    assert all(offset % 256 == 0 for offset in g.memory.offsets.values())


def test_views_are_read_where_they_are(arrays):
    def f(x, w, v):
        h = linear(x, w)
        tall, part, back = h.T, h[2:, ::3], h[:, ::-1]
        return linear(w, tall), scale(part, 2), scale(h[4:6], 3), back.reshape(3, 36) + 1, x[::2]

    equal(graph(f).emulate(*arrays), f(*arrays))


def test_outputs_that_no_kernel_computes_are_copied(arrays):
    weights = arrays[1]

    def f(x):
        h = linear(x, weights)
        return {"x": x, "h": [h, h.T, h], "w": weights}

    result, expected = graph(f).emulate(arrays[0]), f(arrays[0])
    equal([result["x"], *result["h"], result["w"]], [expected["x"], *expected["h"], expected["w"]])


def test_numbers_are_arguments_of_kernels(arrays):
    def f(x, factor):
        return scale(scale(x, 3), factor), scale(x, x[0, 0].copy())

    factor = np.array(2, np.float32)
    equal(graph(f).emulate(arrays[0], factor), f(arrays[0], factor))


def test_a_call_with_a_schedule_keeps_it(arrays):
    s = linear.schedule()
    i, o = s["out"].split("i", 4)
    s["out"].bind(i, "blockIdx.x").bind(o, "threadIdx.x")
    scheduled = td.compile(s)

    def f(x, w):
        return scheduled(np.ascontiguousarray(x.T) if isinstance(x, np.ndarray) else x.T, w) + 1

    g, x = graph(f), np.ascontiguousarray(arrays[0].T)
    equal([g.emulate(x, arrays[1])], [linear(arrays[0], arrays[1]) + 1])
    assert "blockIdx.x" in str(g.plan(x, arrays[1]).steps[0].kernel.per_call.loops())


@pytest.mark.parametrize("rows", [0, 1, 13])
def test_few_rows(rng, rows):
    x, w = rng.random((rows, 7), np.float32), rng.random((7, 5), np.float32)

    def f(x, w):
        return np.maximum(x @ w, 0).sum(axis=1), (x @ w).T

    for a, b in zip(graph(f).emulate(x, w), f(x, w), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)


def test_results_are_written_to_out(arrays):
    out = np.zeros((9, 10), np.float32)[:, ::2]
    assert graph(two_layers).emulate(*arrays, out=out) is out
    np.testing.assert_array_equal(out, two_layers(*arrays))


def test_lifetimes_that_overlap_in_memory_are_hazards(arrays):
    g = graph(two_layers)
    plan = g.plan(*arrays)
    offsets = dict.fromkeys(plan.memory.offsets, 0)
    plan.memory = replace(plan.memory, offsets=offsets)
    with pytest.raises(td.Hazard, match=r"two_layers: step 1, linear, reads .* which has been overwritten"):
        g.emulate(*arrays)


def test_checks_are_those_of_kernels(arrays):
    g = graph(lambda x: scale(roots(scale(x, 1)), 2))
    with pytest.raises(td.RequireError, match="is negative"):
        g.emulate(arrays[0])
    x = np.abs(arrays[0])
    np.testing.assert_allclose(g.emulate(x), 2 * np.sqrt(x), rtol=1e-6)


def test_transactions_are_counted_for_each_step(arrays):
    g = graph(two_layers)
    counts = td.count_memory(g, *arrays)
    assert {s.kernel.partition(":")[0] for s in counts.samples} == {"0", "1", "2", "3"}
    assert td.count_memory(g).accesses == counts.accesses
    assert graph(two_layers).count_memory(*(td.f32[a.shape] for a in arrays)).accesses == counts.accesses


def test_sources_and_explanations_are_those_of_the_kernels(arrays):
    pytest.importorskip("tvm")
    g = graph(lambda x: scale(scale(scale(x, 2), 3), 4), fuse=False)
    g.plan(arrays[0])
    source = str(g.source("cuda"))
    assert source.splitlines()[-2:] == [f"// {n}: scale, the kernel of 0" for n in (1, 2)]
    assert "registers" in str(g.explain())


def test_graphs_for_the_cpu_are_not_emulated(arrays):
    g = td.Graph(two_layers)
    with pytest.raises(td.TypeMismatch, match="only what is compiled for a GPU can be emulated"):
        g.emulate(*arrays)
    with pytest.raises(td.TypeMismatch, match="only what is compiled for a GPU"):
        td.emulate(g)


def test_plans_for_a_gpu_are_not_tuned(arrays):
    with pytest.raises(td.TargetError, match="plans for a GPU are not tuned") as caught:
        graph(two_layers).tune(*arrays)
    assert "measure=10" in caught.value.hint


# Launches.


@pytest.fixture(scope="module")
def modules(tmp_path_factory):
    """Modules by the loops of their kernels, and the folder of their libraries."""
    return {}, tmp_path_factory.mktemp("kernels")


@pytest.fixture
def fake(tmp_path, monkeypatch, modules):
    """A stand-in for a GPU, whose machine code is the text, compiled for the CPU."""
    if shutil.which("gcc") is None or not shim.HAS_COMPILER:
        pytest.skip("gcc makes the driver and the kernels")
    pytest.importorskip("tvm")
    build = module.build

    def for_the_cpu(launches, arch):
        known, parent = modules
        key = show(launches.kernel), arch
        if key not in known:
            folder = parent / f"{len(known)}"
            folder.mkdir()
            library = shim.library_of(launches, folder)
            known[key] = replace(build(launches, arch), code=image(folder / "kernels.so")), library
        return known[key][0]

    monkeypatch.setenv("TDSL_CACHE", "0")
    monkeypatch.setattr(module, "build", for_the_cpu)
    fake = FakeDriver(tmp_path)
    driver = Driver(fake.path)
    monkeypatch.setattr(device_call, "driver", lambda: driver)
    monkeypatch.setattr("tdsl.codegen.cuda.executable.driver", lambda: driver)
    return fake


def device():
    return device_call.driver().device()


def test_the_launches_are_captured_once(arrays, fake):
    g, expected = graph(two_layers), two_layers(*arrays)
    given = [on_gpu(device(), a) for a in arrays]
    out = on_gpu(device(), np.zeros_like(expected))
    for _ in range(3):
        assert g(*given, out=out) is out
        np.testing.assert_array_equal(out.numpy(), expected)
    log = fake.log()
    assert log.count("captured") == 1
    assert len(re.findall(r"graph of \d+ on 1\n", log)) == 3
    assert "update" not in log and "grid" not in log


def test_other_addresses_replace_arguments(arrays, fake):
    g, (x, w, v) = graph(two_layers), arrays
    given = [on_gpu(device(), a) for a in arrays]
    out = on_gpu(device(), np.zeros((9, 5), np.float32))
    g(*given, out=out)
    fake.clear()
    other = on_gpu(device(), v + 1)
    g(*given[:2], other, out=out)
    np.testing.assert_array_equal(out.numpy(), two_layers(x, w, v + 1))
    log = fake.log()
    assert log.count("update") == 1 and "capture" not in log


def test_a_graph_that_cannot_be_changed_is_captured_again(arrays, fake):
    g, (x, w, v) = graph(two_layers), arrays
    before = fake.graphs
    given = [on_gpu(device(), a) for a in arrays]
    g(*given)
    fake.refuse_updates(1)
    for n in range(3):
        other = on_gpu(device(), x + n)
        np.testing.assert_array_equal(g(other, *given[1:]).numpy(), two_layers(x + n, w, v))
    assert fake.log().count("captured") > 1
    assert fake.graphs == before + 2  # the last one


def test_arrays_in_cpu_memory_are_copied(arrays, fake):
    g = graph(two_layers)
    for n in range(3):
        x = arrays[0] + n
        equal([g(x, *arrays[1:])], [two_layers(x, *arrays[1:])])
    out = np.zeros((9, 10), np.float32)[:, ::2]
    assert g(*arrays, out=out) is out
    np.testing.assert_array_equal(out, two_layers(*arrays))
    mixed = g(on_gpu(device(), arrays[0]), *arrays[1:])
    np.testing.assert_array_equal(mixed.numpy(), two_layers(*arrays))


def test_constants_are_copied_to_the_gpu_once(arrays, fake):
    x, w, _ = arrays
    g = graph(lambda x: linear(linear(x, w), w.T.copy()) + w[0, :7])
    given = on_gpu(device(), x)
    for _ in range(3):
        np.testing.assert_array_equal(g(given).numpy(), linear(linear(x, w), w.T.copy()) + w[0, :7])
    live = fake.live
    g(given)
    assert fake.live == live


def test_without_capture_each_kernel_is_launched(arrays, fake):
    g = graph(two_layers, capture=False)
    given = [on_gpu(device(), a) for a in arrays]
    for _ in range(2):
        np.testing.assert_array_equal(g(*given).numpy(), two_layers(*arrays))
    assert "capture" not in fake.log() and fake.log().count("linear_maximum_kernel") in (2, 4)


def test_a_failed_check_ends_the_call(arrays, fake):
    g, w = graph(lambda x: linear(roots(x), w)), arrays[1]
    good, bad = np.abs(arrays[0]), -np.abs(arrays[0]) - 1
    for _ in range(2):
        np.testing.assert_allclose(g(on_gpu(device(), good)).numpy(), np.sqrt(good) @ w, rtol=1e-5)
        fake.clear()
        with pytest.raises(td.RequireError, match="is negative"):
            g(on_gpu(device(), bad))
        assert "linear" not in fake.log()  # no later kernel runs
    assert "capture" not in fake.log()


def test_a_refused_launch_ends_the_capture_and_the_next_call_works(arrays, fake):
    g, before = graph(two_layers), fake.graphs
    given = [on_gpu(device(), a) for a in arrays]
    for _ in range(2):
        fake.refuse(701)
        with pytest.raises(td.TargetError, match=r"launch of (kernel '.*'|graph 'two_layers') failed"):
            g(*given)
        fake.refuse(0)
        np.testing.assert_array_equal(g(*given).numpy(), two_layers(*arrays))
    assert fake.graphs == before + 2


def test_a_fault_in_a_kernel_names_the_graph(arrays, fake):
    g = graph(two_layers)
    g(*arrays)
    launcher = g.plan(*arrays).executable.launcher(device())
    given = [on_gpu(device(), a) for a in (*arrays, np.zeros((9, 5), np.float32))]
    fake.fail(700)
    with pytest.raises(td.TargetError, match="graph 'two_layers' failed: an illegal memory access"):
        launcher.start([a.pointer for a in given], 1, wait=True)


def test_a_thread_without_a_context_gets_one(arrays, fake):
    g = graph(two_layers)
    given = [on_gpu(device(), a) for a in arrays]
    g(*given)
    fake.leave()
    np.testing.assert_array_equal(g(*given).numpy(), two_layers(*arrays))


def test_memory_of_plans_is_freed_with_them(arrays, fake):
    given = [on_gpu(device(), a) for a in arrays]
    before = fake.live, fake.graphs
    g = graph(two_layers)
    g(*given)
    assert fake.graphs == before[1] + 2
    del g
    gc.collect()
    assert (fake.live, fake.graphs) == before


def test_another_stream_waits_for_the_memory_between_kernels(arrays, fake):
    g = graph(two_layers)
    given = [on_gpu(device(), a) for a in arrays]
    with td.cuda.stream(7):
        g(*given)
    fake.clear()
    with td.cuda.stream(8):
        np.testing.assert_array_equal(g(*given).numpy(), two_layers(*arrays))
    assert "record on 7\nstream 8 waits\n" in fake.log() and re.search(r"graph of \d+ on 8", fake.log())


def test_other_shapes_make_another_plan(arrays, fake):
    g = graph(two_layers)
    for rows in (9, 4, 9):
        x = arrays[0][:rows]
        given = [on_gpu(device(), a) for a in (x, *arrays[1:])]
        np.testing.assert_array_equal(g(*given).numpy(), two_layers(x, *arrays[1:]))


def test_threads_use_separate_memory(arrays, fake):
    fake.quiet()
    g, wrong = graph(two_layers), []
    g(*arrays)

    def work(n):
        given = [on_gpu(device(), a) for a in (arrays[0] + n, *arrays[1:])]
        expected = two_layers(arrays[0] + n, *arrays[1:])
        for _ in range(10):
            wrong.extend([n] * (not np.array_equal(g(*given).numpy(), expected)))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong
