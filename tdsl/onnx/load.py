"""`load`: an ONNX model, from a file or bytes, as a graph."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import onnx
from google.protobuf.message import DecodeError
from onnx import inliner

from tdsl.core.source import here
from tdsl.errors import DefinitionError, TypeMismatch, checked_call
from tdsl.graph.graph import Graph
from tdsl.onnx.evaluate import ModelFunction
from tdsl.onnx.model import Model, branches_of, model_of, nodes_of
from tdsl.onnx.operators import OPERATORS
from tdsl.target import Target

LARGEST_FILE = 2**31  # bytes: protocol buffers are not longer


@checked_call
def load(
    source: str | os.PathLike[str] | bytes | onnx.ModelProto,
    *,
    target: Target | str | None = None,
    fuse: bool = True,
) -> Graph:
    """The graph of an ONNX model, which takes the inputs of the model in order and returns its outputs.

    `source` is a path, the bytes of a file, or a model of the package `onnx`; it is read as data, nothing in
    it is executed. Shapes may differ from call to call, where the model permits it. An input that decides
    shapes, as the second one of Reshape does, is passed as a number or a list of numbers, and belongs to the
    plan. `target` and `fuse` are those of `td.Graph`.

    >>> import numpy as np, onnx.parser, tdsl as td
    >>> model = onnx.parser.parse_model('''
    ...   <ir_version: 9, opset_import: ["" : 19]>
    ...   twice (float[N] x) => (float[N] y) { y = Add(x, x) }''')
    >>> td.onnx.load(model.SerializeToString())(np.arange(3, dtype=np.float32))
    array([0., 2., 4.], dtype=float32)

    DefinitionError for a file that is no model, for operators without an implementation, for arrays stored in
    other files, and for arrays of absurd sizes; a call raises the errors of NumPy's functions in graphs.
    """
    model = model_of(_inlined(_proto_of(source)))
    _check_operators(model)
    return Graph(ModelFunction(model), target=target, fuse=fuse)


def _proto_of(source: Any) -> onnx.ModelProto:
    """The protocol buffer of a model; DefinitionError for what is none."""
    if isinstance(source, onnx.ModelProto):
        return source
    if isinstance(source, str | os.PathLike):
        try:
            size = os.path.getsize(source)
            if size > LARGEST_FILE:
                raise DefinitionError(
                    f"{os.fspath(source)} has {size:,} bytes",
                    loc=here(),
                    label="this model",
                    hint=f"{LARGEST_FILE:,} are the most of a model",
                )
            with open(source, "rb") as file:
                source = file.read()
        except OSError as error:
            raise DefinitionError(
                f"{os.fspath(source)} cannot be read: {error.strerror}",
                loc=here(),
                label="this model",
                hint="pass the path of a file of type .onnx, or its bytes",
            ) from None
    if not isinstance(source, bytes):
        raise TypeMismatch(
            f"td.onnx.load takes a path or bytes, not a {type(source).__name__}",
            loc=here(),
            label="this call",
            hint='td.onnx.load("model.onnx"), or td.onnx.load(model.SerializeToString())',
        )
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(source)
    except DecodeError:
        raise DefinitionError(
            "these bytes are no ONNX model",
            loc=here(),
            label="this model",
            hint="models are files of type .onnx, as torch.onnx.export writes",
        ) from None
    if not proto.HasField("graph") or not proto.opset_import:
        raise DefinitionError(
            "the file has no ONNX graph, or no version of its operators",
            loc=here(),
            label="this model",
            hint="models are files of type .onnx, as torch.onnx.export writes",
        )
    return proto


def _inlined(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model with calls of its own functions replaced by their nodes.

    So are operators without an implementation that ONNX defines by others.
    """
    if proto.functions:
        proto = inliner.inline_local_functions(proto)
    versions = {o.domain: o.version for o in proto.opset_import}
    defined, complete = set[tuple[str, str]](), onnx.ModelProto()
    complete.CopyFrom(proto)
    for node in complete.graph.node:
        schema = _definition(node, versions)
        if schema is not None:
            defined.add((node.domain, node.op_type))
            given = {a.name for a in node.attribute}  # definitions do not know the defaults of others
            defaults = (a.default_value for name, a in schema.attributes.items() if name not in given)
            node.attribute.extend(a for a in defaults if a.name)
    if not defined:
        return proto
    left_away = complete.graph.value_info.add()  # the inliner asks for the type of each input, also of ""
    left_away.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    try:
        return inliner.inline_selected_functions(complete, [*defined], inline_schema_functions=True)
    except RuntimeError:
        raise DefinitionError(
            f"the package onnx does not expand the definition of {', '.join(sorted(n for _, n in defined))}",
            loc=here(),
            label="this model",
            hint="it expands those whose types it can infer: onnx.shape_inference may add them to the model",
        ) from None


def _definition(node: onnx.NodeProto, versions: Mapping[str, int]) -> Any:
    """The schema of a node's operator if it defines it by others and there is no implementation here."""
    if not node.domain and node.op_type in OPERATORS:
        return None
    try:
        schema: Any = onnx.defs.get_schema(node.op_type, versions.get(node.domain, 1), node.domain)
    except onnx.defs.SchemaError:
        return None
    return schema if schema.has_function or schema.has_context_dependent_function else None


def _check_operators(model: Model) -> None:
    """Raises DefinitionError if operators of the model have no implementation, or a newer version."""
    newest = onnx.defs.onnx_opset_version()
    version = model.opsets.get("", 1)
    if version > newest:
        raise DefinitionError(
            f"the model has operators of version {version}; this package onnx knows {newest}",
            loc=here(),
            label="this model",
            hint="install a newer package onnx, or convert the model: onnx.version_converter",
        )
    nodes = [n for n in nodes_of(model.nodes) if not branches_of(n)]
    unknown = sorted({n.operator for n in nodes if n.domain or n.operator not in OPERATORS})
    if unknown:
        raise DefinitionError(
            f"the model has operators that graphs cannot compute: {', '.join(unknown)}",
            loc=here(),
            label="this model",
            hint="docs/onnx.md lists the known ones",
        )
