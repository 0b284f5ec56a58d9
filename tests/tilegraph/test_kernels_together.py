"""The default schedule of programs of several funcs for a GPU, chosen by the price."""

import re

import numpy as np
import pytest

import tdsl as td
from tdsl.codegen.gpu.launches import launches_of
from tdsl.cost.predict import Prediction
from tdsl.cost.sectors import SECTOR
from tdsl.lang.interp import interpret
from tdsl.pipeline import completed_state
from tdsl.tilegraph.default import decide
from tdsl.tilegraph.search import search
from tests.codegen.cuda.programs import kernel_of

i, j, k, c, b, y, x_ = td.vars("i j k c b y x")
GPU = td.Target("cuda", arch="sm_90a")


def corners(n):
    """Products of gradients, summed over windows: six stages, five of which recipes would store."""
    x, (ix, iy, a, m, d) = td.Tensor("x", (n, n), td.f32), (td.Func(v) for v in ("ix", "iy", "a", "m", "d"))
    out, (r, s) = td.Func("out", shape=(n - 4, n - 4)), (td.range(v, 0, 3) for v in "rs")
    ix[i, j] = x[i, j + 2] - x[i, j] + 2 * (x[i + 1, j + 2] - x[i + 1, j]) + x[i + 2, j + 2] - x[i + 2, j]
    iy[i, j] = x[i + 2, j] - x[i, j] + 2 * (x[i + 2, j + 1] - x[i, j + 1]) + x[i + 2, j + 2] - x[i, j + 2]
    a[i, j] = td.sum(ix[i + r, j + s] ** 2, axis=(r, s))
    m[i, j] = td.sum(iy[i + r, j + s] ** 2, axis=(r, s))
    d[i, j] = td.sum(ix[i + r, j + s] * iy[i + r, j + s], axis=(r, s))
    out[i, j] = a[i, j] * m[i, j] - d[i, j] ** 2
    return out


def depthwise(n):
    x, w = td.Tensor("x", (2, n, n, 64), td.f16), td.Tensor("w", (3, 3, 64), td.f16)
    out, (r, s) = td.Func("out"), (td.range(v, 0, 3) for v in "rs")
    out[b, y, x_, c] = td.sum(x[b, y + r, x_ + s, c] * w[r, s, c], axis=(r, s))
    return out


def moving_average(n):
    x, out = td.Tensor("x", (n, n), td.f32), td.Func("out", shape=(n, n - 31))
    out[i, j] = td.mean(x[i, j + td.range("r", 0, 32)], axis=td.range("r", 0, 32))
    return out


def two_products(n):
    x, w, u = (
        td.Tensor("x", (n, 64), td.f16),
        td.Tensor("w", (64, 128), td.f16),
        td.Tensor("u", (128, 64), td.f16),
    )
    a, r, out = td.Func("a"), td.Func("r"), td.Func("out")
    a[i, j] = td.sum(td.cast(x[i, k], td.f32) * td.cast(w[k, j], td.f32), axis=k)
    r[i, j] = td.cast(td.maximum(a[i, j], 0), td.f16)
    out[i, c] = td.sum(td.cast(r[i, j], td.f32) * td.cast(u[j, c], td.f32), axis=j)
    return out


def blurs(n):
    f = td.Tensor("x", (n, n), td.f32)
    for count in range(3):
        g = td.Func(f"g{count}", shape=(n - 2 * count - 2, n - 2 * count - 2))
        g[i, j] = (f[i, j] + f[i + 1, j + 1] * 2 + f[i + 2, j + 2]) / 4
        f = g
    return f


MANY = {corners: 2000, depthwise: 112, moving_average: 4096, two_products: 65536, blurs: 4096}
FEW = {corners: 150, depthwise: 18, moving_average: 130, two_products: 256, blurs: 150}


@pytest.mark.parametrize("make", MANY)
def test_programs_are_one_kernel_that_moves_about_the_least_bytes(make):
    state, _ = decide(td.Schedule(make(MANY[make]), target=GPU).state, GPU.machine())
    prediction = Prediction.of(state, GPU.machine())
    assert len(prediction.times) == 1
    assert sum(dict(t.moved)["global"].total for t in prediction.terms) < 1.2 * prediction.least


@pytest.mark.parametrize("make", MANY)
def test_the_same_kernels_are_right_at_small_sizes(make):
    out = make(FEW[make])
    s = td.Schedule(out, target=GPU)
    rng = np.random.default_rng(0)
    given = {
        t.name: rng.integers(-3, 4, [e.value for e in t.shape]).astype(t.dtype.numpy)
        for t in s.program.inputs
    }
    (want,) = interpret(s.program, given)
    got = td.emulate(td.compile(out, target=GPU))(**given)
    np.testing.assert_allclose(got, want, rtol=2e-3 if want.dtype == np.float16 else 1e-5, atol=1e-3)


def shifted(size, terms, few):
    """A product whose rows, less their maximum, tensor cores would read computed: maxima in registers."""
    x, w = td.Tensor("x", (size, terms), td.f16), td.Tensor("w", (terms, 16), td.f16)
    top, y, out, r = *map(td.Func, ("top", "y", "out")), td.range("r", 0, 3)
    top[i] = td.max(x[i, r], axis=r) if few else td.max(x[i, k], axis=k)
    y[i, k] = x[i, k] - top[i]
    out[i, j] = td.sum(td.cast(y[i, k], td.f32) * td.cast(w[k, j], td.f32), axis=k)
    return out


