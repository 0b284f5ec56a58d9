"""Products by tensor cores: every layout of operands, batches, what follows, and what is refused."""

import numpy as np
import pytest

import tdsl as td

b, i, j, k = td.vars("b i j k")
SMALL = {"block": (64, 64, 32), "warp": (32, 32)}


def whole(rng, *shape, dtype=np.float16):
    """Small whole numbers: their sums are exact."""
    return rng.integers(-4, 5, shape).astype(dtype)


def product(x, y, total=td.f32):
    return td.sum(td.cast(x, total) * td.cast(y, total), axis=k, dtype=total)


def emulated(s, *arrays, arch="sm_80"):
    return td.emulate(td.compile(s, target=f"cuda:{arch}"))(*arrays)


@pytest.mark.parametrize("turned_x", [False, True])
@pytest.mark.parametrize("turned_y", [False, True])
@pytest.mark.parametrize("dtype", [td.f16, td.bf16, td.f8e4m3, td.i8], ids=str)
def test_operands_either_way(rng, turned_x, turned_y, dtype):
    shapes = (96, 128) if turned_x else (128, 96), (64, 96) if turned_y else (96, 64)
    x, y = (td.Tensor(name, shape, dtype) for name, shape in zip("xy", shapes, strict=True))
    total, c = td.f32 if dtype.is_float else td.i32, td.Func("c")
    c[i, j] = product(x[k, i] if turned_x else x[i, k], y[j, k] if turned_y else y[k, j], total)
    s = td.Schedule(c)
    assert td.recipes.tensor_core_matmul(s[c], **SMALL) is not None
    p, q = (whole(rng, *shape, dtype=dtype.numpy) for shape in shapes)
    left, right = (p.T if turned_x else p), (q.T if turned_y else q)
    want = left.astype(total.numpy) @ right.astype(total.numpy)
    arch = "sm_89" if dtype == td.f8e4m3 else "sm_80"  # the first that has the instruction
    np.testing.assert_array_equal(emulated(s, p, q, arch=arch), want, strict=True)


@pytest.mark.parametrize("m, n, p", [(100, 64, 64), (128, 40, 72), (65, 33, 129), (1, 1, 1)])
def test_sizes_that_tiles_do_not_divide(rng, m, n, p):
    x, y, c = td.Tensor("x", ("M", "K"), td.f16), td.Tensor("y", ("K", "N"), td.f16), td.Func("c")
    c[i, j] = product(x[i, k], y[k, j])
    s = td.Schedule(c, sizes={"M": m, "K": n, "N": p})
    td.recipes.tensor_core_matmul(s[c], **SMALL)
    p, q = whole(rng, m, n), whole(rng, n, p)
    np.testing.assert_array_equal(emulated(s, p, q), p.astype(np.float32) @ q.astype(np.float32))


def test_rows_that_tiles_do_not_divide_are_fetched_as_wholes():
    x, y, c = td.Tensor("x", (100, 64), td.f16), td.Tensor("y", (64, 72), td.f16), td.Func("c")
    c[i, j] = product(x[i, k], y[k, j])
    s = td.Schedule(c)
    td.recipes.tensor_core_matmul(s[c], **SMALL)
    lines = str(td.compile(s, target="cuda").loops("final")).splitlines()
    stores = [line for line in lines if line.strip().startswith("x_cache[")]
    assert stores and all("# asynchronous" in line for line in stores)


def test_products_use_tensor_cores_by_default(rng):
    x, y = td.Tensor("x", (128, 64), td.f16), td.Tensor("y", (64, 128), td.f16)
    c, f = td.Func("c"), td.Func("f")
    c[i, j] = product(x[i, k], y[k, j])
    f[i, j] = td.maximum(c[i, j], 0)
    compiled = td.compile(f, target="cuda:sm_80")
    text = str(compiled.loops("final"))
    assert "mma_m16n8k16_f16_f16(" in text
    assert text.count("# blockIdx.x") == 1, "what follows is made in registers"
    p, q = whole(rng, 128, 64), whole(rng, 64, 128)
    want = np.maximum(p.astype(np.float32) @ q.astype(np.float32), 0)
    np.testing.assert_array_equal(td.emulate(compiled)(p, q), want)


