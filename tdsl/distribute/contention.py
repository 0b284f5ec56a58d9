"""Transfers over links: when each begins and ends, where ranks have ports of their own and share others.

A transfer has the ports of its ranks alone, and waits until all of them are free; of those that wait, the one
that became ready first begins. Links that ranks share divide their bandwidth by max-min fairness (Bertsekas
and Gallager, Data Networks, 6.5.2): the rates of all transfers rise together until a link is full or a
transfer has the bandwidth of its own link, and those of the others rise on. A collective is one transfer, all
of whose messages progress at one rate (a coflow: Chowdhury and Stoica, HotNets 2012).
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from tdsl.core.node import frozen

EPSILON = 1e-12  # the part of a transfer below which it is complete


@frozen
class Port:
    """One direction of a link, of a rank or, at a level of the grid, of ranks that share it."""

    track: str
    level: int
    number: int


@dataclass(slots=True, eq=False)
class Transfer:
    """Bytes that go over links at one rate, at most `limit` bytes a second.

    Its ports are busy for `occupied` seconds after the last byte. `loads` has for each shared link the bytes
    that go over it for each byte of the transfer. `order` decides among transfers that wait. `complete` is
    called with the times of begin and of the end of the last byte.
    """

    order: tuple[float, int, int]
    ports: tuple[Port, ...]
    loads: Mapping[Port, float]
    bytes: float
    limit: float
    occupied: float
    complete: Callable[[float, float], None]
    begin: float = 0.0
    left: float = 0.0
    rate: float = 0.0
    events: int = 0  # the last event of its end that is valid


@dataclass(slots=True)
class Links:
    """Transfers that wait for links or use them; `capacity` is the bandwidth of a shared link."""

    capacity: Callable[[Port], float]
    _busy: set[Port] = field(default_factory=set)
    _waiting: dict[Port, dict[Transfer, None]] = field(default_factory=dict)
    _sharing: dict[Transfer, None] = field(default_factory=dict)
    _updated: float = 0.0  # the time at which `left` of sharing transfers is valid
    _events: list[tuple[float, int, int, Transfer | tuple[Port, ...]]] = field(default_factory=list)
    _count: Iterator[int] = field(default_factory=itertools.count)

    def add(self, at: float, transfer: Transfer) -> None:
        """Add a transfer that may begin at a time."""
        self._schedule(at, 0, transfer)

    def run(self) -> None:
        """Carry out all transfers, also those that are added when others complete."""
        while self._events:
            now, touched, ended = self._events[0][0], dict[Port, None](), list[Transfer]()
            while self._events and self._events[0][0] == now:
                _, _, number, what = heapq.heappop(self._events)
                if isinstance(what, tuple):
                    self._busy.difference_update(what)
                    touched.update(dict.fromkeys(what))
                elif number == 0:
                    for port in what.ports:
                        self._waiting.setdefault(port, {})[what] = None
                    touched.update(dict.fromkeys(what.ports))
                elif number == what.events:
                    ended.append(what)
            shared = any(t in self._sharing for t in ended)
            if shared:
                self._progress(now)
            for transfer in ended:
                self._sharing.pop(transfer, None)
                self._schedule(now + transfer.occupied, 0, transfer.ports)
                transfer.complete(transfer.begin, now)
            if self._begin(now, touched) or shared:
                self._share(now)

    def _schedule(self, at: float, number: int, what: Transfer | tuple[Port, ...]) -> None:
        heapq.heappush(self._events, (at, next(self._count), number, what))

    def _begin(self, now: float, touched: Iterable[Port]) -> bool:
        """Begin the transfers on some ports if all of theirs are free; True if one uses shared links."""
        shares = False
        ready = dict.fromkeys(t for port in touched for t in self._waiting.get(port, ()))
        for transfer in sorted(ready, key=lambda t: t.order):
            if self._busy.isdisjoint(transfer.ports):
                self._busy.update(transfer.ports)
                for port in transfer.ports:
                    del self._waiting[port][transfer]
                transfer.begin, transfer.left = now, transfer.bytes
                if transfer.loads:
                    if not shares:
                        self._progress(now)
                    self._sharing[transfer], shares = None, True
                else:
                    self._end_at(transfer, now + transfer.bytes / transfer.limit)
        return shares

    def _progress(self, now: float) -> None:
        """Move the bytes of sharing transfers that their rates brought since the last change of a rate."""
        for transfer in self._sharing:
            transfer.left -= transfer.rate * (now - self._updated)
        self._updated = now

    def _share(self, now: float) -> None:
        """Divide the shared links anew, and schedule the ends of the transfers on them."""
        rates = fair_rates(self._sharing, self.capacity)
        for transfer, rate in rates.items():
            transfer.rate = rate
            left = transfer.left if transfer.left > EPSILON * transfer.bytes else 0.0
            self._end_at(transfer, now + left / rate)

    def _end_at(self, transfer: Transfer, at: float) -> None:
        transfer.events += 1
        self._schedule(at, transfer.events, transfer)


def fair_rates(transfers: Iterable[Transfer], capacity: Callable[[Port], float]) -> dict[Transfer, float]:
    """The max-min fair rate of each transfer, in bytes a second, by progressive filling.

    >>> node, other = Port("send", 0, 0), Port("send", 0, 1)
    >>> slow, fast, third = (
    ...     Transfer((0, 0, 0), (), loads, 1.0, limit, 0.0, print)
    ...     for loads, limit in (({node: 1}, 1.0), ({node: 1}, 9.0), ({node: 1, other: 2}, 9.0))
    ... )
    >>> list(fair_rates([slow, fast, third], lambda port: 6.0).values())
    [1.0, 2.5, 2.5]
    """
    every, rates = list(transfers), dict[Transfer, float]()
    rising = list(every)
    room = {port: capacity(port) for t in rising for port in t.loads}
    while rising:
        loads: dict[Port, float] = {}
        for t in rising:
            for port, load in t.loads.items():
                loads[port] = loads.get(port, 0.0) + load
        level = min([t.limit for t in rising] + [room[port] / load for port, load in loads.items()])
        full = {port for port, load in loads.items() if room[port] / load <= level * (1 + EPSILON)}
        stopped = [t for t in rising if t.limit <= level or not full.isdisjoint(t.loads)]
        for t in stopped:
            rates[t] = level
            for port, load in t.loads.items():
                room[port] -= level * load
        rising = [t for t in rising if t not in rates]
    return {t: rates[t] for t in every}
