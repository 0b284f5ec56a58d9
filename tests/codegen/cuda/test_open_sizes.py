"""Sizes that differ from call to call: one compilation, whose launches have the blocks that a call needs."""

from dataclasses import replace

import numpy as np
import pytest

import tdsl as td
from tdsl.codegen.cuda import size_formulas as counts
from tdsl.lang.expr import Binary, Const, Select, Size, const
from tdsl.recipes import block_tiles
from tests.codegen.cuda import programs

i, j, k = td.vars("i j k")


def scaled() -> td.Schedule:
    """An array whose name is that of its size, with vectors of known rows."""
    a, f = td.Tensor("M", ("M", 64), td.f32), td.Func("f")
    f[i, j] = a[i, j] * 2 + 1
    return td.Schedule(f)


def product() -> td.Schedule:
    a, b, c = td.Tensor("a", ("M", "K"), td.f32), td.Tensor("b", ("K", "N"), td.f32), td.Func("c")
    c[i, j] = td.sum(a[i, k] * b[k, j], axis=k)
    s = td.Schedule(c)
    block_tiles(s[c])
    return s


def softmax() -> td.Schedule:
    """Several kernels, with memory between them."""
    x = td.Tensor("x", ("R", 96), td.f32)
    top, e, total, y = (td.Func(n) for n in ("top", "e", "total", "y"))
    top[i] = td.max(x[i, k], axis=k)
    e[i, j] = td.exp(x[i, j] - top[i])
    total[i] = td.sum(e[i, k], axis=k)
    y[i, j] = e[i, j] / total[i]
    return td.Schedule(y)


def softmax_of_batches() -> td.Schedule:
    """Rows in two dimensions, of which a call tells both."""
    b = td.vars("b")
    x = td.Tensor("x", ("B", "R", 96), td.f32)
    top, e, total, y = (td.Func(n) for n in ("top", "e", "total", "y"))
    top[b, i] = td.max(x[b, i, k], axis=k)
    e[b, i, j] = td.exp(x[b, i, j] - top[b, i])
    total[b, i] = td.sum(e[b, i, k], axis=k)
    y[b, i, j] = e[b, i, j] / total[b, i]
    return td.Schedule(y)


def transposed() -> td.Schedule:
    return programs.transposed()


PROGRAMS = {
    scaled: [(5,), (0,), (33,)],
    product: [(20, 9, 40), (16, 8, 32), (1, 1, 1)],
    softmax: [(3,), (7,), (0,)],
    softmax_of_batches: [(2, 3), (1, 7), (2, 0)],
    transposed: [(5, 70), (32, 33)],
}


def inputs(s: td.Schedule, sizes: dict[str, int]) -> list[np.ndarray]:
    """Small whole numbers, whose sums are exact."""
    rng = np.random.default_rng(0)
    shapes = [[int(td.lang.program.bind_expr(e, sizes).value) for e in t.shape] for t in s.program.inputs]
    types = [t.dtype.numpy for t in s.program.inputs]
    return [rng.integers(-3, 4, x).astype(t) for x, t in zip(shapes, types, strict=True)]


def check(make, call) -> None:
    """A program called with several sizes gives what it gives on the CPU."""
    s = make()
    on_cpu = td.compile(td.Schedule.of_program(s.program), target="python")
    for sizes in PROGRAMS[make]:
        given = inputs(s, dict(zip(s.program.sizes, sizes, strict=True)))
        # sums of at most 96 terms in another order, and a few functions
        np.testing.assert_allclose(call(*given), on_cpu(*given), rtol=(96 + 16) * 2.0**-24)


def opened(make) -> td.Compiled:
    s = make()
    return td.compile(s, target="cuda", dynamic=s.program.sizes)


@pytest.mark.parametrize("make", PROGRAMS, ids=lambda make: make.__name__)
def test_emulated_calls_of_many_sizes(make):
    check(make, td.emulate(opened(make)))


def test_numbers_of_blocks_are_formulas_of_sizes():
    n = Binary("floordiv", Binary("add", Size("N"), const(63)), const(64))
    assert counts.count_value(counts.as_count(n), {"N": 65}) == 2
    assert counts.count_text(counts.as_count(n)) == "(N + 63) // 64"
    with pytest.raises(td.TargetError, match="cannot be told from the sizes"):
        counts.as_count(Select(Const(True, td.bool_), n, n))