def test_parts_of_a_sum_are_batches(rng):
    x, y, c = td.Tensor("x", (64, 256), td.f16), td.Tensor("y", (256, 64), td.f16), td.Func("c")
    c[i, j] = product(x[i, k], y[k, j])
    s = td.Schedule(c)
    part, _ = s[c].split(k, 64)
    parts = s[c].rfactor(part)
    parts.compute_root()
    assert td.recipes.tensor_core_matmul(parts, **SMALL) is not None
    p, q = whole(rng, 64, 256), whole(rng, 256, 64)
    np.testing.assert_array_equal(emulated(s, p, q), p.astype(np.float32) @ q.astype(np.float32))


@pytest.mark.parametrize("terms", [256, 200])
@pytest.mark.parametrize("sizes", [(), ("K",), ("M", "K", "N")], ids=str)
def test_parts_of_a_sum_of_a_number_of_terms_that_has_a_name(rng, terms, sizes):
    x, y, c = td.Tensor("x", ("M", "K"), td.f16), td.Tensor("y", ("K", "N"), td.f16), td.Func("c")
    c[i, j] = product(x[i, k], y[k, j])
    given = {"M": 64, "K": terms, "N": 64}
    s = td.Schedule(c, sizes={name: given[name] for name in sizes})
    part, _ = s[c].split(k, 128)
    parts = s[c].rfactor(part)
    td.recipes.tensor_core_matmul(parts, **SMALL)
    td.recipes.elements(s[c])
    p, q = whole(rng, 64, terms), whole(rng, terms, 64)
    np.testing.assert_array_equal(emulated(s, p, q), p.astype(np.float32) @ q.astype(np.float32))


@pytest.mark.parametrize("terms, fetched", [(256, True), (200, True), (196, False)])
def test_parts_of_aligned_rows_are_fetched_as_wholes(rng, terms, fetched):
    x, y, c = td.Tensor("x", ("M", "K"), td.f16), td.Tensor("y", ("K", "N"), td.f16), td.Func("c")
    c[i, j] = product(x[i, k], y[k, j])
    s = td.Schedule(c, sizes={"M": 64, "K": terms, "N": 64})
    part, _ = s[c].split(k, 128)
    parts = s[c].rfactor(part)
    td.recipes.tensor_core_matmul(parts, block=(64, 64, 64), warp=(64, 64), warpgroups=True)
    td.recipes.elements(s[c])
    f = td.compile(s, target="cuda")
    loops = str(f.loops("final"))
    assert "copy_tile(y_cache[" in loops and ("copy_tile(x_cache[" in loops) == fetched
    p, q = whole(rng, 64, terms), whole(rng, terms, 64)
    want = p.astype(np.float32) @ q.astype(np.float32)
    np.testing.assert_array_equal(td.emulate(f)(p, q), want)


@pytest.mark.parametrize("dtype, total", [(td.f16, td.f32), (td.i8, td.i32)], ids=str)
def test_rows_that_begin_anywhere_are_loaded_by_vectors(rng, dtype, total):
    x, y, c = td.Tensor("x", (33, 77), dtype), td.Tensor("y", (77, 41), dtype), td.Func("c")
    c[i, j] = product(x[i, k], y[k, j], total)
    s = td.Schedule(c)
    td.recipes.tensor_core_matmul(s[c], block=(32, 32, 32), warp=(16, 16))
    f = td.compile(s, target="cuda:sm_80")
    assert f.source().count("tdsl_load_shifted<") >= 2
    p, q = whole(rng, 33, 77, dtype=dtype.numpy), whole(rng, 77, 41, dtype=dtype.numpy)
    np.testing.assert_array_equal(td.emulate(f)(p, q), p.astype(total.numpy) @ q.astype(total.numpy))


