"""Ten programs whose schedules, loops and kernels are known texts: a change of any stage shows itself.

`pytest tests/test_golden_programs.py --update-golden` writes the texts anew. They are made for
described machines, whatever machine the tests run on.
"""

from dataclasses import replace
from typing import Any

import pytest

import tdsl as td
from tdsl import pipeline
from tdsl.autoschedule.explain import explain
from tdsl.codegen.cpu.executable import text_of
from tdsl.codegen.ir.show import show
from tdsl.codegen.runtime.signature import dense_specialisation
from tdsl.distribute.show import show_rank
from tdsl.machine.cpu import cpu_for
from tdsl.machine.devices import describe_gpu, reference_cpu
from tdsl.target import as_target
from tdsl.variant import Variant

b, c, d, e, h, i, j, k, x, y = td.vars("b c d e h i j k x y")
AVX2, HOPPER = as_target("cpu:avx2"), as_target("cuda:sm_90a")


def described(schedule: Any, target: td.Target = AVX2) -> Variant:
    """The variant of a schedule for a machine that does not depend on where the test runs."""
    compiled = td.compile(schedule, target=target)
    variant = compiled.variant(dense_specialisation(compiled.signature, {}, frozenset()))
    if target is AVX2:
        cpu = cpu_for(AVX2.level)
        machine = replace(reference_cpu(cpu.vector_bytes), features=cpu.has, threads=4)
    else:
        machine = describe_gpu(HOPPER.arch)
    return replace(variant, machine=machine)


def text_of_stages(schedule: Any, target: td.Target = AVX2) -> str:
    """The directives, what was decided, the loops, and the size of the kernel after all passes."""
    variant = described(schedule, target)
    state, decisions = pipeline.completed_with_decisions(variant)
    kernel = pipeline.make_kernel(variant)
    lines = [f"{len(show(kernel).splitlines())} lines of loops"]
    if target is AVX2:
        lines.append(f"{len(text_of(kernel, cpu_for(AVX2.level)).splitlines())} lines of LLVM IR")
    parts = [
        str(schedule) if isinstance(schedule, td.Schedule) else "",
        explain(decisions, state),
        show(pipeline.lower_variant(variant)),
        f"after passes: {', '.join(lines)}",
    ]
    return "\n\n".join(filter(None, parts))


def test_blur_with_a_ring_of_rows(golden):
    a, rows, blur = td.Tensor("a", (66, 96), td.f32), td.Func("rows"), td.Func("blur")
    rows[y, x] = (a[y, x] + a[y, x + 1] + a[y, x + 2]) / 3
    blur[y, x] = (rows[y, x] + rows[y + 1, x] + rows[y + 2, x]) / 3
    s = td.Schedule(blur)
    s[blur].split(y, 16)
    s[blur].parallel("y_o")
    s[blur].vectorize(x, 8)
    s[rows].store_at(blur, "y_o").compute_at(blur, "y_i").fold_storage(y, 4).vectorize(x, 8)
    golden(text_of_stages(s))


def test_a_matrix_product_with_packed_panels(golden):
    a, w, out = (
        td.Tensor("a", (96, 256), td.f32),
        td.Tensor("w", (256, 128), td.f32),
        td.Func("out"),
    )
    out[i, j] = td.sum(a[i, k] * w[k, j], axis=k)
    s = td.Schedule(out)
    io, jo, ii, ji = s[out].tile((i, j), (6, 16))
    s[out].reorder(jo, io, k, ii, ji)
    s[out].unroll(ii)
    s[out].vectorize(ji, 8)
    s.cache_read(w, out, at=jo, pack={1: 16})
    golden(text_of_stages(s))


def softmax(n: int, m: int) -> td.Func:
    a = td.Tensor("a", (n, m), td.f32)
    top, p, total, out = (td.Func(name) for name in ("top", "p", "total", "out"))
    top[i] = td.max(a[i, j], axis=j)
    p[i, j] = td.exp(a[i, j] - top[i])
    total[i] = td.sum(p[i, j], axis=j)
    out[i, j] = p[i, j] / total[i]
    return out


