"""Verification of the plan of one rank against its partners, by hashes that ranks exchange.

Where there are too many ranks for each to verify the plans of all (`check.py`), each one plans its own steps
only. Two ranks add up the hashes of all messages and collectives that they share; the sums are equal only if
each send of the one has a receive of the other, of the same box of the same tensor, with the same tag and
collective, and if they see the same members, boxes and parts of reductions.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tdsl.communication.steps import Allocate, Exchange, RankPlan, Reduce, Route, Start
from tdsl.distribute.buffer_contents import PlanFault


def message_hashes(plan: RankPlan, ranks: int) -> NDArray[np.uint64]:
    """For each of `ranks` ranks the sum of the hashes of what the rank of a plan shares with it (mod 2**64).

    >>> from tdsl.communication.steps import Message
    >>> box = ((0, 4),)
    >>> send = RankPlan(0, (("a", box),), (Exchange((Message(1, 7, "a", box),), ()),))
    >>> receive = RankPlan(1, (("a", box),), (Exchange((), (Message(0, 7, "a", box),)),))
    >>> bool(message_hashes(send, 2)[1] == message_hashes(receive, 2)[0])
    True
    """
    sums = [0] * ranks
    tensors = {name: name for name, _ in plan.owned}

    def add(x: Exchange) -> None:
        for messages, sends in ((x.sends, True), (x.receives, False)):
            for m in messages:
                ends = (plan.rank, m.rank) if sends else (m.rank, plan.rank)
                sums[m.rank] += _hash(ends, m.tag, tensors[m.buffer], m.box, x.collective, x.ranks)

    for step in plan.steps:
        match step:
            case Allocate(buffer, tensor, _):
                tensors[buffer] = tensor
            case Exchange() as x:
                add(x)
            case Start(x):
                add(x)
            case Reduce(members, tag, source, _, box, parts):
                value = _hash(members, tag, tensors[source], box, parts)
                for rank in members:
                    sums[rank] += value
            case Route(ranks=members):
                value = _hash(replace(step, index=None, target=None))
                for rank in members:
                    sums[rank] += value
            case _:
                pass
    sums[plan.rank] = 0
    return np.array([value % 2**64 for value in sums], np.uint64)


def _hash(*what: object) -> int:
    return int.from_bytes(hashlib.blake2b(repr(what).encode(), digest_size=8).digest(), "little")


def check_hashes(rank: int, mine: NDArray[np.uint64], theirs: NDArray[np.uint64]) -> None:
    """PlanFault if the sum of another rank for this one differs from that of this rank for the other."""
    for other in np.flatnonzero(mine != theirs):
        raise PlanFault(f"ranks {rank} and {other} plan different messages between them")
