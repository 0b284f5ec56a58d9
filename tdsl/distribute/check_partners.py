"""Verification of a plan by all ranks of a run, each of which plans its own steps only.

Where there are too many ranks for each to verify the plans of all, they swap what they post to each other in
the verification (`check_messages.py`): rounds of an all-to-all of counts and of messages between partners.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from typing import Any

from tdsl.distribute import mpi
from tdsl.distribute.check import PartnerFault, check_with_partners
from tdsl.distribute.check_messages import Post
from tdsl.distribute.plan import Plan


def verify_with_partners(plan: Plan, comm: Any) -> None:
    """Raise PlanFault on all ranks of a communicator unless the plan is correct; all of them call it."""

    def swap(posts: Mapping[int, Sequence[Post]] | None) -> tuple[list[Post], bool]:
        packed = None if posts is None else {rank: pickle.dumps(list(p)) for rank, p in posts.items()}
        received, failed, active = mpi.exchange_bytes(comm, packed)
        if failed and posts is not None:
            raise PartnerFault(f"the plan of rank {failed[0]} is incorrect")
        return [post for part in received.values() for post in pickle.loads(part)], active

    check_with_partners(plan, comm.rank, swap)