def test_softmax_by_default(golden):
    golden(text_of_stages(softmax(64, 1000)))


def test_a_histogram(golden):
    image, hist = td.Tensor("image", (64, 80), td.u8), td.Func("hist", shape=256)
    r, t = td.range("r", 0, 64), td.range("t", 0, 80)
    hist[i] = td.cast(0, td.i32)
    hist[td.cast(image[r, t], td.i64)] += 1
    golden(text_of_stages(hist))


def test_running_sums_of_rows(golden):
    a, f = td.Tensor("a", (32, 100), td.f32), td.Func("f")
    r = td.range("r", 1, 100)
    f[i, j] = a[i, j]
    f[i, r] = f[i, r - 1] + a[i, r]
    golden(text_of_stages(f.with_shape(32, 100)))


def test_a_convolution_with_bias_and_relu(golden):
    a, w = td.Tensor("a", (1, 16, 18, 18), td.f32), td.Tensor("w", (32, 16, 3, 3), td.f32)
    bias, conv, out = td.Tensor("bias", (32,), td.f32), td.Func("conv"), td.Func("out")
    conv[b, d, y, x] = td.sum(a[b, c, y + i, x + j] * w[d, c, i, j], axis=(c, i, j))
    out[b, d, y, x] = td.maximum(conv[b, d, y, x] + bias[d], 0)
    golden(text_of_stages(out))


def attention(heads: int, rows: int, width: int) -> td.Func:
    q, key, v = (td.Tensor(name, (heads, rows, width), td.f32) for name in ("q", "key", "v"))
    score, top, p, total, out = (td.Func(name) for name in ("score", "top", "p", "total", "out"))
    score[h, i, j] = td.sum(q[h, i, k] * key[h, j, k], axis=k) / 8
    top[h, i] = td.max(score[h, i, j], axis=j)
    p[h, i, j] = td.exp(score[h, i, j] - top[h, i])
    total[h, i] = td.sum(p[h, i, j], axis=j)
    out[h, i, e] = td.sum(p[h, i, j] * v[h, j, e], axis=j) / total[h, i]
    return out


def test_attention_by_default(golden):
    golden(text_of_stages(attention(2, 128, 64)))


def test_a_product_on_tensor_cores(golden):
    a, w = td.Tensor("a", (512, 256), td.f16), td.Tensor("w", (256, 384), td.f16)
    out = td.Func("out")
    out[i, j] = td.sum(a[i, k] * w[k, j], axis=k, dtype=td.f32)
    golden(text_of_stages(out, HOPPER))


def test_a_stencil_on_ranks(golden):
    a, f = td.Tensor("a", (18, 34), td.f64), td.Func("f")
    f[i, j] = a[i, j + 1] + a[i + 2, j + 1] + a[i + 1, j] + a[i + 1, j + 2]
    grid, s = td.Grid(x=2, y=2), td.Schedule(f)
    s.place(a, "rc -> r c", grid).place(f, "rc -> r c", grid)
    s[f].distribute(onto=f)
    plan = td.compile(s, target="python").plan()
    golden("\n\n".join([str(s), str(plan), show_rank(plan.rank(0))]))


@td.op
def scaled(p: td.f32["M", "N"], factor: td.f32):
    out = td.Func("out")
    out[i, j] = p[i, j] * factor
    return out


@td.op
def shifted(p: td.f32["M", "N"], q: td.f32["N"]):
    out = td.Func("out")
    out[i, j] = td.maximum(p[i, j] + q[j], 0)
    return out


def test_a_graph_of_fused_operators(golden):
    graph = td.Graph(lambda p, q: shifted(scaled(p @ p, 0.5), q))
    plan = graph.plan(td.f32[64, 64], td.f32[64])
    kernels = [str(step.program) for step in plan.steps]
    golden("\n\n".join([str(plan), *kernels]))


@pytest.mark.parametrize("program", [softmax(64, 1000), attention(2, 128, 64)], ids=["softmax", "attention"])
def test_texts_are_the_same_each_time(program):
    assert text_of_stages(program) == text_of_stages(program)
