"""Emits the steps of one rank as the statements of a Python function."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from tdsl.communication.steps import (
    Allocate,
    Copy,
    Exchange,
    Fill,
    Finish,
    Free,
    Merge,
    Reduce,
    Route,
    Run,
    Start,
    Step,
)
from tdsl.core.source import here
from tdsl.core.text import Names, Writer
from tdsl.distribute.engine import Tasks
from tdsl.distribute.mpi import TAGS
from tdsl.distribute.mpi_execution import OPERATORS
from tdsl.distribute.route_rows import (
    all_to_all,
    exchanged_rows,
    function_text,
    place_rows,
    requested_rows,
    selected_rows,
)
from tdsl.distribute.routing import block_parts, outside_text, row_part
from tdsl.distribute.task import components, task
from tdsl.errors import TargetError
from tdsl.lang.expr import Binary, Call, Cast, Const, Expr, Param, Select, Unary
from tdsl.lang.reduction import Combine
from tdsl.placement.ownership import SpanBox, element_count, stored_shape
from tdsl.placement.spans import is_wrapped, storage_parts

Text = Callable[..., str]  # from the state of a task to the text of its module
RESERVED = {
    "np", "MPI", "comm", "requests", "run", "RANKS", "GROUPS", "among", "prange", "njit", "all_to_all",
    "exchanged_rows", "requested_rows", "selected_rows", "place_rows",
}  # fmt: skip
INFIX = {
    "add": "+", "sub": "-", "mul": "*", "or": "|", "and": "&", "xor": "^", "eq": "==", "ne": "!=", "lt": "<",
    "le": "<=", "gt": ">", "ge": ">=", "div": "/",
}  # fmt: skip


class TaskFunctions:
    """The functions of tasks; equal tasks share one function."""

    def __init__(self, tasks: Tasks, text: Text) -> None:
        self.tasks, self.text = tasks, text
        self.imports: dict[str, None] = {}
        self.support: dict[str, None] = {}
        self.functions: dict[str, str] = {}  # the text of each, and its name
        self.uses_groups = False  # whether there is a communicator of some ranks only
        self._names: dict[object, tuple[str, tuple[str, ...]]] = {}

    def call(self, step: Run, boxes: dict[str, SpanBox]) -> tuple[str, tuple[str, ...]]:
        """The name of the function for a step, and its parameters before those of the result."""
        state = task(self.tasks.stages[step.func], step, boxes)
        if state not in self._names:
            self._names[state] = (self._add(step.func, self.text(state)), state.program.parameters)
        return self._names[state]

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


class RankText:
    """Writes the steps of one rank as statements; `parameters` has the name of each of its arguments."""

    def __init__(self, kernels: TaskFunctions, parameters: Mapping[str, str], rank: int) -> None:
        self.kernels, self.writer, self.rank = kernels, Writer("    "), rank
        self.parameters = parameters
        self.names = Names({*RESERVED, *parameters.values()})
        self.variables: dict[str, list[str]] = {p: [name] for p, name in parameters.items()}
        self.boxes: dict[str, SpanBox] = {}
        self.started: dict[int, list[str]] = {}
        self.tensors: dict[str, str] = {}

    def arrays(self, buffer: str) -> list[str]:
        """The variables of a buffer: one for each value of its tensor or func."""
        if buffer not in self.variables:
            count = len(self.kernels.tasks.dtypes[self.tensors.get(buffer, buffer)])
            stem = re.sub(r"\W+", "_", buffer)
            stems = [stem] if count == 1 else [f"{stem}_{n}" for n in range(count)]
            self.variables[buffer] = [self.names.fresh(x) for x in stems]
        return self.variables[buffer]

    def parts(self, buffer: str, box: SpanBox) -> list[str]:
        """Expressions for a box of a buffer: slices, or `np.ix_` indices where it has gaps."""
        buffer_box = self.boxes[buffer]
        parts = [storage_parts(span, around) for span, around in zip(box, buffer_box, strict=True)]
        texts = [", ".join(f"{lo}:{hi}" for lo, hi in part) for part in parts]
        at = ", ".join(texts)
        if any(len(part) > 1 for part in parts):
            at = f"np.ix_({', '.join(f'np.r_[{text}]' for text in texts)})"
        all_of_it = buffer_box == box and not any(map(is_wrapped, box))
        return [name if all_of_it else f"{name}[{at}]" for name in self.arrays(buffer)]

    def step(self, step: Step) -> None:
        """Write one step."""
        w = self.writer
        match step:
            case Allocate(buffer, tensor, box, str() as over):
                self.boxes[buffer], self.tensors[buffer] = box, tensor
                w.line(f"{self.arrays(buffer)[0]} = {self.arrays(over)[0]}")
            case Allocate(buffer, tensor, box):
                self.boxes[buffer], self.tensors[buffer] = box, tensor
                dtypes = self.kernels.tasks.dtypes[tensor]
                for name, dtype in zip(self.arrays(buffer), dtypes, strict=True):
                    w.line(f'{name} = np.empty({stored_shape(box)}, "{dtype.numpy.name}")')
            case Fill(buffer):
                combine = self._combine(buffer)
                for name, init in zip(self.arrays(buffer), combine.init, strict=True):
                    w.line(f"{name}[...] = {_number(init)}")
            case Copy(source, target, box):
                into, new = self.parts(target, box), self.parts(source, box)
                for old, part in zip(into, new, strict=True):
                    w.line(f"{self._as_slice(old)} = {part}")
            case Merge(source, target, box):
                self._merge(self._combine(target), self.parts(target, box), self.parts(source, box))
            case Exchange():
                for line in self._start_exchange(step, "requests"):
                    w.line(line)
            case Start(exchange, handle):
                self.started[handle] = self._start_exchange(exchange, self.names.fresh("requests"))
            case Finish(handle):
                for line in self.started.pop(handle):
                    w.line(line)
            case Reduce():
                self._reduce(step)
            case Route():
                self._route(step)
            case Run():
                self._run_task(step)
            case Free(buffer):
                w.line(f"del {', '.join(self.arrays(buffer))}")
                del self.boxes[buffer]

    def _as_slice(self, part: str) -> str:
        return part if part.endswith("]") else f"{part}[...]"

    def _combine(self, buffer: str) -> Combine:
        combine = self.kernels.tasks.stages[self.tensors[buffer]].combine
        assert combine is not None
        return combine

    def _merge(self, combine: Combine, so_far: list[str], later: list[str]) -> None:
        """Write the merge of parts with later ones; all values are computed before one is stored."""
        names = {f"a{n}": part for n, part in enumerate(so_far)}
        names |= {f"b{n}": part for n, part in enumerate(later)}
        values = [numpy_text(e, names) for e in combine.exprs]
        if len(values) == 1:
            self.writer.line(f"{self._as_slice(so_far[0])} = {values[0]}")
            return
        merged = self.names.fresh("merged")
        self.writer.line(f"{merged} = ({', '.join(values)})")
        for n, part in enumerate(so_far):
            self.writer.line(f"{self._as_slice(part)} = {merged}[{n}]")

    def group(self, ranks: tuple[int, ...]) -> str:
        """An expression for the communicator of some ranks."""
        self.kernels.uses_groups = True
        return f"among(comm, {', '.join(map(str, ranks))})"

    def pack(self, parts: list[str]) -> str:
        """An expression for parts of buffers in one contiguous array."""
        flat = ", ".join(f"{part}.ravel()" for part in parts)
        return f"np.concatenate([{flat}])" if len(parts) > 1 else f"np.ascontiguousarray({parts[0]})"

    def allocate(self, shape: tuple[int, ...], like: str) -> str:
        """Write the allocation of an array with the element type of `like`; returns its name."""
        name = self.names.fresh("received")
        self.writer.line(f"{name} = np.empty({shape}, {like.partition('[')[0]}.dtype)")
        return name

    def _reduce(self, step: Reduce) -> None:
        w, kind, me = self.writer, step.collective, self.rank
        n = step.ranks.index(me)
        (combined,) = self._combine(step.source).exprs
        assert isinstance(combined, Binary), "MPI has an operator for it"
        op = f"op=MPI.{OPERATORS[combined.op]}"
        boxes = [part for part in step.parts if part is not None] if kind == "reduce-scatter" else [step.box]
        packed = self.pack([self.parts(step.source, box)[0] for box in boxes])
        part, into = step.parts[n], "None"
        if part is not None or kind == "reduce-scatter":
            into = self.allocate(
                (0,) if part is None else (element_count(part),), self.arrays(step.source)[0]
            )
        if kind == "reduce":
            root = next(i for i, p in enumerate(step.parts) if p is not None)
            w.line(f"{self.group(step.ranks)}.Reduce({packed}, {into}, {op}, root={root})")
        elif kind == "all-reduce":
            w.line(f"{self.group(step.ranks)}.Allreduce({packed}, {into}, {op})")
        else:
            counts = [0 if p is None else element_count(p) for p in step.parts]
            w.line(f"{self.group(step.ranks)}.Reduce_scatter({packed}, {into}, {counts}, {op})")
        if part is not None and step.target is not None:
            (place,) = self.parts(step.target, part)
            w.line(f"{self._as_slice(place)} = {into}.reshape({stored_shape(part)})")

    def _start_exchange(self, step: Exchange, requests: str) -> list[str]:
        """Write the calls that start an exchange; returns the statements that finish it."""
        self.writer.line(f"{requests} = []")
        finish = STARTS[step.collective](self, step, requests)
        return [f"MPI.Request.Waitall({requests})", *finish]

    def messages(self, step: Exchange, requests: str) -> list[str]:
        """Write point-to-point messages; returns the copies that follow them."""
        w, copies = self.writer, []
        for m in step.receives:
            for part in self.parts(m.buffer, m.box):
                target = part
                if part.endswith("]"):
                    target = self.allocate(stored_shape(m.box), part)
                    copies.append(f"{part} = {target}")
                w.line(f"{requests}.append(comm.Irecv({target}, source={m.rank}, tag={m.tag % TAGS}))")
        for m in step.sends:
            for part in self.parts(m.buffer, m.box):
                packed = f"np.ascontiguousarray({part})"
                w.line(f"{requests}.append(comm.Isend({packed}, dest={m.rank}, tag={m.tag % TAGS}))")
        return copies

    def broadcast(self, step: Exchange, requests: str) -> list[str]:
        """Write a broadcast; returns the copies that follow it."""
        (m, *_) = step.sends or step.receives
        root = step.ranks.index(self.rank if step.sends else m.rank)
        copies = []
        for part in self.parts(m.buffer, m.box):
            given = self.pack([part]) if step.sends else self.allocate(stored_shape(m.box), part)
            self.writer.line(f"{requests}.append({self.group(step.ranks)}.Ibcast({given}, root={root}))")
            if not step.sends:
                copies.append(f"{self._as_slice(part)} = {given}")
        return copies

    def gather(self, step: Exchange, requests: str) -> list[str]:
        """Write an all-gather; returns the copies that follow it."""
        mine, copies = step.sends[0] if step.sends else None, []
        for n, like in enumerate(self.arrays((step.sends or step.receives)[0].buffer)):
            operand = f"{like}[:0].ravel()"
            if mine is not None:
                operand = self.pack([self.parts(mine.buffer, mine.box)[n]])
            sizes = {m.rank: element_count(m.box) for m in step.receives}
            sizes[self.rank] = 0 if mine is None else element_count(mine.box)
            counts = [sizes.get(r, 0) for r in step.ranks]
            result = self.allocate((sum(counts),), like)
            call = f"{self.group(step.ranks)}.Iallgatherv({operand}, ({result}, {counts}))"
            self.writer.line(f"{requests}.append({call})")
            copies += self._unpack(step, result, counts, n)
        return copies

    def all_to_all(self, step: Exchange, requests: str) -> list[str]:
        """Write an all-to-all; returns the copies that follow it."""
        copies: list[str] = []
        for n, _ in enumerate(self.arrays(step.sends[0].buffer)):
            out = {m.rank: m for m in step.sends}
            sizes = {m.rank: element_count(m.box) for m in step.receives}
            sent = [element_count(out[r].box) if r in out else 0 for r in step.ranks]
            counts = [sizes.get(r, 0) for r in step.ranks]
            parts = [self.parts(m.buffer, m.box)[n] for _, m in sorted(out.items())]
            result = self.allocate((sum(counts),), parts[0])
            both = f"({self.pack(parts)}, {sent}), ({result}, {counts})"
            self.writer.line(f"{requests}.append({self.group(step.ranks)}.Ialltoallv({both}))")
            copies += self._unpack(step, result, counts, n)
        return copies

    def _unpack(self, step: Exchange, result: str, counts: list[int], n: int) -> list[str]:
        """The copies from the packed result of a collective into buffers."""
        copies = []
        for m in step.receives:
            at = step.ranks.index(m.rank)
            lo = sum(counts[:at])
            place = self._as_slice(self.parts(m.buffer, m.box)[n])
            part = f"{result}[{lo}:{lo + counts[at]}]"
            copies.append(f"{place} = {part}.reshape({stored_shape(m.box)})")
        return copies

    def _route(self, step: Route) -> None:
        """Write the call that fetches the rows which data select."""
        for function in (requested_rows, selected_rows, place_rows, exchanged_rows, all_to_all):
            self.kernels.support[function_text(function)] = None
        me, members = step.ranks.index(self.rank), range(len(step.ranks))
        owned = self.arrays(step.tensor) if step.blocks[me] is not None else []
        index = "np.empty(0, np.int64)" if step.index is None else f"{self.arrays(step.index)[0]}.ravel()"
        dtypes = self.kernels.tasks.dtypes[step.tensor]
        targets = [f'np.empty(0, "{t.numpy.name}")' for t in dtypes]
        if step.target is not None:
            shape = stored_shape(self.boxes[step.target])
            rows = (step.index_count(me), *shape[step.index_dims :])
            targets = [f"{name}.reshape({rows})" for name in self.arrays(step.target)]
        shared = [step.shared_rows(me, n) for n in members]
        route = next(r for r in self.kernels.tasks.stages[step.func].routes if r.name == step.source)
        where = "" if route.loc is None else f" ({route.loc.file}:{route.loc.line})"
        what = f" {outside_text(step)}{where}"
        at = "''" if len(step.axes) > 1 else f"'' if key is None else f' at {{key + {step.whole[0][0]}}}'"
        for line in (
            f"all_to_all({self.group(step.ranks)}, exchanged_rows(",
            f"    {index}, {step.whole},",
            f"    {block_parts(step, me)},",
            f"    {step.axes}, {_tuple_text(owned)}, {_tuple_text(targets)},",
            f"    {_tuple_text([_part_text(row_part(step, n, me, of_block=True)) for n in members])},",
            f"    {_tuple_text([_part_text(row_part(step, me, n, of_block=False)) for n in members])},",
            f"    {[() if s is None else stored_shape(s) for s in shared]},",
            f"    lambda n, key: IndexError(f'rank {{{list(step.ranks)}[n]}} reads {step.tensor}'",
            f"        + ({at}) + {what!r}),",
            "))",
        ):
            self.writer.line(line)

    def _run_task(self, step: Run) -> None:
        stage = self.kernels.tasks.stages[step.func]
        arguments = {
            parameter: name
            for source, buffer in step.reads
            for parameter, name in zip(components(stage, source), self.arrays(buffer), strict=True)
        }
        boxes = {source: self.boxes[name] for source, name in step.reads}
        function, takes = self.kernels.call(step, boxes)
        into = self.parts(step.target, step.box)
        texts = (arguments[n] if n in arguments else self.parameters[n] for n in takes)
        self.writer.line(f"{function}({', '.join((*texts, *into))})")


STARTS = {
    "": RankText.messages, "broadcast": RankText.broadcast, "all-gather": RankText.gather,
    "all-to-all": RankText.all_to_all,
}  # fmt: skip


def _tuple_text(items: list[str]) -> str:
    return f"({', '.join(items)}{',' * (len(items) == 1)})"


def _part_text(part: tuple[Any, ...]) -> str:
    """A part of a row as text: slices, or index arrays."""
    if part and not isinstance(part[0], slice):
        return f"np.ix_({', '.join(str(a.ravel().tolist()) for a in part)})"
    return repr(part)


def numpy_text(e: Expr, names: Mapping[str, str]) -> str:
    """An expression of a combine as NumPy text; `names` replaces its parameters.

    >>> from tdsl.lang.types import f64
    >>> x, y = Param("a0", f64), Param("b0", f64)
    >>> numpy_text(Select(Binary("gt", y, x), y, Binary("min", x, y)), {"a0": "old", "b0": "new[2:4]"})
    'np.where((new[2:4] > old), new[2:4], np.minimum(old, new[2:4]))'

    TargetError for an expression with no NumPy form.
    """

    def text(x: Expr) -> str:
        match x:
            case Param(name):
                return names.get(name, name)
            case Const():
                return _number(x)
            case Binary("min" | "max" as op, a, b):
                return f"np.{op}imum({text(a)}, {text(b)})"
            case Binary(op, a, b) if op in INFIX:
                return f"({text(a)} {INFIX[op]} {text(b)})"
            case Unary("neg" | "not" as op, a):
                return f"({'-' if op == 'neg' else '~'}{text(a)})"
            case Select(cond, yes, no):
                return f"np.where({text(cond)}, {text(yes)}, {text(no)})"
            case Cast(a, dtype):
                return f'{text(a)}.astype("{dtype.numpy.name}")'
            case Call("isnan" | "abs" | "sqrt" | "exp" | "log" as fn, (a,)):
                return f"np.{fn}({text(a)})"
            case _:
                raise TargetError(
                    f"{type(x).__name__} in a combiner cannot be written with NumPy",
                    loc=here(),
                    label="this call",
                    hint="combine by sums, products, minima, maxima, comparisons and choices",
                )

    return text(e)


def _number(e: Expr) -> str:
    assert isinstance(e, Const), "the identity of an operator is a number"
    value = e.value
    return repr(value) if value == value and abs(value) != float("inf") else f'float("{value}")'
