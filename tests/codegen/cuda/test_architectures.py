"""Programs of every kind are assembled for every architecture, without what it lacks."""

import re

import numpy as np
import pytest

import tdsl as td
from tdsl.codegen.cuda import module, nvrtc
from tdsl.machine.devices import describe_gpu, gpus
from tests.codegen.cuda import programs

pytestmark = pytest.mark.skipif(not module.tvm_version(), reason="without TVM")
ARCHS = tuple(gpus())
i, j, k, n, v, u, o, c, p, q = td.vars("i j k n v u o c p q")


def product(dtype, total):
    a, b, f = td.Tensor("a", (128, 96), dtype), td.Tensor("b", (96, 128), dtype), td.Func("f")
    f[i, j] = td.sum(td.cast(a[i, k], total) * td.cast(b[k, j], total), axis=k)
    return f


def softmax(dtype):
    x, top, total, y = td.Tensor("x", (64, 512), dtype), td.Func("top"), td.Func("total"), td.Func("y")
    top[i] = td.max(td.cast(x[i, k], td.f32), axis=k)
    total[i] = td.sum(td.exp(td.cast(x[i, k], td.f32) - top[i]), axis=k)
    y[i, j] = td.cast(td.exp(td.cast(x[i, j], td.f32) - top[i]) / total[i], dtype)
    return y


def histogram():
    x, counts = td.Tensor("x", (5000,), td.u8), td.Func("counts")
    counts[i] = 0
    counts[td.cast(x[k], td.i32)] += 1
    return counts.with_shape(256)


def transposed(dtype):
    x, y = td.Tensor("x", (200, 96), dtype), td.Func("y")
    y[i, j] = x[j, i]
    return y


def convolution(dtype):
    image, w, f = (
        td.Tensor("image", (2, 14, 14, 32), dtype),
        td.Tensor("w", (3, 3, 32, 32), dtype),
        td.Func("f"),
    )
    term = td.cast(td.pad(image)[n, v + p - 1, u + q - 1, c], td.f32) * td.cast(w[p, q, c, o], td.f32)
    f[n, v, u, o] = td.sum(term, axis=(p, q, c))
    return f.with_shape(2, 14, 14, 32)


def converted(source, to):
    x, y = td.Tensor("x", (1000,), source), td.Func("y")
    y[i] = td.cast(td.cast(x[i], td.f32) * 2 + 1, to)
    return y


def attention():
    a, b, w = (td.Tensor(name, (256, 64), td.f16) for name in "abw")
    score, top, part, total, out = (td.Func(x) for x in ("score", "top", "part", "total", "out"))
    score[i, k] = td.sum(td.cast(a[i, c], td.f32) * td.cast(b[k, c], td.f32), axis=c)
    top[i] = td.max(score[i, k], axis=k)
    part[i, k] = td.exp(score[i, k] - top[i])
    total[i] = td.sum(part[i, k], axis=k)
    weight = td.cast(td.cast(part[i, k], td.f16), td.f32)
    out[i, j] = td.sum(weight * td.cast(w[k, j], td.f32), axis=k) / total[i]
    return out


PROGRAMS = {
    "f16": lambda: product(td.f16, td.f32), "bf16": lambda: product(td.bf16, td.f32),
    "f8": lambda: product(td.f8e4m3, td.f32), "i8": lambda: product(td.i8, td.i32),
    "f32": lambda: product(td.f32, td.f32), "f64": lambda: product(td.f64, td.f64),
    "softmax": lambda: softmax(td.f32), "softmax of bf16": lambda: softmax(td.bf16),
    "histogram": histogram, "transposed": lambda: transposed(td.f16), "attention": attention,
    "convolution": lambda: convolution(td.f16), "convolution of f32": lambda: convolution(td.f32),
    "bf16 to f8": lambda: converted(td.bf16, td.f8e5m2), "f8 to bf16": lambda: converted(td.f8e4m3, td.bf16),
}  # fmt: skip


