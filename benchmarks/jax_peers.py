"""Peers that compute with JAX on the CPU.

peers={"tdsl": ..., "jax": jax_peers.peer(lambda jax, x: jax.nn.softmax(x, -1))}
"""

import functools
import os
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.case import Arrays, Call, Converted, PeerMissing, Prepare


def peer(f: Callable[..., Any]) -> Prepare:
    """`f(jax, *arrays)` as a peer, through jax.jit, with its input on the device before it is timed."""

    def prepare(arrays: Arrays) -> Call:
        _limit_threads()
        try:
            import jax
        except ImportError:
            raise PeerMissing("pip install jax") from None
        jax.config.update("jax_platforms", "cpu")
        if any(a.dtype.itemsize == 8 for a in arrays):
            jax.config.update("jax_enable_x64", True)
        run = jax.jit(functools.partial(f, jax))
        inputs = jax.device_put(arrays)
        return Converted(lambda: jax.block_until_ready(run(*inputs)), np.asarray)

    return prepare


def _limit_threads() -> None:
    """XLA has a thread for each core that the process may use: there is no other way to say how many."""
    if hasattr(os, "sched_setaffinity"):
        count = int(os.environ.get("OMP_NUM_THREADS", os.cpu_count() or 1))
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:count])
