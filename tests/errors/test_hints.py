"""A hint that is followed works."""

import numpy as np
import pytest

import tdsl as td

i, j, k = td.vars("i j k")
A, B, C = td.Tensor("A", ("M", "K"), td.f64), td.Tensor("B", ("K", "N"), td.f64), td.Func("C")
C[i, j] = td.sum(A[i, k] * B[k, j], axis=k)
square = np.ones((4, 4))


@td.op
def matmul(A: td.f64["M", "K"], B: td.f64["K", "N"]) -> td.Func:
    C = td.Func("C")
    C[i, j] = td.sum(A[i, k] * B[k, j], axis=k)
    return C


def on_ranks(**sizes):
    s, grid = matmul.schedule(**sizes), td.Grid(x=2, y=2)
    for t in "ABC":
        s.place(t, "rc -> r c", grid)
    _, inner = s["C"].distribute(("i", "j"), grid)
    s["C"].communicate(("A", "B", "C"), at=inner)
    return s


def hint(wrong, kind=td.TdslError):
    with pytest.raises(kind) as caught:
        wrong()
    return caught.value.hint


def test_a_plan_for_other_sizes_than_were_given():
    for s, sizes in ((on_ranks(M=101, K=90, N=77), {}), (on_ranks(), {"M": 101, "K": 90, "N": 77})):
        p = td.compile(s, **sizes)
        assert p.plan(M=101).summary() == p.plan().summary()
        assert "td.compile(..., M=300)" in hint(lambda p=p: p.plan(M=300), td.ShapeError)
        assert td.compile(s, **{**sizes, "M": 300}).plan().summary() != p.plan().summary()


def test_blocks_of_sizes_that_are_not_known():
    p = td.compile(on_ranks())
    assert "or plan(M=100, K=100, N=100)" in hint(p.plan)
    assert p.plan(M=100, K=100, N=100).grid.size == 4
    blocks = hint(lambda: p.block("A", square, 0))
    assert blocks == "give them: td.compile(s, M=100, K=100, N=100)"
    assert td.compile(on_ranks(), M=4, K=4, N=4).block("A", square, 0).shape == (2, 2)


def test_blocks_and_plans_of_a_program_without_ranks():
    for name in ("block", "plan"):
        assert "s[f].distribute(...)" in hint(lambda name=name: getattr(td.compile(C), name))
    assert "td.compile(s).plan" in hint(lambda: td.compile(C).plan)


def test_arrays_with_another_number_of_dimensions():
    f, cube = td.compile(C), np.ones((3, 4, 4))
    assert "such as A[0, :, :]" in hint(lambda: f(cube, square))
    assert f(cube[0, :, :], square).shape == (4, 4)
    assert "A[None, :]" in hint(lambda: f(square[0], square))
    assert f(square[0][None, :], square).shape == (1, 4)


def test_directives_on_a_schedule_and_on_a_func():
    s = td.Schedule(C)
    assert hint(lambda: s.vectorize(j, 8)) == "stages have it: s['C'].vectorize"
    s["C"].vectorize(j, 8)
    assert hint(lambda: s["C"].place("A", "rc -> r c", None)) == "the schedule has it: s.place"
    assert "td.Schedule(C)[C].vectorize" in hint(lambda: C.vectorize(j, 8))
    td.Schedule(C)[C].vectorize(j, 8)
    assert "matmul.schedule()['C'].split" in hint(lambda: matmul.split)
    matmul.schedule()["C"].split("i", 4)


def test_attributes_of_compiled_programs_are_hinted_on_schedules_and_funcs():
    s = td.Schedule(C)
    assert "td.compile(s).loops" in hint(lambda: s.loops)
    assert "td.compile(C).loops" in hint(lambda: C.loops)
    assert td.compile(s).loops(M=4, N=4, K=4) == td.compile(C).loops(M=4, N=4, K=4)
    assert hint(lambda: C.compile()) == "td.compile(C)"
    assert hint(lambda: C.schedule()) == "td.Schedule(C)"
    assert "p.schedule.to_json" in hint(lambda: td.compile(C).to_json)
    assert td.compile(C).schedule.to_json() == s.to_json()


def test_a_search_for_a_func():
    assert "under @td.op, then op.autoschedule" in hint(lambda: C.autoschedule(M=4, N=4, K=4))

    @td.op
    def op(A: td.f64["M", "K"], B: td.f64["K", "N"]) -> td.Func:
        return C if (A, B) == () else td.einsum("ik,kj->ij", A, B)

    assert isinstance(op.autoschedule(M=4, N=4, K=4), td.Schedule)


def test_hints_for_sizes_do_not_list_other_arguments():
    assert hint(lambda: td.compile(C, P=3)) == "There are: M, K, N"
    assert "'dynamic'" in hint(lambda: td.compile(C, dynamik="N"))
    f = td.Func("f", shape=3)
    f[i] = i
    assert "leave it out" in hint(lambda: td.compile(f, P=3))


def test_a_size_that_is_named_as_an_argument():
    t, f = td.Tensor("t", ("target", "dynamic"), td.f64), td.Func("f")
    f[i, j] = t[i, j] + 1
    assert "sizes={'target': 4}" in hint(lambda: td.compile(f, target=4), td.ShapeError)
    assert "sizes={'dynamic': 4}" in hint(lambda: td.compile(f, dynamic=4), td.ShapeError)
    compiled = td.compile(td.Schedule(f, sizes={"target": 4, "dynamic": 4}))
    np.testing.assert_array_equal(compiled(square), square + 1)


def test_einsum_of_arrays():
    text = hint(lambda: td.einsum("ij,jk->ik", square, square))
    assert 'a0 = td.Tensor("a0", (4, 4), "float64")' in text
    a0, a1 = td.Tensor("a0", (4, 4), "float64"), td.Tensor("a1", (4, 4), "float64")
    result = td.compile(td.einsum("ij,jk->ik", a0, a1))(square, square)
    np.testing.assert_array_equal(result, square @ square)