@pytest.mark.parametrize(
    "kind, first, terms",
    [("two arrays", 0, 100), ("two arrays", 5, 1), ("computed", 3, 37), ("one array", 0, 100)],
)
def test_operands_that_go_on_beyond_the_terms_have_zeros_there(rng, kind, first, terms):
    k, c = td.range("k", first, first + terms), td.Func("c")
    x, y = td.Tensor("x", (40, 131), td.f16), td.Tensor("y", (33, 131), td.f16)
    left, right = abs(x[i, k]) if kind == "computed" else x[i, k], x[j, k] if kind == "one array" else y[j, k]
    c[i, j] = td.sum(td.cast(left, td.f32) * td.cast(right, td.f32), axis=k)
    s = td.Schedule(c)
    td.recipes.tensor_core_matmul(s[c], block=(32, 32, 32), warp=(16, 16))
    arrays = {"x": whole(rng, 40, 131), "y": whole(rng, 33, 131)}
    if kind == "one array":
        del arrays["y"]
    got = td.emulate(td.compile(s, target="cuda:sm_80"))(**arrays)
    p, q = (a.astype(np.float32)[:, first : first + terms] for a in (arrays["x"], [*arrays.values()][-1]))
    np.testing.assert_array_equal(got, (abs(p) if kind == "computed" else p) @ q.T)


def test_parts_of_rows_that_share_a_weight(rng):
    x, w, c = td.Tensor("x", (3, 40, 256), td.f16), td.Tensor("w", (256, 64), td.f16), td.Func("c")
    c[b, i, j] = product(x[b, i, k], w[k, j])
    s = td.Schedule(c)
    part, _ = s[c].split(k, 128)
    parts = s[c].rfactor(part)
    td.recipes.tensor_core_matmul(parts, **SMALL)
    p, q = whole(rng, 3, 40, 256), whole(rng, 256, 64)
    np.testing.assert_array_equal(emulated(s, p, q), p.astype(np.float32) @ q.astype(np.float32))


def test_batches(rng):
    x, y = td.Tensor("x", (3, 64, 32), td.f16), td.Tensor("y", (3, 32, 64), td.f16)
    c = td.Func("c")
    c[b, i, j] = product(x[b, i, k], y[b, k, j])
    s = td.Schedule(c)
    td.recipes.tensor_core_matmul(s[c], **SMALL)
    p, q = whole(rng, 3, 64, 32), whole(rng, 3, 32, 64)
    want = p.astype(np.float32) @ q.astype(np.float32)
    np.testing.assert_array_equal(emulated(s, p, q), want)


@pytest.mark.parametrize("warpgroups", [False, True])
def test_rows_of_batches_share_a_weight(rng, warpgroups):
    x, w, c = td.Tensor("x", (2, 3, 64, 64), td.f16), td.Tensor("w", (64, 64), td.f16), td.Func("c")
    b, h = td.vars("b h")
    c[b, h, i, j] = product(x[b, h, i, k], w[k, j])
    s = td.Schedule(c)
    tiles = {"block": (64, 64, 64), "warp": (64, 64)} if warpgroups else SMALL
    td.recipes.tensor_core_matmul(s[c], warpgroups=warpgroups, **tiles)
    p, q = whole(rng, 2, 3, 64, 64), whole(rng, 64, 64)
    got = td.emulate(td.compile(s, target="cuda"))(p, q)
    np.testing.assert_array_equal(got, p.astype(np.float32) @ q.astype(np.float32))


def test_the_only_reader_of_the_sums_is_computed_in_registers(rng):
    x, y = td.Tensor("x", (64, 64), td.f16), td.Tensor("y", (64, 64), td.f16)
    bias, c, f = td.Tensor("bias", (64,), td.f32), td.Func("c"), td.Func("f")
    c[i, j] = product(x[i, k], y[k, j])
    f[i, j] = td.cast(td.maximum(c[i, j] + bias[j], 0), td.f16)
    s = td.Schedule(f)
    td.recipes.tensor_core_matmul(s[c], **SMALL)
    assert len(s.state.program.funcs) == 2 + 4  # with tiles and fragments of both operands
    p, q, r = whole(rng, 64, 64), whole(rng, 64, 64), whole(rng, 64, dtype=np.float32)
    got = emulated(s, *({"x": p, "y": q, "bias": r}[t.name] for t in s.program.inputs))
    want = np.maximum(p.astype(np.float32) @ q.astype(np.float32) + r, 0).astype(np.float16)
    np.testing.assert_array_equal(got, want, strict=True)


