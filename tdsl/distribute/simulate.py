"""Executes all ranks in one process: each runs until it waits for a message or a collective."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tdsl.codegen.runtime.arrays import Array
from tdsl.communication.steps import part_size, reduction_volume
from tdsl.core.node import frozen
from tdsl.distribute.engine import FinishTransfer, Reduction, StartTransfer, Transfer, Worker, merge


@frozen
class Traffic:
    """The bytes that each rank received and sent, and the number of messages that it received."""

    received: tuple[int, ...]
    sent: tuple[int, ...]
    messages: tuple[int, ...]


def simulate(workers: Sequence[Worker]) -> Traffic:
    """Run all ranks to their end; returns the traffic as counted at each message."""
    runs = [w.run() for w in workers]
    waiting: dict[int, Transfer | Reduction] = {}
    begun: dict[tuple[int, int], Transfer] = {}
    in_flight: dict[tuple[int, int, int], Array] = {}
    received, sent, messages = ([0] * len(runs) for _ in range(3))

    def send(rank: int, transfer: Transfer) -> None:
        for m, array in transfer.sends:
            key = (rank, m.rank, m.tag)
            assert key not in in_flight, f"two messages from {rank} to {m.rank} with tag {m.tag}"
            in_flight[key] = array.copy()
            sent[rank] += array.nbytes

    def is_ready(rank: int) -> bool:
        match waiting[rank]:
            case Transfer(_, _, receives):
                return all((m.rank, rank, m.tag) in in_flight for m, _ in receives)
            case Reduction(step):
                others = (waiting.get(r) for r in step.ranks)
                key = step.tag, step.ranks  # the phases of a reduction have one tag
                return all(isinstance(o, Reduction) and (o.step.tag, o.step.ranks) == key for o in others)

    ready = list(range(len(runs)))
    while ready:
        for rank in ready:
            for event in runs[rank]:
                match event:
                    case StartTransfer(transfer, handle):
                        begun[rank, handle] = transfer
                        send(rank, transfer)
                        continue
                    case FinishTransfer(handle):
                        waiting[rank] = begun.pop((rank, handle))
                    case Transfer():
                        waiting[rank] = event
                        send(rank, event)
                    case Reduction():
                        waiting[rank] = event
                break
        ready = [r for r in waiting if is_ready(r)]
        groups = {r: waiting[r] for r in ready}
        for rank in ready:
            match waiting[rank]:
                case Transfer(step, _, receives):
                    for m, array in receives:
                        array[...] = in_flight.pop((m.rank, rank, m.tag))
                        received[rank] += array.nbytes
                    messages[rank] += min(len(receives), 1) if step.collective else len(receives)
                case Reduction() as reduction:
                    _reduce(reduction, rank, groups, workers)
                    out, into = reduction_bytes(reduction, rank)
                    sent[rank] += out
                    received[rank] += into
                    messages[rank] += min(into, 1)
            del waiting[rank]
    assert not waiting, f"ranks {sorted(waiting)} wait for what nobody sends"
    assert not in_flight, f"nobody receives {sorted(in_flight)}"
    return Traffic(tuple(received), tuple(sent), tuple(messages))


def _reduce(
    reduction: Reduction,
    rank: int,
    reductions: Mapping[int, Transfer | Reduction],
    workers: Sequence[Worker],
) -> None:
    """Compute a rank's result of a reduction, combined in the order of ranks."""
    if reduction.result is None:
        return
    kind, receivers = (
        reduction.step.collective,
        [r for r, p in zip(reduction.step.ranks, reduction.step.parts, strict=True) if p is not None],
    )
    n = receivers.index(rank) if kind == "reduce-scatter" else 0
    so_far: Array | None = None
    for other in reduction.step.ranks:
        operand = reductions[other]
        assert isinstance(operand, Reduction)
        if so_far is None:
            so_far = operand.parts[n].copy()
        else:
            merge(reduction.combine, (so_far,), (operand.parts[n],), workers[rank].scalars)
    assert so_far is not None
    reduction.result[...] = so_far


def reduction_bytes(reduction: Reduction, rank: int) -> tuple[int, int]:
    """The bytes that a rank sends and receives in a reduction, by the sizes of its arrays.

    Counted as point-to-point messages (all-reduce: reduce-scatter + all-gather), by `reduction_volume`.
    """
    kind, members = reduction.step.collective, len(reduction.step.ranks)
    whole, itemsize = sum(part.nbytes for part in reduction.parts), reduction.parts[0].itemsize
    part = 0 if reduction.result is None else reduction.result.nbytes
    if kind == "all-reduce":
        part = itemsize * part_size(whole // itemsize, members, reduction.step.ranks.index(rank))
    return reduction_volume(kind, members, whole, part)
