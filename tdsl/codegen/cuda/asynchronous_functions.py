"""Source text of the CUDA device functions for asynchronous copies and products, and what waits for them.

cp.async, TMA, mbarriers, wgmma, clusters, the registers of warps, and kernels that overlap.
"""

from __future__ import annotations

from tdsl.machine.gpu import FEATURES

# copies go through registers where they cannot be asynchronous; they are then complete at once
_HAS_ASYNC = f"__CUDA_ARCH__ >= {FEATURES['cp.async']}0"
_COPY_TILE = "cp.async.bulk.tensor.{rank}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"


def _tma_load(rank: int, *, multicast: bool = False, hint: bool = False) -> str:
    """The function that copies a box of `rank` axes by TMA, to one block or to the blocks of a cluster."""
    name = f"tdsl_tma_load_{rank}d" + "_multicast" * multicast + "_hint" * hint
    places = ", ".join(f"%{n + 3}" for n in range(rank))
    corner = ", ".join(f"int c{n}" for n in range(rank))
    values = ", ".join(f'"r"(c{n})' for n in range(rank))
    copy, mask, given = _COPY_TILE.format(rank=rank), "", ""
    if multicast:
        copy += ".multicast::cluster"
        mask, given = f", %{rank + 3}", ', "h"((unsigned short)((1 << Blocks) - 1))'
    if hint:
        copy += ".L2::cache_hint"
        corner += ", unsigned long long policy"
        mask += f", %{rank + 3 + multicast}"
        given += ', "l"(policy)'
    return f"""
{"template <int Blocks> " * multicast}__device__ __forceinline__
void {name}(void *to, unsigned long long map, void *mbarrier, {corner}) {{
  asm volatile("{copy} [%0], [%1, {{{places}}}], [%2]{mask};"
               :: "r"(tdsl_shared_address(to)), "l"(map), "r"(tdsl_shared_address(mbarrier)), {values}{given}
               : "memory");
}}
"""


_RANKS = range(1, 6)  # of the arrays that TMA copies

