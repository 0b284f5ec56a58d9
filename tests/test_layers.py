"""Imports go one way, and heavy packages are imported in one folder each, when they are needed."""

import ast
import functools
import json
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "tdsl"

# What stands earlier may not import what stands later; those of one rank may not import each other.
RANKS = (
    ("source",), ("errors",), ("node",), ("debug", "target"), ("rewrite", "text", "notebook"), ("placement",),
    ("lang",),
    ("schedule",), ("tilegraph", "codegen"), ("distribute",), ("variant",), ("pipeline",),
    ("inspection",), ("cuda", "emulation", "profiling"), ("compile",), ("tuning",), ("op",), ("graph",),
    ("bundle", "demo", "doctor", "measure", "run_bundle"), ("cli",), ("__main__",),
)  # fmt: skip
RANK = {name: rank for rank, names in enumerate(RANKS) for name in names}

# Where each heavy package may be imported. At the top of a module only where marked True. networkx costs
# 90 ms, more than half of what a first compilation may take, so compiling does without it.
HEAVY = {
    "llvmlite": ("codegen/cpu", True),
    "numba": ("codegen/python", True),
    "tvm": ("codegen/cuda", True),
    "cuda": ("codegen/cuda", False),
    "typer": ("cli.py", True),
    "rich": ("cli.py", True),
    "sympy": ("lang", False),
    "mpi4py": ("distribute/mpi.py", False),
    "networkx": ("tilegraph", True),
    "ml_dtypes": ("lang", False),
}

IMPORT_BUDGET = 6  # times NumPy's own import, which a slow or busy machine makes longer as well


def modules() -> list[Path]:
    return [path for path in sorted(PACKAGE.rglob("*.py")) if path != PACKAGE / "__init__.py"]


@functools.cache
def imports_at_top(path: Path) -> set[str]:
    """The packages that a module imports outside of its functions and classes."""
    body = ast.parse(path.read_text()).body
    top = ast.Module([s for s in body if not _is_definition(s)], [])
    return {name.split(".")[0] for name, _ in imports(top)}


@functools.cache
def imports_anywhere(path: Path) -> set[str]:
    """The packages that a module imports."""
    return {name.split(".")[0] for name, _ in imports(ast.parse(path.read_text()))}


def imports(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """The dotted names a module imports, with their lines; `from tdsl import x` counts as tdsl.x."""
    for n in ast.walk(tree):
        if isinstance(n, ast.Import):
            yield from ((alias.name, n.lineno) for alias in n.names)
        elif isinstance(n, ast.ImportFrom):
            assert n.level == 0, f"relative import in line {n.lineno}"
            module = n.module or ""
            if module == "tdsl":
                yield from ((f"tdsl.{alias.name}", n.lineno) for alias in n.names)
            else:
                yield module, n.lineno


def layer_faults(path: Path, source: str) -> list[str]:
    own = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    faults = []
    for name, line in imports(ast.parse(source)):
        if name == "tdsl" or not name.startswith("tdsl."):
            if name == "tdsl" and RANK[own] < RANK["demo"]:
                faults.append(f"{path.name}:{line} {own} must not import the whole of tdsl")
            continue
        other = name.split(".")[1]
        if other not in RANK and RANK[own] > RANK["compile"]:
            continue  # a public name, for the programs above the compiler
        if other != own and RANK[other] >= RANK[own]:
            faults.append(f"{path.name}:{line} {own} must not import {other}")
    return faults


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_go_one_way(path: Path) -> None:
    assert not layer_faults(path, path.read_text())


@pytest.mark.parametrize(
    "module, line",
    [
        ("lang/f.py", "from tdsl.schedule import directive"),
        ("codegen/f.py", "import tdsl.tilegraph.search"),
        ("lang/f.py", "from tdsl import schedule"),
        ("codegen/f.py", "import tdsl"),
        ("node.py", "def f():\n    from tdsl.lang.expr import Expr"),
    ],
)
def test_a_wrong_import_is_found(module: str, line: str) -> None:
    assert layer_faults(PACKAGE / module, line)


@pytest.mark.parametrize("heavy", HEAVY)
def test_a_heavy_package_is_imported_in_one_place(heavy: str) -> None:
    home, _ = HEAVY[heavy]
    users = {
        str(path.relative_to(PACKAGE)) for path in modules() if heavy in imports_anywhere(path)
    }
    assert all(user == home or user.startswith(home + "/") for user in users), users


@pytest.mark.parametrize("heavy", [name for name, (_, at_top) in HEAVY.items() if not at_top])
def test_a_package_for_a_few_users_is_imported_by_a_function(heavy: str) -> None:
    for path in modules():
        assert heavy not in imports_at_top(path), path


def test_import_linter_checks_the_same_ranks() -> None:
    config = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text())
    (contract,) = config["tool"]["importlinter"]["contracts"]
    layers = [
        {name.strip(" ()").removeprefix("tdsl.") for name in layer.split("|")}
        for layer in contract["layers"]
    ]
    assert layers[::-1] == [set(names) for names in RANKS[:-1]]


def _is_definition(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.FunctionDef | ast.ClassDef)


def test_import_loads_numpy_and_nothing_heavy(
    record_property: Callable[[str, object], None],
) -> None:
    program = (
        "import json, sys; from time import process_time as now; start = now(); import numpy;"
        "middle = now(); import tdsl; end = now();"
        "print(json.dumps([middle - start, end - middle, sorted(sys.modules)]))"
    )
    command = [sys.executable, "-c", program]
    runs = [
        json.loads(
            subprocess.run(command, cwd=PACKAGE.parent, check=True, capture_output=True).stdout
        )
        for _ in range(3)
    ]
    heavy = {"llvmlite", "sympy", "numba", "networkx", "rich", "typer", "tvm", "cuda"}
    assert not {*heavy, "tdsl.schedule.recipes", "tdsl.tilegraph"} & {*runs[0][2]}
    numpy, ours = (min(run[k] for run in runs) for k in (0, 1))
    record_property("import_ms_beyond_numpy", 1e3 * ours)
    assert ours < IMPORT_BUDGET * numpy


def test_a_program_of_one_func_is_compiled_without_the_search() -> None:
    program = (
        "import sys, tdsl as td\n"
        "i, a, f = td.vars('i'), td.Tensor('a', (64,), td.f32), td.Func('f')\n"
        "f[i] = a[i] * 2\n"
        "td.compile(f).loops()\n"
        "assert 'tdsl.tilegraph.search' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], cwd=PACKAGE.parent, check=True)
