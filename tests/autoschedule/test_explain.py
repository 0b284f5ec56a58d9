"""What the default schedule says of its decisions is what it has done."""

from __future__ import annotations

import pytest

import tdsl as td
from tdsl import pipeline
from tdsl.autoschedule.explain import Decision, explain, plan_text
from tdsl.autoschedule.patterns.contraction import Contraction, RegisterTiles
from tdsl.autoschedule.patterns.strips import Strips
from tdsl.errors import ShapeError
from tdsl.machine.model import Machine
from tdsl.pipeline import completed_state
from tdsl.schedule.bind import bind_state
from tdsl.schedule.state import At
from tdsl.tilegraph.default import complete, decide
from tdsl.tools import demo
from tests.fuzz.choices import Seeded
from tests.fuzz.programs import random_program

WIDE = Machine(vector_bytes=64, threads=2, registers=32)
i, j, k, y, x = td.vars("i j k y x")


def decided(func, **sizes):
    """The decisions for a func, or for a schedule, by the name of the func."""
    s = func if isinstance(func, td.Schedule) else td.Schedule(func)
    state = bind_state(s.state, sizes)
    completed, decisions = decide(state, WIDE)
    assert completed == complete(state, WIDE)
    return {d.func: d for d in decisions}


def product(m=512, n=512, terms=512):
    a, b, c = td.Tensor("a", (m, terms), td.f32), td.Tensor("b", (terms, n), td.f32), td.Func("c")
    c[i, j] = td.sum(a[i, k] * b[k, j], axis=k)
    return c


def test_a_product_is_explained_with_its_tiles():
    decision = decided(product())["c"]
    contraction, tiles = decision.plan
    assert decision.how == "matmul"
    assert isinstance(contraction, Contraction)
    assert isinstance(tiles, RegisterTiles)
    text = explain([decision])
    assert f"{tiles.rows} x {tiles.width} register tiles" in text
    assert "vectors along j of b, each used again along i" in text
    assert "threads over j" in text


def test_what_is_computed_with_a_recipe_is_named():
    c, out = product(), td.Func("out")
    out[i, j] = td.maximum(c[i, j], 0)
    decisions = decided(out)
    assert decisions["out"].inside == ("c",)
    assert set(decisions) == {"out"}


def test_an_inner_product_is_explained_with_its_tiles():
    x, w, v = (
        td.Tensor("x", (56, 58, 64), td.f32),
        td.Tensor("w", (3, 64), td.f32),
        td.Tensor("v", (64, 64), td.f32),
    )
    deep, out, f = td.Func("deep"), td.Func("out"), td.vars("f")
    deep[i, j, k] = td.sum(x[i, j + y, k] * w[y, k], axis=y)
    out[i, j, f] = td.sum(td.maximum(deep[i, j, k], 0) * v[k, f], axis=k)
    decision = decided(out)["out"]
    assert decision.inside == ("deep",)
    text = explain([decision])
    assert "a sum of 64 products: vectors along f of v" in text
    assert "windows of 3 terms: vectors along k of x, several j per tile" in text
    assert "y unrolled" in text


def test_stencils_are_explained_with_their_strips():
    a = td.Tensor("a", (1002, 1000), td.f32)
    rows, blur = td.Func("rows"), td.Func("blur")
    rows[y, x] = a[y, x] + a[y, x + 1] + a[y, x + 2]
    blur[y, x] = rows[y, x] + rows[y + 1, x] + rows[y + 2, x]
    decision = decided(blur)["blur"]
    (strips,) = decision.plan
    assert isinstance(strips, Strips)
    assert (decision.how, decision.inside) == ("strips", ("rows",))
    assert f"strips of {strips.height} lines of y" in explain([decision])


def pointwise(f, a):
    f[i, j] = a[i, j] + 1


def row_sums(f, a):
    f[i] = td.sum(a[i, k], axis=k)


def few_terms(f, a):
    r = td.range("r", 0, 4)
    f[i, j] = td.sum(a[i, r] * a[r, j], axis=r)


def updated(f, a):
    r = td.range("r", 1, 100)
    f[i, j] = a[i, j]
    f[r, j] += f[r - 1, j]


def no_reuse(f, a):
    f[i, j] = td.sum(a[i, k] * a[j, i], axis=k)


@pytest.mark.parametrize(
    "define, reason",
    [
        (pointwise, "it is no sum of products"),
        (row_sums, "it has no two variables"),
        (few_terms, "fewer than 8 terms"),
        (updated, "it has updates"),
        (no_reuse, "no operand is used again"),
    ],
)
def test_the_general_schedule_and_trees_say_what_a_func_is_not(define, reason):
    f = td.Func("f")
    define(f, td.Tensor("a", (100, 100), td.f32))
    decision = decided(f)["f"]
    assert decision.how in ("general schedule", "tree")
    assert any(why.startswith(f"not matmul: {reason}") or reason in why for why in decision.why)
    assert "not strips: it alone reads no func" in decision.why


