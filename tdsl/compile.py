"""Program + schedule + target -> callable. The file to read first: the whole way is `build`.

    program     what is reachable from the outputs, ranges inferred       lang/program.py, lang/infer.py
    schedule    directives; what was left open gets a default             schedule/
    inline      inlined funcs go into their readers                       codegen/inline.py
    lower       loops                                                     codegen/lower.py
    passes      the same loops, faster                                    codegen/passes/
    backend     code                                                      codegen/cpu/, codegen/python/

Sizes are bound first: a program is compiled for the sizes of a call, and again for others, unless they are
named in `dynamic`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tdsl.codegen.access import Names
from tdsl.codegen.call import Entry, Executable
from tdsl.codegen.inline import inline_funcs
from tdsl.codegen.loops import Kernel
from tdsl.codegen.lower import lower
from tdsl.codegen.outputs import separate_outputs
from tdsl.codegen.passes import PASSES, SCALAR_PASSES
from tdsl.codegen.show import show
from tdsl.codegen.signature import ArrayArg, ScalarArg, Signature, Specialisation
from tdsl.codegen.verify import verify
from tdsl.debug import run_passes, timed
from tdsl.errors import ShapeError, TypeMismatch, did_you_mean
from tdsl.lang.expr import Expr
from tdsl.lang.program import Program
from tdsl.lang.tensor import Func
from tdsl.schedule.bind import bind_state
from tdsl.schedule.default import complete
from tdsl.schedule.fluent import Schedule
from tdsl.schedule.nest import State
from tdsl.schedule.places import check_all
from tdsl.source import here
from tdsl.target import Target, as_target


def compile(
    what: Any, *, target: Target | str | None = None, dynamic: str | Iterable[str] = (), **sizes: int
) -> Compiled:
    """A callable for funcs, or for a schedule of them.

    `what` is a func, a tuple of funcs, or a `Schedule`. The result takes arrays and scalars in the order
    in which the program reads them (or by name), and returns the outputs; `out=` gives memory for these.
    It is compiled for the sizes of each call, and remembered; `sizes` fixes some before, sizes named in
    `dynamic` may differ from call to call without compiling again.

    >>> import numpy as np, tdsl as td
    >>> i = td.vars("i")
    >>> a, f = td.Tensor("a", ("N",), td.f32), td.Func("f")
    >>> f[i] = a[i] * 2
    >>> td.compile(f)(np.arange(3, dtype=np.float32))
    array([0., 2., 4.], dtype=float32)

    Raises a TdslError of the kind that fits for a program, schedule or target that cannot be compiled.
    """
    if isinstance(what, Schedule):
        schedule = what
    elif isinstance(what, Func):
        schedule = Schedule(what)
    elif isinstance(what, tuple | list) and what and all(isinstance(f, Func) for f in what):
        schedule = Schedule(*what)
    elif hasattr(what, "schedule") and hasattr(what, "program"):
        schedule = what.schedule()
    else:
        raise TypeMismatch(
            f"{type(what).__name__} cannot be compiled", loc=here(), hint="pass a td.Func or a td.Schedule"
        )
    chosen = as_target(target if target is not None else schedule.target)
    known = (*schedule.program.sizes,)
    free = frozenset((dynamic,) if isinstance(dynamic, str) else dynamic)
    for name in (*free, *sizes):
        if name not in known:
            raise ShapeError(
                f"there is no size {name!r} in {schedule.program.name!r}",
                loc=here(),
                hint=did_you_mean(name, known),
            )
    return Compiled(schedule, chosen, free, {**schedule.sizes, **sizes})


class Compiled(Entry):
    """A compiled program: call it with arrays; see `loops`, `source` and `profile` to look inside."""

    def __init__(
        self, schedule: Schedule, target: Target, dynamic: frozenset[str], sizes: Mapping[str, int]
    ) -> None:
        check_all(schedule.state)
        self.schedule, self.target = schedule, target
        self.sizes = dict(sizes)
        self.state = bind_state(schedule.state, self.sizes) if sizes else schedule.state
        Entry.__init__(self, signature_of(self.state.program), dynamic, self._build)

    def _build(self, specialisation: Specialisation) -> Executable:
        return build(self.state, self.target, self.signature, specialisation)

    def __repr__(self) -> str:
        return f"{Entry.__repr__(self)[:-1]} for {self.target.name}>"


def signature_of(program: Program) -> Signature:
    """What a call of a program takes and gives."""
    names = Names(program)
    inputs: list[ArrayArg | ScalarArg] = []
    for p in program.parameters:
        inputs += [ArrayArg(p, t.dtype, t.shape, t.loc) for t in program.inputs if t.name == p]
        inputs += [ScalarArg(p, s.dtype, s.loc) for s in program.scalars if s.name == p]
    outputs = []
    for o in program.outputs:
        f = program.func(o)
        shape: tuple[Expr, ...] = tuple(e for _, e in f.output_box(None))
        outputs += [
            ArrayArg(name, t, shape, f.loc) for name, t in zip(names.components(f), f.dtypes, strict=True)
        ]
    return Signature(program.name, tuple(inputs), tuple(outputs))


def build(
    state: State, target: Target, signature: Signature, specialisation: Specialisation
) -> Executable:
    """One variant: everything from the state of the schedule to an executable."""
    kernel = make_kernel(state, target, signature, specialisation)
    with timed("backend"):
        match target.name:
            case "cpu":
                from tdsl.codegen.cpu.executable import build as build_cpu

                return build_cpu(kernel)
            case "numba":
                from tdsl.codegen.python.run import NumbaExecutable

                return NumbaExecutable(kernel)
            case _:
                from tdsl.codegen.python.run import PythonExecutable

                return PythonExecutable(kernel)


def make_kernel(
    state: State, target: Target, signature: Signature, specialisation: Specialisation
) -> Kernel:
    """The loops that a backend gets."""
    with timed("lower"):
        kernel = lowered(state, signature, specialisation)
    passes = PASSES if target.name == "cpu" else SCALAR_PASSES
    return run_passes(kernel, passes, show=show, verify=verify, name=kernel.name)


def lowered(state: State, signature: Signature, specialisation: Specialisation) -> Kernel:
    """The loops of the schedule as it stands, before any pass."""
    bound = separate_outputs(bind_state(state, dict(specialisation.sizes)))
    ready = inline_funcs(complete(bound))
    strides = {
        a.name: layout for a, layout in zip(signature.arrays, specialisation.layouts, strict=True)
    }
    return lower(ready, strides)


