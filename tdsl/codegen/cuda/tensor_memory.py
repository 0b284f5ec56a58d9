"""Lowers the use of tensor memory to TIR: its allocation, moves of sums there and back, commits and waits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tvm import tirx as T  # noqa: N812  # as its own documentation calls it

from tdsl.codegen.cuda.expressions import Expressions
from tdsl.codegen.gpu.launches import Launch
from tdsl.codegen.gpu.shared_memory import TENSOR_STATE
from tdsl.codegen.gpu.tensor_memory import TensorSums, tensor_sums
from tdsl.codegen.ir.loops import Commit, Stmt, Wait

TIR = Any


def tensor_memory(launch: Launch, e: Expressions, axes: Mapping[str, TIR]) -> TensorMemory | None:
    """The lowering of tensor memory of a launch, None if no instruction has its sums there.

    Sets the columns of the sums in the expressions `e`; `axes` are the indices of the thread.
    """
    sums = tensor_sums(launch)
    if sums is None:
        return None
    count = T.decl_buffer((1,), "uint32", e.identifiers.declare("mma_commits"), scope="local")
    group = T.Add(axes["threadIdx.y"], T.Mul(axes["threadIdx.z"], T.const(sums.rows, "int32")))
    columns = T.Var(e.identifiers.declare("tensor_memory"), "uint32")
    memory = TensorMemory(launch, e, sums, group, count, columns)
    base = T.Add(memory.address, T.Cast("uint32", T.Mul(group, T.const(sums.width, "int32"))))
    e.tensor_columns = {name: T.Add(base, T.const(first, "uint32")) for name, first in sums.columns.items()}
    return memory


@dataclass(slots=True)
class TensorMemory:
    """The tensor memory of a kernel: the `address` of columns, a thread's `group`, its `count` of commits."""

    launch: Launch
    e: Expressions
    sums: TensorSums
    group: TIR
    count: TIR
    address: TIR

    @property
    def stored(self) -> frozenset[str]:
        """The fragments that are in tensor memory at the statement being lowered."""
        return frozenset(self.sums.stored)

    def around(self, body: list[TIR]) -> list[TIR]:
        """The body of a kernel between the allocation of tensor memory and its release."""
        columns, state = self.sums.allocated, _address(self.e.buffers[TENSOR_STATE][0])
        self.e.used.add("tdsl_tensor_begin")
        begin = T.call_extern("uint32", f"tdsl_tensor_begin<{columns}>", state)
        zero = T.BufferStore(self.count, T.const(0, "uint32"), [T.const(0, "int32")])
        end = self.e.statement_call(f"tdsl_tensor_end<{columns}>", self.address)
        return [T.AllocBuffer(self.count), zero, T.Bind(self.address, begin), *body, end]

    def before(self, s: Stmt) -> list[TIR]:
        """Moves of sums between registers and tensor memory that come before a statement."""
        loads = self.loads(self.sums.to_load(s))
        return [*loads, *(self.move("store", name, self.group) for name in self.sums.to_store(s))]

    def after(self, body: Stmt, stored: frozenset[str]) -> list[TIR]:
        """Loads at the end of a body before which only the sums `stored` were in tensor memory."""
        return self.loads(self.sums.to_load_after(body, stored))

    def loads(self, names: Iterable[str]) -> list[TIR]:
        """Loads of sums from tensor memory to registers."""
        return [self.move("load", name) for name in names]

    def move(self, how: str, name: str, *group: TIR) -> TIR:
        """A store to tensor memory or a load from there of all of a thread's registers of a fragment."""
        registers, columns = _address(self.e.buffers[name][0]), self.launch.fragments[name].count
        return self.e.statement_call(
            f"tdsl_tensor_{how}<{columns}>", registers, self.e.tensor_columns[name], *group
        )

    def synchronisation(self, s: Commit | Wait) -> TIR:
        """The commit of products, or the wait for all but the last commits of the group of threads."""
        name = "tdsl_tensor_commit" if isinstance(s, Commit) else f"tdsl_tensor_wait<{s.pending}>"
        return self.e.statement_call(
            name, _address(self.e.buffers[TENSOR_STATE][0]), self.group, _address(self.count)
        )


def _address(memory: TIR) -> TIR:
    """The address of the first element of a buffer."""
    return T.address_of(T.BufferLoad(memory, [T.const(0, "int32")]))
