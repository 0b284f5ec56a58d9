"""`td.compile`: from program, schedule and target to a callable. Read this file first, beginning at `build`.

    program     the funcs that the outputs depend on, ranges inferred     lang/program.py, lang/infer.py
    schedule    directives; funcs without any get the default schedule    schedule/
    loops       inlining, lowering, passes                                pipeline.py
    backend     code generation                                           codegen/cpu/, codegen/python/

Sizes are bound first: a program is compiled for the sizes of a call, and again for other sizes, unless these
are named in `dynamic`.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, overload

from tdsl.codegen.ir.loops import Kernel
from tdsl.codegen.runtime.arrays import Array
from tdsl.codegen.runtime.call import Entry, Executable
from tdsl.codegen.runtime.program_signature import check_sizes_determined, signature_of
from tdsl.codegen.runtime.signature import Specialisation, dense_specialisation
from tdsl.core.notebook import Listing
from tdsl.core.source import here
from tdsl.errors import ShapeError, Suggesting, TdslError, TypeMismatch, checked_call
from tdsl.export import Exportable
from tdsl.lang.program import bind_sizes
from tdsl.lang.sizes import AGREE_HINT, check_agreement, check_keywords, check_sizes, dynamic_sizes
from tdsl.lang.tensor import Func
from tdsl.machine.devices import ptx_of
from tdsl.machine.model import Machine
from tdsl.schedule.fluent import Stage
from tdsl.schedule.legality import check_all
from tdsl.schedule.masked import remove_masks
from tdsl.schedule.state import State
from tdsl.target import Target, as_target
from tdsl.tilegraph.schedule import Schedule
from tdsl.variant import Variant

if TYPE_CHECKING:
    from tdsl.codegen.cpu.cached_kernel import Fallback
    from tdsl.codegen.cuda.device_call import DeviceCalls
    from tdsl.codegen.cuda.record import Module
    from tdsl.distribute.program import Distributed
    from tdsl.profiling import Profile


@overload
def compile(
    what: Schedule,
    *,
    target: Target | str | None = None,
    dynamic: str | Iterable[str] = (),
    arguments: str = "created",
    **sizes: int,
) -> Any: ...
@overload
def compile(
    what: object,
    *,
    target: Target | str | None = None,
    dynamic: str | Iterable[str] = (),
    arguments: str = "created",
    **sizes: int,
) -> Compiled: ...
def compile(
    what: object,
    *,
    target: Target | str | None = None,
    dynamic: str | Iterable[str] = (),
    arguments: str = "created",
    **sizes: int,
) -> Any:
    """Compiles funcs, or a schedule of funcs, to a callable.

    `what` is a func, a tuple of funcs, or a `Schedule`. The callable takes arrays and scalars in the order in
    which these tensors and scalars were created, operands of `td.einsum` in their order there (or all by
    name), and returns the outputs; `out=` takes output arrays. It is compiled on the first call for each
    combination of sizes, and the code is cached; `sizes` fixes sizes in advance, and sizes named in `dynamic`
    may vary between calls without recompilation.

    >>> import numpy as np, tdsl as td
    >>> i = td.vars("i")
    >>> a, f = td.Tensor("a", ("N",), td.f32), td.Func("f")
    >>> f[i] = a[i] * 2
    >>> td.compile(f)(np.arange(3, dtype=np.float32))
    array([0., 2., 4.], dtype=float32)

    `arguments="reads"` is the argument order of version 0.1, that of first reads in the program; deprecated.

    A schedule with funcs that are distributed over ranks compiles to a `Distributed` instead, which has the
    plans of the ranks, and runs all ranks in this process, or one of them under MPI.

    Raises a subclass of TdslError for a program, schedule or target that cannot be compiled.
    """
    schedule = _schedule_of(what)
    program = schedule.program
    check_keywords(program, target=target, dynamic=dynamic, arguments=arguments)
    resolved = as_target(target if target is not None else schedule.target)
    if arguments != "created":
        schedule = schedule._with_arguments(arguments)
    given_sizes = check_sizes(
        program.name,
        program.sizes,
        sizes,
        others=("target", "dynamic", "arguments"),
        equal=program.equal,
    )
    fixed_sizes = {**schedule.sizes, **given_sizes}
    for a in program.agreements:
        check_agreement(a, fixed_sizes, AGREE_HINT)
    dynamic_names = dynamic_sizes(program, dynamic, fixed_sizes)
    if schedule.state.grid is not None:
        return _distributed(schedule, resolved, dynamic_names, fixed_sizes)
    compiled = Compiled(schedule, resolved, dynamic_names, fixed_sizes)
    _check_bounds(compiled)
    return compiled


def _check_bounds(compiled: Compiled) -> None:
    """Raises IndexBoundError if every call with non-empty arrays would access a tensor out of bounds."""
    from tdsl.codegen.lowering.bounds_checks import check_every_call

    def lower(size: int) -> None:
        from tdsl.pipeline import lower_variant

        signature = compiled.signature
        lower_variant(compiled.variant(dense_specialisation(signature, dict.fromkeys(signature.sizes, size))))

    check_every_call(compiled.state, lower, known=not compiled.signature.sizes)


def _schedule_of(what: object) -> Schedule:
    if isinstance(what, Schedule):
        what.check_unchanged()
        return what
    if isinstance(what, Func):
        return Schedule(what)
    if isinstance(what, tuple | list) and what and all(isinstance(f, Func) for f in what):
        return Schedule(*what)
    if hasattr(what, "schedule") and hasattr(what, "program"):
        schedule = what.schedule()
        assert isinstance(schedule, Schedule)
        return schedule
    raise TypeMismatch(
        f"{type(what).__name__} cannot be compiled",
        loc=here(),
        label="this call",
        hint="pass a td.Func or a td.Schedule; @td.op makes an operator of a function",
    )


def _distributed(
    schedule: Schedule, target: Target, dynamic: frozenset[str], sizes: dict[str, int]
) -> Distributed:
    from tdsl.distribute.program import Distributed

    if dynamic:
        raise ShapeError(
            f"a plan of ranks is made for sizes that are known, not for {', '.join(sorted(dynamic))}",
            loc=here(),
            label="this call",
            hint="leave dynamic= away; another size makes another plan",
        )
    state = schedule.state
    check_all(state)
    symbolic = state = remove_masks(state)  # ranks divide masked terms, too; kernels find their masks
    if sizes:
        state = replace(state, program=bind_sizes(state.program, sizes))

    def build_for(local: State, local_target: Target) -> Compiled:
        return Compiled(Schedule.of_state(local), local_target, frozenset(), {})

    def build(local: State) -> Compiled:
        return build_for(local, target)

    def text(local: State) -> str:
        return str(build_for(local, as_target("numba")).source("python"))

    signature = signature_of(state.program)
    check_sizes_determined(state.program, signature)
    return Distributed(state, signature, sizes, build, text, symbolic, target.machine, schedule.program)


class Compiled(Entry, Exportable, Suggesting):
    """A compiled program: call it with arrays; `loops`, `source` and `profile` inspect its code.

    `schedule` and `target` are those that it was compiled with.
    """

    _internal = (
        "build", "executable", "executables", "latest", "quick_calls", "signature", "specialisation", "state",
        "variant",
    )  # fmt: skip

    def __init__(
        self, schedule: Schedule, target: Target, dynamic: frozenset[str], sizes: Mapping[str, int]
    ) -> None:
        check_all(schedule.state)
        self.schedule, self.target = schedule, target
        self.state, self.sizes = schedule.state, dict(sizes)
        program = bind_sizes(self.state.program, self.sizes) if sizes else self.state.program
        self.state = replace(self.state, program=program)
        signature = signature_of(program)
        check_sizes_determined(program, signature)
        Entry.__init__(self, signature, dynamic, self._build)
        self.latest: Specialisation | None = None  # the variant built or emulated last
        self._tuned: dict[Specialisation, Schedule | None] = {}  # schedules from records of tuning
        self._device_calls: DeviceCalls | None = None
        self._machines: dict[Specialisation, Machine] = {}  # that default schedules of GPUs are for
        if target.name == "cuda":
            from tdsl.codegen.cuda.device_call import DeviceCalls

            self._device_calls = DeviceCalls(self)

    def _bind_and_call(self, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> Any:
        if self._device_calls is not None and not kwargs:
            result = self._device_calls.call_fast(args, out)
            if result is not None:
                return result
        for array in (*args, *kwargs.values()):
            if hasattr(array, "__tdsl_call__"):  # a symbol: a graph is being traced
                return array.__tdsl_call__(self, args, kwargs, out)
        result = None if self._device_calls is None else self._device_calls(args, kwargs, out)
        return Entry._bind_and_call(self, args, kwargs, out) if result is None else result

    def _run(self, inputs: tuple[Any, ...], outputs: tuple[Array, ...], sizes: dict[str, int]) -> None:
        if self.target.name == "cuda" and not self.executables:
            from tdsl.codegen.cuda.executable import this_gpu

            this_gpu()  # fails at once if there is no GPU, not after seconds of compilation
        Entry._run(self, inputs, outputs, sizes)

    def _build(self, specialisation: Specialisation) -> Executable:
        self.latest = specialisation
        try:
            executable = build(self.variant(specialisation))
        except TdslError as error:
            tuned = self._tuned.get(specialisation)
            if tuned is None:
                raise
            warnings.warn(
                f"{self.signature.name}: the default schedule replaces one that cannot be compiled, "
                f"{tuned.notes[0]}: {error.message}",
                stacklevel=2,
            )
            self._tuned[specialisation] = None
            executable = build(self.variant(specialisation))
        if self.target.name == "cuda":
            from tdsl.codegen.cuda.executable import CudaExecutable

            if isinstance(executable, CudaExecutable) and executable.machine is not None:
                self._machines[specialisation] = executable.machine
        return executable

    def variant(self, specialisation: Specialisation) -> Variant:
        """The variant for a specialisation: all that determines its code, known when it is built."""
        machine = self._machines.get(specialisation) or self.target.machine()
        state, tuned = self.state, self._tuned_schedule(specialisation)
        if tuned is not None:
            state = replace(tuned.state, program=bind_sizes(tuned.state.program, self.sizes))
        return Variant(state, self.target, machine, self.signature, specialisation)

    def _tuned_schedule(self, specialisation: Specialisation) -> Schedule | None:
        """The schedule that a file of `TDSL_TUNING` has for a specialisation, or None."""
        if specialisation not in self._tuned:
            sizes, schedule = {**self.sizes, **dict(specialisation.sizes)}, None
            if os.environ.get("TDSL_TUNING"):
                from tdsl.records.lookup import schedule_of_environment

                schedule = schedule_of_environment(self.schedule.program, self.state, sizes, self.target)
            self._tuned[specialisation] = schedule
        return self._tuned[specialisation]

    def __reduce__(self) -> Any:
        """For pickle: what it is compiled of; the machine code comes from the disk cache."""
        return Compiled, (self.schedule, self.target, self.dynamic, self.sizes)

    def _attribute_hint(self, name: str) -> str:
        if name in ("block", "gather", "plan", "simulate", "trace"):
            return f"programs of ranks have it: s[f].distribute(...), then td.compile(s).{name}"
        return Suggesting._attribute_hint(self, name)

    def __repr__(self) -> str:
        return f"{Entry.__repr__(self)[:-1]} for {self.target}>"

    def _repr_html_(self) -> str:
        from tdsl.inspection import compiled_page

        has_loops = self.latest or self.dynamic.issuperset(self.signature.sizes)
        title = repr(self).strip("<>")
        return compiled_page(title, self.schedule, self.signature, self.loops() if has_loops else "")

    def loops(self, stage: str = "scheduled", **sizes: int) -> Listing:
        """The loop IR as text: of the variant used last, or for the sizes given by name.

        `stage` is "scheduled" for the loops of the schedule, simplified, or "final" for the loops that the
        backend compiles, with vector code. ShapeError if sizes are unknown and no call has been made.

        >>> import tdsl as td
        >>> i, a, f = td.vars("i"), td.Tensor("a", ("N",), td.f32), td.Func("f")
        >>> f[i] = a[i] * 2
        >>> td.compile(f, target="python").loops(N=10)
        def f_kernel(a: f32[10] strides (1), out f: f32[10] strides (1)):
          for f_i in range(0, 10):
            f[f_i] = a[f_i] * 2.0
        """
        from tdsl.inspection import loops

        specialisation = self.specialisation(sizes, "loops")
        return loops(self.variant(specialisation), self.executables.get(specialisation), stage)

    def source(self, kind: str = "", **sizes: int) -> Listing:
        """The generated code as text, of the same variant as `loops`.

        `kind` is "llvm" (before LLVM's own passes) or "asm" for the target cpu, "cuda" or "ptx" for a GPU,
        and "python" for any target but a GPU: the loops as a Python module. By default the first of these
        that the target has. TargetError for a kind that the target does not have.
        """
        from tdsl.inspection import source

        specialisation = self.specialisation(sizes, "source")
        return source(self.variant(specialisation), lambda: self.executable(specialisation), kind)

    def explain(self, **sizes: int) -> Listing:
        """The recipe that schedules each func, its choices and the reasons, for the same variant as `loops`.

        For a GPU the launches of its kernels and their resources follow, as in `launch`.

        >>> import tdsl as td
        >>> i, k, a = td.vars("i"), td.vars("k"), td.Tensor("a", ("N", 8), td.f32)
        >>> twice, total = td.Func("twice"), td.Func("total")
        >>> twice[i, k] = a[i, k] * 2
        >>> total[i] = td.sum(twice[i, k], axis=k)
        >>> td.compile(total, target="python").explain(N=10)
        twice: inline
          it is one operation or less
        total: root
          the target has no vectors
          i: independent iterations, left serial
          k: a sequential reduction

        ShapeError if sizes are unknown and no call has been made.
        """
        from tdsl.autoschedule.explain import explain
        from tdsl.inspection import launch
        from tdsl.pipeline import completed_with_decisions

        specialisation = self.specialisation(sizes, "explain")
        state, decisions = completed_with_decisions(self.variant(specialisation))
        tuned = self._tuned_schedule(specialisation)
        text = "\n".join((*(tuned.notes if tuned else ()), explain(decisions, state)))
        if self.target.name != "cuda":
            return Listing(text)
        return Listing(
            f"{text}\n{launch(self.variant(specialisation), lambda: self.executable(specialisation))}"
        )

    @property
    def launch(self) -> Module:
        """The GPU kernels of the variant used last: grid, block, shared bytes, arguments, registers by ptxas.

        The variant is compiled first if necessary, which needs no GPU.
        TargetError for another target, ShapeError if sizes are unknown and no call has been made.
        """
        from tdsl.inspection import check_launches, launch

        check_launches(self.target)
        specialisation = self.specialisation({})
        return launch(self.variant(specialisation), lambda: self.executable(specialisation))

    def profile(
        self, *args: Any, out: Any = None, repeat: int = 5, counters: bool = False, **kwargs: Any
    ) -> Profile:
        """The time of each root stage in a call with these arguments; see `profiling.Profile`.

        `repeat` is the number of timed rounds. With `counters` the traffic beyond each cache is counted as
        well, for comparison with the prediction: a cache simulation runs the loops once more in Python.
        Raises the errors of the call, and TargetError for kernels that cannot be simulated.
        """
        from tdsl.profiling import arguments_of, profile

        values, specialisation = arguments_of(self.signature, args, kwargs, out)
        self(*args, out=out, **kwargs)
        executable = self.executables.get(specialisation) or build(self.variant(specialisation))
        return profile(self.variant(specialisation), executable, values, repeat, counters)

    def specialisation(self, sizes: Mapping[str, int], method: str = "") -> Specialisation:
        """The specialisation for dense arrays of these sizes; without sizes the one built or emulated last.

        `method` is the name of the method that was called with the sizes, for hints of errors.
        """
        sizes = check_sizes(
            self.signature.name, self.signature.sizes, sizes, fixed=self.sizes,
            equal=self.state.program.equal, agreements=self.signature.agreements,
        )  # fmt: skip
        if self.latest is not None and not sizes:
            return self.latest
        dynamic = self.dynamic - set(sizes)
        missing = [n for n in self.signature.sizes if n not in dynamic and n not in sizes]
        if missing:
            arguments = ", ".join(f"{n}=100" for n in missing)
            example_call = f".{method}({arguments})" if method else f"td.compile(..., {arguments})"
            raise ShapeError(
                f"{self.signature.name!r} is compiled for sizes that are not known yet: {', '.join(missing)}",
                loc=here(),
                label="this call",
                hint=f"call it first, or give them: {example_call}",
            )
        return dense_specialisation(self.signature, sizes, dynamic)


Func._related_types += [
    (Compiled, "what is compiled has it: td.compile({func})"),
    (Schedule, "a schedule has it: td.Schedule({func})"),
    (Stage, "a stage of a schedule has it: td.Schedule({func})[{func}]"),
]
Schedule._related_types += [
    (Compiled, "what is compiled has it: td.compile(s)"),
    (Stage, "stages have it: s['{func}']"),
]
Stage._related_types += [
    (Schedule, "the schedule has it: s"),
    (Compiled, "what is compiled has it: td.compile(s)"),
]
Compiled._related_types += [
    (Schedule, "its schedule has it: p.schedule"),
    (Stage, "a schedule has it, before it is compiled: s = td.Schedule(f); s[f]"),
]


@checked_call
def build(variant: Variant) -> Executable:
    """Lowers a variant and generates its code, or loads the code from the cache; returns an executable."""

    def kernel() -> Kernel:
        # Lowering and its passes: imported neither with tdsl nor for code that is loaded from the cache.
        from tdsl.pipeline import make_kernel

        return make_kernel(variant)

    def make_fallbacks() -> list[Fallback]:
        from tdsl.pipeline import fallbacks

        return fallbacks(variant)

    if variant.target.name == "cpu":
        from tdsl.codegen.cpu.cached_kernel import load_or_build
        from tdsl.machine.cpu import cpu_for

        cpu = cpu_for(variant.target.level)
        return load_or_build(variant.fingerprint(), variant.params, kernel, cpu, make_fallbacks)
    if variant.target.name == "cuda":
        return _build_for_gpus(variant)
    from tdsl.pipeline import build_executable

    return build_executable(kernel(), variant.target)


def _build_for_gpus(variant: Variant) -> Executable:
    """The kernels for each architecture of a target; of several, also PTX of the last for later GPUs."""
    from tdsl.codegen.cuda import module
    from tdsl.codegen.cuda.executable import CudaExecutable
    from tdsl.codegen.cuda.spills import first_without_spills
    from tdsl.pipeline import make_kernel, with_fewer_registers

    default = not any(plan.scheduled for _, plan in variant.state.plans)
    known = variant.target.archs if variant.target.arch else ()

    def built(target: Target, arch: str = "") -> CudaExecutable:
        machine = target.machine()
        one = replace(variant, target=target, machine=machine)

        def compiled(candidate: Variant) -> Module:
            make = partial(make_kernel, candidate)
            return module.load_or_build(
                candidate.fingerprint(), make, arch or machine.arch, simplify=default, archs=known
            )

        chosen, code = first_without_spills(with_fewer_registers(one) if default else [one], compiled)
        return CudaExecutable(code, one.params, partial(make_kernel, chosen), machine=chosen.machine)

    targets = [replace(variant.target, arch=arch) for arch in variant.target.archs]
    executables = [built(target) for target in targets]
    if len(targets) > 1:
        base, arch = ptx_of(targets[-1].arch)
        executables.append(built(replace(variant.target, arch=base), arch))
    first, *others = executables
    return CudaExecutable(first.module, first.params, first.make, others=others, machine=first.machine)
