"""Expressions and programs are graphs: work and code grow with distinct nodes, not with ways to them."""

import copy
import inspect
import math
import pickle
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tdsl as td
from benchmarks.growth import FAMILIES
from tdsl.autoschedule.choose_inline import choose_inline
from tdsl.core.node import post_order, pre_order
from tdsl.errors import TdslError
from tdsl.lang.expr import Binary, Expr, Var, const
from tdsl.lang.interp import interpret
from tdsl.schedule.inlining import cost_with_inlined, inline_funcs
from tdsl.schedule.state import State

N = 100
i = td.vars("i")


def tensor(dtype: Any = td.f32) -> Any:
    return td.Tensor("a", (N,), dtype)


def chosen(a: Any, depth: int) -> Any:
    e = a[i]
    for q in range(depth):
        e = td.where(a[i] > q, e * 0.5, e + 1)
    return e


def chosen_by_itself(a: Any, depth: int) -> Any:
    e = a[i]
    for q in range(depth):
        e = td.where(e > q, e, e + 1)
    return e


def index_of_itself(a: Any, depth: int) -> Any:
    e = i + 0
    for q in range(depth):
        e = (e + td.minimum(e, q + N // 2)) % N
    return a[e]


def condition_of_itself(a: Any, depth: int) -> Any:
    c = a[i] > 0
    for q in range(depth):
        c = (c & (a[i] > q)) | (c ^ (a[i] < q))
    return td.where(c, a[i], 0)


def index_chosen(a: Any, depth: int) -> Any:
    e = i + 0
    for q in range(depth):
        e = td.where(e > q, e - 1, td.minimum(e + 1, N - 2))
    return a[td.clip(e, 0, N - 1)]


EXPRESSIONS = (
    chosen, chosen_by_itself, index_of_itself, condition_of_itself, index_chosen,
)  # fmt: skip


def check(f: Any, target: str = "cpu") -> None:
    values = np.random.default_rng(0).uniform(-1, 20, N).astype(np.float32)
    kernel = td.compile(f, target=target)
    (expected,) = interpret(kernel.state.program, {"a": values})
    np.testing.assert_allclose(kernel(values), expected, rtol=1e-4)


@pytest.mark.parametrize("expression", EXPRESSIONS)
@pytest.mark.parametrize("target", ["cpu", "python"])
def test_an_expression_that_shares_its_parts_is_compiled_part_by_part(
    expression: Callable[[Any, int], Any], target: str
) -> None:
    f = td.Func("f", shape=N)
    f[i] = expression(tensor(), 30)
    assert len(repr(f)) < 100_000
    check(f, target)


def doubled(depth: int) -> Expr:
    e: Expr = Var("i")
    for q in range(depth):
        e = Binary("add", Binary("mul", e, const(q)), e)
    return e


def test_equal_graphs_are_compared_pair_by_pair() -> None:
    a, b = doubled(2000), doubled(2000)
    assert a == b
    assert hash(a) == hash(b)
    assert a != doubled(1999)
    assert Binary("add", a, const(-1)) != Binary("add", b, const(-2))  # whose hashes are equal


def test_the_nodes_of_a_graph_are_walked_once() -> None:
    e = doubled(200)
    assert len(list(pre_order(e))) == len(list(post_order(e)))


STAGES: dict[str, Callable[[Any], Any]] = {
    "the stage before, twice": lambda p: p[i] * 0.99 + td.minimum(p[i], 1),
    "mirrored": lambda p: p[i] + p[N - 1 - i],
    "modulo": lambda p: p[(i + 1) % N] * 0.5 + p[(i + 3) % N],
    "gathered": lambda p: p[td.cast(p[i], td.i64) % N],
    "reflected": lambda p: td.pad(p, mode="reflect")[i - 1],
    "padded": lambda p: td.pad(p, mode="edge")[i - 1] - td.pad(p, mode="wrap")[i + 1],
}


def chain(stage: Callable[[Any], Any], n: int) -> Any:
    p = tensor()
    for q in range(n):
        f = td.Func(f"f{q}", shape=N)
        f[i] = stage(p)
        p = f
    return p


@pytest.mark.parametrize("stage", STAGES.values(), ids=STAGES)
def test_chains_of_light_stages_are_compiled_stage_by_stage(stage: Callable[[Any], Any]) -> None:
    check(chain(stage, 16))


def nodes(state: State) -> int:
    return len({id(n) for f in state.program.funcs for d in f.definitions for n in post_order(*d.values)})


@pytest.mark.parametrize("stage", STAGES.values(), ids=STAGES)
def test_code_grows_with_the_number_of_stages(stage: Callable[[Any], Any]) -> None:
    def size(n: int) -> int:
        state = td.Schedule(chain(stage, n)).state
        return nodes(inline_funcs(choose_inline(state)[0]))

    assert size(32) < 2.5 * size(16)


def test_reads_at_equal_indices_share_what_is_inlined() -> None:
    s = td.Schedule(chain(lambda p: td.exp(p[i] * 0.5) + p[N - 1 - i], 24))
    for q in range(23):
        s[f"f{q}"].inline()
    assert nodes(inline_funcs(s.state)) < 24 * 40
    check(s)


def test_inlining_that_multiplies_code_is_refused() -> None:
    s = td.Schedule(chain(STAGES["modulo"], 20))
    for q in range(19):
        s[f"f{q}"].inline()
    with pytest.raises(TdslError, match="at more than 10000 different indices") as caught:
        td.compile(s)(np.zeros(N, np.float32))
    assert "compute_root() of" in str(caught.value)


def test_the_work_of_what_is_inlined_counts_each_different_read() -> None:
    state = choose_inline(td.Schedule(chain(STAGES["mirrored"], 3)).state)[0]
    first, second, _ = state.program.funcs
    assert cost_with_inlined(state, first.definitions[0], 100) == 1
    assert cost_with_inlined(state, second.definitions[0], 100) == 5


def clips(a: Any, depth: int) -> Any:
    e = i + 0
    for q in range(depth):
        e = td.clip(e + (1 if q % 2 else -1), 0, N - 1 - q % 3)
    return a[e]


def gathers(a: Any, depth: int) -> Any:
    e = i + 0
    for _ in range(depth):
        e = td.clip(td.cast(a[e], td.i64), 0, N - 1)
    return a[e]


def long_sum(a: Any, depth: int) -> Any:
    e = a[i]
    for q in range(6 * depth):
        e = e + q
    return e


@pytest.mark.parametrize("expression", [clips, gathers, long_sum])
def test_deep_expressions_end_in_no_recursion_error(
    expression: Callable[[Any, int], Any],
) -> None:
    f = td.Func("f", shape=N)
    f[i] = expression(tensor(), 160)
    assert copy.deepcopy(repr(f))
    check(f)


def test_deep_graphs_are_pickled() -> None:
    e = doubled(3000)
    assert pickle.loads(pickle.dumps(e)) == e


def calls_of(run: Callable[[], Any]) -> int:
    """How many calls of Python functions it takes."""
    count = 0

    def seen(_frame: Any, event: str, _argument: Any) -> None:
        nonlocal count
        count += event == "call"

    before = sys.getprofile()
    sys.setprofile(seen)
    try:
        run()
    finally:
        sys.setprofile(before)
    return count


def padded_by_declared_shapes(n: int) -> Any:
    return chain(lambda p: td.pad(p, mode="wrap")[i - 1], n)


def tiled(n: int) -> Any:
    s = td.Schedule(FAMILIES["products"](n))
    for q in range(n):
        stage = s[f"f{q}"]
        x, y = stage.loops[:2]
        _, y_i = stage.split(y, 8)
        s.cache_write(stage, x)
        stage.unroll(y_i)
    return s


@pytest.mark.parametrize("build", [padded_by_declared_shapes, tiled])
def test_writing_n_stages_and_their_schedule_takes_time_in_proportion(
    build: Callable[[int], Any],
) -> None:
    build(4)  # what is imported and remembered once
    few, many = (calls_of(lambda n=n: build(n)) for n in (20, 40))
    assert math.log2(many / few) < 1.2


def sums_of_sums(depth: int) -> Any:
    b, e = td.Tensor("b", (1,), td.f32), tensor()[i] * 1
    for q in range(depth):
        e = td.sum(e * b[k := td.vars(f"k{q}")], axis=k)
    f = td.Func("f", shape=N)
    f[i] = e
    return f


def test_stages_are_collected_without_recursion() -> None:
    f = chain(lambda p: p[i] + 1, 700)
    values = np.zeros(N, np.float32)
    np.testing.assert_array_equal(td.compile(f, target="python")(values), np.full(N, 700))


def test_loops_that_are_too_deep_for_python_are_an_error_of_the_func() -> None:
    f = sums_of_sums(60)
    call, limit = td.compile(f, target="python"), sys.getrecursionlimit()
    values = {"a": np.ones(N, np.float32), "b": np.ones(1, np.float32)}
    sys.setrecursionlimit(len(inspect.stack(0)) + 90)
    try:
        with pytest.raises(td.DefinitionError, match="nested more deeply") as caught:
            call(**values)
    finally:
        sys.setrecursionlimit(limit)
    assert "setrecursionlimit" in caught.value.hint
    np.testing.assert_array_equal(call(**values), values["a"])
