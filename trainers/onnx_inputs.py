"""Gives an ONNX graph, which takes rows as a matrix, an input for each column by its name."""

from collections.abc import Sequence

import onnx
from onnx import TensorProto, helper

from kfp_distributed.storage.dataset import Column

_TEXT_OPSET = helper.make_opsetid("ai.onnx.ml", 2)


def can_be_inputs(columns: Sequence[Column], output: str) -> bool:
    """Return whether the names of columns can be those of inputs.

    All tensors of an ONNX graph have different names, so that an input cannot be called like the output. "" stands for
    no tensor.
    """
    return not {column.name for column in columns} & {"", output}


def with_column_inputs(network: onnx.ModelProto, columns: Sequence[Column], has_unknown: bool) -> onnx.ModelProto:
    """Return a model that takes raw rows by the names of the columns.

    A number is float32 [n, 1], a category string [n, 1], and a tensor float32 [n, *shape]. NaN and "" stand for a
    missing value. These are the shapes that skl2onnx gives to the columns of a table.

    Args:
        network: Model with one input, float32 [n, width], and one output.
        columns: The columns in the order of that input. See `can_be_inputs`.
        has_unknown: Whether the network knows the index `len(vocabulary) + 1` of a category, for an unknown text. Else
            it gets 0, as for a missing one.
    """
    names = {column.name for column in columns}
    prefix = "network/"
    while any(name.startswith(prefix) for name in names):
        prefix += "/"
    (output,) = network.graph.output
    graph = onnx.compose.add_prefix(network, prefix).graph
    nodes, parts = [], []
    for index, column in enumerate(columns):
        part = f"{prefix}column_{index}"
        nodes.append(_to_numbers(column, part, has_unknown))
        parts.append(part)
    nodes += [helper.make_node("Concat", parts, [graph.input[0].name], axis=1), *graph.node]
    # Not by an Identity after it: ONNX Runtime 1.32 leaves out an addition of less than 1e-45, which it takes for 0,
    # unless its result is the output.
    for node in nodes:
        node.output[:] = [output.name if name == graph.output[0].name else name for name in node.output]
    composed = helper.make_graph(nodes, "columns", list(map(_input, columns)), [output], graph.initializer)
    opsets = [*network.opset_import, _TEXT_OPSET]
    model = helper.make_model(composed, opset_imports=opsets, ir_version=network.ir_version)
    onnx.checker.check_model(model)
    return model


def _input(column: Column) -> onnx.ValueInfoProto:
    kind = TensorProto.STRING if column.kind == "category" else TensorProto.FLOAT
    return helper.make_tensor_value_info(column.name, kind, ["n", *(column.shape or (1,))])


def _to_numbers(column: Column, result: str, has_unknown: bool) -> onnx.NodeProto:
    """Return the node that makes [n, values of a row] of the input of a column."""
    if column.kind != "category":
        return helper.make_node("Flatten", [column.name], [result], axis=1)
    indices = {"": 0} | {text: index for index, text in enumerate(column.vocabulary, 1)}
    return helper.make_node(
        "LabelEncoder",
        [column.name],
        [result],
        domain=_TEXT_OPSET.domain,
        keys_strings=list(indices),
        values_floats=list(map(float, indices.values())),
        default_float=float(len(column.vocabulary) + 1 if has_unknown else 0),
    )
