"""Vector code: what it looks like, and where a loop must stay a loop."""

import pytest

from tdsl.codegen.ir.loops import Alloc, For, Kernel, Store
from tdsl.codegen.ir.show import show
from tdsl.codegen.ir.statements import exprs_of, walk
from tdsl.codegen.passes.vectorize import vectorize
from tdsl.core.node import post_order
from tdsl.lang.expr import Binary, Load, Ramp, lanes_of
from tests.codegen.passes.loop_text import assert_same_results, kernel


def vectorized(arrays: str, text: str) -> tuple[Kernel, str]:
    """The kernel in vector form, checked against its meaning, and its text."""
    before = kernel(arrays, text)
    after = vectorize(before)
    assert_same_results(before, after)
    return after, show(after.body)


def loops(k: Kernel) -> list[str]:
    return [s.name for s in walk(k.body) if isinstance(s, For)]


def loads(k: Kernel) -> list[Load]:
    loads_seen = {}
    for s in walk(k.body):
        for e in exprs_of(s):
            loads_seen |= {n: None for n in post_order(e) if isinstance(n, Load)}
    return list(loads_seen)


@pytest.mark.parametrize(
    "index, stride",
    [("x", 1), ("x + 3", 1), ("2 * x + 1", 2), ("15 - x", -1), ("3 * (7 - x) - x + 4 * x", 0)],
)
def test_affine_index_becomes_ramp(index, stride):
    k, _ = vectorized("out[8], a[30]", f"for x in vectorized(0, 8):\n    out[x] = a[{index}]")
    (load,) = loads(k)
    assert lanes_of(load) == (8 if stride else 1)
    assert not stride or load.index[0].stride == stride
    assert not loops(k)


def test_ramp_starts_at_first_iteration_with_any_lane_count():
    k, _ = vectorized("out[20], a[20]", "for x in vectorized(2, 9):\n    out[2 * x] = a[x + 1]")
    (store,) = walk(k.body)
    assert store.index == (Ramp(store.index[0].base, 2, 7),)
    assert store.index[0].base.value == 4


@pytest.mark.parametrize(
    "value",
    [
        "a[x // 2]",
        "a[x % 3] + a[min(x, 5)]",
        "a[a[x]]",
        "where(a[x] < 4, x, a[x + 1] * 2)",
        "where(M < 4, x, a[x + 1])",
        "x * M + a[M] - x * x",
        "-3 + (5 - x) * 2 // 3 + (x + M) % 4",
        "a[x] * 2 + 3 * a[x + M] - (x - a[x])",
    ],
)
def test_expressions_are_vectorized(value):
    k, _ = vectorized("out[8], a[16]", f"for x in vectorized(0, 8):\n    out[x] = {value}")
    assert not loops(k)


def test_tail_becomes_mask_except_for_loads_in_bounds():
    k, _ = vectorized(
        "out[13], a[13], b[40], c[4]",
        """
        for y in serial(0, (N + 3) // 4):
            for x in vectorized(0, 4):
                if y * 4 + x < N:
                    out[y * 4 + x] = a[y * 4 + x] + b[y * 4 + x] + c[y]
        """,
    )
    assert loops(k) == ["y"]
    masked = {n.buffer: n.mask is not None for n in loads(k)}
    assert masked == {"a": True, "b": True, "c": False}
    (store,) = (s for s in walk(k.body) if isinstance(s, Store))
    assert store.mask is not None


def test_load_in_bounds_needs_no_mask():
    k, _ = vectorized(
        "out[8], a[8]",
        "for x in vectorized(0, 8):\n    if x < M:\n        out[x] = a[min(x + 2, 7)] + a[7]",
    )
    assert all(n.mask is None for n in loads(k))


def test_scalar_load_is_masked_if_no_lane_may_be_active():
    k, _ = vectorized(
        "out[8], a[3]",
        """
        for y in serial(0, 8):
            for x in vectorized(0, 4):
                if x < y - 4:
                    out[x] = a[7 - y]
        """,
    )
    assert all(n.mask is not None for n in loads(k))


def test_if_with_else():
    text = """
        for x in vectorized(0, 8):
            if {}:
                out[x] = 1
                b[x] = out[x] + x
            else:
                out[x] = 2 + a[x]
        """
    for condition in ("a[x] < 4", "(M < 9) & (a[x] < 4)", "M < 3", "(a[x] < 4) | (x < 2)"):
        k, _ = vectorized("out[8], b[8], a[8]", text.format(condition))
        assert not loops(k)


def test_branches_that_store_buffers_of_the_condition():
    k, _ = vectorized(
        "out[8], b[8]",
        """
        for x in vectorized(0, 8):
            if out[x] < 4:
                out[x] = 9
                b[x] = 1
            else:
                b[x] = 2
                out[x] = 0
        """,
    )
    assert not loops(k)