def test_loops_of_the_general_schedule_are_those_that_are_compiled():
    f = td.Func("f")
    pointwise(f, td.Tensor("a", ("N", 64), td.f32))
    compiled = td.compile(f)
    text = str(compiled.explain(N=1000))
    assert "i (parallel)" in text
    assert "# parallel" in str(compiled.loops(N=1000))
    assert "(parallel)" not in str(compiled.explain(N=2))


def test_inlined_funcs_say_why():
    a = td.Tensor("a", (10, 10), td.f32)
    cheap, once, f = td.Func("cheap"), td.Func("once"), td.Func("f")
    cheap[i, j] = a[i, j] * 2
    once[i, j] = td.exp(cheap[i, j]) / 3
    f[i, j] = once[i, j] + cheap[i, j]
    decisions = decided(f)
    assert decisions["cheap"].why == ("it is one operation or less",)
    assert decisions["once"].why == ("it is read in one place",)


def test_directives_of_the_user_are_kept_and_explained():
    c = product()
    s = td.Schedule(c)
    s[c].reorder(k, i, j)
    s[c].parallel(i)
    decision = decided(s)["c"]
    assert decision.how == "by hand"
    assert plan_text(decision.plan[0]) == "loops k > i (parallel) > j_o > j_v (vectorized)"
    assert decision.why == ("by default: vectors along j",)


def test_sizes_have_to_be_known():
    f = td.Func("f")
    pointwise(f, td.Tensor("a", ("N", 64), td.f32))
    with pytest.raises(ShapeError, match="not known yet: N"):
        td.compile(f).explain()


@pytest.mark.parametrize("case", demo.CASES, ids=lambda case: case.name)
def test_every_func_is_decided_once(case):
    compiled = case.default()
    compiled(*case.inputs())
    (specialisation,) = compiled.executables
    state = bind_state(compiled.state, dict(specialisation.sizes))
    completed, decisions = decide(state, WIDE)
    named = [name for d in decisions for name in (d.func, *d.inside)]
    assert sorted(named) == sorted(f.name for f in compiled.state.program.funcs)
    for d in decisions:
        if d.how in ("strips", "rows"):
            assert all(isinstance(completed.plan(name).place, At) for name in d.inside)


def test_funcs_of_random_programs_are_decided_once():
    for seed in range(5, 65, 7):
        generated = random_program(Seeded(seed))
        program = td.Schedule(*generated.outputs).state.program
        sizes = {name: size for name, size in generated.sizes.items() if name in program.sizes}
        _, decisions = decide(bind_state(td.Schedule(*generated.outputs).state, sizes), WIDE)
        named = [name for d in decisions for name in (d.func, *d.inside)]
        assert sorted(named) == sorted(f.name for f in program.funcs)
        assert explain(decisions)


def test_plans_of_unknown_types_are_shown_by_their_fields():
    assert plan_text(Decision("f", "root")) == "func f, how root"  # what is empty is left out


def explained(what, **sizes):
    return td.compile(what, target="cpu:avx2").explain(**sizes)


def test_serial_loops_are_explained():
    a, sums, last = td.Tensor("a", (8, 100), td.f32), td.Func("sums"), td.Func("last")
    r = td.range("r", 1, 100)
    sums[i, j] = a[i, j]
    sums[i, r] += sums[i, r - 1]
    last[i] = td.reduce(lambda x, y: y, 0.0, sums[i, k], axis=k, associative=False)
    s = td.Schedule(last)
    s["sums"].compute_root()
    text = explained(s)
    assert "r: reads what it wrote" in text
    assert "k: a sequential reduction, combiner not associative" in text
    total = td.Func("total")
    total[i] = td.sum(a[i, k], axis=k)
    s = td.Schedule(total)
    s["total"].serial()
    assert explained(s).splitlines() == [
        "total: by hand",
        "  loops i > k",
        "  i: independent iterations, left serial",
        "  k: a sequential reduction",
    ]


def test_stages_that_a_schedule_adds_are_all_listed():
    w, c = td.Tensor("w", (512, 512), td.f32), td.Func("c")
    c[i, j] = td.sum(w[i, k] * w[k, j], axis=k)
    by_hand = td.Schedule(c)
    outer, inner = by_hand[c].split(k, 16)
    partial = by_hand[c].rfactor(inner)
    by_hand.cache_read(w, partial, at=outer)
    for what, target in ((c, "cpu:avx2"), (c, "cuda"), (by_hand, "cpu:avx2"), (by_hand, "python")):
        compiled = td.compile(what, target=target)
        stages = [
            f.name for f in completed_state(compiled.variant(compiled.specialisation({}))).program.funcs
        ]
        assert len(stages) > 1
        text = str(compiled.explain()) if target != "cuda" else decided_text(compiled)
        for name in stages:
            assert f"{name}: " in text or f"with {name} inside" in text


def decided_text(compiled):
    state, decisions = pipeline.completed_with_decisions(compiled.variant(compiled.specialisation({})))
    return explain(decisions, state)
