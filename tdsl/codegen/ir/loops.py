"""The nodes of the loop IR: typed statements between schedules and backends (Halide's Stmt, TVM's TIR).

    Kernel = name, params, body
    Stmt   = For | Let | Alloc | Store | If | Block | Check | Print | Prefetch | Invoke | InitBarriers
           | WarpSpecialize | Barrier | Shuffle | Commit | Wait | ArriveBarrier | WaitBarrier | CopyTile
    Expr   = lang.expr without Access, Read, Reduce and Range, and without the pad_* calls

Indices are i64 and multi-dimensional: a buffer has extents and strides, and the backend computes addresses.
`passes/vectorize.py` removes vectorized loops, `passes/unroll.py` unrolled ones; from then on vectors are
`Ramp`, `Broadcast` and masked `Load` and `Store`.
`show.py` prints the IR, `verify.py` checks it, `python/` interprets it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tdsl.core.node import Node, frozen, node
from tdsl.lang.expr import ZERO, Const, Expr
from tdsl.lang.types import DType
from tdsl.machine.instructions.layout import Layout
from tdsl.schedule.state import AUTO as AUTO  # loop kinds and scopes are defined there
from tdsl.schedule.state import AXES as AXES
from tdsl.schedule.state import BLOCKS as BLOCKS
from tdsl.schedule.state import CLUSTER as CLUSTER
from tdsl.schedule.state import CONCURRENT as CONCURRENT
from tdsl.schedule.state import COOPERATIVE as COOPERATIVE
from tdsl.schedule.state import FRAGMENT as FRAGMENT
from tdsl.schedule.state import GROUP as GROUP
from tdsl.schedule.state import HEAP as HEAP
from tdsl.schedule.state import LANES as LANES
from tdsl.schedule.state import PARALLEL as PARALLEL
from tdsl.schedule.state import PIPELINED as PIPELINED
from tdsl.schedule.state import REGISTER as REGISTER
from tdsl.schedule.state import SERIAL as SERIAL
from tdsl.schedule.state import SHARED as SHARED
from tdsl.schedule.state import STACK as STACK
from tdsl.schedule.state import THREADS as THREADS
from tdsl.schedule.state import UNROLLED as UNROLLED
from tdsl.schedule.state import VECTORIZED as VECTORIZED

WARP = 32  # threads of a warp
LARGEST_FRAME = 1 << 20  # bytes of allocations on the stack of a function; threads have few MiB


@node
class For(Node):
    """A loop: runs `body` for name = lo, lo + 1, ..., lo + extent - 1; no iteration when extent <= 0.

    A loop bound to a GPU axis (blockIdx.x, threadIdx.x, ...) runs iteration n in block or thread n of the
    axis; nested in another loop of the axis, it replaces the binding of that loop. Statements in no loop of
    an axis are run by block or thread 0 of the axis.

    A pipelined loop exists only until `passes/pipeline_loops.py`, which allocates `stages` buffers for each
    of its tiles (multiple buffering). With `producer_warps`, warps of their own issue the copies; with
    `overlap_mma`, the asynchronous MMAs of an iteration that read tiles only are issued one iteration early.

    `merges` are pairs (result, lanes) of buffers: the body combines an element of each result with the
    element of lanes whose last index is the loop variable. The iterations then may run in any order or as a
    tree reduction, on vector lanes or threads.
    """

    name: str
    lo: Expr
    extent: Expr
    kind: str
    body: Stmt
    merges: tuple[tuple[str, str], ...] = ()
    stages: int = 0
    producer_warps: bool = False
    overlap_mma: bool = False


@node
class Let(Node):
    """Binds `name` to the scalar `value` in `body`."""

    name: str
    value: Expr
    body: Stmt


@node
class Alloc(Node):
    """Allocates a buffer for `body`, not initialised. `strides` are in elements; row-major when empty.

    `swizzle` > 0: the 16-byte chunks of each `swizzle` bytes of a row of shared memory are permuted
    (`shared_memory.py`). Only code generation sees the permutation; the indices of the IR do not change.

    `extents` are at least 0 and do not depend on names bound in `body`. `scope` is, on a CPU: heap, stack,
    or register (small, with indices that are constant once loops are unrolled); on a GPU: heap (global
    memory, allocated outside of all loops), shared (by the threads of a block), register (of each thread), or
    fragment (in the registers of several threads, with the layout that the instructions that use it declare,
    `fragments.py`, or else `layout`). Scope group (the threads along threadIdx.x) exists only until
    `passes/place_memory.py`.
    """

    name: str
    dtype: DType
    extents: tuple[Expr, ...]
    scope: str
    body: Stmt
    strides: tuple[int, ...] = ()
    swizzle: int = 0
    layout: Layout | None = None


@node
class Store(Node):
    """buffer[index] = value, for the lanes where the mask is true. A vector index stores all its lanes.

    `atomic` is "" or the operator (add, min, max, and, or, xor, mul) of an atomic buffer[index] op= value.
    `streaming` requests a non-temporal store; `fast` allows reassociation of float arithmetic in the value.

    An `asynchronous` store (cp.async) copies the value of a `Load` from global to shared memory, 0 where the
    mask of the load is false. The thread does not wait; it may access the element after a `Wait` for the
    copy, other threads after a barrier that follows the `Wait`.
    """

    buffer: str
    index: tuple[Expr, ...]
    value: Expr
    mask: Expr | None = None
    atomic: str = ""
    streaming: bool = False
    fast: bool = False
    asynchronous: bool = False


@node
class If(Node):
    """Runs `then` if a scalar (before vectorization: any) condition is true, else `orelse`."""

    cond: Expr
    then: Stmt
    orelse: Stmt | None = None


@node
class Block(Node):
    """A sequence of statements."""

    body: tuple[Stmt, ...]


@node
class Check(Node):
    """Stops the kernel with the `site`-th message of the kernel unless `cond` is true.

    `values` are the scalars that the message shows.
    """

    cond: Expr
    site: int
    values: tuple[Expr, ...]


@node
class Print(Node):
    """Prints scalars with the `site`-th message of the kernel if `cond` is true."""

    cond: Expr
    site: int
    values: tuple[Expr, ...]


@node
class Prefetch(Node):
    """Prefetches the cache line of an element; an index out of bounds is allowed."""

    buffer: str
    index: tuple[Expr, ...]


@node
class Operand(Node):
    """A tile passed to an instruction: the index of its first element, and the `axes` that the tile spans."""

    buffer: str
    index: tuple[Expr, ...]
    axes: tuple[int, ...]


@node
class Invoke(Node):
    """A call of an instruction (`schedule.instructions.instruction`) on tiles of buffers.

    An instruction with fragments is executed collectively by the threads of a group, those along threadIdx.x.
    """

    instruction: str
    operands: tuple[Operand, ...]


@node
class Barrier(Node):
    """All threads of a block wait for each other (__syncthreads); their earlier writes are then visible.

    With `group`, only the threads of a group, those along threadIdx.x, wait for each other; with `grid`, the
    threads of all blocks, whose earlier writes to global memory are then visible.
    """

    group: bool = False
    grid: bool = False


@node
class Shuffle(Node):
    """buffer[()] = `value` of the thread whose threadIdx.x differs in the bit `distance` (__shfl_xor_sync).

    `buffer` is in registers. Groups of `width` threads with consecutive threadIdx.x execute it together;
    `width` is a power of 2, at most WARP, and divides the number of threads on threadIdx.x.
    """

    buffer: str
    value: Expr
    distance: int
    width: int


@node
class Commit(Node):
    """Commits the asynchronous stores of a thread since its last `Commit` as a group (cp.async.commit_group).

    With `mma`, the asynchronous instructions since the last such `Commit` (wgmma.commit_group).
    """

    mma: bool = False


@node
class Wait(Node):
    """Waits until at most the last `pending` groups of the thread (with `mma`, of MMAs) are pending."""

    pending: int
    mma: bool = False


@node
class InitBarriers(Node):
    """Allocates `slots` mbarriers in shared memory for `body` and initialises them; each runs through phases.

    A phase completes after `arrivals` threads have arrived and the bytes that they expect are copied. All
    threads of the block execute this statement together, with those of the `blocks` of its cluster that use
    the mbarriers.
    """

    name: str
    slots: int
    arrivals: int
    body: Stmt
    blocks: int = 1


@node
class WarpSpecialize(Node):
    """Warp specialisation: two statements that disjoint sets of threads of a block run at the same time.

    The threads whose number on `axis` is `first` or more run the first statement, the others the second one.
    """

    parts: tuple[Stmt, ...]
    axis: str
    first: int


@node
class ArriveBarrier(Node):
    """Arrives at an mbarrier, for its current phase, and adds `bytes` to the bytes to copy in the phase.

    With `per_warp`, all threads of a warp execute the statement and count as one arrival. With `blocks` > 1,
    it arrives at the mbarriers of all `blocks` blocks of the cluster.
    """

    mbarriers: str
    slot: Expr
    bytes: int = 0
    per_warp: bool = False
    blocks: int = 1


@node
class WaitBarrier(Node):
    """Waits until the phase of this parity of an mbarrier has completed; the first phase has parity 0."""

    mbarriers: str
    slot: Expr
    parity: Expr


@node
class CopyTile(Node):
    """Issues an asynchronous TMA copy of a box of global to shared memory, 0 beyond the edges of the array.

    The box begins at `start` of `source`, the tile at `index` of `buffer`, whose last axes it fills. The
    thread does not wait; threads may access the elements after a `WaitBarrier` of the phase that the mbarrier
    was in. With `blocks` > 1 the tile is multicast to the shared memory of all blocks of the cluster.
    """

    buffer: str
    index: tuple[Expr, ...]
    source: str
    start: tuple[Expr, ...]
    extents: tuple[int, ...]
    mbarriers: str = ""
    slot: Expr = ZERO
    blocks: int = 1


# synchronisation of the threads of a block, and asynchronous copies
Synchronization = Barrier | Shuffle | Commit | Wait | ArriveBarrier | WaitBarrier | CopyTile

Stmt = (
    For | Let | Alloc | Store | If | Block | Check | Print | Prefetch | Invoke | InitBarriers | WarpSpecialize
    | Synchronization
)  # fmt: skip


def as_stmt(statements: Sequence[Stmt]) -> Stmt:
    """One statement that runs the given ones in order."""
    return statements[0] if len(statements) == 1 else Block(tuple(statements))


@frozen
class BufferParam:
    """An array argument. `extents` are constants or sizes.

    `strides` has for each axis the stride in elements if it is known when the kernel is compiled, else
    None: then the stride is an argument of the call, in bytes.
    `written` is true for outputs. The array begins at a multiple of `align` bytes. `shape` has the extents of
    the argument, which is dense, if some of its dimensions are one in `extents`.
    """

    name: str
    dtype: DType
    extents: tuple[Expr, ...]
    strides: tuple[int | None, ...]
    written: bool
    align: int = 1
    shape: tuple[Expr, ...] = ()

    @property
    def is_dense(self) -> bool:
        """True if the array is known to be in row-major order without gaps."""
        shape = tuple(int(e.value) for e in self.extents if isinstance(e, Const))
        return len(shape) == len(self.extents) and self.strides == row_major(shape)

    @property
    def argument(self) -> BufferParam:
        """The parameter with the dimensions that the argument has."""
        if not self.shape:
            return self
        strides = row_major(tuple(int(e.value) for e in self.shape if isinstance(e, Const)))
        return replace(self, extents=self.shape, strides=strides, shape=())


@frozen
class ScalarParam:
    """A scalar argument (a `Param` of the body)."""

    name: str
    dtype: DType


@frozen
class SizeParam:
    """A named size, an i64 argument of each call (a `Size` of the body)."""

    name: str


Argument = BufferParam | ScalarParam | SizeParam


@frozen
class Message:
    """The text of a `Check` or `Print` site: `parts` with the values between them; `where` is file:line."""

    kind: str
    parts: tuple[str, ...]
    where: str


@frozen
class Kernel:
    """A function of buffers, scalars and sizes, which a backend compiles.

    `fast_math`: every store is `fast`, so the kernel may change the floating-point mode of the processor.
    `resident` has pairs (buffer, n): the GPU kernel that writes the buffer is compiled for at least n
    resident blocks on a multiprocessor (__launch_bounds__). `policies` has triples (buffer, source, policy):
    the GPU kernel that writes the buffer loads the source with a cache policy. `grid_syncs` are buffers that
    the GPU kernel before writes, too, after a barrier of its blocks.
    """

    name: str
    params: tuple[Argument, ...]
    body: Stmt
    messages: tuple[Message, ...] = ()
    fast_math: bool = False
    instructions: tuple[object, ...] = ()
    resident: tuple[tuple[str, int], ...] = ()
    policies: tuple[tuple[str, str, str], ...] = ()
    grid_syncs: tuple[str, ...] = ()

    @property
    def arguments(self) -> tuple[Argument, ...]:
        """The parameters with the dimensions that the arguments have."""
        return tuple(p.argument if isinstance(p, BufferParam) else p for p in self.params)


def row_major(extents: tuple[int, ...]) -> tuple[int, ...]:
    """Strides in elements of a dense array.

    >>> row_major((2, 3, 4))
    (12, 4, 1)
    """
    strides, step = [], 1
    for extent in reversed(extents):
        strides.append(step)
        step *= max(extent, 1)
    return tuple(reversed(strides))
