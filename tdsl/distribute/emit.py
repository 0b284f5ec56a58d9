"""A plan as a standalone Python module: mpi4py for messages, NumPy for memory, its tasks as functions.

Each rank has a function of its own with its steps in order; `run(*blocks)` calls that of this process.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from tdsl.distribute.engine import Tasks
from tdsl.distribute.plan import (
    Copy,
    Drop,
    Exchange,
    Fill,
    Make,
    Merge,
    Message,
    Plan,
    RankPlan,
    Run,
    Step,
)
from tdsl.distribute.show import summary
from tdsl.distribute.task import task
from tdsl.errors import TargetError
from tdsl.lang.expr import Binary, Const, Expr
from tdsl.placement.ownership import Box, extents
from tdsl.source import here
from tdsl.text import Names, Writer

Text = Callable[..., str]  # the module of a task, by its state
RESERVED = {"np", "MPI", "comm", "requests", "run", "RANKS", "prange", "njit"}
UFUNCS = {
    "add": "add", "mul": "multiply", "min": "minimum", "max": "maximum", "or": "bitwise_or",
    "and": "bitwise_and",
}  # fmt: skip


def emit(plan: Plan, tasks: Tasks, parameters: tuple[str, ...], text: Text) -> str:
    """The text of the module. TargetError where partial results are combined by more than one operator."""
    kernels = Kernels(tasks, text)
    ranks = "\n\n\n".join(_rank(p, plan, parameters, kernels) for p in plan)
    w = Writer()
    w.line(f'"""{summary(plan)}.')
    w.line()
    w.line(
        f"Made by tdsl; run(...) on each of {plan.grid.size} ranks takes and gives their blocks."
    )
    w.line('"""')
    w.line()
    for line in sorted({"import numpy as np", "from mpi4py import MPI", *kernels.imports}):
        w.line(line)
    parts = [str(w).rstrip(), *kernels.support, *kernels.functions, ranks.rstrip()]
    table = ", ".join(f"rank_{p.rank}" for p in plan)
    arguments = ", ".join(parameters)
    parts.append(
        f"RANKS = ({table},)\n\n\n"
        f"def run({arguments}{', ' if parameters else ''}comm=MPI.COMM_WORLD):\n"
        f'    """The blocks that this rank owns of: {", ".join(plan.outputs)}; None for nothing."""\n'
        f"    return RANKS[comm.rank]({', '.join(('comm', *parameters))})\n"
    )
    return "\n\n\n".join(parts)


class Kernels:
    """The functions of tasks; equal tasks are one function."""

    def __init__(self, tasks: Tasks, text: Text) -> None:
        self.tasks, self.text = tasks, text
        self.imports: dict[str, None] = {}
        self.support: dict[str, None] = {}
        self.functions: dict[str, str] = {}  # the text of each, and its name
        self._known: dict[object, tuple[str, tuple[str, ...]]] = {}

    def call(self, step: Run, boxes: dict[str, Box]) -> tuple[str, tuple[str, ...]]:
        """The function for a step, and the names of what it takes before the result."""
        state = task(self.tasks.stages[step.func], step, boxes)
        if state not in self._known:
            self._known[state] = (self._add(step.func, self.text(state)), state.program.parameters)
        return self._known[state]

    def _add(self, func: str, module: str) -> str:
        *support, kernel = re.split(r"\n\n\n(?=\S)", module.strip())
        for block in support:
            if block.startswith(("import", "from")):
                self.imports |= dict.fromkeys(block.splitlines())
            else:
                self.support[block] = None
        name = f"compute_{func}_{len(self.functions)}"
        renamed = re.sub(r"^def \w+", f"def {name}", kernel, count=1, flags=re.M)
        self.functions[renamed] = name
        return name


def _rank(plan: RankPlan, whole: Plan, parameters: tuple[str, ...], kernels: Kernels) -> str:
    """The function of one rank."""
    body = RankText(kernels, parameters)
    w = body.writer
    at = ", ".join(map(str, whole.grid.coordinates(plan.rank)))
    arguments = ", ".join(("comm", *parameters))
    with w.block(f"def rank_{plan.rank}({arguments}):"):
        w.line(f'"""Rank {plan.rank}, at ({at})."""')
        for name, box in plan.owned:
            body.boxes[name], body.tensors[name] = box, name
        for step in plan.steps:
            body.step(step)
        results = [body.name(n) if n in body.boxes else "None" for n in whole.outputs]
        w.line(f"return {', '.join(results)}")
    return str(w)


