"""`Collector`: gathers the funcs and inputs reachable from the outputs, and orders a call's arguments."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tdsl.core.node import Node, post_order, pre_order, transform
from tdsl.core.source import Loc
from tdsl.errors import DefinitionError, TypeMismatch
from tdsl.lang.definition import Definition
from tdsl.lang.expr import ONE, Access, Param, Read, Size
from tdsl.lang.program import FuncDef, Input, ScalarInput, map_expressions
from tdsl.lang.regions import Interval
from tdsl.lang.simplify import add, subtract


class Collector:
    """Walks from the outputs to the inputs, depth first in the order of reads, and assigns unique names."""

    def __init__(self) -> None:
        self.inputs: list[Input] = []
        self.scalars: list[ScalarInput] = []
        self.funcs: list[FuncDef] = []
        self.created: dict[str, int] = {}  # creation numbers by name of input, in order of reads
        self.einsum_operands: list[tuple[Any, ...]] = []  # of each einsum, in the order of its call
        self.names: dict[int, str] = {}  # by `id` of the handle
        self.handles: dict[str, Any] = {}
        self.used_names: dict[str, Loc | None] = {}
        self.active: set[int] = set()

    def input(self, handle: Any) -> None:
        """Collect a tensor or scalar."""
        if isinstance(getattr(handle, "node", None), Param):
            self.scalar(handle.node)
            return
        if id(handle) in self.names:
            return
        self._new_argument(handle.name, handle._created, handle.loc)
        self.names[id(handle)], self.handles[handle.name] = handle.name, handle
        self.inputs.append(Input(handle.name, handle.extents, handle.dtype, handle.loc))

    def scalar(self, p: Param) -> None:
        """Collect a scalar; several declarations with one name and type are one scalar."""
        known = next((s for s in self.scalars if s.name == p.name), None)
        if known is None:
            self._new_argument(p.name, p.created, p.loc)
            self.scalars.append(ScalarInput(p.name, p.dtype, p.loc))
        elif known.dtype != p.dtype:
            raise TypeMismatch(
                f"scalar {p.name!r} is both {known.dtype} and {p.dtype}",
                loc=p.loc,
                label="declared here",
                related=((known.loc, "and first here"),),
                hint="declare it once, or give it one type in both places",
            )
        self.created[p.name] = min(p.created, self.created[p.name])

    def arguments(self, first: int) -> list[str]:
        """The inputs' names in the order of a call's arguments; the `first` ones keep their positions."""
        names = list(self.created)
        order = names[:first] + sorted(names[first:], key=self.created.__getitem__)
        for operands in self.einsum_operands:
            read = [n for x in operands for n in _inputs_of(x)]
            given = [n.name if isinstance(n, Param) else self.names.get(id(n)) for n in read]
            moved = [n for n in dict.fromkeys(given) if n in order[first:]]
            for place, name in zip(sorted(map(order.index, moved)), moved, strict=True):
                order[place] = name
        return order

    def check_extents(self) -> None:
        """Raise DefinitionError if a scalar and an extent have one name."""
        extents = {n.name: t.loc for t in self.inputs for n in post_order(*t.shape) if isinstance(n, Size)}
        for s in self.scalars:
            if s.name in extents:
                raise DefinitionError(
                    f"{s.name!r} is a scalar and an extent",
                    loc=s.loc,
                    label="the scalar",
                    related=((extents[s.name], "the extent"),),
                    hint="give one another name; an extent is used in expressions as x.shape[0]",
                )

    def _new_argument(self, name: str, created: int, loc: Loc | None) -> None:
        if name == "out":
            raise DefinitionError(
                "an input cannot be named 'out'",
                loc=loc,
                label="this input",
                hint="out= is the argument of a call for the memory of results; choose another name",
            )
        if name in self.used_names:
            raise DefinitionError(
                f"two inputs are named {name!r}",
                loc=loc,
                label="this input",
                related=((self.used_names[name], "the other one"),),
                hint="arguments are passed by name; give each its own",
            )
        self.used_names[name] = loc
        self.created[name] = created

    def func(self, f: Any) -> None:
        """Collect a func, after all funcs and inputs that it reads."""
        stack = [self._collected(f)]  # an explicit stack: there may be thousands of funcs
        while stack:
            read = next(stack[-1], None)
            if read is None:
                stack.pop()
            else:
                stack.append(self._collected(read))

    def _collected(self, f: Any) -> Iterator[Any]:
        """Collect a func; yields each func that it reads, which the caller collects before resuming."""
        if id(f) in self.names or id(f) in self.active:
            return
        f._pure_definition()
        self.active.add(id(f))
        for d in f.definitions:
            for n in d.named:
                if isinstance(n, Access) and hasattr(n.source, "definitions"):
                    yield n.source
                elif isinstance(n, Access):
                    self.input(n.source)
                elif isinstance(n, Param):
                    self.scalar(n)
            for p in d.combine.scalars() if d.combine else ():
                self.scalar(p)
        name, count = f.name, 0
        while name in self.used_names:
            count += 1
            name = f"{f.name}_{count}"
        self.used_names[name] = f.loc
        self.names[id(f)], self.handles[name] = name, f
        self.einsum_operands.append(f._operands)
        definitions = tuple(self._named(d) for d in f.definitions)
        rank = f.ndim
        limits: tuple[Interval, ...] = ((None, None),) * rank
        if f.declared is not None:
            limits = tuple((lo, subtract(add(lo, e), ONE)) for lo, e in f._domain())
        self.funcs.append(
            FuncDef(
                name,
                f.dtypes,
                definitions,
                limits,
                limits,
                f.declared is not None,
                f.fast_math,
                f.loc,
            )
        )

    def _named(self, d: Definition) -> Definition:
        """The definition with each `Access` replaced by a `Read` by name; cached for the last names."""

        def visit(n: Node) -> Node:
            if isinstance(n, Access):
                return Read(self.names[id(n.source)], n.index, n.component, n.dtype, loc=n.loc)
            return n

        names = tuple(self.names[id(n.source)] for n in d.named if isinstance(n, Access))
        if names not in d.by_names:
            d.by_names.clear()
            d.by_names[names] = map_expressions(d, lambda e: transform(e, visit))
        return d.by_names[names]


def _inputs_of(x: Any) -> Iterator[Any]:
    """The tensors and scalars of an operand of einsum: itself, or those that its expression reads."""
    match getattr(x, "node", None):
        case None:
            yield getattr(x, "source", x)  # the source of a padding
        case e:
            for n in pre_order(e):
                if isinstance(n, Access | Param):
                    yield n.source if isinstance(n, Access) else n
