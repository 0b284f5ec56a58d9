"""What every kernel satisfies, from lowering to the backends; read it as the grammar of the loop IR.

Names: each Var, Size, Param and buffer is bound around its use, and nothing is bound twice on a path.
Types: operands agree in dtype and lanes, conditions and masks are bool, indices are i64.
Nodes: of `lang.expr` those of loops, without the call of extent. Those of pad_* exist until
`passes/expand_calls.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import assert_never

from tdsl.codegen.loops import (
    GROUP,
    PIPELINED,
    REGISTER,
    SHARED,
    STACK,
    TOGETHER,
    WARP,
    Alloc,
    Arrive,
    Await,
    Barrier,
    Beside,
    Block,
    BufferParam,
    Check,
    Commit,
    CopyTile,
    For,
    If,
    Invoke,
    Kernel,
    Let,
    Meeting,
    Message,
    Operand,
    Phases,
    Prefetch,
    Print,
    ScalarParam,
    Shuffle,
    SizeParam,
    Stmt,
    Store,
    Wait,
)  # fmt: skip
from tdsl.lang.expr import (
    ARITHMETIC,
    BITWISE,
    COMPARISONS,
    FUNCTIONS,
    UNARY,
    Access,
    Binary,
    Broadcast,
    Call,
    Cast,
    Const,
    Expr,
    Load,
    Param,
    Ramp,
    Range,
    Read,
    Reduce,
    Require,
    Select,
    Show,
    Size,
    Unary,
    Var,
    dtype_of,
    lanes_of,
)  # fmt: skip
from tdsl.lang.types import DType, bool_, i64
from tdsl.node import post_order
from tdsl.schedule.nest import KINDS, SCOPES

ATOMICS = ("", "add", "min", "max", "and", "or", "xor", "mul")
_OF_INTEGERS = ("popcount", "clz", "ctz", "random")
_TESTS = ("isnan", "isinf", "isfinite")


class BadIR(AssertionError):
    """Loop IR that no pass may make: a bug of the compiler, with the path to the node."""


def verify(kernel: Kernel) -> None:
    """Raise BadIR unless the kernel is well formed.

    >>> from tdsl.lang.expr import const
    >>> verify(Kernel("k", (), Store("a", (const(0),), const(1))))
    Traceback (most recent call last):
    ...
    tdsl.codegen.verify.BadIR: kernel k: Store: no buffer is called 'a'
    """
    _Verifier().kernel(kernel)


@dataclass(slots=True)
class _Verifier:
    scalars: dict[str, DType] = field(default_factory=dict)
    buffers: dict[str, tuple[DType, int]] = field(default_factory=dict)
    sizes: set[str] = field(default_factory=set)
    shared: set[str] = field(default_factory=set)
    phases: set[str] = field(default_factory=set)
    path: list[str] = field(default_factory=list)
    messages: tuple[Message, ...] = ()
    instructions: set[str] = field(default_factory=set)
    # A node is looked at once in each scope, however often expressions share it.
    seen: list[set[int]] = field(default_factory=lambda: [set()])

    def require(self, holds: bool, reason: str) -> None:
        if not holds:
            raise BadIR(f"{': '.join(self.path)}: {reason}")

    @contextmanager
    def within(self, node: str) -> Iterator[None]:
        self.path.append(node)
        yield
        self.path.pop()

    @contextmanager
    def binding(self, name: str, dtype: DType) -> Iterator[None]:
        """`name` is a scalar in what follows."""
        self.require(
            name not in self.scalars and name not in self.sizes, f"{name!r} is bound twice"
        )
        self.scalars[name] = dtype
        self.seen.append(set())
        yield
        self.seen.pop()
        del self.scalars[name]

    @contextmanager
    def holding(self, name: str, dtype: DType, rank: int) -> Iterator[None]:
        """`name` is a buffer in what follows."""
        self.require(name not in self.buffers, f"buffer {name!r} is bound twice")
        self.buffers[name] = (dtype, rank)
        self.seen.append(set())
        yield
        self.seen.pop()
        del self.buffers[name]

    def kernel(self, k: Kernel) -> None:
        self.path, self.messages = [f"kernel {k.name}"], k.messages
        self.instructions = {str(getattr(i, "name", i)) for i in k.instructions}
        for p in k.params:
            name = p.name
            is_array = isinstance(p, BufferParam)  # which may have the name of a size
            bound = name in (self.buffers if is_array else {*self.scalars, *self.sizes})
            self.require(not bound, f"parameter {name!r} is bound twice")
            match p:
                case BufferParam(_, dtype, extents, strides):
                    self.require(len(strides) == len(extents), f"{name} has {len(strides)} strides")
                    self.buffers[name] = (dtype, len(extents))
                case ScalarParam(_, dtype):
                    self.scalars[name] = dtype
                case SizeParam():
                    self.sizes.add(name)
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
                    with self.binding(name, i64):
                        self.statement(body)
            case Let(name, value, body):
                with self.within(f"Let {name}"):
                    self.scalar(value)
                    with self.binding(name, dtype_of(value)):
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
            case Block(body) | Beside(body):
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
            case Phases(name, slots, arrivals, body):
                with self.within(f"Phases {name}"):
                    self.require(name not in self.phases, f"{name!r} is bound twice")
                    self.require(slots > 0 < arrivals, f"{slots} slots, {arrivals} arrivals")
                    self.phases.add(name)
                    self.statement(body)
                    self.phases.remove(name)
            case _:
                with self.within(type(s).__name__):
                    self.meeting(s)

    def meeting(self, s: Meeting) -> None:
        match s:
            case Barrier() | Commit():
                pass
            case Shuffle():
                self.shuffle(s)
            case Wait(pending):
                self.require(pending >= 0, f"waits for all groups but {pending}")
            case Arrive(phases, slot):
                self.slot(phases, slot)
            case Await(phases, slot, parity):
                self.slot(phases, slot)
                self.indices((parity,), scalar=True)
            case CopyTile():
                self.copy_tile(s)
            case _:
                assert_never(s)

    def shuffle(self, s: Shuffle) -> None:
        self.scalar(s.value)
        dtype, found = self.access(s.buffer, (), scalar=True), dtype_of(s.value)
        self.require(found == dtype, f"gives {found} to {s.buffer} of {dtype}")
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
            if a.scope in (STACK, REGISTER, *TOGETHER):
                constant = all(isinstance(e, Const) for e in a.extents)
                self.require(constant, f"{a.scope} memory needs constant extents")
            if a.scope in (SHARED, GROUP):
                self.shared.add(a.name)
            with self.holding(a.name, a.dtype, len(a.extents)):
                self.statement(a.body)

    def store(self, s: Store) -> None:
        dtype = self.access(s.buffer, s.index)
        lanes = max(map(lanes_of, s.index), default=1)
        self.expression(s.value)
        with self.within(s.buffer):
            found = dtype_of(s.value)
            self.require(found == dtype, f"stores {found} into {dtype}")
            self.lanes(lanes, s.value)
            self.require(s.atomic in ATOMICS, f"no atomic operator is called {s.atomic!r}")
            self.require(not (s.atomic and s.streaming), "an atomic store cannot bypass caches")
            if s.mask is not None:
                self.mask(s.mask, lanes)
            if s.asynchronous:
                self.require(isinstance(s.value, Load), "an asynchronous store of no load")
                self.require(s.buffer in self.shared, "an asynchronous store to memory of a thread")

    def slot(self, phases: str, slot: Expr) -> None:
        self.require(phases in self.phases, f"no phases are called {phases!r}")
        self.indices((slot,), scalar=True)

    def copy_tile(self, s: CopyTile) -> None:
        to = self.access(s.buffer, s.index, scalar=True)
        of = self.access(s.source, s.start, scalar=True)
        self.require(to == of, f"copies {of} to {to}")
        rank = len(s.extents)
        self.require(len(s.start) == rank <= len(s.index), f"a box of {rank} axes")
        self.require(s.buffer in self.shared, "a copied tile in memory of a thread")
        if s.phases:
            self.slot(s.phases, s.slot)

    def operand(self, o: Operand) -> None:
        self.access(o.buffer, o.index, scalar=True)
        inside = all(0 <= axis < len(o.index) for axis in o.axes)
        distinct = len(set(o.axes)) == len(o.axes)
        self.require(inside and distinct, f"{o.buffer} has no axes {o.axes}")

    def access(self, buffer: str, index: tuple[Expr, ...], scalar: bool = False) -> DType:
        """The dtype of the buffer, whose index is looked at."""
        self.require(buffer in self.buffers, f"no buffer is called {buffer!r}")
        dtype, rank = self.buffers[buffer]
        with self.within(buffer):
            self.require(len(index) == rank, f"{len(index)} indices for {rank} axes")
            self.indices(index, scalar)
        return dtype

    def indices(self, es: tuple[Expr, ...], scalar: bool = False) -> None:
        """i64; either scalars or vectors of equal length."""
        for e in es:
            self.expression(e)
            self.require(dtype_of(e) == i64, f"an index or extent of dtype {dtype_of(e)}")
        lanes = {lanes_of(e) for e in es} - {1}
        self.require(len(lanes) <= (not scalar), f"indices or extents of {sorted(lanes)} lanes")

    def scalar(self, e: Expr) -> None:
        self.expression(e)
        self.lanes(1, e)

    def condition(self, e: Expr) -> None:
        self.scalar(e)
        self.require(dtype_of(e) == bool_, f"a condition of dtype {dtype_of(e)}")

    def mask(self, e: Expr, lanes: int) -> None:
        self.expression(e)
        self.require(dtype_of(e) == bool_, f"a mask of dtype {dtype_of(e)}")
        self.lanes(lanes, e)

    def lanes(self, wanted: int, *es: Expr) -> None:
        for e in es:
            self.require(lanes_of(e) == wanted, f"{lanes_of(e)} lanes where {wanted} are needed")

    def expression(self, root: Expr) -> None:
        """Every node of an expression, children first."""
        if any(id(root) in seen for seen in self.seen):
            return
        for n in post_order(root):
            self.path.append(type(n).__name__)
            self.node(n)  # type: ignore[arg-type]  # expressions hold expressions only
            self.path.pop()
            self.seen[-1].add(id(n))

    def node(self, e: Expr) -> None:
        match e:
            case Const(value, dtype):
                self.require(
                    dtype.is_float or dtype.low <= value <= dtype.high, f"{value} in {dtype}"
                )
            case Var(name):
                self.named(name, i64)
            case Param(name, dtype):
                self.named(name, dtype)
            case Size(name):
                self.require(name in self.sizes, f"no size is called {name!r}")
            case Unary():
                self.unary(e)
            case Binary():
                self.binary(e)
            case Select(cond, yes, no):
                self.require(dtype_of(cond) == bool_, f"a condition of dtype {dtype_of(cond)}")
                self.same_dtype(yes, no)
                self.lanes(lanes_of(cond), yes, no)
            case Cast():
                pass
            case Call():
                self.function(e)
            case Load(buffer, index, dtype, mask):
                found = self.access(buffer, index)
                self.require(found == dtype, f"loads {dtype} from {buffer} of {found}")
                if mask is not None:
                    self.mask(mask, max(map(lanes_of, index), default=1))
            case Ramp(base, stride, lanes):
                self.require(dtype_of(base) == i64, f"a base of dtype {dtype_of(base)}")
                self.lanes(1, base)
                self.require(lanes > 1 and stride != 0, f"{lanes} lanes, stride {stride}")
            case Broadcast(x, lanes):
                self.lanes(1, x)
                self.require(lanes > 1, f"{lanes} lanes")
            case Access() | Read() | Reduce() | Range() | Require() | Show():
                self.require(False, "does not exist in loops")
            case _:
                assert_never(e)

    def named(self, name: str, dtype: DType) -> None:
        found = self.scalars.get(name)
        self.require(found is not None, f"{name!r} is used outside its loop or let")
        self.require(found == dtype, f"{name!r} is {found}, not {dtype}")

    def unary(self, e: Unary) -> None:
        self.require(e.op in UNARY, f"no operator is called {e.op!r}")
        t = dtype_of(e.x)
        fits = not t.is_float if e.op == "not" else t != bool_
        self.require(fits, f"{e.op} of {t}")

    def binary(self, e: Binary) -> None:
        known = e.op in COMPARISONS or e.op in ARITHMETIC or e.op in BITWISE
        self.require(known, f"no operator is called {e.op!r}")
        with self.within(e.op):
            self.same_dtype(e.left, e.right)
            self.lanes(lanes_of(e.left), e.right)
            t = dtype_of(e.left)
            if e.op == "div":
                self.require(t.is_float, f"true division of {t}")
            elif e.op in BITWISE:
                fits = t.is_integer or (t == bool_ and e.op in ("and", "or", "xor"))
                self.require(fits, f"bit operation on {t}")
            elif e.op in ARITHMETIC and e.op not in ("min", "max"):
                self.require(t != bool_, "arithmetic on bool")

    def function(self, e: Call) -> None:
        known = e.fn in FUNCTIONS and e.fn != "extent"
        self.require(known, f"no function of loops is called {e.fn!r}")
        with self.within(e.fn):
            arity = FUNCTIONS[e.fn]
            self.require(arity in (-1, len(e.args)) and bool(e.args), f"{len(e.args)} arguments")
            self.lanes(lanes_of(e.args[0]), *e.args)
            types = [dtype_of(a) for a in e.args]
            if e.fn.startswith("pad_"):
                self.require({e.dtype, *types} == {i64}, f"arguments of {types}")
            elif e.fn == "reinterpret":
                same_size = types[0].bits == e.dtype.bits and bool_ not in (types[0], e.dtype)
                self.require(same_size, f"{types[0]} as {e.dtype}")
            elif e.fn in _OF_INTEGERS:
                self.require(all(t.is_integer for t in types), f"arguments of {types}")
                fits = e.dtype.is_float if e.fn == "random" else e.dtype.is_integer
                self.require(fits, f"result of {e.dtype}")
            else:
                result = bool_ if e.fn in _TESTS else types[0]
                self.require(types[0].is_float and len(set(types)) == 1, f"arguments of {types}")
                self.require(e.dtype == result, f"{types[0]} gives {e.dtype}")

    def same_dtype(self, a: Expr, b: Expr) -> None:
        left, right = dtype_of(a), dtype_of(b)
        self.require(left == right, f"operands of {left} and {right}")
