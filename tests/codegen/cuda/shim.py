"""Emitted CUDA text run on the CPU: g++ compiles it behind a header that has a fiber for each thread.

Clusters of blocks run one after another, the threads of each in turns from barrier to barrier.
"""

from __future__ import annotations

import _ctypes
import atexit
import ctypes
import functools
import re
import shutil
import subprocess
import tempfile
import weakref
from collections.abc import Callable, Sequence
from math import prod
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

import tdsl as td
from tdsl.codegen.cuda.device_functions import FUNCTIONS
from tdsl.codegen.cuda.size_formulas import argument_name
from tdsl.codegen.cuda.text import DEVICE_CODE, cuda_text
from tdsl.codegen.cuda.tir_types import c_type
from tdsl.codegen.gpu.launches import Launch, Launches, launches_of
from tdsl.codegen.ir.loops import BufferParam, Kernel, ScalarParam, SizeParam
from tdsl.codegen.runtime.call import Entry
from tdsl.codegen.runtime.signature import Specialisation, extent
from tdsl.pipeline import make_kernel
from tdsl.schedule.state import CACHE_POLICIES
from tests.codegen.cuda import shim_tensor_cores, shim_tiles
from tests.codegen.cuda.shim_tensor_cores import without_assembly
from tests.codegen.cuda.shim_tiles import STATUS, tensor_map_for

HAS_COMPILER = shutil.which("g++") is not None

