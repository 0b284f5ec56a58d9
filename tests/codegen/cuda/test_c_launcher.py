"""GPU kernels exported as a C file run from a C program, on a stand-in for a GPU, and check arguments."""

import importlib.util
import re
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import tdsl as td
from tdsl.codegen.ir.loops import BufferParam, ScalarParam
from tdsl.codegen.runtime.c_parameters import c_parameters
from tdsl.export import _dense
from tdsl.machine.gpu import is_ptx
from tdsl.pipeline import make_kernel
from tests.codegen.cuda.fake_driver import FakeDriver, image

pytest.importorskip("tvm", reason='pip install "tdsl[cuda]"')
from tests.codegen.cuda import shim  # imports tvm

pytestmark = pytest.mark.skipif(not shim.HAS_COMPILER, reason="g++ makes the kernels")

STRICT = ["-Wall", "-Wextra", "-Werror", "-pedantic"]
i, j, k = td.vars("i j k")


def cuda_headers() -> Path:
    """The folder of cuda.h, of the wheel of CUDA's run-time library."""
    spec = importlib.util.find_spec("nvidia.cu13")
    assert spec is not None
    return Path(next(iter(spec.submodule_search_locations)), "include")


def bound(s: td.Schedule, *funcs: td.Func) -> td.Schedule:
    for func in funcs:
        block, thread = s[func].split(i, 32)
        s[func].bind(block, "blockIdx.x").bind(thread, "threadIdx.x")
    return s


def chain() -> td.Compiled:
    """Two kernels with memory between them, results of two types, and arguments named like those of C."""
    a, n = td.Tensor("kernels", ("N",), td.bf16), td.Scalar("double", td.f32)
    g, f, count = td.Func("g"), td.Func("stream"), td.Func("N")
    g[i] = td.cast(a[i], td.f32) * n
    f[i] = g[i] + g[i + 1]
    count[i] = td.cast(f[i] > 0, td.i32)
    s = td.Schedule(f, count)
    s[g].compute_root()
    s[f].compute_root()
    return td.compile(bound(s, g, f, count), target="cuda:sm_80,sm_90a", dynamic="N")


def tiles() -> td.Compiled:
    """A product whose operands tensor maps fetch."""
    a, b, c = td.Tensor("a", (64, 128), td.f16), td.Tensor("b", (128, 64), td.f16), td.Func("c")
    c[i, j] = td.sum(td.cast(a[i, k], td.f32) * td.cast(b[k, j], td.f32), axis=k)
    s = td.Schedule(c)
    td.recipes.tensor_core_matmul(s[c], block=(64, 64, 64), warp=(64, 64), stages=4, warpgroups=True)
    return td.compile(s, target="cuda")


def checked() -> td.Compiled:
    x, f = td.Tensor("arguments", ("N",), td.i32), td.Func("launch")
    f[i] = td.require(x[i] >= 0, x[i], "negative")
    return td.compile(bound(td.Schedule(f), f), target="cuda", dynamic="N")


def exported(compiled: td.Compiled, folder: Path):
    """The files, with a library for this machine in place of each cubin, and PTX of the stand-in."""
    specialisation = _dense(compiled.signature, compiled.dynamic)
    launches = shim.TextExecutable(make_kernel(compiled.variant(specialisation))).launches
    shim.library_of(launches, folder)
    executable = compiled.executable(specialisation)
    for x in (executable, *executable.others):
        code = b"// PTX" if is_ptx(x.module.arch) else image(folder / "kernels.so")
        x.module = replace(x.module, code=code)
    return compiled.export_launcher(folder, name="kernel"), executable


def program(folder: Path, calls: str) -> subprocess.CompletedProcess:
    """The result of a C program that does `calls` between loading and unloading the kernels."""
    main = folder / "main.c"
    main.write_text(f"""#include "kernel.h"
#include <stdio.h>
const char *fake_log(void);
static CUdeviceptr array(long bytes) {{
  CUdeviceptr p = 0;
  cuMemAllocAsync(&p, bytes, 0);
  return p;
}}
static CUdeviceptr input(long bytes) {{
  CUdeviceptr p = array(bytes);
  if (fread((void *)p, 1, bytes, stdin) != (size_t)bytes) p = 0;
  return p;
}}
int main(void) {{
  kernel_kernels kernels;
  CUcontext context;
  cuInit(0);
  if (cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context)) return 90;
  CUresult status = kernel_load(&kernels);
  if (status) return 91;
{calls}
  if (kernel_unload(&kernels)) return 92;
  fputs(fake_log(), stderr);
  (void)array;
  (void)input;
  return (int)status;
}}
""")
    driver = FakeDriver(folder).path
    built = subprocess.run(
        ["gcc", "-std=c99", *STRICT, "-isystem", cuda_headers(), "-I", folder, main, folder / "kernel.c",
         driver, f"-Wl,-rpath,{folder}", "-o", folder / "main"],
        capture_output=True, text=True,
    )  # fmt: skip
    assert not built.returncode, built.stderr
    return folder / "main"


