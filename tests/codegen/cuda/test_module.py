"""CUDA text and machine code: what is in them, that they are the same each time, and that they are kept."""

import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from math import prod
from pathlib import Path

import pytest

import tdsl as td
from tdsl.autoschedule.recipes.grid import share_points
from tdsl.codegen.cuda import module, nvrtc
from tdsl.codegen.cuda.sass import disassemble
from tdsl.codegen.gpu.launches import launches_of
from tdsl.lang.types import ALL
from tdsl.machine.devices import describe_gpu
from tests.autoschedule.recipes.test_block_conv import PROGRAMS as CONVOLUTIONS
from tests.autoschedule.recipes.test_block_rows import scheduled, times_a_vector
from tests.autoschedule.recipes.test_blocks import dense_layer
from tests.codegen.cuda import programs
from tests.tilegraph.test_windows_on_gpus import PROGRAMS as WINDOWS

tvm = pytest.importorskip("tvm", reason='pip install "tdsl[cuda]"')

i, j, k = td.vars("i j k")


def build(s: td.Schedule, arch: str = "sm_90a", **sizes: int) -> module.Module:
    return module.build(launches_of(programs.kernel_of(s, **sizes)), arch)


def sass(m: module.Module, _: Path) -> str:
    """The instructions, as NVIDIA's disassembler shows them."""
    return disassemble(m.code)


def count(text: str, pattern: str) -> int:
    return len(re.findall(pattern, text))


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_a_matmul_has_wide_loads_and_a_product_for_each_sum(arch, tmp_path):
    a, b, c = td.Tensor("a", (256, 64), td.f32), td.Tensor("b", (64, 256), td.f32), td.Func("c")
    c[i, j] = td.sum(a[i, k] * b[k, j], axis=k)
    s = td.Schedule(c)
    io, jo, ii, ji = s[c].tile((i, j), (64, 64))
    ty, tx, i0, j0 = s[c].tile((ii, ji), (4, 4))
    ko, ki = s[c].split(k, 16)
    s[c].reorder(io, jo, ty, tx, ko, ki, i0, j0)
    s[c].bind(io, "blockIdx.y").bind(jo, "blockIdx.x").bind(ty, "threadIdx.y").bind(tx, "threadIdx.x")
    s.cache_write(c, at=tx, scope="register")
    for t in (a, b):
        s.cache_read(t, c, at=ko, scope="shared").cooperate(4)
    s[c].unroll(i0).unroll(j0).unroll(ki)
    m = build(s, arch)
    (kernel,) = m.kernels
    assert (kernel.grid, kernel.block, kernel.shared) == ((4, 4, 1), (16, 16, 1), 0)
    assert (kernel.spills, kernel.stack, kernel.used_shared) == (0, 0, 2 * 64 * 16 * 4)
    text = sass(m, tmp_path)
    assert count(text, r"\bFFMA\b") == 4 * 4 * 16
    assert count(text, r"\bLDG\.E\.128") == 2
    assert count(text, r"\bSTS\.128") == 2
    assert count(text, r"\bBAR\.SYNC") == 2


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_threads_combine_sums_by_shuffles(arch, tmp_path):
    a, f = td.Tensor("a", (64, 4096), td.f32), td.Func("f")
    f[i] = td.sum(a[i, k], axis=k)
    s = td.Schedule(f)
    _, thread = s[f].split(k, 256)
    s[f].bind(i, "blockIdx.x").bind(thread, "threadIdx.x")
    m = build(s, arch)
    (kernel,) = m.kernels
    assert (kernel.spills, kernel.stack, kernel.used_shared) == (0, 0, 32)
    text = sass(m, tmp_path)
    assert count(text, r"\bSHFL\.BFLY") == 5 + 3
    assert count(text, r"\bBAR\.SYNC") == 1


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("stages", [2, 3, 4])
def test_a_pipelined_matmul_copies_asynchronously(arch, stages, tmp_path):
    m = build(programs.matmul(td.f32, stages=stages), arch, M=256, K=64, N=256)
    (kernel,) = m.kernels
    assert (kernel.spills, kernel.stack) == (0, 0)
    assert kernel.used_shared == stages * (16 * 8 + 8 * 32) * 4
    text = sass(m, tmp_path)
    copies = count(text, r"\bLDGSTS\.E\.BYPASS\.128")
    assert copies >= 2 * stages and copies % 2 == 0  # both tiles, before the loop and in its copies
    assert count(text, r"\bLDG\b") == count(text, r"\bSTS\b") == 0
    assert count(text, r"\bDEPBAR\.LE SB0") == count(text, r"\bBAR\.SYNC") > 0