HEADER = r"""
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <map>
#include <string>
#include <vector>
#include <ucontext.h>
using namespace std;
#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __restrict__
#define uint unsigned int
#define uchar unsigned char
#define ushort unsigned short
#define CUDART_INF INFINITY
#define CUDART_INF_F INFINITY
#define CUDART_NAN NAN
#define CUDART_NAN_F NAN
typedef _Float16 half;
struct nv_bfloat16 {
  uint16_t bits;
  nv_bfloat16() = default;
  nv_bfloat16(float x) {
    uint32_t u;
    memcpy(&u, &x, 4);
    bits = x != x ? 0x7fc0 : (uint16_t)((u + 0x7fff + ((u >> 16) & 1)) >> 16);
  }
  operator float() const { uint32_t u = (uint32_t)bits << 16; float x; memcpy(&x, &u, 4); return x; }
};
static inline nv_bfloat16 __float2bfloat16_rn(float x) { return nv_bfloat16(x); }
static inline half __float2half_rn(float x) { return (half)x; }
static inline half __hmul(half x, half y) { return x * y; }
static inline half __ushort_as_half(unsigned short x) { half y; memcpy(&y, &x, 2); return y; }
static inline unsigned short __half_as_ushort(half x) { unsigned short y; memcpy(&y, &x, 2); return y; }
template <class T, int N> struct alignas(sizeof(T) * N) Vec { T x[N]; };
typedef Vec<float, 2> float2; typedef Vec<float, 4> float4; typedef Vec<double, 2> double2;
typedef Vec<int, 2> int2; typedef Vec<int, 4> int4;
typedef Vec<unsigned, 2> uint2; typedef Vec<unsigned, 4> uint4;
typedef Vec<short, 2> short2; typedef Vec<short, 4> short4; typedef Vec<unsigned short, 2> ushort2;
typedef Vec<unsigned short, 4> ushort4; typedef Vec<char, 2> char2; typedef Vec<char, 4> char4;
typedef Vec<unsigned char, 2> uchar2; typedef Vec<unsigned char, 4> uchar4; typedef Vec<half, 2> half2;
typedef Vec<half, 4> half4;
typedef Vec<nv_bfloat16, 2> nv_bfloat162; typedef Vec<nv_bfloat16, 4> nv_bfloat164;
typedef Vec<long long, 2> longlong2;
typedef Vec<unsigned long long, 2> ulonglong2; typedef Vec<long long, 4> longlong4;
typedef Vec<double, 4> double4; typedef Vec<unsigned long long, 4> ulonglong4;
static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
static inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
static inline int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }
static inline unsigned __funnelshift_r(unsigned lo, unsigned hi, unsigned n) {
  return (unsigned)((((uint64_t)hi << 32) | lo) >> (n & 31));
}
static inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
template <class T> static inline unsigned packed(T x, T y) {
  T both[2] = {x, y};
  unsigned r;
  memcpy(&r, both, 4);
  return r;
}
static inline unsigned __pack_half2(half x, half y) { return packed(x, y); }
static inline unsigned __pack_nv_bfloat162(nv_bfloat16 x, nv_bfloat16 y) { return packed(x, y); }
static inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
static inline int __clzll(long long x) { return x ? __builtin_clzll(x) : 64; }
static inline int __ffsll(long long x) { return __builtin_ffsll(x); }
template <class T> static inline T atomicAdd(T *p, T v) { T o = *p; *p = o + v; return o; }
template <class T> static inline T atomicMin(T *p, T v) { T o = *p; *p = v < o ? v : o; return o; }
template <class T> static inline T atomicMax(T *p, T v) { T o = *p; *p = v > o ? v : o; return o; }
template <class T> static inline T atomicAnd(T *p, T v) { T o = *p; *p = o & v; return o; }
template <class T> static inline T atomicOr(T *p, T v) { T o = *p; *p = o | v; return o; }
template <class T> static inline T atomicXor(T *p, T v) { T o = *p; *p = o ^ v; return o; }
template <class T> static inline T atomicCAS(T *p, T old, T x) {
  T o = *p;
  if (o == old) *p = x;
  return o;
}
struct Pointer { void *p; template <class T> operator T *() const { return (T *)p; } };
struct Number { unsigned x, y, z; };
static Number thread_, block_, threads_;
#define threadIdx thread_
#define blockIdx block_
#define blockDim threads_
static const long memory_ = 256 * 1024;
alignas(1024) static char dynamic_[8 * memory_];
static int size_;  // of a block
// waits: 0 runs, 1 at a barrier, 2 is done, 3 at a shuffle, 4 at a barrier of all blocks
// `given` is what a thread gives at a shuffle, and then what its partner has given
struct Fiber { ucontext_t state; vector<char> stack; int waits, distance; unsigned mask; uint64_t given; };
static vector<Fiber> fibers;
static ucontext_t main_;
static int current;
static char *memory_of_block() { return dynamic_ + current / size_ * memory_; }
static map<string, long> named_;  // where memory with a name begins, in each block
static long used_;
static char *memory_named(const char *name, size_t bytes) {
  if (!named_.count(name)) {
    named_[name] = used_;
    used_ += (bytes + 1023) / 1024 * 1024;
  }
  return memory_of_block() + named_[name];
}
static void (*body)();
static void enter() { body(); fibers[current].waits = 2; swapcontext(&fibers[current].state, &main_); }
struct Copy { void *to; const void *from; int bytes; bool holds; };
struct Copies { vector<Copy> open; vector<vector<Copy>> groups; };  // of a thread, made at its waits
static vector<Copies> copies;
static void __syncthreads() { fibers[current].waits = 1; swapcontext(&fibers[current].state, &main_); }
template <class T> static T __shfl_xor_sync(unsigned mask, T x, int distance) {
  Fiber &own = fibers[current];
  memcpy(&own.given, &x, sizeof(T));
  own.mask = mask;
  own.distance = distance;
  own.waits = 3;
  swapcontext(&own.state, &main_);
  memcpy(&x, &own.given, sizeof(T));
  return x;
}
// lets the threads of warps go on of which all that a shuffle names have come to it
static bool shuffle() {
  bool any = false;
  for (int n = 0; n < (int)fibers.size(); n++) {
    if (fibers[n].waits != 3) continue;
    unsigned mask = fibers[n].mask;
    int warp = n & ~31, come = 0, named = 0;
    for (int lane = 0; lane < 32 && warp + lane < (int)fibers.size(); lane++)
      if (mask >> lane & 1) {
        const Fiber &f = fibers[warp + lane];
        named++;
        come += f.waits == 3 && f.mask == mask;
      }
    if (come < named) continue;
    any = true;
    uint64_t given[32] = {};
    int lanes = min(32, (int)fibers.size() - warp);
    for (int lane = 0; lane < lanes; lane++) given[lane] = fibers[warp + lane].given;
    for (int lane = 0; lane < lanes; lane++)
      if (mask >> lane & 1) {
        Fiber &f = fibers[warp + lane];
        f.waits = 0;
        f.given = given[lane ^ f.distance];
      }
  }
  return any;
}
"""
HEADER += r"""
// lets the threads of blocks go on that have all come to a barrier
static bool met(int size) {
  bool any = false;
  for (int block = 0; block < (int)fibers.size(); block += size) {
    int come = 0;
    for (int n = block; n < block + size; n++) come += fibers[n].waits == 1;
    if (come < size) continue;
    any = true;
    for (int n = block; n < block + size; n++) fibers[n].waits = 0;
  }
  return any;
}
"""
HEADER += shim_tiles.HEADER
HEADER += r"""
// 0, or one of STATUS
static int run(const unsigned *shape, void (*kernel)(), int cluster) {
  struct AtEnd { ~AtEnd() { vector<Fiber>().swap(fibers); } } at_end;  // stacks are 64 KiB a thread
  body = kernel;
  threads_ = {shape[3], shape[4], shape[5]};
  int size = shape[3] * shape[4] * shape[5], count = size * cluster;
  size_ = size;
  named_.clear();
  used_ = 0;
  fibers.resize(count);
  copies.assign(count, {});
  for (unsigned first = 0; first < shape[0] * shape[1] * shape[2]; first += cluster) {
    phases.clear();
    tiles.clear();
    long before = -1;
    for (auto &f : fibers) {
      f.stack.resize(1 << 16);
      f.waits = 0;
      getcontext(&f.state);
      f.state.uc_stack.ss_sp = f.stack.data();
      f.state.uc_stack.ss_size = f.stack.size();
      f.state.uc_link = &main_;
      makecontext(&f.state, enter, 0);
    }
    for (;;) {
      int waiting = 0, done = 0;
      for (current = 0; current < count; current++) {
        unsigned m = first + current / size, n = current % size;
        block_ = {m % shape[0], m / shape[0] % shape[1], m / shape[0] / shape[1]};
        thread_ = {n % threads_.x, n / threads_.x % threads_.y, n / threads_.x / threads_.y};
        if (fibers[current].waits == 0) swapcontext(&main_, &fibers[current].state);
        waiting += fibers[current].waits == 1;
        done += fibers[current].waits == 2;
      }
      if (fault) { int status = fault; fault = 0; return status; }
      if (done == count) break;
      if (shuffle()) continue;
      if (met(size)) continue;
      int arrived = 0;
      for (auto &f : fibers) arrived += f.waits == 4;
      if (arrived == count) {
        for (auto &f : fibers) f.waits = 0;
        continue;
      }
      if (waiting + done != count) {  // some wait for the end of a phase
        if (before == progress + waiting + done) return 2;
        before = progress + waiting + done;
        continue;
      }
      return 1;
    }
  }
  return 0;
}
"""

