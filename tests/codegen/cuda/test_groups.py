"""Memory and barriers of groups of threads; results of products that go through it to memory in rows."""

import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

import tdsl as td
from tdsl.codegen.emulation.memory import Hazard
from tdsl.codegen.emulation.run import EmulatedExecutable
from tdsl.codegen.gpu.launches import launches_of
from tdsl.codegen.ir.loops import SHARED, Alloc, Barrier, Block, Kernel, Stmt
from tdsl.codegen.ir.statements import walk
from tests.codegen.cuda import programs

pytest.importorskip("tvm", reason='pip install "tdsl[cuda]"')
from tdsl.codegen.cuda import module
from tests.codegen.cuda.shim import HAS_COMPILER, text_of
from tests.codegen.cuda.test_module import count, sass

i, j, k = td.vars("i j k")


def turned(scope: str, *, across: bool = False) -> td.Schedule:
    """Each row the other way round, or with `across`, the one on the other side."""
    a, f = td.Tensor("a", (8, 32), td.i32), td.Func("f")
    f[i, j] = a[7 - i if across else i, 31 - j]
    s = td.Schedule(f)
    block, row = s[f].split(i, 8)
    s[f].bind(block, "blockIdx.x").bind(row, "threadIdx.y").bind(j, "threadIdx.x")
    if scope == "group":
        tile = s.cache_read(a, f, at=row, scope=scope)
        tile.bind(tile.loops[-1], "threadIdx.x")
    else:
        s.cache_read(a, f, at=j, scope=scope).cooperate()
    return s


def layer(m: int, n: int, p: int, *, to: td.DType, **choices: object) -> td.Schedule:
    """A product in bf16, and what is made of each of its sums."""
    a, b, total = td.Tensor("a", (m, n), td.bf16), td.Tensor("b", (n, p), td.bf16), td.Func("total")
    total[i, j] = td.sum(td.cast(a[i, k], td.f32) * td.cast(b[k, j], td.f32), axis=k)
    out = td.Func("out")
    out[i, j] = td.cast(td.maximum(total[i, j], 0), to)
    s = td.Schedule(out)
    td.recipes.tensor_core_matmul(
        s[total],
        **{"block": (128, 64, 64), "warp": (64, 64), "stages": 2, "warpgroups": True} | choices,
    )
    return s


def operands(m: int, n: int, p: int, to: td.DType):
    numbers = np.random.default_rng(0)
    a, b = (numbers.integers(-3, 4, x).astype(td.bf16.numpy) for x in ((m, n), (n, p)))
    want = np.maximum(a.astype(np.float32) @ b.astype(np.float32), 0)
    return (a, b), want.astype(to.numpy)


@pytest.mark.parametrize("to", [td.bf16, td.f32], ids=str)
@pytest.mark.parametrize("blocks", [0, 1])
def test_results_go_to_memory_in_rows(to, blocks):
    s = layer(256, 128, 64, to=to, blocks=blocks)
    given, want = operands(256, 128, 64, to)
    np.testing.assert_array_equal(td.emulate(td.compile(s, target="cuda"))(*given), want, strict=True)
    kernel = programs.kernel_of(s)
    (tile,) = (x for x in walk(kernel.body) if isinstance(x, Alloc) and x.name.startswith("out"))
    padded = to is td.f32  # threads store 8 bytes each
    assert (tile.scope, tile.swizzle) == (SHARED, 0 if padded else 128)
    assert [int(e.value) for e in tile.extents] == [2, 64, 40 if padded else 64]
    assert all(x.group for x in walk(kernel.body) if isinstance(x, Barrier))


@pytest.mark.skipif(not HAS_COMPILER, reason="g++ runs the text")
def test_text_of_results_in_rows():
    s = layer(256, 128, 64, to=td.bf16, blocks=1)
    given, want = operands(256, 128, 64, td.bf16)
    np.testing.assert_array_equal(text_of(td.compile(s, target="cuda"))(*given), want, strict=True)


