"""What caches move for schedules as they are written: by hand for small ones, and counted line by line."""

from dataclasses import replace

import numpy as np
import pytest

import tdsl as td
from tdsl.codegen.python.count_bytes import count_bytes
from tdsl.cost.caches import _stays
from tdsl.cost.moved import total
from tdsl.cost.predict import Prediction
from tdsl.cost.reuse import Touch
from tdsl.machine.model import Machine, MemoryLevel
from tdsl.pipeline import apply_passes, completed_state, lower_variant
from tdsl.profiling import arguments_of
from tdsl.target import Target
from tdsl.tilegraph.predict import predict

i, j, k = td.vars("i j k")
c, y, x = td.vars("c y x")
LINE = 128  # bytes of 32 values


def of_machine(*sizes: int) -> Machine:
    caches = [MemoryLevel(f"L{n}", size) for n, size in enumerate(sizes, 1)]
    return Machine(levels=(*caches, MemoryLevel("memory", None, managed=True)))


def rows(around: bool) -> td.Schedule:
    """Three lines of f for each of g; in a ring with `around`, otherwise computed again."""
    a, f, g = td.Tensor("a", (40, 32), td.f32), td.Func("f"), td.Func("g", shape=(38, 32))
    f[i, j] = td.exp(a[i, j])
    g[i, j] = f[i, j] + f[i + 1, j] + f[i + 2, j]
    s = td.Schedule(g)
    s[f].compute_at(s[g], i)
    if around:
        s[f].store_root()
    return s


@pytest.mark.parametrize("around", [True, False])
def test_of_what_slides_each_line_is_computed_once(around: bool) -> None:
    s = rows(around)
    prediction = predict(s.state, {}, of_machine(1 << 20))[0]
    assert prediction.again["f"] == pytest.approx(1.0 if around else 38 * 3 / 40)
    assert prediction.nests.memory["f"] == ((4, 32) if around else (3, 32))


def test_memory_in_the_loops_of_a_stage_is_no_window() -> None:
    a, b, f = td.Tensor("a", (64, 64), td.f32), td.Tensor("b", (64, 64), td.f32), td.Func("f")
    f[i, j] = td.sum(a[i, k] * b[k, j], axis=k)
    s = td.Schedule(f)
    outer, _ = s[f].split("i", 4)
    s.cache_write(s[f], at=outer)
    for schedule, sliding in ((s, set()), (rows(True), {"f"})):
        nests = predict(schedule.state, {}, of_machine(1 << 20))[0].nests
        levels = [(spot, n) for spot in nests.every() for n in range(1, len(spot.nest.loops) + 1)]
        assert {name for spot, n in levels for name in spot.windows(n)} == sliding


def test_a_ring_that_fits_moves_nothing() -> None:
    moved = predict(rows(True).state, {}, of_machine(16 * LINE))[0].moved("L1")
    assert moved["a"].read == 40 * LINE
    assert moved["g"].written == 38 * LINE
    assert moved["f"].total == 0


def test_a_ring_that_does_not_fit_goes_out_line_by_line() -> None:
    """The line that was made last is there, those before are not; each goes out once."""
    moved = predict(rows(True).state, {}, of_machine(4 * LINE))[0].moved("L1")
    assert moved["a"].read == 40 * LINE
    assert moved["f"].read == 38 * 2 * LINE
    assert 36 * LINE <= moved["f"].written <= 40 * LINE


def test_a_ring_of_which_each_iteration_touches_the_same_stays_where_that_fits() -> None:
    points = ((0.0, 64.0),)
    body, outer = {"f": Touch(points, 256, ring=True)}, {"f": Touch(points, 320, ring=True)}
    assert _stays(body, outer, "f", 8, 512) and not _stays(body, outer, "f", 8, 128)


def test_what_a_step_writes_is_cached_for_the_next() -> None:
    """A line goes from one func to the next although both read more than fits."""
    a, b = td.Tensor("a", (64, 32), td.f32), td.Tensor("b", (8, 64, 32), td.f32)
    f, g = td.Func("f"), td.Func("g", shape=(8, 64, 32))
    f[i, j] = td.exp(a[i, j])
    g[k, i, j] = f[i, j] * b[k, i, j]
    s = td.Schedule(g)
    s[g].reorder("i", "k", "j")
    s[f].compute_at(s[g], i)
    moved = predict(s.state, {}, of_machine(5 * LINE))[0].moved("L1")
    assert moved["f"].read == 0
    assert moved["a"].read == 64 * LINE
    assert moved["b"].read == moved["g"].written == 8 * 64 * LINE


def test_tiles_read_again_what_they_have_in_common() -> None:
    """What the rows of a product need again after all columns is gone, by so little as a tile more."""
    a, b, p = td.Tensor("a", (64, 64), td.f32), td.Tensor("b", (64, 64), td.f32), td.Func("p")
    p[i, j] = td.sum(a[i, k] * b[k, j], axis=k)
    s = td.Schedule(p)
    outer, inner = s[p].split("i", 16)
    wide, narrow = s[p].split("j", 16)
    s[p].reorder(outer, wide, k, inner, narrow)
    whole = 64 * 64 * 4
    fits = whole + 2 * 16 * 64 * 4 + 16 * 64 * 4  # b, a and its next rows, rows of the result
    for size, times in ((fits, 1), (fits - 64, 4)):
        moved = predict(s.state, {}, of_machine(size))[0].moved("L1")
        assert moved["b"].read == times * whole
        assert moved["a"].read == moved["p"].written == whole


