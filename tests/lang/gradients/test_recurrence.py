"""Recurrences of vectors: rows that are computed of a row before, against a tape of scalars."""

import numpy as np
import pytest

import tdsl as td
from tdsl.lang.build_program import build_program
from tests.fuzz.tape import Tape

t, k, d, kk = td.vars("t k d kk")
K = 3


def rows_of(steps, form):
    """Inputs of rows h[t], of which each is computed of an earlier one, and a func of the rows."""
    u, b = td.Tensor("u", (K, K), td.f64), td.Tensor("b", (steps, K), td.f64)
    at = td.Tensor("at", (steps,), td.i64)
    h, y = td.Func("h", shape=(steps, K)), td.Func("y")
    h[t, k] = b[t, k]
    r, d, kk = td.range("r", 1, steps), td.range("d", 0, K), td.range("kk", 0, K)
    two = td.range("two", 2, steps)
    match form:
        case "linear":
            h[r, kk] += h[r - 1, d] * u[d, kk]
        case "free columns":
            h[r, k] += h[r - 1, d] * u[d, k]
        case "of a sine":
            h[r, kk] += td.sin(h[r - 1, d]) * u[d, kk] * h[r - 1, d]
        case "backwards":
            h[steps - 1 - r, kk] += td.sin(h[steps - r, d]) * u[d, kk]
        case "two steps":
            h[two, kk] += h[two - 2, d] * u[d, kk]
        case "some terms":
            d = td.range("d", 0, K, where=lambda d: d <= kk)
            h[r, kk] += h[r - 1, d] * u[d, kk]
        case "twice":
            h[r, kk] += h[r - 1, d] * u[d, kk]
            h[r, k] = td.tanh(h[r - 1, k]) + h[r, k]
        case "one cell":
            h[r, k] = td.tanh(h[r - 1, 0]) * h[r, k] + b[r, k] * u[0, k]
        case "pairs":
            h[r, kk] = td.sin(h[r - 1, kk // 2]) + b[r, kk] * u[0, kk]
        case "data":
            h[r, kk] = td.sin(h[r - 1, td.clip(at[r] + kk, 0, K - 1)]) * b[r, kk] * u[0, kk]
    y[t, k] = h[t, k] ** 2
    return u, b, y


FORMS = (
    "linear", "free columns", "of a sine", "backwards", "two steps", "some terms", "twice", "one cell",
    "pairs", "data",
)  # fmt: skip


@pytest.mark.in_part(10)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("steps", [1, 2, 5])
def test_a_row_of_a_row_before(rng, form, steps):
    u, b, y = rows_of(steps, form)
    program, dy = build_program((y,)), rng.standard_normal((steps, K))
    v = {
        "u": rng.standard_normal((K, K)),
        "b": rng.standard_normal((steps, K)),
        "at": np.arange(steps) % 3 - 1,
    }
    tape = Tape(program, {x.name: v[x.name] for x in program.inputs})
    tape.run_backward("y", dy)
    for target in ("python", "cpu"):
        run = td.compile(td.vjp(y, [u, b], td.Tensor("dy", (steps, K), td.f64)), target=target)
        results = run(**{x.name: (v | {"dy": dy})[x.name] for x in run.signature.inputs})
        for x, got in zip("ub", results, strict=True):
            np.testing.assert_allclose(got, tape.adjoint(x), rtol=1e-9, atol=1e-12)


def test_two_cells_of_a_row_before_are_refused():
    """Their adjoints would have to be added step by step, together."""
    h, r, b = td.Func("h", shape=(5, K)), td.range("r", 1, 5), td.Tensor("b", (5, K), td.f64)
    h[t, k] = b[t, k]
    h[r, k] = h[r - 1, 0] + h[r - 1, 1]
    with pytest.raises(td.DefinitionError, match="reads several cells of 'h'") as caught:
        td.vjp(h, b, 1.0)
    assert "define a func for each step" in str(caught.value.hint)
