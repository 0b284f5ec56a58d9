"""Imports go one way, and heavy packages are imported in one folder each, when they are needed."""

import ast
import functools
import json
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import networkx
import pytest

PACKAGE = Path(__file__).parent.parent / "tdsl"

PROJECT = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text())

# The order of imports: modules and packages by rank, the lowest first.
LAYERS = [
    [name.strip() for name in layer.split("|")]
    for layer in reversed(PROJECT["tool"]["importlinter"]["contracts"][0]["layers"])
]
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}

# Where each heavy package may be imported. At the top of a module only where marked True. networkx costs
# 90 ms, more than half of what a first compilation may take, so compiling does without it.
# Homes are separated by spaces.
HEAVY = {
    "llvmlite": (
        "codegen/cpu machine/cpu.py machine/memory_kernels.py",
        True,
    ),  # what LLVM knows of this processor
    "numba": ("codegen/python", True),
    "tvm": ("codegen/cuda", True),
    "cuda": ("codegen/cuda", False),
    "typer": ("tools/cli.py", True),
    "rich": ("tools/cli.py tuning/progress.py", True),
    "sympy": ("lang", False),
    "mpi4py": ("distribute/mpi.py", False),
    "networkx": ("tilegraph", True),
    "ml_dtypes": ("lang", False),
    "torch": ("torch", True),
    "jax": ("jax", True),
    "onnx": ("onnx", True),
    "scipy": ("planner/milp.py", False),
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


def name_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def layer_of(module: str) -> str | None:
    """The entry of the order of imports that a module belongs to; None for the package itself."""
    parts = module.split(".")
    names = (".".join(parts[:n]) for n in range(len(parts), 0, -1))
    return next((name for name in names if name in RANK), None)


def layer_faults(path: Path, source: str) -> list[str]:
    layer = layer_of(name_of(path))
    faults = []
    for name, line in imports(ast.parse(source)):
        if layer is None or name.split(".")[0] != "tdsl":
            continue
        other = layer_of(name)
        if other is None and RANK[layer] < RANK["tdsl.tools.demo"]:
            faults.append(f"{path.name}:{line} {layer} must not import the whole of tdsl")
        if other not in (None, layer) and RANK[other] >= RANK[layer]:
            faults.append(f"{path.name}:{line} {layer} must not import {other}")
    return faults


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_go_one_way(path: Path) -> None:
    assert not layer_faults(path, path.read_text())


@pytest.mark.parametrize(
    "module, line",
    [
        ("lang/f.py", "from tdsl.schedule import directive"),
        ("codegen/ir/f.py", "import tdsl.codegen.passes.unroll"),
        ("lang/f.py", "from tdsl import schedule"),
        ("codegen/cpu/f.py", "import tdsl"),
        ("core/node.py", "def f():\n    from tdsl.lang.expr import Expr"),
    ],
)
def test_a_wrong_import_is_reported(module: str, line: str) -> None:
    assert layer_faults(PACKAGE / module, line)


def test_every_module_has_a_layer() -> None:
    front = {"tdsl", "tdsl.__main__", "tdsl.core", "tdsl.codegen", "tdsl.tools"}
    assert {name for name in map(name_of, modules()) if layer_of(name) is None} <= front


def test_no_file_imports_itself_through_others() -> None:
    paths = {name_of(path): path for path in modules()}
    graph = networkx.DiGraph()
    for name, path in paths.items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module:
                inside = (f"{node.module}.{alias.name}" for alias in node.names)
                others = {other if other in paths else node.module for other in inside}
                graph.add_edges_from((name, other) for other in others - {name} if other in paths)
    circles = [sorted(c) for c in networkx.strongly_connected_components(graph) if len(c) > 1]
    assert not circles


@pytest.mark.parametrize("heavy", HEAVY)
def test_a_heavy_package_is_imported_in_one_place(heavy: str) -> None:
    homes, _ = HEAVY[heavy]
    users = {str(path.relative_to(PACKAGE)) for path in modules() if heavy in imports_anywhere(path)}
    for home in homes.split():
        users = {user for user in users if user != home and not user.startswith(home + "/")}
    assert not users


@pytest.mark.parametrize("heavy", [name for name, (_, at_top) in HEAVY.items() if not at_top])
def test_a_package_for_a_few_users_is_imported_by_a_function(heavy: str) -> None:
    for path in modules():
        assert heavy not in imports_at_top(path), path


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
        json.loads(subprocess.run(command, cwd=PACKAGE.parent, check=True, capture_output=True).stdout)
        for _ in range(3)
    ]
    heavy = {"llvmlite", "sympy", "numba", "networkx", "rich", "typer", "tvm", "cuda"}
    assert not {*heavy, "tdsl.autoschedule.by_recipes", "tdsl.tilegraph.graph"} & {*runs[0][2]}
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
