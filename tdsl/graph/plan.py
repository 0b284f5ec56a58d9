"""`Plan`: a graph compiled for known shapes: kernels in execution order, and the memory of each result."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tdsl.codegen.runtime.arrays import as_array, copy_overlapping
from tdsl.codegen.runtime.binding import (
    bind_outputs,
    check_outputs_disjoint,
    check_shape,
    output_array,
)
from tdsl.codegen.runtime.fast_call import fast_call
from tdsl.codegen.runtime.result_memory import new_output
from tdsl.codegen.runtime.signature import ALIGN, ArrayArg, Signature
from tdsl.compile import Compiled
from tdsl.core.notebook import Listing, page
from tdsl.errors import counted
from tdsl.folded_kernel import FoldedKernel
from tdsl.graph.drawing import memory_picture
from tdsl.graph.groups import Groups, is_unscheduled, sources
from tdsl.graph.kernels import mark_constants, scheduled_kernel
from tdsl.graph.memory import LiveBuffer, assign_offsets
from tdsl.graph.merge import merge
from tdsl.graph.steps import Outputs, Run, Step, StepsCode
from tdsl.graph.trace import Trace
from tdsl.graph.values import Base, Call, Result, Source, Spec, View, base_of
from tdsl.lang import program as lang
from tdsl.lang.expr import const
from tdsl.lang.program import bind_sizes
from tdsl.lang.types import from_numpy

if TYPE_CHECKING:
    from tdsl.viewer import view as pages

_STEP = re.compile(r" *(\d+)  ")  # begins the line of a step
KernelCompiler = Callable[[lang.Program, Compiled | None], FoldedKernel]


def build_steps(
    calls: Sequence[Call], outputs: Sequence[Source], groups: Groups, compile_kernel: KernelCompiler
) -> tuple[Step, ...]:
    """The steps of a plan, one for each group.

    `compile_kernel` returns the kernel of a program, compiled once for equal programs, or the given one.
    A call that the user has scheduled keeps its schedule.
    """
    steps, stored = [], stored_results(calls, outputs, groups)
    for group in groups:
        results = [Result(n, k) for n in group for k in range(len(calls[n].results))]
        first_call = calls[group[0]]
        if len(group) == 1 and (stored.issuperset(results) or not is_unscheduled(first_call)):
            program = bind_sizes(first_call.compiled.state.program, first_call.sizes)
            program = mark_constants(program, first_call.inputs)
            kernel = (
                compile_kernel(program, first_call.compiled)
                if is_unscheduled(first_call)
                else scheduled_kernel(first_call)
            )
            steps.append(Step(kernel, program, first_call.inputs, tuple(results)))
        else:
            kept = [r for r in results if r in stored]
            merged = merge(calls, group, kept or results, group_name(calls, group))
            program = mark_constants(merged.program, merged.inputs)
            kernel = compile_kernel(program, None)
            steps.append(Step(kernel, program, merged.inputs, merged.outputs))
    return tuple(steps)


def stored_results(calls: Sequence[Call], outputs: Sequence[Source], groups: Groups) -> set[Base]:
    """The results that groups store for other groups, and the arrays that are outputs."""
    group_of = {n: group for group in groups for n in group}
    stored = {base_of(s) for s in outputs}
    for group in groups:
        bases = {base_of(s) for n in group for s in sources(calls[n])}
        stored |= {b for b in bases if isinstance(b, Result) and group_of[b.call] != group}
    return stored


def group_name(calls: Sequence[Call], group: Sequence[int]) -> str:
    """The name of the program of a group."""
    names = [calls[n].name for n in group]
    return "_".join(names if len(names) < 5 else [*names[:3], f"{len(names) - 3}_more"])


def assign_outputs(trace: Trace, outputs: Sequence[Source]) -> Outputs:
    """Decides which results kernels write directly to the memory of an output, and which outputs are copied.

    A result is written to the first output that is the result, or else that is a view of all its elements
    in their order.
    """
    direct: dict[Result, int] = {}
    specs = tuple(s.spec if isinstance(s, View) else trace.spec_of(s) for s in outputs)
    for views in (False, True):
        for n, source in enumerate(outputs):
            base = base_of(source)
            if isinstance(source, View) != views or not isinstance(base, Result) or base in direct:
                continue
            if not views or _is_contiguous_view(source, trace.spec_of(base)):
                direct[base] = n
    copied = {n: s for n, s in enumerate(outputs) if n not in direct.values()}
    return Outputs(specs, direct, copied)


def _is_contiguous_view(view: Source, spec: Spec) -> bool:
    assert isinstance(view, View)
    viewed = view.apply(np.empty(spec.shape, spec.dtype))
    return viewed.nbytes == spec.nbytes and viewed.flags.c_contiguous


def live_buffers(
    steps: Sequence[Step], results: Mapping[Result, Spec], outputs: Outputs
) -> dict[Result, LiveBuffer]:
    """The sizes and live ranges of the results that are not written directly to an output."""
    first = {r: n for n, step in enumerate(steps) for r in step.outputs}
    last = dict(first)
    for n, step in enumerate(steps):
        for x in step.inputs:
            base = base_of(x) if isinstance(x, Source) else None
            if isinstance(base, Result):
                last[base] = n
    for source in outputs.copied.values():
        base = base_of(source)
        if isinstance(base, Result):
            last[base] = len(steps)
    return {r: LiveBuffer(results[r].nbytes, first[r], last[r]) for r in first if r not in outputs.direct}


class Plan:
    """A graph compiled for arguments of fixed shapes and types.

    `str()` shows a line for each group of calls that share a kernel: the arrays that it reads and writes, and
    the offsets of its results. `memory` is the memory plan of the intermediate results; `groups` has the
    numbers of the calls in each group, `trials` the measurements and choices of `Graph.tune`. `align` is the
    number of bytes that offsets of results are multiples of.
    """

    align = ALIGN

    def __init__(
        self,
        trace: Trace,
        outputs: Sequence[Source],
        groups: Groups,
        paths: Sequence[str],
        compile_kernel: KernelCompiler,
        trials: Sequence[object] = (),
    ) -> None:
        self.trace, self.sources, self.groups = trace, tuple(outputs), groups
        self.trials = tuple(trials)
        self.steps = self._build_steps(compile_kernel)
        self.results = {r: trace.spec_of(r) for step in self.steps for r in step.outputs}
        self.outputs = assign_outputs(trace, outputs)
        self.memory = assign_offsets(live_buffers(self.steps, self.results, self.outputs), self.align)
        self.signature = _signature(trace, paths, self.outputs.specs)
        self._prepare_calls()

    def _build_steps(self, compile_kernel: KernelCompiler) -> tuple[Step, ...]:
        return build_steps(self.trace.calls, self.sources, self.groups, compile_kernel)

    def _prepare_calls(self) -> None:
        trace = self.trace
        self.code = StepsCode(
            self.steps,
            len(trace.arguments),
            trace.constants,
            self.results,
            self.outputs,
            self.memory,
        )
        self._entry = _make_entry(trace.arguments, self.code.bind)
        self._fast_entry = fast_call(self.signature, {}, self._entry)

    def call(self, arrays: tuple[Any, ...]) -> Any:
        """The outputs for NumPy arrays in the order of the arguments; None if shapes or types differ."""
        return self._fast_entry(arrays)

    def write(self, arrays: Sequence[Any], out: Any) -> tuple[Any, ...]:
        """The outputs, written to the arrays in `out`; see `td.compile`."""
        signature = self.signature
        inputs = [as_array(a, x) for a, x in zip(signature.inputs, arrays, strict=True)]  # type: ignore[arg-type]  # all arrays
        given_outputs = bind_outputs(signature, out)
        written_arrays = [
            (arg, output_array(arg, x))
            for arg, x in zip(signature.outputs, given_outputs, strict=True)
            if x is not None
        ]
        specs = self.outputs.specs
        shapes = {arg.name: s.shape for arg, s in zip(signature.outputs, specs, strict=True)}
        for arg, array in written_arrays:
            check_shape(arg, array, shapes[arg.name])
        check_outputs_disjoint(written_arrays)
        memory = {arg.name: array for arg, array in written_arrays}
        output_arrays = [
            memory[arg.name] if arg.name in memory else new_output(shapes[arg.name], arg.dtype.numpy)
            for arg in signature.outputs
        ]
        # a result may be written to the memory of an output of another shape, which must be contiguous
        targets = [x if x.flags.c_contiguous else np.empty_like(x, order="C") for x in output_arrays]
        assert self._entry(*copy_overlapping(inputs, [array for _, array in written_arrays]), *targets)
        for array, target in zip(output_arrays, targets, strict=True):
            if array is not target:
                array[...] = target
        return tuple(
            (array if array.ndim else array[()]) if x is None else x
            for x, array in zip(given_outputs, output_arrays, strict=True)
        )

    def listing(self, text: Callable[[Compiled], str]) -> Listing:
        """A text about each kernel under a line with its calls; a kernel that is used again has no text."""
        parts = []
        for n, (group, step, first) in enumerate(
            zip(self.groups, self.steps, self.first_uses(), strict=True)
        ):
            head = f"// {n}: {' + '.join(self.trace.calls[c].name for c in group)}"
            parts.append(f"{head}, the kernel of {first}" if first != n else head)
            parts += [text(step.kernel.per_call)] * (first == n)
        return Listing("\n".join(parts))

    def first_uses(self) -> list[int]:
        """For each step the first one with the same kernel."""
        kernels = [(id(step.kernel), step.program) for step in self.steps]
        return [kernels.index(kernel) for kernel in kernels]

    def picture(self) -> str:
        """The memory of results over the steps as SVG."""
        names = {r: self.trace.calls[r.call].name for r in self.results}
        return memory_picture(self.trace.name, self.memory, names, len(self.steps))

    def view(self) -> pages.View:
        """A page of the steps, and of the loops, machine code and price of their kernels."""
        from tdsl.viewer.contents import Line
        from tdsl.viewer.panes import contents_of_steps
        from tdsl.viewer.view import View as Page

        first_uses = self.first_uses()
        numbered = ((text, _STEP.match(text)) for text in str(self).splitlines())
        table = (Line(text, (str(first_uses[int(n[1])]),) if n else ()) for text, n in numbered)
        kernels = ((n, self.steps[n].kernel.per_call) for n in dict.fromkeys(first_uses))
        return Page(contents_of_steps(self.trace.name, table, self.picture(), kernels))

    def _repr_html_(self) -> str:
        texts = [("plan", str(self)), ("memory over the steps", self.picture())]
        loops = self.listing(lambda kernel: str(kernel.loops()))
        schedules = self.listing(lambda kernel: str(kernel.explain()))
        return page(self.trace.name, [*texts, ("loops", loops), ("schedules", schedules)])

    def __str__(self) -> str:
        return show_plan(self)

    def __repr__(self) -> str:
        return str(self)


def _signature(trace: Trace, paths: Sequence[str], outputs: Sequence[Spec]) -> Signature:
    def arg(name: str, spec: Spec) -> ArrayArg:
        return ArrayArg(name, from_numpy(spec.dtype), tuple(map(const, spec.shape)))

    names = ["out"] if len(outputs) == 1 else [f"out_{n}" for n in range(len(outputs))]
    return Signature(
        trace.name,
        tuple(map(arg, paths, trace.arguments)),
        tuple(map(arg, names, outputs)),
    )


def _make_entry(arguments: Sequence[Spec], bind: Callable[[], Run]) -> Callable[..., bool]:
    """A function of inputs and outputs that runs the steps; it returns False if the inputs have other specs.

    Concurrent calls use separate blocks of memory, which later calls reuse.
    """
    inputs = [f"p{n}" for n in range(len(arguments))]
    lines = [f"def fits({', '.join([*inputs, '*outputs'])}):"]
    lines += [
        f"    if p{n}.shape != {spec.shape} or p{n}.dtype != t{n}: return False"
        for n, spec in enumerate(arguments)
    ]
    names: dict[str, Any] = {f"t{n}": spec.dtype for n, spec in enumerate(arguments)}
    exec("\n".join([*lines, "    return True"]), names)
    fits, free = names["fits"], list[Run]()

    def entry(*arrays: Any) -> bool:
        if not fits(*arrays):
            return False
        try:
            run = free.pop()
        except IndexError:
            run = bind()
        try:
            run(*arrays)
        finally:
            free.append(run)
        return True

    return entry


def show_plan(plan: Plan) -> str:
    """A table of the groups in execution order."""
    rows = [("", "calls", "writes", "reads", "offset", "")]
    first_uses = plan.first_uses()
    for n, (group, step, first_use) in enumerate(zip(plan.groups, plan.steps, first_uses, strict=True)):
        rows.append(
            (
                str(n),
                " + ".join(plan.trace.calls[c].name for c in group),
                " ".join(str(plan.results[r]) for r in step.outputs),
                f"{_bytes_read(plan, step):,}",
                " ".join(_location(plan, r) for r in step.outputs),
                "" if first_use == n else f"the kernel of {first_use}",
            )
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    right = (0, 3)
    lines = [
        "  ".join(
            cell.rjust(width) if k in right else cell.ljust(width)
            for k, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    calls = counted(sum(map(len, plan.groups)), "call")
    head = (
        f"{plan.trace.name}: {calls} in {counted(len(plan.groups), 'group')}, "
        f"{counted(len(set(first_uses)), 'kernel')}"
    )
    once = sum(bool(step.kernel.once) for step in plan.steps)
    if once:
        lines.append(f"once: {plan.code.folded_bytes:,} bytes for {counted(once, 'group')}, of constants")
    return "\n".join([head, *lines, f"memory: {plan.memory}", *map(str, plan.trials)])


def _location(plan: Plan, result: Result) -> str:
    if result in plan.outputs.direct:
        return plan.signature.outputs[plan.outputs.direct[result]].name
    return f"{plan.memory.offsets[result]:,}"


def _bytes_read(plan: Plan, step: Step) -> int:
    """The bytes of the arrays that a step reads, each array counted once."""
    sources_read = {x for x in step.inputs if isinstance(x, Source)}
    specs = [x.spec if isinstance(x, View) else plan.trace.spec_of(base_of(x)) for x in sources_read]
    return sum(spec.nbytes for spec in specs)
