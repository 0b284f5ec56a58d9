"""Instructions of tensor cores on the CPU, as NVIDIA's manual of PTX describes their registers.

The first thread of a warp does the work of all 32, through pointers into their registers.
"""

from __future__ import annotations

import re

from tdsl.codegen.cuda.tensor_memory_functions import TENSOR_MEMORY
from tdsl.machine.instructions.instruction import INSTRUCTIONS

TOGETHER = r"""
#include <functional>
struct Given { void *out; const void *x, *y; const unsigned char *u, *v; };
static Given given_[1024];
static void wait_for_warp() { __shfl_xor_sync(~0u, 0, 0); }
template <class Work> static void together(void *out, const void *x, const void *y, Work work,
    const unsigned char *u = nullptr, const unsigned char *v = nullptr) {
  given_[current] = {out, x, y, u, v};
  wait_for_warp();
  if (current % 32 == 0) work(given_ + current);
  wait_for_warp();
}
// element n of the 32-bit register r that a lane has
template <class T> static const T &in_register(const void *registers, int r, int n) {
  return ((const T *)registers)[r * (4 / (int)sizeof(T)) + n];
}
// a float of 8 bits: E of them are the exponent
template <int E, int Bias> struct Byte {
  unsigned char bits;
  operator float() const {
    int fraction = bits & ((1 << (7 - E)) - 1), exponent = bits >> (7 - E) & ((1 << E) - 1);
    bool special = E == 4 ? (bits & 0x7f) == 0x7f : exponent == 31;
    float part = ldexpf(fraction, E - 7) + (exponent > 0);
    float x = ldexpf(part, max(exponent, 1) - Bias);
    if (special) x = E == 4 || fraction ? NAN : INFINITY;
    return bits & 0x80 ? -x : x;
  }
};
typedef Byte<4, 7> f8e4m3;
typedef Byte<5, 15> f8e5m2;
template <class Acc, class A, class B> static void mma_sync(Acc *acc, const A *a, const B *b) {
  together(acc, a, b, [](Given *lanes) {
    const int near = 4 / (int)sizeof(A), half = 4 * near;
    for (int row = 0; row < 16; row++)
      for (int column = 0; column < 8; column++) {
        Acc sum = ((Acc *)lanes[row % 8 * 4 + column / 2].out)[row / 8 * 2 + column % 2];
        for (int k = 0; k < 2 * half; k++) {
          int lane = k % half / near;
          const A &x = in_register<A>(lanes[row % 8 * 4 + lane].x, row / 8 + k / half * 2, k % near);
          const B &y = in_register<B>(lanes[column * 4 + lane].y, k / half, k % near);
          sum += (Acc)x * (Acc)y;
        }
        ((Acc *)lanes[row % 8 * 4 + column / 2].out)[row / 8 * 2 + column % 2] = sum;
      }
  });
}
// scales of rows: from the first two lanes of each four; of columns: from the first one
template <class A, class B>
static void mma_scaled(float *acc, const A *a, const B *b, const unsigned char *sa, const unsigned char *sb) {
  together(acc, a, b, [](Given *lanes) {
    for (int row = 0; row < 16; row++)
      for (int column = 0; column < 8; column++) {
        float sum = 0, &to = ((float *)lanes[row % 8 * 4 + column / 2].out)[row / 8 * 2 + column % 2];
        for (int k = 0; k < 32; k++) {
          int lane = k % 16 / 4;
          const A &x = in_register<A>(lanes[row % 8 * 4 + lane].x, row / 8 + k / 16 * 2, k % 4);
          const B &y = in_register<B>(lanes[column * 4 + lane].y, k / 16, k % 4);
          sum += (float)x * (float)y;
        }
        to += ldexpf(sum, *lanes[row % 8 * 4 + row / 8].u - 127 + *lanes[column * 4].v - 127);
      }
  }, sa, sb);
}
// matrices of 8 rows of 16 bytes, to whose rows 8 lanes each point
static int most_ways = 0;  // how many rows of a matrix have been in one group of banks
extern "C" int bank_ways() { return most_ways; }
static void ldmatrix(void *out, const void *row, int count, bool trans) {
  together(out, row, row, [=](Given *lanes) {
    for (int m = 0; m < count; m++) {
      int ways[8] = {};
      for (int r = 0; r < 8; r++) {
        int &own = ways[(uintptr_t)lanes[m * 8 + r].x / 16 % 8];
        most_ways = max(most_ways, ++own);
      }
    }
    for (int lane = 0; lane < 32; lane++)
      for (int m = 0; m < count; m++)
        for (int e = 0; e < 2; e++) {
          int r = trans ? lane % 4 * 2 + e : lane / 4, c = trans ? lane / 4 : lane % 4 * 2 + e;
          ((uint16_t *)lanes[lane].out)[m * 2 + e] = ((const uint16_t *)lanes[m * 8 + r].x)[c];
        }
  });
}
static void stmatrix(void *row, const void *registers) {
  together(row, registers, row, [](Given *lanes) {
    for (int m = 0; m < 4; m++) {
      int ways[8] = {};
      for (int r = 0; r < 8; r++) {
        int &own = ways[(uintptr_t)lanes[m * 8 + r].out / 16 % 8];
        most_ways = max(most_ways, ++own);
      }
    }
    for (int lane = 0; lane < 32; lane++)
      for (int m = 0; m < 4; m++)
        memcpy((uint32_t *)lanes[m * 8 + lane / 4].out + lane % 4, (const uint32_t *)lanes[lane].x + m, 4);
  });
}
// a matrix in shared memory: its first element, bytes between panels and between 8 rows, the swizzle
struct Matrix { const char *first; int panels, rows, kind; };
static Matrix matrices_[1024][256];
static int made_[1024];
static unsigned long long tdsl_wgmma_descriptor(const void *p, int panels, int rows, int kind) {
  int n = made_[current]++ % 256;
  matrices_[current][n] = {(const char *)p, panels, rows, kind};
  return (unsigned long long)current << 8 | n;
}
// the element in a row of neighbours and a column of them, as the hardware finds it from the address
template <class T> static T element(unsigned long long matrix, int row, int column) {
  const Matrix &m = matrices_[matrix >> 8][matrix & 255];
  int width = m.kind == 1 ? 128 : m.kind == 2 ? 64 : 32, at = column * (int)sizeof(T);
  uintptr_t p = (uintptr_t)m.first + at / width * m.panels + row / 8 * m.rows + row % 8 * width + at % width;
  p ^= (p >> 7) % (width / 16) << 4;
  return *(const T *)p;
}
// what each thread has begun, made when it waits
struct Products { vector<function<void()>> open; vector<vector<function<void()>>> groups; };
static Products products_[1024];
static void tdsl_wgmma_commit() {
  Products &own = products_[current];
  own.groups.push_back(own.open);
  own.open.clear();
}
template <int N> static void tdsl_wgmma_wait() {
  auto &groups = products_[current].groups;
  while (groups.size() > N) {
    for (auto &make : groups[0]) make();
    groups.erase(groups.begin());
  }
}
template <class Acc, class T> struct Product {
  Acc *acc;
  unsigned long long a, b;
  const T *registers;
  int columns;
  bool km, kn;
  void begin() const {
    Product own = *this;
    products_[current].open.push_back([own] { own.run(); });
  }
  void run() const {
    Product own = *this;
    together(acc, registers, nullptr, [own](Given *lanes) {
      const int near = 4 / (int)sizeof(T), half = 4 * near, first = current / 32 % 4 * 16;
      for (int row = 0; row < 16; row++)
        for (int column = 0; column < own.columns; column++) {
          Given &to = lanes[row % 8 * 4 + column % 8 / 2];
          Acc &sum = ((Acc *)to.out)[column / 8 * 4 + row / 8 * 2 + column % 2];
          for (int k = 0; k < 2 * half; k++) {
            const void *held = lanes[row % 8 * 4 + k % half / near].x;
            T x = own.registers ? in_register<T>(held, row / 8 + k / half * 2, k % near)
                  : own.km ? element<T>(own.a, k, first + row) : element<T>(own.a, first + row, k);
            T y = own.kn ? element<T>(own.b, k, column) : element<T>(own.b, column, k);
            sum += (Acc)x * (Acc)y;
          }
        }
    });
  }
};
// tensor memory: 128 lanes of 512 columns for each block; products run when the threads of a group wait
static uint32_t tensor_[8][512][128];
static unsigned own_thread() { return current % size_ % 128; }
static vector<function<void()>> tensor_products_[64];  // of a group of a block
static vector<function<void()>> &tensor_products(int group) {
  return tensor_products_[current / size_ * 8 + group];
}
template <int Columns> static unsigned tdsl_tensor_begin(void *) { __syncthreads(); return 0; }
template <int Columns> static void tdsl_tensor_end(unsigned) { __syncthreads(); }
template <int N> static void tdsl_tensor_store(void *registers, unsigned at, int group) {
  for (int n = 0; n < N; n++) tensor_[current / size_][at + n][own_thread()] = ((uint32_t *)registers)[n];
  meet(current / size_ * 16 + 1 + group, 128);
}
template <int N> static void tdsl_tensor_load(void *registers, unsigned at) {
  for (int n = 0; n < N; n++) ((uint32_t *)registers)[n] = tensor_[current / size_][at + n][own_thread()];
}
static void tdsl_tensor_commit(void *, int, unsigned *count) { ++*count; }
template <int Pending> static void tdsl_tensor_wait(void *, int group, const unsigned *) {
  if (own_thread() == 0) {
    auto &products = tensor_products(group);
    for (auto &run : products) run();
    products.clear();
  }
  meet(current / size_ * 16 + 1 + group, 128);
}
template <class Acc, class T> struct TensorProduct {
  unsigned acc;
  unsigned long long a, b;
  int columns;
  bool km, kn;
  void begin() const {
    TensorProduct own = *this;
    int group = threadIdx.y + blockDim.y * threadIdx.z;
    if (own_thread() == 0) tensor_products(group).push_back([own] { own.run(); });
  }
  void run() const {
    auto &memory = tensor_[current / size_];
    for (int row = 0; row < 128; row++)
      for (int column = 0; column < columns; column++)
        for (int k = 0; k < 32 / (int)sizeof(T); k++) {
          T x = km ? element<T>(a, k, row) : element<T>(a, row, k);
          T y = kn ? element<T>(b, k, column) : element<T>(b, column, k);
          Acc &sum = (Acc &)memory[acc + column][row];
          sum += (Acc)x * (Acc)y;
        }
  }
};
"""

