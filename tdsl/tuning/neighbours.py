"""Neighbours of a schedule: the same directives with one parameter changed.

The parameters are those that the directives of a candidate already have: factors of `split`, widths of
`vectorize`, whether a loop is unrolled or parallel, the order of loops, and the loop of `compute_at`. Whether
a neighbour is legal is decided by the directives themselves when they are replayed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

Rows = list[dict[str, Any]]

SCALES = (2, 0.5, 4, 0.25, 1.5, 0.75)  # of factors that are tried
STEPS = (1, -1, 2, -2)  # added to factors below SMALL
SMALL = 16
MAX_FACTOR = 1 << 16
SWITCHES = {"unroll", "parallel", "stream_stores", "prefetch"}  # directives that may be left out


def neighbours(directives: str) -> Iterator[tuple[str, str]]:
    """Labels and directives (JSON text) of the schedules that differ in one parameter.

    Equal factors of loops of one name are also changed together, since they belong to one tile.

    >>> rows = '[{"do": "split", "func": "f", "definition": 0, "loop": "i", "factor": 4}]'
    >>> [label for label, _ in neighbours(rows)][:3]
    ['f.split i 4 -> 8', 'f.split i 4 -> 2', 'f.split i 4 -> 16']
    """
    rows: Rows = json.loads(directives)
    for n, row in enumerate(rows):
        name = f"{row['func']}.{row['do']}"
        factor = row.get("factor")
        if isinstance(factor, int) and factor > 1:
            together = [m for m, other in enumerate(rows) if _is_same_parameter(row, other)]
            for value in _other_factors(row["do"], factor):
                label = f"{name} {row['loop']} {factor} -> {value}"
                yield label, _changed(rows, {n: {"factor": value}})
                if len(together) > 1 and together[0] == n:
                    yield f"{label}, together", _changed(rows, {m: {"factor": value} for m in together})
        if row["do"] in SWITCHES:
            yield f"{name} {row.get('loop', '')} left out", json.dumps(rows[:n] + rows[n + 1 :])
        if row["do"] == "compute_at":
            for loop in _loops_of(rows, row["consumer"], row["consumer_definition"]):
                if loop != row["loop"]:
                    yield f"{name} {row['loop']} -> {loop}", _changed(rows, {n: {"loop": loop}})
        if row["do"] == "reorder":
            loops = row["loops"]
            for k in range(len(loops) - 1):
                swapped = [*loops[:k], loops[k + 1], loops[k], *loops[k + 2 :]]
                label = f"{name} {loops[k]} with {loops[k + 1]}"
                yield label, _changed(rows, {n: {"loops": swapped}})


def _is_same_parameter(row: dict[str, Any], other: dict[str, Any]) -> bool:
    if row["do"] != other["do"] or other.get("factor") != row["factor"]:
        return False
    return str(row["loop"]).partition("_")[0] == str(other["loop"]).partition("_")[0]


def _other_factors(directive: str, factor: int) -> list[int]:
    values = [int(factor * scale) for scale in SCALES]
    if directive == "vectorize":
        values = [factor * 2, factor // 2, factor * 4]
    elif factor < SMALL:
        values += [factor + step for step in STEPS]
    return [v for v in dict.fromkeys(values) if 1 <= v <= MAX_FACTOR and v != factor]


def _loops_of(rows: Rows, func: str, definition: int) -> list[str]:
    """The loops that the last `reorder` of a stage names: the places where producers may be computed."""
    orders = [
        r["loops"] for r in rows if (r["do"], r["func"], r["definition"]) == ("reorder", func, definition)
    ]
    return list(orders[-1]) if orders else []


def _changed(rows: Rows, changes: dict[int, dict[str, Any]]) -> str:
    return json.dumps([{**row, **changes.get(n, {})} for n, row in enumerate(rows)])
