"""From the loops of a schedule to the loops of a backend, in running order.

    simplify_loops   expressions under the ranges of their loops; loops and tests that these decide go
    bound_loops      conditions around a loop's body become its bounds
    cut_choices      a body for each part of a loop that reads another array
    partition        loops around vectors, cut into a steady part without clipping and its ends
    expand_calls     padding indices as arithmetic
    unroll_clipped   copies for unrolled loops in which the ends of vectors differ by iteration
    carry_values     what a serial loop reads of its last iteration in a register
    merge_lanes      lanes of a reduction combined by halves
    vectorize        vector code for vectorized loops
    unroll           copies for the other unrolled loops
    simplify_loops   (again, for what is constant now)
    whole_vectors    masks of last, partial vectors in memory of the kernel's own go
    drop_unread      memory without readers and unused lets go
    hoist_allocs     memory outside hot loops, in registers or on the stack where it is small

For a GPU there are ten more, and loops stay to be unrolled by its compiler:

    name_memory      a name of its own for each memory
    mask_loads       what is 0 beyond an edge is loaded under a mask, without limits of its index
    count_from_zero  loops that start at 0, so that indices of registers are constant
    hoist_calls      calls that do not differ between iterations of unrolled loops go before these
    order_merges     partial results of threads are combined in order where shuffles cannot
    place_memory     memory on the heap, shared by a block, or in registers
    merge_threads    partial results of other threads are combined by shuffles
    pipeline_loops   tiles of pipelined loops copied ahead, asynchronously where a GPU can
    place_barriers   what threads of a block pass to each other is parted by barriers
    group_products   threads wait for asynchronous instructions where they have to

Each is a function from kernel to kernel with the same meaning; each gives what `verify` accepts.
"""

from tdsl.codegen.passes.bound_loops import bound_loops
from tdsl.codegen.passes.carry_values import carry_values
from tdsl.codegen.passes.count_from_zero import count_from_zero
from tdsl.codegen.passes.cut_choices import cut_choices
from tdsl.codegen.passes.drop_unread import drop_unread
from tdsl.codegen.passes.expand_calls import expand_calls
from tdsl.codegen.passes.group_products import group_products
from tdsl.codegen.passes.hoist_allocs import hoist_allocs
from tdsl.codegen.passes.hoist_calls import hoist_calls
from tdsl.codegen.passes.mask_loads import mask_loads
from tdsl.codegen.passes.merge_lanes import merge_lanes
from tdsl.codegen.passes.merge_threads import merge_threads
from tdsl.codegen.passes.name_memory import name_memory
from tdsl.codegen.passes.order_merges import order_merges
from tdsl.codegen.passes.partition import partition
from tdsl.codegen.passes.pipeline_loops import pipeline_loops
from tdsl.codegen.passes.place_barriers import place_barriers
from tdsl.codegen.passes.place_memory import place_memory
from tdsl.codegen.passes.simplify_loops import simplify_loops
from tdsl.codegen.passes.unroll import unroll
from tdsl.codegen.passes.unroll_clipped import unroll_clipped
from tdsl.codegen.passes.vectorize import vectorize
from tdsl.codegen.passes.whole_vectors import whole_vectors

PASSES = (
    simplify_loops,
    bound_loops,
    cut_choices,
    partition,
    expand_calls,
    unroll_clipped,
    carry_values,
    merge_lanes,
    vectorize,
    unroll,
    simplify_loops,
    whole_vectors,
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
    order_merges,
    place_memory,
    merge_threads,
    pipeline_loops,
    place_barriers,
    group_products,
)
