"""Emits a plan as a standalone Python module: mpi4py for messages, NumPy for memory, its tasks as functions.

Each rank has a function with its steps in order; `run(*blocks)` calls the function of this process's rank.
"""

from __future__ import annotations

from collections.abc import Mapping

from tdsl.communication.steps import RankPlan
from tdsl.core.text import Names, Writer
from tdsl.distribute.engine import Tasks
from tdsl.distribute.plan import Plan, summary
from tdsl.distribute.rank_text import RESERVED, RankText, TaskFunctions, Text

AMONG_TEXT = '''GROUPS = {}


def among(comm, *ranks):
    """The communicator of some ranks, created at its first use."""
    if ranks not in GROUPS:
        GROUPS[ranks] = comm.Create_group(comm.group.Incl(ranks))
    return GROUPS[ranks]'''


def emit(plan: Plan, tasks: Tasks, parameters: tuple[str, ...], text: Text) -> str:
    """The text of the module. TargetError if parts are combined by an expression with no NumPy form."""
    kernels = TaskFunctions(tasks, text)
    count, names = plan.grid.size + plan.idle, Names(RESERVED)
    called = {p: names.fresh(p) for p in parameters}
    ranks = "\n\n\n".join(_rank_function(plan.rank(r), plan, called, kernels) for r in range(count))
    w = Writer()
    w.line(f'"""{summary(plan)}.')
    w.line()
    w.line(f"Made by tdsl; run(...) on each of {count} ranks takes and gives their blocks.")
    w.line('"""')
    w.line()
    for line in sorted({"import numpy as np", "from mpi4py import MPI", *kernels.imports}):
        w.line(line)
    group_text = [AMONG_TEXT] if kernels.uses_groups else []
    parts = [str(w).rstrip(), *group_text, *kernels.support, *kernels.functions, ranks.rstrip()]
    table = ", ".join(f"rank_{r}" for r in range(count))
    arguments = ", ".join(called.values())
    parts.append(
        f"RANKS = ({table},)\n\n\n"
        f"def run({arguments}{', ' if parameters else ''}comm=MPI.COMM_WORLD):\n"
        f'    """The blocks that this rank owns of: {", ".join(plan.outputs)}; None for nothing."""\n'
        f"    return RANKS[comm.rank]({', '.join(('comm', *called.values()))})\n"
    )
    return "\n\n\n".join(parts)


def _rank_function(plan: RankPlan, whole: Plan, parameters: Mapping[str, str], kernels: TaskFunctions) -> str:
    """The text of the function of one rank."""
    body = RankText(kernels, parameters, plan.rank)
    w = body.writer
    at = "idle"
    if plan.rank < whole.grid.size:
        at = f"at ({', '.join(map(str, whole.grid.coordinates(plan.rank)))})"
    arguments = ", ".join(("comm", *parameters.values()))
    with w.block(f"def rank_{plan.rank}({arguments}):"):
        w.line(f'"""Rank {plan.rank}, {at}."""')
        for name, box in plan.owned:
            body.boxes[name], body.tensors[name] = box, name
        for step in plan.steps:
            body.step(step)
        results: list[str] = []
        for name in whole.outputs:
            names = body.arrays(name)
            results += names if name in body.boxes else ["None"] * len(names)
        w.line(f"return {', '.join(results)}")
    return str(w)
