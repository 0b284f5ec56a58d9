"""Definitions and updates: what each means, and what is refused."""

from typing import Any

import numpy as np
import pytest

import tdsl as td
from tdsl.errors import DefinitionError, ShapeError, TdslError, TypeMismatch
from tests.lang.meaning import counted, run

i, j, k = td.vars("i j k")
A = td.Tensor("a", (4, 5), td.f32)
B = td.Tensor("b", (6,), td.u8)


def test_a_scatter_adds_in_the_order_of_its_ranges() -> None:
    hist, v = td.Func("hist", shape=(8,)), td.vars("v")
    hist[v] = td.cast(0, td.i32)
    hist[td.clip(B[i], 0, 7)] += 1
    b = np.array([3, 3, 200, 0, 3, 7], np.uint8)
    np.testing.assert_array_equal(run(hist, b=b), np.bincount(np.minimum(b, 7), minlength=8))


def test_a_scan_reads_what_it_wrote() -> None:
    f, r = td.Func("f"), td.range("r", 1, 5)
    f[i, j] = A[i, j]
    f[i, r] += f[i, r - 1]
    a = counted(4, 5)
    np.testing.assert_array_equal(run(f, a=a), np.cumsum(a, 1, dtype=np.float32))


def test_a_scan_may_run_backward() -> None:
    f, r = td.Func("f"), td.range("r", 1, 5)
    f[i, j] = A[i, j]
    f[i, 4 - r] = td.maximum(f[i, 5 - r], f[i, 4 - r])
    a = counted(4, 5)
    expected = np.maximum.accumulate(a[:, ::-1], 1)[:, ::-1]
    np.testing.assert_array_equal(run(f, a=a), expected)


def test_updates_run_one_after_another() -> None:
    f = td.Func("f")
    f[i, j] = A[i, j]
    f[i, 0] = f[i, 0] * 2 + 1
    f[2, j] += f[1, j]
    f[i, j] *= 3
    a = counted(4, 5)
    want = a.copy()
    want[:, 0] = want[:, 0] * 2 + 1
    want[2] += want[1]
    np.testing.assert_array_equal(run(f, a=a), want * 3)


def test_two_ranges_run_the_first_outermost() -> None:
    f, r, s = td.Func("f", shape=(6,)), td.range("r", 0, 3), td.range("s", 0, 2)
    f[i] = td.cast(1, td.i64)
    f[r * 2 + s] = f[td.clip(r * 2 + s - 1, 0, 5)] * 2 + r * 10 + s
    want = np.ones(6, np.int64)
    for a in range(3):
        for b in range(2):
            want[a * 2 + b] = want[max(a * 2 + b - 1, 0)] * 2 + a * 10 + b
    np.testing.assert_array_equal(run(f), want)


@pytest.mark.parametrize(
    "kind, start, combine", [("+=", 0, np.add), ("*=", 1, np.multiply), ("-=", 0, np.subtract)]
)
def test_an_increment_without_a_definition_starts_from_the_identity(
    kind: str, start: int, combine: Any
) -> None:
    f = td.Func("f", shape=(4,))
    exec(f"f[i] {kind} A[i, k]", {"f": f, "A": A, "i": i, "k": k})
    a = counted(4, 5)
    want = np.full(4, start, np.float32)
    for n in range(5):
        want = combine(want, a[:, n])
    np.testing.assert_array_equal(run(f, a=a), want)


@pytest.mark.parametrize("name", ["maximum", "minimum"])
def test_an_extreme_of_itself_starts_from_the_identity(name: str) -> None:
    f = td.Func("f", shape=(4,))
    f[i] = getattr(td, name)(f[i], A[i, k])
    a = counted(4, 5)
    np.testing.assert_array_equal(run(f, a=a), getattr(np, name).reduce(a, 1))


def test_a_tuple_is_updated_as_one() -> None:
    f, r = td.Func("f"), td.range("r", 1, 6)
    f[i] = (td.cast(B[i], td.i32), td.cast(i, td.i32))
    f[r] = (f[r - 1][1] + f[r][0], f[r - 1][0])
    b = counted(6, dtype=np.uint8)
    first, second = b.astype(np.int32), np.arange(6, dtype=np.int32)
    for n in range(1, 6):
        first[n], second[n] = second[n - 1] + first[n], first[n - 1]
    got = run(f, b=b)
    np.testing.assert_array_equal(got[0], first)
    np.testing.assert_array_equal(got[1], second)


def test_a_func_without_dimensions() -> None:
    f = td.Func("f")
    f[()] = A[1, 2]
    f[()] += A[k, 0]
    a = counted(4, 5)
    assert run(f, a=a) == a[1, 2] + a[:, 0].sum()


def test_a_condition_over_a_free_variable_keeps_the_other_points() -> None:
    f = td.Func("f")
    f[i, j] = A[i, j]
    r = td.range("r", 0, 5, where=lambda r: r > i)
    f[i, r] = f[i, r] * 0 - 1
    a = counted(4, 5)
    want = np.where(np.arange(5) > np.arange(4)[:, None], -1, a)
    np.testing.assert_array_equal(run(f, a=a), want)


def test_a_condition_may_read_data() -> None:
    total = td.Func("total")
    r = td.range("r", 0, 6, where=lambda r: B[r] > 2)
    total[()] = td.sum(B[r], axis=r)
    b = counted(6, dtype=np.uint8)
    assert run(total, b=b) == b[b > 2].sum()