# Device functions that speak PTX, for the CPU. Copies are made as late as the text allows.
ON_CPU = {
    "tdsl_exp2_approx": """
static float tdsl_exp2_approx(float x) { return exp2f(x); }
""",
    "tdsl_cp_async": """
template <int N> static void tdsl_cp_async(void *to, const void *from, bool holds = true) {
  copies[current].open.push_back({to, from, N, holds});
}
""",
    **{f"tdsl_{x}": f"static long long tdsl_{x}() {{ return 0; }}\n" for x in CACHE_POLICIES},
    **{
        f"tdsl_load_{x}": f"""
template <int N> static void tdsl_load_{x}(void *to, const void *from, long long) {{ memcpy(to, from, N); }}
template <class T> static T tdsl_load_{x}(const T *from, long long) {{ return *from; }}
"""
        for x in CACHE_POLICIES
    },
    "tdsl_store_streaming": """
template <int N> static void tdsl_store_streaming(void *to, const void *from) { memcpy(to, from, N); }
template <class T, class U> static void tdsl_store_streaming(T *to, U value) { *to = (T)value; }
""",
    "tdsl_cp_async_hint": """
template <int N> static void tdsl_cp_async_hint(void *to, const void *from, long long, bool holds = true) {
  copies[current].open.push_back({to, from, N, holds});
}
""",
    "tdsl_grid_barrier": """
static void tdsl_grid_barrier(unsigned *) {
  fibers[current].waits = 4;
  swapcontext(&fibers[current].state, &main_);
}
""",
    "tdsl_grid_wait": "static void tdsl_grid_wait() {}\n",
    "tdsl_grid_launch_dependents": "static void tdsl_grid_launch_dependents() {}\n",
    "tdsl_cp_async_commit": """
static void tdsl_cp_async_commit() {
  Copies &own = copies[current];
  own.groups.push_back(own.open);
  own.open.clear();
}
""",
    "tdsl_cp_async_wait": """
template <int N> static void tdsl_cp_async_wait() {
  auto &groups = copies[current].groups;
  while (groups.size() > N) {
    for (Copy &c : groups[0])
      if (c.holds) memcpy(c.to, c.from, c.bytes); else memset(c.to, 0, c.bytes);
    groups.erase(groups.begin());
  }
}
""",
}


