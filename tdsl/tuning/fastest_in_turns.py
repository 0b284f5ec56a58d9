"""`fastest_in_turns`: times of calls that are compared with each other."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

ROUND_S = 2e-3  # minimal seconds of a round of calls
MIN_ROUNDS = 5
HOPELESS = 1.5  # times the first call, from which few rounds are enough


def fastest_in_turns(calls: Sequence[Callable[[], object]], seconds: float = 0.0) -> list[float]:
    """The seconds of each call in its fastest round; rounds alternate, so that slow phases hit all.

    There are rounds for `seconds` seconds, at least `MIN_ROUNDS`, and no more than these if all calls take
    clearly longer than the first.
    """
    counts, fastest = [1] * len(calls), [float("inf")] * len(calls)
    end, rounds = time.perf_counter() + seconds, 0
    while rounds < MIN_ROUNDS or time.perf_counter() < end:
        for n, call in enumerate(calls):
            start = time.perf_counter()
            for _ in range(counts[n]):
                call()
            fastest[n] = min(fastest[n], (time.perf_counter() - start) / counts[n])
            counts[n] = max(1, int(ROUND_S / max(fastest[n], 1e-9)))
        rounds += 1
        if rounds >= MIN_ROUNDS and min(fastest[1:], default=float("inf")) > HOPELESS * fastest[0]:
            break
    return fastest
