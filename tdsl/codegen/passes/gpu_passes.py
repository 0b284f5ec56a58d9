"""The passes for GPUs, whose compiler unrolls the unrolled loops itself, in running order.

name_memory                  gives each allocation a unique name
mask_loads                   masks loads whose value is 0 beyond an edge, drops clamps of their indices
count_from_zero              makes loops start at 0, so that indices of registers are constant
approximate_weights          computes exponentials that tensor cores read rounded by powers of two
promote_accumulators         accumulates what a loop adds to global memory in memory of a block
hoist_calls                  hoists loop-invariant function calls out of unrolled loops
join_blocks                  runs consecutive statements of one block each in one kernel
serialize_thread_reductions  serialises thread reductions that shuffles cannot do
place_memory                 chooses heap, shared memory or registers for each allocation
reduce_threads               reduces partial results of threads by shuffles
pipeline_loops               prefetches tiles of pipelined loops, by asynchronous copies if there are any
join_grids                   runs kernels with a barrier of all blocks between them in one (grid_sync)
place_barriers               inserts barriers between conflicting accesses of the threads of a block
commit_mma_groups            commits asynchronous instructions as groups, waits where they are needed
"""

from tdsl.codegen.passes.approximate_weights import approximate_weights
from tdsl.codegen.passes.bound_loops import bound_loops
from tdsl.codegen.passes.commit_mma_groups import commit_mma_groups
from tdsl.codegen.passes.count_from_zero import count_from_zero
from tdsl.codegen.passes.drop_unread import drop_unread
from tdsl.codegen.passes.expand_padding import expand_padding
from tdsl.codegen.passes.hoist_calls import hoist_calls
from tdsl.codegen.passes.join_blocks import join_blocks
from tdsl.codegen.passes.join_grids import join_grids
from tdsl.codegen.passes.mask_loads import mask_loads
from tdsl.codegen.passes.name_memory import name_memory
from tdsl.codegen.passes.pipeline_loops import pipeline_loops
from tdsl.codegen.passes.place_barriers import place_barriers
from tdsl.codegen.passes.place_memory import place_memory
from tdsl.codegen.passes.promote_accumulators import promote_accumulators
from tdsl.codegen.passes.reduce_threads import reduce_threads
from tdsl.codegen.passes.serialize_thread_reductions import serialize_thread_reductions
from tdsl.codegen.passes.simplify_loops import simplify_loops
from tdsl.codegen.passes.vectorize import vectorize

CUDA_PASSES = (
    name_memory,
    mask_loads,
    simplify_loops,
    bound_loops,
    expand_padding,
    count_from_zero,
    simplify_loops,
    promote_accumulators,
    approximate_weights,
    hoist_calls,
    vectorize,
    drop_unread,
    join_blocks,
    serialize_thread_reductions,
    place_memory,
    reduce_threads,
    pipeline_loops,
    join_grids,
    place_barriers,
    commit_mma_groups,
)
