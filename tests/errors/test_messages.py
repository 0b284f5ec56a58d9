"""The text of one error of each class, to the letter; and that no error lacks a place, a label or a hint."""

import ast
import os
import pickle
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest

import tdsl as td
from tdsl import errors

i, j, k = td.vars("i j k")
PACKAGE = Path(td.__file__).parent


def definition() -> None:
    a, f = td.Tensor("a", (8, 9), td.f32), td.Func("f")
    f[i] = a[i, j]


def shape() -> None:
    a, b = td.Tensor("a", (8, 9), td.f32), td.Tensor("b", (10, 8), td.f32)
    c = td.Func("c")
    c[i, j] = td.sum(a[i, k] * b[k, j], axis=k)
    td.compile(c)


def type_mismatch() -> None:
    a, f = td.Tensor("a", (8,), td.f32), td.Func("f")
    f[i] = a[i] & 1


def bounds() -> None:
    a = td.Tensor("a", (8,), td.f32)
    f = td.Func("f", shape=(8,))
    f[i] = a[i + 1]
    td.compile(f)(np.zeros(8, np.float32))


def schedule() -> None:
    a, f = td.Tensor("a", (8, 9), td.f32), td.Func("f")
    f[i, j] = a[i, j] * 2
    td.Schedule(f)[f].split("jj", 4)


def target() -> None:
    td.Target("gpu")


def attribute() -> None:
    a, f = td.Tensor("a", (8, 9), td.f32), td.Func("f")
    f[i, j] = a[i, j]
    td.compile(f).soruce("llvm")


def require() -> None:
    a, f = td.Tensor("a", (4,), td.f32), td.Func("f")
    f[i] = td.require(a[i] >= 0, a[i], "a[{}] is {}", i, a[i])
    td.compile(f)(np.float32([0, 1, -2, 3]))


def setting() -> None:
    with patch.dict(os.environ, {"TDSL_DEBUG": "pases"}):
        errors_of_settings()


def errors_of_settings() -> None:
    a, f = td.Tensor("a", (4,), td.f32), td.Func("f")
    f[i] = a[i] * 2
    td.compile(f, target="python")(np.zeros(4, np.float32))


def hazard() -> None:
    raise td.Hazard("thread 1 of block 0 reads what nobody wrote: x[3]")


def internal() -> None:
    a, f, g = td.Tensor("a", (4,), td.f32), td.Func("f"), td.Func("g")
    f[i] = a[i] * 3
    g[i] = f[i] + f[3 - i]
    with patch("tdsl.pipeline.lower", None):  # as if it were forgotten
        td.compile(g, target="python")(np.zeros(4, np.float32))


TEXTS: dict[type[td.TdslError], tuple[Callable[[], None], str]] = {
    td.DefinitionError: (
        definition,
        """\
'j' is on the right of 'f' but not on the left [definition TD0080]
  at test_messages.py:LINE
   LINE | f[i] = a[i, j]
          ^^^^ this definition
  hint: reduce over it, td.sum(..., axis=j), or add it to the left""",
    ),
    td.ShapeError: (
        shape,
        """\
'k' has two extents: 9 as axis 1 of 'a', and 10 as axis 0 of 'b' [shape TD0232]
  at test_messages.py:LINE
   LINE | c[i, j] = td.sum(a[i, k] * b[k, j], axis=k)
                                     ^^^^^^^ k runs to 10 here
  at test_messages.py:LINE
   LINE | c[i, j] = td.sum(a[i, k] * b[k, j], axis=k)
                           ^^^^^^^ k runs to 9 here
  hint: a variable that indexes several axes must have one extent; check the shapes""",
    ),
    td.TypeMismatch: (
        type_mismatch,
        """\
`&` needs integers or bools, not f32 and i64 [type TD0317]
  at test_messages.py:LINE
   LINE | f[i] = a[i] & 1
                 ^^^^^^^^ this operator
  hint: td.reinterpret gives the bits of a float""",
    ),
    td.IndexBoundError: (
        bounds,
        """\
'a' is read at 8 in axis 0, outside of [0, 8) [bounds TD0014]
  at test_messages.py:LINE
   LINE | f[i] = a[i + 1]
                 ^^^^^^^^ this access
  at test_messages.py:LINE
   LINE | f = td.Func("f", shape=(8,))
              ^^^^^^^^^^^^^^^^^^^^^^^^ 'f' is computed on a range that needs it
  hint: pad it: td.pad(a, ...), limit the index with td.clip, or narrow the range""",
    ),
    td.ScheduleError: (
        schedule,
        """\
split("jj") of 'f': there is no loop 'jj' [schedule TD0164]
  at test_messages.py:LINE
   LINE | td.Schedule(f)[f].split("jj", 4)
          ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ this directive
  hint: did you mean 'j'? There are: i, j""",
    ),
    td.TargetError: (
        target,
        """\
there is no target 'gpu' [target TD0301]
  at test_messages.py:LINE
   LINE | td.Target("gpu")
          ^^^^^^^^^^^^^^^^ this target
  hint: did you mean 'cpu'? There are: cpu, cuda, numba, python""",
    ),
    td.RequireError: (
        require,
        """\
a[2] is -2 [require TD0100]
  at test_messages.py:LINE
   LINE | f[i] = td.require(a[i] >= 0, a[i], "a[{}] is {}", i, a[i])
          ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ required here
  at test_messages.py:LINE
   LINE | td.compile(f)(np.float32([0, 1, -2, 3]))
          ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ in this call
  hint: pass arguments for which the condition holds""",
    ),
    td.Hazard: (
        hazard,
        """\
thread 1 of block 0 reads what nobody wrote: x[3] [hazard]
  at test_messages.py:LINE
   LINE | raise td.Hazard("thread 1 of block 0 reads what nobody wrote: x[3]")
                ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ emulated here
  hint: no schedule may lead to this: look at what td.instruction says of instructions of your own, else \
report the program""",
    ),
    td.InternalError: (
        internal,
        """\
a fault of tdsl for 'g': TypeError in pipeline.py:LINE: 'NoneType' object is not callable [internal TD0099]
  at test_messages.py:LINE
   LINE | g[i] = f[i] + f[3 - i]
          ^^^^ defined here
  at test_messages.py:LINE
   LINE | td.compile(g, target="python")(np.zeros(4, np.float32))
          ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ in this call
  hint: please report it with the program, its schedule and the whole trace; TDSL_DEBUG=verify names a pass \
that breaks the loops, TDSL_DUMP=folder keeps the loops after each pass""",
    ),
    td.UnknownAttribute: (
        attribute,
        """\
Compiled has no attribute 'soruce' [attribute TD0001]
  at test_messages.py:LINE
   LINE | td.compile(f).soruce("llvm")
          ^^^^^^^^^^^^^^^^^^^^ no such attribute
  hint: did you mean 'source'? There are: c_function, dynamic, explain, export, export_launcher, launch, \
loops, profile, schedule, sizes, source, target""",
    ),
    td.TdslError: (
        setting,
        """\
TDSL_DEBUG has no topic 'pases' [tdsl TD0437]
  at test_messages.py:LINE
   LINE | td.compile(f, target="python")(np.zeros(4, np.float32))
          ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ this call
  hint: did you mean 'passes'? There are: passes, time, verify, canaries, llvm, asm, python, cuda, cache""",
    ),
}


