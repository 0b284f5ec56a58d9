"""CUDA text is for readers: names of the program, arrays by name, comments, and nothing that is not used."""

import re

import pytest

import tdsl as td
from tdsl.codegen.gpu.launches import launches_of
from tdsl.codegen.runtime.signature import dense_specialisation
from tdsl.lang.types import ALL
from tdsl.pipeline import make_kernel
from tests.codegen.cuda import programs

pytest.importorskip("tvm", reason='pip install "tdsl[cuda]"')
from tdsl.codegen.cuda.text import cuda_text

i, j, k = td.vars("i j k")


def text_of(program, arch: str = "sm_90a", **sizes: int) -> str:
    if isinstance(program, td.Schedule):
        kernel = programs.kernel_of(program, **sizes)
    else:
        compiled = td.compile(program, target=f"cuda:{arch}")
        kernel = make_kernel(compiled.variant(dense_specialisation(compiled.signature, {}, frozenset())))
    return cuda_text(launches_of(kernel), arch)


def product(m: int = 256, dtype: td.DType = td.f16) -> td.Func:
    a, w, c = td.Tensor("a", (m, m), dtype), td.Tensor("w", (m, m), dtype), td.Func("c")
    c[i, j] = td.sum(a[i, k] * w[k, j], axis=k, dtype=td.f32)
    return c


def chain() -> td.Func:
    x, scaled, out = td.Tensor("x", (1000,), td.f32), td.Func("scaled"), td.Func("out")
    scaled[i] = x[i] * 2
    out[i] = td.maximum(scaled[i] + x[i], 0)
    return out


def softmax() -> td.Func:
    a = td.Tensor("a", (256, 1000), td.f32)
    top, p, total, out = (td.Func(name) for name in ("top", "p", "total", "out"))
    top[i] = td.max(a[i, j], axis=j)
    p[i, j] = td.exp(a[i, j] - top[i])
    total[i] = td.sum(p[i, j], axis=j)
    out[i, j] = p[i, j] / total[i]
    return out


PROGRAMS = {
    "chain": chain, "softmax": softmax, "product": lambda: product(512),
    "tiles": lambda: product(512, td.f32),
}  # fmt: skip
CASES = [(name, arch) for name in PROGRAMS for arch in ("sm_75", "sm_80", "sm_90a")]


@pytest.mark.parametrize("name, arch", CASES)
def test_names_of_arrays_are_those_of_the_program(name, arch):
    text = text_of(PROGRAMS[name](), arch)
    for array in {"chain": ("x", "out"), "softmax": ("a", "out")}.get(name, ("a", "w", "c")):
        assert re.search(rf"\*(?: __restrict__)? {array}[,)]", text)
    if name == "softmax":
        for func in ("top", "p", "total"):
            assert re.search(rf"// {func}\w*: ", text) and re.search(rf"\bfloat\*? {func}", text)
    assert not re.search(r"\bid\d+|_ptr\b|\bv_|buf_dyn_shmem|\(\(int\)threadIdx", text)


@pytest.mark.parametrize("name, arch", CASES)
def test_every_device_function_and_header_is_used(name, arch):
    text = text_of(PROGRAMS[name](), arch)
    for function in re.findall(r"\b(tdsl_\w+|w?g?mma_\w+|ldmatrix_\w+)\(", text):
        assert len(re.findall(rf"\b{function}\b", text)) > 1, function
    for kind, header in (("half", "cuda_fp16"), ("nv_bfloat16", "cuda_bf16"), ("CUDART_", "math_constants")):
        assert (f"#include <{header}.h>" in text) == bool(re.search(rf"\b{kind}", text.partition("//")[2]))


@pytest.mark.parametrize("name, arch", CASES)
def test_comments_name_the_launch_and_each_stage(name, arch):
    text = text_of(PROGRAMS[name](), arch)
    launches = re.findall(r"// (\w+): grid \(\d+, \d+, \d+\), block \(\d+, \d+, \d+\)", text)
    assert launches == re.findall(r'extern "C".* (\w+)\(', text)
    body = text[text.index('extern "C"') :]
    for array in re.findall(r"(?:__shared__ alignas\(\d+\) \w+|\* const) (\w+_cache)\b", body):
        assert re.search(rf"// {array}: tile of \w+", body), array


def test_large_shared_memory_has_a_pointer_for_each_array():
    text = text_of(programs.matmul(td.f32, stages=34), M=32, K=300, N=64)
    assert re.search(r"extern __shared__ __align__\(128\) unsigned char shared_memory\[\];", text)
    assert "float* const a_cache = (float*)shared_memory;  // [34][16][8]" in text
    assert re.search(r"float\* const b_cache = \(float\*\)\(shared_memory \+ \d+\);", text)
    assert text.count("shared_memory") == 3


def test_a_comment_names_the_loop_that_a_tile_is_for():
    text = text_of(programs.matmul(td.f32), M=32, K=64, N=64)
    assert "// a_cache: tile of a for k_o" in text and "// b_cache: tile of b for k_o" in text
    assert "// c: accumulated from a_cache and b_cache for k_o" in text or "// c_local: acc" in text


@pytest.mark.parametrize(
    "name", ["exp", "float4", "int", "register", "tx", "bx", "shared_memory", "tdsl_add"]
)
def test_names_with_a_meaning_in_cuda_are_changed(name):
    x, f = td.Tensor(name, (64, 512), td.f32), td.Func("f")
    f[i, j] = td.exp(x[i, j]) + 1
    assert "#include" not in text_of(f)
    from tdsl.codegen.cuda.nvrtc import compile_text

    compile_text(text_of(f), "sm_90a")


def test_loops_of_one_name_do_not_hide_each_other():
    a, f, g = td.Tensor("a", (8, 8), td.f32), td.Func("f"), td.Func("g")
    f[i, j] = a[i, j] * 2
    g[i, j] = f[i, j] + td.sum(f[i, k], axis=k)
    s = td.Schedule(g)
    s[f].compute_at(s[g], i)
    text = text_of(s)
    loops: list[str] = []
    for line in text.splitlines():
        if found := re.match(r"( *)for \(int (\w+) =", line):
            loops[len(found[1]) // 2 - 1 :] = [found[2]]
            assert len(set(loops)) == len(loops)


@pytest.mark.parametrize("dtype", [t for t in ALL if t.kind != "c"], ids=str)
def test_text_of_each_type_compiles_without_the_head_of_tvm(dtype):
    from tdsl.codegen.cuda.nvrtc import compile_text

    a, f, g = td.Tensor("a", (64, 1024), dtype), td.Func("f"), td.Func("g")
    f[j, i] = a[i, j]
    g[i, j] = td.where(i + j < 1000, a[i, j], td.cast(0, dtype))
    for program in (f, g):
        for arch in ("sm_75", "sm_90a"):
            text = text_of(program, arch)
            assert "TVM" not in text
            compile_text(text, arch)


GOLDEN = {
    "elements": lambda: text_of(programs.scaled(), N=65536),
    "transpose": lambda: text_of(programs.transposed(), M=512, N=1000),
    "tiles": lambda: text_of(programs.matmul(td.f32, stages=3), M=256, K=64, N=320),
    "producer": lambda: text_of(
        programs.matmul(td.f32, stages=34, bulk=True, producer=True), M=256, K=512, N=320
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", GOLDEN)
def test_text(name, golden):
    golden(GOLDEN[name]())
