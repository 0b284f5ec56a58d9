"""`MemoryCounts`: the transactions of each access of GPU kernels, as the counters of a profiler show them."""

from __future__ import annotations

from tdsl.codegen.ir.loops import SHARED
from tdsl.core.node import frozen
from tdsl.core.source import Loc
from tdsl.core.text import columns, in_bytes
from tdsl.cost.sectors import SECTOR
from tdsl.lang.expr import Expr
from tdsl.lang.show import show_expr

GLOBAL = "global"
_LONGEST = 40  # characters of an index in a table
_HEAD = ("  access", "line", "bytes", "requests", "sectors", "useful", "fetched", "conflicts")


@frozen
class Site:
    """An access in the loops: of `array` at `index`, in a statement that writes `stage`.

    `space` is "global" or "shared"; `kind` is load, store, copy (a tile by TMA), the operator of an atomic
    update, or the name of an instruction. A thread accesses `width` bytes at a time.
    """

    space: str
    kind: str
    array: str
    index: tuple[Expr, ...]
    stage: str
    width: int

    def __str__(self) -> str:
        index = ", ".join(map(show_expr, self.index))
        index = index if len(index) <= _LONGEST else f"{index[: _LONGEST - 3]}..."
        return f"{self.kind} {self.array}[{index}]" + (f" in {self.stage}" if self.kind == "load" else "")


@frozen
class KernelSample:
    """The number of blocks of a kernel that were counted, and of all its blocks."""

    kernel: str
    counted: int
    blocks: int


@frozen
class AccessCount:
    """The transactions of an access in all warps: `requests` of warps, which touch `useful` different bytes.

    In global memory these are in `sectors` of 32 bytes. The block fetches `fetched` of them from L2: those
    that it touches neither elsewhere in the same statement nor in the iteration before. Shared memory serves
    the bytes in `wavefronts`, of which `least` are needed without bank conflicts. `loc` is where the user's
    source defines the stage, or the func that the kernel computes.
    """

    kernel: str
    site: Site
    loc: Loc | None
    requests: int
    sectors: int
    fetched: int
    useful: int
    wavefronts: int
    least: int

    @property
    def sector_efficiency(self) -> float:
        """The part of the bytes of all sectors that the warps use; 1 if there are none."""
        return self.useful / (SECTOR * self.sectors) if self.sectors else 1.0

    @property
    def conflict_degree(self) -> float:
        """The wavefronts for each one that is needed; 1 is best."""
        return self.wavefronts / self.least if self.least else 1.0


@frozen
class MemoryCounts:
    """The transactions of a call: `accesses` of all kernels in running order. Prints as a table."""

    name: str
    samples: tuple[KernelSample, ...]
    accesses: tuple[AccessCount, ...]

    @property
    def sector_efficiency(self) -> float:
        """The part of the bytes of all sectors of global memory that warps use."""
        moved = sum(a.sectors for a in self.accesses) * SECTOR
        return sum(a.useful for a in self.accesses if a.sectors) / moved if moved else 1.0

    @property
    def conflict_degree(self) -> float:
        """The wavefronts of shared memory for each one that is needed."""
        least = sum(a.least for a in self.accesses)
        return sum(a.wavefronts for a in self.accesses) / least if least else 1.0

    def of_kernel(self, kernel: str) -> MemoryCounts:
        """The counts of one kernel."""
        return MemoryCounts(
            self.name,
            tuple(s for s in self.samples if s.kernel == kernel),
            tuple(a for a in self.accesses if a.kernel == kernel),
        )

    def __repr__(self) -> str:
        return str(self)

    def __str__(self) -> str:
        lines = []
        for sample in self.samples:
            part = "" if sample.counted == sample.blocks else f", estimated from {sample.counted}"
            lines.append(f"{sample.kernel}: {sample.blocks} blocks{part}")
            rows = [_HEAD, *(_row(a) for a in self.accesses if a.kernel == sample.kernel)]
            lines.append(columns(rows))
        return "\n".join(lines) or f"{self.name}: no kernels"


def _row(a: AccessCount) -> tuple[str, ...]:
    is_shared = a.site.space == SHARED
    return (
        f"  {a.site}",
        "" if a.loc is None else str(a.loc.line),
        str(a.site.width),
        str(a.requests),
        "" if is_shared else str(a.sectors),
        in_bytes(a.useful) if is_shared else f"{a.sector_efficiency:.0%}",
        "" if is_shared else in_bytes(SECTOR * a.fetched),
        f"{a.conflict_degree:.2f}" if is_shared else "",
    )