# Device functions that speak PTX, for the CPU.
ON_CPU = {
    "tdsl_wgmma_descriptor": "",
    "tdsl_wgmma_commit": "",
    "tdsl_wgmma_wait": "",
    **{
        name: f"static void {name}() {{}}\n"
        for name in ("tdsl_fence_proxy_async", "tdsl_wgmma_fence", "tdsl_tensor_fence")
    },
    **{name: "" for name in TENSOR_MEMORY if name != "tdsl_tensor_fence"},
}


_TYPES = {
    "f16": "half", "bf16": "nv_bfloat16", "tf32": "float", "u8": "unsigned char",
    "s8": "signed char", "e4m3": "f8e4m3", "e5m2": "f8e5m2",  # of warpgroups
    "i8": "signed char", "f8e4m3": "f8e4m3", "f8e5m2": "f8e5m2",  # of warps
}  # fmt: skip


def without_assembly(code: str) -> tuple[str, str]:
    """A text with its instructions of tensor cores emulated, and what that needs before it."""
    used = [i for i in INSTRUCTIONS.values() if i.cuda and i.cuda in code]
    for i in used:
        head, _, _ = i.cuda.partition("{")
        code = code.replace(i.cuda, f"{head}{{ {_body(i.cuda, i.name)} }}\n")
    return code, TOGETHER if used else ""


