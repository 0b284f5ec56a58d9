"""What kernels print: under emulation, and as text, which is compiled for a GPU and for the CPU."""

import numpy as np
import pytest

import tdsl as td
from tdsl.codegen.gpu.launches import launches_of
from tests.codegen.cuda import programs

i = td.vars("i")
NUMBERS, BYTES = np.float16([0, 1, 2, -3.5, np.inf, 0.1]), np.uint8([250, 1, 2, 3, 4, 5])
LINES = [
    '[block (0, 0, 0), thread (2, 0, 0)] 100% of "a"[2]\\n = 2 2 False',
    '[block (1, 0, 0), thread (0, 0, 0)] 100% of "a"[4]\\n = inf 4 True',
]


def shown() -> td.Schedule:
    """Numbers above 1, with characters that C has a meaning for."""
    a, n, f = td.Tensor("a", (6,), td.f16), td.Tensor("n", (6,), td.u8), td.Func("f")
    text = '100% of "a"[{}]\\n = {} {} {}'
    f[i] = td.debug_print(a[i] * 2, text, i, a[i], n[i], n[i] > 3, when=a[i] > 1)
    s = td.Schedule(f)
    block, thread = s[f].split(i, 4)
    s[f].bind(block, "blockIdx.x").bind(thread, "threadIdx.x")
    return s


def test_emulated_threads_print_who_they_are(capsys):
    got = td.emulate(td.compile(shown(), target="cuda"))(NUMBERS, BYTES)
    np.testing.assert_array_equal(got, NUMBERS * 2)
    assert capsys.readouterr().out.splitlines() == LINES


def test_the_text_prints_the_same(tmp_path, capfd):
    pytest.importorskip("tvm", reason='pip install "tdsl[cuda]"')
    from tests.codegen.cuda.shim import HAS_COMPILER, run_text

    if not HAS_COMPILER:
        pytest.skip("g++ runs the text")
    launches = launches_of(programs.kernel_of(shown()))
    library = run_text(launches, [NUMBERS, BYTES, np.zeros_like(NUMBERS)], tmp_path)
    library.fflush(None)
    assert capfd.readouterr().out.splitlines() == LINES


def test_what_prints_is_machine_code():
    pytest.importorskip("tvm", reason='pip install "tdsl[cuda]"')
    from tdsl.codegen.cuda import module

    assert len(module.build(launches_of(programs.kernel_of(shown())), "sm_80").kernels) == 1
