"""One peer of one case in a process of its own: `python -m benchmarks.worker CASE PEER`.

It prepares and checks the peer, writes one line of JSON, then times as many calls as each line of its
input says and answers with their times in milliseconds.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

from benchmarks.case import Case, Compiled, Converted, PeerMissing
from benchmarks.cases import find


def prepare(case: Case, peer: str) -> tuple[dict[str, Any], Callable[[], object]]:
    """The first line for the parent, and the call to be timed."""
    arrays = case.inputs()
    start = time.perf_counter()
    try:
        call = case.prepare_peer(peer)(arrays)
    except PeerMissing as missing:
        return {"missing": str(missing)}, lambda: None
    result = call()
    first_ms = 1e3 * (time.perf_counter() - start)
    right = case.is_right(result, arrays)
    timed = call.call if isinstance(call, Converted | Compiled) else call
    if isinstance(call, Compiled):
        compile_ms = times_ms(call.again, 1)[0]
    else:
        compile_ms = max(0.0, first_ms - times_ms(timed, 1)[0])
    return {"right": right, "compile_ms": compile_ms}, timed


def times_ms(call: Callable[[], object], count: int) -> list[float]:
    """The times of `count` calls after one that is not counted."""
    call()
    times = []
    for _ in range(count):
        start = time.perf_counter()
        call()
        times.append(1e3 * (time.perf_counter() - start))
    return times


def main() -> None:
    """Serve the parent until it closes our input."""
    # Whatever a library prints goes to stderr; only answers go to the parent.
    with os.fdopen(os.dup(1), "w", buffering=1) as answers:
        os.dup2(2, 1)
        first, call = prepare(find(sys.argv[1]), sys.argv[2])
        answers.write(json.dumps(first) + "\n")
        for line in sys.stdin:
            answers.write(json.dumps(times_ms(call, int(line))) + "\n")


if __name__ == "__main__":
    main()
