"""Rewrites the kernels of TVM's CUDA text for a reader: names, declarations, parentheses and comments.

    TVM's text of a module  ->  for each kernel a comment, its signature, its memory, its statements

Prototypes are left out, arrays of one element become scalars, shared memory beyond the static limit becomes
a pointer for each array, and the index of a thread gets a short name. The machine code stays the same.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from tdsl.codegen.cuda.c_expressions import UnknownSyntax, c_name, tidied
from tdsl.codegen.cuda.identifiers import Identifiers, Scopes

_LOOPS = 4  # loops of an axis that a comment names
WIDTH = 116  # columns of a statement before it is broken
COMMENT = "tdsl_comment"  # calls of it in TIR are comments of the text
AXIS_NAMES = {
    "blockIdx.x": "bx", "blockIdx.y": "by", "blockIdx.z": "bz",
    "threadIdx.x": "tx", "threadIdx.y": "ty", "threadIdx.z": "tz",
}  # fmt: skip

_SIGNATURE = re.compile(r'(extern "C" __global__ .*?\b(\w+)\()([^()]*)\) \{')
_DECLARED = re.compile(r"( *)(__shared__ )?alignas\((\d+)\) (.+?) (id\d+_ptr)\[(\d+)\];")
_BOUND = re.compile(r"( *)([\w ]+?) (id\d+) = (.*);")
_LOOP = re.compile(r"( *)for \((\w+) (id\d+) = (.*?); (.*?); \+\+id\d+\) \{")
_IF = re.compile(r"( *)(if|while) \((.*)\) \{")
_SAID = re.compile(rf'( *){COMMENT}\("(.*)"\);')
_TYPEDEF = re.compile(r"\b(?:u?int\d+_t|uint|uchar|ushort)\b")
_AXIS = re.compile(r"\(\(int\)((?:block|thread)Idx\.[xyz])\)")
DYNAMIC = "shared_memory"  # of which the arrays beyond the static limit are parts


@dataclass(slots=True)
class Notes:
    """The comments and the head of a kernel's text; names are placeholders.

    `head` are the lines above the kernel, `axes` the loops bound to each CUDA axis. `shapes` has the shape of
    each array, and `starts` its offset in bytes in dynamic shared memory, whose alignment is `align`.
    `written_before` are the arrays, by name, that a kernel before this one writes while this one may run.
    """

    identifiers: Identifiers = field(default_factory=Identifiers)
    head: list[str] = field(default_factory=list)
    axes: dict[str, list[str]] = field(default_factory=dict)
    shapes: dict[str, str] = field(default_factory=dict)
    starts: dict[str, int] = field(default_factory=dict)
    written_before: frozenset[str] = frozenset()
    coherent: set[str] = field(default_factory=set)
    align: int = 0


def readable(text: str, notes: Mapping[str, Notes]) -> str:
    """The kernels of TVM's text in the order of `notes`, which has those of each kernel by its name."""
    kernels = {}
    for part in re.split(r'(?m)^(?=extern "C" __global__)', text):
        signature = _SIGNATURE.match(part)
        if signature is not None:
            kernels[signature[2]] = _kernel(part, signature, notes[signature[2]])
    return "\n".join(kernels[name] for name in notes)


def _kernel(text: str, signature: re.Match[str], notes: Notes) -> str:
    body = _AXIS.sub(lambda m: AXIS_NAMES[m[1]], text[signature.end() :].strip("\n"))
    writer = _Writer(notes, _scalars(body), body)
    scopes = writer.scopes
    scopes.open[0] |= {*AXIS_NAMES.values(), *((DYNAMIC,) if notes.starts else ())}
    for placeholder in re.findall(r"\bid\d+\b", signature[3]):
        scopes.declare(placeholder)
    lines = [*(f"// {line}" for line in notes.head), *_signature(signature, notes)]
    for axis, name in AXIS_NAMES.items():
        if re.search(rf"\b{name}\b", body):
            loops = notes.axes.get(axis, [])
            said = ", ".join(loops[:_LOOPS]) + (", ..." if len(loops) > _LOOPS else "")
            lines.append(f"  const int {name} = {axis};" + (f"  // {said}" if said else ""))
    if notes.starts:
        lines.append(f"  extern __shared__ __align__({notes.align}) unsigned char {DYNAMIC}[];")
    lines = [scopes.named(line) for line in lines]
    for line in body.splitlines():
        lines += writer.named_line(line)
    return "\n".join(lines).rstrip() + "\n"


def _signature(signature: re.Match[str], notes: Notes) -> list[str]:
    """The signature with each array on a line of its own, its shape behind it."""
    params = [p.strip() for p in signature[3].split(",") if p.strip()]
    if not params:
        return [f"{signature[1]}) {{"]
    lines = [signature[1]]
    for n, p in enumerate(params):
        kind, _, name = p.rpartition(" ")
        if name in notes.coherent:
            kind = kind.replace(" __restrict__", "")  # else the compiler loads it through no coherent cache
        shape = notes.shapes.get(name.removesuffix("_ptr"), "")
        stars = kind.replace("* __restrict__", " *__restrict__")
        kind = " ".join(c_name(w) for w in stars.split())
        kind = re.sub(r"\*__restrict__", "* __restrict__", kind).replace(" *", "*")
        line = f"    {kind} {name}{',' if n < len(params) - 1 else ') {'}"
        lines.append(line + (f"  // {shape}" if shape else ""))
    return lines