class RankText:
    """The steps of one rank as statements."""

    def __init__(self, kernels: Kernels, parameters: tuple[str, ...]) -> None:
        self.kernels, self.writer = kernels, Writer("    ")
        self.names = Names({*RESERVED, *parameters})
        self.known: dict[str, str] = {p: p for p in parameters}
        self.boxes: dict[str, Box] = {}
        self.tensors: dict[str, str] = {}

    def name(self, buffer: str) -> str:
        """The variable of a buffer."""
        if buffer not in self.known:
            self.known[buffer] = self.names.fresh(re.sub(r"\W+", "_", buffer))
        return self.known[buffer]

    def part(self, buffer: str, box: Box) -> str:
        """A box of a buffer, as a view."""
        held, name = self.boxes[buffer], self.name(buffer)
        if held == box:
            return name
        spans = zip(box, held, strict=True)
        return (
            f"{name}[{', '.join(f'{lo - start}:{hi - start}' for (lo, hi), (start, _) in spans)}]"
        )

    def step(self, step: Step) -> None:
        """Write one step."""
        w = self.writer
        match step:
            case Make(buffer, tensor, box):
                self.boxes[buffer], self.tensors[buffer] = box, tensor
                dtype = self.kernels.tasks.dtypes[tensor].numpy
                w.line(f'{self.name(buffer)} = np.empty({extents(box)}, "{dtype.name}")')
            case Fill(buffer):
                init = self._combine(buffer)[1]
                w.line(f"{self.name(buffer)}[...] = {init}")
            case Copy(source, target, box):
                w.line(f"{self._whole(self.part(target, box))} = {self.part(source, box)}")
            case Merge(source, target, box):
                into, new = self.part(target, box), self.part(source, box)
                w.line(f"np.{self._combine(target)[0]}({into}, {new}, out={into})")
            case Exchange(sends, receives):
                self._exchange(sends, receives)
            case Run():
                self._run(step)
            case Drop(buffer):
                w.line(f"del {self.name(buffer)}")
                del self.boxes[buffer]

    def _whole(self, part: str) -> str:
        return part if part.endswith("]") else f"{part}[...]"

    def _combine(self, buffer: str) -> tuple[str, str]:
        """NumPy's function that combines what a buffer holds, and the identity."""
        func = self.tensors[buffer]
        combine = self.kernels.tasks.stages[func].definition.combine
        match combine.exprs[0] if combine else None:
            case Binary(op) if op in UFUNCS and combine is not None:
                return UFUNCS[op], _number(combine.init[0])
        raise TargetError(
            f"{func!r} combines what ranks made by more than one operator",
            loc=here(),
            label="this call",
            hint="only sum, prod, min, max, any and all can be written as a module",
        )

    def _exchange(self, sends: tuple[Message, ...], receives: tuple[Message, ...]) -> None:
        w, copies = self.writer, []
        w.line("requests = []")
        for m in receives:
            target = self.part(m.buffer, m.box)
            if m.box != self.boxes[m.buffer]:
                room = self.names.fresh("received")
                w.line(f"{room} = np.empty({extents(m.box)}, {self.name(m.buffer)}.dtype)")
                copies.append(f"{target} = {room}")
                target = room
            w.line(f"requests.append(comm.Irecv({target}, source={m.rank}, tag={m.tag}))")
        for m in sends:
            part = self.part(m.buffer, m.box)
            w.line(
                f"requests.append(comm.Isend(np.ascontiguousarray({part}), dest={m.rank}, tag={m.tag}))"
            )
        w.line("MPI.Request.Waitall(requests)")
        for line in copies:
            w.line(line)

    def _run(self, step: Run) -> None:
        buffers = dict(step.reads)
        boxes = {tensor: self.boxes[name] for tensor, name in step.reads}
        function, takes = self.kernels.call(step, boxes)
        given = [self.name(buffers[n]) if n in buffers else n for n in takes]
        target = self.part(step.target, step.box)
        self.writer.line(f"{function}({', '.join((*given, target))})")


def _number(e: Expr) -> str:
    assert isinstance(e, Const), "the identity of an operator is a number"
    value = e.value
    return repr(value) if value == value and abs(value) != float("inf") else f'float("{value}")'
