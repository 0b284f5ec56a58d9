"""`Model`: an ONNX model as data: its inputs, its arrays, its nodes in order, its outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, TensorProto, numpy_helper

from tdsl.core.node import frozen
from tdsl.core.source import here
from tdsl.errors import DefinitionError, TypeMismatch
from tdsl.lang.types import from_numpy

Array = np.ndarray[Any, Any]

MOST_NODES = 100_000
MOST_BYTES = 2**36  # of one array, stored in the model or computed by it

_PLAIN_ATTRIBUTES: Mapping[int, Callable[[Any], Any]] = {
    AttributeProto.FLOAT: lambda a: a.f,
    AttributeProto.INT: lambda a: a.i,
    AttributeProto.STRING: lambda a: a.s.decode(errors="replace"),
    AttributeProto.FLOATS: lambda a: tuple(a.floats),
    AttributeProto.INTS: lambda a: tuple(a.ints),
    AttributeProto.STRINGS: lambda a: tuple(s.decode(errors="replace") for s in a.strings),
    AttributeProto.TENSOR: lambda a: array_of(a.t),
}


@frozen
class Node:
    """A call of an operator; inputs and outputs are names of arrays, "" for one that is left away."""

    operator: str
    domain: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]

    def __str__(self) -> str:
        return f"node {self.name or self.outputs[0]!r} ({self.operator})"


@frozen
class Branch:
    """The nodes of a branch of `If`, which may read arrays of the model, its arrays by name, its outputs."""

    arrays: Mapping[str, Array]
    nodes: tuple[Node, ...]
    outputs: tuple[str, ...]


@frozen
class Model:
    """An ONNX model: the types of its inputs by name, its arrays by name, its nodes in order, its outputs.

    `opsets` are the versions of the sets of operators, by domain.
    """

    name: str
    opsets: Mapping[str, int]
    inputs: Mapping[str, np.dtype[Any]]
    arrays: Mapping[str, Array]
    nodes: tuple[Node, ...]
    outputs: tuple[str, ...]


def model_of(proto: onnx.ModelProto) -> Model:
    """The model of a protocol buffer; DefinitionError for what a graph cannot have."""
    parts, opsets = _branch(proto.graph), {_domain(o.domain): o.version for o in proto.opset_import}
    inputs = {v.name: _input_type(v) for v in proto.graph.input if v.name not in parts.arrays}
    return Model(proto.graph.name, opsets, inputs, parts.arrays, parts.nodes, parts.outputs)


def nodes_of(nodes: Sequence[Node]) -> Iterator[Node]:
    """The nodes in order; those of branches before the node that they belong to."""
    for node in nodes:
        for branch in branches_of(node):
            yield from nodes_of(branch.nodes)
        yield node


def branches_of(node: Node) -> list[Branch]:
    """The branches of a node; none for one that is not `If`."""
    return [x for x in node.attributes.values() if isinstance(x, Branch)]


def _branch(graph: onnx.GraphProto) -> Branch:
    """The arrays, nodes and outputs of a graph of nodes."""
    if len(graph.node) > MOST_NODES:
        raise DefinitionError(
            f"the model has {len(graph.node):,} nodes; {MOST_NODES:,} are the most",
            loc=here(),
            label="this model",
            hint="load it in parts",
        )
    if graph.sparse_initializer:
        raise DefinitionError(
            f"the model {graph.name!r} has sparse arrays",
            loc=here(),
            label="this model",
            hint="store them dense",
        )
    arrays = {t.name: array_of(t) for t in graph.initializer}
    return Branch(arrays, tuple(_node(n) for n in graph.node), tuple(v.name for v in graph.output))


def _input_type(value: onnx.ValueInfoProto) -> np.dtype[Any]:
    """The element type of an input of the model."""
    kind = value.type.WhichOneof("value")
    if kind != "tensor_type":
        raise DefinitionError(
            f"the input {value.name!r} of the model is a {str(kind).removesuffix('_type')}",
            loc=here(),
            label="this model",
            hint="graphs take arrays: pass the parts as inputs of their own",
        )
    return numpy_type(value.type.tensor_type.elem_type)


def numpy_type(element: int) -> np.dtype[Any]:
    """NumPy's type for an element type of ONNX; DefinitionError for one that tdsl has not."""
    try:
        dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(element))
        from_numpy(dtype)
    except (KeyError, TypeMismatch):
        names = {number: name for name, number in TensorProto.DataType.items()}
        raise DefinitionError(
            f"arrays of {names.get(element, f'type {element}')} are not known to tdsl",
            loc=here(),
            label="this model",
            hint="cast them to floats or integers of 8 to 64 bits before the model is stored",
        ) from None
    return dtype


def array_of(tensor: TensorProto) -> Array:
    """The array that is stored in a model; DefinitionError for external data, absurd or wrong sizes."""
    if tensor.data_location == TensorProto.EXTERNAL or tensor.external_data:
        raise DefinitionError(
            f"the array {tensor.name!r} is stored outside of the model",
            loc=here(),
            label="this model",
            hint="store it inside: onnx.save(onnx.load(path), other_path)",
        )
    dtype = numpy_type(tensor.data_type)
    shape = tuple(tensor.dims)
    nbytes = prod(shape) * dtype.itemsize
    if any(n < 0 for n in shape) or nbytes > MOST_BYTES:
        raise DefinitionError(
            f"the array {tensor.name!r} has shape {shape}",
            loc=here(),
            label="this model",
            hint=f"{MOST_BYTES:,} bytes are the most",
        )
    if tensor.HasField("raw_data") and len(tensor.raw_data) != nbytes:
        raise DefinitionError(
            f"the array {tensor.name!r} has shape {shape} and {len(tensor.raw_data):,} bytes, not {nbytes:,}",
            loc=here(),
            label="this model",
            hint="the file is damaged: store it again",
        )
    try:
        return numpy_helper.to_array(tensor)
    except (ValueError, TypeError) as error:
        raise DefinitionError(
            f"the array {tensor.name!r}: {error}",
            loc=here(),
            label="this model",
            hint="the file is damaged: store it again",
        ) from None


def _node(node: onnx.NodeProto) -> Node:
    attributes = {}
    for attribute in node.attribute:
        read = _PLAIN_ATTRIBUTES.get(attribute.type)
        if attribute.type == AttributeProto.GRAPH and (node.domain, node.op_type) == ("", "If"):
            attributes[attribute.name] = _branch(attribute.g)
            continue
        if read is None:
            kind = AttributeProto.AttributeType.Name(attribute.type).lower()
            name = node.name or next(iter(node.output), "")
            raise DefinitionError(
                f"node {name!r} ({node.op_type}) has an attribute {attribute.name!r} of kind {kind}",
                loc=here(),
                label="this model",
                hint="graphs have numbers, texts and arrays as attributes, and no loops of nodes",
            )
        attributes[attribute.name] = read(attribute)
    names = (*node.input,), (*node.output,)
    return Node(node.op_type, _domain(node.domain), node.name, *names, attributes)


def _domain(name: str) -> str:
    """The name of a set of operators; that of ONNX itself has two."""
    return "" if name == "ai.onnx" else name
