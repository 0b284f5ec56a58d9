"""Wrong updates: those that read what is computed of their own func."""

import tdsl as td
from tests.errors.case import Catalogue

CASES = Catalogue()
wrong = CASES.wrong

i, j, k = td.vars("i j k")
a = td.Tensor("a", (8, 9), td.f32)


@wrong(
    td.DefinitionError,
    "'f'",
    "reduces over itself",
    hint="ranges of the update",
    caret="td.sum(f[r - 1, k], axis=k)",
)
def update_that_reduces_over_itself():
    f, r = td.Func("f"), td.range("r", 1, 8)
    f[i, j] = a[i, j]
    f[r, j] = a[r, j] + td.sum(f[r - 1, k], axis=k)  # here


@wrong(td.DefinitionError, "'f' reads 'g'", "computed of it", hint="another td.Func", caret="g[r - 1]")
def update_that_reads_a_func_computed_from_it():
    f, g, r = td.Func("f"), td.Func("g"), td.range("r", 1, 8)
    f[i] = a[i, 0]
    g[i] = f[i] * 2
    f[r] += g[r - 1]  # here


@wrong(td.DefinitionError, "'f' reads 'h'", "computed of it", hint="another td.Func")
def update_that_reads_itself_through_others():
    f, g, h = td.Func("f"), td.Func("g"), td.Func("h")
    f[i] = a[i, 0]
    g[i] = f[i] * 2
    h[i] = g[i] + 1
    f[i] += h[i]  # here