def _scalars(body: str) -> frozenset[str]:
    """The local arrays of one element, each used by its index 0 only."""
    single = re.findall(r"^ *alignas\(\d+\) .+? (id\d+_ptr)\[1\];", body, re.MULTILINE)
    return frozenset(x for x in single if body.count(x) == body.count(f"{x}[0]") + 1)


class _Writer:
    """Rewrites the lines of one kernel."""

    def __init__(self, notes: Notes, scalars: frozenset[str], body: str) -> None:
        self.notes, self.scalars, self.scopes = notes, scalars, Scopes(notes.identifiers)
        # arrays of which the text takes addresses, for accesses wider than an element
        self.wide = set(re.findall(r"[(&]\(?(id\d+_ptr)(?: \+|\[)", body))

    def named_line(self, line: str) -> list[str]:
        """The lines in place of one line of TVM's text, with the names of variables; scopes are followed."""
        if line.lstrip().startswith("}"):
            self.scopes.open.pop()
        if line.endswith("{"):
            self.scopes.open.append(set())
        if declared := _DECLARED.fullmatch(line) or _BOUND.fullmatch(line) or _LOOP.fullmatch(line):
            self.scopes.declare(next(x for x in declared.groups() if x and re.fullmatch(r"id\d+(_ptr)?", x)))
        return [self.scopes.named(x) for x in self.line(line)]

    def line(self, line: str) -> list[str]:
        """The lines in place of one line of TVM's text."""
        if said := _SAID.fullmatch(line):
            return [f"{said[1]}// {said[2]}"]
        if declared := _DECLARED.fullmatch(line):
            return [self.declaration(*declared.groups())]
        try:
            if loop := _LOOP.fullmatch(line):
                space, kind, name, first, test = loop.groups()
                start, end = self.text(first), self.text(test)
                return [f"{space}for ({c_name(kind)} {name} = {start}; {end}; ++{name}) {{"]
            if branch := _IF.fullmatch(line):
                space, word, test = branch.groups()
                return [f"{space}{word} ({self.text(test)}) {{"]
            if bound := _BOUND.fullmatch(line):
                space, kind, name, value = bound.groups()
                return _broken(space, f"{c_name(kind)} {name} = ", self.text(value), ";")
            if line.endswith(";"):
                return self.statement(line)
        except UnknownSyntax:
            pass  # the line stays as TVM prints it
        return [_TYPEDEF.sub(lambda m: c_name(m[0]), line)]

    def declaration(self, space: str, shared: str | None, align: str, kind: str, name: str, n: str) -> str:
        """The declaration of an array, of a scalar, or of a pointer into dynamic shared memory."""
        kind, key = c_name(kind), name.removesuffix("_ptr")
        shape = self.notes.shapes.get(key, "")
        said = f"  // {shape}" if shape else ""
        if key in self.notes.starts:
            start = f"{DYNAMIC} + {self.notes.starts[key]}" if self.notes.starts[key] else DYNAMIC
            value = f"({kind}*)({start})" if "+" in start else f"({kind}*){start}"
            return f"{space}{kind}* const {name} = {value};{said}"
        if shared:
            return f"{space}__shared__ alignas({align}) {kind} {name}[{n}];{said}"
        if name in self.scalars:
            return f"{space}{kind} {name};"
        return f"{space}{'alignas(16) ' if name in self.wide else ''}{kind} {name}[{n}];{said}"

    def statement(self, line: str) -> list[str]:
        """An assignment or a call, broken if it is too long."""
        code = line.strip()
        space = line[: len(line) - len(line.lstrip())]
        whole = tidied(code[:-1], self.is_scalar)
        if whole.operator == "=":
            return _broken(space, f"{whole.parts[0]} = ", whole.parts[1], ";")
        length = len(space) + len(self.scopes.named(whole.text))
        if whole.operator == "call" and length > WIDTH and len(whole.parts) > 2:
            name, *args = whole.parts
            return [f"{space}{name}(", *(f"{space}    {a}," for a in args[:-1]), f"{space}    {args[-1]});"]
        return [f"{space}{whole.text};"]

    def text(self, code: str) -> str:
        return tidied(code, self.is_scalar).text

    def is_scalar(self, name: str) -> bool:
        return name in self.scalars


def _broken(space: str, left: str, right: str, end: str) -> list[str]:
    """An assignment on one line, or its value on a second one."""
    if len(space) + len(left) + len(right) <= WIDTH + 20:
        return [f"{space}{left}{right}{end}"]
    return [f"{space}{left.rstrip()}", f"{space}    {right}{end}"]
