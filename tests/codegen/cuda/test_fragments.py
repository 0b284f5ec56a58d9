"""Tiles in the registers of a warp: products by tensor cores are right, other accesses are refused."""

from dataclasses import replace

import numpy as np
import pytest

import tdsl as td
from tdsl.codegen.emulation.run import EmulatedExecutable
from tdsl.codegen.ir.loops import For, Invoke, Kernel, Store
from tdsl.codegen.ir.statements import walk
from tdsl.lang.expr import Binary, const
from tdsl.machine.instructions import tensor_cores
from tdsl.machine.instructions.instruction import INSTRUCTIONS
from tests.codegen.cuda import programs
from tests.codegen.cuda.tensor_products import by_warps, product

i, j, k = td.vars("i j k")
F16 = "mma_m16n8k16_f16_f16"


def operands(m, n, terms, left=np.float16, right=np.float16):
    """Small whole numbers: sums of products are exact."""
    a = (np.arange(m * terms) * 7 % 11 - 3).reshape(m, terms)
    b = (np.arange(terms * n) * 5 % 13 - 4).reshape(terms, n)
    unsigned = [np.dtype(t).kind == "u" for t in (left, right)]
    return (abs(a) if unsigned[0] else a).astype(left), (abs(b) if unsigned[1] else b).astype(right)


FORMS = {form.name: form for form in tensor_cores.MMAS}


@pytest.mark.parametrize("name", FORMS)
def test_each_form_of_mma(name):
    form = FORMS[name]
    s = by_warps(*product(form.left, form.right, form.acc_type), name)
    x, y = operands(128, 32, 64, form.left.numpy, form.right.numpy)
    want = x.astype(form.acc_type.numpy) @ y.astype(form.acc_type.numpy)
    arch = INSTRUCTIONS[name].arch or "80"
    got = td.emulate(td.compile(s, target=f"cuda:sm_{arch}"))(x, y)
    np.testing.assert_array_equal(got, want, strict=True)


@pytest.mark.parametrize("turned_a", [False, True])
@pytest.mark.parametrize("turned_b", [False, True])
def test_row_and_column_major_operands(turned_a, turned_b):
    loads = (
        f"ldmatrix_x4{'_trans' * turned_a}_a_f16",
        f"ldmatrix_x{'2' if turned_a else '4'}{'_trans' * (not turned_b)}_b_f16",
    )
    s = by_warps(*product(turned_a=turned_a, turned_b=turned_b), F16, loads)
    x, y = operands(64, 64, 96)
    given = (x.T.copy() if turned_a else x), (y.T.copy() if turned_b else y)
    got = td.emulate(td.compile(s, target="cuda:sm_80"))(*given)
    np.testing.assert_array_equal(got, x.astype(np.float32) @ y.astype(np.float32))


def kernel() -> Kernel:
    s = by_warps(*product(), F16, ("ldmatrix_x4_a_f16", "ldmatrix_x4_trans_b_f16"))
    return programs.kernel_of(s, M=64, K=64, N=32)


def run(broken: Kernel) -> None:
    x, y = operands(64, 32, 64)
    EmulatedExecutable(broken).run([x, y, np.zeros((64, 32), np.float32)])


@pytest.mark.parametrize("n", [0, 1])
def test_a_missing_barrier_around_an_instruction_is_a_hazard(n):
    whole = kernel()
    assert programs.barriers(whole) == 2
    broken = replace(whole, body=programs.without_barrier(whole.body, n))
    with pytest.raises(td.Hazard, match="another thread"):
        run(broken)


def test_uninitialised_accumulators_are_a_hazard():
    whole = kernel()

    def change(s):
        return s.body if isinstance(s, For) and _starts(s) else s

    def _starts(s):
        return s.name.endswith("_register")

    body = programs.map_statements(
        whole.body,
        lambda s: replace(s, extent=const(3)) if isinstance(s, For) and _starts(s) else s,
    )
    with pytest.raises(td.Hazard, match="reads what nobody wrote"):
        run(replace(whole, body=body))


def test_a_thread_that_touches_registers_of_another_one_is_refused():
    whole = kernel()

    def shifted(s):
        if isinstance(s, Store) and s.buffer.startswith("c_1"):
            first, last = s.index
            return replace(s, index=(first, Binary("mod", Binary("add", last, const(2)), const(16))))
        return s

    with pytest.raises(td.ScheduleError, match="accessed by a thread that does not own the element"):
        EmulatedExecutable(replace(whole, body=programs.map_statements(whole.body, shifted)))


def test_a_fragment_without_an_instruction_is_refused():
    c, _a, _b = product()
    s = td.Schedule(c)
    io, ii = s[c].split(i, 16)
    s[c].bind(io, "blockIdx.x").bind(ii, "threadIdx.x")
    with pytest.raises(td.ScheduleError, match="no instruction says"):
        s.cache_write(c, at=io, scope="fragment").cooperate()


def test_layouts_that_do_not_agree_are_refused():
    s = by_warps(*product(), F16, ("ldmatrix_x4_a_f16", "ldmatrix_x4_trans_b_f16"))
    other = td.Func("fragment")
    tile = td.Tensor("tile", (16, 16), td.f16)
    other[i, j] = tile[i, j]
    td.instruction(
        "load_rows", other, cuda="__device__ void load_rows(half *fragment, const half *tile) {}",
        fragments={"fragment": lambda i, j: (i * 2 + j // 8, j % 8)},
    )  # fmt: skip
    text = s.to_json().replace("ldmatrix_x4_a_f16", "load_rows")
    again = td.Schedule(*product()[:1]).replay(text)
    with pytest.raises(td.ScheduleError, match="in one way by instruction"):
        td.emulate(td.compile(again, target="cuda:sm_80"))(*operands(64, 32, 64))


def test_tiles_that_do_not_divide_a_fragment_are_refused():
    s = by_warps(*product(), F16, block=(64, 36, 32), warp=(32, 12))
    with pytest.raises(td.ScheduleError, match="split"):
        td.emulate(td.compile(s, target="cuda:sm_80"))(*operands(64, 72, 64))


def test_a_layout_that_is_no_sum_of_digits_is_refused():
    f, t = td.Func("f"), td.Tensor("t", (8, 8), td.f16)
    f[i, j] = t[i, j]
    with pytest.raises(td.DefinitionError, match="one-to-one to registers"):
        td.instruction("bad", f, cuda="x", fragments={"f": lambda i, j: (i, j * 0)})
    with pytest.raises(td.DefinitionError, match="no operand"):
        td.instruction("bad", f, cuda="x", fragments={"g": lambda i, j: (i, j)})


def test_schedules_with_instructions_of_tensor_cores_replay():
    s = by_warps(*product(), F16, ("ldmatrix_x4_a_f16", "ldmatrix_x4_trans_b_f16"))
    again = td.Schedule(*product()[:1]).replay(s.to_json())
    assert again.state == s.state


def test_all_threads_of_a_warp_run_an_instruction():
    whole = kernel()
    (count,) = {x.extent for x in walk(whole.body) if isinstance(x, For) and x.kind == "threadIdx.x"}
    assert count == const(32)
    assert any(isinstance(x, Invoke) for x in walk(whole.body))