def unsharp(height: int, width: int) -> td.Func:
    image = td.Tensor("image", (3, height, width), td.f32)
    edge = td.pad(image, mode="edge")
    gray, down, ratio, out = (td.Func(n) for n in ("gray", "down", "ratio", "out"))
    gray[y, x] = 0.3 * edge[0, y, x] + 0.6 * edge[1, y, x] + 0.1 * edge[2, y, x]
    down[y, x] = gray[y - 2, x] + gray[y - 1, x] + gray[y, x] + gray[y + 1, x] + gray[y + 2, x]
    ratio[y, x] = (down[y, x - 1] + down[y, x] + down[y, x + 1]) / gray[y, x]
    out[c, y, x] = ratio[y, x] * image[c, y, x]
    return out


def jacobi(side: int) -> td.Func:
    u = td.Tensor("u", (side, side), td.f32)
    for n in range(4):
        padded = td.pad(u, mode="edge", shape=(side, side))
        u = td.Func(f"u{n + 1}")
        u[y, x] = (padded[y, x] + padded[y - 1, x] + padded[y + 1, x] + padded[y, x - 1]) * 0.25
    return u.with_shape(side, side)


def rings(func: td.Func, lines: int = 8) -> td.Schedule:
    """Strips of lines, in which all other funcs slide through rings."""
    s = td.Schedule(func)
    out = s[func]
    strip, line = out.split("y", lines)
    out.reorder(strip, line, *(v for v in ("c", "x") if v in s.program.func(func.name).variables))
    for f in s.program.funcs:
        if f.name != func.name:
            s[f.name].compute_at(out, line)
            s[f.name].store_at(out, strip)
    return s


def lines_of_a_grid(side: int) -> td.Schedule:
    """Lines of a coarse grid, of which each serves several lines of the result."""
    a, grid, out = td.Tensor("a", (side, side), td.f32), td.Func("grid"), td.Func("out")
    r = td.range("r", 0, 4)
    grid[y, x] = td.sum(td.pad(a, mode="edge")[4 * y + r, x], axis=r)
    out[y, x] = a[y, x] + grid[y // 4, x] + grid[y // 4 + 1, x]
    s = td.Schedule(out)
    s[grid].compute_at(s[out], "y")
    s[grid].store_root()
    return s


@pytest.mark.parametrize(
    "schedule, sizes",
    [
        (rings(unsharp(32, 96)), (1 << 10, 3 << 12)),
        (rings(unsharp(32, 96)), (1 << 12, 1 << 16)),
        (rings(jacobi(48), 16), (1 << 10, 1 << 12)),
        (rings(jacobi(48), 16), (3 << 10, 1 << 14)),
        (lines_of_a_grid(64), (1 << 11, 1 << 13)),
        (rows(True), (4 * LINE, 12 * LINE)),
        (rows(False), (4 * LINE, 12 * LINE)),
    ],
)
def test_windows_move_what_is_counted(schedule: td.Schedule, sizes: tuple[int, int]) -> None:
    program, machine = td.compile(schedule), of_machine(*sizes)
    rng = np.random.default_rng(0)
    arrays = [rng.random([n.value for n in t.shape], np.float32) for t in schedule.program.inputs]
    values, exact = arguments_of(program.signature, arrays, {}, None)
    variant = program.variant(exact)
    counted = count_bytes(apply_passes(lower_variant(variant), Target("python")), values, machine.caches)
    predicted = Prediction(completed_state(variant), replace(machine, threads=1))
    for name, bytes_ in counted.items():
        assert total(predicted.moved(name)) == pytest.approx(bytes_, rel=0.25), name


def test_arrays_side_by_side_are_read_once_by_tiles_of_which_the_last_is_short() -> None:
    parts = [td.Tensor(f"part{n}", (4, 32, 32), td.f32) for n in range(9)]
    joined = parts[8][td.clip(c - 32, 0, 3), y, x]
    for n in reversed(range(8)):
        joined = td.where(c < 4 * n + 4, parts[n][td.clip(c - 4 * n, 0, 3), y, x], joined)
    f, g = td.Func("f"), td.Func("g", shape=(36, 32, 32))
    f[c, y, x] = joined
    g[c, y, x] = f[c, y, x] * 2
    s = td.Schedule(g)
    s[g].split(c, 16)
    s[g].reorder("c_o", "y", "c_i", "x")
    s[f].compute_at(s[g], "y")
    moved = predict(s.state, {}, of_machine(32 << 10))[0].moved("L1")
    for part in parts:
        assert moved[part.name].read == pytest.approx(4 * 4 * 32 * 32)
