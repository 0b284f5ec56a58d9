"""Five programs, for `tdsl demo`, the benchmarks and the tests.

A case holds a program, its input, a schedule by hand, and the same computation in NumPy. A result is
right if it differs from NumPy's in double precision by at most the error bound of its arithmetic.
"""

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, no_type_check

import numpy as np

import tdsl as td

Array = Any  # of NumPy: results of arithmetic on arrays of any dtype are not typed
Kernel = Callable[..., Array]

EPS = float(np.finfo(np.float32).eps)


@dataclass(frozen=True)
class Case:
    """A program with two schedules and a reference in NumPy.

    `default` and `hand` compile the program for the shapes of the arrays that `inputs` returns, with the
    default schedule and with one by hand; `numpy` is the reference; `bound(expected, *arrays)` is the bound
    of the absolute rounding error, 0 for integers.
    """

    name: str
    title: str
    inputs: Callable[[], tuple[Array, ...]]
    default: Callable[[], Kernel]
    hand: Callable[[], Kernel]
    numpy: Kernel
    bound: Callable[..., Array | float]

    def expected(self, arrays: tuple[Array, ...]) -> Array:
        """NumPy's result, in double precision where the program has floats."""
        wide = (a.astype(np.float64) if a.dtype == np.float32 else a for a in arrays)
        return self.numpy(*wide)

    def is_right(self, result: Array, arrays: tuple[Array, ...]) -> bool:
        """True if `result` differs from the expected one by at most the error bound everywhere."""
        expected = self.expected(arrays)
        if result.shape != expected.shape:
            return False
        error = np.abs(result.astype(np.float64) - expected)
        return bool(np.all(error <= self.bound(expected, *arrays)))


def photograph() -> Array:
    """A grey picture of 512 x 512 pixels: scikit-image's cameraman, or without it a drawn one."""
    try:
        from skimage import data
    except ImportError:
        return drawing()
    return data.camera()


def drawing() -> Array:
    """A picture of 512 x 512 pixels with smooth light, edges and grain, the same every time."""
    y, x = np.mgrid[0:512, 0:512] / 512
    light = 90 + 70 * np.cos(2.1 * x + 0.4) * np.cos(1.7 * y - 0.3)
    discs = sum(
        70.0 * sign * (np.hypot(y - cy, x - cx) < r)
        for cy, cx, r, sign in ((0.3, 0.35, 0.15, 1), (0.6, 0.7, 0.2, -1), (0.75, 0.25, 0.1, 1))
    )
    grain = 6 * np.random.default_rng(0).standard_normal((512, 512))
    return np.clip(light + discs + grain, 0, 255).astype(np.uint8)


def blur_program() -> tuple[td.Func, td.Func]:
    """A 3x3 box blur in two passes: the sums of three neighbours in rows, then in columns."""
    y, x = td.vars("y x")
    image = td.Tensor("image", ("H", "W"), td.f32)
    edge = td.pad(image, mode="edge")
    rows, blur = td.Func("rows"), td.Func("blur")
    rows[y, x] = (edge[y, x - 1] + edge[y, x] + edge[y, x + 1]) / 3
    blur[y, x] = (rows[y - 1, x] + rows[y, x] + rows[y + 1, x]) / 3
    return rows, blur


def blur_by_hand() -> Kernel:
    """Strips of rows in parallel; a row of `rows` is computed once and kept while it is needed."""
    rows, blur = blur_program()
    s = td.Schedule(blur)
    strip, line = s[blur].split("y", 64)
    s[blur].parallel(strip)
    s[blur].vectorize("x", 16)
    s[rows].store_at(s[blur], strip)
    s[rows].compute_at(s[blur], line)
    s[rows].vectorize("x", 16)
    compiled: Kernel = td.compile(s)
    return compiled


