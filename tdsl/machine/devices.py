"""The machines that are described: a file in `tdsl/machine/described` for each.

The figures of GPUs are those of their data sheets, those of a processor have been measured. On a GPU a
multiprocessor stands where a processor has a thread: rates are those of one, and levels are shared by so many
of them. Operations are counted as for processors, a multiplication and its addition as two.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path

from tdsl.machine.description import from_text
from tdsl.machine.model import Machine

FOLDER = Path(__file__).parent / "described"
DEVICES = {
    "sm_80": "a100", "sm_86": "rtx3090", "sm_89": "l40", "sm_90": "h100", "sm_90a": "h200",
}  # fmt: skip
PROCESSORS = ("zen3", "zen4")
BLOCK_THREADS = 256


@functools.cache
def describe_gpu(arch: str) -> Machine:
    """The device that stands for an architecture; an H200 where none is named.

    >>> machine = describe_gpu("sm_80")
    >>> machine.threads, machine.level("shared").bytes >> 10
    (108, 163)
    """
    device = _described_machine(DEVICES[arch or "sm_90a"])
    features = frozenset({"wgmma"}) if arch in ("", "sm_90a") else frozenset()
    return replace(device, vector_bytes=0, block_threads=BLOCK_THREADS, features=features)


@functools.cache
def min_shared_bytes() -> int:
    """The bytes of shared memory that a block has on each of the GPUs.

    >>> min_shared_bytes() >> 10
    99
    """
    return min(describe_gpu(arch).level("shared").bytes or 0 for arch in DEVICES)


@functools.cache
def reference_cpu(vector_bytes: int = 0) -> Machine:
    """The measured processor whose times stand for those of one that was not measured.

    It is the one with vectors of `vector_bytes`, or with the next wider ones; 0 asks for the widest.

    >>> [reference_cpu(n).vector_bytes for n in (16, 32, 64, 0)]
    [32, 32, 64, 64]
    """
    measured = sorted((_described_machine(name) for name in PROCESSORS), key=lambda m: m.vector_bytes)
    return next((m for m in measured if 0 < vector_bytes <= m.vector_bytes), measured[-1])


def _described_machine(name: str) -> Machine:
    return from_text((FOLDER / f"{name}.json").read_text(encoding="utf-8")).machine