def test_sizes_that_tiles_do_not_divide_go_to_memory_in_rows():
    s = layer(100, 128, 72, to=td.bf16)
    given, want = operands(100, 128, 72, td.bf16)
    np.testing.assert_array_equal(td.emulate(td.compile(s, target="cuda"))(*given), want, strict=True)
    assert "barrier(group)" in td.compile(s, target="cuda").loops("final")


@pytest.mark.parametrize("to", [td.bf16, td.f32], ids=str)
def test_machine_code_writes_16_bytes_at_a_time(to, tmp_path):
    choices = {"block": (128, 256, 64), "warp": (64, 256), "stages": 4, "group": 8, "blocks": 128}
    m = module.build(launches_of(programs.kernel_of(layer(4096, 4096, 4096, to=to, **choices))), "sm_90a")
    (record,) = m.kernels
    assert (record.spills, record.stack, m.warnings) == (0, 0, ())
    assert record.registers <= 168  # what 384 threads may have
    text = sass(m, tmp_path)
    parts = 256 * to.bytes // 128
    assert count(text, r"\bSTG\.E\.128") == count(text, r"\bSTG\b") == parts * 4
    assert count(text, r"\bLDS\.128") == count(text, r"\bLDS\b") == parts * 4
    assert count(text, r"\bSTS\b") == 64 * 256 // 128 // 2
    assert count(text, r"\bBAR\b") == 2 + 2 * parts  # where phases are made ready, and around each part
    words = re.findall(r"\b(HGMMA|WARPGROUP\.DEPBAR\.LE gsb0, 0x\d|STG)\b", text)
    first = words.index("HGMMA")
    assert words[first:].index("STG") > words[first:].index("WARPGROUP.DEPBAR.LE gsb0, 0x0")


def with_changed_statements(kernel: Kernel, change: Callable[[Stmt], Stmt]) -> Kernel:
    return replace(kernel, body=programs.map_statements(kernel.body, change))


def test_a_missing_group_barrier_is_a_hazard():
    kernel = programs.kernel_of(layer(256, 128, 64, to=td.f32, blocks=1))
    total = sum(isinstance(s, Barrier) for s in walk(kernel.body))
    assert total == 2
    (a, b), want = operands(256, 128, 64, td.f32)
    for n in range(total):
        seen = iter(range(total))
        left = with_changed_statements(
            kernel,
            lambda s, n=n, seen=seen: Block(()) if isinstance(s, Barrier) and next(seen) == n else s,
        )
        with pytest.raises(Hazard, match="what another thread"):
            EmulatedExecutable(left).run((a, b, np.zeros_like(want)))


@pytest.mark.parametrize("scope", ["group", "shared"])
def test_rows_of_threads_have_separate_memory(scope, rng):
    s, x = turned(scope), rng.integers(0, 99, (8, 32), np.int32)
    compiled = td.compile(s, target="cuda")
    np.testing.assert_array_equal(td.emulate(compiled)(x), x[:, ::-1])
    if HAS_COMPILER:
        np.testing.assert_array_equal(text_of(compiled)(x), x[:, ::-1])


def test_a_group_barrier_does_not_order_other_groups(rng):
    def weak(s: Stmt) -> Stmt:
        return Barrier(group=True) if isinstance(s, Barrier) else s

    x, got = rng.integers(0, 99, (8, 32), np.int32), np.zeros((8, 32), np.int32)
    others = programs.kernel_of(turned("shared", across=True))
    EmulatedExecutable(others).run((x, got))
    np.testing.assert_array_equal(got, x[::-1, ::-1])
    with pytest.raises(Hazard, match="reads what another thread"):
        EmulatedExecutable(with_changed_statements(others, weak)).run((x, got))
    kernel = programs.kernel_of(turned("group"))
    EmulatedExecutable(with_changed_statements(kernel, weak)).run((x, got))
    np.testing.assert_array_equal(got, x[:, ::-1])
