"""Default schedules for a processor with tile units and a large last-level cache, from its description."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import tdsl as td
from tdsl.autoschedule.explain import explain
from tdsl.codegen.python.run import PythonExecutable
from tdsl.cost.predict import Prediction
from tdsl.inspection import source
from tdsl.lang.interp import interpret
from tdsl.pipeline import completed_with_decisions, make_kernel
from tdsl.tilegraph.default import completion
from tdsl.variant import Variant
from tests.autoschedule.patterns.test_streaming import SPR, blur, copy, triad, variant_of

i, j, k = td.vars("i j k")


def product(rows: int, columns: int, terms: int, dtype: td.DType, total: td.DType) -> td.Func:
    """The product of two matrices of a type, summed in another one."""
    a, b, c = td.Tensor("a", (rows, terms), dtype), td.Tensor("b", (terms, columns), dtype), td.Func("c")
    c[i, j] = td.sum(td.cast(a[i, k], total) * td.cast(b[k, j], total), axis=k, dtype=total)
    return c


PROGRAMS = {
    "copy": copy(64 << 20),
    "triad": triad(64 << 20),
    "blur": blur(64 << 20),
    "i8": product(1024, 1024, 1024, td.i8, td.i32),
    "bf16": product(1024, 1024, 1024, td.bf16, td.f32),
    "many-terms": product(128, 128, 8192, td.f32, td.f32),
    "few-terms": product(4096, 4096, 16, td.f32, td.f32),
    "few-columns": product(4096, 16, 4096, td.f32, td.f32),
}


def directives_of(program: td.Func, variant: Variant) -> str:
    """The default schedule of a variant as Python."""
    schedule = td.Schedule(program)
    for directive in completion(variant.state, variant.machine).directives:
        schedule.do(directive)
    return str(schedule)


@pytest.mark.parametrize("name", [name for name in PROGRAMS if name not in ("copy", "triad")])
def test_schedules_for_sapphire_rapids(name: str, golden) -> None:
    program = PROGRAMS[name]
    variant = variant_of(program)
    state, decisions = completed_with_decisions(variant)
    golden(f"{explain(decisions, state)}\n\n{directives_of(program, variant)}")


@pytest.mark.parametrize("name", ["copy", "triad", "blur", "few-terms"])
def test_large_results_are_written_past_the_caches(name: str) -> None:
    variant = variant_of(PROGRAMS[name])
    assert ".stream_stores()" in directives_of(PROGRAMS[name], variant)
    assert "vmovntps" in str(source(variant, lambda: pytest.fail("it is only compiled"), "asm"))


@pytest.mark.parametrize("name, unit", [("i8", "tdpbssd"), ("bf16", "tdpbf16ps")])
def test_rows_of_a_product_by_tile_units_stay_in_the_second_cache(name: str, unit: str) -> None:
    variant = variant_of(PROGRAMS[name])
    state, _ = completed_with_decisions(variant)
    (time,) = (t for t in Prediction.of(state, SPR).times if t.func == "c")
    memory = dict(time.memory)
    assert memory["L3"] < 1.1 * memory["L2"]
    assert unit in str(source(variant, lambda: pytest.fail("it is only compiled"), "asm"))


def test_a_panel_of_many_terms_is_split_where_it_fills_the_second_cache() -> None:
    state, _ = completed_with_decisions(variant_of(PROGRAMS["many-terms"]))
    (time,) = Prediction.of(state, SPR).times
    assert dict(time.memory)["L3"] < dict(time.units)["vector"]


@pytest.mark.parametrize("dtype, total", [(td.i8, td.i32), (td.bf16, td.f32)])
def test_products_in_bands_of_rows_are_right(dtype: td.DType, total: td.DType) -> None:
    program = product(128, 96, 64, dtype, total)
    levels = tuple(replace(x, bytes=24 << 10, effective=()) if x.name == "L2" else x for x in SPR.levels)
    variant = variant_of(program, replace(SPR, levels=levels))
    assert "by bands of" in str(explain(completed_with_decisions(variant)[1]))
    rng = np.random.default_rng(0)
    given = [rng.integers(-8, 8, [n.value for n in t.shape]) for t in td.Schedule(program).program.inputs]
    a, b = (x.astype(dtype.numpy) for x in given)
    c = np.zeros((128, 96), total.numpy)
    PythonExecutable(make_kernel(variant), checked=True).run([a, b, c])
    np.testing.assert_array_equal(c, interpret(td.Schedule(program).program, {"a": a, "b": b})[0])
