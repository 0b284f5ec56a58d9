"""The passes over the loop IR, from a lowered schedule to what a backend compiles, in running order.

    simplify_loops   simplifies expressions under the ranges of their loops; drops decided tests, empty loops
    bound_loops      turns conditions around a loop's body into loop bounds
    split_on_selects      splits a loop's body by ranges of its variable where a select chooses between arrays
    partition        partitions loops around vectorized ones: an interior without clipping, and its ends
    expand_calls     expands padding calls into index arithmetic
    unroll_clipped   unrolls those unrolled loops whose variable decides how vectors are clipped
    carry_values     passes the value stored by one iteration of a serial loop to the next in a register
    reduce_lanes      reduces vector lanes by a tree
    vectorize        replaces vectorized loops by vector code
    unroll           replaces the other unrolled loops by copies of their body
    simplify_loops   (again, for indices that are constant now)
    pad_rows    pads rows of allocated memory, so that last, partial vectors need no mask
    drop_unread      removes memory without readers, and unused lets
    hoist_allocs     hoists allocations out of loops; puts small ones in registers or on the stack

Ten more passes are for GPUs, whose compiler unrolls the unrolled loops itself:

    name_memory      gives each allocation a unique name
    mask_loads       masks loads whose value is 0 beyond an edge, and drops the clamps of their indices
    count_from_zero  makes loops start at 0, so that indices of registers are constant
    hoist_calls      hoists loop-invariant function calls out of unrolled loops
    serialize_thread_reductions     serialises thread reductions that shuffles cannot do
    place_memory     chooses heap, shared memory or registers for each allocation
    reduce_threads    reduces partial results of threads by shuffles
    pipeline_loops   prefetches tiles of pipelined loops, with asynchronous copies where a GPU has them
    place_barriers   inserts barriers between conflicting accesses of the threads of a block
    commit_mma_groups   commits asynchronous instructions as groups, and waits for each where it is needed

Each pass maps a kernel to an equivalent kernel that `verify` accepts.
"""

from tdsl.codegen.passes.bound_loops import bound_loops
from tdsl.codegen.passes.carry_values import carry_values
from tdsl.codegen.passes.commit_mma_groups import commit_mma_groups
from tdsl.codegen.passes.count_from_zero import count_from_zero
from tdsl.codegen.passes.drop_unread import drop_unread
from tdsl.codegen.passes.expand_calls import expand_calls
from tdsl.codegen.passes.hoist_allocs import hoist_allocs
from tdsl.codegen.passes.hoist_calls import hoist_calls
from tdsl.codegen.passes.mask_loads import mask_loads
from tdsl.codegen.passes.name_memory import name_memory
from tdsl.codegen.passes.pad_rows import pad_rows
from tdsl.codegen.passes.partition import partition
from tdsl.codegen.passes.pipeline_loops import pipeline_loops
from tdsl.codegen.passes.place_barriers import place_barriers
from tdsl.codegen.passes.place_memory import place_memory
from tdsl.codegen.passes.reduce_lanes import reduce_lanes
from tdsl.codegen.passes.reduce_threads import reduce_threads
from tdsl.codegen.passes.serialize_thread_reductions import serialize_thread_reductions
from tdsl.codegen.passes.simplify_loops import simplify_loops
from tdsl.codegen.passes.split_on_selects import split_on_selects
from tdsl.codegen.passes.unroll import unroll
from tdsl.codegen.passes.unroll_clipped import unroll_clipped
from tdsl.codegen.passes.vectorize import vectorize

PASSES = (
    simplify_loops,
    bound_loops,
    split_on_selects,
    partition,
    expand_calls,
    unroll_clipped,
    carry_values,
    reduce_lanes,
    vectorize,
    unroll,
    simplify_loops,
    pad_rows,
    drop_unread,
    hoist_allocs,
)

SCALAR_PASSES = (simplify_loops, bound_loops, expand_calls, drop_unread, hoist_allocs)

CUDA_PASSES = (
    name_memory,
    mask_loads,
    simplify_loops,
    bound_loops,
    expand_calls,
    count_from_zero,
    simplify_loops,
    hoist_calls,
    vectorize,
    drop_unread,
    serialize_thread_reductions,
    place_memory,
    reduce_threads,
    pipeline_loops,
    place_barriers,
    commit_mma_groups,
)