def test_alloc_in_loop_gets_lane_axis():
    k, _ = vectorized(
        "out[8, 5], a[8]",
        """
        for x in vectorized(0, 8):
            with alloc(t, 5):
                with alloc(u):
                    u[()] = a[x]
                    for z in serial(0, 5):
                        t[z] = u[()] + z
                    for z2 in serial(0, 5):
                        out[x, z2] = t[4 - z2] * 2
        """.replace("u[()]", "u[0]").replace("alloc(u)", "alloc(u, 1)"),
    )
    assert loops(k) == ["z", "z2"]
    shapes = [tuple(e.value for e in s.extents) for s in walk(k.body) if isinstance(s, Alloc)]
    assert shapes == [(5, 8), (1, 8)]


def test_let_keeps_value_read_before_store():
    k, _ = vectorized(
        "out[8], a[8]",
        """
        for x in vectorized(0, 8):
            i = x * 2 - x
            k = out[i] + 1
            out[x] = a[i]
            out[x] = out[x] * 10 + k
        """,
    )
    assert not loops(k)


@pytest.mark.parametrize(
    "body",
    [
        "out[x + 1] = out[x]",  # reads what the lane before wrote
        "out[x] = out[x + 1]",  # reads what the lane after will write
        "out[x % 4] = x",  # lanes meet
        "out[a[x]] = x",  # lanes may meet
        "out[3] = x",  # all lanes meet
        "out[a[x]] += 1",
        "check(x < 9)",
        "for z in serial(0, x):\n        out[x * 2] = out[x * 2] + z",  # lanes differ in length
        "for z in serial(0, 3):\n        out[x + z] = z",  # lanes meet at different times
        "out[x // 2 + x % 2] = x",
    ],
)
def test_dependent_lanes_stay_serial(body):
    k, _ = vectorized("out[20], a[8]", f"for x in vectorized(0, 8):\n    {body}")
    assert loops(k)[0] == "x"


@pytest.mark.parametrize(
    "body",
    [
        "out[x, 3] = out[x, 2] + out[x, 5]",
        "out[7 - x, x] = x",
        "out[x, a[x]] = x",
        "out[x, a[x]] += 1",
        "out[x, 2 * x % 16] = x",
        "for z in serial(0, 4):\n        out[0, x * 4 + z] = out[0, x * 4 + z] + z",
        "out[(4 * M + x) // 8, (4 * M + x) % 8] = x",
        "for z in serial(a[0], 9):\n        out[x, z] = z",
    ],
)
def test_independent_lanes_are_vectorized(body):
    k, _ = vectorized("out[8, 32], a[8]", f"for x in vectorized(0, 8):\n    {body}")
    assert "x" not in loops(k)


def test_bounded_extent_is_masked():
    k, _ = vectorized(
        "out[13], a[13]",
        """
        for y in serial(0, 4):
            for x in vectorized(0, min(4, N - y * 4)):
                out[y * 4 + x] = a[y * 4 + x]
        """,
    )
    assert loops(k) == ["y"]


@pytest.mark.parametrize(
    "value",
    [
        "where(y * 8 + x < 16, a[y * 8 + x], 0)",
        "where(y * 8 + x >= 8, a[y * 8 + x], 0)",
        "where(24 - x > y * 8, a[y * 8 + x], 0)",
        "where(8 * y - x <= 8, a[y * 8 + x], 0)",
        "a[(y * 8 + x) // 16] + a[(y * 8 + x + 8) % 24]",
    ],
)
def test_uniform_conditions_stay_scalar(value):
    text = f"for y in serial(0, 3):\n    for x in vectorized(0, 8):\n        out[y * 8 + x] = {value}"
    k, _ = vectorized("out[24], a[24]", text)
    (store,) = (s for s in walk(k.body) if isinstance(s, Store))
    vectors = [n for n in post_order(store.value) if isinstance(n, Binary) and lanes_of(n) > 1]
    assert not [n for n in vectors if n.op != "add"]


@pytest.mark.parametrize("limit", [15, 17])
def test_condition_that_differs_by_lane_becomes_mask(limit):
    value = f"where(y * 8 + x < {limit}, a[y * 8 + x], 0)"
    text = f"for y in serial(0, 3):\n    for x in vectorized(0, 8):\n        out[y * 8 + x] = {value}"
    k, _ = vectorized("out[24], a[24]", text)
    (store,) = (s for s in walk(k.body) if isinstance(s, Store))
    assert any(isinstance(n, Binary) and n.op == "lt" and lanes_of(n) > 1 for n in post_order(store.value))
