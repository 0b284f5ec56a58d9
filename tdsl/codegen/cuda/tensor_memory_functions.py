"""Source text of the CUDA device functions on the tensor memory of Blackwell (tcgen05).

`state` is in shared memory: for each group of 128 threads the mbarriers of its last commits, then the address
of the columns that the block has allocated. Thread n of a group accesses lane n. `count` are the commits of a
group so far; commit n arrives at its mbarrier n % COMMITS, whose phase n / COMMITS it completes.
"""

from __future__ import annotations

from tdsl.codegen.gpu.shared_memory import TENSOR_COMMITS, TENSOR_GROUPS
from tdsl.cost.block_memory import MBARRIER_BYTES

_PIECE = 16  # columns that an instruction moves
_MBARRIERS = TENSOR_GROUPS * TENSOR_COMMITS
_BEFORE, _AFTER = (
    f'  asm volatile("tcgen05.fence::{name}_thread_sync;" ::: "memory");\n' for name in ("before", "after")
)


def _move(name: str, *, stores: bool) -> str:
    """The function that moves N columns of 32-bit elements between registers and tensor memory."""
    values = ", ".join(f"%{n + stores}" for n in range(_PIECE))
    kind, operands = ("st", f"[%0], {{{values}}}") if stores else ("ld", f"{{{values}}}, [%{_PIECE}]")
    registers = ", ".join(f'"{"" if stores else "="}r"(r[{n}])' for n in range(_PIECE))
    given = f': : "r"(at + n), {registers}' if stores else f': {registers} : "r"(at + n)'
    together = f"{_BEFORE}  tdsl_named_barrier(1 + group, 128);\n{_AFTER}" if stores else ""
    return f"""
template <int N> __device__ __forceinline__
void tdsl_tensor_{name}(void *registers, unsigned int at{", int group" * stores}) {{
  at += threadIdx.x / 32 << 21;  // the lanes of the warp
  #pragma unroll
  for (int n = 0; n < N; n += {_PIECE}) {{
    unsigned int *r = (unsigned int *)registers + n;
    asm volatile("tcgen05.{kind}.sync.aligned.32x32b.x{_PIECE}.b32 {operands};" {given} : "memory");
  }}
  asm volatile("tcgen05.wait::{kind}.sync.aligned;" ::: "memory");
{together}}}
"""


TENSOR_MEMORY = {
    "tdsl_tensor_begin": f"""
template <int Columns> __device__ __forceinline__ unsigned int tdsl_tensor_begin(void *state) {{
  unsigned int place = tdsl_shared_address(state) + {MBARRIER_BYTES * _MBARRIERS}, address;
  int thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  if (thread < 32) {{
    asm volatile("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%0], %1;"
                 :: "r"(place), "n"(Columns) : "memory");
    asm volatile("tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;");
  }}
  if (thread == 0) tdsl_mbarrier_init(state, {_MBARRIERS}, 1);
{_BEFORE}  __syncthreads();
{_AFTER}  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(address) : "r"(place) : "memory");
  return address;
}}
""",
    "tdsl_tensor_end": f"""
template <int Columns> __device__ __forceinline__ void tdsl_tensor_end(unsigned int address) {{
{_BEFORE}  __syncthreads();
{_AFTER}  if (threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z) < 32)
    asm volatile("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %0, %1;" :: "r"(address), "n"(Columns));
}}
""",
    "tdsl_tensor_store": _move("store", stores=True),
    "tdsl_tensor_load": _move("load", stores=False),
    "tdsl_tensor_fence": f"""
__device__ __forceinline__ void tdsl_tensor_fence() {{
{_AFTER}}}
""",
    "tdsl_tensor_mbarrier": f"""
__device__ __forceinline__ void *tdsl_tensor_mbarrier(void *state, int group, unsigned int commit) {{
  return (unsigned long long *)state + {TENSOR_COMMITS} * group + commit % {TENSOR_COMMITS};
}}
""",
    "tdsl_tensor_commit": """
__device__ __forceinline__ void tdsl_tensor_commit(void *state, int group, unsigned int *count) {
  void *mbarrier = tdsl_tensor_mbarrier(state, group, (*count)++);
  if (threadIdx.x == 0)
    asm volatile("tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%0];"
                 :: "r"(tdsl_shared_address(mbarrier)) : "memory");
}
""",
    "tdsl_tensor_wait": f"""
template <int Pending> __device__ __forceinline__
void tdsl_tensor_wait(void *state, int group, const unsigned int *count) {{
  static_assert(Pending < {TENSOR_COMMITS}, "commits whose mbarriers are not used again");
  unsigned int last = *count - 1 - Pending;
  if (*count > Pending)
    tdsl_mbarrier_wait(tdsl_tensor_mbarrier(state, group, last), last / {TENSOR_COMMITS} & 1);
{_AFTER}}}
""",
}

CALLEES = {
    "tdsl_tensor_begin": ("tdsl_shared_address", "tdsl_mbarrier_init"),
    "tdsl_tensor_store": ("tdsl_named_barrier",),
    "tdsl_tensor_commit": ("tdsl_shared_address", "tdsl_tensor_mbarrier"),
    "tdsl_tensor_wait": ("tdsl_shared_address", "tdsl_mbarrier_wait", "tdsl_tensor_mbarrier"),
}  # fmt: skip
