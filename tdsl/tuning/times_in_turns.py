"""Times of calls that are compared with each other.

Other processes only make calls slower, so a call is described by a low quantile of its times. Rounds are
shorter than the slices of time that the system gives to processes, so that some rounds are undisturbed on a
busy machine, too.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

ROUND_S = 3e-5  # minimal seconds of a round of calls
MIN_ROUNDS = 5
HOPELESS = 1.5  # times the first call, from which a quarter of the rounds is enough
FAST = 0.1  # the quantile of times by which calls are compared
PAGE = 4096  # bytes
USUAL = 0.5  # the quantile that other processes have slowed down if the machine is busy


def times_in_turns(calls: Sequence[Callable[[], object]], seconds: float = 0.0) -> list[list[float]]:
    """The seconds of each call in each round; calls take turns, in alternating order.

    There are rounds for `seconds` seconds, at least `MIN_ROUNDS`; fewer if all calls take clearly longer than
    the first.
    """
    counts, fastest = [1] * len(calls), [float("inf")] * len(calls)
    times: list[list[float]] = [[] for _ in calls]
    order = [*range(len(calls))]
    start = time.perf_counter()
    while len(times[0]) < MIN_ROUNDS or time.perf_counter() < start + seconds:
        for n in order:
            call, count = calls[n], counts[n]
            before = time.perf_counter()
            for _ in range(count):
                call()
            spent = (time.perf_counter() - before) / count
            times[n].append(spent)
            fastest[n] = min(fastest[n], spent)
            counts[n] = max(1, round(ROUND_S / max(fastest[n], 1e-9)))
        order.reverse()
        is_hopeless = min(fastest[1:], default=0.0) > HOPELESS * fastest[0]
        if is_hopeless and len(times[0]) >= MIN_ROUNDS and time.perf_counter() > start + seconds / 4:
            break
    return times


def fastest_in_turns(calls: Sequence[Callable[[], object]], seconds: float = 0.0) -> list[float]:
    """The seconds of each call in its fast rounds; see `times_in_turns`."""
    return [float(np.quantile(times, FAST)) for times in times_in_turns(calls, seconds)]


def least_favourable(times: Sequence[float], default_times: Sequence[float]) -> tuple[float, float]:
    """The seconds of a call and of the default where their ratio is largest: in fast, or in usual rounds.

    On a busy machine usual rounds have fewer processors than fast ones; a schedule that is better in one of
    the two only is not better.

    >>> least_favourable([1.0, 1.0, 3.0], [2.0, 2.0, 2.0])
    (1.0, 2.0)
    >>> least_favourable([1.0, 3.0, 3.0], [2.0, 2.0, 2.0])
    (3.0, 2.0)
    """
    pairs = [(float(np.quantile(times, q)), float(np.quantile(default_times, q))) for q in (FAST, USUAL)]
    return max(pairs, key=lambda pair: pair[0] / pair[1])


def placed(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """A copy that begins at a random multiple of 16 bytes in a page, as arrays of callers do.

    Times can depend on it: vectors may cross cache lines, and loads wait for earlier stores to the same
    offset in another page.
    """
    strides = np.empty_like(x, subok=False).strides
    memory = np.empty(x.nbytes + PAGE, np.uint8)
    copy = np.ndarray(x.shape, x.dtype, memory, random.randrange(0, PAGE, 16), strides)
    copy[...] = x
    return copy
