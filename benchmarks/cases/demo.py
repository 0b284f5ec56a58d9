"""The programs of `tdsl demo`, with NumPy and numba as peers."""

from benchmarks import numba_peers
from benchmarks.case import SEARCH, Case, function, kernel, searched
from tdsl.tools import demo

WORK = {
    "blur": {"bytes": 2 * 4 * 2048**2},
    "equalize": {"bytes": 3 * 512**2},
    "dense": {"flops": 2 * 512 * 768 * 1024},
    "softmax": {"bytes": 2 * 4 * 4096 * 1000},
    "conv": {"flops": 2 * 4 * 28 * 28 * 64 * (32 * 9 + 32)},
}

CASES = tuple(
    Case(
        name=case.name,
        title=case.title,
        inputs=case.inputs,
        is_right=case.is_right,
        peers={
            "tdsl": kernel(case.default),
            "tdsl-hand": kernel(case.hand),
            SEARCH: searched(case.default),
            "numpy": function(case.numpy),
            "numba": numba_peers.peer(case.name),
        },
        group="demo",
        **WORK[case.name],
    )
    for case in demo.CASES
)
