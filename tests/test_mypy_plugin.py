"""Annotations of operators are types for checkers: the plugin of mypy, and the classes for other checkers."""

from __future__ import annotations

import ast
from pathlib import Path

from mypy.errors import Errors
from mypy.fastparse import parse
from mypy.nodes import AssignmentStmt, FuncDef, IndexExpr, IntExpr, MypyFile
from mypy.options import Options
from mypy.plugin import ReportConfigContext

import tdsl
from tdsl.lang import types
from tdsl.mypy_plugin import AnnotationPlugin


def _rewritten(text: str) -> MypyFile:
    options = Options()
    file = parse(text, "program.py", "program", Errors(options), options)
    file._fullname = "program"
    assert AnnotationPlugin(options).get_additional_deps(file) == []
    return file


def _annotations(function: FuncDef) -> list[str]:
    return [str(t) for t in function.unanalyzed_type.arg_types]  # type: ignore[union-attr]


def test_extents_of_parameters_are_numbers_for_mypy() -> None:
    file = _rewritten('def f(x: td.f32["M", 4], y: f8e4m3["M"], n: td.f32, z: list["M"]): ...')
    (function,) = file.defs
    assert isinstance(function, FuncDef)
    x, y, n, z = _annotations(function)
    assert (x, y, n) == ("td.f32?[0]", "f8e4m3?[0]", "td.f32?")
    assert "M" in z


def test_functions_in_classes_and_branches_are_rewritten() -> None:
    nested = "class A:\n  if True:\n    pass\n  else:\n    for _ in ():\n      def f(x: td.i8['Width']): ..."
    assert "Width" not in str(_rewritten(nested))
    assert "Width" in str(_rewritten(nested.replace("td.i8", "tuple")))


def test_aliases_of_types_have_no_names_of_extents() -> None:
    (alias,) = _rewritten('Rows: TypeAlias = td.f32["R", C]').defs
    assert isinstance(alias, AssignmentStmt)
    assert isinstance(alias.rvalue, IndexExpr)
    assert isinstance(alias.rvalue.index, IntExpr)


def test_only_element_types_have_a_hook() -> None:
    plugin = AnnotationPlugin(Options())
    assert all(plugin.get_type_analyze_hook(f"tdsl.lang.types.{t.name}") for t in types.ALL)
    assert plugin.get_type_analyze_hook("tdsl.lang.types.DType") is None
    assert plugin.get_type_analyze_hook("numpy.f32") is None


def test_the_cache_describes_no_file_with_extents(tmp_path: Path) -> None:
    plugin, with_extents, without = AnnotationPlugin(Options()), tmp_path / "a.py", tmp_path / "b.py"
    with_extents.write_text('def f(x: td.f32["M"]): ...')
    without.write_text("def f(x: td.f32) -> list[int]: ...")

    def is_described(name: str, path: Path) -> bool:
        stored, sought = (ReportConfigContext(name, str(path), is_check=x) for x in (False, True))
        return plugin.report_config_data(stored) == plugin.report_config_data(sought)

    assert not is_described("program", with_extents)
    assert is_described("program", without)
    assert is_described("tdsl.op", with_extents)


def test_each_element_type_is_a_class_for_other_checkers() -> None:
    stub = Path(tdsl.__file__).parent / "lang" / "annotations.pyi"
    classes = [s.name for s in ast.parse(stub.read_text()).body if isinstance(s, ast.ClassDef)]
    assert classes[2:] == [*types.BY_NAME, *types.ABSTRACT]
