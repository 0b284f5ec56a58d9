"""What a default schedule knows of the processor."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Machine:
    """The bytes of a vector (0: the backend makes no vectors), and the number of threads."""

    vector_bytes: int = 0
    threads: int = 1
