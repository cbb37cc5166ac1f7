"""The program of model.pt2 is read without PyTorch. tests/model_formats compares it with what PyTorch takes."""

import json

import pytest
from exported_program import MEMBERS, PROGRAM, SIGNATURE, write_program

from kfp_distributed.trainers.runtime.outputs.served_signature import served_signature
from kfp_distributed.trainers.runtime.outputs.torch_signature import read_program_signature


@pytest.mark.parametrize("member", MEMBERS)
def test_it_has_the_names_types_and_shapes_of_the_program(tmp_path, member):
    signature, keywords = read_program_signature(write_program(tmp_path, member=member))
    assert keywords == ("colour",)
    assert signature.to_dict() == SIGNATURE
    assert served_signature(tmp_path, "torch_export") == SIGNATURE


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("graph", "tensor_values", "size", "dtype"), 29, "the tensor size has a type that is not known: 29"),
        (("graph", "tensor_values"), {}, "a program of a form that is not known: KeyError"),
        (("module_call_graph",), [], "a program of a form that is not known: IndexError"),
        (("signature", "input_specs", 0), {"constant_input": {"name": "k"}}, r"takes the arguments \['k'\]: export"),
        (
            ("signature", "output_specs", 0, "user_output"),
            {"arg": {"as_none": True}},
            "returns .* export a model",
        ),
    ],
)
def test_another_program_is_refused(tmp_path, path, value, message):
    program = json.loads(json.dumps(PROGRAM))
    *parents, last = path
    parent = program["graph_module"]
    for key in parents:
        parent = parent[key]
    parent[last] = value
    with pytest.raises(ValueError, match=message):
        read_program_signature(write_program(tmp_path, program))


def test_an_archive_without_a_program_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"model.pt2 has none of the files serialized_exported_program.json, "):
        read_program_signature(write_program(tmp_path, member="model/data.pkl"))
