"""All ranks in one process: each runs until what it waits for has been sent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tdsl.codegen.arrays import Array
from tdsl.distribute.engine import Transfer, Worker


@dataclass(frozen=True, slots=True)
class Traffic:
    """What was carried: bytes that each rank received and sent, and the number of messages it received."""

    received: tuple[int, ...]
    sent: tuple[int, ...]
    messages: tuple[int, ...]


def simulate(workers: Sequence[Worker]) -> Traffic:
    """Run all ranks to their end; the traffic as counted at each message."""
    runs = [w.run() for w in workers]
    waiting: dict[int, Transfer] = {}
    post: dict[tuple[int, int, int], Array] = {}
    received, sent, messages = ([0] * len(runs) for _ in range(3))
    ready = list(range(len(runs)))
    while ready:
        for rank in ready:
            transfer = next(runs[rank], None)
            if transfer is None:
                continue
            waiting[rank] = transfer
            for m, array in transfer.sends:
                key = (rank, m.rank, m.tag)
                assert key not in post, f"two messages from {rank} to {m.rank} with tag {m.tag}"
                post[key] = array.copy()
                sent[rank] += array.nbytes
        ready = [
            r for r, t in waiting.items() if all((m.rank, r, m.tag) in post for m, _ in t.receives)
        ]
        for rank in ready:
            for m, array in waiting.pop(rank).receives:
                array[...] = post.pop((m.rank, rank, m.tag))
                received[rank] += array.nbytes
                messages[rank] += 1
    assert not waiting, f"ranks {sorted(waiting)} wait for what nobody sends"
    assert not post, f"nobody receives {sorted(post)}"
    return Traffic(tuple(received), tuple(sent), tuple(messages))
