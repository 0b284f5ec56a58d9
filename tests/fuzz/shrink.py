"""A smaller case with the same fault: fewer directives, fewer lines, simpler values, smaller numbers."""

from __future__ import annotations

import ast
import copy
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import tdsl as td
from tdsl.lang.expr import Size
from tests.fuzz.cases import Case
from tests.fuzz.programs import Made

Fails = Callable[[Case], bool]


def shrink(case: Case, fails: Fails, seconds: float = 60.0) -> Case:
    """The smallest case that is found in the time; `fails` says whether a case has the fault."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        smaller = None
        for candidate in _candidates(case):
            if time.monotonic() > end:
                break
            if fails(candidate):
                smaller = candidate
                break
        if smaller is None:
            break
        case = smaller
    return case


def _candidates(case: Case) -> Iterator[Case]:
    for simple in (replace(case, strided=False), replace(case, dynamic=())):
        if simple != case:
            yield simple
    yield from _fewer_directives(case)
    for made in (*_fewer_outputs(case.made), *_other_lines(case.made)):
        if made is not None:
            kept = legal(made, json.loads(case.directives))
            if kept is not None:
                yield replace(case, made=made, directives=kept)


def _fewer_directives(case: Case) -> Iterator[Case]:
    rows = json.loads(case.directives)
    size = len(rows)
    while size:
        for at in range(0, len(rows), size):
            kept = legal(case.made, rows[:at] + rows[at + size :])
            if kept is not None and len(json.loads(kept)) < len(rows):
                yield replace(case, directives=kept)
        size //= 2
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


def remade(lines: list[str], outputs: list[str], sizes: dict[str, int], old: Made) -> Made | None:
    """The program of some lines; None where it is not one."""
    names: dict[str, object] = {"td": td}
    try:
        for line in lines:
            exec(line, names)
        kept = [n for n in outputs if n in names]
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
    return made


def _fewer_outputs(made: Made) -> Iterator[Made | None]:
    if len(made.output_names) > 1:
        for n in made.output_names:
            yield remade(made.lines, [n], made.sizes, made)
    for n, f in made.names.items():
        if isinstance(f, td.Func) and n not in made.output_names and n.startswith("f"):
            yield remade(made.lines, [n], made.sizes, made)


def _other_lines(made: Made) -> Iterator[Made | None]:
    lines = made.lines
    used = "\n".join(lines)
    for at in reversed(range(1, len(lines))):
        yield remade(lines[:at] + lines[at + 1 :], made.output_names, made.sizes, made)
        name = lines[at].split(" ")[0]
        block = [x for x in lines if not x.startswith((f"{name} ", f"{name}[", f"{name}."))]
        if len(block) < len(lines) - 1 and used.count(name) > 1:
            yield remade(block, made.output_names, made.sizes, made)
    for n, e in made.sizes.items():
        for smaller in (1, 2, e // 2, e - 1):
            if 0 < smaller < e:
                yield remade(lines, made.output_names, {**made.sizes, n: smaller}, made)
    for at in range(1, len(lines)):
        for text in _simpler_texts(lines[at]):
            yield remade([*lines[:at], text, *lines[at + 1 :]], made.output_names, made.sizes, made)


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
