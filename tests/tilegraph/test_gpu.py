"""What the search makes for a GPU: right, within the limits of the device, moving what it needs."""

import numpy as np
import pytest

import tdsl as td
from tdsl.lang.interp import interpret
from tdsl.target import Target
from tdsl.tilegraph.search import candidates
from tests.tilegraph.chains import CHAINS

GPU = Target("cuda")


def attention_of(dtype):
    """Attention with operands of a type and sums in f32."""

    @td.op
    def attention(q: dtype["B", "Q", "D"], k: dtype["B", "S", "D"], v: dtype["B", "S", "E"]):
        b, i, j, d, e = td.vars("b i j d e")
        score, top, p, total, out = (td.Func(n) for n in ("score", "top", "p", "total", "out"))
        score[b, i, j] = td.sum(td.cast(q[b, i, d], td.f32) * td.cast(k[b, j, d], td.f32), axis=d) / 8
        top[b, i] = td.max(score[b, i, j], axis=j)
        p[b, i, j] = td.exp(score[b, i, j] - top[b, i])
        total[b, i] = td.sum(p[b, i, j], axis=j)
        weight = td.cast(td.cast(p[b, i, j], dtype), td.f32)
        out[b, i, e] = td.sum(weight * td.cast(v[b, j, e], td.f32), axis=j) / total[b, i]
        return out

    return attention


@pytest.mark.in_part(4)
@pytest.mark.parametrize("terms", [1000, 4096, 8191, 65_536])
@pytest.mark.parametrize("depth", [64, 128])
@pytest.mark.parametrize("dtype", [td.f16, td.f32], ids=str)
def test_attention_reads_keys_and_values_once_for_each_block_of_rows(dtype, depth, terms):
    heads, queries = 16, 2048
    s = attention_of(dtype).autoschedule(B=heads, Q=queries, S=terms, D=depth, E=depth, target="cuda")
    rows = next(dict(d.arguments)["factor"] for d in s.directives if d.name == "split")
    both = 2 * heads * terms * depth * dtype.bytes
    others = heads * queries * depth * (dtype.bytes + 4)  # queries are read, results written
    assert rows >= 64
    assert s.traffic("global") <= 1.2 * (others + -(-queries // rows) * both)
    assert s.footprint("shared") <= GPU.capacity("shared")


@pytest.mark.in_part(4)
@pytest.mark.parametrize("name", CHAINS)
def test_the_best_for_a_chain_is_right_and_fits(name):
    program = td.Schedule(*CHAINS[name](12)).program
    rng = np.random.default_rng(0)
    given = {
        t.name: rng.standard_normal([n.value for n in t.shape]).astype(np.float32) for t in program.inputs
    }
    best = candidates(program, {}, GPU)[0].schedule
    assert best.footprint("shared") <= GPU.capacity("shared")
    got = td.emulate(td.compile(best, target="cuda"))(**given)
    want = interpret(program, given)
    for mine, expected in zip(got if isinstance(got, tuple) else (got,), want, strict=True):
        np.testing.assert_allclose(mine, expected, rtol=2e-4, atol=2e-5)


@pytest.mark.in_part(1)
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_machine_code_of_the_best_candidates_spills_nothing(arch):
    pytest.importorskip("tvm", reason='pip install "tdsl[cuda]"')
    sizes = {"B": 16, "Q": 2048, "S": 4096, "D": 64, "E": 64}
    target = f"cuda:{arch}"
    s = attention_of(td.f16).autoschedule(**sizes, target=target)
    for kernel in td.compile(s, target=target).launch.kernels:
        assert (kernel.spills, kernel.stack) == (0, 0)
        assert kernel.used_shared <= td.Target("cuda", arch=arch).capacity("shared")


@pytest.mark.parametrize("causal", [False, True])
def test_attention_streams_over_its_terms_with_a_mask_as_without(causal):
    b, i, j, d, e = td.vars("b i j d e")
    q, k, v = (td.Tensor(n, (16, 2048, 64), td.f16) for n in "qkv")
    dot, score, top, p, total, out = (td.Func(n) for n in ("dot", "score", "top", "p", "total", "out"))
    dot[b, i, j] = td.sum(td.cast(q[b, i, d], td.f32) * td.cast(k[b, j, d], td.f32), axis=d)
    score[b, i, j] = td.where(j <= i, dot[b, i, j], -np.inf) if causal else dot[b, i, j]
    top[b, i] = td.max(score[b, i, j], axis=j)
    p[b, i, j] = td.exp(score[b, i, j] - top[b, i])
    total[b, i] = td.sum(p[b, i, j], axis=j)
    weight = td.cast(td.cast(p[b, i, j], td.f16), td.f32)
    out[b, i, e] = td.sum(weight * td.cast(v[b, j, e], td.f32), axis=j) / total[b, i]
    best = candidates(td.Schedule(out).program, {}, GPU)[0]
    assert best.label in ("default", "online out_sum")  # what the default does, too
    assert any(d.name == "online" for d in best.schedule.directives)
    assert best.seconds < (2.5e-5 if causal else 4e-5)
