"""Rows of a fragment are reduced by each thread, then by shuffles; all threads of a row keep the result."""

from dataclasses import replace

import numpy as np
import pytest

import tdsl as td
from tdsl.codegen.emulation.run import EmulatedExecutable
from tdsl.codegen.gpu.launches import launches_of
from tdsl.codegen.ir.loops import Block, Kernel, Shuffle, Stmt
from tdsl.codegen.ir.statements import walk
from tests.codegen.cuda import programs

i, j, k = td.vars("i j k")
WARP_ROWS, COLUMNS, TERMS = 16, 40, 32


def softmax_of_product(tensorized: bool = True) -> td.Schedule:
    """Softmax of rows of x @ y.T, of which a warp has 16 in its registers; nothing goes through memory."""
    x, y = (td.Tensor(n, (rows, TERMS), td.f16) for n, rows in (("x", 64), ("y", COLUMNS)))
    score, top, p, total, out = (td.Func(n) for n in ("score", "top", "p", "total", "out"))
    score[i, j] = td.sum(td.cast(x[i, k], td.f32) * td.cast(y[j, k], td.f32), axis=k)
    top[i] = td.max(score[i, j], axis=j)
    p[i, j] = td.exp(score[i, j] - top[i])
    total[i] = td.sum(p[i, j], axis=j)
    out[i, j] = p[i, j] / total[i]
    s = td.Schedule(out)
    block, rest = s[out].split(i, 2 * WARP_ROWS)
    warp, _ = s[out].split(rest, WARP_ROWS)
    s[out].bind(block, "blockIdx.x").bind(warp, "threadIdx.y")
    for f in (total, p, top, score):
        s[f].compute_at(s[out], warp).set_scope("fragment")
    if tensorized:
        mi, nj, i1, j1 = s[score].tile((i, j), (16, 8))
        ko, k1 = s[score].split(k, 16)
        s[score].reorder(ko, mi, nj, i1, j1, k1).tensorize(i1, "mma_m16n8k16_f16_f16")
        s[score].unroll(mi).unroll(nj).unroll(ko)
        for t in (x, y):
            s.cache_read(t, score, at=ko, scope="fragment").cooperate()
    for f in (top, p, total):
        s[f].cooperate()
    s[out].cooperate(2)
    return s


def operands():
    rng = np.random.default_rng(0)
    return [rng.standard_normal((n, TERMS)).astype(np.float16) for n in (64, COLUMNS)]


def expected(x, y):
    z = x.astype(np.float32) @ y.astype(np.float32).T
    e = np.exp(z - z.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def test_softmax_of_a_product_in_registers():
    x, y = operands()
    compiled = td.compile(softmax_of_product(), target="cuda:sm_80")
    assert "# shared" not in compiled.loops("final")
    np.testing.assert_allclose(td.emulate(compiled)(x, y), expected(x, y), rtol=1e-5)


def test_text_of_softmax_in_registers():
    pytest.importorskip("tvm", reason='pip install "tdsl[cuda]"')
    from tests.codegen.cuda.shim import HAS_COMPILER, text_of

    if not HAS_COMPILER:
        pytest.skip("g++ runs the text")
    x, y = operands()
    compiled = td.compile(softmax_of_product(), target="cuda:sm_80")
    np.testing.assert_allclose(text_of(compiled)(x, y), expected(x, y), rtol=1e-5)


def test_a_row_is_passed_on_among_the_threads_that_have_a_part_of_it(tmp_path):
    pytest.importorskip("tvm", reason='pip install "tdsl[cuda]"')
    from tdsl.codegen.cuda import module
    from tests.codegen.cuda.test_module import count, sass

    built = module.build(launches_of(programs.kernel_of(softmax_of_product())), "sm_80")
    (record,) = built.kernels
    assert (record.block, record.spills, record.stack) == ((32, 2, 1), 0, 0)
    text = sass(built, tmp_path)
    assert count(text, r"\bSHFL") == 2 * 2 * 2  # distances, rows of a thread, maximum and sum
    assert count(text, r"\bHMMA\b") == COLUMNS // 8 * (TERMS // 16)


def test_a_missing_shuffle_is_a_hazard():
    whole = programs.kernel_of(softmax_of_product())
    first = next(s for s in walk(whole.body) if isinstance(s, Shuffle))

    def without(s: Stmt) -> Stmt:
        if not isinstance(s, Block) or first not in s.body:
            return s
        at = s.body.index(first)  # and the statement that combines what it has brought
        return replace(s, body=s.body[:at] + s.body[at + 2 :])

    broken: Kernel = replace(whole, body=programs.map_statements(whole.body, without))
    with pytest.raises(td.Hazard, match="and another one keep different values of"):
        EmulatedExecutable(broken).run([*operands(), np.zeros((64, COLUMNS), np.float32)])


def test_what_no_instruction_lays_out_is_refused():
    with pytest.raises(td.ScheduleError, match="no instruction says"):
        softmax_of_product(tensorized=False)
