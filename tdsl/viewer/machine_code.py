"""Assembly and CUDA as lines that belong to funcs and loops."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence

from tdsl.viewer.contents import Line

_LOCATION = re.compile(r"\s*\.loc\s+\d+ (\d+)")
_DEBUG = re.compile(r"\s*\.(cfi_|file|ident|addrsig|p2align|size|type|globl|section|text\b)|\.L(tmp|func_)")
_DEBUG_SECTION = re.compile(r"\s*\.section\s+\.debug_")
_SECTION = re.compile(r"\s*\.(section|text\b)")
_NAMED = re.compile(r"//\s*(\w+): ")
_LOOP = re.compile(r"for \(\w+ (\w+) = ")


def assembly_lines(text: str, loops: Sequence[Line]) -> Iterator[Line]:
    """The instructions, labels and constants of assembly with `.loc`, whose lines are those of `loops`.

    >>> loops = [Line("for f_i in range(0, 4):", ("f", "f_i")), Line("  f[f_i] = 0", ("f", "f_i", "f"))]
    >>> text = "f:\\n\\t.loc 1 2 0\\n\\tmovl\\t%eax, (%rdi)\\n\\t.cfi_endproc\\n\\t.loc 1 0 0\\n\\tretq"
    >>> [(line.text, line.names) for line in assembly_lines(text, loops)]
    [('f:', ()), ('    movl       %eax, (%rdi)', ('f', 'f_i', 'f')), ('    retq', ())]
    """
    at, is_debug = 0, False
    for line in text.splitlines():
        location = _LOCATION.match(line)
        if _SECTION.match(line):
            is_debug = bool(_DEBUG_SECTION.match(line))
        if location:
            at = int(location[1])
        elif line.strip() and not is_debug and not _DEBUG.match(line):
            _, *instruction = line.split("\t", 2)
            names = loops[at - 1].names if 0 < at <= len(loops) and instruction else ()
            yield Line(
                "    " + " ".join(f"{x:10}" for x in instruction).rstrip() if instruction else line, names
            )


def cuda_lines(text: str, funcs: Collection[str], loops: Collection[str]) -> Iterator[Line]:
    """The lines of CUDA code: a comment names the func of what follows in its block, `for` names loops.

    >>> text = "// f: computed from a\\nfor (int i = 0; i < 4; ++i) {\\n  f[i] = a[i];\\n}"
    >>> [line.names for line in cuda_lines(text, ("f",), ("f_i",))]
    [('f',), ('f', 'f_i'), ('f', 'f_i'), ('f',)]
    """
    open_blocks: list[tuple[int, tuple[str, ...]]] = []  # the indentation of a line behind each, its names
    for line in text.splitlines():
        code = line.lstrip()
        indent = len(line) - len(code)
        named, loop = _NAMED.match(code), _LOOP.match(code)
        starts = named is not None and named[1] in funcs
        while open_blocks and code and open_blocks[-1][0] >= indent - starts:
            open_blocks.pop()
        names = open_blocks[-1][1] if open_blocks else ()
        if named and starts:
            names += (named[1],)
            open_blocks.append((indent - 1, names))
        elif loop:
            f = next((n for n in reversed(names) if n in funcs), "")
            full = f"{f}_{loop[1].removesuffix('_ahead')}"
            names += (full,) if full in loops else ()
            open_blocks.append((indent, names))
        yield Line(line, names)