def _together(launch: Launch) -> int:
    """The blocks whose threads run in turns: those of a cluster, or all that wait for each other."""
    return prod(launch.grid) if launch.cooperative else launch.cluster


class TextExecutable:
    """A kernel as its CUDA text, on the CPU."""

    fast = None

    def __init__(self, kernel: Kernel) -> None:
        self.kernel, self.params = kernel, kernel.params
        self.launches = launches_of(kernel)

    def run(self, arguments: Sequence[Any]) -> None:
        dense = [np.ascontiguousarray(x) if isinstance(x, np.ndarray) else x for x in arguments]
        with tempfile.TemporaryDirectory() as folder:
            run_text(self.launches, dense, Path(folder))
        for p, array, given in zip(self.params, dense, arguments, strict=True):
            if isinstance(p, BufferParam) and p.written and array is not given:
                given[...] = array


def text_of(compiled: td.Compiled) -> Entry:
    """What is compiled for "cuda" as a callable that runs its text."""

    def build(specialisation: Specialisation) -> TextExecutable:
        return TextExecutable(make_kernel(compiled.variant(specialisation)))

    return Entry(compiled.signature, compiled.dynamic, build)


def run_text(
    launches: Launches, arguments: Sequence[Any], folder: Path,
    change: Callable[[str], str] = lambda text: text,
) -> ctypes.CDLL:  # fmt: skip
    """Compile the text of launches, changed, and run it on arrays in the order of the kernel's arguments."""
    library = library_of(launches, folder, change)
    values: dict[str, Any] = {}
    params = launches.kernel.params
    sizes = {p.name: int(x) for p, x in zip(params, arguments, strict=True) if isinstance(p, SizeParam)}
    for p, value in zip(params, arguments, strict=True):
        if isinstance(p, BufferParam):
            assert value.flags.c_contiguous
            values[p.name] = ctypes.c_void_p(value.ctypes.data)
        else:
            kind = p.dtype.numpy if isinstance(p, ScalarParam) else np.int64
            values[argument_name(p)] = np.asarray(value, kind).ctypes
    memory = {
        t.name: np.zeros(prod(extent(e, sizes) for e in t.extents), t.dtype.numpy)
        for t in launches.temporaries
    }
    values |= {name: ctypes.c_void_p(array.ctypes.data) for name, array in memory.items()}
    for launch in launches.launches:
        given = [values[argument_name(p)] for p in launch.params]
        pointers = [ctypes.c_void_p(v.data) if not isinstance(v, ctypes.c_void_p) else v for v in given]
        maps = [tensor_map_for(tile, values[tile.array].value) for tile in launch.maps]
        addresses = [*(p.value for p in pointers), *map(ctypes.addressof, maps)]
        slots = (ctypes.c_void_p * max(len(addresses), 1))(*addresses)
        grid = [n if isinstance(n, int) else extent(n, sizes) for n in launch.grid]
        shape = (ctypes.c_uint * 6)(*grid, *launch.block)
        status = getattr(library, f"launch_{launch.name}")(shape, slots)
        assert status == 0, f"{launch.name}: {STATUS[status]}"
    return library


