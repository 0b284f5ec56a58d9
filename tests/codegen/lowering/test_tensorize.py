"""Instructions in the place of loops: where they are used, what runs around them, and what is refused."""

import numpy as np
import pytest

import tdsl as td

i, j, k = td.vars("i j k")

OPERANDS = "ptr %c, i64 %c0, i64 %c1, ptr %a, i64 %a0, i64 %a1, ptr %b, i64 %b0, i64 %b1"
MULTIPLY_ADD = f"define internal void @multiply_add({OPERANDS}) alwaysinline {{"
MULTIPLY_ADD += """
entry:
  br label %next
next:
  %n = phi i64 [0, %entry], [%m, %next]
  %i = lshr i64 %n, 2
  %h = lshr i64 %n, 1
  %j = and i64 %h, 1
  %k = and i64 %n, 1
  %ci = mul i64 %i, %c0
  %cj = mul i64 %j, %c1
  %cx = add i64 %ci, %cj
  %ai = mul i64 %i, %a0
  %ak = mul i64 %k, %a1
  %ax = add i64 %ai, %ak
  %bk = mul i64 %k, %b0
  %bj = mul i64 %j, %b1
  %bx = add i64 %bk, %bj
  %pc = getelementptr float, ptr %c, i64 %cx
  %pa = getelementptr float, ptr %a, i64 %ax
  %pb = getelementptr float, ptr %b, i64 %bx
  %x = load float, ptr %pa, align 4
  %y = load float, ptr %pb, align 4
  %z = load float, ptr %pc, align 4
  %xy = fmul float %x, %y
  %s = fadd float %z, %xy
  store float %s, ptr %pc, align 4
  %m = add i64 %n, 1
  %more = icmp ult i64 %m, 8
  br i1 %more, label %next, label %done
done:
  ret void
}
"""


def on_views(total, left, right):
    total += left @ right


def block(strides=None):
    """A product of 2 x 2 matrices, declared for any strides or for some."""
    left, right = td.Tensor("left", (2, 2), td.f32), td.Tensor("right", (2, 2), td.f32)
    total = td.Func("total")
    total[i, j] += left[i, k] * right[k, j]
    name = "multiply_add" if strides is None else "multiply_add_of_rows"
    text = MULTIPLY_ADD.replace("@multiply_add", f"@{name}")
    return td.instruction(name, total, llvm=text, python=on_views, strides=strides)


def product(swapped: bool = False):
    a, b = td.Tensor("a", ("M", "K"), td.f32), td.Tensor("b", ("K", "N"), td.f32)
    c = td.Func("c")
    left, right = a[i, k], b[k, j]
    c[i, j] = td.sum(right * left if swapped else left * right, axis=k)
    return c


def in_blocks(c, instruction, tail="peel"):
    s = td.Schedule(c)
    loops = s[c].tile((i, j, k), (2, 2, 2), tail=tail)
    s[c].tensorize(loops[3], instruction)
    return s


def arrays(rng, m, n, terms):
    return tuple(rng.integers(-9, 9, shape).astype(np.float32) for shape in ((m, terms), (terms, n)))


@pytest.mark.parametrize("target", ["cpu", "python"])
@pytest.mark.parametrize("shape", [(4, 6, 8), (5, 7, 3), (1, 1, 1), (2, 3, 1), (0, 4, 2), (4, 4, 0)])
def test_full_tiles_are_instructions_and_tails_are_loops(rng, target, shape):
    a, b = arrays(rng, *shape)
    f = td.compile(in_blocks(product(), block()), target=target)
    np.testing.assert_array_equal(f(a, b), a @ b)
    if min(shape) > 1:
        sizes = dict(zip("MNK", shape, strict=True))
        assert "multiply_add(" in str(f.loops(**sizes))


def test_factors_match_in_either_order(rng):
    a, b = arrays(rng, 6, 4, 8)
    f = td.compile(in_blocks(product(swapped=True), block()))
    np.testing.assert_array_equal(f(a=a, b=b), a @ b)


def test_array_strides_are_passed_to_instruction(rng):
    a, b = arrays(rng, 12, 8, 10)
    f = td.compile(in_blocks(product(), block()))
    np.testing.assert_array_equal(f(a[::2], b.T[::2].T), a[::2] @ b.T[::2].T)


def test_guarded_tiles_raise(rng):
    f = td.compile(in_blocks(product(), block(), tail="guard"))
    with pytest.raises(td.ScheduleError, match="tail='peel'"):
        f(*arrays(rng, 5, 4, 4))
    a, b = arrays(rng, 6, 4, 4)
    np.testing.assert_array_equal(f(a, b), a @ b)


def test_operand_with_wrong_strides_raises(rng):
    f = td.compile(in_blocks(product(), block({"right": (None, 1)})))
    a, b = arrays(rng, 4, 4, 4)
    np.testing.assert_array_equal(f(a, b), a @ b)
    with pytest.raises(td.ScheduleError, match="'right' with stride 1 in axis 1, 'b' has"):
        f(a, np.asfortranarray(b))


def test_packed_panel_has_storage_strides(rng):
    a, b = arrays(rng, 6, 6, 6)
    f = td.compile(panel_by_columns(block({"right": (None, 1)})))
    with pytest.raises(td.ScheduleError, match="'right' with stride 1 in axis 1, 'b_cache' has stride 6"):
        f(a, b)
    f = td.compile(panel_by_columns(block()))
    np.testing.assert_array_equal(f(a, b), a @ b)


def panel_by_columns(instruction):
    c = product()
    s = in_blocks(c, instruction)
    s.cache_read("b", c).reorder_storage(1, 0)
    return s


def test_declared_strides_must_match_operands():
    left, total = td.Tensor("left", (2,), td.f32), td.Func("total")
    total[i] = left[i]
    for strides in ({"left": (1, 1)}, {"middle": (1,)}):
        with pytest.raises(td.DefinitionError, match=r"hint: .*total \(1\), left \(1\)"):
            td.instruction("copy2", total, python=on_views, strides=strides)


def test_cache_traffic_of_tiles_is_counted(rng):
    """All of it stays in the first cache: operands come in once, and the result goes out once."""
    profile = td.compile(in_blocks(product(), block())).profile(
        *arrays(rng, 16, 32, 48), repeat=1, counters=True
    )
    moved = 4 * (16 * 48 + 48 * 32 + 16 * 32)
    assert [(c.predicted, c.counted) for c in profile.caches] == [(moved, moved)] * len(profile.caches)
    assert profile.caches


def test_cache_traffic_of_transposed_tiles_is_counted(rng):
    transposed = [np.asfortranarray(x) for x in arrays(rng, 16, 32, 48)]
    profile = td.compile(in_blocks(product(), block())).profile(*transposed, repeat=1, counters=True)
    assert {c.counted for c in profile.caches} == {4 * (16 * 48 + 48 * 32 + 16 * 32)}
