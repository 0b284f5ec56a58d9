"""Tile trees: right for any sizes, written as directives that replay, and taken where they are faster."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import tdsl as td
from tdsl.autoschedule.by_recipes import complete_by_recipes
from tdsl.autoschedule.problem import Problem
from tdsl.cost.predict import Prediction
from tdsl.lang.interp import interpret
from tdsl.machine.devices import described_machine, reference_cpu
from tdsl.schedule.bind import bind_state
from tdsl.schedule.properties import root_boxes, unplaced_at_root
from tdsl.tilegraph.cache_tiles import best_trees
from tdsl.tilegraph.default import decide
from tdsl.tilegraph.write_tree import write_tree

MACHINE = reference_cpu(32)
EXPRESSIONS = {
    "ij->ji": {"i": 67, "j": 129},
    "abcd->acbd": {"a": 5, "b": 17, "c": 33, "d": 3},
    "abcd->dcba": {"a": 3, "b": 17, "c": 9, "d": 11},
    "bij,bkj->bik": {"b": 37, "i": 5, "j": 7, "k": 3},
    "ij,ji->": {"i": 96, "j": 41},
    "ijk,i->jk": {"i": 23, "j": 11, "k": 37},
    "aebf,dfce->abcd": {"a": 9, "b": 7, "c": 11, "d": 17, "e": 5, "f": 13},
    "ik,kj->ij": {"i": 47, "j": 61, "k": 1},
}


def einsum(expression: str, sizes: dict[str, int], dtype: td.DType = td.f32) -> td.Func:
    operands = expression.split("->")[0].split(",")
    return td.einsum(
        expression,
        *(td.Tensor(f"x{n}", tuple(sizes[c] for c in x), dtype) for n, x in enumerate(operands)),
    )


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_every_tree_that_is_written_computes_what_the_definition_says(expression: str) -> None:
    o = einsum(expression, EXPRESSIONS[expression])
    schedule = td.Schedule(o)
    state = unplaced_at_root(schedule.state)
    op = Problem.in_state(state, state.program.funcs[-1], root_boxes(state))
    assert op is not None
    rng = np.random.default_rng(0)
    given = {t.name: rng.integers(-4, 5, [n.value for n in t.shape]) for t in schedule.program.inputs}
    arrays = {name: x.astype(np.float32) for name, x in given.items()}
    (want,) = interpret(schedule.program, arrays)
    written = 0
    for _, tree in best_trees(op, MACHINE):
        s = td.Schedule(o)
        try:
            write_tree(s, op, tree)
        except td.ScheduleError:
            continue
        written += 1
        np.testing.assert_array_equal(td.compile(s)(**arrays), want, err_msg=str(tree))
        assert str(td.Schedule(o).replay(s.to_json())) == str(s)
    assert written


@pytest.mark.parametrize(
    "expression, sizes",
    [
        ("ij->ji", {"i": 2048, "j": 2048}),
        ("ij,ji->", {"i": 1024, "j": 1024}),
    ],
)
def test_a_tree_is_the_default_where_no_recipe_is_near_the_machine(
    expression: str, sizes: dict[str, int]
) -> None:
    state = bind_state(td.Schedule(einsum(expression, sizes)).state, {})
    completed, decisions = decide(state, MACHINE)
    assert "tree" in {d.how for d in decisions}
    by_recipes = complete_by_recipes(state, MACHINE).state
    assert Prediction.of(completed, MACHINE).seconds < Prediction.of(by_recipes, MACHINE).seconds


def test_what_recipes_do_well_keeps_its_recipe() -> None:
    for expression, sizes in (
        ("ik,kj->ij", {"i": 512, "j": 512, "k": 512}),
        ("ij->i", {"i": 4096, "j": 1024}),
    ):
        state = bind_state(td.Schedule(einsum(expression, sizes)).state, {})
        assert "tree" not in {d.how for d in decide(state, MACHINE)[1]}


def test_what_data_or_orders_decide_has_no_tree() -> None:
    i, j = td.vars("i j")
    x, at = td.Tensor("x", (64, 64), td.f32), td.Tensor("at", (64,), td.i32)
    f = td.Func("f")
    f[i, j] = x[td.clip(at[i], 0, 63), j]
    state = unplaced_at_root(td.Schedule(f).state)
    assert Problem.in_state(state, state.program.func("f"), root_boxes(state)) is None


@pytest.mark.parametrize("threads", [2, 3, 4, 8])
def test_threads_share_a_short_outer_axis(threads: int) -> None:
    o = einsum("abcd->acbd", {"a": 16, "b": 64, "c": 64, "d": 64})
    state = unplaced_at_root(td.Schedule(o).state)
    op = Problem.in_state(state, state.program.funcs[-1], root_boxes(state))
    assert op is not None
    _, tree = best_trees(op, replace(MACHINE, threads=threads))[0]
    (cut,) = (cut for cut in tree.tiles if cut.how == "threads")
    extent = op.axis(cut.axis).extent
    assert -(-extent // cut.size) % threads == 0 or extent // cut.size > 2 * threads


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_the_closed_form_of_a_tree_agrees_with_the_price_of_its_loops(expression: str) -> None:
    """The closed form ranks trees, the loop nests that they are written as decide."""
    rng, machine = np.random.default_rng(len(expression)), replace(described_machine("zen3"), threads=1)
    letters = sorted(EXPRESSIONS[expression])
    for _ in range(2):
        most = 2e7 ** (1 / len(letters))
        sizes = {c: int(n) for c, n in zip(letters, rng.uniform(most / 2, most, len(letters)), strict=True)}
        o = einsum(expression, sizes, td.f64)
        schedule = td.Schedule(o)
        state = unplaced_at_root(schedule.state)
        op = Problem.in_state(state, state.program.funcs[-1], root_boxes(state))
        assert op is not None
        seconds, tree = best_trees(op, machine)[0]
        write_tree(schedule, op, tree)
        completed = complete_by_recipes(bind_state(schedule.state, schedule.sizes), machine)
        judged = Prediction.of(completed.state, machine).seconds
        assert 0.8 * seconds <= judged <= 2.5 * seconds, (sizes, str(tree))
