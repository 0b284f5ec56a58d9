"""Costs of programs as formulas of their sizes."""

import pytest
import sympy

import tdsl as td
from tdsl.lang.expr import Binary, Const, Read, Select, Size, const
from tdsl.lang.symbolic import as_sympy
from tdsl.lang.types import f32

i, j, k = td.vars("i j k")
M, N, K = sympy.symbols("M N K", integer=True, nonnegative=True)


def product():
    a, b = td.Tensor("a", ("M", "K"), td.f32), td.Tensor("b", ("K", "N"), td.f32)
    c = td.Func("c")
    c[i, j] = td.sum(a[i, k] * b[k, j], axis=k)
    return c


def test_a_product_costs_two_operations_a_term():
    formula = td.Schedule(product()).formula()
    assert sympy.simplify(formula.operations - 2 * M * N * K) == 0
    assert sympy.simplify(formula.bytes - 4 * (M * K + K * N + M * N)) == 0
    square = formula.intensity.subs({M: 600, N: 600, K: 600})
    assert square == sympy.Rational(2 * 600, 12)


def test_a_producer_is_counted_on_what_is_needed_of_it():
    a = td.Tensor("a", ("N",), td.f64)
    f, g = td.Func("f"), td.Func("g")
    f[i] = a[i] + 1
    g[i] = f[i] * f[i + 2]
    formula = td.Schedule(g).formula()
    assert sympy.simplify(formula.operations - (N + (N - 2))) == 0
    assert sympy.simplify(formula.bytes - 8 * (2 * N - 2)) == 0


def test_a_program_of_numbers_gives_numbers():
    a, f = td.Tensor("a", (10, 20), td.u8), td.Func("f")
    f[()] = td.sum(a[i, j], axis=(i, j), dtype=td.i32)
    formula = td.Schedule(f).formula()
    assert formula.bytes == 204
    assert formula.operations.is_Integer


def test_every_index_operator_has_a_symbolic_form():
    n = Size("N")
    for op in ("add", "sub", "mul", "floordiv", "mod", "min", "max"):
        value = as_sympy(Binary(op, n, const(7))).subs({N: 23})
        assert value == {"add": 30, "sub": 16, "mul": 161, "floordiv": 3, "mod": 2, "min": 7, "max": 23}[op]
    chosen = as_sympy(Select(Binary("lt", n, const(4)), const(1), n))
    assert [chosen.subs({N: v}) for v in (3, 4)] == [1, 4]


def test_data_has_no_symbolic_form():
    with pytest.raises(td.TypeMismatch, match="symbolic"):
        as_sympy(Read("a", (Const(0, const(0).dtype),), 0, f32))
