"""A plan as text: a line for each group of calls, and what the memory comes to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tdsl.errors import counted
from tdsl.graph.steps import Step
from tdsl.graph.values import Result, Source, View, base_of

if TYPE_CHECKING:
    from tdsl.graph.plan import Plan


def show_plan(plan: Plan) -> str:
    """A table of the groups, in the order in which they run."""
    kernels = [(id(step.kernel), step.program) for step in plan.steps]
    rows = [("", "calls", "writes", "reads", "lies at", "")]
    for n, (group, step) in enumerate(zip(plan.groups, plan.steps, strict=True)):
        twin = kernels.index(kernels[n])
        rows.append(
            (
                str(n),
                " + ".join(plan.trace.calls[c].name for c in group),
                " ".join(str(plan.results[r]) for r in step.outputs),
                f"{_bytes_read(plan, step):,}",
                " ".join(_place(plan, r) for r in step.outputs),
                "" if twin == n else f"the kernel of {twin}",
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
        f"{counted(len(set(kernels)), 'kernel')}"
    )
    once = sum(bool(step.kernel.once) for step in plan.steps)
    if once:
        lines.append(
            f"once: {plan.program.made_once:,} bytes for {counted(once, 'group')}, of constants"
        )
    return "\n".join([head, *lines, f"memory: {plan.memory}", *map(str, plan.trials)])


def _place(plan: Plan, result: Result) -> str:
    if result in plan.outputs.direct:
        return plan.signature.outputs[plan.outputs.direct[result]].name
    return f"{plan.memory.offsets[result]:,}"


def _bytes_read(plan: Plan, step: Step) -> int:
    """The bytes of the arrays that a step reads, each once."""
    read = {x for x in step.inputs if isinstance(x, Source)}
    specs = [x.spec if isinstance(x, View) else plan.trace.spec_of(base_of(x)) for x in read]
    return sum(spec.nbytes for spec in specs)
