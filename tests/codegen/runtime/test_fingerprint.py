"""Equal programs have equal fingerprints in every process; whatever changes the code changes them."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tdsl as td
from tdsl.codegen.runtime import fingerprint as module
from tdsl.codegen.runtime.fingerprint import fingerprint
from tdsl.lang.expr import Binary, Const, Size, Var, const
from tdsl.lang.types import f32, f64, i64

PROGRAM = """
import tdsl as td
from tdsl.codegen.runtime.fingerprint import fingerprint
i, j, r = td.vars("i j") + (td.range("r", 0, 5),)
a, s = td.Tensor("a", ("H", "W"), td.f32), td.Scalar("s", td.f64)
b, c, d = td.Func("b"), td.Func("c"), td.Func("d")
b[i, j] = td.where(a[i, j] > 0.5, a[i, j] * s, -0.0)
c[i] = td.max(b[i, j], axis=j)
c[r] += 1
d[i] = c[i] + b[i, 0]
t = td.Schedule(d)
t[b].compute_at(t[d], "i")
t[c].update(0).atomic()
print(fingerprint(t.state))
"""


def in_a_process(seed: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "PYTHONHASHSEED": seed},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def test_fingerprint_is_that_of_every_process():
    assert in_a_process("1") == in_a_process("2")


@pytest.mark.parametrize(
    "a, b",
    [
        (Const(0.0, f32), Const(-0.0, f32)),
        (Const(1, i64), Const(1, td.i32)),
        (Const(1.0, f32), Const(1.0, f64)),
        (("ab", "c"), ("a", "bc")),
        (("1", 1), (1, "1")),
        ((), ((),)),
        (None, False),
        (0, False),
        (1, 1.0),
        (frozenset({1}), frozenset({2})),
        (Var("x"), Size("x")),
    ],
)
def test_different_values_differ(a, b):
    assert fingerprint(a) != fingerprint(b)


def test_sets_and_numbers_of_numpy_are_what_they_hold():
    assert fingerprint(frozenset(range(50))) == fingerprint(frozenset(reversed(range(50))))
    assert fingerprint(np.int64(3), np.float64(0.5)) == fingerprint(3, 0.5)


def test_shared_and_equal_subexpressions_are_the_same():
    one = Binary("add", Var("x"), const(1))
    other = Binary("add", Var("x"), const(1))
    assert fingerprint(Binary("mul", one, one)) == fingerprint(Binary("mul", one, other))


def test_the_place_in_the_source_does_not_count():
    def expression():
        f = td.Func("f", 4)
        f[td.vars("x")] = 1
        return td.Schedule(f).state

    first = expression()
    assert fingerprint(first) == fingerprint(expression())


def test_deep_and_shared_expressions_are_quick_and_need_no_deep_stack():
    e = Var("x")
    for _ in range(5000):
        e = Binary("add", e, e)

    assert len(fingerprint(e)) == 64


COMPILE = """
import numpy as np, tdsl as td
from tdsl.codegen.runtime import cache
i, a, f = td.vars("i"), td.Tensor("a", ("N",), td.f32), td.Func("f")
f[i] = a[i] * 3
assert td.compile(f)(np.ones(5, np.float32)).tolist() == [3] * 5
info = cache.info()
print(td.__file__, info.hits, info.misses)
"""


def compile_with(package_parent: Path, cache_folder: Path) -> list[str]:
    environ = {**os.environ, "PYTHONPATH": str(package_parent), "TDSL_CACHE_DIR": str(cache_folder)}
    done = subprocess.run(
        [sys.executable, "-c", COMPILE], env=environ, check=True, capture_output=True, cwd=package_parent
    )
    return done.stdout.decode().split()


def test_a_copy_of_the_package_uses_the_same_entries_and_a_changed_one_does_not(tmp_path):
    package = Path(td.__file__).parent
    for n in (1, 2):
        shutil.copytree(package, tmp_path / str(n) / "tdsl", ignore=shutil.ignore_patterns("__pycache__"))
    os.utime(tmp_path / "2" / "tdsl" / "op.py")
    stored = tmp_path / "cache"
    first, second = (compile_with(tmp_path / str(n), stored) for n in (1, 2))
    assert int(first[1]) == 0 and int(second[2]) == 0 and first[2] == second[1]
    assert first[0] != second[0]

    with (tmp_path / "2" / "tdsl" / "lang" / "pad.py").open("a") as file:
        file.write("# changed\n")
    assert int(compile_with(tmp_path / "2", stored)[2]) > 0


def test_a_package_that_is_changed_after_its_import_shares_nothing(monkeypatch):
    module.package_hash.cache_clear()
    try:
        before = module.package_hash()
        monkeypatch.setattr(module, "_STAMP", "other files")
        module.package_hash.cache_clear()
        assert module.package_hash() != before
    finally:
        monkeypatch.undo()
        module.package_hash.cache_clear()