@pytest.mark.parametrize("dtype, marks", [(td.f32, "# shared"), (td.f16, "mma_m16n8k16_f16_f16(")])
def test_products_of_open_sizes_are_tiled(rng, dtype, marks):
    a, b, c = td.Tensor("a", ("M", "K"), dtype), td.Tensor("b", ("K", "N"), dtype), td.Func("c")
    c[i, j] = td.sum(td.cast(a[i, k], td.f32) * td.cast(b[k, j], td.f32), axis=k)
    f = td.compile(c, target="cuda:sm_80", dynamic=("M", "K", "N"))
    text = str(f.loops("final"))
    assert marks in text
    assert "check" not in text, "reads are inside wherever there are any"
    emulated = td.emulate(f)
    for m, n, terms in ((70, 33, 90), (1, 1, 1), (64, 64, 0), (0, 3, 3)):
        x = rng.integers(-3, 4, (m, terms)).astype(dtype.numpy)
        y = rng.integers(-3, 4, (terms, n)).astype(dtype.numpy)
        want = x.astype(np.float32) @ y.astype(np.float32)
        np.testing.assert_array_equal(emulated(x, y), want)


def test_products_of_open_rows_on_hopper(rng):
    a, b, c = td.Tensor("a", ("M", 64), td.f16), td.Tensor("b", (64, 1024), td.f16), td.Func("c")
    c[i, j] = td.sum(td.cast(a[i, k], td.f32) * td.cast(b[k, j], td.f32), axis=k)
    f = td.compile(c, target="cuda", dynamic="M")
    assert "wgmma" in str(f.loops("final"))
    for m in (70, 128):
        x, y = (rng.integers(-3, 4, shape).astype(np.float16) for shape in ((m, 64), (64, 1024)))
        want = x.astype(np.float32) @ y.astype(np.float32)
        np.testing.assert_array_equal(td.emulate(f)(x, y), want)


class TestText:
    """What needs TVM, which writes the text, and g++, which runs it."""

    @pytest.fixture(autouse=True)
    def shim(self):
        pytest.importorskip("tvm", reason='pip install "tdsl[cuda]"')
        from tests.codegen.cuda import shim

        if not shim.HAS_COMPILER:
            pytest.skip("g++ runs the text")
        return shim

    def test_the_text_of_many_sizes(self, shim):
        check(product, shim.text_of(opened(product)))

    def test_offsets_have_64_bits(self, shim, tmp_path):
        side = (1 << 16) + 1  # of a sparse file: few of its 4 GiB are on the disk
        q = np.memmap(tmp_path / "sparse", dtype=np.uint8, mode="w+", shape=(side, side))
        q[-1, -1], q[0, -1], q[-1, 0] = 7, 3, 2
        far, f, last = td.Tensor("q", ("N", "M"), td.u8), td.Func("f", shape=(2,)), side - 1
        f[i] = td.cast(far[i * last, last], td.i32) * 10 + far[last, i * last]
        for dynamic in ((), ("N", "M")):
            compiled = td.compile(f, target="cuda", dynamic=dynamic)
            np.testing.assert_array_equal(shim.text_of(compiled)(q), [32, 77])
        (tmp_path / "sparse").unlink()

    @pytest.fixture
    def launched(self, shim, tmp_path, monkeypatch):
        """Programs on a stand-in for a GPU, and how often one was compiled for it."""
        from tdsl.codegen.cuda import device_call, module
        from tdsl.codegen.cuda.driver import Driver
        from tests.codegen.cuda.fake_driver import FakeDriver, image

        build, builds = module.build, []

        def for_the_cpu(launches, arch):
            builds.append(launches)
            folder = tmp_path / str(len(builds))
            folder.mkdir()
            shim.library_of(launches, folder)
            return replace(build(launches, arch), code=image(folder / "kernels.so"))

        monkeypatch.setenv("TDSL_CACHE", "0")
        monkeypatch.setattr(module, "build", for_the_cpu)
        driver = Driver(FakeDriver(tmp_path).path)
        monkeypatch.setattr(device_call, "driver", lambda: driver)
        monkeypatch.setattr("tdsl.codegen.cuda.executable.driver", lambda: driver)
        return builds

    def test_one_compilation_is_launched_for_many_sizes(self, launched):
        f = opened(softmax)
        check(softmax, f)
        assert len(launched) == 1
        assert "(R + 3) // 4 x 1 x 1 blocks of 32 x 4 x 1 threads" in str(f.launch)
        assert "memory between kernels: e, R * 384 bytes" in str(f.launch)

    def test_calls_with_arrays_on_a_gpu(self, launched):
        from benchmarks.cuda.measure import on_gpu
        from tdsl.codegen.cuda import device_call

        device, f = device_call.driver().device(), opened(scaled)
        for _ in range(2):  # by the slow path, then by the fast path
            for rows in (3, 40):
                x = np.arange(rows * 64, dtype=np.float32).reshape(rows, 64)
                np.testing.assert_array_equal(f(on_gpu(device, x)).numpy(), x * 2 + 1)
        assert len(launched) == 1


def test_tiles_of_open_sizes_are_not_copied_as_wholes():
    s = programs.matmul(td.f32, stages=2, bulk=True)
    with pytest.raises(td.ScheduleError, match="needs sizes that are known"):
        td.compile(s, target="cuda", dynamic=("M", "K", "N")).source("cuda")
