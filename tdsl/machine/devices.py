"""The machines that come with the package, each described by a file in `tdsl/machine/described`.

The figures of a GPU are from the sources that its file names, those of a CPU are measured. On a GPU "thread"
means multiprocessor: rates are per multiprocessor, `shared_by` counts them. As on CPUs, a multiplication and
its addition are two operations.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path

from tdsl.machine.description_json import from_text
from tdsl.machine.gpu import capability, features_of, runs_on
from tdsl.machine.model import Machine

FOLDER = Path(__file__).parent / "described"
DEFAULT_ARCH = "sm_90a"
CPUS = ("zen3", "zen4")  # whose figures are measured
BLOCK_THREADS = 256  # threads per block in default schedules
_SPECIFIC = {"sm_120": "sm_120a"}  # the same devices, with instructions that no later one has


@functools.cache
def gpus() -> dict[str, str]:
    """The name of the file that represents each architecture of GPUs, the architectures in rising order.

    >>> list(gpus())[0], gpus()["sm_90a"]
    ('sm_75', 'h200')
    """
    machines = {file.stem: described_machine(file.stem) for file in FOLDER.glob("*.json")}
    names = {machine.arch: name for name, machine in machines.items() if machine.gpu is not None}
    names |= {_SPECIFIC[arch]: name for arch, name in names.items() if arch in _SPECIFIC}
    return {arch: names[arch] for arch in sorted(names, key=lambda arch: (capability(arch), arch))}


def describe_gpu(arch: str) -> Machine:
    """The GPU that represents an architecture, or that of PTX, such as compute_90; DEFAULT_ARCH for "".

    >>> machine = describe_gpu("sm_80")
    >>> machine.threads, machine.level("shared").bytes >> 10, "cp.async" in machine.features
    (108, 163, True)
    """
    arch = arch.replace("compute_", "sm_") or DEFAULT_ARCH
    return _gpu(arch if arch in gpus() else f"{arch}a")


def as_gpu(device: Machine) -> Machine:
    """A GPU as schedules see it: with the features of its architecture, threads of a block, no vectors."""
    features = features_of(device.arch)
    return replace(device, vector_bytes=0, block_threads=BLOCK_THREADS, features=features)


def ptx_of(arch: str) -> tuple[str, str]:
    """The architecture whose PTX later GPUs than `arch` run, and the name of that PTX.

    It has none of the instructions that only an architecture that ends in "a" has.

    >>> ptx_of("sm_90a"), ptx_of("sm_100a"), ptx_of("sm_120")
    (('sm_90', 'compute_90'), ('sm_100a', 'compute_100'), ('sm_120', 'compute_120'))
    """
    base = arch.rstrip("a")
    return (base if base in gpus() else arch), f"compute_{capability(arch)}"


def arch_for(gpu: str) -> str:
    """The architecture whose code runs best on a GPU, "" if none runs.

    >>> arch_for("sm_121"), arch_for("sm_90"), arch_for("sm_70")
    ('sm_120', 'sm_90a', '')
    """
    return next((arch for arch in reversed(gpus()) if runs_on(arch, gpu)), "")


@functools.cache
def _gpu(arch: str) -> Machine:
    device = described_machine(gpus()[arch])
    assert device.gpu is not None
    return as_gpu(replace(device, gpu=replace(device.gpu, arch=arch)))


@functools.cache
def reference_cpu(vector_bytes: int = 0) -> Machine:
    """The measured CPU whose times are assumed for a CPU that was not measured.

    It has vectors of `vector_bytes`, or of the next larger size that was measured; 0 means the largest.

    >>> [reference_cpu(n).vector_bytes for n in (16, 32, 64, 0)]
    [32, 32, 64, 64]
    """
    measured = sorted((described_machine(name) for name in CPUS), key=lambda m: m.vector_bytes)
    return next((m for m in measured if 0 < vector_bytes <= m.vector_bytes), measured[-1])


def with_reference(machine: Machine) -> Machine:
    """The machine with the rates, bandwidths and overheads of the reference CPU where it has none of its own.

    >>> shown = with_reference(Machine(32))
    >>> shown.rates == reference_cpu(32).rates, len(shown.level("L2").bandwidth) > 0
    (True, True)
    """
    reference = reference_cpu(machine.vector_bytes)
    bandwidths = {x.name: x.bandwidth for x in reference.levels}
    of_memory = bandwidths["memory"]
    return replace(
        machine,
        levels=tuple(
            replace(x, bandwidth=x.bandwidth or bandwidths.get(x.name, of_memory)) for x in machine.levels
        ),
        rates=machine.rates or reference.rates,
        launch=machine.launch or reference.launch,
    )


@functools.cache
def described_machine(name: str) -> Machine:
    """The machine that a file of `tdsl/machine/described` describes, such as "zen4" or "spr".

    >>> spr = described_machine("spr")
    >>> spr.level("L3").bytes >> 20, spr.llc_bytes >> 20
    (480, 32)
    """
    return from_text((FOLDER / f"{name}.json").read_text(encoding="utf-8")).machine