def test_a_read_behind_a_condition_need_not_be_inside_elsewhere() -> None:
    f = td.Func("f")
    f[i] = td.cast(0, td.i32)
    f.with_shape(9)
    r = td.range("r", 0, 9, where=lambda r: (r >= 2) & (r < 8))
    f[r] = f[r] + B[r - 2]
    b = counted(6, dtype=np.uint8)
    np.testing.assert_array_equal(run(f, b=b), [0, 0, *b, 0])


def defined(*, dtype: Any = td.f32) -> Any:
    f = td.Func("f")
    f[i, j] = td.cast(A[i, j], dtype)
    return f


def first(index: Any, value: Any) -> Any:
    def act() -> None:
        f = td.Func("f")
        f[index] = value(f) if callable(value) else value

    return act


def then(act: Any, **how: Any) -> Any:
    return lambda: act(defined(**how))


def assign(index: Any, value: Any) -> Any:
    def act(f: Any) -> None:
        f[index] = value(f)

    return act


REFUSED = {
    "an index that is no variable": (DefinitionError, first((i, 0), A[i, 0])),
    "a variable twice": (DefinitionError, first((i, i), A[i, i])),
    "a variable on the right only": (DefinitionError, first(i, A[i, j])),
    "an ordered variable in a pure definition": (
        DefinitionError,
        first(td.range("r", 0, 3), A[td.range("r", 0, 3), 0]),
    ),
    "a func that reads itself first": (DefinitionError, first(i, lambda f: f[i] + A[i, 0])),
    "a reduction over an outer variable twice": (
        DefinitionError,
        first(i, td.sum(A[i, k], axis=k) + A[i, k]),
    ),
    "the condition of a reduction on an unknown variable": (
        DefinitionError,
        first(i, td.sum(A[i, k], axis=td.range("k", 0, 5, where=lambda k: k < j))),
    ),
    "a second pure definition": (DefinitionError, then(assign((i, j), lambda f: A[i, j]))),
    "an update that would order a free variable": (
        DefinitionError,
        then(assign((i, j), lambda f: f[i, j] + f[i - 1, j])),
    ),
    "an update of another rank": (ShapeError, then(assign(i, lambda f: A[i, 0]))),
    "a read of another rank": (ShapeError, then(lambda f: f[i])),
    "a float into integers": (
        TypeMismatch,
        then(assign((i, 0), lambda f: A[i, 0]), dtype=td.i32),
    ),
    "a tuple into one value": (TypeMismatch, then(assign((i, 0), lambda f: (A[i, 0], A[i, 0])))),
    "an index that is a float": (TypeMismatch, then(lambda f: f[A[i, 0], j])),
    "an index that is a bool": (TypeMismatch, then(lambda f: f[i < 2, j])),
    "text as a value": (TypeMismatch, first(i, "a")),
    "a tensor as a value": (TypeMismatch, first(i, A)),
    "an array as a value": (TypeMismatch, first(i, np.zeros(3))),
    "a read of an undefined func in an expression": (
        DefinitionError,
        lambda: td.Func("g")[i] + 1,
    ),
    "an undefined func as an output": (DefinitionError, lambda: td.Schedule(td.Func("g"))),
    "a definition of an input": (DefinitionError, lambda: A.__setitem__((i, j), 1)),
    "a name with a space": (DefinitionError, lambda: td.Func("a b")),
    "a tensor with a negative extent": (ShapeError, lambda: td.Tensor("t", (-1,), td.f32)),
    "a tensor with a float extent": (TypeMismatch, lambda: td.Tensor("t", (1.5,), td.f32)),
    "a tensor with a bool extent": (TypeMismatch, lambda: td.Tensor("t", (True,), td.f32)),
    "a tensor of an unknown type": (TypeMismatch, lambda: td.Tensor("t", (3,), "f33")),
    "a shape of another rank": (ShapeError, then(lambda f: f.with_shape(3))),
    "a value as a condition": (DefinitionError, lambda: bool(A[i, j] > 0)),
    "a value as a sequence": (DefinitionError, lambda: list(A[i, j])),
    "a number that does not fit": (TypeMismatch, lambda: B[i] + 300),
    "bits of a float": (TypeMismatch, lambda: A[i, j] & 1),
    "a difference of bools": (TypeMismatch, lambda: (A[i, j] > 0) - (A[i, j] > 1)),
    "a choice by a number": (TypeMismatch, lambda: td.where(A[i, j], 1, 2)),
    "no name": (DefinitionError, lambda: td.vars("")),
    "a random key that is a float": (TypeMismatch, lambda: td.random(A[i, j])),
    "a random integer": (TypeMismatch, lambda: td.random(i, dtype=td.i32)),
    "bits of another width": (TypeMismatch, lambda: td.reinterpret(A[i, j], td.u8)),
    "a message with a place too many": (
        TypeMismatch,
        lambda: td.require(A[i, j] > 0, A[i, j], "{} {}", i),
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_has_no_meaning_is_refused_where_it_is_written(case: str) -> None:
    error, act = REFUSED[case]
    with pytest.raises(error) as caught:
        act()
    assert isinstance(caught.value, TdslError)
    assert caught.value.loc is not None
    assert caught.value.loc.file == __file__
