"""Machine code for processors that are not here, which is compiled and not run, each kernel within a limit.

    python -m tests.fuzz.processors --programs 200 --seconds 300 --limit 10
    python -m tests.fuzz.processors --benchmarks --processors graniterapids,aarch64

The kernels are random programs under random schedules, with arrays of several layouts, or those of the
benchmarks. A fault is a kernel that LLVM refuses, or that takes it more than `--limit` seconds of processor
time, and an internal error.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import random
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace

from tdsl.codegen.cpu import jit
from tdsl.codegen.cpu.executable import text_of
from tdsl.codegen.ir.loops import Kernel
from tdsl.codegen.runtime.child_process import ChildFailure, run_in_child
from tdsl.codegen.runtime.signature import Specialisation
from tdsl.compile import Compiled
from tdsl.errors import TargetError, TdslError
from tdsl.machine.cpu import CpuTarget, flatten, level
from tdsl.pipeline import make_kernel
from tdsl.target import Target
from tests.fuzz.campaign import program_of, scheduled
from tests.fuzz.schedules import Tally


def _like(name: str, cpu: str, *more: str) -> CpuTarget:
    """A level as one of its processors, which LLVM schedules otherwise and may have more instructions."""
    of = level(name)
    has = of.has | {*more}
    return replace(of, cpu=cpu, has=has, features=flatten(dict.fromkeys(has, True)))


# The level whose schedule is taken, and the processor that LLVM compiles it for.
PROCESSORS = {
    "sapphirerapids": ("amx", _like("amx", "sapphirerapids")),
    "graniterapids": ("amx", _like("amx", "graniterapids", "amx-fp16", "avx512fp16")),
    "znver4": ("avx512", _like("avx512", "znver4", "avx512bf16", "avx512vnni")),
    "aarch64": ("aarch64", level("aarch64")),
    "x86-64": ("sse2", level("sse2")),
}

Build = Callable[[Target], tuple[Compiled, Specialisation]]


def programs(seed: int, count: int) -> Iterator[tuple[str, Build]]:
    """Random programs under random schedules."""
    for program, n in itertools.product(range(count), range(3)):

        def build(target: Target, program: int = program, n: int = n):  # type: ignore[no-untyped-def]
            made = program_of(seed, program)
            case = scheduled(made, seed, program, n, Tally())
            sizes = {k: v for k, v in made.sizes.items() if k in made.program().sizes}
            free = frozenset(case.dynamic) & sizes.keys()
            compiled = Compiled(case.schedule(), target, free, {})
            dense = compiled.specialisation({k: v for k, v in sizes.items() if k not in free})
            return compiled, _laid_out(dense, n)

        yield f"{program}:{n}", build


def _laid_out(dense: Specialisation, n: int) -> Specialisation:
    """The same arrays dense, or each of every second element, or backwards."""
    factor = (1, 2, -1)[n % 3]
    layouts = (
        None if strides is None else (*strides[:-1], *(factor * s for s in strides[-1:]))
        for strides in dense.layouts
    )
    inputs = len(dense.layouts) - 1
    return replace(dense, layouts=(*itertools.islice(layouts, inputs), *dense.layouts[inputs:]))


def benchmarks(seed: int) -> Iterator[tuple[str, Build]]:
    """What the benchmarks compile, in an order of their own for each seed."""
    from benchmarks.case import Kernel as Ours
    from benchmarks.cases import ALL
    from tdsl.profiling import arguments_of

    cases = list(ALL.values())
    random.Random(seed).shuffle(cases)
    for case in cases:
        peer = case.peers.get("tdsl")
        if not isinstance(peer, Ours):
            continue

        @functools.cache
        def default(case=case, peer=peer):  # type: ignore[no-untyped-def]
            compiled = peer.build()
            return compiled, arguments_of(compiled.signature, case.inputs(), {}, None)[1]

        def build(target: Target, default=default):  # type: ignore[no-untyped-def]
            compiled, exact = default()
            return Compiled(compiled.schedule, target, compiled.dynamic, compiled.sizes), exact

        yield case.name, build


class Sweep:
    """What became of the kernels so far."""

    def __init__(self, names: list[str], limit: float) -> None:
        self.names, self.limit = names, limit
        self.outcomes: Counter[str] = Counter()
        self.faults: list[str] = []
        self.slowest: list[tuple[float, str]] = []

    def take(self, kernel: str, build: Build) -> None:
        """Compile a kernel for each processor."""
        loops: dict[str, Kernel] = {}  # by level
        for name in self.names:
            start = time.monotonic()
            try:
                self.compiled(name, build, loops)
                self.outcomes[name] += 1
            except TargetError as error:
                self.fault(kernel, name, error.message)
            except TdslError as error:
                self.outcomes[f"refused: {error.code}"] += 1
            except ChildFailure as reason:
                self.fault(kernel, name, str(reason))
            except Exception:  # noqa: BLE001  # a fault of the compiler
                self.fault(kernel, name, traceback.format_exc())
            self.slowest.append((time.monotonic() - start, f"{kernel} for {name}"))

    def compiled(self, name: str, build: Build, loops: dict[str, Kernel]) -> None:
        level_, cpu = PROCESSORS[name]
        if level_ not in loops:
            compiled, exact = build(Target("cpu", level_))
            loops[level_] = make_kernel(compiled.variant(exact))
        text = text_of(loops[level_], cpu)
        jit._passes(cpu)
        done = run_in_child(lambda: jit._object(text, cpu, "kernel"), self.limit)
        if done is None:
            jit._object(text, cpu, "kernel")  # raises what the child raised

    def fault(self, kernel: str, name: str, text: str) -> None:
        self.faults.append(f"{kernel} for {name}: {text}")
        print("fault", self.faults[-1], flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz.processors", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--programs", type=int, default=100)
    parser.add_argument("--benchmarks", action="store_true", help="the benchmarks' kernels instead")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--limit", type=float, default=10.0, help="seconds for a kernel")
    parser.add_argument("--processors", default=",".join(PROCESSORS))
    options = parser.parse_args()
    names = []
    for name in options.processors.split(","):
        try:
            jit.target_machine(PROCESSORS[name][1])
            names.append(name)
        except TargetError as error:  # an LLVM that was built without them
            print(f"{name} is left out: {error.message}")
    sweep, start, kernels = Sweep(names, options.limit), time.monotonic(), 0
    for kernel, build in (
        benchmarks(options.seed) if options.benchmarks else programs(options.seed, options.programs)
    ):
        if time.monotonic() - start > options.seconds:
            break
        sweep.take(kernel, build)
        kernels += 1
    print(f"\n{kernels} kernels, {time.monotonic() - start:.0f} s, {len(sweep.faults)} faults")
    for outcome, count in sweep.outcomes.most_common():
        print(f"{count:8} {outcome}")
    for seconds, what in sorted(sweep.slowest, reverse=True)[:5]:
        print(f"{seconds:8.2f} s {what}")
    return bool(sweep.faults)


if __name__ == "__main__":
    sys.exit(main())
