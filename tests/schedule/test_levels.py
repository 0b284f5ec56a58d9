"""Default schedules are right on every level of the CPU, and vector code without calls on AArch64."""

from __future__ import annotations

import re

import numpy as np
import pytest

import tdsl as td
from tdsl.errors import TargetError
from tdsl.machine.cpu import check_runs_here, level
from tdsl.target import LEVELS

i, j, k, y, x = td.vars("i j k y x")


def matmul(dtype, m=37, n=45, terms=67):
    a, b, c = td.Tensor("a", (m, terms), dtype), td.Tensor("b", (terms, n), dtype), td.Func("c")
    c[i, j] = td.sum(a[i, k] * b[k, j], axis=k)
    return c


def dense():
    a, w = td.Tensor("a", (70, 65), td.f32), td.Tensor("w", (130, 65), td.f32)
    bias, c, out = td.Tensor("bias", (130,), td.f32), td.Func("c"), td.Func("out")
    c[i, j] = td.sum(a[i, k] * w[j, k], axis=k)
    out[i, j] = td.maximum(c[i, j] + bias[j], 0)
    return out


def softmax():
    a = td.Tensor("a", (13, 131), td.f32)
    top, part, total, out = (td.Func(n) for n in ("top", "part", "total", "out"))
    top[i] = td.max(a[i, k], axis=k)
    part[i, j] = td.exp(a[i, j] - top[i])
    total[i] = td.sum(part[i, k], axis=k)
    out[i, j] = part[i, j] / total[i]
    return out


def blur():
    a = td.Tensor("a", (67, 91), td.f32)
    edge, rows, out = td.pad(a, mode="edge"), td.Func("rows"), td.Func("out", shape=(67, 91))
    rows[y, x] = edge[y, x - 1] + edge[y, x] + edge[y, x + 1]
    out[y, x] = (rows[y - 1, x] + rows[y, x] + rows[y + 1, x]) / 9
    return out


def convolution():
    a, w = td.Tensor("a", (3, 12, 19), td.f32), td.Tensor("w", (21, 3, 3, 3), td.f32)
    out, f, c, r, s = td.Func("out"), *td.vars("f c r s")
    out[f, y, x] = td.sum(a[c, y + r, x + s] * w[f, c, r, s], axis=(c, r, s))
    return out


def nearest():
    a = td.Tensor("a", (29, 33), td.i32)
    out = td.Func("out")
    out[i] = td.argmin(td.absdiff(a[i, k], 7), axis=k)
    return out


