"""Pages show what a schedule is and compiles to; lines of equal funcs and loops have equal names."""

import re

import pytest

import tdsl as td
from tdsl.viewer.contents import Pane
from tdsl.viewer.panes import contents_of


def dense(rows: int | str = 64) -> tuple[td.Func, td.Func]:
    i, j, k = td.vars("i j k")
    x, w = td.Tensor("x", (rows, 48), td.f32), td.Tensor("w", (48, 32), td.f32)
    total, relu = td.Func("total"), td.Func("relu")
    total[i, j] = td.sum(x[i, k] * w[k, j], axis=k)
    relu[i, j] = td.maximum(total[i, j], 0)
    return total, relu


def pane(schedule: td.Schedule, heading: str) -> Pane:
    return next(p for p in contents_of(schedule).panes if p.heading == heading)


def test_products_in_assembly_belong_to_their_loop() -> None:
    _, relu = dense()
    lines = pane(td.Schedule(relu, target="cpu:avx2"), "assembly").lines
    products = [x for x in lines if "vfmadd" in x.text]
    assert products
    assert all("total_k" in x.names for x in products)
    assert all("relu" in x.names and "total" not in x.names for x in lines if "vmaxps" in x.text)


def test_lines_of_debugging_are_not_shown() -> None:
    _, relu = dense()
    shown = "\n".join(x.text for x in pane(td.Schedule(relu, target="cpu:avx2"), "assembly").lines)
    assert not re.search(r"\.loc|\.cfi|debug_", shown)


def test_cuda_belongs_to_funcs_and_loops() -> None:
    _, relu = dense()
    s = td.Schedule(relu, target="cuda:sm_80")
    loops = {x.names[-1] for x in pane(s, "loops").lines if x.names}
    code = pane(s, "CUDA").lines
    assert any(x.names[-1:] == ("total_k_o",) for x in code)
    assert {n for x in code for n in x.names} <= loops


def test_loops_have_iterations_bytes_operations_and_time() -> None:
    total, relu = dense()
    s = td.Schedule(relu, target="cpu:avx2")
    s[total].compute_root()
    s[total].reorder("k", "i", "j").pin()
    s[relu].pin()
    figures = {x.names[-1]: x.figures for x in pane(s, "loops").lines if x.figures}
    assert figures["total_k"][:3] == ("48", "8.58 kB", "98.30 k")  # a row of w, a column of x, all sums
    assert figures["relu_j"][:3] == ("32", "8 B", "2.05 k")
    start = next(x for x in pane(s, "loops").lines if x.names[-1:] == ("total_i",))
    assert not start.figures  # stores zeros only


def test_copies_of_a_loop_have_the_figures_of_the_loop() -> None:
    i, a, f = td.vars("i"), td.Tensor("a", (21,), td.f32), td.Func("f")
    f[i] = a[i] + 1
    s = td.Schedule(f)
    s[f].split(i, 8, tail="peel")
    s[f].pin()
    rows = [x for x in pane(s, "loops").lines if x.text.lstrip().startswith("for f_i_i")]
    assert len({x.figures for x in rows}) == 1


def test_what_the_default_schedule_adds_is_said() -> None:
    total, relu = dense()
    s = td.Schedule(relu)
    s[total].compute_root()
    text = [x.text for x in pane(s, "directives").lines]
    assert text[:2] == ['s["total"].compute_root()', "# added by the default schedule"]
    assert len(text) > 3


def test_open_sizes_are_an_error_in_place_of_the_loops() -> None:
    _, relu = dense("M")
    s = td.Schedule(relu)
    loops = pane(s, "loops")
    assert loops.is_error
    assert "M" in loops.lines[0].text
    assert not any(p.is_error for p in s.view(M=64).contents.panes)
    with pytest.raises(td.ShapeError, match="N"):
        s.view(N=3)


def test_ranks_have_messages_steps_and_a_program() -> None:
    i, a, f = td.vars("i"), td.Tensor("a", (8,), td.f32), td.Func("f", shape=(8,))
    f[i] = a[(i + 1) % 8]
    s, grid = td.Schedule(f), td.Grid(x=2)
    s.place(a, "i -> i", grid)
    s.place(f, "i -> i", grid)
    s[f].distribute(i, grid)
    headings = [p.heading for p in contents_of(s).panes]
    assert headings == ["definition", "directives", "ranks", "steps of rank 0", "program"]
    assert any("send" in x.text and x.names == ("a",) for x in pane(s, "steps of rank 0").lines)


def test_funcs_without_operations_and_empty_arrays_are_shown() -> None:
    i, a, f = td.vars("i"), td.Tensor("a", (0,), td.f32), td.Func("f")
    f[i] = a[i]
    assert not any(p.is_error for p in contents_of(td.Schedule(f)).panes)


def test_a_graph_has_its_plan_and_each_kernel_once() -> None:
    @td.op
    def double(x: td.f32["N"]):
        i, y = td.vars("i"), td.Func("y")
        y[i] = x[i] * 2
        return y

    @td.op
    def total(x: td.f32["N"]):
        i, k, y = *td.vars("i k"), td.Func("y", shape=("N",))
        y[i] = td.sum(x[k], axis=k)
        return y

    graph = td.Graph(lambda x: total(double(x)[::-1]))
    view = graph.view(td.f32[64])
    numbered = {p.heading.partition(":")[0] for p in view.contents.panes if ":" in p.heading}
    steps = [x for x in view.contents.panes[0].lines if x.names]
    assert numbered == {x.names[0] for x in steps}
