"""Random programs have a meaning, print as Python with the same meaning, and have sound errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tdsl.lang import arithmetic
from tdsl.lang.build_program import build_program
from tdsl.lang.interp import interpret
from tests.fuzz.choices import Drawn, Seeded
from tests.fuzz.errors import Bounded, assert_matches, mismatch, reference, unit
from tests.fuzz.programs import random_program


@pytest.mark.parametrize("first", [0, 10])
def test_random_programs_have_a_meaning(first: int) -> None:
    for seed in range(first, first + 10):
        made = random_program(Seeded(seed))
        results = interpret(made.program(), made.arguments(seed), made.sizes)
        assert len(results) == sum(len(f.dtypes) for f in made.outputs)


@settings(max_examples=10)
@given(st.data())
def test_decisions_may_come_from_hypothesis(data: Any) -> None:
    made = random_program(Drawn(data), stages=2)
    interpret(made.program(), made.arguments(0), made.sizes)


@pytest.mark.parametrize("seed", range(0, 300, 61))
def test_the_text_of_a_program_has_its_meaning(seed: int) -> None:
    made = random_program(Seeded(seed))
    names: dict[str, Any] = {}
    exec(compile(made.source(seed), f"program {seed}", "exec"), names)
    again = random_program(Seeded(seed))
    assert again.lines == made.lines
    program = build_program(names["outputs"])
    assert program == made.program()
    want = interpret(program, made.arguments(seed), made.sizes)
    got = interpret(program, names["arguments"], made.sizes)
    for x, y in zip(got, want, strict=True):
        np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("first", [0, 5, 10])
def test_errors_hold_what_other_functions_and_orders_give(
    first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same programs by functions that are a few ulps off, and with products fused into sums."""
    exact = arithmetic.call

    def inexact(fn: str, args: tuple[Any, ...], dtype: Any) -> Any:
        result = exact(fn, args, dtype)
        smooth = dtype.is_float and fn not in (
            "random",
            "floor",
            "ceil",
            "trunc",
            "round",
            "copysign",
        )
        if not smooth or fn == "reinterpret":
            return result
        return (result * (1 + 6 * unit(dtype))).astype(result.dtype)

    for seed in range(first, first + 5):
        made = random_program(Seeded(seed))
        arguments = made.arguments(seed)
        want = reference(made.program(), arguments, made.sizes)
        assert_matches(interpret(made.program(), arguments, made.sizes), want)
        with monkeypatch.context() as patch:
            patch.setattr(arithmetic, "call", inexact)
            other = interpret(made.program(), arguments, made.sizes)
        for x, y in zip(other, want, strict=True):
            assert not mismatch(x, y), "\n".join(made.lines)


def test_most_results_are_certain_to_the_bit() -> None:
    """An error analysis that doubts everything would find no fault."""
    outputs = certain = unknown = total = 0
    for seed in range(24):
        made = random_program(Seeded(seed))
        for w in reference(made.program(), made.arguments(seed), made.sizes):
            outputs += 1
            certain += not w.error.any()
            unknown += int((~np.isfinite(w.error)).sum())
            total += w.error.size
    assert certain > outputs / 3
    assert unknown < total / 50


@pytest.mark.parametrize(
    "got, value, error, differs",
    [
        (1.0, 1.0, 0.0, False),
        (1.0 + 1e-7, 1.0, 0.0, True),
        (1.0 + 1e-7, 1.0, 1e-7, False),
        (np.nan, 1.0, 1e-7, True),
        (np.nan, np.nan, 0.0, False),
        (np.inf, np.inf, 0.0, False),
        (-np.inf, np.inf, 0.0, True),
        (5.0, 1.0, np.inf, False),
        (-0.0, 0.0, 0.0, False),
    ],
)
def test_a_result_may_be_off_by_its_error(got: float, value: float, error: float, differs: bool) -> None:
    want = Bounded(np.array([value]), np.array([error]))
    assert bool(mismatch(np.array([got]), want)) == differs


def test_a_result_of_another_shape_or_type_differs() -> None:
    want = Bounded(np.zeros(3, np.float32), np.zeros(3))
    assert mismatch(np.zeros(3), want)
    assert mismatch(np.zeros(4, np.float32), want)
    assert not mismatch(np.zeros(3, np.float32), want)
