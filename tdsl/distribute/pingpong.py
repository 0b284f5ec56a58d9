"""Measures the latency and bandwidth of messages between two MPI ranks: run on both, rank 0 prints them.

The latency is half the round-trip time of one byte; the additional time of a large message gives the
bandwidth. Each time is the minimum of several.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import numpy as np

from tdsl.codegen.runtime.arrays import Array
from tdsl.distribute import mpi

LARGE = 1 << 23  # bytes of a message for which the latency is negligible


def ping_pong(comm: Any, seconds: float) -> tuple[float, float]:
    """Latency in s and bandwidth in bytes/s between ranks 0 and 1; takes `seconds` for each of two sizes."""
    small, large = (_one_way(comm, np.zeros(n, np.uint8), seconds) for n in (1, LARGE))
    return small, LARGE / max(large - small, 1e-12)


def _one_way(comm: Any, message: Array, seconds: float) -> float:
    best = float("inf")
    again = np.ones(1, np.uint8)
    end = time.perf_counter() + seconds
    while again[0]:
        start = time.perf_counter()
        for sender in (0, 1):
            if comm.rank == sender:
                comm.Send(message, 1 - sender)
            else:
                comm.Recv(message, sender)
        now = time.perf_counter()
        best, again[0] = min(best, (now - start) / 2), now < end
        comm.Bcast(again)  # both stop in the same iteration
    return best


if __name__ == "__main__":
    measured = ping_pong(mpi.communicator(), float(sys.argv[1]))
    if mpi.rank() == 0:
        sys.stdout.write(json.dumps(measured))
