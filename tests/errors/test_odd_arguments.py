"""Whatever is passed to the public names and directives, the answer is a result or a TdslError."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tdsl as td

i, j = td.vars("i j")


def handles() -> tuple[td.Tensor, td.Func, td.Func]:
    """A tensor, a func of it, and a func of that."""
    a, g, f = td.Tensor("a", (20, 30), td.f32), td.Func("g"), td.Func("f")
    g[i, j] = a[i, j] * 2
    f[i, j] = g[i, j] + 1
    return a, g, f


A, G, F = handles()
PAIR = td.Func("pair")
PAIR[i] = (A[i, 0], i)
ODD = (
    None, 0, -1, 3, 1.5, float("nan"), "x", "", (), (1,), [], {}, {"x": 1}, object(), i, A, A[i, j],
    A[i, j] > 0, G, F, td.Func("undefined"), PAIR, PAIR[i], td.pad(A), np.zeros(3), np.float32(2),
    np.int64(5), np.array(3), True, td.f32, 1j, "i", "f32", slice(0, 2), ..., td.Scalar("s", td.f32),
    b"b", 10**30, range(3), {1, 2}, "a", "g", "j", -5,
)  # fmt: skip


def answered(call: Callable[[], Any]) -> None:
    """A result, or an error with a place and a hint."""
    error: td.TdslError | None = None
    try:
        call()
    except td.TdslError as raised:
        error = raised
    if error is not None:
        assert not isinstance(error, td.InternalError), error
        assert error.hint, error
        assert error.loc is not None, error


def is_function(name: str) -> bool:
    x = getattr(td, name)
    return callable(x) and not (isinstance(x, type) and issubclass(x, Exception)) and name != "Operator"


@pytest.mark.parametrize("name", [n for n in td.__all__ if is_function(n)])
def test_public_name(name: str) -> None:
    for x in ODD:
        answered(lambda x=x: getattr(td, name)(x))
        answered(lambda x=x: getattr(td, name)(x, 2))
        answered(lambda x=x: getattr(td, name)("name", x))


def define(x: Any) -> None:
    h = td.Func("h")
    h[i, j] = x
    td.compile(h)


def define_at(x: Any) -> None:
    td.Func("h")[x] = 1.0


def read_at(x: Any) -> None:
    h = td.Func("h")
    h[i] = A[i, x]


def update(x: Any) -> None:
    h = td.Func("h")
    h[i] = A[i, 0]
    h[i] += x


def update_at(x: Any) -> None:
    h = td.Func("h")
    h[i] = A[i, 0]
    h[x] = 1.0


def declare(x: Any) -> None:
    h = td.Func("h")
    h[i] = A[i, 0]
    h.with_shape(x)


@pytest.mark.parametrize("program", [define, define_at, read_at, update, update_at, declare])
def test_definition(program: Callable[[Any], None]) -> None:
    for x in ODD:
        answered(lambda x=x: program(x))


DIRECTIVES: dict[str, tuple[Any, ...]] = {
    "split": ("i", 4), "divide": ("i", 4), "tile": (("i", "j"), (2, 3)), "fuse": ("i", "j"),
    "reorder": ("j", "i"), "rename": ("i", "q"), "serial": ("i",), "parallel": ("i",),
    "vectorize": ("j", 4), "unroll": ("j", 2), "compute_at": ("f", "i"), "store_at": ("f", "i"),
    "reverse_compute_at": ("f", "i"), "compute_with": ("f", "i"), "reorder_storage": ("j", "i"),
    "align_storage": ("j", 4), "fold_storage": ("i", 4), "bound_extent": ("i", 4), "set_scope": ("heap",),
    "prefetch": ("a", "i", 1, "i"), "rfactor": ("i", "part"), "specialize": (True, None),
    "tensorize": ("i", "q"), "unsigned": ("a",), "update": (0,),
}  # fmt: skip


@pytest.mark.parametrize("name", DIRECTIVES)
def test_directive(name: str) -> None:
    for position in range(len(DIRECTIVES[name])):
        for x in ODD:
            arguments = list(DIRECTIVES[name])
            arguments[position] = x
            stage = td.Schedule(handles()[2])["g"]
            answered(lambda s=stage, a=arguments: getattr(s, name)(*a))


COPIES: dict[str, dict[str, Any]] = {
    "cache_read": {
        "source": "a", "consumer": "g", "at": "i", "scope": "auto", "pack": None, "padded": False,
        "along": None, "name": None,
    },
    "cache_write": {"stage": "f", "at": "i", "scope": "auto", "name": None},
    "replay": {"text": "[]"},
}  # fmt: skip


@pytest.mark.parametrize("name", COPIES)
def test_method_of_a_schedule(name: str) -> None:
    for key in COPIES[name]:
        for x in ODD:
            s = td.Schedule(handles()[2])
            answered(lambda s=s, key=key, x=x: getattr(s, name)(**{**COPIES[name], key: x}))


def test_call() -> None:
    compiled = td.compile(F, target="python")
    array = np.ones((20, 30), np.float32)
    for x in ODD:
        answered(lambda x=x: compiled(x))
        answered(lambda x=x: compiled(array, out=x))
        answered(lambda x=x: compiled.loops(x))
        answered(lambda x=x: compiled.source(x))
