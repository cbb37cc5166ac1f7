"""Names the inputs and outputs of the programs of PyTorch."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import ZipFile

from kfp_distributed.storage.tensor_specs import Signature, TensorSpec

_OUTPUT = "output"

# Arguments that are no tensors, such as numbers, are constants of the program.
_ARGUMENTS = ("user_input", "constant_input")

# The file of the program in the archive: of PyTorch 2.6, and of the archives with several models of newer versions,
# where a folder has the name of the archive.
_PROGRAMS = ("serialized_exported_program.json", "models/model.json")

# The numbers of `ScalarType` in torch/_export/serde/schema.py. They differ from those of torch.dtype.
_DTYPES = (
    *("uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64"),
    *("complex32", "complex64", "complex128", "bool", "bfloat16"),
)


def torchscript_signature(module: Any, where: str) -> Signature:  # noqa: ANN401
    """Return the signature of a module that `torch.jit.load` has loaded.

    It has the arguments of forward without a default, and the output "output", or "output_0" and so on of a tuple. A
    TorchScript module has neither types nor shapes of tensors. The types are float32, as PyTorch computes unless told
    otherwise, and the shapes None.

    Args:
        module: The module.
        where: Where it is from, for errors.

    Raises:
        ValueError: forward takes or returns other things than tensors.
    """
    schema = module.forward.schema
    arguments = [argument for argument in schema.arguments[1:] if not argument.has_default_value()]
    if others := [f"{argument.name}: {argument.type}" for argument in arguments if str(argument.type) != "Tensor"]:
        raise ValueError(f"{where} takes the arguments {others}: save a model whose forward takes tensors")
    returned = schema.returns[0].type
    elements = returned.elements() if returned.kind() == "TupleType" else None
    if any(str(kind) != "Tensor" for kind in ([returned] if elements is None else elements)):
        raise ValueError(f"{where} returns {returned}: save a model whose forward returns a tensor, or a tuple of them")
    names = [_OUTPUT] if elements is None else _numbered(len(elements))
    return Signature.of(
        [TensorSpec(argument.name, "float32", None) for argument in arguments],
        [TensorSpec(name, "float32", None) for name in names],
    )


def read_torchscript_signature(file: Path) -> Signature | None:
    """Return the signature of a file of `torch.jit.save` without loading its weights, see `torchscript_signature`.

    Returns:
        None if this process has not imported PyTorch.

    Raises:
        ValueError: forward takes or returns other things than tensors. PyTorch may raise other errors.
    """
    if "torch" not in sys.modules:
        return None
    import torch

    return torchscript_signature(torch.jit.load(str(file), map_location="meta"), str(file))


class ProgramSignature(NamedTuple):
    """What an exported program takes and returns.

    Attributes:
        signature: The arguments that it was exported with, the positional ones first. The outputs have the keys of a
            program that returns a dictionary, else the name "output", or "output_0" and so on of several.
        keywords: Names of the inputs that are passed as keywords.
    """

    signature: Signature
    keywords: tuple[str, ...]


def read_program_signature(file: Path) -> ProgramSignature:
    """Return what the program of a file of `torch.export.save` takes and returns, without PyTorch.

    Raises:
        ValueError: The file has no program of a known form, or it takes or returns other things than tensors.
        BadZipFile: It is no zip file.
    """
    with ZipFile(file) as archive:
        found = next((name for name in archive.namelist() if name.endswith(_PROGRAMS)), None)
        if not found:
            raise ValueError(f"{file} has none of the files {', '.join(_PROGRAMS)}: save it with torch.export.save")
        text = archive.read(found)
    try:
        module = json.loads(text)["graph_module"]
        call = module["module_call_graph"][0]["signature"]
        keywords = json.loads(json.loads(call["in_spec"])[1]["children_spec"][1]["context"] or "[]")
        signature = _signature(module, json.loads(call["out_spec"])[1], str(file))
    except (IndexError, KeyError, TypeError) as error:
        raise ValueError(f"{file} has a program of a form that is not known: {error!r}") from None
    return ProgramSignature(signature, tuple(keywords))


def _signature(module: Mapping[str, Any], returned: Mapping[str, Any], where: str) -> Signature:
    described = module["graph"]["tensor_values"]
    specs = [value for spec in module["signature"]["input_specs"] for kind, value in spec.items() if kind in _ARGUMENTS]
    inputs = [spec["arg"]["as_tensor"]["name"] for spec in specs if "as_tensor" in spec.get("arg", ())]
    if len(inputs) != len(specs):
        others = [spec.get("name") or spec["arg"] for spec in specs if "as_tensor" not in spec.get("arg", ())]
        raise ValueError(f"{where} takes the arguments {others}: export a model whose forward takes tensors")
    nodes = [spec["user_output"]["arg"] for spec in module["signature"]["output_specs"] if "user_output" in spec]
    if returned["type"] == "builtins.dict":
        keys = [str(key) for key in json.loads(returned["context"])]
    else:
        keys = _numbered(len(nodes)) if len(nodes) > 1 else [_OUTPUT]
    if len(keys) != len(nodes) or not all("as_tensor" in node for node in nodes):
        raise ValueError(
            f"{where} returns {nodes}: export a model whose forward returns a tensor, or a dictionary of tensors"
        )
    return Signature.of(
        [_spec(name, described[name]) for name in inputs],
        [_spec(key, described[node["as_tensor"]["name"]]) for key, node in zip(keys, nodes, strict=True)],
    )


def _numbered(count: int) -> list[str]:
    return [f"{_OUTPUT}_{number}" for number in range(count)]


def _spec(name: str, tensor: Mapping[str, Any]) -> TensorSpec:
    number = tensor["dtype"]
    if not 1 <= number <= len(_DTYPES):
        raise ValueError(f"the tensor {name} has a type that is not known: {number} of ScalarType")
    # A dynamic size is an expression instead of an int.
    return TensorSpec(name, _DTYPES[number - 1], tuple(size.get("as_int") for size in tensor["sizes"]))