def without_line_numbers(error: td.TdslError) -> str:
    """The text with LINE for each number of a line, which moves when this file is edited."""
    text = str(error)
    for place in (error.loc, *(loc for loc, _ in error.related)):
        text = text.replace(f".py:{place.line}", ".py:LINE")
        text = text.replace(f"{place.line:>7} | ", f"{'LINE':>7} | ")
    return re.sub(r"( in \w+\.py):\d+", r"\1:LINE", text)  # of the compiler, in an InternalError


@pytest.mark.parametrize("kind", TEXTS, ids=lambda kind: kind.__name__)
def test_text_of_an_error(kind: type[td.TdslError]) -> None:
    program, text = TEXTS[kind]
    with pytest.raises(td.TdslError) as caught:
        program()
    assert type(caught.value) is kind
    assert without_line_numbers(caught.value) == text


def test_text_of_a_cache_that_cannot_be_used(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    a, f = td.Tensor("a", (4,), td.f32), td.Func("f")
    f[i] = a[i] * 5.25
    with (
        patch.dict(os.environ, {"TDSL_CACHE_DIR": str(file)}),
        warnings.catch_warnings(record=True) as caught,
    ):
        warnings.simplefilter("always")
        result = td.compile(f)(np.ones(4, np.float32))
    np.testing.assert_array_equal(result, np.full(4, 5.25, np.float32))
    texts = [str(w.message) for w in caught if w.category is td.CacheWarning]
    assert len(texts) == 1
    assert texts[0].startswith(f"the disk cache {file} ")


def test_the_text_is_that_of_arguments_that_a_handler_replaces() -> None:
    error = td.ShapeError("no extent fits", hint="pass shape=")
    assert "hint: pass shape=" in str(error)
    error.args = ("while loading the model: no extent fits",)
    assert str(pickle.loads(pickle.dumps(error))) == str(error) == error.args[0]


def test_no_class_of_errors_is_missing() -> None:
    classes = {c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, Exception | Warning)}
    assert classes == {*TEXTS, td.CacheWarning, td.CompileWarning, td.PlanningWarning}
    codes = [c.code for c in TEXTS]
    assert len(set(codes)) == len(codes)


def raised_errors() -> list[tuple[str, set[str]]]:
    """Where the package makes an error, and the names of the arguments that it gives."""
    names = {c.__name__ for c in TEXTS} - {td.Hazard.__name__}  # which gives them itself
    places = []
    for path in sorted(PACKAGE.rglob("*.py")):
        for n in ast.walk(ast.parse(path.read_text())):
            if isinstance(n, ast.Call) and isinstance(n.func, ast.Name) and n.func.id in names:
                place = f"{path.relative_to(PACKAGE.parent)}:{n.lineno}"
                places.append((place, {str(keyword.arg) for keyword in n.keywords}))
    return places


def test_every_error_has_a_place_a_label_and_a_hint() -> None:
    places = raised_errors()
    assert len(places) > 100
    lacking = {place: {"loc", "label", "hint"} - given for place, given in places}
    assert {place: missing for place, missing in lacking.items() if missing} == {}
