"""Looking inside: loops, code, notebook pages and profiles say what is compiled."""

import inspect
import pickle
import re

import numpy as np
import pytest

import tdsl as td
from tdsl.compile import Compiled

SHAPE = (10, 20)


def blur() -> tuple[td.Func, td.Func]:
    i, j = td.vars("i j")
    a, b, c = td.Tensor("a", ("H", "W"), td.f32), td.Func("b"), td.Func("c")
    b[i, j] = (a[i, j] + a[i, j + 1]) / 2
    c[i, j] = td.where(b[i, j] < b[i + 1, j], b[i, j], b[i + 1, j])
    return b, c


@pytest.fixture
def f() -> Compiled:
    b, c = blur()
    s = td.Schedule(c)
    s[c].vectorize("j", 8)
    s[b].compute_at(s[c], "i")
    return td.compile(s)


def call(f: Compiled, rows: int = SHAPE[0]) -> None:
    f(np.ones((rows, SHAPE[1]), np.float32))


def test_loops_show_the_schedule_before_vector_code(f):
    text = f.loops(H=10, W=20)
    assert "for c_j_v in range(0, 8):  # vectorized" in text
    assert "b = alloc(f32, [2, 19])" in text
    assert repr(text) == text, "shown as it is at a prompt"


def test_final_loops_hold_vectors(f):
    text = f.loops("final", H=10, W=20)
    assert "vectorized" not in text
    assert re.search(r"c\[c_i, .*:.* \+ 8\] = ", text)


def test_loops_are_those_of_the_last_variant_unless_sizes_are_given(f):
    call(f)
    call(f, 30)
    assert "a: f32[30, 20]" in f.loops()
    assert "a: f32[7, 9]" in f.loops(H=7, W=9)
    call(f)
    assert "a: f32[10, 20]" in f.loops(H=10, W=20)


def test_unknown_sizes_are_an_error_that_shows_how_to_give_them(f):
    for look in (f.loops, f.source, f.explain):
        with pytest.raises(td.ShapeError) as raised:
            look()
        assert f".{look.__name__}(H=100, W=100)" in raised.value.hint
    with pytest.raises(td.ShapeError, match="no size 'Q'"):
        f.loops(Q=3)
    call(f)
    assert "c_i" in f.loops()


def test_launch_of_a_target_without_kernels_asks_for_no_sizes(f):
    with pytest.raises(td.TargetError, match="the target cpu launches no kernels"):
        f.launch
    on_gpu = td.compile(blur()[1], target="cuda")
    with pytest.raises(td.ShapeError) as raised:
        on_gpu.launch
    assert "td.compile(..., H=100, W=100)" in raised.value.hint


def test_a_call_under_emulation_is_the_last_variant():
    f = td.compile(blur()[1], target="cuda")
    td.emulate(f)(np.ones(SHAPE, np.float32))
    assert "a: f32[10, 20]" in f.loops()


def test_dynamic_sizes_stay_names():
    f = td.compile(blur()[1], dynamic=("H", "W"))
    assert "a: f32[H, W]" in f.loops()
    assert "a: f32[H, 20]" in f.loops(W=20)


def test_source_in_each_language(f):
    call(f)
    assert "define i64 @c_kernel(ptr %frame, ptr %runtime)" in f.source("llvm")
    assert f.source() == f.source("llvm")
    assert re.search(r"^c_kernel:", f.source("asm"), re.MULTILINE)
    module = {}
    exec(f.source("python"), module)
    a, c = np.random.default_rng(0).random(SHAPE, np.float32), np.zeros((9, 19), np.float32)
    module["c_kernel"](a, c)
    np.testing.assert_array_equal(c, f(a))


@pytest.mark.parametrize("target", ["python", "numba"])
def test_other_targets_are_python(target):
    if target == "numba":
        pytest.importorskip("numba")
    f = td.compile(blur()[1], target=target)
    assert "def c_kernel(" in f.source(H=4, W=4)
    with pytest.raises(td.TargetError, match="has no 'asm' source"):
        f.source("asm", H=4, W=4)


def test_wrong_words_are_errors_with_the_right_ones(f):
    with pytest.raises(td.TargetError, match="no 'finl' loops") as raised:
        f.loops("finl", H=3, W=3)
    assert "final" in raised.value.hint
    with pytest.raises(td.TargetError, match="no 'ptx' source") as raised:
        f.source("ptx", H=3, W=3)
    assert "llvm" in raised.value.hint
    call(f)


def test_the_schedule_is_kept(f):
    assert str(f.schedule) == 's["c"].vectorize("j", 8)\ns["b"].compute_at(s["c"], "i")'


def test_pages_are_self_contained_and_escaped(f):
    _, c = blur()
    before = f._repr_html_()
    call(f)
    for page in (before, f._repr_html_(), c._repr_html_(), td.Schedule(c)._repr_html_()):
        assert "b[i, j] &lt; b[i + 1, j]" in page
        assert "://" not in page
        assert "<script" not in page
        assert set(re.findall(r"</?(\w+)", page)) == {"div", "b", "details", "summary", "pre"}
    assert "<summary>loops</summary>" not in before
    assert "for c_i in range(0, 9):" in f._repr_html_()


