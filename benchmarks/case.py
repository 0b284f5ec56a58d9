"""What is compared: a computation, its input, how a result is judged, and who computes it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

import tdsl as td

Array = np.ndarray[Any, Any]
Arrays = tuple[Array, ...]
Call = Callable[[], Array]
Prepare = Callable[[Arrays], Call]
SEARCH = "tdsl-search"  # by the schedule that the search finds


class PeerMissing(Exception):
    """The package of a peer is not installed; the text says what to install."""


@dataclass(frozen=True)
class Converted:
    """A call whose result becomes an array, or a tuple of some, afterwards: that is not timed."""

    call: Callable[[], Any]
    convert: Callable[[Any], Array]

    def __call__(self) -> Any:
        result = self.call()
        if isinstance(result, tuple):
            return tuple(self.convert(part) for part in result)
        return self.convert(result)


@dataclass(frozen=True)
class Case:
    """A computation and its peers.

    `peers` maps a name to a function that takes the input and returns the call to be timed, compiled as
    far as the peer can. `is_right(result, arrays)` judges a result. `flops` and `bytes` are the work that
    the computation cannot avoid, for rates; 0 leaves the rate out.
    """

    name: str
    title: str
    inputs: Callable[[], Arrays]
    is_right: Callable[[Array, Arrays], bool]
    peers: Mapping[str, Prepare]
    flops: float = 0.0
    bytes: float = 0.0
    group: str = ""

    def prepare_peer(self, peer: str) -> Prepare:
        """A peer by its name, SEARCH included wherever tdsl compiles the program for these arrays."""
        ours = self.peers.get("tdsl")
        if peer == SEARCH and peer not in self.peers and isinstance(ours, Kernel):
            return searched(ours.build)
        return self.peers[peer]

    def select_peers(self, peers: list[str]) -> list[str]:
        """Those of some peers that it has, in its order; all of its own where none are named."""
        selected = [p for p in self.peers if not peers or p in peers]
        can_search = SEARCH not in self.peers and isinstance(self.peers.get("tdsl"), Kernel)
        return [*selected, SEARCH] if SEARCH in peers and can_search else selected


def within(
    error: float, expected: Callable[..., Array], *, widen: bool = True
) -> Callable[[Array, Arrays], bool]:
    """A judge: the result is within `error` of the largest magnitude of `expected(*arrays)`.

    The expected values are computed in double precision unless `widen` is False.
    """

    def is_right(result: Array, arrays: Arrays) -> bool:
        right = expected(*(a.astype(np.float64) if widen else a for a in arrays))
        if result.shape != right.shape:
            return False
        difference = np.abs(result.astype(np.float64) - right).max()
        return bool(difference <= error * np.abs(right).max())

    return is_right


@dataclass(frozen=True)
class Compiled:
    """A call of a compiled program; `again` compiles the same once more."""

    call: Call
    again: Callable[[], object]

    def __call__(self) -> Array:
        return self.call()


@dataclass(frozen=True)
class Kernel:
    """A peer that tdsl compiles: the call writes into the arrays that the first call returned."""

    build: Callable[[], Any]

    def __call__(self, arrays: Arrays) -> Call:
        compiled = self.build()
        result = compiled(*arrays)
        parts = result if isinstance(result, tuple) else (result,)
        out = (
            result if all(isinstance(part, np.ndarray) for part in parts) else None
        )  # numbers are not memory
        (specialisation,) = compiled.executables
        return Compiled(lambda: compiled(*arrays, out=out), lambda: self.build().executable(specialisation))


def kernel(build: Callable[[], Any]) -> Prepare:
    """A peer that tdsl compiles."""
    return Kernel(build)


def searched(build: Callable[[], Any]) -> Prepare:
    """A peer that tdsl compiles by the schedule that the search finds for the program that `build` has."""

    def prepare(arrays: Arrays) -> Call:
        def build_best() -> Any:
            from tdsl.profiling import arguments_of
            from tdsl.target import as_target
            from tdsl.tilegraph.search import candidates

            default = build()
            _, specialisation = arguments_of(default.signature, arrays, {}, None)
            best = candidates(default.state.program, dict(specialisation.sizes), as_target("cpu"))[0]
            return td.compile(best.schedule)

        return kernel(build_best)(arrays)

    return prepare


def function(f: Callable[..., Array]) -> Prepare:
    """A peer that is a plain function of the arrays."""
    return lambda arrays: lambda: f(*arrays)


def vectors(stage: Any, loop: Any, lanes: int = 16) -> None:
    """Make a loop whose extent is a small multiple of `lanes` a row of vectors."""
    outer, inner = stage.split(loop, lanes)
    stage.vectorize(inner)
    stage.unroll(outer)