def call_of(compiled: td.Compiled, executable, given, results) -> tuple[str, bytes]:
    """C statements that call the function on arrays from stdin and write the results, and the stdin."""
    values = dict(zip([x.name for x in compiled.signature.inputs], given, strict=True))
    outputs = dict(zip([x.name for x in compiled.signature.outputs], results, strict=True))
    words, write, stdin = [], [], b""
    for p in c_parameters(executable.params):
        if isinstance(p, BufferParam) and not p.written:
            stdin += np.ascontiguousarray(values[p.name]).tobytes()
            words.append(f"input({values[p.name].nbytes})")
        elif isinstance(p, BufferParam):
            words.append(f"out{len(write)}")
            write.append(outputs[p.name].nbytes)
        else:
            words.append(str(values[p.name]) if isinstance(p, ScalarParam) else str(len(given[0])))
    arrays = "".join(f"  CUdeviceptr out{n} = array({size});\n" for n, size in enumerate(write))
    ending = "".join(f"  fwrite((void *)out{n}, 1, {size}, stdout);\n" for n, size in enumerate(write))
    # arguments in order, as C does not say which is read first
    read = "".join(f"  CUdeviceptr in{n} = {w};\n" for n, w in enumerate(words) if w.startswith("input"))
    words = [f"in{n}" if w.startswith("input") else w for n, w in enumerate(words)]
    return f"{read}{arrays}  status = kernel(&kernels, (CUstream)7, {', '.join(words)});\n{ending}", stdin


def check_results(compiled, given, results, folder) -> str:
    """What was launched, after the results of a C program were compared with the expected ones."""
    _, executable = exported(compiled, folder)
    calls, stdin = call_of(compiled, executable, given, results)
    done = subprocess.run([program(folder, calls)], input=stdin, capture_output=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == b"".join(y.tobytes() for y in results)
    return done.stderr.decode()


def test_kernels_with_open_sizes_run_from_a_c_program(tmp_path, rng):
    x = rng.integers(-9, 9, 100).astype(td.bf16.numpy)
    g = x.astype(np.float32) * np.float32(3)
    f = g[:-1] + g[1:]
    log = check_results(chain(), [x, 3.0], [f, (f > 0).astype(np.int32)], tmp_path)
    launches = [line for line in log.splitlines() if "grid" in line]
    assert len(launches) >= 2
    assert all("grid 4 1 1 block 32 1 1 shared 0 stream 7" in line for line in launches)
    assert "early" not in launches[0]
    assert log.endswith("unloaded\n")
    subprocess.run(  # a header of C++, too
        ["c++", "-std=c++17", *STRICT, "-isystem", cuda_headers(), "-fsyntax-only", "-x", "c++",
         tmp_path / "kernel.h"], check=True,
    )  # fmt: skip


def test_tensor_maps_are_encoded(tmp_path, rng):
    a, b = (rng.integers(-3, 4, shape).astype(np.float16) for shape in ((64, 128), (128, 64)))
    expected = a.astype(np.float32) @ b.astype(np.float32)
    log = check_results(tiles(), [a, b], [expected], tmp_path)
    assert "map of type 6, 64 x 128, 256 bytes apart" in log
    (shared,) = re.findall(r"attribute 8 = (\d+)", log)  # dynamic shared memory
    assert int(shared) > 48 << 10
    assert f"shared {shared} stream 7" in log


def test_wrong_arguments_and_failed_checks_are_told(tmp_path):
    exported(checked(), tmp_path)
    calls = """
  int good[] = {1, 2, 3, 4}, bad[] = {1, -2, 3, 4};
  CUdeviceptr x = array(64), y = array(64);
  if (kernel(&kernels, 0, x, -1, y) != CUDA_ERROR_INVALID_VALUE) return 1;
  if (kernel(&kernels, 0, 0, 4, y) != CUDA_ERROR_INVALID_VALUE) return 2;
  if (kernel(&kernels, 0, x + 4, 4, y) != CUDA_ERROR_INVALID_VALUE) return 3;
  if (kernel(&kernels, 0, 0, 0, 0) != CUDA_SUCCESS) return 4;
  cuMemcpyHtoDAsync(x, good, sizeof good, 0);
  if (kernel(&kernels, 0, x, 4, y) != CUDA_SUCCESS || ((int *)y)[3] != 4) return 5;
  cuMemcpyHtoDAsync(x, bad, sizeof bad, 0);
  if (kernel(&kernels, 0, x, 4, y) != CUDA_ERROR_ASSERT) return 6;
  extern int fake_live(void);
  if (fake_live() != 2) return 7; /* x and y: all other memory was freed */
  extern void fake_refuse(int);
  fake_refuse(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
  if (kernel(&kernels, 0, x, 4, y) != CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES || fake_live() != 2) return 8;
  extern void fake_capability(int);
  fake_capability(80);
  if (kernel_load(&kernels) != CUDA_ERROR_NO_BINARY_FOR_GPU) return 9;
"""
    done = subprocess.run([program(tmp_path, calls)], capture_output=True)
    assert done.returncode == 0


def test_the_code_of_the_nearest_architecture_is_loaded(tmp_path):
    exported(chain(), tmp_path)
    calls = """
  extern void fake_capability(int);
  int of_90 = kernels.code;
  const int capabilities[] = {80, 86, 120};
  for (int n = 0; n < 3; n++) {
    fake_capability(capabilities[n]);
    if (kernel_load(&kernels)) return 1;
    printf("%d ", kernels.code);
  }
  printf("%d", of_90);
"""
    done = subprocess.run([program(tmp_path, calls)], capture_output=True)
    assert done.stdout == b"1 1 2 0"  # sm_90a, sm_80 and PTX
    assert done.returncode == 0


def test_only_kernels_of_a_gpu_with_known_sizes_have_a_launcher(tmp_path):
    x, f = td.Tensor("x", ("N",), td.f32), td.Func("f")
    f[i] = x[i] * 2
    with pytest.raises(td.TargetError, match="programs for cpu have no launcher"):
        td.compile(f, dynamic="N").export_launcher(tmp_path)
    with pytest.raises(td.ShapeError, match="neither fixed nor dynamic: N"):
        td.compile(f, target="cuda").export_launcher(tmp_path)
    with pytest.raises(td.TargetError, match="export_launcher"):
        td.compile(f, target="cuda", dynamic="N").export(tmp_path)
