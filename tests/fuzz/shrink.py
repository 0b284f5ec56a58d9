"""A smaller case with the same fault: fewer directives, fewer lines, simpler values, smaller numbers."""

from __future__ import annotations

import ast
import copy
import json
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import tdsl as td
from tdsl.lang.expr import Size
from tests.fuzz.cases import Case
from tests.fuzz.made import Made

Fails = Callable[[Case], bool]


def shrink(case: Case, fails: Fails, seconds: float = 60.0) -> Case:
    """The smallest case that is found in the time; `fails` says whether a case has the fault."""
    end = time.monotonic() + seconds
    steps = (_plainer, _fewer_outputs, _without_unused, _fewer_directives, _without_funcs, _fewer_lines,
             _smaller_sizes, _simpler_values, _simpler_directives)  # fmt: skip
    changed = True
    while changed:
        changed = False
        for step in steps:
            smaller: Case | None = case
            while smaller is not None:
                smaller = _first(step(case), fails, end)
                if smaller is not None:
                    case, changed = smaller, True
    return case


def _first(candidates: Iterator[Case | None], fails: Fails, end: float) -> Case | None:
    for candidate in candidates:
        if time.monotonic() > end:
            return None
        if candidate is not None and fails(candidate):
            return candidate
    return None


def _plainer(case: Case) -> Iterator[Case]:
    for simple in (
        replace(case, layout="dense"),
        replace(case, dynamic=()),
        replace(case, canaries=False),
        replace(case, resized=None),
        replace(case, target="cpu"),
    ):
        if simple != case:
            yield simple


def _fewer_directives(case: Case) -> Iterator[Case]:
    rows = json.loads(case.directives)
    size = len(rows)
    while size:
        for at in range(0, len(rows), size):
            kept = legal(case.made, rows[:at] + rows[at + size :])
            if kept is not None and len(json.loads(kept)) < len(rows):
                yield replace(case, directives=kept)
        size //= 2


def _simpler_directives(case: Case) -> Iterator[Case]:
    rows = json.loads(case.directives)
    for at, row in enumerate(rows):
        for simpler in _simpler(row):
            kept = legal(case.made, [*rows[:at], simpler, *rows[at + 1 :]])
            if kept is not None and len(json.loads(kept)) == len(rows):
                yield replace(case, directives=kept)


def _simpler(row: dict[str, object]) -> Iterator[dict[str, object]]:
    for key in ("factor", "nparts", "extent", "multiple", "offset"):
        number = row.get(key)
        if isinstance(number, int) and number > 2:
            yield {**row, key: 2}
            yield {**row, key: number - 1}
    if "tail" in row:
        yield {k: v for k, v in row.items() if k != "tail"}


def legal(made: Made, rows: list[dict[str, object]]) -> str | None:
    """The directives that are legal for a program, in order, as JSON; None where they end in a fault."""
    try:
        s = td.Schedule(*made.outputs)
        for row in rows:
            try:
                s.replay(json.dumps([row]))
            except (td.TdslError, StopIteration):
                continue
        return s.to_json()
    except Exception:  # noqa: BLE001  # a candidate that brings another fault
        return None


def remade(
    case: Case,
    lines: list[str],
    outputs: list[str] | None = None,
    sizes: dict[str, int] | None = None,
) -> Case | None:
    """The case with other lines; None where they are no program."""
    old = case.made
    sizes = old.sizes if sizes is None else sizes
    names: dict[str, object] = {"td": td}
    try:
        for line in lines:
            exec(line, names)
        kept = [n for n in outputs or old.output_names if n in names]
        if not kept:
            return None
        inputs = {}
        for n, t in names.items():
            if isinstance(t, td.Tensor) and n in old.inputs:
                shape = tuple(sizes[e.name] if isinstance(e, Size) else int(e.value) for e in t.extents)
                inputs[n] = (shape, t.dtype)
        made = replace(old, lines=lines, names=names, output_names=kept, sizes=sizes, inputs=inputs)
        made.program()
    except Exception:  # noqa: BLE001  # not a program
        return None
    directives = legal(made, json.loads(case.directives))
    return None if directives is None else replace(case, made=made, directives=directives)