def blur_in_numpy(image: Array) -> Array:
    """The blur with slices of a padded array."""
    p = np.pad(image, 1, mode="edge")
    h = (p[:, :-2] + p[:, 1:-1] + p[:, 2:]) / 3
    return (h[:-2] + h[1:-1] + h[2:]) / 3


def equalize_program() -> tuple[td.Func, td.Func]:
    """Spread the grey levels of a picture evenly: histogram, prefix sum, table look-up."""
    y, x, v = td.vars("y x v")
    image = td.Tensor("image", ("H", "W"), td.u8)
    r = td.range("r", 1, 256)
    hist, cdf, out = td.Func("hist"), td.Func("cdf"), td.Func("out")
    hist[v] = td.cast(0, td.i32)
    hist[image[y, x]] += 1
    cdf[v] = hist[v]
    cdf[r] += cdf[r - 1]
    out[y, x] = td.cast(cdf[image[y, x]] * 255 // cdf[255], td.u8)
    return hist, out


def equalize_by_hand() -> Kernel:
    """A histogram for each strip of rows, merged afterwards; the look-up in parallel."""
    hist, out = equalize_program()
    s = td.Schedule(out)
    strip, _ = s[hist].update(0).split("y", 64)
    partial = s[hist].update(0).rfactor(strip)
    s[partial].parallel(strip)
    s[out].parallel("y")
    s[out].vectorize("x", 16)
    compiled: Kernel = td.compile(s)
    return compiled


def equalize_in_numpy(image: Array) -> Array:
    """The equalisation with bincount and an index array."""
    counts = np.bincount(image.ravel(), minlength=256).cumsum()
    return (counts[image] * 255 // counts[255]).astype(np.uint8)


# dense: a matrix product with its bias and relu

DENSE: dict[str, Any] = {"M": 512, "K": 768, "N": 1024}


@td.op
@no_type_check
def dense(x: td.f32["M", "K"], w: td.f32["K", "N"], bias: td.f32["N"]):
    """A fully connected layer: max(x @ w + bias, 0)."""
    i, j, k = td.vars("i j k")
    acc, out = td.Func("acc"), td.Func("out")
    acc[i, j] = td.sum(x[i, k] * w[k, j], axis=k)
    out[i, j] = td.maximum(acc[i, j] + bias[j], 0)
    return out


def dense_by_hand() -> Kernel:
    """Panels of `w` laid out for a register tile of 8 x 32, which runs over the whole of k."""
    s = dense.schedule(**DENSE)
    out, acc = s["out"], s["acc"]
    block_i, _, i, j = out.tile(("i", "j"), (64, 256))
    tile_i, tile_j, i0, j0 = out.tile((i, j), (8, 32))
    out.reorder(tile_j, tile_i)
    out.parallel(block_i)
    _as_tile(out, i0, *out.split(j0, 16))
    acc.compute_at(out, tile_i)
    acc.reorder("k", "i", "j")
    _as_tile(acc, "i", *acc.split("j", 16))
    panels = s.cache_read("w", acc, pack={1: 32}, name="panels")
    panels.reorder_storage(1, 0, 2)
    panels.reorder("d1", "d0", "d2")
    panels.parallel("d1")
    panels.vectorize("d2", 16)
    compiled: Kernel = td.compile(s)
    return compiled


def dense_in_numpy(x: Array, w: Array, bias: Array) -> Array:
    """The layer with BLAS's product."""
    return np.maximum(x @ w + bias, 0)


# softmax: reductions that feed each other

SOFTMAX: dict[str, Any] = {"R": 4096, "C": 1000}


@td.op
@no_type_check
def softmax(x: td.f32["R", "C"]):
    """exp(x) over its sum, row by row, shifted by the greatest element against overflow."""
    i, j = td.vars("i j")
    top, e, total, y = td.Func("top"), td.Func("e"), td.Func("total"), td.Func("y")
    top[i] = td.max(x[i, j], axis=j)
    e[i, j] = td.exp(x[i, j] - top[i])
    total[i] = td.sum(e[i, j], axis=j)
    y[i, j] = e[i, j] / total[i]
    return y


def softmax_by_hand() -> Kernel:
    """Rows in parallel; all stages of a row while it is in cache, with vectors along the row."""
    s = softmax.schedule(**SOFTMAX)
    y = s["y"]
    y.parallel("i")
    y.vectorize("j", 16)
    for name in ("top", "e", "total"):
        s[name].compute_at(y, "i")
        s[name].vectorize("j", 16)
    compiled: Kernel = td.compile(s)
    return compiled


def softmax_in_numpy(x: Array) -> Array:
    """Softmax with NumPy reductions along the rows."""
    e = np.exp(x - x.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


# conv: a convolution, relu, and a 1x1 convolution

CONV: dict[str, Any] = {"N": 4, "C": 32, "H": 56, "W": 56, "F": 64, "R": 3, "S": 3, "G": 32}


@td.op
@no_type_check
def block(x: td.f32["N", "C", "H", "W"], w: td.f32["F", "C", "R", "S"], v: td.f32["G", "F"]):
    """A 3x3 convolution of stride 2 with zero padding, relu, then a mix of the channels."""
    n, c, f, g, r, s, h, q = td.vars("n c f g r s h q")
    zero = td.pad(x, mode="constant", value=0)
    conv, out = td.Func("conv"), td.Func("out")
    window = zero[n, c, 2 * h + r - 1, 2 * q + s - 1]
    conv[n, f, h, q] = td.sum(window * w[f, c, r, s], axis=(c, r, s))
    out[n, g, h, q] = td.sum(td.maximum(conv[n, f, h, q], 0) * v[g, f], axis=f)
    return out.with_shape("N", "G", x.shape[2] // 2, x.shape[3] // 2)


def conv_by_hand() -> Kernel:
    """Lines of the picture in parallel, with a line of `conv` in cache while `out` uses it.

    Both stages reduce in register tiles of 7 pixels by 32 channels, the weights laid out for that.
    """
    s = block.schedule(**CONV)
    out, conv = s["out"], s["conv"]
    out.reorder("n", "h", "q", "g", "f")
    line = out.fuse("n", "h")
    out.parallel(line)
    group, pixel = out.split("q", 7)
    several, one = out.split("g", 16)
    out.reorder(line, group, "f", pixel, several, one)
    _as_tile(out, pixel, several, one)
    s.cache_write(out, group)
    conv.compute_at(out, line)
    several, one = conv.split("f", 16)
    half, several = conv.split(several, 2)
    group, pixel = conv.split("q", 7)
    conv.reorder("n", "h", half, group, "c", "r", "s", pixel, several, one)
    _as_tile(conv, pixel, several, one)
    for stage in (out, conv):
        stage.reorder_storage(0, 2, 3, 1)
    s.cache_read("w", conv, name="w_by_f").reorder_storage(1, 2, 3, 0)
    s.cache_read("v", out, name="v_by_g").reorder_storage(1, 0)
    compiled: Kernel = td.compile(s)
    return compiled


def _as_tile(stage: Any, rows: Any, several: Any, one: Any) -> None:
    """Unroll the innermost three loops of a stage: `several` vectors of `one` in each of `rows`."""
    stage.vectorize(one)
    stage.unroll(several)
    stage.unroll(rows)


def conv_in_numpy(x: Array, w: Array, v: Array) -> Array:
    """The convolution as a product with the windows laid out side by side."""
    p = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(p, (3, 3), axis=(2, 3))[:, :, ::2, ::2]
    conv = np.tensordot(windows, w, axes=((1, 4, 5), (1, 2, 3)))
    return np.ascontiguousarray((np.maximum(conv, 0) @ v.T).transpose(0, 3, 1, 2))


def _normal(*shapes: tuple[int, ...]) -> tuple[Array, ...]:
    rng = np.random.default_rng(0)
    return tuple(rng.standard_normal(shape, dtype=np.float32) for shape in shapes)


def _dense_inputs() -> tuple[Array, ...]:
    m, k, n = DENSE.values()
    return _normal((m, k), (k, n), (n,))


def _conv_inputs() -> tuple[Array, ...]:
    n, c, h, w, f, r, s, g = CONV.values()
    return _normal((n, c, h, w), (f, c, r, s), (g, f))


def _dense_bound(_: Array, x: Array, w: Array, bias: Array) -> Array:
    # k products and sums, each with a relative error of EPS of the terms seen so far.
    return EPS * (DENSE["K"] + 1) * (np.abs(x) @ np.abs(w) + np.abs(bias))


def _conv_bound(_: Array, x: Array, w: Array, v: Array) -> Array:
    terms = CONV["C"] * CONV["R"] * CONV["S"] + CONV["F"] + 1
    return EPS * terms * conv_in_numpy(np.abs(x), np.abs(w), np.abs(v))


def _softmax_bound(expected: Array, x: Array) -> Array:
    # exp's relative error is its argument's absolute error; then C sums.
    reach = float(x.max() - x.min())
    return EPS * (2 * reach + SOFTMAX["C"] + 8) * expected


CASES = (
    Case(
        "blur",
        "box blur 3x3, 2048 x 2048",
        lambda: (np.tile(photograph(), (4, 4)).astype(np.float32) / 255,),
        lambda: td.compile(blur_program()[1]),
        blur_by_hand,
        blur_in_numpy,
        lambda expected, image: 8 * EPS * expected,
    ),
    Case(
        "equalize",
        "equalised histogram, 512 x 512",
        lambda: (photograph(),),
        lambda: td.compile(equalize_program()[1]),
        equalize_by_hand,
        equalize_in_numpy,
        lambda expected, image: 0.0,
    ),
    Case(
        "dense",
        "dense layer, 512 x 768 x 1024",
        _dense_inputs,
        lambda: dense.compile(**DENSE),
        dense_by_hand,
        dense_in_numpy,
        _dense_bound,
    ),
    Case(
        "softmax",
        "softmax, 4096 x 1000",
        lambda: _normal((SOFTMAX["R"], SOFTMAX["C"])),
        lambda: softmax.compile(**SOFTMAX),
        softmax_by_hand,
        softmax_in_numpy,
        _softmax_bound,
    ),
    Case(
        "conv",
        "two convolutions, 4 x 32 x 56 x 56",
        _conv_inputs,
        lambda: block.compile(**CONV),
        conv_by_hand,
        conv_in_numpy,
        _conv_bound,
    ),
)


@dataclass(frozen=True)
class Outcome:
    """The result of one case: whether both schedules were right, and times in milliseconds."""

    case: Case
    default_right: bool
    hand_right: bool
    first_call_ms: float
    default_ms: float
    hand_ms: float
    numpy_ms: float


def run_cases(cases: tuple[Case, ...] = CASES) -> Iterator[Outcome]:
    """Build, check and time each case in turn."""
    for case in cases:
        arrays = case.inputs()
        start = time.perf_counter()
        default = case.default()
        result = default(*arrays)
        first_call_ms = 1e3 * (time.perf_counter() - start)
        hand = case.hand()
        yield Outcome(
            case,
            case.is_right(result, arrays),
            case.is_right(hand(*arrays), arrays),
            first_call_ms,
            median_ms(lambda: default(*arrays)),  # noqa: B023  # called before the loop goes on
            median_ms(lambda: hand(*arrays)),  # noqa: B023  # as above
            median_ms(lambda: case.numpy(*arrays)),  # noqa: B023  # as above
        )


def median_ms(call: Callable[[], object], budget_s: float = 0.3) -> float:
    """The median time of `call` over at least five runs, and as many as fit into `budget_s`."""
    call()
    times: list[float] = []
    while len(times) < 5 or sum(times) < budget_s:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return 1e3 * statistics.median(times)
