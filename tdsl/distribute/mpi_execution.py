"""Executes the steps of a rank with MPI calls, and counts the bytes that they carry.

Bytes are counted by the arrays passed to the calls: a broadcast or gather counts as its point-to-point
messages would, a reduction by the convention of `steps.reduction_volume`. Forwarding within an MPI call is
not counted.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tdsl.codegen.runtime.arrays import Array
from tdsl.communication.steps import Exchange, Finish, RankPlan, Reduce, Route
from tdsl.core.node import frozen
from tdsl.core.source import here
from tdsl.distribute import mpi
from tdsl.distribute.engine import (
    Event,
    FinishTransfer,
    Parcel,
    Reduction,
    StartTransfer,
    Transfer,
    Worker,
)
from tdsl.distribute.show import show_box, show_step
from tdsl.distribute.simulate import reduction_bytes
from tdsl.errors import TargetError
from tdsl.lang.expr import Binary
from tdsl.placement.ownership import element_count

OPERATORS = {"add": "SUM", "mul": "PROD", "min": "MIN", "max": "MAX", "or": "LOR", "and": "LAND"}


@dataclass(slots=True)
class Carried:
    """The bytes that one rank received and sent, and the number of messages that it received."""

    received: int = 0
    sent: int = 0
    messages: int = 0


@frozen
class PendingCalls:
    """Nonblocking MPI calls: their requests, a text for each, and a function to call when all are complete.

    `read` keeps alive the memory that MPI reads until then.
    """

    requests: list[Any]
    what: list[str]
    finish: Callable[[], None] = lambda: None
    read: tuple[Array, ...] = ()


def run(worker: Worker, comm: Any) -> Carried:
    """Execute the steps of this rank; returns the bytes and messages that MPI calls carried.

    An exception gets a note with its rank and step, and this rank refuses later distributed calls; one that
    is no `Exception` (SystemExit, KeyboardInterrupt) aborts all ranks.
    """
    try:
        return _run(worker, comm)
    except BaseException as error:
        at = step_text(worker.plan, worker.at)
        if comm is not None and not isinstance(error, Exception):
            mpi.abort_all(f"{type(error).__name__} in {at}")
        mpi.refuse_later_calls(comm, at)
        error.add_note(at)
        raise


def step_text(plan: RankPlan, number: int) -> str:
    """One line of text for a step of a rank; `number` counts from 1."""
    step = show_step(plan.steps[number - 1]).partition("\n")[0]
    return f"rank {plan.rank}, step {number}: {step}"


def last_steps(plan: RankPlan) -> str:
    """A text that names the steps of a rank after its last communication."""
    steps = enumerate(plan.steps, 1)
    communications = (n for n, s in steps if isinstance(s, Exchange | Finish | Reduce | Route))
    first = max(communications, default=0) + 1
    if first > len(plan.steps):
        return "no steps"
    return f"steps {first} to {len(plan.steps)}, from {show_step(plan.steps[first - 1])}"


def _run(worker: Worker, comm: Any) -> Carried:
    carried = Carried()
    begun: dict[int, PendingCalls] = {}
    for event in worker.run():
        _perform(event, worker, comm, carried, begun)
        del event  # its arrays may be blocks that a later step frees
    return carried


def _perform(
    event: Event, worker: Worker, comm: Any, carried: Carried, begun: dict[int, PendingCalls]
) -> None:
    """Perform a communication; `begun` are the transfers that were started, by handle."""
    match event:
        case Transfer():
            wait(start_transfer(event, worker, comm, carried), worker)
        case StartTransfer(transfer, handle):
            begun[handle] = start_transfer(transfer, worker, comm, carried)
        case FinishTransfer(handle):
            wait(begun.pop(handle), worker)
        case Reduction():
            wait(_reduce(event, worker, comm), worker)
            out, into = reduction_bytes(event, worker.plan.rank)
            carried.sent, carried.received = carried.sent + out, carried.received + into
            carried.messages += min(into, 1)


def wait(pending: PendingCalls, worker: Worker) -> None:
    """Wait until all calls of `pending` are complete, then run its `finish`; TargetError at the deadline."""
    incomplete = mpi.wait(pending.requests)
    if incomplete is not None:
        raise _deadline_error(worker, pending.what[incomplete])
    pending.finish()


def _deadline_error(worker: Worker, what: str) -> TargetError:
    return TargetError(
        f"rank {worker.plan.rank} could not {what} within {mpi.deadline():g} s (step {worker.at})",
        loc=here(),
        label="this call",
        hint="another rank failed or stalls; TDSL_MPI_DEADLINE is the time in seconds",
    )


def start_transfer(transfer: Transfer, worker: Worker, comm: Any, carried: Carried) -> PendingCalls:
    """Start an exchange by the nonblocking call for its collective, or message by message."""
    carried.received += sum(array.nbytes for _, array in transfer.receives)
    carried.sent += sum(array.nbytes for _, array in transfer.sends)
    count = len(transfer.receives)
    carried.messages += min(count, 1) if transfer.step.collective else count
    step, parcels = transfer.step, (*transfer.receives, *transfer.sends)
    if step.collective and _agreed_bytes(transfer) <= mpi.LARGEST:
        text = f"{step.collective} {_tensor(worker, parcels)} among ranks {_listed(step.ranks)}"
        group = mpi.group_communicator(comm, step.ranks)
        if group is None:
            raise _deadline_error(worker, text)
        request, finish = COLLECTIVES[step.collective](transfer, worker.plan.rank, group)
        return PendingCalls([request], [text], finish)
    requests: list[Any] = []
    texts: list[str] = []
    for n, (m, array) in enumerate(parcels):
        if n < len(transfer.receives):
            calls = mpi.start(comm.Irecv, array, m.tag % mpi.TAGS, source=m.rank)
        else:
            calls = mpi.start(comm.Isend, array, m.tag % mpi.TAGS, dest=m.rank)
        verb = "receive {} from" if n < len(transfer.receives) else "send {} to"
        requests += calls
        texts += [f"{verb.format(_tensor(worker, ((m, array),)))} rank {m.rank}"] * len(calls)
    return PendingCalls(requests, texts)


def _agreed_bytes(transfer: Transfer) -> int:
    """A bound of the bytes that a rank passes to a collective; all its ranks compute the same number.

    Of a broadcast or gather the bytes that every rank has at its end.
    """
    if transfer.bound is not None:
        return transfer.bound
    if transfer.step.collective == "all-to-all":
        message, array = transfer.sends[0]
        return transfer.step.bound * array.nbytes // element_count(message.box)
    sent = transfer.sends[0][1].nbytes if transfer.sends else 0
    return sent + sum(array.nbytes for _, array in transfer.receives)


def _tensor(worker: Worker, parcels: tuple[Parcel, ...]) -> str:
    m, _ = parcels[0]
    name = worker.buffers[m.buffer].tensor if m.buffer in worker.buffers else m.buffer
    return f"{name}[{show_box(m.box)}]"


def _listed(ranks: tuple[int, ...]) -> str:
    return ", ".join(map(str, ranks))


Started = tuple[Any, Callable[[], None]]  # a request, and a function to call when it is complete


def _broadcast(transfer: Transfer, me: int, group: Any) -> Started:
    (m, array), *_ = transfer.sends or transfer.receives
    root = transfer.step.ranks.index(me if transfer.sends else m.rank)
    return group.Ibcast(mpi.as_bytes(array), root=root), lambda: None


def _gather(transfer: Transfer, me: int, group: Any) -> Started:
    mine = mpi.as_bytes(transfer.sends[0][1]) if transfer.sends else np.empty(0, np.uint8)
    sizes = {m.rank: array.nbytes for m, array in transfer.receives} | {me: mine.size}
    buffer, counts, starts = _receive_buffer([sizes.get(r, 0) for r in transfer.step.ranks])
    byte = mpi.constant("BYTE")
    request = group.Iallgatherv(mine, [buffer, counts, starts, byte])
    return request, lambda: _unpack(transfer, buffer, starts)


def _exchange(transfer: Transfer, me: int, group: Any) -> Started:
    ranks, byte = transfer.step.ranks, mpi.constant("BYTE")
    sent_arrays = {m.rank: mpi.as_bytes(array) for m, array in transfer.sends}
    nothing = np.empty(0, np.uint8)
    packed = np.concatenate([sent_arrays.get(r, nothing) for r in ranks])
    _, send_counts, send_starts = _receive_buffer([sent_arrays.get(r, nothing).size for r in ranks])
    sizes = {m.rank: array.nbytes for m, array in transfer.receives}
    buffer, counts, starts = _receive_buffer([sizes.get(r, 0) for r in ranks])
    request = group.Ialltoallv([packed, send_counts, send_starts, byte], [buffer, counts, starts, byte])
    return request, lambda: _unpack(transfer, buffer, starts)


COLLECTIVES = {"broadcast": _broadcast, "all-gather": _gather, "all-to-all": _exchange}


def _receive_buffer(counts: list[int]) -> tuple[Array, list[int], list[int]]:
    """A buffer for `counts` bytes of each rank, the counts, and the displacements."""
    starts = list(itertools.accumulate(counts, initial=0))
    return np.empty(starts[-1], np.uint8), counts, starts[:-1]


def _unpack(transfer: Transfer, buffer: Array, starts: list[int]) -> None:
    """Copy the packed result of a collective into the receive arrays of `transfer`."""
    for m, array in transfer.receives:
        lo = starts[transfer.step.ranks.index(m.rank)]
        mpi.as_bytes(array)[...] = buffer[lo : lo + array.nbytes]


def _reduce(reduction: Reduction, worker: Worker, comm: Any) -> PendingCalls:
    """Start a reduction, in several calls if its bytes exceed the count of one."""
    step, kind = reduction.step, reduction.step.collective
    tensor = worker.buffers[step.source].tensor
    what = f"{kind} {tensor}[{show_box(step.box)}] among ranks {_listed(step.ranks)}"
    group = mpi.group_communicator(comm, step.ranks)
    if group is None:
        raise _deadline_error(worker, what)
    combined = reduction.combine.exprs[0]
    assert isinstance(combined, Binary)
    op = mpi.constant(OPERATORS[combined.op])
    parts = [part.reshape(-1) for part in reduction.parts]
    result = np.empty(0, parts[0].dtype) if reduction.result is None else reduction.result.reshape(-1)
    owners = [n for n, part in enumerate(step.parts) if part is not None]
    most = max(mpi.LARGEST // parts[0].itemsize, 1)
    if kind == "reduce-scatter" and sum(part.size for part in parts) <= most:
        counts = [0] * len(step.ranks)
        for n, part in zip(owners, parts, strict=True):
            counts[n] = part.size
        whole = np.concatenate(parts)
        request = group.Ireduce_scatter(whole, result, counts, op=op)
        return PendingCalls([request], [what], read=(whole,))  # mpi4py keeps no reference to it
    requests = []
    for n, part in zip(owners, parts, strict=False):
        mine = kind == "all-reduce" or step.ranks[n] == worker.plan.rank
        for lo in range(0, max(part.size, 1), most):
            given, got = part[lo : lo + most], result[lo : lo + most] if mine else None
            if kind == "all-reduce":
                requests.append(group.Iallreduce(given, got, op=op))
            else:
                requests.append(group.Ireduce(given, got, op=op, root=n))
    return PendingCalls(requests, [what] * len(requests))
