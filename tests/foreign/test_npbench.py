"""The judge of NPBench tells programs that run unchanged from refused and wrong ones.

NPBench has no package, so its own programs are judged by `python -m tests.foreign.npbench FOLDER`; these are
in its form.
"""

import json
import textwrap

import pytest

from tests.foreign import npbench

INITIALIZE = """
    import numpy as np

    def initialize(N, datatype=np.float64):
        return np.fromfunction(lambda i: i + 1, (N,), dtype=datatype), np.zeros(N)
"""
PROGRAMS = {
    "unchanged": """
        import numpy as np

        def smooth(a):
            b = np.empty_like(a)
            b[1:-1] = a[:-2] + a[2:]
            b[0], b[-1] = a[0], a[-1]
            return b

        def kernel(steps, a, out):
            for _ in range(steps):
                a[:] = smooth(a) / 2
                out[1:] += a[:-1]
    """,
    "refused": """
        def kernel(steps, a, out):
            while a[0] > 0:
                a -= 1
    """,
    "wrong": """
        state = [4.0, 3.0, 2.0, 1.0]

        def kernel(steps, a, out):
            return a * state.pop()
    """,
}


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    for name, kernel in PROGRAMS.items():
        folder = tmp_path / "npbench" / "benchmarks" / f"{name}_program"
        folder.mkdir(parents=True)
        (folder / "m.py").write_text(textwrap.dedent(INITIALIZE))
        (folder / "m_numpy.py").write_text(textwrap.dedent(kernel))
        info = {
            "short_name": name,
            "relative_path": f"{name}_program",
            "module_name": "m",
            "func_name": "kernel",
            "parameters": {"S": {"N": 1000, "steps": 3}},
            "init": {"func_name": "initialize", "input_args": ["N"], "output_args": ["a", "out"]},
            "input_args": ["steps", "a", "out"],
        }
        (tmp_path / "bench_info").mkdir(exist_ok=True)
        (tmp_path / "bench_info" / f"{name}.json").write_text(json.dumps({"benchmark": info}))
    return tmp_path


def test_each_program_gets_its_verdict(checkout, capsys):
    verdicts = {p.name: npbench.judge(p) for p in npbench.programs(checkout)}
    assert {name: v.outcome for name, v in verdicts.items()} == {name: name for name in PROGRAMS}
    assert "has no values" in verdicts["refused"].reason
    assert npbench.main([str(checkout), "unchanged"]) == 0
    assert "1 programs: 1 unchanged" in capsys.readouterr().out
    assert npbench.main([str(checkout)]) == 1  # fewer than the floor


def test_without_a_checkout_it_says_so(tmp_path, capsys):
    assert npbench.main([str(tmp_path)]) == 2
    assert "no checkout of NPBench" in capsys.readouterr().out
    assert npbench.main([]) == 2
