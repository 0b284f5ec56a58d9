"""The MPI run of this process, through mpi4py, which is imported in this file only and when needed.

Before its first message a call agrees with all ranks on the program, and no rank waits longer than a
deadline: a rank that fails, stalls or runs another program ends the whole run. At the end of a call each rank
notifies the next one, which waits for that notice before its next call, or before it exits.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib.util
import os
import sys
import time
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import numpy as np

from tdsl.codegen.runtime.arrays import Array
from tdsl.core.node import frozen
from tdsl.core.source import here
from tdsl.distribute.abort import abort_ranks, install_hook, is_launched
from tdsl.errors import TargetError

__all__ = ["communicator", "rank", "size"]

# MPI guarantees tags below 1 << 15; messages of a pair keep their order, so tags may be reused
TAGS = (1 << 15) - 5
# tags of messages outside of plans: joining a communicator, gathering, end of a call, waiting for a call,
# verification of a plan
TAG_JOIN, TAG_GATHER, TAG_END, TAG_WAIT, TAG_CHECK = range(TAGS, TAGS + 5)
LARGEST = (1 << 31) - 1  # bytes of one message: the largest count before MPI 4
SPINS = 100  # tests before a waiting rank sleeps between tests
PAUSE_S = 50e-6
LISTEN_S = 1.0  # to learn which other ranks wait for a call, if one is missing
DIGEST, TEXT = 32, 480  # bytes of the digest and the error that a rank sends before a call


def size() -> int:
    """The number of ranks of this run; 1 without mpi4py.

    Raises TargetError in a run of several ranks if mpi4py is missing, or belongs to another MPI than the
    launcher: each rank would then see a run of one.
    """
    comm = communicator()
    return 1 if comm is None else int(comm.size)


def rank() -> int:
    """The rank of this process; 0 without mpi4py."""
    comm = communicator()
    return 0 if comm is None else int(comm.rank)


@cache
def communicator() -> Any:
    """A duplicate of MPI.COMM_WORLD; None without mpi4py. TargetError as in `size`."""
    several = is_launched()
    if importlib.util.find_spec("mpi4py") is None:
        if several:
            raise TargetError(
                "this is a run of several ranks, but mpi4py is not installed",
                loc=here(),
                label="needed here",
                hint='pip install "tdsl[mpi]"',
            )
        return None
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:  # RuntimeError: the MPI library cannot be loaded
        raise TargetError(
            f"mpi4py is installed, but cannot be imported: {error}",
            loc=here(),
            label="needed here",
            hint='pip install --force-reinstall "tdsl[mpi]", or load the MPI that mpi4py was built with',
        ) from error
    comm = MPI.COMM_WORLD.Dup()
    if several and comm.size == 1:
        raise TargetError(
            "this is a run of several ranks, but mpi4py, of another MPI, sees one",
            loc=here(),
            label="needed here",
            hint="launch by the MPI of mpi4py: tdsl run -n 4 ..., its mpiexec, or srun --mpi=...",
        )
    if comm.size > 1:
        install_hook()
        atexit.register(_check_end)
    return comm


def abort_all(why: str) -> None:
    """Write `why` to stderr and abort all ranks."""
    sys.stderr.write(f"{why}\n")
    abort_ranks(1)


def _check_end() -> None:
    """Abort all ranks if the previous rank has not reached the end of the last call."""
    from mpi4py import MPI

    error = "" if MPI.Is_finalized() else _wait_for_previous_rank()
    if error:
        abort_all(error)


@frozen
class EndedCall:
    """A call that has ended on this rank: the requests of the notices to the next and from the previous rank.

    `before` is the previous rank; `last` gives a text with its steps after its last message.
    """

    requests: tuple[Any, ...]
    previous: int
    last: Callable[[], str]


_ended_calls: list[EndedCall] = []


def notify_end(comm: Any, last: Callable[[int], str]) -> None:
    """Notify the next rank that a call has ended here; `last(r)` names the last steps of rank r."""
    if comm is None or comm.size == 1:
        return
    previous, empty = (comm.rank - 1) % comm.size, np.zeros(0, np.uint8)
    received = comm.Irecv(empty, source=previous, tag=TAG_END)
    sent = comm.Isend(empty, dest=(comm.rank + 1) % comm.size, tag=TAG_END)
    _ended_calls.append(EndedCall((received, sent), previous, lambda: last(previous)))


def _wait_for_previous_rank() -> str:
    """An error message if the previous rank does not reach the end of the last call in time, else ""."""
    while _ended_calls:
        call = _ended_calls.pop()
        if wait(list(call.requests)) is not None:
            return (
                f"rank {call.previous} did not come to the end of a call within {deadline():g} s: "
                f"rank {communicator().rank} has, which had its last message; left are {call.last()}"
            )
    return ""


def deadline() -> float:
    """The seconds that a rank waits for another: TDSL_MPI_DEADLINE, by default 300.

    TargetError unless the variable is a positive number.
    """
    text = os.environ.get("TDSL_MPI_DEADLINE", "300")
    with contextlib.suppress(ValueError):
        if (seconds := float(text)) > 0:
            return seconds
    raise TargetError(
        f"TDSL_MPI_DEADLINE is a number of seconds, not {text!r}",
        loc=here(),
        label="needed here",
        hint="TDSL_MPI_DEADLINE=300",
    )


def ranks_of(grid_size: int, idle: int = 0) -> Any:
    """The communicator; TargetError unless it has the ranks of the grid and the idle ones."""
    if size() != grid_size + idle:
        count = f"grid has {grid_size} ranks"
        if idle:
            count = f"schedule has {grid_size + idle} ranks, of which {idle} are idle"
        raise TargetError(
            f"the {count}, this run has {size()}",
            loc=here(),
            label="this call",
            hint=f"mpiexec -n {grid_size + idle} python ..., or simulate(...) in one process"
            + ("" if size() <= grid_size else f"; s.ranks({size()}) leaves others idle"),
        )
    return communicator()


def check_agreement(
    comm: Any,
    what: str,
    error: str,
    *,
    hint: str = "p.block(name, array) is what a rank owns of a whole array",
    differs: str = "runs another program, other sizes or another version",
) -> None:
    """Raise TargetError on all ranks if one has an error, or their digests `what` differ.

    Also on this rank if an earlier call was interrupted: its messages could match those of this call. `hint`
    is that of errors; `differs` says what a rank with another digest does.
    """
    if _interrupted:
        raise TargetError(
            f"an earlier call ended half way on this rank: {_interrupted[0]}",
            loc=here(),
            label="this call",
            hint="end the run: ranks no longer agree on which messages are on their way",
        )
    packed = [_pack(what, error)] if comm is None else _all_gather_bytes(comm, _pack(what, error))
    for other, bits in enumerate(packed):
        wrong = bits[DIGEST:].rstrip(b"\0").decode(errors="replace")
        if wrong:
            raise TargetError(
                f"rank {other}: {wrong}", loc=here(), label="this call", hint=hint
            )  # fmt: skip
    for other, bits in enumerate(packed):
        if bits[:DIGEST] != packed[0][:DIGEST]:
            raise TargetError(
                f"rank {other} {differs} than rank 0",
                loc=here(),
                label="this call",
                hint="let all ranks make the same schedule, and install the same version of tdsl",
            )


def refuse_later_calls(comm: Any, why: str) -> None:
    """Refuse later calls after one that was interrupted; not in a run of one rank, which has no messages."""
    if comm is not None and comm.size > 1:
        _interrupted.append(why)


_interrupted: list[str] = []


def _pack(what: str, error: str) -> bytes:
    return bytes.fromhex(what) + error.encode()[:TEXT].ljust(TEXT, b"\0")


def _all_gather_bytes(comm: Any, mine: bytes) -> list[bytes]:
    """The bytes `mine` of each rank, by an all-gather; TargetError if a rank is missing at the deadline."""
    received = np.empty((comm.size, len(mine)), np.uint8)
    error = _wait_for_previous_rank()
    if not error:
        requests = [comm.Iallgather(np.frombuffer(mine, np.uint8), received)]
        if wait(requests, deadline() / 2) is not None:
            waiting = _announce_waiting(comm)
            missing = wait(requests, deadline() / 2 + LISTEN_S) is not None
            silent = [r for r, notice in waiting.items() if not notice.Test()]
            for r in silent:
                waiting[r].Cancel()
            if missing:
                error = f"rank {comm.rank} waited {deadline():g} s for {_named(silent)} to call this program"
    if error:
        refuse_later_calls(comm, error)
        raise TargetError(
            error,
            loc=here(),
            label="this call",
            hint="every rank calls it; TDSL_MPI_DEADLINE is the time in seconds",
        )
    return [row.tobytes() for row in received]


def gather_bytes(comm: Any, message: bytes | None) -> list[bytes] | None:
    """The bytes that each rank passes, on rank 0; [] on the others, and None on all if a rank passes None.

    All ranks call it. TargetError if a rank is missing at the deadline.
    """
    if comm is None:
        return None if message is None else [message]
    sent = None if message is None else {0: message}
    received, failed, _ = exchange_bytes(comm, sent, purpose="gather their messages")
    return None if failed else [received[n] for n in sorted(received)]


def exchange_bytes(
    comm: Any, messages: Mapping[int, bytes] | None, *, purpose: str = "compare plans"
) -> tuple[dict[int, bytes], list[int], bool]:
    """The bytes that each rank sends to this one, the ranks that pass None, and if any rank sends bytes.

    All ranks call it; nothing is sent if one passes None. TargetError, which says for which `purpose` ranks
    wait, if a rank is missing at the deadline.
    """
    counts, received = np.zeros((2, comm.size), np.int64)
    counts[:] = -1 if messages is None else int(bool(messages))
    for rank, message in (messages or {}).items():
        counts[rank] += 2 * len(message)
    _wait_for_others(comm, [comm.Ialltoall(counts, received)], purpose)
    failed = np.flatnonzero(received < 0).tolist()
    if failed or messages is None:
        return {}, failed, False
    arrays = {int(r): np.empty(received[r] // 2, np.uint8) for r in np.flatnonzero(received > 1)}
    requests = [r for n, a in arrays.items() for r in start(comm.Irecv, a, TAG_CHECK, source=n)]
    for rank, message in messages.items():
        requests += start(comm.Isend, np.frombuffer(message, np.uint8), TAG_CHECK, dest=rank)
    _wait_for_others(comm, requests, purpose)
    return {n: a.tobytes() for n, a in arrays.items()}, [], bool((received & 1).any())


def _wait_for_others(comm: Any, requests: list[Any], purpose: str) -> None:
    """Wait for requests; TargetError at the deadline."""
    if wait(requests) is not None:
        error = f"rank {comm.rank} waited {deadline():g} s for others to {purpose}"
        refuse_later_calls(comm, error)
        raise TargetError(
            error, loc=here(), label="this call",
            hint="every rank calls it; TDSL_MPI_DEADLINE is the time in seconds",
        )  # fmt: skip


def _announce_waiting(comm: Any) -> dict[int, Any]:
    """Notify all other ranks that this one waits for a call; returns a receive of their notices."""
    empty = np.zeros(0, np.uint8)
    others = [r for r in range(comm.size) if r != comm.rank]
    notices = {r: comm.Irecv(empty, source=r, tag=TAG_WAIT) for r in others}
    _pending_sends.extend(comm.Isend(empty, dest=r, tag=TAG_WAIT) for r in others)
    return notices


_pending_sends: list[Any] = []  # sends that may never be received


def _named(ranks: list[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}" if ranks else "the others"


def group_communicator(comm: Any, ranks: tuple[int, ...]) -> Any:
    """The communicator of some ranks, created at its first use; None if one of them is late."""
    if comm is None or len(ranks) == comm.size:
        return comm
    if ranks not in _groups:
        # Create_group blocks without a deadline, so the ranks first notify each other
        empty = np.zeros(0, np.uint8)
        others = [r for r in ranks if r != comm.rank]
        requests = [comm.Irecv(empty, source=r, tag=TAG_JOIN) for r in others]
        requests += [comm.Isend(empty, dest=r, tag=TAG_JOIN) for r in others]
        if wait(requests) is not None:
            return None
        _groups[ranks] = comm.Create_group(comm.group.Incl(ranks))
    return _groups[ranks]


_groups: dict[tuple[int, ...], Any] = {}


def constant(name: str) -> Any:
    """A constant of MPI: an operator or a datatype."""
    from mpi4py import MPI

    return getattr(MPI, name)


def wait(requests: list[Any], seconds: float | None = None) -> int | None:
    """Wait for requests until the deadline; returns the index of the first incomplete one, or None."""
    until = time.monotonic() + (deadline() if seconds is None else seconds)
    tries = 0
    while True:
        left = [n for n, r in enumerate(requests) if not r.Test()]
        if not left:
            return None
        if time.monotonic() > until:
            return left[0]
        tries += 1
        if tries > SPINS:
            time.sleep(PAUSE_S)


def as_bytes(array: Array) -> Array:
    """A contiguous array as a flat view of its bytes."""
    return array.reshape(-1).view(np.uint8)


def start(call: Callable[..., Any], array: Array, tag: int, **other: int) -> list[Any]:
    """Start to send or receive an array, in several messages if it is larger than `LARGEST`."""
    whole = as_bytes(array)
    cuts = range(0, max(whole.size, 1), LARGEST)
    return [call(whole[lo : lo + LARGEST], tag=tag, **other) for lo in cuts]


def gather(comm: Any, name: str, parts: dict[int, Array], mine: Array | None, root: int) -> None:
    """Gather the blocks of an array on rank `root`, where `parts` has memory for each source.

    TargetError with the missing ranks at the deadline; this rank then refuses later calls.
    """
    requests: list[Any] = []
    ranks: list[int] = []  # with whom each request communicates
    if comm is None or comm.rank == root:
        for source, array in parts.items():
            if source == root:
                array[...] = mine
            else:
                requests += start(comm.Irecv, array, TAG_GATHER, source=source)
                ranks += [source] * (len(requests) - len(ranks))
    elif mine is not None:
        requests = start(comm.Isend, mine, TAG_GATHER, dest=root)
        ranks = [root] * len(requests)
    if wait(requests) is not None:
        missing = sorted({r for r, request in zip(ranks, requests, strict=True) if not request.Test()})
        error = f"rank {comm.rank} waited {deadline():g} s for {_named(missing)} to gather {name!r}"
        refuse_later_calls(comm, error)
        raise TargetError(
            error,
            loc=here(),
            label="this call",
            hint="every rank calls gather; TDSL_MPI_DEADLINE is the time in seconds",
        )


def __dir__() -> list[str]:
    return [*__all__]