def test_products_of_f32_use_tf32_only_on_request(rng):
    x, y, c = td.Tensor("x", (64, 32), td.f32), td.Tensor("y", (32, 64), td.f32), td.Func("c")
    c[i, j] = td.sum(x[i, k] * y[k, j], axis=k)
    s = td.Schedule(c)
    with pytest.raises(td.ScheduleError, match="10 bits of factors"):
        td.recipes.tensor_core_matmul(s[c], **SMALL)
    assert td.recipes.tensor_core_matmul(s[c], **SMALL, tf32=True).instruction.endswith("tf32")
    p, q = whole(rng, 64, 32, dtype=np.float32), whole(rng, 32, 64, dtype=np.float32)
    np.testing.assert_array_equal(emulated(s, p, q), p @ q)


@pytest.mark.parametrize("total, is_supported", [(td.i32, True), (td.i64, False)], ids=str)
def test_products_of_bytes_are_added_up_in_32_bits_only(total, is_supported):
    x, y, c = td.Tensor("x", (64, 32), td.i8), td.Tensor("y", (32, 64), td.i8), td.Func("c")
    c[i, j] = td.sum(td.cast(x[i, k], td.i32) * td.cast(y[k, j], td.i32), axis=k, dtype=total)
    stage = td.Schedule(c)[c]
    if is_supported:
        assert td.recipes.tensor_core_matmul(stage, **SMALL).instruction.endswith("i8_i8")
    else:
        with pytest.raises(td.ScheduleError, match="it adds products up in i64"):
            td.recipes.tensor_core_matmul(stage, **SMALL)


@pytest.mark.parametrize("dtype", [td.i8, td.u8], ids=str)
def test_products_of_bytes_that_wrap_are_multiplied_in_32_bits_as_the_hint_says(dtype, rng):
    x, y, c = td.Tensor("x", (64, 32), dtype), td.Tensor("y", (32, 64), dtype), td.Func("c")
    c[i, j] = td.sum(x[i, k] * y[k, j], axis=k, dtype=td.i32)
    with pytest.raises(td.ScheduleError, match=f"its products wrap at {dtype}, as in NumPy") as refused:
        td.recipes.tensor_core_matmul(td.Schedule(c)[c], **SMALL)
    assert f"{refused.value.hint}".endswith("in i32: td.cast(x[i, k], td.i32) * y[k, j]")
    wide = td.Func("wide")
    wide[i, j] = td.sum(td.cast(x[i, k], td.i32) * y[k, j], axis=k, dtype=td.i32)
    s = td.Schedule(wide)
    td.recipes.tensor_core_matmul(s[wide], **SMALL)
    p, q = (rng.integers(0, 127, size).astype(dtype.numpy) for size in ((64, 32), (32, 64)))
    np.testing.assert_array_equal(emulated(s, p, q), p.astype(np.int32) @ q.astype(np.int32))


def test_sums_of_no_terms_are_left_to_other_recipes():
    x, y, c = td.Tensor("x", ("M", "K"), td.f16), td.Tensor("y", ("K", "N"), td.f16), td.Func("c")
    c[i, j] = product(x[i, k], y[k, j])
    s = td.Schedule(c, sizes={"M": 64, "K": 0, "N": 64})
    with pytest.raises(td.ScheduleError, match="its sums have no terms"):
        td.recipes.tensor_core_matmul(s[c], **SMALL)
    got = emulated(s, np.ones((64, 0), np.float16), np.ones((0, 64), np.float16))
    np.testing.assert_array_equal(got, np.zeros((64, 64), np.float32), strict=True)


def test_a_plan_is_a_recipe_for_other_schedules(rng):
    x, y, c = td.Tensor("x", (64, 32), td.f16), td.Tensor("y", (32, 64), td.f16), td.Func("c")
    c[i, j] = product(x[i, k], y[k, j])
    s, other = td.Schedule(c), td.Schedule(c)
    plan = td.recipes.tensor_core_matmul(s[c], **SMALL, stages=2)
    before = s.state
    assert s.apply(plan).state == before
    assert other.apply(plan).state == before