ASYNCHRONOUS = {
    "tdsl_cp_async": f"""
template <int N>
__device__ __forceinline__ void tdsl_cp_async(void *to, const void *from, bool holds = true) {{
#if {_HAS_ASYNC}
  unsigned int at = (unsigned int)__cvta_generic_to_shared(to);
  if constexpr (N == 16)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" :: "r"(at), "l"(from), "r"(holds ? 16 : 0)
                 : "memory");
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" :: "r"(at), "l"(from), "n"(N),
                 "r"(holds ? N : 0) : "memory");
#else
  struct alignas(N) Piece {{ char bytes[N]; }} none = {{}};
  *(Piece *)to = holds ? *(const Piece *)from : none;
#endif
}}
""",
    "tdsl_cp_async_hint": """
template <int N> __device__ __forceinline__
void tdsl_cp_async_hint(void *to, const void *from, unsigned long long policy, bool holds = true) {
  unsigned int at = (unsigned int)__cvta_generic_to_shared(to);
  if constexpr (N == 16)
    asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2, %3;"
                 :: "r"(at), "l"(from), "r"(holds ? 16 : 0), "l"(policy) : "memory");
  else
    asm volatile("cp.async.ca.shared.global.L2::cache_hint [%0], [%1], %2, %3, %4;"
                 :: "r"(at), "l"(from), "n"(N), "r"(holds ? N : 0), "l"(policy) : "memory");
}
""",
    "tdsl_cp_async_commit": f"""
__device__ __forceinline__ void tdsl_cp_async_commit() {{
#if {_HAS_ASYNC}
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}}
""",
    "tdsl_cp_async_wait": f"""
template <int N> __device__ __forceinline__ void tdsl_cp_async_wait() {{
#if {_HAS_ASYNC}
  asm volatile("cp.async.wait_group %0;" :: "n"(N) : "memory");
#endif
}}
""",
    "CUtensorMap": """
#ifdef __CUDACC_RTC__
struct __align__(64) CUtensorMap { unsigned long long opaque[16]; };
#else
#include <cuda.h>
#endif
""",
    "tdsl_shared_address": """
__device__ __forceinline__ unsigned int tdsl_shared_address(const void *p) {
  return (unsigned int)__cvta_generic_to_shared(p);
}
""",
    "tdsl_mbarrier_init": """
__device__ __forceinline__ void tdsl_mbarrier_init(void *p, int slots, unsigned int arrivals) {
  for (int n = 0; n < slots; n++)
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" :: "r"(tdsl_shared_address(p) + 8 * n), "r"(arrivals)
                 : "memory");
  asm volatile("fence.mbarrier_init.release.cluster; fence.proxy.async;" ::: "memory");
}
""",
    "tdsl_mbarrier_inval": """
__device__ __forceinline__ void tdsl_mbarrier_inval(void *p, int slots) {
  for (int n = 0; n < slots; n++)
    asm volatile("mbarrier.inval.shared.b64 [%0];" :: "r"(tdsl_shared_address(p) + 8 * n) : "memory");
}
""",
    "tdsl_mbarrier_arrive": """
__device__ __forceinline__ void tdsl_mbarrier_arrive(void *p) {
  asm volatile("mbarrier.arrive.shared.b64 _, [%0];" :: "r"(tdsl_shared_address(p)) : "memory");
}
""",
    "tdsl_mbarrier_arrive_expect": """
__device__ __forceinline__ void tdsl_mbarrier_arrive_expect(void *p, unsigned int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" :: "r"(tdsl_shared_address(p)), "r"(bytes)
               : "memory");
}
""",
    "tdsl_mbarrier_arrive_warp": """
__device__ __forceinline__ void tdsl_mbarrier_arrive_warp(void *p, int blocks) {
  unsigned int lane;
  asm("mov.u32 %0, %%laneid;" : "=r"(lane));
  __syncwarp();
  if (lane >= blocks) return;
  if (blocks == 1)
    asm volatile("mbarrier.arrive.shared.b64 _, [%0];" :: "r"(tdsl_shared_address(p)) : "memory");
  else
    asm volatile("{ .reg .b32 there; mapa.shared::cluster.u32 there, %0, %1; "
                 "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [there]; }"
                 :: "r"(tdsl_shared_address(p)), "r"(lane) : "memory");
}
""",
    **{
        f"tdsl_setmaxnreg_{change}": f"""
template <int N> __device__ __forceinline__ void tdsl_setmaxnreg_{change}() {{
  asm volatile("setmaxnreg.{change}.sync.aligned.u32 %0;" :: "n"(N));
}}
"""
        for change in ("dec", "inc")
    },
    # the first block adds so much that, once all have arrived, the highest bit differs and all others are 0
    "tdsl_grid_barrier": """
__device__ __forceinline__ void tdsl_grid_barrier(unsigned int *arrived) {
  __syncthreads();
  if (threadIdx.x == 0 && threadIdx.y == 0 && threadIdx.z == 0) {
    unsigned int blocks = gridDim.x * gridDim.y * gridDim.z;
    bool first = blockIdx.x == 0 && blockIdx.y == 0 && blockIdx.z == 0;
    __threadfence();
    unsigned int before = atomicAdd(arrived, first ? 0x80000000u - (blocks - 1) : 1u);
    while (!((before ^ *(volatile unsigned int *)arrived) >> 31)) {}
    __threadfence();
  }
  __syncthreads();
}
""",
    "tdsl_grid_wait": """
__device__ __forceinline__ void tdsl_grid_wait() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
""",
    "tdsl_grid_launch_dependents": """
__device__ __forceinline__ void tdsl_grid_launch_dependents() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
""",
    "tdsl_cluster_barrier": """
__device__ __forceinline__ void tdsl_cluster_barrier() {
  asm volatile("barrier.cluster.arrive.release; barrier.cluster.wait.acquire;" ::: "memory");
}
""",
    "tdsl_named_barrier": """
__device__ __forceinline__ void tdsl_named_barrier(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" :: "r"(barrier), "r"(threads) : "memory");
}
""",
    "tdsl_mbarrier_wait": """
__device__ __forceinline__ void tdsl_mbarrier_wait(void *p, unsigned int parity) {
  unsigned int done = 0;
  while (!done)
    asm volatile("{ .reg .pred ended; mbarrier.try_wait.parity.shared.b64 ended, [%1], %2; "
                 "selp.u32 %0, 1, 0, ended; }"
                 : "=r"(done) : "r"(tdsl_shared_address(p)), "r"(parity) : "memory");
}
""",
    **{f"tdsl_tma_load_{n}d": _tma_load(n) for n in _RANKS},
    **{f"tdsl_tma_load_{n}d_multicast": _tma_load(n, multicast=True) for n in _RANKS},
    **{f"tdsl_tma_load_{n}d_hint": _tma_load(n, hint=True) for n in _RANKS},
    **{f"tdsl_tma_load_{n}d_multicast_hint": _tma_load(n, multicast=True, hint=True) for n in _RANKS},
    "tdsl_wgmma_descriptor": """
__device__ __forceinline__
unsigned long long tdsl_wgmma_descriptor(const void *p, int panels, int rows, int kind) {
  unsigned long long at = ((unsigned)__cvta_generic_to_shared(p) & 0x3ffff) >> 4;
  return at | (unsigned long long)(panels >> 4) << 16 | (unsigned long long)(rows >> 4) << 32
         | (unsigned long long)kind << 62;
}
""",
    "tdsl_fence_proxy_async": """
__device__ __forceinline__ void tdsl_fence_proxy_async() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
""",
    "tdsl_wgmma_fence": """
__device__ __forceinline__ void tdsl_wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
""",
    "tdsl_wgmma_commit": """
__device__ __forceinline__ void tdsl_wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
""",
    "tdsl_wgmma_wait": """
template <int N> __device__ __forceinline__ void tdsl_wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(N) : "memory");
}
""",
}

ASYNCHRONOUS_CALLEES = {
    **{
        f"tdsl_mbarrier_{x}": ("tdsl_shared_address",)
        for x in ("init", "inval", "arrive", "arrive_expect", "arrive_warp", "wait")
    },
    **{
        f"tdsl_tma_load_{n}d{kind}": ("tdsl_shared_address", "CUtensorMap")
        for n in _RANKS
        for kind in ("", "_multicast", "_hint", "_multicast_hint")
    },
}  # fmt: skip
