"""The passes over the loop IR, from a lowered schedule to what a backend compiles, in running order.

    simplify_loops    simplifies expressions under the ranges of their loops; drops decided tests, empty loops
    bound_loops       turns conditions around a loop's body into loop bounds
    reuse_memory      lets allocations share memory where their values are not needed at the same time
    cut_at_conflicts  cuts loops of vectors at a point whose element other points read
    rebase_loops      starts split loops at a first point that varies
    accumulate_lanes  gives each lane a partial result of an element that vectors update
    split_on_selects  splits a loop's body by ranges of its variable where a select chooses between arrays
    partition         partitions loops around vectorized ones: an interior without clipping, and its ends
    expand_padding    expands padding calls into index arithmetic
    unroll_clipped    unrolls those unrolled loops whose variable decides how vectors are clipped
    carry_values      passes the value stored by one iteration of a serial loop to the next in a register
    keep_in_registers evaluates what a loop does not change before it
    reduce_lanes      reduces vector lanes by a tree
    vectorize         replaces vectorized loops by vector code
    unroll            replaces the other unrolled loops by copies of their body
    simplify_loops    (again, for indices that are constant now)
    pad_rows          pads rows of allocated memory, so that last, partial vectors need no mask
    drop_unread       removes memory without readers, and unused lets
    hoist_allocs      hoists allocations out of loops; puts small ones in registers or on the stack

`gpu_passes.py` has those for GPUs. Each pass maps a kernel to an equivalent kernel that `verify` accepts.
"""

from tdsl.codegen.passes.accumulate_lanes import accumulate_lanes
from tdsl.codegen.passes.bound_loops import bound_loops
from tdsl.codegen.passes.carry_values import carry_values
from tdsl.codegen.passes.cut_at_conflicts import cut_at_conflicts
from tdsl.codegen.passes.drop_unread import drop_unread
from tdsl.codegen.passes.expand_padding import expand_padding
from tdsl.codegen.passes.hoist_allocs import hoist_allocs
from tdsl.codegen.passes.keep_in_registers import keep_in_registers
from tdsl.codegen.passes.pad_rows import pad_rows
from tdsl.codegen.passes.partition import partition
from tdsl.codegen.passes.rebase_loops import rebase_loops
from tdsl.codegen.passes.reduce_lanes import reduce_lanes
from tdsl.codegen.passes.reuse_memory import reuse_memory
from tdsl.codegen.passes.simplify_loops import simplify_loops
from tdsl.codegen.passes.split_on_selects import split_on_selects
from tdsl.codegen.passes.unroll import unroll
from tdsl.codegen.passes.unroll_clipped import unroll_clipped
from tdsl.codegen.passes.vectorize import vectorize

PASSES = (
    simplify_loops,
    bound_loops,
    reuse_memory,
    cut_at_conflicts,
    rebase_loops,
    accumulate_lanes,
    split_on_selects,
    partition,
    expand_padding,
    unroll_clipped,
    carry_values,
    keep_in_registers,
    reduce_lanes,
    vectorize,
    unroll,
    simplify_loops,
    pad_rows,
    drop_unread,
    hoist_allocs,
)

SCALAR_PASSES = (simplify_loops, bound_loops, expand_padding, drop_unread, hoist_allocs)
