"""Writes LLVM IR text: `Module` collects functions and declarations, `Builder` writes one function's body.

A builder does value numbering: it writes each distinct pure instruction once, in the outermost loop or branch
that defines all of its operands. So it hoists invariants and shares repeated addresses before LLVM runs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from tdsl.machine.cpu import CpuTarget

_NAME = re.compile(r"%[\w.]+")
_SYMBOL = re.compile(r"@([\w.$]+)|^!\d+")
_FILE, _UNIT, _VERSION, _TYPE, _FIRST_SUBPROGRAM = 90, 91, 92, 93, 100  # numbers of metadata


@dataclass
class Module:
    """The functions, globals and declarations of one IR text; `guarded` names the buffers with red zones.

    `lines` are the lines of statements, by their `id`, in a text of the kernel: instructions then have debug
    locations, which assembly shows as `.loc`.
    """

    target: CpuTarget
    fast: bool = False
    guarded: tuple[str, ...] = ()
    parts: dict[str, str] = field(default_factory=dict)
    lines: Mapping[int, int] = field(default_factory=dict)
    subprograms: int = 0

    def declare(self, text: str) -> None:
        """Add `declare ...`, a global, metadata or a whole `define ...`, unless its symbol exists already.

        >>> m = Module(None)
        >>> m.declare("declare float @llvm.sqrt.f32(float)")
        >>> m.declare("declare float @llvm.sqrt.f32(float)")
        >>> m.text()
        'declare float @llvm.sqrt.f32(float)\\n'
        """
        symbol = _SYMBOL.search(text)
        assert symbol, f"no symbol in {text!r}"
        self.parts.setdefault(symbol[1] or symbol[0], text)

    def replace(self, symbol: str, text: str) -> None:
        """Replace the text of a symbol that exists."""
        self.parts[symbol] = text

    def fresh(self, stem: str) -> str:
        """A symbol that is not in use: `stem`, `stem.1`, ..."""
        name, n = stem, 0
        while name in self.parts:
            n += 1
            name = f"{stem}.{n}"
        return name

    def subprogram(self) -> str:
        """The metadata of a new function whose instructions have debug locations."""
        self.subprograms += 1
        name = f"!{_FIRST_SUBPROGRAM + self.subprograms}"
        about = f"scope: !{_FILE}, file: !{_FILE}, unit: !{_UNIT}, type: !{_TYPE}"
        self.declare(f'{name} = distinct !DISubprogram(name: "loops", {about}, spFlags: DISPFlagDefinition)')
        return name

    def text(self) -> str:
        """The module as LLVM reads it."""
        lines = [*self.parts.values()]
        if self.subprograms:
            unit = f"language: DW_LANG_C99, file: !{_FILE}, emissionKind: LineTablesOnly"
            lines += [
                f'!{_FILE} = !DIFile(filename: "loops", directory: "")',
                f"!{_UNIT} = distinct !DICompileUnit({unit})",
                f'!{_VERSION} = !{{i32 2, !"Debug Info Version", i32 3}}',
                f"!{_TYPE} = !DISubroutineType(types: !{{null}})",
                f"!llvm.dbg.cu = !{{!{_UNIT}}}",
                f"!llvm.module.flags = !{{!{_VERSION}}}",
            ]
        return "\n".join(lines) + "\n"


@dataclass
class _Scope:
    lines: list[str]
    memo: dict[str, str]
    block: str


class Builder:
    """Writes the body of one function: `v` writes pure instructions, `do` and `get` those with side effects.

    >>> b = Builder(Module(None), "define i64 @f(i64 %n)")
    >>> with b.loop("0", "%n") as i:
    ...     twice = b.v("mul i64 %n, 2")
    ...     assert b.v("mul i64 %n, 2") == twice
    >>> b.do("ret i64 0")
    >>> print(b.text())
    define i64 @f(i64 %n) {
    entry:
      %v1 = icmp sgt i64 %n, 0
      %v3 = mul i64 %n, 2
      br i1 %v1, label %body.1, label %exit.1
    body.1:
      %v2 = phi i64 [0, %entry], [%v4, %body.1]
      %v4 = add nsw i64 %v2, 1
      %v5 = icmp slt i64 %v4, %n
      br i1 %v5, label %body.1, label %exit.1
    exit.1:
      ret i64 0
    }
    """

    def __init__(self, module: Module, header: str) -> None:
        self.module, self.header = module, header
        self.target = module.target
        self.allocas: list[str] = []
        self._scopes = [_Scope([], {}, "entry")]
        self._level: dict[str, int] = {}
        self._names = self._labels = 0
        self.location = self._subprogram = ""  # `location` ends the instructions that are written

    def location_of(self, statement: object) -> str:
        """The debug location of a statement; the present one if the module has no line for it."""
        line = self.module.lines.get(id(statement))
        if line is None:
            return self.location
        self._subprogram = self._subprogram or self.module.subprogram()
        return f", !dbg !DILocation(line: {line}, scope: {self._subprogram})"

    def v(self, instruction: str) -> str:
        """Write a pure instruction (no memory access, no undefined behaviour) once; the name of its value."""
        level = self.level(instruction)
        scope = self._scopes[level]
        name = scope.memo.get(instruction)
        if name is None:
            name = scope.memo[instruction] = self._fresh(level)
            scope.lines.append(f"  {name} = {instruction}{self.location}")
        return name

    def call(self, result: str, function: str, *args: tuple[str, str], flags: str = "") -> str:
        """Declare and call a pure function; the name of its value. `args` are (type, value) pairs."""
        self.declare(f"declare {result} @{function}({', '.join(t for t, _ in args)})")
        operands = ", ".join(f"{t} {x}" for t, x in args)
        return self.v(f"call {flags}{result} @{function}({operands})")

    def level(self, text: str) -> int:
        """The depth, in loops and branches, of the innermost scope that defines an operand in `text`."""
        levels = self._level
        return max((levels.get(name, 0) for name in _NAME.findall(text)), default=0)

    def declare(self, text: str) -> None:
        """Add a declaration to the module, once."""
        self.module.declare(text)

    def do(self, line: str) -> None:
        """Write an instruction at the current position; it is not hoisted."""
        self._scopes[-1].lines.append(f"  {line}{self.location}")

    def get(self, instruction: str) -> str:
        """Write an instruction that is not hoisted (a load, an atomic); the name of its value."""
        name = self._fresh(len(self._scopes) - 1)
        self.do(f"{name} = {instruction}")
        return name

    def alloca(self, type_: str, align: int) -> str:
        """Allocate memory in the function's stack frame, in its entry block; the name of the pointer."""
        name = self._fresh(0)
        self.allocas.append(f"  {name} = alloca {type_}, align {align}")
        return name

    @property
    def block(self) -> str:
        """The label of the basic block that lines are appended to."""
        return self._scopes[-1].block

    def phi(self) -> tuple[str, Callable[[str], None]]:
        """Reserve a phi at the start of a block: its name, and a function that sets its instruction later."""
        scope = self._scopes[-1]
        name, at = self._fresh(len(self._scopes) - 1), len(scope.lines)
        scope.lines.append("")

        def define(instruction: str) -> None:
            scope.lines[at] = f"  {name} = {instruction}"

        return name, define

    def label(self, name: str) -> None:
        """Begin a basic block."""
        self._scopes[-1].lines.append(f"{name}:")
        self._scopes[-1].block = name

    def labels(self, *stems: str) -> list[str]:
        """New labels of basic blocks, one for each stem."""
        self._labels += 1
        return [f"{stem}.{self._labels}" for stem in stems]

    @contextmanager
    def scope(self) -> Iterator[None]:
        """A region of lines that run conditionally: values written inside are not reused after it."""
        self._scopes.append(_Scope([], {}, self._scopes[-1].block))
        yield
        inner = self._scopes.pop()
        self._scopes[-1].lines += inner.lines
        self._scopes[-1].block = inner.block

    @contextmanager
    def loop(self, lo: str, hi: str) -> Iterator[str]:
        """Loop over lo <= i < hi and yield the name of i: a guard before, the test at the bottom."""
        if hi.lstrip("-").isdigit() and lo.lstrip("-").isdigit():
            guard = None
            assert int(lo) < int(hi), "a loop without iterations"
        else:
            guard = self.v(f"icmp sgt i64 {hi}, {lo}")
        body, exit_label = self.labels("body", "exit")
        with self.scope():
            before = self.block
            self.do(f"br i1 {guard}, label %{body}, label %{exit_label}" if guard else f"br label %{body}")
            self.label(body)
            i, define = self.phi()
            yield i
            following = self.v(f"add nsw i64 {i}, 1")
            continues = self.v(f"icmp slt i64 {following}, {hi}")
            define(f"phi i64 [{lo}, %{before}], [{following}, %{self.block}]")
            self.do(f"br i1 {continues}, label %{body}, label %{exit_label}")
        self.label(exit_label)

    @contextmanager
    def when(self, condition: str) -> Iterator[None]:
        """Run the lines written inside only if the i1 `condition` is true."""
        then, exit_label = self.labels("then", "end")
        with self.scope():
            self.do(f"br i1 {condition}, label %{then}, label %{exit_label}")
            self.label(then)
            yield
            self.do(f"br label %{exit_label}")
        self.label(exit_label)

    @contextmanager
    def exit_if(self, condition: str) -> Iterator[None]:
        """Run the lines written inside, which must leave the function, if the i1 `condition` is true."""
        out, go_on = self.labels("leave", "go")
        with self.scope():
            self.do(f"br i1 {condition}, label %{out}, label %{go_on}")
            self.label(out)
            yield
        self.label(go_on)

    def branch(self, condition: str, then: Callable[[], None], orelse: Callable[[], None]) -> None:
        """Run the lines that `then` writes if the i1 `condition` is true, else those of `orelse`."""
        first, second, exit_label = self.labels("then", "else", "end")
        with self.scope():  # of both arms: instructions hoisted out of them precede the branch
            self.do(f"br i1 {condition}, label %{first}, label %{second}")
            for label, write in ((first, then), (second, orelse)):
                with self.scope():
                    self.label(label)
                    write()
                    self.do(f"br label %{exit_label}")
        self.label(exit_label)

    def text(self) -> str:
        """The text of the function's definition."""
        assert len(self._scopes) == 1
        header = f"{self.header} !dbg {self._subprogram}" if self._subprogram else self.header
        return "\n".join([header + " {", "entry:", *self.allocas, *self._scopes[0].lines, "}"])

    def _fresh(self, level: int) -> str:
        self._names += 1
        name = f"%v{self._names}"
        if level:
            self._level[name] = level
        return name