def test_atomic_sums_use_reductions_without_a_result(tmp_path):
    c, _ = dense_layer(256, 256, 256)
    s = td.Schedule(c)
    part, _ = s[c].split(k, nparts=4)
    partial = s[c].rfactor(part)
    total = s[c].atomic()
    share_points(s[c], ("i", "j"), 256, 1)
    rows, columns, row, column = total.tile((i, j), (16, 16))
    total.reorder(part.name, rows, columns, row, column)
    total.bind(part.name, "blockIdx.z").bind(rows, "blockIdx.y").bind(columns, "blockIdx.x")
    total.bind(row, "threadIdx.y").bind(column, "threadIdx.x")
    partial.compute_at(total, column).set_scope("register")
    m = build(s)
    assert [(x.spills, x.stack) for x in m.kernels] == [(0, 0)] * 2
    text = sass(m, tmp_path)
    assert count(text, r"\bRED(G)?\.E\.ADD") == 1 and not re.search(r"\bATOM", text)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("parts", [1, 4])
def test_layers_in_tiles_keep_their_sums_in_registers(parts, arch, tmp_path):
    c, y = dense_layer(4096, 4096, 4096)
    s = td.Schedule(y)
    plan = td.recipes.block_tiles(s[c], machine=describe_gpu(arch), parts=parts)
    m = build(s, arch)
    assert all((x.spills, x.stack) == (0, 0) for x in m.kernels)
    text = sass(m, tmp_path)
    each = prod(cut.each for cut in plan.cuts)
    assert count(text, r"\bFFMA\b") % each == 0 and count(text, r"\bFFMA\b") >= each
    assert count(text, r"\bLDGSTS\.E\.BYPASS\.128") > 0
    assert count(text, r"\bSTG\b") == count(text, r"\bSTG\.E\.128") >= each // 4


ROWS = {"softmax": (1, 2), "layer norm": (3, 2), "log-sum-exp": (1, 2)}  # arrays read, reductions