@pytest.mark.parametrize(
    "choices, reason",
    [
        ({"block": (64, 64, 24)}, "24 terms of a block are no multiple of 16"),
        ({"block": (64, 64, 32), "warp": (24, 32)}, "24 rows of a warp are no multiple of 16"),
        ({"block": (64, 64, 32), "warp": (64, 12)}, "12 columns of a warp are no multiple of 8"),
        ({"block": (96, 64, 32), "warp": (64, 32)}, "96 rows of a block are no multiple of 64"),
        ({"block": (256, 256, 32), "warp": (16, 16)}, "256 warps of a block, which has 32 at most"),
        ({"stages": 0}, "stages must be at least 1, not 0"),
    ],
)
def test_tiles_that_do_not_fit_are_refused(choices, reason):
    x, y, c = td.Tensor("x", (64, 32), td.f16), td.Tensor("y", (32, 64), td.f16), td.Func("c")
    c[i, j] = product(x[i, k], y[k, j])
    s = td.Schedule(c)
    with pytest.raises(td.ScheduleError, match=reason):
        td.recipes.tensor_core_matmul(s[c], **choices)
    assert s.directives == ()


def test_large_products_on_hopper_use_warpgroups():
    x, y, c = td.Tensor("x", ("M", "K"), td.bf16), td.Tensor("y", ("N", "K"), td.bf16), td.Func("c")
    c[i, j] = product(x[i, k], y[j, k])
    text = str(td.compile(c, target="cuda:sm_90a").loops("final", M=4096, K=512, N=4096))
    assert "wgmma_m64n256k16_bf16_mk_nk(" in text
    assert "wgmma" not in str(td.compile(c, target="cuda:sm_80").loops(M=4096, K=512, N=4096))


@pytest.mark.parametrize("turned", [False, True])
def test_products_of_groups_with_what_follows(rng, turned):
    x = td.Tensor("x", (2, 128, 128), td.f16)
    y = td.Tensor("y", (2, 64, 128) if turned else (2, 128, 64), td.f16)
    c, f = td.Func("c"), td.Func("f")
    c[b, i, j] = product(x[b, i, k], y[b, j, k] if turned else y[b, k, j])
    f[b, i, j] = td.cast(td.maximum(c[b, i, j], 0), td.f16)
    s = td.Schedule(f)
    plan = td.recipes.tensor_core_matmul(s[c], block=(128, 64, 64), warp=(64, 64), warpgroups=True)
    assert plan.instruction.startswith("wgmma_m64n64k16_f16_mk_")
    p, q = whole(rng, 2, 128, 128), whole(rng, 2, 128, 64)
    given = q.transpose(0, 2, 1).copy() if turned else q
    got = td.emulate(td.compile(s, target="cuda:sm_90a"))(p, given)
    want = np.maximum(p.astype(np.float32) @ q.astype(np.float32), 0).astype(np.float16)
    np.testing.assert_array_equal(got, want, strict=True)


def test_products_of_groups_at_sizes_that_tiles_do_not_divide(rng):
    x, y, c = td.Tensor("x", (100, 72), td.f16), td.Tensor("y", (72, 40), td.f16), td.Func("c")
    c[i, j] = product(x[i, k], y[k, j])
    s = td.Schedule(c)
    td.recipes.tensor_core_matmul(s[c], block=(128, 64, 64), warp=(64, 64), warpgroups=True)
    p, q = whole(rng, 100, 72), whole(rng, 72, 40)
    got = td.emulate(td.compile(s, target="cuda:sm_90a"))(p, q)
    np.testing.assert_array_equal(got, p.astype(np.float32) @ q.astype(np.float32))


def test_few_rows_leave_the_layout_of_a_group_as_it_is(rng):
    """What a guard says of a loop is no reason to lose how far it runs."""
    x, y, c = td.Tensor("x", (13, 64), td.i8), td.Tensor("y", (95, 64), td.i8), td.Func("c")
    c[i, j] = product(x[i, k], y[j, k], td.i32)
    s = td.Schedule(c)
    td.recipes.tensor_core_matmul(s[c], block=(128, 64, 64), warp=(64, 32), warpgroups=True)
    p, q = whole(rng, 13, 64, dtype=np.int8), whole(rng, 95, 64, dtype=np.int8)
    got = td.emulate(td.compile(s, target="cuda:sm_90a"))(p, q)
    np.testing.assert_array_equal(got, p.astype(np.int32) @ q.T.astype(np.int32))