def _fewer_outputs(case: Case) -> Iterator[Case | None]:
    made = case.made
    if len(made.output_names) > 1:
        for n in made.output_names:
            yield remade(case, made.lines, [n])
    if len(made.output_names) == 1:
        funcs = [n for n, f in made.names.items() if isinstance(f, td.Func) and n.startswith("f")]
        for n in funcs[: funcs.index(made.output_names[0])] if made.output_names[0] in funcs else []:
            yield remade(case, made.lines, [n])


def _without_unused(case: Case) -> Iterator[Case | None]:
    """All lines that no output needs, at once."""
    used = set(case.made.output_names)
    kept: list[str] = []
    for line in reversed(case.made.lines[1:]):
        name = re.split(r"\W", line, maxsplit=1)[0]
        if name in used:
            kept.append(line)
            used |= set(re.findall(r"\b[a-z]\w*\b", line))
    lines = [case.made.lines[0], *reversed(kept)]
    if len(lines) < len(case.made.lines):
        yield remade(case, lines)


def _without_funcs(case: Case) -> Iterator[Case | None]:
    """A func that is nothing but a number."""
    for n, f in case.made.names.items():
        if isinstance(f, td.Func) and n.startswith("f") and not n.endswith("p") and f.definitions:
            own = [x for x in case.made.lines if x.startswith(f"{n}[")]
            if len(own) == 1 and own[0].count("(") < 3:
                continue
            left = own[0].split(" = ")[0]
            t = f.dtypes[0]
            lines = [x for x in case.made.lines if x not in own[1:]]
            lines[lines.index(own[0])] = f"{left} = td.cast(1, td.{t.name})"
            yield remade(case, lines)


def _fewer_lines(case: Case) -> Iterator[Case | None]:
    lines = case.made.lines
    for at in reversed(range(1, len(lines))):
        yield remade(case, lines[:at] + lines[at + 1 :])


def _smaller_sizes(case: Case) -> Iterator[Case | None]:
    for n, e in case.made.sizes.items():
        for smaller in (1, 2, e // 2, e - 1):
            if 0 < smaller < e:
                yield remade(case, case.made.lines, sizes={**case.made.sizes, n: smaller})


def _simpler_values(case: Case) -> Iterator[Case | None]:
    lines = case.made.lines
    for at in reversed(range(1, len(lines))):
        for text in _simpler_texts(lines[at]):
            if len(text) < len(lines[at]) or text < lines[at]:
                yield remade(case, [*lines[:at], text, *lines[at + 1 :]])


def _simpler_texts(line: str) -> Iterator[str]:
    """The line with one expression replaced by a part of it, or a number by a smaller one."""
    tree = ast.parse(line)
    nodes = [n for n in ast.walk(tree) if isinstance(n, ast.expr)]
    for position, node in enumerate(nodes):
        if isinstance(node, ast.Constant):
            if isinstance(node.value, int) and not isinstance(node.value, bool) and node.value > 0:
                for smaller in {0, 1, node.value // 2, node.value - 1} - {node.value}:
                    yield _replaced(tree, position, ast.Constant(smaller))
            continue
        if not isinstance(node, ast.Call | ast.BinOp | ast.UnaryOp | ast.Compare | ast.Subscript):
            continue
        parts = [n for n in ast.walk(node) if isinstance(n, ast.expr) and n is not node][:12]
        if isinstance(node, ast.Call | ast.BinOp | ast.UnaryOp | ast.Compare):
            for part in parts:
                if not isinstance(part, ast.Attribute | ast.Tuple):
                    yield _replaced(tree, position, part)


def _replaced(tree: ast.Module, position: int, new: ast.expr) -> str:
    changed = copy.deepcopy(tree)
    old = [n for n in ast.walk(changed) if isinstance(n, ast.expr)][position]
    new = copy.deepcopy(new)

    class Swap(ast.NodeTransformer):
        def visit(self, node: ast.AST) -> ast.AST:
            return new if node is old else self.generic_visit(node)

    return ast.unparse(ast.fix_missing_locations(Swap().visit(changed)))
