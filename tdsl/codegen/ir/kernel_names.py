"""Unique names for the buffers and variables of a kernel that is lowered from a program."""

from __future__ import annotations

from tdsl.lang.program import FuncDef, Program


class KernelNames:
    """Assigns unique names to the buffers and variables of a kernel."""

    def __init__(self, program: Program) -> None:
        self.used = {t.name for t in program.inputs} | {s.name for s in program.scalars}
        self._components: dict[str, tuple[str, ...]] = {}
        for o, preferred in zip(program.outputs, program.output_names, strict=True):
            self._components[o] = self._fresh_components(program.func(o), preferred)
        # loop variables never have the names of variables of definitions, whose ranges may differ
        for f in program.funcs:
            for d in f.definitions:
                self.used |= set(d.variables)
        self.used |= set(program.sizes)
        # the suffix avoids the names of functions of the C library
        self.kernel = self.fresh(f"{program.name}_kernel")

    def fresh(self, preferred: str) -> str:
        """`preferred`, or the first of preferred_1, preferred_2, ... that is unused."""
        name, count = preferred, 0
        while name in self.used:
            count += 1
            name = f"{preferred}_{count}"
        self.used.add(name)
        return name

    def components(self, f: FuncDef) -> tuple[str, ...]:
        """The names of a func's buffers: the name of the func, with numbers for the components of a tuple."""
        if f.name not in self._components:
            self._components[f.name] = self._fresh_components(f, f.name)
        return self._components[f.name]

    def _fresh_components(self, f: FuncDef, preferred: str) -> tuple[str, ...]:
        if len(f.dtypes) == 1:
            return (self.fresh(preferred),)
        return tuple(self.fresh(f"{preferred}_{n}") for n in range(len(f.dtypes)))
