"""Checks launches against the limits of a GPU architecture: instructions, grid, block, shared memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from tdsl.codegen.gpu.launches import Launch, Launches
from tdsl.codegen.ir.loops import Alloc, Invoke
from tdsl.codegen.ir.statements import walk
from tdsl.core.source import here
from tdsl.errors import ScheduleError, TargetError
from tdsl.lang.expr import Expr
from tdsl.machine.gpu import FEATURES, Multiprocessor
from tdsl.machine.instructions.instruction import INSTRUCTIONS
from tdsl.machine.model import Machine
from tdsl.schedule.launch import MAX_BLOCKS, MAX_CLUSTER_BLOCKS, MAX_THREADS

STATIC_SHARED = 48 << 10  # bytes of a block; the launch has to request more
WARP = 32  # threads
REGISTER_BYTES = 4

_SMALLER = dict.fromkeys(MAX_BLOCKS, "bind the largest loop to blockIdx.x, or fuse it with that one")
_SMALLER["blockIdx.x"] = "bind smaller loops to blocks"


def check_limits(launches: Launches, machine: Machine) -> None:
    """ScheduleError if a launch exceeds a limit of the GPU, TargetError if it uses a missing instruction."""
    for launch in launches.launches:
        _check_instructions(launch, machine)
        launch = with_resident_grid(launch, machine)
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
                machine.level("shared").bytes or 0,
                "bytes of shared memory",
                _smaller_tiles(launch, machine.level("shared").bytes or 0),
            ),
            *(
                (n, most, f"blocks on {axis}", _SMALLER[axis])
                for n, (axis, most) in zip(grid, MAX_BLOCKS.items(), strict=True)
            ),
        )
        for count, most, what, hint in limits:
            if count > most:
                raise ScheduleError(
                    f"kernel {launch.name!r} has {count} {what}; {machine.arch} has {most} at most",
                    loc=here(),
                    label="compiled here",
                    hint=hint,
                )
        if machine.gpu is not None:
            _check_resident(launch, machine.gpu)
            _check_registers(launch, machine.gpu)


def with_resident_grid(launch: Launch, machine: Machine) -> Launch:
    """The launch, with as many blocks resident on a multiprocessor as a cooperative one needs for its grid.

    ScheduleError if only a call tells the grid, or if it has more blocks than the GPU can run at a time.
    """
    if not launch.cooperative or machine.gpu is None:
        return launch
    blocks = prod(n for n in launch.grid if isinstance(n, int))
    resident = _most_resident(launch, machine.gpu)
    most = resident * machine.threads
    if not all(isinstance(n, int) for n in launch.grid):
        problem, hint = "only a call tells how many they are", "fix the sizes"
    elif blocks > most:
        problem = f"{blocks} are too many"
        hint = f"let a block have several iterations, with {most} blocks at most, or leave out grid_sync()"
    else:
        return replace(launch, resident=max(launch.resident, -(-blocks // machine.threads)))
    raise ScheduleError(
        f"the blocks of kernel {launch.name!r} wait for each other, and {problem}: {machine.arch} runs "
        f"{resident} of {prod(launch.block)} threads and {launch.shared} shared bytes on each of "
        f"{machine.threads} multiprocessors",
        loc=here(),
        label="compiled here",
        hint=hint,
    )


def _most_resident(launch: Launch, gpu: Multiprocessor) -> int:
    """The blocks that fit on a multiprocessor by their threads and shared memory."""
    shared = gpu.shared // max(launch.shared + gpu.shared_reserved, 1)
    return min(WARP * gpu.warps // prod(launch.block), gpu.blocks, shared)


def _check_resident(launch: Launch, gpu: Multiprocessor) -> None:
    """ScheduleError if fewer blocks fit on a multiprocessor than launch_bounds asks for."""
    threads, most = prod(launch.block), _most_resident(launch, gpu)
    if launch.resident > max(most, 1):
        raise ScheduleError(
            f"kernel {launch.name!r} asks for {launch.resident} blocks on a multiprocessor; {gpu.arch} runs "
            f"{most} of {threads} threads and {launch.shared} shared bytes",
            loc=here(),
            label="compiled here",
            hint=f"launch_bounds({most}), or smaller blocks",
        )


def _check_registers(launch: Launch, gpu: Multiprocessor) -> None:
    """ScheduleError if a fragment takes more registers than a thread can have in blocks of this size."""
    threads = prod(launch.block) * launch.resident
    most = min(gpu.registers_per_thread, gpu.registers // threads)
    for s in walk(launch.body):
        if not isinstance(s, Alloc) or s.name not in launch.fragments:
            continue
        count = launch.fragments[s.name].count * s.dtype.bytes // REGISTER_BYTES
        if count > most:
            raise ScheduleError(
                f"{s.name!r} takes {count} registers of a thread in kernel {launch.name!r}; with {threads} "
                f"threads on a multiprocessor {gpu.arch} has {most}",
                loc=here(),
                label="compiled here",
                hint="make the tile of a warp smaller, or use fewer threads",
            )


def _smaller_tiles(launch: Launch, most: int) -> str:
    """The hint for more than `most` bytes of shared memory, with what fits of the largest buffer."""
    starts = sorted(launch.memory.starts.items(), key=lambda item: item[1])
    ends = [*(start for _, start in starts), launch.shared][1:]
    sizes = {name: end - start for (name, start), end in zip(starts, ends, strict=True)}
    largest = max(sizes, key=lambda name: sizes[name], default="")
    named = ""
    if largest:
        fits = max(most - launch.shared + sizes[largest], 0)
        named = f" ({largest!r} takes {sizes[largest]} bytes, of which {fits} fit)"
    return f"make the tiles smaller{named}, let pipelines have fewer stages, or use global memory"


def _check_instructions(launch: Launch, machine: Machine) -> None:
    """TargetError if a launch uses what the GPU lacks."""
    missing = (
        (launch.maps, "tma", "no TMA", "copy by threads: cooperate() instead of bulk_copy()"),
        (
            launch.cluster > 1,
            "clusters",
            "no clusters of blocks",
            'bind the loop to "blockIdx.x" or another axis',
        ),
        (launch.policies, "cache_hint", "no cache policies of loads", "leave out cache_policy()"),
    )
    for used, feature, what, hint in missing:
        if used and feature not in machine.features:
            raise TargetError(
                f"{machine.arch} has {what}, which sm_{FEATURES[feature]} has",
                loc=here(),
                label="compiled here",
                hint=hint,
            )
    for s in walk(launch.body):
        if not isinstance(s, Invoke) or machine.supports(s.instruction):
            continue
        chosen = INSTRUCTIONS[s.instruction]
        raise TargetError(
            f"instruction {chosen.name!r} needs sm_{chosen.arch}, the target is {machine.arch}",
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