@pytest.mark.parametrize("choices", [{"group": 2}, {"blocks": 3}, {"group": 2, "blocks": 5}])
@pytest.mark.parametrize("warpgroups", [False, True])
def test_blocks_in_another_order(rng, choices, warpgroups):
    x, y, c = td.Tensor("x", (256, 64), td.f16), td.Tensor("y", (64, 128), td.f16), td.Func("c")
    c[i, j] = product(x[i, k], y[k, j])
    s = td.Schedule(c)
    tiles = {"block": (128, 64, 32), "warp": (64, 64)} if warpgroups else SMALL
    plan = td.recipes.tensor_core_matmul(s[c], **tiles, **choices, warpgroups=warpgroups)
    assert (plan.group, plan.blocks) == (choices.get("group", 1), choices.get("blocks", 0))
    p, q = whole(rng, 256, 64), whole(rng, 64, 128)
    got = td.emulate(td.compile(s, target="cuda:sm_90a"))(p, q)
    np.testing.assert_array_equal(got, p.astype(np.float32) @ q.astype(np.float32))


@pytest.mark.parametrize("warpgroups", [False, True])
def test_sums_that_turn_out_to_have_no_terms_are_zero(warpgroups):
    x, y, c = td.Tensor("x", ("M", "K"), td.f16), td.Tensor("y", ("K", "N"), td.f16), td.Func("c")
    c[i, j] = product(x[i, k], y[k, j])
    s = td.Schedule(c)
    td.recipes.tensor_core_matmul(s[c], warpgroups=warpgroups)
    p, q = np.zeros((40, 0), np.float16), np.zeros((0, 24), np.float16)
    got = td.emulate(td.compile(s, target="cuda:sm_90a"))(p, q)
    np.testing.assert_array_equal(got, np.zeros((40, 24), np.float32), strict=True)


def test_tiles_for_hopper_fit_what_is_given():
    x, y, c = td.Tensor("x", (256, 256), td.f16), td.Tensor("y", (256, 256), td.f16), td.Func("c")
    c[i, j] = product(x[i, k], y[k, j])
    for given, warp in (({}, (64, 256)), ({"block": (64, 128, 64)}, (64, 128))):
        plan = td.recipes.tensor_core_matmul(td.Schedule(c)[c], warpgroups=True, **given)
        assert (plan.warp, plan.stages) == (warp, 4)
        assert plan.block == given.get("block", (128, 256, 64))


@pytest.mark.parametrize("arch, rows", [("sm_90a", 64), ("sm_100a", 128)])
@pytest.mark.parametrize("dtype", [td.f32, td.f16], ids=str)
def test_results_pass_through_shared_memory_without_bank_conflicts(rng, arch, rows, dtype):
    a, b = td.Tensor("a", (128, 64), td.f16), td.Tensor("b", (64, 128), td.f16)
    total, c = td.Func("total"), td.Func("c")
    total[i, j] = td.sum(td.cast(a[i, k], td.f32) * td.cast(b[k, j], td.f32), axis=k)
    c[i, j] = td.cast(total[i, j] * 2, dtype)
    s = td.Schedule(c, target=f"cuda:{arch}")
    td.recipes.tensor_core_matmul(s[total], block=(128, 64, 64), warp=(rows, 64), stages=2, warpgroups=True)
    x, y = (rng.integers(-3, 4, n).astype(np.float16) for n in ((128, 64), (64, 128)))
    compiled = td.compile(s, target=f"cuda:{arch}")
    want = 2 * (x.astype(np.float32) @ y.astype(np.float32))
    np.testing.assert_array_equal(td.emulate(compiled)(x, y), want.astype(dtype.numpy))
    assert {a.conflict_degree for a in td.count_memory(compiled, x, y).accesses} == {1.0}
