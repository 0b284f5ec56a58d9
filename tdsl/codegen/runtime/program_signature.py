"""The signature of a program: what a call takes and returns."""

from __future__ import annotations

from dataclasses import replace

from tdsl.codegen.ir.kernel_names import KernelNames
from tdsl.codegen.runtime.signature import ArrayArg, ScalarArg, Signature
from tdsl.core.source import here
from tdsl.errors import ShapeError
from tdsl.lang.program import Program


def signature_of(program: Program) -> Signature:
    """The signature of a program: its inputs in the order of the parameters, and its outputs."""
    names = KernelNames(program)
    inputs: list[ArrayArg | ScalarArg] = []
    for p in program.parameters:
        inputs += [ArrayArg(p, t.dtype, t.array_shape(), t.loc) for t in program.inputs if t.name == p]
        inputs += [ScalarArg(p, s.dtype, s.loc) for s in program.scalars if s.name == p]
    outputs = []
    for o in program.outputs:
        f = program.func(o)
        shape = f.array_shape(here())
        outputs += [
            ArrayArg(name, t, shape, f.loc) for name, t in zip(names.components(f), f.dtypes, strict=True)
        ]
    return Signature(program.name, tuple(inputs), tuple(outputs), program.agreements)


def check_sizes_determined(program: Program, signature: Signature) -> None:
    """Raises ShapeError for a size in the definitions that no array argument determines."""
    for name in program.sizes:
        if name in signature.sizes:
            continue
        used = (
            f.definitions[0].loc or f.loc
            for f in program.funcs
            if name in replace(program, inputs=(), funcs=(f,)).sizes
        )
        raise ShapeError(
            f"no argument of {program.name!r} decides the size {name}",
            loc=here(),
            label="compiled here",
            related=tuple((loc, "used here") for loc in used),
            hint=f"give its value, td.compile(..., {name}=100), or read a tensor that has it as an extent",
        )
