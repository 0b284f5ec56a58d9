"""Barriers of phases and copies of boxes for the CPU: what `shim.py` puts before a text that uses them."""

from __future__ import annotations

import ctypes

from tdsl.codegen.gpu.tensor_map_specs import TensorMapSpec
from tdsl.codegen.ir.loops import row_major
from tdsl.lang.types import BY_NAME

HEADER = r"""
#include <map>
#define __grid_constant__
struct CUtensorMap { char *base; int rank, size, swizzle; int64_t dims[5], steps[5]; int box[5]; };
struct Phase { int missing, arrivals; long bytes; unsigned ended; };
struct Tile { char *to; CUtensorMap map; void *phase; int at[5]; };
static map<void *, Phase> phases;  // of the block that runs
static vector<Tile> tiles;         // asked for, and not there yet
static long progress;
static int fault;                  // 3: an arrival too many, 4: barriers made ready twice or never
static void meet(int barrier, int threads) {
  static map<int, pair<int, long>> met;  // how many have come, and how often all have
  auto &own = met[barrier];
  long before = own.second;
  progress++;
  if (++own.first == threads) own = {0, before + 1};
  while (own.second == before) swapcontext(&fibers[current].state, &main_);
}
static void step(Phase &x) {
  progress++;
  if (x.missing < 0) fault = 3;
  if (x.missing == 0 && x.bytes == 0) { x.ended++; x.missing = x.arrivals; }
}
static Phase &phase_at(void *p) {
  if (!phases.count(p)) fault = 4;
  return phases[p];
}
static void land(const Tile &t) {
  int n[5] = {0}, total = 1;
  for (int d = 0; d < t.map.rank; d++) total *= t.map.box[d];
  for (int k = 0; k < total; k++) {
    bool inside = true;
    char *from = t.map.base;
    for (int d = 0, rest = k; d < t.map.rank; d++) {
      int64_t place = t.at[d] + rest % t.map.box[d];
      rest /= t.map.box[d];
      inside = inside && place >= 0 && place < t.map.dims[d];
      from += place * t.map.steps[d];
    }
    int to = k * t.map.size;
    if (t.map.swizzle) to ^= (to >> 7 & (t.map.swizzle / 16 - 1)) << 4;
    if (inside) memcpy(t.to + to, from, t.map.size);
    else memset(t.to + to, 0, t.map.size);
  }
  Phase &x = phase_at(t.phase);
  x.bytes -= (long)total * t.map.size;
  step(x);
}
"""

ON_CPU = {
    "CUtensorMap": "",
    "tdsl_shared_address": "",
    "tdsl_mbarrier_init": """
static void tdsl_mbarrier_init(void *p, int slots, unsigned arrivals) {
  for (int n = 0; n < slots; n++) {
    if (phases.count((char *)p + 8 * n)) fault = 4;
    phases[(char *)p + 8 * n] = {(int)arrivals, (int)arrivals, 0, 0};
  }
}
""",
    "tdsl_mbarrier_inval": """
static void tdsl_mbarrier_inval(void *p, int slots) {
  for (int n = 0; n < slots; n++) phases.erase((char *)p + 8 * n);
}
""",
    "tdsl_mbarrier_arrive": """
static void tdsl_mbarrier_arrive(void *p) {
  Phase &x = phase_at(p);
  x.missing--;
  step(x);
}
""",
    "tdsl_mbarrier_arrive_expect": """
static void tdsl_mbarrier_arrive_expect(void *p, unsigned bytes) {
  Phase &x = phase_at(p);
  x.missing--;
  x.bytes += bytes;
  step(x);
}
""",
    "tdsl_mbarrier_arrive_warp": """
// the same place in the memory of another block
static char *there(void *p, int rank) { return (char *)p + (rank - current / size_) * memory_; }
static void tdsl_mbarrier_arrive_warp(void *p, int blocks) {
  static map<pair<void *, int>, int> came;  // of each warp
  int &n = came[{p, current / 32}];
  if (++n % 32) return;
  for (int rank = 0; rank < blocks; rank++) {
    Phase &x = phase_at(blocks == 1 ? p : there(p, rank));
    x.missing--;
    step(x);
  }
}
""",
    "tdsl_setmaxnreg_dec": "template <int N> static void tdsl_setmaxnreg_dec() {}\n",
    "tdsl_setmaxnreg_inc": "template <int N> static void tdsl_setmaxnreg_inc() {}\n",
    "tdsl_cluster_barrier": """
static void tdsl_cluster_barrier() { meet(-1, fibers.size()); }
""",
    "tdsl_named_barrier": """
static void tdsl_named_barrier(int barrier, int threads) { meet(current / size_ * 16 + barrier, threads); }
""",
    "tdsl_mbarrier_wait": """
static void tdsl_mbarrier_wait(void *p, unsigned parity) {
  while (phase_at(p).ended % 2 == parity && !fault) {
    vector<Tile> left, due;
    for (Tile &t : tiles) (t.phase == p ? due : left).push_back(t);
    tiles = left;
    for (Tile &t : due) land(t);
    if (phase_at(p).ended % 2 == parity) swapcontext(&fibers[current].state, &main_);
  }
}
""",
    **{
        f"tdsl_tma_load_{n}d_multicast": f"""
template <int Blocks, class... I>
static void tdsl_tma_load_{n}d_multicast(void *to, unsigned long long map, void *p, I... at) {{
  for (int rank = 0; rank < Blocks; rank++)
    tiles.push_back({{there(to, rank), *(CUtensorMap *)map, there(p, rank), {{(int)at...}}}});
}}
"""
        for n in range(1, 6)
    },
    **{
        f"tdsl_tma_load_{n}d_hint": f"""
static void tdsl_tma_load_{n}d_hint(void *to, long long map, void *p,
                                    {"".join(f"int c{k}, " for k in range(n))}long long) {{
  tiles.push_back({{(char *)to, *(CUtensorMap *)map, p, {{{", ".join(f"c{k}" for k in range(n))}}}}});
}}
"""
        for n in range(1, 6)
    },
    **{
        f"tdsl_tma_load_{n}d": f"""
template <class... I> static void tdsl_tma_load_{n}d(void *to, unsigned long long map, void *p, I... at) {{
  tiles.push_back({{(char *)to, *(CUtensorMap *)map, p, {{(int)at...}}}});
}}
"""
        for n in range(1, 6)
    },
}

STATUS = {
    1: "some threads wait at a barrier, and others have ended",
    2: "threads wait for ever",
    3: "more threads come to a phase than it waits for",
    4: "barriers of phases are made ready twice, or never",
}


class Map(ctypes.Structure):
    """CUtensorMap of the header above."""

    _fields_ = (
        ("base", ctypes.c_void_p), ("rank", ctypes.c_int), ("size", ctypes.c_int),
        ("swizzle", ctypes.c_int),
        ("dims", ctypes.c_int64 * 5), ("steps", ctypes.c_int64 * 5), ("box", ctypes.c_int * 5),
    )  # fmt: skip


def tensor_map_for(tile: TensorMapSpec, array: int) -> Map:
    """The map of an array at an address."""
    tensor_map = Map(array, len(tile.shape), BY_NAME[tile.dtype].bytes, tile.swizzle)
    for n, axis in enumerate(reversed(range(len(tile.shape)))):
        tensor_map.dims[n], tensor_map.box[n] = tile.shape[axis], tile.box[axis]
        tensor_map.steps[n] = row_major(tile.shape)[axis] * tensor_map.size
    return tensor_map
