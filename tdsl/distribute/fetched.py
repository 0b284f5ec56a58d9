"""How the sources of an iteration are fetched."""

from __future__ import annotations

from dataclasses import dataclass, field

from tdsl.communication.steps import Exchange, Reduce, Step


@dataclass(slots=True)
class Fetched:
    """The fetches of an iteration: buffers allocated, the buffer of each source, exchanges, later copies.

    `overlapped` are exchanges that end in the middle of the task."""

    allocated: list[str] = field(default_factory=list)
    buffers: dict[str, str] = field(default_factory=dict)
    exchanges: list[Exchange] = field(default_factory=list)
    overlapped: list[Exchange] = field(default_factory=list)
    reductions: list[Reduce] = field(default_factory=list)
    copies: list[Step] = field(default_factory=list)
    handles: list[int] = field(default_factory=list)


@dataclass(slots=True)
class StartSteps:
    """The steps that start a fetch before its iteration: allocations and receives, and sends.

    Collectives are with the sends: they start when their data are there.
    """

    receives: list[Step]
    sends: list[Step] = field(default_factory=list)


def merge_exchanges(a: Exchange, b: Exchange) -> Exchange:
    """All messages of two exchanges at once."""
    return Exchange(a.sends + b.sends, a.receives + b.receives)
