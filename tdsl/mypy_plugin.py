"""A plugin of mypy for annotations such as `td.f32["M", "K"]`: the parameter is a `td.Tensor`.

In the configuration of mypy:

    plugins = ["tdsl.mypy_plugin"]

A type without extents, `td.f32`, annotates a `td.Scalar`. Type checkers without plugins need no
configuration: they read the classes of `tdsl.lang.annotations`, whose subscripts mypy would take for type
arguments.

Extents are taken out of a file after it is parsed. mypy parses a file if the cache does not describe it, and
then asks the plugin; or if its dependencies changed, and then does not ask. A file with extents is therefore
never described by the cache.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

from mypy.nodes import (
    AssignmentStmt,
    Expression,
    FuncDef,
    IndexExpr,
    IntExpr,
    MemberExpr,
    MypyFile,
    NameExpr,
    Node,
)
from mypy.options import Options
from mypy.plugin import AnalyzeTypeContext, Plugin, ReportConfigContext
from mypy.types import CallableType, RawExpressionType, Type, UnboundType

from tdsl.lang.types import ABSTRACT, BY_NAME

_OBJECTS = "tdsl.lang.types"
_ELEMENT_TYPES = BY_NAME | ABSTRACT
_EXTENTS = re.compile(rf"\b(?:{'|'.join(_ELEMENT_TYPES)})\[".encode())
_NESTED = ("func", "defs", "body", "else_body", "handlers", "finally_body")  # statements of a statement


class AnnotationPlugin(Plugin):
    """Reads element types in annotations as the handles that operators get for them."""

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        options.native_parser = False  # whose trees plugins may not see before they are read

    def get_additional_deps(self, file: MypyFile) -> list[tuple[int, str, int]]:
        """No modules; takes the extents out of the annotations of `file` before they are read."""
        for statement in _statements(file.defs):
            match statement:
                case FuncDef(unanalyzed_type=CallableType(arg_types=arguments, ret_type=result)):
                    for annotation in (*arguments, result):
                        _forget_extents(annotation)
                case AssignmentStmt(unanalyzed_type=annotation, rvalue=value) if annotation is not None:
                    _forget_extents(annotation)
                    if isinstance(value, IndexExpr) and _is_element_type(_last_name(value.base)):
                        value.index = IntExpr(0)  # of an alias of a type
                case _:
                    pass
        return []

    def report_config_data(self, ctx: ReportConfigContext) -> bool:
        """True, which the cache never contains, when mypy looks for a file with extents in its cache."""
        of_package = ctx.id.partition(".")[0] == "tdsl"  # its annotations have no extents
        return ctx.is_check and not of_package and _EXTENTS.search(Path(ctx.path).read_bytes()) is not None

    def get_type_analyze_hook(self, fullname: str) -> Callable[[AnalyzeTypeContext], Type] | None:
        """The reader of an annotation if `fullname` is an element type."""
        module, _, name = fullname.rpartition(".")
        return _parameter if module == _OBJECTS and name in _ELEMENT_TYPES else None


def _statements(block: object) -> Iterator[Node]:
    """The statements of a block, a list of them or a statement, with those that are nested in them."""
    if isinstance(block, list):
        for statement in block:
            yield from _statements(statement)
    elif isinstance(block, Node):
        yield block
        for part in _NESTED:
            yield from _statements(getattr(block, part, None))


def _forget_extents(annotation: Type | None) -> None:
    """Replaces extents by a number: mypy would look up their names as those of types."""
    if isinstance(annotation, UnboundType) and annotation.args and _is_element_type(annotation.name):
        annotation.args = (RawExpressionType(0, "builtins.int", annotation.line, annotation.column),)


def _last_name(e: Expression) -> str:
    return e.name if isinstance(e, NameExpr | MemberExpr) else ""


def _is_element_type(name: str) -> bool:
    return name.rpartition(".")[2] in _ELEMENT_TYPES


def _parameter(annotation: AnalyzeTypeContext) -> Type:
    handle = "Tensor" if annotation.type.args else "Scalar"
    return annotation.api.named_type(f"tdsl.lang.tensor.{handle}", [])


def plugin(version: str) -> type[Plugin]:
    """The class of the plugin, for mypy of any version."""
    return AnnotationPlugin