@pytest.mark.parametrize("few", [False, True])
@pytest.mark.parametrize("size, terms", [(1, 1), (4, 5), (16, 16), (100, 77)])
def test_values_of_a_thread_are_not_read_by_copies_that_threads_share(size, terms, few):
    terms = max(terms, 3) if few else terms
    out = shifted(size, terms, few)
    rng = np.random.default_rng(0)
    x, w = (rng.integers(-3, 4, s).astype(np.float16) for s in ((size, terms), (terms, 16)))
    top = x[:, : 3 if few else None].max(1, keepdims=True)
    got = td.emulate(td.compile(out, target=GPU))(x=x, w=w)
    np.testing.assert_array_equal(got, (x - top).astype(np.float32) @ w.astype(np.float32))


@pytest.mark.in_part(1)
@pytest.mark.parametrize("make", [corners, depthwise, two_products])
def test_the_default_of_a_search_is_what_compile_takes(make):
    s = td.Schedule(make(MANY[make]), target=GPU)
    ranked = search(s.program, {}, GPU).candidates
    default = next(x for x in ranked if x.label == "default")
    assert str(s.completed()).startswith(str(default.schedule))
    loops = [
        str(td.compile(x, target=GPU).loops()) for x in (default.schedule, td.Schedule(make(MANY[make])))
    ]
    assert loops[0] == loops[1]
    taken, _ = decide(s.state, GPU.machine())
    assert default.seconds == pytest.approx(Prediction.of(taken, GPU.machine()).seconds)


def test_what_a_user_puts_at_the_root_stays_there():
    out = blurs(4096)
    s = td.Schedule(out, target=GPU)
    s["g1"].compute_root()
    f = td.compile(s, target=GPU)
    assert len(re.findall(r"blockIdx\.x", str(f.loops()))) >= 2
    # tiles of g1 are computed in registers; g1_out writes them to global memory
    assert "g1_out" in [name for name, _ in f.launch.temporaries]


def test_explain_says_where_each_func_is_and_what_it_waits_for():
    s = td.Schedule(corners(2000), target=GPU)
    text = str(s.explain())
    assert "ix -> " in text and "kept in shared" in text and "waiting for global" in text


COUNTED = [*FEW, "transpose", "strided", "rows", "product", "broadcast", "reduced", "columns"]


def simple(name):
    x, w, g = (
        td.Tensor("x", (96, 128), td.f32),
        td.Tensor("w", (128, 64), td.f32),
        td.Tensor("g", (128,), td.f32),
    )
    cube, out = td.Tensor("cube", (32, 64, 8), td.f32), td.Func("out")
    if name == "transpose":
        out[j, i] = x[i, j]
    elif name == "strided":
        out[i, j] = cube[i, j, 3]
    elif name == "rows":
        total = td.Func("total")
        total[i] = td.sum(x[i, j], axis=j)
        out[i, j] = x[i, j] / total[i]
    elif name == "product":
        out[i, j] = td.sum(x[i, k] * w[k, j], axis=k)
    elif name == "broadcast":
        out[i, j] = x[i, j] * g[j]
    elif name == "reduced":
        product = td.Func("product")
        product[i, j] = td.sum(x[i, k] * w[k, j], axis=k)
        out[i] = td.max(product[i, j], axis=j)
    else:
        out[j] = td.sum(x[i, j], axis=i)
    return out


@pytest.mark.parametrize("name", COUNTED, ids=lambda x: getattr(x, "__name__", x))
def test_sectors_of_the_price_are_those_that_are_counted(name):
    f = td.compile(simple(name) if isinstance(name, str) else name(FEW[name]), target=GPU)
    variant = f.variant(f.specialisation({}))
    prediction = Prediction.of(completed_state(variant), variant.machine)
    arrays = [np.zeros([e.value for e in a.shape], a.dtype.numpy) for a in f.signature.inputs]
    counted = SECTOR * sum(a.fetched for a in td.count_memory(f, *arrays).accesses)
    # windows, of which L1 keeps what steps share, or whose rows begin within sectors
    loose = name in (depthwise, moving_average, corners, blurs)
    predicted = sum(dict(t.moved)["L2"].total for t in prediction.terms)
    assert predicted == pytest.approx(counted, rel=0.5 if loose else 0.2)


def test_attention_in_f32_is_one_pass_over_its_terms():
    d, e = td.vars("d e")
    q, v, w = (td.Tensor(n, (24, 1024, 64), td.f32) for n in "qvw")
    score, top, p, total, out = (td.Func(n) for n in ("score", "top", "p", "total", "out"))
    score[b, i, j] = td.sum(q[b, i, d] * v[b, j, d], axis=d) / 8
    top[b, i] = td.max(score[b, i, j], axis=j)
    p[b, i, j] = td.exp(score[b, i, j] - top[b, i])
    total[b, i] = td.sum(p[b, i, j], axis=j)
    out[b, i, e] = td.sum(p[b, i, j] * w[b, j, e], axis=j) / total[b, i]
    assert len(launches_of(kernel_of(td.Schedule(out, target="cuda:sm_90a"))).launches) == 1
