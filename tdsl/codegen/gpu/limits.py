"""Checks launches against the limits of a GPU architecture: instructions, grid, block, shared memory."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tdsl.codegen.gpu.launches import Launch, Launches
from tdsl.codegen.ir.loops import Invoke
from tdsl.codegen.ir.statements import walk
from tdsl.core.source import here
from tdsl.errors import ScheduleError, TargetError
from tdsl.lang.expr import Expr
from tdsl.machine.instructions.instruction import INSTRUCTIONS
from tdsl.schedule.launch import MAX_BLOCKS, MAX_CLUSTER_BLOCKS, MAX_THREADS

STATIC_SHARED = 48 << 10  # bytes of a block; the launch has to request more

DEFAULT_ARCH = "sm_90a"
_TMA_ARCH = 90  # compute capability; the first with TMA and clusters
MOST_SHARED = {
    "sm_80": 163 << 10, "sm_86": 99 << 10, "sm_89": 99 << 10, "sm_90": 227 << 10, "sm_90a": 227 << 10,
}  # fmt: skip
_SMALLER = dict.fromkeys(MAX_BLOCKS, "bind the largest loop to blockIdx.x, or fuse it with that one")
_SMALLER["blockIdx.x"] = "bind smaller loops to blocks"


def check_limits(launches: Launches, arch: str) -> None:
    """ScheduleError if a launch exceeds a limit of the GPU, TargetError if it uses a missing instruction."""
    for launch in launches.launches:
        _check_instructions(launch, arch)
        grid = (n if isinstance(n, int) else 0 for n in launch.grid)  # check_grid checks the others
        limits = (
            (
                prod(launch.block),
                MAX_THREADS,
                "threads in a block",
                "bind smaller loops to threads",
            ),
            (launch.cluster, MAX_CLUSTER_BLOCKS, "blocks in a cluster", "bind a smaller loop"),
            (launch.block[2], 64, "threads on threadIdx.z", "bind the largest loop to threadIdx.x"),
            (
                launch.shared,
                MOST_SHARED[arch],
                "bytes of shared memory",
                _smaller_tiles(launch),
            ),
            *(
                (n, most, f"blocks on {axis}", _SMALLER[axis])
                for n, (axis, most) in zip(grid, MAX_BLOCKS.items(), strict=True)
            ),
        )
        for count, most, what, hint in limits:
            if count > most:
                raise ScheduleError(
                    f"kernel {launch.name!r} has {count} {what}; {arch} has {most} at most",
                    loc=here(),
                    label="compiled here",
                    hint=hint,
                )


def _smaller_tiles(launch: Launch) -> str:
    """The hint for too much shared memory, with the largest buffer."""
    starts = sorted(launch.memory.starts.items(), key=lambda item: item[1])
    ends = [*(start for _, start in starts), launch.shared][1:]
    sizes = {name: end - start for (name, start), end in zip(starts, ends, strict=True)}
    largest = max(sizes, key=lambda name: sizes[name], default="")
    named = f" ({largest!r} takes {sizes[largest]} bytes)" if largest else ""
    return f"make the tiles smaller{named}, let pipelines have fewer stages, or use global memory"


def _check_instructions(launch: Launch, arch: str) -> None:
    have = int("".join(c for c in arch if c.isdigit()))
    if launch.maps and have < _TMA_ARCH:
        raise TargetError(
            f"{arch} has no TMA, which sm_{_TMA_ARCH} has",
            loc=here(),
            label="compiled here",
            hint="copy by threads: cooperate() instead of bulk_copy()",
        )
    if launch.cluster > 1 and have < _TMA_ARCH:
        raise TargetError(
            f"{arch} has no clusters of blocks, which sm_{_TMA_ARCH} has",
            loc=here(),
            label="compiled here",
            hint='bind the loop to "blockIdx.x" or another axis',
        )
    for s in walk(launch.body):
        if not isinstance(s, Invoke):
            continue
        chosen = INSTRUCTIONS[s.instruction]
        exact = chosen.arch.endswith("a")  # features of `a` targets exist on no other architecture
        if arch != f"sm_{chosen.arch}" if exact else int(chosen.arch or 0) > have:
            raise TargetError(
                f"instruction {chosen.name!r} needs sm_{chosen.arch}, the target is {arch}",
                loc=here(),
                label="compiled here",
                hint=f'td.compile(..., target="cuda:sm_{chosen.arch}"), or another instruction',
            )


def check_grid(kernel: str, grid: Sequence[int | Expr]) -> None:
    """TargetError if the grid for the sizes of a call has more blocks along an axis than a launch allows."""
    for (axis, most), n in zip(MAX_BLOCKS.items(), grid, strict=True):
        if isinstance(n, int) and n > most:
            raise TargetError(
                f"kernel {kernel!r} has {n} blocks on {axis}, and a launch {most} at most",
                loc=here(),
                label="this call",
                hint=_SMALLER[axis],
            )