def _body(text: str, name: str) -> str:
    if "block_scale" in text:
        a, b = (_TYPES[x] for x in name.split("_")[3:5])
        return f"mma_scaled(acc, (const {a} *)a, (const {b} *)b, sa, sb);"
    if "mma.sync" in text:
        a, b = (_TYPES[x] for x in name.split("_")[2:4])
        return f"mma_sync(acc, (const {a} *)a, (const {b} *)b);"
    match = re.search(r"wgmma_m64n(\d+)k\d+_\w+_([mkr]+)_([nk]+)\(([\w ]+)\*acc", text)
    if match:
        columns, a, b, total = match.groups()
        t = _TYPES[name.split("_")[2]]
        operands = f"0, b, (const {t} *)a" if a == "rk" else "a, b, nullptr"
        flags = f"{str(a == 'km').lower()}, {str(b == 'kn').lower()}"
        return f"Product<{total.strip()}, {t}>{{acc, {operands}, {columns}, {flags}}}.begin();"
    match = re.search(r"tcgen05_m128n(\d+)k\d+_(\w+?)_([mk]+)_([nk]+)\(", text)
    if match:
        columns, kind, a, b = match.groups()
        total = "int" if kind in ("s8", "u8") else "float"
        flags = f"{str(a == 'km').lower()}, {str(b == 'kn').lower()}"
        return f"TensorProduct<{total}, {_TYPES[kind]}>{{acc, a, b, {columns}, {flags}}}.begin();"
    match = re.search(r"bulk_store_m32n(\d+)_", text)
    if match:
        return f"memcpy(tile, staged, {match[1]} * sizeof(*tile));"
    if "stmatrix.sync" in text:
        return "stmatrix(tile, fragment);"
    match = re.search(r"ldmatrix\.sync\.aligned\.m8n8\.x(\d)(\.trans)?", text)
    assert match, f"the instruction {name} has no emulation"
    return f"ldmatrix(fragment, tile, {match[1]}, {'true' if match[2] else 'false'});"
