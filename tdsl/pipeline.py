"""From the state of a schedule to the loops that a backend compiles.

    bind      named sizes become the numbers of a specialisation     lang/program.py
    separate  outputs that are needed beyond their array             codegen/outputs.py
    complete  what the schedule left open gets a default             schedule/default.py
    inline    inlined funcs go into their readers                    codegen/inline.py
    lower     loops                                                  codegen/lower.py
    passes    the same loops, faster                                 codegen/passes/
"""

from __future__ import annotations

from dataclasses import replace

from tdsl.codegen.inline import inline_funcs
from tdsl.codegen.loops import Kernel
from tdsl.codegen.lower import lower
from tdsl.codegen.outputs import separate_outputs
from tdsl.codegen.passes import PASSES, SCALAR_PASSES
from tdsl.codegen.passes.bound_loops import bound_loops
from tdsl.codegen.passes.simplify_loops import simplify_loops
from tdsl.codegen.show import show
from tdsl.codegen.signature import Signature, Specialisation
from tdsl.codegen.verify import verify
from tdsl.debug import run_passes, timed
from tdsl.lang.program import bind_sizes
from tdsl.schedule.default import complete
from tdsl.schedule.nest import State
from tdsl.target import Target


def make_kernel(
    state: State, target: Target, signature: Signature, specialisation: Specialisation
) -> Kernel:
    """The loops that a backend gets."""
    with timed("lower"):
        kernel = lowered(state, signature, specialisation)
    return after_passes(kernel, target)


def after_passes(kernel: Kernel, target: Target) -> Kernel:
    """A kernel as `lowered` gives it, made ready for the backend of a target."""
    passes = PASSES if target.name == "cpu" else SCALAR_PASSES
    return run_passes(kernel, passes, show=show, verify=verify, name=kernel.name)


def scheduled(state: State, signature: Signature, specialisation: Specialisation) -> Kernel:
    """The loops as the schedule has them, simplified, before loops are unrolled and vector code is made."""
    return bound_loops(simplify_loops(lowered(state, signature, specialisation)))


def lowered(state: State, signature: Signature, specialisation: Specialisation) -> Kernel:
    """The loops of the schedule as it stands, before any pass."""
    return lower(ready(state, specialisation), strides_of(signature, specialisation))


def ready(state: State, specialisation: Specialisation) -> State:
    """The state that is lowered: sizes bound, every func placed, none inlined."""
    program = bind_sizes(state.program, dict(specialisation.sizes))
    return inline_funcs(complete(separate_outputs(replace(state, program=program))))


def strides_of(signature: Signature, specialisation: Specialisation) -> dict[str, tuple[int | None, ...]]:
    """The constant strides, in elements, of each argument array by name."""
    pairs = zip(signature.arrays, specialisation.layouts, strict=True)
    return {a.name: layout for a, layout in pairs}