@pytest.mark.in_part(4)
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("length", [256, 4096])
def test_rows_are_read_once_and_stay_in_registers(name, length, arch, tmp_path):
    arrays, reductions = ROWS[name]
    s, plan = scheduled(name, 4096, length)
    m = build(s, arch)
    (kernel,) = m.kernels
    assert (kernel.spills, kernel.stack) == (0, 0)
    text = sass(m, tmp_path)
    each = length // (4 * plan.threads)
    assert each * arrays <= count(text, r"\bLDG\.E\.128") <= each * arrays + 1
    assert count(text, r"\bLDG") == count(text, r"\bLDG\.E\.128")
    assert count(text, r"\bSTG\.E\.128") == (0 if name == "log-sum-exp" else each)
    assert count(text, r"\bBAR\.SYNC") == (0 if length == 256 else reductions)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_long_rows_times_a_vector_leave_registers_for_other_blocks(arch, tmp_path):
    """Eight terms of both are on their way at a time; a compiler left alone has all 32 of them."""
    y = times_a_vector(4096, 4096)
    s = td.Schedule(y)
    td.recipes.block_rows(s[y])
    m = build(s, arch)
    (kernel,) = m.kernels
    assert (kernel.spills, kernel.stack) == (0, 0) and kernel.registers <= 96
    text = sass(m, tmp_path)
    assert count(text, r"\bLDG\.E\.128") == count(text, r"\bLDG") == 16


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("length, wide", [(3, 0), (8, 1), (17, 0)])
def test_short_rows_are_loaded_once_by_neighbours(length, wide, arch, tmp_path):
    s, plan = scheduled("softmax", 10_000, length)
    m = build(s, arch)
    (kernel,) = m.kernels
    assert (kernel.spills, kernel.stack) == (0, 0)
    text = sass(m, tmp_path)
    each = -(-length // (plan.threads * plan.vector))
    assert count(text, r"\bLDG") == count(text, r"\bSTG") == each <= 2
    assert count(text, r"\bLDG\.E\.128") == count(text, r"\bSTG\.E\.128") == wide


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("shape", [(1000, 3), (80, 33), (10, 4, 8, 3)])
def test_rows_that_follow_each_other_are_accesses_of_16_bytes(shape, arch, tmp_path):
    at = td.vars("i j k t")[: len(shape)]
    a, f = td.Tensor("a", shape, td.f16), td.Func("f")
    f[at] = a[at] * 2
    s = td.Schedule(f)
    td.recipes.elements(s[f])
    m = build(s, arch)
    assert (m.kernels[0].spills, m.kernels[0].stack) == (0, 0)
    text = sass(m, tmp_path)
    assert count(text, r"\bLDG\.E\.128") == count(text, r"\bLDG") == 1
    assert count(text, r"\bSTG\.E\.128") == count(text, r"\bSTG") == 1


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_a_transpose_loads_and_stores_vectors_and_needs_no_barrier(arch, tmp_path):
    a, f = td.Tensor("a", (4096, 2048), td.f32), td.Func("f")
    f[i, j] = a[j, i]
    s = td.Schedule(f)
    td.recipes.block_transpose(s[f])
    m = build(s, arch)
    (kernel,) = m.kernels
    assert (kernel.spills, kernel.used_shared) == (0, 0)
    text = sass(m, tmp_path)
    for name in ("LDG", "STG"):
        assert count(text, rf"\b{name}\b") == count(text, rf"\b{name}\.E\.128") > 0
    assert [count(text, rf"\b{name}\b") for name in ("STS", "LDS", "BAR")] == [0, 0, 0]


@pytest.mark.parametrize("producer", [False, True])
def test_tiles_are_copied_by_tma(producer, tmp_path):
    m = build(programs.matmul(td.f32, stages=3, bulk=True, producer=producer), M=256, K=512, N=256)
    (kernel,) = m.kernels
    assert (kernel.spills, kernel.stack) == (0, 0)
    assert [(x.array, x.shape, x.box) for x in kernel.maps] == [
        ("a", (256, 512), (16, 8)),
        ("b", (512, 256), (8, 32)),
    ]
    assert module.unpack(module.pack(m)) == m
    text = sass(m, tmp_path)
    assert count(text, r"\bUTMALDG\.2D") >= 2
    assert count(text, r"\bSYNCS\.PHASECHK") > 0
    assert count(text, r"\bLDG\b") == count(text, r"\bSTS\b") == 0


def test_more_blocks_at_a_time_leave_fewer_registers():
    used = []
    for blocks in (1, 2, 3):
        c, y = dense_layer(4096, 4096, 4096)
        s = td.Schedule(y)
        threads = td.recipes.block_tiles(s[c], machine=describe_gpu("sm_75")).threads  # three fit an H100
        s[c].launch_bounds(blocks)
        m = build(s)
        assert f"__launch_bounds__({threads}, {blocks})" in m.source
        used.append(m.kernels[0].registers)
    assert 65536 // threads >= used[0] >= used[1] > used[2]
    assert all(threads * count * blocks <= 65536 for count, blocks in zip(used, (1, 2, 3), strict=True))


@pytest.mark.in_part(2)
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("name", ["blur", "filter", "sharpen"])
def test_windows_are_read_from_shared_memory(name, arch, tmp_path):
    m = build(td.Schedule(WINDOWS[name](1024, 2048)), arch)
    (kernel,) = m.kernels
    assert (kernel.spills, kernel.stack) == (0, 0)
    text = sass(m, tmp_path)
    stores = count(text, r"\bSTG\b")
    assert stores == count(text, r"\bSTG\.E\.128") > 0
    assert count(text, r"\bLDS\.128") > 0
    if name == "filter":  # of each of the elements of a thread 15 products
        assert count(text, r"\bFFMA\b") == 4 * stores * 15


@pytest.mark.in_part(2)
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("name", ["first", "last", "steps"])
def test_convolutions_keep_their_sums_in_registers(name, arch, tmp_path):
    s = td.Schedule(CONVOLUTIONS[name](8, 64, 128, 28, 32), target=td.Target("cuda", arch=arch))
    plan = td.recipes.block_conv(s["f"])
    m = build(s, arch)
    assert all((kernel.spills, kernel.stack) == (0, 0) for kernel in m.kernels)
    text = sass(m, tmp_path)
    each = prod(c.each for c in plan.cuts)
    assert count(text, r"\bFFMA\b") == each * (24 if name == "last" else 9)  # terms in one piece of code
    stores = each // plan.vector
    assert count(text, r"\bSTG\b") == stores
    assert count(text, r"\bSTG\.E\.128") == (stores if plan.vector == 4 else 0)


def test_vectors_are_loaded_and_stored_as_wholes(tmp_path):
    text = sass(build(programs.scaled(), N=4096), tmp_path)
    assert count(text, r"\bLDG\.E\.128") == count(text, r"\bSTG\.E\.128") == 1


@pytest.mark.parametrize("dtype", [td.f16, td.bf16, td.f8e4m3, td.i8])
def test_tiles_of_narrow_types_compile(dtype):
    m = build(programs.matmul(dtype), M=32, K=16, N=64)
    assert all(x.spills == 0 for x in m.kernels)


def test_arrays_of_every_type_compile():
    funcs = []
    for t in ALL:
        a, f = td.Tensor(f"a_{t}", (64, 32), t), td.Func(f"f_{t}")
        f[j, i] = a[i, j]
        funcs.append(f)
    s = td.Schedule(*funcs)
    for f in funcs:
        lanes = s[f].vectorize(i, 4).loops[0]
        s[f].bind(lanes, "blockIdx.x")  # stages of one block share a kernel
    assert len(build(s).kernels) == len(funcs)


EXPRESSIONS = {
    "floats": lambda x, n: td.exp(x) + td.tanh(x) * td.erf(x) - td.rsqrt(td.absolute(x)) + td.sigmoid(x),
    "tests": lambda x, n: td.where(td.isnan(x) | td.isinf(x), 0, td.floor(x) % 3),
    "extremes": lambda x, n: td.minimum(td.maximum(x, -1), td.power(x, 2)),
    "halves": lambda x, n: td.cast(td.cast(x, td.f16) * td.cast(x, td.f16), td.f32),
    "brain": lambda x, n: td.cast(td.cast(x, td.bf16) + 1, td.f32),
    "bytes": lambda x, n: td.cast(td.cast(x, td.f8e4m3) + 1, td.f8e5m2) * td.cast(1, td.f8e5m2) + x,
    "integers": lambda x, n: td.cast(n // 3 + n % -7 + (n << 2) + (n >> 1), td.f32),
    "bits": lambda x, n: td.cast(td.popcount(n) + td.count_leading_zeros(n) * ~n, td.f32),
    "casts": lambda x, n: td.cast(td.saturating_cast(n, td.i8), td.f32) + td.cast(td.cast(x, td.u8), td.f32),
    "numbers": lambda x, n: td.random(3, td.cast(n, td.i64)) + td.cast(td.reinterpret(x, td.i32), td.f32),
    "powers": lambda x, n: td.cast(n**3, td.f32) + td.arctan2(x, 2) + td.hypot(x, 1),
    "infinite": lambda x, n: td.where(x > 0, float("inf"), float("nan")) + td.copysign(x, -1),
}


def test_every_kind_of_arithmetic_compiles():
    x, n = td.Tensor("x", (64,), td.f32), td.Tensor("n", (64,), td.i32)
    funcs = [td.Func(name) for name in EXPRESSIONS]
    for f, expression in zip(funcs, EXPRESSIONS.values(), strict=True):
        f[i] = expression(x[i], n[i])
    s = td.Schedule(*funcs)
    for f in funcs:
        blocks, threads = s[f].split(i, 32)
        s[f].bind(blocks, "blockIdx.x").bind(threads, "threadIdx.x")
    kernels = build(s).kernels
    assert len(kernels) == len(EXPRESSIONS)
    assert {x.block for x in kernels} == {(32, 1, 1)}


def test_large_shared_memory_is_requested_at_the_launch():
    a, f = td.Tensor("a", (128, 512), td.f32), td.Func("f")
    f[i, j] = a[i, 511 - j]
    s = td.Schedule(f)
    block, row = s[f].split(i, 32)
    s[f].bind(block, "blockIdx.x").bind(row, "threadIdx.y")
    _, lane = s[f].split(j, 32)
    s[f].bind(lane, "threadIdx.x")
    s.cache_read(a, f, at=row, scope="shared").cooperate(4)
    (kernel,) = build(s).kernels
    assert kernel.shared == kernel.used_shared == 32 * 512 * 4


def test_text_and_machine_code_are_the_same_each_time():
    first, again = (build(programs.matmul(), M=100, K=30, N=70) for _ in range(2))
    assert first == again


CHILD = """
import hashlib, sys
from tdsl.codegen.runtime import cache
from tests.codegen.cuda import programs
import tdsl as td
f = td.compile(programs.matmul(td.f16, 8, 3, bulk=True), target="cuda", M=32, K=16, N=64)
module = f.launch
digest = hashlib.sha256(module.source.encode() + module.code).hexdigest()
print(digest, cache.info().hits, bool({"tvm", "cuda"} & set(sys.modules)))
"""


def test_a_second_process_uses_the_cache(tmp_path):
    shown = []
    for seed, folder in enumerate(("one", "one", "other")):
        variables = {"PYTHONHASHSEED": str(seed), "TDSL_CACHE_DIR": str(tmp_path / folder)}
        command = [sys.executable, "-c", CHILD]
        done = subprocess.run(
            command, capture_output=True, text=True, check=True, env={**os.environ, **variables}
        )
        shown.append(done.stdout.split())
    digest = shown[0][0]
    assert shown == [[digest, "0", "True"], [digest, "1", "False"], [digest, "0", "True"]]


def test_a_rejected_text_is_an_error_with_its_line():
    with pytest.raises(td.TargetError, match=r"NVRTC rejects .* expected") as caught:
        nvrtc.compile_text("\n" * 50 + 'extern "C" __global__ void k() { int x = }', "sm_80")
    (note,) = caught.value.__notes__
    assert ">  51 | extern" in note
    assert len(note.splitlines()) < 10, "the lines around it, not the whole text"
    assert "td.instruction" in caught.value.hint


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs a CUDA toolkit")
def test_nvcc_compiles_if_selected(monkeypatch):
    monkeypatch.setenv("TDSL_CUDA_COMPILER", "nvcc")
    m = build(programs.scaled(), N=4096)
    assert m.code.startswith(b"\x7fELF")
    assert m.kernels[0].registers > 0
    f = td.compile(programs.scaled(), target="cuda:sm_80", N=4096)
    assert ".target sm_80" in f.source("ptx")
    with pytest.raises(td.TargetError, match=r"nvcc rejects .* expected"):
        nvrtc.compile_text('extern "C" __global__ void k() { int x = }', "sm_80")


def test_the_cache_distinguishes_compilers(tmp_path, monkeypatch):
    before = module._tool_versions()
    fake = tmp_path / "nvcc"
    fake.write_text("#!/bin/sh\necho release 1.0\n")
    fake.chmod(0o755)
    monkeypatch.setenv("TDSL_CUDA_COMPILER", str(fake))
    assert module._tool_versions() != before


def test_another_version_of_tvm_is_refused(monkeypatch):
    monkeypatch.setattr(module, "tvm_version", lambda: "0.26.0")
    with pytest.raises(td.TargetError, match=r"need apache-tvm 0\.27\.0\.post1, not 0\.26\.0"):
        module.require_tvm()


def test_a_module_is_what_its_bytes_say():
    m = build(programs.scaled(), N=100)
    assert module.unpack(module.pack(m)) == m
    assert module.unpack(module.pack(replace(m, warnings=("C7510",)))) != m
