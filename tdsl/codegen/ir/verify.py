"""The verifier of the loop IR: the rules that every kernel satisfies after lowering and after each pass.

Names: each Var, Size, Param and buffer is bound around its use, and no name is bound twice on a path.
Types: `dtypes.py` has the rules of expressions.
Nodes: the expressions listed in `loops.py`, without calls of extent; calls of pad_* exist until
`passes/expand_padding.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar, assert_never

from tdsl.codegen.ir.loops import (
    COOPERATIVE,
    GROUP,
    PIPELINED,
    REGISTER,
    SHARED,
    STACK,
    WARP,
    Alloc,
    ArriveBarrier,
    Barrier,
    Block,
    BufferParam,
    Check,
    Commit,
    CopyTile,
    For,
    If,
    InitBarriers,
    Invoke,
    Kernel,
    Let,
    Message,
    Operand,
    Prefetch,
    Print,
    ScalarParam,
    Shuffle,
    SizeParam,
    Stmt,
    Store,
    Synchronization,
    Wait,
    WaitBarrier,
    WarpSpecialize,
)  # fmt: skip
from tdsl.codegen.ir.type_check import (
    BUFFER,
    SCALAR,
    SIZE,
    BadIR,
    Typed,
    lanes_of_index,
    require_lanes,
    require_mask,
    type_check,
)
from tdsl.core.node import children, post_order
from tdsl.lang.expr import Const, Expr, Load, Param, Size, Var
from tdsl.lang.types import DType, bool_, i64
from tdsl.schedule.state import KINDS, SCOPES

T = TypeVar("T")

ATOMICS = ("", "add", "min", "max", "and", "or", "xor", "mul")


def verify(kernel: Kernel) -> None:
    """Raise BadIR unless the kernel is well formed.

    >>> from tdsl.lang.expr import const
    >>> verify(Kernel("k", (), Store("a", (const(0),), const(1))))
    Traceback (most recent call last):
    ...
    tdsl.codegen.ir.type_check.BadIR: kernel k: Store: no buffer is called 'a'
    """
    Verifier()(kernel)


class Verifier:
    """Verifies kernels, and type-checks an expression that several of them share only once.

    A pass changes few expressions, so only these are type-checked when its result is verified.
    """

    def __init__(self) -> None:
        self.typed: dict[int, Typed] = {}

    def __call__(self, kernel: Kernel) -> None:
        """Raise BadIR unless the kernel is well formed."""
        _Scope(self.typed).kernel(kernel)


@dataclass(slots=True)
class _Scope:
    typed: dict[int, Typed]  # by the id of expressions, which the values keep alive
    scalars: dict[str, DType] = field(default_factory=dict)
    buffers: dict[str, tuple[DType, int]] = field(default_factory=dict)
    sizes: set[str] = field(default_factory=set)
    names: set[tuple[Any, ...]] = field(default_factory=set)  # of scalars, buffers and sizes
    shared: set[str] = field(default_factory=set)
    mbarriers: set[str] = field(default_factory=set)
    path: list[str] = field(default_factory=list)
    messages: tuple[Message, ...] = ()
    instructions: set[str] = field(default_factory=set)

    def error(self, reason: str) -> BadIR:
        return BadIR(f"{': '.join(self.path)}: {reason}")

    def require(self, holds: bool, reason: str) -> None:
        if not holds:
            raise self.error(reason)

    @contextmanager
    def within(self, node: str) -> Iterator[None]:
        self.path.append(node)
        yield
        self.path.pop()

    @contextmanager
    def binding_scalar(self, name: str, dtype: DType) -> Iterator[None]:
        """A context in which `name` is bound to a scalar."""
        self.require(name not in self.scalars and name not in self.sizes, f"{name!r} is bound twice")
        self.scalars[name] = dtype
        self.names.add((SCALAR, name, dtype))
        yield
        self.names.remove((SCALAR, name, dtype))
        del self.scalars[name]

    @contextmanager
    def binding_buffer(self, name: str, dtype: DType, rank: int) -> Iterator[None]:
        """A context in which `name` is bound to a buffer."""
        self.require(name not in self.buffers, f"buffer {name!r} is bound twice")
        self.buffers[name] = (dtype, rank)
        self.names.add((BUFFER, name, dtype, rank))
        yield
        self.names.remove((BUFFER, name, dtype, rank))
        del self.buffers[name]

    def kernel(self, k: Kernel) -> None:
        self.path, self.messages = [f"kernel {k.name}"], k.messages
        self.instructions = {str(getattr(i, "name", i)) for i in k.instructions}
        for p in k.params:
            name = p.name
            is_array = isinstance(p, BufferParam)  # an array may have the name of a size
            bound = name in (self.buffers if is_array else {*self.scalars, *self.sizes})
            self.require(not bound, f"parameter {name!r} is bound twice")
            match p:
                case BufferParam(_, dtype, extents, strides):
                    self.require(len(strides) == len(extents), f"{name} has {len(strides)} strides")
                    self.buffers[name] = (dtype, len(extents))
                    self.names.add((BUFFER, name, dtype, len(extents)))
                case ScalarParam(_, dtype):
                    self.scalars[name] = dtype
                    self.names.add((SCALAR, name, dtype))
                case SizeParam():
                    self.sizes.add(name)
                    self.names.add((SIZE, name))
        for p in k.params:
            if isinstance(p, BufferParam):
                with self.within(f"parameter {p.name}"):
                    self.indices(p.extents, scalar=True)
        self.statement(k.body)

    def statement(self, s: Stmt) -> None:
        match s:
            case For(name, lo, extent, kind, body):
                with self.within(f"For {name}"):
                    self.require(kind in KINDS, f"no loop kind is called {kind!r}")
                    fits = s.stages > 1 if kind == PIPELINED else not s.stages
                    self.require(fits, f"a {kind} loop of {s.stages} stages")
                    self.indices((lo, extent), scalar=True)
                    with self.binding_scalar(name, i64):
                        self.statement(body)
            case Let(name, value, body):
                with self.within(f"Let {name}"), self.binding_scalar(name, self.scalar(value)):
                    self.statement(body)
            case Alloc():
                self.alloc(s)
            case Store():
                with self.within("Store"):
                    self.store(s)
            case If(cond, then, orelse):
                with self.within("If"):
                    self.condition(cond)
                    self.statement(then)
                    if orelse is not None:
                        self.statement(orelse)
            case Block(body) | WarpSpecialize(body):
                for inner in body:
                    self.statement(inner)
            case Check(cond, site, values) | Print(cond, site, values):
                with self.within(f"{type(s).__name__} {site}"):
                    self.message(site, values)
                    self.condition(cond)
                    for v in values:
                        self.scalar(v)
            case Prefetch(buffer, index):
                with self.within("Prefetch"):
                    self.access(buffer, index, scalar=True)
            case Invoke(instruction, operands):
                with self.within(f"Invoke {instruction}"):
                    known = instruction in self.instructions
                    self.require(known, "the kernel declares no such instruction")
                    for operand in operands:
                        self.operand(operand)
            case InitBarriers(name, slots, arrivals, body):
                with self.within(f"InitBarriers {name}"):
                    self.require(name not in self.mbarriers, f"{name!r} is bound twice")
                    self.require(slots > 0 < arrivals, f"{slots} slots, {arrivals} arrivals")
                    self.mbarriers.add(name)
                    self.statement(body)
                    self.mbarriers.remove(name)
            case _:
                with self.within(type(s).__name__):
                    self.synchronization(s)

    def synchronization(self, s: Synchronization) -> None:
        match s:
            case Barrier() | Commit():
                pass
            case Shuffle():
                self.shuffle(s)
            case Wait(pending):
                self.require(pending >= 0, f"waits for all groups but {pending}")
            case ArriveBarrier(mbarriers, slot):
                self.slot(mbarriers, slot)
            case WaitBarrier(mbarriers, slot, parity):
                self.slot(mbarriers, slot)
                self.indices((parity,), scalar=True)
            case CopyTile():
                self.copy_tile(s)
            case _:
                assert_never(s)

    def shuffle(self, s: Shuffle) -> None:
        of = self.scalar(s.value)
        dtype, _ = self.access(s.buffer, (), scalar=True)
        self.require(of == dtype, f"gives {of} to {s.buffer} of {dtype}")
        powers = all(n > 0 and n & (n - 1) == 0 for n in (s.distance, s.width))
        fits = powers and s.distance < s.width <= WARP
        self.require(fits, f"distance {s.distance} among {s.width} threads")

    def message(self, site: int, values: tuple[Expr, ...]) -> None:
        self.require(0 <= site < len(self.messages), "the kernel has no such message")
        places = len(self.messages[site].parts) - 1
        self.require(places == len(values), f"{len(values)} values for {places} places")

    def alloc(self, a: Alloc) -> None:
        with self.within(f"Alloc {a.name}"):
            self.require(a.scope in SCOPES, f"no scope is called {a.scope!r}")
            self.indices(a.extents, scalar=True)
            ranks = (0, len(a.extents))
            self.require(len(a.strides) in ranks, f"{len(a.strides)} strides for {ranks[1]} axes")
            if a.scope in (STACK, REGISTER, *COOPERATIVE):
                constant = all(isinstance(e, Const) for e in a.extents)
                self.require(constant, f"{a.scope} memory needs constant extents")
            if a.scope in (SHARED, GROUP):
                self.shared.add(a.name)
            with self.binding_buffer(a.name, a.dtype, len(a.extents)):
                self.statement(a.body)

    def store(self, s: Store) -> None:
        dtype, lanes = self.access(s.buffer, s.index)
        value = self.expression(s.value)
        with self.within(s.buffer):
            self.require(value.dtype == dtype, f"stores {value.dtype} into {dtype}")
            self.checked(require_lanes, lanes, value)
            self.require(s.atomic in ATOMICS, f"no atomic operator is called {s.atomic!r}")
            self.require(not (s.atomic and s.streaming), "an atomic store cannot bypass caches")
            if s.mask is not None:
                self.checked(require_mask, self.expression(s.mask), lanes)
            if s.asynchronous:
                self.require(isinstance(s.value, Load), "an asynchronous store of no load")
                self.require(s.buffer in self.shared, "an asynchronous store to memory of a thread")

    def slot(self, mbarriers: str, slot: Expr) -> None:
        self.require(mbarriers in self.mbarriers, f"no mbarriers are called {mbarriers!r}")
        self.indices((slot,), scalar=True)

    def copy_tile(self, s: CopyTile) -> None:
        to, _ = self.access(s.buffer, s.index, scalar=True)
        of, _ = self.access(s.source, s.start, scalar=True)
        self.require(to == of, f"copies {of} to {to}")
        rank = len(s.extents)
        self.require(len(s.start) == rank <= len(s.index), f"a box of {rank} axes")
        self.require(s.buffer in self.shared, "a copied tile in memory of a thread")
        if s.mbarriers:
            self.slot(s.mbarriers, s.slot)

    def operand(self, o: Operand) -> None:
        self.access(o.buffer, o.index, scalar=True)
        inside = all(0 <= axis < len(o.index) for axis in o.axes)
        distinct = len(set(o.axes)) == len(o.axes)
        self.require(inside and distinct, f"{o.buffer} has no axes {o.axes}")

    def access(self, buffer: str, index: tuple[Expr, ...], scalar: bool = False) -> tuple[DType, int]:
        """The dtype of the buffer and the lanes of the index; BadIR for an unbound buffer or another rank."""
        self.require(buffer in self.buffers, f"no buffer is called {buffer!r}")
        dtype, rank = self.buffers[buffer]
        with self.within(buffer):
            self.require(len(index) == rank, f"{len(index)} indices for {rank} axes")
            return dtype, self.indices(index, scalar)

    def indices(self, es: tuple[Expr, ...], scalar: bool = False) -> int:
        """The lanes of an index, whose parts are i64 scalars or i64 vectors of one length."""
        lanes = self.checked(lanes_of_index, tuple([self.expression(e) for e in es]))
        self.require(lanes == 1 or not scalar, f"indices or extents of {[lanes]} lanes")
        return lanes

    def scalar(self, e: Expr) -> DType:
        """The dtype of an expression; BadIR if it is a vector."""
        x = self.expression(e)
        self.checked(require_lanes, 1, x)
        return x.dtype

    def condition(self, e: Expr) -> None:
        dtype = self.scalar(e)
        self.require(dtype is bool_, f"a condition of dtype {dtype}")

    def checked(self, rule: Callable[..., T], *args: Any) -> T:
        """The result of a rule; a BadIR that it raises gets the path to the node."""
        try:
            return rule(*args)
        except BadIR as e:
            raise self.error(str(e)) from None

    def expression(self, root: Expr) -> Typed:
        """The type of an expression; BadIR unless its free names are bound here."""
        known = self.typed.get(id(root))
        if known is None:
            for n in post_order(root):
                if id(n) not in self.typed:
                    parts = tuple([self.typed[id(c)] for c in children(n)])
                    self.path.append(type(n).__name__)
                    self.typed[id(n)] = self.checked(type_check, n, parts)
                    self.path.pop()
            known = self.typed[id(root)]
        if not known.names <= self.names:
            for n in post_order(root):
                self.path.append(type(n).__name__)
                self.check_bound(n)  # type: ignore[arg-type]  # as above
                self.path.pop()
        return known

    def check_bound(self, e: Expr) -> None:
        """Raise BadIR unless the name of a node is bound here with its dtype and rank."""
        match e:
            case Var(name):
                self.check_scalar(name, i64)
            case Param(name, dtype):
                self.check_scalar(name, dtype)
            case Size(name):
                self.require(name in self.sizes, f"no size is called {name!r}")
            case Load(buffer, index, dtype):
                of, _ = self.access(buffer, index)
                self.require(of == dtype, f"loads {dtype} from {buffer} of {of}")
            case _:
                pass

    def check_scalar(self, name: str, dtype: DType) -> None:
        of = self.scalars.get(name)
        self.require(of is not None, f"{name!r} is used outside its loop or let")
        self.require(of == dtype, f"{name!r} is {of}, not {dtype}")
