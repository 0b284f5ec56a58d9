"""What `explain` says of edges: each has one line, and its numbers are those of the prediction."""

import re

import pytest

import tdsl as td
from tdsl.autoschedule.edges import _reads
from tdsl.autoschedule.explain import explain
from tdsl.machine.devices import describe_gpu
from tdsl.schedule.fluent import EDITED
from tdsl.tilegraph.default import decide
from tests.tilegraph.operators import attention, softmax

i, j, k, h = td.vars("i j k h")


@td.op
def two_products(x: td.f32["M", "K"], w: td.f32["K", "H"], u: td.f32["H", "N"]):
    pre, y = td.Func("pre"), td.Func("y")
    pre[i, h] = td.maximum(td.sum(x[i, k] * w[k, h], axis=k), 0)
    y[i, j] = td.sum(pre[i, h] * u[h, j], axis=h)
    return y


@td.op
def twice_blurred(x: td.f32["H", "W"]):
    rows, both, out = td.Func("rows"), td.Func("both"), td.Func("out")
    rows[i, j] = x[i, j] + x[i, j + 1] + x[i, j + 2]
    both[i, j] = rows[i, j] + rows[i + 1, j] + rows[i + 2, j]
    out[i, j] = td.exp(both[i, j]) + both[i, j + 1]
    return out


@td.op
def running(x: td.f32["M", "N"]):
    r = td.range("r", 1, x.shape[1])
    c, out = td.Func("c"), td.Func("out")
    c[i, j] = td.exp(x[i, j])
    c[i, r] += c[i, r - 1]
    out[i, j] = c[i, j] / (1 + x[i, j])
    return out


PROGRAMS = {
    "attention": (attention, {"Q": 128, "S": 128, "D": 32}),
    "softmax": (softmax, {"M": 256, "N": 500}),
    "two products": (two_products, {"M": 256, "K": 64, "H": 128, "N": 64}),
    "stencils": (twice_blurred, {"H": 258, "W": 258}),
    "sums on the way": (running, {"M": 512, "N": 256}),
}


def edges_of(text: str) -> list[tuple[str, str]]:
    """The edges that lines are about."""
    matches = (re.match(r"(\w+) -> ([\w, ]+):", line) for line in text.splitlines())
    return [(m[1], reader) for m in matches if m for reader in m[2].split(", ")]


@pytest.mark.in_part(10)
@pytest.mark.parametrize("target", ["cpu", "cuda"])
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("searched", [False, True], ids=["by default", "found"])
def test_each_edge_has_one_line(name: str, target: str, searched: bool) -> None:
    op, sizes = PROGRAMS[name]
    s = (op.autoschedule if searched else op.schedule)(target=target, **sizes)
    p, edges = s.prediction(), edges_of(str(s.explain()))
    assert len(edges) == len(set(edges))
    program = p.state.program
    names = [*(t.name for t in program.inputs), *(f.name for f in program.funcs)]
    assert {(n, reader) for n in names for reader in p.readers(n)} <= {*edges}
    inlined = {f.name for f in s.state.program.funcs} - {f.name for f in program.funcs}
    assert inlined <= {producer for producer, _ in edges}


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_edges_read_of_global_memory_is_what_is_predicted(name: str) -> None:
    op, sizes = PROGRAMS[name]
    p = op.schedule(target="cuda", **sizes).prediction()
    for read, moved in p.moved("global").items():
        assert sum(size for _, _, size in _reads(p, read)) == pytest.approx(moved.read)


def line_of(text: object, edge: str) -> str:
    (line,) = (x for x in str(text).splitlines() if x.startswith(edge))
    return line


def test_a_separate_kernel_is_explained() -> None:
    s = two_products.schedule(M=4096, K=256, H=1024, N=256, target="cuda")
    text = s.explain()
    line = line_of(text, "pre -> ")
    assert "through global, 16.78 MB written, 33.55 MB read" in line
    assert line.endswith("the kernel of pre_sum computes all of it before the kernel of y starts")
    assert "fit" not in str(text)


def test_a_copy_says_how_often_what_it_gets_is_used() -> None:
    s = two_products.schedule(M=4096, K=256, H=1024, N=256, target="cuda")
    line = line_of(s.explain(), "x_cache -> ")
    # tiles of 256 columns: each block of columns gets x once, and uses a value for all of them
    assert "a copy of x, each point copied 4 times: each copied element read 256 times" in line
    assert line.endswith("4.28 GB of loads from global saved")  # 255 of 256 of 4 * 4096 * 256 * 1024
    assert line_of(s.explain(), "y -> y_out").endswith("y_out writes it back once, complete")


def test_registers_are_those_of_a_thread() -> None:
    s = softmax.schedule(M=4096, N=1024, target="cuda")
    assert "kept in registers, 128 B of 1.02 kB per thread" in line_of(s.explain(), "e -> ")


def test_what_is_inlined_says_what_is_paid() -> None:
    s = twice_blurred.schedule(H=1026, W=1026)
    s["rows"].inline()
    s["both"].inline()
    text = s.explain()
    assert "inline, " in line_of(text, "both -> out")
    assert line_of(text, "both -> out").endswith("each point computed 2 times")
    assert line_of(text, "rows -> both").endswith("times")


def test_funcs_too_large_for_caches_report_their_excess_and_streamed_ones_do_not() -> None:
    room = td.Target("cpu").capacity("L3") or 0
    n = 2 * room // 4
    x, f, y = td.Tensor("x", (n,), td.f32), td.Func("f"), td.Func("y")
    f[i] = td.exp(x[i])
    y[i] = f[i] + f[n - 1 - i]
    s = td.Schedule(y)
    s[f].compute_root()
    assert "all of it is computed before y starts, " in line_of(s.explain(), "f -> y")
    assert line_of(s.explain(), "f -> y").endswith("more than L3 keeps")


def test_masks_that_come_to_nothing_are_said() -> None:
    x, f = td.Tensor("x", (256, 256), td.f32), td.Func("f")
    f[i] = td.sum(td.where(j <= i, x[i, j], 0) * x[j, i], axis=j)
    s = td.Schedule(f, target="cuda")
    s[f].skip_masked()
    reason = "skip_masked of f: all terms are computed, threads of a GPU go through its loops together"
    assert reason in str(s.explain())
    assert reason in explain(decide(s.state, describe_gpu("sm_80"))[1])
    plain = td.Schedule(f)
    plain[f].skip_masked()
    assert "skip_masked" not in str(plain.explain())


def test_notes_of_a_search_are_those_of_its_schedule() -> None:
    s = softmax.autoschedule(M=512, N=512, pin={"e": "memory"})
    assert "it is pinned there" in str(s.explain()) or "kept in L" in str(s.explain())
    assert EDITED not in str(s.explain())
    s["e"].compute_root()
    assert EDITED in str(s.explain())
    assert "it is pinned there" not in str(s.explain())


def test_funcs_in_memory_name_the_candidate_that_keeps_them_in_a_cache() -> None:
    s = two_products.autoschedule(M=4096, K=256, H=1024, N=256, target="cuda")
    line = line_of(s.explain(), "pre -> ")
    assert re.search(r"nearer in '.*', predicted to take [\d.]+ times as long$", line)
    scan = running.autoschedule(M=512, N=256, target="cuda")
    assert line_of(scan.explain(), "c -> out").endswith("no candidate has it nearer")