def narrow():
    a = td.Tensor("a", (41, 53), td.u8)
    out = td.Func("out")
    out[i, j] = td.saturating_cast((td.cast(a[i, j], td.u16) * 5 + 3) // 4, td.u8)
    return out


def attention():
    """A chain of products that runs by bands of rows."""
    h, e = td.vars("h e")
    q, key, v = (td.Tensor(n, (2, 64, 32), td.f32) for n in ("q", "key", "v"))
    scores, top, p, total, out = (td.Func(n) for n in ("scores", "top", "p", "total", "out"))
    scores[h, i, j] = td.sum(q[h, i, k] * key[h, j, k], axis=k)
    top[h, i] = td.max(scores[h, i, j], axis=j)
    p[h, i, j] = td.exp(scores[h, i, j] - top[h, i])
    total[h, i] = td.sum(p[h, i, j], axis=j)
    out[h, i, e] = td.sum(p[h, i, j] * v[h, j, e], axis=j) / total[h, i]
    return out


def lines():
    """A pipeline of pictures that runs in strips, with a result that is stored past the caches."""
    a = td.Tensor("a", (2052, 2050), td.f32)
    rows, again, out = td.Func("rows"), td.Func("again"), td.Func("out")
    rows[y, x] = a[y, x] + a[y, x + 1] + a[y, x + 2]
    again[y, x] = rows[y, x] + rows[y + 1, x] + rows[y + 2, x]
    out[y, x] = again[y, x] + again[y + 2, x]
    return out


def small(dtype, total):
    """A product that processors may have an instruction for."""
    a, b, c = td.Tensor("a", (37, 66), dtype), td.Tensor("b", (66, 45), dtype), td.Func("c")
    terms = td.cast(a[i, k], total) * td.cast(b[k, j], total)
    c[i, j] = td.sum(terms, axis=k, dtype=total)
    return c


def expected_attention(q, key, v):
    p = np.exp(np.einsum("hik,hjk->hij", q, key))
    return np.einsum("hij,hje->hie", p / p.sum(axis=2, keepdims=True), v)


def expected_lines(a):
    rows = sum(a[:, s : s + 2048] for s in range(3))
    again = sum(rows[r : r + 2050] for r in range(3))
    return again[:2048] + again[2:]


def wide_product(a, b):
    return a.astype(np.float64) @ b.astype(np.float64)


def expected_softmax(a):
    part = np.exp(a - a.max(axis=1, keepdims=True, initial=-np.inf))
    return part / part.sum(axis=1, keepdims=True)


def expected_blur(a):
    p = np.pad(a, 1, mode="edge")
    return sum(p[r : r + 67, s : s + 91] for r in range(3) for s in range(3)) / 9


def expected_convolution(a, w):
    out = np.zeros((21, 10, 17))
    for r in range(3):
        for s in range(3):
            out += np.einsum("cyx,fc->fyx", a[:, r : r + 10, s : s + 17], w[:, :, r, s])
    return out


PROGRAMS = {
    "matmul": (matmul(td.f32), lambda a, b: a @ b, 67),
    "matmul f64": (matmul(td.f64), lambda a, b: a @ b, 67),
    "matmul i32": (matmul(td.i32), lambda a, b: a @ b, 0),
    "dense": (dense(), lambda a, w, b: np.maximum(a @ w.T + b, 0), 66),
    "softmax": (softmax(), expected_softmax, 135),
    "blur": (blur(), expected_blur, 9),
    "convolution": (convolution(), expected_convolution, 27),
    "nearest": (nearest(), lambda a: np.abs(a - 7).argmin(axis=1), 0),
    "attention": (attention(), expected_attention, 4000),
    "lines": (lines(), expected_lines, 18),
    "small bf16": (small(td.bf16, td.f32), wide_product, 66),
    "small i8": (small(td.i8, td.i32), wide_product, 0),
    "small u8": (small(td.u8, td.i32), wide_product, 0),
    "narrow": (narrow(), lambda a: np.minimum((a.astype(int) * 5 + 3) // 4, 255), 0),
}


def runs(name):
    try:
        check_runs_here(level(name))
    except TargetError:
        return False
    return True


RUNNABLE = [name for name in LEVELS if runs(name)]


def inputs(compiled, rng):
    arrays = []
    for a in compiled.signature.inputs:
        shape = tuple(e.value for e in a.shape)
        whole = rng.integers(0, 256, shape)
        values = rng.uniform(0.5, 1.5, shape) if a.dtype.is_float else whole
        arrays.append(values.astype(a.dtype.numpy))
    return arrays


@pytest.mark.in_part(14)
@pytest.mark.parametrize("name", RUNNABLE)
@pytest.mark.parametrize("program", PROGRAMS)
def test_default_schedules_are_right_on_every_level(program, name, rng):
    """The bound is that of so many roundings of positive numbers; exp makes more of those of its argument."""
    func, expected, roundings = PROGRAMS[program]
    compiled = td.compile(func, target=f"cpu:{name}")
    arrays = inputs(compiled, rng)
    got = compiled(*arrays)
    if not roundings:
        np.testing.assert_array_equal(got, expected(*arrays))
    else:
        right = expected(*(a.astype(np.float64) for a in arrays))
        eps = float(np.finfo(got.dtype).eps)
        np.testing.assert_allclose(got, right, rtol=roundings * eps)


REGISTERS = {"sse2": "xmm", "sse4": "xmm", "avx2": "ymm", "avx512": "zmm"}


@pytest.mark.parametrize("name", REGISTERS)
def test_code_of_a_level_uses_its_registers_and_no_wider_ones(name):
    text = str(td.compile(matmul(td.f32), target=f"cpu:{name}").source("asm"))
    used = {register for register in ("xmm", "ymm", "zmm") if register in text}
    assert REGISTERS[name] in used
    assert not any(wide in used for wide in ("ymm", "zmm") if wide > REGISTERS[name])
    assert ("vfmadd" in text) == (name in ("avx2", "avx512"))


def innermost_loops(assembly):
    """The instructions of each loop of AArch64 code that has no loop inside."""
    lines = [line.split("//")[0].strip() for line in assembly.splitlines()]
    labels = {line[:-1]: n for n, line in enumerate(lines) if line.endswith(":")}
    spans = []
    for n, line in enumerate(lines):
        jump = re.match(r"(?:b\.\w+|cbn?z \w+,|tbn?z .*,|b)\s+(\.\w+)$", line.replace("\t", " "))
        if jump and labels.get(jump[1], n) < n:
            spans.append((labels[jump[1]], n))
    inner = [s for s in spans if not any(s != t and s[0] <= t[0] and t[1] <= s[1] for t in spans)]
    return [[line for line in lines[a:b] if line and line[0] != "."] for a, b in inner]


def steady_loop(func, arithmetic):
    """The loop with most vector arithmetic of a kind in the AArch64 code of a func."""
    text = str(td.compile(func, target="cpu:aarch64").source("asm"))
    loops = innermost_loops(text)
    return max(loops, key=lambda loop: sum(line.startswith(arithmetic) for line in loop)), text


def scalars(loop):
    """Instructions that compute with single floats, or put vectors together from elements."""
    single = r"f(mul|add|sub|div|madd|max|min|sqrt)\s+[sd]\d|ins\s|(mov|dup)\s+v\d+\.[sd]\[\d\]"
    return [line for line in loop if re.match(single, line)]


def calls(text):
    """What is called, beside what a call from Python needs."""
    return {name for name in re.findall(r"\sbl\s+(\S+)", text) if not name.startswith("Py")}


def test_products_on_aarch64_are_multiplied_and_added_in_four_lanes():
    loop, text = steady_loop(matmul(td.f32, 64, 96, 128), "fmla")
    products = [line for line in loop if line.startswith("fmla")]
    assert len(products) >= 16
    assert all(".4s" in line for line in products)
    assert not scalars(loop)
    assert not [line for line in loop if line.startswith(("str", "stp"))]  # sums stay in registers
    assert calls(text) <= {"c_kernel", "tdsl_malloc", "tdsl_free"}


def test_math_functions_on_aarch64_are_vectors_without_calls():
    a, out = td.Tensor("a", (4096,), td.f32), td.Func("out")
    out[i] = td.exp(a[i]) * td.tanh(a[i])
    loop, text = steady_loop(out, "fmla")
    assert sum(".4s" in line for line in loop) >= 10
    assert not scalars(loop)
    assert not [line for line in loop if line.startswith("bl")]
    assert calls(text) <= {"out_kernel"}


def test_rows_on_aarch64_are_added_in_four_lanes():
    loop, _ = steady_loop(blur(), "fadd")
    assert sum(line.startswith("fadd") and ".4s" in line for line in loop) >= 2
    assert not scalars(loop)


def test_code_for_another_architecture_is_not_run():
    compiled = td.compile(matmul(td.f32, 4, 4, 4), target=td.Target("cpu", "aarch64"))
    if "aarch64" in RUNNABLE:
        pytest.skip("this machine is one")
    with pytest.raises(TargetError, match="it is for aarch64") as caught:
        compiled(np.ones((4, 4), np.float32), np.ones((4, 4), np.float32))
    assert "source" in caught.value.hint


def test_an_error_for_an_unknown_level_names_the_known_ones():
    with pytest.raises(TargetError, match="no level of cpu 'avx'") as caught:
        td.compile(matmul(td.f32), target="cpu:avx")
    assert "avx2" in caught.value.hint
    with pytest.raises(TargetError, match="no level of numba 'avx2'"):
        td.compile(matmul(td.f32), target="numba:avx2")