COMPILER = ("g++", "-O1", "-std=c++17", "-fPIC", "-w", "-ffp-contract=off", "-fno-gnu-unique")


@functools.cache
def _headers() -> Path:
    """The headers of the library of C++ and of the emulation, compiled once: longer work than a kernel."""
    folder = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, folder)
    path = Path(folder, "headers.h")
    path.write_text(HEADER)
    subprocess.run([*COMPILER, "-x", "c++-header", path, "-o", f"{path}.gch"], check=True)
    return path


def library_of(launches: Launches, folder: Path, change: Callable[[str], str] = str) -> ctypes.CDLL:
    """The text of launches, compiled for the CPU as `kernels.so` in a folder."""
    with patch.dict(FUNCTIONS, ON_CPU | shim_tiles.ON_CPU | shim_tensor_cores.ON_CPU):
        code = change(cuda_text(launches, "sm_90a").partition(DEVICE_CODE)[2])
    code = re.sub(
        r"extern __shared__(?: __align__\(\d+\)| alignas\(\d+\))* ([\w ]+) (\w+)\[\];",
        r"\1* \2 = (\1*)memory_of_block();",
        code,
    )
    named = r"__shared__ alignas\(\d+\) ([\w ]+) (\w+)\[(\d+)\];"
    code = re.sub(named, r'\1 *\2 = (\1 *)memory_named("\2", sizeof(\1) * \3);', code)
    entries = "".join(map(_entry, launches.launches))
    code, emulated = without_assembly(code)
    (folder / "kernels.cpp").write_text(f"{emulated}\n{code}\n{entries}")
    path = str(folder / "kernels.so")
    source = str(folder / "kernels.cpp")
    subprocess.run([*COMPILER, "-shared", "-include", _headers(), "-o", path, source], check=True)
    library = ctypes.CDLL(path)
    weakref.finalize(library, _ctypes.dlclose, library._handle)  # ctypes keeps them for ever
    return library


def _entry(launch: Launch) -> str:
    """A function that runs one kernel; arguments are pointers to arrays, or to scalars."""
    args = []
    for n, p in enumerate(launch.params):
        if isinstance(p, BufferParam):
            args.append(f"Pointer{{arguments_[{n}]}}")
        else:
            kind = c_type(p.dtype) if isinstance(p, ScalarParam) else "long long"
            args.append(f"*({kind} *)arguments_[{n}]")
    first = len(launch.params)
    args += [f"*(CUtensorMap *)arguments_[{first + n}]" for n in range(len(launch.maps))]
    name, count = launch.name, max(len(args), 1)
    slots = "".join(
        f"  slots[{n}] = {'*(void **)' if isinstance(p, BufferParam) else ''}values[{n}];\n"
        for n, p in enumerate((*launch.params, *launch.maps))
    )
    return (
        f"static void **arguments_{name};\n"
        f"static void body_{name}() {{ void **arguments_ = arguments_{name}; {name}({', '.join(args)}); }}\n"
        f'extern "C" int launch_{name}(const unsigned *shape, void **arguments) {{\n'
        f"  arguments_{name} = arguments; return run(shape, body_{name}, {_together(launch)});\n}}\n"
        f'extern "C" const int count_{name}[] = {{{len(launch.params)}, {len(launch.maps)}}};\n'
        # the same with addresses of all values, as the driver gets them
        f'extern "C" int driver_{name}(const unsigned *shape, void **values) {{\n'
        f"  void *slots[{count}];\n{slots}  return launch_{name}(shape, slots);\n}}\n"
    )