def test_page_of_a_func_without_definitions():
    assert "Func(&#x27;f&#x27;)" in td.Func("f")._repr_html_()


def test_profile_has_time_and_bytes_of_each_root_stage():
    i, j = td.vars("i j")
    b, c = blur()
    d = td.Func("d")
    d[i, j] = c[i, j] + c[i + 1, j]
    s = td.Schedule(d)
    s[c].compute_root()
    s[b].compute_at(s[c], "i")
    f = td.compile(s)
    profile = f.profile(np.ones(SHAPE, np.float32), repeat=2)
    first, second = profile.stages
    assert (first.name, first.inside) == ("c", (("b", 10 * 19 * 4),))
    assert (first.read, first.written) == (10 * 20 * 4, 9 * 19 * 4)
    assert (second.name, second.read, second.written) == ("d", 9 * 19 * 4, 8 * 19 * 4)
    assert first.seconds > 0 < second.seconds
    assert profile.total > 0
    text = str(profile)
    assert text.startswith("d: medians of 2\n")
    assert "b, inside" in text
    assert "<pre>" in profile._repr_html_()


def test_profile_of_updates_and_gathers_counts_whole_boxes():
    i, r = td.vars("i"), td.range("r", 0, 100)
    index = td.Tensor("index", (100,), td.u8)
    counts, low, best = td.Func("counts"), td.Func("low"), td.Func("best")
    k = td.vars("k")
    counts[k] = td.cast(0, td.i32)
    counts[td.cast(index[r], td.i64)] += 1
    counts = counts.with_shape(256)
    low[()] = td.sum(counts[k], axis=k)
    best[i] = counts[td.cast(index[i], td.i64)] + low[()]
    s = td.Schedule(best)
    s[counts].compute_root()
    s[low].compute_root()
    f = td.compile(s)
    data = np.arange(100).astype(np.uint8)
    profile = f.profile(data, repeat=1)
    read = {t.name: (t.read, t.written) for t in profile.stages}
    assert read["counts"] == (100, 256 * 4)
    assert read["best"][1] == f(data).nbytes


def test_profile_leaves_what_the_loops_show():
    f, data = td.compile(blur()[1], dynamic="H", target="python"), np.ones(SHAPE, np.float32)
    f(data)
    loops = f.loops()
    f.profile(data, repeat=1)
    assert f.loops() == loops


def test_profile_runs_what_the_target_runs():
    f = td.compile(blur()[1], target="python")
    assert [t.name for t in f.profile(np.ones((4, 5), np.float32), repeat=1).stages][-1] == "c"


def test_profile_takes_what_a_call_takes(f):
    a = np.random.default_rng(0).random(SHAPE, dtype=np.float32)
    want = f(a)
    out = np.full((*want.shape, 2), np.nan, np.float32)[..., 0]
    assert f.profile(a, out=out, repeat=2).stages
    np.testing.assert_array_equal(out, want)
    for given in ({"c": out}, (out,)):
        assert f.profile(a=a, out=given, repeat=1).stages
    with pytest.raises(td.TdslError, match="no output 'd'"):
        f.profile(a, out={"d": out})


def test_profile_in_place_leaves_the_result_of_one_call():
    i, x, y = td.vars("i"), td.Tensor("x", (9,), td.f32), td.Func("y")
    y[i] = x[i] * 2
    data = np.arange(9, dtype=np.float32)
    assert td.compile(y).profile(data, out=data, repeat=3).stages
    np.testing.assert_array_equal(data, 2 * np.arange(9))


def test_profile_of_a_call_that_fails_fails_as_the_call(f):
    with pytest.raises(td.TypeMismatch):
        f.profile(np.ones(SHAPE, np.float64).astype("S8"))
    assert f.profile(np.ones(SHAPE, np.float32), repeat=1).stages


def test_for_a_gpu_explain_of_a_schedule_and_loops_compile_nothing_and_launch_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Compiling(Exception):
        pass

    def refuse(*_: object, **__: object) -> None:
        raise Compiling

    monkeypatch.setattr("tdsl.codegen.cuda.module.load_or_build", refuse)
    _, c = blur()
    s = td.Schedule(c, sizes={"H": 40, "W": 50}, target="cuda")
    f = td.compile(s)
    assert s.explain()
    assert f.loops()
    for compiling in (lambda: f.launch, f.explain, lambda: f.source("cuda")):
        with pytest.raises(Compiling):
            compiling()


def test_the_signature_of_what_is_called_has_its_parameters():
    i, x, c, f = td.vars("i"), td.Tensor("x", ("N", 3), td.f32), td.Scalar("c", td.i64), td.Func("f")
    f[i] = x[i, 0] * c
    compiled = td.compile(f, target="python")
    assert str(inspect.signature(compiled)) == "(x: f32['N', 3], c: i64, *, out: Any = None)"
    assert inspect.signature(pickle.loads(pickle.dumps(compiled))) == inspect.signature(compiled)
    assert str(inspect.signature(td.Graph(lambda x, n=3: x))) == "(x, n=3)"
    assert str(inspect.signature(td.vjp(td.Graph(lambda x: x), "x"))) == "(x, seed)"
