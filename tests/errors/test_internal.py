"""A fault of the compiler is an InternalError wherever it comes up; exceptions of the user's code are not."""

import importlib

import numpy as np
import pytest

import tdsl as td

i, j = td.vars("i j")
X = np.ones((4, 5), np.float32)


def two_funcs():
    a, f, g = td.Tensor("a", ("M", "N"), td.f32), td.Func("f"), td.Func("g")
    f[i, j] = td.exp(a[i, j])
    g[i] = td.sum(f[i, j] / 2, axis=j)
    return f, g


def remove_function(monkeypatch, path: str) -> None:
    """As if a function of the package had been forgotten."""
    module, _, name = path.rpartition(".")
    monkeypatch.setattr(importlib.import_module(module), name, None)


@pytest.mark.parametrize(
    "place, act",
    [
        ("tdsl.pipeline.lower", lambda s: td.compile(s)(X)),
        ("tdsl.pipeline.separate_outputs", lambda s: td.compile(s).loops(M=4, N=5)),
        ("tdsl.pipeline.complete", lambda s: td.compile(s).source(M=4, N=5)),
        ("tdsl.pipeline.decide", lambda s: td.compile(s).explain(M=4, N=5)),
        ("tdsl.compile.check_all", td.compile),
        ("tdsl.schedule.loops.check_positive", lambda s: s["g"].split("i", 2)),
    ],
)
def test_a_fault_of_the_compiler_names_the_func_and_its_cause(monkeypatch, tmp_path, place, act):
    monkeypatch.setenv("TDSL_CACHE_DIR", str(tmp_path))
    s = td.Schedule(two_funcs()[1])
    remove_function(monkeypatch, place)
    with pytest.raises(td.InternalError) as caught:
        act(s)
    error = caught.value
    assert type(error.__cause__) is TypeError
    assert "'g'" in error.message or "'f'" in error.message
    assert error.loc.text().strip().startswith(("f[", "g["))
    assert "report" in error.hint
    assert error.related[0][0].file == __file__


def test_a_fault_in_a_pass_names_the_pass(monkeypatch, tmp_path):
    monkeypatch.setenv("TDSL_CACHE_DIR", str(tmp_path))
    remove_function(monkeypatch, "tdsl.codegen.passes.simplify_loops.post_order")
    with pytest.raises(td.InternalError, match="pass simplify_loops"):
        td.compile(two_funcs()[1])(X)


def test_exceptions_of_the_code_of_the_user_stay_what_they_are():
    def broken(x):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine") as caught:
        td.Graph(broken).plan(td.f32[4, 5])
    assert not isinstance(caught.value, td.TdslError)
    with pytest.raises(AttributeError) as caught:
        td.Graph(lambda x: x._nothing).plan(td.f32[4, 5])
    assert not isinstance(caught.value, td.TdslError)
    with pytest.raises(ZeroDivisionError):
        td.reduce(lambda a, b: 1 // 0, td.Tensor("a", (3,), td.f32)[i], 0, axis=i)


def test_a_call_works_after_a_fault(monkeypatch, tmp_path):
    monkeypatch.setenv("TDSL_CACHE_DIR", str(tmp_path))
    compiled = td.compile(two_funcs()[1])
    with monkeypatch.context() as m:
        remove_function(m, "tdsl.pipeline.lower")
        with pytest.raises(td.InternalError):
            compiled(X)
    np.testing.assert_allclose(compiled(X), 5 * np.exp(1) / 2, rtol=1e-6)
