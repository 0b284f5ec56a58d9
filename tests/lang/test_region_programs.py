"""The interpreter and compiled code agree on what is computed of each func, and on what is refused."""

from typing import Any

import numpy as np
import pytest

import tdsl as td
from tdsl.codegen.python.run import PythonExecutable
from tdsl.codegen.runtime.call import Entry
from tdsl.lang.build_program import build_program
from tdsl.lang.interp import interpret
from tdsl.pipeline import make_kernel
from tests.lang.region_programs import Program


def attempt(run: Any) -> Any:
    try:
        return run()
    except td.TdslError as error:
        return error


def compiled(seed: int, *, names: bool, dynamic: bool, data: dict[str, Any]) -> Any:
    """The result of code in which every access is checked."""
    s = td.Schedule(*Program(seed, names=names).outputs)
    c = td.compile(s, target="python", dynamic=s.program.sizes if dynamic else ())
    entry = Entry(
        c.signature,
        c.dynamic,
        lambda x: PythonExecutable(make_kernel(c.variant(x)), checked=True),
    )
    return entry(**data)


@pytest.mark.parametrize("seed", range(40))
def test_code_has_memory_for_what_the_interpreter_computes(seed: int) -> None:
    program = attempt(lambda: Program(seed, names=False))
    if isinstance(program, td.TdslError):
        pytest.skip("no program")
    data = program.arrays()
    want = attempt(lambda: interpret(build_program(program.outputs), data)[0])
    for names, dynamic in ((False, False), (True, False), (True, True)):
        got = attempt(lambda n=names, d=dynamic: compiled(seed, names=n, dynamic=d, data=data))
        if isinstance(want, td.TdslError):
            assert isinstance(got, td.TdslError), "only the interpreter refuses it"
        elif not isinstance(got, td.IndexBoundError):  # of data that might be outside, and is not
            np.testing.assert_array_equal(got, want)
