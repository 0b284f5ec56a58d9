"""Wrong settings in the environment."""

import os
from unittest.mock import patch

import numpy as np

import tdsl as td
from tdsl.codegen.runtime import result_memory
from tests.errors.case import Catalogue

CASES = Catalogue()
wrong = CASES.wrong

i = td.vars("i")
x = td.Tensor("x", (5,), td.f32)
ones = np.ones(5, np.float32)


def doubled():
    """A program that has not been compiled yet."""
    f = td.Func("f")
    f[i] = x[i] * 2
    return f


@wrong(td.TdslError, "TDSL_DEBUG has no topic 'pases'", hint="did you mean 'passes'")
def unknown_debug_topic():
    with patch.dict(os.environ, {"TDSL_DEBUG": "pases"}):
        td.compile(doubled(), target="python")(ones)  # here


@wrong(td.TdslError, "cannot write /dev/null/folder", hint="TDSL_DUMP")
def dump_where_nothing_can_be_written():
    with patch.dict(os.environ, {"TDSL_DUMP": "/dev/null/folder"}):
        td.compile(doubled(), target="python")(ones)  # here


@wrong(td.TdslError, "TDSL_RESULT_MEMORY='1G' is not a number of MiB", hint="set it to 0")
def memory_of_results_in_other_words():
    empty = patch.object(result_memory, "_pool", [])  # the setting is read when a block is allocated
    with patch.dict(os.environ, {"TDSL_RESULT_MEMORY": "1G"}), empty:
        n, a = td.Func("n"), td.Tensor("a", (1 << 19,), td.f32)
        n[i] = a[i] * 2
        td.compile(n, target="python")(np.ones(1 << 19, np.float32))  # here


@wrong(td.TargetError, "TDSL_CUDA_COMPILER is 'nvcc', and there is no such", hint="unset it")
def compiler_that_is_not_here():
    with patch.dict(os.environ, {"TDSL_CUDA_COMPILER": "nvcc", "PATH": ""}):
        td.compile(doubled(), target="cuda").source()  # here


@wrong(td.TargetError, "TDSL_CUDA_COMPILER is 'nvrt', and there is no such", hint="did you mean")
def compiler_that_nobody_knows():
    with patch.dict(os.environ, {"TDSL_CUDA_COMPILER": "nvrt"}):
        td.compile(doubled(), target="cuda").source()  # here
