"""Lowers the statements of a kernel to TIR.

Loops over blocks and threads become conditions on block and thread indices if not all of them take part.
Vectors become accesses of at most 16 bytes; arithmetic between accesses is done lane by lane in registers.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, TypeGuard, assert_never

import tvm
from tvm import tirx as T  # noqa: N812  # as its own documentation calls it
from tvm.ir import PointerType, PrimType, StringImm

from tdsl.codegen.analysis.asynchronous import is_asynchronous
from tdsl.codegen.analysis.facts import facts_inside
from tdsl.codegen.analysis.launch_axes import covers_axis, needs_all_threads
from tdsl.codegen.cuda.atomics import atomic_update
from tdsl.codegen.cuda.axes import axis_indices, with_thread_extents
from tdsl.codegen.cuda.cache_hints import bind_policies, store_streaming
from tdsl.codegen.cuda.expressions import Expressions, in_int32
from tdsl.codegen.cuda.identifiers import without_number
from tdsl.codegen.cuda.independent_stores import independent_stores
from tdsl.codegen.cuda.instructions import invoke, stores_for_descriptors
from tdsl.codegen.cuda.prints import lower_print
from tdsl.codegen.cuda.readable import COMMENT, Notes
from tdsl.codegen.cuda.registers import registers_of_parts
from tdsl.codegen.cuda.size_formulas import argument_name
from tdsl.codegen.cuda.stage_comments import StageComments
from tdsl.codegen.cuda.tensor_memory import TensorMemory, tensor_memory
from tdsl.codegen.cuda.tile_copies import copy_elements, copy_tile
from tdsl.codegen.cuda.tir_types import as_type, dtype_text, tir_type
from tdsl.codegen.cuda.vectors import lanes_of_access, lanes_of_loads, lower_vector_loads, lower_vector_store
from tdsl.codegen.gpu.launches import ARRIVED_BLOCKS, FAILED_CHECK, Launch
from tdsl.codegen.gpu.limits import STATIC_SHARED
from tdsl.codegen.gpu.shared_memory import TENSOR_COMMITS, TENSOR_GROUPS, TENSOR_STATE
from tdsl.codegen.gpu.tensor_map_specs import TensorMapSpec
from tdsl.codegen.ir.loops import (
    AXES,
    HEAP,
    LANES,
    SHARED,
    THREADS,
    UNROLLED,
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
    Let,
    Prefetch,
    Print,
    ScalarParam,
    Shuffle,
    Stmt,
    Store,
    Synchronization,
    Wait,
    WaitBarrier,
    WarpSpecialize,
    row_major,
)  # fmt: skip
from tdsl.codegen.ir.statements import inputs_of, rebuilt, stored_in, walk
from tdsl.codegen.ir.strides import dense_strides, element_count
from tdsl.codegen.transforms.extract_lanes import lane_count, lane_store
from tdsl.lang.expr import ONE, ZERO, Const, Expr, dtype_of
from tdsl.lang.show import show_expr
from tdsl.lang.simplify import add
from tdsl.lang.types import i64, u64

TIR = Any

UNROLL_FACTOR = 8  # iterations by which long loops over arrays are unrolled
_ALIGN_FRAGMENT = 16  # bytes, so that device functions can read several elements as one register


def device_function(
    launch: Launch, target: Any, used: set[str], registers: int, notes: Notes, first: Sequence[str] = ()
) -> Any:
    """The TIR function of a launch for multiprocessors of so many registers.

    All threads call the device functions `first` before they access global memory. Adds the names of the
    device functions that the kernel calls to `used`, and to `notes` what its text says.
    """
    expressions = Expressions(
        used=used, fragments=launch.fragments, swizzles=launch.memory.swizzles,
        identifiers=notes.identifiers,
    )  # fmt: skip
    return _KernelLowering(launch, expressions, registers, notes).function(target, first)


@dataclass(slots=True)
class _KernelLowering:
    launch: Launch
    e: Expressions
    registers: int  # of a multiprocessor
    notes: Notes
    comments: StageComments = field(init=False)
    loops: list[str] = field(default_factory=list)  # the names of the open loops
    axes: dict[str, TIR] = field(default_factory=dict)
    head: list[TIR] = field(default_factory=list)
    maps: dict[TensorMapSpec, TIR] = field(default_factory=dict)
    in_loop: bool = False
    in_wgmma: bool = False
    tensor: TensorMemory | None = None

    def function(self, target: Any, first: Sequence[str]) -> Any:
        arrays = [p.name for p in self.launch.params if isinstance(p, BufferParam)]
        memories = {s.name: s.scope for s in walk(self.launch.body) if isinstance(s, Alloc)}
        self.comments = StageComments(dict.fromkeys(arrays, HEAP) | memories)
        params: list[TIR] = []
        for p in self.launch.params:
            if isinstance(p, BufferParam):
                params.append(self.array(p))
            else:
                kind = tir_type(p.dtype) if isinstance(p, ScalarParam) else "int64"
                params.append(T.Var(self.e.identifiers.declare(p.name), kind))
                self.e.scalars[argument_name(p)] = params[-1]
        for tile in self.launch.maps:
            name = self.e.identifiers.declare(f"{tile.array}_map")
            self.maps[tile] = T.Var(name, PointerType(tvm.tirx.TensorMapType()))
            params.append(self.maps[tile])
        self.axes, variables = axis_indices(self.launch)
        self.shared_memory()
        self.head += bind_policies(self.e, dict(self.launch.policies))
        self.head += [self.call(name) for name in first]
        self.tensor = tensor_memory(self.launch, self.e, self.axes)
        body = self.statement(self.launch.body, frozenset())
        if self.tensor:
            body = self.tensor.around(body)
        body = _sequence([*self.head, *body])
        body = with_thread_extents(body, variables, self.launch)
        attributes = {
            "global_symbol": self.launch.name, "tirx.noalias": True, "calling_conv": 2,
            "target": target, "tirx.is_global_func": True, "tirx.kernel_launch_params": list(variables),
        }  # fmt: skip
        kernel = T.PrimFunc(params, body)
        for name, value in attributes.items():
            kernel = kernel.with_attr(name, value)
        return kernel

    def array(self, p: BufferParam) -> TIR:
        name = self.e.identifiers.declare(p.name)
        if p.name in self.notes.written_before - stored_in(self.launch.body):
            self.notes.coherent.add(name)
        self.notes.shapes[name] = f"{p.dtype}[{', '.join(map(show_expr, p.extents))}]"
        pointer = T.Var(name, PointerType(PrimType(tir_type(p.dtype)), "global"))
        memory = T.decl_buffer(
            (max(element_count(p.extents), 1),), tir_type(p.dtype), f"{name}_", data=pointer
        )
        self.head.append(T.DeclBuffer(memory, data=pointer))
        self.e.buffers[p.name] = memory, dense_strides(p.extents)
        return pointer

    def shared_memory(self) -> None:
        """Allocate all shared memory at the head of the kernel.

        Memory beyond the static limit is dynamic, which only the text shows (`readable.py`).
        """
        allocations = {s.name: s for s in walk(self.launch.body) if _is_shared(s)}
        memories, align = self.launch.memory, 1024 if self.launch.memory.swizzles else 128
        kinds = {
            name: ((s.slots,), u64) if isinstance(s, InitBarriers) else (_extents(s), s.dtype)
            for name, s in allocations.items()
        }
        if TENSOR_STATE in memories.starts:
            kinds[TENSOR_STATE] = ((TENSOR_GROUPS * TENSOR_COMMITS + 1,), u64)
        if memories.size > STATIC_SHARED:
            self.notes.align = align
        for name, (extents, dtype) in kinds.items():
            base = self.comments.base(name)
            placeholder = self.e.identifiers.declare(base, f"{base}_shared", name)
            self.notes.shapes[placeholder] = f"[{']['.join(map(str, extents))}]" if len(extents) > 1 else ""
            if memories.size > STATIC_SHARED:
                self.notes.starts[placeholder] = memories.starts[name]
            memory = T.decl_buffer(
                (max(prod(extents), 1),), tir_type(dtype), placeholder, scope="shared", data_alignment=align
            )
            self.head.append(T.AllocBuffer(memory))
            self.e.buffers[name] = memory, row_major(extents)

    def statement(self, s: Stmt, bound: frozenset[str]) -> list[TIR]:
        """The TIR of a loop-IR statement; loops over the axes `bound` enclose it."""
        moves = self.tensor.before(s) if self.tensor else []
        said = self.comments.comment(s, self.loops[-1] if self.loops else "")
        outside, self.comments.inside = self.comments.inside, self.comments.inside or bool(said)
        with self.e.statement() as values:
            body = self.one_statement(s, bound)
        self.comments.inside = outside
        if said and body:
            values.insert(0, T.Evaluate(T.call_extern("int32", COMMENT, StringImm(said))))
        return [*moves, *values, *body]

    def one_statement(self, s: Stmt, bound: frozenset[str]) -> list[TIR]:
        if not self.in_wgmma and is_asynchronous(s):
            return self.wgmma_group(s, bound)
        free_axes = [x for x in AXES if x not in bound and self.launch.extent(x) > 1]
        if isinstance(s, Invoke):
            free_axes = [x for x in free_axes if x != LANES]
        if free_axes and (isinstance(s, Invoke) or not any(map(needs_all_threads, walk(s)))):
            first = T.EQ(self.axes[free_axes[0]], T.const(0, "int32"))
            for axis in free_axes[1:]:
                first = T.And(first, T.EQ(self.axes[axis], T.const(0, "int32")))
            inner = self.statement(s, bound | set(free_axes))
            return [T.IfThenElse(first, _sequence(inner), None)] if inner else []
        match s:
            case Block(body):
                return [x for part in self.together(body, bound) for x in part]
            case For():
                return self.loop(s, bound)
            case Let(name, value, body):
                narrow = dtype_of(value) == i64 and in_int32(value, self.e.facts)
                bind = self.e.index(value) if narrow else self.e.value(value)
                variable = T.Var(
                    self.e.identifiers.declare(without_number(name), name),
                    "int32" if narrow else tir_type(dtype_of(value)),
                )
                self.e.scalars[name] = variable
                return [T.Bind(variable, bind), *self.enclosed(s, body, bound)]
            case Alloc():
                return self.alloc(s, bound)
            case If(cond, then, orelse):
                test = self.e.value(cond)
                yes = _sequence(self.enclosed(s, then, bound))
                no = None if orelse is None else _sequence(self.statement(orelse, bound))
                return [T.IfThenElse(test, yes, no)]
            case Store():
                if s.asynchronous:
                    return copy_elements(self.e, s)
                self.e.fast = s.fast
                if s.streaming and not any(p.name == s.buffer for p in self.launch.params):
                    s = rebuilt(s, streaming=False)  # it is in shared memory or registers
                stores = self.vector(s) if lane_count(s) > 1 else self.store(s)
                self.e.fast = False
                return stores
            case WarpSpecialize():
                return [self.warp_roles(s, bound)]
            case InitBarriers():
                return self.with_barriers(s, bound)
            case Prefetch():
                return []
            case Check(cond, site, values):
                return [self.check(cond, site, values)]
            case Invoke():
                return [invoke(self.e, s, self.axes[LANES])]
            case Print():
                return [lower_print(self.e, self.axes, s, self.launch.messages[s.site])]
            case _:
                return [self.synchronisation(s)]

    def synchronisation(self, s: Synchronization) -> TIR:
        """The TIR of a barrier, mbarrier operation, commit, wait, shuffle or tile copy."""
        match s:
            case Barrier(grid=True):
                return self.call("tdsl_grid_barrier", self.address(ARRIVED_BLOCKS))
            case Barrier(group):
                barrier = self.group_barrier() if group else _sync_threads()
                if not stores_for_descriptors(self.launch.body):
                    return barrier
                return T.SeqStmt([self.call("tdsl_fence_proxy_async"), barrier])
            case Shuffle():
                return self.shuffle(s)
            case Commit(True) | Wait(_, True) if self.tensor:
                return self.tensor.synchronisation(s)
            case Commit(mma):
                return self.call("tdsl_wgmma_commit" if mma else "tdsl_cp_async_commit")
            case Wait(pending, mma):
                return self.call(f"{'tdsl_wgmma_wait' if mma else 'tdsl_cp_async_wait'}<{pending}>")
            case ArriveBarrier(mbarriers, slot, per_warp=True):
                count = T.const(s.blocks, "int32")
                return self.call("tdsl_mbarrier_arrive_warp", self.mbarrier(mbarriers, slot), count)
            case ArriveBarrier(mbarriers, slot, 0):
                return self.call("tdsl_mbarrier_arrive", self.mbarrier(mbarriers, slot))
            case ArriveBarrier(mbarriers, slot, size):
                expected = T.const(size, "uint32")
                return self.call("tdsl_mbarrier_arrive_expect", self.mbarrier(mbarriers, slot), expected)
            case WaitBarrier(mbarriers, slot, parity):
                phase = T.Cast("uint32", self.e.index(parity))
                return self.call("tdsl_mbarrier_wait", self.mbarrier(mbarriers, slot), phase)
            case CopyTile():
                return _sequence(
                    copy_tile(self.e, s, self.launch, self.maps, self.mbarrier(s.mbarriers, s.slot))
                )
            case _:
                assert_never(s)

    def enclosed(self, s: Stmt, body: Stmt, bound: frozenset[str]) -> list[TIR]:
        """The TIR of `body`, a part of the statement `s`, with the facts that hold inside `s`."""
        facts, loops = self.e.facts, self.e.loops
        self.e.facts = facts_inside(facts, s)
        self.e.loops = loops if isinstance(s, If) else facts_inside(loops, s)
        stored = self.tensor.stored if self.tensor else frozenset()
        lowered = self.statement(body, bound)
        self.e.facts, self.e.loops = facts, loops
        if self.tensor and isinstance(s, For | If):
            lowered += self.tensor.after(body, stored)
        return lowered

    def together(self, body: Sequence[Stmt], bound: frozenset[str]) -> Iterator[list[TIR]]:
        """The statements of a block; stores of values of which none changes another one share parts."""
        rest = list(body)
        by_all = all(x in bound or self.launch.extent(x) == 1 for x in AXES)
        while rest:
            run = independent_stores(rest) if by_all else []
            if len(run) < 2:
                yield self.statement(rest.pop(0), bound)
                continue
            del rest[: len(run)]
            with self.e.statement() as values:
                self.e.bind_shared(*(s.value for s in run))
                stores = [x for s in run for x in self.one_statement(s, bound)]
            yield [*values, *stores]

    def loop(self, s: For, bound: frozenset[str]) -> list[TIR]:
        narrow = in_int32(add(s.lo, s.extent), self.e.facts) and in_int32(s.extent, self.e.facts)
        if s.kind in AXES:
            number = self.axes[s.kind]
            lo, extent = self.e.index(s.lo), self.e.index(s.extent)
            index = as_type(dtype_text(lo), number)
            self.e.scalars[s.name] = number if s.lo == ZERO else T.Add(lo, index)
            said, full = self.notes.axes.setdefault(s.kind, []), self.comments.loop(s.name)[-2]
            if full not in said:
                said.append(full)
            body = self.enclosed(s, s.body, bound | {s.kind})
            if not body:
                return []
            whole = covers_axis(s, {s.kind: self.launch.extent(s.kind)})
            in_range = T.LT(as_type(dtype_text(extent), number), extent)
            return body if whole else [T.IfThenElse(in_range, _sequence(body), None)]
        if s.extent == ONE:
            self.e.scalars[s.name] = self.e.index(s.lo)
            return self.enclosed(s, s.body, bound)
        lo, extent = self.e.index(s.lo), self.e.index(s.extent)
        if not narrow:
            lo, extent = T.Cast("int64", lo), T.Cast("int64", extent)
        outside, self.in_loop = self.in_loop, True
        name = self.e.identifiers.declare(*self.comments.loop(s.name))
        self.e.scalars[s.name] = variable = T.Var(name, "int32" if narrow else "int64")
        self.loops.append(name)
        body = self.enclosed(s, s.body, bound)
        self.loops.pop()
        self.in_loop = outside
        how = self.unrolling(s)
        return (
            [T.For(variable, lo, extent, T.ForKind.SERIAL, _sequence(body), annotations=how)] if body else []
        )

    def unrolling(self, s: For) -> dict[str, bool] | None:
        """The unroll annotation of a loop: full, or by UNROLL_FACTOR for long loops over arrays; else None.

        Otherwise the compiler unrolls loops of constant extent fully, and issues all of their loads first.
        """
        if s.kind == UNROLLED:
            return {"pragma_unroll": True}
        many = isinstance(s.extent, Const) and int(s.extent.value) > UNROLL_FACTOR
        arrays = {p.name for p in self.launch.params if isinstance(p, BufferParam)}
        plain = all(isinstance(x, Block | Let | If | Store) for x in walk(s.body))
        # TVM emits `#pragma unroll 1`, which text.py turns into one of UNROLL_FACTOR
        return {"disable_unroll": True} if many and plain and inputs_of(s) & arrays else None

    def alloc(self, s: Alloc, bound: frozenset[str]) -> list[TIR]:
        if s.scope == SHARED:
            return self.statement(s.body, bound)
        extents = _extents(s)
        fragment = self.launch.fragments.get(s.name)
        count = prod(extents) if fragment is None else fragment.count
        base = self.comments.base(s.name)
        name = self.e.identifiers.declare(base, f"{base}_local", s.name)
        if len(extents) > 1 and prod(extents) > 1:
            of = "" if fragment is None else "fragment of "
            self.notes.shapes[name] = f"{of}[{']['.join(map(str, extents))}]"
        memory = T.decl_buffer(
            (max(count, 1),), tir_type(s.dtype), name, scope="local",
            data_alignment=_ALIGN_FRAGMENT if fragment is not None else 0,
        )  # fmt: skip
        self.e.buffers[s.name] = memory, row_major(extents)
        return [T.AllocBuffer(memory), *self.statement(s.body, bound)]

    def store(self, s: Store) -> list[TIR]:
        memory, _ = self.e.buffers[s.buffer]
        at, value = self.e.offset(s.buffer, s.index), self.e.value(s.value)
        if s.atomic:
            statement = atomic_update(self.e, s, memory, at, value)
        elif s.streaming:
            statement = store_streaming(self.e, memory, at, value)
        else:
            statement = T.BufferStore(memory, value, [at])
        return [statement if s.mask is None else T.IfThenElse(self.e.value(s.mask), statement, None)]

    def vector(self, s: Store) -> list[TIR]:
        """A vector store, in as few accesses as contiguity and alignment allow."""
        lanes, count = lane_count(s), lanes_of_access(self.e, s)
        if count > 1:
            return [x for n in range(0, lanes, count) for x in lower_vector_store(self.e, s, n, count)]
        if (count := lanes_of_loads(self.e, s)) > 1:
            starts = range(0, lanes, count)
            return [x for n in starts for x in lower_vector_loads(self.e, s, n, count, self.store)]
        return [x for n in range(lanes) for x in self.store(lane_store(s, n))]

    def shuffle(self, s: Shuffle) -> TIR:
        memory, _ = self.e.buffers[s.buffer]
        self.e.used.add("tdsl_shuffle")
        given = (T.const(s.distance, "int32"), T.const(s.width, "int32"))
        got = T.call_extern(str(memory.dtype), "tdsl_shuffle", self.e.value(s.value), *given)
        return T.BufferStore(memory, got, [T.const(0, "int32")])

    def check(self, cond: Expr, site: int, values: tuple[Expr, ...]) -> TIR:
        """Record a failed check; its thread continues, since others may wait for it at barriers."""
        shown = [self.e.value(v) for v in values]
        noted = self.call("tdsl_failed", self.address(FAILED_CHECK), T.const(site + 1, "int32"), *shown)
        return T.IfThenElse(T.Not(self.e.value(cond)), noted, None)

    def address(self, buffer: str) -> TIR:
        """The address of the first element of a buffer."""
        memory, _ = self.e.buffers[buffer]
        return T.address_of(T.BufferLoad(memory, [T.const(0, "int32")]))

    def call(self, name: str, *args: TIR) -> TIR:
        """A call statement of a device function without result."""
        return self.e.statement_call(name, *args)

    def group_barrier(self) -> TIR:
        """A barrier of the threads along threadIdx.x, with a barrier number of their own (bar.sync)."""
        rows, number = self.launch.block[1], T.const(1, "int32")
        row = T.Add(T.Mul(self.axes["threadIdx.z"], T.const(rows, "int32")), self.axes["threadIdx.y"])
        return self.call("tdsl_named_barrier", T.Add(row, number), T.const(self.launch.block[0], "int32"))

    def warp_roles(self, s: WarpSpecialize, bound: frozenset[str]) -> TIR:
        """Warp specialisation: producer threads, perhaps with fewer registers, and consumer threads."""
        producer, consumer = (self.statement(part, bound) for part in s.parts)
        registers = registers_of_parts(self.launch, s, self.registers)
        if registers is not None:
            producer.insert(0, self.call(f"tdsl_setmaxnreg_dec<{registers[0]}>"))
            consumer.insert(0, self.call(f"tdsl_setmaxnreg_inc<{registers[1]}>"))
        behind = T.GE(self.axes[s.axis], T.const(s.first, "int32"))
        return T.IfThenElse(behind, _sequence(producer), _sequence(consumer))

    def mbarrier(self, mbarriers: str, slot: Expr) -> TIR:
        """The address of the mbarrier of a slot."""
        memory, _ = self.e.buffers[mbarriers]
        return T.address_of(T.BufferLoad(memory, [self.e.index(slot)]))

    def with_barriers(self, s: InitBarriers, bound: frozenset[str]) -> list[TIR]:
        """Thread 0 initialises the mbarriers, then all synchronise; in a loop they are invalidated after."""
        place, slots = self.mbarrier(s.name, ZERO), T.const(s.slots, "int32")
        first = [T.EQ(self.axes[x], T.const(0, "int32")) for x in THREADS if self.launch.extent(x) > 1]

        def by_first_thread(body: TIR) -> TIR:
            return T.IfThenElse(functools.reduce(T.And, first), body, None) if first else body

        together = self.call("tdsl_cluster_barrier") if s.blocks > 1 else _sync_threads()
        ready = by_first_thread(self.call("tdsl_mbarrier_init", place, slots, T.const(s.arrivals, "uint32")))
        statements = [ready, together, *self.statement(s.body, bound)]
        if s.blocks > 1 and not self.in_loop:
            statements.append(together)  # until then other blocks arrive at this block's mbarriers
        if self.in_loop:
            statements += [together, by_first_thread(self.call("tdsl_mbarrier_inval", place, slots))]
        return statements

    def wgmma_group(self, s: Stmt, bound: frozenset[str]) -> list[TIR]:
        """Asynchronous instructions, after a fence that orders earlier writes to registers."""
        self.in_wgmma = True
        statements = self.statement(s, bound)
        self.in_wgmma = False
        return [self.call("tdsl_tensor_fence" if self.tensor else "tdsl_wgmma_fence"), *statements]


def _sync_threads() -> TIR:
    return T.Evaluate(T.call_intrin("int32", "tirx.tvm_storage_sync", "shared"))


def _is_shared(s: Stmt) -> TypeGuard[Alloc | InitBarriers]:
    return isinstance(s, InitBarriers) or (isinstance(s, Alloc) and s.scope == SHARED)


def _extents(s: Alloc) -> tuple[int, ...]:
    return tuple(int(e.value) for e in s.extents if isinstance(e, Const))


def _sequence(parts: Iterable[TIR]) -> TIR:
    listed = list(parts)
    return listed[0] if len(listed) == 1 else T.SeqStmt(listed)
