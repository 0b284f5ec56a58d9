"""The loop IR: the one language between schedules and backends.

    Kernel = name, params, body
    Stmt   = For | Let | Alloc | Store | If | Block | Check | Print | Prefetch | Invoke | Phases
           | Beside | Barrier | Shuffle | Commit | Wait | Arrive | Await | CopyTile
    Expr   = lang.expr without Access, Read, Reduce and Range; the pad_* calls are gone, too

Indices are i64 and multi-dimensional: a buffer has extents and strides, and the backend makes addresses.
A vectorized loop exists only until `passes/vectorize.py`, an unrolled one until `passes/unroll.py`; after
them vectors are `Ramp`, `Broadcast` and masked `Load` and `Store`.
`show.py` prints it, `verify.py` checks it, `python/` runs it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tdsl.core.node import Node, node
from tdsl.lang.expr import ZERO, Expr
from tdsl.lang.types import DType
from tdsl.schedule.instructions.layout import Layout
from tdsl.schedule.nest import AUTO as AUTO  # kinds of loops and memory have their names from there
from tdsl.schedule.nest import AXES as AXES
from tdsl.schedule.nest import BLOCKS as BLOCKS
from tdsl.schedule.nest import CLUSTER as CLUSTER
from tdsl.schedule.nest import CONCURRENT as CONCURRENT
from tdsl.schedule.nest import FRAGMENT as FRAGMENT
from tdsl.schedule.nest import GROUP as GROUP
from tdsl.schedule.nest import HEAP as HEAP
from tdsl.schedule.nest import LANES as LANES
from tdsl.schedule.nest import PARALLEL as PARALLEL
from tdsl.schedule.nest import PIPELINED as PIPELINED
from tdsl.schedule.nest import REGISTER as REGISTER
from tdsl.schedule.nest import SERIAL as SERIAL
from tdsl.schedule.nest import SHARED as SHARED
from tdsl.schedule.nest import STACK as STACK
from tdsl.schedule.nest import THREADS as THREADS
from tdsl.schedule.nest import TOGETHER as TOGETHER
from tdsl.schedule.nest import UNROLLED as UNROLLED
from tdsl.schedule.nest import VECTORIZED as VECTORIZED

WARP = 32  # threads of a GPU that run together


@node
class For(Node):
    """`body` for name = lo, lo + 1, ..., lo + extent - 1; not at all when extent <= 0.

    Of a loop on an axis of a GPU each block or thread runs the iteration that has its number; inside of
    another loop of that axis, it takes the other's place. What no loop of an axis is around is run by the
    number 0 of that axis.

    A pipelined loop exists only until `passes/pipeline_loops.py`, which makes `stages` of its tiles; with
    `apart`, threads of their own ask for them, and with `early` products of tiles alone begin an iteration
    early.

    Where there are `merges`, pairs of buffers, the body combines an element of each first one with that of
    the second one whose last index is the loop's variable; the iterations may run in any order and by halves,
    on vector lanes or on threads.
    """

    name: str
    lo: Expr
    extent: Expr
    kind: str
    body: Stmt
    merges: tuple[tuple[str, str], ...] = ()
    stages: int = 0
    apart: bool = False
    early: bool = False


@node
class Let(Node):
    """`name` stands for a scalar in `body`."""

    name: str
    value: Expr
    body: Stmt


@node
class Alloc(Node):
    """Memory of `body`'s own, not initialised. `strides` are in elements; row-major when empty.

    With `swizzle` the 16-byte chunks of each so many bytes of a row of shared memory have an order of their
    own (`shared_memory.py`): what is where in it is the business of code alone.

    `extents` are at least 0 and do not depend on what `body` binds. `scope` is a memory of the CPU:
    heap, stack, or register (small, with indices that are constant once loops are unrolled); or one of a GPU:
    heap outside of all loops, shared by the threads of a block, registers of each thread, or a fragment in
    those of several threads, laid out as the instructions that use it say (`fragments.py`), or as `layout`
    does. Memory of a group, those along threadIdx.x, exists only until `passes/place_memory.py`.
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
    """buffer[index] = value; only lanes where the mask holds. A vector index stores all its lanes.

    `atomic` is "" or the operator (add, min, max, and, or, xor, mul) of an indivisible
    buffer[index] op= value. `streaming` asks to bypass the caches; `fast` allows float arithmetic in the
    value to be rearranged.

    An `asynchronous` store to shared memory copies what a `Load` of global memory gives, 0 where the load's
    mask does not hold. Its thread goes on at once; the element may be touched again when the thread has
    come to a `Wait` for it, by other threads when a barrier follows that.
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
    """`then` where a scalar (before vectorization: any) condition holds, else `orelse`."""

    cond: Expr
    then: Stmt
    orelse: Stmt | None = None


@node
class Block(Node):
    """Statements in order."""

    body: tuple[Stmt, ...]


@node
class Check(Node):
    """Stop the kernel with the `site`-th message of the kernel unless `cond` holds.

    `values` are scalars shown in the message.
    """

    cond: Expr
    site: int
    values: tuple[Expr, ...]


@node
class Print(Node):
    """Show scalars with the `site`-th message of the kernel, where `cond` holds."""

    cond: Expr
    site: int
    values: tuple[Expr, ...]


@node
class Prefetch(Node):
    """Ask for the cache line that holds an element; any index is safe."""

    buffer: str
    index: tuple[Expr, ...]


@node
class Operand(Node):
    """A tile handed to an instruction: the address of its first element, and strides in elements."""

    buffer: str
    index: tuple[Expr, ...]
    axes: tuple[int, ...]


@node
class Invoke(Node):
    """An instruction declared by the user (`schedule.instructions.instruction`), on tiles of buffers.

    One that has fragments is run by all threads of a group together: those along threadIdx.x.
    """

    instruction: str
    operands: tuple[Operand, ...]


@node
class Barrier(Node):
    """No thread of a block goes on before all have come here, and sees what they have written.

    With `group` it is those of its group, along threadIdx.x, for which a thread waits.
    """

    group: bool = False


@node
class Shuffle(Node):
    """buffer[()] = what `value` is in the thread whose number on threadIdx.x differs by the bit `distance`.

    `buffer` is in registers. `width` threads, whose numbers differ in the bits below it, come here together;
    it is a power of 2, at most WARP, and divides the number of threads on threadIdx.x.
    """

    buffer: str
    value: Expr
    distance: int
    width: int


@node
class Commit(Node):
    """The asynchronous stores of a thread since its last `Commit` are a group.

    With `products` it is its asynchronous instructions since the last such `Commit` that are one.
    """

    products: bool = False


@node
class Wait(Node):
    """A thread goes on when all of its groups but the last `pending` are stored, or with `products`, made."""

    pending: int
    products: bool = False


@node
class Phases(Node):
    """`slots` barriers shared by the threads of a block in `body`, at each of which phase follows phase.

    A phase ends when `arrivals` threads have come to it and the bytes that they announced are copied.
    All threads of a block come here together, and those of all `blocks` of its cluster that use them.
    """

    name: str
    slots: int
    arrivals: int
    body: Stmt
    blocks: int = 1


@node
class Beside(Node):
    """Two statements that threads of a block run at the same time, each of them by threads of its own.

    Those whose number on an axis is `first` or more run the first of them, the rest the other one.
    """

    parts: tuple[Stmt, ...]
    axis: str
    first: int


@node
class Arrive(Node):
    """A thread comes to the phase that a slot is in, and announces copies of so many bytes.

    With `together` all threads of a warp come here, and count as one. With `blocks` it is that phase in so
    many blocks of the cluster, all that there are.
    """

    phases: str
    slot: Expr
    bytes: int = 0
    together: bool = False
    blocks: int = 1


@node
class Await(Node):
    """A thread goes on when the phase of a slot with this parity, 0 of the first one, has ended."""

    phases: str
    slot: Expr
    parity: Expr


@node
class CopyTile(Node):
    """A thread has a box of global memory copied to shared memory: 0 where it reaches beyond the array.

    The box begins at `start`, the tile at `index` of a buffer, whose last axes it fills. The thread goes on
    at once; the elements may be touched by those who have awaited the end of the phase that a slot is in.
    With `blocks` each of so many blocks of the cluster, all that there are, gets it in its own memory.
    """

    buffer: str
    index: tuple[Expr, ...]
    source: str
    start: tuple[Expr, ...]
    extents: tuple[int, ...]
    phases: str = ""
    slot: Expr = ZERO
    blocks: int = 1


# where threads of a block meet, or wait for copies
Meeting = Barrier | Shuffle | Commit | Wait | Arrive | Await | CopyTile

Stmt = (
    For | Let | Alloc | Store | If | Block | Check | Print | Prefetch | Invoke | Phases | Beside
    | Meeting
)  # fmt: skip


def as_stmt(statements: Sequence[Stmt]) -> Stmt:
    """Statements in order as one."""
    return statements[0] if len(statements) == 1 else Block(tuple(statements))


@dataclass(frozen=True, slots=True)
class BufferParam:
    """An array argument. `extents` are constants or sizes.

    `strides` holds for each axis a constant stride in elements where it is known when the kernel is
    compiled, else None: then it is an argument, in bytes.
    `written` is true for outputs; `aliased` when another argument may share its memory. It begins at a
    multiple of `align` bytes.
    """

    name: str
    dtype: DType
    extents: tuple[Expr, ...]
    strides: tuple[int | None, ...]
    written: bool
    align: int = 1


@dataclass(frozen=True, slots=True)
class ScalarParam:
    """A scalar argument (a `Param` of the body)."""

    name: str
    dtype: DType


@dataclass(frozen=True, slots=True)
class SizeParam:
    """An extent known when the kernel is called (a `Size` of the body), an i64 argument."""

    name: str


Argument = BufferParam | ScalarParam | SizeParam


@dataclass(frozen=True, slots=True)
class Message:
    """The text of a `Check` or `Print` site: `parts` with the values between them."""

    kind: str
    parts: tuple[str, ...]
    where: str


@dataclass(frozen=True, slots=True)
class Kernel:
    """A function of buffers, scalars and sizes: what a backend compiles.

    `fast_math` says that every store is fast, so that the mode of the processor may be changed. `resident`
    is for buffers how many blocks of the kernel of a GPU that writes them run at a time on a multiprocessor.
    """

    name: str
    params: tuple[Argument, ...]
    body: Stmt
    messages: tuple[Message, ...] = ()
    fast_math: bool = False
    instructions: tuple[object, ...] = ()
    resident: tuple[tuple[str, int], ...] = ()


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