@pytest.mark.in_part(50)
@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_defaults_are_assembled(name, arch):
    launch, features = td.compile(PROGRAMS[name](), target=f"cuda:{arch}").launch, describe_gpu(arch).features
    assert launch.code.startswith(b"\x7fELF")  # ptxas refuses instructions that the architecture lacks
    for feature, used in {"mma": "mma.sync", "wgmma": "wgmma.mma", "tcgen05": "tcgen05.mma"}.items():
        assert feature in features or used not in launch.source


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("bulk", [False, True])
def test_tiles_that_are_fetched_ahead_are_assembled_where_the_gpu_fetches_so(bulk, arch):
    schedule = programs.matmul(td.f32, stages=3, bulk=bulk)
    if bulk and "tma" not in describe_gpu(arch).features:
        with pytest.raises(td.TargetError, match=f"{arch} has no TMA, which sm_90 has"):
            td.compile(schedule, target=f"cuda:{arch}", M=64, K=64, N=64).source("ptx")
        return
    text = str(td.compile(schedule, target=f"cuda:{arch}", M=64, K=64, N=64).source("ptx"))
    assert bool(re.search(r"cp\.async", text)) == (arch != "sm_75")
    assert ("cp.async.bulk" in text) == bulk


def test_a_gpu_without_tensor_core_instructions_gets_ordinary_kernels():
    f = td.compile(product(td.f16, td.f32), target="cuda:sm_75")
    assert "mma" not in str(f.loops())
    numbers = np.random.default_rng(1)
    a, b = (numbers.integers(-3, 4, shape).astype(np.float16) for shape in ((128, 96), (96, 128)))
    np.testing.assert_array_equal(td.emulate(f)(a, b), a.astype(np.float32) @ b.astype(np.float32))


def test_an_instruction_that_the_gpu_lacks_is_refused_before_it_is_compiled():
    s = td.Schedule(product(td.f16, td.f32), target="cuda:sm_75")
    td.recipes.tensor_core_matmul(s["f"], block=(64, 64, 32), warp=(32, 32))
    with pytest.raises(td.TargetError, match=r"(?s)'mma_m16n8k16_f16_f16' needs sm_80, the target is sm_75"):
        td.emulate(td.compile(s, target="cuda:sm_75"))(np.zeros((128, 96), "e"), np.zeros((96, 128), "e"))


def test_all_architectures_are_known_to_the_compiler_before_it_compiles_for_one(monkeypatch):
    pytest.importorskip("tvm")
    monkeypatch.setenv("TDSL_CACHE", "0")
    monkeypatch.setattr(nvrtc, "supported_archs", lambda: ("12.0", (75, 80, 90)))
    monkeypatch.setattr(nvrtc, "_compile", lambda *_: pytest.fail("compiled"))
    x = np.ones((4, 4), np.float32)
    graph = td.Graph(lambda x: x @ x, target="cuda:sm_80,sm_120")
    graph.plan(x)
    f = td.Func("f")
    f[()] = td.Tensor("a", (), td.f32)[()] + 1
    for call in (graph.source, td.compile(f, target="cuda:sm_80,sm_120").source):
        with pytest.raises(td.TargetError, match=r"NVRTC 12.0 does not compile for sm_120") as caught:
            call()
        assert 'target="cuda:sm_90a"' in caught.value.hint


@pytest.mark.parametrize("arch, most", [("sm_75", 65536), ("sm_86", 101376)])
def test_shared_memory_beyond_the_device_is_told_with_what_fits(arch, most):
    i, j = td.vars("i j")
    a, f = td.Tensor("a", (256, 256), td.f32), td.Func("f")
    f[i, j] = a[j, i]
    s = td.Schedule(f, target=f"cuda:{arch}")
    block, thread = s[f].split(i, 128)
    s[f].bind(block, "blockIdx.x").bind(thread, "threadIdx.x")
    s.cache_read("a", s[f], at=block, scope="shared")
    with pytest.raises(td.ScheduleError, match=f"131072 bytes of shared memory; {arch} has {most}") as caught:
        _ = td.compile(s, target=f"cuda:{arch}").launch
    assert f"'a_cache' takes 131072 bytes, of which {most} fit" in caught.value.hint
