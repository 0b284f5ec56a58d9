"""The CPU that LLVM compiles for: its triple, its CPU name (which selects a scheduling model), its features.

`host()` is the CPU of this machine. `level(name)` is a feature level that many CPUs share, or another
architecture, whose assembly can be inspected here.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

import llvmlite.binding as llvm

from tdsl.core.node import frozen
from tdsl.core.source import here
from tdsl.errors import TargetError, did_you_mean
from tdsl.machine.amx_permission import may_use_tiles


@frozen
class CpuTarget:
    """A CPU as LLVM describes it; `vector_bytes` is the widest vector register worth using, in bytes.

    `features` is LLVM's string of +on and -off features, `has` the set of the features that are on.
    """

    triple: str
    cpu: str
    features: str
    vector_bytes: int
    has: frozenset[str]

    @property
    def architecture(self) -> str:
        """The first part of the triple: x86_64, aarch64, ..."""
        return self.triple.partition("-")[0]

    @property
    def vector_registers(self) -> int:
        """How many vector registers a function may use."""
        return 32 if self.architecture != "x86_64" or "avx512f" in self.has else 16


# The first entry whose features the CPU has is its name. The model number that a hypervisor reports may be
# wrong (Rocket Lake for Sapphire Rapids), and with it LLVM's scheduling model and vector width.
_X86_NAMES = (
    ("znver5", ("clzero", "avx512vp2intersect")),
    ("znver4", ("clzero", "avx512bf16")),
    ("znver3", ("clzero", "vaes")),
    ("znver2", ("clzero", "clwb")),
    ("znver1", ("clzero", "avx2")),
    ("graniterapids", ("amx-fp16",)),
    ("sapphirerapids", ("amx-bf16",)),
    ("sapphirerapids", ("avx512fp16",)),
    ("cooperlake", ("avx512bf16",)),
    ("icelake-server", ("avx512vbmi2",)),
    ("cascadelake", ("avx512vnni",)),
    ("skylake-avx512", ("avx512bw", "avx512vl")),
    ("alderlake", ("avxvnni",)),
    ("skylake", ("avx2", "adx", "clflushopt")),
    ("broadwell", ("avx2", "adx")),
    ("haswell", ("avx2", "fma")),
    ("sandybridge", ("avx",)),
    ("nehalem", ("sse4.2",)),
)

_V2 = ("cx16", "popcnt", "sahf", "sse3", "sse4.1", "sse4.2", "ssse3")
_V3 = (*_V2, "avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe", "xsave")
_V4 = (*_V3, "avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl")
_AMX = ("amx-tile", "amx-bf16", "amx-int8")
_SPR = (*_V4, "avx512bf16", "avx512vnni", *_AMX)
_LEVELS = {
    "sse2": ("x86_64-unknown-linux-gnu", "x86-64", ("sse", "sse2")),
    "sse4": ("x86_64-unknown-linux-gnu", "x86-64-v2", ("sse", "sse2", *_V2)),
    "avx2": ("x86_64-unknown-linux-gnu", "x86-64-v3", ("sse", "sse2", *_V3)),
    "avx512": ("x86_64-unknown-linux-gnu", "x86-64-v4", ("sse", "sse2", *_V4)),
    "amx": ("x86_64-unknown-linux-gnu", "sapphirerapids", ("sse", "sse2", *_SPR)),
    "aarch64": ("aarch64-unknown-linux-gnu", "generic", ("fp-armv8", "neon")),
}


def llvm_version() -> str:
    """The version of the LLVM that llvmlite contains."""
    return ".".join(map(str, llvm.llvm_version_info))


@functools.cache
def host() -> CpuTarget:
    """The CPU of this machine."""
    triple = llvm.get_process_triple()
    features = llvm.get_host_cpu_features()
    features = {n: on and (n not in _AMX or may_use_tiles()) for n, on in features.items()}
    has = frozenset(name for name, on in features.items() if on)
    if triple.startswith("x86_64"):
        cpu = cpu_name(has)
    else:
        cpu = llvm.get_host_cpu_name()
    return CpuTarget(triple, cpu, flatten(features), vector_bytes(has), has)


@functools.cache
def level(name: str) -> CpuTarget:
    """A feature level: sse2, sse4, avx2, avx512, amx or aarch64; TargetError for another name.

    >>> level("avx2").vector_bytes, level("aarch64").architecture
    (32, 'aarch64')
    """
    if name not in _LEVELS:
        raise TargetError(
            f"there is no CPU level {name!r}",
            loc=here(),
            label="this call",
            hint=did_you_mean(name, _LEVELS),
        )
    triple, cpu, features = _LEVELS[name]
    has = frozenset(features)
    return CpuTarget(triple, cpu, flatten(dict.fromkeys(features, True)), vector_bytes(has), has)


def next_lower_isa(target: CpuTarget) -> str:
    """The highest lower level for which schedules differ; "" if there is none.

    >>> next_lower_isa(level("amx")), next_lower_isa(level("avx2")), next_lower_isa(level("sse2"))
    ('avx512', 'sse4', '')
    """
    names = [n for n in _LEVELS if level(n).architecture == target.architecture]
    features_of = {n: level(n).has for n in names}
    lower_names = [n for n in names if features_of[n] < target.has and not _same_schedules(level(n), target)]
    return lower_names[-1] if lower_names else ""


def _same_schedules(level: CpuTarget, target: CpuTarget) -> bool:
    """True if `level` has all features of `target` that schedules use."""
    return not (target.has - level.has) & {*_SPR}


def cpu_for(name: str) -> CpuTarget:
    """The CPU that code for a level is compiled for; this machine's for ""."""
    return level(name) if name else host()


def check_runs_here(target: CpuTarget, hint: str = 'only look at it, by .source("asm")') -> None:
    """TargetError unless this machine has the architecture and all features of `target`."""
    if target.architecture != host().architecture:
        missing = f"it is for {target.architecture}, this machine is {host().architecture}"
    elif not target.has <= host().has:
        missing = f"this machine has no {', '.join(sorted(target.has - host().has))}"
    else:
        return
    raise TargetError(
        f"code for {target.cpu} cannot run here: {missing}",
        loc=here(),
        label="this call",
        hint=hint,
    )


def flatten(features: Mapping[str, bool]) -> str:
    """LLVM's feature string, sorted.

    >>> flatten({"sse4a": False, "avx2": True})
    '+avx2,-sse4a'
    """
    return ",".join(f"{'+' if on else '-'}{name}" for name, on in sorted(features.items()))


def cpu_name(has: frozenset[str]) -> str:
    """LLVM's name of the x86-64 CPU that has these features, whatever model number it reports.

    >>> cpu_name(frozenset({"avx2", "fma", "avx512f", "avx512bf16", "amx-bf16"}))
    'sapphirerapids'
    """
    for name, needed in _X86_NAMES:
        if has.issuperset(needed):
            return name
    return "x86-64"


def vector_bytes(has: frozenset[str]) -> int:
    """The width in bytes of the vector registers that come with these features."""
    if has.issuperset(("avx512f", "avx512bw", "avx512dq", "avx512vl")):
        return 64
    return 32 if "avx2" in has else 16
