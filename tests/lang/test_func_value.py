"""Operators that change a value of a func in place."""

import operator

import numpy as np
import pytest

import tdsl as td
from tests.lang.meaning import run

i, r = td.vars("i"), td.range("r", 0, 3)
a = td.Tensor("a", (3, 5), td.i32)
DATA = np.arange(1, 16, dtype=np.int32).reshape(3, 5) % 7 + 1
IN_PLACE = [
    operator.iadd, operator.isub, operator.imul, operator.iand, operator.ior, operator.ixor,
    operator.ifloordiv, operator.imod, operator.ilshift, operator.irshift,
]  # fmt: skip


@pytest.mark.parametrize("target", ["python", "cpu"])
@pytest.mark.parametrize("change", IN_PLACE, ids=lambda f: f.__name__)
def test_an_update_by_an_operator_runs_over_its_points_in_order(change, target):
    f = td.Func("f")
    f[i] = a[0, i] + 900
    f[i] = change(f[i], a[r, i])
    want = DATA[0] + 900
    for row in DATA:
        want = change(want, row)
    np.testing.assert_array_equal(run(f, a=DATA), want)
    np.testing.assert_array_equal(td.compile(f, target=target)(DATA), want)


@pytest.mark.parametrize("change", IN_PLACE, ids=lambda f: f.__name__)
def test_only_what_combines_has_a_value_to_start_from(change):
    f = td.Func("f")
    if change in (operator.iadd, operator.isub, operator.imul):
        f[i] = change(f[i], a[r, i])
        assert len(f.definitions) == 2
    else:
        with pytest.raises(td.DefinitionError, match="'f' has no definition yet"):
            change(f[i], a[r, i])
